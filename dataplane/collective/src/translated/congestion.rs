//! Congestion: whom a CNP of a receiver is passed on to, and how often; and what a switch says itself, at which each
//! connection ends.
//!
//! Who is told are those whose data the receiver got last: of an AllReduce the host itself, whose contributions all results
//! wait for; of a Reduce all who send; of a Broadcast its source. Each switch passes a CNP on towards them as it gets it, and
//! of the CNPs of a window only those of the receiver that said most (Cepheus III.D, contract M4).

use super::calls::Flow;
use super::machine::{Translated, emit};
use super::{Effect, Effects, EndpointId, EndpointSet};
use castnet_wire::Nanos;

/// What a sender is told at most once in: what notification points of DCQCN keep between two CNPs.
pub const CNP_INTERVAL: Nanos = Nanos::from_micros(50);
/// What receivers are compared over.
pub const CNP_WINDOW: Nanos = Nanos::from_millis(1);

/// What an endpoint has said of congestion, and what it has been told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Congestion {
    /// The window that is counted in.
    window: u64,
    /// CNPs from it in this window.
    said: u32,
    /// CNPs passed on to it in this window.
    passed: u32,
    /// Before this it is told nothing.
    quiet_until: Nanos,
}

impl Congestion {
    /// The same, with counts of `window`.
    fn within(&mut self, window: u64) -> &mut Self {
        if self.window != window {
            (self.window, self.said, self.passed) = (window, 0, 0);
        }
        self
    }

    /// Returns true if it may be told now; then it is.
    fn tell(&mut self, now: Nanos) -> bool {
        let due = now >= self.quiet_until;
        if due {
            self.quiet_until = now + CNP_INTERVAL;
        }
        due
    }
}

impl<const W: usize> Translated<W> {
    /// A CNP of a receiver.
    pub(super) fn receive_cnp(&mut self, now: Nanos, from: EndpointId, out: &mut Effects<W>) {
        let window = now.0 / CNP_WINDOW.0;
        let Some(receiver) = self.congestion.get_mut(from.index()) else {
            debug_assert!(false, "it is one of the endpoints");
            return;
        };
        let receiver = receiver.within(window);
        receiver.said = receiver.said.saturating_add(1);
        let said = receiver.said;
        let mut to = EndpointSet::EMPTY;
        for sender in self.slowed_by(from) {
            if let Some(state) = self.congestion.get_mut(sender.index()) {
                // In each window as many pass as the one said that said most.
                let state = state.within(window);
                if state.passed < said && state.tell(now) {
                    state.passed += 1;
                    to.insert(sender);
                }
            }
        }
        notify(to, out);
    }

    /// A frame of `from` was marked on its way here, so this switch is the notification point.
    pub(super) fn mark_seen(&mut self, now: Nanos, from: EndpointId, out: &mut Effects<W>) {
        if self.congestion.get_mut(from.index()).is_some_and(|c| c.tell(now)) {
            notify(EndpointSet::only(from), out);
        }
    }

    /// Those whose data `receiver` got last.
    fn slowed_by(&self, receiver: EndpointId) -> EndpointSet<W> {
        let newest = self.endpoint(receiver).sending.sent.checked_sub(1);
        let Some((g, index)) = newest.and_then(|g| Some((g, self.calls.find(g)?))) else {
            return EndpointSet::EMPTY;
        };
        match self.calls.get(index).flow(g) {
            Flow::UpDown if self.is_rank(receiver) => EndpointSet::only(receiver),
            Flow::UpDown if self.is_parent(receiver) => self.cold().children,
            // A switch below, where each host has been told by itself.
            Flow::UpDown => EndpointSet::EMPTY,
            flow => self.inputs(flow).without(receiver),
        }
    }
}

fn notify<const W: usize>(to: EndpointSet<W>, out: &mut Effects<W>) {
    if !to.is_empty() {
        emit(out, Effect::Cnp { to });
    }
}
