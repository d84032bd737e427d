//! Benches of Castnet's data plane: each figure beside its baseline in the same run.
//!
//! `cargo bench -p castnet-benches --bench summary` prints one table in about a minute: nanoseconds, baselines, ratios,
//! goals, allocations. `--bench reduce` does so for the arithmetic of collectives. `--bench engine` and `--bench icrc` are
//! the same measurements under criterion, with statistics and history. Figures are compared within a run only: they
//! depend on the machine, the ratios much less.
