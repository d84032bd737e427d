//! Cases of property tests.

use proptest::test_runner::Config;

pub fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}
