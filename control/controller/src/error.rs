//! Why a request is refused, and why a controller does not start.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_proto::convert::{Invalid, refuse};
use castnet_proto::transport::TransportError;
use castnet_rules::Ipv4Net;
use castnet_wire::{McstId, Qpn};
use tonic::{Code, Status};

use crate::lifecycle::{Cause, Failure};
use crate::store::StoreError;

/// Why a request is refused. Displays the reason without the field; [`Refusal::field`] has that.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The message itself is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// No such group.
    #[error("there is no group {name:?}")]
    UnknownGroup {
        /// The name.
        name: String,
    },
    /// A group of that name exists.
    #[error("there is a group {name:?} already ({phase})")]
    DuplicateGroup {
        /// The name.
        name: String,
        /// What it is doing.
        phase: &'static str,
    },
    /// The host is no member of the group.
    #[error("host {host:?} is no member of group {group:?}; its members: {}", .members.join(", "))]
    NotAMember {
        /// The host.
        host: String,
        /// The group.
        group: String,
        /// Who is.
        members: Vec<String>,
    },
    /// No such host.
    #[error("there is no host {host:?}: neither the topology has it nor has it been registered")]
    UnknownHost {
        /// The field that names it.
        field: String,
        /// The name.
        host: String,
    },
    /// A host by the name of a switch.
    #[error("{name:?} is a switch")]
    NameOfSwitch {
        /// The field.
        field: String,
        /// The name.
        name: String,
    },
    /// The address is another one than the topology says.
    #[error("the topology says that host {host:?} has {known}, not {given}")]
    OtherAddress {
        /// The field.
        field: String,
        /// The host.
        host: String,
        /// What was given.
        given: String,
        /// What the topology says.
        known: String,
    },
    /// Two hosts with one address.
    #[error("{ip} is the address of host {host:?}")]
    AddressTaken {
        /// The field.
        field: String,
        /// The address.
        ip: Ipv4Addr,
        /// Who has it.
        host: String,
    },
    /// A queue pair in two groups.
    #[error("queue pair {qpn} of {ip} is in group {group:?} already: a queue pair is a member of one group")]
    QueuePairTaken {
        /// The field.
        field: String,
        /// Its host's address.
        ip: Ipv4Addr,
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: String,
    },
    /// The McstID is another group's.
    #[error("{mcst_id} is the McstID of group {group:?}")]
    McstIdTaken {
        /// The McstID.
        mcst_id: McstId,
        /// Who has it.
        group: String,
    },
    /// A McstID that nobody could use: each switch has its own.
    #[error(
        "{mcst_id} cannot be had: the group's tree passes routers, and each switch has a McstID of its own for it"
    )]
    McstIdNotOwn {
        /// The McstID.
        mcst_id: McstId,
    },
    /// The address of a host is a group's, or the other way round.
    #[error("{ip} is the McstID of group {group:?}, and the address of a host")]
    AddressIsMcstId {
        /// The field.
        field: String,
        /// The address.
        ip: Ipv4Addr,
        /// The group.
        group: String,
    },
    /// Every McstID is in use.
    #[error("the pool {pool} is used up: all {size} McstIDs are in use")]
    PoolExhausted {
        /// The pool.
        pool: Ipv4Net,
        /// How many McstIDs it has.
        size: usize,
    },
    /// The group is not in a state for it.
    #[error("group {group:?} {state}: {way_out}")]
    NotNow {
        /// The field that names the group or member.
        field: &'static str,
        /// The group.
        group: String,
        /// Its state.
        state: &'static str,
        /// What to do.
        way_out: &'static str,
    },
    /// Ranks of one job that count otherwise.
    #[error("job {job:?} has {size} ranks, not {given}")]
    OtherSize {
        /// The job.
        job: String,
        /// Ranks that it has.
        size: u16,
        /// What was given.
        given: u16,
    },
    /// A rank that wants the group to work otherwise.
    #[error("group {group:?} has {is}, not {given}: all ranks must ask for the same, or leave it open")]
    OtherSetting {
        /// The setting.
        field: &'static str,
        /// The group.
        group: String,
        /// What was given.
        given: String,
        /// What the group has.
        is: String,
    },
    /// A rank at another host than the group was created with.
    #[error("rank {rank} of group {group:?} is host {host:?}, not {given:?}")]
    OtherHost {
        /// The group.
        group: String,
        /// The rank.
        rank: u16,
        /// Its host.
        host: String,
        /// What was given.
        given: String,
    },
    /// A rank whose place is taken by a call that stands.
    #[error("rank {rank} of group {group:?} is in already, by a call from host {host:?} that stands")]
    RankTaken {
        /// The group.
        group: String,
        /// The rank.
        rank: u16,
        /// Its host.
        host: String,
    },
    /// A rank that the group does not have.
    #[error("group {group:?} has ranks 0 to {}, no rank {rank}", .size.saturating_sub(1))]
    UnknownRank {
        /// The group.
        group: String,
        /// The rank.
        rank: u32,
        /// Ranks that it has.
        size: usize,
    },
    /// An exchange that not all ranks came to.
    #[error("round {round} of job {job:?} is without rank {} after {waited:?}", ranks_text(.missing))]
    ExchangeTimeout {
        /// The job.
        job: String,
        /// Which exchange.
        round: u64,
        /// How long the caller waited.
        waited: std::time::Duration,
        /// Who is missing.
        missing: Vec<u16>,
    },
    /// Too much waits to be exchanged.
    #[error("{bytes} bytes wait to be exchanged already; try again when other jobs are done")]
    ExchangesFull {
        /// The limit.
        bytes: usize,
    },
    /// The group does not go with the fabric or its switches.
    #[error("{}", .0.reason)]
    Failed(Failure),
    /// The store: nothing was changed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// The controller is being stopped.
    #[error("the controller is stopping")]
    Stopping,
}

