//! Software RNICs over memory links, in one thread and in virtual time.

use castnet_port::{
    Batch, FaultControl, Faults, Faulty, FrameBuf, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Port,
    Sides,
};
use castnet_rnic::stream::{
    Event, ReceiverConfig, RemoteRing, SenderConfig, StreamError, StreamHeader, StreamReceiver, StreamSender,
    StreamSummary, Transfer,
};
use castnet_rnic::{
    Access, LocalSlice, NeighbourConfig, PostError, QpOptions, QpRemote, QpState, RecvWr, Resolution, Rnic,
    RnicError, SendOp, SendWr, SoftRnic, SoftRnicConfig, Status,
};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, MacAddr, Nanos, Pmtu, Psn, Qpn};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::time::Duration;

const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const NO_WAIT: Duration = Duration::ZERO;

type Soft = SoftRnic<Faulty<MemPort>>;

/// Two RNICs on a link whose ends may lose, repeat, reorder and damage frames.
struct Net {
    rnics: [Soft; 2],
    now: Nanos,
}

impl Net {
    fn new(mtu: usize, faults: Faults, seed: u64) -> Self {
        let pool = Pool::new(PoolConfig {
            buffers: 1024,
            bodies: 1024,
            frame_max: mtu + 18,
        });
        let (a, b) = MemLink::pair(&MemLinkConfig::between("left", "right").mtu(mtu));
        let mut ends = [Some(a), Some(b)];
        let rnics = [0, 1].map(|i| {
            let control = FaultControl::new(seed + i as u64).with(faults, Faults::NONE);
            let port = ends[i].take().unwrap().open(&pool, Sides::Both);
            let config = SoftRnicConfig::new(IPS[i]);
            SoftRnic::new(control.wrap(port, 0), pool.clone(), config).unwrap()
        });
        Self {
            rnics,
            now: Nanos::from_millis(1),
        }
    }

    fn quiet() -> Self {
        Self::new(1500, Faults::NONE, 0)
    }

    /// One turn of both, some microseconds apart.
    fn turn(&mut self) {
        self.now += Nanos::from_micros(5);
        for rnic in &mut self.rnics {
            rnic.poll(self.now).unwrap();
        }
    }

    fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    /// A QP at each end, connected to each other; ARP done.
    fn connect(&mut self, change: impl Fn(&mut QpRemote)) -> [Qpn; 2] {
        for i in 0..2 {
            self.rnics[i].resolve(self.now, IPS[1 - i]);
        }
        while (0..2).any(|i| {
            !matches!(
                self.rnics[i].resolve(self.now, IPS[1 - i]),
                Resolution::Reachable(_)
            )
        }) {
            self.turn();
        }
        let qpns = [0, 1].map(|i| self.rnics[i].create_qp(&QpOptions::default()).unwrap());
        for i in 0..2 {
            let psns = [Psn::new(0xFF_FFF0), Psn::new(77)];
            let mut remote = QpRemote {
                sq_psn: psns[i],
                rq_psn: psns[1 - i],
                timeout: 10,
                ..QpRemote::new(IPS[1 - i], qpns[1 - i])
            };
            change(&mut remote);
            self.rnics[i].connect_qp(qpns[i], &remote, NO_WAIT).unwrap();
        }
        qpns
    }
}

