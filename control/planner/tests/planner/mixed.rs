//! Fabrics with plain switches and routers, and hosts with several ranks: known trees, and what holds for any plan in any such
//! fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use castnet_group::{Distribution, TreeShape};
use castnet_planner::{
    LinkLoad, Member, Plan, PlanError, Request, Room, RoomTable, Tree, TreeNode, plan as place,
};
use castnet_rules::{ENDPOINTS_MAX, Endpoint, GroupRule, NextHop, TranslatedRule};
use castnet_topology::{End, LinkId, SwitchKind, Topology};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Qpn};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::{case, load_of, plan, request};

/// A fabric under construction: each link takes the next free port of its switches.
#[derive(Default)]
pub(crate) struct Fabric {
    pub(crate) topology: Topology,
    ports: BTreeMap<String, u8>,
    hosts: u8,
}

impl Fabric {
    pub(crate) fn castnet(&mut self, name: &str) {
        let number = self.topology.switches().count() as u8;
        let ports = (0..64).map(|p| (p, [6, 0, 0, 0, number, p]));
        self.topology.add_switch(name, ports).expect("a new name");
    }

    pub(crate) fn plain(&mut self, name: &str) {
        self.topology.add_plain(name, 64).expect("a new name");
    }

    pub(crate) fn router(&mut self, name: &str) {
        self.plain(name);
        self.topology.set_switch_kind(name, SwitchKind::Router);
    }

    fn end(&mut self, switch: &str) -> End {
        let next = self.ports.entry(switch.into()).or_default();
        *next += 1;
        End::port(switch, *next - 1)
    }

    pub(crate) fn link(&mut self, a: &str, b: &str) -> LinkId {
        let (a, b) = (self.end(a), self.end(b));
        self.topology.connect(a, b, 9000).expect("free ports")
    }

    pub(crate) fn hosts(&mut self, switch: &str, count: u8) {
        for _ in 0..count {
            let (name, last) = (format!("h{}", self.hosts), self.hosts + 1);
            let ip = Ipv4Addr::new(10, 0, 0, last);
            self.topology
                .add_host(&name, Some(ip), Some([2, 0, 0, 0, 0, last]))
                .expect("a new name");
            let end = self.end(switch);
            self.topology
                .connect(end, End::host(name), 9000)
                .expect("a free port");
            self.hosts += 1;
        }
    }
}

/// Racks of a plain switch with hosts and a Castnet box by one link; linked in a row.
fn racks(hosts: &[u8]) -> Fabric {
    let mut f = Fabric::default();
    for (i, hosts) in hosts.iter().enumerate() {
        let (rack, last) = (format!("rack{i}"), format!("rack{}", i.wrapping_sub(1)));
        f.plain(&rack);
        f.castnet(&format!("box{i}"));
        f.link(&rack, &format!("box{i}"));
        f.hosts(&rack, *hosts);
        if i > 0 {
            f.link(&last, &rack);
        }
    }
    f
}

pub(crate) fn names(hosts: impl IntoIterator<Item = u8>) -> Vec<String> {
    hosts.into_iter().map(|h| format!("h{h}")).collect()
}

fn multicast(t: &Topology, source: &str, receivers: &[String]) -> Plan {
    let receivers: Vec<&str> = receivers.iter().map(String::as_str).collect();
    plan(t, &LinkLoad::new(), &request(source, &receivers)).expect("a plan")
}

/// Rank `i` at the host `hosts[i]`, each with a QP of its own.
pub(crate) fn job(hosts: &[String]) -> Request {
    let rank = |(i, host): (u32, &String)| Member::new(host, Qpn::new(0x100 + i));
    let ranks = (0..).zip(hosts).map(rank).collect();
    let (mcst_id, rule) = (McstId([10, 255, 0, 1].into()), TranslatedRule::root(0));
    Request::collective("job", mcst_id, Pmtu::B1024, ranks, (64, rule))
}

