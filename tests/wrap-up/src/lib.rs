//! Tests that cannot run: one line each where they stand, and all of them again in the last lines of `cargo test`.
//!
//! cargo runs documentation tests after all others, package by package in order of their names. This package's name is the
//! last one, so this example prints the summary of `cargo test --workspace`:
//!
//! ```
//! castnet_wrap_up::report();
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

/// What runs all tests: it installs what they need, then runs them.
const REMEDY: &str = "sudo -E .ci/tests";

/// Reports that `test` cannot run here because of `why`: at once on stderr, and in the summary of this run.
pub fn skip(test: &str, why: &str) {
    // The test runner hides what passing tests print, but not what is written to stderr itself.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
    if let Some(run) = Run::current() {
        // One short write, so tests of several processes do not mix.
        let list = OpenOptions::new().create(true).append(true).open(run.list());
        let _ = list.and_then(|mut list| list.write_all(format!("{test}: {why}\n").as_bytes()));
    }
}

/// Prints what this run of `cargo test` has skipped to cargo's stderr, since rustdoc hides what documentation tests print.
/// Does nothing outside such a run.
pub fn report() {
    let Some(run) = Run::current() else { return };
    let Ok(skipped) = fs::read_to_string(run.list()) else {
        return;
    };
    let _ = fs::remove_file(run.list());
    if let Ok(mut stderr) = run.stderr() {
        let _ = stderr.write_all(summary(&skipped).as_bytes());
    }
}

fn summary(skipped: &str) -> String {
    let mut lines: Vec<&str> = skipped.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    let list = lines.join("\n  ");
    format!(
        "\n{} skipped, because something is missing:\n  {list}\nTo run everything: {REMEDY}\n",
        lines.len()
    )
}

/// A run of `cargo test`: the nearest process above this one that is cargo.
struct Run {
    cargo: u32,
}

impl Run {
    fn current() -> Option<Self> {
        let mut process = std::process::id();
        while process > 1 {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let (name, parent) = name_and_parent(&stat)?;
            if name == "cargo" {
                return Some(Self { cargo: process });
            }
            process = parent;
        }
        None
    }

    fn list(&self) -> PathBuf {
        std::env::temp_dir().join(format!("castnet-skipped-{}", self.cargo))
    }

    fn stderr(&self) -> std::io::Result<File> {
        // Appended, in case that it is a file.
        OpenOptions::new()
            .append(true)
            .open(format!("/proc/{}/fd/2", self.cargo))
    }
}

/// A process's name and its parent, from its line in /proc/PID/stat: `pid (name) state parent ...`; the name may hold
/// spaces and parentheses.
fn name_and_parent(stat: &str) -> Option<(&str, u32)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some((name, after.split_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_name_and_parent() {
        assert_eq!(name_and_parent("12 (cargo) S 7 12 7 0"), Some(("cargo", 7)));
        assert_eq!(name_and_parent("12 (a (b) c) S 7 12"), Some(("a (b) c", 7)));
        assert_eq!(name_and_parent("12 cargo"), None);
    }

    #[test]
    fn a_summary_names_each_test_once_and_the_remedy() {
        let text = summary("b: needs root\na: needs ip\nb: needs root\n");
        assert_eq!(
            text,
            "\n2 skipped, because something is missing:\n  a: needs ip\n  b: needs root\nTo run everything: sudo -E .ci/tests\n"
        );
    }
}
