//! Random input: no panic, one verdict for each frame, no frame changes the state of another group, and traces agree
//! with the processing.

use core::net::Ipv4Addr;
use std::sync::Arc;

use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, CountersSnapshot, Engine, InstallError, PortInfo, Verdict};
use castnet_rules::{CollectiveMode, GroupRule, NextHop, Route, RouteHop};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, DropReason, MacAddr, McstId, NakCode, Nanos, Opcode, Qpn, Reth, Syndrome};
use proptest::prelude::*;

const OTHER: McstId = McstId(Ipv4Addr::new(10, 9, 0, 2));

/// A second group over the same ports, its source at port 1.
fn second() -> GroupRule {
    let mut other = GroupRule {
        mcst_id: OTHER,
        name: "other".into(),
        ..star(3).with_multicast(|rule| rule.source = 1)
    };
    for path in &mut other.endpoints {
        if let NextHop::Host(host) = &mut path.next_hop {
            host.qpn = Qpn::new(host.qpn.value() + 0x1000);
        }
    }
    other
}

/// And one with switches at two of them, behind which anybody may be.
const THIRD: McstId = McstId(Ipv4Addr::new(10, 9, 0, 4));

fn three_groups() -> Engine {
    let mut engine = star_switch(3);
    install(&mut engine, &second());
    let third = GroupRule {
        mcst_id: THIRD,
        name: "third".into(),
        ..rule(vec![switch(0), switch(2), host(3)])
    };
    install(&mut engine, &third);
    engine
}

#[derive(Clone, Debug)]
enum Input {
    Data {
        ingress: usize,
        psn: u32,
        length: usize,
        write: bool,
        dst: usize,
        src: usize,
        qpn: u32,
        ack: bool,
    },
    Feedback {
        ingress: usize,
        psn: u32,
        src: usize,
        nak: bool,
    },
    Cnp {
        ingress: usize,
    },
    Arp {
        ingress: usize,
        target: u8,
    },
    Plain {
        ingress: usize,
        dst: usize,
        src: usize,
        vlan: Option<u16>,
        length: usize,
    },
    Bytes {
        ingress: usize,
        bytes: Vec<u8>,
    },
    Mutated {
        input: Box<Input>,
        at: prop::sample::Index,
        byte: u8,
        cut: usize,
    },
}

fn leaf() -> impl Strategy<Value = Input> {
    let port = 0usize..5;
    let data = (
        port.clone(),
        98u32..130,
        0usize..1100,
        any::<bool>(),
        0usize..4,
        0usize..6,
        0u32..3,
        any::<bool>(),
    );
    prop_oneof![
        4 => data.prop_map(|(ingress, psn, length, write, dst, src, qpn, ack)| {
            let (src, qpn) = if qpn == 0 { (src, 2) } else { (ingress, 1) };
            Input::Data { ingress, psn, length, write, dst, src, qpn, ack }
        }),
        4 => (port.clone(), 95u32..130, any::<bool>(), any::<bool>()).prop_map(|(ingress, psn, nak, stranger)| {
            Input::Feedback { ingress, psn, src: if stranger { 9 } else { ingress }, nak }
        }),
        1 => port.clone().prop_map(|ingress| Input::Cnp { ingress }),
        1 => (port.clone(), any::<u8>()).prop_map(|(ingress, target)| Input::Arp { ingress, target }),
        2 => (port.clone(), 0usize..8, 0usize..5, prop::option::of(0u16..3), 0usize..200)
            .prop_map(|(ingress, dst, src, vlan, length)| Input::Plain { ingress, dst, src, vlan, length }),
        1 => (port, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(ingress, bytes)| Input::Bytes { ingress, bytes }),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        3 => leaf(),
        1 => (leaf(), any::<prop::sample::Index>(), any::<u8>(), 0usize..3).prop_map(|(input, at, byte, cut)| {
            Input::Mutated { input: Box::new(input), at, byte, cut }
        }),
    ]
}

