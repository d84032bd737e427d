//! Exit codes, and failures with the next step for the user.

use std::fmt;
use std::fs::File;
use std::io;

use castnet_proto::transport::{chain, lost_connection};
use serde::Serialize;

use crate::files;
use crate::output::remark;

/// Exit codes. `castnet --help` prints their table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Kind {
    /// The command ran and did not reach its goal.
    Failed = 1,
    /// The command line or a file is wrong; nothing was tried.
    Usage = 2,
    /// The other side answered and refused.
    Refused = 3,
    /// The other side did not answer.
    Unreachable = 4,
}

/// Why a command failed, and the next step.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Determines the exit code.
    pub kind: Kind,
    /// What went wrong, in one or more lines.
    pub what: String,
    /// What the user can do next.
    pub next: Option<String>,
    /// Stdout was closed by its reader: the command ends without a message and with code 0.
    pub quiet: bool,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    fn new(kind: Kind, what: impl fmt::Display) -> Self {
        Self {
            kind,
            what: what.to_string(),
            next: None,
            quiet: false,
        }
    }

    /// A failure of kind [`Kind::Failed`].
    pub fn failed(what: impl fmt::Display) -> Self {
        Self::new(Kind::Failed, what)
    }

    /// A failure of kind [`Kind::Usage`].
    pub fn usage(what: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// A failure of kind [`Kind::Refused`].
    pub fn refused(what: impl fmt::Display) -> Self {
        Self::new(Kind::Refused, what)
    }

    /// A failure of kind [`Kind::Unreachable`].
    pub fn unreachable(what: impl fmt::Display) -> Self {
        Self::new(Kind::Unreachable, what)
    }

    /// Sets the next step.
    #[must_use]
    pub fn next(mut self, next: impl fmt::Display) -> Self {
        self.next = Some(next.to_string());
        self
    }

    /// Adds `doing` before the message.
    #[must_use]
    pub fn while_doing(mut self, doing: impl fmt::Display) -> Self {
        self.what = format!("{doing}: {}", self.what);
        self
    }

    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        if self.quiet { 0 } else { self.kind as u8 }
    }

    /// Text on stderr for people.
    pub fn text(&self) -> String {
        let mut text = format!("error: {}\n", self.what);
        if let Some(next) = &self.next {
            for (i, line) in next.lines().enumerate() {
                text.push_str(if i == 0 { " next: " } else { "       " });
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// JSON on stderr for machines.
    pub fn json(&self) -> String {
        let object = serde_json::json!({
            "error": self.what, "kind": self.kind, "next": self.next, "exit_code": self.code(),
        });
        format!("{object}\n")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A pipe that its reader closes is no failure (`castnet counters | head -1`).
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let quiet = error.kind() == io::ErrorKind::BrokenPipe;
        Self {
            quiet,
            ..Self::failed(error)
        }
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        // The other side did not answer: the connection failed.
        if let Some(cause) = lost_connection(&status) {
            return Self::unreachable(format!("the call has no answer: {}", chain(cause)))
                .next("see that the other side runs, speaks http:// or https:// as in the address, and accepts the certificate");
        }
        let message = match status.message() {
            "" => status.code().description().to_owned(),
            text => text.to_owned(),
        };
        match status.code() {
            // Its message is the next step.
            Code::Unavailable if message.ends_with("try again soon") => Self::unreachable(message),
            Code::Unavailable | Code::DeadlineExceeded => Self::unreachable(message)
                .next("the other side has answered that it cannot now: try again soon; if it never can, see that the address and the port are right"),
            Code::Internal | Code::Unknown | Code::DataLoss | Code::Aborted | Code::Cancelled => {
                Self::failed(message)
            }
            Code::Unauthenticated | Code::PermissionDenied => Self::refused(message).next(
                "give the certificate of a role that may: --tls-cert, --tls-key; the other side's [roles] list them",
            ),
            Code::Unimplemented => {
                Self::refused(format!("the other side does not know this call: {message}"))
                    .next("see that --controller names a controller and --agent a switch, and that both sides are of the same release")
            }
            _ => Self::refused(message),
        }
    }
}

/// The first failure of what was tried one after the other. Says each further one on stderr.
pub fn first_failure(ends: impl IntoIterator<Item = Outcome>) -> Outcome {
    let mut first = Ok(());
    for failure in ends.into_iter().filter_map(Result::err) {
        if first.is_ok() {
            first = Err(failure);
        } else if !failure.quiet {
            remark(&format!("also: {failure}"));
        }
    }
    first
}

/// A signal has stopped the command.
pub fn interrupted() -> Failure {
    Failure::failed("stopped by a signal before the end")
}

/// Reads a text file. The failure names the file and the reason.
pub fn read_text(path: &std::path::Path) -> Outcome<String> {
    let file = files::open(path, File::options().read(true));
    let text = file.and_then(io::read_to_string);
    text.map_err(|e| cannot_read(path, &e))
}

/// The failure of reading a file.
pub fn cannot_read(path: &std::path::Path, error: &io::Error) -> Failure {
    if files::is_by_signal(error) {
        return interrupted();
    }
    let next = match error.kind() {
        io::ErrorKind::InvalidData => {
            "it is no text: see that the path is right, and that the arguments are in their order"
        }
        io::ErrorKind::IsADirectory => "give the path of a file",
        _ => "see that the path is right and that this user may read it",
    };
    Failure::usage(format!("cannot read {}: {error}", path.display())).next(next)
}

/// The failure of writing a file.
pub fn cannot_write(path: &std::path::Path, error: &io::Error) -> Failure {
    not_written(format_args!("cannot write {}: {error}", path.display()), error)
}

/// The failure of [`files::replace`] of the file that a flag names.
pub fn cannot_write_flag(flag: &str, path: &std::path::Path, error: &io::Error) -> Failure {
    if files::is_by_signal(error) {
        return interrupted();
    }
    let what = format!("cannot write {flag} {}: {error}", path.display());
    match error.kind() {
        // The path is right.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => not_written(what, error),
        _ => Failure::usage(what).next(format!(
            "give {flag} another path, in a folder that this user may write to"
        )),
    }
}

/// A failure with the next step after an error of writing a file. `what` names the file and the error.
pub fn not_written(what: impl fmt::Display, error: &io::Error) -> Failure {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    if files::is_by_signal(error) {
        return interrupted();
    }
    let failure = Failure::failed(what);
    match error.kind() {
        StorageFull | QuotaExceeded => failure.next("free space there, or write to another place"),
        NotFound | PermissionDenied | ReadOnlyFilesystem => {
            failure.next("see that its folder exists and that this user may write there")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_the_exit_code_that_the_help_promises() {
        let code = |c: tonic::Code| Failure::from(tonic::Status::new(c, "x")).code();
        assert_eq!(code(tonic::Code::Unavailable), 4);
        assert_eq!(code(tonic::Code::InvalidArgument), 3);
        assert_eq!(code(tonic::Code::AlreadyExists), 3);
        assert_eq!(code(tonic::Code::Unauthenticated), 3);
        assert_eq!(code(tonic::Code::Internal), 1);
    }

    #[test]
    fn who_has_answered_runs_at_that_address() {
        let failure = Failure::from(tonic::Status::unavailable("not known yet"));
        let next = failure.next.expect("a next step");
        assert!(next.starts_with("the other side has answered"), "{next}");
    }

    #[test]
    fn what_is_no_text_may_be_read() {
        let path = std::path::Path::new("store");
        for (kind, next) in [
            (io::ErrorKind::InvalidData, "it is no text"),
            (io::ErrorKind::IsADirectory, "the path of a file"),
            (io::ErrorKind::PermissionDenied, "may read it"),
        ] {
            let text = cannot_read(path, &kind.into()).text();
            assert!(text.contains(next), "{text}");
        }
    }

    /// It was a fault of usage, with the advice to look at who may write there.
    #[test]
    fn a_full_disk_is_no_wrong_flag() {
        let path = std::path::Path::new("ready");
        for (kind, code, next) in [
            (io::ErrorKind::StorageFull, 1, "free space there"),
            (io::ErrorKind::QuotaExceeded, 1, "free space there"),
            (
                io::ErrorKind::PermissionDenied,
                2,
                "give --ready-file another path",
            ),
        ] {
            let failure = cannot_write_flag("--ready-file", path, &kind.into());
            let text = failure.text();
            assert!(failure.code() == code && text.contains(next), "{text}");
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_fault() {
        assert_eq!(
            Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).code(),
            0
        );
        assert_eq!(
            Failure::from(io::Error::from(io::ErrorKind::StorageFull)).code(),
            1
        );
    }

    #[test]
    fn of_several_failures_the_first_one_is_returned() {
        let failed = |what: &str| Err(Failure::failed(what));
        let first = first_failure([Ok(()), failed("one"), Ok(()), failed("two")]);
        assert!(first.is_err_and(|failure| failure.what == "one"));
        assert!(first_failure([Ok(()), Ok(())]).is_ok());
    }

    #[test]
    fn people_and_machines_read_the_same_failure() {
        let failure = Failure::refused("no such group: g").next("castnet group list\nshows them");
        assert_eq!(
            failure.text(),
            "error: no such group: g\n next: castnet group list\n       shows them\n"
        );
        let json: serde_json::Value = serde_json::from_str(&failure.json()).expect("JSON");
        assert_eq!(json["exit_code"], 3);
        assert_eq!(json["kind"], "refused");
        assert_eq!(json["error"], "no such group: g");
    }
}
