//! The responder against scripted requests. It must behave as rxe.

use crate::common::*;
use castnet_endpoint::{Access, CompletionOp, Discard, EndpointConfig, MemoryKey, QpConfig, QpState, Status};
use castnet_wire::{AtomicEth, Nanos, Opcode, Psn, Qpn};

fn bench() -> Bench {
    Bench::new(QpConfig {
        rq_psn: Psn::new(100),
        ..config()
    })
}

impl Bench {
    fn send(&mut self, opcode: Opcode, psn: u32, length: usize) {
        self.feed(&Packet::request(opcode, psn, length).ack_request());
    }

    fn write(&mut self, opcode: Opcode, psn: u32, length: usize, va: u64, dma_len: u32) {
        let rkey = self.key.rkey();
        self.feed(
            &Packet::request(opcode, psn, length)
                .ack_request()
                .reth(va, rkey, dma_len),
        );
    }

    fn state(&self) -> QpState {
        self.endpoint.qp_status(MY_QPN).unwrap().state
    }
}

#[test]
fn a_send_fills_the_receive_and_is_acknowledged_on_request() {
    let mut b = bench();
    b.post_recv(1, 3000);
    b.feed(&Packet::request(Opcode::SendFirst, 100, 1024));
    b.feed(&Packet::request(Opcode::SendMiddle, 101, 1024));
    b.sends(&[]);
    b.send(Opcode::SendLastImm, 102, 501);
    b.sends(&["ACK 102 #1"]);
    let done = b.completions();
    assert_eq!(done.len(), 1);
    let c = done[0];
    assert_eq!(
        (c.wr_id, c.status, c.op),
        (1, Status::Success, CompletionOp::Recv)
    );
    assert_eq!((c.byte_len, c.imm), (2549, Some(0xABCD)));
    let got = &b.endpoint.memory(b.key).unwrap()[32 * 1024..][..2549];
    let piece = |n| (0..n).map(pattern);
    assert!(
        got.iter()
            .copied()
            .eq(piece(1024).chain(piece(1024)).chain(piece(501)))
    );
}

#[test]
fn each_ack_request_gets_its_own_ack() {
    let mut b = bench();
    for i in 0..40 {
        b.write(Opcode::WriteOnly, 100 + i, 16, VA, 16);
    }
    let acks: Vec<String> = (0..40).map(|i| format!("ACK {} #{}", 100 + i, i + 1)).collect();
    assert_eq!(b.drain(), acks);
}

#[test]
fn queued_acks_are_coalesced_if_configured_and_naks_are_kept() {
    let config = QpConfig {
        rq_psn: Psn::new(100),
        ..config()
    };
    let endpoint = EndpointConfig {
        coalesce_acks: true,
        ..EndpointConfig::new(MY_MAC, MY_IP)
    };
    let mut b = Bench::with(config, endpoint);
    for psn in 100..140 {
        b.write(Opcode::WriteOnly, psn, 16, VA, 16);
    }
    assert_eq!(b.drain(), ["ACK 139 #40"]);
    b.write(Opcode::WriteOnly, 140, 16, VA, 16);
    b.write(Opcode::WriteOnly, 142, 16, VA, 16);
    b.write(Opcode::WriteOnly, 141, 16, VA, 16);
    b.write(Opcode::WriteOnly, 142, 16, VA, 16);
    assert_eq!(b.drain(), ["ACK 140 #41", "NAK0 141 #41", "ACK 142 #43"]);
}

#[test]
fn an_ack_goes_before_the_nak_of_each_gap_if_configured() {
    let endpoint = EndpointConfig {
        ack_before_nak: true,
        ..EndpointConfig::new(MY_MAC, MY_IP)
    };
    let config = QpConfig {
        rq_psn: Psn::new(100),
        ..config()
    };
    let mut b = Bench::with(config, endpoint);
    b.write(Opcode::WriteOnly, 101, 16, VA, 16);
    b.write(Opcode::WriteOnly, 102, 16, VA, 16);
    b.sends(&["ACK 99 #0", "NAK0 100 #0"]);
    let rkey = b.key.rkey();
    b.feed(&Packet::request(Opcode::WriteFirst, 100, 1024).reth(VA, rkey, 3000));
    b.send(Opcode::WriteLast, 102, 952);
    b.sends(&["ACK 100 #0", "NAK0 101 #0"]);
}

