//! Trees that pass routers.

use core::net::Ipv4Addr;
use core::num::NonZeroU16;
use std::collections::{BTreeMap, BTreeSet};

use castnet_group::Distribution;
use castnet_planner::prefix::Space;
use castnet_planner::static_core::{Layout, layout};
use castnet_planner::{LinkLoad, PlanError, Request};
use castnet_rules::{GroupRule, Ipv4Net};
use castnet_topology::{End, MulticastRoute, SwitchKind, Topology};
use castnet_wire::{MacAddr, McstId};
use proptest::prelude::*;

use crate::common::{plan, request};
use crate::mixed::{Fabric, check, job, names};

/// The McstID of a group at a switch of its own: 10.201.0.7 for `leaf1`.
fn own(switch: &str) -> McstId {
    let number = switch.as_bytes().last().map_or(0, |b| b - b'0');
    McstId([10, 200 + number, 0, 7].into())
}

fn ids(switches: &[&str]) -> BTreeMap<String, McstId> {
    switches.iter().map(|s| (s.to_string(), own(s))).collect()
}

/// h0 and h1 at leaf1, h2 and h3 at leaf2, and a router between the leaves.
fn leaves() -> Topology {
    let mut f = Fabric::default();
    f.router("rt");
    for leaf in ["leaf1", "leaf2"] {
        f.castnet(leaf);
        f.hosts(leaf, 2);
        f.link(leaf, "rt");
    }
    f.topology
}

fn multicast(t: &Topology, own: &[&str], hosts: u8) -> Result<castnet_planner::Plan, PlanError> {
    let receivers = names(1..hosts);
    let receivers: Vec<&str> = receivers.iter().map(String::as_str).collect();
    let wanted = Request {
        mcst_ids: ids(own),
        ..request("h0", &receivers)
    };
    plan(t, &LinkLoad::new(), &wanted)
}

/// Name, McstID and Ethernet address of each next hop; nothing where the rule leaves it open.
fn hops(rule: &GroupRule) -> Vec<(&str, Option<String>, bool)> {
    let hop = |e: &castnet_rules::Endpoint| {
        let ip = e.next_hop.host().is_none().then(|| e.next_hop.ip()).flatten();
        (
            ip.map(|ip| ip.to_string()),
            e.next_hop.mac() != MacAddr::UNSPECIFIED,
        )
    };
    let all = rule.endpoints.iter().map(|e| (e.next_hop.name(), hop(e)));
    all.map(|(name, (ip, mac))| (name, ip, mac)).collect()
}

#[test]
fn an_edge_over_a_router_names_the_mcst_id_at_its_other_end() {
    let t = leaves();
    let p = multicast(&t, &["leaf1", "leaf2"], 4).expect("a plan");
    let tree = "\
h0 10.0.0.1 QP 0x11, source
└─[0] leaf1
   ├─[1]─ h1 10.0.0.2 QP 0x11
   └─[2]─<rt>─[2] leaf2
      ├─[0]─ h2 10.0.0.3 QP 0x11
      └─[1]─ h3 10.0.0.4 QP 0x11";
    assert_eq!(p.tree.to_string(), tree);
    let there = |leaf: &str| Some(own(leaf).to_string());
    for (leaf, other, hosts) in [("leaf1", "leaf2", ["h0", "h1"]), ("leaf2", "leaf1", ["h2", "h3"])] {
        let rule = &p.rules[leaf];
        assert_eq!(rule.mcst_id, own(leaf));
        let expected = [
            (hosts[0], None, true),
            (hosts[1], None, true),
            (other, there(other), false),
        ];
        assert_eq!(hops(rule), expected);
    }
    check(&t, &p.tree, &p.rules, &ids(&["leaf1", "leaf2"])).expect("as the tree says");
    let wanted = Request {
        mcst_ids: ids(&["leaf1", "leaf2"]),
        ..job(&names(0..4))
    };
    let p = plan(&t, &LinkLoad::new(), &wanted).expect("a plan");
    check(&t, &p.tree, &p.rules, &wanted.mcst_ids).expect("as the tree says");
    assert_eq!(p.rules.len(), 2);
    // Without a router in the tree all is as ever.
    let p = multicast(&t, &["leaf1", "leaf2"], 2).expect("a plan");
    assert_eq!(p.rules["leaf1"].mcst_id, request("h0", &[]).mcst_id);
}

