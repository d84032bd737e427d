//! Requests of the ranks of a job, and of operators for collective groups.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_group::{Description, GivenSettings};
use castnet_rules::{
    CollectiveMode, DEFAULT_MESSAGE_PACKETS, FaultKind, HostEndpoint, HostPart, LossPolicy, RANKS_MAX,
};
use castnet_wire::{McstId, Psn};

use super::request::{description, laned_name, lanes, name, unicast_mcst_id};
use super::rule::{
    check_burst, loss, loss_to_proto, mode, mode_to_proto, rate_limit, rate_limit_to_proto, straggler,
    straggler_to_proto,
};
use super::{Invalid, Reader, connection_from_proto, out_of_range, pmtu, psn};
use crate::v1;

/// Fewest packets of a window: CommLib posts the next message before the result of the first.
pub const WINDOW_PACKETS_MIN: u32 = 2;
/// Most packets that a rank may have in flight. A group has at most twice as many slots.
pub const WINDOW_PACKETS_MAX: u32 = 16_384;
/// Most messages of a window: CommLib's queue pairs have 1024 work requests, two for each message and for each of two
/// further messages of eight calls.
pub const WINDOW_MESSAGES_MAX: u32 = 496;
/// Most bytes of a blob of an exchange.
pub const BLOB_BYTES_MAX: usize = 64 * 1024;
/// The largest generation that a rank may name. No group comes near it, so it can be counted on from there.
const GENERATION_MAX: u64 = 1 << 48;
/// Most bytes of a job's secret.
pub const SECRET_BYTES_MAX: usize = 256;
/// Longest lease, and longest timeout of an exchange, in milliseconds.
pub const WAIT_MS_MAX: u32 = 600_000;
/// Default lease, in milliseconds.
pub const DEFAULT_LEASE_MS: u32 = 5_000;
/// Default timeout of an exchange, in milliseconds.
pub const DEFAULT_EXCHANGE_MS: u32 = 30_000;

/// The shortest ACK time-out, in microseconds.
const ACK_TIMEOUT_US_MIN: u32 = 4;
/// The shortest time-outs of a job that a rank creates by joining: it needs no operator for that, and the timers of all jobs share the switches.
const RANK_ACK_TIMEOUT_US_MIN: u32 = 1_000;
const RANK_STALL_TIMEOUT_MS_MIN: u32 = 100;

/// Refuses time-outs that are too short for a job that a rank creates. A job that is there is joined with its own.
pub fn check_given_by_rank(settings: &GivenSettings) -> Result<(), Invalid> {
    let mut r = Reader::default();
    check_ack_timeout(
        settings,
        RANK_ACK_TIMEOUT_US_MIN,
        "settings.ack_timeout_us",
        &mut r,
    );
    let short = |given: &u32| *given < RANK_STALL_TIMEOUT_MS_MIN;
    if let Some(given) = settings.stall_timeout_ms.filter(short) {
        let why = "milliseconds are too short for a job that its ranks create: give at least 100";
        r.fault("settings.stall_timeout_ms", out_of_range(given, why));
    }
    r.finish(Some(()))
}

fn check_ack_timeout(settings: &GivenSettings, least: u32, field: &str, r: &mut Reader) {
    if let Some(given) = settings.ack_timeout_us.filter(|given| *given < least) {
        r.fault(field, FaultKind::ShortAckTimeout { given, least });
    }
}

/// A collective group that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCollective {
    /// Unique among the groups of the controller.
    pub name: String,
    /// The hosts of the ranks, rank 0 first; 2 to [`RANKS_MAX`], no host twice.
    pub ranks: Vec<String>,
    /// Settings.
    pub settings: GivenSettings,
    /// Address of the group; `None`: the controller chooses one.
    pub mcst_id: Option<McstId>,
    /// What it is for.
    pub description: Description,
}

