//! Trees of relays: Castnet switches that forwarders alone join, such as one at each host of an ordinary network, pass data on to each other
//! (NIC-based multicast over Myrinet, 3 and 5.5).

use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use castnet_group::TreeShape;
use castnet_topology::{NodeId, Topology, Usable};

use crate::grow::{Node, Parents};
use crate::load::LinkLoad;
use crate::overlay::{Reach, Route};

/// Numbers of copies that a postal tree is computed for, besides no limit: with more copies of each packet, a relay is too slow for any but
/// short messages.
const COPIES_MAX: u32 = 32;

/// The switches to which forwarders alone lead from the switch above them, and the paths to that. The source, which is no switch, is above the first.
fn relays<'a>(topology: &Topology, parents: &'a Parents) -> impl Iterator<Item = (NodeId, &'a Route)> {
    let is_relay = |route: &Route| topology.kind(route.far.node).is_some() && route.via().next().is_some();
    parents.switches().filter(move |(_, route)| is_relay(route))
}

/// Gives the switches below each switch another shape, if forwarders lead to all of them: instead of a star, which it is with most of them.
/// The relays are in the order of their paths, then by name, and each is below an earlier one or the root. Over one forwarder this is one order for
/// all groups, as the paper wants it (5.4); in general it is not, and relays of Castnet do not wait for each other.
pub(crate) fn arrange(fabric: &Usable<'_>, load: &LinkLoad, parents: &mut Parents, shape: TreeShape) {
    if shape == TreeShape::Shortest {
        return;
    }
    let mut stars: BTreeMap<NodeId, Vec<(Vec<NodeId>, NodeId)>> = BTreeMap::new();
    for (switch, route) in relays(fabric.topology, parents) {
        let path = route.via().rev().collect();
        stars.entry(route.far.node).or_default().push((path, switch));
    }
    for (root, mut relays) in stars {
        relays.sort();
        let order: Vec<NodeId> = core::iter::once(root)
            .chain(relays.into_iter().map(|(_, switch)| switch))
            .collect();
        let below = parents_of(order.len(), shape);
        let routes: Option<Vec<(NodeId, Route)>> = paths(fabric, load, &order, &below);
        // Relays that cannot reach each other stay below the root.
        for (switch, route) in routes.into_iter().flatten() {
            parents.set(Node::Switch(switch), Some(route));
        }
    }
}

/// The path of each relay to its parent.
fn paths(
    fabric: &Usable<'_>,
    load: &LinkLoad,
    order: &[NodeId],
    below: &[usize],
) -> Option<Vec<(NodeId, Route)>> {
    let mut reaches: BTreeMap<usize, Reach> = BTreeMap::new();
    let each = order.iter().zip(below).skip(1).map(|(switch, parent)| {
        let reach = reaches
            .entry(*parent)
            .or_insert_with(|| Reach::new(fabric, order[*parent]));
        Some((*switch, reach.path(fabric, load, *switch)?))
    });
    each.collect()
}

/// The parent of each node of a tree, by number; nodes are numbered in the order in which they get a packet, and 0 is the root.
fn parents_of(nodes: usize, shape: TreeShape) -> Vec<usize> {
    match shape {
        TreeShape::Shortest | TreeShape::Star => vec![0; nodes],
        TreeShape::Chain => (0..nodes).map(|node| node.saturating_sub(1)).collect(),
        // Each node that has the message sends it in each round.
        TreeShape::Binomial => (0..nodes)
            .map(|node: usize| node.checked_ilog2().map_or(0, |log| node - (1 << log)))
            .collect(),
        TreeShape::Postal { latency, packets } => postal(nodes, latency, packets),
    }
}

/// The time until `relays` relays have a message of so many packets from the one next to the source, in hundredths of the time of a copy, where a
/// hop takes `latency` hundredths, by the postal model (5.5 of the paper).
pub fn relay_time(relays: usize, shape: TreeShape, latency: u32, packets: u32) -> u64 {
    time(&parents_of(relays + 1, shape), latency, packets)
}

/// A node sends one copy in a unit of time, and it arrives after `latency` hundredths of that (Bar-Noy and Kipnis). A relay passes each packet on
/// before the next one, and then has a copy for its own host: so one packet after the other takes as long as the most copies that a node makes
/// of it.
fn time(parents: &[usize], latency: u32, packets: u32) -> u64 {
    let latency = u64::from(latency).max(UNIT);
    let (mut arrives, mut copies) = (vec![0; parents.len()], vec![1; parents.len()]);
    let (mut last, mut most) = (0, 0);
    for (node, &parent) in parents.iter().enumerate().skip(1) {
        // The source is next to the root.
        let sent = copies[parent] - 1;
        arrives[node] = arrives[parent] + sent * UNIT + latency;
        copies[parent] += 1;
        last = arrives[node].max(last);
        most = (copies[parent] - u64::from(parent == 0)).max(most);
    }
    last + u64::from(packets.saturating_sub(1)) * most * UNIT
}

/// The fastest tree of those whose nodes make at most so many copies.
fn postal(nodes: usize, latency: u32, packets: u32) -> Vec<usize> {
    let copies = (2..=COPIES_MAX).chain([u32::MAX]);
    let trees = copies.map(|most| greedy(nodes, latency, most));
    trees
        .min_by_key(|parents| time(parents, latency, packets))
        .unwrap_or_default()
}

