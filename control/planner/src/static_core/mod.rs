//! Groups at the edges of a core without state: a star over routers, and the multicast addresses that lead to several of its ends.

mod layout;
mod pack;

use core::cmp::Reverse;
use core::net::Ipv4Addr;
use core::num::NonZeroU16;
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub use layout::{Layout, layout};
pub(crate) use layout::{is_multicast_block, route_hop};

use castnet_rules::{GroupRule, NextHop};
use castnet_topology::{NodeId, Topology, Usable};
use castnet_wire::Qpn;

use crate::error::PlanError;
use crate::grow::{Leaf, Node, Parents};
use crate::load::LinkLoad;
use crate::overlay::{Reach, Route};
use crate::plan::no_path;
use crate::request::Request;
use crate::tree::{Role, Tree};
use pack::{Candidate, pack};

/// The switch next to the source below the source, all other switches below that one, and each receiver below the one next to it.
pub(crate) fn star(
    topology: &Topology,
    load: &LinkLoad,
    request: &Request,
    (source, hosts): (usize, &[NodeId]),
) -> Result<Parents, PlanError> {
    let fabric = Usable::new(topology, 0);
    let nearest = |member: usize| -> Result<Vec<Route>, PlanError> {
        let mut routes = Leaf::new(&fabric, member, hosts[member]).nearest;
        routes.sort_by_cached_key(|route| (route.load(load), route.far));
        match routes.is_empty() {
            true => Err(no_path(topology, request, member)),
            false => Ok(routes),
        }
    };
    let entry = nearest(source)?.swap_remove(0);
    let top = entry.far.node;
    let mut parents = Parents::new(top, topology.switches().count(), request.members.len());
    parents.set(Node::Switch(top), Some(entry.reversed()));
    let reach = Reach::new(&fabric, top);
    let mut joined = BTreeSet::from([top]);
    for member in (0..hosts.len()).filter(|member| *member != source) {
        let routes = nearest(member)?;
        // A host with several links joins where others are, the source's switch first.
        let is_there = |route: &&Route| joined.contains(&route.far.node);
        let at_top = routes.iter().find(|route| route.far.node == top);
        let route = at_top
            .or_else(|| routes.iter().find(is_there))
            .unwrap_or(&routes[0]);
        let switch = route.far.node;
        if joined.insert(switch) {
            let way = reach
                .path(&fabric, load, switch)
                .filter(|way| way.is_routed(topology));
            let way = way.ok_or_else(|| not_routed(topology, request, (source, member), (top, switch)))?;
            parents.set(Node::Switch(switch), Some(way));
        }
        parents.set(Node::Member(member), Some(route.clone()));
    }
    if joined.len() > 2 && topology.multicast_routes().next().is_none() {
        let reason = "the topology has no [[multicast_routes]]: no router replicates";
        return Err(PlanError::NoStaticCore {
            reason: reason.into(),
        });
    }
    Ok(parents)
}

fn not_routed(
    topology: &Topology,
    request: &Request,
    (source, member): (usize, usize),
    (top, switch): (NodeId, NodeId),
) -> PlanError {
    let host = |member: usize| &request.members[member].host;
    if topology.cut(host(source), host(member)).is_some() {
        return no_path(topology, request, source);
    }
    let (top, switch) = (topology.name(top), topology.name(switch));
    let reason =
        format!("no path of routers alone joins switch {top:?}, next to the source, and switch {switch:?}");
    PlanError::NoStaticCore { reason }
}

