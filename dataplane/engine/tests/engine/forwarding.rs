//! Forwarding: each frame of one endpoint is sent to the other one, equal to a newly built frame. All other frames are refused.

use std::sync::Arc;

use super::collective::drops;
use super::replication::{any_frame, twin};
use crate::common::*;
use castnet_engine::{Context, ContextStatus, CountersSnapshot, Engine, ForwardingStatus};
use castnet_rules::{Endpoint, ForwardingRule, GroupRule, NextHop};
use castnet_wire::{Aeth, DropReason, ExtHeaders, NakCode, Opcode, Pmtu, Qpn, Reth, Syndrome};
use proptest::prelude::*;

fn pair(endpoints: [Endpoint; 2]) -> GroupRule {
    GroupRule {
        pmtu: Pmtu::B4096,
        kind: ForwardingRule {}.into(),
        ..rule(endpoints.into())
    }
}

/// A host or a switch, adjacent or not: endpoint `n`, at a port and a QPN of its own, or with a QPN alone.
fn any_endpoint(n: usize, one_port: bool) -> impl Strategy<Value = Endpoint> {
    (prop::sample::select(vec![host, switch, far_switch]), 1..9_u32).prop_map(move |(hop, qpn)| {
        let mut endpoint = hop(n);
        if let NextHop::Switch { qpn: there, .. } = &mut endpoint.next_hop {
            *there = Qpn::new(qpn);
        }
        if one_port {
            endpoint.port = port(0);
        }
        endpoint.virtual_qpn = Qpn::new(2 * qpn + n as u32);
        endpoint
    })
}

fn any_pair() -> impl Strategy<Value = GroupRule> {
    any::<bool>()
        .prop_flat_map(|one_port| [any_endpoint(0, one_port), any_endpoint(1, one_port)].prop_map(pair))
}

/// Data, an ACK, a NAK or a CNP.
fn any_kind_of_frame() -> impl Strategy<Value = DataFrame> {
    let feedback = [
        (Opcode::Ack, Syndrome::Ack),
        (Opcode::Ack, Syndrome::Nak(NakCode::PsnSequenceError)),
        (Opcode::Cnp, Syndrome::Ack),
    ];
    let feedback = prop::option::of((prop::sample::select(Vec::from(feedback)), 0..1_u32 << 24));
    (any_frame(), feedback).prop_map(|(mut frame, feedback)| {
        if let Some(((opcode, syndrome), msn)) = feedback {
            (frame.opcode, frame.payload) = (opcode, Vec::new());
            frame.ext.aeth = Some(Aeth { syndrome, msn });
        }
        frame
    })
}

/// The frame as the endpoint sends it. Behind an adjacent switch the sender may be anybody.
fn sent_by(endpoint: &Endpoint, mut frame: DataFrame) -> DataFrame {
    frame.src = endpoint.next_hop.ip().unwrap_or([10, 7, 7, 7].into());
    frame.dest_qp = endpoint.virtual_qpn;
    frame.ethernet.src = endpoint.next_hop.mac();
    frame.ethernet.dst = port_mac(endpoint.port.index());
    frame
}

