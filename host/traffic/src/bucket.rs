//! A token bucket: limits the rate, and the burst after a pause.

use castnet_wire::Nanos;

/// Time until an unused bucket is full. It bounds the burst after a pause.
const DEPTH_S: f64 = 0.000_5;

/// Limits to `per_second` units (frames or bits). The caller passes the time.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    tokens: f64,
    depth: f64,
    at: Option<Nanos>,
}

impl Bucket {
    /// A bucket for `per_second` units. `most` is the largest number that is ever taken at once.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        Self {
            per_second,
            tokens: 0.0,
            depth: (per_second * DEPTH_S).max(most),
            at: None,
        }
    }

    /// Fills up to `now`. True if units may be taken, even more than are left: the bucket then recovers first.
    pub(crate) fn has(&mut self, now: Nanos) -> bool {
        let since = self.at.replace(now).map_or(0, |at| now.0.saturating_sub(at.0));
        self.tokens = (self.tokens + since as f64 * self.per_second / 1e9).min(self.depth);
        self.tokens >= 0.0
    }

    pub(crate) fn take(&mut self, units: f64) {
        self.tokens -= units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn units_taken_match_the_rate_up_to_one_depth(
            rate in 1_000.0..1e9_f64, units in 1.0..4096.0_f64, steps in proptest::collection::vec(1_u64..200_000, 1..200)
        ) {
            let mut bucket = Bucket::new(rate, units);
            let (mut now, mut taken) = (0_u64, 0.0);
            bucket.has(Nanos(0));
            for step in &steps {
                now += step;
                while bucket.has(Nanos(now)) {
                    bucket.take(units);
                    taken += units;
                }
            }
            let fair = rate * now as f64 / 1e9;
            let depth = (rate * DEPTH_S).max(units);
            prop_assert!(taken <= fair + 2.0 * units + 1e-6 * fair, "{taken} of {fair}");
            // Tokens beyond the depth are lost. With short steps none are.
            if steps.iter().all(|s| *s as f64 * rate / 1e9 <= depth / 2.0) {
                prop_assert!(taken >= fair - depth - units, "{taken} of {fair}");
            }
        }
    }
}
