//! Requests of hosts and operators, of any group and of multicast groups, and filters.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use castnet_group::{DEFAULT_MEMBER_STALL_MS, Description, Distribution, MulticastSettings, StallPolicy};
use castnet_rules::{
    DEFAULT_STALL_TIMEOUT_MS, FaultKind, HostEndpoint, Ipv4Net, LANES_MAX, MRP_PREFIX, RepairRule,
    ambiguous_name,
};
use castnet_wire::{AnySource, DropReason, FrameFilter, McstId, Pmtu, PortId, Psn, RateLimit};

use super::job::{DEFAULT_LEASE_MS, wait};
use super::rule::{self, any_source_to_proto, memory_to_proto, repair_to_proto, without_keys};
use super::{Invalid, Reader, bad_text, ip, mcst_id, missing, out_of_range, parse, pmtu, port, prefix, psn};
use crate::v1;
use crate::v1::host_endpoint::Part;

const NAME_LENGTH_MAX: usize = 63;
/// Leaves space for the suffix of a lane: `/15`.
const LANED_NAME_LENGTH_MAX: usize = 61;

/// A multicast group that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    /// Unique among the groups of the controller.
    pub name: String,
    /// The host that sends.
    pub source: String,
    /// All members including the source, at least two, no host twice.
    pub members: Vec<NewMember>,
    /// First PSN of the source; `None`: the controller chooses one.
    pub start_psn: Option<Psn>,
    /// Address of the group; `None`: the controller chooses one.
    pub mcst_id: Option<McstId>,
    /// Number of lanes, 1 to [`LANES_MAX`].
    pub lanes: u8,
    /// Of the source, all lanes together; `None`: no limit, or that of its tenant.
    pub rate_limit: Option<RateLimit>,
    /// What it is for.
    pub description: Description,
    /// The rest.
    pub settings: MulticastSettings,
}

/// A member of a [`NewGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Name of the host.
    pub host: String,
    /// One connection per lane if it is to count as joined; otherwise empty.
    pub ends: Vec<HostEndpoint>,
}

