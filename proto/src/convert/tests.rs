//! Round trips, refusals by field, and messages of any content.

use castnet_group::{MulticastSettings, StallPolicy};
use castnet_rules::{
    Endpoint, ForwardingRule, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RemoteMemory,
    RepairRule, Route, RouteHop,
};
use castnet_wire::{AnySource, BitRate, MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};
use proptest::prelude::*;
use tonic::{Code, Status};

use super::limit_tests::creation;
use super::*;
use crate::v1;

fn host_mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 5]>().prop_map(|[a, b, c, d, e]| MacAddr([0x02, a, b, c, d, e]))
}

fn memory() -> impl Strategy<Value = RemoteMemory> {
    (0..u64::MAX / 2, any::<u32>(), 1..u64::MAX / 2).prop_map(|(va, rkey, length)| RemoteMemory {
        va,
        rkey,
        length,
    })
}

prop_compose! {
    fn endpoint(name: String, last: u8)(
        qpn in 2u32..0xFF_FFFF, mac in host_mac(), memory in proptest::option::of(memory())
    ) -> HostEndpoint {
        let (ip, part) = ([10, 0, 0, last].into(), memory.into());
        HostEndpoint { name: name.clone(), ip, qpn: Qpn::new(qpn), mac, part }
    }
}

fn at_port(index: u8) -> impl Strategy<Value = Endpoint> {
    let port = PortId::new(index).unwrap();
    prop_oneof![
        endpoint(format!("h{index}"), index + 1).prop_map(NextHop::Host),
        (host_mac(), any::<bool>(), 1u32..0xFF_FFFF).prop_map(move |(mac, far, qpn)| NextHop::Switch {
            name: format!("s{index}"),
            ip: far.then_some([10, 0, 1, index].into()),
            qpn: Qpn::new(qpn),
            mac,
            ranks: Vec::new(),
            mode: None,
            core: (far && qpn % 2 == 0).then_some([239, 1, 0, index].into()),
        }),
    ]
    .prop_flat_map(move |next_hop| {
        (1u32..0xFF_FFFF, any::<bool>(), any::<bool>()).prop_map(move |(qpn, verify_mac, open)| {
            let mut next_hop = next_hop.clone();
            if open && next_hop.ip().is_some() {
                next_hop.set_mac(MacAddr::UNSPECIFIED);
            }
            Endpoint {
                virtual_qpn: Qpn::new(qpn),
                verify_mac,
                ..Endpoint::new(port, next_hop)
            }
        })
    })
}

prop_compose! {
    fn group()(paths in (2..=64usize).prop_flat_map(|n| (0..n as u8).map(at_port).collect::<Vec<_>>()))(
        source in 0..paths.len(),
        paths in Just(paths),
        generation in any::<u64>(),
        start_psn in proptest::option::of(0..Psn::MODULUS),
        pmtu in proptest::sample::select(Pmtu::ALL.to_vec()),
        va_base in any::<u64>(),
        stall_timeout_ms in 1..u32::MAX,
        limit in proptest::option::of((BitRate::MIN..=BitRate::MAX, 4224..=RateLimit::BURST_MAX)),
    ) -> GroupRule {
        let kind = MulticastRule { start_psn: start_psn.map(Psn::new), va_base, carries_on: Some(va_base).filter(|b| b % 2 == 0), any_source: (start_psn.is_some() && va_base % 4 == 1).then_some(AnySource::ALL[usize::from(va_base % 3 != 0)]), repair: (va_base % 3 == 0).then(|| RepairRule { slots: 2 << (va_base % 15), ack_timeout_us: 64 + source as u32 }), hold_fatal_naks: va_base % 5 == 2, source: source as u16 };
        let joining = |(i, mut e): (usize, Endpoint)| {
            // Where all may write, all have memory or none.
            if let (Some(_), NextHop::Host(host)) = (kind.any_source, &mut e.next_hop) {
                host.part = None.into();
            }
            if let (Some(_), NextHop::Switch { core, .. }) = (kind.any_source, &mut e.next_hop) {
                *core = None;
            }
            e.joining = kind.any_source.is_none() && e.verify_mac && i != source && e.next_hop.host().is_some();
            e
        };
        let rate_limit = limit.map(|(rate, burst_bytes)| RateLimit { rate: BitRate::new(rate).unwrap(), burst_bytes });
        GroupRule {
            name: "g".into(), generation, mcst_id: McstId([10, 200, 0, 1].into()), pmtu, stall_timeout_ms, rate_limit,
            endpoints: paths.into_iter().enumerate().map(joining).collect(), kind: kind.into(),
        }
    }
}

