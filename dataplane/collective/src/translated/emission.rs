//! ReplicateData: sends results and contributions to their receivers, in order the first time.

use super::machine::{Translated, emit};
use super::pipe::Pipe;
use super::slot::Phase;
use super::{Effect, Effects, EndpointId, EndpointSet};
use crate::calls::{Flow, Role};
use castnet_wire::Nanos;

/// Most unacknowledged packets to a host that is paced: slightly more than a fast link holds in a round-trip time.
const PACE: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    NotYet,
    Ready,
    /// Not to be sent: its result has already been received.
    Answered,
}

impl<const W: usize> Translated<W> {
    pub(super) fn readiness(&self, endpoint: EndpointId, g: u64) -> Readiness {
        let Some(index) = self.calls.find(g) else {
            return Readiness::NotYet;
        };
        let flow = self.calls.get(index).flow(g);
        let (up, pipe) = (
            flow == Flow::UpDown && self.is_parent(endpoint),
            self.pipe_out(flow, endpoint),
        );
        if g >= self.window_end(pipe) {
            return Readiness::NotYet;
        }
        match self.slots.at(pipe, g).phase {
            Phase::Partial if up => Readiness::Ready,
            Phase::Result if up => Readiness::Answered,
            Phase::Result => Readiness::Ready,
            Phase::Filling | Phase::Partial => Readiness::NotYet,
        }
    }

    /// `g` was sent, is not acknowledged, and can be sent again.
    pub(super) fn lacks(&self, endpoint: EndpointId, g: u64) -> bool {
        let sending = &self.endpoint(endpoint).sending;
        sending.acked <= g
            && g < sending.next
            && !self.rnr_waiting.contains(endpoint)
            && self.readiness(endpoint, g) == Readiness::Ready
    }

    pub(super) fn refresh(&mut self, endpoint: EndpointId) {
        self.pending.remove(endpoint);
        if self.rnr_waiting.contains(endpoint) {
            return;
        }
        loop {
            let g = self.endpoint(endpoint).sending.next;
            match self.readiness(endpoint, g) {
                Readiness::NotYet => {
                    self.endpoint_mut(endpoint).sending.end_pace();
                    return;
                }
                Readiness::Ready if self.is_held(endpoint, g) => return,
                Readiness::Ready => return self.pending.insert(endpoint),
                Readiness::Answered => self.step(endpoint, g),
            }
        }
    }

    /// True if `g`, the next packet to `endpoint`, must wait for acknowledgements.
    pub(super) fn is_held(&self, endpoint: EndpointId, g: u64) -> bool {
        let sending = &self.endpoint(endpoint).sending;
        let ahead = g.saturating_sub(sending.acked);
        (sending.pacing && ahead >= PACE)
            || (self.is_augmented() && !self.is_rank(endpoint) && ahead >= self.hop_window())
    }

    fn step(&mut self, endpoint: EndpointId, g: u64) {
        let next = self.calls.settle(endpoint, Role::Receives, g + 1);
        self.step_to(endpoint, g, next);
    }

    #[inline]
    fn step_to(&mut self, endpoint: EndpointId, g: u64, next: u64) {
        let is_rank = self.is_rank(endpoint);
        let sending = &mut self.endpoint_mut(endpoint).sending;
        sending.next_d += u64::from(is_rank);
        if !sending.is_outstanding() {
            sending.moved = true;
        }
        sending.next = next;
        sending.sent = sending.sent.max(g + 1);
    }