/// Reads a request to create a multicast group. Reports every fault, with fields such as `members[2].connection.qpn`.
pub fn new_group_from_proto(message: &v1::CreateGroupRequest) -> Result<NewGroup, Invalid> {
    let mut r = Reader::default();
    let name = r.take("name", self::name(&message.name));
    let source = r.take("source", self::name(&message.source));
    if message.members.len() < 2 {
        let why = "member(s): a group needs its source and at least one receiver";
        r.fault("members", out_of_range(message.members.len(), why));
    }
    let lanes = r.take("lanes", self::lanes(message.lanes));
    let lanes = lanes.map(|lanes| lanes.unwrap_or(1));
    if let Some(name) = &name {
        r.take("name", laned_name(name, lanes));
    }
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut first_at = BTreeMap::new();
    let mut members = Vec::with_capacity(message.members.len());
    for (i, v1::NewMember { host, connection }) in message.members.iter().enumerate() {
        let field = format!("members[{i}].host");
        if r.take(&field, self::name(host)).is_none() {
            continue;
        }
        if let Some(first) = first_of.insert(host, i) {
            let (name, first) = (host.clone(), format!("members[{first}]"));
            r.fault(field, FaultKind::DuplicateName { name, first });
        }
        let field = format!("members[{i}].connection");
        let ends = match connection {
            Some(_) => r.part(connection_from_proto(&field, host, connection.as_ref())),
            None => Some(Vec::new()),
        };
        let Some(ends) = ends else { continue };
        if let Some(end) = ends.first() {
            if let Some(lanes) = lanes {
                r.part(one_end_each(&field, ends.len(), lanes));
            }
            if let Some(first) = first_at.insert(end.ip, i) {
                let (ip, first) = (end.ip, format!("members[{first}]"));
                let kind = FaultKind::DuplicateMemberIp { ip, first };
                r.fault(format_args!("{field}.ip"), kind);
            }
        }
        let host = host.clone();
        members.push(NewMember { host, ends });
    }
    if let Some(source) = &source
        && !first_of.contains_key(source.as_str())
    {
        r.fault("source", bad_text(source, "the name of one of the members"));
    }
    let pmtu = match message.pmtu {
        0 => Some(Pmtu::B1024),
        value => r.take("pmtu", pmtu(value)),
    };
    let start_psn = r.optional("start_psn", message.start_psn, psn);
    let mcst_id = r.optional("mcst_id", message.mcst_id.as_deref(), unicast_mcst_id);
    let fails_with_receiver = fails("on_member_loss", message.on_member_loss, &mut r);
    let on_stall = message.on_member_stall.map(|policy| StallPolicy {
        after_ms: wait(
            "on_member_stall.after_ms",
            policy.after_ms,
            DEFAULT_MEMBER_STALL_MS,
            &mut r,
        )
        .as_millis() as u32,
        fails: fails("on_member_stall.then", policy.then, &mut r),
    });
    let rate_limit = rule::rate_limit(message.rate_limit, &mut r);
    rule::check_burst(rate_limit, pmtu, lanes, &mut r);
    let repair = message.repair.map(|message| repair(message, &mut r));
    let any_source = r.read("any_source", rule::any_source(message.any_source), None);
    if any_source == Some(AnySource::Synchronized) && repair.is_some() {
        r.fault("repair", FaultKind::AnySourceRepairs);
    }
    if any_source.is_some() && lanes.is_some_and(|lanes| lanes > 1) {
        let expected = "is not possible with any_source: messages of several senders have no common order on several lanes";
        r.fault("lanes", out_of_range(message.lanes, expected));
    }
    let distribution = match message.distribution.as_str() {
        "" => Some(Distribution::default()),
        text => {
            let read = text.parse::<Distribution>();
            r.take(
                "distribution",
                read.map_err(|_| bad_text(text, Distribution::FORMS)),
            )
        }
    };
    let distribution = distribution.unwrap_or_default();
    if distribution.is_static() && any_source.is_some() {
        r.fault("distribution", FaultKind::CoreOfAnySource);
    }
    let description = self::description(&message.description, &mut r);
    let group = name.zip(source).zip(pmtu).map(|((name, source), pmtu)| NewGroup {
        name,
        source,
        members,
        start_psn,
        mcst_id,
        lanes: lanes.unwrap_or(1),
        rate_limit,
        description,
        settings: MulticastSettings {
            pmtu,
            va_base: message.va_base,
            stall_timeout_ms: match message.stall_timeout_ms {
                0 => DEFAULT_STALL_TIMEOUT_MS,
                value => value,
            },
            fails_with_receiver,
            on_stall,
            any_source,
            distribution,
            repair,
        },
    });
    r.finish(group)
}

/// Messages that have the settings of a multicast group, and nothing else.
macro_rules! settings_to_proto {
    ($($name:ident: $message:ident),+) => {$(
        /// The message with these settings, and nothing else.
        pub fn $name(settings: &MulticastSettings) -> v1::$message {
            let MulticastSettings {
                pmtu, va_base, stall_timeout_ms, fails_with_receiver, on_stall, any_source, distribution, repair,
            } = settings;
            let stall = |policy: StallPolicy| v1::StallPolicy { after_ms: policy.after_ms, then: loss(policy.fails) };
            v1::$message {
                pmtu: pmtu.bytes() as u32,
                va_base: *va_base,
                stall_timeout_ms: *stall_timeout_ms,
                on_member_loss: loss(*fails_with_receiver),
                on_member_stall: on_stall.map(stall),
                any_source: any_source.map_or(0, |numbers| any_source_to_proto(numbers).into()),
                distribution: distribution.to_string(),
                repair: repair.map(repair_to_proto),
                ..Default::default()
            }
        }
    )+};
}

settings_to_proto!(creation_with: CreateGroupRequest, state_with: GroupState);