#[test]
fn attributes_follow_from_the_port() {
    for (mtu, pmtu) in [
        (1500, Pmtu::B1024),
        (4200, Pmtu::B4096),
        (4175, Pmtu::B2048),
        (336, Pmtu::B256),
    ] {
        let net = Net::new(mtu, Faults::NONE, 0);
        let attributes = net.rnics[0].attributes();
        assert_eq!(
            (attributes.mtu, attributes.active_pmtu, attributes.ip),
            (mtu, pmtu, IPS[0])
        );
        assert_eq!(attributes.name, "left");
    }
    let pool = Pool::new(PoolConfig::default());
    let (a, _b) = MemLink::pair(&MemLinkConfig::default().mtu(335));
    let refused = SoftRnic::new(a.open(&pool, Sides::Both), pool, SoftRnicConfig::new(IPS[0])).err();
    assert!(matches!(
        refused,
        Some(RnicError::MtuTooSmall { mtu: 335, least: 336 })
    ));
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut net = Net::quiet();
    let [qpn, _] = net.connect(|_| ());
    let rnic = &mut net.rnics[0];
    let other = rnic
        .create_qp(&QpOptions {
            qpn: Some(Qpn::new(0x500)),
            ..QpOptions::default()
        })
        .unwrap();
    assert_eq!(other, Qpn::new(0x500));
    let remote = QpRemote {
        pmtu: Pmtu::B2048,
        ..QpRemote::new(IPS[1], qpn)
    };
    let refused = rnic.connect_qp(other, &remote, NO_WAIT);
    assert!(matches!(
        refused,
        Err(RnicError::PmtuTooLarge {
            active: Pmtu::B1024,
            ..
        })
    ));
    let nowhere = QpRemote::new(Ipv4Addr::new(10, 9, 9, 9), qpn);
    assert!(matches!(
        rnic.connect_qp(other, &nowhere, NO_WAIT),
        Err(RnicError::Unreachable { .. })
    ));
    let region = rnic.register_memory(10, Access::LOCAL).unwrap();
    assert!(matches!(
        rnic.write_memory(region.key, 8, &[0; 3]),
        Err(RnicError::OutOfBounds { .. })
    ));
    assert!(matches!(
        rnic.read_memory(region.key, u64::MAX, &mut [0]),
        Err(RnicError::OutOfBounds { .. })
    ));
    rnic.deregister_memory(region.key).unwrap();
    assert!(matches!(
        rnic.read_memory(region.key, 0, &mut []),
        Err(RnicError::Memory(_))
    ));
    rnic.destroy_qp(other).unwrap();
    assert!(matches!(rnic.destroy_qp(other), Err(RnicError::Qp(_))));
    assert!(rnic.qp_state(other).is_err());
}