fn build(input: &Input) -> (usize, Vec<u8>) {
    match input {
        Input::Data {
            ingress,
            psn,
            length,
            write,
            dst,
            src,
            qpn,
            ack,
        } => {
            let opcode = if *write {
                Opcode::WriteOnly
            } else {
                Opcode::SendOnly
            };
            let mut frame = DataFrame::new(opcode, *psn, &vec![3; *length]);
            frame.ext.reth = Some(Reth {
                va: VA_BASE,
                rkey: 1,
                dma_len: *length as u32,
            });
            frame.dst = [MCST.0, OTHER.0, host_ip(2), THIRD.0][*dst];
            frame.src = if *src < 5 { host_ip(*src) } else { MCST.0 };
            (frame.dest_qp, frame.ack_request, frame.ethernet) = (Qpn::new(*qpn), *ack, ethernet(*ingress));
            (*ingress, frame.bytes())
        }
        Input::Feedback {
            ingress,
            psn,
            src,
            nak,
        } => {
            let syndrome = if *nak {
                Syndrome::Nak(NakCode::PsnSequenceError)
            } else {
                Syndrome::Ack
            };
            (*ingress, ack(*src, *psn, 1, syndrome))
        }
        Input::Cnp { ingress } => (*ingress, cnp(*ingress)),
        Input::Arp { ingress, target } => {
            let target = if *target < 128 {
                MCST.0
            } else {
                Ipv4Addr::new(10, 0, 0, *target)
            };
            (*ingress, arp_request(*ingress, target))
        }
        Input::Plain {
            ingress,
            dst,
            src,
            vlan,
            length,
        } => {
            let dst = if *dst < 5 {
                peer_mac(*dst)
            } else {
                port_mac(dst - 5)
            };
            (*ingress, plain_frame(dst, peer_mac(*src), *vlan, *length))
        }
        Input::Bytes { ingress, bytes } => (*ingress, bytes.clone()),
        Input::Mutated { input, at, byte, cut } => {
            let (ingress, mut bytes) = build(input);
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                match cut {
                    0 => bytes[at] = *byte,
                    1 => bytes.truncate(at),
                    _ => bytes.extend(vec![*byte; at % 90]),
                }
            }
            (ingress, bytes)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// S1 over any traffic, with and without buffers; and a dry run says what then happens, byte for byte, having
    /// changed nothing.
    #[test]
    fn every_frame_has_one_end_and_its_trace_is_what_is_done(
        inputs in prop::collection::vec((input(), any::<bool>()), 1..40), buffers in prop::option::of(0usize..40),
    ) {
        let mut engine = three_groups();
        let mut egress = PlainEgress { buffers, ..PlainEgress::default() };
        let mut now = T0;
        for (input, traced) in inputs {
            now += Nanos::from_micros(50);
            let (ingress, bytes) = build(&input);
            let before = engine.totals();
            let dry = traced.then(|| engine.trace(now, port(ingress), &bytes));
            prop_assert_eq!(engine.totals(), before, "a dry run changes nothing");
            let sent_before = egress.sent.len();
            feed_into(&mut engine, now, ingress, &bytes, &mut egress);
            assert_conserved(&engine);
            let Some(dry) = dry.filter(|_| buffers.is_none()) else { continue };
            let sent: Vec<_> = egress.sent[sent_before..].iter().map(|(p, f)| (*p, f.clone())).collect();
            let told: Vec<_> = dry.sent.into_iter().map(|s| (s.port, s.bytes)).collect();
            prop_assert_eq!(told, sent, "{:?}", dry.steps);
            let after = engine.totals();
            let ended = match dry.verdict {
                Verdict::Switched => after.switched - before.switched,
                Verdict::Routed => after.routed - before.routed,
                Verdict::Flooded => after.flooded - before.flooded,
                Verdict::Replicated => after.replicated - before.replicated,
                Verdict::Absorbed => after.absorbed - before.absorbed,
                Verdict::Dropped(_) => after.dropped - before.dropped,
            };
            prop_assert_eq!(ended, 1, "{:?}", dry.verdict);
        }
    }

    /// C4: frames to one group never change the state of another.
    #[test]
    fn no_frame_reaches_another_groups_state(inputs in prop::collection::vec(leaf(), 1..40)) {
        let mut engine = three_groups();
        let at = OTHER;
        let before = engine.group_status(at).unwrap();
        for input in inputs {
            if matches!(input, Input::Data { dst: 1, .. }) {
                continue;
            }
            let (ingress, bytes) = build(&input);
            feed(&mut engine, T0, ingress, &bytes);
        }
        prop_assert_eq!(engine.group_status(at).unwrap(), before);
    }

    #[test]
    fn only_members_reach_a_group(ingress in 0usize..5, src in 0usize..5, qpn in 0u32..3, data: bool) {
        let engine = star_switch(3);
        let mut frame = DataFrame::new(if data { Opcode::SendOnly } else { Opcode::Ack }, 100, &[]);
        frame.ext.aeth = Some(castnet_wire::Aeth { syndrome: Syndrome::Ack, msn: 0 });
        (frame.src, frame.dest_qp, frame.ethernet) = (host_ip(src), Qpn::new(qpn), ethernet(ingress));
        let verdict = engine.trace(T0, port(ingress), &frame.bytes()).verdict;
        let member = ingress < 4 && src == ingress && qpn == 1;
        let expected = match (member, ingress, data) {
            (false, ..) => Verdict::Dropped(DropReason::NotMember),
            (true, 0, true) => Verdict::Replicated,
            (true, _, true) => Verdict::Dropped(DropReason::NotSource),
            (true, 0, false) => Verdict::Dropped(DropReason::FeedbackFromSource),
            (true, _, false) => Verdict::Dropped(DropReason::AckAhead),
        };
        prop_assert_eq!(verdict, expected);
    }
}

/// Past the group: a host that takes the group's address for its own reaches neither members nor source with it, whoever
/// of the switch's workers has the group.
#[test]
fn nobody_speaks_in_the_name_of_a_group() {
    let elsewhere = McstId(Ipv4Addr::new(10, 9, 0, 3));
    for tagged in [false, true] {
        let mut engine = three_groups();
        let route = Route {
            prefix: "10.0.0.0/8".parse().unwrap(),
            next_hops: vec![RouteHop {
                port: port(0),
                mac: peer_mac(0),
            }],
            replicate: false,
            copy_to: Vec::new(),
        };
        engine.set_tables(
            T0,
            Arc::new(crate::common::tables(1, [elsewhere], &[route], (0..5).map(port))),
        );
        let mut forged = 0;
        for (ingress, victim, mcst_id, switched) in [
            (4, 0, MCST, true),
            (4, 1, OTHER, true),
            (2, 1, MCST, false),
            (1, 0, elsewhere, true),
            (4, 0, elsewhere, false),
        ] {
            for opcode in [Opcode::Ack, Opcode::SendOnly, Opcode::ReadRequest] {
                let mut frame = DataFrame::new(opcode, 100, &[]);
                frame.ext.aeth = Some(castnet_wire::Aeth {
                    syndrome: Syndrome::Ack,
                    msn: 0,
                });
                frame.ext.reth = Some(Reth {
                    va: 0,
                    rkey: 0,
                    dma_len: 0,
                });
                (frame.src, frame.dst, frame.dest_qp) = (mcst_id.0, host_ip(victim), host_qpn(victim));
                frame.ethernet = ethernet(ingress);
                if switched {
                    frame.ethernet.dst = peer_mac(victim);
                }
                let frame = if tagged { frame.vlan(7) } else { frame };
                let dry = engine.trace(T0, port(ingress), &frame.bytes());
                assert_eq!(dry.verdict, Verdict::Dropped(DropReason::NotMember));
                assert_eq!(feed(&mut engine, T0, ingress, &frame.bytes()), []);
                forged += 1;
            }
        }
        let mut snapshot = CountersSnapshot::with_capacity(2, 8);
        engine.snapshot(&mut snapshot);
        assert_eq!(snapshot.drops[DropReason::NotMember], forged);
        assert_eq!(engine.fdb(T0).count(), 0, "nothing was learned of them");
        assert_conserved(&engine);
    }
}

/// Behind tags, too: Linux strips any number of priority tags.
#[test]
fn nobody_speaks_in_the_name_of_a_group_behind_tags() {
    let forged_ack = {
        let mut frame = DataFrame::new(Opcode::Ack, 100, &[]);
        frame.ext.aeth = Some(castnet_wire::Aeth {
            syndrome: Syndrome::Ack,
            msn: 0,
        });
        (frame.src, frame.dst, frame.dest_qp) = (MCST.0, host_ip(0), host_qpn(0));
        frame.ethernet = ethernet(4);
        frame.ethernet.dst = peer_mac(0);
        frame.bytes()
    };
    let claim = {
        let mut bytes = vec![0; 64];
        let arp = Arp::request(peer_mac(4), MCST.0, host_ip(0));
        let length = emit_arp(&mut bytes, MacAddr::BROADCAST, &arp).unwrap();
        bytes[..length].to_vec()
    };
    let drops = |engine: &Engine, reason| {
        let mut snapshot = CountersSnapshot::with_capacity(2, 8);
        engine.snapshot(&mut snapshot);
        snapshot.drops[reason]
    };
    for (tpid, vid) in [
        (0x8100_u16, 0),
        (0x8100, 5),
        (0x88A8, 0),
        (0x9100, 0),
        (0x9300, 7),
    ] {
        let mut engine = star_switch(3);
        let tag = [(tpid >> 8) as u8, tpid as u8, 0, vid];
        for tags in 0..=6 {
            // ARP behind more tags than are parsed ends here, whatever it says.
            let of_claim = match tags {
                0..=2 => DropReason::NotMember,
                _ => DropReason::Malformed,
            };
            for (forged, reason) in [(&forged_ack, DropReason::NotMember), (&claim, of_claim)] {
                let mut frame = forged.clone();
                frame.splice(12..12, tag.repeat(tags));
                let dry = engine.trace(T0, port(4), &frame);
                assert_eq!(dry.verdict, Verdict::Dropped(reason), "{tags} tags\n{dry}");
                let before = drops(&engine, reason);
                assert_eq!(feed(&mut engine, T0, 4, &frame), []);
                assert_eq!(drops(&engine, reason), before + 1);
                // Cut inside the tags.
                for length in 13..12 + 4 * tags + 2 {
                    assert_eq!(feed(&mut engine, T0, 4, &frame[..length]), []);
                }
            }
        }
        assert_eq!((engine.fdb(T0).count(), engine.neighbours(T0).count()), (0, 0));
        assert_conserved(&engine);
    }
}

/// The count of frames sent to a path follows from the source's data, so data of others must not count.
#[test]
fn data_that_no_path_gets_counts_for_no_path() {
    let mut engine = star_switch(2);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    let mut stray = DataFrame::new(Opcode::SendOnly, 101, &[1; 64]);
    (stray.src, stray.ethernet) = (host_ip(1), ethernet(1));
    assert_eq!(feed(&mut engine, T0, 1, &stray.bytes()), []);
    // Just half a circle ahead of what is acknowledged: behind, by the rule of PSNs, though ahead of what is expected.
    assert_eq!(feed(&mut engine, T0, 0, &send(99 + (1 << 23), &[1; 64])), []);
    let status = engine.group_status(MCST).unwrap();
    assert_eq!((status.counters.data_in, status.counters.copies_out), (2, 2));
    let sent: Vec<u64> = status.paths.iter().map(|p| p.copies_out).collect();
    assert_eq!(sent, [0, 1, 1]);
}

#[test]
fn groups_come_go_and_stay() {
    let mut engine = Engine::new(castnet_engine::EngineConfig {
        groups_max: 2,
        ..config(6)
    })
    .unwrap();
    install(&mut engine, &star(2));
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    let ports = engine.config().ports.clone();
    let compile = |rule: &GroupRule| Context::compile(rule, &ports).unwrap();
    // An equal rule: the running group stays.
    let handed_back = engine.install(Nanos::ZERO, compile(&star(2))).unwrap().unwrap();
    assert_eq!(handed_back.multicast().unwrap().counters().data_in, 0);
    assert_eq!(engine.group(MCST).unwrap().counters().data_in, 1);
    // Another rule: the new group replaces the old one, with fresh state.
    let replaced = engine
        .install(
            Nanos::ZERO,
            compile(&GroupRule {
                generation: 2,
                ..star(3)
            }),
        )
        .unwrap()
        .unwrap();
    let data_in = replaced.multicast().unwrap().counters().data_in;
    assert_eq!((data_in, engine.group_count()), (1, 1));
    assert_eq!(feed(&mut engine, T0, 0, &send(100, &[1; 64])).len(), 3);
    install(&mut engine, &second());
    let third = GroupRule {
        mcst_id: McstId(Ipv4Addr::new(10, 9, 0, 3)),
        ..star(1)
    };
    assert_eq!(
        engine.install(Nanos::ZERO, compile(&third)).unwrap_err().0,
        InstallError::GroupsFull { max: 2 }
    );
    let memory = engine.group_memory_bytes();
    assert!(engine.remove(MCST).is_some() && engine.remove(MCST).is_none());
    assert_eq!(feed(&mut engine, T0, 0, &send(101, &[1; 64])), []);
    assert!(engine.group_memory_bytes() < memory);
    assert!(engine.install(Nanos::ZERO, compile(&third)).unwrap().is_none());
    assert_eq!(
        engine
            .groups()
            .map(|g| g.mcst_id().0.octets()[3])
            .collect::<Vec<_>>(),
        [3, 2]
    );
    assert_conserved(&engine);
}

#[test]
fn what_cannot_run_is_refused_with_its_reason() {
    let ports = ports(3);
    assert!(matches!(
        Context::compile(&star(3), &ports),
        Err(InstallError::Faults(f)) if f[0].field == "endpoints[3].port"
    ));
    let gap: Vec<PortInfo> = ports.iter().filter(|p| p.id.index() != 1).cloned().collect();
    assert!(matches!(
        Context::compile(&star(2), &gap),
        Err(InstallError::NoPort { endpoint: 1, .. })
    ));
    assert!(matches!(Context::compile(&star(0), &ports), Err(InstallError::Faults(f)) if !f.is_empty()));
    let narrow: Vec<PortInfo> = ports
        .iter()
        .map(|p| PortInfo {
            mtu: 1087,
            ..p.clone()
        })
        .collect();
    let error = Context::compile(&star(2), &narrow).unwrap_err();
    assert_eq!(
        error,
        InstallError::MtuTooSmall {
            port: port(0),
            pmtu: 1024,
            need: 1088,
            mtu: 1087
        }
    );
    let config = castnet_engine::EngineConfig {
        memory_bytes_max: 100,
        ..config(3)
    };
    let mut engine = Engine::new(config).unwrap();
    let (error, _) = engine
        .install(Nanos::ZERO, Context::compile(&star(2), &ports).unwrap())
        .unwrap_err();
    assert!(matches!(
        error,
        InstallError::NoMemory {
            left: 100,
            max: 100,
            ..
        }
    ));
    let config = castnet_engine::EngineConfig {
        next_hops_max: 2,
        addresses: vec![OTHER.0],
        ..self::config(3)
    };
    let mut engine = Engine::new(config).unwrap();
    let (error, _) = engine
        .install(Nanos::ZERO, Context::compile(&star(2), &ports).unwrap())
        .unwrap_err();
    assert_eq!(error, InstallError::NextHopsFull);
    assert!(
        engine
            .install(Nanos::ZERO, Context::compile(&star(1), &ports).unwrap())
            .is_ok()
    );
    let own = Context::compile(
        &GroupRule {
            mcst_id: OTHER,
            ..star(1)
        },
        &ports,
    )
    .unwrap();
    assert_eq!(
        engine.install(Nanos::ZERO, own).unwrap_err().0,
        InstallError::OwnAddress { mcst_id: OTHER }
    );
}

/// Groups come and go, and are replaced, each time with other next hops, of which there is room for those of one group and its successor.
#[test]
fn a_removed_group_gives_its_next_hops_back() {
    let other_macs = |rule: &GroupRule, turn: usize| {
        let mut rule = rule.clone();
        rule.generation = turn as u64 + 1;
        for (n, endpoint) in rule.endpoints.iter_mut().enumerate() {
            let other = MacAddr([2, 7, 0, 0, turn as u8, n as u8]);
            match &mut endpoint.next_hop {
                NextHop::Host(host) => host.mac = other,
                NextHop::Switch { mac, .. } => *mac = other,
            }
        }
        rule
    };
    let sums = collective::collective_star(3);
    for rule in [
        star(2),
        sums.clone(),
        sums.with_translated(|kind| kind.mode = CollectiveMode::Terminated),
    ] {
        let config = castnet_engine::EngineConfig {
            next_hops_max: 6,
            ..config(3)
        };
        let mut engine = Engine::new(config).unwrap();
        for turn in 0..12 {
            let ports = &engine.config().ports;
            let group = Context::compile(&other_macs(&rule, turn), ports).unwrap();
            assert!(engine.install(Nanos::ZERO, group).is_ok(), "turn {turn}");
            if turn % 3 == 0 {
                assert!(engine.remove(rule.mcst_id).is_some());
            }
        }
    }
}

#[test]
fn a_snapshot_that_is_too_small_is_filled_in_turns() {
    let mut engine = Engine::new(config(6)).unwrap();
    for n in 1..=5 {
        let mcst_id = McstId(Ipv4Addr::new(10, 9, 0, n));
        install(
            &mut engine,
            &GroupRule {
                mcst_id,
                ..star(usize::from(n))
            },
        );
    }
    let mut snapshot = CountersSnapshot::with_capacity(2, 9);
    let mut seen = Vec::new();
    loop {
        engine.snapshot(&mut snapshot);
        let of_kind = &snapshot.multicast;
        assert!(of_kind.groups.len() <= 2 && of_kind.endpoints.len() <= 9 && snapshot.ports.len() == 6);
        for group in &of_kind.groups {
            assert_eq!(
                of_kind.endpoints_of(group).len(),
                usize::from(group.mcst_id.0.octets()[3]) + 1
            );
            seen.push(group.mcst_id.0.octets()[3]);
        }
        if snapshot.next_group == 0 {
            break;
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}
