//! etcd: the model, or a cluster of servers, as processes that listen at Unix sockets. Each has a folder, where it finds the sockets of
//! its peers.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig, EtcdStore};
use castnet_proto::transport::{Address, Security, TlsFiles};
use tempfile::TempDir;
use tokio::time::sleep;

use castnet_sim_control::etcd::EtcdModel;
use castnet_sim_control::net::Net;

/// Pause between looks at who leads.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// Time to live of a lead that a loaded machine does not end: see [`Etcd::end_lead`].
pub(crate) const LASTING: Duration = Duration::from_secs(20);
/// The key of the lead.
pub(crate) const LEADER: &str = "castnet/leader";

/// A cluster, real or not.
pub(crate) trait Etcd {
    fn config(&self) -> EtcdConfig;

    /// Ends the lead of a controller that is dead or cut off, as the end of its lease does.
    fn end_lead(&self);

    /// Earlier revisions cannot be read any more.
    fn compact(&self, revision: i64);
}

impl Etcd for EtcdModel {
    fn config(&self) -> EtcdConfig {
        self.config()
    }

    fn end_lead(&self) {
        self.end_lead();
    }

    fn compact(&self, revision: i64) {
        self.compact(revision);
    }
}

pub(crate) async fn campaign(config: &EtcdConfig, address: &str) -> Campaign {
    Candidate::new(config, address).campaign().await.unwrap()
}

/// The store, when nobody else leads.
pub(crate) async fn store(config: &EtcdConfig) -> EtcdStore {
    loop {
        if let Campaign::Won(store) = campaign(config, "http://here:1").await {
            return store;
        }
        sleep(POLL).await;
    }
}

pub(crate) struct Cluster {
    folder: TempDir,
    servers: Vec<Option<Child>>,
}

impl Cluster {
    /// `None`: there is no etcd here; the test `test` is skipped.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let mut cluster = Self::new(test, 1)?;
        cluster.run();
        Some(cluster)
    }

    /// As [`Cluster::start`], with so many members, which are connected by `net`, as nodes `e0`, `e1` ...
    pub(crate) fn start_over(net: &mut Net, test: &str, size: usize) -> Option<Self> {
        let mut cluster = Self::new(test, size)?;
        let all = (0..size).flat_map(|n| (0..size).map(move |m| (n, m)));
        for (n, m) in all.filter(|(n, m)| n != m) {
            let (at, target) = (cluster.path(n, "p", m), cluster.path(m, "p", m));
            net.link(&format!("e{n}"), &format!("e{m}"), &at, target);
        }
        cluster.run();
        Some(cluster)
    }

    /// One member that serves over TLS, and only clients with certificates of the authority; with its port.
    pub(crate) fn over_tls(test: &str, tls: &TlsFiles) -> Option<(Self, u16)> {
        let mut cluster = Self::new(test, 1)?;
        let any = "https://127.0.0.1:0";
        let mut output = cluster.spawn(
            0,
            &[
                &format!("--listen-client-urls={any}"),
                &format!("--advertise-client-urls={any}"),
                "--enable-grpc-gateway=false",
                "--client-cert-auth",
                &format!("--trusted-ca-file={}", tls.ca.display()),
                &format!("--cert-file={}", tls.cert.display()),
                &format!("--key-file={}", tls.key.display()),
            ],
        );
        let line = await_line(&mut output, "serving client");
        let port = line.rsplit_once("127.0.0.1:").unwrap().1;
        let digits = port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len());
        drain(output);
        Some((cluster, port[..digits].parse().unwrap()))
    }

    fn new(test: &str, size: usize) -> Option<Self> {
        let lacks = |program, version| {
            let quiet = Command::new(program)
                .arg(version)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            quiet.is_err()
        };
        if lacks("etcd", "--version") || lacks("etcdctl", "version") {
            castnet_wrap_up::skip(
                test,
                "needs etcd and etcdctl: packages etcd-server and etcd-client",
            );
            return None;
        }
        // etcd waits for its disk at each write, and for others that use it.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.unwrap();
        for n in 0..size {
            std::fs::create_dir(folder.path().join(n.to_string())).unwrap();
        }
        let servers = (0..size).map(|_| None).collect();
        Some(Self { folder, servers })
    }

    fn run(&mut self) {
        let outputs: Vec<_> = (0..self.servers.len()).map(|n| self.spawn(n, &[])).collect();
        for output in outputs {
            await_readiness(output);
        }
    }

    /// The socket of member `m` in the folder of member `n`, for clients (`c`) or for peers (`p`).
    fn path(&self, n: usize, kind: &str, m: usize) -> PathBuf {
        self.folder.path().join(format!("{n}/{kind}{m}:0"))
    }

    fn spawn(&mut self, n: usize, more: &[&str]) -> BufReader<ChildStderr> {
        let peer = |n| format!("s{n}=unix://p{n}:0");
        let all: Vec<String> = (0..self.servers.len()).map(peer).collect();
        let (client, peer) = (format!("unix://c{n}:0"), format!("unix://p{n}:0"));
        let args = [
            ["--name", &format!("s{n}")],
            ["--data-dir", "data"],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &all.join(",")],
        ];
        for kind in ["c", "p"] {
            // That of a server that was killed.
            let _ = std::fs::remove_file(self.path(n, kind, n));
        }
        let mut server = Command::new("etcd")
            .args(args.as_flattened())
            .args(more)
            .current_dir(self.folder.path().join(n.to_string()))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(server.stderr.take().unwrap());
        self.servers[n] = Some(server);
        output
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut server) = self.servers[n].take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    pub(crate) fn restart(&mut self, n: usize) {
        let output = self.spawn(n, &[]);
        await_readiness(output);
    }

    /// Runs a command of etcd's own client.
    fn etcdctl(&self, args: &[&str]) {
        let status = Command::new("etcdctl")
            .args(["--endpoints", "unix://c0:0"])
            .args(args)
            .env("ETCDCTL_API", "3")
            .current_dir(self.folder.path().join("0"))
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn config_of(members: Vec<Address>) -> EtcdConfig {
        EtcdConfig {
            members,
            prefix: "castnet".into(),
            security: Security::default(),
            // A loaded machine says nothing for seconds.
            answer_within: Duration::from_secs(60),
            lead_ttl: LASTING,
        }
    }
}

impl Etcd for Cluster {
    fn config(&self) -> EtcdConfig {
        let member = |n| Address::Unix(self.path(n, "c", n));
        Self::config_of((0..self.servers.len()).map(member).collect())
    }

    fn end_lead(&self) {
        self.etcdctl(&["del", LEADER]);
    }

    fn compact(&self, revision: i64) {
        self.etcdctl(&["compact", &revision.to_string()]);
    }
}

/// Returns when a server serves, and reads what else it logs.
fn await_readiness(mut output: BufReader<ChildStderr>) {
    await_line(&mut output, "ready to serve client requests");
    drain(output);
}

fn await_line(output: &mut BufReader<ChildStderr>, wanted: &str) -> String {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "etcd has ended");
    }
    line
}

fn drain(mut output: BufReader<ChildStderr>) {
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.servers.len() {
            self.kill(n);
        }
    }
}