#[test]
fn a_write_uses_the_reth_and_only_its_immediate_takes_a_receive() {
    let mut b = bench();
    let rkey = b.key.rkey();
    b.endpoint.memory_mut(b.key).unwrap().fill(0xEE);
    b.feed(&Packet::request(Opcode::WriteFirst, 100, 1024).reth(VA + 10, rkey, 2000));
    b.send(Opcode::WriteLast, 101, 976);
    b.sends(&["ACK 101 #1"]);
    b.completes(&[]);
    let bytes = b.endpoint.memory(b.key).unwrap();
    assert!(bytes[..10].iter().chain(&bytes[2010..]).all(|&x| x == 0xEE));
    assert!(
        bytes[10..2010]
            .iter()
            .copied()
            .eq((0..1024).map(pattern).chain((0..976).map(pattern)))
    );

    b.post_recv(7, 0);
    b.write(Opcode::WriteOnlyImm, 102, 4, VA + REGION as u64 - 4, 4);
    b.sends(&["ACK 102 #2"]);
    let c = b.completions()[0];
    assert_eq!(
        (c.wr_id, c.op, c.byte_len, c.imm),
        (7, CompletionOp::RecvWriteImm, 4, Some(0xABCD))
    );
}

#[test]
fn one_nak_per_gap() {
    let mut b = bench();
    for _ in 0..4 {
        b.post_recv(0, 100);
    }
    b.send(Opcode::SendOnly, 100, 1);
    b.sends(&["ACK 100 #1"]);
    b.send(Opcode::SendOnly, 103, 1);
    b.sends(&["NAK0 101 #1"]);
    b.send(Opcode::SendOnly, 104, 1);
    b.send(Opcode::SendOnly, 102, 1);
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().discarded(Discard::OutOfOrder), 2);
    b.send(Opcode::SendOnly, 101, 1);
    b.sends(&["ACK 101 #2"]);
    // The next gap is NAKed again.
    b.send(Opcode::SendOnly, 103, 1);
    b.sends(&["NAK0 102 #2"]);
}

#[test]
fn duplicates_are_not_applied_and_acknowledged_with_the_newest_psn() {
    let mut b = bench();
    b.post_recv(1, 4000);
    b.post_recv(2, 4000);
    b.send(Opcode::SendFirst, 100, 1024);
    b.send(Opcode::SendLast, 101, 10);
    b.send(Opcode::SendFirst, 102, 1024);
    b.drain();
    b.completes(&[(1, Status::Success)]);
    b.feed(&Packet::request(Opcode::SendFirst, 100, 1024));
    b.send(Opcode::SendLast, 101, 10);
    // A NAKed gap does not affect duplicates.
    b.send(Opcode::SendLast, 104, 10);
    b.write(Opcode::WriteOnly, 90, 4, VA, 4);
    b.sends(&["ACK 102 #1", "ACK 102 #1", "NAK0 103 #1", "ACK 102 #1"]);
    b.completes(&[]);
    assert_eq!(b.endpoint.stats().duplicates_in, 3);
    b.send(Opcode::SendLast, 103, 10);
    b.sends(&["ACK 103 #2"]);
    b.completes(&[(2, Status::Success)]);
}

#[test]
fn half_the_psn_space_back_is_still_a_duplicate() {
    let mut b = bench();
    b.write(Opcode::WriteOnly, 100 + (1 << 23), 4, VA, 4);
    b.sends(&["ACK 99 #0"]);
    b.write(Opcode::WriteOnly, 100 + (1 << 23) - 1, 4, VA, 4);
    b.sends(&["NAK0 100 #0"]);
}

#[test]
fn without_a_receive_each_request_gets_an_rnr_nak() {
    let mut b = bench();
    for _ in 0..2 {
        b.send(Opcode::SendOnly, 100, 1);
        b.sends(&["RNR12 100 #0"]);
        // Packets in flight behind it are a gap, as in rxe.
        b.send(Opcode::SendOnly, 101, 1);
        b.sends(&["NAK0 100 #0"]);
    }
    b.write(Opcode::WriteOnlyImm, 100, 1, VA, 1);
    b.sends(&["RNR12 100 #0"]);
    assert_eq!(
        b.endpoint.memory(b.key).unwrap()[0],
        pattern(0),
        "nothing written yet"
    );
    b.post_recv(1, 1);
    b.send(Opcode::SendOnly, 100, 1);
    b.sends(&["ACK 100 #1"]);
    b.completes(&[(1, Status::Success)]);

    // Only the last packet of a WRITE needs a receive.
    b.write(Opcode::WriteFirst, 101, 1024, VA, 1030);
    b.sends(&["ACK 101 #1"]);
    b.send(Opcode::WriteLastImm, 102, 6);
    b.sends(&["RNR12 102 #1"]);
    b.post_recv(2, 0);
    b.send(Opcode::WriteLastImm, 102, 6);
    b.sends(&["ACK 102 #2"]);
    b.completes(&[(2, Status::Success)]);
}

