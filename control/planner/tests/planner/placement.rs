//! IncTrees: known fabrics, every refusal, and what holds for any request in any fabric.

use std::collections::{BTreeMap, BTreeSet};

use castnet_planner::{
    Lack, LinkLoad, Member, Plan, PlanError, Request, Role, Room, RoomTable, TreeNode, plan as place,
};
use castnet_rules::{GroupRule, NextHop, TranslatedRule};
use castnet_topology::{Cut, Down, End, Topology};
use castnet_wire::CollectiveMode::{Augmented, Translated};
use castnet_wire::{McstId, Pmtu, PortId, Qpn};
use proptest::prelude::*;

use crate::common::{Case, case, load_of};

fn request(hosts: &[&str]) -> Request {
    request_with(hosts, TranslatedRule::root(0))
}

fn request_with(hosts: &[&str], rule: TranslatedRule) -> Request {
    let ranks = hosts.iter().map(|h| Member::new(h, Qpn::new(0x11))).collect();
    let mcst_id = McstId([10, 255, 0, 1].into());
    Request::collective("job", mcst_id, Pmtu::B1024, ranks, (64, rule))
}

fn plenty() -> Room {
    Room {
        memory_free: u64::MAX,
        groups_free: 10,
        endpoints_max: 64,
        pmtus: Vec::new(),
    }
}

fn free(memory_free: u64) -> Room {
    Room {
        memory_free,
        ..plenty()
    }
}

fn placed(t: &Topology, hosts: &[&str]) -> Plan {
    place(t, &LinkLoad::new(), &RoomTable::new(), &request(hosts)).unwrap()
}

#[test]
fn the_tree_hangs_below_a_switch_of_the_lowest_level() {
    let t = Topology::leaf_spine(3, 2, 2).unwrap();
    let expected = "\
spine0
├─[0]─[2] leaf0
│  ├─[0]─ rank 0: h0 10.0.0.1 QP 0x11
│  └─[1]─ rank 2: h1 10.0.0.2 QP 0x11
└─[2]─[2] leaf2
   └─[1]─ rank 1: h5 10.0.0.6 QP 0x11";
    let plan = placed(&t, &["h0", "h5", "h1"]);
    assert_eq!(plan.tree.to_string(), expected);
    let spine = &plan.rules["spine0"];
    let behind: Vec<&[u16]> = spine.endpoints.iter().map(|e| e.next_hop.ranks()).collect();
    assert_eq!((parent(spine), behind), (None, vec![&[0, 2][..], &[1][..]]));
    let leaf = &plan.rules["leaf2"];
    assert_eq!(parent(leaf), PortId::new(2));
    let behind: Vec<&[u16]> = leaf.endpoints.iter().map(|e| e.next_hop.ranks()).collect();
    assert_eq!(
        behind,
        [&[0, 2][..], &[1][..]],
        "the parent's endpoint stands for the others"
    );
    // One leaf alone needs no spine.
    assert_eq!(
        placed(&t, &["h2", "h3"]).rules.keys().collect::<Vec<_>>(),
        ["leaf1"]
    );
}

/// EPIC 6.2: the lowest tier from which all ranks are reached downwards.
#[test]
fn in_a_fat_tree_the_level_is_the_tier() {
    let t = Topology::fat_tree(4).unwrap();
    let root = |hosts: &[&str]| {
        (
            placed(&t, hosts).tree.root.name.clone(),
            placed(&t, hosts).tree.tiers(),
        )
    };
    let (edge, tiers) = root(&["h0", "h1"]);
    assert_eq!((t.distance("h0", &t.distances(&edge)), tiers), (Some(1), 1));
    let (aggregation, tiers) = root(&["h0", "h2", "h1"]);
    assert_eq!(
        (t.distance("h0", &t.distances(&aggregation)), tiers),
        (Some(2), 2)
    );
    let (core, tiers) = root(&["h0", "h15"]);
    assert_eq!((t.distance("h0", &t.distances(&core)), tiers), (Some(3), 3));
}

