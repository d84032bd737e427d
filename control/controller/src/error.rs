use std::fmt::Display;
use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_proto::access::{Caller, Denied, Role};
use castnet_proto::convert::{Invalid, refuse};
use castnet_proto::term::joined_elsewhere;
use castnet_proto::transport::TransportError;
use castnet_rules::HostEndpoint;
use castnet_wire::{MacAddr, McstId};
use tonic::{Code, Status};

use crate::check::ConfigFaults;
use crate::state::lifecycle::{Cause, Failure};
use crate::store::StoreError;

/// Why a request is refused. Displays the reason without the field.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// What nobody asks for: its code, the field of the request at fault, which may be empty, and the words.
    #[error("{reason}")]
    Because {
        code: Code,
        field: String,
        reason: String,
    },
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("there is no group {name:?}")]
    UnknownGroup { name: String },
    #[error("group {name:?} is {is}")]
    OtherKind { name: String, is: &'static str },
    #[error("the group was joined at the controller at {address}: {reason}")]
    JoinedElsewhere { address: String, reason: String },
    /// `host` is empty where who asks may not know which one.
    #[error("{ip} is the address of {}", host_text(.host))]
    AddressTaken {
        field: String,
        ip: Ipv4Addr,
        host: String,
    },
    /// As for [`Self::AddressTaken`].
    #[error("{mac} is the Ethernet address of {}", host_text(.host))]
    MacTaken { mac: MacAddr, host: String },
    #[error(
        "{mcst_id} cannot be had: the group's tree passes routers, and each switch has a McstID of its own for it"
    )]
    McstIdNotOwn { mcst_id: McstId },
    #[error("host {host:?} has changed its addresses too often: it may again in a second")]
    TooManyMoves { host: String },
    #[error(
        "host {host:?} has connections from {most} other addresses in its groups: it leaves some of them, or an operator evicts it there"
    )]
    TooManyAddresses { host: String, most: usize },
    #[error("host {host:?} has joined running groups too often: it may again in a second")]
    TooManyJoins { host: String },
    #[error("job {job:?} has {size} ranks, not {given}")]
    OtherSize { job: String, size: u16, given: u16 },
    #[error(
        "this is not the secret of job {job:?}, which its first rank has set: rank {rank} may not take part"
    )]
    OtherSecret { job: String, rank: u16 },
    #[error("{bytes} bytes wait to be exchanged already; try again when other jobs are done")]
    ExchangesFull { bytes: usize },
    /// The group does not fit the fabric or its switches.
    #[error("{}", .0.reason)]
    Failed(Failure),
    /// The store failed: nothing was changed.
    #[error("not stored, so nothing was changed: {0}")]
    Store(#[from] Arc<StoreError>),
    #[error("rank {rank} of job {job:?} has called again: its last call gets the answer")]
    CalledAgain { job: String, rank: u16 },
    #[error("{waiting} changes wait for the store, which is slow: try again")]
    StoreBehind { waiting: usize },
    #[error("the controller is stopping")]
    Stopping,
}

impl Refusal {
    pub(crate) fn of(code: Code, field: impl Display, reason: String) -> Self {
        let field = field.to_string();
        Self::Because { code, field, reason }
    }

    /// There is nothing that the field names.
    pub(crate) fn missing(field: impl Display, reason: String) -> Self {
        Self::of(Code::NotFound, field, reason)
    }