fn status(engine: &Engine) -> ForwardingStatus {
    match engine.status(MCST) {
        Some(ContextStatus::Forwarding(status)) => status,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Both ways, over ports of their own and over one, and with the group on the move.
    #[test]
    fn each_frame_is_what_building_it_anew_gives(
        rule in any_pair(),
        frames in prop::collection::vec((any_kind_of_frame(), 0..2_usize, any::<bool>(), 0..3_usize), 1..8),
    ) {
        let mut engine = engine(3);
        install(&mut engine, &rule);
        let (mut taken, forwarded) = ([0; 2], frames.len() as u64);
        for (frame, from, moves, padding) in frames {
            let [sender, receiver] = [from, 1 - from].map(|i| &rule.endpoints[i]);
            let mut original = sent_by(sender, frame).bytes();
            original.resize(original.len() + padding, 0xEE);
            let ingress = sender.port;
            let dry = engine.trace(T0, ingress, &original);
            let sent = feed(&mut engine, T0, ingress.index(), &original);
            let expected = twin(&original, &rule, receiver);
            prop_assert!(is_sound(&expected));
            let dry: Vec<_> = dry.sent.into_iter().map(|sent| (sent.port.index(), sent.bytes)).collect();
            prop_assert_eq!(&dry, &sent);
            prop_assert_eq!(sent, [(receiver.port.index(), expected)]);
            assert_conserved(&engine);
            taken[from] += 1;
            if moves {
                move_on(&mut engine, T0);
            }
        }
        let status = status(&engine);
        prop_assert_eq!((status.counters.forwarded, status.counters.dropped), (forwarded, 0));
        prop_assert_eq!(&status.rule, &rule.in_order());
        let counted: Vec<_> = status.endpoints.iter().map(|e| (e.frames_in, e.frames_out)).collect();
        prop_assert_eq!(counted, [(taken[0], taken[1]), (taken[1], taken[0])]);
        prop_assert_eq!(engine.poll_timeout(), None);
    }
}

/// C4, and the other checks that all kinds share.
#[test]
fn what_is_not_of_the_group_is_refused_and_counted() {
    let rule = GroupRule {
        pmtu: Pmtu::B1024,
        ..pair([host(0), host(1)])
    };
    let mut engine = engine(3);
    install(&mut engine, &rule);
    let good = sent_by(&rule.endpoints[0], DataFrame::new(Opcode::SendOnly, 7, &[1; 64]));
    let spoiled = |spoil: &dyn Fn(&mut DataFrame)| {
        let mut frame = good.clone();
        spoil(&mut frame);
        frame.bytes()
    };
    let read = ExtHeaders {
        reth: Some(Reth {
            va: 0,
            rkey: 1,
            dma_len: 64,
        }),
        ..ExtHeaders::NONE
    };
    let mut bad_checksum = good.bytes();
    bad_checksum[24] ^= 1;
    let refused = [
        (1, good.bytes(), DropReason::NotMember),
        (2, good.bytes(), DropReason::NotMember),
        (0, spoiled(&|f| f.dest_qp = Qpn::new(2)), DropReason::NotMember),
        (0, spoiled(&|f| f.src = host_ip(1)), DropReason::NotMember),
        (
            0,
            spoiled(&|f| (f.opcode, f.payload, f.ext) = (Opcode::ReadRequest, Vec::new(), read)),
            DropReason::NotMulticastable,
        ),
        (0, spoiled(&|f| f.payload = vec![0; 1028]), DropReason::OverPmtu),
        (0, bad_checksum, DropReason::BadIpChecksum),
    ];
    let count = refused.len() as u64;
    for (ingress, frame, reason) in refused {
        let before = drops(&engine, reason);
        assert_eq!(feed(&mut engine, T0, ingress, &frame), [], "{reason}");
        assert_eq!(drops(&engine, reason), before + 1, "{reason}");
    }
    // A wrong ICRC stays wrong: nothing here depends on it.
    let mut corrupt = good.bytes();
    *corrupt.last_mut().unwrap() ^= 1;
    let sent = feed(&mut engine, T0, 0, &corrupt);
    assert!(sent.len() == 1 && !is_sound(&sent[0].1));
    let up = crate::common::tables(1, [MCST], &[], [port(0)]);
    engine.set_tables(T0, Arc::new(up));
    assert_eq!(feed(&mut engine, T0, 0, &good.bytes()), []);
    assert_eq!(drops(&engine, DropReason::PortDown), 1);
    let counters = status(&engine).counters;
    assert_eq!((counters.forwarded, counters.dropped), (1, count + 1));
    assert_conserved(&engine);
}

#[test]
fn it_takes_little_memory_and_gives_it_back() {
    let rule = pair([host(0), switch(1)]);
    let mut engine = engine(3);
    assert_eq!(Context::reserved(&rule, &engine.config().ports), Ok(None));
    install(&mut engine, &rule);
    let said = status(&engine).memory_bytes;
    assert_eq!(engine.group_memory_bytes(), said);
    assert!(said < 2048, "{said} bytes");
    let mut snapshot = CountersSnapshot::with_capacity(1, 2);
    engine.snapshot(&mut snapshot);
    let group = &snapshot.forwarding.groups[0];
    assert_eq!((group.mcst_id, group.generation), (MCST, 1));
    assert_eq!(snapshot.forwarding.endpoints_of(group), status(&engine).endpoints);
    assert!(engine.remove(MCST).is_some());
    assert_eq!(engine.group_memory_bytes(), 0);
}
