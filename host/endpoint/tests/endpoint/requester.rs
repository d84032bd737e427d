//! The requester against scripted responses. It must behave as rxe, except where rxe is unsafe.

use crate::common::*;
use castnet_endpoint::{Discard, PostError, QpConfig, QpState, Repeat, SendOp, SendWr, Status, TimerReason};
use castnet_wire::{NakCode, Nanos, Opcode, Pmtu, Psn, Qpn};

#[test]
fn a_message_is_segmented_at_the_pmtu_and_requests_an_ack_at_its_end() {
    let mut b = Bench::new(QpConfig {
        sq_psn: Psn::new(0xFF_FFFE),
        ..config()
    });
    b.post(1, SendOp::Send, 2500);
    b.post(2, SendOp::SendImm(0x77), 1024);
    b.post(
        3,
        SendOp::Write {
            va: 0x1234_5678_9ABC,
            rkey: 9,
        },
        1025,
    );
    b.post(
        4,
        SendOp::WriteImm {
            va: 5,
            rkey: 6,
            imm: 7,
        },
        1,
    );
    b.post(5, SendOp::Send, 0);
    b.post(
        6,
        SendOp::WriteImm {
            va: 5,
            rkey: 6,
            imm: 8,
        },
        2048,
    );
    let wr = SendWr {
        solicited: true,
        ..SendWr::new(7, SendOp::Send, b.slice(0, 2048))
    };
    b.endpoint.post_send(MY_QPN, wr).unwrap();
    b.sends(&[
        "SEND_FIRST 16777214 [1024]",
        "SEND_MIDDLE 16777215 [1024]",
        "SEND_LAST 0 A [452]",
        "SEND_ONLY_IMM 1 A imm 0x77 [1024]",
        "WRITE_FIRST 2 0x123456789abc/0x9/1025 [1024]",
        "WRITE_LAST 3 A [1]",
        "WRITE_ONLY_IMM 4 A 0x5/0x6/1 imm 0x7 [1]",
        "SEND_ONLY 5 A [0]",
        "WRITE_FIRST 6 0x5/0x6/2048 [1024]",
        "WRITE_LAST_IMM 7 A imm 0x8 [1024]",
        "SEND_FIRST 8 [1024]",
        "SEND_LAST 9 A S [1024]",
    ]);
    // One cumulative ACK completes all earlier messages, across the wrap.
    b.ack(3);
    b.completes(&[(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    b.ack(9);
    let rest = [4, 5, 6, 7].map(|id| (id, Status::Success));
    b.completes(&rest);
    assert_eq!(b.endpoint.poll_timeout(), None);
}

#[test]
fn payload_comes_from_the_region_at_the_offset() {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        ..config()
    });
    let wr = SendWr::new(1, SendOp::Send, b.slice(1000, 300));
    b.endpoint.post_send(MY_QPN, wr).unwrap();
    let mut out = [0; castnet_endpoint::Endpoint::FRAME_MAX];
    let mut payload = Vec::new();
    while let Some(length) = b.endpoint.poll_transmit(b.now, &mut out) {
        let Ok(castnet_wire::Parsed::Roce(h)) = castnet_wire::parse_frame(&out[..length], length) else {
            panic!()
        };
        payload.extend_from_slice(&out[h.payload_at..h.payload_at + h.payload_len]);
    }
    assert_eq!(payload, (1000..1300).map(pattern).collect::<Vec<_>>());
}

#[test]
fn a_long_message_requests_an_ack_at_the_66th_packet_and_stops_at_the_window() {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        window: 200,
        ..config()
    });
    b.post(1, SendOp::Send, 250 * 256);
    let sent = b.drain();
    assert_eq!(sent.len(), 200);
    let asks: Vec<usize> = (0..200).filter(|&i| sent[i].contains(" A ")).collect();
    // As observed with rxe: at +65, then every 66.
    assert_eq!(asks, [65, 131, 197]);

    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        ..config()
    });
    b.post(1, SendOp::Send, 250 * 256);
    assert_eq!(b.drain().len(), 129, "128, and one more");
    b.ack(63);
    assert_eq!(b.drain().len(), 64, "an ACK for +63 lets exactly 64 more out");
    b.ack(191);
    assert_eq!(b.drain().len(), 57);
    b.ack(249);
    b.completes(&[(1, Status::Success)]);
}

