//! Startup of the workers: from the creation of their threads to the start command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use castnet_port::{Memory, PortLink, Reattach};
use crossbeam::channel::{Receiver, Sender};

use crate::command::Command;
use crate::config::DataplaneConfig;
use crate::control::WorkerHandle;
use crate::error::StartError;
use crate::ring::Ring;
use crate::steering::FlowTables;
use crate::worker::{OpenedWorker, rank};

pub(crate) struct StartingWorker {
    pub(crate) commands: Sender<Command>,
    pub(crate) generation_in_use: Arc<AtomicU64>,
    pub(crate) opened: Receiver<Result<OpenedWorker, StartError>>,
}

/// Reports on drop that the thread of this worker has ended, also by a panic.
pub(crate) struct WorkerEnd(pub(crate) usize, pub(crate) Sender<usize>);

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        // Each worker reports once, so there is room.
        let _ = self.1.try_send(self.0);
    }
}

/// Workers that have opened their ports.
pub(crate) struct OpenedWorkers {
    pub(crate) handles: Vec<WorkerHandle>,
    pub(crate) links: Vec<PortLink>,
    pub(crate) flow_tables: FlowTables,
    /// For each port, the sides of all workers, if the port is on an interface.
    pub(crate) interfaces: Vec<Vec<Arc<Reattach>>>,
}

/// On failure the other workers end because their command channels close. `failed` is earlier and takes precedence.
pub(crate) fn await_opened(
    workers: Vec<StartingWorker>,
    mut failed: Option<StartError>,
) -> Result<OpenedWorkers, StartError> {
    let (mut handles, mut links, mut flow_tables) = (Vec::new(), Vec::new(), Vec::new());
    let mut interfaces: Vec<Vec<_>> = Vec::new();
    let count = workers.len();
    for (index, worker) in workers.into_iter().enumerate() {
        match worker.opened.recv() {
            Ok(Ok(ready)) => {
                handles.push(WorkerHandle {
                    commands: worker.commands,
                    waker: ready.waker,
                    generation_in_use: worker.generation_in_use,
                    alive: ready.alive,
                });
                for (port, link) in ready.links.into_iter().enumerate() {
                    match links.get_mut(port) {
                        None => links.push(link),
                        // This worker reports what the link becomes after this.
                        Some(known) if rank(index, port, count) == 0 => *known = link,
                        Some(_) => {}
                    }
                }
                flow_tables = ready.flow_tables;
                interfaces.resize(ready.interfaces.len(), Vec::new());
                for (sides, side) in interfaces.iter_mut().zip(ready.interfaces) {
                    sides.extend(side);
                }
            }
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Err(_) => {
                let died = io::Error::other("the thread ended while it opened its ports");
                failed = failed.or(Some(StartError::Thread(died)));
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(OpenedWorkers {
        handles,
        links,
        flow_tables: FlowTables::new(flow_tables, count),
        interfaces,
    })
}

/// From each worker to each other one. The ring from a worker to itself is never used and has capacity 1.
pub(crate) fn rings<M: Memory>(config: &DataplaneConfig) -> Vec<Vec<Arc<Ring<M>>>> {
    let workers = config.workers.len();
    let ring = |from, to| {
        let (capacity, frame_max) = match from == to {
            true => (1, 0),
            false => (config.hand_over, config.pool.frame_max),
        };
        Arc::new(Ring::new(capacity, frame_max))
    };
    (0..workers)
        .map(|from| (0..workers).map(|to| ring(from, to)).collect())
        .collect()
}

pub(crate) fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A worker that panicked has printed its message. Its frames are lost.
        let _ = thread.join();
    }
}