fn placed(t: &Topology, hosts: &[String]) -> Plan {
    place(t, &LinkLoad::new(), &RoomTable::new(), &job(hosts)).expect("a plan")
}

fn virtual_qpns(rule: &GroupRule) -> Vec<u32> {
    rule.endpoints.iter().map(|e| e.virtual_qpn.value()).collect()
}

#[test]
fn a_box_by_one_link_has_one_endpoint_per_host() {
    let f = racks(&[8]);
    let t = &f.topology;
    for source in 0..8 {
        let receivers = names((0..8).filter(|h| *h != source));
        let p = multicast(t, &format!("h{source}"), &receivers);
        let rule = &p.rules["box0"];
        assert_eq!(
            (p.rules.len(), rule.endpoints.len(), p.tree.links().len()),
            (1, 8, 16)
        );
        assert!(rule.endpoints.iter().all(|e| e.port.index() == 0));
        assert_eq!(virtual_qpns(rule), [1; 8], "the addresses tell the hosts apart");
        assert_eq!(
            rule.upstream().map(|e| e.next_hop.name()),
            Some(&*format!("h{source}"))
        );
        let mut load = LinkLoad::new();
        load.add(&p.tree);
        let arm = t.link_at(&End::port("box0", 0)).expect("a link");
        assert_eq!(load.get(arm), 8, "the link of the box carries every edge");
    }
    let p = multicast(t, "h0", &names([1, 2]));
    let expected = "\
h0 10.0.0.1 QP 0x11, source
└─(rack0)─[0] box0
   ├─[0]─(rack0)─ h1 10.0.0.2 QP 0x11
   └─[0]─(rack0)─ h2 10.0.0.3 QP 0x11";
    assert_eq!(p.tree.to_string(), expected);
}

