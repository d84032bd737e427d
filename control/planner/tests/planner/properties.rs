//! What holds for the plan of any request in any fabric.

use std::collections::{BTreeMap, BTreeSet};

use castnet_planner::{LinkLoad, Plan, PlanError, Role, TreeNode};
use castnet_rules::{GroupRule, NextHop};
use castnet_topology::{End, Topology};
use castnet_wire::PortId;
use proptest::prelude::*;

use crate::common::{Case, case, load_of, plan};

fn source_port(rule: &GroupRule) -> PortId {
    let source = rule.multicast().expect("it multicasts").source;
    rule.endpoints[usize::from(source)].port
}

/// Every node with its distance from the root.
fn depths<'t>(node: &'t TreeNode, depth: u32, all: &mut Vec<(&'t TreeNode, u32)>) {
    all.push((node, depth));
    node.children
        .iter()
        .for_each(|child| depths(child, depth + 1, all));
}

fn check_tree(case: &Case, plan: &Plan) -> Result<(), TestCaseError> {
    let source = &case.request.members[0].host;
    let mut nodes = Vec::new();
    depths(&plan.tree.root, 0, &mut nodes);
    let names: BTreeSet<&str> = nodes.iter().map(|(n, _)| n.name.as_str()).collect();
    prop_assert_eq!(
        names.len(),
        nodes.len(),
        "no node twice: acyclic, one parent each"
    );
    let distances = case.topology.distances(source);
    let mut links = BTreeSet::new();
    for (node, depth) in &nodes {
        prop_assert_eq!(
            case.topology.distance(&node.name, &distances),
            Some(*depth),
            "shortest to {}",
            node.name
        );
        match (&node.role, &node.up) {
            (Role::Source { .. }, up) => prop_assert!(up.is_none() && node.name == *source),
            (_, None) => prop_assert!(false, "{} hangs on nothing", node.name),
            (role, Some(up)) => {
                prop_assert!(links.insert(up.links.clone()), "a frame crosses a link once");
                prop_assert!(case.topology.link(up.links[0]).is_some_and(|l| l.up));
                let leaf = matches!(role, Role::Receiver { .. });
                prop_assert_eq!(
                    leaf,
                    node.children.is_empty(),
                    "receivers, and they alone, are leaves: {}",
                    node.name
                );
            }
        }
    }
    let receivers: BTreeSet<&str> = nodes
        .iter()
        .filter(|(n, _)| matches!(n.role, Role::Receiver { .. }))
        .map(|(n, _)| n.name.as_str())
        .collect();
    let wanted: BTreeSet<&str> = case.request.members[1..]
        .iter()
        .map(|m| m.host.as_str())
        .collect();
    prop_assert_eq!(&receivers, &wanted);
    let unicast: u32 = wanted
        .iter()
        .filter_map(|r| case.topology.distance(r, &distances))
        .sum();
    prop_assert!(links.len() as u32 <= unicast);
    prop_assert_eq!(links.len(), nodes.len() - 1);
    Ok(())
}

/// Each switch's rule by itself, and against those of its neighbours.
fn check_rules(case: &Case, plan: &Plan) -> Result<(), TestCaseError> {
    let mut members = BTreeSet::new();
    let tree_switches: BTreeSet<&str> = plan
        .tree
        .nodes()
        .iter()
        .filter(|n| n.role == Role::Switch)
        .map(|n| n.name.as_str())
        .collect();
    let rule_switches: BTreeSet<&str> = plan.rules.keys().map(String::as_str).collect();
    prop_assert_eq!(tree_switches, rule_switches);
    for (switch, rule) in &plan.rules {
        prop_assert_eq!(rule.check(PortId::COUNT), vec![]);
        for path in &rule.endpoints {
            let link = case.topology.link_at(&End::port(switch, path.port.index() as u8));
            let far = link
                .and_then(|l| case.topology.link(l))
                .map(|l| l.far(switch).clone());
            match (&path.next_hop, far) {
                (NextHop::Host(host), Some(End::Host(name))) => {
                    prop_assert_eq!(&host.name, &name);
                    let known = case.topology.host(&name).and_then(|h| h.ip.zip(h.mac));
                    prop_assert_eq!(Some((host.ip, host.mac.0)), known);
                    prop_assert!(members.insert(name));
                }
                (NextHop::Switch { name, mac, .. }, Some(End::Switch { switch: peer, port })) => {
                    prop_assert_eq!(name, &peer);
                    let peer_mac = case
                        .topology
                        .switch(&peer)
                        .and_then(|s| s.ports.get(&port).copied());
                    prop_assert_eq!(Some(mac.0), peer_mac);
                    let back = plan.rules[&peer]
                        .endpoints
                        .iter()
                        .find(|p| p.port.index() == port as usize);
                    let own_mac = case
                        .topology
                        .switch(switch)
                        .map(|s| s.ports[&(path.port.index() as u8)]);
                    prop_assert_eq!(back.map(|p| p.next_hop.name()), Some(switch.as_str()));
                    prop_assert_eq!(back.map(|p| p.next_hop.mac().0), own_mac);
                    let upstream = [
                        source_port(rule) == path.port,
                        source_port(&plan.rules[&peer]).index() == port as usize,
                    ];
                    prop_assert_eq!(
                        upstream.iter().filter(|u| **u).count(),
                        1,
                        "one of the two is nearer the source"
                    );
                }
                (hop, far) => prop_assert!(
                    false,
                    "{switch}:{} has {hop:?} but is linked to {far:?}",
                    path.port
                ),
            }
        }
    }
    prop_assert_eq!(members.len(), case.request.members.len());
    Ok(())
}

