//! `from_toml` reads what `to_toml` writes, the examples are valid, and JSON has the same shape.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use CollectiveMode::{Augmented, Terminated, Translated};
use castnet_rules::{
    BitRate, COLLECTIVE_EXAMPLE, CollectiveMode, Endpoint, ForwardingRule, GroupRule, HostEndpoint, HostPart,
    Ipv4Net, LossPolicy, MulticastRule, NextHop, RankPart, RateLimit, RemoteMemory, RepairRule, Route,
    RouteHop, RuleSet, StragglerPolicy, TWO_TIER_EXAMPLE, TranslatedRule,
};
use castnet_wire::{AnySource, MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
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

/// MAC address of a next hop that has an IP address.
fn mac_or_none() -> impl Strategy<Value = MacAddr> {
    prop_oneof![4 => mac(), 1 => Just(MacAddr::UNSPECIFIED)]
}

fn memory() -> impl Strategy<Value = RemoteMemory> {
    (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(va, rkey, n)| RemoteMemory {
        va,
        rkey,
        length: 1 + n % (u64::MAX - va).max(1),
    })
}

/// Group number `g` of a set. The addresses of its members are `10.g.0.port`.
fn group(g: u8) -> impl Strategy<Value = GroupRule> {
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
                (mac(), mac_or_none()),
                proptest::option::of(memory()),
                any::<(bool, bool)>(),
            )
        });
        let source = 0..ports.len() as u16;
        (Just(ports.clone()), hops.collect::<Vec<_>>(), source)
    });
    (head, paths, 1u32..).prop_map(
        move |((name, generation, pmtu, psn, va_base), (ports, hops, source), stall)| {
            let numbers = AnySource::ALL[generation as usize / 4 % 2];
            let any_source = (generation % 4 == 2 && psn.is_some()).then_some(numbers);
            let paths = ports.into_iter().zip(hops).enumerate().map(
                |(i, (port, (name, qpn, (near, mac), memory, (host, far))))| {
                    let name = format!("{name}{port}");
                    let ip = Ipv4Addr::new(10, g, 0, port.index() as u8);
                    let next_hop = match host {
                        true => NextHop::Host(HostEndpoint {
                            name,
                            ip,
                            qpn: Qpn::new(qpn),
                            mac,
                            part: memory.filter(|_| any_source.is_none()).into(),
                        }),
                        false => NextHop::Switch {
                            name,
                            ip: far.then_some(ip),
                            qpn: Qpn::new(qpn),
                            mac: if far { mac } else { near },
                            ranks: Vec::new(),
                            mode: None,
                            core: (far && qpn % 2 == 0 && any_source.is_none())
                                .then_some([239, 1, 0, i as u8].into()),
                        },
                    };
                    let joining = qpn % 3 == 0 && next_hop.host().is_some() && i != usize::from(source);
                    Endpoint {
                        joining: joining && any_source.is_none(),
                        ..Endpoint::new(port, next_hop)
                    }
                },
            );
            let kind = MulticastRule {
                start_psn: psn.map(Psn::new),
                va_base,
                carries_on: (generation % 2 == 1).then_some(generation / 2),
                any_source,
                repair: (generation % 5 == 1 && any_source != Some(AnySource::Synchronized)).then(|| {
                    RepairRule {
                        slots: 2 << (generation % 15),
                        ack_timeout_us: 64 + generation as u32 % 1000,
                    }
                }),
                hold_fatal_naks: generation % 7 == 3,
                source,
            };
            GroupRule {
                name: format!("{name}{g}"),
                generation,
                mcst_id: McstId(Ipv4Addr::new(10, 255, 0, g)),
                pmtu,
                stall_timeout_ms: stall,
                rate_limit: rate_limit(generation),
                endpoints: paths.collect(),
                kind: kind.into(),
            }
        },
    )
}

/// None, with the default burst, or with another one.
fn rate_limit(random: u64) -> Option<RateLimit> {
    let limit = RateLimit::of(BitRate::new(BitRate::MIN + random % BitRate::MAX / 2)?);
    let burst_bytes = 4096 + 128 + random % (1 << 20);
    match random % 3 {
        0 => None,
        1 => Some(limit),
        _ => Some(RateLimit { burst_bytes, ..limit }),
    }
}