#[test]
fn the_ranks_of_one_host_have_an_endpoint_each() {
    for fabric in [racks(&[8]).topology, Topology::star(8).expect("a star")] {
        // h0, h1, ... h7, h0, h1, ... and another rank at h8 that is alone there.
        let p = placed(&fabric, &names((0..8).chain(0..7)));
        let rule = p.rules.values().next().expect("one switch");
        assert_eq!((p.rules.len(), rule.endpoints.len()), (1, 15));
        let of = |name: &str| {
            let found = rule.endpoints.iter().find(|e| e.next_hop.name() == name);
            found.unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(of("h7").virtual_qpn, Qpn::VIRTUAL, "its address tells who it is");
        assert_eq!(of("h0#0").next_hop.rank().map(|r| r.rank), Some(0));
        assert_eq!(of("h0#8").next_hop.rank().map(|r| r.rank), Some(8));
        let at_port = |port| rule.endpoints.iter().filter(move |e| e.port == port);
        let shared = of("h0#0").port;
        let own: BTreeSet<Qpn> = at_port(shared).map(|e| e.virtual_qpn).collect();
        assert_eq!(of("h0#0").virtual_qpn, Qpn::new(2));
        assert!(own.len() == 2 || own.len() == 15, "{own:?}");
    }
    let p = placed(&racks(&[2]).topology, &names([0, 1, 0]));
    let expected = "\
box0
├─[0]─(rack0)─ rank 0: h0#0 10.0.0.1 QP 0x100
├─[0]─(rack0)─ rank 2: h0#2 10.0.0.1 QP 0x102
└─[0]─(rack0)─ rank 1: h1 10.0.0.2 QP 0x101";
    assert_eq!(p.tree.to_string(), expected);
    assert_eq!(virtual_qpns(&p.rules["box0"]), [2, 1, 3]);
    // A controller plans before it knows the hosts' addresses, with another one for each rank.
    let mut unknown = job(&names([0, 1, 0]));
    for (rank, last) in unknown.members.iter_mut().zip(1..) {
        rank.ip = Some(Ipv4Addr::new(198, 18, 0, last));
    }
    let topology = racks(&[2]).topology;
    let p = place(&topology, &LinkLoad::new(), &RoomTable::new(), &unknown).expect("a plan");
    assert_eq!(virtual_qpns(&p.rules["box0"]), [2, 1, 3]);
}

#[test]
fn boxes_of_two_racks_share_the_work() {
    let f = racks(&[4, 4]);
    let trunk = f.topology.link_at(&End::port("rack1", 5)).expect("a link");
    let p = multicast(&f.topology, "h0", &names(1..8));
    let mut load = LinkLoad::new();
    load.add(&p.tree);
    assert_eq!(load.get(trunk), 1, "each byte crosses between the racks once");
    // box1 is at port 0 of its rack, its edge to box0 takes three links.
    let (at0, at1) = (&p.rules["box0"], &p.rules["box1"]);
    assert_eq!((at0.endpoints.len(), at1.endpoints.len()), (5, 5));
    let edge = |rule: &GroupRule, to: &str| {
        let found = rule.endpoints.iter().find(|e| e.next_hop.name() == to).cloned();
        found.expect("an edge")
    };
    let (down, up) = (edge(at0, "box1"), edge(at1, "box0"));
    assert_eq!(
        (down.virtual_qpn, down.next_hop.qpn()),
        (Qpn::new(2), Qpn::new(2))
    );
    assert_eq!((up.virtual_qpn, up.next_hop.qpn()), (Qpn::new(2), Qpn::new(2)));
    assert_eq!(
        down.next_hop.mac().0,
        f.topology.switch("box1").expect("a switch").ports[&0]
    );
    assert_eq!(at1.upstream(), Some(&up));

    let p = placed(&f.topology, &names(0..8));
    let mut load = LinkLoad::new();
    load.add(&p.tree);
    assert_eq!((p.rules.len(), load.get(trunk)), (2, 1));
}

#[test]
fn a_box_that_saves_no_links_is_left_out() {
    let f = racks(&[4, 4]);
    // One receiver in the other rack: its box would add two links.
    let p = multicast(&f.topology, "h0", &names([1, 2, 4]));
    assert_eq!(p.rules.keys().collect::<Vec<_>>(), ["box0"]);
    assert_eq!(p.tree.links().len(), 2 + 2 + 2 + 3);
    // All receivers in the other rack: the source's box would.
    let p = multicast(&f.topology, "h0", &names(4..8));
    assert_eq!(p.rules.keys().collect::<Vec<_>>(), ["box1"]);
    assert_eq!(p.tree.links().len(), 3 + 4 * 2);
}

#[test]
fn castnet_spines_serve_plain_leaves() {
    let mut t = Topology::leaf_spine(3, 2, 2).expect("a fabric");
    for leaf in ["leaf0", "leaf1", "leaf2"] {
        t.set_switch_kind(leaf, SwitchKind::Plain);
    }
    let receivers = names(1..6);
    let mut load = LinkLoad::new();
    for spine in ["spine0", "spine1"] {
        let receivers: Vec<&str> = receivers.iter().map(String::as_str).collect();
        let p = plan(&t, &load, &request("h0", &receivers)).expect("a plan");
        assert_eq!(
            p.rules.keys().collect::<Vec<_>>(),
            [spine],
            "the next group takes the other"
        );
        assert_eq!(
            (p.tree.links().len(), virtual_qpns(&p.rules[spine])),
            (12, vec![1; 6])
        );
        load.add(&p.tree);
    }
    assert_eq!(load.get(t.link_at(&End::port("spine0", 0)).expect("a link")), 2);
    assert_eq!(
        placed(&t, &names(0..6)).rules.keys().collect::<Vec<_>>(),
        ["spine0"]
    );
    // Castnet leaves under plain spines, the other way round.
    let mut t = Topology::leaf_spine(3, 2, 2).expect("a fabric");
    for spine in ["spine0", "spine1"] {
        t.set_switch_kind(spine, SwitchKind::Plain);
    }
    let p = multicast(&t, "h0", &receivers);
    assert_eq!(p.rules.keys().collect::<Vec<_>>(), ["leaf0", "leaf1", "leaf2"]);
    let up = |leaf: &str| virtual_qpns(&p.rules[leaf]);
    assert_eq!((up("leaf0"), up("leaf1")), (vec![1, 1, 2, 3], vec![1, 1, 1]));
    let one = p.rules["leaf2"].upstream().expect("the source's side");
    assert_eq!(one.next_hop.qpn(), Qpn::new(3));
}

#[test]
fn a_fabric_without_a_castnet_switch_is_refused() {
    let mut f = Fabric::default();
    f.plain("rack");
    f.hosts("rack", 3);
    let refused = |t: &Topology| {
        let p = plan(t, &LinkLoad::new(), &request("h0", &["h1"])).expect_err("no switch");
        let c = place(t, &LinkLoad::new(), &RoomTable::new(), &job(&names(0..2))).expect_err("no switch");
        ((p.to_string(), p.field().to_string()), (c.to_string(), c.field()))
    };
    let none = "the fabric has no Castnet switch: plain switches and routers run no groups";
    let both = (none.to_string(), String::new());
    assert_eq!(refused(&f.topology), (both.clone(), both));
    f.castnet("box");
    f.link("rack", "box");
    f.topology.set_switch_up("box", false);
    let (p, c) = refused(&f.topology);
    let down = "no path from \"h0\" to \"box\": switch box is down";
    assert_eq!(p, (format!("members[0]: {down}"), "members[0]".into()));
    assert_eq!(c, (format!("ranks[0]: {down}"), "ranks[0]".into()));
}

#[test]
fn a_full_box_is_left_out_and_too_many_ranks_at_one_are_refused() {
    let f = racks(&[4, 4]);
    let full = Room {
        memory_free: 1,
        groups_free: 1,
        endpoints_max: 64,
        pmtus: Vec::new(),
    };
    let rooms = RoomTable::from([("box0".to_string(), full)]);
    let p = place(&f.topology, &LinkLoad::new(), &rooms, &job(&names(0..8))).expect("a plan");
    assert_eq!(p.rules.keys().collect::<Vec<_>>(), ["box1"]);
    // 13 ranks at each of 5 hosts.
    let f = racks(&[5]);
    let wanted = job(&names((0..13).flat_map(|_| 0..5)));
    let small = Room {
        memory_free: 1 << 30,
        ..rooms["box0"].clone()
    };
    let rooms = RoomTable::from([("box0".to_string(), small)]);
    let refused = place(&f.topology, &LinkLoad::new(), &rooms, &wanted).expect_err("too many");
    let says = "switch box0 has 65 endpoints in the tree, a group can have 64 there";
    assert_eq!(refused.to_string(), says);
    // As many as there can be.
    let p = placed(
        &f.topology,
        &names((0..ENDPOINTS_MAX).map(|rank| (rank % 5) as u8)),
    );
    let rule = &p.rules["box0"];
    assert_eq!((rule.endpoints.len(), rule.check(64)), (ENDPOINTS_MAX, vec![]));
    // A host with 64 others, each at a port of its own: their number alone is no fault.
    let t = Topology::leaf_spine(3, 1, 30).expect("a fabric");
    assert_eq!(multicast(&t, "h0", &names(1..90)).rules.len(), 4);
}

/// Two plain switches lead from the box to the host; full packets fit through one of them only.
#[test]
fn load_counts_the_links_that_full_packets_fit_through() {
    let mut f = Fabric::default();
    ["near", "narrow", "wide", "far"]
        .iter()
        .for_each(|name| f.plain(name));
    f.castnet("box");
    f.hosts("near", 1);
    f.hosts("far", 1);
    f.link("near", "box");
    for middle in ["narrow", "wide"] {
        let mtu = if middle == "wide" { 9000 } else { 1000 };
        for side in ["near", "far"] {
            let (a, b) = (f.end(middle), f.end(side));
            f.topology.connect(a, b, mtu).expect("free ports");
        }
    }
    let p = placed(&f.topology, &names(0..2));
    let via: Vec<&[String]> = p
        .tree
        .nodes()
        .iter()
        .filter_map(|n| Some(&n.up.as_ref()?.via[..]))
        .collect();
    assert_eq!(via, [&["near"][..], &["near", "wide", "far"][..]]);
    check(&f.topology, &p.tree, &p.rules, &BTreeMap::new()).expect("the same load");
}

/// McstIDs of switches.
type Own = BTreeMap<String, McstId>;

pub(crate) fn shape() -> impl Strategy<Value = TreeShape> {
    let postal = (100_u32..2000, 1_u32..1000);
    prop_oneof![
        Just(TreeShape::Shortest),
        Just(TreeShape::Star),
        Just(TreeShape::Chain),
        Just(TreeShape::Binomial),
        postal.prop_map(|(latency, packets)| TreeShape::Postal { latency, packets }),
    ]
}

/// Any fabric of the other properties, with some switches plain and some routers; members; and a McstID for each Castnet switch.
fn mixed() -> impl Strategy<Value = (Topology, Vec<String>, Own)> {
    let kind = prop_oneof![
        2 => Just(SwitchKind::Castnet),
        1 => Just(SwitchKind::Plain),
        1 => Just(SwitchKind::Router),
    ];
    (case(), proptest::collection::vec(kind, 10)).prop_map(|(case, kinds)| {
        let mut topology = case.topology;
        for (i, kind) in kinds.iter().enumerate() {
            topology.set_switch_kind(&format!("s{i}"), *kind);
        }
        let castnet = topology.switches().filter(|s| s.kind == SwitchKind::Castnet);
        let own = (1..)
            .zip(castnet)
            .map(|(n, s)| (s.name.clone(), McstId([10, 254, 0, n].into())));
        let own = own.collect();
        let members = case.request.members.iter();
        let members = members.map(|m| m.host.clone()).collect();
        (topology, members, own)
    })
}

/// Whether plain switches alone lead from one end to the other, or nothing but a link.
fn is_one_segment(t: &Topology, from: &End, to: &End) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from.clone()];
    while let Some(at) = open.pop() {
        for next in t.neighbours(at.node()) {
            let enters = at == *from || t.is_plain(at.node());
            let passes = t.link(next.link).is_some_and(|l| l.up) && (at != *from || next.near == at);
            if enters && passes && seen.insert(next.far.clone()) {
                open.push(next.far);
            }
        }
    }
    seen.contains(to)
}