#[test]
fn hosts_behind_a_router_are_reached_by_its_address() {
    let mut f = Fabric::default();
    f.router("rt1");
    f.plain("rack");
    f.castnet("box1");
    f.link("box1", "rack");
    f.link("rack", "rt1");
    f.hosts("rack", 1);
    f.hosts("rt1", 2);
    let t = f.topology;
    let p = multicast(&t, &["box1"], 3).expect("a plan");
    let rule = &p.rules["box1"];
    assert_eq!(rule.mcst_id, own("box1"));
    assert_eq!(
        hops(rule),
        [("h0", None, true), ("h1", None, false), ("h2", None, false)]
    );
    assert!(
        p.tree.to_string().contains("─[0]─(rack)─<rt1>─ h1 10.0.0.2"),
        "{}",
        p.tree
    );
    let mut load = LinkLoad::new();
    load.add(&p.tree);
    let arm = t.link_at(&End::port("box1", 0)).expect("a link");
    assert_eq!(load.get(arm), 3);
    check(&t, &p.tree, &p.rules, &ids(&["box1"])).expect("as the tree says");
}

/// Also a spine that no router leads to: the frames that its neighbours send there keep no McstID that both have.
#[test]
fn where_a_tree_passes_a_router_adjacent_switches_have_different_mcst_ids() {
    let mut f = Fabric::default();
    f.router("rt1");
    ["spine0", "leaf1", "leaf2"]
        .iter()
        .for_each(|name| f.castnet(name));
    for leaf in ["leaf1", "leaf2"] {
        f.link("spine0", leaf);
        f.hosts(leaf, 1);
    }
    f.link("leaf2", "rt1");
    f.hosts("rt1", 1);
    let t = f.topology;
    let all = ["leaf1", "leaf2", "spine0"];
    let p = multicast(&t, &all, 3).expect("a plan");
    let found: Vec<McstId> = p.rules.values().map(|rule| rule.mcst_id).collect();
    assert_eq!(found, all.map(own));
    let ip = |switch: &str| Some(own(switch).to_string());
    assert_eq!(
        hops(&p.rules["spine0"]),
        [("leaf1", ip("leaf1"), true), ("leaf2", ip("leaf2"), true)]
    );
    assert!(hops(&p.rules["leaf1"]).contains(&("spine0", ip("spine0"), true)));
    check(&t, &p.tree, &p.rules, &ids(&all)).expect("as the tree says");
}

#[test]
fn each_switch_of_such_a_tree_needs_a_mcst_id() {
    let t = leaves();
    let refused = multicast(&t, &["leaf1"], 4).expect_err("leaf2 has none");
    assert_eq!(
        refused,
        PlanError::NoMcstId {
            switch: "leaf2".into()
        }
    );
    let wanted = Request {
        mcst_ids: ids(&["leaf2"]),
        ..job(&names(0..4))
    };
    let refused = plan(&t, &LinkLoad::new(), &wanted).expect_err("leaf1 has none");
    assert_eq!(
        refused,
        PlanError::NoMcstId {
            switch: "leaf1".into()
        }
    );
    assert_eq!(refused.field(), "switches.leaf1");
}

/// Two ends of one segment have no router between them, though one were nearer.
#[test]
fn the_way_within_a_segment_is_taken_though_it_is_longer() {
    let mut f = Fabric::default();
    ["a", "b", "c"].iter().for_each(|name| f.plain(name));
    f.router("rt");
    f.castnet("box1");
    f.link("box1", "a");
    f.hosts("c", 2);
    for (x, y) in [("a", "rt"), ("rt", "c"), ("a", "b"), ("b", "c")] {
        f.link(x, y);
    }
    f.plain("d");
    f.link("a", "d");
    let t = f.topology;
    let p = multicast(&t, &[], 2).expect("a plan");
    assert!(!p.tree.to_string().contains("<rt>"), "{}", p.tree);
    assert!(p.tree.to_string().contains("(a)─(b)─(c)"), "{}", p.tree);
}

