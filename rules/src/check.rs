//! The rules that types cannot say, once.

use std::collections::BTreeMap;

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, PortId, Qpn};

use crate::collective_draft::{CollectiveDraft, CollectiveHopDraft};
use crate::draft::{GroupDraft, HopDraft, MemberDraft, RouteDraft};
use crate::fault::{Fault, FaultKind};

const NAME_LENGTH_MAX: usize = 64;

impl GroupDraft {
    /// Every rule that what is known of this group breaks on a switch with `ports` ports; fields are relative to the
    /// group.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |field: &str, kind| faults.push(Fault::new(field, kind));
        if let Some(kind) = self.name.as_deref().and_then(bad_name) {
            fault("name", kind);
        }
        if let Some(kind) = self.mcst_id.and_then(|m| bad_ip(m.0)) {
            fault("mcst_id", kind);
        }
        if self.stall_timeout_ms == Some(0) {
            fault("stall_timeout_ms", FaultKind::ZeroStallTimeout);
        }
        let Some(paths) = &self.paths else {
            return faults;
        };
        if let Some(source_port) = self.source {
            // A port that could not be read may be the source's: silence until it is known.
            let known: Option<Vec<PortId>> = paths.iter().map(|p| p.port).collect();
            if let Some(ports) = known.filter(|ports| !ports.contains(&source_port)) {
                fault("source", FaultKind::SourceNotAPath { source_port, ports });
            }
        }
        if paths.len() < 2 {
            fault("paths", FaultKind::TooFewPaths { paths: paths.len() });
        }
        self.check_paths(ports, &mut faults);
        faults
    }

    fn check_paths(&self, ports: usize, faults: &mut Vec<Fault>) {
        let mut port_of: BTreeMap<PortId, usize> = BTreeMap::new();
        let mut name_of: BTreeMap<&str, String> = BTreeMap::new();
        let mut ip_of: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
        for (i, path) in self.paths.iter().flatten().enumerate() {
            if let Some(port) = path.port {
                let field = format!("paths[{i}].port");
                if port.index() >= ports {
                    faults.push(Fault::new(field.clone(), FaultKind::NoSuchPort { port, ports }));
                }
                if let Some(first) = port_of.get(&port) {
                    let first = format!("paths[{first}]");
                    faults.push(Fault::new(field, FaultKind::DuplicatePort { port, first }));
                } else {
                    port_of.insert(port, i);
                }
            }
            let (kind, name, mac) = match &path.next_hop {
                Some(HopDraft::Host(member)) => ("host", &member.name, member.mac),
                Some(HopDraft::Switch { name, mac }) => ("switch", name, *mac),
                None => continue,
            };
            let hop = format!("paths[{i}].{kind}");
            if let Some(name) = name.as_deref() {
                if let Some(kind) = bad_name(name) {
                    faults.push(Fault::new(format!("{hop}.name"), kind));
                } else if let Some(first) = name_of.get(name).cloned() {
                    let kind = FaultKind::DuplicateName {
                        name: name.into(),
                        first,
                    };
                    faults.push(Fault::new(format!("{hop}.name"), kind));
                } else {
                    name_of.insert(name, hop.clone());
                }
            }
            if let Some(kind) = mac.and_then(bad_mac) {
                faults.push(Fault::new(format!("{hop}.mac"), kind));
            }
            if let Some(HopDraft::Host(member)) = &path.next_hop {
                self.check_member(member, &hop, faults);
                if let Some(ip) = member.ip {
                    if let Some(first) = ip_of.get(&ip) {
                        let kind = FaultKind::DuplicateMemberIp {
                            ip,
                            first: format!("paths[{first}].host"),
                        };
                        faults.push(Fault::new(format!("{hop}.ip"), kind));
                    } else {
                        ip_of.insert(ip, i);
                    }
                }
            }
        }
    }

    fn check_member(&self, member: &MemberDraft, hop: &str, faults: &mut Vec<Fault>) {
        if let Some(ip) = member.ip {
            if let Some(kind) = bad_ip(ip) {
                faults.push(Fault::new(format!("{hop}.ip"), kind));
            } else if self.mcst_id.is_some_and(|m| m.0 == ip) {
                let kind = FaultKind::MemberIsMcstId {
                    ip,
                    group: "this group".into(),
                };
                faults.push(Fault::new(format!("{hop}.ip"), kind));
            }
        }
        if let Some(qpn) = member.qpn.filter(|q| reserved(*q)) {
            faults.push(Fault::new(format!("{hop}.qpn"), FaultKind::ReservedQpn { qpn }));
        }
        if let Some(Some(memory)) = member.memory {
            let field = format!("{hop}.memory.length");
            if memory.length == 0 {
                faults.push(Fault::new(field, FaultKind::EmptyMemory));
            } else if memory.va.checked_add(memory.length - 1).is_none() {
                let kind = FaultKind::MemoryWraps {
                    va: memory.va,
                    length: memory.length,
                };
                faults.push(Fault::new(field, kind));
            }
        }
    }
}

