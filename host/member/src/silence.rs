//! A source that gets no answer.

use std::time::{Duration, Instant};

use castnet_console::exit::Failure;
use castnet_console::output::remark;
use castnet_rnic::stream::Flow;

use crate::device::HostDevice;

/// Time without an answer after which the source prints a remark.
const REMARK_AFTER: Duration = Duration::from_secs(5);

/// Time without an answer to a source. Its QP retries without limit, because a switch may come back; a receiver that has
/// gone does not. A slow receiver answers with RNR NAKs.
pub struct Silence {
    since: Instant,
    /// Answers, and bytes taken from the source: a slow source is not silence of the network.
    seen: (u64, u64),
    told: bool,
    give_up: Option<Duration>,
    over: bool,
}

impl Silence {
    /// `give_up`: see [`crate::Manner::give_up`].
    pub fn new(give_up: Option<Duration>) -> Self {
        Self {
            since: Instant::now(),
            seen: (0, 0),
            told: false,
            give_up,
            over: false,
        }
    }

    /// Records the progress of the source: `bytes` are taken from it. Stops the transfer after `give_up`.
    pub fn look<R: HostDevice>(&mut self, rnic: &R, bytes: u64) -> Flow {
        self.step(Instant::now(), (rnic.answers(), bytes))
    }

    fn step(&mut self, now: Instant, seen: (u64, u64)) -> Flow {
        if seen != self.seen {
            (self.seen, self.since, self.told) = (seen, now, false);
            return Flow::Continue;
        }
        let silent = now.saturating_duration_since(self.since);
        if !self.told && silent >= REMARK_AFTER {
            self.told = true;
            remark(
                "nothing has been acknowledged for 5 s: castnet group show tells which receiver is waited for",
            );
        }
        self.over = self.give_up.is_some_and(|most| silent >= most);
        if self.over { Flow::Stop } else { Flow::Continue }
    }

    /// The failure of a source that has given up.
    pub fn failure(&self) -> Option<Failure> {
        let most = self.give_up.filter(|_| self.over)?;
        let what = format!(
            "nothing has been acknowledged for {}",
            castnet_console::units::span(most)
        );
        Some(Failure::unreachable(what).next("castnet group show GROUP tells which receiver is waited for"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What `silence` says after `seconds` of the same counts.
    fn after(silence: &mut Silence, seconds: u32, seen: (u64, u64)) -> Flow {
        let now = silence.since + seconds * SECOND;
        silence.step(now, seen)
    }

    #[test]
    fn a_source_that_hears_nothing_is_told_and_then_gives_up() {
        let mut silence = Silence::new(Some(60 * SECOND));
        assert_eq!(after(&mut silence, 4, (0, 0)), Flow::Continue);
        assert!(!silence.told);
        assert_eq!(after(&mut silence, 6, (0, 0)), Flow::Continue);
        assert!(silence.told && silence.failure().is_none());
        assert_eq!(after(&mut silence, 60, (0, 0)), Flow::Stop);
        assert_eq!(silence.failure().map(|f| f.code()), Some(4));
    }

    #[test]
    fn answers_and_bytes_that_come_late_are_no_silence_and_it_can_be_told_to_go_on_for_ever() {
        let mut silence = Silence::new(Some(60 * SECOND));
        for seen in [(1, 0), (2, 0), (2, 1)] {
            assert_eq!(after(&mut silence, 100, seen), Flow::Continue);
        }
        let mut silence = Silence::new(None);
        assert_eq!(after(&mut silence, 1_000_000, (0, 0)), Flow::Continue);
    }
}
