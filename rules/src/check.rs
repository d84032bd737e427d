//! The checks of rules that types cannot express.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use core::fmt::{self, Display};
use core::net::Ipv4Addr;

use castnet_wire::ipv4::is_forwarded_multicast;
use castnet_wire::{MacAddr, Pmtu, PortId, Qpn, RateLimit};
use foldhash::fast::FixedState;
use ipnet::Ipv4Net;

use crate::fault::{Fault, FaultKind};
use crate::group::{ENDPOINTS_MAX, GroupRule, HostEndpoint, HostPart, NextHop};
use crate::index::{GroupIndex, NamedBy};
use crate::route::{Route, RouteHop};

const NAME_LENGTH_MAX: usize = 64;
/// Most bytes of headers and ICRC around the payload of a frame, with two VLAN tags and IPv4 options.
const HEADERS_MAX: u64 = 128;

/// Paths of the fields of a rule that could not be read. Each of them has a fault already. No other one is reported of
/// it, or of a field in it.
///
/// The value of such a field is a placeholder: an empty text or list, an unspecified address, QPN 0, rank 65535, port 0.
/// Most placeholders are faults by themselves, and values that are faults by themselves are not compared with others.
#[derive(Clone, Debug, Default)]
pub struct Unread(pub BTreeSet<String>);

impl Unread {
    /// Whether `field`, or a list or table that it is in, could not be read.
    #[inline]
    pub fn has(&self, field: impl Display) -> bool {
        !self.0.is_empty() && self.has_field(&field.to_string())
    }

    fn has_field(&self, field: &str) -> bool {
        let outer = field.match_indices(['.', '[']).map(|(end, _)| &field[..end]);
        outer.chain([field]).any(|path| self.0.contains(path))
    }

    #[inline]
    pub(crate) fn has_hop(&self, endpoint: usize) -> bool {
        let has = |hop| self.has(format_args!("endpoints[{endpoint}].{hop}"));
        has("host") || has("switch")
    }
}

/// The field of a next hop: index of its endpoint, and `host` or `switch`. Formatted only for a fault.
#[derive(Clone, Copy)]
struct HopField(usize, &'static str);

impl Display for HopField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoints[{}].{}", self.0, self.1)
    }
}

