//! What `to_toml` writes, `from_toml` reads; the examples run; JSON has the same shape.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use castnet_rules::{
    COLLECTIVE_EXAMPLE, CollectiveEndpoint, CollectiveGroup, CollectiveHop, HostEndpoint, Ipv4Net,
    LossPolicy, MulticastGroup, NextHop, Path, RankEndpoint, RemoteMemory, Route, RouteHop, RuleSet,
    StragglerPolicy, TWO_TIER_EXAMPLE,
};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn ports() -> Vec<PortId> {
    (0..64).filter_map(PortId::new).collect()
}

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9äß\"'\\\\#=.-]{1,12}"
}

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(|[a, b, c, d, e, f]| MacAddr([a & 0xFE | 2, b, c, d, e, f]))
}

fn memory() -> impl Strategy<Value = RemoteMemory> {
    (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(va, rkey, n)| RemoteMemory {
        va,
        rkey,
        length: 1 + n % (u64::MAX - va).max(1),
    })
}

/// Group number `g` of a set; its members' addresses are `10.g.0.port`.
fn group(g: u8) -> impl Strategy<Value = MulticastGroup> {
    let head = (
        name(),
        any::<u64>(),
        select(&Pmtu::ALL[..]),
        proptest::option::of(any::<u32>()),
        any::<u64>(),
    );
    let paths = subsequence(ports(), 2..20).prop_flat_map(|ports| {
        let hops = ports.iter().map(|_| {
            (
                name(),
                2u32..0xFF_FFFF,
                mac(),
                proptest::option::of(memory()),
                any::<bool>(),
            )
        });
        (Just(ports.clone()), hops.collect::<Vec<_>>(), select(ports))
    });
    (head, paths, 1u32..).prop_map(
        move |((name, generation, pmtu, psn, va_base), (ports, hops, source), stall)| {
            let paths = ports
                .into_iter()
                .zip(hops)
                .map(|(port, (name, qpn, mac, memory, host))| {
                    let name = format!("{name}{port}");
                    let ip = Ipv4Addr::new(10, g, 0, port.index() as u8);
                    let next_hop = match host {
                        true => NextHop::Host(HostEndpoint {
                            name,
                            ip,
                            qpn: Qpn::new(qpn),
                            mac,
                            memory,
                        }),
                        false => NextHop::Switch { name, mac },
                    };
                    Path { port, next_hop }
                });
            MulticastGroup {
                name: format!("{name}{g}"),
                generation,
                mcst_id: McstId(Ipv4Addr::new(10, 255, 0, g)),
                pmtu,
                start_psn: psn.map(Psn::new),
                va_base,
                source,
                paths: paths.collect(),
                stall_timeout_ms: stall,
            }
        },
    )
}

/// Collective group number `g` of a set: ranks at some ports, on others switches with the next few ranks behind them.
fn collective(g: u8) -> impl Strategy<Value = CollectiveGroup> {
    let head = (
        name(),
        any::<u64>(),
        select(&Pmtu::ALL[..]),
        any::<u32>(),
        (1u32..16, any::<u16>()),
        any::<(bool, bool)>(),
        select(StragglerPolicy::ALL),
        (4u32.., 1u32..),
    );
    let ends = subsequence(ports(), 2..20).prop_flat_map(|ports| {
        let hops = ports
            .iter()
            .map(|_| (name(), 2u32..0xFF_FFFF, mac(), any::<(u32, u32)>(), 0u16..4));
        (
            Just(ports.clone()),
            hops.collect::<Vec<_>>(),
            any::<prop::sample::Index>(),
        )
    });
    (head, ends).prop_map(move |(head, (ports, hops, parent))| {
        let (name, generation, pmtu, psn, (slots, message), (reproducible, reflect), straggler_policy, times) = head;
        let mut rank = 0;
        let endpoints: Vec<CollectiveEndpoint> = ports
            .into_iter()
            .zip(hops)
            .map(|(port, (name, qpn, mac, psns, behind))| {
                let (first, name) = (rank, format!("{name}{port}"));
                let next_hop = if behind == 0 {
                    rank += 1;
                    CollectiveHop::Rank(RankEndpoint {
                        rank: first,
                        name,
                        ip: Ipv4Addr::new(10, 100 + g, 0, port.index() as u8),
                        qpn: Qpn::new(qpn),
                        mac,
                        sq_psn: Psn::new(psns.0),
                        rq_psn: Psn::new(psns.1),
                    })
                } else {
                    rank += behind;
                    let ranks = (first..rank).collect();
                    CollectiveHop::Switch { name, mac, ranks }
                };
                CollectiveEndpoint { port, next_hop }
            })
            .collect();
        let parent = parent.get(&endpoints);
        let slots = 1u16 << slots;
        CollectiveGroup {
            name: format!("{name}c{g}"),
            generation,
            mcst_id: McstId(Ipv4Addr::new(10, 255, 1, g)),
            pmtu,
            psn_start: Psn::new(psn),
            slots,
            message_packets: 1 + message % (slots / 2),
            reproducible,
            loss_policy: if reflect { LossPolicy::Reflect } else { LossPolicy::Repair },
            straggler_policy,
            ack_timeout_us: times.0,
            stall_timeout_ms: times.1,
            parent: parent.next_hop.rank().is_none().then_some(parent.port),
            endpoints,
        }
    })
}

