//! Endpoints that share ports and are distinguished by QPN and source address: the group behaves as if each endpoint had its
//! own port, on the fast path and on the slow path.

use std::collections::BTreeMap;

use super::batches::{GROUPS, Hosts, PORTS, RANKS, Step, feed_batch, group, mcst, step};
use super::collective::{any_job, drops};
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::{Context, ContextStatus, Engine, FrameFilter, TapId};
use castnet_rules::{Endpoint, ForwardingRule, GroupRule};
use castnet_wire::icrc::{self, HeaderDelta};
use castnet_wire::{DataType, DropReason, McstId, Nanos, Primitive, Psn, Qpn, Syndrome};
use proptest::prelude::*;

/// Where the BTH has the destination QPN, behind Ethernet, IPv4 and UDP.
const DEST_QP: core::ops::Range<usize> = 47..50;
const AFTER_BTH: usize = 54;

/// The QPN on the switch of the endpoint that has port `n` where each has one.
fn virtual_qpn(n: usize) -> Qpn {
    Qpn::new(2 + n as u32)
}

/// The port, of so many, of what has port `n` where each endpoint has one. Endpoints stay in order, so that among refusals of the same
/// PSN the same one goes on.
fn shared(n: usize, ports: usize) -> usize {
    n * ports / PORTS
}

/// The same group, its endpoints at so many ports. Those of which `verify` has the bit of their port are verified by their MAC
/// address.
fn packed(rule: &GroupRule, ports: usize, verify: u64) -> GroupRule {
    let pack = |endpoint: &Endpoint| Endpoint {
        port: port(shared(endpoint.port.index(), ports)),
        virtual_qpn: virtual_qpn(endpoint.port.index()),
        verify_mac: verify >> endpoint.port.index() & 1 == 1,
        ..endpoint.clone()
    };
    GroupRule {
        endpoints: rule.endpoints.iter().map(pack).collect(),
        ..rule.clone()
    }
}

/// The same frame, to another QPN; a wrong ICRC stays wrong.
fn to_qpn(frame: &[u8], qpn: Qpn) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let before = frame[DEST_QP].try_into().expect("three bytes");
    let change = HeaderDelta::dest_qp(Qpn::from_bytes(before), qpn).at_bth();
    let after = frame.len() - AFTER_BTH - 4;
    frame[DEST_QP].copy_from_slice(&qpn.to_bytes());
    let change = icrc::shift(change, after).to_le_bytes();
    let end = frame.len() - 4;
    frame[end..]
        .iter_mut()
        .zip(change)
        .for_each(|(byte, change)| *byte ^= change);
    frame
}

/// What left, as it would leave by so many ports; in any order.
fn as_by(ports: usize, mut sent: Vec<(usize, Vec<u8>)>) -> Vec<(usize, Vec<u8>)> {
    for (n, frame) in &mut sent {
        *n = shared(*n, ports);
        frame[6..12].copy_from_slice(&port_mac(*n).0);
    }
    sent.sort();
    sent
}

/// The state of all groups by the names of their endpoints, whatever their order.
fn state(engine: &Engine) -> Vec<String> {
    let by_name = |rule: &GroupRule, all: Vec<String>| -> BTreeMap<String, String> {
        let names = rule.endpoints.iter().map(|e| e.next_hop.name().to_string());
        names.zip(all).collect()
    };
    let ids = (0..GROUPS).map(mcst).chain([GROUP]);
    let status = ids.filter_map(|mcst_id: McstId| engine.status(mcst_id));
    let text = |status: ContextStatus| match status {
        ContextStatus::Multicast(status) => {
            let machine = &status.machine;
            let all = status.paths.iter().enumerate().map(|(i, path)| {
                let state = machine.paths.iter().find(|p| p.path.index() == i);
                let state = state.map(|p| (p.ack_psn, p.msn, p.refusal));
                format!(
                    "{} {} {:?} {state:?}",
                    path.source, path.copies_out, path.counters
                )
            });
            let endpoints = by_name(&status.rule, all.collect());
            let group = (
                machine.newest_psn,
                machine.agg_ack_psn,
                machine.me_psn,
                machine.nak_sent,
            );
            format!("{group:?} {:?} {endpoints:?}", status.counters)
        }
        ContextStatus::Collective(status) => {
            let all = status
                .endpoints
                .iter()
                .map(|e| format!("{:?}", e.counters))
                .collect();
            let endpoints = by_name(&status.rule, all);
            format!("{:?} {:?} {endpoints:?}", status.machine, status.counters)
        }
        other => panic!("{other:?}"),
    };
    status.map(text).collect()
}

