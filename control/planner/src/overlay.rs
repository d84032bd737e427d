//! The fabric as trees see it: hosts and Castnet switches, and paths between them.
//!
//! Trees replicate and aggregate at Castnet switches only. A path joins two adjacent nodes over forwarders (plain
//! switches and routers) or by one link. Forwarders choose their paths themselves, so there is one path here between
//! two ends: always the same shortest one of those with the fewest routers. Two ends of one Ethernet segment have no
//! router between them, however long the path.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use castnet_topology::{Cut, EndId, Hop, LinkId, NodeId, Row, SwitchKind, Topology, Usable, links_from};

use crate::load::LinkLoad;
use crate::tree::Path;

/// Cost of a router on a path: more links than a path can have.
const ROUTER: u32 = 1 << 16;

/// A [`Path`] in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) near: EndId,
    pub(crate) far: EndId,
    first: LinkId,
    /// Forwarders, each with the link after it. Most routes have none.
    rest: Vec<(NodeId, LinkId)>,
}

impl Route {
    fn link(hop: &Hop) -> Self {
        Self {
            near: hop.near,
            far: hop.far,
            first: hop.link,
            rest: Vec::new(),
        }
    }

    pub(crate) fn length(&self) -> u32 {
        1 + self.rest.len() as u32
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> {
        core::iter::once(self.first).chain(self.rest.iter().map(|(_, link)| *link))
    }

    /// Forwarders between its ends.
    pub(crate) fn via(&self) -> impl DoubleEndedIterator<Item = NodeId> {
        self.rest.iter().map(|(node, _)| *node)
    }

    pub(crate) fn load(&self, load: &LinkLoad) -> u64 {
        self.links().map(|link| u64::from(load.get(link))).sum()
    }

    pub(crate) fn reversed(mut self) -> Self {
        core::mem::swap(&mut self.near, &mut self.far);
        // Each forwarder has the link before it instead of the link after it.
        for (_, link) in &mut self.rest {
            core::mem::swap(&mut self.first, link);
        }
        self.rest.reverse();
        self
    }

    /// Whether routers lie between its ends.
    pub(crate) fn is_routed(&self, topology: &Topology) -> bool {
        let mut kinds = self.via().map(|node| topology.kind(node));
        kinds.any(|kind| kind == Some(SwitchKind::Router))
    }

    pub(crate) fn named(&self, topology: &Topology) -> Path {
        let name = |node: NodeId| topology.name(node).to_string();
        let is_router = |node: &NodeId| topology.kind(*node) == Some(SwitchKind::Router);
        Path {
            near: topology.end(self.near),
            far: topology.end(self.far),
            links: self.links().collect(),
            via: self.via().map(name).collect(),
            routers: self.via().filter(is_router).map(name).collect(),
        }
    }
}

fn step(topology: &Topology, forwarder: NodeId) -> u32 {
    match topology.kind(forwarder) {
        Some(SwitchKind::Router) => 1 + ROUTER,
        _ => 1,
    }
}

/// Cost to reach `end` from each forwarder over forwarders only, itself included: links, and [`ROUTER`] per router.
/// With `sought`, only `sought` and forwarders nearer than it.
fn costs(fabric: &Usable<'_>, end: EndId, sought: Option<NodeId>) -> BTreeMap<NodeId, u32> {
    let topology = fabric.topology;
    let mut costs = BTreeMap::new();
    let mut open = BinaryHeap::new();
    let visit = |hop: &Hop, cost: u32, open: &mut BinaryHeap<_>| {
        let node = hop.far.node;
        if topology.forwards(node) {
            open.push(Reverse((cost + step(topology, node), node)));
        }
    };
    fabric
        .hop(end)
        .into_iter()
        .for_each(|hop| visit(hop, 0, &mut open));
    while let Some(Reverse((cost, node))) = open.pop() {
        if costs.contains_key(&node) {
            continue;
        }
        costs.insert(node, cost);
        if sought == Some(node) {
            break;
        }
        fabric.hops(node).for_each(|hop| visit(hop, cost, &mut open));
    }
    costs
}

/// The path between the ends of two nodes over forwarders; the same in both directions.
pub(crate) fn between(fabric: &Usable<'_>, near: EndId, far: EndId) -> Option<Route> {
    let (from, to) = if near <= far { (near, far) } else { (far, near) };
    let mut hop = fabric.hop(from)?;
    let mut route = Route::link(hop);
    if hop.far != to {
        let costs = costs(fabric, to, Some(hop.far.node));
        while hop.far != to {
            let here = hop.far.node;
            let rest = costs.get(&here)? - step(fabric.topology, here);
            hop = fabric.hops(here).find(|hop| match rest {
                0 => hop.far == to,
                _ => costs.get(&hop.far.node) == Some(&rest),
            })?;
            route.rest.push((here, hop.link));
        }
        route.far = to;
    }
    Some(if from == near { route } else { route.reversed() })
}

/// Paths from a host to its nearest Castnet switches, all of one length, by the switches' ends.
pub(crate) fn nearest(fabric: &Usable<'_>, host: NodeId) -> Vec<Route> {
    let topology = fabric.topology;
    let start = EndId { node: host, port: 0 };
    let Some(hop) = fabric.hop(start) else {
        return Vec::new();
    };
    // Most hosts have their one link to a Castnet switch.
    if !topology.forwards(hop.far.node) {
        return vec![Route::link(hop)];
    }
    let mut layer = vec![start];
    let mut seen: BTreeSet<NodeId> = BTreeSet::new();
    while !layer.is_empty() {
        let mut next = BTreeSet::new();
        for end in layer {
            let forwards = end == start || topology.forwards(end.node);
            if forwards && seen.insert(end.node) {
                next.extend(fabric.hops(end.node).map(|hop| hop.far));
            }
        }
        let castnet = |end: &&EndId| topology.kind(end.node) == Some(SwitchKind::Castnet);
        let found = next.iter().filter(castnet);
        let found: Vec<Route> = found.filter_map(|end| between(fabric, start, *end)).collect();
        if !found.is_empty() {
            return found;
        }
        layer = next.into_iter().collect();
    }
    Vec::new()
}

/// Usable links of a switch towards the destination of `distances`.
pub(crate) fn nearer<'t>(
    fabric: &Usable<'t>,
    from: NodeId,
    distances: &Row,
) -> impl Iterator<Item = &'t Hop> + Clone {
    // Links from the node that a hop towards the destination leads to.
    let rest = links_from(from, distances).and_then(|links| links.checked_sub(1));
    let leads = move |hop: &&Hop| rest.is_some() && links_from(hop.far.node, distances) == rest;
    fabric.hops(from).filter(leads)
}

