//! Benches: each figure beside its baseline in the same run