/// A rank that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankJoin {
    /// Name of the group.
    pub job: String,
    /// The rank, below `size`.
    pub rank: u16,
    /// Number of ranks, 2 to [`RANKS_MAX`].
    pub size: u16,
    /// Its host and its connection, without memory.
    pub endpoint: HostEndpoint,
    /// Its connections of the lanes after the first.
    pub more: Vec<HostEndpoint>,
    /// Its first PSN.
    pub sq_psn: Psn,
    /// The settings that it requires.
    pub settings: GivenSettings,
    /// How long it keeps its place after its stream broke.
    pub lease: Duration,
    /// The generation that it was in, if it joins again with a new connection.
    pub rejoin_of: Option<u64>,
    /// The active generation that it is in, if it returns after its stream broke.
    pub returns_to: Option<u64>,
    /// The secret of the job; empty: none.
    pub secret: Vec<u8>,
}

/// The part of one rank in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeCall {
    /// Name of the job or of the multicast group.
    pub job: String,
    /// Between whom it is.
    pub among: v1::ExchangeAmong,
    /// The rank, below `size`.
    pub rank: u16,
    /// Number of ranks, 1 to [`RANKS_MAX`].
    pub size: u16,
    /// Number of the exchange.
    pub round: u64,
    /// At most [`BLOB_BYTES_MAX`].
    pub blob: Vec<u8>,
    /// How long to wait for the other ranks.
    pub timeout: Duration,
    /// The secret of the job; empty: none.
    pub secret: Vec<u8>,
}

/// Reads a request to create a collective group. Reports every fault, with fields such as `ranks[2]`.
pub fn new_collective_from_proto(message: &v1::CreateCollectiveRequest) -> Result<NewCollective, Invalid> {
    let mut r = Reader::default();
    let group = r.take("name", name(&message.name));
    if !(2..=usize::from(RANKS_MAX)).contains(&message.ranks.len()) {
        let why = "rank(s): a collective group has 2 to 1024";
        r.fault("ranks", out_of_range(message.ranks.len(), why));
    }
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, host) in message.ranks.iter().take(usize::from(RANKS_MAX)).enumerate() {
        let field = format!("ranks[{i}]");
        r.take(&field, name(host));
        if let Some(first) = first_of.insert(host, i) {
            let (name, first) = (host.clone(), format!("ranks[{first}]"));
            r.fault(field, FaultKind::DuplicateName { name, first });
        }
    }
    let settings = settings(message.settings.as_ref(), &mut r);
    r.take("name", laned_name(&message.name, settings.lanes));
    let mcst_id = r.optional("mcst_id", message.mcst_id.as_deref(), unicast_mcst_id);
    let description = description(&message.description, &mut r);
    let group = group.map(|name| NewCollective {
        name,
        ranks: message.ranks.clone(),
        settings,
        mcst_id,
        description,
    });
    r.finish(group)
}

/// Reads a request of a rank to join. Reports every fault, with fields such as `connection.qpn`.
pub fn rank_join_from_proto(message: &v1::InitGroupRequest) -> Result<RankJoin, Invalid> {
    let mut r = Reader::default();
    let job = r.take("job", name(&message.job));
    let rank_of = rank_of(message.rank, message.size, 2, &mut r);
    let host = r.take("host", name(&message.host));
    let shown = host.as_deref().unwrap_or("host");
    let ends = connection_from_proto("connection", shown, message.connection.as_ref());
    let mut ends = r.part(ends).unwrap_or_default();
    for end in &mut ends {
        end.part = HostPart::Plain;
    }
    let mut ends = ends.into_iter();
    let endpoint = ends.next();
    let sq_psn = r.take("sq_psn", psn(message.sq_psn));
    let settings = settings(message.settings.as_ref(), &mut r);
    if !settings.modes.is_empty() {
        let why = "modes of switches: an operator gives them, who creates the group";
        r.fault("settings.modes", out_of_range(settings.modes.len(), why));
    }
    // A group that is there keeps its name. Of one that is not, the controller checks it.
    if message.returns_to.is_none() && message.rejoin_of.is_none() {
        r.take("job", laned_name(&message.job, settings.lanes));
    }
    check_secret(&message.secret, &mut r);
    let lease = wait("lease_ms", message.lease_ms, DEFAULT_LEASE_MS, &mut r);
    for (field, generation) in [
        ("rejoin_of", message.rejoin_of),
        ("returns_to", message.returns_to),
    ] {
        if let Some(generation) = generation.filter(|generation| *generation > GENERATION_MAX) {
            r.fault(field, out_of_range(generation, "is no generation of a group"));
        }
    }
    let join = (|| {
        let (rank, size) = rank_of?;
        Some(RankJoin {
            job: job?,
            rank,
            size,
            endpoint: endpoint?,
            more: ends.collect(),
            sq_psn: sq_psn?,
            settings,
            lease,
            rejoin_of: message.rejoin_of,
            returns_to: message.returns_to,
            secret: message.secret.clone(),
        })
    })();
    r.finish(join)
}

