//! Fuzz targets. A target is a function that accepts any bytes and panics if a rule is violated.
//!
//! The same functions run under our own driver ([`driver`], which needs no nightly toolchain: `cargo run -p
//! castnet-fuzz`), under libFuzzer (`cargo-fuzz/`) and, over the committed corpus, in the normal tests
//! (`tests/replay.rs`). The corpus of a target is the folder of its name in `corpus/`. A file there is either a seed,
//! or a finding with its story in README.md. A new target needs a function here, an entry of [`TARGETS`], a folder,
//! and a file in `cargo-fuzz/fuzz_targets`.

pub mod driver;
pub mod endpoint;
pub mod engine;
#[path = "../../../dataplane/wire/tests/wire/in_place.rs"]
mod in_place;
pub mod multicast;
pub mod translated;
mod wire;

pub use wire::wire;

use std::fs;
use std::path::PathBuf;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus folder.
    pub name: &'static str,
    /// Runs one input. Panics if a rule is violated.
    pub run: fn(&[u8]),
    /// Bytes of a record of the input; 1 if records differ in length.
    pub record: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "endpoint",
        run: endpoint::endpoint,
        record: 1,
    },
    Target {
        name: "engine",
        run: engine::engine,
        record: engine::RECORD,
    },
    Target {
        name: "multicast",
        run: multicast::multicast,
        record: multicast::RECORD,
    },
    Target {
        name: "translated",
        run: translated::translated,
        record: translated::RECORD,
    },
    Target {
        name: "wire",
        run: wire,
        record: 1,
    },
];

impl Target {
    /// Folder of its corpus.
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(self.name)
    }

    /// Files of its corpus, sorted by name: name and bytes.
    ///
    /// The folder or one of its files cannot be read.
    /// The folder or a file in it cannot be read.
    pub fn corpus(&self) -> Vec<(String, Vec<u8>)> {
        let folder = self.folder();
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = entries
            .map(|entry| {
                let entry = entry.expect("an entry of the folder");
                let bytes = fs::read(entry.path()).expect("a file of the corpus");
                (entry.file_name().to_string_lossy().into_owned(), bytes)
            })
            .collect();
        files.sort();
        files
    }
}
