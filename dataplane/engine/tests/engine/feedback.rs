//! Feedback to the source and to the switch above: valid frames with the decision of the machine.

use std::collections::BTreeSet;

use crate::batches::feed_batch;
use crate::common::*;
use castnet_engine::EventKind;
use castnet_engine::plain::PlainEgress;
use castnet_rules::{GroupRule, MulticastRule};
use castnet_wire::{
    Aeth, AnySource, DropReason, Ethernet, IpAddrs, Ipv4, McstId, NakCode, Nanos, Opcode, Psn, Qpn, RnrTimer,
    Syndrome, VlanTag, icrc,
};
use proptest::prelude::*;

const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

fn said(frame: &[u8]) -> (u32, Syndrome, u32) {
    let header = roce(frame);
    assert!(is_sound(frame));
    let aeth = header.aeth.expect("an acknowledge packet");
    (header.bth.psn.value(), aeth.syndrome, aeth.msn)
}

#[test]
fn an_ack_reaches_the_source_when_the_last_receiver_has_sent_it() {
    let mut engine = star_switch(3);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    assert_eq!(feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack)), []);
    assert_eq!(feed(&mut engine, T0, 3, &ack(3, 100, 1, Syndrome::Ack)), []);
    let sent = feed(&mut engine, T0, 2, &ack(2, 100, 1, Syndrome::Ack));
    let [(port, frame)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((*port, said(frame)), (0, (100, Syndrome::Ack, 1)));
    let header = roce(frame);
    assert_eq!(
        header.ip,
        IpAddrs::V4 {
            src: MCST.0,
            dst: host_ip(0)
        }
    );
    assert_eq!(
        (header.bth.dest_qp, header.bth.opcode, header.bth.pkey),
        (host_qpn(0), Opcode::Ack, 0xFFFF)
    );
    let (ethernet, l3) = Ethernet::parse(frame).unwrap();
    assert_eq!(
        (ethernet.dst, ethernet.src, ethernet.vlan),
        (peer_mac(0), port_mac(0), None)
    );
    let (ip, _) = Ipv4::parse(&frame[l3..]).unwrap();
    assert_eq!(
        (ip.ttl, ip.ident, ip.flags_frag, frame.len()),
        (64, 0, 0x4000, 62)
    );
    assert!(header.sport >= 0xC000);
    assert_eq!(frame[l3 + 40], 0x1F, "no end-to-end credits");
    let c = engine.group_status(MCST).unwrap().counters;
    assert_eq!((c.acks_in, c.acks_out), (3, 1));
    assert_conserved(&engine);
}

#[test]
fn a_gap_is_told_with_all_before_it_acknowledged_first() {
    let mut engine = star_switch(2);
    for psn in 100..104 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    // The receiver at port 1 has all; the other lacks 102.
    assert_eq!(feed(&mut engine, T0, 1, &ack(1, 103, 4, Syndrome::Ack)), []);
    let sent = feed(&mut engine, T0, 2, &ack(2, 102, 2, GAP));
    let said: Vec<_> = sent.iter().map(|(port, frame)| (*port, said(frame))).collect();
    assert_eq!(said, [(0, (101, Syndrome::Ack, 2)), (0, (102, GAP, 2))]);
    let c = engine.group_status(MCST).unwrap().counters;
    assert_eq!((c.naks_in, c.naks_out, c.acks_out), (1, 1, 1));
    assert_conserved(&engine);
}

#[test]
fn where_no_buffer_is_free_the_nak_takes_the_frame_it_came_in() {
    let mut engine = star_switch(2);
    for psn in 100..104 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    feed(&mut engine, T0, 1, &ack(1, 103, 4, Syndrome::Ack));
    let mut egress = PlainEgress {
        buffers: Some(0),
        ..PlainEgress::default()
    };
    feed_into(&mut engine, T0, 2, &ack(2, 102, 2, GAP), &mut egress);
    let sent = taken(egress);
    assert_eq!(
        sent.iter().map(|(_, frame)| said(frame)).collect::<Vec<_>>(),
        [(102, GAP, 2)]
    );
    assert_eq!(engine.group_status(MCST).unwrap().counters.lost, 1);
    assert_conserved(&engine);
}