/// Requests that must fail the QP: NAK code, status of the receive, and the packets. The last packet is refused.
fn refusals(rkey: u32) -> Vec<(&'static str, u8, Status, Vec<Packet>)> {
    use Opcode::*;
    let p = |opcode, psn, length| Packet::request(opcode, psn, length);
    let w = |opcode, psn, length, dma| p(opcode, psn, length).reth(VA, rkey, dma);
    let flushed = Status::Flushed;
    let invalid = Status::RemoteInvalidRequest;
    let mut atomic = Packet::new(FetchAdd, 100);
    atomic.ext.atomic_eth = Some(AtomicEth {
        va: VA,
        rkey,
        swap_add: 1,
        compare: 0,
    });
    let mut invalidate = p(SendOnlyInv, 100, 4);
    invalidate.ext.ieth = Some(rkey);
    vec![
        (
            "READ",
            1,
            flushed,
            vec![Packet::new(ReadRequest, 100).reth(VA, rkey, 8)],
        ),
        ("atomic", 1, flushed, vec![atomic]),
        (
            "invalidate of a region that does not allow it",
            2,
            invalid,
            vec![invalidate],
        ),
        ("middle without first", 1, flushed, vec![p(SendMiddle, 100, 1024)]),
        ("last without first", 1, flushed, vec![p(SendLast, 100, 10)]),
        (
            "write middle without first",
            1,
            flushed,
            vec![p(WriteMiddle, 100, 1024)],
        ),
        (
            "write last with immediate without first",
            1,
            flushed,
            vec![p(WriteLastImm, 100, 10)],
        ),
        (
            "only inside a send",
            1,
            flushed,
            vec![p(SendFirst, 100, 1024), p(SendOnly, 101, 10)],
        ),
        (
            "first inside a send",
            1,
            flushed,
            vec![p(SendFirst, 100, 1024), p(SendFirst, 101, 1024)],
        ),
        (
            "write inside a send",
            1,
            flushed,
            vec![p(SendFirst, 100, 1024), w(WriteOnly, 101, 10, 10)],
        ),
        (
            "write's end inside a send",
            1,
            flushed,
            vec![p(SendFirst, 100, 1024), p(WriteLast, 101, 10)],
        ),
        (
            "send's end inside a write",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, 2000), p(SendLast, 101, 976)],
        ),
        (
            "read inside a send",
            1,
            flushed,
            vec![
                p(SendFirst, 100, 1024),
                Packet::new(ReadRequest, 101).reth(VA, rkey, 1),
            ],
        ),
        ("short first", 1, invalid, vec![p(SendFirst, 100, 1020)]),
        ("long first", 1, invalid, vec![p(SendFirst, 100, 1028)]),
        ("long only", 1, invalid, vec![p(SendOnly, 100, 1025)]),
        (
            "short middle",
            1,
            invalid,
            vec![p(SendFirst, 100, 1024), p(SendMiddle, 101, 1023)],
        ),
        (
            "empty last",
            1,
            invalid,
            vec![p(SendFirst, 100, 1024), p(SendLast, 101, 0)],
        ),
        (
            "send longer than the receive",
            1,
            Status::LocalLengthError,
            vec![p(SendFirst, 100, 1024), p(SendLast, 101, 977)],
        ),
        (
            "write only of another length",
            1,
            flushed,
            vec![w(WriteOnly, 100, 10, 11)],
        ),
        (
            "write only over the PMTU",
            1,
            flushed,
            vec![w(WriteOnly, 100, 1025, 1025)],
        ),
        (
            "write first short",
            1,
            flushed,
            vec![w(WriteFirst, 100, 512, 2000)],
        ),
        (
            "write first of a short message",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, 1024)],
        ),
        (
            "write last too early",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, 4000), p(WriteLast, 101, 1024)],
        ),
        (
            "write last too short",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, 2000), p(WriteLast, 101, 975)],
        ),
        (
            "write middle beyond the end",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, 2048), p(WriteMiddle, 101, 1024)],
        ),
        (
            "write over 2^31",
            1,
            flushed,
            vec![w(WriteFirst, 100, 1024, (1 << 31) + 1)],
        ),
        (
            "unknown key",
            2,
            flushed,
            vec![p(WriteOnly, 100, 4).reth(VA, rkey ^ 1, 4)],
        ),
        ("key 0", 2, flushed, vec![p(WriteOnly, 100, 4).reth(VA, 0, 4)]),
        (
            "before the region",
            2,
            flushed,
            vec![p(WriteOnly, 100, 4).reth(VA - 1, rkey, 4)],
        ),
        (
            "over its end",
            2,
            flushed,
            vec![p(WriteOnly, 100, 4).reth(VA + REGION as u64 - 3, rkey, 4)],
        ),
        (
            "a first whose end is outside",
            2,
            flushed,
            vec![p(WriteFirst, 100, 1024).reth(VA, rkey, REGION as u32 + 1)],
        ),
        (
            "at the end of the address space",
            2,
            flushed,
            vec![p(WriteOnly, 100, 4).reth(u64::MAX, rkey, 4)],
        ),
    ]
}

