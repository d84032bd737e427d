//! Software RNICs over memory links: devices, QPs, memory, ARP and sleeping.

use crate::common::*;
use castnet_endpoint::Discard;
use castnet_port::{Batch, Faults, FrameBuf, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Port, Sides};
use castnet_rnic::{
    Access, Congestion, CongestionAlgorithm, LocalSlice, NeighbourConfig, PostError, QpOptions, QpRemote,
    RecvWr, Resolution, Rnic, RnicError, SendOp, SendWr, SoftRnic, SoftRnicConfig, Status,
};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, BitRate, MacAddr, Nanos, Parsed, Pmtu, Qpn, ipv4, parse_frame};
use std::net::Ipv4Addr;
use std::time::Duration;

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
fn invalid_requests_are_refused() {
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
    // More than an allocation may have.
    assert!(matches!(
        rnic.register_memory(isize::MAX as usize + 1, Access::LOCAL),
        Err(RnicError::NoMemory { .. })
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
    net.iterate(10);

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

/// Connects the sender to a QP that is not connected, and sends empty messages to it.
fn send_early(net: &mut Net, to: Qpn, messages: u64) -> Qpn {
    let from = net.rnics[0].create_qp(&QpOptions::default()).unwrap();
    let remote = QpRemote {
        timeout: 10,
        ..QpRemote::new(IPS[1], to)
    };
    net.rnics[0].connect_qp(from, &remote, NO_WAIT).unwrap();
    for id in 0..messages {
        let wr = SendWr::new(id, SendOp::Send, LocalSlice::EMPTY);
        net.rnics[0].post_send(from, wr).unwrap();
    }
    net.iterate(20);
    from
}

/// The messages that the QP `to` takes, 200 at most, after it has been connected to `from`.
fn take_early(net: &mut Net, from: Qpn, to: Qpn, iterations: usize) -> Vec<u64> {
    for wr_id in 0..200 {
        let local = LocalSlice::EMPTY;
        net.rnics[1].post_recv(to, RecvWr { wr_id, local }).unwrap();
    }
    let remote = QpRemote::new(IPS[0], from);
    net.rnics[1].connect_qp(to, &remote, NO_WAIT).unwrap();
    net.iterate(iterations);
    std::iter::from_fn(|| net.rnics[1].poll_recv_completion(to))
        .map(|completion| completion.wr_id)
        .collect()
}

#[test]
fn a_window_that_arrives_before_the_qp_is_connected_is_not_sent_again() {
    let mut net = Net::quiet();
    net.connect(|_| ());
    let [to, other] = [0; 2].map(|_| net.rnics[1].create_qp(&QpOptions::default()).unwrap());
    let [from, other_from] = [to, other].map(|to| send_early(&mut net, to, 100));
    for (from, to) in [(from, to), (other_from, other)] {
        assert!(take_early(&mut net, from, to, 20).into_iter().eq(0..100));
        let acknowledged = std::iter::from_fn(|| net.rnics[0].poll_send_completion(from));
        assert_eq!(acknowledged.count(), 100);
    }
    assert_eq!(net.rnics[0].stats().retransmits, 0);
}

#[test]
fn early_frames_are_kept_up_to_a_limit_and_go_with_their_qp() {
    let mut net = Net::quiet();
    net.connect(|_| ());
    let to = net.rnics[1].create_qp(&QpOptions::default()).unwrap();
    for _ in 0..3 {
        send_early(&mut net, to, 100);
    }
    let discarded = |net: &Net, reason| net.rnics[1].stats().discarded(reason);
    assert_eq!(discarded(&net, Discard::QpNotReady), 300 - 256);
    net.rnics[1].destroy_qp(to).unwrap();
    assert_eq!(discarded(&net, Discard::UnknownQp), 256);
}

#[test]
fn early_messages_over_a_bad_link_arrive_once_and_in_order() {
    for seed in 0..30 {
        let faults = Faults {
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            corrupt: 0.05,
            ..Faults::NONE
        };
        let mut net = Net::new(1500, faults, seed);
        net.connect(|_| ());
        let to = net.rnics[1].create_qp(&QpOptions::default()).unwrap();
        let from = send_early(&mut net, to, 100);
        let taken = take_early(&mut net, from, to, 200_000);
        assert!(taken.iter().copied().eq(0..100), "seed {seed}: {taken:?}");
    }
}

#[test]
fn unpolled_completions_block_posting() {
    let mut net = Net::quiet();
    let [a, _] = net.connect(|_| ());
    let wr = SendWr::new(1, SendOp::Write { va: 0, rkey: 0 }, LocalSlice::EMPTY);
    let mut posted = 0;
    let refused = loop {
        match net.rnics[0].post_send(a, wr) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
        net.iterate(2);
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
fn announcements_are_periodic() {
    let mut net = Net::quiet();
    net.connect(|_| ());
    for rnic in &net.rnics {
        assert_eq!(rnic.neighbour_stats().announcements_out, 1);
    }
    net.now += NeighbourConfig::default().announce_interval;
    net.iterate(2);
    for rnic in &net.rnics {
        assert_eq!(rnic.neighbour_stats().announcements_out, 2);
        assert_eq!(rnic.neighbour_stats().conflicts, 0);
    }
}

/// An RNIC and the other end of its link, with the pool of both.
fn rnic_and_wire() -> (Pool, SoftRnic<MemPort>, MemPort) {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let port = a.open(&pool, Sides::Both);
    let rnic = SoftRnic::new(port, pool.clone(), SoftRnicConfig::new(IPS[0])).unwrap();
    let wire = b.open(&pool, Sides::Both);
    (pool, rnic, wire)
}

#[test]
fn a_moved_neighbour_is_followed_and_frames_to_others_are_ignored() {
    let (pool, mut rnic, mut wire) = rnic_and_wire();
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
        // The frame returns to its sender, which ignores it because the destination is another address.
        let mut back = Batch::from_iter([last]);
        wire.send(&mut back);
        rnic.poll(now).unwrap();
        assert_eq!(rnic.stats().frames_in, 0);
    }
}

#[test]
fn an_unused_address_becomes_unreachable() {
    let mut net = Net::quiet();
    let nobody = Ipv4Addr::new(10, 0, 0, 77);
    assert_eq!(net.rnics[0].resolve(net.now, nobody), Resolution::Pending);
    let mut waited = 0;
    while net.rnics[0].resolve(net.now, nobody) == Resolution::Pending {
        net.now += Nanos::from_millis(50);
        net.step();
        waited += 50;
        assert!(waited < 10_000);
    }
    assert_eq!(net.rnics[0].neighbour_stats().requests_out, 12);
}

#[test]
fn frames_to_other_networks_go_to_the_gateway() {
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
fn wait_returns_at_an_event_or_timeout() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let mut left = SoftRnic::new(a.open(&pool, Sides::Both), pool, SoftRnicConfig::new(IPS[0])).unwrap();
    // The other end runs in its own thread and answers ARP, or is known already because it has announced itself.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let pool = Pool::new(PoolConfig::default());
        let mut right = SoftRnic::new(b.open(&pool, Sides::Both), pool, SoftRnicConfig::new(IPS[1])).unwrap();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            if !right.poll(right.now()).unwrap() {
                right.wait(Duration::from_millis(10)).unwrap();
            }
        }
        right.attributes().mac
    });
    let mac = left.resolve_within(IPS[1], Duration::from_secs(20)).unwrap();
    drop(stop);
    assert_eq!(mac, thread.join().unwrap());
    while left.poll(left.now()).unwrap() {}
    left.wait(Duration::from_millis(3)).unwrap();
}

/// Found by the streams over bad links: ARP has no checksum. One inverted bit of a reply sent all frames to a
/// wrong address until the next announcement, 30 seconds later.
#[test]
fn a_damaged_arp_reply_is_corrected_after_missing_acks() {
    let (pool, mut rnic, mut wire) = rnic_and_wire();
    let own = rnic.attributes().mac;
    let (right, wrong) = (MacAddr([2, 0, 0, 0, 9, 7]), MacAddr([2, 0, 0, 0x40, 9, 7]));
    let mut now = Nanos::from_secs(2);

    rnic.resolve(now, IPS[1]);
    let mut answer = wrong;
    let qpn = rnic.create_qp(&QpOptions::default()).unwrap();
    let mut is_connected = false;
    for _ in 0..100 {
        now += Nanos::from_millis(20);
        rnic.poll(now).unwrap();
        let mut batch = Batch::new();
        wire.receive(&mut batch);
        for frame in batch {
            if frame.head()[..6] == right.0 {
                return;
            }
            if let Ok(Parsed::Arp(arp)) = parse_frame(frame.head(), frame.length())
                && arp.target_ip == IPS[1]
            {
                let mut bytes = [0; 64];
                let length = emit_arp(&mut bytes, own, &arp.reply(answer)).unwrap();
                wire.send(&mut Batch::from_iter(pool.copy_from(&bytes[..length])));
                answer = right;
            }
        }
        if !is_connected && rnic.resolve(now, IPS[1]) == Resolution::Reachable(wrong) {
            is_connected = true;
            rnic.connect_qp(qpn, &QpRemote::new(IPS[1], qpn), NO_WAIT)
                .unwrap();
            rnic.post_send(qpn, SendWr::new(1, SendOp::Send, LocalSlice::EMPTY))
                .unwrap();
        }
    }
    panic!("no frame to the right address within two seconds");
}

/// A wire that marks ECN-capable packets: with congestion control the sender is told and slows down, without it nothing is marked.
#[test]
fn marks_on_the_way_slow_the_sender_down() {
    let line = BitRate::new(1_000_000_000);
    for algorithm in [
        None,
        Some(CongestionAlgorithm::Dcqcn),
        Some(CongestionAlgorithm::GuardTimer),
    ] {
        let congestion = algorithm.map(|algorithm| Congestion {
            algorithm,
            rate_max: line,
        });
        let pool = Pool::new(PoolConfig::default());
        let mut wires = Vec::new();
        let mut rnics = IPS.map(|ip| {
            // The Ethernet address follows from the name.
            let (end, wire) = MemLink::pair(&MemLinkConfig::between(&ip.to_string(), "wire"));
            wires.push(wire.open(&pool, Sides::Both));
            let config = SoftRnicConfig {
                congestion,
                ..SoftRnicConfig::new(ip)
            };
            SoftRnic::new(end.open(&pool, Sides::Both), pool.clone(), config).unwrap()
        });
        let (mut now, mut batch, mut marks) = (Nanos(1), Batch::new(), 0);
        let mut step = |rnics: &mut [SoftRnic<MemPort>; 2]| {
            now += Nanos::from_micros(5);
            for from in 0..2 {
                rnics[from].poll(now).unwrap();
                wires[from].receive(&mut batch);
                for frame in &mut batch {
                    let is_ip = frame.head()[12..14] == [8, 0];
                    marks += u64::from(is_ip && ipv4::mark_congestion(&mut frame.head_mut()[14..]));
                }
                wires[1 - from].send(&mut batch);
            }
            (now, marks)
        };
        let resolved = |rnics: &mut [SoftRnic<MemPort>; 2], now| {
            (0..2).all(|i| matches!(rnics[i].resolve(now, IPS[1 - i]), Resolution::Reachable(_)))
        };
        let mut at = Nanos(1);
        while !resolved(&mut rnics, at) {
            (at, _) = step(&mut rnics);
        }
        let qpns = [0, 1].map(|i| rnics[i].create_qp(&QpOptions::default()).unwrap());
        let regions = [0, 1].map(|i| rnics[i].register_memory(64 << 10, Access::LOCAL).unwrap());
        let local = |i: usize| LocalSlice {
            key: regions[i].key,
            offset: 0,
            length: 64 << 10,
        };
        for i in 0..2 {
            let remote = QpRemote::new(IPS[1 - i], qpns[1 - i]);
            rnics[i].connect_qp(qpns[i], &remote, NO_WAIT).unwrap();
        }
        let receive = RecvWr {
            wr_id: 1,
            local: local(1),
        };
        rnics[1].post_recv(qpns[1], receive).unwrap();
        rnics[0]
            .post_send(qpns[0], SendWr::new(1, SendOp::Send, local(0)))
            .unwrap();
        let (completion, marks) = loop {
            let (_, marks) = step(&mut rnics);
            if let Some(completion) = rnics[0].poll_send_completion(qpns[0]) {
                break (completion, marks);
            }
        };
        assert_eq!(completion.status, Status::Success);
        let traffic = [0, 1].map(|i| rnics[i].traffic());
        let told = (traffic[0].cnps_received, traffic[1].cnps_sent);
        let stats = rnics[0].stats();
        match algorithm {
            None => assert_eq!((told, marks, stats.rate_cuts), ((None, None), 0, 0)),
            Some(_) => {
                assert!(
                    told.0 >= Some(1) && told.0 <= told.1 && marks >= 64,
                    "{told:?}, {marks}"
                );
                assert!(stats.rate_cuts >= 1 && Some(stats.rate_cuts) <= told.0);
            }
        }
    }
}