#[test]
fn to_the_switch_above_feedback_keeps_the_groups_address() {
    let mut engine = engine(4);
    install(&mut engine, &rule(vec![switch(0), host(1), host(2)]));
    let mut data = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
    data.src = [10, 7, 7, 7].into();
    feed(&mut engine, T0, 0, &data.bytes());
    feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    let sent = feed(&mut engine, T0, 2, &ack(2, 100, 1, Syndrome::Ack));
    let header = roce(&sent[0].1);
    assert_eq!(
        header.ip,
        IpAddrs::V4 {
            src: MCST.0,
            dst: MCST.0
        }
    );
    assert_eq!(
        (header.bth.dest_qp, sent[0].0, said(&sent[0].1).0),
        (Qpn::VIRTUAL, 0, 100)
    );
    // And the switch above takes it: there this one is the path at its port 1.
    let mut above = engine_above();
    feed(&mut above, T0, 0, &send(100, &[1; 64]));
    let up = feed(&mut above, T0, 1, &sent[0].1);
    assert_eq!(said(&up[0].1), (100, Syndrome::Ack, 1));
    assert_eq!(
        roce(&up[0].1).ip,
        IpAddrs::V4 {
            src: MCST.0,
            dst: host_ip(0)
        }
    );
}

fn engine_above() -> castnet_engine::Engine {
    let mut above = engine(2);
    install(&mut above, &rule(vec![host(0), switch(1)]));
    above
}

#[test]
fn a_cnp_reaches_the_source() {
    let mut engine = star_switch(2);
    let sent = feed(&mut engine, T0, 2, &cnp(2));
    let header = roce(&sent[0].1);
    assert!(is_sound(&sent[0].1));
    assert_eq!(
        (header.bth.opcode, header.bth.becn, header.bth.dest_qp),
        (Opcode::Cnp, true, host_qpn(0))
    );
    assert_eq!((sent[0].0, sent[0].1.len()), (0, 74));
    let status = engine.group_status(MCST).unwrap();
    assert_eq!(
        (
            status.counters.cnps_in,
            status.counters.cnps_out,
            status.paths[2].counters.cnps_in
        ),
        (1, 1, 1)
    );
}

/// M4: the CNPs of the most congested path, and in its place those of another one once that has sent more.
#[test]
fn cnps_of_less_congested_paths_are_absorbed_and_counted() {
    let mut engine = star_switch(3);
    let mut forwarded = |now, member| feed(&mut engine, now, member, &cnp(member)).len();
    let sent: Vec<usize> = [2, 2, 1, 3, 2, 1, 1, 1, 1]
        .map(|member| forwarded(T0, member))
        .to_vec();
    assert_eq!(sent, [1, 1, 0, 0, 1, 0, 0, 1, 1]);
    // Four windows later nothing is left of the counts.
    assert_eq!(forwarded(T0 + Nanos::from_millis(4), 3), 1);
    let status = engine.group_status(MCST).unwrap();
    let c = status.counters;
    assert_eq!((c.cnps_in, c.cnps_out, c.cnps_filtered), (10, 6, 4));
    let degrees: Vec<u16> = status.machine.paths.iter().map(|path| path.cnps).collect();
    assert_eq!(degrees, [0, 0, 1]);
    assert_conserved(&engine);
}

#[test]
fn feedback_with_a_wrong_icrc_changes_nothing() {
    let mut engine = star_switch(1);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    let before = engine.group_status(MCST).unwrap().machine;
    for at in 14 + 28 + 8..14 + 48 {
        let mut bad = ack(1, 100, 1, Syndrome::Ack);
        bad[at] ^= 0x01;
        assert_eq!(feed(&mut engine, T0, 1, &bad), [], "byte {at}");
    }
    assert_eq!(engine.group_status(MCST).unwrap().machine, before);
    let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(1, 8);
    engine.snapshot(&mut snapshot);
    assert_eq!(
        snapshot.drops[DropReason::BadIcrc] + snapshot.drops[DropReason::Malformed],
        12
    );
    assert_eq!(feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack)).len(), 1);
}

