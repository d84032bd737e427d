//! Groups that repair losses: what is kept, what is sent again and to whom, and what the source and other switches are asked.

use crate::common::{feed as feed_only, *};
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine};
use castnet_rules::{Endpoint, GroupKind, GroupRule, RepairRule};
use castnet_wire::{NakCode, Nanos, Opcode, Reth, Syndrome};

const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
/// The tick is 10 us.
const REPAIR: RepairRule = RepairRule {
    slots: 4,
    ack_timeout_us: 640,
};

fn repairing(endpoints: Vec<Endpoint>) -> GroupRule {
    let mut rule = rule(endpoints);
    if let GroupKind::Multicast(kind) = &mut rule.kind {
        kind.repair = Some(REPAIR);
    }
    rule
}

fn switch_of(endpoints: Vec<Endpoint>) -> Engine {
    let mut engine = engine(endpoints.len() + 1);
    install(&mut engine, &repairing(endpoints));
    engine
}

/// Port, opcode, PSN and AckReq of each frame. All are sound.
fn seen(sent: &[(usize, Vec<u8>)]) -> Vec<(usize, Opcode, u32, bool)> {
    let one = |(port, frame): &(usize, Vec<u8>)| {
        let header = roce(frame);
        assert!(is_sound(frame), "PSN {} to {port}", header.bth.psn);
        let bth = header.bth;
        (*port, bth.opcode, bth.psn.value(), bth.ack_request)
    };
    sent.iter().map(one).collect()
}

/// One frame, and what is sent after the batch.
fn feed(engine: &mut Engine, now: Nanos, ingress: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut sent = feed_only(engine, now, ingress, frame);
    sent.extend(tick(engine, now));
    sent
}

/// Frames that an iteration sends.
pub(crate) fn tick(engine: &mut Engine, now: Nanos) -> Vec<(usize, Vec<u8>)> {
    let mut egress = PlainEgress::default();
    engine.handle_timeout(now, &mut egress);
    taken(egress)
}

#[test]
fn a_nak_is_answered_from_the_ring_and_not_sent_on() {
    let mut engine = switch_of((0..3).map(host).collect());
    let mut first = Vec::new();
    for psn in 100..103 {
        let sent = feed(&mut engine, T0, 0, &send(psn, &[psn as u8; 64]));
        assert_eq!(sent.len(), 2);
        first.push(sent[1].1.clone());
    }
    let sent = feed(&mut engine, T0, 2, &ack(2, 101, 1, GAP));
    let again = |psn| (2, Opcode::SendOnly, psn, true);
    assert_eq!(seen(&sent), [again(101), again(102)]);
    // As the first time, but for AckReq and the ICRC.
    for (sent, first) in sent.iter().zip(&first[1..]) {
        let (mut frame, end) = (sent.1.clone(), first.len() - 4);
        frame[14 + 20 + 8 + 8] &= 0x7F;
        assert_eq!(frame[..end], first[..end]);
    }
    // A second NAK of the same gap finds the packets on their way.
    assert_eq!(feed(&mut engine, T0, 2, &ack(2, 101, 1, GAP)), []);
    assert_eq!(feed(&mut engine, T0, 2, &ack(2, 102, 3, Syndrome::Ack)), []);
    let sent = feed(&mut engine, T0, 1, &ack(1, 102, 3, Syndrome::Ack));
    assert_eq!(seen(&sent), [(0, Opcode::Ack, 102, false)]);
    let status = engine.group_status(MCST).unwrap();
    let c = status.counters;
    assert_eq!(
        (c.kept, c.resent, c.naks_in, c.naks_out, c.copies_out),
        (3, 2, 2, 0, 8)
    );
    let copies: Vec<u64> = status.paths.iter().map(|path| path.copies_out).collect();
    assert_eq!(copies, [0, 3, 5]);
    assert_conserved(&engine);
}