#[test]
fn sends_and_writes_between_two() {
    let mut net = Net::quiet();
    let [a, b] = net.connect(|_| ());
    let source = net.rnics[0].register_memory(5000, Access::READ).unwrap();
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
    net.rnics[0].write_memory(source.key, 0, &bytes).unwrap();
    let sink = net.rnics[1].register_memory(5000, Access::REMOTE_WRITE).unwrap();
    let whole = |key| LocalSlice {
        key,
        offset: 0,
        length: 5000,
    };
    net.rnics[1]
        .post_recv(
            b,
            RecvWr {
                wr_id: 1,
                local: whole(sink.key),
            },
        )
        .unwrap();
    net.rnics[1]
        .post_recv(
            b,
            RecvWr {
                wr_id: 2,
                local: LocalSlice::EMPTY,
            },
        )
        .unwrap();

    net.rnics[0]
        .post_send(a, SendWr::new(10, SendOp::Send, whole(source.key)))
        .unwrap();
    let write = SendOp::WriteImm {
        va: sink.va + 1000,
        rkey: sink.rkey,
        imm: 5,
    };
    let part = LocalSlice {
        key: source.key,
        offset: 0,
        length: 4000,
    };
    net.rnics[0].post_send(a, SendWr::new(11, write, part)).unwrap();
    net.turns(10);

    let mut got = vec![0; 5000];
    net.rnics[1].read_memory(sink.key, 0, &mut got).unwrap();
    assert_eq!((&got[..1000], &got[1000..]), (&bytes[..1000], &bytes[..4000]));
    let ids = |f: &mut dyn FnMut() -> Option<castnet_rnic::Completion>| -> Vec<(u64, Status)> {
        std::iter::from_fn(f).map(|c| (c.wr_id, c.status)).collect()
    };
    let [left, right] = &mut net.rnics;
    assert_eq!(
        ids(&mut || left.poll_send_completion(a)),
        [(10, Status::Success), (11, Status::Success)]
    );
    assert_eq!(
        ids(&mut || right.poll_recv_completion(b)),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert!(right.poll_send_completion(b).is_none());
}

#[test]
fn completions_that_nobody_polls_stop_the_posting() {
    let mut net = Net::quiet();
    let [a, _] = net.connect(|_| ());
    let wr = SendWr::new(1, SendOp::Write { va: 0, rkey: 0 }, LocalSlice::EMPTY);
    let mut posted = 0;
    let refused = loop {
        match net.rnics[0].post_send(a, wr) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
        net.turns(2);
    };
    assert!(
        matches!(
            refused,
            RnicError::Post(PostError::CompletionQueueFull { max: 256 })
        ),
        "{refused}"
    );
    assert_eq!(posted, 256);
}

#[test]
fn it_announces_itself_again_and_again() {
    let mut net = Net::quiet();
    net.connect(|_| ());
    for rnic in &net.rnics {
        assert_eq!(rnic.neighbour_stats().announcements_out, 1);
    }
    net.now += NeighbourConfig::default().announce_interval;
    net.turns(2);
    for rnic in &net.rnics {
        assert_eq!(rnic.neighbour_stats().announcements_out, 2);
        assert_eq!(rnic.neighbour_stats().conflicts, 0);
    }
}

#[test]
fn it_follows_a_neighbour_that_moves_and_looks_only_at_frames_to_itself() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let mut rnic = SoftRnic::new(
        a.open(&pool, Sides::Both),
        pool.clone(),
        SoftRnicConfig::new(IPS[0]),
    )
    .unwrap();
    let mut wire = b.open(&pool, Sides::Both);
    let own = rnic.attributes().mac;
    let mut now = Nanos(1);
    let put = |wire: &mut MemPort, dst, arp: &Arp| {
        let mut bytes = [0; 64];
        let length = emit_arp(&mut bytes, dst, arp).unwrap();
        wire.send(&mut Batch::from_iter(pool.copy_from(&bytes[..length])));
    };
    let macs = [7, 8].map(|last| MacAddr([2, 0, 0, 0, 9, last]));

    rnic.resolve(now, IPS[1]);
    put(&mut wire, own, &Arp::request(own, IPS[0], IPS[1]).reply(macs[0]));
    rnic.poll(now).unwrap();
    let qpn = rnic.create_qp(&QpOptions::default()).unwrap();
    rnic.connect_qp(qpn, &QpRemote::new(IPS[1], qpn), NO_WAIT)
        .unwrap();

    for mac in macs {
        put(&mut wire, MacAddr::BROADCAST, &Arp::request(mac, IPS[1], IPS[1]));
        rnic.poll(now).unwrap();
        let wr = SendWr::new(1, SendOp::Send, LocalSlice::EMPTY);
        rnic.post_send(qpn, wr).unwrap();
        now += Nanos(1000);
        rnic.poll(now).unwrap();
        let mut batch = Batch::new();
        wire.receive(&mut batch);
        let last = batch.pop().unwrap();
        assert_eq!((last.length(), &last.head()[..6]), (58, &mac.0[..]));
        // Back to the sender, whom it is not for: nobody looks at it.
        let mut back = Batch::from_iter([last]);
        wire.send(&mut back);
        rnic.poll(now).unwrap();
        assert_eq!(rnic.stats().frames_in, 0);
    }
}

#[test]
fn an_address_that_nobody_has_becomes_unreachable() {
    let mut net = Net::quiet();
    let nobody = Ipv4Addr::new(10, 0, 0, 77);
    assert_eq!(net.rnics[0].resolve(net.now, nobody), Resolution::Pending);
    let mut waited = 0;
    while net.rnics[0].resolve(net.now, nobody) == Resolution::Pending {
        net.now += Nanos::from_millis(50);
        net.turn();
        waited += 50;
        assert!(waited < 10_000);
    }
    assert_eq!(net.rnics[0].neighbour_stats().requests_out, 12);
}

