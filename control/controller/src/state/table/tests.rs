use castnet_group::CollectiveSettings;
use castnet_planner::LinkLoad;
use castnet_proto::convert::new_group_from_proto;
use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupKind, GroupRule, MulticastRule, NextHop, TranslatedRule};
use castnet_topology::End;
use castnet_wire::{MacAddr, PortId, Psn};
use proptest::prelude::*;

use super::*;
use crate::state::core::tests;
use crate::state::{Collective, Kind, Multicast, Phase, Plan};

/// A group by a few numbers, so that groups share switches, ports and queue pairs.
#[derive(Clone, Debug)]
struct Shape {
    name: u8,
    is_collective: bool,
    lanes: u8,
    phase: Phase,
    /// Switches of its tree, with the port that it uses there.
    tree: BTreeMap<u8, u8>,
    placed: BTreeSet<u8>,
    qpn: u32,
}

fn shape() -> impl Strategy<Value = Shape> {
    let phase = prop_oneof![
        Just(Phase::Registered),
        Just(Phase::Installing),
        Just(Phase::Active),
        Just(Phase::Degraded)
    ];
    let tree = proptest::collection::btree_map(0u8..4, 0u8..3, 0..4);
    let placed = proptest::collection::btree_set(0u8..4, 0..4);
    (0u8..6, any::<bool>(), 1u8..3, phase, tree, placed, 2u32..5).prop_map(
        |(name, is_collective, lanes, phase, tree, placed, qpn)| Shape {
            name,
            is_collective,
            lanes,
            phase,
            tree,
            placed,
            qpn,
        },
    )
}

fn lane(name: u8, lane: u8) -> McstId {
    McstId([10, 200, name, lane].into())
}

fn rule(shape: &Shape, port: u8) -> GroupRule {
    let port = PortId::new(port).unwrap();
    let (endpoints, kind): (_, GroupKind) = if shape.is_collective {
        let kind = TranslatedRule {
            message_packets: 1,
            ..TranslatedRule::root(16)
        };
        (Vec::new(), kind.into())
    } else {
        let next_hop = NextHop::switch("other".into(), MacAddr([2; 6]));
        (
            vec![Endpoint::new(port, next_hop)],
            MulticastRule::default().into(),
        )
    };
    GroupRule {
        name: format!("g{}", shape.name),
        mcst_id: lane(shape.name, 0),
        endpoints,
        ..tests::rule(kind)
    }
}

fn record(shape: &Shape) -> Record {
    let member = |last: u8| v1::NewMember {
        host: format!("h{last}"),
        connection: Some(v1::Connection {
            ip: format!("10.0.0.{last}"),
            mac: format!("02:00:00:00:00:0{last}"),
            qpn: shape.qpn,
            ..Default::default()
        }),
    };
    let request = v1::CreateGroupRequest {
        name: format!("g{}", shape.name),
        source: "h1".into(),
        members: vec![member(1), member(2)],
        ..Default::default()
    };
    let kind = match shape.is_collective {
        true => Kind::Collective(Collective::new(
            vec!["h1".into(), format!("h{}", 2 * shape.qpn - 3)],
            CollectiveSettings::default(),
            true,
        )),
        false => Kind::Multicast(Multicast::new(
            new_group_from_proto(&request).unwrap(),
            Psn::new(1),
            100,
        )),
    };
    let switch = |s: &u8| format!("s{s}");
    let more = (1..shape.lanes).map(|n| lane(shape.name, n)).collect();
    let rules = shape.tree.iter().map(|(s, port)| (switch(s), rule(shape, *port)));
    Record {
        phase: shape.phase,
        plan: Some(Arc::new(Plan {
            rules: rules.collect(),
            ..Plan::default()
        })),
        placed: shape.placed.iter().map(switch).collect(),
        ..Record::new(request.name, (lane(shape.name, 0), more), kind)
    }
}

/// A host at each of some ports of the switches.
fn fabric(ports: u8) -> Arc<Topology> {
    let mut fabric = Topology::new();
    for switch in 0..4 {
        let macs = (0..64).map(|port| (port, [6, 0, 0, 0, switch, port]));
        fabric.add_switch(&format!("s{switch}"), macs).unwrap();
        for port in 0..ports {
            let host = format!("h{switch}-{port}");
            fabric.add_host(&host, None, None).unwrap();
            let end = End::port(format!("s{switch}"), port);
            fabric.connect(end, End::host(host), 9000).unwrap();
        }
    }
    Arc::new(fabric)
}

/// The ports of the switches lead over a plain switch to the switch of all next hops.
fn with_forwarder() -> Arc<Topology> {
    let mut fabric = Topology::new();
    fabric.add_switch("other", [(0, [2; 6])]).unwrap();
    fabric.add_plain("plain", 64).unwrap();
    fabric
        .connect(End::port("other", 0), End::port("plain", 63), 9000)
        .unwrap();
    for switch in 0..4 {
        let macs = (0..3).map(|port| (port, [6, 0, 0, 0, switch, port]));
        fabric.add_switch(&format!("s{switch}"), macs).unwrap();
        for port in 0..3 {
            let end = End::port(format!("s{switch}"), port);
            fabric
                .connect(end, End::port("plain", 3 * switch + port), 9000)
                .unwrap();
        }
    }
    Arc::new(fabric)
}

/// The fabric without its second link.
fn cut(fabric: &Topology) -> Arc<Topology> {
    let mut cut = fabric.clone();
    cut.set_link_up(castnet_topology::LinkId(1), false);
    Arc::new(cut)
}

