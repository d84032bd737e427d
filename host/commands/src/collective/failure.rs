//! Failures of collectives, with what the user can do about them.

use castnet_comm::{CommError, ControllerError, RankName};
use castnet_console::connect::{self, NO_CONTROLLER};
use castnet_console::exit::Failure;
use castnet_console::flags::Flags;
use castnet_console::units::{first_of, span};
use clap::{Args, Command};

use super::{NetworkArgs, RankArgs};
use crate::failure;

/// Ranks that an error names, at most.
const NAMED: usize = 16;

/// The flags of a rank, which refusals of its requests name.
fn flags() -> Flags {
    let (rank, network) = (Command::new("rank"), Command::new("network"));
    // The address that a refusal names need not be that of --ip.
    let rank = RankArgs::augment_args(rank).mut_arg("ip", |ip| ip.hide(true));
    Flags::of([rank, NetworkArgs::augment_args(network)])
}

fn names(ranks: &[RankName]) -> String {
    first_of(ranks.iter(), NAMED)
}

/// The failure of a call in `job`.
pub fn failure(error: CommError, job: &str) -> Failure {
    let show = format!("castnet group show {job}");
    match error {
        CommError::Interrupted => failure::interrupted(),
        CommError::Rnic(error) => failure::rnic(error),
        CommError::Controller(ControllerError::Transport(error)) => connect::failure(&error, NO_CONTROLLER),
        CommError::Controller(ControllerError::Status { code, message }) => {
            refused(tonic::Status::new(code, message), &show)
        }
        error @ CommError::Controller(_) => {
            Failure::failed(error).next("see the controller's log: castnet controller -v")
        }
        error @ (CommError::OutOfRange { .. }
        | CommError::NoSuchRank { .. }
        | CommError::Unsupported { .. }
        | CommError::Lengths { .. }) => Failure::usage(error).next("castnet host COLLECTIVE --help"),
        error @ CommError::Refused { .. } => Failure::refused(error).next(
            "castnet group list and castnet topology show which groups use the memory; --window and --pmtu make the group smaller\n\
             --fallback allowed uses algorithms between hosts instead",
        ),
        CommError::JoinTimedOut { after, missing, .. } if !missing.is_empty() => Failure::unreachable(format!(
            "the group is not active after {}; missing: {}",
            span(after),
            names(&missing)
        ))
        .next("start the missing ranks, or wait longer: --wait 5m"),
        CommError::JoinTimedOut { after, reason, .. } if reason.contains("controller has not answered") => {
            Failure::unreachable(format!("the controller has not answered for {}", span(after))).next(NO_CONTROLLER)
        }
        CommError::JoinTimedOut { after, reason, .. } => {
            Failure::unreachable(format!("the group is not active after {}: {reason}", span(after)))
                .next(format!("{show}; castnet topology; or wait longer: --wait 5m"))
        }
        CommError::TimedOut {
            collective,
            after,
            what,
            missing,
        } => {
            let missing = match missing.is_empty() {
                true => String::new(),
                false => format!("; missing: {}", names(&missing)),
            };
            let name = collective.name();
            let after = span(after);
            Failure::failed(format!("{name} did not end within {after}: waited for {what}{missing}")).next(format!(
                "{show} lists the ranks that are late; or wait longer: --timeout 5m"
            ))
        }
        error @ (CommError::Conflict { .. } | CommError::Mismatch { .. }) => {
            Failure::failed(error).next("all ranks need the same command with the same flags")
        }
        error @ CommError::NotReproducible { .. } => Failure::refused(error)
            .next("create it with castnet job create --reproducible; or call without --reproducible"),
        error @ CommError::NoHierarchy { .. } => Failure::refused(error)
            .next("--path auto or --path direct at all ranks; ranks of a host need one user, one PID namespace and one --name"),
        CommError::RankFailed { rank, reason } => Failure::failed(format!("{rank} is gone: {reason}"))
            .next("find out why it ended, and start all ranks again; the group's memory is free"),
        error @ CommError::GroupFailed { .. } => {
            Failure::failed(error).next(format!("start all ranks again; {show} and castnet topology show the state of the fabric"))
        }
        error @ CommError::QueuePair { .. } => Failure::failed(error).next(
            "castnet drops and castnet counters at each switch show what was lost; \
             --qp-timeout and --retry-cnt let queue pairs try for longer",
        ),
        other => Failure::failed(other).next("start all ranks again"),
    }
}