#[test]
fn a_star_has_one_switch_and_switches_in_a_row_meet_in_the_middle() {
    let t = Topology::star(8).unwrap();
    let plan = placed(&t, &["h7", "h0", "h3"]);
    assert_eq!((plan.rules.len(), plan.rules["s0"].endpoints.len()), (1, 3));
    // a - b - c - d - e, hosts at a and e only: b, c and d have one child or two and no rank.
    let mut t = Topology::new();
    for (i, name) in ["a", "b", "c", "d", "e"].iter().enumerate() {
        t.add_switch(name, (0..3).map(|p| (p, [6, 0, 0, 0, i as u8, p])))
            .unwrap();
    }
    for pair in ["a", "b", "c", "d", "e"].windows(2) {
        t.connect(End::port(pair[0], 1), End::port(pair[1], 0), 9000)
            .unwrap();
    }
    for (host, switch, port, last) in [("x", "a", 2, 1), ("y", "e", 2, 2)] {
        t.add_host(host, Some([10, 0, 0, last].into()), Some([2, 0, 0, 0, 0, last]))
            .unwrap();
        t.connect(End::host(host), End::port(switch, port), 9000).unwrap();
    }
    let plan = placed(&t, &["x", "y"]);
    assert_eq!(plan.tree.root.name, "c");
    assert!(plan.rules.values().all(|rule| rule.endpoints.len() == 2));
}

#[test]
fn groups_spread_over_the_roots_of_one_level() {
    let t = Topology::leaf_spine(2, 4, 1).unwrap();
    let mut load = LinkLoad::new();
    let mut roots: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..32 {
        let plan = place(&t, &load, &RoomTable::new(), &request(&["h0", "h1"])).unwrap();
        load.add(&plan.tree);
        *roots.entry(plan.tree.root.name).or_default() += 1;
    }
    assert_eq!(roots.into_values().collect::<Vec<_>>(), [8; 4]);
}

fn kind(rule: &GroupRule) -> &TranslatedRule {
    rule.translated().expect("it computes")
}

fn parent(rule: &GroupRule) -> Option<PortId> {
    kind(rule)
        .parent
        .map(|index| rule.endpoints[usize::from(index)].port)
}

/// What a group of h0 and h1 takes there with the slots that it wants, and with the fewest.
fn memory_of(t: &Topology, switch: &str) -> (u64, u64) {
    let rule = placed(t, &["h0", "h1"]).rules[switch].clone();
    assert_eq!(kind(&rule).slots, 256);
    let fewer = rule.clone().with_translated(|rule| rule.slots = 128);
    (rule.reserved_bytes(), fewer.reserved_bytes())
}

/// Two windows and two messages where memory allows; two windows, at all switches alike, where one has no more.
#[test]
fn slots_are_fewer_where_memory_is_short_and_never_too_few() {
    let t = Topology::leaf_spine(2, 1, 1).unwrap();
    let (wanted, fewest) = memory_of(&t, "leaf0");
    let slots = |leaf0: u64| {
        let rooms = RoomTable::from([("leaf0".to_owned(), free(leaf0))]);
        let plan = place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1"]));
        plan.map(|p| p.rules.values().map(|r| kind(r).slots).collect::<Vec<_>>())
    };
    assert_eq!(slots(wanted), Ok(vec![256; 3]));
    assert_eq!(slots(wanted - 1), Ok(vec![128; 3]));
    assert_eq!(slots(fewest), Ok(vec![128; 3]));
    let error = slots(fewest - 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "switch leaf0 needs {fewest} bytes for it, {} are free",
            fewest - 1
        )
    );
    // What is short is no memory: fewer slots do not help, and nothing pretends that they do.
    let none = Room {
        groups_free: 0,
        ..free(fewest)
    };
    let rooms = RoomTable::from([("leaf0".to_owned(), none)]);
    let error = place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1"])).unwrap_err();
    assert_eq!(error.to_string(), "switch leaf0 takes no more groups");
}

