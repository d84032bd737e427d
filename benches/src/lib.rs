//! Benchmarks of Castnet's data plane. Each figure is printed next to its baseline of the same run.
//!
//! `cargo bench -p castnet-benches --bench summary` prints one table in about a minute: nanoseconds, baselines,
//! ratios, goals, allocations. `--bench reduce` does the same for the arithmetic of collectives. Compare figures within
//! one run only: they depend on the machine, the ratios much less.