/// Reads the part of a rank in an exchange. Reports every fault, with fields such as `blob`.
pub fn exchange_from_proto(message: v1::ExchangeRequest) -> Result<ExchangeCall, Invalid> {
    let mut r = Reader::default();
    let job = r.take("job", name(&message.job));
    let rank_of = rank_of(message.rank, message.size, 1, &mut r);
    if message.blob.len() > BLOB_BYTES_MAX {
        let why = "bytes are too many: a blob has at most 65536";
        r.fault("blob", out_of_range(message.blob.len(), why));
    }
    check_secret(&message.secret, &mut r);
    let among = v1::ExchangeAmong::try_from(message.among);
    let among = r.take(
        "among",
        among.map_err(|_| out_of_range(message.among, "is unknown")),
    );
    let timeout = wait("timeout_ms", message.timeout_ms, DEFAULT_EXCHANGE_MS, &mut r);
    let call = job
        .zip(rank_of)
        .zip(among)
        .map(|((job, (rank, size)), among)| ExchangeCall {
            job,
            among,
            rank,
            size,
            round: message.round,
            blob: message.blob,
            timeout,
            secret: message.secret,
        });
    r.finish(call)
}

fn check_secret(secret: &[u8], r: &mut Reader) {
    if secret.len() > SECRET_BYTES_MAX {
        let why = "bytes are too many: a secret has at most 256";
        r.fault("secret", out_of_range(secret.len(), why));
    }
}

/// Rank and number of ranks, at least `least`.
fn rank_of(rank: u32, size: u32, least: u32, r: &mut Reader) -> Option<(u16, u16)> {
    if !(least..=u32::from(RANKS_MAX)).contains(&size) {
        let why = match least {
            1 => "is no number of ranks: 1 to 1024",
            _ => "is no number of ranks: a group has 2 to 1024",
        };
        r.fault("size", out_of_range(size, why));
        return None;
    }
    if rank >= size {
        let why = "is no rank of the job: ranks are 0 to size - 1";
        r.fault("rank", out_of_range(rank, why));
        return None;
    }
    Some((rank as u16, size as u16))
}

pub(super) fn wait(field: &str, given: u32, default: u32, r: &mut Reader) -> Duration {
    if given > WAIT_MS_MAX {
        let why = "milliseconds are too long: at most 600000";
        r.fault(field, out_of_range(given, why));
    }
    Duration::from_millis(if given == 0 { default } else { given }.into())
}

fn window(value: u32) -> Result<u16, FaultKind> {
    match value {
        WINDOW_PACKETS_MIN..=WINDOW_PACKETS_MAX => Ok(value as u16),
        _ => Err(out_of_range(value, "packets are no window of a rank: 2 to 16384")),
    }
}

fn packets(value: u32) -> Result<u16, FaultKind> {
    match value {
        0..=WINDOW_PACKETS_MAX => Ok(value as u16),
        _ => Err(out_of_range(value, "packets are too many: at most 16384")),
    }
}

/// Whether no rank can have a window of messages of this size in flight.
pub fn too_many_messages(window_packets: u32, message_packets: u32) -> bool {
    window_packets.div_ceil(message_packets.max(1)) > WINDOW_MESSAGES_MAX
}

/// Most switches of a group.
const MODES_MAX: usize = 1024;

