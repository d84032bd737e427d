//! How many cases a property has.

use proptest::prelude::ProptestConfig;

/// `cases` cases, or as many as `PROPTEST_CASES` wants.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(cases),
    }
}
