//! A tree over the Castnet switches of a fabric, from its topmost switch to its members.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{NodeId, Row, Usable, links_from};

use crate::cover::{shared, smaller};
use crate::load::LinkLoad;
use crate::overlay::{Reach, Route, Step, nearer, nearest, steps};

/// Maximum number of trees that are compared. Of more tops, those with the least load count, then the first by name.
pub(crate) const CANDIDATES_MAX: usize = 16;

/// Maximum number of trees that are compared for one layer.
const SHARED_MAX: usize = 4;

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Switch(NodeId),
    /// A member, by index in the request.
    Member(usize),
}

/// A tree as the path of each node to its parent.
#[derive(Clone, Debug)]
pub(crate) struct Parents {
    root: NodeId,
    /// By number of the switch.
    switches: Vec<Option<Box<Route>>>,
    /// By index in the request.
    members: Vec<Option<Route>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) member: usize,
    /// Shortest paths from its host to the nearest Castnet switches.
    pub(crate) nearest: Vec<Route>,
}

impl Leaf {
    pub(crate) fn new(fabric: &Usable<'_>, member: usize, host: NodeId) -> Self {
        let nearest = nearest(fabric, host);
        Self { member, nearest }
    }

    /// Links to the destination of `distances`, over the nearest Castnet switch.
    pub(crate) fn distance(&self, distances: &Row) -> Option<u32> {
        self.nearest
            .iter()
            .filter_map(|route| length(route, distances))
            .min()
    }
}

/// Links of a route, and from its far end to the destination of `distances`.
fn length(route: &Route, distances: &Row) -> Option<u32> {
    Some(route.length() + links_from(route.far.node, distances)?)
}

impl Parents {
    pub(crate) fn new(root: NodeId, switches: usize, members: usize) -> Self {
        Self {
            root,
            switches: vec![None; switches],
            members: vec![None; members],
        }
    }

    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        let switches = self.switches.iter().flatten().map(|route| &**route);
        switches.chain(self.members.iter().flatten())
    }

    /// All nodes but the root, with their paths to their parents.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (Node, &Route)> {
        let switches = self.switches().map(|(id, route)| (Node::Switch(id), route));
        let members = (0..).map(Node::Member).zip(&self.members);
        switches.chain(members.filter_map(|(node, route)| Some((node, route.as_ref()?))))
    }

    /// The switches but the root, with their paths to their parents.
    pub(crate) fn switches(&self) -> impl Iterator<Item = (NodeId, &Route)> {
        let switches = (0..).map(NodeId).zip(&self.switches);
        switches.filter_map(|(node, route)| Some((node, route.as_deref()?)))
    }

    fn has(&self, switch: NodeId) -> bool {
        switch == self.root || self.of_switch(switch).is_some()
    }

    /// Number of nodes below each switch.
    fn children(&self) -> Vec<u32> {
        let mut children = vec![0; self.switches.len()];
        for route in self.routes() {
            // The source above the root is no switch.
            if let Some(count) = children.get_mut(route.far.node.0 as usize) {
                *count += 1;
            }
        }
        children
    }

    /// Removes switches that lead to no member.
    fn prune(&mut self) {
        let mut children = self.children();
        let bare = self.switches().map(|(node, _)| node);
        let mut bare: Vec<NodeId> = bare.filter(|node| children[node.0 as usize] == 0).collect();
        while let Some(node) = bare.pop() {
            let route = self.switches[node.0 as usize].take();
            if let Some(parent) = route.map(|route| route.far.node)
                && let Some(count) = children.get_mut(parent.0 as usize)
            {
                *count -= 1;
                bare.extend((*count == 0).then_some(parent));
            }
        }
    }

    fn of_switch(&self, switch: NodeId) -> Option<&Route> {
        self.switches.get(switch.0 as usize)?.as_deref()
    }

    fn of(&self, node: Node) -> Option<&Route> {
        match node {
            Node::Switch(id) => self.of_switch(id),
            Node::Member(member) => self.members[member].as_ref(),
        }
    }

    pub(crate) fn set(&mut self, node: Node, route: Option<Route>) {
        match node {
            Node::Switch(id) => self.switches[id.0 as usize] = route.map(Box::new),
            Node::Member(member) => self.members[member] = route,
        }
    }

    /// Number of links of a tree, each as often as it is used, and the sum of their load.
    pub(crate) fn cost(&self, load: &LinkLoad) -> (u32, u64) {
        let links = self.routes().map(Route::length).sum();
        (links, self.routes().map(|route| route.load(load)).sum())
    }
}

