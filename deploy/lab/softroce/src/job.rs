//! A script that runs in a machine.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::host::Host;
use crate::watch::Watch;

/// What a script wrote, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its exit code; 128 and the signal's number for one that a signal ended; -1 while it runs.
    pub code: i32,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            -1 => write!(f, "it runs")?,
            code => write!(f, "exit code {code}")?,
        }
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n{name}: {}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A running script. Dropping this does not end it; [`Job::kill`] does, and so does the end of the lab.
#[derive(Debug)]
pub struct Job {
    host: Host,
    /// The share's files of this job, without their endings.
    files: PathBuf,
    id: String,
    done: Option<Output>,
}

impl Job {
    pub(crate) fn new(host: Host, id: String) -> Self {
        let files = host.exchange().join(&id);
        Self {
            host,
            files,
            id,
            done: None,
        }
    }

    /// The machine that it runs in.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Waits for the script's end. After [`LabError::Timeout`], which has its output, it continues to run;
    /// [`LabError::Guest`] if the machine is gone.
    pub fn wait(&mut self, timeout: Duration) -> Result<Output, LabError> {
        self.wait_until(timeout, Self::ended)
    }

    fn wait_until<T>(
        &mut self,
        timeout: Duration,
        look: impl Fn(&mut Self) -> Result<Option<T>, LabError>,
    ) -> Result<T, LabError> {
        let deadline = Instant::now() + timeout;
        let watch = Watch::new([self.host.exchange()])?;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            self.check(deadline, timeout)?;
            watch.wait(deadline)?;
        }
    }

    /// The output of a script that has ended, else `None`. Fails if the share cannot be read.
    pub fn ended(&mut self) -> Result<Option<Output>, LabError> {
        if self.done.is_none() {
            let Ok(code) = fs::read_to_string(self.file("rc")) else {
                return Ok(None);
            };
            let code = code.trim().parse().map_err(|_| LabError::Guest {
                host: self.host.name().to_owned(),
                why: format!("said that a script ended with {code:?}"),
                console: self.host.console(),
            })?;
            let mut output = self.output_so_far();
            output.code = code;
            self.done = Some(output);
            for ending in ["sh", "out", "err", "rc"] {
                let _ = fs::remove_file(self.file(ending));
            }
        }
        Ok(self.done.clone())
    }

    /// Output so far. Most programs buffer output to files; `stdbuf -oL PROGRAM` makes them write whole lines.
    pub fn output_so_far(&self) -> Output {
        if let Some(output) = &self.done {
            return output.clone();
        }
        Output {
            stdout: lossy(&self.file("out")),
            stderr: lossy(&self.file("err")),
            code: -1,
        }
    }

    /// Waits until the script has written `needle`, and returns all that it has written. Fails with
    /// [`LabError::NoSuchOutput`] if it ended without; [`LabError::Timeout`]; [`LabError::Guest`].
    pub fn wait_for_output(&mut self, needle: &str, timeout: Duration) -> Result<Output, LabError> {
        self.wait_until(timeout, |job| {
            // In this order: a script that has ended has written all its output.
            let ended = job.ended()?.is_some();
            let output = job.output_so_far();
            match output.stdout.contains(needle) || output.stderr.contains(needle) {
                true => Ok(Some(output)),
                false if !ended => Ok(None),
                false => Err(LabError::NoSuchOutput {
                    host: job.host.name().to_owned(),
                    needle: needle.to_owned(),
                    output,
                }),
            }
        })
    }

    /// Kills the script's process group with SIGKILL, unless it has ended; the exit code is 137. Fails with
    /// [`LabError::Guest`] if the machine does not answer.
    pub fn kill(&self) -> Result<(), LabError> {
        if self.done.is_some() || self.file("rc").exists() {
            return Ok(());
        }
        self.host.tell("kill", &self.id, "killed")
    }

    fn check(&self, deadline: Instant, timeout: Duration) -> Result<(), LabError> {
        // The script may have ended before its machine.
        if !self.host.is_up() && !self.file("rc").exists() {
            return Err(self.host.gone());
        }
        if Instant::now() < deadline {
            return Ok(());
        }
        Err(LabError::Timeout {
            host: self.host.name().to_owned(),
            after: timeout,
            so_far: self.output_so_far(),
        })
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.files.with_extension(ending)
    }
}

fn lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
