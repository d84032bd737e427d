//! Benchmarks of Castnet's data plane. Each figure is printed next to its baseline of the same run.
//!
//! `cargo bench -p castnet-benches --bench summary` prints one table in about a minute: nanoseconds, baselines,
//! ratios, goals, allocations. `--bench reduce` does the same for the arithmetic of collectives; `--bench engine` and
//! `--bench icrc` measure under criterion, with statistics and history. Compare figures within one run: they depend on
//! the machine, ratios much less.