/// Follows the links of a path over plain switches and routers. It passes a router only where it must.
fn follow(t: &Topology, from: &TreeNode, to: &TreeNode) -> Result<(), TestCaseError> {
    let up = to.up.as_ref().expect("a path");
    let host = |node: &TreeNode| node.name.split('#').next().unwrap_or_default().to_string();
    let end = |node: &TreeNode, port: Option<PortId>| match port {
        Some(port) => End::port(&node.name, port.index() as u8),
        None => End::host(host(node)),
    };
    let start = end(from, up.near_port());
    let mut at = start.clone();
    let mut via = Vec::new();
    for (i, link) in up.links.iter().enumerate() {
        let link = t.link(*link).expect("a link");
        prop_assert!(link.up);
        prop_assert!(link.near(at.node()).node() == at.node());
        if i == 0 {
            prop_assert_eq!(link.near(at.node()), &at);
        } else {
            prop_assert!(t.is_forwarder(at.node()) && t.switch(at.node()).is_some_and(|s| s.up));
            via.push(at.node().to_string());
        }
        at = link.far(at.node()).clone();
    }
    prop_assert_eq!(&at, &end(to, up.far_port()));
    prop_assert_eq!(&via, &up.via);
    via.retain(|name| t.is_router(name));
    prop_assert_eq!(&via, &up.routers);
    prop_assert_eq!(up.is_routed(), !is_one_segment(t, &start, &at));
    Ok(())
}

