//! The edges of rules: the largest number and one more, the memory of each mode in bytes, and what each field of a next hop is.

use castnet_rules::{
    CollectiveMode, Endpoint, Fault, FaultKind, GroupIndex, GroupRule, HostEndpoint, HostPart, Limit,
    MulticastRule, NamedBy, NextHop, RankPart, RemoteMemory, RepairRule, Route, RouteHop, RuleSet,
    TranslatedRule, Unread, check_routes,
};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};

fn port(n: u8) -> PortId {
    PortId::new(n).expect("a port")
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn host(n: u8) -> HostEndpoint {
    HostEndpoint {
        name: format!("h{n}"),
        ip: [10, 0, 0, n].into(),
        qpn: Qpn::new(0x11),
        mac: mac(n),
        part: HostPart::Plain,
    }
}

fn rank(n: u8) -> HostEndpoint {
    let part = RankPart {
        rank: n.into(),
        sq_psn: Psn::new(1),
        rq_psn: Psn::new(2),
    };
    HostEndpoint {
        part: HostPart::Rank(part),
        ..host(n + 1)
    }
}

/// Three hosts at the ports 0 to 2.
fn multicast() -> GroupRule {
    let members = (1..=3).map(host).collect();
    let mcst_id = McstId([10, 255, 0, 1].into());
    GroupRule::star("g", mcst_id, Pmtu::B1024, MulticastRule::default(), members).expect("a group")
}

fn collective(rule: TranslatedRule) -> GroupRule {
    let mut group = multicast();
    group.kind = rule.into();
    let endpoints = (0..3).map(|n| Endpoint::new(port(n), NextHop::Host(rank(n))));
    group.endpoints = endpoints.collect();
    group
}

fn fields(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.field.as_str()).collect()
}

#[test]
fn each_number_is_refused_from_its_edge_on() {
    type Change = fn(&mut GroupRule, u64);
    let numbers: [(&str, Change, &[u64], &[u64]); 7] = [
        (
            "stall_timeout_ms",
            |g, n| g.stall_timeout_ms = n as u32,
            &[1],
            &[0],
        ),
        ("name", |g, n| g.name = "n".repeat(n as usize), &[1, 64], &[0, 65]),
        (
            "rate_limit.burst_bytes",
            |g, n| {
                let limit = RateLimit::of(castnet_wire::BitRate::new(1_000_000).expect("a rate"));
                g.rate_limit = Some(RateLimit {
                    burst_bytes: n,
                    ..limit
                });
            },
            &[1024 + 128, 1 << 30],
            &[0, 1024 + 127, (1 << 30) + 1],
        ),
        (
            "endpoints[0].virtual_qpn",
            |g, n| g.endpoints[0].virtual_qpn = Qpn::new(n as u32),
            &[1, 0xFF_FFFE],
            &[0, 0xFF_FFFF],
        ),
        (
            "endpoints[1].host.qpn",
            |g, n| change(g, |host| host.qpn = Qpn::new(n as u32)),
            &[2, 0xFF_FFFE],
            &[0, 1, 0xFF_FFFF],
        ),
        (
            "endpoints[1].host.memory.length",
            |g, n| {
                let va = u64::MAX - 9;
                let memory = RemoteMemory {
                    va,
                    rkey: 1,
                    length: n,
                };
                change(g, |host| host.part = HostPart::Memory(memory));
            },
            &[1, 10],
            &[0, 11],
        ),
        (
            "source",
            |g, n| *g = g.clone().with_multicast(|rule| rule.source = n as u16),
            &[0, 2],
            &[3],
        ),
    ];
    fn change(group: &mut GroupRule, change: impl FnOnce(&mut HostEndpoint)) {
        match &mut group.endpoints[1].next_hop {
            NextHop::Host(host) => change(host),
            NextHop::Switch { .. } => panic!("a host"),
        }
    }
    for (field, change, good, bad) in numbers {
        let check = |n: u64| {
            let mut group = multicast();
            change(&mut group, n);
            group.check(64)
        };
        for n in good {
            assert_eq!(check(*n), [], "{field} {n}");
        }
        for n in bad {
            assert_eq!(fields(&check(*n)), [field], "{n}");
        }
    }
    assert_eq!(fields(&multicast().check(2)), ["endpoints[2].port"]);
    assert_eq!(multicast().check(3), []);
}

