//! How often something may happen that others bring about: so many times at once, then once every so often.

use castnet_wire::Nanos;

/// A budget that refills with time. One point in time is all that it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    burst: u64,
    every: Nanos,
    /// When all that was taken will have been refilled.
    full_at: Nanos,
}

impl Limit {
    /// `burst` times at once, and one more each time that `every` has passed.
    pub(crate) const fn new(burst: u64, every: Nanos) -> Self {
        Self {
            burst,
            every,
            full_at: Nanos::ZERO,
        }
    }

    /// When it may happen next: `now`, or later.
    pub(crate) fn next(&self, now: Nanos) -> Nanos {
        let spent = self.full_at.max(now) + self.every;
        now.max(spent - Nanos(self.burst * self.every.0))
    }

    /// It happens at the time that [`Limit::next`] says.
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
        // All of it is back once nothing was taken for long enough.
        let later = Nanos(160);
        for _ in 0..3 {
            assert_eq!(limit.next(later), later);
            limit.take(later);
        }
        assert_eq!(limit.next(later), Nanos(170));
    }
}
