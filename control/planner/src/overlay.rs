//! The fabric as trees see it: hosts and Castnet switches, and paths between them.
//!
//! Trees replicate and aggregate at Castnet switches only. A path joins two adjacent nodes over forwarders (plain
//! switches and routers) or by one link. Forwarders choose their paths themselves, so there is one path here between
//! two ends: always the same shortest one of those with the fewest routers. Two ends of one Ethernet segment have no
//! router between them, however long the path.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use castnet_topology::{Cut, Distances, End, Neighbour, Topology};

use crate::load::LinkLoad;
use crate::tree::Path;

/// Cost of a router on a path: more links than a path can have.
const ROUTER: u32 = 1 << 16;

/// A node's links that are up, with at least this MTU, to nodes that are up, by port.
fn live(topology: &Topology, node: &str, mtu: u32) -> Vec<Neighbour> {
    let mut all = topology.neighbours(node);
    all.retain(|n| {
        topology.link(n.link).is_some_and(|l| l.up && l.mtu >= mtu)
            && topology.switch(n.far.node()).is_none_or(|s| s.up)
    });
    all
}

fn step(topology: &Topology, forwarder: &str) -> u32 {
    1 + if topology.is_router(forwarder) { ROUTER } else { 0 }
}

/// Cost to reach `end` from each forwarder over forwarders only, itself included: links, and [`ROUTER`] per router.
/// With `sought`, only `sought` and forwarders nearer than it.
fn costs(topology: &Topology, end: &End, mtu: u32, sought: Option<&str>) -> BTreeMap<String, u32> {
    let mut costs = BTreeMap::new();
    let mut open = BinaryHeap::new();
    let visit = |n: Neighbour, cost: u32, open: &mut BinaryHeap<_>| {
        let name = n.far.node();
        if topology.is_forwarder(name) {
            open.push(Reverse((cost + step(topology, name), name.to_string())));
        }
    };
    let mut first = live(topology, end.node(), mtu);
    first.retain(|n| n.near == *end);
    first.into_iter().for_each(|hop| visit(hop, 0, &mut open));
    while let Some(Reverse((cost, node))) = open.pop() {
        if costs.contains_key(&node) {
            continue;
        }
        costs.insert(node.clone(), cost);
        if sought == Some(node.as_str()) {
            break;
        }
        for next in live(topology, &node, mtu) {
            visit(next, cost, &mut open);
        }
    }
    costs
}

/// The path between the ends of two nodes over forwarders and links of at least this MTU; the same in both directions.
pub(crate) fn between(topology: &Topology, near: &End, far: &End, mtu: u32) -> Option<Path> {
    let (from, to) = if near <= far { (near, far) } else { (far, near) };
    let first = live(topology, from.node(), mtu);
    let mut hop = first.into_iter().find(|n| n.near == *from)?;
    let (mut links, mut via) = (vec![hop.link], Vec::new());
    if hop.far != *to {
        let costs = costs(topology, to, mtu, Some(hop.far.node()));
        while hop.far != *to {
            let here = hop.far.node();
            let rest = costs.get(here)? - step(topology, here);
            via.push(here.to_string());
            hop = live(topology, here, mtu).into_iter().find(|n| match rest {
                0 => n.far == *to,
                _ => costs.get(n.far.node()) == Some(&rest),
            })?;
            links.push(hop.link);
        }
    }
    let routers = via
        .iter()
        .filter(|name| topology.is_router(name))
        .cloned()
        .collect();
    let path = Path {
        near: from.clone(),
        far: to.clone(),
        links,
        via,
        routers,
    };
    Some(if from == near { path } else { path.reversed() })
}