/// Where a shortest path leads from a Castnet switch: to the next Castnet switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) near: EndId,
    pub(crate) far: EndId,
    first: LinkId,
    /// Its links, and the groups on them.
    pub(crate) length: u32,
    pub(crate) groups: u64,
}

impl Step {
    /// One link.
    pub(crate) fn over(link: LinkId, (near, far): (EndId, EndId), load: &LinkLoad) -> Self {
        Self {
            near,
            far,
            first: link,
            length: 1,
            groups: load.get(link).into(),
        }
    }

    pub(crate) fn route(&self, fabric: &Usable<'_>) -> Option<Route> {
        let (near, far, first) = (self.near, self.far, self.first);
        match self.length {
            1 => Some(Route {
                near,
                far,
                first,
                rest: Vec::new(),
            }),
            _ => between(fabric, near, far),
        }
    }

    /// The lesser one is better. Among the steps of one length.
    pub(crate) fn key(&self) -> (u64, EndId, EndId) {
        (self.groups, self.far, self.near)
    }

    pub(crate) fn of(route: &Route, load: &LinkLoad) -> Self {
        Self {
            near: route.near,
            far: route.far,
            first: route.first,
            length: route.length(),
            groups: route.load(load),
        }
    }
}

/// Adds the first steps of all shortest paths from a Castnet switch. The destination of `distances` is a Castnet switch.
pub(crate) fn steps(
    fabric: &Usable<'_>,
    load: &LinkLoad,
    from: NodeId,
    distances: &Row,
    steps: &mut Vec<Step>,
) {
    let topology = fabric.topology;
    let has_forwarders = topology.has_forwarders();
    for first in nearer(fabric, from, distances) {
        if !has_forwarders || !topology.forwards(first.far.node) {
            steps.push(Step::over(first.link, (first.near, first.far), load));
            continue;
        }
        let mut ends = BTreeSet::new();
        let mut seen: BTreeSet<NodeId> = BTreeSet::new();
        let mut open = vec![first.far];
        while let Some(end) = open.pop() {
            if !topology.forwards(end.node) {
                ends.insert(end);
            } else if seen.insert(end.node) {
                open.extend(nearer(fabric, end.node, distances).map(|hop| hop.far));
            }
        }
        let routes = ends.iter().filter_map(|far| between(fabric, first.near, *far));
        steps.extend(routes.map(|route| Step::of(&route, load)));
    }
}

/// Cost to reach each end of a node from forwarders.
pub(crate) struct Reach(Vec<(EndId, BTreeMap<NodeId, u32>)>);

impl Reach {
    pub(crate) fn new(fabric: &Usable<'_>, node: NodeId) -> Self {
        let ends = fabric.hops(node).map(|hop| hop.near);
        Self(ends.map(|end| (end, costs(fabric, end, None))).collect())
    }

    /// Pairs of ends (the other node's first) that the cheapest paths over forwarders join, and the length in links.
    fn ends(&self, fabric: &Usable<'_>, from: NodeId) -> Option<(u32, Vec<(EndId, EndId)>)> {
        let mut best: Option<(u32, Vec<(EndId, EndId)>)> = None;
        for near in fabric.hops(from) {
            for (far, costs) in &self.0 {
                let Some(cost) = costs.get(&near.far.node).map(|cost| cost + 1) else {
                    continue;
                };
                let ends = (near.near, *far);
                match &mut best {
                    Some((least, _)) if *least < cost => {}
                    Some((least, all)) if *least == cost => all.push(ends),
                    _ => best = Some((cost, vec![ends])),
                }
            }
        }
        best.map(|(cost, ends)| (cost % ROUTER, ends))
    }

    pub(crate) fn length(&self, fabric: &Usable<'_>, from: NodeId) -> Option<u32> {
        self.ends(fabric, from).map(|(length, _)| length)
    }

    /// The cheapest path from another node over forwarders; among equals with the least load, then the first by ends.
    pub(crate) fn path(&self, fabric: &Usable<'_>, load: &LinkLoad, from: NodeId) -> Option<Route> {
        let (_, ends) = self.ends(fabric, from)?;
        let routes = ends.iter().filter_map(|(near, far)| between(fabric, *near, *far));
        routes.min_by_key(|route| route.load(load))
    }
}

/// The Castnet switch that the fewest things that are down cut off from a host, and these.
pub(crate) fn cut_off(topology: &Topology, host: &str) -> Option<(String, Cut)> {
    let castnet = topology.switches().filter(|s| s.kind == SwitchKind::Castnet);
    let cuts = castnet.filter_map(|s| Some((s.name.clone(), topology.cut(host, &s.name)?)));
    cuts.min_by_key(|(_, cut)| match cut {
        Cut::NeverLinked => usize::MAX,
        Cut::Down(down) => down.len(),
    })
}
