//! Requests, filters and what else hosts and operators send.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::Ipv4Addr;

use castnet_rules::{DEFAULT_STALL_TIMEOUT_MS, Fault, FaultKind, HostEndpoint, LANES_MAX};
use castnet_wire::{DropReason, MacAddr, McstId, Pmtu, PortId, Psn};

use super::rule::{self, memory_to_proto};
use super::{Invalid, finish, ip, mcst_id, parse, pmtu, port, psn, shorten, take};
use crate::v1;
use crate::v1::host_endpoint::Part;

const NAME_LENGTH_MAX: usize = 63;
/// With `/15` behind it, as much as a switch takes for a name.
const LANED_NAME_LENGTH_MAX: usize = 61;

/// A group that somebody wants. [`new_group_from_proto`] has checked what can be known without the controller's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    /// Unique among the controller's groups.
    pub name: String,
    /// The member that sends.
    pub source: String,
    /// All members, the source included, no host twice, at least two.
    pub members: Vec<NewMember>,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// The source's first PSN, if the caller wants a certain one.
    pub start_psn: Option<Psn>,
    /// What the source's virtual addresses are relative to.
    pub va_base: u64,
    /// The group's address, if the caller wants a certain one.
    pub mcst_id: Option<McstId>,
    /// When a stalled path is reported.
    pub stall_timeout_ms: u32,
    /// How many sub-groups it is: 1 to [`LANES_MAX`].
    pub lanes: u8,
}

/// A member of a [`NewGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// The host's name.
    pub host: String,
    /// Its ends of the connections, one for each lane, where it counts as joined at once; else empty.
    pub ends: Vec<HostEndpoint>,
}

/// A host that makes itself known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenHost {
    /// Its name.
    pub name: String,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its Ethernet address.
    pub mac: MacAddr,
}

/// Which frames to trace or capture. What is `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameFilter {
    /// Came in by this port, or left by it.
    pub port: Option<PortId>,
    /// Frames of this group.
    pub mcst_id: Option<McstId>,
    /// From this address.
    pub src_ip: Option<Ipv4Addr>,
    /// To this address.
    pub dst_ip: Option<Ipv4Addr>,
    /// Only frames that are dropped.
    pub drops_only: bool,
    /// Of drops: only for this reason.
    pub drop_reason: Option<DropReason>,
}

/// A request to create a group.
///
/// # Errors
/// Every fault; fields such as `members[2].connection.qpn`.
pub fn new_group_from_proto(message: &v1::CreateGroupRequest) -> Result<NewGroup, Invalid> {
    let mut faults = Vec::new();
    let name = take(&mut faults, "name", self::name(&message.name));
    let source = take(&mut faults, "source", self::name(&message.source));
    if message.members.len() < 2 {
        let why = "member(s): a group needs its source and at least one receiver";
        faults.push(Fault::new(
            "members",
            FaultKind::OutOfRange {
                value: message.members.len().to_string(),
                why,
            },
        ));
    }
    let lanes = take(&mut faults, "lanes", self::lanes(message.lanes)).map(|lanes| lanes.unwrap_or(1));
    faults.extend(name.as_deref().and_then(|name| laned_name("name", name, lanes)));
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut qp_of = BTreeMap::new();
    let mut members = Vec::with_capacity(message.members.len());
    for (i, member) in message.members.iter().enumerate() {
        let field = format_args!("members[{i}]");
        let Some(host) = take(
            &mut faults,
            format_args!("{field}.host"),
            self::name(&member.host),
        ) else {
            continue;
        };
        if let Some(first) = first_of.insert(&member.host, i) {
            let kind = FaultKind::DuplicateName {
                name: host.clone(),
                first: format!("members[{first}]"),
            };
            faults.push(Fault::new(format!("{field}.host"), kind));
        }
        let field = format_args!("{field}.connection");
        let ends = match &member.connection {
            None => Vec::new(),
            Some(connection) => match connection_from_proto(field, &host, Some(connection)) {
                Ok(ends) => ends,
                Err(Invalid(more)) => {
                    faults.extend(more);
                    continue;
                }
            },
        };
        if let Some(lanes) = lanes
            && !ends.is_empty()
        {
            faults.extend(one_each(field, ends.len(), lanes));
        }
        if let Some(endpoint) = ends.first()
            && let Some(first) = qp_of.insert(endpoint.ip, i)
        {
            let kind = FaultKind::DuplicateMemberIp {
                ip: endpoint.ip,
                first: format!("members[{first}]"),
            };
            faults.push(Fault::new(format!("{field}.ip"), kind));
        }
        members.push(NewMember { host, ends });
    }
    if let Some(source) = &source
        && !first_of.contains_key(source.as_str())
    {
        let expected = "the name of one of the members";
        faults.push(Fault::new(
            "source",
            FaultKind::BadText {
                value: source.clone(),
                expected,
            },
        ));
    }
    let pmtu = match message.pmtu {
        0 => Some(Pmtu::B1024),
        value => take(&mut faults, "pmtu", pmtu(value)),
    };
    let start_psn = message
        .start_psn
        .and_then(|value| take(&mut faults, "start_psn", psn(value)));
    let mcst_id = message
        .mcst_id
        .as_ref()
        .and_then(|text| take(&mut faults, "mcst_id", unicast_mcst_id(text)));
    let stall_timeout_ms = match message.stall_timeout_ms {
        0 => DEFAULT_STALL_TIMEOUT_MS,
        value => value,
    };
    let group = name.zip(source).zip(pmtu).map(|((name, source), pmtu)| NewGroup {
        name,
        source,
        members,
        pmtu,
        start_psn,
        va_base: message.va_base,
        mcst_id,
        stall_timeout_ms,
        lanes: lanes.unwrap_or(1),
    });
    finish(group, faults)
}

