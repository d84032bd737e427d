//! Performs all runs, on all processors.

use std::error::Error;

use super::super::parallel;
use super::measure::{Run, Setting, Times, measure};

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
    let times = parallel::map(&runs, jobs, shows_progress, |run| {
        measure(setting, run).map_err(|error| format!("{run:?}: {error}"))
    })?;
    Ok(Results(runs.into_iter().zip(times).collect()))
}