/// One host at leaf0, two at each other leaf, and two routers that join all leaves.
fn core(leaves: usize, routes: &[(u8, &[usize])]) -> Topology {
    let mut f = Fabric::default();
    f.router("rt0");
    f.router("rt1");
    for leaf in 0..leaves {
        let name = format!("leaf{leaf}");
        f.castnet(&name);
        f.hosts(&name, if leaf == 0 { 1 } else { 2 });
        f.link(&name, "rt0");
        f.link(&name, "rt1");
        let prefix = format!("10.20{leaf}.0.0/24").parse().unwrap();
        f.topology.set_mcst_prefix(&name, prefix).unwrap();
    }
    for (last, leaves) in routes {
        let route = MulticastRoute {
            switches: leaves.iter().map(|leaf| format!("leaf{leaf}")).collect(),
            source: None,
        };
        f.topology
            .add_multicast_route([239, 1, 0, *last].into(), route)
            .unwrap();
    }
    f.topology
}

fn over_core(t: &Topology, hosts: &[&str]) -> Result<castnet_planner::Plan, PlanError> {
    over_core_with(t, hosts, None)
}

/// With at most so many copies.
fn over_core_with(
    t: &Topology,
    hosts: &[&str],
    copies: Option<u16>,
) -> Result<castnet_planner::Plan, PlanError> {
    let leaves: Vec<String> = t
        .switches()
        .map(|s| s.name.clone())
        .filter(|name| name.starts_with("leaf"))
        .collect();
    let leaves: Vec<&str> = leaves.iter().map(String::as_str).collect();
    let wanted = Request {
        mcst_ids: ids(&leaves),
        distribution: Distribution::Static {
            copies: copies.and_then(NonZeroU16::new),
        },
        ..request("h0", hosts)
    };
    plan(t, &LinkLoad::new(), &wanted)
}

/// The last byte of the address of the core for each switch, at the switch next to the source; the rule there says the same.
fn cores(p: &castnet_planner::Plan) -> BTreeMap<String, u8> {
    let of = |rule: &GroupRule| -> BTreeMap<String, u8> {
        let hops = rule.endpoints.iter().map(|e| &e.next_hop);
        hops.filter_map(|hop| Some((hop.name().to_owned(), hop.core()?.octets()[3])))
            .collect()
    };
    let cores = of(&p.rules["leaf0"]);
    for (leaf, rule) in p.rules.iter().filter(|(leaf, _)| *leaf != "leaf0") {
        assert_eq!(of(rule).get("leaf0"), cores.get(leaf), "{leaf}");
    }
    cores
}

#[test]
fn a_static_core_is_a_star_with_the_fewest_exact_addresses() {
    // Blocks of four leaves, as of a pod; leaf0 is next to the source.
    let t = core(
        6,
        &[
            (1, &[0, 1]),
            (2, &[2, 3]),
            (3, &[0, 1, 2, 3]),
            (4, &[4, 5]),
            (5, &[0, 1, 2, 3, 4, 5]),
        ],
    );
    for (hosts, expected) in [
        // h0; h1, h2; h3, h4; h5, h6; h7, h8; h9, h10.
        (
            &["h1", "h3", "h5", "h7", "h9"][..],
            vec![(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)],
        ),
        (&["h1", "h3", "h6"], vec![(1, 3), (2, 3), (3, 3)]),
        (&["h3", "h5", "h7", "h8"], vec![(2, 2), (3, 2)]),
        (&["h1", "h3"], vec![]),
        (&["h7", "h9", "h10", "h4"], vec![(4, 4), (5, 4)]),
    ] {
        let p = over_core(&t, hosts).expect("a plan");
        let expected: BTreeMap<_, _> = expected
            .into_iter()
            .map(|(leaf, last)| (format!("leaf{leaf}"), last))
            .collect();
        assert_eq!(cores(&p), expected, "{hosts:?}\n{}", p.tree);
        let source = &p.tree.root.children[0];
        assert!(
            source
                .children
                .iter()
                .all(|leaf| leaf.children.iter().all(|node| node.children.is_empty()))
        );
        p.rules.values().for_each(|rule| assert_eq!(rule.check(64), []));
    }
    // Without it, the switches in between have state or none of them replicates.
    let stateful = plan(
        &t,
        &LinkLoad::new(),
        &Request {
            mcst_ids: ids(&["leaf0", "leaf1", "leaf2"]),
            ..request("h0", &["h1", "h3"])
        },
    );
    assert!(cores(&stateful.expect("a plan")).is_empty());
}

