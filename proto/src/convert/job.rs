//! What the ranks of a job, and operators on their behalf, ask of the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_rules::{Fault, FaultKind, HostEndpoint, HostPart, LossPolicy, RANKS_MAX, StragglerPolicy};
use castnet_wire::{McstId, Pmtu, Psn};

use super::request::{laned_name, lanes, name, unicast_mcst_id};
use super::rule::{loss, straggler};
use super::{Invalid, connection_from_proto, finish, pmtu, psn, take};
use crate::v1;

/// Packets that a rank may have in flight at most: two windows are the most slots of a group.
pub const WINDOW_PACKETS_MAX: u32 = 16_384;
/// Bytes of one blob of an exchange at most.
pub const BLOB_BYTES_MAX: usize = 64 * 1024;
/// The longest lease and the longest wait that can be asked for, in milliseconds.
pub const WAIT_MS_MAX: u32 = 600_000;
/// A lease where nothing else is said, in milliseconds.
pub const DEFAULT_LEASE_MS: u32 = 5_000;
/// The wait of an exchange where nothing else is said, in milliseconds.
pub const DEFAULT_EXCHANGE_MS: u32 = 30_000;

/// How somebody wants a collective group to work; `None` where it is as the group has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenSettings {
    /// Payload bytes of a full packet.
    pub pmtu: Option<Pmtu>,
    /// Packets that a rank may have in flight.
    pub window_packets: Option<u16>,
    /// Packets of a full message.
    pub message_packets: Option<u16>,
    /// Whether contributions are added in rank order.
    pub reproducible: Option<bool>,
    /// Who repairs losses.
    pub loss_policy: Option<LossPolicy>,
    /// How ranks that wait are kept alive.
    pub straggler_policy: Option<StragglerPolicy>,
    /// The ranks' ACK time-out, in microseconds.
    pub ack_timeout_us: Option<u32>,
    /// When a collective that waits is reported, in milliseconds.
    pub stall_timeout_ms: Option<u32>,
    /// How many sub-groups it is: 1 to [`castnet_rules::LANES_MAX`].
    pub lanes: Option<u8>,
}

/// A collective group that an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCollective {
    /// Unique among the controller's groups.
    pub name: String,
    /// The ranks' hosts, rank 0 first; 2 to [`RANKS_MAX`], no host twice.
    pub ranks: Vec<String>,
    /// How it is to work.
    pub settings: GivenSettings,
    /// The group's address, if the caller wants a certain one.
    pub mcst_id: Option<McstId>,
}

/// A rank that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankJoin {
    /// The group.
    pub job: String,
    /// Who, below `size`.
    pub rank: u16,
    /// Ranks of the job, 2 to [`RANKS_MAX`].
    pub size: u16,
    /// Its host and its end of the connection, without memory.
    pub endpoint: HostEndpoint,
    /// The same of the lanes after the first.
    pub more: Vec<HostEndpoint>,
    /// Its first PSN.
    pub sq_psn: Psn,
    /// How the group is to work.
    pub settings: GivenSettings,
    /// How long it may be away.
    pub lease: Duration,
    /// The generation it was in, where it joins again with a new connection.
    pub rejoin_of: Option<u64>,
    /// The active generation that it comes back to after its stream broke.
    pub returns_to: Option<u64>,
}

/// A rank's part in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeCall {
    /// The job.
    pub job: String,
    /// Who, below `size`.
    pub rank: u16,
    /// Ranks of the job, 1 to [`RANKS_MAX`].
    pub size: u16,
    /// Which exchange.
    pub round: u64,
    /// At most [`BLOB_BYTES_MAX`].
    pub blob: Vec<u8>,
    /// How long to wait for the others.
    pub timeout: Duration,
}

/// A request to create a collective group.
///
/// # Errors
/// Every fault; fields such as `ranks[2]` and `settings.pmtu`.
pub fn new_collective_from_proto(message: &v1::CreateCollectiveRequest) -> Result<NewCollective, Invalid> {
    let mut faults = Vec::new();
    let group = take(&mut faults, "name", name(&message.name));
    if !(2..=usize::from(RANKS_MAX)).contains(&message.ranks.len()) {
        let kind = FaultKind::OutOfRange {
            value: message.ranks.len().to_string(),
            why: "rank(s): a collective group has 2 to 1024",
        };
        faults.push(Fault::new("ranks", kind));
    }
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, host) in message.ranks.iter().enumerate() {
        let field = format!("ranks[{i}]");
        take(&mut faults, &field, name(host));
        if let Some(first) = first_of.insert(host, i) {
            let kind = FaultKind::DuplicateName {
                name: host.clone(),
                first: format!("ranks[{first}]"),
            };
            faults.push(Fault::new(field, kind));
        }
    }
    let settings = settings(message.settings.as_ref(), &mut faults);
    faults.extend(laned_name("name", &message.name, settings.lanes));
    let mcst_id = message
        .mcst_id
        .as_ref()
        .and_then(|text| take(&mut faults, "mcst_id", unicast_mcst_id(text)));
    let group = group.map(|name| NewCollective {
        name,
        ranks: message.ranks.clone(),
        settings,
        mcst_id,
    });
    finish(group, faults)
}

