//! Performs all runs, on all processors.

use std::error::Error;

use super::super::parallel;
use super::measure::{Measured, Run, Setting, measure};

pub(crate) struct Results(Vec<(Run, Measured)>);

impl Results {
    pub(crate) fn of(&self, run: &Run) -> Measured {
        let found = self.0.iter().find(|(r, _)| r == run);
        found.map(|(_, measured)| *measured).unwrap_or_default()
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
    let measured = parallel::map(&runs, jobs, shows_progress, |run| {
        measure(setting, run).map_err(|error| format!("{run:?}: {error}"))
    })?;
    Ok(Results(runs.into_iter().zip(measured).collect()))
}
