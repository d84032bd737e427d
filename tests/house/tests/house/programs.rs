//! A target has a test program where it has tests, and none where it has none: an empty one costs its compilation and says nothing,
//! and tests in a target without one never run.

use std::path::Path;

use cargo_metadata::{MetadataCommand, Target, TargetKind};

use crate::fences::sources;

/// How an example in a comment begins. One of text alone is taken for an example, too.
const EXAMPLE: [&str; 2] = ["//! ```", "/// ```"];

/// Whether a line of the target's sources is wanted. A binary beside a library has its own file alone.
fn has_line(target: &Target, wanted: impl Fn(&str) -> bool) -> bool {
    let file: &Path = target.src_path.as_ref();
    let folder = file.parent().expect("a folder");
    let mut files = Vec::new();
    match file != folder.join("lib.rs") && folder.join("lib.rs").exists() {
        true => files.push(file.to_owned()),
        false => sources(folder, &mut files),
    }
    // Of a library, without its binaries.
    files.retain(|file| !file.starts_with(folder.join("bin")));
    files.iter().any(|file| {
        let text = std::fs::read_to_string(file).expect("UTF-8");
        text.lines().map(str::trim_start).any(&wanted)
    })
}

#[test]
fn what_has_tests_has_a_test_program_and_nothing_else_has() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    let mut faults = Vec::new();
    for package in &metadata.packages {
        for target in &package.targets {
            let library = target.kind.contains(&TargetKind::Lib);
            if !library && !target.kind.contains(&TargetKind::Bin) {
                continue;
            }
            let tests = has_line(target, |line| {
                line.starts_with("#[test]") || line.starts_with("#[tokio::test")
            });
            let examples = library && has_line(target, |line| EXAMPLE.iter().any(|b| line.starts_with(b)));
            for (key, has, built) in [
                ("test", tests, target.test),
                ("doctest", examples, target.doctest),
            ] {
                if has != built {
                    faults.push(format!(
                        "{}: {}: {key} = {has}",
                        package.manifest_path, target.name
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "must be:\n{}", faults.join("\n"));
}
