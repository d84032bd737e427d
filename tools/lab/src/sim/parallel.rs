//! Runs that do not depend on each other, on all processors.

use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The results of all runs, in their order. A bar on stderr shows the progress, if that is a terminal.
///
/// # Errors
/// The first error of a run. Runs that have not begun are left out then.
pub(crate) fn map<I: Sync, R: Send, E: Into<Box<dyn Error + Send + Sync>>>(
    runs: &[I],
    jobs: usize,
    shows_progress: bool,
    run: impl Fn(&I) -> Result<R, E> + Sync,
) -> Result<Vec<R>, Box<dyn Error + Send + Sync>> {
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
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = runs.get(index) else { return };
                    let result = run(item);
                    bar.inc(1);
                    let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
                    match (result, done.as_mut()) {
                        (Ok(result), Ok(all)) => all.push((index, result)),
                        (_, Err(_)) => return,
                        (Err(error), Ok(_)) => {
                            *done = Err(error.into());
                            return;
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner())?;
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// The number of processors.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