/// How many lanes; `None` where nothing is said.
pub(super) fn lanes(value: u32) -> Result<Option<u8>, FaultKind> {
    match u8::try_from(value) {
        Ok(0) => Ok(None),
        Ok(lanes) if lanes <= LANES_MAX => Ok(Some(lanes)),
        _ => Err(FaultKind::OutOfRange {
            value: value.to_string(),
            why: "is no number of lanes: a group has 1 to 16",
        }),
    }
}

/// The name of a group of several lanes has room for the lane behind it.
pub(super) fn laned_name(field: &str, name: &str, lanes: Option<u8>) -> Option<Fault> {
    let long = name.len() > LANED_NAME_LENGTH_MAX && lanes.is_some_and(|lanes| lanes > 1);
    long.then(|| {
        let kind = FaultKind::OutOfRange {
            value: name.len().to_string(),
            why: "characters are too many: 61 in a group of several lanes",
        };
        Fault::new(field, kind)
    })
}

/// A member has a queue pair for each lane of its group, no more and no less.
///
/// # Errors
/// Names `field`.
pub fn one_end_each(field: &str, ends: usize, lanes: u8) -> Result<(), Invalid> {
    match one_each(field, ends, lanes) {
        Some(fault) => Err(Invalid(vec![fault])),
        None => Ok(()),
    }
}

fn one_each(field: impl Display, ends: usize, lanes: u8) -> Option<Fault> {
    (ends != usize::from(lanes)).then(|| {
        let kind = FaultKind::OutOfRange {
            value: ends.to_string(),
            why: "queue pair(s) of this member, which needs one for each lane of the group",
        };
        Fault::new(format!("{field}.more_lanes"), kind)
    })
}

/// A member's ends of its connections, one for each lane.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn connection_from_proto(
    field: impl Display,
    host: &str,
    message: Option<&v1::Connection>,
) -> Result<Vec<HostEndpoint>, Invalid> {
    let Some(v1::Connection {
        ip,
        mac,
        qpn,
        memory,
        more_lanes,
    }) = message.cloned()
    else {
        return Err(Invalid::one(
            field.to_string(),
            FaultKind::Missing {
                expected: "ip, mac and qpn of the member's queue pair",
            },
        ));
    };
    let first = rule::host(
        &field,
        &v1::HostEndpoint {
            name: host.into(),
            ip,
            mac,
            qpn,
            part: memory.map(Part::Memory),
        },
    )?;
    let mut ends: Vec<HostEndpoint> = vec![first];
    if more_lanes.len() >= usize::from(LANES_MAX) {
        let kind = FaultKind::OutOfRange {
            value: (more_lanes.len() + 1).to_string(),
            why: "is no number of lanes: a group has 1 to 16",
        };
        return Err(Invalid::one(format!("{field}.more_lanes"), kind));
    }
    for (i, v1::LaneConnection { qpn, memory }) in more_lanes.into_iter().enumerate() {
        let field = format_args!("{field}.more_lanes[{i}]");
        let message = v1::HostEndpoint {
            qpn,
            part: memory.map(Part::Memory),
            ..rule::host_to_proto(&ends[0])
        };
        let end = rule::host(field, &message)?;
        if ends.iter().any(|e| e.qpn == end.qpn) {
            let kind = FaultKind::OutOfRange {
                value: qpn.to_string(),
                why: "is the queue pair of another lane: each has one of its own",
            };
            return Err(Invalid::one(format!("{field}.qpn"), kind));
        }
        ends.push(end);
    }
    Ok(ends)
}

