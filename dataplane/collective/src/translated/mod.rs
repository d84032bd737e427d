//! Collectives in the network, with translated connections (EPIC 4.3, Mode-II) or augmented ones (4.4, Mode-III), and PSN bridging at the
//! first hop. The modes differ in their pipes (`pipe`), and in when a contribution is acknowledged (`feedback`); all else is shared.
//!
//! A [`Translated`] is the context of one group at one switch of its tree. Functions have the names of EPIC 4.1.
//!
//! Number spaces: `u`, the PSNs that a host sends; `d`, those that it receives; `g`, those of the group, the only ones between switches.
//! A collective uses one `g` for its control message and one for each data packet, so switches number packets equally.
//!
//! The flow of a packet at one switch. `e_r` is the endpoint with the root rank behind it:
//!
//! | | inputs | outputs |
//! |---|---|---|
//! | control, AllReduce, up | children | parent (at the root of the tree this is already the result) |
//! | control, AllReduce, down | parent | children |
//! | Reduce | all but `e_r` | `e_r` |
//! | Broadcast | `e_r` | all but `e_r` |
//!
//! How this differs from the paper, and why it is safe: `docs/decisions/0005-mode-two.md`, and `0019-mode-three.md` for Mode-III.
mod bridge;
mod config;
mod congestion;
mod contribution;
mod emission;
mod endpoint;
mod feedback;
#[cfg(test)]
mod gap_tests;
mod machine;
mod pipe;
mod silence;
mod slot;
mod status;
mod timer;
#[cfg(test)]
mod work_tests;

use crate::path::{PathId, PathSet};
use arrayvec::ArrayVec;
use castnet_wire::{Control, DropReason, Nanos, Opcode, Psn, Syndrome};

pub use bridge::Header;
pub use castnet_wire::{CollectiveMode, LossPolicy, StragglerPolicy};
pub use config::{EndpointConfig, EndpointKind, RankSet, TranslatedConfig};
pub use congestion::{CNP_INTERVAL, CNP_WINDOW};
pub use contribution::Nexts;
pub use machine::Translated;
pub use status::{CollectiveStatus, EndpointStatus, TranslatedStatus};

/// An endpoint of a group at a switch.
pub type EndpointId = PathId;

/// A set of endpoints.
pub type EndpointSet<const W: usize = 1> = PathSet<W>;

/// A collective in flight: an index for [`Translated::call`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u16);

/// The properties that must be equal in all contributions to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketShape {
    /// A SEND in any position.
    pub opcode: Opcode,
    /// Bytes of payload, without the padding.
    pub payload: u16,
    /// Bytes of padding: 0 to 3.
    pub pad: u8,
}

impl Default for PacketShape {
    fn default() -> Self {
        Self {
            opcode: Opcode::SendOnly,
            payload: 0,
            pad: 0,
        }
    }
}

/// A received frame of the group. Its ICRC has been verified (contract C3), and so has its sender (contract C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A data packet.
    Data {
        /// The endpoint it came by.
        from: EndpointId,
        /// As on the wire: `u` from a rank, `g` from a switch.
        psn: Psn,
        /// Its shape.
        shape: PacketShape,
        /// Its AckReq bit.
        ack_request: bool,
    },
    /// A control message.
    Control {
        /// The endpoint it came by.
        from: EndpointId,
        /// As on the wire: `u` from a rank, `g` from a switch.
        psn: Psn,
        /// The message.
        control: Control,
        /// Its AckReq bit.
        ack_request: bool,
    },
    /// An acknowledge packet.
    Feedback {
        /// The endpoint it came by.
        from: EndpointId,
        /// As on the wire: `d` from a rank, `g` from a switch.
        psn: Psn,
        /// Messages that the responder has completed, 24 bits. The machine does not use it.
        msn: u32,
        /// ACK, NAK or RNR NAK.
        syndrome: Syndrome,
    },
    /// A rank asks for one packet again. It keeps what it receives behind a gap, and acknowledges nothing by that.
    Request {
        /// The endpoint it came by.
        from: EndpointId,
        /// The packet, as `d`.
        psn: Psn,
    },
    /// A congestion notification packet: packets to the endpoint meet congestion.
    Cnp {
        /// The endpoint it came by.
        from: EndpointId,
    },
    /// A received frame has a congestion mark (ECN: CE): packets from the endpoint meet congestion. It follows the event of the frame.
    Marked {
        /// The endpoint it came by.
        from: EndpointId,
    },
}

