//! The checks of rules that types cannot express.

use std::collections::BTreeMap;

use core::fmt;
use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, PortId, Qpn};

use crate::draft::{EndpointDraft, GroupDraft, HopDraft, HostDraft, PartDraft, RouteDraft, SwitchDraft};
use crate::fault::{Fault, FaultKind};
use crate::group::ENDPOINTS_MAX;
use crate::index::GroupIndex;

const NAME_LENGTH_MAX: usize = 64;

/// The field of a next hop: index of its endpoint, and `host` or `switch`. Formatted only for a fault.
#[derive(Clone, Copy)]
struct HopField(usize, &'static str);

impl fmt::Display for HopField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoints[{}].{}", self.0, self.1)
    }
}

impl GroupDraft {
    /// Every fault on a switch with `ports` ports, with fields relative to the group. Skips missing fields.
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
        if let Some(kind) = &self.kind {
            kind.check(self.endpoints.as_deref(), &mut faults);
        }
        if let Some(endpoints) = &self.endpoints {
            if endpoints.len() < 2 {
                let endpoints = endpoints.len();
                faults.push(Fault::new("endpoints", FaultKind::TooFewEndpoints { endpoints }));
            }
            if endpoints.len() > ENDPOINTS_MAX {
                let (endpoints, max) = (endpoints.len(), ENDPOINTS_MAX);
                faults.push(Fault::new(
                    "endpoints",
                    FaultKind::TooManyEndpoints { endpoints, max },
                ));
            }
            self.check_endpoints(endpoints, ports, &mut faults);
        }
        faults
    }

    fn check_endpoints(&self, endpoints: &[EndpointDraft], ports: usize, faults: &mut Vec<Fault>) {
        let mut name_of: BTreeMap<&str, HopField> = BTreeMap::new();
        let mut qp_of: BTreeMap<(Ipv4Addr, Qpn), HopField> = BTreeMap::new();
        for (i, endpoint) in endpoints.iter().enumerate() {
            if let Some(port) = endpoint.port.filter(|port| port.index() >= ports) {
                let kind = FaultKind::NoSuchPort { port, ports };
                faults.push(Fault::new(format!("endpoints[{i}].port"), kind));
            }
            if let Some(qpn) = endpoint.virtual_qpn.filter(|q| reserved_virtual(*q)) {
                let kind = FaultKind::ReservedVirtualQpn { qpn };
                faults.push(Fault::new(format!("endpoints[{i}].virtual_qpn"), kind));
            }
            let (kind, name, mac) = match &endpoint.next_hop {
                Some(HopDraft::Host(host)) => ("host", &host.name, host.mac),
                Some(HopDraft::Switch(switch)) => ("switch", &switch.name, switch.mac),
                None => continue,
            };
            let adjacent = endpoint.next_hop.as_ref().and_then(HopDraft::ip) == Some(None);
            let hop = HopField(i, kind);
            if let Some(name) = name.as_deref() {
                if let Some(kind) = bad_name(name) {
                    faults.push(Fault::new(format!("{hop}.name"), kind));
                } else if let Some(first) = name_of.get(name) {
                    let kind = FaultKind::DuplicateName {
                        name: name.into(),
                        first: first.to_string(),
                    };
                    faults.push(Fault::new(format!("{hop}.name"), kind));
                } else {
                    name_of.insert(name, hop);
                }
            }
            // The switch resolves an unspecified MAC address if the next hop has an IP address.
            let given = mac.filter(|mac| *mac != MacAddr::UNSPECIFIED || adjacent);
            if let Some(kind) = given.and_then(bad_mac) {
                faults.push(Fault::new(format!("{hop}.mac"), kind));
            }
            match &endpoint.next_hop {
                Some(HopDraft::Host(host)) => self.check_host(host, hop, faults),
                Some(HopDraft::Switch(switch)) => self.check_switch(switch, hop, faults),
                None => {}
            }
            if let Some((ip, qpn)) = endpoint.next_hop.as_ref().and_then(HopDraft::qp) {
                if let Some(first) = qp_of.get(&(ip, qpn)) {
                    let first = first.to_string();
                    let kind = FaultKind::DuplicateMember { ip, qpn, first };
                    faults.push(Fault::new(format!("{hop}.qpn"), kind));
                } else {
                    qp_of.insert((ip, qpn), hop);
                }
            }
        }
        check_senders(endpoints, faults);
    }

    fn check_host(&self, host: &HostDraft, hop: HopField, faults: &mut Vec<Fault>) {
        if let Some(ip) = host.ip {
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
        if let Some(qpn) = host.qpn.filter(|q| reserved(*q)) {
            faults.push(Fault::new(format!("{hop}.qpn"), FaultKind::ReservedQpn { qpn }));
        }
        if let Some(PartDraft::Memory(memory)) = host.part {
            let field = || format!("{hop}.memory.length");
            if memory.length == 0 {
                faults.push(Fault::new(field(), FaultKind::EmptyMemory));
            } else if memory.va.checked_add(memory.length - 1).is_none() {
                let kind = FaultKind::MemoryWraps {
                    va: memory.va,
                    length: memory.length,
                };
                faults.push(Fault::new(field(), kind));
            }
        }
    }

    fn check_switch(&self, switch: &SwitchDraft, hop: HopField, faults: &mut Vec<Fault>) {
        if let Some(ip) = switch.ip.flatten() {
            if let Some(kind) = bad_ip(ip) {
                faults.push(Fault::new(format!("{hop}.ip"), kind));
            } else if self.mcst_id.is_some_and(|m| m.0 == ip) {
                faults.push(Fault::new(format!("{hop}.ip"), FaultKind::SwitchIsMcstId { ip }));
            }
        }
        if let Some(qpn) = switch.qpn.filter(|q| reserved_virtual(*q)) {
            let kind = FaultKind::ReservedVirtualQpn { qpn };
            faults.push(Fault::new(format!("{hop}.qpn"), kind));
        }
    }
}

