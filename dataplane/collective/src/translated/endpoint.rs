//! The state of one endpoint: the flow from this switch to it, and the flow from it.

use castnet_wire::{Nanos, Syndrome};

/// Most unacknowledged retransmissions to a host: slightly more than a fast link holds in a round-trip time.
const PACE: u64 = 8;

/// Both flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
}

/// The flow from this switch to the endpoint. `acked <= next`, and both are positions of packets to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sending {
    /// The lowest position that it has not acknowledged (the paper's `lastAcked`, plus one). A contribution to the parent is acknowledged
    /// by its result.
    pub(super) acked: u64,
    /// `acked` in the host's own count of packets.
    pub(super) acked_d: u64,
    /// The next position to send.
    pub(super) next: u64,
    /// `next` in the host's own count of packets.
    pub(super) next_d: u64,
    /// One past the highest sent position (the paper's `maxPsnSent`, plus one).
    pub(super) sent: u64,
    /// True if the oldest unacknowledged packet was retransmitted as a probe. If the answer does not acknowledge everything, all
    /// packets behind it were lost, too.
    pub(super) probing: bool,
    /// True while retransmissions after a loss are unfinished. Few of them are unacknowledged at a time, because a further loss makes
    /// all packets behind it useless.
    pub(super) pacing: bool,
    /// True if a packet was acknowledged since the last tick, or sent when none was outstanding.
    pub(super) moved: bool,
    /// The refusal of the packet at `acked`. Used only if NAKs are reflected.
    pub(super) refusal: Option<Syndrome>,
    /// End of the wait for a posted receive. It is valid while the endpoint is in `rnr_waiting` of the machine.
    pub(super) rnr_until: Nanos,
}

impl Sending {
    /// Goes back: the next position to send is the oldest unacknowledged one.
    pub(super) fn go_back(&mut self) {
        (self.next, self.next_d) = (self.acked, self.acked_d);
    }

    /// Returns true if a sent packet is unacknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        self.acked < self.sent
    }

    /// Returns true if `g`, the next packet, must wait for an acknowledgement because of pacing.
    pub(super) fn is_held(&self, g: u64) -> bool {
        self.pacing && g >= self.acked + PACE
    }
}

/// The flow from the endpoint to this switch. All positions are those of packets from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Receiving {
    /// The lowest missing position (the paper's `epsn`).
    pub(super) expected: u64,
    /// `expected` in the host's own count of packets.
    pub(super) expected_u: u64,
    /// One past the highest received position.
    pub(super) seen: u64,
    /// The end of the last collective whose control message came from this host. Later PSNs of the host cannot be mapped.
    pub(super) known: u64,
    /// The lowest position that is not acknowledged to it.
    pub(super) confirmed: u64,
    /// `confirmed` in the host's own count of packets.
    pub(super) confirmed_u: u64,
    /// Completed messages of the host within `confirmed_u`.
    pub(super) messages: u32,
    /// True if the NAK of the current gap was sent. There is one NAK per gap.
    pub(super) nak_sent: bool,
    /// True if `expected` has moved since the last tick.
    pub(super) moved: bool,
}
