//! ECN marks at send queues: which frames are marked, by the depth of the queue that each kind of port shows.

use std::time::{Duration, Instant};

use castnet_port::{
    Batch, BoxPort, Marking, MemLink, MemLinkConfig, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides,
};
use castnet_wire::red::RedConfig;
use castnet_wire::{Ipv4, Nanos, ipv4};
use castnet_wrap_up::skip;
use proptest::prelude::*;

use super::af_packet::{in_namespace, ip, veth};

/// A frame of IPv4 with these ECN bits.
fn frame(ecn: u8, length: usize) -> Vec<u8> {
    let header = Ipv4 {
        tos: 26 << 2 | ecn,
        ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    };
    let mut frame = vec![2; length];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&header.to_bytes());
    frame
}

fn send(port: &mut impl Port<Buf = PoolBuf>, pool: &Pool, frames: &[Vec<u8>]) {
    let mut batch = Batch::new();
    for frame in frames {
        batch.push(pool.copy_from(frame).unwrap());
        if batch.is_full() {
            port.send(&mut batch);
        }
    }
    port.send(&mut batch);
}

/// By frame: whether it arrived with a mark. The checksum is right.
fn drain(port: &mut impl Port<Buf = PoolBuf>) -> Vec<bool> {
    let (mut marks, mut batch) = (Vec::new(), Batch::new());
    loop {
        port.receive(&mut batch);
        if batch.is_empty() {
            return marks;
        }
        marks.extend(batch.drain(..).map(|frame| {
            let bytes = frame.to_vec();
            let is_ip = bytes[12..14] == [8, 0];
            assert!(!is_ip || ipv4::checksum_is_right(&bytes[14..]));
            bytes[15] & ipv4::ECN == ipv4::ECN
        }));
    }
}

const STEP: RedConfig = RedConfig {
    least_bytes: 5_000,
    most_bytes: 5_000,
    most_ppm: RedConfig::PPM,
};

/// The queue is full for a hundred offers. A frame is drawn once all the same.
#[test]
fn frames_that_are_offered_again_are_not_drawn_again() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default().capacity(64));
    let tenth = RedConfig {
        least_bytes: 0,
        most_bytes: 128_000,
        most_ppm: RedConfig::PPM / 10,
    };
    let mut a = Marking::new(a.open(&pool, Sides::Both), tenth, 1);
    let mut b = b.open(&pool, Sides::Both);
    let mut marked = 0;
    for _ in 0..20 {
        send(&mut a, &pool, &vec![frame(0, 1000); 64]);
        let mut batch = Batch::new();
        batch.extend((0..32).map_while(|_| pool.copy_from(&frame(2, 1000))));
        for _ in 0..100 {
            a.offer(&mut batch);
            assert_eq!(batch.len(), 32);
        }
        drain(&mut b);
        a.offer(&mut batch);
        assert!(batch.is_empty());
        marked += drain(&mut b).into_iter().filter(|marked| *marked).count();
    }
    // Of 640, one in twenty to one in ten.
    assert!((15..=80).contains(&marked), "{marked}");
}

#[test]
fn frames_behind_a_long_queue_are_marked() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default().capacity(64));
    let mut a = Marking::new(a.open(&pool, Sides::Both), STEP, 1);
    let mut b = b.open(&pool, Sides::Both);
    send(&mut a, &pool, &vec![frame(2, 1000); 10]);
    assert_eq!(a.backlog(), Some(10_000));
    send(
        &mut a,
        &pool,
        &[frame(2, 1000), frame(0, 1000), frame(1, 1000), vec![1; 60]],
    );
    // Five are in the queue before the sixth. Only ECN-capable frames are marked.
    let expected = [vec![false; 6], vec![true; 5], vec![false, true, false]].concat();
    assert_eq!(drain(&mut b), expected);
    send(&mut a, &pool, &[frame(2, 1000)]);
    assert_eq!(drain(&mut b), [false]);
    let stats = a.stats();
    assert_eq!((stats.ecn_marks, stats.tx_frames), (6, 15));
}

/// Replicas share what they do not rewrite, but not the mark.
#[test]
fn a_replica_at_another_port_is_not_marked() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let always = RedConfig {
        least_bytes: 0,
        most_bytes: 0,
        ..STEP
    };
    let mut a = Marking::new(a.open(&pool, Sides::Both), always, 1);
    let mut b = b.open(&pool, Sides::Both);
    let original = pool.copy_from(&frame(2, 4000)).unwrap();
    let mut batch = Batch::new();
    batch.push(pool.copy_from(&frame(2, 100)).unwrap());
    batch.push(original.replicate().unwrap());
    a.send(&mut batch);
    assert_eq!(drain(&mut b), [false, true]);
    assert_eq!(original.to_vec(), frame(2, 4000));
}