fn route(r: u8) -> impl Strategy<Value = Route> {
    proptest::collection::btree_set((select(ports()), mac()), 1..5).prop_map(move |hops| Route {
        prefix: Ipv4Net::new_assert(Ipv4Addr::new(10, 200, r, 0), 24),
        next_hops: hops
            .into_iter()
            .map(|(port, mac)| RouteHop { port, mac })
            .collect(),
    })
}

fn set() -> impl Strategy<Value = RuleSet> {
    (0u8..4, 0u8..3, 0u8..4).prop_flat_map(|(groups, collectives, routes)| {
        let groups: Vec<_> = (0..groups).map(group).collect();
        let collectives: Vec<_> = (0..collectives).map(collective).collect();
        let routes: Vec<_> = (0..routes).map(route).collect();
        (groups, collectives, routes).prop_map(|(groups, collectives, routes)| RuleSet {
            groups,
            collectives,
            routes,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_reads_back(set in set()) {
        // A digit at the end of a name can make two names equal: that is the checker's business, not this test's.
        prop_assume!(set.check(64).is_empty());
        let text = set.to_toml();
        match RuleSet::from_toml(&text) {
            Ok(back) => prop_assert_eq!(back, set),
            Err(faults) => prop_assert!(false, "{}\n{}", faults, text),
        }
    }

    #[test]
    fn json_has_the_same_meaning(set in set()) {
        let text = serde_json::to_string(&set).expect("to JSON");
        prop_assert_eq!(serde_json::from_str::<RuleSet>(&text).expect("from JSON"), set);
    }

    #[test]
    fn memory_is_slots_and_some_state(group in collective(0)) {
        let payload = u64::from(group.slots) * group.pmtu.bytes() as u64;
        let kept = if group.reproducible { group.endpoints.len() as u64 + 1 } else { 1 };
        prop_assert_eq!(group.slot_bytes(), payload * kept);
        prop_assert!(group.memory_bytes() > group.slot_bytes());
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(cut in 0usize..7000, with in "[\\[\\]a-z0-9=\"{}:. \n,_-]{0,12}") {
        let text = format!("{}{COLLECTIVE_EXAMPLE}", RuleSet::schema_example());
        let cut = text.floor_char_boundary(cut);
        let _ = RuleSet::from_toml(&format!("{}{with}{}", &text[..cut], &text[cut..]));
    }
}

#[test]
fn the_star_example_is_good_and_survives() {
    let set = RuleSet::from_toml(RuleSet::schema_example()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (set.groups.len(), set.groups[0].paths.len(), set.routes.len()),
        (1, 4, 1)
    );
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set));
}

#[test]
fn the_collective_example_is_good_and_survives() {
    let set = RuleSet::from_toml(COLLECTIVE_EXAMPLE).unwrap_or_else(|e| panic!("{e}"));
    let group = &set.collectives[0];
    assert_eq!((group.size(), group.ranks().count(), group.parent), (3, 3, None));
    assert_eq!(
        (group.slot_stride(), group.packets_per_slot(), group.slot_bytes()),
        (1024, 1, 256 * 1024)
    );
    let both = format!("{}{COLLECTIVE_EXAMPLE}", RuleSet::schema_example());
    assert!(RuleSet::from_toml(&both).is_ok(), "one switch can run both");
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set));
}

#[test]
fn a_collective_star_is_generated_or_refused_with_its_faults() {
    let member = |i: u8| RankEndpoint {
        rank: i.into(),
        name: format!("h{i}"),
        ip: Ipv4Addr::new(10, 0, 0, i + 1),
        qpn: Qpn::new(u32::from(i) + 0x11),
        mac: MacAddr([2, 0, 0, 0, 0, i]),
        sq_psn: Psn::new(0),
        rq_psn: Psn::new(0),
    };
    let id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let star = |count: u8, slots| {
        CollectiveGroup::star("g", id, Pmtu::B1024, slots, (0..count).map(member).collect())
    };
    assert_eq!(star(64, 2).map(|g| (g.size(), g.message_packets)), Ok((64, 1)));
    assert_eq!(
        star(65, 64).map_err(|f| f[0].field.clone()),
        Err("members".into())
    );
    assert_eq!(
        star(1, 64).map_err(|f| f[0].field.clone()),
        Err("endpoints".into())
    );
    assert_eq!(star(3, 48).map_err(|f| f[0].field.clone()), Err("slots".into()));
}

#[test]
fn the_two_tier_example_agrees_from_switch_to_switch() {
    let groups: BTreeMap<&str, MulticastGroup> = TWO_TIER_EXAMPLE
        .into_iter()
        .map(|(switch, text)| {
            let mut set = RuleSet::from_toml(text).unwrap_or_else(|e| panic!("{}", e.in_file(switch)));
            (switch, set.groups.remove(0))
        })
        .collect();
    let mut members = BTreeSet::new();
    for (switch, group) in &groups {
        assert_eq!(
            (group.mcst_id, group.pmtu),
            (groups["spine"].mcst_id, groups["spine"].pmtu),
            "{switch}"
        );
        members.extend(group.members().map(|(_, m)| m.ip));
        for path in &group.paths {
            if let NextHop::Switch { name, .. } = &path.next_hop {
                let peer = &groups[name.as_str()];
                let back = peer.paths.iter().filter(|p| p.next_hop.name() == *switch).count();
                assert_eq!(
                    back, 1,
                    "{switch} has {name} as a next hop, and the other way round"
                );
            }
        }
    }
    assert_eq!(members.len(), 6);
}

#[test]
fn a_star_is_generated_or_refused_with_its_faults() {
    let member = |i: u8| HostEndpoint {
        name: format!("h{i}"),
        ip: Ipv4Addr::new(10, 0, 0, i + 1),
        qpn: Qpn::new(u32::from(i) + 0x11),
        mac: MacAddr([2, 0, 0, 0, 0, i]),
        memory: None,
    };
    let id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let star = |count: u8| MulticastGroup::star("g", id, Pmtu::B1024, (0..count).map(member).collect());
    let group = star(64).expect("64 members fit");
    assert_eq!(
        (group.paths.len(), group.source_path().map(|p| p.next_hop.name())),
        (64, Some("h0"))
    );
    assert_eq!(group.receiver_paths().count(), 63);
    assert_eq!(star(65).map_err(|f| f[0].field.clone()), Err("members".into()));
    assert_eq!(star(1).map_err(|f| f[0].field.clone()), Err("paths".into()));
}

#[test]
fn memory_contains_what_lies_in_it() {
    let memory = RemoteMemory {
        va: 0x1000,
        rkey: 1,
        length: 100,
    };
    assert!(memory.contains(0, 100) && memory.contains(100, 0) && memory.contains(99, 1));
    assert!(!memory.contains(99, 2) && !memory.contains(101, 0) && !memory.contains(u64::MAX, 2));
}
