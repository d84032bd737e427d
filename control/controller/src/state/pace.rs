//! How often hosts may do what costs all others time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many times at once, and then once in each interval.
pub(crate) struct Pace {
    at_once: u32,
    interval: Duration,
    /// By who has done it lately: when all its times are free again.
    full_at: BTreeMap<String, Instant>,
}

/// Leave to do it once.
pub(crate) struct Turn(Instant);

impl Pace {
    pub(crate) fn new(at_once: u32, interval: Duration) -> Self {
        Self {
            at_once,
            interval,
            full_at: BTreeMap::new(),
        }
    }

    /// `None`: it has done it too often.
    pub(crate) fn turn(&self, who: &str, now: Instant) -> Option<Turn> {
        let before = self.full_at.get(who).copied().unwrap_or(now).max(now);
        Some(before + self.interval)
            .filter(|full_at| *full_at <= now + self.interval * self.at_once)
            .map(Turn)
    }

    /// It has done it.
    pub(crate) fn take(&mut self, who: String, Turn(full_at): Turn, now: Instant) {
        self.full_at.retain(|_, full_at| *full_at > now);
        self.full_at.insert(who, full_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_times_at_once_and_then_once_in_each_second() {
        let mut pace = Pace::new(8, Duration::from_secs(1));
        let start = Instant::now();
        let mut goes = |who: &str, at: u64| {
            let now = start + Duration::from_secs(at);
            let turn = pace.turn(who, now);
            let may = turn.is_some();
            turn.into_iter().for_each(|turn| pace.take(who.into(), turn, now));
            (may, pace.full_at.len())
        };
        for _ in 0..8 {
            assert_eq!(goes("a", 0), (true, 1));
        }
        assert_eq!(goes("a", 0), (false, 1));
        assert_eq!(goes("b", 0), (true, 2));
        assert_eq!(goes("a", 1), (true, 1), "b has all its turns again");
        assert_eq!(goes("a", 1), (false, 1));
        for _ in 0..8 {
            assert_eq!(goes("a", 9), (true, 1));
        }
        assert_eq!(goes("a", 9), (false, 1));
    }
}
