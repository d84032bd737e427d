//! Edges: the largest value and one more, the steps of a QP's states, what a reset gives back, and what each counter counts.

use crate::common::*;
use castnet_endpoint::{
    Access, Discard, Endpoint, EndpointConfig, LocalSlice, MemoryError, OutOfRange, PostError, QpConfig,
    QpError, QpEvent, QpState, QueueLimits, RecvWr, SendOp, SendWr,
};
use castnet_wire::{BitRate, Nanos, Opcode, Parsed, Qpn, RateLimit, Syndrome, ipv4, parse_frame};

fn endpoint(change: impl FnOnce(&mut EndpointConfig)) -> Endpoint {
    let mut config = EndpointConfig::new(MY_MAC, MY_IP);
    change(&mut config);
    Endpoint::new(config)
}

/// The frame with these ECN bits.
fn with_ecn(mut frame: Vec<u8>, ecn: u8) -> Vec<u8> {
    frame[15] = frame[15] & !3 | ecn;
    let ip = &mut frame[14..34];
    [ip[10], ip[11]] = [0, 0];
    let sum = ipv4::checksum(ip);
    [ip[10], ip[11]] = sum.to_be_bytes();
    frame
}

#[test]
fn congestion_is_both_bits_of_ecn_and_no_other_pair() {
    for (ecn, cnps) in [(0, 0), (1, 0), (2, 0), (3, 1)] {
        let mut b = Bench::new(QpConfig {
            cnp_interval: Some(QpConfig::CNP_INTERVAL),
            ..config()
        });
        let frame = Packet::request(Opcode::SendMiddle, 5, 1024).frame();
        b.endpoint.handle_frame(b.now, &with_ecn(frame, ecn));
        let sent = b.drain();
        let stats = b.endpoint.stats();
        assert_eq!(
            sent.iter().filter(|line| line.starts_with("CNP")).count() as u64,
            cnps
        );
        assert_eq!((stats.marked_in, stats.cnps_out), (cnps, cnps), "ECN {ecn}");
    }
}

#[test]
fn each_number_of_a_qp_is_refused_from_its_edge_on() {
    type Set = fn(&mut QpConfig, u64);
    let numbers: [(&str, Set, u64, u64); 7] = [
        ("timeout", |c, n| c.timeout = n as u8, 0, 31),
        ("retry_cnt", |c, n| c.retry_cnt = n as u8, 0, 7),
        ("rnr_retry", |c, n| c.rnr_retry = n as u8, 0, 7),
        ("min_rnr_timer", |c, n| c.min_rnr_timer = n as u8, 0, 31),
        ("window", |c, n| c.window = n as u32, 1, (1 << 22) - 1),
        ("ttl", |c, n| c.ttl = n as u8, 1, 255),
        (
            "rate_limit.burst_bytes",
            |c, burst_bytes| {
                c.rate_limit = Some(RateLimit {
                    rate: BitRate::new(1_000_000).expect("a rate"),
                    burst_bytes,
                });
            },
            1024 + 128,
            1 << 30,
        ),
    ];
    for (field, set, min, max) in numbers {
        let create = |value| {
            let mut config = config();
            set(&mut config, value);
            endpoint(|_| {}).create_qp(config)
        };
        assert_eq!((create(min), create(max)), (Ok(()), Ok(())), "{field}");
        let refused = |value| {
            Err(QpError::from(OutOfRange {
                field,
                value,
                min,
                max,
            }))
        };
        if field != "ttl" {
            assert_eq!(create(max + 1), refused(max + 1));
        }
        if min > 0 {
            assert_eq!(create(min - 1), refused(min - 1));
        }
    }
    for (n, is_good) in [
        (0, false),
        (1, false),
        (2, true),
        (0xFF_FFFE, true),
        (0xFF_FFFF, false),
    ] {
        let qpn = Qpn::new(n);
        let created = endpoint(|_| {}).create_qp(QpConfig { qpn, ..config() });
        let reserved = Err(QpError::Reserved { qpn });
        assert_eq!(created, if is_good { Ok(()) } else { reserved });
    }
}