impl GroupRule {
    /// Every fault on a switch with `ports` ports, relative to the group. A group without faults may be installed.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        self.check_read(ports, &Unread::default())
    }

    /// [`check`](Self::check) for a group that was read with faults: reports the faults of the other fields.
    pub fn check_read(&self, ports: usize, unread: &Unread) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |field: &str, kind| faults.push(Fault::new(field, kind));
        if let Some(kind) = bad_name(&self.name) {
            fault("name", kind);
        }
        if let Some(kind) = bad_ip(self.mcst_id.0) {
            fault("mcst_id", kind);
        }
        if self.stall_timeout_ms == 0 {
            fault("stall_timeout_ms", FaultKind::ZeroStallTimeout);
        }
        if let Some(kind) = self.rate_limit.and_then(|limit| bad_burst(limit, self.pmtu, 1)) {
            fault("rate_limit.burst_bytes", kind);
        }
        if !unread.has("kind") {
            self.kind.fields().check(&self.endpoints, unread, &mut faults);
        }
        let endpoints = self.endpoints.len();
        if endpoints < 2 {
            faults.push(Fault::new("endpoints", FaultKind::TooFewEndpoints { endpoints }));
        }
        if endpoints > ENDPOINTS_MAX {
            let max = ENDPOINTS_MAX;
            let kind = FaultKind::TooManyEndpoints { endpoints, max };
            faults.push(Fault::new("endpoints", kind));
        }
        self.check_endpoints(ports, unread, &mut faults);
        self.check_core(unread, &mut faults);
        faults.retain(|fault| !unread.has(&fault.field));
        faults
    }

    fn check_core(&self, unread: &Unread, faults: &mut Vec<Fault>) {
        let mut first_of = BTreeMap::new();
        for (i, hop) in self.endpoints.iter().map(|e| &e.next_hop).enumerate() {
            let Some(address) = hop.core().filter(|_| !unread.has_hop(i)) else {
                continue;
            };
            let mut fault = |kind| faults.push(Fault::new(format!("endpoints[{i}].switch.core"), kind));
            if !is_replicable(&address.into()) {
                fault(FaultKind::NotCoreAddress { address });
            }
            if hop.ip().is_none() && !unread.has(format_args!("endpoints[{i}].switch.ip")) {
                fault(FaultKind::CoreNeedsIp);
            }
            match self.multicast() {
                Some(rule) if rule.any_source.is_some() => fault(FaultKind::CoreOfAnySource),
                None if !unread.has("kind") => fault(FaultKind::CoreOfNoMulticast),
                _ => {}
            }
            let (first, qpn) = *first_of.entry(address).or_insert((i, hop.qpn()));
            if qpn != hop.qpn() && !unread.has(format_args!("endpoints[{first}].switch.qpn")) {
                let first = format!("endpoints[{first}].switch");
                fault(FaultKind::CoreQpnDiffers { first });
            }
        }
    }

    fn check_endpoints(&self, ports: usize, unread: &Unread, faults: &mut Vec<Fault>) {
        let mut ips: Vec<Option<Ipv4Addr>> = self.endpoints.iter().map(|e| e.next_hop.ip()).collect();
        ips.sort_unstable();
        // Endpoints with addresses of their own differ in their QPs, and their frames do.
        let own_ips =
            ips.first().is_some_and(Option::is_some) && ips.windows(2).all(|pair| pair[0] != pair[1]);
        let mut name_of: HashMap<&str, u32, FixedState> =
            HashMap::with_capacity_and_hasher(self.endpoints.len(), FixedState::default());
        let mut qp_of: BTreeMap<(Ipv4Addr, Qpn), u32> = BTreeMap::new();
        let field_of = |i: u32| HopField(i as usize, self.endpoints[i as usize].next_hop.kind());
        let mut at_port = [0; PortId::COUNT];
        for endpoint in &self.endpoints {
            at_port[endpoint.port.index()] += 1;
        }
        let mut senders: BTreeMap<(PortId, Qpn), Senders> = BTreeMap::new();
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            let (port, virtual_qpn) = (endpoint.port, endpoint.virtual_qpn);
            if port.index() >= ports {
                let kind = FaultKind::NoSuchPort { port, ports };
                faults.push(Fault::new(format!("endpoints[{i}].port"), kind));
            }
            if let Some(kind) = bad_virtual_qpn(virtual_qpn) {
                faults.push(Fault::new(format!("endpoints[{i}].virtual_qpn"), kind));
            }
            if unread.has_hop(i) {
                continue;
            }
            let receives = self.multicast().is_some_and(|rule| usize::from(rule.source) != i);
            if endpoint.joining && !(receives && endpoint.next_hop.host().is_some()) {
                let field = format!("endpoints[{i}].joining");
                faults.push(Fault::new(field, FaultKind::JoinsNoStream));
            }
            let (hop, name) = (HopField(i, endpoint.next_hop.kind()), endpoint.next_hop.name());
            let mut fault = |field: &str, kind| faults.push(Fault::new(format!("{hop}.{field}"), kind));
            if bad_name(name).is_none() {
                let first = *name_of.entry(name).or_insert(i as u32);
                if first != i as u32 {
                    let (name, first) = (name.into(), field_of(first).to_string());
                    fault("name", FaultKind::DuplicateName { name, first });
                }
            }
            let ip = endpoint.next_hop.ip();
            if let Some(ip) = ip.filter(|ip| *ip == self.mcst_id.0 && bad_ip(*ip).is_none()) {
                let group = "this group".into();
                let kind = match &endpoint.next_hop {
                    NextHop::Host(_) => FaultKind::MemberIsMcstId { ip, group },
                    NextHop::Switch { .. } => FaultKind::SwitchIsMcstId { ip },
                };
                fault("ip", kind);
            }
            for Fault { field, kind } in endpoint.next_hop.check() {
                fault(&field, kind);
            }
            if let Some((ip, qpn)) = endpoint.next_hop.qp().filter(|_| !own_ips) {
                let first = *qp_of.entry((ip, qpn)).or_insert(i as u32);
                if first != i as u32 {
                    let first = field_of(first).to_string();
                    fault("qpn", FaultKind::DuplicateMember { ip, qpn, first });
                }
            }
            // Each frame must belong to one endpoint.
            let comparable = !own_ips
                && at_port[port.index()] > 1
                && bad_virtual_qpn(virtual_qpn).is_none()
                && ip != Some(Ipv4Addr::UNSPECIFIED)
                && !unread.has(format_args!("endpoints[{i}].port"));
            if comparable
                && let Some(first) = senders
                    .entry((port, virtual_qpn))
                    .or_default()
                    .insert(i as u32, ip)
            {
                let kind = FaultKind::AmbiguousEndpoint {
                    port,
                    virtual_qpn,
                    first: format!("endpoints[{first}]"),
                };
                faults.push(Fault::new(format!("endpoints[{i}]"), kind));
            }
        }
    }
}