prop_compose! {
    fn route()(third in any::<u8>(), replicate: bool, hops in proptest::collection::btree_set((0u8..64, host_mac()), 1..8)) -> Route {
        let hop = |(port, mac)| RouteHop { port: PortId::new(port).unwrap(), mac };
        let first = if replicate { 239 } else { 10 };
        let prefix = format!("{first}.1.{third}.0/24").parse().unwrap();
        Route { prefix, next_hops: hops.into_iter().map(hop).collect(), replicate, copy_to: Vec::new() }
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,80}",
        "[0-9.]{0,15}",
        "[0-9a-f:]{0,17}",
        Just("10.0.0.1".to_string()),
        Just("02:00:00:00:00:01".to_string())
    ]
}

fn any_memory() -> impl Strategy<Value = v1::RemoteMemory> {
    any::<(u64, u32, u64)>().prop_map(|(va, rkey, length)| v1::RemoteMemory { va, rkey, length })
}

prop_compose! {
    fn any_connection()(
        ip in any_text(), mac in any_text(), qpn in any::<u32>(), memory in proptest::option::of(any_memory())
    ) -> v1::Connection {
        v1::Connection { ip, mac, qpn, memory, more_lanes: Vec::new() }
    }
}

fn any_endpoint() -> impl Strategy<Value = v1::Endpoint> {
    let host = (any_text(), any_connection()).prop_map(
        |(
            name,
            v1::Connection {
                ip, mac, qpn, memory, ..
            },
        )| {
            v1::endpoint::NextHop::Host(v1::HostEndpoint {
                name,
                ip,
                mac,
                qpn,
                part: memory.map(v1::host_endpoint::Part::Memory),
            })
        },
    );
    let ranks = proptest::collection::vec(any::<u32>(), 0..3);
    let ip = proptest::option::of(any_text());
    let mode = prop_oneof![0i32..5, any::<i32>()];
    let switch = (any_text(), ip, any_text(), ranks, mode).prop_map(|(name, ip, mac, ranks, mode)| {
        v1::endpoint::NextHop::Switch(v1::SwitchEndpoint {
            qpn: None,
            mode,
            core: name.get(..1).map(|_| mac.clone()),
            name,
            ip,
            mac,
            ranks,
        })
    });
    (
        prop_oneof![0u32..70, any::<u32>()],
        proptest::option::of(prop_oneof![0u32..4, any::<u32>()]),
        any::<bool>(),
        proptest::option::of(prop_oneof![host, switch]),
    )
        .prop_map(|(port, virtual_qpn, verify_mac, next_hop)| v1::Endpoint {
            port,
            virtual_qpn,
            verify_mac,
            joining: verify_mac,
            next_hop,
        })
}

fn any_limit() -> impl Strategy<Value = Option<v1::RateLimit>> {
    let limit = prop_oneof![(1000..2000u64, 0..5000u64), any::<(u64, u64)>()];
    proptest::option::of(limit.prop_map(|(bits_per_second, burst_bytes)| v1::RateLimit {
        bits_per_second,
        burst_bytes,
    }))
}

prop_compose! {
    fn any_group()(
        name in any_text(), mcst_id in any_text(), (generation, va_base) in any::<(u64, u64)>(),
        pmtu in prop_oneof![Just(1024u32), any::<u32>()], start_psn in any::<Option<u32>>(),
        source in prop_oneof![0u32..70, any::<u32>()],
        endpoints in proptest::collection::vec(any_endpoint(), 0..6),
        stall_timeout_ms in any::<u32>(), has_kind in proptest::bool::weighted(0.9), limit in any_limit(),
    ) -> v1::GroupRule {
        let kind = v1::group_rule::Kind::Multicast(v1::MulticastRule { start_psn, va_base, source, carries_on: start_psn.map(u64::from), any_source: va_base as i32 % 4, repair: (va_base % 3 == 1).then_some(v1::MulticastRepair { slots: source, ack_timeout_us: source }), hold_fatal_naks: va_base % 5 == 2 });
        let kind = has_kind.then_some(kind);
        v1::GroupRule { name, generation, mcst_id, pmtu, stall_timeout_ms, endpoints, kind, rate_limit: limit }
    }
}

