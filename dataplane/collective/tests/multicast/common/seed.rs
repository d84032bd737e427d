//! Seeds of property tests: fixed, so that a run can be had again; another by `PROPTEST_RNG_SEED`.

use proptest::test_runner::{Config, RngSeed};

/// `cases` cases from a seed that is printed.
pub fn config(cases: u32) -> Config {
    let mut config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(0xCA57);
    }
    println!("proptest seed {} ({} cases)", config.rng_seed, config.cases);
    config
}
