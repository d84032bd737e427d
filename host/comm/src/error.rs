use std::fmt;
use std::time::Duration;

use castnet_proto::transport::TransportError;
use castnet_rnic::{OutOfRange, RnicError, Status, status_text};
use castnet_wire::control::{Call, DataType, Operation};

use crate::machine::{CallText, Collective, InLane};

/// A rank and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankName {
    /// Number of the rank.
    pub rank: u16,
    /// Name of its host; empty where not known.
    pub host: String,
}

impl fmt::Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.is_empty() {
            write!(f, "rank {}", self.rank)
        } else {
            write!(f, "rank {} ({})", self.rank, self.host)
        }
    }
}

fn join_names(ranks: &[RankName]) -> String {
    let names: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// "; missing: rank 3 (h4)"; empty where no rank is known.
fn missing_suffix(ranks: &[RankName]) -> String {
    if ranks.is_empty() {
        String::new()
    } else {
        format!("; missing: {}", join_names(ranks))
    }
}

/// Errors of requests to the controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ControllerError {
    /// The controller could not be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The controller refused.
    #[error("the controller refuses: {message} ({code:?})")]
    Status { code: tonic::Code, message: String },
    /// The controller's answer is invalid.
    #[error("invalid answer of the controller: {what}")]
    Invalid { what: String },
    /// The thread that calls the controller could not be started.
    #[error("cannot start the thread that calls the controller: {0}")]
    Thread(std::io::Error),
}

impl From<tonic::Status> for ControllerError {
    fn from(status: tonic::Status) -> Self {
        Self::Status {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// Errors of a communicator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum CommError {
    /// A value of the configuration is out of its bounds.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The lengths of the slices do not fit the collective.
    #[error("{}: {input} elements in and {output} out, expected {expected}", collective.name())]
    Lengths {
        /// The collective.
        collective: Collective,
        input: usize,
        output: usize,
        expected: &'static str,
    },
    /// The rank does not exist.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank { rank: u16, size: u16 },
    /// The operation does not support the type.
    #[error("{operation} does not support {data_type}")]
    Unsupported {
        operation: Operation,
        data_type: DataType,
    },
    /// The RNIC returned an error.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// The controller returned an error.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// The network cannot provide the group, and host-based algorithms are forbidden.
    #[error("the network cannot provide the group: {reason}")]
    Refused {
        /// The switch that refused, if it was a switch.
        switch: Option<String>,
        reason: String,
    },
    /// Not all ranks joined in time.
    #[error(
        "the group is not active after {after:?}: {reason}{}",
        missing_suffix(missing)
    )]
    JoinTimedOut {
        after: Duration,
        reason: String,
        /// Ranks that have not joined.
        missing: Vec<RankName>,
    },
    /// A rank is gone and the group has failed.
    #[error("{rank} is gone and the group has failed: {reason}")]
    RankFailed { rank: RankName, reason: String },
    /// The group has failed.
    #[error("the group has failed: {reason}")]
    GroupFailed { reason: String },
    /// Ranks made different calls.
    #[error(
        "ranks disagree on collective {sequence}: {} called {}, {} called {}",
        first.0, CallText(&first.1), second.0, CallText(&second.1)
    )]
    Conflict {
        sequence: u32,
        /// A rank and its call.
        first: Box<(RankName, Call)>,
        /// Another rank and its call.
        second: Box<(RankName, Call)>,
    },
    /// Reproducible sums are required, and the group does not provide them.
    #[error(
        "group {group:?} is not reproducible: its sums depend on the order of arrival; create it as reproducible, and let all ranks join it so"
    )]
    NotReproducible { group: String },
    /// The ranks of a host cannot share memory, or the result cannot be had over it, and no other path is allowed.
    #[error("the hierarchical path cannot be used: {reason}")]
    NoHierarchy { reason: String },
    /// Between hosts, or over the memory of a host: a rank made another call.
    #[error("{rank} made another call than this rank in collective {task}")]
    Mismatch { rank: RankName, task: u64 },
    /// In a split, a rank called AllGather with as many bytes.
    #[error("{rank} called AllGather, and not split as this rank")]
    NotASplit { rank: RankName },
    /// A split would give a rank more groups than it may have.
    #[error(
        "{rank} has {max} groups of job {job:?} in use, which is its limit (groups_max): drop communicators, or raise it"
    )]
    TooManyGroups { rank: RankName, job: String, max: u16 },
    /// An earlier collective failed. The next call joins the group again.
    #[error("an earlier collective failed: the next call joins the group again")]
    Aborted,
    /// A queue pair has failed.
    #[error(
        "the queue pair towards {} has failed{}: {}",
        .peer.as_ref().map_or("the group".to_owned(), ToString::to_string),
        InLane(*.lane), status_text(*.status)
    )]
    QueuePair {
        /// The rank at the remote end; `None`: the group.
        peer: Option<RankName>,
        lane: Option<u8>,
        status: Status,
    },
    /// An invalid message was received.
    #[error("{}", .failure)]
    Protocol { failure: crate::machine::Failure },
    /// [`crate::CommConfig::interrupt`] was set, or the runner of this communicator has stopped.
    #[error("interrupted")]
    Interrupted,
    /// Another thread has closed the communicator.
    #[error("the communicator is closed")]
    Closed,
    /// The collective did not end in time. The next call joins the group again.
    #[error("{} did not end within {after:?}: waited for {what}{}", collective.name(), missing_suffix(missing))]
    TimedOut {
        /// The collective.
        collective: Collective,
        after: Duration,
        what: String,
        /// The ranks that it is known to have waited for.
        missing: Vec<RankName>,
    },
}
