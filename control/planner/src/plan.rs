//! From request to rules.

use std::collections::{BTreeMap, BTreeSet};

use castnet_group::{DEFAULT_RELAY_LATENCY, Distribution};
use castnet_rules::{
    Endpoint, FaultKind, GroupKind, GroupRule, HostEndpoint, HostPart, NextHop, RANKS_MAX, RankPart,
    TranslatedRule,
};
use castnet_topology::{Cut, Link, NodeId, SwitchKind, Topology, Usable};
use castnet_wire::{MacAddr, PortId, Psn};

use crate::error::{PlanError, Shortage};
use crate::grow::{CANDIDATES_MAX, Leaf, Node, Parents, grow, leave_out};
use crate::load::LinkLoad;
use crate::overlay::{Route, cut_off, nearest};
use crate::place::place;
use crate::relay::arrange;
use crate::request::{Request, RequestKind, Rooms, slots};
use crate::rules::write;
use crate::static_core::star;
use crate::tree::Tree;

/// Minimum MTU of a link beyond the path MTU, in bytes: the longest headers of RoCEv2 over IPv4 (20 IP, 8 UDP, 12 BTH,
/// 28 AtomicETH, 4 ICRC) and 8 to spare.
pub const HEADROOM: u32 = 80;

/// How a group is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its tree.
    pub tree: Tree,
    /// Rules by name of the switch.
    pub rules: BTreeMap<String, GroupRule>,
    /// What switches lack for the mode of the request, if the group is in Mode-III instead ([`Request::may_augment`]).
    pub shortages: Vec<Shortage>,
    /// Switches without members that get copies of a static core ([`Distribution::Static`]).
    pub over_covered: BTreeSet<String>,
}

/// The members of a request, by index.
pub(crate) struct Members {
    pub(crate) hosts: Vec<NodeId>,
    /// With their names in the tree.
    pub(crate) endpoints: Vec<HostEndpoint>,
}

/// Plans a group. A collective group is placed at switches with room by `rooms`; a multicast group needs none.
///
/// The order of a multicast group's members does not matter. Endpoints and leaves of the tree have the names of their
/// hosts, or `host#rank` if a host has several ranks.
///
/// # Errors
/// The error names the member, the setting or the switches at fault.
pub fn plan(
    topology: &Topology,
    load: &LinkLoad,
    rooms: &dyn Rooms,
    request: &Request,
) -> Result<Plan, PlanError> {
    let members = resolve(topology, request)?;
    match request.kind {
        RequestKind::Multicast(rule) => {
            let source = usize::from(rule.source);
            let hosts = (source, members.hosts.as_slice());
            let parents = match request.distribution {
                Distribution::Static { .. } => star(topology, load, request, hosts)?,
                Distribution::Edge(_) => best_tree(&edge(topology, &members.hosts), load, request, hosts)?,
                Distribution::Switches(_) => best_tree(topology, load, request, hosts)?,
            };
            if topology.mtu_min() < needed_mtu(request)
                && let Some(link) = parents.routes().find_map(|r| narrow(topology, request, r))
            {
                return Err(too_narrow(request, link));
            }
            let root = Node::Member(source);
            write(topology, (request, 0), &members.endpoints, (root, &parents))
        }
        RequestKind::Collective { window_packets, rule } => {
            place(topology, load, rooms, request, (window_packets, rule), &members)
        }
    }
}

/// The members with their addresses and names in the tree. Checks all that can be checked without paths.
fn resolve(topology: &Topology, request: &Request) -> Result<Members, PlanError> {
    let count = request.members.len();
    match request.kind {
        RequestKind::Multicast(rule) if count < 2 || usize::from(rule.source) >= count => {
            return Err(PlanError::NoReceivers { members: count });
        }
        RequestKind::Collective { .. } if !(2..=usize::from(RANKS_MAX)).contains(&count) => {
            return Err(PlanError::BadSize { ranks: count });
        }
        _ => {}
    }
    let hosts = request.members.iter().map(|member| topology.id(&member.host));
    let mut by_host: Vec<(Option<NodeId>, u32)> = hosts.zip(0..).collect();
    by_host.sort_unstable();
    let mut at_host = vec![AtHost::default(); count];
    for same in by_host.chunk_by(|(x, _), (y, _)| x == y) {
        let (node, first) = same[0];
        let members = same.len() as u32;
        for (_, index) in same {
            at_host[*index as usize] = AtHost { node, first, members };
        }
    }
    let mut hosts = Vec::with_capacity(count);
    let mut endpoints = Vec::with_capacity(count);
    for (index, at_host) in at_host.into_iter().enumerate() {
        let (host, endpoint) = resolve_member(topology, request, index, at_host)?;
        hosts.push(host);
        endpoints.push(endpoint);
    }
    let endpoints = check_values(request, endpoints)?;
    match topology.host_with(request.mcst_id.0) {
        Some(host) => Err(PlanError::McstIdIsHost {
            mcst_id: request.mcst_id,
            host: host.name.clone(),
        }),
        None => Ok(Members { hosts, endpoints }),
    }
}

