//! The settings of a group are described once, and held as a whole: few files name one of them.

use std::fs;
use std::path::Path;

use crate::fences::{root, sources};

/// A setting, and how many files outside of tests may name it.
const NAMED_IN: [(&str, usize); 6] = [
    ("ack_timeout_us", 17),
    ("any_source", 23),
    ("fails_with_receiver", 5),
    ("on_stall", 7),
    ("stall_timeout_ms", 22),
    ("straggler_policy", 9),
];

fn is_test(within: &Path) -> bool {
    let within = within.to_string_lossy();
    within.contains("tests") || within.contains("benches")
}

#[test]
fn few_files_name_a_setting_of_a_group() {
    let (root, mut files) = (root(), Vec::new());
    sources(&root, &mut files);
    files.retain(|file| !is_test(file.strip_prefix(&root).expect("below the root")));
    let texts: Result<Vec<String>, _> = files.iter().map(fs::read_to_string).collect();
    let texts = texts.expect("UTF-8");
    for (setting, most) in NAMED_IN {
        let names = |text: &&String| {
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let mut words = code.split(|c: char| c != '_' && !c.is_alphanumeric());
            words.any(|word| word == setting)
        };
        let named = texts.iter().filter(names).count();
        let way_out = "hold its struct in control/group instead of its fields (docs/new-setting.md)";
        assert!(
            named <= most,
            "{named} files name {setting}, not {most}: {way_out}"
        );
    }
}
