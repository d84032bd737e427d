//! Workers between the making of their threads and the start.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use castnet_port::{HandOver, Memory, PortLink};
use crossbeam::channel::{Receiver, Sender};

use crate::command::Command;
use crate::config::DataplaneConfig;
use crate::control::Handle;
use crate::error::StartError;
use crate::steering::FlowTables;
use crate::worker::{Opened, Ring};

/// Workers that are being started.
pub(crate) struct Nursery {
    pub(crate) commands: Vec<Sender<Command>>,
    pub(crate) seen: Vec<Arc<AtomicU64>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) opened: Vec<Receiver<Result<Opened, StartError>>>,
}

impl Nursery {
    /// Waits until all workers have opened their ports. On failure the others end, as nobody will command them.
    #[allow(clippy::type_complexity)]
    pub(crate) fn ready(
        &mut self,
        mut failed: Option<StartError>,
    ) -> Result<(Vec<Handle>, Vec<PortLink>, FlowTables), (StartError, Vec<JoinHandle<()>>)> {
        let (mut handles, mut links, mut flow_tables) = (Vec::new(), Vec::new(), Vec::new());
        let commands = std::mem::take(&mut self.commands);
        for ((opened, commands), seen) in self.opened.iter().zip(commands).zip(&self.seen) {
            match opened.recv() {
                Ok(Ok(ready)) => {
                    handles.push(Handle::new(commands, ready.waker, seen.clone(), ready.life));
                    links = ready.links;
                    flow_tables = ready.flow_tables;
                }
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {
                    let died = io::Error::other("it died while it opened its ports");
                    failed = failed.or(Some(StartError::Thread(died)));
                }
            }
        }
        match failed {
            None => {
                let workers = handles.len();
                Ok((handles, links, FlowTables::new(flow_tables, workers)))
            }
            Some(error) => {
                drop(handles);
                Err((error, std::mem::take(&mut self.threads)))
            }
        }
    }
}

/// The rings from each worker to each other; a worker's ring to itself has one place, which is never used.
pub(crate) fn rings<M: Memory>(config: &DataplaneConfig) -> Vec<Vec<Ring<M>>> {
    let workers = config.workers.len();
    let ring = |from, to| {
        let (capacity, frame_max) = if from == to {
            (1, 0)
        } else {
            (config.hand_over, config.pool.frame_max)
        };
        Arc::new(M::HandOver::new(capacity, frame_max))
    };
    (0..workers)
        .map(|from| (0..workers).map(|to| ring(from, to)).collect())
        .collect()
}

pub(crate) fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A worker that panicked has said so on standard error; its frames are lost with it.
        let _ = thread.join();
    }
}
