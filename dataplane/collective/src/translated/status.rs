//! The state of a group, for display.

use super::machine::Translated;
use super::{CollectiveMode, EndpointId, EndpointKind};
use alloc::vec::Vec;
use castnet_wire::{Call, Control, Nanos, Psn};

/// The state of a group at one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslatedStatus {
    /// Mode-II or Mode-III.
    pub mode: CollectiveMode,
    /// The lowest unfinished `g`. A finished packet is complete, and acknowledged by all its receivers.
    pub base: Psn,
    /// The `g` of the next collective's control message.
    pub next_collective: Psn,
    /// The number of that collective.
    pub next_sequence: u32,
    /// Packets finished since the group began.
    pub finished: u64,
    /// Collectives in flight, oldest first.
    pub collectives: Vec<CollectiveStatus>,
    /// The merged control message if ranks disagree: no later collective is served.
    pub conflict: Option<Control>,
    /// The endpoints whose contribution to `base` is missing or, if none is, those that have not acknowledged it.
    pub waiting_for: Vec<EndpointId>,
    /// Time of the last progress. `None` if nothing is in flight.
    pub since: Option<Nanos>,
    /// The state of each endpoint.
    pub endpoints: Vec<EndpointStatus>,
}

/// One collective in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveStatus {
    /// Its number.
    pub sequence: u32,
    /// The `g` of its control message.
    pub g: Psn,
    /// Its call.
    pub call: Call,
}

/// The progress of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Host or switch.
    pub kind: EndpointKind,
    /// True if it leads towards the root of the tree.
    pub is_parent: bool,
    /// The lowest `g` that is missing from it.
    pub expected: Psn,
    /// The lowest `g` from it that is not acknowledged to it.
    pub unconfirmed: Psn,
    /// The lowest `g` to it that it has not acknowledged.
    pub unacknowledged: Psn,
    /// The next `g` to send to it.
    pub next: Psn,
    /// Acknowledged packets in `u` and in `d` since the group began; both 0 for a switch.
    pub packets: (u64, u64),
    /// True if a NAK was sent to it that it has not answered yet.
    pub nak_sent: bool,
    /// Time before which nothing is sent to it, because it had no receive posted.
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
            mode: self.cold().mode,
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
