use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::access::{Caller, Denied, Role};
use castnet_proto::convert::{Invalid, refuse};
use castnet_proto::term::joined_elsewhere;
use castnet_proto::transport::TransportError;
use castnet_rules::{BitRate, Ipv4Net};
use castnet_wire::{MacAddr, McstId, Qpn};
use tonic::{Code, Status};

use crate::check::ConfigFaults;
use crate::state::lifecycle::{Cause, Failure};
use crate::state::tenants::RANKS_PER_GROUP;
use crate::store::StoreError;

/// Why a request is refused. Displays the reason without the field.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("there is no group {name:?}")]
    UnknownGroup { name: String },
    #[error("group {name:?} is {is}")]
    OtherKind { name: String, is: &'static str },
    /// It may exist.
    #[error("group {name:?} is not known yet: {reason}")]
    NotKnown { name: String, reason: String },
    #[error("the group was joined at the controller at {address}: {reason}")]
    JoinedElsewhere { address: String, reason: String },
    #[error("no group is created: {reason}")]
    WrongStore { reason: String },
    #[error("there is a group {name:?} already ({phase})")]
    DuplicateGroup { name: String, phase: &'static str },
    #[error("host {host:?} is no member of group {group:?}; its members: {}", .members.join(", "))]
    NotAMember {
        host: String,
        group: String,
        members: Vec<String>,
    },
    #[error("there is no host {host:?}: neither the topology has it nor has it been registered")]
    UnknownHost { field: String, host: String },
    #[error("there is no switch {switch:?}: neither the topology has it nor has it reported")]
    UnknownSwitch { field: String, switch: String },
    #[error("{name:?} is a switch")]
    NameOfSwitch { field: String, name: String },
    #[error("the topology says that host {host:?} has {known}, not {given}")]
    OtherAddress {
        field: String,
        host: String,
        given: String,
        known: String,
    },
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
    #[error("there is no host {host:?}")]
    NoHost { host: String },
    #[error("host {host:?} is in the topology file, which is where to take it out")]
    HostOfFile { host: String },
    #[error("host {host:?} is a member of groups: {}", list_text(.groups))]
    HostInGroups { host: String, groups: Vec<String> },
    #[error("queue pair {qpn} of {ip} is in group {group:?} already: a queue pair is a member of one group")]
    QueuePairTaken {
        field: String,
        ip: Ipv4Addr,
        qpn: Qpn,
        group: String,
    },
    #[error("{mcst_id} is the McstID of group {group:?}")]
    McstIdTaken { mcst_id: McstId, group: String },
    #[error(
        "{mcst_id} was the McstID of group {group:?}, which was destroyed by force: switch {} may still have it",
        .switches.join(", ")
    )]
    McstIdWrittenOff {
        mcst_id: McstId,
        group: String,
        switches: Vec<String>,
    },
    #[error(
        "{mcst_id} is the McstID of a group on switch {switch} that this controller does not have (of a rule file, an operator or another \
         controller): give another one, or none"
    )]
    McstIdOfOthers { mcst_id: McstId, switch: String },
    #[error(
        "{mcst_id} cannot be had: the group's tree passes routers, and each switch has a McstID of its own for it"
    )]
    McstIdNotOwn { mcst_id: McstId },
    #[error("{most} plans of this caller are not made yet: wait for them")]
    TooManyPlans { most: usize },
    #[error("host {host:?} has changed its addresses too often: it may again in a second")]
    TooManyMoves { host: String },
    #[error(
        "host {host:?} has connections from {most} other addresses in its groups: it leaves some of them, or an operator evicts it there"
    )]
    TooManyAddresses { host: String, most: usize },
    #[error("host {host:?} has joined running groups too often: it may again in a second")]
    TooManyJoins { host: String },
    /// Not of which group: a host may not know it.
    #[error("{ip} is the McstID of a group, so no host can have it")]
    AddressIsMcstId { field: String, ip: Ipv4Addr },
    /// `quota`: with its unit.
    #[error(
        "tenant {tenant:?} may have {quota}, has {used}, and this group needs {more} (each lane of a group counts, once for each \
         {RANKS_PER_GROUP} ranks)"
    )]
    Quota {
        tenant: String,
        quota: String,
        used: String,
        more: String,
    },
    #[error(
        "host {host:?} may have created {quota} groups, has {used}, and this one needs {more} (each lane of a group counts, once \
         for each {RANKS_PER_GROUP} ranks): an operator gives it a tenant, or more host_groups"
    )]
    HostQuota {
        host: String,
        quota: u64,
        used: u64,
        more: u64,
    },
    #[error(
        "host {host:?} may have {share} McstIDs of the pool {pool}, has {used}, and this group needs {more}: an operator gives the \
         host a tenant, or makes mcst_pool larger"
    )]
    HostPool {
        host: String,
        pool: Ipv4Net,
        share: u64,
        used: u64,
        more: u64,
    },
    #[error("host {host:?} is not known; the certificate of the caller has the name {name:?}: use this one")]
    OtherSpelling { host: String, name: String },
    #[error(
        "tenant {tenant:?} may have {quota}b/s of bandwidth for all its groups, so each of them needs a rate limit: give it one \
         (--rate), or name one for all in the controller's configuration (group_bandwidth)"
    )]
    NoRateLimit { tenant: String, quota: BitRate },
    #[error(
        "tenant {tenant:?} has a quota of bandwidth, in which a group with a rate limit of {rate}b/s may have a burst of {most} bytes at \
         most, not {burst_bytes}"
    )]
    BurstTooLarge {
        tenant: String,
        rate: BitRate,
        burst_bytes: u64,
        most: u64,
    },
    /// `size`: number of McstIDs of the pool.
    #[error("the pool {pool} is used up: all {size} McstIDs are in use")]
    PoolExhausted { pool: Ipv4Net, size: usize },
    #[error(
        "host {host:?} is the {what} of group {group:?}, which does not go on without it: destroy the group"
    )]
    Needed {
        host: String,
        group: String,
        what: &'static str,
    },
    #[error("host {host:?} cannot join group {group:?} while it runs: {reason}")]
    NotTakenIn {
        host: String,
        group: String,
        reason: String,
    },
    #[error("host {host:?} has several ranks of group {group:?}: {}; say which rank", list_text(.ranks))]
    SeveralRanks {
        host: String,
        group: String,
        ranks: Vec<u16>,
    },
    /// The group is not in a state for it; `way_out` is what to do.
    #[error("group {group:?} {state}: {way_out}")]
    NotNow {
        field: &'static str,
        group: String,
        state: &'static str,
        way_out: &'static str,
    },
    #[error("job {job:?} has {size} ranks, not {given}")]
    OtherSize { job: String, size: u16, given: u16 },
    #[error("group {group:?} has {is}, not {given}: all ranks must ask for the same, or leave it open")]
    OtherSetting {
        field: &'static str,
        group: String,
        given: String,
        is: String,
    },
    #[error("rank {rank} of group {group:?} is host {host:?}, not {given:?}")]
    OtherHost {
        group: String,
        rank: u16,
        host: String,
        given: String,
    },
    #[error("rank {rank} of group {group:?} is in already, by an open call from host {host:?}")]
    RankTaken { group: String, rank: u16, host: String },
    #[error(
        "this is not the secret of job {job:?}, which its first rank has set: rank {rank} may not take part"
    )]
    OtherSecret { job: String, rank: u16 },
    #[error("group {group:?} has ranks 0 to {}, no rank {rank}", .size.saturating_sub(1))]
    UnknownRank { group: String, rank: u32, size: usize },
    #[error("round {round} of job {job:?} is without rank {} after {waited:?}", list_text(.missing))]
    ExchangeTimeout {
        job: String,
        round: u64,
        waited: Duration,
        missing: Vec<u16>,
    },
    /// It may have been chosen, and the member that calls does not know yet.
    #[error("no receiver outside of the tree of group {group:?} has the number {number} now")]
    NobodyOutside { group: String, number: u64 },
    #[error("{bytes} bytes wait to be exchanged already; try again when other jobs are done")]
    ExchangesFull { bytes: usize },
    /// The group does not fit the fabric or its switches.
    #[error("{}", .0.reason)]
    Failed(Failure),
    /// The store failed: nothing was changed.
    #[error("not stored, so nothing was changed: {0}")]
    Store(#[from] Arc<StoreError>),
    /// Its ranks have changed, or the controller stops.
    #[error("the round of job {job:?} has ended before all its ranks had called: call again")]
    RoundEnded { job: String },
    #[error("rank {rank} of job {job:?} has called again: its last call gets the answer")]
    CalledAgain { job: String, rank: u16 },
    #[error(
        "group {group:?} could take {bytes} bytes in the store, and etcd takes {most} in an entry: fewer members or lanes, or a store on a file"
    )]
    TooLarge {
        group: String,
        bytes: usize,
        most: usize,
    },
    #[error("{waiting} changes wait for the store, which is slow: try again")]
    StoreBehind { waiting: usize },
    #[error("the controller is stopping")]
    Stopping,
}