impl NextHop {
    fn check(&self) -> Vec<Fault> {
        match self {
            Self::Host(host) => host.check(),
            Self::Switch {
                name, ip, qpn, mac, ..
            } => all_of([
                ("name", bad_name(name)),
                ("mac", bad_hop_mac(*mac, ip.is_some())),
                ("ip", ip.and_then(bad_ip)),
                ("qpn", bad_virtual_qpn(*qpn)),
            ]),
        }
    }
}

impl HostEndpoint {
    /// Every fault of the host by itself, relative to the host.
    pub fn check(&self) -> Vec<Fault> {
        let qpn = self.qpn;
        let reserved = matches!(qpn.value(), 0 | 1 | 0xFF_FFFF);
        let memory = match self.part {
            HostPart::Memory(memory) if memory.length == 0 => Some(FaultKind::EmptyMemory),
            HostPart::Memory(memory) if memory.va.checked_add(memory.length - 1).is_none() => {
                let (va, length) = (memory.va, memory.length);
                Some(FaultKind::MemoryWraps { va, length })
            }
            _ => None,
        };
        all_of([
            ("name", bad_name(&self.name)),
            ("mac", bad_hop_mac(self.mac, true)),
            ("ip", bad_ip(self.ip)),
            ("qpn", reserved.then_some(FaultKind::ReservedQpn { qpn })),
            ("memory.length", memory),
        ])
    }
}

fn all_of<const N: usize>(faults: [(&str, Option<FaultKind>); N]) -> Vec<Fault> {
    let faults = faults.into_iter();
    faults
        .filter_map(|(field, kind)| Some(Fault::new(field, kind?)))
        .collect()
}

/// Endpoints with one port and QPN: `any` accepts frames from every source address, those in `by_ip` from one.
#[derive(Default)]
struct Senders {
    any: Option<u32>,
    by_ip: BTreeMap<Ipv4Addr, u32>,
    /// The first one of `by_ip`.
    first: Option<u32>,
}

