//! Other programs, as processes that end with this one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::net::Namespace;
use serde::Serialize;

use crate::machine;

/// Time-out of starts and answers.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A command, in a namespace if given. The kernel kills the program when the thread that starts it ends.
pub fn mortal(within: Option<&Namespace>, program: impl AsRef<OsStr>) -> Command {
    let mut command = match within {
        Some(namespace) => namespace.command("setpriv"),
        None => Command::new("setpriv"),
    };
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// A running program, which is killed when this is dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    stdin: Option<ChildStdin>,
    answers: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a command with its output in `<folder>/<name>.log`. Its input stays open until this is dropped.
    pub fn start(name: &str, folder: &Path, mut command: Command) -> Result<Self> {
        Self::start_with(name, folder, &mut command, None)
    }

    /// [`Process::start`] for a program that answers [`Process::ask`].
    pub fn start_to_ask(name: &str, folder: &Path, mut command: Command) -> Result<Self> {
        Self::start_with(name, folder, &mut command, Some(Stdio::piped()))
    }

    fn start_with(name: &str, folder: &Path, command: &mut Command, out: Option<Stdio>) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::piped()).stderr(file.try_clone()?);
        command.stdout(out.unwrap_or_else(|| file.into()));
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            stdin: child.stdin.take(),
            answers: child.stdout.take().map(BufReader::new),
            child,
            log,
        })
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and waits for a line. Fails with its output if it has ended.
    pub fn ask(&mut self, question: &str) -> Result<String> {
        let mut answer = String::new();
        let mut talk = |stdin: &mut ChildStdin, answers: &mut BufReader<ChildStdout>| {
            writeln!(stdin, "{question}")?;
            answers.read_line(&mut answer)
        };
        let talked = match (&mut self.stdin, &mut self.answers) {
            (Some(stdin), Some(answers)) => talk(stdin, answers),
            _ => bail!("{} cannot be asked", self.name),
        };
        match talked {
            Ok(bytes) if bytes > 0 => Ok(answer),
            _ => bail!("{} has ended: {}", self.name, self.said()),
        }
    }

    /// Waits until `ready` returns a value. Fails if it ends before, at a time-out, or at an interrupt.
    pub fn wait_for<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(thing) = ready() {
                return Ok(thing);
            }
            self.lives()?;
            ensure!(
                start.elapsed() < PATIENCE,
                "{} is not ready: {}",
                self.name,
                self.said()
            );
            machine::pause(Duration::from_millis(10))?;
        }
    }

    /// Fails with the end of its output if it has ended.
    pub fn lives(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} has ended ({status}): {}", self.name, self.said());
        }
        Ok(())
    }

    /// The end of its output.
    pub fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(4)..].join(" / ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers each line of input with a value as JSON, until the end of input: the other end of [`Process::ask`].
pub fn serve<T: Serialize>(answer: impl Fn() -> Result<T>) -> Result<()> {
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", serde_json::to_string(&answer()?)?);
    }
    Ok(())
}

/// Runs a command and returns its standard output. Fails with its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| format!("running {name}"))?;
    let words = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{name}: {}", words.trim());
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// `None` if a program is installed, else a message with its package.
pub fn missing(program: &str, package: &str) -> Option<String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).any(|folder| folder.join(program).is_file());
    (!found).then(|| format!("needs {program} (package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_answers_and_what_it_said_last_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = mortal(None, "sh");
        command.args(["-c", "read line; echo \"$line too\"; echo enough >&2"]);
        let mut process = Process::start_to_ask("sh", folder.path(), command).expect("a process");
        assert_eq!(process.ask("one").expect("an answer"), "one too\n");
        let end = process.ask("two").expect_err("its end").to_string();
        assert!(end.contains("enough"), "{end}");
    }

    #[test]
    fn what_is_not_installed_is_named_with_its_package() {
        assert_eq!(missing("sh", "dash"), None);
        let why = missing("no-such-switch", "switches").expect("missing");
        assert!(why.contains("no-such-switch") && why.contains("package switches"));
    }
}
