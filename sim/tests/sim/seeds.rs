//! Runs random scenarios by seed. Shared by the tests `end_to_end` and `collectives`.

use std::env;
use std::ops::Range;

const SOAK_FROM: u64 = 1_000_000;
const FAILURES_MAX: usize = 10;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// The seeds of a soak, if one is requested.
pub(crate) fn soak_seeds() -> Option<Range<u64>> {
    let runs = number("CASTNET_SOAK_RUNS")?;
    let from = number("CASTNET_SOAK_FROM").unwrap_or(SOAK_FROM);
    println!("seeds {from} to {}", from + runs);
    Some(from..from + runs)
}

/// Runs a scenario; `run` takes the number of frames to trace. If it fails, runs it again with a trace. The error then holds
/// everything needed to repeat the run.
pub(crate) fn run_scenario<T>(
    test: &str,
    seed: u64,
    description: &str,
    run: impl Fn(usize) -> Result<T, String>,
) -> Result<T, String> {
    run(0).map_err(|_| {
        let frames = number("CASTNET_TRACE").unwrap_or(60) as usize;
        let wrong = run(frames)
            .err()
            .unwrap_or_else(|| "the run does not fail again".into());
        format!(
            "{description}\n{wrong}\nreplay: CASTNET_SEED={seed} cargo test -p castnet-sim --test {test}\n"
        )
    })
}

/// Runs all seeds. Fails at the end if one failed, or early if many did.
pub(crate) fn run_all(seeds: impl Iterator<Item = u64>, mut run_seed: impl FnMut(u64) -> Result<(), String>) {
    let mut failed = Vec::new();
    for seed in seeds {
        if let Err(wrong) = run_seed(seed) {
            println!("{wrong}");
            failed.push(seed);
        }
        assert!(
            failed.len() < FAILURES_MAX,
            "seeds {failed:?} failed; the other seeds were not run"
        );
    }
    assert!(failed.is_empty(), "seeds {failed:?} failed, see above");
}
