//! Messages of collective groups: there and back, and refused with the field named.

use castnet_group::GivenSettings;
use castnet_rules::{
    CollectiveMode, Endpoint, GroupRule, HostEndpoint, LossPolicy, NextHop, RankPart, StragglerPolicy,
    TranslatedRule,
};
use castnet_wire::{BitRate, MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};
use proptest::prelude::*;
use tonic::Status;

use super::limit_tests::{joining, settings};
use super::*;
use crate::v1;

fn port_id(n: u8) -> PortId {
    PortId::new(n).unwrap()
}

prop_compose! {
    fn group()(
        ranks in 1u8..8, others in proptest::option::of(1u16..8), generation in any::<u64>(),
        (start_psn, sq_psn, rq_psn) in (0..1u32 << 24, 0..1u32 << 24, 0..1u32 << 24),
        power in 4u32..16, reproducible in any::<bool>(), reflect in any::<bool>(),
        straggler in 0usize..3, is_child in any::<bool>(), (ack_timeout_us, stall_timeout_ms) in (4u32.., 1u32..),
    ) -> GroupRule {
        let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
        // At least two endpoints: another rank where there is no switch.
        let ranks = if others.is_none() { ranks.max(2) } else { ranks };
        let (sq_psn, rq_psn) = (Psn::new(sq_psn), Psn::new(rq_psn));
        let mut endpoints: Vec<Endpoint> = (0..ranks).map(|n| Endpoint::new(port_id(n), NextHop::Host(HostEndpoint {
                name: format!("h{n}"), ip: [10, 0, 0, n + 1].into(), qpn: Qpn::new(17), mac: mac(n),
                part: RankPart { rank: n.into(), sq_psn, rq_psn }.into(),
            }))).collect();
        let modes = [CollectiveMode::Translated, CollectiveMode::Augmented, CollectiveMode::Terminated];
        let mode = if reflect { CollectiveMode::Translated } else { modes[start_psn as usize % 3] };
        let switch = others.map(|others| {
            let ranks = (0..others).map(|r| u16::from(ranks) + r).collect();
            let there = modes[power as usize % 3];
            let next_hop = NextHop::Switch {
                name: "up".into(), ip: None, qpn: Qpn::new(5), mac: mac(99), ranks,
                mode: Some(there).filter(|there| *there != mode && !reflect),
                    core: None,
            };
            Endpoint { virtual_qpn: Qpn::new(7), ..Endpoint::new(port_id(63), next_hop) }
        });
        let parent = switch.as_ref().map(|_| u16::from(ranks)).filter(|_| is_child);
        endpoints.extend(switch);
        let kind = TranslatedRule {
            start_psn: Psn::new(start_psn), slots: 1 << power, message_packets: 8, reproducible,
            mode,
            loss_policy: if reflect { LossPolicy::Reflect } else { LossPolicy::Repair },
            straggler_policy: StragglerPolicy::ALL[straggler], ack_timeout_us, parent,
        };
        GroupRule {
            name: "job".into(), generation, mcst_id: McstId([10, 200, 0, 1].into()), pmtu: Pmtu::B2048,
            stall_timeout_ms, rate_limit: None, endpoints, kind: kind.into(),
        }
    }
}

proptest! {
    #[test]
    fn rules_go_there_and_back(group in group()) {
        prop_assert_eq!(rule_from_proto("rule", Some(&rule_to_proto(&group))), Ok(group));
    }

    /// Whatever a number is set to, a rule is accepted as the checker accepts it, or refused below its field.
    #[test]
    fn no_rule_panics(group in group(), which in 0usize..9, value in any::<u32>()) {
        let mut message = rule_to_proto(&group);
        let Some(v1::group_rule::Kind::Translated(kind)) = &mut message.kind else { panic!("it computes") };
        match which {
            0 => message.pmtu = value,
            1 => kind.start_psn = value,
            2 => kind.slots = value,
            3 => kind.message_packets = value,
            4 => kind.loss_policy = value as i32,
            5 => kind.straggler_policy = value as i32,
            6 => kind.parent = Some(value),
            7 => message.endpoints[0].port = value,
            _ => message.endpoints[0].next_hop = None,
        }
        match rule_from_proto("rule", Some(&message)) {
            Ok(group) => prop_assert_eq!(group.check(64), vec![]),
            Err(invalid) => {
                prop_assert!(invalid.faults().iter().all(|f| f.field.starts_with("rule.")), "{invalid}");
            }
        }
    }
}

fn modes(message: &mut v1::InitGroupRequest, given: &[(&str, i32)]) {
    let mode = |&(switch, mode): &(&str, i32)| v1::SwitchMode {
        switch: switch.into(),
        mode,
    };
    settings(message).modes = given.iter().map(mode).collect();
}

#[test]
fn what_is_left_open_stays_open_and_the_lease_has_a_default() {
    let join = rank_join_from_proto(&joining()).unwrap();
    assert_eq!(join.settings, GivenSettings::default());
    assert_eq!(join.lease.as_millis(), u128::from(DEFAULT_LEASE_MS));
    assert_eq!((join.rank, join.size, join.endpoint.name.as_str()), (1, 4, "h1"));
}

