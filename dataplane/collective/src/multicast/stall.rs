//! How often a path that stalls was sent the packet that it lacks: a receiver that is silent although its data arrives again and again
//! is told apart from a network, or a source, that sends it nothing.

use super::machine::Multicast;
use castnet_wire::{Nanos, Psn};

/// How often the packet after AggAckPSN was sent again to all paths that lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tries {
    count: u16,
    /// The AggAckPSN and the time of the last progress when it was counted: it counts for no other.
    since: (Psn, Nanos),
}

impl Tries {
    pub(super) const NONE: Self = Self {
        count: 0,
        since: (Psn::new(0), Nanos::ZERO),
    };
}

impl Multicast {
    /// The packet of `psn` is sent again.
    pub(super) fn count_try(&mut self, psn: Psn) {
        if psn != self.agg_ack.next() || self.stall_timeout == Nanos::ZERO {
            return;
        }
        let tries = self.tries().saturating_add(1);
        self.rare.tries = Tries {
            count: tries,
            since: (self.agg_ack, self.since),
        };
    }

    /// How often the packet after AggAckPSN was sent again since the last progress.
    pub(super) fn tries(&self) -> u16 {
        let Tries { count, since } = self.rare.tries;
        if since == (self.agg_ack, self.since) {
            count
        } else {
            0
        }
    }
}
