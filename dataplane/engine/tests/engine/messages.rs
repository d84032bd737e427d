//! Long messages of Mode-I: one frame completes what many frames have brought, and other frames do not wait for that.

use castnet_engine::Engine;
use castnet_engine::plain::PlainEgress;
use castnet_rules::CollectiveMode;
use castnet_wire::{Aeth, DataType, Nanos, Opcode, Primitive, Syndrome};

use super::collective::job;
use crate::common::collective::*;
use crate::common::*;

const PACKETS: usize = 256;
const RANKS: usize = 48;

/// Feeds a packet of a rank, and returns the data that a rank gets for it.
fn feed_packet(engine: &mut Engine, (rank, i): (usize, usize), packet: &Sent) -> Vec<(usize, Vec<u8>)> {
    let psn = sq_psn(rank).value().wrapping_add(i as u32) & 0xFF_FFFF;
    let mut frame = DataFrame::new(packet.opcode, psn, &packet.payload);
    (frame.src, frame.dst, frame.ethernet) = (host_ip(rank), GROUP.0, ethernet(rank));
    frame.ext.imm = packet.imm;
    data(feed(engine, T0, rank, &frame.bytes()))
}

fn data(sent: Vec<(usize, Vec<u8>)>) -> Vec<(usize, Vec<u8>)> {
    let is_data = |frame: &[u8]| !matches!(roce(frame).bth.opcode, Opcode::Ack | Opcode::SendOnlyImm);
    sent.into_iter().filter(|(_, frame)| is_data(frame)).collect()
}

/// All that rank 0 has got is acknowledged.
fn acknowledge(engine: &mut Engine, got: usize) -> Vec<(usize, Vec<u8>)> {
    // The control message comes first.
    let psn = rq_psn(0).value().wrapping_add(got as u32) & 0xFF_FFFF;
    let mut frame = DataFrame::new(Opcode::Ack, psn, &[]);
    (frame.src, frame.dst, frame.ethernet) = (host_ip(0), GROUP.0, ethernet(0));
    frame.ext.aeth = Some(Aeth {
        syndrome: Syndrome::Ack,
        msn: 1,
    });
    data(feed(engine, T0, 0, &frame.bytes()))
}

#[test]
fn the_last_frame_of_many_messages_does_not_add_all_of_them_at_once() {
    let rule = collective_star(RANKS).with_translated(|rule| {
        rule.mode = CollectiveMode::Terminated;
        (rule.slots, rule.message_packets) = (2 * PACKETS as u16, PACKETS as u16);
    });
    let elements = PACKETS * PMTU.bytes() / 4;
    let job = job(Primitive::AllReduce, DataType::I32, 0, elements, RANKS, 7);
    let mut engine = engine(RANKS);
    install_collective(&mut engine, &rule);
    let ranks: Vec<Rank> = (0..RANKS)
        .map(|rank| Rank::new(rank, T0, std::slice::from_ref(&job)))
        .collect();
    for rank in &ranks {
        feed_packet(&mut engine, (rank.rank, 0), &rank.packets[0]);
    }
    // The messages of the others wait for that of rank 0, because they are added in the order of endpoints.
    let mut got: Vec<Vec<u8>> = Vec::new();
    for rank in ranks.iter().rev() {
        for (i, packet) in rank.packets.iter().enumerate().skip(1) {
            let mut packet = packet.clone();
            packet.opcode = match i {
                1 => Opcode::SendFirst,
                PACKETS => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            assert!(
                feed_packet(&mut engine, (rank.rank, i), &packet).is_empty(),
                "{i} of {}",
                rank.rank
            );
        }
    }
    // 3 MiB, of which an iteration adds one.
    let mut iterations = 0;
    while got.len() < PACKETS {
        assert!(iterations < 3 * PACKETS, "{} packets", got.len());
        let mut egress = PlainEgress::default();
        engine.handle_timeout(T0, &mut egress);
        let mut sent = data(taken(egress));
        if sent.is_empty() && !got.is_empty() {
            sent = acknowledge(&mut engine, got.len());
        }
        assert!(!sent.is_empty() || !got.is_empty() || engine.poll_timeout() == Some(Nanos::ZERO));
        let to_first = sent.into_iter().filter(|(port, _)| *port == 0);
        got.extend(to_first.map(|(_, frame)| frame));
        iterations += usize::from(got.is_empty());
    }
    assert!(
        (2..=3).contains(&iterations),
        "{iterations} iterations without a result"
    );
    let payload = |frame: &Vec<u8>| {
        let header = roce(frame);
        frame[header.payload_at..][..header.payload_len].to_vec()
    };
    let result: Vec<u8> = got.iter().flat_map(payload).collect();
    assert!(result == job.expected(0), "the sum of all");
    assert_conserved(&engine);
}