    /// Sends the lowest ready packet to all endpoints for which it is next, if there is one and `out` is not full.
    pub(super) fn replicate_data(&mut self, now: Nanos, out: &mut Effects<W>) {
        if self.pending.is_empty() || out.is_full() {
            return;
        }
        let (mut g, mut to) = (u64::MAX, EndpointSet::EMPTY);
        for endpoint in self.pending {
            let next = self.endpoint(endpoint).sending.next;
            if next < g {
                (g, to) = (next, EndpointSet::EMPTY);
            }
            if next == g {
                to.insert(endpoint);
            }
        }
        // In Mode-III, the sum for the parent and the result for the children are in two slots.
        let pipe = self.pipe_to(g, &mut to);
        let is_first = to
            .iter()
            .all(|endpoint| self.endpoint(endpoint).sending.sent <= g);
        // Within the data of a block, all receivers have the same following packet: if it is not ready, one check is enough.
        let next = g + 1;
        let alike = self.calls.find(g).is_some_and(|index| {
            let call = self.calls.get(index);
            g != call.start && next < call.part_end(g)
        });
        let waits = alike
            && (next >= self.window_end(pipe) || matches!(self.slots.at(pipe, next).phase, Phase::Filling));
        if waits {
            to.iter().for_each(|endpoint| self.step_to(endpoint, g, next));
            self.pending = self.pending.minus(to);
        } else {
            for endpoint in to {
                self.step(endpoint, g);
                self.refresh(endpoint);
            }
        }
        // With pacing, acknowledgements release the next packets, so this one must request them.
        let paced = to.iter().any(|e| self.endpoint(e).sending.pacing);
        let asks = self.put((pipe, g), to, paced, out);
        // What goes up is answered when all others have sent.
        let is_sum = self.is_sum(g, to);
        match is_first {
            true if asks && !is_sum => self.silence.sent(now, g),
            true => {}
            false => self.silence.sent_again(g),
        }
    }

    /// True if the packet at `g` goes to the parent, whose answer is the result.
    fn is_sum(&self, g: u64, to: EndpointSet<W>) -> bool {
        let call = self.calls.find(g).map(|index| self.calls.get(index));
        let is_up = call.is_some_and(|call| call.flow(g) == Flow::UpDown);
        is_up && self.cold().parent.is_some_and(|parent| to.contains(parent))
    }

    /// The pipe with the packet at `g` for the lowest of `to`. The others are removed if it is in another one for them.
    fn pipe_to(&self, g: u64, to: &mut EndpointSet<W>) -> Pipe {
        let flow = self.calls.find(g).map(|index| self.calls.get(index).flow(g));
        let (Some(flow), Some(first)) = (flow, to.iter().next()) else {
            return Pipe::Aggregation;
        };
        if let Some(parent) = self.cold().parent
            && self.is_augmented()
            && flow == Flow::UpDown
        {
            match first == parent {
                true => *to = EndpointSet::only(parent),
                false => to.remove(parent),
            }
        }
        self.pipe_out(flow, first)
    }

    pub(super) fn emit_again(
        &mut self,
        g: u64,
        mut to: EndpointSet<W>,
        ack_request: bool,
        out: &mut Effects<W>,
    ) {
        if to.is_empty() {
            return;
        }
        let repairing = self.is_repairing();
        for endpoint in to {
            let is_rank = self.is_rank(endpoint);
            let sending = &mut self.endpoint_mut(endpoint).sending;
            if sending.acked == g {
                sending.refusal = None;
                sending.probing |= repairing && is_rank && !sending.keeps;
            }
        }
        let pipe = self.pipe_to(g, &mut to);
        self.silence.sent_again(g);
        self.put((pipe, g), to, ack_request, out);
    }

    /// True if the packet requests an acknowledgement.
    fn put(&self, (pipe, g): (Pipe, u64), to: EndpointSet<W>, asks: bool, out: &mut Effects<W>) -> bool {
        let Some(index) = self.calls.find(g) else {
            return false;
        };
        let call = self.calls.get(index);
        if g == call.start {
            let (g, control) = (self.wire_g(g), call.control);
            emit(out, Effect::EmitControl { g, to, control });
            return true;
        }
        let ack_request = asks || self.slots.at(pipe, g).ack_request || self.ends_quarter(g);
        emit(
            out,
            Effect::Emit {
                slot: self.slots.number(pipe, g),
                g: self.wire_g(g),
                to,
                ack_request,
            },
        );
        ack_request
    }

    /// True if the packet at `g` requests an acknowledgement because the window of Mode-III is moved by them, however long messages are.
    fn ends_quarter(&self, g: u64) -> bool {
        self.is_augmented() && (g + 1).is_multiple_of((self.hop_window() / 2).max(1))
    }
}
