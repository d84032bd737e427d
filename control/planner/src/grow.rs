//! A tree over the Castnet switches of a fabric, from its topmost switch to its members.

use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{Distances, End, Topology};

use crate::load::LinkLoad;
use crate::overlay::{Reach, nearest, next_hops};
use crate::tree::Path;

/// Maximum number of trees that are compared. Of more tops, those with the least load count, then the first by name.
pub(crate) const CANDIDATES_MAX: usize = 16;
/// A tree as each node's path to its parent.
pub(crate) type Parents = BTreeMap<String, Path>;
/// A tree as each node's children with their paths, ordered by port, then by the children's names.
pub(crate) type Children = BTreeMap<String, Vec<(Path, String)>>;

#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) name: String,
    /// Shortest paths from its host to the nearest Castnet switches.
    pub(crate) nearest: Vec<Path>,
}

impl Leaf {
    pub(crate) fn new(topology: &Topology, name: &str, host: &str) -> Self {
        Self {
            name: name.into(),
            nearest: nearest(topology, host),
        }
    }

    /// Links to the destination of `distances`, over the nearest Castnet switch.
    pub(crate) fn distance(&self, topology: &Topology, distances: &Distances) -> Option<u32> {
        let each = self.nearest.iter().filter_map(|path| {
            let rest = topology.distance(path.far.node(), distances)?;
            Some(path.length() + rest)
        });
        each.min()
    }
}

/// How a node is reached from the tree: number of new links, their load, and the last path.
#[derive(Clone, Debug, Default)]
struct Way {
    links: u32,
    groups: u64,
    by: Option<Path>,
}

/// A tree below `root` that has all `leaves`, which join nearest first. Each switch of the tree is on a shortest path
/// from the root, so a leaf that joins there also has a shortest path, and each node keeps one parent.
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

/// Adds `leaf` over the fewest new links; among equals with the least load, then first by names and ports.
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
    // Walk back from the leaf over its shortest paths to the tree. In the map, switches near the root come first.
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

/// Removes each switch that saves no links: its children hang on its parent instead if that takes fewer links in total,
/// over plain switches and routers. Starts with the switches farthest from the top. A host keeps one child, a switch.
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

/// Number of links of a tree, each as often as it is used, and the sum of their load.
pub(crate) fn cost(load: &LinkLoad, parents: &Parents) -> (u32, u64) {
    let links = parents.values().map(Path::length).sum();
    (links, parents.values().map(|path| path.load(load)).sum())
}

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