#[test]
fn a_source_that_missed_its_ack_gets_it_again() {
    let mut engine = star_switch(1);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    let mut again = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]).vlan(7);
    again.ack_request = true;
    let sent = feed(&mut engine, T0, 0, &again.bytes());
    let [(0, frame)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(said(frame), (100, Syndrome::Ack, 1));
    assert_eq!(Ethernet::parse(frame).unwrap().0.vlan, Some(VlanTag::new(7)));
    let totals = engine.totals();
    assert_eq!((totals.absorbed, totals.originated), (2, 2));
    assert_conserved(&engine);
}

#[test]
fn a_member_that_fails_and_a_first_psn_that_was_learned_are_told() {
    let mut engine = engine(4);
    install(&mut engine, &star(2).with_multicast(|rule| rule.start_psn = None));
    feed(&mut engine, T0, 0, &send(5000, &[1; 64]));
    let fatal = Syndrome::Nak(NakCode::RemoteAccessError);
    // Neither of what was not sent, nor again.
    for psn in [5001, 4_000_000, 5000, 5000] {
        feed(&mut engine, T0, 2, &ack(2, psn, 0, fatal));
    }
    let events: Vec<EventKind> = core::iter::from_fn(|| engine.pop_event())
        .map(|e| e.kind)
        .collect();
    assert_eq!(
        events,
        [
            EventKind::BaselineLearned {
                mcst_id: MCST,
                psn: Psn::new(5000)
            },
            EventKind::MemberFailed {
                mcst_id: MCST,
                generation: star(2).generation,
                endpoint: 2,
                syndrome: 0x62
            },
        ]
    );
}

/// Who has failed acknowledges a packet, fails again, and so on.
#[test]
fn a_member_that_fails_again_and_again_is_told_once() {
    let mut engine = star_switch(2);
    for psn in 100..120 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    let fatal = Syndrome::Nak(NakCode::RemoteOperationalError);
    for psn in 100..119 {
        feed(&mut engine, T0, 2, &ack(2, psn, 1, Syndrome::Ack));
        feed(&mut engine, T0, 2, &ack(2, psn + 1, 1, fatal));
    }
    let events: Vec<EventKind> = core::iter::from_fn(|| engine.pop_event())
        .map(|e| e.kind)
        .collect();
    let failed = |kind: &&EventKind| matches!(kind, EventKind::MemberFailed { .. });
    assert_eq!(events.iter().filter(failed).count(), 1, "{events:?}");
    // The source learns of it when the others have what came before.
    let sent = feed(&mut engine, T0, 1, &ack(1, 118, 1, Syndrome::Ack));
    let said: Vec<_> = sent
        .iter()
        .map(|(_, frame)| (said(frame).0, said(frame).1))
        .collect();
    assert_eq!(said, [(118, Syndrome::Ack), (119, fatal)]);
}

/// The controller is to put the receiver out: the source gets nothing of its NAK. A switch above does not decide for those below it.
#[test]
fn a_fatal_nak_that_is_held_is_told_and_not_sent() {
    let fatal = Syndrome::Nak(NakCode::RemoteAccessError);
    let (acked, refused) = ((100, Syndrome::Ack), (101, fatal));
    for (refuses, wanted) in [(2, vec![acked]), (3, vec![acked, refused])] {
        let mut engine = engine(4);
        let group = rule(vec![host(0), host(1), host(2), switch(3)]);
        install(
            &mut engine,
            &group.with_multicast(|kind| kind.hold_fatal_naks = true),
        );
        for psn in 100..103 {
            feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
        }
        for other in (1..4).filter(|other| *other != refuses) {
            assert_eq!(
                feed(&mut engine, T0, other, &ack(other, 102, 3, Syndrome::Ack)),
                []
            );
        }
        let mut again = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
        again.ack_request = true;
        for (from, frame) in [(refuses, ack(refuses, 101, 1, fatal)), (0, again.bytes())] {
            let sent = feed(&mut engine, T0, from, &frame);
            assert!(sent.iter().all(|(port, _)| *port == 0), "{sent:?}");
            let said: Vec<_> = sent
                .iter()
                .map(|(_, frame)| (said(frame).0, said(frame).1))
                .collect();
            assert_eq!(said, wanted, "from {from}");
        }
        let kinds = core::iter::from_fn(|| engine.pop_event()).map(|event| event.kind);
        let failed = EventKind::MemberFailed {
            mcst_id: MCST,
            generation: 1,
            endpoint: refuses as u16,
            syndrome: 0x62,
        };
        assert_eq!(kinds.collect::<Vec<_>>(), [failed]);
    }
}

