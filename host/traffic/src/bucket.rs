//! A token bucket: so much per second, and not much more at once.

use castnet_wire::Nanos;

/// How long a bucket that nobody takes from goes on filling: what may come at once after a pause.
const DEPTH_S: f64 = 0.000_5;

/// Lets through `per_second` units (frames or bits), on a clock that is given to it.
#[derive(Clone, Debug)]
pub struct Bucket {
    per_second: f64,
    tokens: f64,
    depth: f64,
    at: Option<Nanos>,
}

impl Bucket {
    /// A bucket for `per_second` units; `most` is the largest that is ever taken at once.
    pub fn new(per_second: f64, most: f64) -> Self {
        Self {
            per_second,
            tokens: 0.0,
            depth: (per_second * DEPTH_S).max(most),
            at: None,
        }
    }

    /// Fills up to `now`, and tells whether something may be taken: what is taken may be more than is left, and is then waited for.
    pub fn has(&mut self, now: Nanos) -> bool {
        let since = self.at.replace(now).map_or(0, |at| now.0.saturating_sub(at.0));
        self.tokens = (self.tokens + since as f64 * self.per_second / 1e9).min(self.depth);
        self.tokens >= 0.0
    }

    /// Takes `units` out.
    pub fn take(&mut self, units: f64) {
        self.tokens -= units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn over_any_time_what_passes_is_the_rate_and_at_most_one_depth_more(
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
            // What a bucket could not hold is lost: with short steps nothing is.
            if steps.iter().all(|s| *s as f64 * rate / 1e9 <= depth / 2.0) {
                prop_assert!(taken >= fair - depth - units, "{taken} of {fair}");
            }
        }
    }
}
