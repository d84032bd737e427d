//! What control asks of a worker. Whatever is allocated or freed for it is allocated and freed by control: boxes travel
//! there and back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use castnet_engine::{
    Captured, Context, ContextStatus, DryRun, Expected, FdbEntry, FrameFilter, InstallError, Neighbour,
    TapId, Trace,
};
use castnet_wire::McstId;
use crossbeam::channel::Sender;

use crate::report::Report;

/// Commands that one worker carries out in one round at most.
pub(crate) const PER_ROUND: usize = 8;
/// Commands that wait for one worker at most.
pub(crate) const QUEUE: usize = 64;

/// A subscriber of live traces or captured frames.
pub(crate) struct Subscriber {
    pub(crate) id: TapId,
    pub(crate) to: Sink,
    /// What found no place on its way.
    pub(crate) lost: Arc<AtomicU64>,
}

/// Where a worker puts what a subscriber wants.
pub(crate) enum Sink {
    Traces(Sender<Trace>),
    /// With the bytes that are kept of each frame.
    Captured(Sender<Captured>, usize),
}

/// What came of an attempt to have a group, with what was kept for it, which control frees.
pub(crate) type Attached<E> = (Result<(), E>, Box<Expected>);

/// One command, with where its answer goes. An answer that nobody waits for any more is dropped.
pub(crate) enum Command {
    /// All workers are there: begin.
    Go,
    Install(Context, Sender<Result<Option<Context>, InstallError>>),
    Remove(McstId, Sender<Option<Context>>),
    Status(McstId, Sender<Option<ContextStatus>>),
    /// Fills the report; groups go on from where it stands.
    Report(Box<Report>, Sender<Box<Report>>),
    Fdb(Vec<FdbEntry>, Sender<Vec<FdbEntry>>),
    Neighbours(Vec<Neighbour>, Sender<Vec<Neighbour>>),
    /// Fills in what a dry run needs to know.
    DryRun(Box<DryRun>, Sender<Box<DryRun>>),
    /// A subscriber to so many frames.
    Arm(Subscriber, FrameFilter, u64),
    Disarm(TapId),
    /// A group will come: from now on its frames are held.
    Expect(Box<Expected>, Sender<Attached<InstallError>>),
    /// It will not come, and what is kept for it, if anything is, is given back.
    Unexpect(Option<Box<Expected>>, Sender<()>),
    /// Lets go of a group, once all that is on its way here has been taken over.
    Detach(McstId, Sender<Option<Context>>),
    /// The group has come. One that is refused goes back.
    Attach(Context, Box<Expected>, Sender<Attached<(InstallError, Context)>>),
    /// Answers once no frame waits here for a ring, and where asked for, once this worker has caught up with its own.
    Settle(bool, Sender<()>),
    /// Answers once the tables that were published before are in use.
    Sync(Sender<()>),
    /// Stop receiving; go on with what other workers hand over.
    Quiesce(Sender<()>),
    /// No worker receives any more: take what is on its way, send what is held back.
    Drain(Sender<()>),
    /// All workers have drained: end.
    End,
}
