//! How often hosts may do what costs all others time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// So many times at once, and then once in each interval.
const AT_ONCE: u32 = 8;
const INTERVAL: Duration = Duration::from_secs(1);

/// By name: when each of those who have done it lately may have done it only once.
#[derive(Default)]
pub(crate) struct Pace(BTreeMap<String, Instant>);

/// Leave to do it once.
pub(crate) struct Turn(Instant);

impl Pace {
    /// `None`: it has done it too often.
    pub(crate) fn turn(&self, who: &str, now: Instant) -> Option<Turn> {
        let before = self.0.get(who).copied().unwrap_or(now).max(now);
        Some(before + INTERVAL)
            .filter(|until| *until <= now + INTERVAL * AT_ONCE)
            .map(Turn)
    }

    /// It has done it.
    pub(crate) fn take(&mut self, who: String, Turn(until): Turn, now: Instant) {
        self.0.retain(|_, until| *until > now);
        self.0.insert(who, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_times_at_once_and_then_once_in_each_second() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut goes = |who: &str, at: u64| {
            let now = start + Duration::from_secs(at);
            let turn = pace.turn(who, now);
            let may = turn.is_some();
            turn.into_iter().for_each(|turn| pace.take(who.into(), turn, now));
            (may, pace.0.len())
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
