//! Streams between two software RNICs: slow consumers, bad links, both transfers.

use crate::common::*;
use castnet_port::{Faults, MemLink, MemLinkConfig, Pool, PoolConfig, Sides};
use castnet_rnic::stream::{
    Event, Flow, ReceiverConfig, RemoteRing, SenderConfig, SenderLane, StreamError, StreamHeader,
    StreamReceiver, StreamSender, StreamSummary, Transfer, send_unless_followed,
};
use castnet_rnic::{
    Access, LocalSlice, QpOptions, QpRemote, QpState, Rnic, SendOp, SendWr, SoftRnic, SoftRnicConfig, Status,
};
use castnet_wire::{Nanos, Pmtu, Qpn};
use proptest::prelude::*;
use std::time::Duration;

/// A stream between the two ends of a link.
struct StreamTest {
    net: Net,
    sender: StreamSender,
    receiver: StreamReceiver,
    /// The QPs of the first lane.
    qpns: [Qpn; 2],
    /// The QPs of the other lanes.
    more: Vec<[Qpn; 2]>,
}

impl StreamTest {
    fn new(net: Net, by_write: bool, message_size: u32, in_flight: u32, slots: u32) -> Self {
        Self::over(1, net, by_write, message_size, in_flight, slots)
    }

    /// As [`Self::new`], over several lanes.
    fn over(
        lanes: usize,
        mut net: Net,
        by_write: bool,
        message_size: u32,
        in_flight: u32,
        slots: u32,
    ) -> Self {
        let mut connect = || net.connect(|remote| remote.min_rnr_timer = 2);
        let qpns = connect();
        let more: Vec<[Qpn; 2]> = (1..lanes).map(|_| connect()).collect();
        let [left, right] = &mut net.rnics;
        let receiver = ReceiverConfig {
            message_size,
            slots,
            ..ReceiverConfig::new(by_write)
        };
        let pairs = || std::iter::once(&qpns).chain(&more);
        let rights: Vec<Qpn> = pairs().map(|pair| pair[1]).collect();
        let receiver = StreamReceiver::new(right, receiver, &rights).unwrap();
        let transfers: Vec<Transfer> = receiver
            .rings()
            .map(|ring| match by_write {
                true => Transfer::Write(RemoteRing {
                    va: ring.va,
                    rkey: ring.rkey,
                    slots,
                }),
                false => Transfer::Send,
            })
            .collect();
        let lanes: Vec<SenderLane> = pairs()
            .zip(&transfers)
            .map(|(pair, transfer)| SenderLane {
                qpn: pair[0],
                transfer: *transfer,
            })
            .collect();
        let sender = SenderConfig {
            message_size,
            in_flight,
            ..SenderConfig::default()
        };
        let sender = StreamSender::new(left, sender, &lanes).unwrap();
        Self {
            net,
            sender,
            receiver,
            qpns,
            more,
        }
    }

    /// Sends `bytes` while the receiver consumes one message every `pace` iterations. Returns the received bytes.
    fn run(&mut self, name: &str, bytes: &[u8], pace: u64) -> Result<(Vec<u8>, StreamSummary), StreamError> {
        let header = StreamHeader {
            name: name.to_owned(),
            length: Some(bytes.len() as u64),
        };
        let (mut rest, mut started, mut sent, mut arrived) = (bytes, false, None, Vec::new());
        for turn in 0..4_000_000u64 {
            self.net.step();
            let [left, right] = &mut self.net.rnics;
            self.sender.poll(left)?;
            if !started {
                started = self.sender.start(left, &header)?;
            } else if !rest.is_empty() {
                rest = &rest[self.sender.write(left, rest)?..];
            } else if sent.is_none() {
                sent = self.sender.finish(left)?;
            }
            if turn % pace == 0 {
                match self.receiver.next_event(right)? {
                    Some(Event::Begin(begun)) => assert_eq!(*begun, header),
                    Some(Event::Data(data)) => arrived.extend_from_slice(data),
                    Some(Event::End(summary)) => {
                        assert_eq!(Some(&summary), sent.as_ref());
                        while !self.sender.is_drained() {
                            self.net.step();
                            self.sender.poll(&mut self.net.rnics[0])?;
                        }
                        return Ok((arrived, summary));
                    }
                    None => {}
                }
            }
        }
        panic!("no progress");
    }