/// Follows a frame as the switches would, by rules alone, and says how often each host gets it.
fn deliver(topology: &Topology, plan: &Plan, source: &str) -> BTreeMap<String, u32> {
    let mut got: BTreeMap<String, u32> = BTreeMap::new();
    let mut queue: Vec<End> = topology.neighbours(source).into_iter().map(|n| n.far).collect();
    let mut hops = 0;
    while let Some(at) = queue.pop() {
        hops += 1;
        assert!(hops < 10_000, "a loop");
        match at {
            End::Host(name) => *got.entry(name).or_default() += 1,
            End::Switch { switch, port } => {
                let rule = &plan.rules[&switch];
                assert_eq!(
                    source_port(rule).index(),
                    port as usize,
                    "data comes from the source's side"
                );
                for path in rule.endpoints.iter().filter(|e| e.port != source_port(rule)) {
                    let link = topology
                        .link_at(&End::port(&switch, path.port.index() as u8))
                        .expect("a link");
                    queue.push(topology.link(link).expect("a link").far(&switch).clone());
                }
            }
        }
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_plan_is_a_shortest_path_tree_with_agreeing_rules(case in case()) {
        match plan(&case.topology, &LinkLoad::new(), &case.request) {
            Ok(plan) => {
                check_tree(&case, &plan)?;
                check_rules(&case, &plan)?;
                let got = deliver(&case.topology, &plan, &case.request.members[0].host);
                let wanted = case.request.members[1..].iter().map(|m| (m.host.clone(), 1)).collect();
                prop_assert_eq!(got, wanted, "each receiver gets each frame once");
            }
            Err(PlanError::NoPath { from, to, .. }) => prop_assert!(!case.topology.connected(&from, &to)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn the_order_of_receivers_does_not_matter(case in case()) {
        let mut other = case.request.clone();
        other.members[1..].reverse();
        let (a, b) = (
            plan(&case.topology, &LinkLoad::new(), &case.request),
            plan(&case.topology, &LinkLoad::new(), &other),
        );
        prop_assert_eq!(a.ok(), b.ok());
    }

    #[test]
    fn load_changes_the_way_but_not_its_length(case in case(), busy in 1u32..5) {
        let Ok(idle) = plan(&case.topology, &LinkLoad::new(), &case.request) else { return Ok(()) };
        let mut load = LinkLoad::new();
        (0..busy).for_each(|_| load.add(&idle.tree));
        let loaded = plan(&case.topology, &load, &case.request).expect("load is no obstacle");
        check_tree(&case, &loaded)?;
        check_rules(&case, &loaded)?;
        prop_assert_eq!(plan(&case.topology, &LinkLoad::new(), &case.request).ok(), Some(idle));
    }

    #[test]
    fn load_is_the_same_counted_from_plans_or_from_rules(case in case()) {
        let Ok(p) = plan(&case.topology, &LinkLoad::new(), &case.request) else { return Ok(()) };
        let mut from_plan = LinkLoad::new();
        from_plan.add(&p.tree);
        let from_rules = load_of(&case.topology, &p.rules);
        // A source's own link is in the tree, and in the rule of its leaf.
        for (link, _) in case.topology.links() {
            prop_assert_eq!(from_plan.get(link), from_rules.get(link));
        }
    }

    /// No receiver could join the rest of the tree over fewer links, on one of its shortest paths.
    #[test]
    fn no_receiver_could_join_later(case in case()) {
        let Ok(p) = plan(&case.topology, &LinkLoad::new(), &case.request) else { return Ok(()) };
        let distances = case.topology.distances(&case.request.members[0].host);
        let mut parents: BTreeMap<&str, (&TreeNode, &TreeNode)> = BTreeMap::new();
        for parent in p.tree.nodes() {
            parents.extend(parent.children.iter().map(|child| (child.name.as_str(), (parent, child))));
        }
        for receiver in &case.request.members[1..] {
            // Its own branch ends where another one begins.
            let mut rest: BTreeSet<&str> = p.tree.nodes().iter().map(|n| n.name.as_str()).collect();
            let (mut at, mut own) = (receiver.host.as_str(), 0);
            while let Some((parent, child)) = parents.get(at) {
                rest.remove(child.name.as_str());
                own += 1;
                at = parent.name.as_str();
                if parent.children.len() > 1 {
                    break;
                }
            }
            // The slow twin: breadth first from the receiver over shortest paths to the first node of the rest.
            let (mut layer, mut links) = (BTreeSet::from([receiver.host.clone()]), 0);
            while layer.iter().all(|n| !rest.contains(n.as_str())) {
                layer = layer.iter().flat_map(|n| case.topology.next_hops(n, &distances))
                    .map(|hop| hop.far.node().to_string()).collect();
                links += 1;
            }
            prop_assert_eq!(own, links, "{}", receiver.host);
        }
    }
}