/// The tree's paths are real, its edges are those of the rules, and the load is the same from tree, rules and edges. Where a path
/// passes routers, the rules say so.
pub(crate) fn check(
    t: &Topology,
    tree: &Tree,
    rules: &BTreeMap<String, GroupRule>,
    own: &Own,
) -> Result<(), TestCaseError> {
    let mut edges = 0;
    let mut routed = BTreeMap::new();
    for node in tree.nodes() {
        prop_assert!(!t.is_forwarder(&node.name));
        prop_assert_eq!(
            rules.contains_key(&node.name),
            node.up.as_ref().is_none_or(|up| up.far_port().is_some()) && t.switch(&node.name).is_some()
        );
        for child in &node.children {
            edges += 1;
            follow(t, node, child)?;
            let is_routed = child.up.as_ref().is_some_and(|up| up.is_routed());
            routed.insert((node.name.as_str(), child.name.as_str()), is_routed);
            routed.insert((child.name.as_str(), node.name.as_str()), is_routed);
        }
    }
    let (mut hosts, mut switches) = (0, 0);
    let passes_routers = routed.values().any(|routed| *routed);
    for (switch, rule) in rules {
        let common = McstId([10, 255, 0, 1].into());
        prop_assert_eq!(rule.mcst_id, if passes_routers { own[switch] } else { common });
        prop_assert_eq!(rule.check(PortId::COUNT), vec![]);
        prop_assert_eq!(&rule.clone().in_order(), rule, "as a switch keeps it");
        for endpoint in &rule.endpoints {
            let is_routed = routed[&(switch.as_str(), endpoint.next_hop.name())];
            prop_assert_eq!(endpoint.next_hop.mac() == MacAddr::UNSPECIFIED, is_routed);
            let NextHop::Switch {
                name, ip, qpn, mac, ..
            } = &endpoint.next_hop
            else {
                hosts += 1;
                continue;
            };
            switches += 1;
            let there = rules[name].mcst_id;
            prop_assert_eq!(*ip, Some(there.0).filter(|_| there != rule.mcst_id));
            prop_assert!(ip.is_some() || !is_routed);
            let back = rules[name].endpoints.iter().find(|e| e.next_hop.name() == switch);
            let Some(Endpoint {
                port,
                virtual_qpn,
                next_hop,
                ..
            }) = back
            else {
                return Err(TestCaseError::fail(format!("{name} does not know {switch}")));
            };
            prop_assert_eq!((virtual_qpn, next_hop.qpn()), (qpn, endpoint.virtual_qpn));
            let far = MacAddr(t.switch(name).expect("a switch").ports[&(port.index() as u8)]);
            prop_assert_eq!(
                Some(*mac).filter(|_| !is_routed),
                Some(far).filter(|_| !is_routed)
            );
        }
    }
    prop_assert_eq!(edges, hosts + switches / 2, "each edge is in the rules");
    let mut load = LinkLoad::new();
    load.add(tree);
    prop_assert_eq!(load_of(t, rules), load);
    Ok(())
}