/// Two members send in turn while a third one wants to, too.
#[test]
fn members_that_compete_displace_no_other_events() {
    let mut engine = engine(4);
    let any_source = |kind: &mut MulticastRule| kind.any_source = Some(AnySource::Bridged);
    install(&mut engine, &star(2).with_multicast(any_source));
    let mut sent = [0u32; 3];
    let mut told = |now| {
        let mut competing = 0;
        for turn in 0..20 {
            let (source, next) = (turn % 2, (turn + 1) % 2);
            for host in [source, next, 2] {
                let mut frame = DataFrame::new(Opcode::SendOnly, 100 + sent[host], &[1; 64]);
                (frame.src, frame.ethernet) = (host_ip(host), ethernet(host));
                feed(&mut engine, now, host, &frame.bytes());
            }
            sent[source] += 1;
            let newest = 99 + sent.iter().sum::<u32>();
            for host in [next, 2] {
                feed(
                    &mut engine,
                    now,
                    host,
                    &ack(host, newest - sent[host], 1, Syndrome::Ack),
                );
            }
            let events = core::iter::from_fn(|| engine.pop_event());
            competing += events
                .filter(|event| matches!(event.kind, EventKind::SourcesCompete { .. }))
                .count();
        }
        competing
    };
    assert_eq!((told(T0), told(T0 + Nanos::from_millis(100))), (8, 1));
}

#[test]
fn a_path_that_owes_acknowledgements_is_reported_in_time() {
    let mut engine = star_switch(2);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    let mut egress = PlainEgress::default();
    let mut reported = None;
    while let Some(at) = engine.poll_timeout().filter(|at| *at < T0 + Nanos::from_secs(4)) {
        engine.handle_timeout(at, &mut egress);
        if let Some(event) = engine.pop_event() {
            reported = Some(event);
            break;
        }
    }
    let event = reported.expect("a report");
    assert_eq!(
        event.kind,
        EventKind::PathStalled {
            mcst_id: MCST,
            generation: 1,
            endpoint: 2,
            since: T0,
            tries: 0
        }
    );
    let late = event.at.since(T0 + Nanos::from_secs(2));
    assert!(
        event.at >= T0 + Nanos::from_secs(2) && late < Nanos::from_millis(10),
        "{late}"
    );
    // With everything acknowledged the timer ends.
    feed(&mut engine, event.at, 2, &ack(2, 100, 1, Syndrome::Ack));
    for _ in 0..4 {
        if let Some(at) = engine.poll_timeout() {
            engine.handle_timeout(at, &mut egress);
        }
    }
    assert_eq!(engine.poll_timeout(), None);
    assert!(egress.sent.is_empty());
}

/// Frames are handled in between: no call handles all groups that are due. None is forgotten, and none is late.
#[test]
fn many_groups_that_stall_at_once_are_reported_some_at_a_time() {
    const GROUPS: usize = 1000;
    let mut engine = engine(3);
    for n in 0..GROUPS {
        let mcst_id = McstId([10, 9, 1 + (n >> 8) as u8, n as u8].into());
        let group = GroupRule {
            name: format!("g{n}"),
            mcst_id,
            ..star(1)
        };
        install(&mut engine, &group);
        let mut data = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
        data.dst = mcst_id.0;
        assert_eq!(feed(&mut engine, T0, 0, &data.bytes()).len(), 1);
    }
    let mut egress = PlainEgress::default();
    let (mut stalled, mut times, mut calls) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut now = T0;
    while stalled.len() < GROUPS {
        let due = engine.poll_timeout().expect("groups that are waited for");
        now = now.max(due);
        engine.handle_timeout(now, &mut egress);
        let before = stalled.len();
        while let Some(event) = engine.pop_event() {
            if let EventKind::PathStalled { mcst_id, .. } = event.kind {
                assert!(stalled.insert(mcst_id), "{mcst_id} is reported twice");
                times.insert(event.at);
            }
        }
        assert!(stalled.len() - before <= 256, "{}", stalled.len() - before);
        calls += 1;
        assert!(calls < 1000, "{} of the groups are reported", stalled.len());
    }
    assert_eq!(times.len(), 1, "{times:?}");
    assert!(engine.poll_timeout() > Some(now), "nothing is due any more");
}

