//! Lists the tests that cannot run: one line each when they are skipped, and all of them in the last lines of `cargo
//! test`.
//!
//! cargo runs documentation tests after all others, package by package in order of their names. The name of this
//! package is the last one, so this example prints the summary of `cargo test --workspace`:
//!
//! ```
//! castnet_wrap_up::report();
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

/// The command that installs what tests need, and runs all of them.
const RUN_ALL: &str = "sudo -E .ci/tests";

/// Reports that `test` cannot run because of `why`: at once on stderr, and in the summary of this run.
pub fn skip(test: &str, why: &str) {
    // The test runner captures output of passing tests, but not direct writes to stderr.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
    if let Some(run) = Run::current() {
        // A single short write, so that lines of several processes do not mix.
        let list = OpenOptions::new().create(true).append(true).open(run.list());
        let _ = list.and_then(|mut list| list.write_all(format!("{test}: {why}\n").as_bytes()));
    }
}

/// Prints the tests that this run of `cargo test` has skipped. Writes to the stderr of cargo, since rustdoc captures
/// the output of documentation tests. Does nothing outside a run of cargo.
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
        "\n{} skipped, because something is missing:\n  {list}\nTo run everything: {RUN_ALL}\n",
        lines.len()
    )
}

/// A run of `cargo test`: the nearest ancestor process that is cargo.
struct Run {
    cargo: u32,
    /// Start time in ticks since boot: process IDs are reused.
    started: u64,
}

impl Run {
    fn current() -> Option<Self> {
        let mut process = std::process::id();
        while process > 1 {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let (name, parent, started) = read_stat(&stat)?;
            if name == "cargo" {
                return Some(Self {
                    cargo: process,
                    started,
                });
            }
            process = parent;
        }
        None
    }

    fn list(&self) -> PathBuf {
        std::env::temp_dir().join(format!("castnet-skipped-{}-{}", self.cargo, self.started))
    }

    fn stderr(&self) -> std::io::Result<File> {
        // Opened for appending, because stderr may be a file.
        OpenOptions::new()
            .append(true)
            .open(format!("/proc/{}/fd/2", self.cargo))
    }
}

/// Reads name, parent and start time of a process from its line in /proc/PID/stat: `pid (name) state parent ...`, the
/// start time in field 22. The name may contain spaces and parentheses.
fn read_stat(stat: &str) -> Option<(&str, u32, u64)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut fields = after.split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    Some((name, parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_name_a_parent_and_a_start_time() {
        let rest = "12 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4711 99 1";
        let read =
            |name: &str| read_stat(&format!("12 ({name}) S 7 {rest}")).map(|(n, p, s)| (n.to_owned(), p, s));
        assert_eq!(read("cargo"), Some(("cargo".into(), 7, 4711)));
        assert_eq!(read("a (b) c"), Some(("a (b) c".into(), 7, 4711)));
        assert_eq!(read_stat("12 cargo"), None);
        let own = fs::read_to_string("/proc/self/stat").expect("Linux");
        let (_, parent, started) = read_stat(&own).expect("what the kernel writes");
        assert!(parent > 0 && started > 0);
    }

    #[test]
    fn a_summary_names_each_test_once() {
        let text = summary("b: needs root\na: needs ip\nb: needs root\n");
        assert_eq!(
            text,
            "\n2 skipped, because something is missing:\n  a: needs ip\n  b: needs root\nTo run everything: sudo -E .ci/tests\n"
        );
    }
}
