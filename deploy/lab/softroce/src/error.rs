//! What can go wrong with a lab.

use std::io;
use std::time::Duration;

use crate::job::Output;

/// Why a lab cannot be had, or what happened in it.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something that this machine lacks, and what to do about it: a reason to skip a test.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// The thing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// A request that makes no sense.
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
    /// A machine that was up is no more, or does not answer.
    #[error("{host}: {why}; its console ends:\n{console}")]
    Guest {
        /// The machine.
        host: String,
        /// What happened.
        why: String,
        /// The last lines of its console and of QEMU.
        console: String,
    },
    /// A script took longer than it was given. One that [`crate::Host::run`] started has been killed.
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
    /// An [`LabError::Io`] maker for `map_err`.
    pub(crate) fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| Self::Io { what, source }
    }

    /// An [`LabError::Missing`].
    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}
