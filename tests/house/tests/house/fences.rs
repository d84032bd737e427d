//! Where `unsafe` may live, and which rooms must do without the standard library: read from the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Files, by the end of their path, that may lift the ban on `unsafe`; each says why in its first lines.
const MAY_BE_UNSAFE: &[&str] = &[
    "dataplane/dpdk-sys/src/lib.rs",
    "dataplane/dpdk/src/fence/mod.rs",
    "dataplane/port/src/af_packet",
    "dataplane/port/src/memif/doorbell.rs",
    "dataplane/port/src/memif/ring.rs",
    "dataplane/port/src/memif/socket.rs",
    "dataplane/port/src/shared.rs",
    "dataplane/reduce/src/checksum.rs",
    "dataplane/reduce/src/prefetch.rs",
    "dataplane/reduce/src/simd.rs",
    "host/comm/src/lend.rs",
    "host/rnic/src/verbs/handles.rs",
    "host/rnic/src/verbs/library.rs",
    "host/runner/src/lend.rs",
];

/// Rooms whose purity the compiler proves.
const NO_STD: &[&str] = &["dataplane/wire", "dataplane/collective", "host/endpoint"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace root")
}

pub(crate) fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "cargo-fuzz" {
                sources(&path, out);
            }
        } else if name.ends_with(".rs") {
            out.push(path);
        }
    }
}

#[test]
fn unsafe_is_allowed_only_in_the_fence() {
    let (root, mut files) = (root(), Vec::new());
    sources(&root, &mut files);
    let faults: Vec<_> = files
        .iter()
        .filter(|f| !f.starts_with(root.join("tests")) && !f.to_string_lossy().contains("/tests/"))
        .filter(|f| !f.starts_with(root.join("benches")))
        .filter(|f| {
            fs::read_to_string(f)
                .expect("UTF-8")
                .contains("allow(unsafe_code)")
        })
        .map(|f| {
            f.strip_prefix(&root)
                .expect("below the root")
                .to_string_lossy()
                .into_owned()
        })
        .filter(|f| !MAY_BE_UNSAFE.iter().any(|fence| f.starts_with(fence)))
        .collect();
    assert!(faults.is_empty(), "unsafe outside the fence: {faults:?}");
}

#[test]
fn the_purest_rooms_are_no_std_and_forbid_unsafe() {
    for room in NO_STD {
        let text = fs::read_to_string(root().join(room).join("src/lib.rs")).expect("lib.rs");
        for line in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            assert!(text.contains(line), "{room}/src/lib.rs lacks {line}");
        }
    }
}

#[test]
fn no_source_file_outgrows_its_subject() {
    let (root, mut files) = (root(), Vec::new());
    sources(&root, &mut files);
    let long: Vec<_> = files
        .iter()
        .map(|f| (fs::read_to_string(f).expect("UTF-8").lines().count(), f))
        .filter(|(lines, _)| *lines > 800)
        .collect();
    assert!(
        long.is_empty(),
        "over 800 lines, so more than one subject: {long:?}"
    );
}
