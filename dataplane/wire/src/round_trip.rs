//! The time after which an answer is overdue, from the round trips that were measured.

use crate::Nanos;

/// The estimate of RFC 6298, with a floor for networks of microseconds: a few round trips, and more where they vary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RoundTrip {
    /// Zero before the first measure.
    smoothed: Nanos,
    variation: Nanos,
}

impl RoundTrip {
    /// The least time after which an answer is overdue. A host in software answers after about as long.
    pub const LEAST: Nanos = Nanos::from_micros(20);
    /// Before anything was measured.
    pub const UNKNOWN: Nanos = Nanos::from_millis(1);

    /// An answer to a packet that was sent once has taken so long.
    pub fn measure(&mut self, took: Nanos) {
        let (took, smoothed, variation) = (took.0, self.smoothed.0, self.variation.0);
        let (smoothed, variation) = match smoothed {
            0 => (took, took / 2),
            _ => (
                smoothed - smoothed / 8 + took / 8,
                variation - variation / 4 + smoothed.abs_diff(took) / 4,
            ),
        };
        (self.smoothed, self.variation) = (Nanos(smoothed), Nanos(variation));
    }

    /// The time that an answer takes, and what it varies by; `None` before anything was measured.
    pub fn estimate(&self) -> Option<Nanos> {
        let longest = Nanos(self.smoothed.0.saturating_add(self.variation.0.saturating_mul(4)));
        Some(longest).filter(|_| self.smoothed > Nanos::ZERO)
    }

    /// The time after which an answer is overdue, doubled so many times; at most `most`.
    pub fn patience(&self, doublings: u8, most: Nanos) -> Nanos {
        let once = self
            .estimate()
            .map_or(Self::UNKNOWN, |longest| longest.max(Self::LEAST));
        let factor = 1_u64.checked_shl(doublings.into()).unwrap_or(u64::MAX);
        Nanos(once.0.saturating_mul(factor)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn an_answer_is_overdue_after_some_round_trips() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.patience(0, SECOND), RoundTrip::UNKNOWN);
        assert_eq!(round_trip.estimate(), None);
        round_trip.measure(Nanos::from_micros(100));
        assert_eq!(round_trip.patience(0, SECOND), Nanos::from_micros(300));
        assert_eq!(round_trip.patience(3, SECOND), Nanos::from_micros(2_400));
        (0..100).for_each(|_| round_trip.measure(Nanos::from_micros(100)));
        let steady = round_trip.patience(0, SECOND);
        assert!(
            (Nanos::from_micros(99)..Nanos::from_micros(101)).contains(&steady),
            "{steady}"
        );
        // One that takes much longer raises it by more than a steady rise would.
        round_trip.measure(Nanos::from_micros(900));
        assert!(round_trip.patience(0, SECOND) > Nanos::from_micros(900));
    }

    #[test]
    fn the_bounds_hold() {
        let mut round_trip = RoundTrip::default();
        (0..50).for_each(|_| round_trip.measure(Nanos(700)));
        // What is left of the variation is less than its own quarter.
        assert_eq!(round_trip.estimate(), Some(Nanos(700 + 4 * 3)));
        assert_eq!(round_trip.patience(0, SECOND), RoundTrip::LEAST);
        assert_eq!(round_trip.patience(1, SECOND), Nanos(2 * RoundTrip::LEAST.0));
        for doublings in [20, 63, 64, u8::MAX] {
            assert_eq!(round_trip.patience(doublings, SECOND), SECOND);
        }
        round_trip.measure(Nanos::MAX);
        round_trip.measure(Nanos::MAX);
        assert_eq!(round_trip.patience(0, SECOND), SECOND);
    }
}
