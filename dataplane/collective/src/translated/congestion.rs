//! CNPs of receivers, and CNPs of the switch itself as the notification point of each connection.
//!
//! A CNP of a receiver is forwarded to the senders of the data that it received last: for an AllReduce the host itself, because all
//! results wait for its contributions; for a Reduce all senders; for a Broadcast the source. Of the CNPs of a window, only those of the
//! receiver with most CNPs are forwarded (Cepheus III.D, contract M4).

use super::machine::{Translated, emit};
use super::{Effect, Effects, EndpointId, EndpointSet};
use crate::calls::Flow;
use castnet_wire::Nanos;

/// The least interval between two CNPs to a sender, as for notification points of DCQCN.
pub const CNP_INTERVAL: Nanos = Nanos::from_micros(50);
/// The window over which the CNPs of receivers are compared.
pub const CNP_WINDOW: Nanos = Nanos::from_millis(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Congestion {
    /// Window of the counts.
    window: u64,
    received: u32,
    /// CNPs forwarded to it in this window.
    passed: u32,
    quiet_until: Nanos,
}

impl Congestion {
    fn within(&mut self, window: u64) -> &mut Self {
        if self.window != window {
            (self.window, self.received, self.passed) = (window, 0, 0);
        }
        self
    }

    /// True if a CNP may be sent now; it is recorded as sent.
    fn try_notify(&mut self, now: Nanos) -> bool {
        let due = now >= self.quiet_until;
        if due {
            self.quiet_until = now + CNP_INTERVAL;
        }
        due
    }
}

impl<const W: usize> Translated<W> {
    pub(super) fn receive_cnp(&mut self, now: Nanos, from: EndpointId, out: &mut Effects<W>) {
        let window = now.0 / CNP_WINDOW.0;
        let Some(receiver) = self.congestion.get_mut(from.index()) else {
            debug_assert!(false, "the receiver is one of the endpoints");
            return;
        };
        let receiver = receiver.within(window);
        receiver.received = receiver.received.saturating_add(1);
        let received = receiver.received;
        let mut to = EndpointSet::EMPTY;
        for sender in self.slowed_by(from) {
            if let Some(state) = self.congestion.get_mut(sender.index()) {
                // In each window, as many CNPs pass as the receiver with most CNPs has sent.
                let state = state.within(window);
                if state.passed < received && state.try_notify(now) {
                    state.passed += 1;
                    to.insert(sender);
                }
            }
        }
        notify(to, out);
    }

    /// This switch is the notification point for a marked frame of `from`.
    pub(super) fn mark_seen(&mut self, now: Nanos, from: EndpointId, out: &mut Effects<W>) {
        if self
            .congestion
            .get_mut(from.index())
            .is_some_and(|c| c.try_notify(now))
        {
            notify(EndpointSet::only(from), out);
        }
    }

    /// The senders of the data that `receiver` got last.
    fn slowed_by(&self, receiver: EndpointId) -> EndpointSet<W> {
        let newest = self.endpoint(receiver).sending.sent.checked_sub(1);
        let Some((g, index)) = newest.and_then(|g| Some((g, self.calls.find(g)?))) else {
            return EndpointSet::EMPTY;
        };
        match self.calls.get(index).flow(g) {
            Flow::UpDown if self.is_rank(receiver) => EndpointSet::only(receiver),
            Flow::UpDown if self.is_parent(receiver) => self.cold().children,
            // The receiver is a switch below; it notifies each host itself.
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
