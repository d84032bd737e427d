//! Failures of RNICs and members, with what the user can do about them.

use std::io;

use castnet_console::connect::{self, NO_CONTROLLER};
pub use castnet_console::exit::interrupted;
use castnet_console::exit::{Failure, not_written};
use castnet_console::units::span;
use castnet_member::MemberError;
use castnet_mrp::LeaderError;
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
            let not_found = status.code() == tonic::Code::NotFound;
            let failure = Failure::from(*status).while_doing(format!("{doing} group {group}"));
            match not_found {
                true => failure.next(format!(
                    "castnet group create {group} --source HOST --members HOST,...\nor wait for it: --wait 1m"
                )),
                false => failure,
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