#[test]
fn a_qp_steps_from_state_to_state_as_the_table_says() {
    use QpEvent::{Connect, Fail, Reset};
    use QpState::{Error, Init, Ready};
    for (state, event, expected) in [
        (Init, Connect, Some(Ready)),
        (Ready, Connect, None),
        (Error, Connect, None),
        (Init, Fail, Some(Error)),
        (Ready, Fail, Some(Error)),
        (Error, Fail, Some(Error)),
        (Init, Reset, Some(Init)),
        (Ready, Reset, Some(Init)),
        (Error, Reset, Some(Init)),
    ] {
        assert_eq!(state.step(event), expected, "{state:?} {event:?}");
        let mut endpoint = endpoint(|_| {});
        endpoint
            .open_qp(MY_QPN, QueueLimits::default())
            .expect("a number");
        if state != Init {
            endpoint.connect_qp(config()).expect("it is new");
        }
        if state == Error {
            endpoint.fail_qp(MY_QPN).expect("it exists");
        }
        let result = match event {
            Connect => endpoint.connect_qp(config()),
            Fail => endpoint.fail_qp(MY_QPN),
            Reset => endpoint.reset_qp(MY_QPN),
        };
        let wrong = QpError::WrongState {
            qpn: MY_QPN,
            state,
            event,
        };
        assert_eq!(result, expected.map(|_| ()).ok_or(wrong));
        let now = endpoint.qp_status(MY_QPN).expect("it exists").state;
        assert_eq!(now, expected.unwrap_or(state));
    }
}

/// So many completions can be to come, and not one more; what a QP gives up in any way can be posted again.
#[test]
fn work_requests_that_end_make_space_for_others() {
    const MOST: usize = 6;
    type End = fn(&mut Endpoint);
    let ends: [(&str, End); 4] = [
        ("reset", |e| {
            e.reset_qp(MY_QPN).expect("it exists");
            e.connect_qp(config()).expect("it is new");
        }),
        ("destroyed", |e| {
            e.destroy_qp(MY_QPN).expect("it exists");
            e.create_qp(config()).expect("it is new");
        }),
        ("failed", |e| {
            e.fail_qp(MY_QPN).expect("it exists");
            let flushed = std::iter::from_fn(|| e.poll_completion()).count();
            assert_eq!(flushed, MOST);
            e.reset_qp(MY_QPN).expect("it exists");
            e.connect_qp(config()).expect("it is new");
        }),
        ("flushed", |e| {
            e.fail_qp(MY_QPN).expect("it exists");
            for _ in 0..MOST {
                assert!(e.poll_completion().is_some());
            }
        }),
    ];
    for (how, end) in ends {
        let mut endpoint = endpoint(|config| config.completions_max = MOST);
        endpoint.create_qp(config()).expect("it is new");
        let post = |endpoint: &mut Endpoint| {
            let (send, receive) = (
                SendWr::new(1, SendOp::Send, LocalSlice::EMPTY),
                RecvWr {
                    wr_id: 2,
                    local: LocalSlice::EMPTY,
                },
            );
            for _ in 0..MOST / 2 {
                endpoint.post_send(MY_QPN, send).expect(how);
                endpoint.post_recv(MY_QPN, receive).expect(how);
            }
            let full = Err(PostError::CompletionQueueFull { max: MOST });
            assert_eq!(endpoint.post_send(MY_QPN, send), full, "{how}");
            assert_eq!(endpoint.post_recv(MY_QPN, receive), full, "{how}");
        };
        for _ in 0..3 {
            post(&mut endpoint);
            end(&mut endpoint);
            if how == "flushed" {
                break;
            }
        }
        post(&mut endpoint);
    }
}

#[test]
fn queues_take_as_many_work_requests_as_their_limits() {
    let limits = QueueLimits { send: 2, receive: 3 };
    let mut endpoint = endpoint(|_| {});
    let qp = QpConfig { limits, ..config() };
    endpoint.create_qp(qp).expect("it is new");
    let receive = RecvWr {
        wr_id: 2,
        local: LocalSlice::EMPTY,
    };
    let send = SendWr::new(1, SendOp::Send, LocalSlice::EMPTY);
    let full = |max| Err(PostError::QueueFull { qpn: MY_QPN, max });
    let sends: Vec<_> = (0..3).map(|_| endpoint.post_send(MY_QPN, send)).collect();
    assert_eq!(sends, [Ok(()), Ok(()), full(2)]);
    let receives: Vec<_> = (0..4).map(|_| endpoint.post_recv(MY_QPN, receive)).collect();
    assert_eq!(receives, [Ok(()), Ok(()), Ok(()), full(3)]);
    let status = endpoint.qp_status(MY_QPN).expect("it exists");
    assert_eq!((status.sends, status.receives), (2, 3));
}

