//! Retransmission and other timers.

use super::machine::{Translated, emit};
use super::pipe::Pipe;
use super::slot::Phase;
use super::{Effect, Effects, EndpointId, EndpointSet, StragglerPolicy, TimerReason};
use crate::calls::Flow;
use castnet_wire::{Nanos, RnrTimer, Syndrome};

const TICK_EFFECTS: usize = 4;
/// Endpoints that one call looks at. The next one goes on.
pub(super) const LOOKS: usize = 64;

impl<const W: usize> Translated<W> {
    /// The time at which [`handle_timeout`](Self::handle_timeout) is due, and the reason.
    #[inline]
    pub fn poll_timeout(&self) -> Option<(Nanos, TimerReason)> {
        let rnr = (!self.rnr_waiting.is_empty()).then_some((self.rnr_at, TimerReason::Rnr));
        let active = self.is_active();
        let tick = active.then_some((self.tick_at, TimerReason::Tick));
        let watched = active && self.cold().stall_timeout > Nanos::ZERO;
        let stall = watched.then_some((self.stall_at, TimerReason::Stall));
        let silence = active.then_some((self.silence.due_at, TimerReason::Silence));
        [rnr, tick, stall, silence].into_iter().flatten().min()
    }

    /// Handles a due timer. Clears `out`. Effects may be left: call it again while [`poll_timeout`](Self::poll_timeout) is due, and
    /// [`poll_emit`](Self::poll_emit) after each call.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut Effects<W>) {
        out.clear();
        if !self.rnr_waiting.is_empty() && self.rnr_at <= now {
            self.end_rnr_waits(now);
        }
        if !self.is_active() {
            return;
        }
        let cold = self.cold();
        let (tick, stall_timeout) = (cold.tick, cold.stall_timeout);
        if stall_timeout > Nanos::ZERO && self.stall_at <= now {
            self.stall_at = now + stall_timeout;
            emit(
                out,
                Effect::Stalled {
                    waiting_for: self.waiting_for(),
                    g: self.wire_g(self.base),
                    since: self.since,
                },
            );
        }
        if self.tick_at > now {
            if self.silence.due_at <= now {
                self.break_silence(now, out);
            }
            return;
        }
        let mut looks = LOOKS;
        while usize::from(self.tick_next) < self.endpoints.len() {
            if out.remaining_capacity() < TICK_EFFECTS || looks == 0 {
                return;
            }
            looks -= 1;
            let Some(endpoint) = EndpointId::new(self.tick_next.into()) else {
                break;
            };
            self.tick_next += 1;
            self.repeat(endpoint, out);
            self.keep_alive(endpoint, out);
        }
        self.tick_next = 0;
        self.tick_at = now + tick;
    }

    fn end_rnr_waits(&mut self, now: Nanos) {
        let mut next = None;
        for endpoint in self.rnr_waiting {
            let sending = &mut self.endpoint_mut(endpoint).sending;
            if sending.rnr_until > now {
                next = next.into_iter().chain([sending.rnr_until]).min();
                continue;
            }
            (sending.rnr_until, sending.nak_served) = (Nanos::ZERO, false);
            self.rnr_waiting.remove(endpoint);
            self.refresh(endpoint);
        }
        self.rnr_at = next.unwrap_or(Nanos::ZERO);
    }

    /// Retransmits packets unacknowledged for a whole tick. A parent of another mode gets all, as from a host: if it is of Mode-II, it
    /// acknowledges nothing before the result, for which a switch of Mode-I may need a whole message.
    fn repeat(&mut self, endpoint: EndpointId, out: &mut Effects<W>) {
        let is_like_host = self.is_rank(endpoint) && self.is_parent(endpoint);
        let sending = &mut self.endpoint_mut(endpoint).sending;
        if core::mem::take(&mut sending.moved) {
            return;
        }
        if is_like_host && sending.is_outstanding() && self.is_repairing() {
            let sending = &mut self.endpoint_mut(endpoint).sending;
            sending.nak_served = false;
            sending.go_back();
            return self.refresh(endpoint);
        }
        self.repeat_oldest(endpoint, out);
    }

    /// Retransmits to an endpoint: a host gets the oldest packet, and its answer shows how much it has received. A switch, or a host that keeps what
    /// is behind a gap, gets the oldest and the newest, and then detects each gap between them.
    pub(super) fn repeat_oldest(&mut self, endpoint: EndpointId, out: &mut Effects<W>) {
        let is_rank = self.is_rank(endpoint);
        let sending = &self.endpoint(endpoint).sending;
        let (oldest, newest) = (sending.acked, sending.sent.saturating_sub(1));
        if !sending.is_outstanding() || (is_rank && (!self.is_repairing() || self.is_parent(endpoint))) {
            return;
        }
        let keeps = !is_rank || sending.keeps;
        self.endpoint_mut(endpoint).sending.nak_served = false;
        for g in [Some(oldest), (keeps && newest > oldest).then_some(newest)] {
            if let Some(g) = g.filter(|&g| self.lacks(endpoint, g)) {
                self.emit_again(g, EndpointSet::only(endpoint), true, out);
            }
        }
    }

    /// A NAK for a packet that is still missing, or a keep-alive while another endpoint is waited for.
    fn keep_alive(&mut self, endpoint: EndpointId, out: &mut Effects<W>) {
        let (is_rank, repairing) = (self.is_rank(endpoint), self.is_repairing());
        let receiving = &mut self.endpoint_mut(endpoint).receiving;
        let moved = core::mem::take(&mut receiving.moved);
        if !is_rank && repairing && receiving.nak_sent {
            // Only to a switch: a repeated ACK would re-arm the retransmission timer of a host.
            if !moved {
                self.nak_due.insert(endpoint);
                self.send_ack(endpoint, out);
            }
            return;
        }
        if !is_rank || !self.waits(endpoint) || (!moved && self.stops_in_message(endpoint)) {
            return;
        }
        self.confirm_received(endpoint);
        match self.cold().straggler {
            StragglerPolicy::KeepAlive => self.acknowledge(endpoint, Syndrome::Ack, out),
            StragglerPolicy::Rnr => {
                let timer = rnr_timer(self.cold().tick);
                self.acknowledge(endpoint, Syndrome::RnrNak(timer), out);
            }
            StragglerPolicy::None => {}
        }
    }

    /// True if the host can do nothing about the wait. In Mode-III, its next packet was refused for lack of a slot. In Mode-II, it has
    /// contributed its oldest unacknowledged packet, and contributions of others are missing or, with repair by this switch, answers of
    /// switches, of hosts without a posted receive, or of hosts to which the packet has not been sent yet. False in all other cases, because
    /// an ACK also delays repetitions that are needed.
    fn waits(&self, host: EndpointId) -> bool {
        if self.is_augmented() {
            return self.refused.contains(host) && !self.has_room_for(host);
        }
        let receiving = &self.endpoint(host).receiving;
        let g = receiving.confirmed;
        if g >= receiving.expected || g >= self.limit || g < self.psn_start(Pipe::Aggregation) {
            return false;
        }
        let Some(index) = self.calls.find(g) else {
            return false;
        };
        if self.slots.at(Pipe::Aggregation, g).phase != Phase::Result {
            return true;
        }
        let waits_for = |e: EndpointId| {
            let sending = &self.endpoint(e).sending;
            sending.acked <= g && (!self.is_rank(e) || self.rnr_waiting.contains(e) || sending.next <= g)
        };
        self.is_repairing()
            && self
                .deciders(host, self.calls.get(index).flow(g))
                .iter()
                .any(waits_for)
    }

    /// True if the host has stopped in the middle of a message. It waits for its timer, because its last packet was lost or an RNR NAK came
    /// between, and an answer would put that off. The others may need the rest of the message: a switch of Mode-I adds whole ones.
    fn stops_in_message(&self, host: EndpointId) -> bool {
        let expected = self.endpoint(host).receiving.expected;
        let found = self.calls.find(expected).map(|index| self.calls.get(index));
        !self.is_augmented()
            && found.is_some_and(|call| call.is_in_message(expected, self.cold().message_packets))
    }

    /// The endpoints whose contribution to `base` is missing or, if none is, those that have not acknowledged it.
    pub(super) fn waiting_for(&self) -> EndpointSet<W> {
        let Some(index) = self.calls.find(self.base).filter(|_| self.is_active()) else {
            return EndpointSet::EMPTY;
        };
        let flow = self.calls.get(index).flow(self.base);
        let missing: EndpointSet<W> = self
            .inputs(flow)
            .iter()
            .filter(|&e| !self.has_received(self.base, e))
            .collect();
        match self.cold().parent {
            _ if !missing.is_empty() => missing,
            Some(parent) if flow == Flow::UpDown && !self.has_received(self.base, parent) => {
                EndpointSet::only(parent)
            }
            _ => self
                .outputs(flow)
                .iter()
                .filter(|&e| self.endpoint(e).sending.acked <= self.base)
                .collect(),
        }
    }
}

/// The shortest RNR wait that is at least `tick`.
fn rnr_timer(tick: Nanos) -> RnrTimer {
    (1..32)
        .map(RnrTimer::new)
        .find(|t| t.wait() >= tick)
        .unwrap_or(RnrTimer::new(0))
}