fn any_syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        6 => Just(Syndrome::Ack),
        3 => Just(GAP),
        1 => (0u8..32).prop_map(|t| Syndrome::RnrNak(RnrTimer::new(t))),
    ]
}

proptest! {
    /// Any feedback: what goes to the source is valid, and acknowledges nothing that a receiver has not (M1, M2).
    #[test]
    fn the_source_hears_only_valid_frames_and_never_too_much(
        steps in prop::collection::vec((1usize..4, 95u32..115, 0u32..50, any_syndrome(), any::<bool>()), 1..60),
    ) {
        let mut engine = star_switch(3);
        for psn in 100..110 {
            feed(&mut engine, T0, 0, &send(psn, &[1; 16]));
        }
        let mut has = [0, 99, 99, 99];
        for (n, psn, msn, syndrome, tagged) in steps {
            let mut frame = ack(n, psn, msn, syndrome);
            if tagged {
                frame.splice(12..12, [0x81, 0, 0, 7]);
            }
            let told = if syndrome == Syndrome::Ack { psn } else { psn - 1 };
            if told < 110 {
                has[n] = has[n].max(told);
            }
            let floor = has[1..].iter().min().copied().unwrap();
            for (port, frame) in feed(&mut engine, T0, n, &frame) {
                prop_assert_eq!(port, 0);
                // As the source's data, whatever a receiver writes.
                prop_assert!(Ethernet::parse(&frame).unwrap().0.vlan.is_none());
                let (psn, syndrome, _) = said(&frame);
                let acknowledged = if syndrome == Syndrome::Ack { psn } else { psn - 1 };
                prop_assert!(acknowledged <= floor, "{syndrome} of {psn}, receivers have {has:?}");
            }
        }
        assert_conserved(&engine);
    }
}

/// A receiver whose ACK came last chose the VLAN and the class of service of what the source got: it could keep all ACKs from it.
#[test]
fn feedback_has_the_tags_of_the_sources_data() {
    for tags in [&[][..], &[0x81, 0, 0, 5]] {
        let data = |psn| {
            let mut frame = send(psn, &[1; 16]);
            frame.splice(12..12, tags.iter().copied());
            frame
        };
        let like_data = |frame: &[u8]| frame[12..12 + tags.len() + 2] == data(0)[12..12 + tags.len() + 2];
        let mut engine = star_switch(2);
        feed(&mut engine, T0, 0, &data(100));
        for (psn, syndrome) in [(100, Syndrome::Ack), (101, GAP), (102, Syndrome::Ack)] {
            feed(&mut engine, T0, 0, &data(psn + 1));
            assert!(feed(&mut engine, T0, 1, &ack(1, psn, 1, Syndrome::Ack)).is_empty());
            let mut last = ack(2, psn, 1, syndrome);
            last.splice(12..12, [0x81, 0, 3, 0xE7]);
            let sent = feed(&mut engine, T0, 2, &last);
            assert!(!sent.is_empty(), "{tags:?} {psn}");
            for (port, frame) in &sent {
                assert!(
                    *port == 0 && is_sound(frame) && like_data(frame),
                    "{tags:?} {psn}"
                );
            }
        }
    }
}

/// Over the fast path, where packets of one run may have several classes of service.
#[test]
fn feedback_has_the_class_of_service_of_the_last_data() {
    let mut engine = star_switch(2);
    let data = |psn, tos| {
        let mut frame = DataFrame::new(Opcode::SendOnly, psn, &[1; 64]);
        frame.tos = tos;
        frame.bytes()
    };
    let answer = |n, psn| {
        let mut frame = DataFrame::new(Opcode::Ack, psn, &[]);
        (frame.src, frame.ethernet, frame.tos) = (host_ip(n), ethernet(n), 0xB8);
        frame.ext.aeth = Some(Aeth {
            syndrome: Syndrome::Ack,
            msn: 1,
        });
        frame.bytes()
    };
    for (psn, before, last) in [(101, 0x68, 0x68), (103, 0x68, 0x20), (105, 0x22, 0x6B)] {
        let frames = [data(psn - 1, before), data(psn, last)];
        feed_batch(&mut engine, T0, 0, &frames);
        assert_eq!(feed(&mut engine, T0, 1, &answer(1, psn)), []);
        let sent = feed(&mut engine, T0, 2, &answer(2, psn));
        let [(0, frame)] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(said(frame).0, psn);
        assert_eq!(roce(frame).tos, last & 0xFC, "PSN {psn}");
    }
}