/// Copies that leave leaf0 for other switches, and the switches that each address leads to.
fn sent(t: &Topology, p: &castnet_planner::Plan) -> (usize, Vec<String>) {
    let hops = p.rules["leaf0"].endpoints.iter().map(|e| &e.next_hop);
    let hops: Vec<_> = hops.filter(|hop| hop.host().is_none()).collect();
    let cores: BTreeSet<Ipv4Addr> = hops.iter().filter_map(|hop| hop.core()).collect();
    let singles = hops.iter().filter(|hop| hop.core().is_none());
    let mut reached: Vec<String> = singles.clone().map(|hop| hop.name().to_owned()).collect();
    for (_, route) in t
        .multicast_routes()
        .filter(|(address, _)| cores.contains(address))
    {
        reached.extend(route.switches.iter().filter(|name| *name != "leaf0").cloned());
    }
    (cores.len() + singles.count(), reached)
}

proptest! {
    /// PEEL 3.2, packing: as many over-covered switches as by the covers of the identifiers, which know of no topology.
    #[test]
    fn fewer_copies_reach_as_few_switches_without_members_as_can_be(
        leaves in 3usize..10,
        members in proptest::collection::btree_set(1u32..9, 1..9),
        most in 1u16..6,
    ) {
        let members: BTreeSet<u32> = members.into_iter().filter(|id| (*id as usize) < leaves).collect();
        prop_assume!(!members.is_empty());
        let t = core(leaves, &[]);
        let routes = layout(&t, "239.1.0.0/16".parse().unwrap()).unwrap().addresses;
        let mut with_routes = t;
        for (address, route) in routes {
            with_routes.add_multicast_route(address, route).unwrap();
        }
        let t = with_routes;
        let hosts: Vec<String> = members.iter().map(|id| format!("h{}", 2 * id)).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let p = over_core_with(&t, &hosts, Some(most)).unwrap();
        let covers = Space::new(leaves as u32).unwrap().pack(&members, &[0].into(), most.into()).unwrap();
        let best = covers.last().unwrap();
        let (copies, mut reached) = sent(&t, &p);
        prop_assert_eq!((copies, p.over_covered.len()), (best.prefixes.len(), best.over as usize));
        let mut expected: Vec<String> = members.iter().map(|id| format!("leaf{id}")).collect();
        expected.extend(p.over_covered.iter().cloned());
        reached.sort();
        expected.sort();
        prop_assert_eq!(reached, expected, "each gets one copy");
        p.rules.values().for_each(|rule| assert_eq!(rule.check(64), []));
    }
}

#[test]
fn too_few_copies_are_refused_with_how_many_it_takes() {
    let t = core(6, &[(1, &[1, 2]), (2, &[3, 4]), (3, &[2, 3])]);
    let all = ["h1", "h5", "h9"];
    let p = over_core_with(&t, &all, Some(2)).unwrap_err();
    assert_eq!(
        p.to_string(),
        "distribution: 2 copies are too few: the multicast addresses of the fabric lead to the members with 3 or more"
    );
    let exact = over_core_with(&t, &["h1", "h3", "h5"], Some(2)).unwrap();
    assert_eq!((sent(&t, &exact).0, exact.over_covered.len()), (2, 0));
}

/// A fat tree whose edge switches run Castnet, and whose others are routers.
fn fat_tree(k: usize) -> Topology {
    let mut t = Topology::fat_tree(k).unwrap();
    let names: Vec<String> = t.switches().map(|s| s.name.clone()).collect();
    for (n, name) in names.iter().enumerate() {
        match name.starts_with("edge") {
            true => {
                let prefix = Ipv4Net::new_assert(Ipv4Addr::from(0x0A00_0000 | (n as u32) << 8), 24);
                t.set_mcst_prefix(name, prefix).unwrap();
            }
            false => assert!(t.set_switch_kind(name, SwitchKind::Router)),
        }
    }
    t
}

/// Where a packet to `address` goes from a router, which got it from `from`: each switch, as often as it gets a copy.
fn copies(
    t: &Topology,
    layout: &Layout,
    (router, from): (&str, &str),
    address: Ipv4Addr,
    out: &mut Vec<String>,
) {
    let routes = layout.routes.get(router).into_iter().flatten();
    let route = routes
        .filter(|route| route.prefix.contains(&address))
        .max_by_key(|route| route.prefix.prefix_len());
    let Some(route) = route else { return };
    let hops = &route.next_hops[..if route.replicate { route.next_hops.len() } else { 1 }];
    for hop in hops {
        let neighbours = t.neighbours(router);
        let far = neighbours
            .iter()
            .find(|n| n.near == End::port(router, hop.port.index() as u8))
            .unwrap();
        let name = far.far.node();
        match &far.far {
            _ if route.replicate && name == from => {}
            End::Switch { switch, port } => {
                assert_eq!(MacAddr(t.switch(switch).unwrap().ports[port]), hop.mac);
                match t.is_router(switch) {
                    true => copies(t, layout, (switch, router), address, out),
                    false => out.push(switch.clone()),
                }
            }
            End::Host(_) => panic!("a route to a host"),
        }
    }
}