#[test]
fn invalid_requests_are_refused_and_fail_the_qp() {
    let rkey = bench().key.rkey();
    for (what, code, status, packets) in refusals(rkey) {
        let mut b = bench();
        b.post_recv(1, 2000);
        b.post_recv(2, 2000);
        b.post(3, castnet_endpoint::SendOp::Send, 10);
        assert_eq!(b.drain().len(), 1);
        let at = 99 + packets.len() as u32;
        packets.iter().for_each(|p| b.feed(p));
        assert_eq!(b.drain(), [format!("NAK{code} {at} #0")], "{what}");
        b.completes(&[(3, Status::Flushed), (1, status), (2, Status::Flushed)]);
        assert_eq!(b.state(), QpState::Error, "{what}");
        b.send(Opcode::SendOnly, at, 1);
        b.sends(&[]);
        assert_eq!(b.endpoint.stats().discarded(Discard::QpNotReady), 1, "{what}");
    }
}

#[test]
fn a_duplicate_read_is_dropped() {
    let mut b = bench();
    b.feed(&Packet::new(Opcode::ReadRequest, 99).reth(VA, 1, 8));
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().discarded(Discard::DuplicateUnsupported), 1);
    assert_eq!(b.state(), QpState::Ready);
}

#[test]
fn a_write_of_no_bytes_needs_no_key() {
    let mut b = bench();
    b.feed(
        &Packet::request(Opcode::WriteOnly, 100, 0)
            .reth(u64::MAX, 0xDEAD, 0)
            .ack_request(),
    );
    b.sends(&["ACK 100 #1"]);
}

#[test]
fn memory_deregistered_during_a_write_or_a_send_fails_the_qp() {
    let mut b = bench();
    b.write(Opcode::WriteFirst, 100, 1024, VA, 2000);
    b.endpoint.deregister_memory(b.key).unwrap();
    b.send(Opcode::WriteLast, 101, 976);
    b.sends(&["ACK 100 #0", "NAK2 101 #0"]);

    let mut b = bench();
    b.post_recv(1, 2000);
    b.send(Opcode::SendFirst, 100, 1024);
    b.endpoint.deregister_memory(b.key).unwrap();
    b.send(Opcode::SendLast, 101, 976);
    b.sends(&["ACK 100 #0", "NAK3 101 #0"]);
    b.completes(&[(1, Status::LocalProtectionError)]);
}

#[test]
fn send_with_invalidate_closes_a_region_that_allows_it() {
    let mut b = bench();
    let access = Access {
        remote_invalidate: true,
        ..Access::REMOTE_WRITE
    };
    let key = b.endpoint.register_memory(0x5000, vec![0; 64], access).unwrap();
    b.post_recv(1, 100);
    let write = |psn| {
        Packet::request(Opcode::WriteOnly, psn, 4)
            .reth(0x5000, key.rkey(), 4)
            .ack_request()
    };
    b.feed(&write(100));
    let mut send = Packet::request(Opcode::SendOnlyInv, 101, 4).ack_request();
    send.ext.ieth = Some(key.rkey());
    b.feed(&send);
    assert_eq!(b.completions()[0].invalidated, Some(key));
    b.feed(&write(102));
    b.sends(&["ACK 100 #1", "ACK 101 #2", "NAK2 102 #2"]);
    assert_eq!(
        b.endpoint.memory(key).unwrap()[3],
        pattern(3),
        "the owner still has access"
    );
}

