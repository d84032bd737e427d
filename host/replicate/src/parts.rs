//! How even the rate of a run is over its time.

use castnet_wire::Nanos;

/// Most parts that a run is counted in.
const PARTS_MAX: usize = 32;
/// Length of a part in a short run.
const PART: Nanos = Nanos::from_millis(100);

/// The rates in the parts of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The length of each part.
    pub part: Nanos,
    /// Acknowledged writes per second in the slowest part.
    pub least: f64,
    /// The same in the fastest one.
    pub most: f64,
}

/// Counts what happens in parts of a run, which are equally long. They get longer with the run, so that it has at most 32.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    length: Nanos,
    counts: Vec<u64>,
}

impl Parts {
    pub(crate) fn new() -> Self {
        Self {
            length: PART,
            counts: Vec::with_capacity(PARTS_MAX),
        }
    }

    /// Counts one, so long after the begin.
    pub(crate) fn add(&mut self, after: Nanos) {
        while after.0 / self.length.0 >= PARTS_MAX as u64 {
            self.length = Nanos(self.length.0.saturating_mul(2));
            let pairs = self.counts.chunks(2).map(|pair| pair.iter().sum::<u64>());
            self.counts = pairs.collect();
        }
        let at = (after.0 / self.length.0) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// Over the parts that are wholly in a run, which has ended with what was counted last, so long after the begin. `None`: there are fewer than two.
    pub(crate) fn spread(&self, elapsed: Nanos) -> Option<Spread> {
        let whole = usize::try_from(elapsed.0 / self.length.0).unwrap_or(PARTS_MAX);
        let whole = &self.counts[..whole.min(self.counts.len())];
        if whole.len() < 2 {
            return None;
        }
        let per_second = |count: &u64| *count as f64 * 1e9 / self.length.0 as f64;
        Some(Spread {
            part: self.length,
            least: whole.iter().min().map_or(0.0, per_second),
            most: whole.iter().max().map_or(0.0, per_second),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_counted_in_parts_that_get_longer_with_it() {
        let mut parts = Parts::new();
        // 10 per second, and none in the third second.
        for after in (0..40).filter(|n| n / 10 != 2) {
            parts.add(Nanos::from_millis(after * 100));
        }
        assert_eq!(parts.length, Nanos::from_millis(200));
        let spread = parts.spread(Nanos::from_secs(4)).expect("20 parts");
        assert_eq!((spread.least, spread.most), (0.0, 10.0));
        assert_eq!(parts.counts.iter().sum::<u64>(), 30);

        // A day later.
        parts.add(Nanos::from_secs(86_400));
        assert!(parts.counts.len() <= PARTS_MAX, "{parts:?}");
        assert_eq!(parts.counts.iter().sum::<u64>(), 31);
        assert_eq!(parts.counts[0], 30);
    }

    #[test]
    fn the_last_part_counts_only_if_it_is_whole() {
        let mut parts = Parts::new();
        for after in [0, 50, 100, 150, 210] {
            parts.add(Nanos::from_millis(after));
        }
        let spread = parts.spread(Nanos::from_millis(210)).expect("two parts");
        assert_eq!((spread.least, spread.most), (20.0, 20.0));
        assert_eq!(parts.spread(Nanos::from_millis(199)), None);
        assert_eq!(Parts::new().spread(Nanos::from_secs(9)), None);
    }
}