/// Paths from a host to its nearest Castnet switches, all of one length, by the switches' ends.
pub(crate) fn nearest(topology: &Topology, host: &str) -> Vec<Path> {
    // Most hosts have their one link to a Castnet switch.
    if let [hop] = &live(topology, host, 0)[..]
        && !topology.is_forwarder(hop.far.node())
    {
        return vec![Path {
            near: hop.near.clone(),
            far: hop.far.clone(),
            links: vec![hop.link],
            via: Vec::new(),
            routers: Vec::new(),
        }];
    }
    let start = End::host(host);
    let mut layer = vec![start.clone()];
    let mut seen: BTreeSet<String> = BTreeSet::new();
    while !layer.is_empty() {
        let mut next = BTreeSet::new();
        for end in layer {
            let forwards = end == start || topology.is_forwarder(end.node());
            if forwards && seen.insert(end.node().to_string()) {
                next.extend(live(topology, end.node(), 0).into_iter().map(|n| n.far));
            }
        }
        let castnet =
            |end: &&End| matches!(end, End::Switch { switch, .. } if !topology.is_forwarder(switch));
        let found: Vec<Path> = next
            .iter()
            .filter(castnet)
            .filter_map(|end| between(topology, &start, end, 0))
            .collect();
        if !found.is_empty() {
            return found;
        }
        layer = next.into_iter().collect();
    }
    Vec::new()
}

/// Where shortest paths lead from a Castnet switch, each to the next Castnet switch, by far end. The destination of
/// `distances` is a Castnet switch.
pub(crate) fn next_hops(topology: &Topology, from: &str, distances: &Distances) -> Vec<Path> {
    let mut all = Vec::new();
    for first in topology.next_hops(from, distances) {
        let mut ends = BTreeSet::new();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut open = vec![first.far];
        while let Some(end) = open.pop() {
            if !topology.is_forwarder(end.node()) {
                ends.insert(end);
            } else if seen.insert(end.node().to_string()) {
                let hops = topology.next_hops(end.node(), distances);
                open.extend(hops.into_iter().map(|hop| hop.far));
            }
        }
        all.extend(
            ends.iter()
                .filter_map(|far| between(topology, &first.near, far, 0)),
        );
    }
    all.sort_by(|x, y| (&x.far, &x.near).cmp(&(&y.far, &y.near)));
    all
}

/// Cost to reach each end of a node from forwarders.
pub(crate) struct Reach(Vec<(End, BTreeMap<String, u32>)>);

impl Reach {
    pub(crate) fn new(topology: &Topology, node: &str) -> Self {
        let ends = live(topology, node, 0).into_iter().map(|n| n.near);
        let each = ends.map(|end| {
            let costs = costs(topology, &end, 0, None);
            (end, costs)
        });
        Self(each.collect())
    }

    /// Pairs of ends (the other node's first) that the cheapest paths over forwarders join, and the length in links.
    fn ends(&self, topology: &Topology, from: &str) -> Option<(u32, Vec<(End, &End)>)> {
        let mut best: Option<(u32, Vec<(End, &End)>)> = None;
        for near in live(topology, from, 0) {
            for (far, costs) in &self.0 {
                let Some(cost) = costs.get(near.far.node()).map(|cost| cost + 1) else {
                    continue;
                };
                let ends = (near.near.clone(), far);
                match &mut best {
                    Some((least, _)) if *least < cost => {}
                    Some((least, all)) if *least == cost => all.push(ends),
                    _ => best = Some((cost, vec![ends])),
                }
            }
        }
        best.map(|(cost, ends)| (cost % ROUTER, ends))
    }

    pub(crate) fn length(&self, topology: &Topology, from: &str) -> Option<u32> {
        self.ends(topology, from).map(|(length, _)| length)
    }

    /// The cheapest path from another node over forwarders; among equals with the least load, then the first by ends.
    pub(crate) fn path(&self, topology: &Topology, load: &LinkLoad, from: &str) -> Option<Path> {
        let (_, ends) = self.ends(topology, from)?;
        let paths = ends
            .iter()
            .filter_map(|(near, far)| between(topology, near, far, 0));
        paths.min_by_key(|path| path.load(load))
    }
}

/// The Castnet switch that the fewest things that are down cut off from a host, and these.
pub(crate) fn cut_off(topology: &Topology, host: &str) -> Option<(String, Cut)> {
    let castnet = topology.switches().filter(|s| !topology.is_forwarder(&s.name));
    let cuts = castnet.filter_map(|s| Some((s.name.clone(), topology.cut(host, &s.name)?)));
    cuts.min_by_key(|(_, cut)| match cut {
        Cut::NeverLinked => usize::MAX,
        Cut::Down(down) => down.len(),
    })
}