#[test]
fn regions_end_with_the_address_space_and_their_number_is_limited() {
    let mut endpoint = endpoint(|config| config.regions_max = 2);
    let wraps = endpoint.register_memory(u64::MAX - 3, vec![0; 4], Access::LOCAL);
    let wrapped = MemoryError::Wraps {
        va: u64::MAX - 3,
        length: 4,
    };
    assert_eq!(wraps, Err(wrapped));
    let last = endpoint.register_memory(u64::MAX - 4, vec![0; 4], Access::LOCAL);
    assert!(last.is_ok());
    assert!(endpoint.register_memory(0, vec![0], Access::LOCAL).is_ok());
    let more = endpoint.register_memory(0, vec![0], Access::LOCAL);
    assert_eq!(more, Err(MemoryError::TooMany { max: 2 }));
    let key = last.expect("a region");
    assert_eq!(endpoint.deregister_memory(key), Ok(vec![0; 4]));
    assert_eq!(
        endpoint.deregister_memory(key),
        Err(MemoryError::UnknownKey { key })
    );
    assert!(endpoint.register_memory(0, vec![0], Access::LOCAL).is_ok());
}

#[test]
fn a_slice_may_end_where_its_region_ends() {
    let mut b = Bench::new(config());
    let region = REGION as u64;
    for (offset, length, fits) in [
        (0, REGION as u32, true),
        (region - 1, 1, true),
        (region - 1, 2, false),
        (region, 1, false),
        (region, 0, true),
        (1, REGION as u32, false),
    ] {
        let local = b.slice(offset, length);
        let receive = b.endpoint.post_recv(MY_QPN, RecvWr { wr_id: 1, local });
        let send = b.endpoint.post_send(MY_QPN, SendWr::new(1, SendOp::Send, local));
        assert_eq!(
            (send.is_ok(), receive.is_ok()),
            (fits, fits),
            "{length} at {offset}"
        );
    }
    let read_only = b
        .endpoint
        .register_memory(0, vec![0; 8], Access::READ)
        .expect("a region");
    let local = LocalSlice {
        key: read_only,
        offset: 0,
        length: 8,
    };
    assert!(
        b.endpoint
            .post_send(MY_QPN, SendWr::new(1, SendOp::Send, local))
            .is_ok()
    );
    assert_eq!(
        b.endpoint.post_recv(MY_QPN, RecvWr { wr_id: 1, local }),
        Err(PostError::NotWritable { key: read_only })
    );
}

/// The first, the last and one more byte of a region that the peer may write.
#[test]
fn a_remote_write_stays_in_its_region() {
    let end = VA + REGION as u64;
    for (va, length, fits) in [
        (VA, 4, true),
        (end - 4, 4, true),
        (end - 3, 4, false),
        (VA - 1, 4, false),
        (end, 4, false),
        (u64::MAX - 1, 4, false),
    ] {
        let mut b = Bench::new(config());
        let rkey = b.key.rkey();
        let write = Packet::request(Opcode::WriteOnly, 0, 4).reth(va, rkey, length);
        b.feed(&write.ack_request());
        let state = b.endpoint.qp_status(MY_QPN).expect("it exists").state;
        assert_eq!(state == QpState::Ready, fits, "{va:#x}");
    }
}