    /// Sends `bytes` for so many iterations and stops. What all have acknowledged has arrived, and the rest of what was accepted can be
    /// read again. Returns the bytes acknowledged, received and accepted.
    fn stop_after(&mut self, bytes: &[u8], turns: u64) -> [usize; 3] {
        let header = StreamHeader::default();
        let (mut rest, mut started, mut arrived) = (bytes, false, Vec::new());
        for _ in 0..turns {
            self.net.step();
            let left = &mut self.net.rnics[0];
            self.sender.poll(left).unwrap();
            if !started {
                started = self.sender.start(left, &header).unwrap();
            } else if !rest.is_empty() {
                rest = &rest[self.sender.write(left, rest).unwrap()..];
            } else if self.sender.stream().is_some() && !self.sender.is_drained() {
                let _ = self.sender.finish(left);
            }
        }
        if !started {
            return [0; 3];
        }
        let right = &mut self.net.rnics[1];
        while let Some(event) = self.receiver.next_event(right).unwrap() {
            if let Event::Data(data) = event {
                arrived.extend_from_slice(data);
            }
        }
        let (acknowledged, accepted) = (
            self.sender.bytes_acknowledged() as usize,
            bytes.len() - rest.len(),
        );
        let unacknowledged = self.sender.unacknowledged(&self.net.rnics[0]).unwrap();
        assert!(unacknowledged == bytes[acknowledged..accepted]);
        assert!(acknowledged <= arrived.len() && arrived.len() <= accepted);
        assert!(arrived == bytes[..arrived.len()]);
        if let Some(open) = self.receiver.take_open_stream() {
            assert_eq!(open.bytes() as usize, arrived.len());
        }
        [acknowledged, arrived.len(), accepted]
    }
}

fn some_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn several_streams_use_one_qp_in_turn() {
    for by_write in [false, true] {
        let mut test = StreamTest::new(Net::quiet(), by_write, 3000, 4, 5);
        for (i, length) in [0, 1, 2999, 3000, 3001, 100_000].into_iter().enumerate() {
            let bytes = some_bytes(length, i as u64);
            let (arrived, summary) = test.run(&format!("stream {i}"), &bytes, 1).unwrap();
            assert!(arrived == bytes && summary.bytes == length as u64);
        }
    }
}

