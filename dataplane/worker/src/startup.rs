//! Startup of the workers: from the creation of their threads to the start command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use castnet_port::{HandOver, Memory, PortLink};
use crossbeam::channel::{Receiver, Sender};

use crate::command::Command;
use crate::config::DataplaneConfig;
use crate::control::WorkerHandle;
use crate::error::StartError;
use crate::steering::FlowTables;
use crate::worker::{OpenedWorker, Ring};

/// The workers that are starting.
pub(crate) struct Startup {
    pub(crate) commands: Vec<Sender<Command>>,
    pub(crate) generations_in_use: Vec<Arc<AtomicU64>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) opened: Vec<Receiver<Result<OpenedWorker, StartError>>>,
}

impl Startup {
    /// Waits until all workers have opened their ports. On failure the other workers end because their
    /// command channels close.
    #[allow(clippy::type_complexity)]
    pub(crate) fn ready(
        &mut self,
        mut failed: Option<StartError>,
    ) -> Result<(Vec<WorkerHandle>, Vec<PortLink>, FlowTables), (StartError, Vec<JoinHandle<()>>)> {
        let (mut handles, mut links, mut flow_tables) = (Vec::new(), Vec::new(), Vec::new());
        let commands = std::mem::take(&mut self.commands);
        for ((opened, commands), generation_in_use) in
            self.opened.iter().zip(commands).zip(&self.generations_in_use)
        {
            match opened.recv() {
                Ok(Ok(ready)) => {
                    handles.push(WorkerHandle::new(
                        commands,
                        ready.waker,
                        generation_in_use.clone(),
                        ready.alive,
                    ));
                    links = ready.links;
                    flow_tables = ready.flow_tables;
                }
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => {
                    let died = io::Error::other("the thread ended while it opened its ports");
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

/// Creates the rings from each worker to each other worker. The ring from a worker to itself is never used
/// and has capacity 1.
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
        // A worker that panicked has printed its message on standard error. Its frames are lost.
        let _ = thread.join();
    }
}