impl Refusal {
    /// The field of the request that is at fault; empty where it is none.
    pub fn field(&self) -> &str {
        match self {
            Self::Invalid(_) | Self::Store(_) | Self::Stopping => "",
            Self::UnknownGroup { .. } => "group",
            Self::DuplicateGroup { .. } => "name",
            Self::NotAMember { .. } => "host",
            Self::McstIdTaken { .. } | Self::McstIdNotOwn { .. } | Self::PoolExhausted { .. } => "mcst_id",
            Self::NotNow { field, .. } => field,
            Self::OtherSize { .. } => "size",
            Self::OtherSetting { field, .. } => field,
            Self::OtherHost { .. } => "host",
            Self::RankTaken { .. } | Self::UnknownRank { .. } => "rank",
            Self::ExchangeTimeout { .. } => "round",
            Self::ExchangesFull { .. } => "blob",
            Self::Failed(failure) => &failure.field,
            Self::UnknownHost { field, .. }
            | Self::NameOfSwitch { field, .. }
            | Self::OtherAddress { field, .. }
            | Self::AddressTaken { field, .. }
            | Self::AddressIsMcstId { field, .. }
            | Self::QueuePairTaken { field, .. } => field,
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) | Self::OtherAddress { .. } | Self::AddressIsMcstId { .. } => {
                Code::InvalidArgument
            }
            Self::McstIdNotOwn { .. } => Code::InvalidArgument,
            Self::OtherSize { .. } | Self::OtherSetting { .. } | Self::OtherHost { .. } => {
                Code::InvalidArgument
            }
            Self::UnknownGroup { .. }
            | Self::NotAMember { .. }
            | Self::UnknownHost { .. }
            | Self::UnknownRank { .. } => Code::NotFound,
            Self::ExchangeTimeout { .. } => Code::DeadlineExceeded,
            Self::ExchangesFull { .. } => Code::ResourceExhausted,
            Self::RankTaken { .. } => Code::AlreadyExists,
            Self::DuplicateGroup { .. }
            | Self::NameOfSwitch { .. }
            | Self::AddressTaken { .. }
            | Self::QueuePairTaken { .. }
            | Self::McstIdTaken { .. } => Code::AlreadyExists,
            Self::PoolExhausted { .. } => Code::ResourceExhausted,
            Self::NotNow { .. } => Code::FailedPrecondition,
            Self::Failed(failure) => match failure.cause {
                Cause::Unfit => Code::InvalidArgument,
                Cause::NoRoom => Code::ResourceExhausted,
                Cause::Refused => Code::FailedPrecondition,
                Cause::Unseen | Cause::Unreachable => Code::Unavailable,
            },
            Self::Store(_) => Code::Internal,
            Self::Stopping => Code::Unavailable,
        }
    }
}

/// `0, 2, 3`, not more than a line.
fn ranks_text(ranks: &[u16]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown: Vec<String> = ranks.iter().take(SHOWN_MAX).map(u16::to_string).collect();
    match ranks.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(invalid) => invalid.into(),
            other => refuse(other.code(), other.field(), other.to_string()),
        }
    }
}

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error("{field}: {reason}")]
    Config {
        /// The field.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address to serve at.
    #[error(transparent)]
    Transport(#[from] TransportError),
}
