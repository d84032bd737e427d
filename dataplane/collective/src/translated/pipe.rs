//! Pipes (EPIC 4.4): a ring of slots with the endpoints that fill it and the endpoints that it is sent to.
//!
//! Mode-II has one ring for both directions, which is all in the pipe [`Pipe::Aggregation`]. Mode-III has two:
//!
//! | packets | pipe | in | out |
//! |---|---|---|---|
//! | control, AllReduce, up | aggregation | children | parent; at the root, the broadcast pipe |
//! | control, AllReduce, down | broadcast | parent; at the root, the aggregation pipe | children |
//! | Reduce | aggregation | all but `e_r` | `e_r` |
//! | Broadcast | broadcast | `e_r` | all but `e_r` |
//!
//! Each pipe has its own `psn_start`, the lowest position that it still needs. Positions that a pipe never carries do not hold it back.

use super::machine::{Translated, emit};
use super::slot::Phase;
use super::{Effect, Effects, EndpointId};
use crate::calls::{Collective, Flow, Role};
use castnet_wire::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pipe {
    /// `aggPipe` of Algorithm 2; the only one in Mode-II.
    Aggregation,
    /// `bcastPipe` of Algorithm 2.
    Broadcast,
}

/// The window of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    /// The lowest position that is not finished: complete, and acknowledged by all its outgoing endpoints.
    pub(super) psn_start: u64,
    /// The lowest position that an outgoing endpoint held when they were last compared, and that endpoint.
    held: u64,
    slowest: EndpointId,
}

impl<const W: usize> Translated<W> {
    /// The windows of a new group, whose endpoints are numbered from 0.
    pub(super) fn new_windows(endpoints: usize) -> [Window; 2] {
        let window = Window {
            psn_start: 0,
            held: 0,
            slowest: EndpointId::new(endpoints.saturating_sub(1)).unwrap_or_default(),
        };
        [window; 2]
    }

    #[inline]
    fn pipe(&self, is_broadcast: bool) -> Pipe {
        match is_broadcast && self.is_augmented() {
            true => Pipe::Broadcast,
            false => Pipe::Aggregation,
        }
    }

    /// The pipe that packets from `from` fill.
    #[inline]
    pub(super) fn pipe_in(&self, flow: Flow, from: EndpointId) -> Pipe {
        self.pipe(match flow {
            Flow::UpDown => self.is_parent(from),
            Flow::Gather(_) => false,
            Flow::Scatter(_) => true,
        })
    }

    /// The pipe from which packets to `to` are sent.
    #[inline]
    pub(super) fn pipe_out(&self, flow: Flow, to: EndpointId) -> Pipe {
        self.pipe(match flow {
            Flow::UpDown => !self.is_parent(to),
            Flow::Gather(_) => false,
            Flow::Scatter(_) => true,
        })
    }

    #[inline]
    pub(super) fn psn_start(&self, pipe: Pipe) -> u64 {
        self.windows[pipe as usize].psn_start
    }

    /// Positions from here on have no slot yet, or are not served.
    #[inline]
    pub(super) fn window_end(&self, pipe: Pipe) -> u64 {
        (self.psn_start(pipe) + self.slots.ring()).min(self.limit)
    }

    /// The window of packets from `from` at `g`, which may be the control message of a new collective.
    pub(super) fn window_for(&self, from: EndpointId, g: u64) -> u64 {
        if !self.is_augmented() {
            return self.window_end(Pipe::Aggregation);
        }
        let flow = self
            .calls
            .find(g)
            .map_or(Flow::UpDown, |index| self.calls.get(index).flow(g));
        self.window_end(self.pipe_in(flow, from))
    }

    /// True if the packet of `from` at `g`, which it sends, has been received.
    pub(super) fn has_received(&self, g: u64, from: EndpointId) -> bool {
        let index = self.calls.find(g);
        index.is_some_and(|index| self.has_received_of(self.calls.get(index), g, from))
    }

    /// The same, of a packet of this collective.
    pub(super) fn has_received_of(&self, call: &Collective, g: u64, from: EndpointId) -> bool {
        let pipe = self.pipe_in(call.flow(g), from);
        g < self.psn_start(pipe) || (g < self.window_end(pipe) && self.slots.check_duplicate(pipe, g, from))
    }

    /// True if all children have contributed to `g`, which goes up and down, so a result may come.
    pub(super) fn awaits_result(&self, g: u64) -> bool {
        let pipe = Pipe::Aggregation;
        g < self.psn_start(pipe)
            || (g < self.window_end(pipe) && self.slots.at(pipe, g).phase == Phase::Partial)
    }

    /// Packets that may be unacknowledged between two switches of Mode-III, and that a switch acknowledges before it has sent them on.
    /// With half of the ring for each, the next packet of a neighbour always has a slot.
    pub(super) fn hop_window(&self) -> u64 {
        self.slots.ring() / 2
    }

    /// True if the sum at `handed` can become the result.
    #[inline]
    pub(super) fn can_hand_over(&self) -> bool {
        let g = self.handed;
        g < self.window_end(Pipe::Broadcast)
            && g < self.window_end(Pipe::Aggregation)
            && g < self.calls.end()
            && self.slots.at(Pipe::Aggregation, g).phase == Phase::Partial
    }

