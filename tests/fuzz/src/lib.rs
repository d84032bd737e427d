//! Fuzz targets: one function per target, that takes any bytes and panics where a rule is broken.
//!
//! The same functions run under libFuzzer (`cargo-fuzz/`) and, over the committed corpus, in the ordinary tests
//! (`tests/replay.rs`). A target's corpus is the folder of its name in `corpus/`; a file there is either a seed or a
//! finding with its story in README.md. A new target is a function here, a line in [`TARGETS`], a folder, and a file in
//! `cargo-fuzz/fuzz_targets`.

pub mod endpoint;
mod wire;

pub use wire::wire;

/// A target: any bytes in, nothing out, a panic where a rule is broken.
pub type Target = fn(&[u8]);

/// All targets by name, which is that of their corpus folder too.
pub const TARGETS: &[(&str, Target)] = &[("endpoint", endpoint::endpoint), ("wire", wire)];