#[test]
fn what_goes_beyond_the_link_goes_to_the_gateway() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let gateway = castnet_rnic::Gateway {
        prefix_len: 24,
        ip: IPS[1],
    };
    let config = SoftRnicConfig {
        gateway: Some(gateway),
        ..SoftRnicConfig::new(IPS[0])
    };
    let mut left = SoftRnic::new(a.open(&pool, Sides::Both), pool.clone(), config).unwrap();
    let right = SoftRnicConfig::new(IPS[1]);
    let mut right = SoftRnic::new(b.open(&pool, Sides::Both), pool.clone(), right).unwrap();
    let far = Ipv4Addr::new(10, 0, 1, 9);
    let mut now = Nanos(1);
    while left.resolve(now, far) == Resolution::Pending {
        now += Nanos(1000);
        left.poll(now).unwrap();
        right.poll(now).unwrap();
    }
    assert_eq!(
        left.resolve(now, far),
        Resolution::Reachable(right.attributes().mac)
    );
}

#[test]
fn waiting_sleeps_until_something_comes_and_no_longer_than_told() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let mut left = SoftRnic::new(a.open(&pool, Sides::Both), pool, SoftRnicConfig::new(IPS[0])).unwrap();
    // The other end lives in its own thread and answers ARP: connecting blocks until it has.
    let thread = std::thread::spawn(move || {
        let pool = Pool::new(PoolConfig::default());
        let mut right = SoftRnic::new(b.open(&pool, Sides::Both), pool, SoftRnicConfig::new(IPS[1])).unwrap();
        while right.neighbour_stats().replies_out == 0 {
            if !right.poll(right.now()).unwrap() {
                right.wait(Duration::from_secs(5)).unwrap();
            }
        }
        right.attributes().mac
    });
    let mac = left.resolve_within(IPS[1], Duration::from_secs(20)).unwrap();
    assert_eq!(mac, thread.join().unwrap());
    while left.poll(left.now()).unwrap() {}
    let start = std::time::Instant::now();
    left.wait(Duration::from_millis(3)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
}

/// A stream between the two ends of a net.
struct StreamTest {
    net: Net,
    sender: StreamSender,
    receiver: StreamReceiver,
    qpns: [Qpn; 2],
}

impl StreamTest {
    fn new(mut net: Net, by_write: bool, message_size: u32, in_flight: u32, slots: u32) -> Self {
        let qpns = net.connect(|remote| remote.min_rnr_timer = 2);
        let [left, right] = &mut net.rnics;
        let receiver = ReceiverConfig {
            message_size,
            slots,
            ..ReceiverConfig::new(qpns[1], by_write)
        };
        let receiver = StreamReceiver::new(right, receiver).unwrap();
        let ring = receiver.ring();
        let transfer = match by_write {
            true => Transfer::Write(RemoteRing {
                va: ring.va,
                rkey: ring.rkey,
                slots,
            }),
            false => Transfer::Send,
        };
        let sender = SenderConfig {
            message_size,
            in_flight,
            ..SenderConfig::new(qpns[0], transfer)
        };
        let sender = StreamSender::new(left, sender).unwrap();
        Self {
            net,
            sender,
            receiver,
            qpns,
        }
    }