/// Where not even the fewest slots have room, a group whose mode may be chosen is in Mode-III, and the plan says what is short.
#[test]
fn a_group_is_in_mode_three_where_mode_two_has_no_room() {
    let t = Topology::leaf_spine(2, 1, 1).unwrap();
    let (_, fewest) = memory_of(&t, "leaf0");
    let placed = |leaf0: u64, may_augment: bool| {
        let rooms = RoomTable::from([("leaf0".to_owned(), free(leaf0))]);
        let request = Request {
            may_augment,
            ..request(&["h0", "h1"])
        };
        place(&t, &LinkLoad::new(), &rooms, &request)
    };
    let plan = placed(fewest, true).unwrap();
    assert!(plan.shortages.is_empty() && plan.rules.values().all(|r| kind(r).mode == Translated));
    let plan = placed(fewest - 1, true).unwrap();
    let lack = Lack::Memory {
        needed: fewest,
        free: fewest - 1,
    };
    assert!(matches!(&plan.shortages[..], [s] if s.switch == "leaf0" && s.lack == lack));
    for rule in plan.rules.values() {
        assert_eq!(kind(rule).mode, Augmented);
        assert!(rule.reserved_bytes() < fewest, "{}", rule.reserved_bytes());
    }
    assert!(placed(fewest - 1, false).is_err());
    // Where Mode-III has no room either, the shortages are those of the mode that is tried first.
    let least = plan.rules["leaf0"].reserved_bytes() / 2;
    let error = placed(least, true).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("switch leaf0 needs {fewest} bytes for it, {least} are free")
    );
}

#[test]
fn a_full_switch_is_left_out_and_a_full_fabric_is_refused_by_name() {
    let t = Topology::leaf_spine(2, 2, 1).unwrap();
    let (wanted, needed) = memory_of(&t, "spine0");
    let mut rooms = RoomTable::from([("spine0".to_owned(), free(needed - 1))]);
    let plan = place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1"])).unwrap();
    assert_eq!(plan.tree.root.name, "spine1");
    assert_eq!(plan.rules["spine1"].reserved_bytes(), wanted);
    rooms.insert("spine1".to_owned(), free(7));
    let error = place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "switch spine0 needs {needed} bytes for it, {} are free; switch spine1 needs {needed} bytes for it, 7 are free",
            needed - 1
        )
    );
    assert_eq!(error.field(), "switches.spine1");
    // Exactly enough is enough.
    rooms.insert("spine1".to_owned(), free(needed));
    assert!(place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1"])).is_ok());
}

#[test]
fn each_thing_that_can_be_short_is_named() {
    let t = Topology::star(4).unwrap();
    let cases = [
        (
            Room {
                groups_free: 0,
                ..plenty()
            },
            "switch s0 takes no more groups",
        ),
        (
            Room {
                pmtus: vec![Pmtu::B256, Pmtu::B512],
                ..plenty()
            },
            "switch s0 does not carry a path MTU of 1024, 512 at most",
        ),
        (
            Room {
                endpoints_max: 2,
                ..plenty()
            },
            "switch s0 has 3 endpoints in the tree, a group can have 2 there",
        ),
    ];
    for (room, says) in cases {
        let rooms = RoomTable::from([("s0".to_owned(), room)]);
        let error = place(&t, &LinkLoad::new(), &rooms, &request(&["h0", "h1", "h2"])).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.field().as_str()),
            (says, "switches.s0")
        );
        assert_eq!(error.reason(), says);
    }
    // Kept contributions take more.
    let rooms = RoomTable::from([(
        "s0".to_owned(),
        free(placed(&t, &["h0", "h1"]).rules["s0"].reserved_bytes()),
    )]);
    let reproducible = TranslatedRule {
        reproducible: true,
        ..TranslatedRule::root(0)
    };
    let keeping = request_with(&["h0", "h1"], reproducible);
    let error = place(&t, &LinkLoad::new(), &rooms, &keeping).unwrap_err();
    let PlanError::NoRoom { shortages } = error else {
        panic!("{error}");
    };
    assert!(matches!(shortages[0].lack, Lack::Memory { needed, free } if needed > free));
}

