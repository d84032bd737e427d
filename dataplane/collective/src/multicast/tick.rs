//! The period of the tick of a switch that repairs: it follows the measured round trip.

use castnet_wire::{Nanos, Psn, RoundTrip};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tick {
    /// Zero for model checkers: it is always due, and nothing is measured.
    longest: Nanos,
    round_trip: RoundTrip,
    /// A packet with AckReq, and when it was sent for the first time.
    timed: Option<(Psn, Nanos)>,
    /// Ticks without progress.
    count: u8,
}

impl Tick {
    pub(super) fn new(longest: Nanos) -> Self {
        Self {
            longest,
            round_trip: RoundTrip::default(),
            timed: None,
            count: 0,
        }
    }

    /// Two ticks are the time after which an answer is overdue.
    pub(super) fn period(&self) -> Nanos {
        Nanos(
            self.round_trip
                .patience(self.count, self.longest + self.longest)
                .0
                / 2,
        )
    }

    /// True if ticks have passed without progress: the period is longer.
    pub(super) fn is_long(&self) -> bool {
        self.count > 0
    }

    /// All packets are forgotten.
    pub(super) fn restart(&mut self) {
        (self.timed, self.count) = (None, 0);
    }

    /// A tick has passed without progress.
    pub(super) fn pass(&mut self) {
        if self.longest > Nanos::ZERO {
            self.count = self.count.saturating_add(1);
        }
    }

    /// A packet that requests an acknowledgement was sent for the first time.
    pub(super) fn sent(&mut self, now: Nanos, psn: Psn) {
        if self.longest > Nanos::ZERO && self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// A packet was sent again. Nobody knows which of two transmissions is answered (Karn).
    pub(super) fn sent_again(&mut self, psn: Psn) {
        self.timed = self.timed.filter(|(timed, _)| timed.is_before(psn));
    }

    /// AggAckPSN has risen.
    pub(super) fn answered(&mut self, now: Nanos, agg_ack: Psn) {
        if let Some((psn, at)) = self.timed
            && !psn.is_after(agg_ack)
        {
            self.round_trip.measure(now.since(at));
            self.timed = None;
        }
        self.count = 0;
    }
}
