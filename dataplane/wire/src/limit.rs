//! A rate limit for actions that other hosts can cause: a burst, then a constant rate.

use crate::Nanos;

/// A budget that refills with time. Its state is one point in time.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    burst: u64,
    every: Nanos,
    full_at: Nanos,
}

impl Limit {
    /// `burst` actions at once, and one more after each interval `every`.
    pub const fn new(burst: u64, every: Nanos) -> Self {
        Self {
            burst,
            every,
            full_at: Nanos::ZERO,
        }
    }

    /// When the next action is allowed: `now` or later.
    pub fn next(&self, now: Nanos) -> Nanos {
        let spent = self.full_at.max(now) + self.every;
        now.max(spent - Nanos(self.burst * self.every.0))
    }

    /// Whether an action is allowed now. It is counted, then.
    pub fn allows(&mut self, now: Nanos) -> bool {
        let is_allowed = self.next(now) <= now;
        if is_allowed {
            self.take(now);
        }
        is_allowed
    }

    /// Counts an action at the time that [`Limit::next`] has returned.
    pub fn take(&mut self, now: Nanos) {
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
        assert!(!limit.allows(Nanos(100)));
        // The budget is full again after enough time without actions.
        let later = Nanos(160);
        for _ in 0..3 {
            assert_eq!(limit.next(later), later);
            limit.take(later);
        }
        assert_eq!(limit.next(later), Nanos(170));
    }
}