/// A member's ends of its connections, the first lane's first, as a message.
pub fn connection_to_proto<'e>(ends: impl IntoIterator<Item = &'e HostEndpoint>) -> v1::Connection {
    let mut ends = ends
        .into_iter()
        .map(|end| (end, end.memory().map(memory_to_proto)));
    let Some((first, memory)) = ends.next() else {
        return v1::Connection::default();
    };
    v1::Connection {
        ip: first.ip.to_string(),
        mac: first.mac.to_string(),
        qpn: first.qpn.value(),
        memory,
        more_lanes: ends
            .map(|(end, memory)| v1::LaneConnection {
                qpn: end.qpn.value(),
                memory,
            })
            .collect(),
    }
}

/// A host that makes itself known.
///
/// # Errors
/// Every fault.
pub fn registration_from_proto(message: &v1::RegisterHostRequest) -> Result<GivenHost, Invalid> {
    // By the rules of a member; any QPN will do.
    let v1::RegisterHostRequest { name, ip, mac } = message.clone();
    let name = name_from_proto("name", &name)?;
    let host = rule::host(
        "",
        &v1::HostEndpoint {
            name,
            ip,
            mac,
            qpn: 2,
            part: None,
        },
    )?;
    Ok(GivenHost {
        name: host.name,
        ip: host.ip,
        mac: host.mac,
    })
}

/// A filter; absent: all frames.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn filter_from_proto(field: &str, message: Option<&v1::FrameFilter>) -> Result<FrameFilter, Invalid> {
    let Some(message) = message else {
        return Ok(FrameFilter::default());
    };
    let mut faults = Vec::new();
    let reason = |name: &String| {
        let known = DropReason::ALL.iter().copied().find(|r| r.name() == name);
        let expected = "a drop reason, such as bad-icrc; `castnet drops --all` lists them";
        known.ok_or_else(|| FaultKind::BadText {
            value: shorten(name),
            expected,
        })
    };
    let filter = FrameFilter {
        port: message.port.and_then(|v| take(&mut faults, "port", port(v))),
        mcst_id: message
            .mcst_id
            .as_ref()
            .and_then(|v| take(&mut faults, "mcst_id", mcst_id(v))),
        src_ip: message
            .src_ip
            .as_ref()
            .and_then(|v| take(&mut faults, "src_ip", ip(v))),
        dst_ip: message
            .dst_ip
            .as_ref()
            .and_then(|v| take(&mut faults, "dst_ip", ip(v))),
        drops_only: message.drops_only,
        drop_reason: message
            .drop_reason
            .as_ref()
            .and_then(|v| take(&mut faults, "drop_reason", reason(v))),
    };
    finish(
        Some(filter),
        faults.into_iter().map(|f| f.within(field)).collect(),
    )
}

/// The name of a group or host: letters, digits, `-`, `_` and `.`, at most 63 of them.
///
/// # Errors
/// Names `field`.
pub fn name_from_proto(field: &str, text: &str) -> Result<String, Invalid> {
    name(text).map_err(|kind| Invalid::one(field, kind))
}

/// A McstID.
///
/// # Errors
/// Names `field`.
pub fn mcst_id_from_proto(field: &str, text: &str) -> Result<McstId, Invalid> {
    mcst_id(text).map_err(|kind| Invalid::one(field, kind))
}

/// A port's number.
///
/// # Errors
/// Names `field`.
pub fn port_from_proto(field: &str, value: u32) -> Result<PortId, Invalid> {
    port(value).map_err(|kind| Invalid::one(field, kind))
}

pub(super) fn name(text: &str) -> Result<String, FaultKind> {
    let expected = "a name: 1 to 63 letters, digits, '-', '_' or '.'";
    let fits = text.len() <= NAME_LENGTH_MAX;
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    match text {
        "" => Err(FaultKind::Missing { expected }),
        _ if fits && plain => Ok(text.into()),
        _ => Err(FaultKind::BadText {
            value: shorten(text),
            expected,
        }),
    }
}

pub(super) fn unicast_mcst_id(text: &str) -> Result<McstId, FaultKind> {
    let expected = "a McstID: a unicast IPv4 address that no host has, such as 10.200.0.1";
    let id: Ipv4Addr = parse(text, expected)?;
    let usable = !id.is_loopback() && (1..224).contains(&id.octets()[0]);
    if usable {
        Ok(McstId(id))
    } else {
        Err(FaultKind::BadText {
            value: text.into(),
            expected,
        })
    }
}
