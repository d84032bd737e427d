//! Errors of labs.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::job::Output;

/// Errors of labs.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something that this machine lacks, and a remedy: a reason to skip a test.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// The thing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// An invalid request.
    #[error("{0}")]
    Config(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program of the host failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// Its command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// A Debian package holds something else than this crate understands.
    #[error("{what}: {why}")]
    Package {
        /// The package or file.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A machine did not come up.
    #[error("{host} did not come up ({why}); its console ends:\n{console}")]
    Boot {
        /// The machine.
        host: String,
        /// Too late, or its QEMU ended.
        why: String,
        /// The last lines of its console and of QEMU.
        console: String,
    },
    /// A machine has ended, or does not answer.
    #[error("{host}: {why}; its console ends:\n{console}")]
    Guest {
        /// The machine.
        host: String,
        /// What happened.
        why: String,
        /// The last lines of its console and of QEMU.
        console: String,
    },
    /// A script did not end in time. [`crate::Host::run`] has killed it.
    #[error("{host}: not done after {after:?}; so far {so_far}")]
    Timeout {
        /// The machine.
        host: String,
        /// The time that it was given.
        after: Duration,
        /// What it had written.
        so_far: Output,
    },
    /// A script ended without the output that was waited for.
    #[error("{host}: ended without `{needle}`: {output}")]
    NoSuchOutput {
        /// The machine.
        host: String,
        /// What was waited for.
        needle: String,
        /// All that it wrote.
        output: Output,
    },
}

impl LabError {
    /// Makes an [`LabError::Io`]; for `map_err`.
    pub fn io<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Self {
        let what = what.to_string();
        move |source| Self::Io {
            what,
            source: source.into(),
        }
    }

    /// For a file or folder, such as ("reading", its path).
    pub(crate) fn at<E: Into<io::Error>>(verb: &str, path: &Path) -> impl FnOnce(E) -> Self {
        Self::io(format!("{verb} {}", path.display()))
    }

    pub(crate) fn package(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Package {
            what: what.into(),
            why: why.into(),
        }
    }

    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}