/// None after a fault.
pub(super) fn description(text: &str, r: &mut Reader) -> Description {
    let read = text.parse::<Description>();
    let read = read.map_err(|_| bad_text(text, Description::FORM));
    r.read("description", read, Description::default())
}

/// What becomes of a group that loses a receiver.
fn loss(fails: bool) -> i32 {
    match fails {
        true => v1::MemberLoss::Fail.into(),
        false => v1::MemberLoss::Evict.into(),
    }
}

/// Whether a group fails with a receiver that is lost.
fn fails(field: &str, loss: i32, r: &mut Reader) -> bool {
    match v1::MemberLoss::try_from(loss) {
        Ok(loss) => loss == v1::MemberLoss::Fail,
        Err(_) => {
            let expected = "is no known way to handle the loss of a member";
            r.fault(field, out_of_range(loss, expected));
            false
        }
    }
}

/// Zeros are defaults.
fn repair(message: v1::MulticastRepair, r: &mut Reader) -> RepairRule {
    let mut repair = rule::repair(message, r);
    let default = RepairRule::default();
    if message.slots == 0 {
        repair.slots = default.slots;
    }
    if repair.ack_timeout_us == 0 {
        repair.ack_timeout_us = default.ack_timeout_us;
    }
    // A number that could not be read is reported.
    if repair.slots != 0 {
        let mut faults = Vec::new();
        repair.check(&mut faults);
        for fault in faults {
            r.fault(format!("repair.{}", fault.field), fault.kind);
        }
    }
    repair
}

/// Reads the lease of a member; `None`: it has none.
pub fn lease_from_proto(lease_ms: Option<u32>) -> Result<Option<Duration>, Invalid> {
    let mut r = Reader::default();
    let lease = lease_ms.map(|ms| wait("lease_ms", ms, DEFAULT_LEASE_MS, &mut r));
    r.finish(Some(lease))
}

/// Most bytes of a reason that a host gives.
const REASON_MAX: usize = 512;

/// A text as the controller takes it for a reason: one line, cut if it is too long.
pub fn reason_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > REASON_MAX {
            break;
        }
        line.push(c);
    }
    line
}

/// Checks a reason that a host gives. A fault names `field`.
pub fn reason_from_proto(field: &str, reason: String) -> Result<String, Invalid> {
    check_line(
        field,
        &reason,
        1..=REASON_MAX,
        "a reason: a line of 1 to 512 bytes",
    )?;
    Ok(reason)
}

/// Checks what a receiver says that it has of a stream when it leaves.
pub fn check_received(received: &v1::Received) -> Result<(), Invalid> {
    check_line(
        "received.lacks",
        &received.lacks,
        0..=REASON_MAX,
        "a reason: a line of at most 512 bytes",
    )
}

/// Most characters of the name of an owner.
const OWNER_LENGTH_MAX: usize = 255;

/// Checks whose groups are meant: the name of an owner, empty for operators.
pub fn check_owner(owner: &str) -> Result<(), Invalid> {
    let expected = "a name of an owner: at most 255 letters, digits, '-', '_', '.', ':' or spaces";
    check_owned_by(owner, b": ", expected)
}

/// Checks what a controller says of itself. Logs have its name in commands for operators, so it is one word.
pub fn check_term(term: &v1::ControllerTerm) -> Result<(), Invalid> {
    let expected = "a name of a controller: at most 255 letters, digits, '-', '_', '.' or ':'";
    check_owned_by(&term.owner, b":", expected)?;
    check_line(
        "address",
        &term.address,
        0..=1024,
        "an address: a line of at most 1024 bytes",
    )
}

/// `more`: characters beside those of names.
fn check_owned_by(owner: &str, more: &[u8], expected: &'static str) -> Result<(), Invalid> {
    let is_good = |byte: u8| is_plain(byte) || more.contains(&byte);
    match owner.len() <= OWNER_LENGTH_MAX && owner.bytes().all(is_good) {
        true => Ok(()),
        false => Err(Invalid::one("owner", bad_text(owner, expected))),
    }
}