/// A rank's request to join.
///
/// # Errors
/// Every fault; fields such as `connection.qpn` and `settings.pmtu`.
pub fn rank_join_from_proto(message: &v1::InitGroupRequest) -> Result<RankJoin, Invalid> {
    let mut faults = Vec::new();
    let job = take(&mut faults, "job", name(&message.job));
    let rank_of = rank_of(message.rank, message.size, 2, &mut faults);
    let host = take(&mut faults, "host", name(&message.host));
    let shown = host.as_deref().unwrap_or("host");
    let mut ends = connection_from_proto("connection", shown, message.connection.as_ref())
        .map_err(|Invalid(more)| faults.extend(more))
        .unwrap_or_default()
        .into_iter()
        .map(|end| HostEndpoint {
            part: HostPart::Plain,
            ..end
        });
    let (endpoint, more): (_, Vec<_>) = (ends.next(), ends.collect());
    let sq_psn = take(&mut faults, "sq_psn", psn(message.sq_psn));
    let settings = settings(message.settings.as_ref(), &mut faults);
    faults.extend(laned_name("job", &message.job, settings.lanes));
    let lease = wait("lease_ms", message.lease_ms, DEFAULT_LEASE_MS, &mut faults);
    let join = (|| {
        let (rank, size) = rank_of?;
        Some(RankJoin {
            job: job?,
            rank,
            size,
            endpoint: endpoint?,
            more,
            sq_psn: sq_psn?,
            settings,
            lease,
            rejoin_of: message.rejoin_of,
            returns_to: message.returns_to,
        })
    })();
    finish(join, faults)
}

/// A rank's part in an exchange.
///
/// # Errors
/// Every fault; fields such as `blob`.
pub fn exchange_from_proto(message: v1::ExchangeRequest) -> Result<ExchangeCall, Invalid> {
    let mut faults = Vec::new();
    let job = take(&mut faults, "job", name(&message.job));
    let rank_of = rank_of(message.rank, message.size, 1, &mut faults);
    if message.blob.len() > BLOB_BYTES_MAX {
        let kind = FaultKind::OutOfRange {
            value: message.blob.len().to_string(),
            why: "bytes are too many: a blob has at most 65536",
        };
        faults.push(Fault::new("blob", kind));
    }
    let timeout = wait("timeout_ms", message.timeout_ms, DEFAULT_EXCHANGE_MS, &mut faults);
    let call = job.zip(rank_of).map(|(job, (rank, size))| ExchangeCall {
        job,
        rank,
        size,
        round: message.round,
        blob: message.blob,
        timeout,
    });
    finish(call, faults)
}

/// A rank and the number of ranks.
fn rank_of(rank: u32, size: u32, least: u32, faults: &mut Vec<Fault>) -> Option<(u16, u16)> {
    let out_of_range = |value: u32, why| FaultKind::OutOfRange {
        value: value.to_string(),
        why,
    };
    if !(least..=u32::from(RANKS_MAX)).contains(&size) {
        let why = match least {
            1 => "is no number of ranks: 1 to 1024",
            _ => "is no number of ranks: a group has 2 to 1024",
        };
        faults.push(Fault::new("size", out_of_range(size, why)));
        return None;
    }
    if rank >= size {
        let why = "is no rank of the job: ranks are 0 to size - 1";
        faults.push(Fault::new("rank", out_of_range(rank, why)));
        return None;
    }
    Some((rank as u16, size as u16))
}

fn wait(field: &str, given: u32, default: u32, faults: &mut Vec<Fault>) -> Duration {
    if given > WAIT_MS_MAX {
        let kind = FaultKind::OutOfRange {
            value: given.to_string(),
            why: "milliseconds are too long: at most 600000",
        };
        faults.push(Fault::new(field, kind));
    }
    Duration::from_millis(if given == 0 { default } else { given }.into())
}

fn settings(message: Option<&v1::CollectiveSettings>, faults: &mut Vec<Fault>) -> GivenSettings {
    let Some(given) = message else {
        return GivenSettings::default();
    };
    let mut inner = Vec::new();
    let packets = |field: &str, value: u32, inner: &mut Vec<Fault>| match value {
        0 => None,
        1..=WINDOW_PACKETS_MAX => Some(value as u16),
        _ => {
            let kind = FaultKind::OutOfRange {
                value: value.to_string(),
                why: "packets are too many: at most 16384",
            };
            inner.push(Fault::new(field, kind));
            None
        }
    };
    let window_packets = packets("window_packets", given.window_packets, &mut inner);
    let message_packets = packets("message_packets", given.message_packets, &mut inner);
    if let (Some(window), Some(message)) = (window_packets, message_packets)
        && message > window
    {
        let kind = FaultKind::OutOfRange {
            value: message.to_string(),
            why: "packets are more than the window has",
        };
        inner.push(Fault::new("message_packets", kind));
    }
    let nonzero = |value: u32| (value != 0).then_some(value);
    let settings = GivenSettings {
        pmtu: nonzero(given.pmtu).and_then(|v| take(&mut inner, "pmtu", pmtu(v))),
        window_packets,
        message_packets,
        reproducible: given.reproducible,
        loss_policy: take(&mut inner, "loss_policy", loss(given.loss_policy)).flatten(),
        straggler_policy: take(&mut inner, "straggler_policy", straggler(given.straggler_policy)).flatten(),
        ack_timeout_us: nonzero(given.ack_timeout_us),
        stall_timeout_ms: nonzero(given.stall_timeout_ms),
        lanes: take(&mut inner, "lanes", lanes(given.lanes)).flatten(),
    };
    if let Some(given) = settings.ack_timeout_us.filter(|t| *t < 4) {
        inner.push(Fault::new(
            "ack_timeout_us",
            FaultKind::ShortAckTimeout { given, least: 4 },
        ));
    }
    faults.extend(inner.into_iter().map(|f| f.within("settings")));
    settings
}