/// A tree below `root` that has all `leaves`, which join nearest first. Each switch of the tree is on a shortest path
/// from the root, so a leaf that joins there also has a shortest path, and each node keeps one parent. Where a layer of
/// the tree has more switches than the next one needs, fewer are chosen and join first.
pub(crate) fn grow(
    fabric: &Usable<'_>,
    load: &LinkLoad,
    (root, distances): (NodeId, &Row),
    leaves: &[Leaf],
    members: usize,
) -> Parents {
    let key = |leaf: &&Leaf| {
        let near = leaf.nearest.first().map(|route| route.near);
        (leaf.distance(distances), near, leaf.member)
    };
    let mut order: Vec<&Leaf> = leaves.iter().collect();
    order.sort_by_cached_key(key);
    let layered = !fabric.topology.has_forwarders();
    let tree = |first: &[NodeId]| {
        let mut growth = Growth {
            fabric,
            load,
            distances,
            parents: Parents::new(root, distances.len(), members),
            numbers: vec![NOT_PASSED; distances.len()],
            offers: vec![None; if layered { distances.len() } else { 0 }],
            walk: Walk::default(),
        };
        growth.offer(root);
        first.iter().for_each(|switch| growth.add_switch(*switch));
        order.iter().for_each(|leaf| growth.add_leaf(leaf));
        if !first.is_empty() {
            growth.parents.prune();
        }
        if layered {
            growth.join_later(&order);
        }
        growth.parents
    };
    let mut best = tree(&[]);
    // A path over plain switches or routers skips layers.
    if !layered {
        return best;
    }
    let mut fixed = vec![false; distances.len()];
    let mut far = 0;
    for route in leaves.iter().flat_map(|leaf| &leaf.nearest) {
        let entry = route.far.node;
        // A host may have another switch too, which has no path.
        if links_from(entry, distances).is_some() {
            fixed[entry.0 as usize] = true;
            far = distances[entry.0 as usize].max(far);
        }
    }
    fixed[root.0 as usize] = true;
    let mut first: Vec<NodeId> = Vec::new();
    for layer in (1..far).rev() {
        if let Some(cover) = smaller(fabric, load, (distances, layer), &best, &fixed) {
            // Those near the root join first.
            let chosen = [cover, first.clone()].concat();
            let parents = tree(&chosen);
            if parents.cost(load) < best.cost(load) {
                (best, first) = (parents, chosen);
            }
        }
    }
    // A layer that is chosen without the layers inside of it may need more switches there than another choice.
    for layer in 1..far {
        let shared = shared(fabric, load, (distances, layer), &best, &fixed);
        for switch in shared.into_iter().take(SHARED_MAX) {
            let chosen = [vec![switch], first.clone()].concat();
            let parents = tree(&chosen);
            if parents.cost(load) < best.cost(load) {
                (best, first) = (parents, chosen);
            }
        }
    }
    best
}

const NOT_PASSED: u32 = u32::MAX;

/// How a switch is reached from the tree: new links, the groups on them, and the last step.
#[derive(Clone, Copy, Debug)]
struct Way {
    links: u32,
    groups: u64,
    step: Step,
}

/// The walk from a node to the tree. Reused for the next one.
#[derive(Debug, Default)]
struct Walk {
    /// The switches that are to be passed, by number of links.
    layers: Vec<Vec<NodeId>>,
    /// The switches that were passed, each with its steps.
    passed: Vec<(NodeId, Range<usize>)>,
    steps: Vec<Step>,
    /// The best path of each, by its number.
    best: Vec<Option<Way>>,
}

impl Walk {
    fn clear(&mut self) {
        self.layers.iter_mut().for_each(Vec::clear);
        self.passed.clear();
        self.steps.clear();
        self.best.clear();
    }

    fn open(&mut self, links: u32, node: NodeId) {
        let links = links as usize;
        if self.layers.len() <= links {
            self.layers.resize(links + 1, Vec::new());
        }
        self.layers[links].push(node);
    }
}

/// A tree while it grows.
struct Growth<'a, 't> {
    fabric: &'a Usable<'t>,
    load: &'a LinkLoad,
    distances: &'a Row,
    parents: Parents,
    /// Of each switch: [`NOT_PASSED`], but for those that a search has passed.
    numbers: Vec<u32>,
    /// Of each switch: the best step to a switch that is in the tree, or was. Only in fabrics without forwarders, where a step is a link.
    offers: Vec<Option<Step>>,
    walk: Walk,
}