/// The NAK of a receiver with a VLAN of its own. Those of the other one are not sent after it, so the source must get it.
#[test]
fn a_nak_with_tags_reaches_the_source_without_them() {
    let mut engine = star_switch(2);
    for psn in 100..103 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    assert_eq!(feed(&mut engine, T0, 2, &ack(2, 100, 1, Syndrome::Ack)), []);
    let mut tagged = ack(1, 101, 1, GAP);
    tagged.splice(12..12, [0x81, 0, 3, 0xE7]);
    let sent = feed(&mut engine, T0, 1, &tagged);
    let told: Vec<_> = sent.iter().map(|(port, frame)| (*port, said(frame))).collect();
    assert_eq!(told, [(0, (100, Syndrome::Ack, 1)), (0, (101, GAP, 1))]);
    for (_, frame) in &sent {
        assert_eq!(Ethernet::parse(frame).unwrap().0.vlan, None);
        assert_eq!(roce(frame).tos, roce(&send(0, &[])).tos);
    }
    assert_eq!(feed(&mut engine, T0, 2, &ack(2, 101, 1, GAP)), []);
    assert_conserved(&engine);
}

/// The last ACK of one source is also what lets the next one send: each gets feedback with its own tags, and nobody those of the receiver.
#[test]
fn where_the_source_changes_each_member_has_its_own_tags() {
    const VLANS: [u8; 3] = [5, 6, 7];
    let mut engine = engine(4);
    let any_source = |kind: &mut MulticastRule| kind.any_source = Some(AnySource::Bridged);
    install(&mut engine, &star(2).with_multicast(any_source));
    let data = |n: usize| {
        let mut frame = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
        (frame.src, frame.ethernet) = (host_ip(n), ethernet(n));
        frame.vlan(VLANS[n].into()).bytes()
    };
    let answer = |n: usize| {
        let mut frame = ack(n, 100, 1, Syndrome::Ack);
        frame.splice(12..12, [0x81, 0, 0, VLANS[n]]);
        frame
    };
    assert_eq!(feed(&mut engine, T0, 0, &data(0)).len(), 2);
    assert_eq!(feed(&mut engine, T0, 1, &data(1)), []);
    assert_eq!(feed(&mut engine, T0, 1, &answer(1)), []);
    let trace = engine.trace(T0, port(2), &answer(2));
    let sent = feed(&mut engine, T0, 2, &answer(2));
    let dry = trace.sent.iter().map(|s| (s.port.index(), s.bytes.clone()));
    let dry: Vec<_> = dry.collect();
    assert_eq!(dry, sent, "a dry run knows the tags");
    let told: Vec<_> = sent
        .iter()
        .map(|(port, frame)| {
            let vlan = Ethernet::parse(frame).unwrap().0.vlan;
            (*port, said(frame).1, vlan)
        })
        .collect();
    let vlan = |n: usize| Some(VlanTag::new(VLANS[n].into()));
    assert_eq!(told, [(0, Syndrome::Ack, vlan(0)), (1, GAP, vlan(1))]);
    assert_conserved(&engine);
}

#[test]
fn padding_behind_feedback_does_no_harm() {
    let mut engine = star_switch(1);
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    let mut padded = ack(1, 100, 1, Syndrome::Ack);
    padded.extend([0xEE; 6]);
    let sent = feed(&mut engine, T0, 1, &padded);
    assert_eq!(said(&sent[0].1), (100, Syndrome::Ack, 1));
    assert_eq!(sent[0].1.len(), 62);
    let header = roce(&sent[0].1);
    assert!(icrc::verify_bytes(&sent[0].1, header.l3, header.frame_len));
}