    pub(crate) fn not_a_member<'m>(host: &str, group: &str, members: impl Iterator<Item = &'m str>) -> Self {
        // A place of a job that is free has no name.
        let members: Vec<&str> = members.filter(|name| !name.is_empty()).collect();
        let members = match members.is_empty() {
            true => "none".to_owned(),
            false => list_text(&members),
        };
        let reason = format!("host {host:?} is no member of group {group:?}; its members: {members}");
        Self::missing("host", reason)
    }

    /// The field contradicts what is known.
    pub(crate) fn wrong(field: impl Display, reason: String) -> Self {
        Self::of(Code::InvalidArgument, field, reason)
    }

    /// Something else has what the field names.
    pub(crate) fn taken(field: impl Display, reason: String) -> Self {
        Self::of(Code::AlreadyExists, field, reason)
    }

    pub(crate) fn queue_pair_taken(field: impl Display, end: &HostEndpoint, group: &str) -> Self {
        let HostEndpoint { ip, qpn, .. } = end;
        let reason = format!(
            "queue pair {qpn} of {ip} is in group {group:?} already: a queue pair is a member of one group"
        );
        Self::taken(field, reason)
    }

    pub(crate) fn address_taken(field: impl Display, ip: Ipv4Addr, host: &str) -> Self {
        let (field, host) = (field.to_string(), host.into());
        Self::AddressTaken { field, ip, host }
    }

    /// What the field names is not in a state for it.
    pub(crate) fn not_now(field: impl Display, reason: String) -> Self {
        Self::of(Code::FailedPrecondition, field, reason)
    }

    /// A limit is reached.
    pub(crate) fn no_room(field: impl Display, reason: String) -> Self {
        Self::of(Code::ResourceExhausted, field, reason)
    }

    /// It may be tried again soon.
    pub(crate) fn later(field: impl Display, reason: String) -> Self {
        Self::of(Code::Unavailable, field, reason)
    }

    /// As this caller may see it: a host does not learn who else has an address.
    pub(crate) fn told_to(self, caller: &Caller) -> Self {
        let host = String::new();
        match self {
            Self::AddressTaken { field, ip, .. } if caller.role == Role::Host => {
                Self::AddressTaken { field, ip, host }
            }
            Self::MacTaken { mac, .. } if caller.role == Role::Host => Self::MacTaken { mac, host },
            other => other,
        }
    }

    /// The status code, and the field of the request at fault; may be empty.
    fn code_and_field(&self) -> (Code, &str) {
        match self {
            Self::Because { code, field, .. } => (*code, field),
            Self::Invalid(_) => (Code::InvalidArgument, ""),
            Self::Denied(_) => (Code::PermissionDenied, ""),
            Self::UnknownGroup { .. } | Self::OtherKind { .. } => (Code::NotFound, "group"),
            Self::AddressTaken { field, .. } => (Code::AlreadyExists, field),
            Self::MacTaken { .. } => (Code::AlreadyExists, "mac"),
            Self::McstIdNotOwn { .. } => (Code::InvalidArgument, "mcst_id"),
            Self::TooManyMoves { .. } | Self::TooManyJoins { .. } => (Code::Unavailable, "host"),
            Self::TooManyAddresses { .. } => (Code::ResourceExhausted, "ip"),
            Self::OtherSize { .. } => (Code::InvalidArgument, "size"),
            Self::OtherSecret { .. } => (Code::PermissionDenied, "secret"),
            Self::ExchangesFull { .. } => (Code::ResourceExhausted, "blob"),
            Self::Failed(Failure { cause, field, .. }) => match cause {
                Cause::Unfit => (Code::InvalidArgument, field),
                Cause::NoRoom => (Code::ResourceExhausted, field),
                Cause::Down | Cause::Refused => (Code::FailedPrecondition, field),
                Cause::Unseen | Cause::Unreachable => (Code::Unavailable, field),
            },
            // The one that leads may be asked.
            Self::Store(error) => match **error {
                StoreError::NotLeading { .. } | StoreError::Closed { .. } => (Code::Unavailable, ""),
                _ => (Code::Internal, ""),
            },
            Self::CalledAgain { .. } => (Code::Aborted, "rank"),
            Self::JoinedElsewhere { .. } | Self::StoreBehind { .. } | Self::Stopping => {
                (Code::Unavailable, "")
            }
        }
    }
}

/// `host "h1"`; of an empty name `another host`.
fn host_text(host: &str) -> String {
    match host {
        "" => "another host".into(),
        host => format!("host {host:?}"),
    }
}

/// `0, 2, 3`, at most a line.
pub(crate) fn list_text(names: &[impl ToString]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown: Vec<String> = names.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    match names.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(invalid) => invalid.into(),
            elsewhere @ Refusal::JoinedElsewhere { .. } => joined_elsewhere(elsewhere.to_string()),
            other => {
                let (code, field) = other.code_and_field();
                refuse(code, field, other.to_string())
            }
        }
    }
}

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigFaults),
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit log does not open.
    #[error("audit_log: {}: {error}", path.display())]
    AuditLog {
        path: std::path::PathBuf,
        error: std::io::Error,
    },
    /// The address cannot be served.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// What a running controller keeps is to change.
    #[error("{0} is another one than at the start: that takes a restart")]
    Kept(&'static str),
    /// A switch of the running controller is not in the configuration, and has groups.
    #[error(
        "switches: {switch:?} is missing, and has group {group:?}: keep it until its groups are gone; to give up a switch that is gone for \
         good, restart the controller"
    )]
    SwitchInUse { switch: String, group: String },
    /// The store has running groups, and none of them has a configured switch.
    #[error(
        "{store} belongs to another fabric: none of the switches of group {group:?} ({}) is configured here, nor of any other running \
         group; give each fabric a store or an etcd prefix of its own, or name these switches",
        list_text(.switches)
    )]
    OtherFabric {
        store: String,
        group: String,
        switches: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_up_to_a_line_and_free_places_are_not() {
        let text = |members: &[&str]| Refusal::not_a_member("x", "g", members.iter().copied()).to_string();
        assert!(text(&["a", "", "b"]).ends_with("its members: a, b"));
        assert!(text(&["", ""]).ends_with(": none"));
        assert!(text(&["h"; 1000]).ends_with(", h and 984 more"));
    }
}