/// A source with relays of its own has one copy for all, also for those that drop it.
#[test]
fn an_address_of_one_source_is_for_any_of_its_receivers() {
    let mut t = core(4, &[(1, &[2, 3])]);
    for source in [0, 2] {
        let route = MulticastRoute {
            switches: (0..4).map(|leaf| format!("leaf{leaf}")).collect(),
            source: Some(format!("leaf{source}")),
        };
        t.add_multicast_route([239, 2, 0, source].into(), route).unwrap();
    }
    let p = over_core(&t, &["h3", "h5"]).expect("a plan");
    let both: BTreeMap<_, _> = ["leaf2", "leaf3"].map(|leaf| (leaf.to_owned(), 1)).into();
    assert_eq!(cores(&p), both, "the exact one");
    let p = over_core(&t, &["h1", "h5"]).expect("a plan");
    let core = p.rules["leaf0"]
        .endpoints
        .iter()
        .filter_map(|e| e.next_hop.core());
    assert_eq!(core.collect::<Vec<_>>(), [Ipv4Addr::new(239, 2, 0, 0); 2]);
    assert!(cores(&over_core(&t, &["h5"]).expect("a plan")).is_empty());
}

#[test]
fn the_routes_of_a_layout_bring_one_copy_to_each_switch_of_an_address() {
    let block: Ipv4Net = "239.0.0.0/8".parse().unwrap();
    for t in [fat_tree(4), fat_tree(8), core(6, &[])] {
        let layout = layout(&t, block).unwrap();
        let edges = t.switches().filter(|s| s.mcst_prefix.is_some());
        for edge in edges.map(|s| s.name.clone()) {
            let up = t.neighbours(&edge).into_iter().map(|n| n.far.node().to_owned());
            for router in up.filter(|name| t.is_router(name)) {
                for (address, route) in &layout.addresses {
                    let mut got = Vec::new();
                    copies(&t, &layout, (&router, &edge), *address, &mut got);
                    got.sort();
                    let expected: Vec<_> = route
                        .switches
                        .iter()
                        .filter(|name| **name != edge)
                        .cloned()
                        .collect();
                    assert_eq!(got, expected, "{address} from {edge} by {router}");
                }
            }
        }
        // A topology with the addresses plans groups with them.
        let mut with = t.clone();
        for (address, switches) in layout.addresses {
            with.add_multicast_route(address, switches).unwrap();
        }
    }
}

/// PEEL 3.2: k - 1 rules. Of them, k / 2 - 1 of a k-ary fat tree replicate to two or more ToRs, and the other k / 2 would lead to one: so a
/// router of a 64-ary one has at most 95. `cargo bench -p castnet-benches --bench plans` lays out a fabric of that size.
#[test]
fn a_core_switch_of_a_k_ary_fat_tree_has_at_most_a_route_and_a_half_for_each_port() {
    let block: Ipv4Net = "239.0.0.0/8".parse().unwrap();
    for k in [4, 8, 16] {
        let t = fat_tree(k);
        let layout = layout(&t, block).unwrap();
        let count = |router: &str, replicate: bool| {
            let routes = layout.routes[router].iter();
            routes.filter(|route| route.replicate == replicate).count()
        };
        // The other pods; all of them.
        let agg = (count("agg0-0", true), count("agg0-0", false));
        assert_eq!(agg, (k / 2 - 1, k - 1));
        assert_eq!((count("core0", true), count("core0", false)), (0, k));
        let most = layout.routes.values().map(Vec::len).max();
        assert_eq!(most, Some(3 * k / 2 - 2));
        assert_eq!(layout.addresses.len(), k * (k / 2 - 1));
    }
    // PEEL 3.2, header bits of 8 ToRs: m + ceil(log2(m + 1)) = 5; 4 more for the pod.
    let t = fat_tree(16);
    assert!(castnet_planner::static_core::layout(&t, "239.1.0.0/23".parse().unwrap()).is_ok());
    let small = castnet_planner::static_core::layout(&t, "239.1.0.0/24".parse().unwrap());
    let said = small.unwrap_err().to_string();
    assert_eq!(
        said,
        "distribution: 239.1.0.0/24 is too small: 16 pods need a /23"
    );
}

