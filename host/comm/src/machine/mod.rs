//! The algorithms of one rank as pure machines: no I/O, no clock. The driver of this crate and the simulator carry
//! their actions out.
//!
//! [`InNetwork`] is the rank's side of collectives that switches compute (EPIC 3.3.2, appendix A); [`HostBased`] are ring,
//! tree and dissemination algorithms between ranks over plain reliable connections. Both are a [`Machine`].
//!
//! # Calling order
//!
//! [`Machine::start`] collectives in the same order at all ranks; carry out what [`Machine::poll_action`] gives until it gives
//! nothing; tell by [`Machine::handle`] what became of it. [`Action::Done`] comes once per collective, in order.
//!
//! # Buffers
//!
//! A machine never sees payload but control messages. It names bytes by [`Place`]: a task's input, its output, or scratch
//! memory of [`Machine::scratch_bytes`]. Messages travel through slots of registered memory, so many per channel as
//! [`ChannelShape`] says: send slots belong to the machine until [`Event::Sent`], receive slots until [`Action::Receive`].

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

pub use host_based::{HostBased, HostBasedConfig, peers};
pub use in_network::{InNetwork, InNetworkConfig};
pub use laned::{LANE_BYTES_MIN, Laned};
pub use task::{Collective, Task};

/// Number of a task of a machine: 0, 1, ... in the order of [`Machine::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// Which of the machine's queue pairs. [`InNetwork`] has one, number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u16);

/// What memory a channel has, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelShape {
    /// Messages that may be posted and not acknowledged.
    pub send_slots: u32,
    /// Receives that may be posted.
    pub receive_slots: u32,
    /// Bytes of each slot: of the longest message.
    pub slot_bytes: u32,
}

/// Which memory of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// What this rank contributes. Its layout is [`Task::input_bytes`].
    Input,
    /// What this rank gets. Its layout is [`Task::output_bytes`].
    Output,
    /// Memory of the driver, [`Machine::scratch_bytes`] long, whose content does not matter at the start.
    Scratch,
}

/// Bytes of a task, from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which memory.
    pub space: Space,
    /// First byte.
    pub offset: u64,
}

impl Place {
    /// `offset` bytes into the task's input.
    pub const fn input(offset: u64) -> Self {
        Self {
            space: Space::Input,
            offset,
        }
    }

    /// `offset` bytes into the task's output.
    pub const fn output(offset: u64) -> Self {
        Self {
            space: Space::Output,
            offset,
        }
    }

    /// `offset` bytes into the task's scratch memory.
    pub const fn scratch(offset: u64) -> Self {
        Self {
            space: Space::Scratch,
            offset,
        }
    }

    /// So many bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self {
            space: self.space,
            offset: self.offset + bytes,
        }
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A control message.
    Control([u8; 64]),
    /// Bytes of a task; none where `length` is 0.
    Data {
        /// Where they begin.
        from: Place,
        /// How many, at most [`ChannelShape::slot_bytes`].
        length: u32,
    },
}

/// What the driver shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post a receive for a whole slot.
    Receive {
        /// To which queue pair.
        channel: ChannelId,
        /// Into which of its receive slots.
        slot: u32,
    },
    /// Copy the content into the send slot, and post it as one SEND with completion.
    Send {
        /// To which queue pair.
        channel: ChannelId,
        /// Comes back in [`Event::Sent`]; 0, 1, ... on each channel.
        wr: u64,
        /// Through which of its send slots.
        slot: u32,
        /// Whose bytes.
        task: TaskId,
        /// What.
        content: Content,
        /// With this immediate; `None`: a plain SEND.
        immediate: Option<u32>,
    },
    /// Take a message out of its slot.
    Deliver {
        /// Of which queue pair.
        channel: ChannelId,
        /// Which of its receive slots.
        slot: u32,
        /// To which task.
        task: TaskId,
        /// Where its bytes go.
        to: Place,
        /// How many.
        length: u32,
        /// The task's operation is applied first: to the message, then the bytes from here on. May be `to` itself.
        combine: Option<Place>,
    },
    /// Copy inside a task. Where both places are the same bytes there is nothing to do.
    Copy {
        /// Whose bytes.
        task: TaskId,
        /// From here.
        from: Place,
        /// To here.
        to: Place,
        /// So many.
        length: u64,
    },
    /// The task has ended: its output is complete, or this is why not.
    Done {
        /// Which.
        task: TaskId,
        /// How.
        result: Result<(), Failure>,
    },
}