fn walk<'r>(records: impl Iterator<Item = &'r Record>) -> Load {
    let mut walk = Load::new();
    for record in records {
        for (switch, rule) in &record.plan.as_ref().unwrap().rules {
            for endpoint in &rule.endpoints {
                let edge = Edge::new(switch, rule, endpoint, |_| None);
                *walk.entry(edge).or_default() += u32::from(record.lanes());
            }
        }
    }
    walk
}

fn count_anew<'r>(fabric: &Topology, records: impl Iterator<Item = &'r Record>) -> LinkLoad {
    LinkLoad::from_edges(fabric, walk(records).iter().map(|(edge, groups)| (edge, *groups)))
}

/// Holds some of the McstIDs.
fn pool() -> Ipv4Net {
    "10.200.0.0/22".parse().unwrap()
}

/// Each answer of an index is what a walk over all groups finds.
fn check(groups: &Groups, all: &BTreeMap<String, Record>, fabrics: &[Arc<Topology>]) {
    for name in 0..6 {
        for n in 0..3 {
            let walk = all.values().find(|r| r.mcst_ids().any(|m| m == lane(name, n)));
            let found = groups.by_mcst_id(lane(name, n)).map(Entry::record);
            assert_eq!(found, walk);
        }
    }
    for host in ["h1", "h2", "h3", "h4"] {
        let has = |r: &&Record| r.kind.behaviour().parties().iter().any(|p| p.host == host);
        let walk: Vec<&Record> = all.values().filter(has).collect();
        assert_eq!(
            groups.with_host(host).map(Entry::record).collect::<Vec<_>>(),
            walk
        );
    }
    let mut free = groups.mcst_ids().free_in("10.200.0.0/24".parse().unwrap(), None);
    assert!(free.all(|ip| all.values().all(|r| r.mcst_ids().all(|m| m.0 != ip))));
    for but in [None, Some("g1")] {
        let others = || all.values().filter(|r| but != Some(r.name.as_str()));
        for switch in ["s0", "s1", "s2", "s3"] {
            let placed = || others().filter(|r| r.placed.contains(switch));
            let own = Usage {
                memory: placed().map(|r| r.reserved_on(switch)).sum(),
                groups: placed().map(|r| u64::from(r.lanes())).sum(),
            };
            assert_eq!(groups.own(switch, but), own);
            for owner in all.values().map(|r| &r.owner) {
                let own = all.values().filter(|r| r.owner == *owner);
                let of_pool = own
                    .flat_map(Record::all_mcst_ids)
                    .filter(|m| pool().contains(&m.0));
                assert_eq!(groups.of_pool(owner), of_pool.count() as u64);
                let of = placed().filter(|r| r.owner == *owner);
                let bytes: u64 = of.map(|r| r.reserved_on(switch)).sum();
                assert_eq!(groups.memory_of(owner, switch, but.unwrap_or_default()), bytes);
            }
            let has = |r: &&Record| {
                r.placed.contains(switch) || r.plan.as_ref().unwrap().rules.contains_key(switch)
            };
            let walk: Vec<String> = all.values().filter(has).map(|r| r.name.clone()).collect();
            assert_eq!(groups.on_switch(switch), walk);
        }
        for fabric in fabrics {
            let counted = groups.load(fabric, but.unwrap_or_default()).get();
            assert_eq!(counted, count_anew(fabric, others()));
        }
        for (last, qpn) in [(1u8, 2), (1, 3), (2, 3), (2, 4)] {
            let end = HostEndpoint {
                qpn: Qpn::new(qpn),
                ..tests::end(last)
            };
            let holds = |r: &&Record| {
                let parties = r.kind.behaviour().parties();
                let mut ends = parties.iter().filter_map(|p| p.ends).flat_map(Ends::iter);
                ends.any(|e| (e.ip, e.qpn) == (end.ip, end.qpn))
            };
            let walk: Vec<&str> = others().filter(holds).map(|r| r.name.as_str()).collect();
            match groups.of_queue_pair(&end, but) {
                Some(found) => assert!(walk.contains(&found)),
                None => assert_eq!(walk, Vec::<&str>::new()),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_indexes_answer_as_a_walk_over_all_groups_does(
        changes in proptest::collection::vec((shape(), any::<bool>()), 1..20),
    ) {
        let (mut groups, mut all) = (Groups::new(pool()), BTreeMap::new());
        let (whole, mixed) = (fabric(8), with_forwarder());
        let fabrics = [cut(&whole), whole, cut(&mixed), mixed, fabric(2)];
        let mut held = Vec::new();
        for (number, (shape, stays)) in changes.into_iter().enumerate() {
            let record = record(&shape);
            match stays {
                true => {
                    groups.put(record.clone());
                    all.insert(record.name.clone(), record);
                }
                false => {
                    let gone = groups.remove(&record.name);
                    prop_assert_eq!(gone.map(|e| e.record), all.remove(&record.name));
                }
            }
            // Those that are counted late are as they were.
            let fabric = &fabrics[number % 7 % fabrics.len()];
            held.push((groups.load(fabric, ""), count_anew(fabric, all.values())));
            check(&groups, &all, &fabrics[..number % 6]);
        }
        for (snapshot, counted) in held {
            prop_assert_eq!(snapshot.get(), counted);
        }
        for name in all.keys() {
            groups.remove(name);
        }
        let indexes = groups.indexes;
        let left = indexes.own.values().any(|own| *own != Usage::default());
        prop_assert!(!left && indexes.memory.is_empty() && indexes.load.is_empty() && indexes.by_switch.is_empty());
        prop_assert!(indexes.queue_pairs.is_empty() && indexes.by_mcst_id.is_empty() && indexes.by_host.is_empty());
        prop_assert!(indexes.of_pool.is_empty());
    }
}
