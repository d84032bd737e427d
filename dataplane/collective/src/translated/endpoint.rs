//! What is known of one endpoint: the flow from this switch to it, and the flow from it.

use castnet_wire::{Nanos, Syndrome};

/// How many packets go to a host again before one of them is acknowledged: a little more than is on a fast link in the time
/// there and back.
const PACE: u64 = 8;

/// Both flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
}

/// The flow from this switch to the endpoint. `acked <= next`, both at positions that go to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sending {
    /// The lowest position that it has not acknowledged (the paper's `lastAcked`, plus one). Of a contribution upwards, the
    /// result is the acknowledgement.
    pub(super) acked: u64,
    /// `acked` in the host's own count of packets.
    pub(super) acked_d: u64,
    /// What goes out next.
    pub(super) next: u64,
    /// `next` in the host's own count of packets.
    pub(super) next_d: u64,
    /// One past the highest that has gone out (the paper's `maxPsnSent`, plus one).
    pub(super) sent: u64,
    /// The oldest unacknowledged packet was repeated for want of an answer; if what answers is less than all, all behind it was lost too.
    pub(super) probing: bool,
    /// It lost something, and what goes again is not through yet: little of it is unacknowledged at a time, since one more loss
    /// makes worthless all that is behind it.
    pub(super) pacing: bool,
    /// Something was acknowledged since the last tick, or sent after nothing was outstanding.
    pub(super) moved: bool,
    /// It has refused the packet at `acked`. Only where NAKs are reflected.
    pub(super) refusal: Option<Syndrome>,
    /// It had no receive posted; valid while it is in the machine's set of those that wait.
    pub(super) rnr_until: Nanos,
}

impl Sending {
    /// What goes out next is the oldest that is not acknowledged.
    pub(super) fn go_back(&mut self) {
        (self.next, self.next_d) = (self.acked, self.acked_d);
    }

    /// Returns true if it has to acknowledge something.
    pub(super) fn is_outstanding(&self) -> bool {
        self.acked < self.sent
    }

    /// Returns true if `g`, which comes next, has to wait for an acknowledgement although it is there.
    pub(super) fn is_held(&self, g: u64) -> bool {
        self.pacing && g >= self.acked + PACE
    }
}

/// The flow from the endpoint to this switch, at positions that come from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Receiving {
    /// The lowest that is missing (the paper's `epsn`).
    pub(super) expected: u64,
    /// `expected` in the host's own count of packets.
    pub(super) expected_u: u64,
    /// One past the highest that came.
    pub(super) seen: u64,
    /// The end of the last collective whose control message came from this host: beyond it, its numbers mean nothing.
    pub(super) known: u64,
    /// The lowest that is not acknowledged to it.
    pub(super) confirmed: u64,
    /// `confirmed` in the host's own count of packets.
    pub(super) confirmed_u: u64,
    /// Messages of the host within `confirmed_u`.
    pub(super) messages: u32,
    /// One NAK per gap: it has been sent, and the gap is still there.
    pub(super) nak_sent: bool,
    /// `expected` has moved since the last tick.
    pub(super) moved: bool,
}
