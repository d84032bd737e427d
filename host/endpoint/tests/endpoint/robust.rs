//! No input makes the endpoint panic, and only valid frames change its state.

use crate::common::*;
use castnet_endpoint::{QpConfig, SendOp};
use castnet_wire::{Aeth, AtomicEth, Opcode, Psn, RnrTimer, Syndrome, icrc};
use proptest::prelude::*;

fn busy() -> Bench {
    let mut b = Bench::new(QpConfig {
        rq_psn: Psn::new(100),
        ..config()
    });
    for id in 0..4 {
        b.post(id, SendOp::Send, 3000);
        b.post_recv(id, 2000);
    }
    b.drain();
    b
}

/// Packets of every opcode with all headers, with values close to those that the QP expects.
fn packet() -> impl Strategy<Value = Packet> {
    let opcode = prop::sample::select(Opcode::ALL);
    let syndrome = prop_oneof![
        Just(Syndrome::Ack),
        (0u8..32).prop_map(|t| Syndrome::RnrNak(RnrTimer::new(t))),
        prop::sample::select(
            &[
                castnet_wire::NakCode::PsnSequenceError,
                castnet_wire::NakCode::InvalidRequest,
                castnet_wire::NakCode::RemoteAccessError,
                castnet_wire::NakCode::RemoteOperationalError,
            ][..]
        )
        .prop_map(Syndrome::Nak),
    ];
    let psn = prop_oneof![95u32..110, 0u32..14, any::<u32>()];
    let length = prop_oneof![0usize..8, Just(1024), 1000usize..1100];
    (
        opcode,
        psn,
        length,
        any::<[bool; 2]>(),
        syndrome,
        (0u64..5000, 0u32..5000),
    )
        .prop_map(
            |(opcode, psn, length, [ack, solicited], syndrome, (va, dma_len))| {
                let has_payload = opcode.info().has_payload;
                let mut p = Packet::request(opcode, psn, if has_payload { length } else { 0 });
                p = p.reth(VA + va, 0x101, dma_len);
                p.bth.ack_request = ack;
                p.bth.solicited = solicited;
                p.ext.aeth = Some(Aeth { syndrome, msn: 1 });
                p.ext.ieth = Some(0x101);
                p.ext.atomic_eth = Some(AtomicEth {
                    va,
                    rkey: 1,
                    swap_add: 1,
                    compare: 1,
                });
                p.ext.atomic_ack = Some(1);
                p.ext.deth = Some(castnet_wire::Deth::default());
                p
            },
        )
}

fn settle(b: &mut Bench) {
    b.drain();
    b.completions();
    if b.endpoint.poll_timeout().is_some() {
        b.wait();
        b.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes_are_handled_without_panic(frame in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut b = busy();
        b.endpoint.handle_frame(b.now, &frame);
        settle(&mut b);
    }

    #[test]
    fn any_packets_are_handled_without_panic(packets in prop::collection::vec(packet(), 1..20)) {
        let mut b = busy();
        for p in &packets {
            b.feed(p);
        }
        for _ in 0..5 {
            settle(&mut b);
        }
        let s = b.endpoint.stats();
        prop_assert_eq!(s.frames_in, packets.len() as u64);
    }

    #[test]
    fn damaged_packets_with_a_valid_icrc_are_handled_without_panic(
        p in packet(), cut in any::<Option<u16>>(), flips in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6)
    ) {
        let mut b = busy();
        let mut frame = p.frame();
        for (at, mask) in flips {
            let at = at as usize % frame.len();
            frame[at] ^= mask;
        }
        if let Some(cut) = cut {
            frame.truncate(cut as usize % (frame.len() + 1));
        }
        // The checks after the ICRC must see the damage.
        if frame.len() > 14 + 20 + 8 + 12 + 4 {
            let end = frame.len() - 4;
            let icrc = icrc::full(&[&frame[14..end]]);
            frame[end..].copy_from_slice(&icrc.to_le_bytes());
            frame[24..26].fill(0);
            let sum = castnet_wire::ipv4::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        b.endpoint.handle_frame(b.now, &frame);
        settle(&mut b);
    }

    #[test]
    fn a_frame_with_a_wrong_icrc_changes_nothing(p in packet(), at in any::<u16>(), mask in 1u8..) {
        let mut b = busy();
        let mut frame = p.frame();
        let end = frame.len() - 4;
        frame[end + at as usize % 4] ^= mask;
        let before = b.endpoint.qp_status(MY_QPN).unwrap();
        let memory = b.endpoint.memory(b.key).unwrap().to_vec();
        b.endpoint.handle_frame(b.now, &frame);
        prop_assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap(), before);
        prop_assert_eq!(b.endpoint.memory(b.key).unwrap(), memory);
        prop_assert_eq!(b.endpoint.stats().discards().count(), 1);
        b.sends(&[]);
    }
}

#[test]
fn a_short_buffer_is_counted_and_loses_nothing() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 10);
    assert_eq!(b.endpoint.poll_transmit(b.now, &mut [0; 100]), None);
    assert_eq!(b.endpoint.stats().short_buffers, 1);
    b.sends(&["SEND_ONLY 0 A [10]"]);
}
