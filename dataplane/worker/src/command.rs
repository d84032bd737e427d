//! What control asks of a worker. Whatever is allocated or freed for it is allocated and freed by control: boxes travel
//! there and back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use castnet_engine::{
    CaptureFilter, Captured, CollectiveGroupStatus, Context, FdbEntry, GroupStatus, InstallError, Neighbour,
    Trace, TraceFilter,
};
use castnet_wire::{McstId, PortId};
use crossbeam::channel::Sender;

use crate::report::Report;

/// Commands that one worker carries out in one round at most.
pub(crate) const PER_ROUND: usize = 8;
/// Commands that wait for one worker at most.
pub(crate) const QUEUE: usize = 64;

/// Where a worker puts what it watches.
pub(crate) struct Sink<T> {
    pub(crate) to: Sender<T>,
    /// What found no place.
    pub(crate) lost: Arc<AtomicU64>,
}

/// One command, with where its answer goes. An answer that nobody waits for any more is dropped.
pub(crate) enum Command {
    /// All workers are there: begin.
    Go,
    Install(Context, Sender<Result<Option<Context>, InstallError>>),
    Remove(McstId, Sender<Option<Context>>),
    Status(McstId, Sender<Option<GroupStatus>>),
    CollectiveStatus(McstId, Sender<Option<CollectiveGroupStatus>>),
    /// Fills the report; groups go on from where it stands.
    Report(Box<Report>, Sender<Box<Report>>),
    Fdb(Vec<FdbEntry>, Sender<Vec<FdbEntry>>),
    Neighbours(Vec<Neighbour>, Sender<Vec<Neighbour>>),
    /// A dry run.
    Trace(PortId, Vec<u8>, Sender<(Trace, Vec<u8>)>),
    ArmTrace(TraceFilter, u64, Sink<Trace>),
    ArmCapture(CaptureFilter, u64, Sink<Captured>),
    DisarmTrace,
    DisarmCapture,
    /// Answers once the tables that were published before are in use.
    Sync(Sender<()>),
    /// Stop receiving; go on with what other workers hand over.
    Quiesce(Sender<()>),
    /// No worker receives any more: take what is on its way, send what is held back.
    Drain(Sender<()>),
    /// All workers have drained: end.
    End,
}