/// The members at one host.
#[derive(Clone, Copy, Default)]
struct AtHost {
    /// `None`: the fabric does not have it.
    node: Option<NodeId>,
    /// Index of the first one.
    first: u32,
    members: u32,
}

fn resolve_member(
    topology: &Topology,
    request: &Request,
    index: usize,
    at_host: AtHost,
) -> Result<(NodeId, HostEndpoint), PlanError> {
    let member = &request.members[index];
    let (field, host) = (|| request.field(index), || member.host.clone());
    let (name, part) = match request.kind {
        RequestKind::Multicast(rule) => {
            let source = usize::from(rule.source);
            if index != source && request.members[source].host == member.host {
                let (field, host) = (field(), host());
                return Err(PlanError::SourceAmongReceivers { field, host });
            }
            let first = at_host.first as usize;
            if at_host.node.is_some() && first != index {
                let (field, host, first) = (field(), host(), request.field(first));
                return Err(PlanError::MemberTwice { field, host, first });
            }
            (host(), member.part)
        }
        RequestKind::Collective { .. } => {
            let name = match at_host.members {
                2.. => format!("{}#{index}", member.host),
                _ => host(),
            };
            let (sq_psn, rq_psn) = match member.part {
                HostPart::Rank(part) => (part.sq_psn, part.rq_psn),
                HostPart::Plain | HostPart::Memory(_) => (Psn::new(0), Psn::new(0)),
            };
            let rank = index as u16;
            (name, RankPart { rank, sq_psn, rq_psn }.into())
        }
    };
    let known = at_host.node.and_then(|id| Some((id, topology.host_at(id)?)));
    let Some((id, known)) = known else {
        let (field, host) = (field(), host());
        return Err(PlanError::UnknownHost { field, host });
    };
    let lacking = |address| PlanError::NoAddress {
        field: field(),
        host: host(),
        address,
    };
    let (ip, mac) = (member.ip.or(known.ip), member.mac.or(known.mac.map(MacAddr)));
    let endpoint = HostEndpoint {
        name,
        ip: ip.ok_or_else(|| lacking("IP address"))?,
        mac: mac.ok_or_else(|| lacking("Ethernet address"))?,
        qpn: member.qpn,
        part,
    };
    Ok((id, endpoint))
}

/// Checks the values of the request with the rule checker, as if all members were endpoints of one switch. Returns the members.
fn check_values(request: &Request, members: Vec<HostEndpoint>) -> Result<Vec<HostEndpoint>, PlanError> {
    let kind = match request.kind {
        RequestKind::Multicast(rule) => GroupKind::from(rule),
        RequestKind::Collective { window_packets, rule } => GroupKind::from(TranslatedRule {
            slots: slots(window_packets, rule.message_packets, rule.mode),
            ..rule
        }),
    };
    let endpoint = |member| Endpoint::new(PortId::default(), NextHop::Host(member));
    let group = GroupRule {
        name: request.name.clone(),
        generation: 0,
        mcst_id: request.mcst_id,
        pmtu: request.pmtu,
        stall_timeout_ms: request.stall_timeout_ms,
        rate_limit: request.rate_limit,
        endpoints: members.into_iter().map(endpoint).collect(),
        kind,
    };
    let mut faults = group.check(PortId::COUNT);
    // The members are not all at one port of one switch: neither their number nor a shared port is a fault.
    faults.retain(|fault| {
        fault.field != "endpoints" && !matches!(fault.kind, FaultKind::AmbiguousEndpoint { .. })
    });
    if faults.is_empty() {
        let hosts = group.endpoints.into_iter().filter_map(|e| match e.next_hop {
            NextHop::Host(host) => Some(host),
            NextHop::Switch { .. } => None,
        });
        return Ok(hosts.collect());
    }
    for fault in &mut faults {
        in_request(request, &mut fault.field);
        if let FaultKind::DuplicateMember { first, .. } = &mut fault.kind {
            in_request(request, first);
        }
    }
    Err(PlanError::Refused { faults })
}

/// Turns the field of an endpoint into that of the member.
fn in_request(request: &Request, field: &mut String) {
    let index_and_rest = field
        .strip_prefix("endpoints[")
        .and_then(|f| f.split_once("].host"));
    if let Some((index, rest)) = index_and_rest
        && let Ok(index) = index.parse()
    {
        *field = format!("{}{rest}", request.field(index));
    }
}

