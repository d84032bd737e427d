//! A tree over the Castnet switches of a fabric, from its topmost switch to its members.

use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{Distances, End, Topology};

use crate::load::LinkLoad;
use crate::overlay::{Reach, nearest, next_hops};
use crate::tree::Path;

/// Trees that are grown to be compared; in a large fabric those whose tops have the least load, then the first by name.
pub(crate) const CANDIDATES_MAX: usize = 16;

/// The tree as each node's path to its parent.
pub(crate) type Parents = BTreeMap<String, Path>;

/// The tree as each node's children with their paths, in the order of its ports, then of the children's names.
pub(crate) type Children = BTreeMap<String, Vec<(Path, String)>>;

/// A member that a tree is to reach.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// Its name in the tree.
    pub(crate) name: String,
    /// The paths from its host to the nearest Castnet switches: it joins at one of these.
    pub(crate) nearest: Vec<Path>,
}

impl Leaf {
    /// A member of that name at that host.
    pub(crate) fn new(topology: &Topology, name: &str, host: &str) -> Self {
        Self {
            name: name.into(),
            nearest: nearest(topology, host),
        }
    }

    /// Links to the switch that `distances` are those to, by way of a nearest Castnet switch.
    pub(crate) fn distance(&self, topology: &Topology, distances: &Distances) -> Option<u32> {
        let each = self.nearest.iter().filter_map(|path| {
            let rest = topology.distance(path.far.node(), distances)?;
            Some(path.length() + rest)
        });
        each.min()
    }
}

/// How a node is reached from the tree: new links, the load of them, and the last path.
#[derive(Clone, Debug, Default)]
struct Way {
    links: u32,
    groups: u64,
    by: Option<Path>,
}

/// A tree below `root` that has all `leaves`. They join one after the other, nearest first.
///
/// A switch of the tree hangs on a shortest path from the root. So a leaf that joins at a switch on one of its own shortest
/// paths has a shortest path too, and every node keeps one parent.
pub(crate) fn grow(
    topology: &Topology,
    load: &LinkLoad,
    (root, distances): (&str, &Distances),
    leaves: &[Leaf],
) -> Parents {
    let mut order: Vec<(Option<u32>, &Leaf)> = leaves
        .iter()
        .map(|leaf| (leaf.distance(topology, distances), leaf))
        .collect();
    order.sort_by_key(|(distance, leaf)| (*distance, &leaf.name));
    let mut parents = Parents::new();
    for (_, leaf) in order {
        join(topology, load, (root, distances), leaf, &mut parents);
    }
    parents
}

/// Adds `leaf` by the way that takes the fewest new links, and among those the least load; among equals the first in
/// the order of names and ports.
fn join(
    topology: &Topology,
    load: &LinkLoad,
    (root, distances): (&str, &Distances),
    leaf: &Leaf,
    parents: &mut Parents,
) {
    let least = leaf.distance(topology, distances);
    let entries: Vec<Path> = leaf
        .nearest
        .iter()
        .filter(|path| {
            let rest = topology.distance(path.far.node(), distances);
            rest.map(|rest| path.length() + rest) == least
        })
        .cloned()
        .collect();
    // Walk back from the leaf over its shortest paths as far as the tree. The switches there, those nearest to the root first.
    let mut hops: BTreeMap<(Option<u32>, String), Vec<Path>> = BTreeMap::new();
    let mut open: Vec<String> = entries.iter().map(|path| path.far.node().to_string()).collect();
    while let Some(name) = open.pop() {
        let key = (topology.distance(&name, distances), name);
        if hops.contains_key(&key) {
            continue;
        }
        let in_tree = key.1 == root || parents.contains_key(&key.1);
        let own = if in_tree {
            Vec::new()
        } else {
            next_hops(topology, &key.1, distances)
        };
        open.extend(own.iter().map(|path| path.far.node().to_string()));
        hops.insert(key, own);
    }
    let mut ways: BTreeMap<String, Way> = BTreeMap::new();
    for ((_, name), paths) in hops {
        let way = best(load, &paths, &ways).unwrap_or_default();
        ways.insert(name, way);
    }
    let mut child = leaf.name.clone();
    let mut way = best(load, &entries, &ways);
    while let Some(path) = way.and_then(|way| way.by) {
        let parent = path.far.node().to_string();
        parents.insert(child, path);
        way = ways.remove(&parent);
        child = parent;
    }
}

/// The best way by one of these paths.
fn best(load: &LinkLoad, paths: &[Path], ways: &BTreeMap<String, Way>) -> Option<Way> {
    let each = paths.iter().filter_map(|path| {
        let rest = ways.get(path.far.node())?;
        Some(Way {
            links: rest.links + path.length(),
            groups: rest.groups + path.load(load),
            by: Some(path.clone()),
        })
    });
    each.min_by_key(|way| (way.links, way.groups))
}

/// Leaves out each switch that saves no links: where its children can hang on its parent by fewer links in all, over plain
/// switches and routers, they do. The switches farthest from the top come first. A host keeps one child, a switch.
pub(crate) fn leave_out(topology: &Topology, load: &LinkLoad, parents: &mut Parents) {
    if !topology.switches().any(|s| topology.is_forwarder(&s.name)) {
        return;
    }
    let depth = |name: &str| {
        let mut at = name;
        core::iter::from_fn(|| {
            at = parents.get(at)?.far.node();
            Some(())
        })
        .count()
    };
    let inner: BTreeSet<&str> = parents.values().map(|path| path.far.node()).collect();
    let mut inner: Vec<(usize, String)> = inner.into_iter().map(|name| (depth(name), name.into())).collect();
    inner.sort_by(|x, y| (y.0, &x.1).cmp(&(x.0, &y.1)));
    let mut reaches: BTreeMap<String, Reach> = BTreeMap::new();
    for (_, name) in inner {
        let Some(up) = parents.get(&name) else { continue };
        let parent = up.far.node();
        let below: Vec<(&String, &Path)> = parents
            .iter()
            .filter(|(_, path)| path.far.node() == name)
            .collect();
        let one_switch = matches!(
            &below[..],
            [(
                _,
                Path {
                    near: End::Switch { .. },
                    ..
                }
            )]
        );
        if matches!(up.far, End::Host(_)) && !one_switch {
            continue;
        }
        let links = up.length() + below.iter().map(|(_, path)| path.length()).sum::<u32>();
        let reach = reaches
            .entry(parent.to_string())
            .or_insert_with(|| Reach::new(topology, parent));
        let lengths = below
            .iter()
            .map(|(_, path)| reach.length(topology, path.near.node()));
        if lengths
            .sum::<Option<u32>>()
            .is_none_or(|instead| instead >= links)
        {
            continue;
        }
        let instead: Vec<(String, Path)> = below
            .into_iter()
            .filter_map(|(child, path)| Some((child.clone(), reach.path(topology, load, path.near.node())?)))
            .collect();
        parents.remove(&name);
        parents.extend(instead);
    }
}

/// The links of a tree, each as often as it is used, and their load.
pub(crate) fn cost(load: &LinkLoad, parents: &Parents) -> (u32, u64) {
    let links = parents.values().map(Path::length).sum();
    (links, parents.values().map(|path| path.load(load)).sum())
}

/// The same tree from the top.
pub(crate) fn children(parents: &Parents) -> Children {
    let mut all = Children::new();
    for (child, path) in parents {
        let path = path.reversed();
        let children: &mut Vec<_> = all.entry(path.near.node().into()).or_default();
        children.push((path, child.clone()));
    }
    for list in all.values_mut() {
        list.sort_by_key(|(path, _)| path.near_port());
    }
    all
}
