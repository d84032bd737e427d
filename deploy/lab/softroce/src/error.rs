//! Errors of labs.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::job::Output;

/// Errors of labs.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum LabError {
    /// Something that this machine lacks, and a remedy: a reason to skip a test.
    #[error("{what} is missing: {remedy}")]
    Missing { what: String, remedy: String },
    /// An invalid request.
    #[error("{0}")]
    Config(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A program of the host failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        command: String,
        status: String,
        stderr: String,
    },
    /// A Debian package holds something else than this crate understands.
    #[error("{what}: {why}")]
    Package { what: String, why: String },
    /// A machine did not come up.
    #[error("{host} did not come up ({why}); its console ends:\n{console}")]
    Boot {
        host: String,
        why: String,
        console: String,
    },
    /// A machine has ended, or does not answer.
    #[error("{host}: {why}; its console ends:\n{console}")]
    Guest {
        host: String,
        why: String,
        console: String,
    },
    /// A script did not end in time. [`crate::Host::run`] has killed it.
    #[error("{host}: not done after {after:?}; so far {so_far}")]
    Timeout {
        host: String,
        after: Duration,
        so_far: Output,
    },
    /// A script ended without the output that was waited for.
    #[error("{host}: ended without `{needle}`: {output}")]
    NoSuchOutput {
        host: String,
        needle: String,
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