/// Gives each switch the multicast address that brings data to it: as few addresses as lead to switches of the group alone, the ones with
/// most switches first. Blocks of a pod's switches are nested, so that is the exact cover (PEEL 3.2). A switch that no address leads to with
/// another one has none. If that is more than `copies_max` copies, some addresses lead to other switches, too. Returns those.
///
/// # Errors
/// [`PlanError::NoStaticCore`]: there is no cover with so few copies.
pub(crate) fn assign(
    topology: &Topology,
    tree: &Tree,
    rules: &mut BTreeMap<String, GroupRule>,
    copies_max: Option<NonZeroU16>,
) -> Result<BTreeSet<String>, PlanError> {
    // The source is above its switch, and all other switches are below that one.
    let Some(top) = tree.root.children.first() else {
        return Ok(BTreeSet::new());
    };
    let below = top.children.iter().filter(|node| node.role == Role::Switch);
    let members: BTreeSet<&str> = below.map(|node| node.name.as_str()).collect();
    let qpns: HashMap<&str, Qpn> = rules
        .get(&top.name)
        .into_iter()
        .flat_map(|rule| &rule.endpoints)
        .map(|endpoint| (endpoint.next_hop.name(), endpoint.next_hop.qpn()))
        .collect();
    // One copy has one QPN. A router sends no copy back, so an address may lead to the switch next to the source, too. With relays of its own,
    // a source reaches all switches or none.
    let mut usable = Vec::new();
    for (address, route) in topology.multicast_routes() {
        let switches = route.switches.iter().map(String::as_str);
        let switches: Vec<&str> = switches.filter(|name| *name != top.name).collect();
        let own = switches.iter().filter(|name| members.contains(*name));
        let numbers: BTreeSet<Qpn> = own.clone().filter_map(|name| qpns.get(name).copied()).collect();
        let is_for_top = route.source.as_ref().is_none_or(|source| *source == top.name);
        if is_for_top && numbers.len() == 1 && own.count() > 1 {
            let is_own = route.source.is_some();
            usable.push((is_own, Candidate { address, switches }));
        }
    }
    let exact = exact(&usable, &members);
    let copies = exact.len() + members.len() - exact.values().map(Vec::len).sum::<usize>();
    let chosen: Vec<Ipv4Addr> = match copies_max.map(|most| usize::from(most.get())) {
        Some(most) if copies > most => {
            let candidates = usable.iter().map(|(_, candidate)| candidate.clone()).collect();
            pack(candidates, &members, most).map_err(|least| PlanError::NoStaticCore {
                reason: format!(
                    "{most} copies are too few: the multicast addresses of the fabric lead to the members with {least} or more"
                ),
            })?
        }
        _ => exact.keys().copied().collect(),
    };
    let mut over_covered = BTreeSet::new();
    for (is_own, Candidate { address, switches }) in &usable {
        if !chosen.contains(address) {
            continue;
        }
        for name in switches {
            match members.contains(name) {
                true => set_core(rules, (&top.name, name), *address),
                // Relays of a Shufflecast are no waste: they send it on.
                false if !is_own => drop(over_covered.insert((*name).to_owned())),
                false => {}
            }
        }
    }
    Ok(over_covered)
}

/// The addresses that lead to members alone, or only from this source, and to which; the ones with most members first.
fn exact<'a>(
    usable: &[(bool, Candidate<'a>)],
    members: &BTreeSet<&'a str>,
) -> BTreeMap<Ipv4Addr, Vec<&'a str>> {
    let mut left = members.clone();
    let of = |candidate: &Candidate<'a>| -> Vec<&'a str> {
        let own = candidate.switches.iter().copied();
        own.filter(|name| members.contains(name)).collect()
    };
    let is_exact = |(is_own, candidate): &&(bool, Candidate<'a>)| {
        *is_own || candidate.switches.iter().all(|name| members.contains(name))
    };
    let exact = usable.iter().filter(is_exact);
    let mut exact: Vec<_> = exact
        .map(|(_, candidate)| (candidate.address, of(candidate)))
        .collect();
    exact.sort_by_key(|(address, own)| (Reverse(own.len()), *address));
    exact.retain(|(_, own)| {
        let are_left = own.iter().all(|name| left.contains(name));
        if are_left {
            left.retain(|name| !own.contains(name));
        }
        are_left
    });
    exact.into_iter().collect()
}

/// Both ends of a path of the star know the address.
fn set_core(rules: &mut BTreeMap<String, GroupRule>, (top, switch): (&str, &str), address: Ipv4Addr) {
    for (at, to) in [(top, switch), (switch, top)] {
        let endpoints = rules.get_mut(at).map(|rule| &mut rule.endpoints);
        for endpoint in endpoints.into_iter().flatten() {
            if let NextHop::Switch { name, core, .. } = &mut endpoint.next_hop
                && name == to
            {
                *core = Some(address);
            }
        }
    }
}