prop_compose! {
    fn any_creation()(
        name in any_text(), source in any_text(),
        members in proptest::collection::vec((any_text(), proptest::option::of(any_connection())), 0..5),
        pmtu in prop_oneof![Just(0u32), Just(4096u32), any::<u32>()], start_psn in any::<Option<u32>>(),
        va_base in any::<u64>(), mcst_id in proptest::option::of(any_text()),
        (stall_timeout_ms, lanes, on_member_loss, any_source) in (any::<u32>(), 0u32..20, -1..4i32, -1..4i32),
        rate_limit in any_limit(),
    ) -> v1::CreateGroupRequest {
        let members = members.into_iter().map(|(host, connection)| v1::NewMember { host, connection }).collect();
        v1::CreateGroupRequest {
            name, source, members, pmtu, start_psn, va_base, mcst_id, stall_timeout_ms, lanes, on_member_loss, rate_limit, any_source,
            distribution: ["", "switches:chain", "edge:auto:9", "static", "static:7", "ring"][lanes as usize % 6].to_owned(),
            on_member_stall: (va_base % 5 == 1).then_some(v1::StallPolicy { after_ms: stall_timeout_ms, then: on_member_loss }),
            repair: (va_base % 3 == 1).then_some(v1::MulticastRepair { slots: lanes, ack_timeout_us: pmtu }),
            description: "d".repeat(va_base as usize % 300),
        }
    }
}

proptest! {
    #[test]
    fn groups_go_there_and_back(group in group()) {
        let mut pair = group.clone();
        pair.endpoints.truncate(2);
        pair.kind = ForwardingRule {}.into();
        for endpoint in &mut pair.endpoints {
            endpoint.joining = false;
            if let NextHop::Switch { core, .. } = &mut endpoint.next_hop {
                *core = None;
            }
        }
        let shown = shown_rule(&group);
        let read = rule_from_proto("group", Some(&shown)).expect("a rule");
        let memories = |rule: &GroupRule| {
            let each = rule.endpoints.iter().filter_map(|e| Some(*e.next_hop.host()?.memory()?));
            each.map(|memory| (memory.va, memory.rkey, memory.length)).collect::<Vec<_>>()
        };
        let lengths: Vec<_> = memories(&group).into_iter().map(|(.., length)| (0, 0, length)).collect();
        prop_assert_eq!(memories(&read), lengths);
        for rule in [group, pair] {
            prop_assert_eq!(rule_from_proto("group", Some(&rule_to_proto(&rule))), Ok(rule));
        }
    }

    #[test]
    fn routes_go_there_and_back(route in route()) {
        prop_assert_eq!(route_from_proto(Some(&route_to_proto(&route))), Ok(route));
    }

    #[test]
    fn connections_go_there_and_back(host in endpoint("h".into(), 7), more in 0u32..16) {
        let mut ends = vec![host];
        for qpn in 0..more {
            // Each lane has a queue pair of its own.
            let qpn = Qpn::new((ends[0].qpn.value() + qpn) % 1000 + 1000);
            ends.extend((qpn != ends[0].qpn).then(|| HostEndpoint { qpn, part: HostPart::Plain, ..ends[0].clone() }));
        }
        let shown = connection_from_proto("c", "h", Some(&connection_to_proto(&ends)));
        for end in &mut ends {
            if let HostPart::Memory(memory) = &mut end.part {
                // The keys are for switches.
                (memory.va, memory.rkey) = (0, 0);
            }
        }
        prop_assert_eq!(shown, Ok(ends));
    }

    /// What is accepted is what the checker accepts; what is refused names a field below the one given.
    #[test]
    fn no_group_panics(message in any_group()) {
        match rule_from_proto("group", Some(&message)) {
            Ok(group) => prop_assert_eq!(group.check(64), vec![]),
            Err(invalid) => {
                prop_assert!(!invalid.faults().is_empty());
                prop_assert!(invalid.faults().iter().all(|f| f.field.starts_with("group.")), "{invalid}");
                let status = Status::from(invalid.clone());
                prop_assert_eq!(status.code(), Code::InvalidArgument);
                let fields: Vec<String> = violations(&status).into_iter().map(|v| v.field).collect();
                let told = invalid.faults().iter().take(FAULTS_SENT_MAX).map(|f| f.field.clone());
                prop_assert_eq!(&fields[..fields.len().min(FAULTS_SENT_MAX)], &told.collect::<Vec<_>>());
                prop_assert!(status.message().starts_with(&fields[0]));
            }
        }
    }

    #[test]
    fn no_creation_panics(message in any_creation()) {
        if let Err(invalid) = new_group_from_proto(&message) {
            prop_assert!(!invalid.faults().is_empty());
        }
    }

    #[test]
    fn no_route_panics(prefix in any_text(), replicate: bool, hops in proptest::collection::vec((any::<u32>(), any_text()), 0..4), copy_to in proptest::collection::vec(any_text(), 0..3)) {
        let next_hops = hops.into_iter().map(|(port, mac)| v1::RouteHop { port, mac }).collect();
        let message = v1::Route { prefix, next_hops, replicate, copy_to, ..Default::default() };
        let _ = routes_from_proto(&[message.clone(), message]);
    }

    #[test]
    fn no_filter_panics(port in any::<Option<u32>>(), texts in any::<[bool; 4]>(), text in any_text()) {
        let given = |i: usize| texts[i].then(|| text.clone());
        let (mcst_id, src_ip, dst_ip, drop_reason) = (given(0), given(1), given(2), given(3));
        let message = v1::FrameFilter { port, mcst_id, src_ip, dst_ip, drops_only: true, drop_reason };
        let _ = filter_from_proto("filter", Some(&message));
    }
}

