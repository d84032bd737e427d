//! The collectives of one rank as pure machines. [`crate::executor`] executes their actions.
//!
//! [`InNetwork`] is the rank's side of collectives that switches compute (EPIC 3.3.2, appendix A). [`HostBased`] runs
//! ring, tree and dissemination algorithms between ranks. [`Laned`] splits collectives over several [`InNetwork`].
//!
//! # Calling order
//!
//! Call [`Machine::start`] for the same collectives in the same order at all ranks. Execute the actions of
//! [`Machine::poll_action`] until it returns `None`. Report their outcome to [`Machine::handle`]. [`Action::Done`]
//! comes once per collective, in order.
//!
//! # Buffers
//!
//! A machine sees control messages, but no other payload. It names bytes by [`Place`]: in the input or output of a
//! task, or in scratch memory of [`Machine::scratch_bytes`]. Messages pass through slots of registered memory;
//! [`ChannelShape`] is their number per channel. A send slot belongs to the machine until [`Event::Sent`], a receive
//! slot until [`Action::Receive`].
//!
//! # Without slots
//!
//! An executor may receive a message with a [`Target`] straight into the memory of its task; then [`Action::Deliver`] has
//! nothing to do. If [`Machine::may_send_from_tasks`] returns true, it may also send straight from the memory of a task.
//! The task then ends when these sends are acknowledged, not before: until then they may be repeated.

mod host_based;
mod in_network;
mod laned;
mod schedule;
mod task;
#[cfg(test)]
mod tests;

use std::fmt;

use castnet_rnic::Status;
use castnet_wire::control::Call;

pub use host_based::{BroadcastAlgorithm, HostBased, HostBasedConfig};
pub use in_network::{InNetwork, InNetworkConfig};
pub use laned::{LANE_BYTES_MIN, Laned};
pub use schedule::peers;
pub use task::{Collective, Task};

/// Number of a task of a machine: 0, 1, ... in the order of [`Machine::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// Index of a queue pair of the machine. [`InNetwork`] has one, number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u16);

/// Memory that a channel needs in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelShape {
    /// Most messages that are posted and not acknowledged.
    pub send_slots: u32,
    /// Most receives that are posted.
    pub receive_slots: u32,
    /// Bytes of each slot: the length of the longest message.
    pub slot_bytes: u32,
}

/// A memory area of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The contribution of this rank, [`Task::input_bytes`] long.
    Input,
    /// The result at this rank, [`Task::output_bytes`] long.
    Output,
    /// Memory of the executor, [`Machine::scratch_bytes`] long, with undefined content at the start.
    Scratch,
}

/// The address of bytes of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The memory area.
    pub space: Space,
    /// Offset of the first byte.
    pub offset: u64,
}

impl Place {
    const fn new(space: Space, offset: u64) -> Self {
        Self { space, offset }
    }

    /// `offset` bytes into the task's input.
    pub const fn input(offset: u64) -> Self {
        Self::new(Space::Input, offset)
    }

    /// `offset` bytes into the task's output.
    pub const fn output(offset: u64) -> Self {
        Self::new(Space::Output, offset)
    }

    /// `offset` bytes into the task's scratch memory.
    pub const fn scratch(offset: u64) -> Self {
        Self::new(Space::Scratch, offset)
    }

    /// The address `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self::new(self.space, self.offset + bytes)
    }
}

/// Content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A control message.
    Control([u8; 64]),
    /// Bytes of a task; empty where `length` is 0.
    Data {
        /// Address of the first byte.
        from: Place,
        /// Number of bytes, at most [`ChannelShape::slot_bytes`].
        length: u32,
    },
}

/// Where the data of a message belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The task.
    pub task: TaskId,
    /// Address of the first byte.
    pub to: Place,
    /// Bytes of the message.
    pub length: u32,
}

/// An instruction to the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post a receive for a whole slot, or for the target instead.
    Receive {
        /// The queue pair.
        channel: ChannelId,
        /// Index of its receive slot.
        slot: u32,
        /// Where the message belongs, if that is known and its bytes are only copied there.
        target: Option<Target>,
    },
    /// Copy the content into the send slot and post it as one SEND with completion.
    Send {
        /// The queue pair.
        channel: ChannelId,
        /// Number of the work request, 0, 1, ... on each channel. [`Event::Sent`] repeats it.
        wr: u64,
        /// Index of the send slot.
        slot: u32,
        /// The task that the bytes belong to.
        task: TaskId,
        /// The content.
        content: Content,
        /// The immediate; `None`: a SEND without immediate.
        immediate: Option<u32>,
    },
    /// Copy a received message out of its slot.
    Deliver {
        /// The queue pair.
        channel: ChannelId,
        /// Index of its receive slot.
        slot: u32,
        /// The task.
        task: TaskId,
        /// Destination of the bytes.
        to: Place,
        /// Number of bytes.
        length: u32,
        /// If present, the task's operation is applied first, to the message and the bytes at this address. May equal
        /// `to`.
        combine: Option<Place>,
    },
    /// Copy inside a task. There is nothing to do where `from` and `to` are the same bytes.
    Copy {
        /// The task.
        task: TaskId,
        /// Source.
        from: Place,
        /// Destination.
        to: Place,
        /// Number of bytes.
        length: u64,
    },
    /// The task has ended: its output is complete, or it failed.
    Done {
        /// The task.
        task: TaskId,
        /// Its result.
        result: Result<(), Failure>,
    },
}

impl Action {
    const fn failed(task: TaskId, failure: Failure) -> Self {
        let result = Err(failure);
        Self::Done { task, result }
    }
}