impl Senders {
    /// Returns an earlier endpoint that could have sent the same frame.
    fn insert(&mut self, endpoint: u32, src: Option<Ipv4Addr>) -> Option<u32> {
        let first = match src {
            Some(ip) => self.by_ip.get(&ip).copied(),
            None => self.first,
        };
        let first = self.any.or(first);
        match src {
            Some(ip) => {
                self.by_ip.entry(ip).or_insert(endpoint);
                self.first = self.first.or(Some(endpoint));
            }
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
    pub(crate) fn check(&mut self, group: &GroupRule, unread: &Unread) -> Vec<Fault> {
        let mut faults = group.check_read(self.ports, unread);
        // Not in `check`: controllers go on with groups that they have stored under such names.
        faults.extend(ambiguous_name(&group.name).map(|kind| Fault::new("name", kind)));
        faults.extend(self.index.check(group, NamedBy::Control, None));
        self.index.insert(group, NamedBy::Control);
        faults
    }
}

/// Every fault of the routes of a switch, alone and between them. Fields begin with `routes[i]`. Reports nothing of fields
/// in `unread`.
pub fn check_routes(routes: &[Route], ports: usize, unread: &Unread) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut first_of = BTreeMap::new();
    for (i, route) in routes.iter().enumerate() {
        let field = format!("routes[{i}].prefix");
        let (prefix, network) = (route.prefix, route.prefix.trunc());
        if route.replicate && !unread.has(&field) && !is_replicable(&prefix) {
            let field = format!("routes[{i}].replicate");
            faults.push(Fault::new(field, FaultKind::NotReplicable { prefix }));
        }
        if network != prefix {
            faults.push(Fault::new(field, FaultKind::HostBits { prefix, network }));
        } else if !unread.has(&field) {
            let first = *first_of.entry(network).or_insert(i);
            if first != i {
                let first = format!("routes[{first}]");
                faults.push(Fault::new(field, FaultKind::DuplicatePrefix { prefix, first }));
            }
        }
        let field = format!("routes[{i}].copy_to");
        copies(
            route,
            &field,
            unread.has(format!("routes[{i}].prefix")),
            &mut faults,
        );
        let field = format!("routes[{i}].next_hops");
        if route.next_hops.is_empty() && route.copy_to.is_empty() {
            faults.push(Fault::new(&field, FaultKind::NoNextHops));
        }
        next_hops(&route.next_hops, &field, ports, unread, &mut faults);
    }
    faults.retain(|fault| !unread.has(&fault.field));
    faults
}

fn copies(route: &Route, field: &str, is_unread: bool, faults: &mut Vec<Fault>) {
    let Route { prefix, copy_to, .. } = route;
    if copy_to.is_empty() {
        return;
    }
    let mut fault = |kind| faults.push(Fault::new(field, kind));
    if !route.next_hops.is_empty() || route.replicate {
        fault(FaultKind::CopiesAndHops);
    }
    if !is_unread && (prefix.prefix_len() != 32 || !is_replicable(prefix)) {
        fault(FaultKind::NotOneAddress { prefix: *prefix });
    }
    let (count, most) = (copy_to.len(), ENDPOINTS_MAX);
    if count > most {
        fault(FaultKind::TooManyCopies { count, most });
    }
    let mut seen = BTreeSet::new();
    for (i, address) in copy_to.iter().enumerate() {
        let own = *address == prefix.addr();
        let reason = match address {
            _ if own => "the address of the route itself",
            _ if !seen.insert(address) => "there twice: it would get each packet twice",
            address if address.is_unspecified() || address.is_broadcast() => "no address to route to",
            _ => continue,
        };
        let address = *address;
        faults.push(Fault::new(
            format!("{field}[{i}]"),
            FaultKind::BadCopy { address, reason },
        ));
    }
}

/// True for multicast addresses that routers forward.
pub fn is_replicable(prefix: &Ipv4Net) -> bool {
    is_forwarded_multicast(prefix.addr(), prefix.prefix_len())
}

fn next_hops(hops: &[RouteHop], field: &str, ports: usize, unread: &Unread, faults: &mut Vec<Fault>) {
    let mut first_of = BTreeMap::new();
    for (i, hop) in hops.iter().enumerate() {
        let field = format!("{field}[{i}]");
        let (port, port_field) = (hop.port, format!("{field}.port"));
        let is_comparable = !unread.has(&port_field) && bad_mac(hop.mac).is_none();
        if port.index() >= ports {
            faults.push(Fault::new(port_field, FaultKind::NoSuchPort { port, ports }));
        }
        if let Some(kind) = bad_mac(hop.mac) {
            faults.push(Fault::new(format!("{field}.mac"), kind));
        }
        if is_comparable {
            let first = *first_of.entry(hop).or_insert(i);
            if first != i {
                let first = format!("next_hops[{first}]");
                faults.push(Fault::new(field, FaultKind::DuplicateNextHop { first }));
            }
        }
    }
}

/// The part of each lane in the burst of a limit must hold the longest frame, or none of that length would ever pass.
pub fn bad_burst(limit: RateLimit, pmtu: Pmtu, lanes: u8) -> Option<FaultKind> {
    let each = pmtu.bytes() as u64 + HEADERS_MAX;
    let (least, most) = (u64::from(lanes) * each, RateLimit::BURST_MAX);
    let given = limit.burst_bytes;
    (!(least..=most).contains(&given)).then_some(FaultKind::BadBurst { given, least, most })
}

fn bad_name(name: &str) -> Option<FaultKind> {
    if (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let length_fits = (1..=NAME_LENGTH_MAX).contains(&name.chars().count());
    let is_printable = name.chars().all(|c| !c.is_control() && !c.is_whitespace());
    (!length_fits || !is_printable).then(|| FaultKind::BadName { name: name.into() })
}

/// The names of groups that hosts register with MRP begin with this. No group of a controller has such a name: on a switch, it would keep
/// the registration out.
pub const MRP_PREFIX: &str = "mrp-";

/// The fault of a name that no new group gets: a command would take it for a McstID, or a program for a folder.
pub fn ambiguous_name(name: &str) -> Option<FaultKind> {
    let is_ambiguous = matches!(name, "." | "..") || name.parse::<Ipv4Addr>().is_ok();
    is_ambiguous.then(|| FaultKind::AmbiguousName { name: name.into() })
}

fn bad_ip(ip: Ipv4Addr) -> Option<FaultKind> {
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

/// The switch finds an unspecified MAC address if the next hop has an IP address.
fn bad_hop_mac(mac: MacAddr, has_ip: bool) -> Option<FaultKind> {
    bad_mac(mac).filter(|_| mac != MacAddr::UNSPECIFIED || !has_ip)
}

fn bad_virtual_qpn(qpn: Qpn) -> Option<FaultKind> {
    matches!(qpn.value(), 0 | 0xFF_FFFF).then_some(FaultKind::ReservedVirtualQpn { qpn })
}