#[test]
fn a_member_brings_a_queue_pair_for_each_lane() {
    let mut message = v1::CreateGroupRequest {
        lanes: 3,
        ..creation()
    };
    let lane = |qpn| v1::LaneConnection { qpn, memory: None };
    for member in &mut message.members {
        member.connection.as_mut().unwrap().more_lanes = vec![lane(18), lane(19)];
    }
    let group = new_group_from_proto(&message).unwrap();
    let qpns: Vec<u32> = group.members[1].ends.iter().map(|e| e.qpn.value()).collect();
    assert_eq!((group.lanes, qpns), (3, vec![17, 18, 19]));

    type Spoil = fn(&mut v1::CreateGroupRequest);
    let cases: [(&str, Spoil); 15] = [
        ("distribution", |m| m.distribution = "host".into()),
        ("distribution", |m| m.distribution = "edge:ring".into()),
        ("distribution", |m| {
            (m.distribution, m.any_source) = ("static".into(), 1);
        }),
        ("lanes", |m| m.lanes = 17),
        ("lanes", |m| m.any_source = 2),
        ("repair", |m| {
            m.any_source = 2;
            m.repair = Some(v1::MulticastRepair::default());
        }),
        ("on_member_stall.then", |m| {
            m.on_member_stall = Some(v1::StallPolicy { after_ms: 1, then: 3 });
        }),
        ("repair.ack_timeout_us", |m| {
            m.repair = Some(v1::MulticastRepair {
                slots: 0,
                ack_timeout_us: 1,
            })
        }),
        // Each of three lanes has a third of it.
        ("rate_limit.burst_bytes", |m| {
            m.rate_limit = Some(v1::RateLimit {
                bits_per_second: 1000,
                burst_bytes: 3 * 1152 - 1,
            });
        }),
        ("name", |m| m.name = "n".repeat(62)),
        ("members[0].connection.more_lanes", |m| m.lanes = 2),
        ("members[0].connection.more_lanes", |m| m.lanes = 0),
        ("members[0].connection.more_lanes[1].qpn", |m| lanes(m)[1].qpn = 1),
        ("members[0].connection.more_lanes[1].qpn", |m| {
            lanes(m)[1].qpn = 18
        }),
        ("members[0].connection.more_lanes", |m| {
            let more = lanes(m);
            *more = (18..40)
                .map(|qpn| v1::LaneConnection { qpn, memory: None })
                .collect();
        }),
    ];
    fn lanes(m: &mut v1::CreateGroupRequest) -> &mut Vec<v1::LaneConnection> {
        &mut m.members[0].connection.as_mut().unwrap().more_lanes
    }
    for (field, spoil) in cases {
        let mut bad = message.clone();
        spoil(&mut bad);
        let invalid = new_group_from_proto(&bad).unwrap_err();
        assert!(
            invalid.faults().iter().any(|f| f.field == field),
            "{field}: {invalid}"
        );
    }
}