#[test]
fn each_bad_join_names_its_field() {
    type Spoil = fn(&mut v1::InitGroupRequest);
    let cases: [(&str, Spoil); 9] = [
        ("job", |m| m.job = "no blanks".into()),
        ("host", |m| m.host.clear()),
        ("connection", |m| m.connection = None),
        ("connection.mac", |m| {
            m.connection.as_mut().unwrap().mac = "ff:ff:ff:ff:ff:ff".into()
        }),
        // Operators alone give modes.
        ("settings.modes", |m| modes(m, &[("leaf1", 1)])),
        ("settings.modes[0].switch", |m| modes(m, &[("no\u{1}name", 1)])),
        // Of which the last one counted.
        ("settings.modes[1].switch", |m| {
            modes(m, &[("leaf1", 1), ("leaf1", 2)])
        }),
        ("settings.modes[1].mode", |m| {
            modes(m, &[("leaf1", 3), ("leaf2", 4)])
        }),
        ("settings.loss_policy", |m| {
            settings(m).mode = v1::CollectiveMode::Augmented as i32;
            settings(m).loss_policy = v1::CollectiveLossPolicy::Reflect as i32;
        }),
    ];
    for (field, spoil) in cases {
        let mut message = joining();
        spoil(&mut message);
        let status = Status::from(rank_join_from_proto(&message).unwrap_err());
        assert_eq!(violations(&status)[0].field, field, "{}", status.message());
    }
}

#[test]
fn settings_are_read_as_they_were_written() {
    let given = GivenSettings {
        pmtu: Some(Pmtu::B2048),
        window_packets: Some(100),
        message_packets: Some(50),
        reproducible: Some(false),
        mode: Some(CollectiveMode::Augmented),
        modes: [("leaf1".into(), CollectiveMode::Terminated)].into(),
        loss_policy: Some(LossPolicy::Repair),
        straggler_policy: Some(StragglerPolicy::None),
        ack_timeout_us: Some(5),
        stall_timeout_ms: Some(6),
        lanes: Some(7),
        rate_limit: Some(RateLimit::of(BitRate::new(1_000_000_000).unwrap())),
    };
    for given in [GivenSettings::default(), given] {
        let message = v1::CreateCollectiveRequest {
            name: "g".into(),
            ranks: vec!["a".into(), "b".into()],
            settings: Some(settings_to_proto(&given)),
            ..Default::default()
        };
        assert_eq!(new_collective_from_proto(&message).unwrap().settings, given);
    }
}

/// A host creates the group of its job without an operator, and the timers of all groups share the switches.
#[test]
fn ranks_create_jobs_with_timers_of_a_millisecond_at_least_and_operators_shorter_ones() {
    for (ack_timeout_us, stall_timeout_ms, of_rank, of_operator) in [
        (1_000, 100, &[][..], true),
        (999, 100, &["settings.ack_timeout_us"], true),
        (1_000, 99, &["settings.stall_timeout_ms"], true),
        (
            4,
            1,
            &["settings.ack_timeout_us", "settings.stall_timeout_ms"],
            true,
        ),
        (3, 1, &["settings.ack_timeout_us"], false),
    ] {
        let settings = v1::CollectiveSettings {
            ack_timeout_us,
            stall_timeout_ms,
            ..Default::default()
        };
        let mut join = joining();
        join.settings = Some(settings.clone());
        // It joins with what an operator has chosen.
        let read = rank_join_from_proto(&join);
        assert_eq!(read.is_ok(), of_operator);
        let read = read.and_then(|join| check_given_by_rank(&join.settings));
        let faults = read.as_ref().err().map_or(&[][..], Invalid::faults);
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, of_rank, "{ack_timeout_us} {stall_timeout_ms}");
        let message = v1::CreateCollectiveRequest {
            name: "g".into(),
            ranks: vec!["a".into(), "b".into()],
            settings: Some(settings),
            ..Default::default()
        };
        assert_eq!(new_collective_from_proto(&message).is_ok(), of_operator);
    }
}

/// Generations are counted on from what a rank says.
#[test]
fn a_rank_names_no_generation_that_no_group_reaches() {
    type Set = fn(&mut v1::InitGroupRequest, u64);
    let fields: [(&str, Set); 2] = [
        ("rejoin_of", |m, n| m.rejoin_of = Some(n)),
        ("returns_to", |m, n| m.returns_to = Some(n)),
    ];
    for (field, set) in fields {
        for (generation, is_read) in [
            (0, true),
            (1 << 48, true),
            ((1 << 48) + 1, false),
            (u64::MAX, false),
        ] {
            let mut message = joining();
            set(&mut message, generation);
            let read = rank_join_from_proto(&message);
            let fault = read.err().map(|invalid| invalid.faults()[0].field.clone());
            assert_eq!(fault.as_deref(), (!is_read).then_some(field), "{generation}");
        }
    }
}

/// A fault for each of a million would keep a controller busy.
#[test]
fn modes_of_switches_are_taken_up_to_their_number() {
    for (switches, is_right) in [(1024, true), (1025, false)] {
        let mode = |n: usize| v1::SwitchMode {
            switch: format!("s{n}"),
            mode: v1::CollectiveMode::Translated.into(),
        };
        let message = v1::CreateCollectiveRequest {
            name: "g".into(),
            ranks: vec!["a".into(), "b".into()],
            settings: Some(v1::CollectiveSettings {
                modes: (0..switches).map(mode).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let read = new_collective_from_proto(&message);
        assert_eq!(read.is_ok(), is_right, "{switches}");
        if let Err(invalid) = read {
            assert!(invalid.to_string().contains("settings.modes: 1025"), "{invalid}");
        }
    }
}
