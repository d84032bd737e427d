//! The commands from control to a worker. Control allocates and frees all memory; boxes travel to the worker and back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use castnet_engine::{
    Captured, Context, ContextStatus, DryRun, Expected, FdbEntry, FrameFilter, InstallError, Neighbour,
    TapId, Trace,
};
use castnet_wire::McstId;
use crossbeam::channel::Sender;

use crate::report::Report;

/// Limit of commands that a worker executes per iteration.
pub(crate) const PER_ITERATION: usize = 8;
/// Capacity of a worker's command queue.
pub(crate) const QUEUE: usize = 64;

/// A subscriber of live traces or captured frames.
pub(crate) struct Subscriber {
    pub(crate) id: TapId,
    pub(crate) to: Sink,
    /// Items lost because a queue was full.
    pub(crate) lost: Arc<AtomicU64>,
}

/// The channel to a subscriber.
pub(crate) enum Sink {
    Traces(Sender<Trace>),
    /// Captured frames, and the number of bytes kept of each.
    Captured(Sender<Captured>, usize),
}

/// Result of an attempt to take a group in, and the memory that was reserved for it, which control frees.
pub(crate) type Attached<E> = (Result<(), E>, Box<Expected>);

/// A command with its reply channel. A reply is dropped if its receiver is gone.
pub(crate) enum Command {
    /// Start the main loop. All workers are ready.
    Go,
    Install(Context, Sender<Result<Option<Context>, InstallError>>),
    Remove(McstId, Sender<Option<Context>>),
    Status(McstId, Sender<Option<ContextStatus>>),
    /// Fill the report. The groups continue at the report's cursor.
    Report(Box<Report>, Sender<Box<Report>>),
    Fdb(Vec<FdbEntry>, Sender<Vec<FdbEntry>>),
    Neighbours(Vec<Neighbour>, Sender<Vec<Neighbour>>),
    /// Copy the state that a dry run needs.
    DryRun(Box<DryRun>, Sender<Box<DryRun>>),
    /// Subscribe to this many frames.
    Arm(Subscriber, FrameFilter, u64),
    Disarm(TapId),
    /// Reserve memory for a group and hold its frames from now on.
    Expect(Box<Expected>, Sender<Attached<InstallError>>),
    /// Cancel `Expect` and release the reserved memory, if any.
    Unexpect(Option<Box<Expected>>, Sender<()>),
    /// Remove a group once the frames now in the inbound rings have been processed.
    Detach(McstId, Sender<Option<Context>>),
    /// Take the group in. A refused group is returned.
    Attach(Context, Box<Expected>, Sender<Attached<(InstallError, Context)>>),
    /// Reply once no frame is blocked here. If the flag is set, wait also until the inbound rings are not crowded.
    Barrier(bool, Sender<()>),
    /// Reply once the tables published before are in use.
    Sync(Sender<()>),
    /// Stop receiving, but continue to process frames from other workers.
    Quiesce(Sender<()>),
    /// No worker receives any more: process the inbound rings and send everything.
    Drain(Sender<()>),
    /// End. All workers have drained.
    End,
}