/// Collective group number `g` of a set. Some ports have a rank, others a switch with the next few ranks.
fn collective(g: u8) -> impl Strategy<Value = GroupRule> {
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
        let slots = 1u16 << slots;
        let modes = [Translated, Augmented, Terminated];
        let mode = if reflect || slots < 4 { Translated } else { modes[psn as usize % 3] };
        let endpoints: Vec<Endpoint> = ports
            .into_iter()
            .zip(hops)
            .map(|(port, (name, qpn, mac, psns, behind))| {
                let (first, name) = (rank, format!("{name}{port}"));
                let next_hop = if behind == 0 {
                    rank += 1;
                    let part = RankPart {
                        rank: first,
                        sq_psn: Psn::new(psns.0),
                        rq_psn: Psn::new(psns.1),
                    };
                    NextHop::Host(HostEndpoint {
                        name,
                        ip: Ipv4Addr::new(10, 100 + g, 0, port.index() as u8),
                        qpn: Qpn::new(qpn),
                        mac,
                        part: part.into(),
                    })
                } else {
                    rank += behind;
                    let ranks = (first..rank).collect();
                    let qpn = Qpn::new(1 + u32::from(behind));
                    let ip = Ipv4Addr::new(10, 100 + g, 1, port.index() as u8);
                    NextHop::Switch {
                        name,
                        ip: (behind > 2).then_some(ip),
                        qpn,
                        mac,
                        ranks,
                        mode: Some(modes[psns.1 as usize % 3]).filter(|there| *there != mode && !reflect),
                        core: None,
                    }
                };
                Endpoint {
                    virtual_qpn: Qpn::new(1 + psns.0 % 3),
                    verify_mac: behind > 1,
                    ..Endpoint::new(port, next_hop)
                }
            })
            .collect();
        let parent = parent.index(endpoints.len());
        let kind = TranslatedRule {
            start_psn: Psn::new(psn),
            slots,
            message_packets: 1 + message % (slots / 2).min(if mode == Terminated { 256 } else { u16::MAX }),
            reproducible,
            mode,
            loss_policy: if reflect { LossPolicy::Reflect } else { LossPolicy::Repair },
            straggler_policy,
            ack_timeout_us: times.0,
            parent: endpoints[parent]
                .next_hop
                .rank()
                .is_none()
                .then_some(parent as u16),
        };
        GroupRule {
            name: format!("{name}c{g}"),
            generation,
            mcst_id: McstId(Ipv4Addr::new(10, 255, 1, g)),
            pmtu,
            stall_timeout_ms: times.1,
            rate_limit: rate_limit(generation),
            endpoints,
            kind: kind.into(),
        }
    })
}

/// Forwarding group number `g` of a set.
fn forwarding(g: u8) -> impl Strategy<Value = GroupRule> {
    group(50 + g).prop_map(|mut group| {
        group.endpoints.truncate(2);
        let kind = ForwardingRule {}.into();
        GroupRule { kind, ..group }
    })
}

fn route(r: u8) -> impl Strategy<Value = Route> {
    let hops = proptest::collection::btree_set((select(ports()), mac()), 1..5);
    let hops = (hops, any::<bool>()).prop_map(move |(hops, replicate)| Route {
        prefix: Ipv4Net::new_assert(Ipv4Addr::new(if replicate { 239 } else { 10 }, 200, r, 0), 24),
        next_hops: hops
            .into_iter()
            .map(|(port, mac)| RouteHop { port, mac })
            .collect(),
        replicate,
        copy_to: Vec::new(),
    });
    let addresses = proptest::collection::btree_set(any::<[u8; 3]>(), 1..5);
    let copies = addresses.prop_map(move |to| Route {
        prefix: Ipv4Net::from(Ipv4Addr::new(239, 201, r, 0)),
        next_hops: Vec::new(),
        replicate: false,
        copy_to: to.into_iter().map(|[b, c, d]| [10, b, c, d].into()).collect(),
    });
    prop_oneof![hops, copies]
}