/// The address and key of a WRITE are those of the member, also the second time.
#[test]
fn a_write_is_rewritten_again() {
    let mut engine = switch_of((0..3).map(host).collect());
    let reth = Reth {
        va: VA_BASE + 8,
        rkey: 0,
        dma_len: 32,
    };
    let write = |psn| {
        let mut frame = DataFrame::new(Opcode::WriteOnly, psn, &[7; 32]).vlan(9);
        frame.ext.reth = Some(reth);
        frame.bytes()
    };
    let first = feed(&mut engine, T0, 0, &write(100));
    feed(&mut engine, T0, 0, &write(101));
    let sent = feed(&mut engine, T0, 1, &ack(1, 100, 0, GAP));
    assert_eq!(seen(&sent).len(), 2);
    assert_eq!(roce(&sent[0].1).reth, roce(&first[0].1).reth);
    assert_ne!(roce(&sent[0].1).reth, Some(reth));
    assert_conserved(&engine);
}

/// What the ring cannot hold is sent once, and a NAK of it goes to the source.
#[test]
fn beyond_the_ring_the_source_repairs() {
    let mut engine = switch_of((0..2).map(host).collect());
    for psn in 100..106 {
        assert_eq!(feed(&mut engine, T0, 0, &send(psn, &[1; 64])).len(), 1);
    }
    let sent = feed(&mut engine, T0, 1, &ack(1, 104, 4, GAP));
    assert_eq!(
        seen(&sent),
        [(0, Opcode::Ack, 103, false), (0, Opcode::Ack, 104, false)]
    );
    let aeth = roce(&sent[1].1).aeth.map(|aeth| aeth.syndrome);
    assert_eq!(aeth, Some(GAP));
    let sent = feed(&mut engine, T0, 0, &send(104, &[1; 64]));
    assert_eq!(seen(&sent), [(1, Opcode::SendOnly, 104, false)]);
    assert_eq!(engine.group_status(MCST).unwrap().counters.kept, 5);
}

/// Packets behind a gap wait for it; the source gets a NAK when the receivers have acknowledged what is before.
#[test]
fn a_gap_from_the_source_is_filled_in_order() {
    let mut engine = switch_of((0..2).map(host).collect());
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    // The receiver is asked for an acknowledgement.
    let sent = feed(&mut engine, T0, 0, &send(102, &[1; 64]));
    assert_eq!(seen(&sent), [(1, Opcode::SendOnly, 100, true)]);
    assert_eq!(feed(&mut engine, T0, 0, &send(103, &[1; 64])), []);
    let sent = feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    assert_eq!(
        seen(&sent),
        [(0, Opcode::Ack, 100, false), (0, Opcode::Ack, 101, false)]
    );
    assert_eq!(roce(&sent[1].1).aeth.map(|aeth| aeth.syndrome), Some(GAP));
    let sent = feed(&mut engine, T0, 0, &send(101, &[1; 64]));
    let data = |psn, asks| (1, Opcode::SendOnly, psn, asks);
    assert_eq!(seen(&sent), [data(101, false), data(102, false), data(103, true)]);
    // One ACK covers all of it.
    let sent = feed(&mut engine, T0, 1, &ack(1, 103, 4, Syndrome::Ack));
    assert_eq!(seen(&sent), [(0, Opcode::Ack, 103, false)]);
    assert_conserved(&engine);
}

/// Between switches, one packet is asked for, and nothing is acknowledged.
#[test]
fn a_switch_asks_the_switch_above_for_one_packet() {
    let mut lower = switch_of(vec![switch(0), host(1)]);
    let data = |psn| {
        let mut frame = DataFrame::new(Opcode::SendOnly, psn, &[1; 64]);
        frame.ethernet = ethernet(0);
        frame.bytes()
    };
    feed(&mut lower, T0, 0, &data(100));
    let asked = feed(&mut lower, T0, 0, &data(102));
    assert_eq!(seen(&asked), [(0, Opcode::RepairRequest, 101, false)]);
    assert_eq!(feed(&mut lower, T0, 0, &data(103)), []);

    let mut upper = switch_of(vec![host(0), switch(1), host(2)]);
    for psn in 100..104 {
        feed(&mut upper, T0, 0, &send(psn, &[1; 64]));
    }
    let sent = feed(&mut upper, T0, 1, &asked[0].1);
    assert_eq!(seen(&sent), [(1, Opcode::SendOnly, 101, true)]);
    let c = upper.group_status(MCST).unwrap().counters;
    assert_eq!((c.requests_in, c.resent, c.acks_out), (1, 1, 0));
    // A host has no such word.
    assert_eq!(feed(&mut upper, T0, 2, &asked[0].1), []);
    assert_eq!(upper.totals().dropped, 1);
    // A switch that does not repair drops it.
    let mut plain = star_switch(2);
    assert_eq!(feed(&mut plain, T0, 1, &asked[0].1), []);
    assert_eq!(plain.totals().dropped, 1);
    assert_conserved(&upper);
}