fn compile(engine: &mut Engine, rule: &GroupRule) {
    engine.remove(rule.mcst_id);
    let group = Context::compile(rule, &engine.config().ports).unwrap();
    engine.install(Nanos::ZERO, group).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn endpoints_that_share_ports_are_served_as_those_with_a_port_each(
        jobs in [any_job(RANKS), any_job(RANKS)],
        steps in prop::collection::vec(step(), 1..60),
        reproducible: bool,
        ports in 1..4_usize,
        verify in prop_oneof![Just(0), any::<u64>()],
    ) {
        // Each endpoint at a port of its own, and packed: the fast path, and the slow one.
        let mut engines = [engine(PORTS), engine(PORTS), engine(PORTS)];
        let [tap, ..] = core::array::from_fn::<_, 3, _>(|n| TapId::all().nth(n).unwrap());
        engines[2].taps.arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
        let collective = collective_star(RANKS).with_translated(|rule| rule.reproducible = reproducible);
        let install_in = |engines: &mut [Engine; 3], rule: &GroupRule| {
            let [apart, shared @ ..] = engines;
            compile(apart, rule);
            shared.iter_mut().for_each(|engine| compile(engine, &packed(rule, ports, verify)));
        };
        (0..GROUPS).for_each(|n| install_in(&mut engines, &group(n, 1)));
        install_in(&mut engines, &collective);
        let ranks: Vec<Rank> = (0..RANKS).map(|rank| Rank::new(rank, T0, &jobs)).collect();
        let mut hosts = Hosts::new(ranks);
        let (mut now, mut generation) = (T0, 1);
        for step in steps {
            now += Nanos(1000);
            generation += 1;
            match step {
                Step::Batch { ingress, frames, wrong } => {
                    let frames = frames.iter().filter(|frame| !frame.is_strange());
                    let mut frames: Vec<_> = frames.filter_map(|f| hosts.bytes(ingress, f)).collect();
                    if let (Some((at, bit)), false) = (wrong, frames.is_empty()) {
                        let at = at.index(frames.len());
                        let bit = 8 * AFTER_BTH + bit.index(8 * (frames[at].len() - AFTER_BTH));
                        frames[at][bit / 8] ^= 1 << (bit % 8);
                    }
                    let apart = feed_batch(&mut engines[0], now, ingress, &frames);
                    let qpn = virtual_qpn(ingress);
                    let frames: Vec<_> = frames.iter().map(|frame| to_qpn(frame, qpn)).collect();
                    let expected = as_by(ports, apart.clone());
                    for engine in &mut engines[1..] {
                        let mut sent = feed_batch(engine, now, shared(ingress, ports), &frames);
                        sent.sort();
                        prop_assert_eq!(&sent, &expected);
                    }
                    hosts.take(&apart);
                }
                Step::Install { group: n } => {
                    install_in(&mut engines, &group(n, generation));
                    hosts.restart(n);
                }
                Step::Collective => {
                    install_in(&mut engines, &collective);
                    hosts.restart_ranks();
                }
                Step::Links { .. } | Step::Remove { .. } => {}
            }
            let apart = state(&engines[0]);
            for engine in &engines[1..] {
                prop_assert_eq!(&state(engine), &apart);
                assert_conserved(engine);
            }
        }
    }
}

/// C4: a frame with the wrong QPN, port or address matches no endpoint, and is dropped.
#[test]
fn an_endpoint_is_believed_with_its_own_port_qpn_and_address_alone() {
    let mut engine = engine(PORTS);
    let mut rule = packed(&star(3), 1, 0);
    rule.endpoints[3].port = port(1);
    install(&mut engine, &rule);
    let data = DataFrame::new(castnet_wire::Opcode::SendOnly, 100, &[1; 64]).bytes();
    let mut told = 0;
    for (ingress, qpn, src) in (0..3).flat_map(|p| (0..8).flat_map(move |q| (0..4).map(move |s| (p, q, s)))) {
        let mut ack = DataFrame::new(castnet_wire::Opcode::SendOnly, 100, &[1; 64]);
        (ack.src, ack.ethernet) = (host_ip(src), ethernet(src));
        let frame = to_qpn(&ack.bytes(), Qpn::new(qpn));
        let right = (ingress, qpn, src) == (0, virtual_qpn(0).value(), 0);
        let sent = feed(&mut engine, T0, ingress, &frame);
        assert_eq!(
            !sent.is_empty(),
            right,
            "port {ingress}, QPN {qpn}, address {src}"
        );
        if right {
            assert_eq!(sent.len(), 3);
            told += 1;
        }
    }
    assert_eq!(told, 1);
    // Endpoints that are not the source get another drop reason than unknown senders.
    assert_eq!(drops(&engine, DropReason::NotSource), 3);
    assert_eq!(drops(&engine, DropReason::NotMember), 3 * 8 * 4 - 4);
    // The text for an unknown QPN lists the endpoints.
    engine
        .taps
        .arm_trace(TapId::all().next().unwrap(), FrameFilter::default(), 1);
    feed(&mut engine, T0, 0, &data);
    let steps = format!("{:?}", engine.taps.pop_trace(TapId::all().next().unwrap()));
    assert!(
        steps.contains("10.0.0.1 to QPN 0x2, 10.0.0.2 to QPN 0x3, 10.0.0.3 to QPN 0x4"),
        "{steps}"
    );
}