#[test]
fn a_region_without_the_right_is_not_written() {
    let mut b = bench();
    let key = b
        .endpoint
        .register_memory(0x5000, vec![0; 64], Access::LOCAL)
        .unwrap();
    b.feed(&Packet::request(Opcode::WriteOnly, 100, 4).reth(0x5000, key.rkey(), 4));
    b.sends(&["NAK2 100 #0"]);
    assert_eq!(b.endpoint.memory(key).unwrap(), [0; 64]);
}

#[test]
fn a_stale_key_matches_no_region() {
    let mut b = bench();
    let old: MemoryKey = b
        .endpoint
        .register_memory(0x5000, vec![0; 64], Access::REMOTE_WRITE)
        .unwrap();
    b.endpoint.deregister_memory(old).unwrap();
    let new = b
        .endpoint
        .register_memory(0x5000, vec![0; 64], Access::REMOTE_WRITE)
        .unwrap();
    assert_ne!(old, new);
    b.feed(&Packet::request(Opcode::WriteOnly, 100, 4).reth(0x5000, old.rkey(), 4));
    b.sends(&["NAK2 100 #0"]);
}

/// Frames that are discarded before any state is read.
#[test]
fn frames_not_for_the_qp_are_dropped_and_counted() {
    type Change = fn(&mut Packet);
    let cases: [(Discard, Change); 8] = [
        (Discard::NotMyMac, |p| p.ethernet.dst.0[5] = 9),
        (Discard::NotMyIp, |p| p.dst = [10, 0, 0, 9].into()),
        (Discard::WrongSourceIp, |p| p.src = [10, 0, 0, 9].into()),
        (Discard::UnknownQp, |p| p.bth.dest_qp = Qpn::new(0x99)),
        (Discard::BadPkey, |p| p.bth.pkey = 0x8001),
        (Discard::WrongTransport, |p| p.bth.opcode = Opcode::UcSendOnly),
        (Discard::BadPkey, |p| p.bth.pkey = 0),
        (Discard::UnexpectedResponse, |p| {
            p.bth.opcode = Opcode::ReadResponseOnly;
            p.ext.aeth = Some(castnet_wire::Aeth {
                syndrome: castnet_wire::Syndrome::Ack,
                msn: 0,
            });
        }),
    ];
    for (reason, change) in cases {
        let mut b = bench();
        b.post_recv(1, 100);
        let mut packet = Packet::request(Opcode::SendOnly, 100, 4).ack_request();
        change(&mut packet);
        b.feed(&packet);
        b.sends(&[]);
        b.completes(&[]);
        let counted: Vec<_> = b.endpoint.stats().discards().collect();
        assert_eq!(counted, [(reason, 1)]);
    }
}

#[test]
fn a_limited_member_of_the_partition_is_accepted() {
    let mut b = bench();
    b.post_recv(1, 100);
    let mut packet = Packet::request(Opcode::SendOnly, 100, 4).ack_request();
    packet.bth.pkey = 0x7FFF;
    b.feed(&packet);
    b.sends(&["ACK 100 #1"]);
}

#[test]
fn any_flipped_bit_that_the_icrc_covers_drops_the_frame() {
    let frame = Packet::request(Opcode::SendOnly, 100, 64).ack_request().frame();
    for bit in (14 * 8)..frame.len() * 8 {
        let mut b = bench();
        b.post_recv(1, 100);
        let mut bad = frame.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        b.endpoint.handle_frame(Nanos(5), &bad);
        // Not covered by the ICRC: TOS, TTL, IP checksum (these three fail the IP checksum), UDP checksum, FECN and
        // BECN.
        let byte = bit / 8;
        let free = (40..42).contains(&byte) || byte == 46;
        assert_eq!(b.completions().len(), free as usize, "byte {byte}");
    }
}

#[test]
fn a_cnp_is_counted_and_changes_nothing_without_congestion_control() {
    let mut b = bench();
    let mut cnp = Packet::new(Opcode::Cnp, 0);
    cnp.bth.becn = true;
    b.feed(&cnp);
    assert_eq!(b.endpoint.stats().cnps_in, 1);
    b.sends(&[]);
}