/// What of one group others may clash with.
struct Claims<'a> {
    /// Its field.
    field: String,
    name: Option<&'a str>,
    mcst_id: Option<McstId>,
    /// The field of each member with its address and QP.
    members: Vec<(String, Ipv4Addr, Option<Qpn>)>,
}

impl<'a> Claims<'a> {
    fn multicast(i: usize, group: &'a GroupDraft) -> Self {
        let members = group.paths.iter().flatten().enumerate().filter_map(|(j, path)| {
            let Some(HopDraft::Host(member)) = &path.next_hop else {
                return None;
            };
            Some((format!("paths[{j}].host"), member.ip?, member.qpn))
        });
        Self {
            field: format!("groups[{i}]"),
            name: group.name.as_deref(),
            mcst_id: group.mcst_id,
            members: members.collect(),
        }
    }

    fn collective(i: usize, group: &'a CollectiveDraft) -> Self {
        let members = group
            .endpoints
            .iter()
            .flatten()
            .enumerate()
            .filter_map(|(j, end)| {
                let Some(CollectiveHopDraft::Rank(rank)) = &end.next_hop else {
                    return None;
                };
                Some((format!("endpoints[{j}].rank"), rank.ip?, rank.qpn))
            });
        Self {
            field: format!("collectives[{i}]"),
            name: group.name.as_deref(),
            mcst_id: group.mcst_id,
            members: members.collect(),
        }
    }
}

/// The rules between the groups of one switch, of either kind; fields start with `groups[i]` or `collectives[i]`.
pub(crate) fn between_groups(
    groups: &[GroupDraft],
    collectives: &[CollectiveDraft],
    faults: &mut Vec<Fault>,
) {
    let claims: Vec<Claims<'_>> = groups
        .iter()
        .enumerate()
        .map(|(i, group)| Claims::multicast(i, group))
        .chain(
            collectives
                .iter()
                .enumerate()
                .map(|(i, group)| Claims::collective(i, group)),
        )
        .collect();
    let mut name_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut mcst_of: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for (i, group) in claims.iter().enumerate() {
        if let Some(name) = group.name {
            if let Some(first) = name_of.get(name) {
                let first = claims[*first].field.clone();
                let name = name.into();
                let kind = FaultKind::DuplicateName { name, first };
                faults.push(Fault::new(format!("{}.name", group.field), kind));
            } else {
                name_of.insert(name, i);
            }
        }
        if let Some(mcst_id) = group.mcst_id {
            if let Some(first) = mcst_of.get(&mcst_id.0) {
                let first = claims[*first].field.clone();
                let kind = FaultKind::DuplicateMcstId { mcst_id, first };
                faults.push(Fault::new(format!("{}.mcst_id", group.field), kind));
            } else {
                mcst_of.insert(mcst_id.0, i);
            }
        }
    }
    let mut qp_of: BTreeMap<(Ipv4Addr, Qpn), (usize, &str)> = BTreeMap::new();
    for (i, group) in claims.iter().enumerate() {
        for (field, ip, qpn) in &group.members {
            let (ip, member) = (*ip, format!("{}.{field}", group.field));
            if let Some(other) = mcst_of.get(&ip).filter(|other| **other != i) {
                let group = claims[*other].field.clone();
                let kind = FaultKind::MemberIsMcstId { ip, group };
                faults.push(Fault::new(format!("{member}.ip"), kind));
            }
            let Some(qpn) = *qpn else { continue };
            match qp_of.get(&(ip, qpn)) {
                // Within one group the address alone is twice already.
                Some((first, _)) if *first == i => {}
                Some((first, path)) => {
                    let path = path.rsplit_once('.').map_or(*path, |(endpoint, _)| endpoint);
                    let first = format!("{}.{path}", claims[*first].field);
                    let kind = FaultKind::DuplicateQp { ip, qpn, first };
                    faults.push(Fault::new(format!("{member}.qpn"), kind));
                }
                None => {
                    qp_of.insert((ip, qpn), (i, field));
                }
            }
        }
    }
}