#[test]
fn refusals_name_the_rank() {
    let mut t = Topology::leaf_spine(2, 1, 2).unwrap();
    t.add_host("h9", None, Some([2, 0, 0, 0, 0, 9])).unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&["h0"], "ranks: 1 rank(s); a collective group has 2 to 1024"),
        (&["h0", "x"], "ranks[1]: the fabric has no host \"x\""),
        (
            &["h0", "h1", "h0"],
            "ranks[2].qpn: the QP 0x11 of 10.0.0.1 is that of ranks[0] too",
        ),
        (
            &["h0", "h9"],
            "ranks[1]: the IP address of host \"h9\" is not known; give it in the request",
        ),
        (&["h0", "h1"], "mcst_id: 10.0.0.3 is the address of host \"h2\""),
    ];
    for (hosts, says) in cases {
        let mut request = request(hosts);
        if says.starts_with("mcst_id") {
            request.mcst_id = McstId([10, 0, 0, 3].into());
        }
        let error = place(&t, &LinkLoad::new(), &RoomTable::new(), &request).unwrap_err();
        assert_eq!(error.to_string(), says);
        assert!(says.starts_with(&error.field()) && says.ends_with(&error.reason()));
    }
    let mut reserved = request(&["h0", "h1"]);
    reserved.members[1].qpn = Qpn::new(1);
    let error = place(&t, &LinkLoad::new(), &RoomTable::new(), &reserved).unwrap_err();
    assert_eq!(error.field(), "ranks[1].qpn");

    t.set_switch_up("spine0", false);
    let error = place(
        &t,
        &LinkLoad::new(),
        &RoomTable::new(),
        &request(&["h0", "h1", "h3"]),
    )
    .unwrap_err();
    let cut = Cut::Down(vec![Down::Switch("spine0".into())]);
    assert_eq!(
        error,
        PlanError::NoPath {
            field: "ranks[2]".into(),
            from: "h0".into(),
            to: "h3".into(),
            cut
        }
    );
}

#[test]
fn narrow_links_are_gone_round_or_named() {
    let mut t = Topology::new();
    for (i, name) in ["l0", "l1", "s0", "s1"].iter().enumerate() {
        t.add_switch(name, (0..3).map(|p| (p, [6, 0, 0, 0, i as u8, p])))
            .unwrap();
    }
    for (spine, mtu) in [("s0", 1500), ("s1", 9000)] {
        let port = u8::from(spine == "s1");
        t.connect(End::port("l0", port), End::port(spine, 0), mtu)
            .unwrap();
        t.connect(End::port("l1", port), End::port(spine, 1), mtu)
            .unwrap();
    }
    for (host, leaf, last) in [("a", "l0", 1), ("b", "l1", 2)] {
        t.add_host(host, Some([10, 0, 0, last].into()), Some([2, 0, 0, 0, 0, last]))
            .unwrap();
        t.connect(End::host(host), End::port(leaf, 2), 9000).unwrap();
    }
    let mut big = request(&["a", "b"]);
    big.pmtu = Pmtu::B4096;
    let root = |t: &Topology, r: &Request| {
        place(t, &LinkLoad::new(), &RoomTable::new(), r).map(|p| p.tree.root.name)
    };
    assert_eq!(root(&t, &request(&["a", "b"])), Ok("s0".into()));
    assert_eq!(root(&t, &big), Ok("s1".into()));
    t.set_switch_up("s1", false);
    let error = root(&t, &big).unwrap_err();
    assert_eq!(error.field(), "pmtu");
    assert!(error.to_string().contains("has 1500"), "{error}");
}

