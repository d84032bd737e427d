//! How a thread that polls waits while there is nothing to do: poll again at once, let others run, or sleep.

use core::time::Duration;

use crate::Nanos;

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Polls without a pause. Uses a whole core; lowest latency.
    Spin,
    /// Sleeps while there is nothing to do.
    Sleep,
    /// Polls for a short time before it sleeps, but only while no other thread needs its core.
    #[default]
    Adaptive,
    /// Polls for so long, then sleeps.
    SpinThenSleep(Duration),
}

/// How long a thread polls before it sleeps. A wake-up costs 5 to 50 us, and as much at the thread that wakes it.
const SPIN: Nanos = Nanos::from_micros(200);
/// After a yield that took longer, another thread has used its whole slice of the core (0.7 ms and more on Linux): it computes.
/// Threads that poll, or that handle a few frames, yield sooner. Polling beside these is faster than sleeping.
const YIELD_MAX: Nanos = Nanos::from_micros(500);
/// The first and the longest time for which a thread does not poll after it has found that another one computes on its core.
const PAUSE_MIN: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(128);

/// What a thread does when it has found nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once.
    Spin,
    /// Lets other threads run, then polls again.
    Yield,
    /// Sleeps until there is work.
    Sleep,
}

/// Decides how a thread waits. Time is an argument.
#[derive(Clone, Debug)]
pub struct Spinner {
    progress: Progress,
    /// When the thread ran out of work.
    idle_since: Option<Nanos>,
    /// Until then it does not poll, because another thread computes on its core.
    paused_until: Nanos,
    pause: Nanos,
    /// When threads began to compute on its core. Long computations cause long pauses, and the start of a program short ones.
    contended_since: Nanos,
}

impl Spinner {
    /// A thread that has work.
    pub const fn new(progress: Progress) -> Self {
        Self {
            progress,
            idle_since: None,
            paused_until: Nanos::ZERO,
            pause: PAUSE_MIN,
            contended_since: Nanos::ZERO,
        }
    }

    /// The thread has found work.
    pub fn worked(&mut self) {
        self.idle_since = None;
    }

    /// The thread has found nothing to do.
    pub fn idle(&mut self, now: Nanos) -> Idle {
        let since = *self.idle_since.get_or_insert(now);
        let spins_for = match self.progress {
            Progress::Spin => return Idle::Spin,
            Progress::Sleep => Nanos::ZERO,
            Progress::SpinThenSleep(spin) => duration(spin),
            Progress::Adaptive if now < self.paused_until => Nanos::ZERO,
            Progress::Adaptive => SPIN,
        };
        if now.since(since) < spins_for {
            Idle::Yield
        } else {
            Idle::Sleep
        }
    }

    /// Another thread may have run from `before` to `now`, after [`Idle::Yield`].
    pub fn yielded(&mut self, before: Nanos, now: Nanos) {
        if now.since(before) <= YIELD_MAX {
            return;
        }
        if now.since(self.paused_until) > Nanos(8 * self.pause.0) {
            self.contended_since = before;
        }
        let pause = now.since(self.contended_since).0 / 4;
        self.pause = Nanos(pause.clamp(PAUSE_MIN.0, PAUSE_MAX.0));
        self.paused_until = now + self.pause;
    }
}

fn duration(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls of 100 ns without work, from `now` until the spinner sleeps; each yield takes `yield_ns`.
    fn spin(spinner: &mut Spinner, now: &mut Nanos, yield_ns: u64) -> u64 {
        let start = *now;
        spinner.worked();
        loop {
            *now += Nanos(100);
            match spinner.idle(*now) {
                Idle::Yield => {
                    let before = *now;
                    *now += Nanos(yield_ns);
                    spinner.yielded(before, *now);
                }
                Idle::Spin => unreachable!("adaptive"),
                Idle::Sleep => return now.since(start).0,
            }
        }
    }

    #[test]
    fn a_thread_polls_unless_another_one_computes_on_its_core() {
        let (mut spinner, mut now) = (Spinner::new(Progress::Adaptive), Nanos(1));
        for _ in 0..1000 {
            assert!(spin(&mut spinner, &mut now, 500) > SPIN.0);
            // Others poll, and handle frames.
            assert!(spin(&mut spinner, &mut now, 50_000) > SPIN.0);
        }
        // Another thread computes, and takes the core at each yield. The pauses grow.
        let (mut spun, start) = (0, now);
        while now.since(start) < Nanos::from_secs(10) {
            spun += u64::from(spin(&mut spinner, &mut now, 1_000_000) > 1000);
            now += Nanos(50_000);
        }
        let most = Nanos::from_secs(10).0 / PAUSE_MAX.0 + 24;
        assert!(spun > 0 && spun <= most, "{spun} of at most {most}");
        // The core becomes free.
        now += PAUSE_MAX;
        assert!(spin(&mut spinner, &mut now, 500) > SPIN.0);
        // A short computation, a while later, causes short pauses.
        let start = now + Nanos::from_secs(2);
        now = start;
        while now.since(start) < Nanos::from_millis(100) {
            spin(&mut spinner, &mut now, 1_000_000);
            now += Nanos(50_000);
        }
        now += Nanos::from_millis(30);
        assert!(spin(&mut spinner, &mut now, 500) > SPIN.0);
    }

    #[test]
    fn the_other_policies_do_as_they_are_called() {
        let at = Nanos(1_000_000);
        assert_eq!(Spinner::new(Progress::Spin).idle(at), Idle::Spin);
        assert_eq!(Spinner::new(Progress::Sleep).idle(at), Idle::Sleep);
        let mut spinner = Spinner::new(Progress::SpinThenSleep(Duration::from_micros(3)));
        assert_eq!(spinner.idle(at), Idle::Yield);
        assert_eq!(spinner.idle(at + Nanos(2999)), Idle::Yield);
        assert_eq!(spinner.idle(at + Nanos(3000)), Idle::Sleep);
        spinner.worked();
        assert_eq!(spinner.idle(at + Nanos(3000)), Idle::Yield);
    }
}
