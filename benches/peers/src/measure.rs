//! Frames per second of one core.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::count::{Count, schedstat};
use crate::machine;
use crate::process::PATIENCE;

/// Run time by thread, in nanoseconds.
pub type Ran = BTreeMap<String, u64>;

/// A running switch.
pub trait Running {
    /// Run time of each thread that may move frames, or of the core. Fails if it has ended.
    fn ran(&mut self) -> Result<Ran>;

    /// Frames so far. Fails if it does not answer, or has ended.
    fn count(&mut self) -> Result<Count>;

    /// Number of threads that move frames, each on its own core.
    fn cores(&self) -> usize {
        1
    }
}

/// Result of a switch in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Million frames in per second of a core; with several cores, of all together.
    pub mfps_in: f64,
    /// Million frames out.
    pub mfps_out: f64,
    /// Share of the time that it had the core, 0 to 1; below 1 if others used the core.
    pub share: f64,
}

/// Frames, and the time of the threads, at one moment.
struct Sample {
    at: Instant,
    count: Count,
    threads: Ran,
}

impl Sample {
    fn take(running: &mut dyn Running) -> Result<Self> {
        let (before, start) = (running.ran()?, Instant::now());
        let count = running.count()?;
        let asked = start.elapsed();
        let after = running.ran()?;
        // The counters were read in between.
        let middle = |(id, &ns): (&String, &u64)| (id.clone(), (before.get(id).unwrap_or(&ns) + ns) / 2);
        Ok(Self {
            at: start + asked / 2,
            count,
            threads: after.iter().map(middle).collect(),
        })
    }
}

/// Run time of each thread of a process whose name begins with `named`. Fails if there is no such process.
pub fn threads(pid: u32, named: &str) -> Result<Ran> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")?;
    let mut times = Ran::new();
    for entry in folder {
        let path = entry?.path();
        // A thread may end meanwhile.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if let Ok(text) = fs::read_to_string(path.join("schedstat"))
            && name.starts_with(named)
        {
            times.insert(path.to_string_lossy().into_owned(), schedstat(&text)?);
        }
    }
    Ok(times)
}

/// Waits until frames flow, warms up for a quarter of `time`, then measures for `time`. Fails if the switch fails, no
/// frame leaves it, or at an interrupt.
pub fn measure(running: &mut dyn Running, time: Duration) -> Result<Rate> {
    let start = Instant::now();
    while running.count()?.frames_out == 0 {
        ensure!(start.elapsed() < PATIENCE, "nothing comes out");
        machine::pause(Duration::from_millis(10))?;
    }
    machine::pause(time / 4)?;
    let from = Sample::take(running)?;
    machine::pause(time)?;
    let to = Sample::take(running)?;
    rate(&from, &to, running.cores())
}

/// The threads with the most run time are those that move frames: they never sleep.
fn rate(from: &Sample, to: &Sample, cores: usize) -> Result<Rate> {
    let ran = |(id, ns): (&String, &u64)| ns - from.threads.get(id).unwrap_or(ns).min(ns);
    let mut times: Vec<u64> = to.threads.iter().map(ran).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.truncate(cores);
    let ran = times.iter().sum::<u64>() as f64 / 1e9;
    ensure!(ran > 0.0 && times.len() == cores, "no thread has run");
    let million = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    Ok(Rate {
        mfps_in: million(from.count.frames_in, to.count.frames_in) / ran * cores as f64,
        mfps_out: million(from.count.frames_out, to.count.frames_out) / ran * cores as f64,
        share: ran / (cores as f64 * (to.at - from.at).as_secs_f64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, frames: u64, threads: &[(&str, u64)]) -> Sample {
        Sample {
            at,
            count: Count {
                frames_in: frames,
                frames_out: 4 * frames,
            },
            threads: threads
                .iter()
                .map(|&(id, ms)| (id.to_owned(), ms * 1_000_000))
                .collect(),
        }
    }

    #[test]
    fn frames_are_held_against_the_time_of_the_threads_that_move_them() {
        let start = Instant::now();
        let from = sample(start, 1_000_000, &[("a", 50), ("b", 500), ("c", 0)]);
        let later = start + Duration::from_secs(1);
        let to = sample(
            later,
            3_000_000,
            &[("a", 60), ("b", 1000), ("c", 500), ("new", 1)],
        );
        let one = rate(&from, &to, 1).expect("a rate");
        assert_eq!((one.mfps_in, one.mfps_out, one.share), (4.0, 16.0, 0.5));
        // Two had half a core each: on two whole ones they would do twice as much.
        let two = rate(&from, &to, 2).expect("a rate");
        assert_eq!((two.mfps_in, two.mfps_out, two.share), (4.0, 16.0, 0.5));
        assert!(rate(&from, &sample(later, 1, &[]), 1).is_err());
    }
}
