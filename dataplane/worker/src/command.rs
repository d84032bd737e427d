//! The commands from control to a worker. Control allocates and frees all memory; boxes travel to the worker and back.

use std::sync::Arc;

use castnet_engine::{
    Captured, Context, ContextStatus, DryRun, Expected, FdbEntry, FrameFilter, InstallError, Neighbour,
    TapId, Trace,
};
use castnet_wire::{DropReason, McstId, PortId};
use crossbeam::channel::Sender;

use crate::report::Report;
use crate::tap::Lost;

pub(crate) const PER_ITERATION: usize = 8;
pub(crate) const QUEUE: usize = 64;

pub(crate) struct Subscriber {
    pub(crate) id: TapId,
    pub(crate) to: Sink,
    pub(crate) lost: Arc<Lost>,
}

pub(crate) enum Sink {
    Traces(Sender<Trace>),
    /// The number is that of the bytes kept of each frame.
    Captured(Sender<Captured>, usize),
}

/// The memory was reserved for the group. Control frees it.
pub(crate) type Attached<E> = (Result<(), E>, Box<Expected>);

/// A reply is dropped if its receiver is gone.
pub(crate) enum Command {
    /// All workers are ready: start the main loop.
    Go,
    /// A refused group is returned.
    Install(Context, Sender<Result<Option<Context>, (InstallError, Context)>>),
    Remove(McstId, Sender<Option<Context>>),
    Status(McstId, Sender<Option<ContextStatus>>),
    /// The groups continue at the report's cursor.
    Report(Box<Report>, Sender<Box<Report>>),
    Fdb(Vec<FdbEntry>, Sender<Vec<FdbEntry>>),
    Neighbours(Vec<Neighbour>, Sender<Vec<Neighbour>>),
    DryRun(Box<DryRun>, Sender<Box<DryRun>>),
    /// The number is that of the frames.
    Arm(Subscriber, FrameFilter, u64),
    Disarm(TapId),
    /// Send frames that control has made. They are returned.
    Transmit(Vec<(PortId, Vec<u8>)>, Sender<Vec<(PortId, Vec<u8>)>>),
    /// Count a frame of this ingress port that control has dropped.
    CountDrop(PortId, DropReason),
    /// Reserve memory for a group and hold its frames from now on.
    Expect(Box<Expected>, Sender<Attached<InstallError>>),
    /// Cancel `Expect`. Memory that was reserved is released.
    Unexpect(Option<Box<Expected>>, Sender<()>),
    /// Remove a group once the frames now in the inbound rings have been processed.
    Detach(McstId, Sender<Option<Context>>),
    /// A refused group is returned.
    Attach(Context, Box<Expected>, Sender<Attached<(InstallError, Context)>>),
    /// Reply once no frame is blocked here and, if the flag is set, the inbound rings are not crowded.
    Barrier(bool, Sender<()>),
    /// Reply once the tables published before are in use.
    Sync(Sender<()>),
    /// Stop receiving, but continue to process frames from other workers.
    Quiesce(Sender<()>),
    /// No worker receives any more: process the inbound rings and send everything.
    Drain(Sender<()>),
    End,
}