/// One of each: what the counters say after a short talk, all of them.
#[test]
fn each_counter_counts_its_own_frames() {
    let mut b = Bench::new(QpConfig {
        timeout: 1,
        ..config()
    });
    b.post_recv(1, 8);
    b.post(1, SendOp::Send, 2048);
    assert_eq!(b.drain().len(), 2);
    b.wait();
    assert_eq!(b.drain().len(), 2);
    b.ack(1);
    // In order, again, behind a gap, and without a receive.
    b.feed(&Packet::request(Opcode::SendOnly, 0, 4).ack_request());
    b.feed(&Packet::request(Opcode::SendOnly, 0, 4).ack_request());
    b.feed(&Packet::request(Opcode::SendOnly, 2, 4).ack_request());
    b.feed(&Packet::request(Opcode::SendOnly, 3, 4).ack_request());
    b.sends(&["ACK 0 #1", "ACK 0 #1", "NAK0 1 #1"]);
    b.feed(&Packet::request(Opcode::SendOnly, 1, 4).ack_request());
    assert_eq!(b.drain().len(), 1);
    let stats = b.endpoint.stats().clone();
    let discards: Vec<_> = stats.discards().collect();
    assert_eq!(discards, [(Discard::OutOfOrder, 1)]);
    let counters = [
        (stats.frames_in, 6),
        (stats.frames_out, 4 + 3 + 1),
        (stats.requests_in, 1),
        (stats.duplicates_in, 1),
        (stats.requests_out, 4),
        (stats.retransmits, 2),
        (stats.ack_requests_out, 2),
        (stats.acks_in, 1),
        (stats.acks_out, 2),
        (stats.sequence_naks_in, 0),
        (stats.sequence_naks_out, 1),
        (stats.repair_requests_in, 0),
        (stats.rnr_naks_in, 0),
        (stats.rnr_naks_out, 1),
        (stats.fatal_naks_in, 0),
        (stats.fatal_naks_out, 0),
        (stats.marked_in, 0),
        (stats.cnps_out, 0),
        (stats.cnps_in, 0),
        (stats.rate_cuts, 0),
        (stats.timeouts, 1),
        (stats.probes, 0),
        (stats.responses_lost, 0),
        (stats.short_buffers, 0),
    ];
    let (counted, expected): (Vec<u64>, Vec<u64>) = counters.into_iter().unzip();
    assert_eq!(counted, expected, "{stats:?}");
}

/// A frame that the caller has verified is handled like any other: the same frames out, completions and counters.
#[test]
fn a_verified_frame_is_handled_like_any_other() {
    let marked = |packet: Packet| with_ecn(packet.frame(), 3);
    let frames = [
        marked(Packet::request(Opcode::SendOnly, 0, 4).ack_request()),
        Packet::request(Opcode::SendOnly, 0, 4).ack_request().frame(),
        Packet::request(Opcode::SendOnly, 2, 4).frame(),
        Packet::response(0, Syndrome::Ack).frame(),
        Packet::new(Opcode::ReadResponseMiddle, 0).frame(),
        Packet::new(Opcode::Cnp, 0).frame(),
    ];
    let [plain, verified] = [false, true].map(|is_verified| {
        let mut b = Bench::new(QpConfig {
            cnp_interval: Some(QpConfig::CNP_INTERVAL),
            ..config()
        });
        b.post_recv(1, 8);
        b.post(2, SendOp::Send, 8);
        let mut sent = b.drain();
        for frame in &frames {
            let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
                panic!("RoCE");
            };
            match is_verified {
                false => b.endpoint.handle_frame(b.now, frame),
                true => {
                    let payload = &frame[header.payload_at..][..header.payload_len];
                    b.endpoint.handle_verified(b.now, MY_QPN, &header, payload);
                }
            }
            sent.extend(b.drain());
        }
        let completions = b.completions();
        assert_eq!(completions.len(), 2);
        (sent, completions, b.endpoint.stats().clone())
    });
    assert_eq!(plain, verified);
    assert_eq!((plain.2.cnps_out, plain.2.cnps_in), (1, 1));
}

#[test]
fn a_frame_for_a_qp_that_is_not_connected_is_early() {
    let mut endpoint = endpoint(|_| {});
    let request = Packet::request(Opcode::SendOnly, 0, 4);
    let elsewhere = Packet {
        dst: PEER_IP,
        ..request.clone()
    };
    let (frame, elsewhere) = (request.frame(), elsewhere.frame());
    assert!(!endpoint.is_early(&frame), "no such QP");
    endpoint
        .open_qp(MY_QPN, QueueLimits::default())
        .expect("a number");
    assert!(endpoint.is_early(&frame));
    assert!(!endpoint.is_early(&elsewhere) && !endpoint.is_early(&frame[..40]));
    // Those of anybody filled the memory for early frames.
    let mut forged = frame.clone();
    *forged.last_mut().expect("an ICRC") ^= 1;
    assert!(!endpoint.is_early(&forged));
    let Ok(Parsed::Roce(header)) = parse_frame(&frame, frame.len()) else {
        panic!("RoCE");
    };
    endpoint.handle_verified(Nanos::ZERO, MY_QPN, &header, &[0; 4]);
    endpoint.handle_frame(Nanos::ZERO, &frame);
    assert_eq!(endpoint.stats().discarded(Discard::QpNotReady), 2);
    assert_eq!(endpoint.stats().frames_in, 2);
    endpoint.connect_qp(config()).expect("it is new");
    assert!(!endpoint.is_early(&frame));
}
