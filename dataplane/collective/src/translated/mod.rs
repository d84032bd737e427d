//! Collectives in the network, connection translated (EPIC 4.3, Mode-II), with PSN bridging at the first hop.
//!
//! One [`Translated`] is the context of one group at one switch of its tree. Its modules bear the names of EPIC 4.1:
//! check_duplicate, aggregate_data and recycle_buffer are `slot`'s, receive_ack and send_ack `feedback`'s, replicate_data `emission`'s, retransmission
//! `timer`'s, translate_header and its inverses `bridge`'s.
//!
//! Three spaces of numbers: `u`, the PSNs that a host sends; `d`, those that it receives; `g`, the group's, which alone
//! travels between switches. Collective `k` takes one `g` for its control message and one for each data packet, so that
//! all switches number them alike without talking.
//!
//! The flow of a packet at one switch, with `e_r` the endpoint behind which the root rank is:
//!
//! | | inputs | outputs |
//! |---|---|---|
//! | control, AllReduce, up | children | parent (at the root of the tree the result is there at once) |
//! | control, AllReduce, down | parent | children |
//! | Reduce | all but `e_r` | `e_r` |
//! | Broadcast | `e_r` | all but `e_r` |
//!
//! How this differs from the paper, and why it is safe: `docs/decisions/0005-mode-two.md`.
mod bridge;
mod calls;
mod config;
mod congestion;
mod contribution;
mod emission;
mod endpoint;
mod feedback;
mod machine;
mod slot;
mod status;
mod timer;

use crate::path::{PathId, PathSet};
use arrayvec::ArrayVec;
use castnet_wire::{Control, DropReason, Nanos, Opcode, Psn, Syndrome};

pub use bridge::Header;
pub use config::{EndpointConfig, EndpointKind, LossPolicy, RankSet, StragglerPolicy, TranslatedConfig};
pub use congestion::{CNP_INTERVAL, CNP_WINDOW};
pub use contribution::Nexts;
pub use machine::Translated;
pub use status::{CollectiveStatus, EndpointStatus, TranslatedStatus};

/// An endpoint of a group at a switch.
pub type EndpointId = PathId;

/// A set of endpoints.
pub type EndpointSet<const W: usize = 1> = PathSet<W>;

/// Which collective in flight: an index for [`Translated::call`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u16);

/// What must be the same in all contributions to one packet.
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

/// A frame of the group came in. Its ICRC has been verified, whatever it is (contract C3), and so has where it came
/// from (contract C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A data packet.
    Data {
        /// The endpoint it came by.
        from: EndpointId,
        /// As on the wire: `u` from a rank, `g` from a switch.
        psn: Psn,
        /// What it looks like.
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
        /// What it says.
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
        /// Messages that the responder has completed, 24 bits. Nothing here depends on it.
        msn: u32,
        /// What it says.
        syndrome: Syndrome,
    },
    /// A congestion notification packet: what goes to the endpoint meets congestion.
    Cnp {
        /// The endpoint it came by.
        from: EndpointId,
    },
    /// A frame was marked on its way (ECN: CE): what comes from the endpoint meets congestion. Beside what the frame is.
    Marked {
        /// The endpoint it came by.
        from: EndpointId,
    },
}

/// What is to be done. [`Effect::Absorb`] comes only alone; [`Effect::Drop`] may come with acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect<const W: usize = 1> {
    /// Take the payload of the frame at hand into the slot.
    Aggregate {
        /// Where to.
        slot: u16,
        /// Whose contribution it is.
        from: EndpointId,
        /// The first overwrites what is in the slot, the others are reduced in.
        first: bool,
        /// The collective whose operation and type hold.
        kernel: CallId,
    },
    /// The payload of the frame at hand is what is to be sent on: a result from the parent, or a broadcast. Copy it into the slot.
    Store {
        /// Where to.
        slot: u16,
    },
    /// The control message at hand has not come before: it was merged with the others or is, from the parent, their result.
    Merged,
    /// All contributions of a reduction are in. Where they are kept apart, they are added now, in the order of endpoints.
    Complete {
        /// Where they are.
        slot: u16,
        /// The collective whose operation and type hold.
        kernel: CallId,
    },
    /// Send the slot's payload, to each endpoint with the PSN that [`Translated::towards`] gives.
    Emit {
        /// Whose payload and [`Translated::shape`].
        slot: u16,
        /// The group's PSN.
        g: Psn,
        /// To whom: at least one.
        to: EndpointSet<W>,
        /// The AckReq bit.
        ack_request: bool,
    },
    /// Send a control message, to each endpoint with the PSN that [`Translated::towards`] gives, AckReq set.
    EmitControl {
        /// The group's PSN.
        g: Psn,
        /// To whom: at least one.
        to: EndpointSet<W>,
        /// What it says.
        control: Control,
    },
    /// Make an acknowledge packet.
    Acknowledge {
        /// To whom.
        to: EndpointId,
        /// Already in the receiver's space: `u` for a rank, `g` for a switch.
        psn: Psn,
        /// Messages of that rank that are completed, 24 bits; 0 towards a switch.
        msn: u32,
        /// ACK, NAK or RNR NAK. Between switches a NAK asks for one packet (of a control message: for it and all after it) and acknowledges nothing.
        syndrome: Syndrome,
    },
    /// Make a congestion notification packet for each.
    Cnp {
        /// To whom: at least one.
        to: EndpointSet<W>,
    },
    /// The frame has served its purpose: nothing leaves, and nothing was wrong.
    Absorb,
    /// The frame ends here, to be counted.
    Drop(DropReason),
    /// Tell the operator: nothing has been finished for the stall time-out.
    Stalled {
        /// Those whose contribution is missing or, where none is, those that have not acknowledged.
        waiting_for: EndpointSet<W>,
        /// The lowest packet that is not finished.
        g: Psn,
        /// When the last progress was.
        since: Nanos,
    },
    /// Tell the operator: ranks called different collectives. The group serves nothing after this one. Reported once, when the
    /// control messages of all ranks are there: every switch of the tree names the same two ranks, in whatever order they came.
    Conflict {
        /// Who said what.
        control: Control,
    },
    /// Tell the operator: what a rank sends breaks a rule of the group, and is dropped. Told once of each rank.
    Refused {
        /// Its endpoint.
        from: EndpointId,
        /// Number of the collective in the group.
        sequence: u32,
        /// The rule.
        why: Refusal,
    },
    /// Tell the operator: an endpoint's connection has ended itself.
    MemberFailed {
        /// Which one.
        from: EndpointId,
        /// What it said.
        syndrome: Syndrome,
    },
}

/// Which rule of the group a rank breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The call asks for contributions to be reduced in rank order, and the group is not reproducible.
    NotReproducible,
    /// The data is cut otherwise than the group prescribes.
    Cut {
        /// Which data packet of the collective, from 0.
        packet: u32,
        /// What it looks like.
        found: PacketShape,
        /// What it must look like.
        expected: PacketShape,
    },
}

/// The effects of one call, in the order in which they are to be carried out.
pub type Effects<const W: usize = 1> = ArrayVec<Effect<W>, 16>;

/// Why a machine wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerReason {
    /// A quarter of the hosts' time-out has passed with something in flight.
    Tick,
    /// A host that had no receive posted may have one now.
    Rnr,
    /// Nothing was finished for the stall time-out.
    Stall,
}