/// The rules of routes, alone and between them; fields start with `routes[i]`.
pub(crate) fn routes(routes: &[RouteDraft], ports: usize, faults: &mut Vec<Fault>) {
    let mut first_of = BTreeMap::new();
    for (i, route) in routes.iter().enumerate() {
        if let Some(prefix) = route.prefix {
            let field = format!("routes[{i}].prefix");
            let network = prefix.trunc();
            if network != prefix {
                faults.push(Fault::new(field, FaultKind::HostBits { prefix, network }));
            } else if let Some(first) = first_of.get(&network) {
                let kind = FaultKind::DuplicatePrefix {
                    prefix,
                    first: format!("routes[{first}]"),
                };
                faults.push(Fault::new(field, kind));
            } else {
                first_of.insert(network, i);
            }
        }
        let field = format!("routes[{i}].next_hops");
        match &route.next_hops {
            Some(hops) if hops.is_empty() => faults.push(Fault::new(field, FaultKind::NoNextHops)),
            Some(hops) => next_hops(hops, &field, ports, faults),
            None => {}
        }
    }
}

fn next_hops(hops: &[(Option<PortId>, Option<MacAddr>)], field: &str, ports: usize, faults: &mut Vec<Fault>) {
    let mut first_of = BTreeMap::new();
    for (i, hop) in hops.iter().enumerate() {
        let field = format!("{field}[{i}]");
        if let Some(port) = hop.0.filter(|p| p.index() >= ports) {
            faults.push(Fault::new(
                format!("{field}.port"),
                FaultKind::NoSuchPort { port, ports },
            ));
        }
        if let Some(kind) = hop.1.and_then(bad_mac) {
            faults.push(Fault::new(format!("{field}.mac"), kind));
        }
        if let (Some(port), Some(mac)) = hop {
            if let Some(first) = first_of.get(&(port, mac)) {
                let first = format!("next_hops[{first}]");
                faults.push(Fault::new(field, FaultKind::DuplicateNextHop { first }));
            } else {
                first_of.insert((port, mac), i);
            }
        }
    }
}

pub(crate) fn bad_name(name: &str) -> Option<FaultKind> {
    let fits = (1..=NAME_LENGTH_MAX).contains(&name.chars().count());
    let shows = name.chars().all(|c| !c.is_control() && !c.is_whitespace());
    (!fits || !shows).then(|| FaultKind::BadName { name: name.into() })
}

pub(crate) fn bad_ip(ip: Ipv4Addr) -> Option<FaultKind> {
    let class = match ip {
        _ if ip.octets()[0] == 0 => "not an address of a host (0.0.0.0/8)",
        _ if ip.is_loopback() => "a loopback address",
        _ if ip.is_multicast() => "an IP multicast address",
        _ if ip.octets()[0] >= 240 => "a broadcast or reserved address",
        _ => return None,
    };
    Some(FaultKind::NotUnicastIp { ip, class })
}

pub(crate) fn bad_mac(mac: MacAddr) -> Option<FaultKind> {
    let class = match mac {
        MacAddr::BROADCAST => "the broadcast address",
        _ if mac.is_multicast() => "a multicast address",
        _ if mac == MacAddr::default() => "no address",
        _ => return None,
    };
    Some(FaultKind::NotUnicastMac { mac, class })
}

pub(crate) fn reserved(qpn: Qpn) -> bool {
    matches!(qpn.value(), 0 | 1 | 0xFF_FFFF)
}
