//! Reliable multicast from one source over many paths (Cepheus III.B, III.D): configuration, events and effects.

mod congestion;
mod entry;
mod joining;
mod machine;
mod repair;
mod stall;
mod switching;
mod tick;

use crate::path::PathId;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use castnet_wire::{DropReason, Nanos, Psn, Syndrome};

pub use machine::Multicast;
pub use repair::{RepairConfig, RepairStatus, Resend};

/// The configuration of a group, as the machine needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastConfig {
    /// Entries of the Path Table, with the source: clamped to at most [`PATHS_MAX`](crate::path::PATHS_MAX) and more than its index.
    pub paths: u16,
    /// The path towards the source. Feedback is sent to it (the paper's AckOutPort).
    pub source: PathId,
    /// The PSN of the source's first packet. `None`: the first received data sets it, as after a restart of the switch.
    pub start_psn: Option<Psn>,
    /// Time without progress of outstanding data before [`Effect::Stalled`]; zero for never.
    pub stall_timeout: Nanos,
}

/// A received frame of the group. Its ICRC has been verified if that is required.
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
    /// An acknowledge packet, from a host or a switch.
    Feedback {
        /// The path it came by.
        from: PathId,
        /// Its PSN: the newest one received (ACK), the one expected (sequence NAK) or the one refused (others).
        psn: Psn,
        /// Messages that the responder has completed, 24 bits.
        msn: u32,
        /// ACK, NAK or RNR NAK.
        syndrome: Syndrome,
    },
    /// A congestion notification packet. It is forwarded if its path is the most congested one, and absorbed otherwise (Cepheus III.D,
    /// contract M4).
    Cnp {
        /// The path it came by.
        from: PathId,
    },
    /// A message of a switch about the source of the group, or a missing packet. Only switches send it.
    Signal {
        /// The path it came by.
        from: PathId,
        /// Its kind.
        signal: Signal,
        /// The PSN of the next packet, as the sender knows it, or of the missing one.
        psn: Psn,
        /// The number of the last grant that the sender has sent or received, 24 bits.
        epoch: u32,
    },
}

/// The kinds of messages between switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// A member behind the sender wants to send.
    Request,
    /// A member behind the receiver of this message is the source from now on.
    Grant,
    /// The sender lacks one packet, and has later ones. Unlike a NAK, it acknowledges nothing. Its epoch is 0.
    Resend,
}

/// An action for the caller. An event has at least one effect. [`Effect::Absorb`] is always the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Store the data packet: it is needed until [`Multicast::poll_resend`] no longer returns its PSN with this slot.
    Keep {
        /// Its PSN.
        psn: Psn,
        /// Its slot.
        slot: u16,
    },
    /// Send the data packet to each path that [takes](Multicast::takes) it: without repair, that [lacks](Multicast::lacks) it. There is at
    /// least one.
    Replicate {
        /// Its PSN.
        psn: Psn,
    },
    /// Send an acknowledge packet. If feedback has caused it, that frame is consumed.
    Acknowledge {
        /// The path of the source, or of a member that was the source or wants to be.
        to: PathId,
        /// Its PSN.
        psn: Psn,
        /// Its message sequence number, 24 bits.
        msn: u32,
        /// ACK, NAK or RNR NAK.
        syndrome: Syndrome,
    },
    /// Forward the congestion notification.
    Cnp {
        /// The path of the source.
        to: PathId,
    },
    /// Consume the frame. Nothing is sent, and nothing is wrong.
    Absorb,
    /// Drop the frame for this reason.
    Drop(DropReason),
    /// Send a message to a switch.
    Signal {
        /// The path of the switch.
        to: PathId,
        /// Its kind.
        signal: Signal,
        /// The PSN of the next packet.
        psn: Psn,
        /// The number of the last grant, 24 bits.
        epoch: u32,
    },
    /// Report a conflict: this member wants to send while another one sends or waits.
    Compete {
        /// The path of the member.
        path: PathId,
    },
    /// Report a stall: data is outstanding, and this path has made no progress.
    Stalled {
        /// The path whose AckPSN is the lowest.
        path: PathId,
        /// Time of the last progress.
        since: Nanos,
        /// How often the packet after its AckPSN was sent to it again since then: 0 if nothing arrives for it.
        tries: u16,
    },
}

/// The effects of one event, in the order of execution.
pub type Effects = ArrayVec<Effect, 6>;

/// The reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerReason {
    /// Outstanding data has made no progress for the group's stall time-out.
    Stall,
    /// Time to look for paths that are silent.
    Repair,
    /// The member that may send has not done so, and another one waits.
    Turn,
}

/// The state of a group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastStatus {
    /// The path towards the source.
    pub source: PathId,
    /// The newest received PSN of data. `None` before the first packet of a group without a known start.
    pub newest_psn: Option<Psn>,
    /// AggAckPSN: all paths have acknowledged this PSN and all before it. `None` while it is unknown.
    pub agg_ack_psn: Option<Psn>,
    /// MePSN: the lowest PSN that a path has refused or lacks, and to which the source has not gone back since.
    pub me_psn: Option<Psn>,
    /// True if the NAK of the PSN after AggAckPSN has been sent to the source, and the source has not gone back since.
    pub nak_sent: bool,
    /// The path with the lowest AckPSN (the paper's triPort). `None` if nothing is outstanding.
    pub waiting_for: Option<PathId>,
    /// Time of the last progress. `None` if nothing is outstanding.
    pub since: Option<Nanos>,
    /// The Path Table without the entry of the source.
    pub paths: Vec<PathStatus>,
    /// The ring, if the switch repairs losses.
    pub repair: Option<RepairStatus>,
}

/// One entry of the Path Table, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// AckPSN: the newest PSN that this path has acknowledged. `None` while it is unknown.
    pub ack_psn: Option<Psn>,
    /// The message sequence number in the same feedback.
    pub msn: u32,
    /// The NAK or RNR NAK of the PSN after AckPSN, if it was the path's last feedback and the source has not gone back to it since.
    pub refusal: Option<Syndrome>,
    /// Its degree of congestion (Cepheus III.D): CNPs of the window of its group's newest CNP, and of earlier windows with halved weight.
    pub cnps: u16,
}
