//! How long nothing has come from the other side.

use std::time::{Duration, Instant};

/// How often the counters of the RNIC are read.
const INTERVAL: Duration = Duration::from_millis(250);

/// Measures for how long a counter of the RNIC and the progress of a transfer have not changed. A slow receiver answers
/// with RNR NAKs and a slow source makes late progress: neither is silent.
pub(crate) struct Silence {
    since: Instant,
    /// The last look, and what was found.
    looked: Instant,
    seen: (u64, u64),
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            looked: now,
            seen: (0, 0),
        }
    }

    /// Returns the length of the silence. `counter` is called every 250 ms.
    pub(crate) fn look(&mut self, now: Instant, progress: u64, counter: impl FnOnce() -> u64) -> Duration {
        if now.duration_since(self.looked) >= INTERVAL {
            self.looked = now;
            let seen = (counter(), progress);
            if seen != self.seen {
                (self.seen, self.since) = (seen, now);
            }
        }
        self.looked.duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The silence `seconds` after it began, with these counts.
    fn after(silence: &mut Silence, seconds: u32, (answers, progress): (u64, u64)) -> Duration {
        let now = silence.since + seconds * SECOND;
        silence.look(now, progress, || answers)
    }

    #[test]
    fn a_source_without_answers_is_in_silence() {
        let mut silence = Silence::new(Instant::now());
        for seconds in [4, 6, 60, 1_000_000] {
            assert_eq!(after(&mut silence, seconds, (0, 0)), seconds * SECOND);
        }
    }

    #[test]
    fn answers_and_progress_that_come_late_end_the_silence() {
        let mut silence = Silence::new(Instant::now());
        for seen in [(1, 0), (2, 0), (2, 1)] {
            assert_eq!(after(&mut silence, 100, seen), Duration::ZERO);
            assert_eq!(after(&mut silence, 7, seen), 7 * SECOND);
        }
    }

    #[test]
    fn counters_are_read_only_now_and_then() {
        let mut silence = Silence::new(Instant::now());
        let now = silence.since + INTERVAL / 2;
        assert_eq!(silence.look(now, 5, || panic!("read")), Duration::ZERO);
    }
}
