//! Trees of relays: a switch at each host, joined by ordinary switches and routers alone.

use std::collections::BTreeMap;

use castnet_planner::{LinkLoad, Plan, Request};
use castnet_topology::Topology;
use castnet_wire::{McstId, TreeShape};

use crate::common::{plan, request};
use crate::mixed::{Fabric, check, names};

/// Hosts with a relay each: those with even numbers at one ordinary switch, the others at a second one.
fn segment(hosts: u8, is_routed: bool) -> Topology {
    let mut f = Fabric::default();
    for rack in ["even", "odd"] {
        match is_routed {
            true => f.router(rack),
            false => f.plain(rack),
        }
    }
    f.link("even", "odd");
    for host in 0..hosts {
        let relay = format!("relay{host}");
        f.castnet(&relay);
        f.hosts(&relay, 1);
        f.link(&relay, if host % 2 == 0 { "even" } else { "odd" });
    }
    f.topology
}

fn planned(t: &Topology, hosts: u8, tree: TreeShape) -> Plan {
    let own = |host| (format!("relay{host}"), McstId([10, 200, host, 7].into()));
    let own: BTreeMap<String, McstId> = (0..hosts).map(own).collect();
    let receivers = names(1..hosts);
    let receivers: Vec<&str> = receivers.iter().map(String::as_str).collect();
    let wanted = Request {
        mcst_ids: own.clone(),
        tree,
        ..request("h0", &receivers)
    };
    let p = plan(t, &LinkLoad::new(), &wanted).expect("a plan");
    check(t, &p.tree, &p.rules, &own).expect("a right plan");
    p
}

/// The relay above each relay but the first.
fn above(p: &Plan) -> Vec<(String, String)> {
    let mut above = Vec::new();
    for node in p.tree.nodes() {
        let below = node
            .children
            .iter()
            .filter(|child| child.name.starts_with("relay"));
        above.extend(below.map(|child| (child.name.clone(), node.name.clone())));
    }
    above.retain(|(_, above)| above.starts_with("relay"));
    above.sort();
    above
}

fn pairs(pairs: &[(u8, u8)]) -> Vec<(String, String)> {
    let name = |host: u8| format!("relay{host}");
    let mut pairs: Vec<_> = pairs
        .iter()
        .map(|(below, above)| (name(*below), name(*above)))
        .collect();
    pairs.sort();
    pairs
}

#[test]
fn a_tree_of_relays_has_the_shape_that_was_asked_for() {
    for is_routed in [false, true] {
        let t = segment(6, is_routed);
        let shape = |tree| above(&planned(&t, 6, tree));
        let star = pairs(&[(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]);
        assert_eq!(shape(TreeShape::Shortest), star, "routed: {is_routed}");
        assert_eq!(shape(TreeShape::Star), star);
        // Those at the switch of the first one come first: the link between the two switches is passed once.
        let chain = pairs(&[(2, 0), (4, 2), (1, 4), (3, 1), (5, 3)]);
        assert_eq!(shape(TreeShape::Chain), chain);
        let binomial = pairs(&[(2, 0), (4, 0), (1, 2), (3, 0), (5, 2)]);
        assert_eq!(shape(TreeShape::Binomial), binomial);
        let long = TreeShape::Postal {
            latency: 300,
            packets: 1000,
        };
        assert_eq!(shape(long), pairs(&[(2, 0), (4, 0), (1, 2), (3, 4), (5, 1)]));
    }
}

/// The switches of a fabric replicate where they are; only what ordinary switches lead to has another shape.
#[test]
fn a_mixed_tree_keeps_its_switches_and_has_relays_behind_the_last_one() {
    let mut f = Fabric::default();
    f.castnet("relay0");
    f.castnet("relay9");
    f.hosts("relay0", 1);
    f.link("relay0", "relay9");
    f.hosts("relay9", 1);
    f.plain("segment");
    f.link("relay9", "segment");
    for host in 2..5 {
        let relay = format!("relay{host}");
        f.castnet(&relay);
        f.hosts(&relay, 1);
        f.link(&relay, "segment");
    }
    let receivers = ["h1", "h2", "h3", "h4"];
    let wanted = Request {
        tree: TreeShape::Chain,
        ..request("h0", &receivers)
    };
    let p = plan(&f.topology, &LinkLoad::new(), &wanted).expect("a plan");
    assert_eq!(above(&p), pairs(&[(9, 0), (2, 9), (3, 2), (4, 3)]));
}

#[test]
fn relays_of_eight_racks_in_a_chain() {
    let mut f = Fabric::default();
    f.router("core");
    let mut last = String::new();
    for rack in 0..8 {
        let name = format!("rack{rack}");
        f.plain(&name);
        f.link(&name, "core");
        for n in 0..31 {
            let relay = format!("relay{:03}", rack * 31 + n);
            f.castnet(&relay);
            f.hosts(&relay, 1);
            f.link(&relay, &name);
            last = relay;
        }
    }
    let relays = f.topology.switches().filter(|s| s.name.starts_with("relay"));
    let own = (0..)
        .zip(relays)
        .map(|(n, s)| (s.name.clone(), McstId([10, 201, 0, n].into())));
    let own: BTreeMap<String, McstId> = own.collect();
    let receivers = names(1..248);
    let receivers: Vec<&str> = receivers.iter().map(String::as_str).collect();
    let wanted = Request {
        mcst_ids: own,
        tree: TreeShape::Chain,
        ..request("h0", &receivers)
    };
    let p = plan(&f.topology, &LinkLoad::new(), &wanted).expect("a plan");
    let chain = above(&p);
    assert_eq!(chain.len(), 247);
    assert_eq!(chain.last().map(|(below, _)| below), Some(&last));
}
