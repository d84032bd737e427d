//! Fewer switches in a layer of a tree.
//!
//! Leaves that join one by one take more switches than needed where links are down: the first one's choice does not
//! know the others. Here a layer's switches are chosen together, as a small set that covers the next layer. PEEL (2.3)
//! chooses greedily, from the outside in; this search is exact as long as [`STEPS_MAX`] allows, and then greedy. Chosen
//! from the outside in, a layer may still need more switches inside of it than another choice of the same size: then
//! trees that begin with a switch which many leaves share are compared ([`shared`]).

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{NodeId, Row, Usable};

use crate::grow::Parents;
use crate::load::LinkLoad;
use crate::overlay::nearer;

/// Maximum number of steps of a search for one cover.
const STEPS_MAX: u32 = 4000;
/// Maximum number of switches that are passed for the most shared ones of a layer. Beyond, it would take several times as
/// long as the plan without them.
const SHARED_WALK_MAX: usize = 1024;

/// Switches of the next layer that share no option with others outside: a cover of theirs is chosen on its own.
#[derive(Default)]
struct Part {
    /// Those that may cover each, the least loaded link first.
    options: Vec<Vec<NodeId>>,
    /// Those that cover them in the tree.
    used: BTreeSet<NodeId>,
}

/// The switches at distance `layer` from the root that cover the next layer, if there are fewer than the tree has. Those
/// that are `fixed`, by number, are in the tree in any case.
pub(crate) fn smaller(
    fabric: &Usable<'_>,
    load: &LinkLoad,
    (distances, layer): (&Row, u16),
    parents: &Parents,
    fixed: &[bool],
) -> Option<Vec<NodeId>> {
    let far = |node: NodeId| nearer(fabric, node, distances).map(|hop| hop.far.node);
    let below = parents
        .switches()
        .filter(|(node, _)| distances[node.0 as usize] == layer + 1);
    let open = below.filter(|(node, _)| !far(*node).any(|node| fixed[node.0 as usize]));
    let open: Vec<(NodeId, NodeId)> = open.map(|(node, route)| (node, route.far.node)).collect();
    let used: BTreeSet<NodeId> = open.iter().map(|(_, used)| *used).collect();
    // Most trees are as small as these say, and nothing is to be searched.
    if apart(open.iter().map(|(node, _)| far(*node)), distances.len()) >= used.len() {
        return None;
    }
    let item = |(node, used): (NodeId, NodeId)| {
        let mut hops: Vec<_> = nearer(fabric, node, distances).collect();
        hops.sort_by_key(|hop| (load.get(hop.link), hop.far));
        (hops.into_iter().map(|hop| hop.far.node).collect(), used)
    };
    let mut cover = Vec::new();
    for part in parts(open.into_iter().map(item).collect()) {
        let found = part.cover(distances.len());
        cover.extend(found.unwrap_or_else(|| part.used.iter().copied().collect()));
    }
    (cover.len() < used.len()).then_some(cover)
}

/// The switches at distance `layer` from the root by the number of leaves that they have shortest paths to, most first,
/// then the least load on their links; none if the tree has no more there than such leaves need, or if they have more
/// than [`SHARED_WALK_MAX`] such paths.
pub(crate) fn shared(
    fabric: &Usable<'_>,
    load: &LinkLoad,
    (distances, layer): (&Row, u16),
    parents: &Parents,
    fixed: &[bool],
) -> Vec<NodeId> {
    let distance = |node: NodeId| distances[node.0 as usize];
    let inner = parents.switches().map(|(node, _)| node);
    let used = inner.filter(|node| distance(*node) == layer && !fixed[node.0 as usize]);
    let used = used.count();
    if used < 2 {
        return Vec::new();
    }
    let entries = (0..).map(NodeId).zip(fixed).filter(|(_, fixed)| **fixed);
    let entries = entries
        .map(|(entry, _)| entry)
        .filter(|entry| distance(*entry) > layer);
    let (mut seen, mut walked) = (vec![None; distances.len()], 0);
    let mut options: Vec<Vec<NodeId>> = Vec::new();
    for entry in entries {
        let mut nodes = vec![entry];
        for _ in layer..distance(entry) {
            let next = nodes.iter().flat_map(|node| nearer(fabric, *node, distances));
            let next = next.map(|hop| hop.far.node);
            nodes = next
                .filter(|node| seen[node.0 as usize].replace(entry) != Some(entry))
                .collect();
            walked += nodes.len();
            if walked > SHARED_WALK_MAX {
                return Vec::new();
            }
        }
        options.extend((!nodes.iter().any(|node| fixed[node.0 as usize])).then_some(nodes));
    }
    if apart(options.iter().map(|nodes| nodes.iter().copied()), distances.len()) >= used {
        return Vec::new();
    }
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for node in options.into_iter().flatten() {
        *counts.entry(node).or_default() += 1;
    }
    let mut counts: Vec<(NodeId, usize)> = counts.into_iter().collect();
    counts.sort_by_cached_key(|(node, count)| {
        let links = fabric.hops(*node).map(|hop| u64::from(load.get(hop.link)));
        (Reverse(*count), links.sum::<u64>(), *node)
    });
    counts.into_iter().map(|(node, _)| node).collect()
}