/// C4 with MAC addresses: a frame with the port, QPN and address of an endpoint that verifies MAC addresses, but another one, is dropped,
/// also in the middle of a run of its frames. On the fast path and on the slow path, for each kind of group.
#[test]
fn an_endpoint_that_verifies_its_mac_address_is_believed_with_that_alone() {
    let verified = |mut rule: GroupRule| {
        rule.endpoints[..2].iter_mut().for_each(|e| e.verify_mac = true);
        rule
    };
    let pair = |mut rule: GroupRule| {
        rule.endpoints.truncate(2);
        rule.kind = ForwardingRule {}.into();
        rule
    };
    let strange = |mut frame: Vec<u8>| {
        frame[6..12].copy_from_slice(&peer_mac(9).0);
        frame
    };
    // A valid frame, one of an unknown sender, and a valid one with the same PSN.
    let three = |frames: [Vec<u8>; 2]| [frames[0].clone(), strange(frames[1].clone()), frames[1].clone()];
    let jobs = [Job {
        primitive: Primitive::AllReduce,
        root: 0,
        data_type: DataType::I32,
        elements: 512,
        data: vec![vec![1; 2048]; 3],
    }];
    let ranks: Vec<Rank> = (0..3).map(|rank| Rank::new(rank, T0, &jobs)).collect();
    for (slow, kind) in [false, true]
        .into_iter()
        .flat_map(|slow| (0..4).map(move |kind| (slow, kind)))
    {
        let (rule, ingress, frames) = match kind {
            // Data of the source, and ACKs of a receiver.
            0 => (star(3), 0, [100, 101].map(|psn| send(psn, &[7; 64]))),
            1 => (star(3), 1, [100, 101].map(|psn| ack(1, psn, psn, Syndrome::Ack))),
            2 => (collective_star(3), 0, [0, 1].map(|i| ranks[0].frame(i))),
            _ => (pair(star(3)), 0, [100, 101].map(|psn| send(psn, &[7; 64]))),
        };
        let mut engine = engine(PORTS);
        let rule = verified(rule);
        install(&mut engine, &rule);
        if slow {
            let tap = TapId::all().next().unwrap();
            engine.taps.arm_capture(tap, FrameFilter::default(), 0, u64::MAX);
        }
        if kind == 1 {
            let data: Vec<_> = (100..103).map(|psn| send(psn, &[7; 64])).collect();
            feed_batch(&mut engine, T0, 0, &data);
        }
        let before = engine.totals();
        let sent = feed_batch(&mut engine, T0, ingress, &three(frames));
        assert_eq!(
            drops(&engine, DropReason::NotMember),
            1,
            "kind {kind}, slow {slow}"
        );
        let after = engine.totals();
        assert_eq!(after.dropped - before.dropped, 1);
        assert_conserved(&engine);
        // Two packets to each receiver; what else there is ends in the group.
        assert_eq!(
            sent.len(),
            [6, 0, sent.len(), 2][kind],
            "kind {kind}, slow {slow}"
        );
        match engine.status(rule.mcst_id) {
            Some(ContextStatus::Multicast(status)) if kind == 1 => {
                assert_eq!(status.machine.paths[0].ack_psn, Some(Psn::new(101)));
            }
            Some(ContextStatus::Collective(status)) => {
                assert_eq!(status.machine.endpoints[0].expected, status.machine.base.add(2));
            }
            _ => {}
        }
    }
    // Of endpoints that do not verify it, any will do.
    let mut engine = engine(PORTS);
    install(&mut engine, &verified(star(3)));
    feed_batch(&mut engine, T0, 0, &[send(100, &[7; 64])]);
    feed_batch(&mut engine, T0, 2, &[strange(ack(2, 100, 1, Syndrome::Ack))]);
    assert_eq!(drops(&engine, DropReason::NotMember), 0);
    // The trace of an unknown sender names the mismatch.
    let tap = TapId::all().next().unwrap();
    engine.taps.arm_trace(tap, FrameFilter::default(), 1);
    feed(&mut engine, T0, 0, &strange(send(101, &[7; 64])));
    let steps = format!("{:?}", engine.taps.pop_trace(tap));
    let says = "10.0.0.1 at 02:aa:00:00:00:00 to QPN 0x1; this is from 10.0.0.1 at 02:aa:00:00:00:09";
    assert!(steps.contains(says), "{steps}");
}