/// Each frame must belong to one endpoint. Endpoints with unread fields are skipped.
fn check_senders(endpoints: &[EndpointDraft], faults: &mut Vec<Fault>) {
    let mut senders: BTreeMap<(PortId, Qpn), Senders> = BTreeMap::new();
    for (i, endpoint) in endpoints.iter().enumerate() {
        let (Some(port), Some(virtual_qpn), Some(hop)) =
            (endpoint.port, endpoint.virtual_qpn, &endpoint.next_hop)
        else {
            continue;
        };
        let Some(src) = hop.ip() else { continue };
        let senders_here = senders.entry((port, virtual_qpn)).or_default();
        if let Some(first) = senders_here.insert(i, src) {
            let kind = FaultKind::AmbiguousEndpoint {
                port,
                virtual_qpn,
                first: format!("endpoints[{first}]"),
            };
            faults.push(Fault::new(format!("endpoints[{i}]"), kind));
        }
    }
}

/// Endpoints with one port and QPN: `any` accepts frames from every source address, those in `by_ip` from one.
#[derive(Default)]
struct Senders {
    any: Option<usize>,
    by_ip: BTreeMap<Ipv4Addr, usize>,
}

impl Senders {
    /// Returns an earlier endpoint that could have sent the same frame.
    fn insert(&mut self, endpoint: usize, src: Option<Ipv4Addr>) -> Option<usize> {
        let first = match src {
            Some(ip) => self.by_ip.get(&ip).copied(),
            None => self.by_ip.values().copied().min(),
        };
        let first = self.any.or(first);
        match src {
            Some(ip) => _ = self.by_ip.entry(ip).or_insert(endpoint),
            None => self.any = self.any.or(Some(endpoint)),
        }
        first
    }
}

/// Checks the groups of a switch, each alone and against the earlier ones.
pub(crate) struct Groups {
    index: GroupIndex,
    ports: usize,
}

impl Groups {
    pub(crate) fn new(ports: usize) -> Self {
        let index = GroupIndex::default();
        Self { index, ports }
    }

    /// Every fault of the next group, with fields relative to the group.
    pub(crate) fn check(&mut self, group: &GroupDraft) -> Vec<Fault> {
        let claims = group.into();
        let mut faults = group.check(self.ports);
        faults.extend(self.index.check(&claims, None));
        self.index.insert(&claims);
        faults
    }
}

/// Every fault of the routes of a switch, alone and between them. Fields begin with `routes[i]`.
pub(crate) fn routes(routes: &[RouteDraft], ports: usize) -> Vec<Fault> {
    let mut faults = Vec::new();
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
            Some(hops) => next_hops(hops, &field, ports, &mut faults),
            None => {}
        }
    }
    faults
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
    let length_fits = (1..=NAME_LENGTH_MAX).contains(&name.chars().count());
    let is_printable = name.chars().all(|c| !c.is_control() && !c.is_whitespace());
    (!length_fits || !is_printable).then(|| FaultKind::BadName { name: name.into() })
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
        MacAddr::UNSPECIFIED => "no address",
        _ if mac.is_multicast() => "a multicast address",
        _ => return None,
    };
    Some(FaultKind::NotUnicastMac { mac, class })
}

fn reserved_virtual(qpn: Qpn) -> bool {
    matches!(qpn.value(), 0 | 0xFF_FFFF)
}

pub(crate) fn reserved(qpn: Qpn) -> bool {
    matches!(qpn.value(), 0 | 1 | 0xFF_FFFF)
}
