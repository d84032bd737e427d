//! Groups at the edges of a core without state: a star over routers, and the multicast addresses that lead to several of its ends.

mod layout;

use core::cmp::Reverse;
use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

pub use layout::{Layout, layout};
pub(crate) use layout::{is_multicast_block, route_hop};

use castnet_rules::{GroupRule, NextHop};
use castnet_topology::{MulticastRoute, NodeId, Topology, Usable};

use crate::error::PlanError;
use crate::grow::{Leaf, Node, Parents};
use crate::load::LinkLoad;
use crate::overlay::{Reach, Route};
use crate::plan::no_path;
use crate::request::Request;
use crate::tree::{Role, Tree};

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
/// another one has none.
pub(crate) fn assign<'a>(topology: &'a Topology, tree: &Tree, rules: &mut BTreeMap<String, GroupRule>) {
    // The source is above its switch, and all other switches are below that one.
    let Some(top) = tree.root.children.first() else {
        return;
    };
    let below = top.children.iter().filter(|node| node.role == Role::Switch);
    let mut left: BTreeSet<&str> = below.map(|node| node.name.as_str()).collect();
    let qpn_at = |name: &str| {
        let endpoints = &rules.get(&top.name)?.endpoints;
        let endpoint = endpoints
            .iter()
            .find(|endpoint| endpoint.next_hop.name() == name)?;
        Some(endpoint.next_hop.qpn())
    };
    // A router sends no copy back, so an address may lead to the switch next to the source, too. With relays of its own, a source reaches all
    // switches or none.
    let usable = |(address, route): (Ipv4Addr, &'a MulticastRoute)| {
        let is_own = route.source.as_ref() == Some(&top.name);
        let switches = &route.switches;
        let (members, others): (Vec<&str>, Vec<&str>) = switches
            .iter()
            .map(String::as_str)
            .partition(|name| left.contains(name));
        let is_exact = others.iter().all(|name| *name == top.name);
        let is_usable = is_own || is_exact && route.source.is_none();
        is_usable.then_some((address, members))
    };
    let mut routes: Vec<_> = topology.multicast_routes().filter_map(usable).collect();
    routes.sort_by_key(|(address, members)| (Reverse(members.len()), *address));
    let mut chosen = BTreeMap::new();
    for (address, members) in routes {
        // One copy has one QPN.
        let mut qpns = members.iter().map(|name| qpn_at(name));
        let first = qpns.next();
        let are_left = members.iter().all(|name| left.contains(name));
        if members.len() > 1 && are_left && qpns.all(|qpn| Some(qpn) == first) {
            for name in members {
                left.remove(name);
                chosen.insert(name.to_owned(), address);
            }
        }
    }
    for (name, address) in chosen {
        for (at, to) in [(&top.name, &name), (&name, &top.name)] {
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
}
