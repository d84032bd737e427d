//! Performs all runs, on all processors.

use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::measure::{Run, Setting, Times, measure};

pub(crate) struct Results(Vec<(Run, Times)>);

impl Results {
    pub(crate) fn times(&self, run: &Run) -> Times {
        let found = self.0.iter().find(|(r, _)| r == run);
        found.map(|(_, times)| *times).unwrap_or_default()
    }
}

/// Each run once. Their order does not affect the results.
pub(crate) fn run(
    setting: Setting,
    mut runs: Vec<Run>,
    jobs: usize,
    shows_progress: bool,
) -> Result<Results, Box<dyn Error + Send + Sync>> {
    let mut seen: Vec<Run> = Vec::new();
    runs.retain(|run| {
        let is_new = !seen.contains(run);
        if is_new {
            seen.push(*run);
        }
        is_new
    });
    // Long runs first, so that none remains for a single processor at the end.
    runs.sort_by_key(|run| std::cmp::Reverse(run.bytes));
    let target = match shows_progress {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {elapsed}, {eta} to go")?;
    let bar = ProgressBar::with_draw_target(Some(runs.len() as u64), target).with_style(style);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Ok(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, 64) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let times = measure(setting, run);
                    bar.inc(1);
                    let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
                    match (times, done.as_mut()) {
                        (Ok(times), Ok(all)) => all.push((*run, times)),
                        (Ok(_), Err(_)) => return,
                        (Err(error), _) => {
                            *done = Err(format!("{run:?}: {error}"));
                            return;
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    Ok(Results(done?))
}
