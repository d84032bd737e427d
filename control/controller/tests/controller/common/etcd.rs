//! etcd: the model, or a server as a process that listens at Unix sockets in its folder.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig, EtcdStore};
use castnet_proto::transport::{Address, Security, TlsFiles};
use tempfile::TempDir;
use tokio::time::sleep;

use castnet_sim_control::etcd::EtcdModel;

/// Pause between looks at who leads.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// Time to live of a lead that a loaded machine does not end: see [`Etcd::end_lead`].
const LASTING: Duration = Duration::from_secs(20);
/// The key of the lead.
const LEADER: &str = "castnet/leader";
/// Where a server has its clients, relative to its folder.
const CLIENTS: &str = "unix://c0:0";

/// etcd, real or not.
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

/// A server of etcd itself, which ends with this.
pub(crate) struct Cluster {
    folder: TempDir,
    server: Child,
}

impl Cluster {
    /// `None`: there is no etcd here; the test `test` is skipped.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let (cluster, mut output) = Self::spawn(test, CLIENTS, &[])?;
        await_line(&mut output, "ready to serve client requests");
        drain(output);
        Some(cluster)
    }

    /// One that serves over TLS, and only clients with certificates of the authority; with its port.
    pub(crate) fn over_tls(test: &str, tls: &TlsFiles) -> Option<(Self, u16)> {
        let (cluster, mut output) = Self::spawn(
            test,
            "https://127.0.0.1:0",
            &[
                "--enable-grpc-gateway=false",
                "--client-cert-auth",
                &format!("--trusted-ca-file={}", tls.ca.display()),
                &format!("--cert-file={}", tls.cert.display()),
                &format!("--key-file={}", tls.key.display()),
            ],
        )?;
        let line = await_line(&mut output, "serving client");
        let port = line.rsplit_once("127.0.0.1:").unwrap().1;
        let digits = port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len());
        drain(output);
        Some((cluster, port[..digits].parse().unwrap()))
    }

    fn spawn(test: &str, clients: &str, more: &[&str]) -> Option<(Self, BufReader<ChildStderr>)> {
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
        let args = [
            ["--name", "s0"],
            ["--data-dir", "data"],
            ["--listen-client-urls", clients],
            ["--advertise-client-urls", clients],
            ["--listen-peer-urls", "unix://p0:0"],
            ["--initial-advertise-peer-urls", "unix://p0:0"],
            ["--initial-cluster", "s0=unix://p0:0"],
        ];
        let mut server = Command::new("etcd")
            .args(args.as_flattened())
            .args(more)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(server.stderr.take().unwrap());
        Some((Self { folder, server }, output))
    }

    /// Runs a command of etcd's own client.
    fn etcdctl(&self, args: &[&str]) {
        let status = Command::new("etcdctl")
            .args(["--endpoints", CLIENTS])
            .args(args)
            .env("ETCDCTL_API", "3")
            .current_dir(self.folder.path())
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
        Self::config_of(vec![Address::Unix(self.folder.path().join("c0:0"))])
    }

    fn end_lead(&self) {
        self.etcdctl(&["del", LEADER]);
    }

    fn compact(&self, revision: i64) {
        self.etcdctl(&["compact", &revision.to_string()]);
    }
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
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
