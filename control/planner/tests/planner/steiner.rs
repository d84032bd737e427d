//! The number of links of trees beside that of exact Steiner trees, in fabrics with links down (PEEL 2.2).

use castnet_planner::{LinkLoad, Member, Request, RoomTable};
use castnet_rules::TranslatedRule;
use castnet_topology::{LinkId, NodeId, Topology};
use castnet_wire::{McstId, Pmtu, Qpn};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;

use crate::common::{plan, request};

/// Links of the smallest tree that has all `ends`; `None` if there is none. Dreyfus and Wagner's recurrence: over the
/// sets of ends, the best tree of the set that has a node, for each node.
fn steiner(t: &Topology, ends: &[NodeId]) -> Option<u32> {
    const FAR: u32 = u32::MAX / 4;
    let nodes = t.switch_ids().count() + t.hosts().count();
    let (first, rest) = ends.split_first()?;
    let mut best = vec![vec![FAR; nodes]; 1 << rest.len()];
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
        // Trees that grow to the next node: all links cost one.
        let mut open: Vec<NodeId> = (0..nodes as u32).map(NodeId).collect();
        while let Some(node) = open.pop() {
            for hop in t.hops(node).iter().filter(|hop| hop.up) {
                let (here, there) = (best[set][node.0 as usize], hop.far.node.0 as usize);
                if here + 1 < best[set][there] {
                    best[set][there] = here + 1;
                    open.push(hop.far.node);
                }
            }
        }
    }
    let links = best.last()?[first.0 as usize];
    (links < FAR).then_some(links)
}

/// A fabric of at least two shapes with 10 to 30 % of the links between switches down, and four to eight of its hosts.
fn asymmetric() -> impl Strategy<Value = (Topology, Vec<String>)> {
    let shape = prop_oneof![Just((8usize, 4usize)), Just((12, 6)), Just((0, 4))];
    let picks = proptest::collection::vec(any::<Index>(), 4..=8);
    let down = (10u32..=30).prop_flat_map(|percent| {
        proptest::collection::vec(0u32..100, 128).prop_map(move |each| {
            each.into_iter()
                .map(|chance| chance < percent)
                .collect::<Vec<bool>>()
        })
    });
    (shape, picks, down).prop_map(|((leaves, width), picks, down)| {
        let fabric = if leaves > 0 {
            Topology::leaf_spine(leaves, width, 1)
        } else {
            Topology::fat_tree(width)
        };
        let mut t = fabric.expect("sizes in range");
        let inner = t
            .links()
            .filter(|(_, link)| t.switch(link.a.node()).is_some() && t.switch(link.b.node()).is_some());
        let inner: Vec<LinkId> = inner.map(|(id, _)| id).collect();
        for (link, _) in inner.into_iter().zip(down).filter(|(_, down)| *down) {
            t.set_link_up(link, false);
        }
        let mut hosts: Vec<String> = t.hosts().map(|host| host.name.clone()).collect();
        let members = picks
            .iter()
            .map(|pick| hosts.swap_remove(pick.index(hosts.len())))
            .collect();
        (t, members)
    })
}

/// Sums over many fabrics: links of the planned trees and of the smallest.
fn sums(planned: impl Fn(&Topology, &[String]) -> Option<usize>) -> (u64, u64) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut ours, mut least) = (0, 0);
    for _ in 0..400 {
        let (t, members) = asymmetric().new_tree(&mut runner).expect("a fabric").current();
        let ends: Option<Vec<NodeId>> = members.iter().map(|host| t.id(host)).collect();
        let exact = ends.and_then(|ends| steiner(&t, &ends));
        let links = planned(&t, &members);
        assert_eq!(
            links.is_some(),
            exact.is_some(),
            "a tree where there is one: {members:?}\n{}",
            t.to_toml()
        );
        if let Some((links, exact)) = links.zip(exact) {
            assert!(
                links >= exact as usize,
                "{links} links, {exact} at least: {members:?}\n{}",
                t.to_toml()
            );
            ours += links as u64;
            least += u64::from(exact);
        }
    }
    (ours, least)
}

#[test]
fn multicast_trees_have_at_most_one_percent_more_links_than_the_smallest() {
    let (ours, least) = sums(|t, members| {
        let receivers: Vec<&str> = members[1..].iter().map(String::as_str).collect();
        let plan = plan(t, &LinkLoad::new(), &request(&members[0], &receivers)).ok()?;
        Some(plan.tree.links().len())
    });
    assert!(
        least > 2000 && ours * 100 <= least * 101,
        "{ours} links, {least} at least"
    );
}

/// The root of an IncTree is a switch of the lowest level (EPIC 6.2), which may cost links.
#[test]
fn inc_trees_have_few_more_links_than_the_smallest() {
    let (ours, least) = sums(|t, members| {
        let ranks = members
            .iter()
            .map(|host| Member::new(host, Qpn::new(0x11)))
            .collect();
        let (mcst_id, rule) = (McstId([10, 255, 0, 1].into()), TranslatedRule::root(0));
        let request = Request::collective("job", mcst_id, Pmtu::B1024, ranks, (64, rule));
        let plan = castnet_planner::plan(t, &LinkLoad::new(), &RoomTable::new(), &request).ok()?;
        Some(plan.tree.links().len())
    });
    assert!(
        least > 2000 && ours * 100 <= least * 101,
        "{ours} links, {least} at least"
    );
}