#[test]
fn a_window_smaller_than_rxes_interval_still_requests_acks() {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        window: 8,
        ..config()
    });
    b.post(1, SendOp::Send, 30 * 256);
    let sent = b.drain();
    assert_eq!(sent.len(), 8);
    assert!(sent.iter().any(|line| line.contains(" A ")));
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        window: 1,
        ..config()
    });
    b.post(1, SendOp::Send, 30 * 256);
    b.sends(&["SEND_FIRST 0 A [256]"]);
    b.ack(0);
    b.sends(&["SEND_MIDDLE 1 A [256]"]);
}

#[test]
fn selective_repeat_sends_one_packet_again() {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        window: 8,
        repeat: Repeat::One,
        ..config()
    });
    b.post(1, SendOp::Send, 3 * 256);
    b.post(2, SendOp::Send, 100 * 256);
    assert_eq!(b.drain().len(), 8);
    b.nak(2, NakCode::PsnSequenceError);
    // New packets follow as far as the window allows.
    b.sends(&[
        "SEND_LAST 2 A [256]",
        "SEND_MIDDLE 8 [256]",
        "SEND_MIDDLE 9 [256]",
    ]);
    b.completes(&[]);
    // It was lost again.
    b.nak(2, NakCode::PsnSequenceError);
    b.sends(&["SEND_LAST 2 A [256]"]);
    b.ack(5);
    b.completes(&[(1, Status::Success)]);
    assert_eq!(b.drain().len(), 4);
    b.nak(7, NakCode::PsnSequenceError);
    b.ack(9);
    b.sends(&[
        "SEND_MIDDLE 14 A [256]",
        "SEND_MIDDLE 15 [256]",
        "SEND_MIDDLE 16 [256]",
        "SEND_MIDDLE 17 [256]",
    ]);
}

/// NAKs of packets in a row are from a receiver that keeps nothing behind a gap.
#[test]
fn selective_repeat_goes_back_where_nothing_is_kept() {
    let mut b = Bench::new(QpConfig {
        pmtu: Pmtu::B256,
        window: 6,
        repeat: Repeat::One,
        ..config()
    });
    b.post(1, SendOp::Send, 6 * 256);
    assert_eq!(b.drain().len(), 6);
    for psn in [1, 2, 3] {
        b.nak(psn, NakCode::PsnSequenceError);
        b.sends(&[&format!("SEND_MIDDLE {psn} A [256]")]);
    }
    b.nak(4, NakCode::PsnSequenceError);
    assert_eq!(b.drain().len(), 2);
}

#[test]
fn a_sequence_nak_acknowledges_earlier_packets_and_goes_back_once() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 1024);
    b.post(2, SendOp::Send, 4096);
    assert_eq!(b.drain().len(), 5);
    b.nak(2, NakCode::PsnSequenceError);
    b.completes(&[(1, Status::Success)]);
    // A retransmission from the middle of a message has the same opcodes and PSNs.
    b.sends(&[
        "SEND_MIDDLE 2 [1024]",
        "SEND_MIDDLE 3 [1024]",
        "SEND_LAST 4 A [1024]",
    ]);
    // A second NAK before an ACK only acknowledges.
    b.nak(4, NakCode::PsnSequenceError);
    b.completes(&[]);
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().discarded(Discard::NakRepeated), 1);
    // The timer recovers.
    b.wait();
    b.sends(&["SEND_LAST 4 A [1024]"]);
    b.ack(4);
    b.completes(&[(2, Status::Success)]);
}

#[test]
fn a_sequence_nak_that_ends_a_message_is_progress() {
    let mut b = Bench::new(QpConfig {
        retry_cnt: 1,
        ..config()
    });
    for id in 1..=3 {
        b.post(id, SendOp::Send, 1024);
    }
    assert_eq!(b.drain().len(), 3);
    for psn in [1, 2] {
        b.nak(psn, NakCode::PsnSequenceError);
        b.completes(&[(psn.into(), Status::Success)]);
        assert_eq!(b.drain().len(), 3 - psn as usize);
    }
    assert_eq!(b.endpoint.stats().discarded(Discard::NakRepeated), 0);
}

#[test]
fn after_an_ack_a_nak_starts_a_retry() {
    let mut b = Bench::new(QpConfig {
        retry_cnt: 1,
        ..config()
    });
    b.post(1, SendOp::Send, 4096);
    assert_eq!(b.drain().len(), 4);
    b.nak(1, NakCode::PsnSequenceError);
    assert_eq!(b.drain().len(), 3);
    b.ack(1);
    b.nak(2, NakCode::PsnSequenceError);
    b.sends(&["SEND_MIDDLE 2 [1024]", "SEND_LAST 3 A [1024]"]);
    b.ack(3);
    b.completes(&[(1, Status::Success)]);
}

