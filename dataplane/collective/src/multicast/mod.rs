//! Reliable multicast from one source over many paths (Cepheus III.B, III.D): what goes in, what comes out.

mod entry;
mod machine;

use crate::path::PathId;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use castnet_wire::{DropReason, Nanos, Psn, Syndrome};

pub use machine::Multicast;

/// What a group is made of, as far as the machine must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastConfig {
    /// Entries of the Path Table, the source's included: at most [`PATHS_MAX`](crate::path::PATHS_MAX), and more than the
    /// source's own index (a number outside of that is brought inside).
    pub paths: u16,
    /// The path towards the source. Feedback leaves by it (the paper's AckOutPort).
    pub source: PathId,
    /// The PSN of the source's first packet. `None` if the switch joins a stream that may already run, as after its
    /// own restart: it is then learned from the first data that comes.
    pub start_psn: Option<Psn>,
    /// How long data may be outstanding without progress before [`Effect::Stalled`]; zero for never.
    pub stall_timeout: Nanos,
}

/// A frame of the group came in. Its ICRC has been verified where it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A request packet: SEND or WRITE in any position.
    Data {
        /// The path it came by.
        from: PathId,
        /// Its PSN.
        psn: Psn,
        /// Its AckReq bit.
        ack_request: bool,
    },
    /// An acknowledge packet, of a host or of the switch below.
    Feedback {
        /// The path it came by.
        from: PathId,
        /// Its PSN: the newest one received (ACK), the one expected (sequence NAK) or the one refused (others).
        psn: Psn,
        /// Messages that the responder has completed, 24 bits.
        msn: u32,
        /// What it says.
        syndrome: Syndrome,
    },
    /// A congestion notification packet. Each is passed on for now: to pass only those of the most congested path of a
    /// window (Cepheus III.D, contract M4) needs counts over time, which are not here yet.
    Cnp {
        /// The path it came by.
        from: PathId,
    },
}

/// What is to be done. An event has at least one effect, and [`Effect::Absorb`] only alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Forward the data packet by each path that [lacks](Multicast::lacks) it; there is at least one.
    Replicate {
        /// Its PSN.
        psn: Psn,
    },
    /// Make an acknowledge packet. The frame that caused it, if it was feedback, ends here.
    Acknowledge {
        /// The path to send it by: the source's.
        to: PathId,
        /// Its PSN.
        psn: Psn,
        /// Its message sequence number, 24 bits.
        msn: u32,
        /// ACK, NAK or RNR NAK.
        syndrome: Syndrome,
    },
    /// Pass the congestion notification on.
    Cnp {
        /// The path to send it by: the source's.
        to: PathId,
    },
    /// The frame has served its purpose: nothing leaves, and nothing was wrong.
    Absorb,
    /// The frame ends here, to be counted.
    Drop(DropReason),
    /// Tell the operator: data is outstanding and this path is the last one waited for.
    Stalled {
        /// The path whose AckPSN is the lowest.
        path: PathId,
        /// When the last progress was.
        since: Nanos,
    },
}

/// The effects of one event, in the order in which they are to be carried out.
pub type Effects = ArrayVec<Effect, 4>;

/// Why a machine wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerReason {
    /// Outstanding data has made no progress for the group's stall time-out.
    Stall,
}

/// The state of a group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastStatus {
    /// The path towards the source.
    pub source: PathId,
    /// The newest PSN of data seen. `None` before the first packet of a group without a known start.
    pub newest_psn: Option<Psn>,
    /// AggAckPSN: all paths have acknowledged this and all before it. `None` while that is not known.
    pub agg_ack_psn: Option<Psn>,
    /// MePSN: the lowest PSN that a path has refused or misses, and to which the source has not gone back since.
    pub me_psn: Option<Psn>,
    /// True if the NAK of the PSN after AggAckPSN has gone to the source, and the source has not gone back since.
    pub nak_sent: bool,
    /// The path waited for: the lowest AckPSN (the paper's triPort). `None` if nothing is outstanding.
    pub waiting_for: Option<PathId>,
    /// When the last progress was, where something is outstanding.
    pub since: Option<Nanos>,
    /// The Path Table but for the source's entry, by path.
    pub paths: Vec<PathStatus>,
}

/// One entry of the Path Table, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Which one.
    pub path: PathId,
    /// AckPSN: the newest PSN that this path has acknowledged. `None` while that is not known.
    pub ack_psn: Option<Psn>,
    /// The message sequence number that came with it.
    pub msn: u32,
    /// The NAK or RNR NAK of the PSN after AckPSN, where that was the path's last word and the source has not gone back
    /// to it since.
    pub refusal: Option<Syndrome>,
}