    /// Sends `bytes` while the receiver consumes one message every `pace` turns; gives what arrived.
    fn run(&mut self, name: &str, bytes: &[u8], pace: u64) -> Result<(Vec<u8>, StreamSummary), StreamError> {
        let header = StreamHeader {
            name: name.to_owned(),
            length: Some(bytes.len() as u64),
        };
        let (mut rest, mut started, mut sent, mut arrived) = (bytes, false, None, Vec::new());
        for turn in 0..2_000_000u64 {
            self.net.turn();
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
                            self.net.turn();
                            self.sender.poll(&mut self.net.rnics[0])?;
                        }
                        return Ok((arrived, summary));
                    }
                    None => {}
                }
            }
        }
        panic!("it hangs");
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
fn streams_follow_one_another_on_one_qp() {
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
fn a_slow_consumer_holds_the_sender_back_and_loses_nothing() {
    // Messages of several packets and a ring as small as can be: the first packets of a WRITE come without a receive, so
    // one slot too many would be overwritten before it was read.
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
fn a_consumer_that_never_consumes_holds_the_sender_back_for_ever() {
    for by_write in [false, true] {
        let mut test = StreamTest::new(Net::quiet(), by_write, 2048, 4, 3);
        let [left, _] = &mut test.net.rnics;
        assert!(test.sender.start(left, &StreamHeader::default()).unwrap());
        let mut taken = 0;
        for _ in 0..3000 {
            taken += test.sender.write(&mut test.net.rnics[0], &[7; 1000]).unwrap();
            test.net.turn();
            test.sender.poll(&mut test.net.rnics[0]).unwrap();
        }
        // What is acknowledged is in the ring; what is not, in the sender's staging memory. No more.
        assert_eq!(test.sender.messages_acknowledged(), if by_write { 2 } else { 3 });
        assert!(taken <= 8 * 2048);
        assert_eq!(test.net.rnics[0].qp_state(test.qpns[0]).unwrap(), QpState::Ready);
    }
}

#[test]
fn a_stream_that_is_not_what_it_said_is_refused() {
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
fn what_is_no_stream_is_refused_by_the_receiver() {
    // Raw messages from a QP whose other end expects a stream: payload, immediate, and what the receiver says.
    let cases: [(&[u8], Option<u32>, &str); 6] = [
        (b"hello", None, "it has no immediate"),
        (b"hello", Some(3 << 30), "its kind is not known"),
        (b"hello", Some(1 << 30), "no stream has begun"),
        (b"hello", Some(0), "its begin is too short"),
        (&[0; 40], Some(0), "its begin has no magic"),
        (b"hello", Some(9), "message 0 was next, 0x9"),
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
    let config = SenderConfig::new(qpns[0], Transfer::Send);
    let mut sender = StreamSender::new(&mut net.rnics[0], config).unwrap();
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
            let mut receiver = StreamReceiver::new(&mut rnic, ReceiverConfig::new(qpn, by_write)).unwrap();
            ring_out.send(*receiver.ring()).unwrap();
            rnic.connect_qp(qpn, &remote(0), Duration::from_secs(20)).unwrap();
            let received = receive(
                &mut rnic,
                &mut receiver,
                &mut |header| {
                    assert_eq!(header.name, "a file");
                    Ok(Vec::new())
                },
                &mut |_, _| Flow::Continue,
            );
            // The last ACK has to go out, and may be lost: answer until the sender says that it has it.
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
        let mut sender = StreamSender::new(&mut rnic, SenderConfig::new(qpn, transfer)).unwrap();
        let header = StreamHeader {
            name: "a file".to_owned(),
            length: Some(bytes.len() as u64),
        };
        let mut told = 0;
        let sent = send(&mut rnic, &mut sender, &header, &mut &bytes[..], &mut |bytes| {
            told = bytes;
            Flow::Continue
        });
        let sent = sent.unwrap();
        done_out.send(()).unwrap();
        let (received, got) = thread.join().unwrap();
        assert!(got == bytes);
        assert_eq!((sent, told), (received, bytes.len() as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_arrive_over_bad_links(
        seed in any::<u32>(), by_write in any::<bool>(), length in 0usize..60_000, message_size in 1024u32..9000,
        in_flight in 1u32..9, slots in 2u32..9, pace in 1u64..30,
        loss in 0.0f64..0.1, duplicate in 0.0f64..0.1, reorder in 0.0f64..0.1, corrupt in 0.0f64..0.1,
    ) {
        let faults = Faults { loss, duplicate, reorder, corrupt, ..Faults::NONE };
        let net = Net::new(1500, faults, seed.into());
        let mut test = StreamTest::new(net, by_write, message_size, in_flight, slots);
        for round in 0..2 {
            let bytes = some_bytes(length, round);
            let (arrived, _) = test.run("x", &bytes, pace).unwrap();
            prop_assert!(arrived == bytes);
        }
    }
}