/// How many of these share no switch with those counted before. A cover of all has at least as many switches.
fn apart<I>(each: impl Iterator<Item = I>, switches: usize) -> usize
where
    I: Iterator<Item = NodeId> + Clone,
{
    let mut taken = vec![false; switches];
    let is_apart = |options: &I| {
        let free = options.clone().all(|node| !taken[node.0 as usize]);
        if free {
            options.clone().for_each(|node| taken[node.0 as usize] = true);
        }
        free
    };
    each.filter(is_apart).count()
}

fn parts(items: Vec<(Vec<NodeId>, NodeId)>) -> Vec<Part> {
    let mut by_option: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for (number, (options, _)) in items.iter().enumerate() {
        for option in options {
            by_option.entry(*option).or_default().push(number);
        }
    }
    let mut parts = Vec::new();
    let mut seen = vec![false; items.len()];
    for first in 0..items.len() {
        let mut part = Part::default();
        let mut open = vec![first];
        while let Some(number) = open.pop() {
            if core::mem::replace(&mut seen[number], true) {
                continue;
            }
            let (options, used) = &items[number];
            open.extend(
                options
                    .iter()
                    .filter_map(|option| by_option.remove(option))
                    .flatten(),
            );
            part.options.push(options.clone());
            part.used.insert(*used);
        }
        parts.extend((!part.options.is_empty()).then_some(part));
    }
    parts
}

impl Part {
    /// A cover with fewer switches than the tree has, in a fabric of so many `switches`.
    fn cover(&self, switches: usize) -> Option<Vec<NodeId>> {
        let most = self.used.len() - 1;
        let mut steps = STEPS_MAX;
        let mut narrow: Vec<&Vec<NodeId>> = self.options.iter().collect();
        narrow.sort_by_key(|options| options.len());
        let least = apart(
            narrow.into_iter().map(|options| options.iter().copied()),
            switches,
        )
        .max(1);
        let open: Vec<usize> = (0..self.options.len()).collect();
        let exact = (least..=most).find_map(|size| {
            let mut chosen = Vec::new();
            self.search(&open, size, &mut chosen, &mut steps)
                .then_some(chosen)
        });
        exact.or_else(|| Some(self.greedy()).filter(|cover| steps == 0 && cover.len() <= most))
    }

    /// Chooses up to `size` switches that cover all `open`.
    fn search(&self, open: &[usize], size: usize, chosen: &mut Vec<NodeId>, steps: &mut u32) -> bool {
        let Some(narrowest) = open.iter().min_by_key(|number| self.options[**number].len()) else {
            return true;
        };
        if size == 0 || *steps == 0 {
            return false;
        }
        *steps -= 1;
        self.options[*narrowest].iter().any(|option| {
            let left: Vec<usize> = self.without(open, *option);
            chosen.push(*option);
            let found = self.search(&left, size - 1, chosen, steps);
            if !found {
                chosen.pop();
            }
            found
        })
    }

    fn without(&self, open: &[usize], option: NodeId) -> Vec<usize> {
        let open = open.iter().copied();
        open.filter(|number| !self.options[*number].contains(&option))
            .collect()
    }

    /// Chooses the switch that covers most, until all are covered.
    fn greedy(&self) -> Vec<NodeId> {
        let mut cover = Vec::new();
        let mut open: Vec<usize> = (0..self.options.len()).collect();
        while !open.is_empty() {
            let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
            for option in open.iter().flat_map(|number| &self.options[*number]) {
                *counts.entry(*option).or_default() += 1;
            }
            let most = counts
                .into_iter()
                .max_by_key(|(node, count)| (*count, Reverse(*node)));
            let Some((option, _)) = most else { break };
            open = self.without(&open, option);
            cover.push(option);
        }
        cover
    }
}