fn set() -> impl Strategy<Value = RuleSet> {
    (0u8..4, 0u8..3, 0u8..3, 0u8..4).prop_flat_map(|(groups, collectives, pairs, routes)| {
        let groups: Vec<_> = (0..groups).map(group).collect();
        let collectives: Vec<_> = (0..collectives).map(collective).collect();
        let pairs: Vec<_> = (0..pairs).map(forwarding).collect();
        let routes: Vec<_> = (0..routes).map(route).collect();
        (groups, collectives, pairs, routes).prop_map(|(mut groups, collectives, pairs, routes)| {
            groups.extend(collectives);
            groups.extend(pairs);
            RuleSet { groups, routes }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn written_rules_are_read_back(set in set()) {
        // Two generated names can be equal; such sets are skipped.
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
        let (pmtu, endpoints) = (group.pmtu, group.endpoints.len());
        let rule = group.translated().expect("it computes");
        let kept = if rule.reproducible { endpoints as u64 + 1 } else { 1 };
        // In Mode-III, half of the slots have results, and keep no contributions.
        let (sums, results) = match rule.mode {
            Translated => (u64::from(rule.slots), 0),
            Augmented => (u64::from(rule.slots / 2), u64::from(rule.slots / 2)),
            Terminated => (0, 0),
        };
        // In Mode-I, whole messages for each endpoint and both pipes.
        let messages = match rule.mode {
            Terminated => (endpoints as u64 + 2) * u64::from(rule.slots / rule.message_packets * rule.message_packets),
            Translated | Augmented => 0,
        };
        let packets = sums * kept + results + messages;
        prop_assert_eq!(rule.slot_bytes(pmtu, endpoints), packets * pmtu.bytes() as u64);
        prop_assert!(rule.memory_bytes(pmtu, endpoints) > rule.slot_bytes(pmtu, endpoints));
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(cut in 0usize..7000, with in "[\\[\\]a-z0-9=\"{}:. \n,_-]{0,12}") {
        let text = format!("{}{COLLECTIVE_EXAMPLE}", RuleSet::schema_example());
        let cut = text.floor_char_boundary(cut);
        let _ = RuleSet::from_toml(&format!("{}{with}{}", &text[..cut], &text[cut..]));
    }
}

#[test]
fn the_star_example_is_valid_and_round_trips() {
    let set = RuleSet::from_toml(RuleSet::schema_example()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (set.groups.len(), set.groups[0].endpoints.len(), set.routes.len()),
        (1, 4, 1)
    );
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set));
}

#[test]
fn the_collective_example_is_valid_and_round_trips() {
    let set = RuleSet::from_toml(COLLECTIVE_EXAMPLE).unwrap_or_else(|e| panic!("{e}"));
    let group = &set.groups[0];
    let rule = group.translated().expect("it computes");
    assert_eq!((group.size(), group.hosts().count(), rule.parent), (3, 3, None));
    assert_eq!(
        (
            TranslatedRule::slot_stride(group.pmtu),
            rule.packets_per_slot(3),
            rule.slot_bytes(group.pmtu, 3)
        ),
        (1024, 1, 256 * 1024)
    );
    let both = format!("{}{COLLECTIVE_EXAMPLE}", RuleSet::schema_example());
    assert!(RuleSet::from_toml(&both).is_ok(), "one switch can run both");
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set));
}

#[test]
fn files_with_the_names_of_earlier_versions_are_still_read() {
    let earlier = |text: &str| {
        text.replace("[[groups]]\nkind = \"translated\"", "[[collectives]]")
            .replace("[[groups.endpoints]]", "[[collectives.endpoints]]")
            .replace("start_psn", "psn_start")
            .replace("\nhost = ", "\nrank = ")
    };
    let text = earlier(COLLECTIVE_EXAMPLE);
    assert!(text.contains("[[collectives]]") && text.contains("psn_start = ") && text.contains("\nrank = {"));
    assert_eq!(RuleSet::from_toml(&text), RuleSet::from_toml(COLLECTIVE_EXAMPLE));
    let star = RuleSet::schema_example();
    let text = star
        .replace("kind = ", "# kind = ")
        .replace("[[groups.endpoints]]", "[[groups.paths]]");
    assert!(text.contains("[[groups.paths]]") && text.contains("\n# kind = \"multicast\""));
    assert_eq!(RuleSet::from_toml(&text), RuleSet::from_toml(star));
    let fault = RuleSet::from_toml(&earlier(COLLECTIVE_EXAMPLE).replace("slots = 256", "slots = 3"));
    assert_eq!(
        fault.map_err(|f| f.to_string()),
        Err("12:9: collectives[0].slots: 3 is no power of two from 2 to 32768".into())
    );
}

#[test]
fn the_switches_of_the_two_tier_example_agree() {
    let groups: BTreeMap<&str, GroupRule> = TWO_TIER_EXAMPLE
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
        members.extend(group.hosts().map(|(_, m)| m.ip));
        for path in &group.endpoints {
            if let NextHop::Switch { name, .. } = &path.next_hop {
                let peer = &groups[name.as_str()];
                let back = peer
                    .endpoints
                    .iter()
                    .filter(|p| p.next_hop.name() == *switch)
                    .count();
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
    let id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let member = |i: u8, part| HostEndpoint {
        name: format!("h{i}"),
        ip: Ipv4Addr::new(10, 0, 0, i + 1),
        qpn: Qpn::new(u32::from(i) + 0x11),
        mac: MacAddr([2, 0, 0, 0, 0, i]),
        part,
    };
    let star = |count: u8| {
        let members = (0..count).map(|i| member(i, HostPart::Plain)).collect();
        GroupRule::star("g", id, Pmtu::B1024, MulticastRule::default(), members)
    };
    let group = star(64).expect("64 members fit");
    let source = group.upstream().map(|e| e.next_hop.name());
    assert_eq!((group.endpoints.len(), source), (64, Some("h0")));
    assert_eq!(star(65).map_err(|f| f[0].field.clone()), Err("members".into()));
    assert_eq!(star(1).map_err(|f| f[0].field.clone()), Err("endpoints".into()));

    let rank = |i: u8| {
        let (sq_psn, rq_psn) = (Psn::new(0), Psn::new(0));
        let rank = i.into();
        member(i, RankPart { rank, sq_psn, rq_psn }.into())
    };
    let star = |count: u8, slots| {
        let members = (0..count).map(rank).collect();
        GroupRule::star("g", id, Pmtu::B1024, TranslatedRule::root(slots), members)
    };
    let of_two = star(64, 2).map(|g| (g.size(), g.translated().map(|t| t.message_packets)));
    assert_eq!(of_two, Ok((64, Some(1))));
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
fn hosts_must_have_the_role_that_their_kind_needs() {
    let mut group = RuleSet::from_toml(COLLECTIVE_EXAMPLE)
        .expect("good")
        .groups
        .remove(0);
    let NextHop::Host(host) = &mut group.endpoints[1].next_hop else {
        panic!("a host");
    };
    host.part = HostPart::Plain;
    let found: Vec<String> = group.check(64).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["endpoints[1].host: has no rank: each host of a group that computes is a rank"]
    );
    let mut group = RuleSet::from_toml(RuleSet::schema_example())
        .expect("good")
        .groups
        .remove(0);
    let part = RankPart {
        rank: 0,
        sq_psn: Psn::new(0),
        rq_psn: Psn::new(0),
    };
    let NextHop::Host(host) = &mut group.endpoints[1].next_hop else {
        panic!("a host");
    };
    host.part = part.into();
    let (name, mac) = ("s".into(), MacAddr([2, 0, 0, 0, 0, 99]));
    group.endpoints[2].next_hop = NextHop::Switch {
        name,
        ip: None,
        qpn: Qpn::VIRTUAL,
        mac,
        ranks: vec![1],
        mode: None,
        core: None,
    };
    let found: Vec<String> = group.check(64).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "endpoints[1].host.rank: is given in a group that does not compute: leave it out",
            "endpoints[2].switch.ranks: is given in a group that does not compute: leave it out",
        ]
    );
}

#[test]
fn memory_contains_ranges_inside_it() {
    let memory = RemoteMemory {
        va: 0x1000,
        rkey: 1,
        length: 100,
    };
    assert!(memory.contains(0, 100) && memory.contains(100, 0) && memory.contains(99, 1));
    assert!(!memory.contains(99, 2) && !memory.contains(101, 0) && !memory.contains(u64::MAX, 2));
}