proptest! {
    /// For any thresholds and frames, marking changes nothing but ECN and checksum, and the order is kept.
    #[test]
    fn marking_changes_nothing_else(
        least in 0..20_000_u64, span in 0..20_000_u64, most_ppm in 0..=RedConfig::PPM, seed: u64,
        frames in prop::collection::vec((0..4_u8, 60..1500_usize), 0..60),
    ) {
        let pool = Pool::new(PoolConfig::default());
        let (a, b) = MemLink::pair(&MemLinkConfig::default().capacity(64));
        let config = RedConfig { least_bytes: least, most_bytes: least + span, most_ppm };
        let mut a = Marking::new(a.open(&pool, Sides::Both), config, seed);
        let mut b = b.open(&pool, Sides::Both);
        let frames: Vec<_> = frames.into_iter().map(|(ecn, length)| frame(ecn, length)).collect();
        send(&mut a, &pool, &frames);
        let (mut batch, mut got) = (Batch::new(), Vec::new());
        loop {
            b.receive(&mut batch);
            if batch.is_empty() {
                break;
            }
            got.extend(batch.drain(..).map(|frame| frame.to_vec()));
        }
        let mut marks = 0;
        prop_assert_eq!(got.len(), frames.len());
        for (sent, mut got) in frames.into_iter().zip(got) {
            if sent != got {
                marks += 1;
                prop_assert!(matches!(sent[15] & 3, 1 | 2) && got[15] & 3 == 3);
                prop_assert!(ipv4::checksum_is_right(&got[14..]));
                got[15] = sent[15];
                got[24..26].copy_from_slice(&sent[24..26]);
            }
            prop_assert_eq!(sent, got);
        }
        prop_assert_eq!(a.stats().ecn_marks, marks);
    }
}

/// Both ends of a memif link see how many of their frames the other has not taken.
#[test]
fn memif_shows_its_queue() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), Pool::new(PoolConfig::default()));
    let open = |options: &str| {
        let text = format!(
            "memif:{}{options},ecn=5000:5000:1",
            folder.path().join("s").display()
        );
        text.parse::<PortSpec>()
            .unwrap()
            .open(&pool, Sides::Both)
            .unwrap()
    };
    let mut ports: [BoxPort; 2] = [open(""), open(",role=client")];
    let (start, mut now) = (Instant::now(), Nanos::ZERO);
    while !ports.iter().all(|port| port.is_up()) {
        assert!(start.elapsed() < Duration::from_secs(30), "the link comes up");
        now += Nanos::from_millis(20);
        ports.iter_mut().for_each(|port| port.poll(now));
    }
    for from in 0..2 {
        send(&mut ports[from], &pool, &vec![frame(1, 1000); 6]);
        assert_eq!(ports[from].backlog(), Some(6_000));
        send(&mut ports[from], &pool, &vec![frame(1, 1000); 2]);
        assert_eq!(
            drain(&mut ports[1 - from]),
            [[false; 6].as_slice(), &[true; 2]].concat()
        );
        // A server learns that frames were taken when the client lends their buffers again.
        ports[1 - from].poll(now);
        assert_eq!(ports[from].backlog(), Some(0), "end {from}");
        assert_eq!(ports[from].stats().ecn_marks, 2);
    }
}

/// A queueing discipline that lets little pass: the kernel's memory for its frames is what the port sees.
#[test]
fn a_queue_of_the_kernel_is_seen() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let shaped = std::process::Command::new("tc")
            .args("qdisc add dev v0 root tbf rate 8kbit burst 2kb limit 1000kb".split(' '))
            .output();
        if !shaped.is_ok_and(|output| output.status.success()) {
            return skip(
                "AF_PACKET",
                "needs tc (iproute2) and a kernel with the discipline tbf",
            );
        }
        let pool = Pool::new(PoolConfig::default());
        let open = |text: &str| {
            text.parse::<PortSpec>()
                .unwrap()
                .open(&pool, Sides::Both)
                .unwrap()
        };
        let mut near = open("af_packet:v0,bypass=no,ecn=5000:5000:1");
        assert_eq!(near.backlog(), Some(0));
        for _ in 0..20 {
            send(&mut near, &pool, &[frame(2, 1000)]);
        }
        assert!(near.backlog() > Some(15_000), "{:?}", near.backlog());
        let marks = near.stats().ecn_marks;
        assert!((10..20).contains(&marks), "{marks} marks");
        ip("link del v0");
    });
}