/// An action for the caller. [`Effect::Absorb`] is always the only one; [`Effect::Drop`] may come with acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect<const W: usize = 1> {
    /// Aggregate the payload of the received frame into the slot.
    Aggregate {
        /// The slot.
        slot: u16,
        /// The endpoint of the contribution.
        from: EndpointId,
        /// True for the first contribution, which overwrites the slot. Others are reduced into it.
        first: bool,
        /// The collective with the operation and the type.
        kernel: CallId,
    },
    /// Copy the payload of the received frame into the slot, to be forwarded: a result from the parent, or a broadcast.
    Store {
        /// The slot.
        slot: u16,
    },
    /// Copy the payload of a slot of the aggregation pipe into one of the broadcast pipe: at the root of a tree in Mode-III.
    HandOver {
        /// The slot with the sum; its [`Translated::shape`] may be gone.
        from: u16,
        /// The slot for the result, with its shape.
        to: u16,
    },
    /// The received control message is new: it was merged with the others or, from the parent, is their result.
    Merged,
    /// All contributions of a reduction have been received. If they are stored separately, reduce them in the order of endpoints
    /// before the slot is read.
    Complete {
        /// The slot.
        slot: u16,
        /// The collective with the operation and the type.
        kernel: CallId,
    },
    /// Send the payload of the slot to each endpoint, with the PSN that [`Translated::header`] returns.
    Emit {
        /// The slot with the payload and [`Translated::shape`].
        slot: u16,
        /// The PSN of the group.
        g: Psn,
        /// The receivers: at least one.
        to: EndpointSet<W>,
        /// The AckReq bit.
        ack_request: bool,
    },
    /// Send a control message to each endpoint, with the PSN that [`Translated::header`] returns and AckReq set.
    EmitControl {
        /// The PSN of the group.
        g: Psn,
        /// The receivers: at least one.
        to: EndpointSet<W>,
        /// The message.
        control: Control,
    },
    /// Send an acknowledge packet.
    Acknowledge {
        /// The receiver.
        to: EndpointId,
        /// The PSN in the space of the receiver: `u` for a rank, `g` for a switch.
        psn: Psn,
        /// Completed messages of that rank, 24 bits; 0 towards a switch.
        msn: u32,
        /// ACK, NAK or RNR NAK. A NAK between switches acknowledges nothing. It requests one packet, or all from a control message on.
        syndrome: Syndrome,
    },
    /// Ask a rank to send one packet again. It acknowledges nothing. RNICs in hardware know no such packet, and get a NAK, too.
    Request {
        /// The receiver.
        to: EndpointId,
        /// The packet, as `u`.
        psn: Psn,
    },
    /// Send a congestion notification packet to each endpoint.
    Cnp {
        /// The receivers: at least one.
        to: EndpointSet<W>,
    },
    /// Consume the frame. Nothing is sent, and nothing is wrong.
    Absorb,
    /// Drop the frame for this reason.
    Drop(DropReason),
    /// Report a stall: no packet has been finished for the stall time-out.
    Stalled {
        /// The endpoints whose contribution is missing or, if none is, those that have not acknowledged.
        waiting_for: EndpointSet<W>,
        /// The lowest unfinished packet.
        g: Psn,
        /// Time of the last progress.
        since: Nanos,
    },
    /// Report, once, that ranks have called different collectives: no later one is served. It follows the control messages of all
    /// ranks, so every switch names the same two ranks.
    Conflict {
        /// The merged control message, with the two different calls.
        control: Control,
    },
    /// Report that a packet of a rank breaks a rule of the group and is dropped. It is reported once per rank.
    Refused {
        /// Its endpoint.
        from: EndpointId,
        /// Number of the collective in the group.
        sequence: u32,
        /// The broken rule.
        why: Refusal,
    },
    /// Report that an endpoint has ended its connection.
    MemberFailed {
        /// The endpoint.
        from: EndpointId,
        /// The syndrome of its NAK.
        syndrome: Syndrome,
    },
}

/// The rule of the group that a rank breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The call requires reduction in rank order, and the group is not reproducible.
    NotReproducible,
    /// A data packet has another shape than the group requires.
    Cut {
        /// Index of the data packet in the collective, from 0.
        packet: u32,
        /// The received shape.
        found: PacketShape,
        /// The required shape.
        expected: PacketShape,
    },
}

/// The effects of one call, in the order of execution.
pub type Effects<const W: usize = 1> = ArrayVec<Effect<W>, 16>;

/// The reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerReason {
    /// A quarter of the hosts' time-out has passed with something in flight.
    Tick,
    /// Nothing was heard for longer than answers take.
    Silence,
    /// A host that had no receive posted may have one now.
    Rnr,
    /// No packet has been finished for the stall time-out.
    Stall,
}