fn modes(given: &[v1::SwitchMode], r: &mut Reader) -> BTreeMap<String, CollectiveMode> {
    let mut modes = BTreeMap::new();
    if given.len() > MODES_MAX {
        let why = "switches are too many: at most 1024";
        r.fault("modes", out_of_range(given.len(), why));
        return modes;
    }
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, v1::SwitchMode { switch, mode: given }) in given.iter().enumerate() {
        let field = format!("modes[{i}].switch");
        r.take(&field, name(switch));
        if let Some(first) = first_of.insert(switch, i) {
            let (name, first) = (switch.clone(), format!("settings.modes[{first}]"));
            r.fault(field, FaultKind::DuplicateName { name, first });
        }
        let field = format!("modes[{i}].mode");
        modes.extend(
            r.take(&field, mode(*given))
                .flatten()
                .map(|mode| (switch.clone(), mode)),
        );
    }
    modes
}

fn switch_mode((switch, mode): (&String, &CollectiveMode)) -> v1::SwitchMode {
    v1::SwitchMode {
        switch: switch.clone(),
        mode: mode_to_proto(*mode).into(),
    }
}

/// Numbers, which are not given if they are 0, and others: `setting: how it is read, how it is written;`
macro_rules! given {
    ({ $($name:ident: $read:ident, $write:expr;)* } { $($other:ident: $read_other:ident, $write_other:expr;)* }) => {
        /// Each setting on its own.
        fn given(from: &v1::CollectiveSettings, r: &mut Reader) -> GivenSettings {
            GivenSettings {
                $($name: r.optional(stringify!($name), Some(from.$name).filter(|given| *given != 0), $read),)*
                $($other: r.take(stringify!($other), $read_other(from.$other)).flatten(),)*
                reproducible: from.reproducible,
                modes: modes(&from.modes, r),
                rate_limit: rate_limit(from.rate_limit, r),
            }
        }

        /// The settings of a collective group as a message.
        pub fn settings_to_proto(given: &GivenSettings) -> v1::CollectiveSettings {
            v1::CollectiveSettings {
                $($name: given.$name.map_or(0, $write),)*
                $($other: given.$other.map_or(0, $write_other),)*
                reproducible: given.reproducible,
                modes: given.modes.iter().map(switch_mode).collect(),
                rate_limit: given.rate_limit.map(rate_limit_to_proto),
            }
        }
    };
}

given! {
    {
        window_packets: window, u32::from;
        message_packets: packets, u32::from;
        pmtu: pmtu, |pmtu| pmtu.bytes() as u32;
        ack_timeout_us: Ok, u32::from;
        stall_timeout_ms: Ok, u32::from;
    }
    {
        mode: mode, |mode| mode_to_proto(mode).into();
        loss_policy: loss, |policy| loss_to_proto(policy).into();
        straggler_policy: straggler, |policy| straggler_to_proto(policy).into();
        lanes: lanes, u32::from;
    }
}

fn settings(message: Option<&v1::CollectiveSettings>, outer: &mut Reader) -> GivenSettings {
    let Some(message) = message else {
        return GivenSettings::default();
    };
    let mut r = Reader::default();
    let settings = given(message, &mut r);
    if let (Some(window), Some(message)) = (settings.window_packets, settings.message_packets)
        && message > window
    {
        let why = "packets are more than the window has";
        r.fault("message_packets", out_of_range(message, why));
    }
    let message = settings.message_packets.unwrap_or(DEFAULT_MESSAGE_PACKETS);
    let too_many = |window: &u16| too_many_messages((*window).into(), message.into());
    if let Some(window) = settings.window_packets.filter(too_many) {
        let why = "packets are over 496 messages, more than a rank can have in flight: raise message_packets";
        r.fault("window_packets", out_of_range(window, why));
    }
    check_burst(settings.rate_limit, settings.pmtu, settings.lanes, &mut r);
    let mut modes = settings.mode.iter().chain(settings.modes.values());
    if settings.loss_policy == Some(LossPolicy::Reflect)
        && let Some(&mode) = modes.find(|mode| **mode != CollectiveMode::Translated)
    {
        r.fault("loss_policy", FaultKind::ModeReflects { mode });
    }
    check_ack_timeout(&settings, ACK_TIMEOUT_US_MIN, "ack_timeout_us", &mut r);
    outer.0.extend(r.within("settings").0);
    settings
}