#[test]
fn repair_needs_a_power_of_two_and_64_microseconds() {
    for (slots, ack_timeout_us, expected) in [
        (2, 64, &[][..]),
        (32_768, u32::MAX, &[]),
        (1, 64, &["slots"]),
        (0, 64, &["slots"]),
        (3, 64, &["slots"]),
        (256, 63, &["ack_timeout_us"]),
    ] {
        let mut faults = Vec::new();
        let repair = RepairRule {
            slots,
            ack_timeout_us,
        };
        repair.check(&mut faults);
        assert_eq!(fields(&faults), expected, "{repair:?}");
    }
}

/// Slots that a mode needs for its messages, as `need` in the fault.
#[test]
fn messages_fit_into_the_slots_of_their_mode() {
    use CollectiveMode::{Augmented, Terminated, Translated};
    for (mode, slots, message_packets, expected) in [
        (Translated, 64, 32, None),
        (Translated, 64, 33, Some(66)),
        (Terminated, 64, 32, None),
        (Terminated, 64, 33, Some(66)),
        (Augmented, 64, 64, None),
        (Augmented, 64, 65, Some(65)),
        (Augmented, 4, 1, None),
        (Augmented, 2, 1, Some(4)),
        (Translated, 2, 1, None),
    ] {
        let rule = TranslatedRule {
            mode,
            message_packets,
            ..TranslatedRule::root(slots)
        };
        let need = match &collective(rule).check(64)[..] {
            [] => None,
            [
                Fault {
                    kind: FaultKind::TooFewSlots { need, .. },
                    ..
                },
            ] => Some(*need),
            faults => panic!("{faults:?}"),
        };
        assert_eq!(need, expected, "{mode} {slots} {message_packets}");
    }
    let long = |mode, message_packets| {
        let rule = TranslatedRule {
            mode,
            message_packets,
            ..TranslatedRule::root(1024)
        };
        fields(&collective(rule).check(64)).len()
    };
    assert_eq!([256, 257].map(|n| long(Terminated, n)), [0, 1]);
    assert_eq!([256, 257, 512].map(|n| long(Translated, n)), [0, 0, 0]);
    for (ack_timeout_us, faults) in [(4, 0), (3, 1)] {
        let rule = TranslatedRule {
            ack_timeout_us,
            ..TranslatedRule::root(64)
        };
        assert_eq!(collective(rule).check(64).len(), faults);
    }
}

#[test]
fn a_message_of_the_defaults_has_at_most_half_of_the_slots() {
    for (slots, packets) in [(2, 1), (4, 2), (16, 8), (32, 16), (64, 16), (32_768, 16)] {
        assert_eq!(TranslatedRule::root(slots).message_packets, packets);
    }
}

/// Each part of the memory by itself: what one more slot and one more endpoint cost, and the rest.
#[test]
fn memory_is_counted_by_slots_and_endpoints() {
    use CollectiveMode::{Augmented, Terminated, Translated};
    let rule = |mode, reproducible, slots| TranslatedRule {
        mode,
        reproducible,
        message_packets: 8,
        ..TranslatedRule::root(slots)
    };
    // Of 1,024 bytes of payload: a sum; in rank order, three contributions more. State of 160 bytes.
    for (mode, reproducible, payload) in [
        (Translated, false, 64 * 1024),
        (Translated, true, 64 * 4 * 1024),
        (Augmented, false, 64 * 1024),
        (Augmented, true, (32 * 4 + 32) * 1024),
        (Terminated, false, (3 + 2) * 64 * 1024),
    ] {
        let rule = rule(mode, reproducible, 64);
        assert_eq!(rule.slot_bytes(Pmtu::B1024, 3), payload, "{mode}");
        // Eight messages, and a buffer for each of three endpoints.
        let buffers = if mode == Terminated { 8 * 3 * 256 } else { 0 };
        let bytes = payload + buffers + 4096 + 3 * 2048 + 64 * 160;
        assert_eq!(rule.memory_bytes(Pmtu::B1024, 3), bytes, "{mode}");
        assert_eq!(collective(rule).reserved_bytes(), bytes, "{mode}");
    }
    // Beyond 64 endpoints, a set of them is 120 bytes larger: 16 of the group, two for each slot.
    let rule = rule(Translated, false, 64);
    let bytes = |endpoints| rule.memory_bytes(Pmtu::B256, endpoints);
    assert_eq!(bytes(64) - bytes(63), 2048);
    assert_eq!(bytes(65) - bytes(64), 2048 + (16 + 2 * 64) * 120);
    assert_eq!(bytes(66) - bytes(65), 2048);
    assert_eq!(TranslatedRule::slot_stride(Pmtu::B256), 256);
    let whole = [8, 0].map(|message_packets| {
        let rule = TranslatedRule {
            message_packets,
            ..rule
        };
        rule.messages()
    });
    assert_eq!(whole, [8, 64]);
    let aggregating = [Translated, Augmented, Terminated].map(|mode| {
        let rule = TranslatedRule { mode, ..rule };
        rule.aggregation_slots()
    });
    assert_eq!(aggregating, [64, 32, 0]);
}