impl Growth<'_, '_> {
    fn add_switch(&mut self, switch: NodeId) {
        if !self.parents.has(switch) {
            let mut entries = Vec::new();
            steps(self.fabric, self.load, switch, self.distances, &mut entries);
            self.join(Node::Switch(switch), &entries);
        }
    }

    fn add_leaf(&mut self, leaf: &Leaf) {
        if let [route] = &leaf.nearest[..]
            && self.parents.has(route.far.node)
        {
            self.parents.set(Node::Member(leaf.member), Some(route.clone()));
            return;
        }
        let least = leaf.distance(self.distances);
        let nearest = leaf.nearest.iter();
        let nearest = nearest.filter(|route| length(route, self.distances) == least);
        let entries: Vec<Step> = nearest.map(|route| Step::of(route, self.load)).collect();
        self.join(Node::Member(leaf.member), &entries);
    }

    /// Lets each leaf join again that now could over fewer links: others have joined since.
    fn join_later(&mut self, leaves: &[&Leaf]) {
        let mut children = self.parents.children();
        let mut again = true;
        while core::mem::take(&mut again) {
            for leaf in leaves {
                let Some(entry) = self.parents.of(Node::Member(leaf.member)).map(|r| r.far.node) else {
                    continue;
                };
                // Its own branch ends where another one begins.
                let (mut at, mut branch) = (entry, Vec::new());
                while at != self.parents.root && children[at.0 as usize] == 1 {
                    branch.push(at);
                    let Some(up) = self.parents.of_switch(at) else {
                        break;
                    };
                    at = up.far.node;
                }
                if branch.len() > 1 && self.is_nearer(entry, &branch) {
                    for switch in branch {
                        self.parents.set(Node::Switch(switch), None);
                    }
                    self.add_leaf(leaf);
                    children = self.parents.children();
                    again = true;
                }
            }
        }
    }

    /// Whether the tree without `branch`, which begins at `entry`, is fewer links away from `entry` than by `branch`.
    fn is_nearer(&self, entry: NodeId, branch: &[NodeId]) -> bool {
        let mut layer = vec![entry];
        for links in 1..branch.len() {
            let hops = layer
                .iter()
                .flat_map(|node| nearer(self.fabric, *node, self.distances));
            let far = hops.map(|hop| hop.far.node);
            let is_other = |node: NodeId| self.parents.has(node) && !branch.contains(&node);
            if far.clone().any(is_other) {
                return true;
            }
            if links + 1 < branch.len() {
                layer = far.collect();
                layer.sort_unstable();
                layer.dedup();
            }
        }
        false
    }

    /// Offers a switch of the tree to those that are one link farther from the root.
    fn offer(&mut self, switch: NodeId) {
        if self.offers.is_empty() {
            return;
        }
        let farther = links_from(switch, self.distances).map(|links| links + 1);
        for hop in self.fabric.hops(switch) {
            if links_from(hop.far.node, self.distances) == farther {
                let step = Step::over(hop.link, (hop.far, hop.near), self.load);
                let best = &mut self.offers[hop.far.node.0 as usize];
                if best.is_none_or(|best| step.key() < best.key()) {
                    *best = Some(step);
                }
            }
        }
    }

    /// The best step of a switch to one of the tree, one link nearer to the root.
    fn offered(&mut self, switch: NodeId) -> Option<Step> {
        let best = self.offers.get_mut(switch.0 as usize)?;
        if best.is_some_and(|step| !self.parents.has(step.far.node)) {
            let hops = nearer(self.fabric, switch, self.distances);
            let hops = hops.filter(|hop| self.parents.has(hop.far.node));
            let steps = hops.map(|hop| Step::over(hop.link, (hop.near, hop.far), self.load));
            *best = steps.min_by_key(Step::key);
        }
        *best
    }