/// A receiver that has lost the last packet is silent. It gets the packet again after two ticks, then less and less often.
#[test]
fn silence_is_repaired_with_a_growing_distance() {
    let mut engine = switch_of((0..2).map(host).collect());
    let last = DataFrame {
        ack_request: true,
        ..DataFrame::new(Opcode::SendOnly, 100, &[1; 64])
    };
    feed(&mut engine, T0, 0, &last.bytes());
    let mut at = Vec::new();
    for micros in 1..=700 {
        let sent = tick(&mut engine, T0 + Nanos::from_micros(micros));
        if !sent.is_empty() {
            assert_eq!(seen(&sent), [(1, Opcode::SendOnly, 100, true)]);
            at.push(micros);
        }
    }
    // The wheel is at most 8 us late for each tick.
    assert!((20..40).contains(&at[0]) && at.len() >= 5, "{at:?}");
    let pauses: Vec<u64> = at.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.windows(2).take(3).all(|two| two[1] > two[0]), "{pauses:?}");
    feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    assert_eq!(tick(&mut engine, T0 + Nanos::from_millis(10)), []);
    assert_conserved(&engine);
}

#[test]
fn a_group_that_moves_keeps_its_ring() {
    let mut engine = switch_of((0..2).map(host).collect());
    feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    feed(&mut engine, T0, 0, &send(101, &[1; 64]));
    move_on(&mut engine, T0);
    let sent = feed(&mut engine, T0, 1, &ack(1, 100, 0, GAP));
    assert_eq!(seen(&sent).len(), 2);
}

/// The largest ring of the largest packets takes what the rule reserves, and no more.
#[test]
fn the_memory_of_the_ring_is_reserved() {
    for (slots, pmtu) in [
        (2, castnet_wire::Pmtu::B256),
        (32_768, castnet_wire::Pmtu::B256),
        (1024, castnet_wire::Pmtu::B1024),
    ] {
        let mut rule = repairing((0..64).map(host).collect());
        rule.pmtu = pmtu;
        if let GroupKind::Multicast(kind) = &mut rule.kind {
            kind.repair = Some(RepairRule { slots, ..REPAIR });
        }
        let engine = engine(64);
        let context = Context::compile(&rule, &engine.config().ports).unwrap();
        let group = context.multicast().unwrap();
        let used = (group.hot_bytes() + group.cold_bytes()) as u64;
        assert!(
            used <= rule.reserved_bytes(),
            "{used} of {}",
            rule.reserved_bytes()
        );
        assert_eq!(context.memory_bytes() as u64, rule.reserved_bytes());
        let before = Context::reserved(&rule, &engine.config().ports);
        assert_eq!(before, Ok(Some(rule.reserved_bytes() as usize)));
    }
}

/// A corrupted packet is not kept: it is missing.
#[test]
fn a_corrupted_packet_is_not_kept() {
    let mut engine = switch_of((0..2).map(host).collect());
    let mut frame = send(100, &[1; 64]);
    frame[70] ^= 1;
    assert_eq!(feed(&mut engine, T0, 0, &frame), []);
    assert_eq!(engine.totals().dropped, 1);
    let sent = feed(&mut engine, T0, 0, &send(101, &[1; 64]));
    assert_eq!(seen(&sent), [(0, Opcode::Ack, 100, false)]);
    assert_eq!(roce(&sent[0].1).aeth.map(|aeth| aeth.syndrome), Some(GAP));
}