    /// At the root of the tree, the aggregation pipe sends its sum into the broadcast pipe, as if it came from a parent (EPIC H.4: a copy
    /// without regard to that pipe's window would overwrite a result in use). Returns false if nothing can be handed over.
    pub(super) fn hand_over(&mut self, now: Nanos, out: &mut Effects<W>) -> bool {
        if !self.can_hand_over() {
            return false;
        }
        let g = self.handed;
        let (from, to) = (Pipe::Aggregation, Pipe::Broadcast);
        let sum = self.slots.at(from, g).clone();
        let slot = self.slots.at_mut(to, g);
        (slot.shape, slot.ack_request, slot.phase) = (sum.shape, sum.ack_request, Phase::Result);
        if self
            .calls
            .find(g)
            .is_some_and(|index| self.calls.get(index).start != g)
        {
            emit(
                out,
                Effect::HandOver {
                    from: self.slots.number(from, g),
                    to: self.slots.number(to, g),
                },
            );
        }
        self.handed = self.next_handed(g + 1);
        self.ready(g, self.cold().children);
        self.advance(now);
        true
    }

    /// The first position from `g` on that goes up and down.
    fn next_handed(&self, mut g: u64) -> u64 {
        while let Some(index) = self.calls.find(g) {
            let call = self.calls.get(index);
            if call.flow(g) == Flow::UpDown {
                break;
            }
            g = call.part_end(g);
        }
        g
    }

    /// Mode-III: the lowest position from `g` on that the aggregation pipe sends and whose receiver has not acknowledged it. Each has one
    /// receiver at most, so all are found in one walk over the collectives, not in one for each endpoint.
    fn unacknowledged_up(&self, mut g: u64) -> u64 {
        for call in self.calls.from(g) {
            while g < call.end() {
                let receiver = match call.flow(g) {
                    Flow::UpDown => self.cold().parent,
                    Flow::Gather(root) => Some(root),
                    Flow::Scatter(_) => None,
                };
                let end = call.part_end(g);
                let acked = receiver.map_or(u64::MAX, |to| self.endpoint(to).sending.acked);
                if acked < end {
                    return acked.max(g);
                }
                g = end;
            }
        }
        g
    }

    /// The lowest position from `g` on that `pipe` sends to `to` and that `to` has not acknowledged. Behind `last` it is not looked for.
    fn unacknowledged(&self, to: EndpointId, pipe: Pipe, g: u64, last: u64) -> u64 {
        let acked = self.endpoint(to).sending.acked;
        if !self.is_augmented() {
            return acked;
        }
        let mut g = g.max(acked);
        for call in self.calls.from(g) {
            while g < call.end() {
                let is_sent = call.involves(to, Role::Receives, g) && self.pipe_out(call.flow(g), to) == pipe;
                if is_sent || g > last {
                    return g;
                }
                g = call.part_end(g);
            }
        }
        g
    }

    /// Raises `psn_start` of a pipe to the lowest position that it needs, and recycles the slots below it.
    fn advance_window(&mut self, pipe: Pipe) -> bool {
        let local = match pipe {
            Pipe::Aggregation => self.handed,
            Pipe::Broadcast => u64::MAX,
        };
        let Window {
            psn_start: before,
            mut held,
            mut slowest,
        } = self.windows[pipe as usize];
        // What endpoints hold only grows, so they need not be compared below it, nor before the one that held it has moved.
        if local <= held {
            // Something else holds it.
        } else if self.is_augmented() && pipe == Pipe::Aggregation {
            held = self.unacknowledged_up(held);
        } else if self.unacknowledged(slowest, pipe, held, held) > held {
            // The last one, because endpoints mostly answer in the order in which packets are sent to them. The parent gets little by the
            // broadcast pipe, so its next position may be far.
            let mut lowest = u64::MAX;
            for endpoint in self.cold().children.iter().chain(self.cold().parent) {
                let g = self.unacknowledged(endpoint, pipe, held, lowest);
                if g <= lowest {
                    (lowest, slowest) = (g, endpoint);
                }
            }
            held = lowest;
        }
        let psn_start = local.min(held).min(self.limit).max(before);
        self.windows[pipe as usize] = Window {
            psn_start,
            held,
            slowest,
        };
        self.slots.recycle_buffer(pipe, before, psn_start);
        psn_start > before
    }

    /// Raises the windows and `base` after acknowledgements, and lets wait no longer who waited for that.
    pub(super) fn advance(&mut self, now: Nanos) {
        let mut moved = self.advance_window(Pipe::Aggregation);
        let mut base = self.psn_start(Pipe::Aggregation);
        if self.is_augmented() {
            moved |= self.advance_window(Pipe::Broadcast);
            base = base.min(self.psn_start(Pipe::Broadcast));
        }
        if !moved {
            return;
        }
        self.confirm_withheld();
        if base > self.base {
            self.base = base;
            self.silence.answered(now, base);
            let mut work = match self.is_behind() {
                true => 0,
                false => 2 * self.endpoints.len(),
            };
            self.retire(&mut work);
            self.progress(now);
        }
        for endpoint in self.refused {
            self.call_back(endpoint);
        }
        if !self.is_active() {
            // All idle states are equal, which keeps the model's state space small.
            (self.tick_at, self.tick_next) = (Nanos::ZERO, 0);
            self.silence.end();
            (self.since, self.stall_at) = (Nanos::ZERO, Nanos::ZERO);
        }
    }

    /// True if an endpoint whose packet was refused may go back to it. In Mode-III it must find half of the ring free: with less, most of
    /// what it repeats would be refused again.
    pub(super) fn has_room_for(&self, endpoint: EndpointId) -> bool {
        let g = self.endpoint(endpoint).receiving.expected;
        let room = match self.is_augmented() {
            true => self.hop_window(),
            false => 1,
        };
        // From `limit` on nothing is served.
        let end = (g + room).min(self.limit.max(g + 1));
        end <= self.window_for(endpoint, g) && (g < self.calls.end() || !self.calls.is_full())
    }
}