#[test]
fn a_good_creation_gets_its_defaults() {
    let group = new_group_from_proto(&creation()).unwrap();
    assert_eq!(group.settings, MulticastSettings::default());
    assert!(group.description.is_empty());
    assert_eq!(
        (group.members[1].ends[0].name.as_str(), group.start_psn),
        ("b", None)
    );
    let waits_less = v1::CreateGroupRequest {
        on_member_stall: Some(v1::StallPolicy::default()),
        ..creation()
    };
    let policy = StallPolicy {
        after_ms: 5000,
        fails: false,
    };
    let group = new_group_from_proto(&waits_less).unwrap();
    assert_eq!(group.settings.on_stall, Some(policy));
}

#[test]
fn settings_are_read_as_they_were_written() {
    let settings = MulticastSettings {
        pmtu: Pmtu::B4096,
        va_base: 7,
        stall_timeout_ms: 9,
        fails_with_receiver: true,
        on_stall: Some(StallPolicy {
            after_ms: 5,
            fails: true,
        }),
        any_source: Some(AnySource::Bridged),
        distribution: "edge:chain".parse().unwrap(),
        repair: Some(RepairRule {
            slots: 64,
            ack_timeout_us: 5_000,
        }),
    };
    for settings in [MulticastSettings::default(), settings] {
        let v1::CreateGroupRequest {
            name,
            source,
            members,
            ..
        } = creation();
        let message = v1::CreateGroupRequest {
            name,
            source,
            members,
            ..creation_with(&settings)
        };
        assert_eq!(new_group_from_proto(&message).unwrap().settings, settings);
    }
}

#[test]
fn each_bad_creation_names_its_field() {
    type Spoil = fn(&mut v1::CreateGroupRequest);
    let cases: [(&str, Spoil); 13] = [
        ("name", |m| m.name.clear()),
        ("name", |m| m.name = "no blanks".into()),
        ("source", |m| m.source = "c".into()),
        ("members", |m| m.members.truncate(1)),
        ("members[1].host", |m| m.members[1].host = "a".into()),
        ("members[1].connection.ip", |m| {
            m.members[1].connection.as_mut().unwrap().ip = "10.0.0.1".into()
        }),
        ("members[0].connection.ip", |m| {
            m.members[0].connection.as_mut().unwrap().ip = "10.0.0".into()
        }),
        ("members[0].connection.mac", |m| {
            m.members[0].connection.as_mut().unwrap().mac = "ff:ff:ff:ff:ff:ff".into()
        }),
        ("members[1].connection.qpn", |m| {
            m.members[1].connection.as_mut().unwrap().qpn = 1
        }),
        ("members[1].connection.qpn", |m| {
            m.members[1].connection.as_mut().unwrap().qpn = 1 << 24
        }),
        ("pmtu", |m| m.pmtu = 1500),
        ("mcst_id", |m| m.mcst_id = Some("239.0.0.1".into())),
        ("description", |m| m.description = "two\nlines".into()),
    ];
    for (field, spoil) in cases {
        let mut message = creation();
        spoil(&mut message);
        let status = Status::from(new_group_from_proto(&message).unwrap_err());
        assert_eq!(violations(&status)[0].field, field, "{}", status.message());
        assert!(
            status.message().starts_with(&format!("{field}: ")),
            "{}",
            status.message()
        );
    }
}