/// PEEL 3.3: of a fat tree's routers, only its core switches know groups. The others lead to them.
#[test]
fn what_is_sent_to_a_group_comes_to_a_programmable_router() {
    let mut t = fat_tree(8);
    let is_core = |name: &str| name.starts_with("core");
    let routers: Vec<String> = t.switches().map(|s| s.name.clone()).collect();
    let (cores, others): (Vec<_>, Vec<_>) = routers
        .into_iter()
        .filter(|name| t.is_router(name))
        .partition(|name| is_core(name));
    for core in &cores {
        t.set_programmable(core, true).unwrap();
    }
    t.set_group_addresses("239.200.0.0/16".parse().unwrap()).unwrap();
    let layout = layout(&t, "239.1.0.0/16".parse().unwrap()).unwrap();
    let routes = |router: &str| {
        let all = layout.routes.get(router).into_iter().flatten();
        all.filter(|route| route.prefix.to_string() == "239.200.0.0/16")
    };
    assert!(cores.iter().all(|core| routes(core).next().is_none()));
    for router in &others {
        let [route] = &routes(router).collect::<Vec<_>>()[..] else {
            panic!("{router} has one route to all groups");
        };
        assert!(!route.replicate);
        for hop in &route.next_hops {
            let near = End::port(router, hop.port.index() as u8);
            let far = t.neighbours(router).into_iter().find(|n| n.near == near).unwrap();
            assert!(is_core(far.far.node()), "{router} leads to {}", far.far);
        }
        assert_eq!(route.next_hops.len(), 4, "over each link upwards");
    }
}

/// Switches without state are not even named: groups come and go at the edges alone. After 3,200 groups the hosts repeat.
#[test]
fn groups_of_a_static_core_touch_no_switch_of_the_core() {
    let mut t = fat_tree(8);
    for (address, switches) in layout(&t, "239.0.0.0/8".parse().unwrap()).unwrap().addresses {
        t.add_multicast_route(address, switches).unwrap();
    }
    let hosts: Vec<String> = t.hosts().map(|host| host.name.clone()).collect();
    let edges: Vec<String> = t
        .switches()
        .filter(|s| s.mcst_prefix.is_some())
        .map(|s| s.name.clone())
        .collect();
    let load = LinkLoad::new();
    let (mut touched, mut addresses) = (BTreeMap::<String, u32>::new(), 0);
    for n in 0..3200_usize {
        let members: Vec<&str> = (0..5)
            .map(|i| hosts[(n * 31 + i * (n % 25 + 1)) % hosts.len()].as_str())
            .collect();
        let mcst_ids = edges.iter().map(|edge| {
            let prefix = t.switch(edge).and_then(|s| s.mcst_prefix).unwrap();
            (
                edge.clone(),
                McstId((prefix.network().to_bits() + 1 + n as u32 % 250).into()),
            )
        });
        let wanted = Request {
            mcst_ids: mcst_ids.collect(),
            distribution: Distribution::Static { copies: None },
            ..request(members[0], &members[1..])
        };
        let p = plan(&t, &load, &wanted).unwrap();
        for (switch, rule) in p.rules {
            *touched.entry(switch).or_default() += 1;
            addresses += rule
                .endpoints
                .iter()
                .filter(|e| e.next_hop.core().is_some())
                .count();
        }
    }
    assert!(touched.keys().all(|name| name.starts_with("edge")), "{touched:?}");
    assert_eq!(touched.len(), edges.len());
    assert!(addresses > 1600, "{addresses}");
}

#[test]
fn a_static_core_needs_routers_that_replicate() {
    let said = |t: &Topology, hosts: &[&str]| over_core(t, hosts).expect_err("no plan").to_string();
    let none = core(3, &[]);
    assert_eq!(
        said(&none, &["h1", "h3"]),
        "distribution: the topology has no [[multicast_routes]]: no router replicates"
    );
    // One other switch needs no copies.
    over_core(&none, &["h1", "h2"]).expect("a plan");
    let adjacent = Topology::leaf_spine(2, 1, 2).unwrap();
    assert_eq!(
        said(&adjacent, &["h1", "h2"]),
        "distribution: no path of routers alone joins switch \"leaf0\", next to the source, and switch \"leaf1\""
    );
}