/// The outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A send was acknowledged, and all earlier ones of the channel with it.
    Sent {
        /// The queue pair.
        channel: ChannelId,
        /// Number of the work request in [`Action::Send`].
        wr: u64,
    },
    /// A receive was filled. The receives of a channel are reported in the order of their messages.
    Received {
        /// The queue pair.
        channel: ChannelId,
        /// Index of the slot.
        slot: u32,
        /// Bytes of the message.
        length: u32,
        /// The immediate of the message.
        immediate: Option<u32>,
        /// The first 64 bytes of the message, or all of a shorter one. Only read where there is an immediate.
        head: &'a [u8],
    },
    /// The queue pair has failed.
    Failed {
        /// The queue pair.
        channel: ChannelId,
        /// Status of the first work request that failed.
        status: Status,
    },
}

/// Why a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Failure {
    /// Ranks made different calls.
    #[error("ranks disagree on collective {sequence}: rank {} called {}, rank {} called {}", first.0, CallText(&first.1), second.0, CallText(&second.1))]
    Conflict {
        sequence: u32,
        /// A rank and its call.
        first: (u16, Call),
        /// Another rank and its call.
        second: (u16, Call),
    },
    /// The task requires reduction in rank order, and the group does not provide it. Nothing was sent.
    #[error("reduction in rank order needs a reproducible group, and this one is not")]
    NotReproducible,
    /// A message of another rank belongs to a different call.
    #[error("rank {peer} made another call than this rank (collective {task})")]
    Mismatch { peer: u16, task: u64 },
    /// An earlier collective failed, and the group with it.
    #[error("an earlier collective failed: the group must be joined again")]
    Aborted,
    /// A queue pair has failed.
    #[error("the queue pair towards {} has failed{}: {status:?}", Towards(*.peer), InLane(*.lane))]
    Channel {
        /// The rank at the remote end; `None`: the group.
        peer: Option<u16>,
        lane: Option<u8>,
        status: Status,
    },
    /// An invalid message was received.
    #[error("invalid message from {}: {reason}", Towards(*.peer))]
    Protocol {
        /// The rank that sent it; `None`: the group.
        peer: Option<u16>,
        reason: &'static str,
    },
}

pub(crate) struct CallText<'a>(pub(crate) &'a Call);

impl fmt::Display for CallText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use castnet_wire::control::Primitive;
        let call = self.0;
        match call.primitive {
            Primitive::AllReduce if call.packets == 0 && call.flags.0 == 0 => return f.write_str("barrier"),
            // A barrier with flags precedes a collective over lanes.
            Primitive::AllReduce if call.packets == 0 => {
                return f.write_str("one of another size, over lanes");
            }
            Primitive::AllReduce => write!(f, "allreduce")?,
            Primitive::Reduce => write!(f, "reduce to rank {}", call.root)?,
            Primitive::Broadcast => write!(f, "broadcast from rank {}", call.root)?,
        }
        write!(f, " of {} {}", call.elements, call.data_type)?;
        if call.primitive != Primitive::Broadcast {
            write!(f, " by {}", call.operation)?;
        }
        if call.flags.0 != 0 {
            write!(f, " (flags {:#x})", call.flags.0)?;
        }
        Ok(())
    }
}

struct Towards(Option<u16>);

impl fmt::Display for Towards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "rank {rank}"),
            None => f.write_str("the group"),
        }
    }
}

/// Displays ` in lane 2`; empty without a lane.
pub(crate) struct InLane(pub(crate) Option<u8>);

impl fmt::Display for InLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |lane| write!(f, " in lane {lane}"))
    }
}

/// What the oldest unfinished task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For all ranks to make the call: the control result is missing.
    Calls {
        /// Number of the collective.
        sequence: u64,
    },
    /// For results.
    Results {
        /// Number of the collective.
        sequence: u64,
        /// Packets received.
        received: u64,
        /// Packets in total.
        of: u64,
    },
    /// For acknowledgements of what this rank sent.
    Acknowledgements {
        /// Number of the collective.
        sequence: u64,
        /// Packets acknowledged.
        acknowledged: u64,
        /// Packets in total.
        of: u64,
    },
    /// For messages of these ranks.
    Peers(Vec<u16>),
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls { sequence } => write!(f, "all ranks to call collective {sequence}"),
            Self::Results {
                sequence,
                received,
                of,
            } => write!(
                f,
                "results of collective {sequence}: {received} of {of} packets received"
            ),
            Self::Acknowledgements {
                sequence,
                acknowledged,
                of,
            } => write!(
                f,
                "acknowledgements in collective {sequence}: {acknowledged} of {of} packets acknowledged"
            ),
            Self::Peers(ranks) => write!(f, "messages of ranks {ranks:?}"),
        }
    }
}

/// One rank's side of collectives.
pub trait Machine {
    /// The memory that each channel needs.
    fn shape(&self) -> ChannelShape;

    /// Number of channels.
    fn channels(&self) -> u16;

    /// Starts a collective. Any number may run at once.
    fn start(&mut self, task: Task) -> TaskId;

    /// Scratch memory that a task needs, in bytes.
    fn scratch_bytes(&self, task: &Task) -> u64;

    /// Whether data may be sent straight from the memory of tasks. No result replaces bytes of the input at this rank before
    /// every receiver of these bytes has them, so it does not matter what a repeat of them contains.
    fn may_send_from_tasks(&self) -> bool {
        false
    }

    /// Handles the outcome of actions.
    fn handle(&mut self, event: Event<'_>);

    /// The next action to execute.
    fn poll_action(&mut self) -> Option<Action>;

    /// Returns true if all sends are acknowledged.
    fn is_drained(&self) -> bool;

    /// Returns true if a failure has ended the machine: all further tasks fail.
    fn has_failed(&self) -> bool;

    /// What the oldest unfinished task waits for; `None` if all are done.
    fn waiting_for(&self) -> Option<Waiting>;
}