fn check_line(
    field: &str,
    text: &str,
    bytes: RangeInclusive<usize>,
    expected: &'static str,
) -> Result<(), Invalid> {
    match bytes.contains(&text.len()) && !text.contains(char::is_control) {
        true => Ok(()),
        false => Err(Invalid::one(field, bad_text(text, expected))),
    }
}

/// `None` if it is not given.
pub(super) fn lanes(value: u32) -> Result<Option<u8>, FaultKind> {
    match u8::try_from(value) {
        Ok(0) => Ok(None),
        Ok(lanes) if lanes <= LANES_MAX => Ok(Some(lanes)),
        _ => Err(out_of_range(value, LANES_WHY)),
    }
}

const LANES_WHY: &str = "is no number of lanes: a group has 1 to 16";

/// The name of a new group must be no address, and none of a group of MRP; with lanes, it must leave space for the suffix of a lane.
pub(super) fn laned_name(name: &str, lanes: Option<u8>) -> Result<(), FaultKind> {
    let why = "characters are too many: 61 in a group of several lanes";
    if let Some(kind) = ambiguous_name(name) {
        return Err(kind);
    }
    if name.starts_with(MRP_PREFIX) {
        let expected = "a name for this group: names that begin with \"mrp-\" are those of groups that hosts register with MRP";
        return Err(bad_text(name, expected));
    }
    match name.len() {
        length if length > LANED_NAME_LENGTH_MAX && lanes > Some(1) => Err(out_of_range(length, why)),
        _ => Ok(()),
    }
}

/// Checks the name of a new group. A fault names `field`.
pub fn check_new_name(field: &str, name: &str, lanes: u8) -> Result<(), Invalid> {
    laned_name(name, Some(lanes)).map_err(|kind| Invalid::one(field, kind))
}

/// Checks that a member has one connection per lane. A fault names `more_lanes` below `field`.
pub fn one_end_each(field: &str, ends: usize, lanes: u8) -> Result<(), Invalid> {
    if ends == usize::from(lanes) {
        return Ok(());
    }
    let why = "queue pair(s) of this member, which needs one for each lane of the group";
    Err(Invalid::out_of_range(format!("{field}.more_lanes"), ends, why))
}

/// Reads the connections of a member, one per lane. Reports every fault, with fields below `field`.
pub fn connection_from_proto(
    field: &str,
    host: &str,
    message: Option<&v1::Connection>,
) -> Result<Vec<HostEndpoint>, Invalid> {
    let expected = "ip, mac and qpn of the member's queue pair";
    let message = message.ok_or_else(|| Invalid::missing(field, expected))?;
    let mut endpoint = v1::HostEndpoint {
        name: host.into(),
        ip: message.ip.clone(),
        mac: message.mac.clone(),
        qpn: message.qpn,
        part: message.memory.map(Part::Memory),
    };
    let mut ends: Vec<HostEndpoint> = vec![rule::host(field, &endpoint)?];
    if message.more_lanes.len() >= usize::from(LANES_MAX) {
        let (field, count) = (format!("{field}.more_lanes"), message.more_lanes.len() + 1);
        return Err(Invalid::out_of_range(field, count, LANES_WHY));
    }
    for (i, lane) in message.more_lanes.iter().enumerate() {
        let field = format!("{field}.more_lanes[{i}]");
        (endpoint.qpn, endpoint.part) = (lane.qpn, lane.memory.map(Part::Memory));
        let end = rule::host(&field, &endpoint)?;
        if ends.iter().any(|e| e.qpn == end.qpn) {
            let why = "is the queue pair of another lane: each has one of its own";
            return Err(Invalid::out_of_range(format!("{field}.qpn"), lane.qpn, why));
        }
        ends.push(end);
    }
    Ok(ends)
}

