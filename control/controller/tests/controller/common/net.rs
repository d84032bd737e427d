//! Connections between processes that can be cut and held: a proxy at a Unix socket for each pair.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// What happens on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Connections break, and new ones too.
    Cut,
    /// Connections stay, but what the node sends, or what it receives, arrives only after the fault.
    Held([bool; 2]),
}

/// The connections, by the nodes that open and accept them.
#[derive(Default)]
pub(crate) struct Net(BTreeMap<(String, String), watch::Sender<Fault>>);

impl Net {
    /// What `from` sends to the socket `at` goes to `to`, which listens at `target`.
    pub(crate) fn link(&mut self, from: &str, to: &str, at: &Path, target: PathBuf) {
        let listener = UnixListener::bind(at).unwrap();
        let (fault, now) = watch::channel(Fault::None);
        self.0.insert((from.into(), to.into()), fault);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, target.clone(), now.clone()));
            }
        });
    }

    pub(crate) fn nodes(&self) -> Vec<String> {
        let nodes: BTreeSet<&String> = self.0.keys().flat_map(|(from, to)| [from, to]).collect();
        nodes.into_iter().cloned().collect()
    }

    /// A fault between `node` and `other`, or all others.
    pub(crate) fn fail(&self, node: &str, other: Option<&str>, fault: Fault) {
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

    pub(crate) fn heal(&self) {
        for link in self.0.values() {
            link.send_replace(Fault::None);
        }
    }
}

async fn carry(client: UnixStream, target: PathBuf, mut fault: watch::Receiver<Fault>) {
    // A new connection needs both ways.
    let is_open = |fault: &Fault| !matches!(fault, Fault::Held(_));
    if fault.wait_for(is_open).await.is_err() {
        return;
    }
    let Ok(server) = UnixStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (there, back) = (fault.clone(), fault.clone());
    tokio::select! {
        _ = fault.wait_for(|fault| *fault == Fault::Cut) => {}
        () = copy(from_client, to_server, there, 0) => {}
        () = copy(from_server, to_client, back, 1) => {}
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut fault: watch::Receiver<Fault>,
    way: usize,
) {
    let mut buffer = vec![0; 1 << 14];
    loop {
        let bytes = from.read(&mut buffer).await.unwrap_or(0);
        let is_open = |fault: &Fault| !matches!(fault, Fault::Held(ways) if ways[way]);
        if fault.wait_for(is_open).await.is_err()
            || bytes == 0
            || to.write_all(&buffer[..bytes]).await.is_err()
        {
            return;
        }
    }
}