/// What became of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A send was acknowledged, and with it all before it on the channel.
    Sent {
        /// Of which queue pair.
        channel: ChannelId,
        /// As in [`Action::Send`].
        wr: u64,
    },
    /// A receive was filled. Those of a channel are told in the order of their messages.
    Received {
        /// Of which queue pair.
        channel: ChannelId,
        /// Which slot.
        slot: u32,
        /// Bytes.
        length: u32,
        /// The immediate that came with it.
        immediate: Option<u32>,
        /// The message's first 64 bytes, or all of a shorter one. Looked at only where there is an immediate.
        head: &'a [u8],
    },
    /// The queue pair is dead.
    Failed {
        /// Which.
        channel: ChannelId,
        /// As its first work request said that failed.
        status: Status,
    },
}

/// Why a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Ranks made different calls.
    #[error("ranks disagree on collective {sequence}: rank {} said {}, rank {} said {}", first.0, Said(&first.1), second.0, Said(&second.1))]
    Conflict {
        /// Number of the collective in its group.
        sequence: u32,
        /// A rank and its call.
        first: (u16, Call),
        /// Another rank and its call.
        second: (u16, Call),
    },
    /// The task asks for contributions to be reduced in rank order. Nothing of it has been sent.
    #[error(
        "contributions are reduced in rank order only in a group that is reproducible, and this one is not"
    )]
    NotReproducible,
    /// Another rank's message belongs to another call than ours.
    #[error("rank {peer} made another call than this rank (collective {task})")]
    Mismatch {
        /// The rank that sent it.
        peer: u16,
        /// Number of the collective.
        task: u64,
    },
    /// A collective before this one failed, and the group with it.
    #[error("a collective before this one failed: the group must be joined again")]
    Aborted,
    /// A queue pair is dead.
    #[error("the queue pair towards {} is dead{}: {status:?}", Towards(*.peer), InLane(*.lane))]
    Channel {
        /// The rank at its other end; `None`: the group.
        peer: Option<u16>,
        /// The lane that it is of, where the group has several.
        lane: Option<u8>,
        /// What its work request said.
        status: Status,
    },
    /// A message came that cannot be.
    #[error("a message that does not fit came from {}: {reason}", Towards(*.peer))]
    Protocol {
        /// The rank that sent it; `None`: the group.
        peer: Option<u16>,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A call in words.
pub(crate) struct Said<'a>(pub(crate) &'a Call);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use castnet_wire::control::Primitive;
        let call = self.0;
        match call.primitive {
            Primitive::AllReduce if call.packets == 0 && call.flags.0 == 0 => return f.write_str("barrier"),
            // A barrier with flags is what goes before a collective over lanes.
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

/// ` in lane 2`; nothing where there is one.
pub(crate) struct InLane(pub(crate) Option<u8>);

impl fmt::Display for InLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |lane| write!(f, " in lane {lane}"))
    }
}

/// What the oldest task that is not done waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For all ranks to make the call: its control result is missing.
    Calls {
        /// Number of the collective.
        sequence: u64,
    },
    /// For results.
    Results {
        /// Number of the collective.
        sequence: u64,
        /// Packets that are here.
        received: u64,
        /// Packets in all.
        of: u64,
    },
    /// For acknowledgements of what this rank sent.
    Acknowledgements {
        /// Number of the collective.
        sequence: u64,
        /// Packets that are acknowledged.
        acknowledged: u64,
        /// Packets in all.
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
                "results of collective {sequence}: {received} of {of} packets are here"
            ),
            Self::Acknowledgements {
                sequence,
                acknowledged,
                of,
            } => write!(
                f,
                "acknowledgements in collective {sequence}: {acknowledged} of {of} packets have them"
            ),
            Self::Peers(ranks) => write!(f, "messages of ranks {ranks:?}"),
        }
    }
}

/// One rank's side of collectives.
pub trait Machine {
    /// The memory that each channel needs.
    fn shape(&self) -> ChannelShape;

    /// How many channels there are.
    fn channels(&self) -> u16;

    /// Begins a collective; any number may be under way.
    fn start(&mut self, task: Task) -> TaskId;

    /// Scratch memory that a task needs, in bytes.
    fn scratch_bytes(&self, task: &Task) -> u64;

    /// Takes in what became of actions.
    fn handle(&mut self, event: Event<'_>);

    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action>;

    /// Whether all that was sent is acknowledged.
    fn is_drained(&self) -> bool;

    /// Whether a failure has ended it: all further tasks fail.
    fn has_failed(&self) -> bool;

    /// What the oldest task that is not done waits for; `None` where all are done.
    fn waiting_for(&self) -> Option<Waiting>;
}