#[test]
fn an_ack_of_the_first_transmission_shortens_the_second() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 4096);
    assert_eq!(b.drain().len(), 4);
    b.wait();
    let mut out = [0; castnet_endpoint::Endpoint::FRAME_MAX];
    assert!(b.endpoint.poll_transmit(b.now, &mut out).is_some());
    b.ack(2);
    b.sends(&["SEND_LAST 3 A [1024]"]);
    assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap().psn_unacked, Psn::new(3));
}

#[test]
fn an_ack_of_a_psn_that_was_never_sent_completes_nothing() {
    // rxe accepts it and loses data without an error. This is intentionally different here.
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 1024);
    b.post(2, SendOp::Send, 1024);
    let mut out = [0; castnet_endpoint::Endpoint::FRAME_MAX];
    assert!(b.endpoint.poll_transmit(b.now, &mut out).is_some());
    for psn in [1, 2, 100, (1 << 23) - 1] {
        b.ack(psn);
        b.nak(psn, NakCode::PsnSequenceError);
        b.nak(psn, NakCode::RemoteAccessError);
        b.rnr(psn, 1);
    }
    b.completes(&[]);
    assert_eq!(b.endpoint.stats().discarded(Discard::AckAhead), 16);
    assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap().state, QpState::Ready);
    b.sends(&["SEND_ONLY 1 A [1024]"]);
    b.ack(1);
    b.completes(&[(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn responses_while_idle_are_harmless() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 1);
    assert_eq!(b.drain().len(), 1);
    for _ in 0..3 {
        b.ack(0);
    }
    b.nak(0, NakCode::PsnSequenceError);
    b.nak(0, NakCode::RemoteAccessError);
    b.rnr(0, 1);
    b.completes(&[(1, Status::Success)]);
    b.sends(&[]);
    assert_eq!(b.endpoint.poll_timeout(), None);
    assert_eq!(b.endpoint.stats().discarded(Discard::AckOld), 5);
}

#[test]
fn without_an_ack_all_retries_are_used_then_the_qp_fails() {
    let mut b = Bench::new(QpConfig {
        timeout: 14,
        retry_cnt: 3,
        ..config()
    });
    b.post(1, SendOp::Send, 2000);
    b.post(2, SendOp::Write { va: 1, rkey: 2 }, 1);
    b.post_recv(3, 100);
    let mut sendings = 0;
    while b.endpoint.qp_status(MY_QPN).unwrap().state == QpState::Ready {
        b.sends(&[
            "SEND_FIRST 0 [1024]",
            "SEND_LAST 1 A [976]",
            "WRITE_ONLY 2 A 0x1/0x2/1 [1]",
        ]);
        sendings += 1;
        assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::Retransmit);
        assert_eq!(b.wait(), Nanos(4096 << 14));
    }
    assert_eq!(sendings, 4);
    b.completes(&[
        (1, Status::RetryExceeded),
        (2, Status::Flushed),
        (3, Status::Flushed),
    ]);
    b.sends(&[]);
    assert_eq!(b.endpoint.poll_timeout(), None);
    // A later send is flushed immediately.
    b.post(4, SendOp::Send, 1);
    b.post_recv(5, 1);
    b.completes(&[(4, Status::Flushed), (5, Status::Flushed)]);
}

#[test]
fn retry_count_7_means_no_limit_and_an_ack_resets_the_retries() {
    let mut b = Bench::new(QpConfig {
        retry_cnt: 7,
        timeout: 1,
        ..config()
    });
    b.post(1, SendOp::Send, 1);
    for _ in 0..100 {
        b.sends(&["SEND_ONLY 0 A [1]"]);
        b.wait();
    }
    let mut b = Bench::new(QpConfig {
        retry_cnt: 1,
        ..config()
    });
    b.post(1, SendOp::Send, 3000);
    assert_eq!(b.drain().len(), 3);
    for psn in 0..3 {
        b.wait();
        assert_eq!(b.drain().len(), 3 - psn);
        b.ack(psn as u32);
    }
    b.completes(&[(1, Status::Success)]);
}

#[test]
fn old_acks_keep_a_waiting_requester_from_retransmitting() {
    // Switches send such ACKs for a rank that waits for a slow one.
    let mut b = Bench::new(QpConfig {
        retry_cnt: 0,
        timeout: 14,
        ..config()
    });
    b.post(1, SendOp::Send, 1);
    assert_eq!(b.drain().len(), 1);
    let period = Nanos((4096 << 14) / 4);
    for _ in 0..400 {
        b.now += period;
        b.endpoint.handle_timeout(b.now);
        b.ack(0xFF_FFFF);
        b.sends(&[]);
    }
    b.ack(0);
    b.completes(&[(1, Status::Success)]);
    assert_eq!(b.endpoint.stats().timeouts, 0);
}