fn refused(status: tonic::Status, show: &str) -> Failure {
    let code = status.code();
    let mut failure = Failure::from(status);
    failure.what = flags().sentence(&failure.what);
    match code {
        // Of this host, not of the job.
        tonic::Code::AlreadyExists if failure.what.contains("is the address of host") => failure.next(
            "give --name as the controller knows this host, or the address of this host: --ip; castnet topology lists both",
        ),
        tonic::Code::AlreadyExists if failure.what.ends_with("is a switch") => {
            failure.next("give --name another name: castnet topology lists those of switches")
        }
        tonic::Code::AlreadyExists => failure.next(format!("{show} lists its members; or use another --job")),
        tonic::Code::InvalidArgument => failure.next(format!(
            "give all ranks the same flags; {show} lists the settings of the group, castnet topology the hosts"
        )),
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => failure.next(NO_CONTROLLER),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thousand_missing_ranks_are_counted() {
        let rank = |rank| RankName {
            rank,
            host: String::new(),
        };
        let all: Vec<_> = (0..1000).map(rank).collect();
        assert!(names(&all).ends_with("rank 15 and 984 more"), "{}", names(&all));
        assert_eq!(names(&all[..2]), "rank 0, rank 1");
    }

    #[test]
    fn an_address_of_another_host_is_no_fault_of_the_job() {
        let message = "ip: 10.0.0.1 is the address of host \"h1\"".to_owned();
        let code = tonic::Code::AlreadyExists;
        let error = CommError::Controller(ControllerError::Status { code, message });
        let next = failure(error, "job").next.expect("a next step");
        assert!(next.contains("--name") && !next.contains("--job"), "{next}");
    }

    #[test]
    fn every_failure_says_what_to_do_next() {
        let rank = RankName {
            rank: 2,
            host: "h3".to_owned(),
        };
        let status = |code| {
            let message = "rank: rank 0 of group \"t\" is in already".to_owned();
            CommError::Controller(ControllerError::Status { code, message })
        };
        let joining = |reason: &str, missing| CommError::JoinTimedOut {
            after: Duration::from_nanos(3_002_008_893),
            reason: reason.to_owned(),
            missing,
        };
        let refused = CommError::Refused {
            switch: None,
            reason: "switch leaf1 needs 2 bytes for it, 1 are free".to_owned(),
        };
        let gone = CommError::RankFailed {
            rank: rank.clone(),
            reason: "its call to the controller ended".to_owned(),
        };
        let lost = CommError::GroupFailed {
            reason: "leaf1 has restarted".to_owned(),
        };
        for (error, code, what, next) in [
            (
                joining("waits", vec![rank]),
                4,
                "after 3.00 s; missing: rank 2 (h3)",
                "--wait",
            ),
            (
                joining("the controller has not answered", vec![]),
                4,
                "for 3.00 s",
                "castnet controller",
            ),
            (
                joining("switch leaf1 does not answer", vec![]),
                4,
                "leaf1",
                "castnet group show job",
            ),
            (refused, 3, "2 bytes", "--fallback allowed"),
            (gone, 1, "rank 2 (h3) is gone: its", "start all ranks again"),
            (lost, 1, "leaf1 has restarted", "castnet topology"),
            (
                status(tonic::Code::AlreadyExists),
                3,
                "is in already",
                "another --job",
            ),
            (
                status(tonic::Code::InvalidArgument),
                3,
                "is in already",
                "same flags",
            ),
            (
                status(tonic::Code::Unavailable),
                4,
                "is in already",
                "castnet controller",
            ),
            (CommError::Aborted, 1, "an earlier collective failed", "again"),
            (
                CommError::NotReproducible { group: "job".into() },
                3,
                "group \"job\" is not reproducible",
                "--reproducible",
            ),
            (
                CommError::NoSuchRank { rank: 9, size: 4 },
                2,
                "no rank 9",
                "--help",
            ),
        ] {
            let failure = failure(error, "job");
            assert_eq!(failure.code(), code, "{failure:?}");
            assert!(failure.what.contains(what), "{failure:?}");
            assert!(
                failure.next.as_deref().is_some_and(|n| n.contains(next)),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_refusal_names_the_flag_that_was_written() {
        for (field, flag) in [
            ("settings.window_packets", "--window"),
            ("settings.straggler_policy", "--straggler"),
            ("host", "--name"),
            ("rank", "--rank"),
            ("connection.qpn", "connection.qpn"),
        ] {
            let refused = refused(
                tonic::Status::invalid_argument(format!("{field}: is wrong")),
                "show",
            );
            assert_eq!(refused.what, format!("{flag}: is wrong"));
        }
    }
}