#[test]
fn memory_of_repair_is_counted_by_slots_and_endpoints() {
    // A frame has 160 bytes of headers at most, and begins at a cache line.
    for (pmtu, stride) in [(Pmtu::B256, 448), (Pmtu::B1024, 1216), (Pmtu::B4096, 4288)] {
        assert_eq!(RepairRule::slot_stride(pmtu), stride);
    }
    let repair = RepairRule {
        slots: 64,
        ..RepairRule::default()
    };
    let bytes = 4096 + 3 * 512 + 64 * (1216 + 4);
    assert_eq!(repair.memory_bytes(Pmtu::B1024, 3), bytes);
    let group = multicast();
    assert_eq!(group.reserved_bytes(), 0);
    let group = group.with_multicast(|rule| rule.repair = Some(repair));
    assert_eq!(group.reserved_bytes(), bytes);
}

/// Groups written by hand may leave out what has a default, in each format.
#[test]
fn what_is_left_out_has_its_default() {
    let text = r#"{"slots": 64}"#;
    let rule: TranslatedRule = serde_json::from_str(text).expect("a rule");
    let expected = TranslatedRule {
        message_packets: 16,
        ack_timeout_us: 67_108,
        ..TranslatedRule::root(64)
    };
    assert_eq!(rule, expected);
}

#[test]
fn a_switch_without_ranks_is_written_as_it_is() {
    let switch = NextHop::switch("s".into(), mac(9));
    for kind in ["multicast", "translated"] {
        let mut group = match kind {
            "multicast" => multicast(),
            _ => collective(TranslatedRule::root(64)),
        };
        group.endpoints[2].next_hop = switch.clone();
        let set = RuleSet {
            groups: vec![group.clone()],
            routes: Vec::new(),
        };
        let text = set.to_toml();
        let has_ranks = text
            .lines()
            .any(|line| line.starts_with("switch") && line.contains("ranks = []"));
        assert_eq!(has_ranks, kind == "translated", "{text}");
    }
}

#[test]
fn a_next_hop_gives_what_it_has() {
    let memory = RemoteMemory {
        va: 1,
        rkey: 2,
        length: 3,
    };
    let with_memory = HostEndpoint {
        part: HostPart::Memory(memory),
        ..host(1)
    };
    let switch = NextHop::Switch {
        name: "s".into(),
        ip: Some([10, 9, 9, 9].into()),
        qpn: Qpn::new(7),
        mac: mac(9),
        ranks: vec![4, 5],
        mode: Some(CollectiveMode::Augmented),
        core: Some([239, 1, 0, 1].into()),
    };
    let member = NextHop::Host(with_memory.clone());
    let ranked = NextHop::Host(rank(3));
    assert_eq!(
        (member.rank(), ranked.rank().map(|part| part.rank), switch.rank()),
        (None, Some(3), None)
    );
    assert_eq!(
        (member.ranks(), ranked.ranks(), switch.ranks()),
        (&[][..], &[3][..], &[4, 5][..])
    );
    assert_eq!(
        (member.mode(), switch.mode()),
        (None, Some(CollectiveMode::Augmented))
    );
    assert_eq!(
        (member.core(), switch.core()),
        (None, Some([239, 1, 0, 1].into()))
    );
    assert_eq!((member.qpn(), switch.qpn()), (Qpn::new(0x11), Qpn::new(7)));
    assert_eq!((member.name(), switch.name()), ("h1", "s"));
    assert_eq!((member.host(), switch.host()), (Some(&with_memory), None));
    assert_eq!((with_memory.memory(), host(1).memory()), (Some(&memory), None));
    for mut hop in [member, switch] {
        hop.set_mac(mac(77));
        assert_eq!(hop.mac(), mac(77));
    }
    let group = collective(TranslatedRule::root(64));
    assert_eq!((group.size(), multicast().size()), (3, 0));
    let ports: Vec<_> = group
        .hosts()
        .map(|(port, host)| (port.index(), host.name.as_str()))
        .collect();
    assert_eq!(ports, [(0, "h1"), (1, "h2"), (2, "h3")]);
    assert_eq!((group.multicast(), multicast().translated()), (None, None));
}

