//! Trees of relays: a switch at each host, joined by ordinary switches and routers alone.

use std::collections::BTreeMap;

use castnet_group::{Distribution, TreeShape};
use castnet_planner::{LinkLoad, Plan, Request};
use castnet_topology::Topology;
use castnet_wire::McstId;

use crate::common::{plan, request};
use crate::mixed::{Fabric, check, names};

/// Hosts with a relay each: those with even numbers at one ordinary switch or router, the others at the second one if there are two.
pub(crate) fn segment(hosts: u8, racks: u8, is_routed: bool) -> Topology {
    let mut f = Fabric::default();
    let names = &["even", "odd"][..racks.into()];
    for rack in names {
        match is_routed {
            true => f.router(rack),
            false => f.plain(rack),
        }
    }
    if let [first, second] = names {
        f.link(first, second);
    }
    for host in 0..hosts {
        let relay = format!("relay{host}");
        f.castnet(&relay);
        f.hosts(&relay, 1);
        f.link(&relay, names[usize::from(host % racks)]);
    }
    f.topology
}

fn planned(t: &Topology, hosts: u8, tree: TreeShape) -> Plan {
    planned_from(t, (0, hosts), tree)
}

/// From one of the hosts to all others.
pub(crate) fn planned_from(t: &Topology, (source, hosts): (u8, u8), tree: TreeShape) -> Plan {
    let own = |host| (format!("relay{host}"), McstId([10, 200, host, 7].into()));
    let own: BTreeMap<String, McstId> = (0..hosts).map(own).collect();
    let source = format!("h{source}");
    let receivers = names(0..hosts);
    let receivers: Vec<&str> = receivers
        .iter()
        .map(String::as_str)
        .filter(|host| *host != source)
        .collect();
    let wanted = Request {
        mcst_ids: own.clone(),
        distribution: Distribution::Switches(tree.into()),
        ..request(&source, &receivers)
    };
    let p = plan(t, &LinkLoad::new(), &wanted).expect("a plan");
    check(t, &p.tree, &p.rules, &own).expect("a right plan");
    p
}

/// The relay above each relay but the first.
pub(crate) fn above(p: &Plan) -> Vec<(String, String)> {
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
        let t = segment(6, 2, is_routed);
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
        distribution: Distribution::Switches(TreeShape::Chain.into()),
        ..request("h0", &receivers)
    };
    let p = plan(&f.topology, &LinkLoad::new(), &wanted).expect("a plan");
    assert_eq!(above(&p), pairs(&[(9, 0), (2, 9), (3, 2), (4, 3)]));
}

/// Two spines above four leaves with a host each, and one leaf more.
#[test]
fn at_the_edge_the_switches_above_only_forward() {
    let t = Topology::leaf_spine(5, 2, 1).expect("a fabric");
    let wanted = |distribution| Request {
        distribution,
        ..request("h0", &["h1", "h2", "h3"])
    };
    let planned = |distribution| plan(&t, &LinkLoad::new(), &wanted(distribution)).expect("a plan");
    let inside = planned(Distribution::Switches(TreeShape::Chain.into()));
    let switches: Vec<&str> = inside.rules.keys().map(String::as_str).collect();
    assert_eq!(switches, ["leaf0", "leaf1", "leaf2", "leaf3", "spine0"]);
    assert_eq!(planned(Distribution::default()), inside, "there are no relays");
    let chain = planned(Distribution::Edge(TreeShape::Chain.into()));
    let switches: Vec<&str> = chain.rules.keys().map(String::as_str).collect();
    assert_eq!(switches, ["leaf0", "leaf1", "leaf2", "leaf3"]);
    let nodes = chain.tree.nodes();
    let above = nodes.iter().filter(|n| n.name.starts_with("leaf"));
    let above: Vec<_> = above
        .filter_map(|n| Some((&*n.name, &n.up.as_ref()?.via)))
        .collect();
    assert_eq!(above.len(), 4);
    assert!(
        above
            .iter()
            .skip(1)
            .all(|(_, via)| via.len() == 1 && via[0].starts_with("spine")),
        "{above:?}"
    );
    // The source, one child on, and its own host.
    assert!(
        chain.rules.values().all(|rule| rule.endpoints.len() <= 3),
        "{chain:?}"
    );
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
        distribution: Distribution::Switches(TreeShape::Chain.into()),
        ..request("h0", &receivers)
    };
    let p = plan(&f.topology, &LinkLoad::new(), &wanted).expect("a plan");
    let chain = above(&p);
    assert_eq!(chain.len(), 247);
    assert_eq!(chain.last().map(|(below, _)| below), Some(&last));
}