#[test]
fn all_faults_come_at_once() {
    let mut message = creation();
    message.pmtu = 7;
    message.members[1].connection.as_mut().unwrap().memory = Some(v1::RemoteMemory {
        va: 0,
        rkey: 0,
        length: 0,
    });
    message.members[0].host = "/".into();
    let status = Status::from(new_group_from_proto(&message).unwrap_err());
    let fields: Vec<String> = violations(&status).into_iter().map(|v| v.field).collect();
    assert_eq!(
        fields,
        [
            "members[0].host",
            "members[1].connection.memory.length",
            "source",
            "pmtu"
        ]
    );
}

#[test]
fn long_texts_are_not_echoed_whole() {
    let invalid = mcst_id_from_proto("mcst_id", &"9".repeat(100_000)).unwrap_err();
    assert!(invalid.to_string().len() < 300, "{invalid}");
}

#[test]
fn a_refusal_tells_as_many_faults_as_its_headers_hold() {
    let fault = |n: u32| {
        Fault::new(
            format!("rule.endpoints[{n}].host.qpn"),
            FaultKind::ReservedQpn { qpn: Qpn::new(1) },
        )
    };
    let status = Invalid::all((0..64).map(fault).collect())
        .unwrap()
        .refuse(Code::AlreadyExists);
    assert!(status.message().len() + status.details().len() < 12_000);
    assert!(
        status.message().ends_with("; and 32 more"),
        "{}",
        status.message()
    );
    assert_eq!(violations(&status).len(), FAULTS_SENT_MAX + 1);
}

#[test]
fn a_collective_group_travels_and_is_checked() {
    let set = castnet_rules::RuleSet::from_toml(castnet_rules::COLLECTIVE_EXAMPLE).expect("the example");
    let mut group = set.groups[0].clone();
    let there_and_back = |group: &GroupRule| rule_from_proto("rule", Some(&rule_to_proto(group)));
    assert_eq!(there_and_back(&group), Ok(group.clone()));
    group.endpoints[2].next_hop = NextHop::Switch {
        name: "s".into(),
        ip: Some([10, 201, 0, 1].into()),
        qpn: Qpn::new(3),
        mac: MacAddr([6, 0, 0, 0, 0, 1]),
        ranks: vec![2, 3],
        mode: None,
        core: None,
    };
    let group = group.with_translated(|rule| {
        rule.loss_policy = castnet_rules::LossPolicy::Reflect;
        rule.straggler_policy = castnet_rules::StragglerPolicy::Rnr;
        rule.parent = Some(2);
    });
    assert_eq!(there_and_back(&group), Ok(group.clone()));

    let mut wide = group.clone().with_translated(|rule| rule.parent = Some(1000));
    let rank = |rank: u16| {
        let mut endpoint = group.endpoints[0].clone();
        endpoint.virtual_qpn = Qpn::new(0x100 + u32::from(rank));
        if let NextHop::Host(host) = &mut endpoint.next_hop {
            host.name = format!("h{rank}");
            host.qpn = Qpn::new(0x1000 + u32::from(rank));
            if let HostPart::Rank(part) = &mut host.part {
                part.rank = rank;
            }
        }
        endpoint
    };
    let mut parent = group.endpoints[2].clone();
    if let NextHop::Switch { ranks, .. } = &mut parent.next_hop {
        *ranks = vec![1000, 1001];
    }
    wide.endpoints = (0..1000).map(rank).chain([parent]).collect();
    assert_eq!(there_and_back(&wide), Ok(wide.clone()));

    let mut bad = rule_to_proto(&group);
    if let Some(v1::group_rule::Kind::Translated(rule)) = &mut bad.kind {
        (rule.slots, rule.loss_policy, rule.parent) = (1 << 20, 9, Some(1024));
    }
    bad.endpoints[0].next_hop = None;
    if let Some(v1::endpoint::NextHop::Switch(switch)) = &mut bad.endpoints[2].next_hop {
        switch.ranks[1] = 70_000;
        switch.ip = Some("10.201".into());
    }
    let fields = |message: Option<&v1::GroupRule>| -> Vec<String> {
        let invalid = rule_from_proto("rule", message).expect_err("faults");
        invalid.faults().iter().map(|f| f.field.clone()).collect()
    };
    assert_eq!(
        fields(Some(&bad)),
        [
            "rule.translated.slots",
            "rule.translated.loss_policy",
            "rule.translated.parent",
            "rule.endpoints[0]",
            "rule.endpoints[2].switch.ranks[1]",
            "rule.endpoints[2].switch.ip",
        ]
    );
    bad.kind = None;
    assert_eq!(fields(Some(&bad))[0], "rule.kind");
    assert_eq!(fields(None), ["rule"]);
}