impl Refusal {
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
            Self::Invalid(_) => (Code::InvalidArgument, ""),
            Self::Denied(_) => (Code::PermissionDenied, ""),
            Self::UnknownGroup { .. } | Self::OtherKind { .. } => (Code::NotFound, "group"),
            Self::NotKnown { .. } => (Code::Unavailable, "group"),
            Self::JoinedElsewhere { .. } => (Code::Unavailable, ""),
            Self::WrongStore { .. } => (Code::FailedPrecondition, "name"),
            Self::DuplicateGroup { .. } => (Code::AlreadyExists, "name"),
            Self::NotAMember { .. } => (Code::NotFound, "host"),
            Self::UnknownHost { field, .. } | Self::UnknownSwitch { field, .. } => (Code::NotFound, field),
            Self::NoHost { .. } => (Code::NotFound, "name"),
            Self::HostOfFile { .. } | Self::HostInGroups { .. } => (Code::FailedPrecondition, "name"),
            Self::OtherAddress { field, .. } | Self::AddressIsMcstId { field, .. } => {
                (Code::InvalidArgument, field)
            }
            Self::NameOfSwitch { field, .. }
            | Self::AddressTaken { field, .. }
            | Self::QueuePairTaken { field, .. } => (Code::AlreadyExists, field),
            Self::MacTaken { .. } => (Code::AlreadyExists, "mac"),
            Self::McstIdTaken { .. } | Self::McstIdWrittenOff { .. } | Self::McstIdOfOthers { .. } => {
                (Code::AlreadyExists, "mcst_id")
            }
            Self::McstIdNotOwn { .. } => (Code::InvalidArgument, "mcst_id"),
            Self::TooManyPlans { .. } => (Code::ResourceExhausted, "group"),
            Self::TooManyMoves { .. } | Self::TooManyJoins { .. } => (Code::Unavailable, "host"),
            Self::TooManyAddresses { .. } => (Code::ResourceExhausted, "ip"),
            Self::PoolExhausted { .. } => (Code::ResourceExhausted, "mcst_id"),
            Self::Quota { .. } => (Code::ResourceExhausted, "tenant"),
            Self::HostQuota { .. } => (Code::ResourceExhausted, "host_groups"),
            Self::HostPool { .. } => (Code::ResourceExhausted, "mcst_pool"),
            Self::OtherSpelling { .. } => (Code::InvalidArgument, "host"),
            Self::NoRateLimit { .. } => (Code::InvalidArgument, "rate_limit"),
            Self::BurstTooLarge { .. } => (Code::InvalidArgument, "rate_limit.burst_bytes"),
            Self::NotTakenIn { .. } => (Code::FailedPrecondition, "group"),
            Self::NotNow { field, .. } => (Code::FailedPrecondition, field),
            Self::Needed { .. } => (Code::FailedPrecondition, "member"),
            Self::SeveralRanks { .. } => (Code::InvalidArgument, "member"),
            Self::OtherSize { .. } => (Code::InvalidArgument, "size"),
            Self::OtherSetting { field, .. } => (Code::InvalidArgument, field),
            Self::OtherHost { .. } => (Code::InvalidArgument, "host"),
            Self::RankTaken { .. } => (Code::AlreadyExists, "rank"),
            Self::OtherSecret { .. } => (Code::PermissionDenied, "secret"),
            Self::UnknownRank { .. } => (Code::NotFound, "rank"),
            Self::ExchangeTimeout { .. } => (Code::DeadlineExceeded, "round"),
            Self::NobodyOutside { .. } => (Code::Unavailable, "round"),
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
            Self::RoundEnded { .. } => (Code::Unavailable, "round"),
            Self::CalledAgain { .. } => (Code::Aborted, "rank"),
            Self::TooLarge { .. } => (Code::ResourceExhausted, "size"),
            Self::StoreBehind { .. } | Self::Stopping => (Code::Unavailable, ""),
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
fn list_text(names: &[impl ToString]) -> String {
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
