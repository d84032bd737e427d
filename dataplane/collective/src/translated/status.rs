//! The state of a group, for display.

use super::machine::Translated;
use super::{EndpointId, EndpointKind};
use alloc::vec::Vec;
use castnet_wire::{Call, Control, Nanos, Psn};

/// The state of a group at one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslatedStatus {
    /// The lowest `g` that is not finished: complete, and acknowledged by all that get it.
    pub base: Psn,
    /// The `g` of the next collective's control message.
    pub next_collective: Psn,
    /// The number of that collective.
    pub next_sequence: u32,
    /// Packets finished since the group began.
    pub finished: u64,
    /// Collectives in flight, oldest first.
    pub collectives: Vec<CollectiveStatus>,
    /// Who said what, where ranks disagreed: nothing after that collective is served.
    pub conflict: Option<Control>,
    /// Those whose contribution to `base` is missing or, where none is, those that have not acknowledged it.
    pub waiting_for: Vec<EndpointId>,
    /// When something was last finished, or begun after nothing was in flight. `None` if nothing is.
    pub since: Option<Nanos>,
    /// By endpoint.
    pub endpoints: Vec<EndpointStatus>,
}

/// One collective in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveStatus {
    /// Its number.
    pub sequence: u32,
    /// The `g` of its control message.
    pub g: Psn,
    /// What it is.
    pub call: Call,
}

/// The progress of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Which one.
    pub endpoint: EndpointId,
    /// What is at its other end.
    pub kind: EndpointKind,
    /// True if it is the one towards the root of the tree.
    pub is_parent: bool,
    /// The lowest `g` that it sends here and has not sent yet.
    pub expected: Psn,
    /// The lowest `g` that it sends here and that is not acknowledged to it.
    pub unconfirmed: Psn,
    /// The lowest `g` that goes to it and that it has not acknowledged.
    pub unacknowledged: Psn,
    /// The next `g` that goes to it.
    pub next: Psn,
    /// `u` acknowledged and `d` acknowledged since the group began, in packets; both 0 for a switch.
    pub packets: (u64, u64),
    /// A NAK has gone to it that it has not answered yet.
    pub nak_sent: bool,
    /// It had no receive posted: nothing goes to it before this.
    pub rnr_until: Option<Nanos>,
}

impl<const W: usize> Translated<W> {
    /// The state, for display.
    pub fn status(&self) -> TranslatedStatus {
        let collectives = self.calls.iter().map(|(sequence, c)| CollectiveStatus {
            sequence,
            g: self.wire_g(c.start),
            call: c.call,
        });
        let failed = self.calls.find(self.limit.wrapping_sub(1));
        let endpoints = self.cold().all.iter().map(|endpoint| {
            let state = self.endpoint(endpoint);
            let (sending, receiving) = (&state.sending, &state.receiving);
            EndpointStatus {
                endpoint,
                kind: self.kind(endpoint),
                is_parent: self.is_parent(endpoint),
                expected: self.wire_g(receiving.expected),
                unconfirmed: self.wire_g(receiving.confirmed),
                unacknowledged: self.wire_g(sending.acked),
                next: self.wire_g(sending.next),
                packets: (receiving.confirmed_u, sending.acked_d),
                nak_sent: receiving.nak_sent,
                rnr_until: self.rnr_waiting.contains(endpoint).then_some(sending.rnr_until),
            }
        });
        TranslatedStatus {
            base: self.wire_g(self.base),
            next_collective: self.wire_g(self.calls.end()),
            next_sequence: self.calls.next_sequence(),
            finished: self.base,
            collectives: collectives.collect(),
            conflict: failed.map(|index| self.calls.get(index).control),
            waiting_for: self.waiting_for().iter().collect(),
            since: self.is_active().then_some(self.since),
            endpoints: endpoints.collect(),
        }
    }
}