/// However large rules are, requests stay far below what gRPC takes, keep the order, and lack nothing; one rule that is
/// larger goes alone.
#[test]
fn rules_are_split_into_requests_by_number_and_bytes() {
    let rule = |n: usize, endpoints: usize| {
        let hop = |i: usize| {
            let next_hop = NextHop::switch("s".repeat(64), MacAddr([2, 0, 0, 0, 0, i as u8]));
            Endpoint::new(PortId::new((i % 64) as u8).unwrap(), next_hop)
        };
        GroupRule {
            name: format!("g{n}"),
            generation: 1,
            mcst_id: McstId([10, 200, 0, 1].into()),
            pmtu: Pmtu::B1024,
            stall_timeout_ms: 1,
            rate_limit: None,
            endpoints: (0..endpoints).map(hop).collect(),
            kind: ForwardingRule {}.into(),
        }
    };
    let split = |sizes: &[usize]| {
        let rules: Vec<GroupRule> = (0..).zip(sizes).map(|(n, size)| rule(n, *size)).collect();
        let requests: Vec<_> = install_requests("us", &rules).collect();
        assert!(requests.iter().all(|r| r.owner == "us"));
        let bytes = requests.iter().map(Message::encoded_len).max().unwrap_or(0);
        let counts: Vec<usize> = requests.iter().map(|r| r.rules.len()).collect();
        let sent: Vec<_> = requests.into_iter().flat_map(|r| r.rules).collect();
        assert_eq!(sent, rules.iter().map(rule_to_proto).collect::<Vec<_>>());
        (counts, bytes)
    };
    assert_eq!(split(&[]).0, Vec::<usize>::new());
    assert_eq!(split(&[2; 600]).0, [256, 256, 88]);
    let (counts, bytes) = split(&[1024; 40]);
    assert!(counts.iter().all(|n| (2..40).contains(n)), "{counts:?}");
    assert!(bytes < 2 << 20, "{bytes}");
    assert_eq!(split(&[2, 20_000, 2, 2]).0, [1, 1, 2]);
}

/// A refusal is the same whether it ends a call or is one result of many.
#[test]
fn results_of_many_keep_what_a_status_says() {
    let refused = refuse(Code::ResourceExhausted, "rule.translated.slots", "no memory");
    let back = install_result_from_proto(install_result_to_proto(Err(refused.clone()))).unwrap_err();
    assert_eq!((back.code(), back.message()), (refused.code(), refused.message()));
    assert_eq!(violations(&back), violations(&refused));
    let done = install_result_to_proto(Ok(v1::InstallOutcome::Replaced));
    assert_eq!(
        install_result_from_proto(done).unwrap(),
        v1::InstallOutcome::Replaced
    );
    let lacking = install_result_from_proto(v1::InstallResult::default());
    assert_eq!(lacking.unwrap_err().code(), Code::Internal);
}

/// Who named a host that is no member of a large group had no answer: it had the names of all members.
#[test]
fn a_long_reason_fits_the_headers_that_clients_accept() {
    let status = refuse(Code::NotFound, "host", "\u{e9}\"".repeat(100_000));
    let (message, details) = (status.message(), status.details());
    assert!(
        message.starts_with("host: \u{e9}") && message.ends_with("..."),
        "{message}"
    );
    assert!(3 * message.len() + details.len().div_ceil(3) * 4 < 15_600);
    let short = "x".repeat(REASONS_SENT_MAX - 4);
    assert_eq!(
        refuse(Code::NotFound, "host", &*short).message(),
        format!("host: {short}")
    );
}