/// The connections of a member as a message, first lane first, without the keys of its memory: these are for switches.
pub fn connection_to_proto<'e>(ends: impl IntoIterator<Item = &'e HostEndpoint>) -> v1::Connection {
    let mut ends = ends.into_iter().peekable();
    let Some(&first) = ends.peek() else {
        return v1::Connection::default();
    };
    let lane = |end: &HostEndpoint| v1::LaneConnection {
        qpn: end.qpn.value(),
        memory: end.memory().map(|memory| without_keys(&memory_to_proto(memory))),
    };
    v1::Connection::new(first.ip, first.mac, ends.map(lane))
}

/// Reads name and addresses of a host that registers. The QPN of the result has no meaning. Reports every fault.
pub fn registration_from_proto(message: &v1::RegisterHostRequest) -> Result<HostEndpoint, Invalid> {
    let v1::RegisterHostRequest { name, ip, mac } = message.clone();
    name_from_proto("name", &name)?;
    let host = v1::HostEndpoint {
        name,
        ip,
        mac,
        qpn: 2,
        part: None,
    };
    rule::host("", &host)
}

/// Reads a filter; if absent, it matches all frames. Reports every fault, with fields below `field`.
pub fn filter_from_proto(field: &str, message: Option<&v1::FrameFilter>) -> Result<FrameFilter, Invalid> {
    let Some(message) = message else {
        return Ok(FrameFilter::default());
    };
    let mut r = Reader::default();
    let reason = |name: &str| {
        let known = DropReason::ALL.iter().copied().find(|r| r.name() == name);
        let expected = "a drop reason, such as bad-icrc; `castnet drops --all` lists them";
        known.ok_or_else(|| bad_text(name, expected))
    };
    let filter = FrameFilter {
        port: r.optional("port", message.port, port),
        group: r.optional("mcst_id", message.mcst_id.as_deref(), mcst_id),
        src: r.optional("src_ip", message.src_ip.as_deref(), ip),
        dst: r.optional("dst_ip", message.dst_ip.as_deref(), ip),
        drops: message.drops_only,
        reason: r.optional("drop_reason", message.drop_reason.as_deref(), reason),
    };
    r.within(field).finish(Some(filter))
}

macro_rules! alone {
    ($($(#[$doc:meta])* $name:ident: $read:ident, $value:ty => $type:ty;)+) => {$(
        $(#[$doc])*
        pub fn $name(field: &str, value: $value) -> Result<$type, Invalid> {
            $read(value).map_err(|kind| Invalid::one(field, kind))
        }
    )+};
}

alone! {
    /// Checks the name of a group or host: 1 to 63 letters, digits, `-`, `_` and `.`. A fault names `field`.
    name_from_proto: name, &str => String;
    /// Reads a McstID. A fault names `field`.
    mcst_id_from_proto: mcst_id, &str => McstId;
    /// Reads the McstID of a group, a unicast address. A fault names `field`.
    unicast_mcst_id_from_proto: unicast_mcst_id, &str => McstId;
    /// Reads the number of a port. A fault names `field`.
    port_from_proto: port, u32 => PortId;
    /// Reads the prefix of a route. A fault names `field`.
    prefix_from_proto: prefix, &str => Ipv4Net;
}

pub(super) fn name(text: &str) -> Result<String, FaultKind> {
    let expected = "a name: 1 to 63 letters, digits, '-', '_' or '.'";
    match text {
        "" => Err(missing(expected)),
        _ if text.len() <= NAME_LENGTH_MAX && text.bytes().all(is_plain) => Ok(text.into()),
        _ => Err(bad_text(text, expected)),
    }
}

/// Whether names have this character.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

pub(super) fn unicast_mcst_id(text: &str) -> Result<McstId, FaultKind> {
    let expected = "a McstID: a unicast IPv4 address that no host has, such as 10.200.0.1";
    let id: Ipv4Addr = parse(text, expected)?;
    match !id.is_loopback() && (1..224).contains(&id.octets()[0]) {
        true => Ok(McstId(id)),
        false => Err(bad_text(text, expected)),
    }
}
