//! Requests, filters and what else hosts and operators send.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_rules::{DEFAULT_STALL_TIMEOUT_MS, Fault, FaultKind, HostEndpoint};
use castnet_wire::{DropReason, MacAddr, McstId, Pmtu, PortId, Psn};

use super::{Invalid, finish, group, ip, mcst_id, parse, pmtu, port, psn, shorten, take};
use crate::v1;

const NAME_LENGTH_MAX: usize = 63;

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
}

/// A member of a [`NewGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// The host's name.
    pub host: String,
    /// Its end of the connection, where it counts as joined at once.
    pub endpoint: Option<HostEndpoint>,
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
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut qp_of = BTreeMap::new();
    let mut members = Vec::with_capacity(message.members.len());
    for (i, member) in message.members.iter().enumerate() {
        let field = format!("members[{i}]");
        let Some(host) = take(&mut faults, &format!("{field}.host"), self::name(&member.host)) else {
            continue;
        };
        if let Some(first) = first_of.insert(&member.host, i) {
            let kind = FaultKind::DuplicateName {
                name: host.clone(),
                first: format!("members[{first}]"),
            };
            faults.push(Fault::new(format!("{field}.host"), kind));
        }
        let field = format!("{field}.connection");
        let endpoint = match &member.connection {
            None => None,
            Some(connection) => match connection_from_proto(&field, &host, Some(connection)) {
                Ok(endpoint) => Some(endpoint),
                Err(Invalid(more)) => {
                    faults.extend(more);
                    continue;
                }
            },
        };
        if let Some(endpoint) = &endpoint
            && let Some(first) = qp_of.insert(endpoint.ip, i)
        {
            let kind = FaultKind::DuplicateMemberIp {
                ip: endpoint.ip,
                first: format!("members[{first}]"),
            };
            faults.push(Fault::new(format!("{field}.ip"), kind));
        }
        members.push(NewMember { host, endpoint });
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
    });
    finish(group, faults)
}

/// A member's end of its connection.
///
/// # Errors
/// Every fault, with fields below `field`.
pub fn connection_from_proto(
    field: &str,
    host: &str,
    message: Option<&v1::Connection>,
) -> Result<HostEndpoint, Invalid> {
    let Some(v1::Connection { ip, mac, qpn, memory }) = message.cloned() else {
        return Err(Invalid::one(
            field,
            FaultKind::Missing {
                expected: "ip, mac and qpn of the member's queue pair",
            },
        ));
    };
    group::host(
        field,
        &v1::HostEndpoint {
            name: host.into(),
            ip,
            mac,
            qpn,
            memory,
        },
    )
}

/// A member's end of its connection as a message.
pub fn connection_to_proto(host: &HostEndpoint) -> v1::Connection {
    let v1::HostEndpoint {
        ip, mac, qpn, memory, ..
    } = group::host_to_proto(host);
    v1::Connection { ip, mac, qpn, memory }
}

/// A host that makes itself known.
///
/// # Errors
/// Every fault.
pub fn registration_from_proto(message: &v1::RegisterHostRequest) -> Result<GivenHost, Invalid> {
    // By the rules of a member; any QPN will do.
    let v1::RegisterHostRequest { name, ip, mac } = message.clone();
    let name = name_from_proto("name", &name)?;
    let host = group::host(
        "",
        &v1::HostEndpoint {
            name,
            ip,
            mac,
            qpn: 2,
            memory: None,
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