/// Two groups that share one value, each a fault of its field; what a group replaces is no other one.
#[test]
fn groups_of_a_switch_share_no_name_address_or_qp() {
    let mut index = GroupIndex::default();
    index.insert(&multicast(), NamedBy::Control);
    let other = || {
        let mut group = multicast();
        group.name = "other".into();
        group.mcst_id = McstId([10, 255, 0, 2].into());
        for (n, endpoint) in (11..).zip(&mut group.endpoints) {
            endpoint.next_hop = NextHop::Host(host(n));
        }
        group
    };
    type Change = fn(&mut GroupRule);
    let cases: [(&[&str], Change); 6] = [
        (&[], |_| {}),
        (&["name"], |g| g.name = "g".into()),
        (&["mcst_id"], |g| g.mcst_id = McstId([10, 255, 0, 1].into())),
        (&["mcst_id"], |g| g.mcst_id = McstId([10, 0, 0, 3].into())),
        (&["endpoints[1].host.qpn"], |g| {
            g.endpoints[1].next_hop = NextHop::Host(host(3))
        }),
        (&["endpoints[1].host.ip"], |g| {
            g.endpoints[1].next_hop = NextHop::Host(HostEndpoint {
                ip: [10, 255, 0, 1].into(),
                ..host(12)
            });
        }),
    ];
    for (expected, change) in cases {
        let mut group = other();
        change(&mut group);
        for named_by in [NamedBy::Control, NamedBy::Host] {
            assert_eq!(fields(&index.check(&group, named_by, None)), expected);
            assert_eq!(index.check(&group, named_by, Some("g")), []);
        }
    }
    // Another QP of the same host is another member.
    let mut group = other();
    group.endpoints[1].next_hop = NextHop::Host(HostEndpoint {
        qpn: Qpn::new(0x12),
        ..host(3)
    });
    assert_eq!(index.check(&group, NamedBy::Control, None), []);
    index.remove(&multicast(), NamedBy::Control);
    assert_eq!(index.check(&multicast(), NamedBy::Control, None), []);
}

/// A host names whom it likes: its members bind no group of control, and those of control bind its groups.
#[test]
fn members_that_a_host_names_bind_only_groups_of_hosts() {
    let mut index = GroupIndex::default();
    index.insert(&multicast(), NamedBy::Host);
    let mut other = multicast();
    other.name = "other".into();
    other.mcst_id = McstId([10, 255, 0, 2].into());
    assert_eq!(index.check(&other, NamedBy::Control, None), []);
    assert_ne!(index.check(&other, NamedBy::Host, None), []);
    index.insert(&other, NamedBy::Control);
    index.remove(&multicast(), NamedBy::Host);
    assert_ne!(index.check(&multicast(), NamedBy::Host, None), []);
    index.remove(&other, NamedBy::Control);
    assert_eq!(index.check(&multicast(), NamedBy::Host, None), []);
}