#[test]
fn a_timeout_of_zero_never_expires() {
    let mut b = Bench::new(QpConfig {
        timeout: 0,
        ..config()
    });
    b.post(1, SendOp::Send, 1);
    assert_eq!(b.drain().len(), 1);
    assert_eq!(b.endpoint.poll_timeout(), None);
}

#[test]
fn an_rnr_nak_acknowledges_earlier_packets_waits_and_retransmits() {
    let mut b = Bench::new(config());
    b.post(1, SendOp::Send, 10);
    b.post(2, SendOp::Send, 20);
    assert_eq!(b.drain().len(), 2);
    b.rnr(1, 17);
    b.completes(&[(1, Status::Success)]);
    b.post(3, SendOp::Send, 30);
    b.sends(&[]);
    assert_eq!(b.endpoint.poll_timeout().unwrap().1, TimerReason::RnrWait);
    assert_eq!(b.wait(), Nanos::from_micros(3840));
    b.sends(&["SEND_ONLY 1 A [20]", "SEND_ONLY 2 A [30]"]);
    b.ack(2);
    b.completes(&[(2, Status::Success), (3, Status::Success)]);
}

#[test]
fn rnr_retries_run_out() {
    let mut b = Bench::new(QpConfig {
        rnr_retry: 2,
        ..config()
    });
    b.post(1, SendOp::Send, 10);
    for _ in 0..2 {
        assert_eq!(b.drain().len(), 1);
        b.rnr(0, 1);
        b.wait();
    }
    assert_eq!(b.drain().len(), 1);
    b.rnr(0, 1);
    b.completes(&[(1, Status::RnrRetryExceeded)]);
    assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap().state, QpState::Error);
}

#[test]
fn an_rnr_wait_longer_than_the_timeout_uses_up_retries_as_in_rxe() {
    let mut b = Bench::new(QpConfig {
        timeout: 10,
        retry_cnt: 1,
        ..config()
    });
    b.post(1, SendOp::Send, 10);
    assert_eq!(b.drain().len(), 1);
    b.rnr(0, 0);
    b.wait();
    b.sends(&[]);
    b.wait();
    b.completes(&[(1, Status::RetryExceeded)]);
}

#[test]
fn a_fatal_nak_fails_its_work_request_and_flushes_the_rest() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, Status::RemoteAccessError),
        (NakCode::RemoteOperationalError, Status::RemoteOperationalError),
    ] {
        let mut b = Bench::new(config());
        for id in 1..=3 {
            b.post(id, SendOp::Send, 1500);
        }
        assert_eq!(b.drain().len(), 6);
        b.nak(3, code);
        b.completes(&[(1, Status::Success), (2, status), (3, Status::Flushed)]);
        assert_eq!(b.endpoint.stats().fatal_naks_in, 1);
        assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap().state, QpState::Error);
        b.ack(5);
        b.completes(&[]);
        assert_eq!(b.endpoint.stats().discarded(Discard::QpNotReady), 1);
    }
}

#[test]
fn deregistered_memory_fails_the_send_that_needs_it() {
    let mut b = Bench::new(config());
    let other = b
        .endpoint
        .register_memory(0, vec![0; 100], castnet_endpoint::Access::READ)
        .unwrap();
    b.post(1, SendOp::Send, 10);
    let local = castnet_endpoint::LocalSlice {
        key: other,
        offset: 0,
        length: 100,
    };
    b.endpoint
        .post_send(MY_QPN, SendWr::new(2, SendOp::Send, local))
        .unwrap();
    b.post(3, SendOp::Send, 10);
    assert_eq!(b.endpoint.deregister_memory(other).unwrap().len(), 100);
    b.sends(&["SEND_ONLY 0 A [10]"]);
    b.completes(&[
        (1, Status::Flushed),
        (2, Status::LocalProtectionError),
        (3, Status::Flushed),
    ]);
}

#[test]
fn unsignaled_sends_complete_silently_unless_they_fail() {
    let mut b = Bench::new(QpConfig {
        retry_cnt: 0,
        ..config()
    });
    let wr = SendWr {
        signaled: false,
        ..SendWr::new(1, SendOp::Send, b.slice(0, 1))
    };
    b.endpoint.post_send(MY_QPN, wr).unwrap();
    b.drain();
    b.ack(0);
    b.completes(&[]);
    b.endpoint.post_send(MY_QPN, SendWr { wr_id: 2, ..wr }).unwrap();
    b.drain();
    b.wait();
    b.completes(&[(2, Status::RetryExceeded)]);
}

