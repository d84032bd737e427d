//! What a switch does where it receives nothing new of a group for longer than answers take: what it has sent last, or what was sent to it, may be
//! lost, with no later packet that shows it. It repeats and asks, at first after a few round trips, then after twice as long each time, up to the
//! tick. So a loss costs about a round trip and never a time-out of a host (S9).

use super::machine::Translated;
use super::timer::LOOKS;
use super::{Effects, EndpointId, EndpointKind};
use crate::calls::Role;
use castnet_wire::{Nanos, RoundTrip};

/// Most effects for one endpoint.
const EFFECTS: usize = 2;
/// A host that goes back ignores a second NAK before an ACK, and believes an RNR NAK. One that repeats single packets is asked by a NAK or a request
/// in so many rounds before it gets that. One from which the first packet of a message is awaited may not have called yet, and is asked no more.
const BEFORE_RNR: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Silence {
    is_on: bool,
    round_trip: RoundTrip,
    /// A packet that has requested an acknowledgement, and when it was sent for the first time.
    timed: Option<(u64, Nanos)>,
    /// When something new was heard, or asked.
    heard_at: Nanos,
    /// When the silence may have lasted for too long; `MAX`: all has been asked.
    pub(super) due_at: Nanos,
    /// Rounds of questions since something was heard.
    rounds: u8,
    /// Where a round goes on whose effects did not fit into one call.
    next: u16,
}

impl Silence {
    fn patience(&self, most: Nanos) -> Nanos {
        self.round_trip.patience(self.rounds, most)
    }

    /// A new packet or progress. The timer is not changed for each of them. Repeated packets do not count: two neighbours that repeat to each other
    /// would never ask for what both lack.
    #[inline]
    pub(super) fn heard(&mut self, now: Nanos) {
        (self.heard_at, self.rounds) = (now, 0);
        if self.due_at == Nanos::MAX {
            self.due_at = now;
        }
    }

    /// The group begins to work. `most`: the tick; if it is zero, nothing is measured.
    pub(super) fn begin(&mut self, now: Nanos, most: Nanos) {
        self.is_on = most > Nanos::ZERO;
        self.heard(now);
        self.due_at = now + self.patience(most);
    }

    /// Nothing is in flight. All such states are equal but for the measure.
    pub(super) fn end(&mut self) {
        *self = Self {
            round_trip: self.round_trip,
            ..Self::default()
        };
    }

    /// A packet that requests an acknowledgement was sent for the first time.
    pub(super) fn sent(&mut self, now: Nanos, g: u64) {
        if self.is_on && self.timed.is_none() {
            self.timed = Some((g, now));
        }
    }

    /// A packet was sent again: nobody knows which of both is answered (Karn).
    pub(super) fn sent_again(&mut self, g: u64) {
        self.timed = self.timed.filter(|(timed, _)| *timed < g);
    }

    /// All receivers have acknowledged everything before `base`.
    pub(super) fn answered(&mut self, now: Nanos, base: u64) {
        if let Some((timed, at)) = self.timed
            && timed < base
        {
            self.round_trip.measure(now.since(at));
            self.timed = None;
        }
    }

    /// After a round: true if a host that goes back must be asked by an RNR NAK.
    pub(super) fn is_long(&self) -> bool {
        self.rounds > BEFORE_RNR
    }
}

impl<const W: usize> Translated<W> {
    /// Repeats to all endpoints, and asks all, if nothing was heard for too long. Effects may be left, as in `handle_timeout`.
    pub(super) fn break_silence(&mut self, now: Nanos, out: &mut Effects<W>) {
        let tick = self.cold().tick;
        let patience = self.silence.patience(tick);
        if patience >= tick {
            // The tick does the same.
            self.silence.due_at = Nanos::MAX;
            return;
        }
        let at = self.silence.heard_at + patience;
        if self.silence.next == 0 && at > now {
            self.silence.due_at = at;
            return;
        }
        if !self.ask_all(out) {
            return;
        }
        let silence = &mut self.silence;
        silence.heard_at = now;
        silence.rounds = silence.rounds.saturating_add(1);
        silence.due_at = now + silence.patience(tick);
    }

    /// Repeats to all endpoints, and asks all: what [`handle_timeout`](Self::handle_timeout) does after a silence. It is public for model checkers,
    /// whose time stands still. False if endpoints are left.
    pub fn ask_all(&mut self, out: &mut Effects<W>) -> bool {
        let mut looks = LOOKS;
        while usize::from(self.silence.next) < self.endpoints.len() {
            if out.remaining_capacity() < EFFECTS || looks == 0 {
                return false;
            }
            looks -= 1;
            let Some(endpoint) = EndpointId::new(self.silence.next.into()) else {
                break;
            };
            self.silence.next += 1;
            self.repeat_oldest(endpoint, out);
            self.ask(endpoint);
        }
        self.silence.next = 0;
        true
    }

    /// Asks for what an endpoint has sent, or what all wait for: a gap, the rest of a message, or its first packet.
    fn ask(&mut self, from: EndpointId) {
        let receiving = &self.endpoint(from).receiving;
        let (expected, has_gap) = (receiving.expected, receiving.expected < receiving.seen);
        if !self.is_repairing() || !(has_gap || self.is_awaited(from, expected)) {
            return;
        }
        // Where no gap shows, one that shows later is reported at once.
        self.endpoint_mut(from).receiving.nak_sent |= has_gap;
        self.nak_due.insert(from);
        if self.requests_from(from) {
            self.request_all(from);
        }
    }

    /// True if the next packet of a rank is missing, although it has sent the ones before it in the same message, or others wait for it. A switch
    /// repeats by itself.
    fn is_awaited(&self, from: EndpointId, g: u64) -> bool {
        let Some(index) = self.calls.find(g).filter(|_| g < self.limit) else {
            return false;
        };
        let call = self.calls.get(index);
        if !self.is_rank(from) || self.is_parent(from) || !call.involves(from, Role::Sends, g) {
            return false;
        }
        let (pipe, receiving) = (self.pipe_in(call.flow(g), from), &self.endpoint(from).receiving);
        if g >= self.window_end(pipe) {
            return false;
        }
        if g < receiving.known && call.is_in_message(g, self.cold().message_packets) {
            return true;
        }
        // In Mode-II the NAK names the oldest unacknowledged packet, which must be this one: others were not lost.
        let is_next = self.is_augmented() || receiving.confirmed == g;
        is_next && self.silence.rounds < BEFORE_RNR && !self.slots.at(pipe, g).contributed.is_empty()
    }

    /// True if an endpoint is asked for single packets besides by NAKs, which name its oldest unacknowledged one. Hosts that know no such request
    /// ignore it. A switch of another mode goes back at a NAK.
    pub(super) fn requests_from(&self, endpoint: EndpointId) -> bool {
        matches!(self.kind(endpoint), EndpointKind::Rank { is_host: true, .. })
    }

    /// Asks for the next packet of a rank, and for all that are missing behind it, also if it was asked for them.
    pub(super) fn request_all(&mut self, from: EndpointId) {
        self.endpoint_mut(from).receiving.asked.0 = 0;
        self.request_due.insert(from);
    }
}