/// A unit of time, in the hundredths of latencies.
const UNIT: u64 = 100;

/// The tree in which each node sends to the next ones as soon as it has the packet, if it makes at most `most` copies, two at least.
fn greedy(nodes: usize, latency: u32, most: u32) -> Vec<usize> {
    // When the next copy of a node arrives, the node, and the copies that it has made.
    let latency = u64::from(latency).max(UNIT);
    let mut ready = BinaryHeap::from([Reverse((latency, 0, 0_u32))]);
    let mut parents = vec![0; nodes.min(1)];
    while parents.len() < nodes
        && let Some(Reverse((arrives, from, made))) = ready.pop()
    {
        let node = parents.len();
        parents.push(from);
        if made + 1 < most {
            ready.push(Reverse((arrives + UNIT, from, made + 1)));
        }
        // The copy for its own host comes last.
        ready.push(Reverse((arrives + latency, node, 1)));
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn depths(parents: &[usize]) -> Vec<usize> {
        let mut depths = vec![0; parents.len()];
        for node in 1..parents.len() {
            depths[node] = depths[parents[node]] + 1;
        }
        depths
    }

    fn most_children(parents: &[usize]) -> usize {
        let children = |node| parents[1..].iter().filter(|parent| **parent == node).count();
        (0..parents.len()).map(children).max().unwrap_or(0)
    }

    fn shapes() -> impl Strategy<Value = TreeShape> {
        let postal = (0_u32..2000, 0_u32..5000);
        prop_oneof![
            Just(TreeShape::Star),
            Just(TreeShape::Chain),
            Just(TreeShape::Binomial),
            postal.prop_map(|(latency, packets)| TreeShape::Postal { latency, packets }),
        ]
    }

    #[test]
    fn a_star_a_chain_and_a_binomial_tree() {
        assert_eq!(parents_of(5, TreeShape::Star), [0, 0, 0, 0, 0]);
        assert_eq!(parents_of(5, TreeShape::Chain), [0, 0, 1, 2, 3]);
        assert_eq!(parents_of(8, TreeShape::Binomial), [0, 0, 0, 1, 0, 1, 2, 3]);
    }

    /// The root has sent five copies before the first one can be passed on. Of long messages, each relay makes two copies of a packet.
    #[test]
    fn a_postal_tree_is_flat_for_one_packet_over_slow_links_and_two_chains_for_many() {
        let postal = |latency, packets| parents_of(7, TreeShape::Postal { latency, packets });
        assert_eq!(postal(600, 1), [0; 7]);
        assert_eq!(postal(100, 1), parents_of(7, TreeShape::Binomial));
        assert_eq!(postal(600, 100_000), [0, 0, 0, 1, 2, 3, 4]);
    }

    /// Three relays, ten copies a hop. A chain: three hops, then a packet in two copies; a star: a hop and two copies, then a packet in three.
    #[test]
    fn the_time_is_that_of_the_first_packet_and_of_the_most_copies_of_the_others() {
        assert_eq!(relay_time(3, TreeShape::Chain, 1000, 1), 3000);
        assert_eq!(relay_time(3, TreeShape::Chain, 1000, 5), 3000 + 4 * 200);
        assert_eq!(relay_time(3, TreeShape::Star, 1000, 5), 1200 + 4 * 300);
        assert_eq!(relay_time(1, TreeShape::Star, 1000, 5), 1000 + 4 * 100);
    }

    proptest! {
        /// Each node is below an earlier one, so each is reached and there is no cycle.
        #[test]
        fn each_node_is_below_an_earlier_one(nodes in 1_usize..200, shape in shapes()) {
            let parents = parents_of(nodes, shape);
            prop_assert_eq!(parents.len(), nodes);
            for (node, parent) in parents.iter().enumerate().skip(1) {
                prop_assert!(*parent < node);
            }
            let deepest = depths(&parents).into_iter().max().unwrap_or(0);
            match shape {
                TreeShape::Chain => prop_assert!(most_children(&parents) <= 1),
                TreeShape::Binomial => prop_assert!(deepest <= nodes.ilog2() as usize + 1),
                _ => prop_assert!(deepest < nodes.max(2)),
            }
        }

        /// Bar-Noy and Kipnis: with a latency of whole units, `f(t) = f(t - 1) + f(t - latency)` nodes have a message at `t`.
        #[test]
        fn one_packet_arrives_as_soon_as_is_possible(nodes in 2_usize..300, latency in 1_usize..12) {
            let mut reached = vec![1_usize; latency];
            while reached.last().is_some_and(|count| *count < nodes) {
                let time = reached.len();
                reached.push(reached[time - 1] + reached[time - latency]);
            }
            let latency = latency as u32 * 100;
            let last = time(&greedy(nodes, latency, u32::MAX), latency, 1);
            prop_assert_eq!(last, (reached.len() as u64 - 1) * UNIT);
        }

        /// No shape that can be asked for is faster by the model than the postal tree.
        #[test]
        fn a_postal_tree_is_the_fastest_of_all(nodes in 2_usize..100, latency in 100_u32..2000, packets in 1_u32..100) {
            let time = |shape| relay_time(nodes - 1, shape, latency, packets);
            let best = time(TreeShape::Postal { latency, packets });
            for shape in [TreeShape::Chain, TreeShape::Binomial] {
                prop_assert!(best <= time(shape), "{shape}");
            }
        }
    }
}