#[test]
fn the_digest_is_sha_256() {
    let mut test = StreamTest::new(Net::quiet(), false, 1024, 2, 2);
    let (_, summary) = test.run("abc", b"abc", 1).unwrap();
    assert_eq!(
        summary.digest.to_string(),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn a_slow_consumer_slows_the_sender_and_loses_nothing() {
    // Messages of several packets and the smallest possible rings. The first packets of a WRITE need no
    // receive, so one receive too many would let a slot be overwritten before it is read.
    for (by_write, slots) in [(false, 2), (true, 2), (true, 3), (true, 7)] {
        let mut test = StreamTest::new(Net::quiet(), by_write, 4096, 8, slots);
        let bytes = some_bytes(300_000, 9);
        let (arrived, _) = test.run("slow", &bytes, 40).unwrap();
        assert!(arrived == bytes);
        assert!(
            test.net.rnics[1].stats().rnr_naks_out > 0,
            "the ring was never full"
        );
        assert_eq!(test.net.rnics[0].qp_state(test.qpns[0]).unwrap(), QpState::Ready);
    }
}

#[test]
fn a_consumer_that_never_consumes_blocks_the_sender() {
    for by_write in [false, true] {
        let mut test = StreamTest::new(Net::quiet(), by_write, 2048, 4, 3);
        let [left, _] = &mut test.net.rnics;
        assert!(test.sender.start(left, &StreamHeader::default()).unwrap());
        let mut taken = 0;
        for _ in 0..3000 {
            taken += test.sender.write(&mut test.net.rnics[0], &[7; 1000]).unwrap();
            test.net.step();
            test.sender.poll(&mut test.net.rnics[0]).unwrap();
        }
        // Acknowledged messages are in the ring, the others in the sender's staging memory.
        assert_eq!(test.sender.messages_acknowledged(), if by_write { 2 } else { 3 });
        assert!(taken <= 8 * 2048);
        assert_eq!(test.net.rnics[0].qp_state(test.qpns[0]).unwrap(), QpState::Ready);
    }
}

#[test]
fn a_failed_lane_fails_the_stream_and_is_named() {
    for end in [0, 1] {
        let mut test = StreamTest::over(3, Net::quiet(), false, 1024, 4, 4);
        test.run("before", &some_bytes(10_000, 1), 1).unwrap();
        test.net.rnics[end].fail_qp(test.more[1][end]).unwrap();
        let error = test.run("after", &some_bytes(100_000, 2), 1).unwrap_err();
        let StreamError::Work { lane, qpn, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*lane, test.more[1].contains(qpn)), (Some(2), true), "{error}");
        assert!(error.to_string().starts_with("lane 2: "), "{error}");
    }
}

#[test]
fn lanes_share_the_messages() {
    let mut test = StreamTest::over(4, Net::quiet(), false, 1024, 8, 8);
    test.run("x", &some_bytes(40 * 1024, 3), 1).unwrap();
    // A begin, forty full messages and an end over four lanes.
    assert_eq!(test.sender.messages_acknowledged(), 42);
    let qpns = std::iter::once(test.qpns).chain(test.more.iter().copied());
    let came: Vec<u32> = qpns
        .map(|[_, right]| test.net.rnics[1].qp_status(right).unwrap().msn)
        .collect();
    assert_eq!(came, [11, 11, 10, 10]);
}

#[test]
fn a_stream_that_differs_from_its_header_is_refused() {
    let mut test = StreamTest::new(Net::quiet(), false, 1024, 4, 4);
    let left = &mut test.net.rnics[0];
    let sender = &mut test.sender;
    assert!(matches!(
        sender.write(left, b"x"),
        Err(StreamError::WrongOrder { call: "write", .. })
    ));
    assert!(matches!(
        sender.finish(left),
        Err(StreamError::WrongOrder { call: "finish", .. })
    ));
    let header = StreamHeader {
        name: "four".to_owned(),
        length: Some(4),
    };
    assert!(sender.start(left, &header).unwrap());
    assert!(matches!(
        sender.start(left, &header),
        Err(StreamError::WrongOrder { call: "start", .. })
    ));
    assert_eq!(sender.write(left, b"abc").unwrap(), 3);
    let short = StreamError::Length {
        name: "four".to_owned(),
        declared: 4,
        found: 3,
        is_end: true,
    };
    assert_eq!(sender.finish(left).unwrap_err().to_string(), short.to_string());
    assert!(matches!(
        sender.write(left, b"de"),
        Err(StreamError::Length {
            declared: 4,
            found: 5,
            ..
        })
    ));
}

#[test]
fn messages_that_are_no_stream_are_refused() {
    // Raw messages to a receiver that expects a stream: payload, immediate, and the expected error.
    let cases: [(&[u8], Option<u32>, &str); 6] = [
        (b"hello", None, "it has no immediate"),
        (b"hello", Some(3 << 30), "a turn has no payload"),
        (b"hello", Some(1 << 30), "no stream has begun"),
        (b"hello", Some(0), "its begin is too short"),
        (&[0; 40], Some(0), "its begin has no magic"),
        (b"hello", Some(9), "expected message 0, received 0x9"),
    ];
    for (payload, imm, what) in cases {
        let mut test = StreamTest::new(Net::quiet(), false, 1024, 4, 4);
        let [left, right] = &mut test.net.rnics;
        let region = left.register_memory(64, Access::READ).unwrap();
        left.write_memory(region.key, 0, payload).unwrap();
        let local = LocalSlice {
            key: region.key,
            offset: 0,
            length: payload.len() as u32,
        };
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        left.post_send(test.qpns[0], SendWr::new(1, op, local)).unwrap();
        let now = test.net.now;
        left.poll(now).unwrap();
        right.poll(now).unwrap();
        let error = test.receiver.next_event(right).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_dead_link_ends_the_stream_with_an_error() {
    let mut net = Net::quiet();
    let qpns = net.connect(|remote| remote.retry_cnt = 2);
    let lane = SenderLane {
        qpn: qpns[0],
        transfer: Transfer::Send,
    };
    let mut sender = StreamSender::new(&mut net.rnics[0], SenderConfig::default(), &[lane]).unwrap();
    assert!(sender.start(&mut net.rnics[0], &StreamHeader::default()).unwrap());
    let error = loop {
        net.now += Nanos::from_millis(1);
        net.rnics[0].poll(net.now).unwrap();
        if let Err(error) = sender.poll(&mut net.rnics[0]) {
            break error;
        }
    };
    assert!(
        matches!(
            error,
            StreamError::Work {
                status: Status::RetryExceeded,
                ..
            }
        ),
        "{error}"
    );
    sender.close(&mut net.rnics[0]).unwrap();
}

#[test]
fn the_loops_carry_a_stream_between_threads() {
    use castnet_rnic::stream::{Flow, receive, send};
    let bytes = some_bytes(3_000_000, 5);
    for by_write in [false, true] {
        let (a, b) = MemLink::pair(&MemLinkConfig::default());
        let (ring_out, ring_in) = std::sync::mpsc::channel();
        let soft = |end: castnet_port::MemEnd, i: usize| {
            let pool = Pool::new(PoolConfig::default());
            SoftRnic::new(
                end.open(&pool, Sides::Both),
                pool.clone(),
                SoftRnicConfig::new(IPS[i]),
            )
            .unwrap()
        };
        let qpn = Qpn::new(0x11);
        let remote = move |i: usize| QpRemote {
            pmtu: Pmtu::B4096,
            ..QpRemote::new(IPS[i], qpn)
        };
        let options = QpOptions {
            qpn: Some(qpn),
            ..QpOptions::default()
        };
        let (done_out, done_in) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut rnic = soft(b, 1);
            rnic.create_qp(&options).unwrap();
            let mut receiver = StreamReceiver::new(&mut rnic, ReceiverConfig::new(by_write), &[qpn]).unwrap();
            ring_out.send(receiver.rings().next().unwrap()).unwrap();
            rnic.connect_qp(qpn, &remote(0), Duration::from_secs(20)).unwrap();
            let received = receive(
                &mut rnic,
                &mut receiver,
                &mut |header| {
                    assert_eq!(header.name, "a file");
                    Ok(Vec::new())
                },
                &mut |_, _, _| Flow::Continue,
            );
            // The last ACK may be lost. Continue to reply until the sender reports that it has the ACK.
            while done_in.try_recv().is_err() {
                if !rnic.poll(rnic.now()).unwrap() {
                    rnic.wait(Duration::from_millis(1)).unwrap();
                }
            }
            received.unwrap()
        });
        let mut rnic = soft(a, 0);
        rnic.create_qp(&options).unwrap();
        rnic.connect_qp(qpn, &remote(1), Duration::from_secs(20)).unwrap();
        let ring = ring_in.recv().unwrap();
        let transfer = match by_write {
            true => Transfer::Write(RemoteRing {
                va: ring.va,
                rkey: ring.rkey,
                slots: 32,
            }),
            false => Transfer::Send,
        };
        let lanes = [SenderLane { qpn, transfer }];
        let mut sender = StreamSender::new(&mut rnic, SenderConfig::default(), &lanes).unwrap();
        let header = StreamHeader {
            name: "a file".to_owned(),
            length: Some(bytes.len() as u64),
        };
        let mut told = 0;
        let sent = send(
            &mut rnic,
            &mut sender,
            &header,
            &mut &bytes[..],
            &mut |_, bytes, acknowledged| {
                assert!(acknowledged <= bytes);
                told = bytes;
                Flow::Continue
            },
        );
        let sent = sent.unwrap();
        done_out.send(()).unwrap();
        let (received, got) = thread.join().unwrap();
        assert!(got == bytes);
        assert_eq!((sent, told), (received, bytes.len() as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn streams_arrive_over_bad_links(
        (seed, lanes) in (any::<u32>(), 1usize..6), by_write in any::<bool>(), length in 0usize..60_000, message_size in 1024u32..9000,
        in_flight in 1u32..9, slots in 2u32..9, pace in 1u64..30,
        loss in 0.0f64..0.1, duplicate in 0.0f64..0.1, reorder in 0.0f64..0.1, corrupt in 0.0f64..0.1,
    ) {
        let faults = Faults { loss, duplicate, reorder, corrupt, ..Faults::NONE };
        let net = Net::new(1500, faults, seed.into());
        let mut test = StreamTest::over(lanes, net, by_write, message_size, in_flight, slots);
        for round in 0..2 {
            let bytes = some_bytes(length, round);
            let (arrived, _) = test.run("x", &bytes, pace).unwrap();
            prop_assert!(arrived == bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_stream_that_stops_has_what_was_acknowledged_at_the_receiver_and_the_rest_at_the_sender(
        (seed, lanes) in (any::<u32>(), 1usize..6), by_write in any::<bool>(), length in 0usize..60_000, message_size in 1024u32..9000,
        in_flight in 1u32..9, slots in 2u32..9, turns in 0u64..3000, earlier in any::<bool>(),
        loss in 0.0f64..0.1, duplicate in 0.0f64..0.1, reorder in 0.0f64..0.1, corrupt in 0.0f64..0.1,
    ) {
        let faults = Faults { loss, duplicate, reorder, corrupt, ..Faults::NONE };
        let net = Net::new(1500, faults, seed.into());
        let mut test = StreamTest::over(lanes, net, by_write, message_size, in_flight, slots);
        if earlier {
            test.run("x", &some_bytes(length / 2, 1), 1).unwrap();
        }
        test.stop_after(&some_bytes(length, 2), turns);
    }
}

/// The answer to the last messages is missing, and a message of the next source has come: all have the stream. The sender is drained later.
#[test]
fn a_stream_that_another_one_follows_has_arrived() {
    let mut test = StreamTest::new(Net::quiet(), false, 1024, 16, 32);
    let bytes = [7; 5000];
    let header = StreamHeader {
        name: "followed".into(),
        length: Some(bytes.len() as u64),
    };
    let mut asked = Vec::new();
    // The receiver's RNIC does nothing, so nothing is acknowledged.
    let sent = send_unless_followed(
        &mut test.net.rnics[0],
        &mut test.sender,
        &header,
        &mut &bytes[..],
        &mut |_, _, acknowledged| {
            assert_eq!(acknowledged, 0);
            Flow::Continue
        },
        &mut |_, messages| {
            asked.push(messages);
            Ok(asked.len() == 3)
        },
    );
    let sent = sent.expect("it is followed");
    let posted = test.sender.messages_posted();
    assert_eq!(asked, [posted; 3]);
    assert!(!test.sender.is_drained());
    let mut arrived = Vec::new();
    loop {
        test.net.step();
        let [left, right] = &mut test.net.rnics;
        test.sender.poll(left).expect("no failure");
        match test.receiver.next_event(right).expect("no failure") {
            Some(Event::Data(data)) => arrived.extend_from_slice(data),
            Some(Event::End(summary)) => break assert_eq!(summary, sent),
            Some(Event::Begin(_)) | None => {}
        }
    }
    assert_eq!(arrived, bytes);
    while !test.sender.is_drained() {
        test.net.step();
        test.sender.poll(&mut test.net.rnics[0]).expect("no failure");
    }
}