#[test]
fn invalid_posts_are_refused_with_the_facts() {
    let mut b = Bench::new(config());
    let key = b.key;
    let at = |offset, length| castnet_endpoint::LocalSlice { key, offset, length };
    let post = |b: &mut Bench, local| b.endpoint.post_send(MY_QPN, SendWr::new(0, SendOp::Send, local));
    let region = REGION as u64;
    assert_eq!(
        post(&mut b, at(region - 1, 2)),
        Err(PostError::OutOfBounds {
            key,
            offset: region - 1,
            length: 2,
            region
        })
    );
    assert_eq!(
        post(&mut b, at(u64::MAX, 2)),
        Err(PostError::OutOfBounds {
            key,
            offset: u64::MAX,
            length: 2,
            region
        })
    );
    assert_eq!(
        post(&mut b, at(0, (1 << 31) + 1)),
        Err(PostError::TooLong {
            length: (1 << 31) + 1,
            max: 1 << 31
        })
    );
    let stale = castnet_endpoint::MemoryKey::new(key.rkey() ^ 1);
    let local = castnet_endpoint::LocalSlice {
        key: stale,
        offset: 0,
        length: 1,
    };
    assert_eq!(post(&mut b, local), Err(PostError::UnknownKey { key: stale }));
    for _ in 0..256 {
        post(&mut b, at(0, 0)).unwrap();
    }
    assert_eq!(
        post(&mut b, at(0, 0)),
        Err(PostError::QueueFull {
            qpn: MY_QPN,
            max: 256
        })
    );
}

#[test]
fn completions_never_overflow() {
    let mut endpoint = castnet_endpoint::Endpoint::new(castnet_endpoint::EndpointConfig {
        completions_max: 2,
        ..castnet_endpoint::EndpointConfig::new(MY_MAC, MY_IP)
    });
    endpoint.create_qp(config()).unwrap();
    let wr = SendWr::new(1, SendOp::Send, castnet_endpoint::LocalSlice::EMPTY);
    endpoint.post_send(MY_QPN, wr).unwrap();
    endpoint.post_send(MY_QPN, wr).unwrap();
    assert_eq!(
        endpoint.post_send(MY_QPN, wr),
        Err(PostError::CompletionQueueFull { max: 2 })
    );
    endpoint.fail_qp(MY_QPN).unwrap();
    assert_eq!(
        endpoint.post_send(MY_QPN, wr),
        Err(PostError::CompletionQueueFull { max: 2 })
    );
    assert!(endpoint.poll_completion().is_some());
    endpoint.post_send(MY_QPN, wr).unwrap();
}

#[test]
fn qps_send_round_robin_and_answers_first() {
    use castnet_wire::{Opcode, Qpn};
    let mut b = Bench::new(config());
    let second = Qpn::new(0x33);
    let other = QpConfig {
        qpn: second,
        remote_qpn: Qpn::new(0x34),
        sq_psn: Psn::new(500),
        ..config()
    };
    b.endpoint.create_qp(other).unwrap();
    b.post(1, SendOp::Send, 4096);
    let wr = SendWr::new(2, SendOp::Send, b.slice(0, 3000));
    b.endpoint.post_send(second, wr).unwrap();
    for psn in 0..2 {
        let rkey = b.key.rkey();
        b.feed(
            &Packet::request(Opcode::WriteOnly, psn, 4)
                .reth(VA, rkey, 4)
                .ack_request(),
        );
    }
    b.sends(&[
        "ACK 0 #1",
        "ACK 1 #2",
        "SEND_FIRST 0 [1024]",
        "SEND_FIRST 500 [1024]",
        "SEND_MIDDLE 1 [1024]",
        "SEND_MIDDLE 501 [1024]",
        "SEND_MIDDLE 2 [1024]",
        "SEND_LAST 502 A [952]",
        "SEND_LAST 3 A [1024]",
    ]);
}

/// What another queue pair has to send, answers and requests, is sent all the same.
#[test]
fn a_queue_pair_that_is_destroyed_takes_nothing_of_another_along() {
    let other = Qpn::new(0x13);
    let mut b = Bench::new(config());
    let config = QpConfig::new(other, PEER_IP, PEER_MAC, PEER_QPN);
    b.endpoint.create_qp(config).unwrap();
    b.post_recv(1, 8);
    b.feed(&Packet::request(Opcode::SendOnly, 0, 4).ack_request());
    b.post(1, SendOp::Send, 10);
    b.endpoint.destroy_qp(other).unwrap();
    assert_eq!(b.drain().len(), 2);
}
