//! A QP with a rate limit: no period has more than the limit allows, timers do not expire for it, and all is sent in the end.

use crate::common::*;
use castnet_endpoint::{Endpoint, QpConfig, SendOp, Status, TimerReason};
use castnet_wire::{BitRate, NakCode, Nanos, Opcode, Parsed, Pmtu, Qpn, RateLimit, parse_frame};
use proptest::prelude::*;

fn limit(bits_per_second: u64, burst_bytes: u64) -> RateLimit {
    let rate = BitRate::new(bits_per_second).unwrap();
    RateLimit { rate, burst_bytes }
}

fn paced(limit: RateLimit) -> Bench {
    Bench::new(QpConfig {
        rate_limit: Some(limit),
        ..config()
    })
}

/// Lengths of the frames that the endpoint sends now.
fn lengths(b: &mut Bench) -> Vec<u64> {
    let mut out = [0; Endpoint::FRAME_MAX];
    std::iter::from_fn(|| Some(b.endpoint.poll_transmit(b.now, &mut out)? as u64)).collect()
}

/// PSN of a request, and whether it asks for an ACK.
fn request(frame: &[u8]) -> (u32, bool) {
    let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
        panic!("no RoCE");
    };
    (header.bth.psn.value(), header.bth.ack_request)
}

#[test]
fn a_packet_beyond_the_burst_waits_for_its_turn() {
    // Each packet of 1,082 bytes takes 8.656 ms. The bucket holds three.
    let mut b = paced(limit(1_000_000, 3_456));
    b.post(1, SendOp::Send, 8 * 1024);
    assert_eq!(lengths(&mut b), [1082, 1082, 1082]);
    let (at, reason) = b.endpoint.poll_timeout().unwrap();
    assert_eq!(reason, TimerReason::Pace);
    // 128 bytes are kept for headers, of which a SEND uses 58.
    assert_eq!(at.since(b.now), Nanos((1152 - (3456 - 3 * 1082)) * 8_000));
    b.wait();
    assert_eq!(lengths(&mut b), [1082]);
    assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::Pace);
    // ACKs of this end are not paced.
    b.post_recv(9, 1024);
    b.feed(&Packet::request(Opcode::SendOnly, 0, 100).ack_request());
    b.sends(&["ACK 0 #1"]);
}

/// At a slow pace each packet asks for an ACK, so that the retransmission timer (67 ms) does not expire between two requests.
#[test]
fn slow_packets_ask_for_acks() {
    let mut b = paced(limit(100_000, 1_152));
    b.post(1, SendOp::Send, 4 * 1024);
    b.sends(&["SEND_FIRST 0 A [1024]"]);
    b.ack(0);
    b.wait();
    b.sends(&["SEND_MIDDLE 1 A [1024]"]);
    // What is sent again waits too.
    b.nak(1, NakCode::PsnSequenceError);
    b.sends(&[]);
    b.wait();
    b.sends(&["SEND_MIDDLE 1 A [1024]"]);
    assert_eq!(b.endpoint.stats().timeouts, 0);
}

#[test]
fn a_burst_must_hold_a_packet() {
    let config = |burst, pmtu| QpConfig {
        rate_limit: Some(limit(1_000_000, burst)),
        pmtu,
        ..config()
    };
    let mut b = Bench::new(QpConfig {
        qpn: Qpn::new(0x99),
        ..config(4224, Pmtu::B4096)
    });
    let refused = b.endpoint.create_qp(config(4223, Pmtu::B4096)).unwrap_err();
    assert!(
        refused.to_string().contains("rate_limit.burst_bytes"),
        "{refused}"
    );
    assert!(b.endpoint.create_qp(config(384, Pmtu::B256)).is_ok());
}

proptest! {
    /// With losses, delays of the peer and a late caller, in all periods. A peer that answers each request makes it end without a
    /// time-out.
    #[test]
    fn no_period_has_more_than_the_limit(
        rate in prop_oneof![1_000_000..20_000_000_u64, Just(10_000_000_000)], burst in 1_152..20_000_u64,
        messages in prop::collection::vec(0..9_000_u32, 1..6), late in prop::collection::vec(0..3_000_000_u64, 8),
        seed: u64,
    ) {
        let limit = limit(rate, burst);
        let mut b = paced(limit);
        for (wr_id, length) in (0..).zip(&messages) {
            b.post(wr_id, SendOp::Send, *length);
        }
        let (mut sent, mut next, mut done) = (Vec::new(), 0, 0);
        for turn in 0.. {
            prop_assert!(turn < 10_000, "it ends");
            let mut asked = None;
            let mut out = [0; Endpoint::FRAME_MAX];
            while let Some(length) = b.endpoint.poll_transmit(b.now, &mut out) {
                sent.push((b.now, length as u64));
                let (psn, asks) = request(&out[..length]);
                // One in eight is lost.
                if (sent.len() as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 == 0 {
                    continue;
                }
                match psn == next {
                    true => next = psn + 1,
                    false if psn > next => asked = Some(Err(next)),
                    false => {}
                }
                if asks && !matches!(asked, Some(Err(_))) {
                    asked = Some(Ok(next));
                }
            }
            match asked {
                Some(Ok(next)) if next > 0 => b.ack(next - 1),
                Some(Err(next)) => b.nak(next, NakCode::PsnSequenceError),
                _ => {}
            }
            done += b.completions().iter().filter(|c| c.status == Status::Success).count();
            if done == messages.len() {
                break;
            }
            if let Some((at, _)) = b.endpoint.poll_timeout() {
                b.now = b.now.max(at) + Nanos(late[turn % late.len()]);
                b.endpoint.handle_timeout(b.now);
            }
        }
        for (i, (from, _)) in sent.iter().enumerate() {
            let mut sum = 0;
            for (at, bytes) in &sent[i..] {
                sum += bytes;
                let allowed = u128::from(burst) * 8_000_000_000 + u128::from(rate) * u128::from(at.since(*from).0);
                prop_assert!(u128::from(sum) * 8_000_000_000 <= allowed);
            }
        }
    }
}