/// Distances by hand, without the planner's or the topology's search.
fn level_of(t: &Topology, switch: &str, hosts: &[&str], usable: &dyn Fn(&str) -> bool) -> Option<u32> {
    let mut distance: BTreeMap<String, u32> = BTreeMap::from([(switch.to_owned(), 0)]);
    loop {
        let before = distance.len();
        for (_, link) in t.links().filter(|(_, l)| l.up) {
            for (a, b) in [(&link.a, &link.b), (&link.b, &link.a)] {
                let from = distance.get(a.node()).copied();
                let forwards = matches!(a, End::Switch { .. });
                let enters = matches!(b, End::Host(_)) || usable(b.node());
                if let Some(from) = from.filter(|_| forwards && enters) {
                    let known = distance.entry(b.node().to_owned()).or_insert(from + 1);
                    *known = (*known).min(from + 1);
                }
            }
        }
        // Once more for each node that is new: enough for the longest way to settle.
        if distance.len() == before {
            for _ in 0..before {
                for (_, link) in t.links().filter(|(_, l)| l.up) {
                    for (a, b) in [(&link.a, &link.b), (&link.b, &link.a)] {
                        if let (Some(x), Some(y), End::Switch { .. }) = (
                            distance.get(a.node()).copied(),
                            distance.get(b.node()).copied(),
                            a,
                        ) {
                            distance.insert(b.node().to_owned(), y.min(x + 1));
                        }
                    }
                }
            }
            break;
        }
    }
    hosts
        .iter()
        .map(|h| distance.get(*h).copied())
        .max_by_key(|d| d.map_or(u64::MAX, u64::from))
        .flatten()
}

fn check(t: &Topology, request: &Request, plan: &Plan) -> Result<(), TestCaseError> {
    let size = request.members.len() as u16;
    let nodes = plan.tree.nodes();
    let names: BTreeSet<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
    prop_assert_eq!(names.len(), nodes.len(), "no node twice");
    let mut ranks = Vec::new();
    for node in &nodes {
        if let Role::Rank { rank, .. } = node.role {
            prop_assert_eq!(&request.members[usize::from(rank)].host, &node.name);
            prop_assert!(node.children.is_empty());
            ranks.push(rank);
        } else {
            prop_assert!(!node.children.is_empty(), "{} leads nowhere", node.name);
        }
        prop_assert!(
            node.up
                .as_ref()
                .is_none_or(|up| t.link(up.links[0]).is_some_and(|l| l.up))
        );
    }
    ranks.sort_unstable();
    prop_assert_eq!(ranks, (0..size).collect::<Vec<_>>(), "every rank once");
    prop_assert!(
        plan.tree.root.children.len() > 1,
        "a root with one child is not the lowest"
    );
    prop_assert_eq!(plan.rules.values().filter(|r| parent(r).is_none()).count(), 1);
    for (switch, rule) in &plan.rules {
        prop_assert_eq!(rule.check(PortId::COUNT), vec![]);
        let mut all: Vec<u16> = rule
            .endpoints
            .iter()
            .flat_map(|e| e.next_hop.ranks().to_vec())
            .collect();
        all.sort_unstable();
        prop_assert_eq!(
            all,
            (0..size).collect::<Vec<_>>(),
            "the endpoints of {} part the ranks",
            switch
        );
        let firsts: Vec<u16> = rule.endpoints.iter().map(|e| e.next_hop.ranks()[0]).collect();
        prop_assert!(firsts.is_sorted(), "in rank order");
        for endpoint in &rule.endpoints {
            let near = End::port(switch, endpoint.port.index() as u8);
            let far = t
                .link_at(&near)
                .and_then(|l| t.link(l))
                .map(|l| l.far(switch).clone());
            match (&endpoint.next_hop, far) {
                (NextHop::Host(rank), Some(End::Host(name))) => prop_assert_eq!(&rank.name, &name),
                (NextHop::Switch { name, mac, ranks, .. }, Some(End::Switch { switch: peer, port })) => {
                    prop_assert_eq!(name, &peer);
                    prop_assert_eq!(t.switch(&peer).map(|s| s.ports[&port]), Some(mac.0));
                    // Both ends of a link part the ranks between them, and one of them is the other's parent.
                    let back = plan.rules[&peer]
                        .endpoints
                        .iter()
                        .find(|e| e.port.index() == usize::from(port));
                    let back = back.map(|e| e.next_hop.ranks().to_vec()).unwrap_or_default();
                    let both: BTreeSet<u16> = ranks.iter().chain(&back).copied().collect();
                    prop_assert_eq!(both.len(), ranks.len() + back.len());
                    prop_assert_eq!(both.len(), usize::from(size));
                    let ups = [
                        parent(rule) == Some(endpoint.port),
                        parent(&plan.rules[&peer]).is_some_and(|p| p.index() == usize::from(port)),
                    ];
                    prop_assert_eq!(ups.iter().filter(|up| **up).count(), 1);
                }
                (hop, far) => prop_assert!(false, "{switch} has {hop:?} where {far:?} is"),
            }
        }
    }
    Ok(())
}

