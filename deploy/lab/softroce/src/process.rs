//! Programs and processes of the host.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::LabError;

pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>, LabError> {
    let line = describe(command);
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::io(format!("running `{line}`")))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(LabError::Command {
        command: line,
        status: out.status.to_string(),
        stderr: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    })
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

pub(crate) fn ip(line: &str) -> Result<Vec<u8>, LabError> {
    run(Command::new("ip").args(line.split_whitespace()))
}

/// In PATH, or among an administrator's programs.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// A process, identified by number, start time and boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Start time in ticks after that boot: field 22 of proc(5)'s stat.
    started: u64,
    boot: String,
}

impl Process {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, started) = stat_fields(&stat)?;
        Some(Self {
            pid: i32::try_from(pid).ok()?,
            started,
            boot: boot_id(),
        })
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn lives(&self) -> bool {
        self.boot == boot_id()
            && fs::read_to_string(format!("/proc/{}/stat", self.pid))
                .ok()
                .as_deref()
                .and_then(stat_fields)
                .is_some_and(|(state, started)| started == self.started && state != 'Z' && state != 'X')
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if self.lives() {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    pub(crate) fn program(&self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid))
            .map(|name| name.trim().to_owned())
            .unwrap_or_default()
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// State and start time from proc(5)'s stat. The name in parentheses may contain anything.
fn stat_fields(stat: &str) -> Option<(char, u64)> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

pub(crate) fn inside(netns: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 1000 5 6";
        assert_eq!(stat_fields(stat), Some(('S', 777)));
        assert_eq!(stat_fields("12 (x) S 1"), None);
        assert_eq!(stat_fields(""), None);
    }

    #[test]
    fn this_process_lives_and_one_that_began_at_another_time_does_not() {
        let mut me = Process::of(std::process::id()).expect("this process");
        assert!(me.lives());
        me.started += 1;
        assert!(!me.lives());
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-anywhere").is_none());
    }
}