/// The members that a frame reaches which leaves the switch `at` by all endpoints but the one that it came from, each as often
/// as it does.
fn spread(rules: &BTreeMap<String, GroupRule>, at: &str, from: &str, got: &mut Vec<String>) {
    for hop in rules[at]
        .endpoints
        .iter()
        .map(|e| &e.next_hop)
        .filter(|hop| hop.name() != from)
    {
        match hop {
            NextHop::Host(host) => got.push(host.name.clone()),
            NextHop::Switch { name, .. } => spread(rules, name, at, got),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn multicast_reaches_each_member_once((t, members, own) in mixed(), tree in shape()) {
        let (source, receivers) = (members[0].as_str(), members[1..].iter().map(String::as_str));
        let wanted = Request { mcst_ids: own.clone(), distribution: Distribution::Switches(tree.into()), ..request(source, &receivers.collect::<Vec<_>>()) };
        let castnet = t.switches().any(|s| s.kind == SwitchKind::Castnet && t.connected(source, &s.name));
        match plan(&t, &LinkLoad::new(), &wanted) {
            Ok(p) => {
                check(&t, &p.tree, &p.rules, &own)?;
                let first: Vec<&String> = p.rules.iter()
                    .filter(|(_, rule)| rule.upstream().is_some_and(|e| e.next_hop.name() == source))
                    .map(|(switch, _)| switch).collect();
                prop_assert_eq!(first.len(), 1, "the source sends to one switch");
                let mut got = Vec::new();
                spread(&p.rules, first[0], source, &mut got);
                got.sort();
                let mut all = members[1..].to_vec();
                all.sort();
                prop_assert_eq!(got, all);
                let mut reversed = wanted.clone();
                reversed.members[1..].reverse();
                prop_assert_eq!(plan(&t, &LinkLoad::new(), &reversed).ok(), Some(p));
            }
            Err(PlanError::NoPath { from, to, .. }) => prop_assert!(!t.connected(&from, &to)),
            Err(PlanError::NoCastnetSwitch) => prop_assert!(t.switches().all(|s| s.kind != SwitchKind::Castnet)),
            Err(other) => prop_assert!(false, "{}", other),
        }
        if !castnet {
            prop_assert!(plan(&t, &LinkLoad::new(), &wanted).is_err());
        }
    }

    #[test]
    fn what_a_rank_gives_reaches_each_other_once((t, members, own) in mixed(), more in proptest::collection::vec(any::<Index>(), 0..6)) {
        let more: Vec<String> = more.iter().map(|i| members[i.index(members.len())].clone()).collect();
        let wanted = Request { mcst_ids: own.clone(), ..job(&[members.clone(), more].concat()) };
        match place(&t, &LinkLoad::new(), &RoomTable::new(), &wanted) {
            Ok(p) => {
                check(&t, &p.tree, &p.rules, &own)?;
                prop_assert!(p.tree.root.children.len() > 1, "else its child is the better root");
                let leaves = p.tree.nodes().iter().filter(|n| !p.rules.contains_key(&n.name)).count();
                prop_assert_eq!(leaves, wanted.members.len(), "a leaf for each rank");
                let mut got = Vec::new();
                spread(&p.rules, &p.tree.root.name, "", &mut got);
                let names: BTreeSet<&String> = got.iter().collect();
                prop_assert_eq!((got.len(), names.len()), (wanted.members.len(), wanted.members.len()));
                prop_assert_eq!(place(&t, &LinkLoad::new(), &RoomTable::new(), &wanted), Ok(p));
            }
            Err(PlanError::NoPath { from, to, .. }) => prop_assert!(!t.connected(&from, &to)),
            Err(PlanError::NoCastnetSwitch) => prop_assert!(t.switches().all(|s| s.kind != SwitchKind::Castnet)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// A loaded fabric has a plan too, and the same one as before where the load is gone.
    #[test]
    fn load_moves_a_mixed_tree_and_can_be_taken_back((t, members, own) in mixed()) {
        let receivers: Vec<&str> = members[1..].iter().map(String::as_str).collect();
        let wanted = Request { mcst_ids: own.clone(), ..request(&members[0], &receivers) };
        let Ok(first) = plan(&t, &LinkLoad::new(), &wanted) else { return Ok(()) };
        let mut load = LinkLoad::new();
        load.add(&first.tree);
        let loaded = plan(&t, &load, &wanted).expect("load is no obstacle");
        check(&t, &loaded.tree, &loaded.rules, &own)?;
        prop_assert_eq!(plan(&t, &LinkLoad::new(), &wanted).ok(), Some(first));
    }
}