fn depth(node: &TreeNode) -> u32 {
    node.children.iter().map(|c| 1 + depth(c)).max().unwrap_or(0)
}

fn hosts_of(case: &Case) -> Vec<&str> {
    case.request.members.iter().map(|m| m.host.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Against a brute-force twin: the plan exists where some usable switch reaches all ranks, and its root is as low as
    /// any such switch, with switches without room left out.
    #[test]
    fn the_root_is_the_lowest_that_has_room(case in case(), full in proptest::collection::btree_set(0usize..10, 0..5)) {
        let hosts = hosts_of(&case);
        let request = request(&hosts);
        let full: BTreeSet<String> = full.into_iter().map(|s| format!("s{s}")).collect();
        let rooms: RoomTable = case.topology.switches()
            .map(|s| (s.name.clone(), if full.contains(&s.name) { free(1) } else { plenty() }))
            .collect();
        let usable = |name: &str| !full.contains(name);
        let twin = case.topology.switches()
            .filter(|s| usable(&s.name))
            .filter_map(|s| level_of(&case.topology, &s.name, &hosts, &usable))
            .min();
        match place(&case.topology, &LinkLoad::new(), &rooms, &request) {
            Ok(plan) => {
                check(&case.topology, &request, &plan)?;
                prop_assert_eq!(Some(depth(&plan.tree.root)), twin);
                prop_assert!(plan.rules.keys().all(|s| usable(s)));
            }
            Err(PlanError::NoRoom { shortages }) => {
                prop_assert_eq!(twin, None);
                prop_assert!(!shortages.is_empty() && shortages.iter().all(|s| full.contains(&s.switch)));
                let without = case.topology.switches()
                    .filter_map(|s| level_of(&case.topology, &s.name, &hosts, &|_| true))
                    .min();
                prop_assert!(without.is_some(), "with room everywhere there is a tree");
            }
            Err(PlanError::NoPath { .. }) => prop_assert_eq!(twin, None),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// The same fabric and request give the same plan, and load moves the tree but not its level.
    #[test]
    fn load_never_raises_the_root(case in case()) {
        let request = request(&hosts_of(&case));
        let Ok(first) = place(&case.topology, &LinkLoad::new(), &RoomTable::new(), &request) else {
            return Ok(());
        };
        let again = place(&case.topology, &LinkLoad::new(), &RoomTable::new(), &request);
        prop_assert_eq!(Ok(&first), again.as_ref());
        let load = load_of(&case.topology, &first.rules);
        for link in first.tree.links() {
            prop_assert_eq!(load.get(link), 1, "each link of the tree counts once");
        }
        let loaded = place(&case.topology, &load, &RoomTable::new(), &request).unwrap();
        check(&case.topology, &request, &loaded)?;
        prop_assert_eq!(depth(&first.tree.root), depth(&loaded.tree.root));
    }
}
