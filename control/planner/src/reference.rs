//! Numbers of links of trees that plans are compared with (PEEL 2.3). For fabrics of Castnet switches: each link that is
//! up may be used, and only switches and the source forward.

use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{NodeId, Topology};

/// Most ends of an exact tree: time and memory grow as 3 and 2 to their power.
pub const ENDS_MAX: usize = 14;

/// More than [`ENDS_MAX`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ends} ends; an exact tree has at most {ENDS_MAX}")]
pub struct TooManyEnds {
    /// Number of ends.
    pub ends: usize,
}

const FAR: u32 = u32::MAX / 4;

/// Links of the smallest tree that has all `ends`; `None` if there is none. Dreyfus and Wagner's recurrence: over the
/// sets of ends, the best tree of the set that has a node, for each node.
///
/// # Errors
/// There are too many ends.
pub fn steiner(t: &Topology, ends: &[NodeId]) -> Result<Option<u32>, TooManyEnds> {
    match ends.split_first() {
        Some((first, rest)) => exact(t, *first, rest, |_, _| true),
        None => Ok(Some(0)),
    }
}

/// As [`steiner`], of the trees in which each path from the source is a shortest one, as in plans.
///
/// # Errors
/// There are too many ends.
pub fn shortest_paths(
    t: &Topology,
    source: NodeId,
    receivers: &[NodeId],
) -> Result<Option<u32>, TooManyEnds> {
    let distances = distances(t, source);
    let is_nearer = |from: NodeId, to: NodeId| distances[to.0 as usize] + 1 == distances[from.0 as usize];
    exact(t, source, receivers, is_nearer)
}

/// Of trees whose links, from the other ends to the first one, are all `allowed`.
fn exact(
    t: &Topology,
    first: NodeId,
    rest: &[NodeId],
    allowed: impl Fn(NodeId, NodeId) -> bool,
) -> Result<Option<u32>, TooManyEnds> {
    let ends = rest.len() + 1;
    if ends > ENDS_MAX {
        return Err(TooManyEnds { ends });
    }
    let step = |from, to| (to == first || t.kind(to).is_some()) && allowed(from, to);
    let mut best = vec![vec![FAR; nodes(t)]; 1 << rest.len()];
    best[0][first.0 as usize] = 0;
    for set in 1usize..1 << rest.len() {
        if set.is_power_of_two() {
            best[set][rest[set.trailing_zeros() as usize].0 as usize] = 0;
        }
        let mut part = (set - 1) & set;
        while part > 0 {
            let joined = best[part].iter().zip(&best[set & !part]);
            let joined: Vec<u32> = joined.map(|(x, y)| x + y).collect();
            for (known, joined) in best[set].iter_mut().zip(joined) {
                *known = joined.min(*known);
            }
            part = (part - 1) & set;
        }
        grow(t, &mut best[set], step);
    }
    let links = best.last().map_or(FAR, |all| all[first.0 as usize]);
    Ok((links < FAR).then_some(links))
}

/// Lets trees grow by one link at a time, the smallest first. Each link costs one.
fn grow(t: &Topology, best: &mut [u32], step: impl Fn(NodeId, NodeId) -> bool) {
    let mut open: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for (node, links) in (0..).map(NodeId).zip(&*best).filter(|(_, links)| **links < FAR) {
        open.entry(*links).or_default().push(node);
    }
    while let Some((links, nodes)) = open.pop_first() {
        for node in nodes {
            if best[node.0 as usize] < links {
                continue;
            }
            for far in near(t, node).filter(|far| step(node, *far)) {
                let known = &mut best[far.0 as usize];
                if links + 1 < *known {
                    *known = links + 1;
                    open.entry(links + 1).or_default().push(far);
                }
            }
        }
    }
}

/// Links of the tree that layer peeling finds, as PEEL 2.3 describes it: from the outermost layer to the source, the
/// switch that attaches the most nodes of the layer outside of it, among equals the first by name. `None`: a receiver
/// has no path, or there is none.
pub fn peel(t: &Topology, source: NodeId, receivers: &[NodeId]) -> Option<u32> {
    let distances = distances(t, source);
    let far = farthest(&distances, receivers)?;
    let mut tree: BTreeSet<NodeId> = receivers.iter().copied().chain([source]).collect();
    for layer in (0..far).rev() {
        let inner = |node: NodeId| {
            let near = near(t, node).filter(|near| distances[near.0 as usize] == layer);
            near.filter(|near| *near == source || t.kind(*near).is_some())
        };
        let below = tree.iter().filter(|node| distances[node.0 as usize] == layer + 1);
        let mut open: Vec<NodeId> = below.copied().collect();
        open.retain(|node| !inner(*node).any(|near| tree.contains(&near)));
        while !open.is_empty() {
            let mut attached: BTreeMap<NodeId, u32> = BTreeMap::new();
            for near in open.iter().flat_map(|node| inner(*node)) {
                *attached.entry(near).or_default() += 1;
            }
            let most = attached
                .into_iter()
                .max_by_key(|(node, count)| (*count, core::cmp::Reverse(*node)));
            let (chosen, _) = most?;
            tree.insert(chosen);
            open.retain(|node| inner(*node).all(|near| near != chosen));
        }
    }
    Some(tree.len() as u32 - 1)
}

/// The links that any tree has at least: one to each receiver, and those of the longest of the shortest paths (PEEL,
/// lemma 2.4). `None`: a receiver has no path, or there is none.
pub fn lower_bound(t: &Topology, source: NodeId, receivers: &[NodeId]) -> Option<u32> {
    let far = farthest(&distances(t, source), receivers)?;
    Some(far.max(receivers.len() as u32))
}

fn nodes(t: &Topology) -> usize {
    t.switch_ids().count() + t.hosts().count()
}

fn near(t: &Topology, node: NodeId) -> impl Iterator<Item = NodeId> {
    let up = t.hops(node).iter().filter(|hop| hop.up);
    up.map(|hop| hop.far.node)
}

fn farthest(distances: &[u32], receivers: &[NodeId]) -> Option<u32> {
    let far = receivers.iter().map(|node| distances[node.0 as usize]).max();
    far.filter(|far| *far < FAR)
}

/// Links to each node.
fn distances(t: &Topology, source: NodeId) -> Vec<u32> {
    let mut distances = vec![FAR; nodes(t)];
    distances[source.0 as usize] = 0;
    let mut layer = vec![source];
    while !layer.is_empty() {
        let mut next = Vec::new();
        for node in layer {
            let is_open = node == source || t.kind(node).is_some();
            for far in near(t, node).filter(|_| is_open) {
                if distances[far.0 as usize] == FAR {
                    distances[far.0 as usize] = distances[node.0 as usize] + 1;
                    next.push(far);
                }
            }
        }
        layer = next;
    }
    distances
}