    /// Adds a node over the fewest new links; among equals with the least load, then first by ends. `entries` are the
    /// first steps from it.
    fn join(&mut self, mut child: Node, entries: &[Step]) {
        // Walk from the leaf over its shortest paths, by number of links, until switches of the tree are there.
        let mut walk = core::mem::take(&mut self.walk);
        walk.clear();
        for entry in entries {
            walk.open(entry.length, entry.far.node);
        }
        let mut links = 0;
        while let Some(layer) = walk.layers.get_mut(links as usize).map(core::mem::take) {
            if layer.iter().any(|node| self.parents.has(*node)) {
                break;
            }
            // Next to the tree, steps to other switches need not be looked at.
            let is_next = layer.iter().any(|node| self.offered(*node).is_some());
            for node in &layer {
                let number = &mut self.numbers[node.0 as usize];
                if *number != NOT_PASSED {
                    continue;
                }
                *number = walk.passed.len() as u32;
                let first = walk.steps.len();
                match is_next {
                    true => walk.steps.extend(self.offered(*node)),
                    false => steps(self.fabric, self.load, *node, self.distances, &mut walk.steps),
                }
                walk.passed.push((*node, first..walk.steps.len()));
                for at in first..walk.steps.len() {
                    let step = walk.steps[at];
                    walk.open(links + step.length, step.far.node);
                }
            }
            walk.layers[links as usize] = layer;
            links += 1;
        }
        // From the tree back to the leaf: the best path of each switch.
        walk.best.resize(walk.passed.len(), None);
        walk.passed
            .sort_by_key(|(node, _)| self.distances[node.0 as usize]);
        for (node, own) in &walk.passed {
            let way = self.cheapest(&walk.steps[own.clone()], &walk.best);
            walk.best[self.numbers[node.0 as usize] as usize] = way;
        }
        let mut way = self.cheapest(entries, &walk.best);
        while let Some(Way { step, .. }) = way {
            self.parents.set(child, step.route(self.fabric));
            if let Node::Switch(switch) = child {
                self.offer(switch);
            }
            child = Node::Switch(step.far.node);
            let number = self.numbers[step.far.node.0 as usize];
            way = walk.best.get_mut(number as usize).and_then(Option::take);
        }
        for (node, _) in &walk.passed {
            self.numbers[node.0 as usize] = NOT_PASSED;
        }
        self.walk = walk;
    }

    /// The best of these steps, with the ways of the switches that they lead to.
    fn cheapest(&self, steps: &[Step], best: &[Option<Way>]) -> Option<Way> {
        let each = steps.iter().filter_map(|step| {
            let (links, groups) = match self.parents.has(step.far.node) {
                true => (0, 0),
                false => {
                    let number = self.numbers[step.far.node.0 as usize];
                    let way = best.get(number as usize)?.as_ref()?;
                    (way.links, way.groups)
                }
            };
            Some(Way {
                links: links + step.length,
                groups: groups + step.groups,
                step: *step,
            })
        });
        each.min_by_key(|way| (way.links, way.groups, way.step.far, way.step.near))
    }
}

/// Removes each switch that saves no links: its children hang on its parent instead if that takes fewer links in total,
/// over plain switches and routers. Starts with the switches farthest from the top. A host keeps one child, a switch.
pub(crate) fn leave_out(fabric: &Usable<'_>, load: &LinkLoad, parents: &mut Parents) {
    if !fabric.topology.has_forwarders() {
        return;
    }
    let mut children: BTreeMap<NodeId, BTreeSet<(Node, NodeId)>> = BTreeMap::new();
    for (node, route) in parents.nodes() {
        children
            .entry(route.far.node)
            .or_default()
            .insert((node, route.near.node));
    }
    let depth = |node: NodeId| {
        let up = |node: &NodeId| parents.of_switch(*node).map(|route| route.far.node);
        core::iter::successors(Some(node), up).count()
    };
    let mut inner: Vec<(usize, NodeId)> = children.keys().map(|node| (depth(*node), *node)).collect();
    inner.sort_by_key(|(depth, node)| (core::cmp::Reverse(*depth), *node));
    let mut reaches: BTreeMap<NodeId, Reach> = BTreeMap::new();
    for (_, switch) in inner {
        let Some(up) = parents.of_switch(switch) else {
            continue;
        };
        let parent = up.far.node;
        let below = &children[&switch];
        let one_switch = below.len() == 1 && matches!(below.first(), Some((Node::Switch(_), _)));
        if fabric.topology.kind(parent).is_none() && !one_switch {
            continue;
        }
        let lengths = below
            .iter()
            .filter_map(|(node, _)| parents.of(*node))
            .map(Route::length);
        let links = up.length() + lengths.sum::<u32>();
        let reach = reaches
            .entry(parent)
            .or_insert_with(|| Reach::new(fabric, parent));
        let lengths = below.iter().map(|(_, near)| reach.length(fabric, *near));
        if lengths
            .sum::<Option<u32>>()
            .is_none_or(|instead| instead >= links)
        {
            continue;
        }
        let below = children.remove(&switch).unwrap_or_default();
        for (node, near) in &below {
            parents.set(*node, reach.path(fabric, load, *near));
        }
        parents.set(Node::Switch(switch), None);
        let siblings = children.entry(parent).or_default();
        siblings.retain(|(node, _)| *node != Node::Switch(switch));
        siblings.extend(below);
    }
}
