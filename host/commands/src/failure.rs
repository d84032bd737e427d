//! Failures of RNICs and members, with what the user can do about them.

use std::io;

use castnet_console::connect::{self, NO_CONTROLLER};
pub use castnet_console::exit::interrupted;
use castnet_console::exit::{Failure, not_written};
use castnet_console::units::span;
use castnet_member::MemberError;
use castnet_mrp::LeaderError;
use castnet_proto::convert::violations;
use castnet_rnic::stream::StreamError;
use castnet_rnic::{RnicError, Status};

/// A received stream could not be written; the error names the file.
pub(crate) fn sink(error: io::Error) -> Failure {
    not_written(format_args!("writing what arrived: {error}"), &error)
}

/// The RNIC failed, or cannot be had.
pub fn rnic(error: RnicError) -> Failure {
    let advice = error.advice();
    let failure = match error {
        RnicError::Unreachable { .. } | RnicError::NoRoute { .. } => Failure::unreachable(error),
        other => Failure::failed(other),
    };
    match advice {
        Some(advice) => failure.next(advice),
        None => failure,
    }
}

/// A member could not join, or lost its group.
pub fn member(error: MemberError) -> Failure {
    let what = error.to_string();
    match error {
        MemberError::Rnic(error) => rnic(error),
        MemberError::Stream(error) => stream(error),
        MemberError::Transport(error) => connect::failure(&error, NO_CONTROLLER),
        MemberError::Connect { error, .. } => match error {
            RnicError::Unreachable { .. } => Failure::unreachable(what).next(
                "check that this interface is a port of a switch, and that the switch has the group:\n\
                 castnet port; castnet group list --agent URL",
            ),
            RnicError::PmtuTooLarge { .. } => {
                Failure::failed(what).next("ip link set IF mtu 4200, or a group with a smaller --pmtu")
            }
            error => Failure { what, ..rnic(error) },
        },
        MemberError::Status { doing, group, status } => {
            let next = not_found(&group, &status);
            let failure = Failure::from(*status).while_doing(format!("{doing} group {group}"));
            match next {
                Some(next) => failure.next(next),
                None => failure,
            }
        }
        MemberError::Slow(_) => Failure::unreachable(what)
            .next("castnet group show GROUP lists the receivers that are behind; castnet drops shows what switches dropped"),
        MemberError::Diverted { .. } => Failure::refused(what).next("--fallback auto goes on with it"),
        MemberError::NotInstalled { group, .. } => {
            Failure::refused(what).next(format!("castnet group show {group}"))
        }
        MemberError::NotActive { .. } => {
            Failure::failed(what).next("castnet group show lists who is missing")
        }
        MemberError::WrongRole { .. } => Failure::refused(what)
            .next("castnet host send is for the source, castnet host receive for receivers"),
        MemberError::Ended { group, .. } => {
            Failure::failed(what).next(format!(
                "join it again, as castnet host receive without --once does by itself; with a controller, \
                 castnet group show {group} lists whom it waits for"
            ))
        }
        MemberError::Evicted { group, .. } => {
            Failure::refused(what).next(format!("castnet group show {group}"))
        }
        MemberError::Silent { after } => {
            Failure::unreachable(format!("nothing has been acknowledged for {}", span(after)))
                .next("castnet group show GROUP lists the receivers that are behind")
        }
        MemberError::Leader(error) => Failure::unreachable(what).next(match error {
            LeaderError::NotJoined { .. } => {
                "at each of them: castnet host receive --mcst-id ... --leader ...; castnet host ping shows which of them answer"
            }
            LeaderError::NotConfirmed { .. } => {
                "MRP is refused by a switch without --mrp-port for the port to the leader, or with another --mrp-pool: castnet drops --agent URL\n\
                 counts registration-refused; with --fallback auto at all members the data goes from host to host instead (docs/mrp.md)"
            }
            LeaderError::TooManyMembers { .. } => "a group of a controller has no such limit: castnet group create",
        }),
        MemberError::Receiver(_) => Failure::unreachable(what)
            .next("the leader says why: castnet host send --mcst-id ... --register-for ... (docs/mrp.md)"),
        MemberError::Interrupted => interrupted(),
        _ => Failure::failed(what),
    }
}

/// What to do about a group that is not there, that has another kind, or that lacks this host.
fn not_found(group: &str, status: &tonic::Status) -> Option<String> {
    if status.code() != tonic::Code::NotFound {
        return None;
    }
    let refused = violations(status);
    let lacks_host = refused.iter().any(|v| v.field == "host");
    let is_job = refused.iter().any(|v| v.reason.contains("is a job"));
    Some(match (lacks_host, is_job) {
        (true, _) => format!("castnet group add {group} HOST; or give --name as the group has it\nor wait for it: --wait 1m"),
        (_, true) => "castnet group list shows the multicast groups; castnet host --help lists the collectives of a job".to_owned(),
        _ => format!("castnet group create {group} --source HOST --members HOST,...\nor wait for it: --wait 1m"),
    })
}

/// A transfer failed.
pub fn stream(error: StreamError) -> Failure {
    match error {
        StreamError::Rnic(error) => rnic(error),
        StreamError::Work { status, .. } => work(status, &error),
        StreamError::OutOfRange { .. } => Failure::usage(error),
        StreamError::Malformed { .. } | StreamError::OutOfSequence { .. } => Failure::failed(error)
            .next("all members need the same --op and --message-size (or --size and --count), and a group that was not used before"),
        StreamError::Io { ref source, .. } => not_written(&error, source),
        StreamError::OutOfTurn => Failure::refused(error)
            .next("the members need one order: castnet events shows who wanted to send, sources-compete"),
        other => Failure::failed(other),
    }
}

/// The exit code shows whether the other side did not answer, or refused.
fn work(status: Status, error: &StreamError) -> Failure {
    const ALIKE: &str = "all members need the same --op, --message-size, --slots and, without a controller, --pmtu; see what each receiver reports";
    const DROPS: &str =
        "the QP has failed; see what the switches dropped: castnet drops; castnet group show GROUP";
    match status {
        Status::RemoteInvalidRequest | Status::RemoteAccessError => Failure::refused(error).next(ALIKE),
        Status::RemoteOperationalError => Failure::refused(error)
            .next("a receiver has failed, or the group has ended: castnet group show GROUP; castnet events"),
        Status::RnrRetryExceeded => Failure::refused(error)
            .next("a receiver has posted no receives for too long; --rnr-retry 7 waits without limit"),
        Status::RetryExceeded => Failure::unreachable(error).next(DROPS),
        Status::LocalLengthError => Failure::failed(error).next(ALIKE),
        Status::Success | Status::LocalProtectionError | Status::Flushed | Status::Device { .. } => {
            Failure::failed(error).next(DROPS)
        }
    }
}

#[cfg(test)]
mod tests {
    use castnet_proto::convert::refuse;
    use tonic::Code;

    use super::*;

    #[test]
    fn what_is_not_found_has_a_next_step_of_its_own() {
        for (field, reason, next) in [
            ("group", "there is no group \"w\"", "castnet group create w "),
            (
                "host",
                "host \"h9\" is no member of group \"w\"",
                "castnet group add w ",
            ),
            (
                "group",
                "group \"w\" is a job, whose ranks call collectives",
                "castnet group list",
            ),
        ] {
            let failure = member(MemberError::Status {
                doing: "joining",
                group: "w".to_owned(),
                status: Box::new(refuse(Code::NotFound, field, reason)),
            });
            assert!(
                failure.next.as_deref().is_some_and(|n| n.starts_with(next)),
                "{failure:?}"
            );
        }
    }
}