/// The fabric with those Castnet switches alone that are nearest to members. The others forward frames, as plain switches do.
fn edge(topology: &Topology, members: &[NodeId]) -> Topology {
    let fabric = Usable::new(topology, 0);
    let nearest = members.iter().flat_map(|host| nearest(&fabric, *host));
    let edge: BTreeSet<NodeId> = nearest.map(|route| route.far.node).collect();
    let mut rest = topology.clone();
    for node in topology.switch_ids() {
        if topology.kind(node) == Some(SwitchKind::Castnet) && !edge.contains(&node) {
            rest.set_switch_kind(topology.name(node), SwitchKind::Plain);
        }
    }
    rest
}

/// Of the trees that begin at the source's nearest Castnet switches the one with the fewest links, then the least load,
/// then the first by name of the switch.
fn best_tree(
    topology: &Topology,
    load: &LinkLoad,
    request: &Request,
    (source, hosts): (usize, &[NodeId]),
) -> Result<Parents, PlanError> {
    let fabric = Usable::new(topology, 0);
    let leaf = |index: usize| Leaf::new(&fabric, index, hosts[index]);
    let from = leaf(source).nearest;
    let receivers = (0..request.members.len()).filter(|index| *index != source);
    let leaves: Vec<Leaf> = receivers.map(leaf).collect();
    let mut entries: Vec<Route> = from;
    entries.sort_by_key(|route| route.load(load));
    let mut seen = BTreeSet::new();
    entries.retain(|route| seen.insert(route.far.node));
    entries.truncate(CANDIDATES_MAX);
    let tops: Vec<NodeId> = entries.iter().map(|route| route.far.node).collect();
    let payload = request.pmtu.bytes() as u32;
    let shape = request.distribution.shape(DEFAULT_RELAY_LATENCY, payload);
    let mut trees = Vec::new();
    for (entry, distances) in entries.into_iter().zip(fabric.distances(&tops)) {
        let top = entry.far.node;
        if leaves.iter().any(|leaf| leaf.distance(&distances).is_none()) {
            return Err(no_path(topology, request, source));
        }
        let mut parents = grow(&fabric, load, (top, &distances), &leaves, request.members.len());
        parents.set(Node::Switch(top), Some(entry.reversed()));
        leave_out(&fabric, load, &mut parents);
        arrange(&fabric, load, &mut parents, shape);
        trees.push((parents.cost(load), top, parents));
    }
    let best = trees.into_iter().min_by_key(|(cost, top, _)| (*cost, *top));
    best.map(|(.., parents)| parents)
        .ok_or_else(|| no_path(topology, request, source))
}

/// Why no tree reaches all members from the source or rank 0: the first member that is cut off; `from` if it is cut off
/// from all Castnet switches; or a link that cannot carry full packets.
pub(crate) fn no_path(topology: &Topology, request: &Request, from: usize) -> PlanError {
    let from_host = &request.members[from].host;
    let no_path = |member, to, cut| PlanError::NoPath {
        field: request.field(member),
        from: from_host.clone(),
        to,
        cut,
    };
    let others = || {
        request
            .members
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != from)
    };
    for (index, member) in others() {
        if let Some(cut) = topology.cut(from_host, &member.host) {
            return no_path(index, member.host.clone(), cut);
        }
    }
    let from_id = topology.id(from_host);
    if from_id.is_none_or(|id| nearest(&Usable::new(topology, 0), id).is_empty()) {
        return match cut_off(topology, from_host) {
            Some((switch, cut)) => no_path(from, switch, cut),
            None => PlanError::NoCastnetSwitch,
        };
    }
    let mut links = topology.links().map(|(_, link)| link);
    match links.find(|link| link.mtu < needed_mtu(request)) {
        Some(link) => too_narrow(request, link),
        None => {
            let (index, other) = others().next().unwrap_or((from, &request.members[from]));
            no_path(index, other.host.clone(), Cut::NeverLinked)
        }
    }
}

pub(crate) fn needed_mtu(request: &Request) -> u32 {
    request.pmtu.bytes() as u32 + HEADROOM
}

fn narrow<'t>(topology: &'t Topology, request: &Request, route: &Route) -> Option<&'t Link> {
    let mut links = route.links().filter_map(|link| topology.link(link));
    links.find(|link| link.mtu < needed_mtu(request))
}

pub(crate) fn too_narrow(request: &Request, link: &Link) -> PlanError {
    PlanError::PmtuTooLarge {
        pmtu: request.pmtu,
        needed: needed_mtu(request),
        a: link.a.clone(),
        b: link.b.clone(),
        mtu: link.mtu,
    }
}
