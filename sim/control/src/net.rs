//! Connections between nodes that can be cut and held, in virtual time: a proxy for each pair.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use castnet_proto::transport::{Address, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::StreamExt;

use castnet_controller::SwitchConfig;

/// What is sent arrives so much later.
const LATENCY: Duration = Duration::from_millis(1);

/// What happens on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    /// What is sent arrives.
    None,
    /// Connections break, and new ones too.
    Cut,
    /// Connections stay, but what the node sends, or what it receives, arrives only after the fault.
    Held([bool; 2]),
}

/// The connections, by the nodes that open and accept them.
#[derive(Debug, Default)]
pub struct Net(BTreeMap<(String, String), watch::Sender<Fault>>);

impl Net {
    /// What `from` sends to the socket `at` goes to `to`, which listens at `target`.
    ///
    /// # Panics
    /// The socket is taken.
    pub fn link(&mut self, from: &str, to: &str, at: &Path, target: PathBuf) {
        let (fault, now) = watch::channel(Fault::None);
        self.0.insert((from.into(), to.into()), fault);
        let mut accepted = memory::listen(at).unwrap();
        tokio::spawn(async move {
            while let Some(client) = accepted.next().await {
                tokio::spawn(carry(client, target.clone(), now.clone()));
            }
        });
    }

    /// Links from `node` to these switches, and to these members of etcd, which are `e0`, `e1` ... Returns the folder with the sockets of
    /// the switches, in this one, and the members, as the node reaches them.
    ///
    /// # Panics
    /// One of them has no socket.
    pub fn surround(
        &mut self,
        node: &str,
        folder: &Path,
        switches: &[SwitchConfig],
        etcd: &[Address],
    ) -> (PathBuf, Vec<Address>) {
        let folder = folder.join(node);
        let mut link = |to: &str, target: &Address| {
            let Address::Unix(target) = target else {
                panic!("{target}")
            };
            let at = folder.join(format!("{to}.sock"));
            self.link(node, to, &at, target.clone());
            Address::Unix(at)
        };
        for switch in switches {
            link(&switch.name, &switch.agent);
        }
        let members = etcd.iter().enumerate();
        let members = members
            .map(|(n, member)| link(&format!("e{n}"), member))
            .collect();
        (folder, members)
    }

    /// The nodes at the ends of links.
    pub fn nodes(&self) -> Vec<String> {
        let nodes: BTreeSet<&String> = self.0.keys().flat_map(|(from, to)| [from, to]).collect();
        nodes.into_iter().cloned().collect()
    }

    /// A fault between `node` and `other`, or all others.
    pub fn fail(&self, node: &str, other: Option<&str>, fault: Fault) {
        let is_other = |name: &str| other.is_none_or(|other| other == name);
        for ((from, to), link) in &self.0 {
            if from == node && is_other(to) {
                link.send_replace(fault);
            } else if to == node && is_other(from) {
                link.send_replace(match fault {
                    Fault::Held([sends, receives]) => Fault::Held([receives, sends]),
                    fault => fault,
                });
            }
        }
    }

    /// Ends all faults.
    pub fn heal(&self) {
        for link in self.0.values() {
            link.send_replace(Fault::None);
        }
    }
}

async fn carry(client: DuplexStream, target: PathBuf, mut fault: watch::Receiver<Fault>) {
    // A new connection needs both ways.
    let is_open = |fault: &Fault| !matches!(fault, Fault::Held(_));
    if fault.wait_for(is_open).await.is_err() {
        return;
    }
    let Ok(server) = memory::connect(&target) else {
        return;
    };
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let (there, back) = (fault.clone(), fault.clone());
    tokio::select! {
        // Nothing more arrives then.
        biased;
        _ = fault.wait_for(|fault| *fault == Fault::Cut) => {}
        () = copy(from_client, to_server, there, 0) => {}
        () = copy(from_server, to_client, back, 1) => {}
    }
}

async fn copy(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut fault: watch::Receiver<Fault>,
    way: usize,
) {
    let mut buffer = vec![0; 1 << 14];
    loop {
        let bytes = from.read(&mut buffer).await.unwrap_or(0);
        sleep(LATENCY).await;
        let is_open = |fault: &Fault| !matches!(fault, Fault::Held(ways) if ways[way]);
        if fault.wait_for(is_open).await.is_err()
            || bytes == 0
            || to.write_all(&buffer[..bytes]).await.is_err()
        {
            return;
        }
    }
}
