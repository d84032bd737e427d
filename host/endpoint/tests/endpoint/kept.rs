//! Where the other end sends single packets again on request, packets behind a gap are kept, and a lost packet costs one repetition.

use crate::common::*;
use castnet_endpoint::{Discard, QpConfig, Repeat, Status};
use castnet_wire::{Nanos, Opcode, Pmtu};

/// With so many posted receives.
fn bench(receives: u64) -> Bench {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        repeat: Repeat::Requested,
        ..config()
    });
    (0..receives).for_each(|wr_id| b.post_recv(wr_id, 512));
    b
}

/// Each is a message.
fn only(psn: u32) -> Packet {
    Packet::request(Opcode::SendOnly, psn, 4)
}

fn received(wr_ids: std::ops::Range<u64>) -> Vec<(u64, Status)> {
    wr_ids.map(|wr_id| (wr_id, Status::Success)).collect()
}

#[test]
fn each_lost_packet_is_asked_for_once_and_what_follows_is_kept() {
    let mut b = bench(8);
    b.feed(&only(0));
    b.feed(&only(3));
    b.sends(&["REQUEST 1", "REQUEST 2"]);
    b.feed(&only(4).ack_request());
    b.feed(&only(6));
    b.sends(&["REQUEST 5"]);
    b.completes(&received(0..1));
    // In any order.
    b.feed(&only(2).ack_request());
    b.sends(&[]);
    b.feed(&only(1).ack_request());
    b.sends(&["ACK 1 #2", "ACK 2 #3", "ACK 4 #5"]);
    b.completes(&received(1..5));
    b.feed(&only(5));
    b.completes(&received(5..7));
    // The gap is closed.
    b.feed(&only(7).ack_request());
    b.sends(&["ACK 7 #8"]);
    b.completes(&received(7..8));
    let stats = b.endpoint.stats();
    assert_eq!((stats.requests_in, stats.repair_requests_out), (8, 3));
    assert_eq!((stats.sequence_naks_out, stats.duplicates_in), (0, 0));
}

#[test]
fn the_parts_of_a_message_are_put_together_in_order() {
    let mut b = bench(1);
    b.feed(&Packet::request(Opcode::SendLast, 1, 8).ack_request());
    b.sends(&["REQUEST 0"]);
    b.feed(&Packet::request(Opcode::SendFirst, 0, 256));
    b.sends(&["ACK 1 #1"]);
    let completions = b.completions();
    assert_eq!((completions.len(), completions[0].byte_len), (1, 264));
    let bytes = &b.endpoint.memory(b.key).unwrap()[32 * 1024..][..264];
    assert!((0..264).all(|at| bytes[at] == pattern(at % 256)));
}

/// By the time that others have taken, when something comes.
#[test]
fn what_is_lost_again_is_asked_for_again() {
    let mut b = bench(8);
    let round_trip = Nanos::from_micros(3);
    for _ in 0..2 {
        // Nothing was measured yet.
        b.feed(&only(1));
        b.now += round_trip;
    }
    b.sends(&["REQUEST 0"]);
    b.feed(&only(0));
    b.completes(&received(0..2));
    b.feed(&only(3));
    b.sends(&["REQUEST 2"]);
    b.now += round_trip;
    b.feed(&only(4));
    b.sends(&[]);
    b.now += Nanos::from_micros(60);
    b.feed(&only(5));
    b.sends(&["REQUEST 2"]);
    b.feed(&only(6));
    b.sends(&[]);
    b.feed(&only(2));
    b.completes(&received(2..7));
}

/// Far ahead, twice, and without a receive.
#[test]
fn what_cannot_be_kept_comes_again() {
    let mut b = bench(2);
    b.feed(&only(1000));
    b.sends(&[]);
    b.feed(&only(2));
    b.feed(&only(2));
    b.sends(&["REQUEST 0", "REQUEST 1"]);
    assert_eq!(b.endpoint.stats().discarded(Discard::OutOfOrder), 2);
    b.feed(&only(0));
    b.feed(&only(1));
    b.completes(&received(0..2));
    // The kept one finds no receive.
    let sent = b.drain();
    assert_eq!(sent.len(), 1);
    assert!(
        sent[0].starts_with("RNR") && sent[0].ends_with(" 2 #2"),
        "{sent:?}"
    );
    b.post_recv(2, 512);
    b.feed(&only(2));
    b.completes(&received(2..3));
}

/// A QP that goes back sends a NAK, and keeps nothing.
#[test]
fn others_keep_nothing() {
    for repeat in [Repeat::All, Repeat::One] {
        let mut b = Bench::new(QpConfig { repeat, ..config() });
        (0..2).for_each(|wr_id| b.post_recv(wr_id, 512));
        b.feed(&only(1));
        b.sends(&["NAK0 0 #0"]);
        b.feed(&only(0));
        b.completes(&received(0..1));
        assert_eq!(b.endpoint.stats().repair_requests_out, 0);
    }
}