#[test]
fn a_route_with_copies_has_one_address_and_at_most_1024_of_them() {
    let hop = |n| RouteHop {
        port: port(n),
        mac: mac(n),
    };
    let route = |prefix: &str, copies: u32| Route {
        prefix: prefix.parse().expect("a prefix"),
        next_hops: Vec::new(),
        replicate: false,
        copy_to: (0..copies).map(|n| (0x0A00_0001 + n).into()).collect(),
    };
    let check = |route: Route| {
        let faults = check_routes(&[route], 64, &Unread::default());
        faults.into_iter().map(|fault| fault.field).collect::<Vec<_>>()
    };
    let (copies, hops) = (["routes[0].copy_to"], ["routes[0].next_hops"]);
    assert!(check(route("239.1.0.1/32", 1024)).is_empty());
    assert_eq!(check(route("239.1.0.1/32", 1025)), copies);
    assert_eq!(check(route("239.1.0.0/31", 1)), copies);
    assert_eq!(check(route("10.1.0.1/32", 1)), copies);
    assert_eq!(check(route("239.1.0.1/32", 0)), hops);
    for (next_hops, replicate) in [(vec![hop(1)], false), (vec![], true)] {
        let both = Route {
            next_hops,
            replicate,
            ..route("239.1.0.1/32", 1)
        };
        assert_eq!(check(both), copies);
    }
    for (address, is_good) in [
        ([10, 0, 0, 9], true),
        ([10, 0, 0, 1], false),
        ([239, 1, 0, 1], false),
        ([0; 4], false),
        ([255; 4], false),
    ] {
        let mut route = route("239.1.0.1/32", 1);
        route.copy_to.push(address.into());
        assert_eq!(check(route).is_empty(), is_good, "{address:?}");
    }
    // A hop twice; another port or another address is another hop.
    for (second, expected) in [
        (hop(1), vec!["routes[0].next_hops[1]"]),
        (
            RouteHop {
                port: port(2),
                ..hop(1)
            },
            vec![],
        ),
        (
            RouteHop {
                mac: mac(2),
                ..hop(1)
            },
            vec![],
        ),
    ] {
        let twice = Route {
            next_hops: vec![hop(1), second],
            ..route("10.1.0.0/16", 0)
        };
        assert_eq!(check(twice), expected);
    }
}

#[test]
fn only_forwarded_multicast_addresses_are_replicated() {
    for (prefix, expected) in [
        ("224.0.0.0/24", false),
        ("224.0.1.0/24", true),
        ("239.255.255.255/32", true),
        ("224.0.0.0/4", false),
        ("232.0.0.0/5", true),
        ("128.0.0.0/1", false),
        ("10.0.0.0/8", false),
        ("223.255.255.255/32", false),
        ("240.0.0.0/4", false),
    ] {
        let prefix = prefix.parse().expect("a prefix");
        assert_eq!(castnet_rules::is_replicable(&prefix), expected, "{prefix}");
    }
}

#[test]
fn a_limit_admits_the_largest_number_and_not_one_more() {
    for (limit, most) in [
        (Limit::PORT, 63),
        (Limit::ENDPOINT, 1023),
        (Limit::QPN, 0xFF_FFFF),
        (Limit::PSN, 0xFF_FFFF),
        (Limit::PMTU, 4096),
        (Limit::RANK, 1023),
        (Limit::SLOTS, 32_768),
        (Limit::U16, 65_535),
    ] {
        assert_eq!(limit.admit(most, most), Ok(most));
        assert_eq!(limit.admit(most + 1, "it"), Err(limit.fault("it")));
    }
}

/// A field is unread if it is named, or a list or table around it is.
#[test]
fn a_field_is_unread_with_what_it_is_in() {
    let unread = Unread(["endpoints[1].host".to_owned(), "routes[10]".to_owned()].into());
    for (field, expected) in [
        ("endpoints[1].host", true),
        ("endpoints[1].host.qpn", true),
        ("endpoints[1].host[3]", true),
        ("endpoints[1].hosts", false),
        ("endpoints[1]", false),
        ("routes[10].prefix", true),
        ("routes[1].prefix", false),
        ("host", false),
    ] {
        assert_eq!(unread.has(field), expected, "{field}");
    }
    assert!(!Unread::default().has("endpoints"));
}

/// By the lowest rank behind each, and the parent stays the same next hop.
#[test]
fn a_sorted_rule_keeps_its_upstream() {
    let mut group = collective(TranslatedRule {
        parent: Some(0),
        ..TranslatedRule::root(64)
    });
    let mut switch = NextHop::switch("s".into(), mac(9));
    if let NextHop::Switch { ranks, .. } = &mut switch {
        *ranks = vec![9, 3];
    }
    group.endpoints.insert(0, Endpoint::new(port(9), switch));
    let sorted = group.clone().in_order();
    let names: Vec<&str> = sorted.endpoints.iter().map(|e| e.next_hop.name()).collect();
    assert_eq!(names, ["h1", "h2", "h3", "s"]);
    assert_eq!(sorted.upstream().map(|e| e.next_hop.name()), Some("s"));
    assert_eq!(sorted.clone().in_order(), sorted);
}
