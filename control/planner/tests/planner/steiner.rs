//! The number of links of trees beside that of exact Steiner trees, in fabrics with links down (PEEL 2.2).

use std::cell::Cell;

use castnet_planner::reference::{ENDS_MAX, TooManyEnds, lower_bound, peel, shortest_paths, steiner};
use castnet_planner::{LinkLoad, Member, Request, RoomTable};
use castnet_rules::TranslatedRule;
use castnet_topology::{LinkId, NodeId, Topology};
use castnet_wire::{McstId, Pmtu, Qpn};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;

use crate::common::{plan, request};

/// A fabric of one of several shapes with 10 to 30 % of the links between switches down, and four to eight of its hosts.
fn asymmetric() -> impl Strategy<Value = (Topology, Vec<String>)> {
    let shape = prop_oneof![Just((8usize, 4usize)), Just((12, 6)), Just((0, 4)), Just((0, 8))];
    let picks = proptest::collection::vec(any::<Index>(), 4..=8);
    let down = (10u32..=30).prop_flat_map(|percent| {
        proptest::collection::vec(0u32..100, 256).prop_map(move |each| {
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

fn ends(t: &Topology, members: &[String]) -> Vec<NodeId> {
    let ids = members.iter().map(|host| t.id(host).expect("a host"));
    ids.collect()
}

/// Sums over many fabrics: links of the planned trees and of the smallest.
fn sums(planned: impl Fn(&Topology, &[String]) -> Option<usize>) -> (u64, u64) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut ours, mut least) = (0, 0);
    for _ in 0..400 {
        let (t, members) = asymmetric().new_tree(&mut runner).expect("a fabric").current();
        let exact = steiner(&t, &ends(&t, &members)).expect("few members");
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
    // Plans have shortest paths only: the least of these trees is what they can reach.
    let of_shortest_paths = Cell::new(0);
    let (ours, least) = sums(|t, members| {
        let receivers: Vec<&str> = members[1..].iter().map(String::as_str).collect();
        let plan = plan(t, &LinkLoad::new(), &request(&members[0], &receivers)).ok()?;
        let ends = ends(t, members);
        let least = shortest_paths(t, ends[0], &ends[1..]).expect("few members")?;
        of_shortest_paths.set(of_shortest_paths.get() + u64::from(least));
        let links = plan.tree.links().len();
        assert!(least as usize <= links, "shortest paths only");
        Some(links)
    });
    assert!(
        least > 2000 && ours * 100 <= least * 101,
        "{ours} links, {least} at least"
    );
    let shortest = of_shortest_paths.get();
    assert!(
        ours * 1000 <= shortest * 1002,
        "{ours} links, {shortest} at least"
    );
}

/// The paper proves that layer peeling is within min(F, |D|) of the smallest tree (theorem 2.5).
#[test]
fn layer_peeling_is_between_the_bounds_of_the_paper() {
    let (links, least) = sums(|t, members| {
        let ends = ends(t, members);
        let (source, receivers) = (ends[0], &ends[1..]);
        let links = peel(t, source, receivers)?;
        let bound = lower_bound(t, source, receivers)?;
        let exact = steiner(t, &ends).ok()??;
        let shortest = shortest_paths(t, source, receivers).ok()??;
        let distances = t.distances(&members[0]);
        let far = members[1..]
            .iter()
            .filter_map(|host| t.distance(host, &distances));
        let factor = far.max()?.min(receivers.len() as u32);
        assert!(
            bound <= exact && exact <= shortest && shortest <= links && links <= exact * factor,
            "{bound} {exact} {links} {factor}"
        );
        Some(links as usize)
    });
    assert!(
        least > 2000 && links * 100 <= least * 105,
        "{links} links, {least} at least"
    );
}

#[test]
fn known_trees_have_the_links_that_can_be_counted() {
    let t = Topology::leaf_spine(3, 2, 2).expect("a fabric");
    let ids: Vec<NodeId> = (0..6).map(|h| t.id(&format!("h{h}")).expect("a host")).collect();
    // The link of each host, and one of each leaf.
    for (count, links) in [(2, 2), (4, 6), (6, 9)] {
        let ends = &ids[..count];
        assert_eq!(steiner(&t, ends), Ok(Some(links)));
        assert_eq!(peel(&t, ends[0], &ends[1..]), Some(links));
    }
    assert_eq!(lower_bound(&t, ids[0], &ids[1..2]), Some(2));
    assert_eq!(lower_bound(&t, ids[0], &ids[1..]), Some(5));
    assert_eq!(steiner(&t, &[]), Ok(Some(0)));
    assert_eq!(peel(&t, ids[0], &[]), None, "no receivers");
    let many = vec![ids[0]; ENDS_MAX + 1];
    assert_eq!(steiner(&t, &many), Err(TooManyEnds { ends: ENDS_MAX + 1 }));
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
