//! What is overdue is asked for by a packet, long before the retransmission timer. And a packet that a switch asks for is sent again.

use crate::common::*;
use castnet_endpoint::{Discard, Endpoint, QpConfig, Repeat, SendOp, Status, TimerReason};
use castnet_wire::{NakCode, Nanos, Opcode, Pmtu, RoundTrip, Syndrome};

const RTT: Nanos = Nanos::from_micros(30);

fn bench(config: QpConfig) -> Bench {
    Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        probes: true,
        ..config
    })
}

/// A message of so many packets, acknowledged after a round trip.
fn round_trips(b: &mut Bench, count: u32, packets: u32) {
    for nth in 0..count {
        b.post(100, SendOp::Send, packets * 256);
        b.drain();
        b.now += RTT;
        b.ack((nth + 1) * packets - 1);
        b.completes(&[(100, Status::Success)]);
    }
}

#[test]
fn a_lost_last_packet_costs_some_round_trips() {
    let mut b = bench(config());
    round_trips(&mut b, 20, 2);
    b.post(1, SendOp::Send, 3 * 256);
    b.drain();
    assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::Probe);
    let waited = b.wait();
    assert!((RTT..Nanos(3 * RTT.0)).contains(&waited), "{waited}");
    // The oldest packet. The receiver says what it has, the timer begins anew, and what it lacks is repeated.
    b.sends(&["SEND_FIRST 40 A [256]"]);
    b.now += RTT;
    b.ack(41);
    b.wait();
    b.sends(&["SEND_LAST 42 A [256]"]);
    b.ack(42);
    b.completes(&[(1, Status::Success)]);
    assert_eq!(b.endpoint.poll_timeout(), None);
    let stats = b.endpoint.stats();
    assert_eq!((stats.probes, stats.retransmits, stats.timeouts), (2, 2, 0));
}

/// The answer acknowledges the probe alone: the receiver keeps nothing behind a gap, so it lacks all that follows.
#[test]
fn a_receiver_that_has_the_probe_alone_gets_the_rest() {
    for repeat in [Repeat::All, Repeat::One] {
        let mut b = bench(QpConfig { repeat, ..config() });
        round_trips(&mut b, 20, 1);
        b.post(1, SendOp::Send, 3 * 256);
        b.drain();
        b.wait();
        b.sends(&["SEND_FIRST 20 A [256]"]);
        b.ack(20);
        match repeat {
            Repeat::All => b.sends(&["SEND_MIDDLE 21 [256]", "SEND_LAST 22 A [256]"]),
            _ => b.sends(&[]),
        }
    }
}

#[test]
fn each_probe_waits_twice_as_long_and_the_time_out_remains() {
    let mut b = bench(QpConfig {
        timeout: 9,
        ..config()
    });
    let begin = b.now;
    round_trips(&mut b, 20, 1);
    b.post(1, SendOp::Send, 1);
    b.drain();
    let (sent, mut before) = (b.now, Nanos::ZERO);
    assert!(sent > begin);
    while b.endpoint.poll_timeout().unwrap().1 == TimerReason::Probe {
        let waited = b.wait();
        if b.drain().is_empty() {
            continue;
        }
        assert!(
            before == Nanos::ZERO || waited == Nanos(2 * before.0),
            "{before} {waited}"
        );
        before = waited;
    }
    assert!(b.endpoint.stats().probes >= 4);
    assert_eq!(b.endpoint.stats().timeouts, 0);
    b.wait();
    b.sends(&["SEND_ONLY 20 A [1]"]);
    assert_eq!(b.endpoint.stats().timeouts, 1);
    assert_eq!(b.now, sent + Nanos(4096 << 9));
}

/// Packets that ask for no answer get none, however long ago they were sent.
#[test]
fn without_a_request_silence_means_nothing() {
    let mut b = bench(config());
    assert_eq!(RoundTrip::default().patience(0, Nanos::MAX), RoundTrip::UNKNOWN);
    round_trips(&mut b, 20, 1);
    b.post(1, SendOp::Send, 64 * 256);
    let mut out = [0; Endpoint::FRAME_MAX];
    for _ in 0..10 {
        b.endpoint.poll_transmit(b.now, &mut out).unwrap();
    }
    assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::Retransmit);
}

#[test]
fn without_probes_only_the_time_out_repeats() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 1);
    b.drain();
    assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::Retransmit);
}

#[test]
fn a_switch_asks_for_single_packets() {
    let mut b = bench(QpConfig {
        repeat: Repeat::Requested,
        ..config()
    });
    let request = |psn| Packet::response(psn, Syndrome::Ack).with(Opcode::RepairRequest);
    b.post(1, SendOp::Send, 5 * 256);
    b.drain();
    for psn in [3, 1, 3] {
        b.feed(&request(psn));
    }
    b.sends(&["SEND_MIDDLE 3 A [256]", "SEND_MIDDLE 1 A [256]"]);
    // A NAK only acknowledges.
    b.nak(2, NakCode::PsnSequenceError);
    b.sends(&[]);
    // Nothing that is acknowledged or was never sent is sent.
    for psn in [1, 5, 0xFF_FFFF] {
        b.feed(&request(psn));
    }
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().repair_requests_in, 3);
    assert_eq!(b.endpoint.stats().discarded(Discard::AckOld), 3);
    b.ack(4);
    b.completes(&[(1, Status::Success)]);
}

#[test]
fn who_goes_back_knows_no_request() {
    let mut b = bench(config());
    b.post(1, SendOp::Send, 2 * 256);
    b.drain();
    b.feed(&Packet::response(0, Syndrome::Ack).with(Opcode::RepairRequest));
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().discarded(Discard::WrongTransport), 1);
}
