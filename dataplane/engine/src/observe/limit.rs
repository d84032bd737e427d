//! A rate limit for actions that other hosts can cause: a burst, then a constant rate.

use castnet_wire::Nanos;

/// A budget that refills with time. Its state is one point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    burst: u64,
    every: Nanos,
    full_at: Nanos,
}

impl Limit {
    /// `burst` actions at once, and one more after each interval `every`.
    pub(crate) const fn new(burst: u64, every: Nanos) -> Self {
        Self {
            burst,
            every,
            full_at: Nanos::ZERO,
        }
    }

    /// When the next action is allowed: `now` or later.
    pub(crate) fn next(&self, now: Nanos) -> Nanos {
        let spent = self.full_at.max(now) + self.every;
        now.max(spent - Nanos(self.burst * self.every.0))
    }

    /// `at` is the time that [`Limit::next`] has returned.
    pub(crate) fn take(&mut self, now: Nanos) {
        self.full_at = self.full_at.max(now) + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_every_so_often() {
        let mut limit = Limit::new(3, Nanos(10));
        let mut at = [0; 6];
        for at in &mut at {
            *at = limit.next(Nanos(100)).0;
            limit.take(Nanos(100));
        }
        assert_eq!(at, [100, 100, 100, 110, 120, 130]);
        // The budget is full again after enough time without actions.
        let later = Nanos(160);
        for _ in 0..3 {
            assert_eq!(limit.next(later), later);
            limit.take(later);
        }
        assert_eq!(limit.next(later), Nanos(170));
    }
}
