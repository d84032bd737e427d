//! A cluster of etcd servers, as processes that listen at Unix sockets.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig, EtcdStore};
use castnet_proto::transport::{Address, Security};
use tempfile::TempDir;

pub(crate) struct Cluster {
    folder: TempDir,
    servers: Vec<Option<Child>>,
}

impl Cluster {
    /// `None`: there is no etcd here; the test `test` is skipped.
    pub(crate) fn start(test: &str, size: usize) -> Option<Self> {
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
        let folder = tempfile::tempdir().unwrap();
        let servers = (0..size).map(|_| None).collect();
        let mut cluster = Self { folder, servers };
        let outputs: Vec<_> = (0..size).map(|n| cluster.spawn(n)).collect();
        for output in outputs {
            await_readiness(output);
        }
        Some(cluster)
    }

    fn spawn(&mut self, n: usize) -> BufReader<std::process::ChildStderr> {
        let peer = |n| format!("s{n}=unix://p{n}:0");
        let all: Vec<String> = (0..self.servers.len()).map(peer).collect();
        let (client, peer) = (format!("unix://c{n}:0"), format!("unix://p{n}:0"));
        let args = [
            ["--name", &format!("s{n}")],
            ["--data-dir", &format!("d{n}")],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &all.join(",")],
        ];
        for socket in ["c", "p"] {
            // That of a server that was killed.
            let _ = std::fs::remove_file(self.folder.path().join(format!("{socket}{n}:0")));
        }
        let mut server = Command::new("etcd")
            .args(args.as_flattened())
            .current_dir(self.folder.path())
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
        let output = self.spawn(n);
        await_readiness(output);
    }

    /// Runs a command of etcd's own client.
    pub(crate) fn etcdctl(&self, args: &[&str]) {
        let status = Command::new("etcdctl")
            .args(["--endpoints", "unix://c0:0"])
            .args(args)
            .env("ETCDCTL_API", "3")
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn config(&self) -> EtcdConfig {
        let member = |n| Address::Unix(self.folder.path().join(format!("c{n}:0")));
        Self::config_of((0..self.servers.len()).map(member).collect())
    }

    pub(crate) fn config_of(members: Vec<Address>) -> EtcdConfig {
        EtcdConfig {
            members,
            prefix: "castnet".into(),
            security: Security::default(),
        }
    }

    pub(crate) async fn campaign(&self, address: &str) -> Campaign {
        Candidate::new(&self.config(), address).campaign().await.unwrap()
    }

    /// The store, when nobody else leads.
    pub(crate) async fn store(&self) -> EtcdStore {
        loop {
            if let Campaign::Won(store) = self.campaign("http://here:1").await {
                return store;
            }
        }
    }
}

/// Returns when a server serves, and reads what else it logs.
fn await_readiness(mut output: BufReader<std::process::ChildStderr>) {
    let mut line = String::new();
    while !line.contains("ready to serve client requests") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "etcd has ended");
    }
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.servers.len() {
            self.kill(n);
        }
    }
}
