//! The state of one endpoint: the flow from this switch to it, and the flow from it.

use castnet_wire::{Nanos, Syndrome};
use core::hash::{Hash, Hasher};

/// New packets that are paced after a loss. Where one packet of a hundred is lost, most are.
const PACED: u64 = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
}

/// The flow from this switch to the endpoint. `acked <= next`, and both are positions of packets to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sending {
    /// The lowest unacknowledged position (`lastAcked` + 1 of the paper). A result acknowledges a contribution to the parent.
    pub(super) acked: u64,
    /// `acked` in the host's count of packets.
    pub(super) acked_d: u64,
    pub(super) next: u64,
    /// `next` in the host's count of packets.
    pub(super) next_d: u64,
    /// One past the highest sent position (`maxPsnSent` + 1 of the paper).
    pub(super) sent: u64,
    /// The oldest unacknowledged packet was sent as a probe. If its answer does not acknowledge everything, all behind it was lost, too.
    pub(super) probing: bool,
    /// A packet was lost. Few are unacknowledged at a time: a further loss makes all behind it useless.
    pub(super) pacing: bool,
    /// The position from which on `pacing` may end.
    pub(super) paced_until: u64,
    /// The host has asked for single packets: it keeps what it receives behind a gap, and has no use for what follows a lost packet.
    pub(super) keeps: bool,
    /// A packet was acknowledged since the last tick, or sent when none was outstanding.
    pub(super) moved: bool,
    /// Of the packet at `acked`. Used only if NAKs are reflected.
    pub(super) refusal: Option<Syndrome>,
    /// A NAK of the packet at `acked` was served. Until it is acknowledged or a timer has repeated it, no other one of a host is.
    pub(super) nak_served: bool,
    /// End of the wait for a posted receive, while the endpoint is in `rnr_waiting`.
    pub(super) rnr_until: Nanos,
}

impl Sending {
    pub(super) fn go_back(&mut self) {
        (self.next, self.next_d) = (self.acked, self.acked_d);
    }

    pub(super) fn pace(&mut self) {
        self.pacing = true;
        self.paced_until = self.sent + PACED;
    }

    /// Nothing is ready to be sent: all retransmissions are out.
    pub(super) fn end_pace(&mut self) {
        self.pacing &= self.next < self.paced_until;
    }

    pub(super) fn is_outstanding(&self) -> bool {
        self.acked < self.sent
    }
}

/// The flow from the endpoint to this switch, in positions of packets from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Receiving {
    /// The lowest missing position (the paper's `epsn`).
    pub(super) expected: u64,
    /// `expected` in the host's count of packets.
    pub(super) expected_u: u64,
    /// One past the highest received position.
    pub(super) seen: u64,
    /// No packet from `expected` to before here has been received.
    pub(super) missing_to: Checked,
    /// No position from `expected` to before here is still to be asked for by a request.
    pub(super) asked: Checked,
    /// The packet at `expected` is to be asked for once more.
    pub(super) again: bool,
    /// End of the last collective whose control message came from this host. Its later PSNs cannot be mapped.
    pub(super) known: u64,
    /// The lowest position not acknowledged to it.
    pub(super) confirmed: u64,
    /// `confirmed` in the host's count of packets.
    pub(super) confirmed_u: u64,
    /// Messages of the host completed within `confirmed_u`.
    pub(super) messages: u32,
    /// The NAK of the current gap was sent: one per gap.
    pub(super) nak_sent: bool,
    /// `expected` has moved since the last tick.
    pub(super) moved: bool,
}

/// A position up to which something has been checked. It saves work, and decides at most which of several repeated packets brings a NAK, or which
/// packets a host that knows requests is asked for. So it is neither compared nor hashed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checked(pub(super) u64);

impl PartialEq for Checked {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Checked {}

impl Hash for Checked {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