#[test]
fn a_full_queue_of_answers_merges_acks_and_keeps_naks() {
    let mut b = bench();
    for i in 0..300 {
        b.write(Opcode::WriteOnly, 100 + i, 4, VA, 4);
    }
    let sent = b.drain();
    assert_eq!(sent.len(), 256);
    assert_eq!(sent[254..], ["ACK 354 #255", "ACK 399 #300"]);
}

#[test]
fn receives_wait_for_the_connection_in_init() {
    use castnet_endpoint::{Endpoint, EndpointConfig, QpError, QpEvent, QueueLimits, RecvWr};
    let mut endpoint = Endpoint::new(EndpointConfig::new(MY_MAC, MY_IP));
    endpoint
        .open_qp(MY_QPN, QueueLimits { send: 2, receive: 1 })
        .unwrap();
    let local = castnet_endpoint::LocalSlice::EMPTY;
    endpoint.post_recv(MY_QPN, RecvWr { wr_id: 1, local }).unwrap();
    assert!(endpoint.post_recv(MY_QPN, RecvWr { wr_id: 1, local }).is_err());
    let send = castnet_endpoint::SendWr::new(1, castnet_endpoint::SendOp::Send, local);
    let refused = castnet_endpoint::PostError::NotConnected { qpn: MY_QPN };
    assert_eq!(endpoint.post_send(MY_QPN, send), Err(refused));
    let frame = Packet::request(Opcode::SendOnly, 0, 0).frame();
    endpoint.handle_frame(Nanos(1), &frame);
    assert_eq!(endpoint.stats().discarded(Discard::QpNotReady), 1);
    endpoint.connect_qp(config()).unwrap();
    endpoint.handle_frame(Nanos(1), &frame);
    assert_eq!(
        endpoint.poll_completion().map(|c| c.status),
        Some(Status::Success)
    );
    let twice = QpError::WrongState {
        qpn: MY_QPN,
        state: QpState::Ready,
        event: QpEvent::Connect,
    };
    assert_eq!(endpoint.connect_qp(config()), Err(twice));
    endpoint.reset_qp(MY_QPN).unwrap();
    endpoint.connect_qp(config()).unwrap();
    endpoint.destroy_qp(MY_QPN).unwrap();
    assert_eq!(endpoint.destroy_qp(MY_QPN), Err(QpError::Unknown { qpn: MY_QPN }));
}

#[test]
fn an_invalid_qp_is_refused_with_the_field() {
    use castnet_endpoint::{Endpoint, EndpointConfig, OutOfRange, QpError};
    let mut endpoint = Endpoint::new(EndpointConfig {
        qps_max: 1,
        ..EndpointConfig::new(MY_MAC, MY_IP)
    });
    let mut refuses = |config: QpConfig, error| assert_eq!(endpoint.create_qp(config), Err(error));
    let range = |field, value, min, max| {
        QpError::from(OutOfRange {
            field,
            value,
            min,
            max,
        })
    };
    refuses(
        QpConfig {
            timeout: 32,
            ..config()
        },
        range("timeout", 32, 0, 31),
    );
    refuses(
        QpConfig {
            retry_cnt: 8,
            ..config()
        },
        range("retry_cnt", 8, 0, 7),
    );
    refuses(
        QpConfig {
            rnr_retry: 8,
            ..config()
        },
        range("rnr_retry", 8, 0, 7),
    );
    refuses(
        QpConfig {
            min_rnr_timer: 32,
            ..config()
        },
        range("min_rnr_timer", 32, 0, 31),
    );
    refuses(
        QpConfig {
            window: 0,
            ..config()
        },
        range("window", 0, 1, (1 << 22) - 1),
    );
    refuses(
        QpConfig {
            qpn: Qpn::new(1),
            ..config()
        },
        QpError::Reserved { qpn: Qpn::new(1) },
    );
    let mac = castnet_wire::MacAddr::BROADCAST;
    refuses(
        QpConfig {
            remote_mac: mac,
            ..config()
        },
        QpError::MulticastMac { mac },
    );
    endpoint.create_qp(config()).unwrap();
    assert_eq!(endpoint.create_qp(config()), Err(QpError::Exists { qpn: MY_QPN }));
    let other = QpConfig {
        qpn: Qpn::new(0x20),
        ..config()
    };
    assert_eq!(endpoint.create_qp(other), Err(QpError::TooMany { max: 1 }));
}
