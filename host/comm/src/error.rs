//! Why a communicator did not do what was asked.

use std::fmt;
use std::time::Duration;

use castnet_proto::transport::TransportError;
use castnet_rnic::{RnicError, Status, status_text};
use castnet_wire::control::{Call, DataType, Operation};

use crate::machine::{Collective, InLane, Said};

/// A rank and its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankName {
    /// Its number.
    pub rank: u16,
    /// Its host's name; empty where it is not known.
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

/// Names in a row.
fn names(ranks: &[RankName]) -> String {
    let names: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// ", for rank 3 (h4)" where ranks are known.
fn behind(ranks: &[RankName]) -> String {
    if ranks.is_empty() {
        String::new()
    } else {
        format!("; missing: {}", names(ranks))
    }
}

/// Why the controller did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// It could not be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// It said no.
    #[error("the controller refuses: {message} ({code:?})")]
    Status {
        /// gRPC's code.
        code: tonic::Code,
        /// Its words.
        message: String,
    },
    /// Its answer makes no sense.
    #[error("the controller's answer makes no sense: {what}")]
    Odd {
        /// What.
        what: String,
    },
    /// The thread that talks with it has ended.
    #[error("the thread that talks with the controller has ended")]
    Ended,
}

impl From<tonic::Status> for ControllerError {
    fn from(status: tonic::Status) -> Self {
        Self::Status {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// Why a communicator did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A value of the configuration is out of its bounds.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it was.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// The slices do not fit the collective.
    #[error("{}: {input} elements in and {output} out, expected {expected}", collective.name())]
    Lengths {
        /// Which.
        collective: Collective,
        /// Elements of the input.
        input: usize,
        /// Elements of the output.
        output: usize,
        /// What was expected, in words.
        expected: &'static str,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank {
        /// Who was named.
        rank: u16,
        /// How many there are.
        size: u16,
    },
    /// The operation is not for that type.
    #[error("{operation} is not for {data_type}")]
    Unsupported {
        /// The operation.
        operation: Operation,
        /// The type.
        data_type: DataType,
    },
    /// The RNIC refused.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// The controller did not do what was asked.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// The group cannot be had in the network, and nothing else is allowed.
    #[error("the group cannot be had in the network: {reason}")]
    Refused {
        /// The switch that lacks something, where it is one.
        switch: Option<String>,
        /// What the controller says.
        reason: String,
    },
    /// Not all ranks came in time.
    #[error("the group is not there after {after:?}: {reason}{}", behind(missing))]
    JoinTimedOut {
        /// How long was waited.
        after: Duration,
        /// What the controller says.
        reason: String,
        /// Ranks that have not joined.
        missing: Vec<RankName>,
    },
    /// A rank is gone, and the group with it.
    #[error("{rank} is gone, and the group with it: {reason}")]
    RankFailed {
        /// Who.
        rank: RankName,
        /// What the controller says.
        reason: String,
    },
    /// The group is no more.
    #[error("the group has failed: {reason}")]
    GroupFailed {
        /// What the controller says.
        reason: String,
    },
    /// Ranks made different calls.
    #[error(
        "ranks disagree on collective {sequence}: {} said {}, {} said {}",
        first.0, Said(&first.1), second.0, Said(&second.1)
    )]
    Conflict {
        /// Number of the collective in its group.
        sequence: u32,
        /// A rank and its call.
        first: Box<(RankName, Call)>,
        /// Another rank and its call.
        second: Box<(RankName, Call)>,
    },
    /// Reproducible sums were asked for, and the group does not give them.
    #[error(
        "group {group:?} is not reproducible: its sums depend on the order of arrival; create it as reproducible, and let all ranks join it so"
    )]
    NotReproducible {
        /// Its name, the job's.
        group: String,
    },
    /// Between hosts: a rank made another call.
    #[error("{rank} made another call than this rank in collective {task}")]
    Mismatch {
        /// Who.
        rank: RankName,
        /// Number of the collective.
        task: u64,
    },
    /// A collective before this one failed. The group is joined again at the next call.
    #[error("a collective before this one failed: the group must be joined again, which the next call does")]
    Aborted,
    /// A queue pair is dead.
    #[error(
        "the queue pair towards {} is dead{}: {}",
        .peer.as_ref().map_or("the group".to_owned(), ToString::to_string),
        InLane(*.lane), status_text(*.status)
    )]
    QueuePair {
        /// The rank at its other end; `None`: the group.
        peer: Option<RankName>,
        /// The lane that it is of, where the group has several.
        lane: Option<u8>,
        /// What its work request said.
        status: Status,
    },
    /// A message came that cannot be.
    #[error("{}", .failure)]
    Protocol {
        /// What it was.
        failure: crate::machine::Failure,
    },
    /// [`crate::CommConfig::interrupt`] was set.
    #[error("interrupted")]
    Interrupted,
    /// The collective did not end in time. The group is joined again at the next call.
    #[error("{} did not end within {after:?}: waited for {what}{}", collective.name(), behind(missing))]
    TimedOut {
        /// Which.
        collective: Collective,
        /// How long was waited.
        after: Duration,
        /// For what.
        what: String,
        /// The ranks that it is known to have waited for.
        missing: Vec<RankName>,
    },
}
