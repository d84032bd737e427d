//! Tests of devices, buffers and errors inside one process. DPDK runs without hugepages and the devices are virtual.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use castnet_dpdk::{Config, DpdkMemory, Hugepages, KEY_LENGTH, Mbuf, Runtime, Thresholds, destination_key};
use castnet_port::{
    Batch, DpdkSpec, FrameBuf, HandOver, Memory, MemoryPort, MoveRing, PoolConfig, Port, PortSpec, Sides,
    Steered, Steering,
};
use castnet_wire::{DropReason, PortId};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn runtime(devices: &[&DpdkSpec], threads: usize) -> Arc<Runtime> {
    let pool = PoolConfig {
        bodies: 256,
        frame_max: 9018,
        ..PoolConfig::default()
    };
    Runtime::start(&Config {
        threads,
        pool,
        hand_over: 64,
        hugepages: Hugepages::No,
        devices: devices.iter().map(|d| (*d).clone()).collect(),
    })
    .unwrap()
}

fn spec(text: &str) -> PortSpec {
    text.parse().unwrap()
}

fn open(text: &str) -> (DpdkMemory, MemoryPort<DpdkMemory>) {
    let spec = spec(text);
    let memory = runtime(&[spec.dpdk().unwrap()], 1).memory().unwrap();
    share_from(&memory, 2048);
    let port = memory.open(&spec, Sides::Both, 0).unwrap();
    (memory, port)
}

fn share_from(memory: &DpdkMemory, bytes: usize) {
    memory.set_thresholds(Thresholds {
        share: bytes,
        ..memory.thresholds()
    });
}

fn refusal(text: &str) -> String {
    let spec = spec(text);
    let memory = runtime(&[spec.dpdk().unwrap()], 1).memory().unwrap();
    let refused = memory.open(&spec, Sides::Both, 0).err().expect(text);
    refused.to_string()
}

fn bytes(length: usize, start: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + start) as u8).collect()
}

fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    for frame in frames {
        let packet = PcapPacket::new(Default::default(), frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

#[test]
fn frames_are_received_and_sent_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    // Lengths around the boundaries of head, tail and one buffer.
    let lengths = [
        14, 60, 127, 128, 129, 131, 132, 133, 136, 1024, 2047, 2048, 2049, 4200, 9014,
    ];
    let frames: Vec<_> = lengths.iter().map(|&n| bytes(n, n)).collect();
    write(&input, &frames);
    let text = format!(
        "dpdk:net_pcap1,rx_pcap={},tx_pcap={}",
        input.display(),
        output.display()
    );
    let (memory, mut port) = open(&text);
    assert!(port.info().up && port.is_up());
    assert_eq!((port.info().name.as_str(), port.info().mtu), ("net_pcap1", 9000));

    let mut batch = Batch::new();
    port.receive(&mut batch);
    assert_eq!(batch.iter().map(Mbuf::to_vec).collect::<Vec<_>>(), frames);
    let shared = batch
        .iter()
        .map(|f| memory.replicate(f, 60, port.multi_segment()).unwrap())
        .map(|f| f.segment_count())
        .collect::<Vec<_>>();
    assert_eq!(shared[..11], [1; 11], "short ones are copied");
    assert_eq!(shared[11..], [3; 4], "long ones share");
    port.send(&mut batch);
    assert!(batch.is_empty());
    let mut shared = Batch::<Mbuf>::new();
    shared.extend(frames.iter().map(|f| {
        let original = memory.copy_from(f).unwrap();
        memory.replicate(&original, 60, true).unwrap()
    }));
    port.send(&mut shared);

    let mut too_long = Batch::<Mbuf>::new();
    too_long.extend(memory.copy_from(&bytes(9015, 0)));
    too_long.extend(memory.copy_from(&bytes(13, 0)));
    port.send(&mut too_long);
    let stats = port.stats();
    let all: usize = lengths.iter().sum();
    assert_eq!((stats.rx_frames, stats.rx_bytes), (15, all as u64));
    assert_eq!((stats.tx_frames, stats.tx_bytes), (30, 2 * all as u64));
    assert_eq!(stats.drops[DropReason::TooLong], 1);
    assert_eq!(stats.drops[DropReason::Malformed], 1);
    assert!(
        memory.copy_from(&bytes(9217, 0)).is_none(),
        "longer than a buffer"
    );

    // The device completes its file when it is closed.
    drop(port);
    assert_eq!(read(&output), [frames.clone(), frames].concat());
}

#[test]
fn all_threads_use_the_thresholds_measured_once() {
    let device = spec("dpdk:net_null8,no-rx=1");
    let runtime = runtime(&[device.dpdk().unwrap()], 2);
    let memory = runtime.memory().unwrap();
    let free = memory.stats();
    let measured = memory.thresholds();
    for bytes in [measured.lend, measured.share] {
        assert!((512..=8192).contains(&bytes) || bytes == usize::MAX, "{measured}");
    }
    share_from(&memory, 0);
    let others = std::thread::spawn(move || runtime.memory().unwrap().thresholds());
    assert_eq!(
        others.join().unwrap(),
        measured,
        "set_thresholds affects only its own thread"
    );
    assert_eq!(memory.stats(), free, "a buffer leaked");
}

#[test]
fn a_device_can_be_opened_once_and_again_after_closing() {
    let text = "dpdk:net_null1";
    let one = spec(text);
    let runtime = runtime(&[one.dpdk().unwrap()], 1);
    let memory = runtime.memory().unwrap();
    let port = memory.open(&one, Sides::Both, 0).unwrap();
    let twice = memory.open(&one, Sides::Both, 0).err().unwrap().to_string();
    assert!(twice.contains("`net_null1` is in use"), "{twice}");
    drop(port);
    assert!(memory.open(&one, Sides::Both, 0).is_ok());
}

#[test]
fn errors_include_dpdks_reason() {
    for (text, words) in [
        (
            "dpdk:net_pcap2,rx_pcap=/nowhere/in.pcap",
            &["net_pcap2", "rx_pcap=/nowhere/in.pcap", "DPDK says"][..],
        ),
        ("dpdk:net_carrier_pigeon0", &["net_carrier_pigeon0", "DPDK"]),
        ("dpdk:net_null2,colour=red", &["net_null2", "DPDK says"]),
        ("dpdk:net_null2,mtu=60000", &["MTU", "not 60000"]),
        (
            "dpdk:net_pcap3,queues=2,tx_pcap=/dev/null",
            &["net_pcap3", "1 receive queues, 2 are needed"],
        ),
        ("dpdk:0000:00:1f.7", &["0000:00:1f.7"]),
    ] {
        let refusal = refusal(text);
        for word in words {
            assert!(refusal.contains(word), "{text}: {refusal}");
        }
    }
}

#[test]
fn buffers_are_freed_and_failed_allocations_are_counted() {
    let (memory, _port) = open("dpdk:net_null3,no-rx=1");
    let free = memory.stats();
    let original = memory.copy_from(&bytes(4096, 0)).unwrap();
    let mut held = Vec::new();
    while let Some(copy) = memory.replicate(&original, 60, true) {
        held.push(copy);
    }
    assert!(held.iter().all(|f| f.segment_count() == 3));
    while let Some(frame) = memory.allocate(60) {
        held.push(frame);
    }
    assert!(memory.stats().exhausted >= 2 && !memory.has_capacity());
    assert!(
        memory.replicate(&held[0], 129, true).is_none(),
        "the head is too long"
    );
    drop(held);
    // The original's body is not shared any more.
    assert_eq!(original.head().len(), 4096);
    drop(original);
    let back = memory.stats();
    assert_eq!(
        (back.buffers_free, back.bodies_free),
        (free.buffers_free, free.bodies_free)
    );
    assert!(memory.has_capacity());
}

#[test]
fn ports_of_other_kinds_are_bridged_and_faults_are_injected() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let frames: Vec<_> = (0..100).map(|i| bytes(60 + 40 * i, i)).collect();
    write(&input, &frames);
    let files = spec(&format!("pcap:{},{}", input.display(), output.display()));
    let faulty = spec("dpdk:net_null4,no-rx=1,tx.loss=1,seed=1");
    let memory = runtime(&[faulty.dpdk().unwrap()], 1).memory().unwrap();
    let mut port = memory.open(&files, Sides::Both, 0).unwrap();
    let mut lossy = memory.open(&faulty, Sides::Both, 0).unwrap();
    let (mut batch, mut got) = (Batch::new(), Vec::new());
    while got.len() < frames.len() {
        port.receive(&mut batch);
        got.extend(batch.iter().map(Mbuf::to_vec));
        let mut lost = Batch::<Mbuf>::new();
        lost.extend(
            batch
                .iter()
                .filter_map(|f| memory.replicate(f, 60, port.multi_segment())),
        );
        lossy.send(&mut lost);
        port.send(&mut batch);
    }
    assert_eq!(got, frames);
    assert_eq!(lossy.stats().drops[DropReason::Injected], 100);
    assert_eq!((port.stats().rx_frames, port.stats().tx_frames), (100, 100));
    drop(port);
    assert_eq!(read(&output), frames);
}

/// An operation on a frame and on its model, a byte vector.
#[derive(Clone, Debug)]
enum Step {
    Replicate(usize),
    Head(usize, usize, u8),
    Trailer(usize, [u8; 4]),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<usize>().prop_map(Step::Replicate),
        4 => (any::<usize>(), any::<usize>(), any::<u8>()).prop_map(|(f, at, b)| Step::Head(f, at, b)),
        2 => (any::<usize>(), any::<[u8; 4]>()).prop_map(|(f, t)| Step::Trailer(f, t)),
        1 => any::<usize>().prop_map(Step::Drop),
    ]
}

#[test]
fn shared_frames_equal_copies() {
    let (memory, _port) = open("dpdk:net_null5,no-rx=1");
    let free = memory.stats();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
    let lengths = prop_oneof![1..150_usize, 1..9000_usize];
    let strategy = (lengths, 0..4000_usize, proptest::collection::vec(step(), 0..40));
    runner
        .run(&strategy, |(length, threshold, steps)| {
            share_from(&memory, threshold);
            let twin = bytes(length, 3);
            let mut frames = vec![(memory.copy_from(&twin).unwrap(), twin)];
            for step in steps {
                let count = frames.len();
                match step {
                    Step::Replicate(f) => {
                        let (frame, twin) = &frames[f % count];
                        let copy = memory.replicate(frame, 60, true);
                        let twin = twin.clone();
                        frames.push((copy.unwrap(), twin));
                    }
                    Step::Head(f, at, byte) => {
                        let (frame, twin) = &mut frames[f % count];
                        let head = frame.head_mut();
                        prop_assert!(head.len() >= length.min(128));
                        let at = at % head.len();
                        head[at] = byte;
                        twin[at] = byte;
                    }
                    Step::Trailer(f, trailer) => {
                        let (frame, twin) = &mut frames[f % count];
                        frame.set_trailer(trailer);
                        if let Some(last) = twin.last_chunk_mut() {
                            *last = trailer;
                        }
                    }
                    Step::Drop(f) if count > 1 => drop(frames.swap_remove(f % count)),
                    Step::Drop(_) => {}
                }
                for (frame, twin) in &frames {
                    prop_assert_eq!(&frame.to_vec(), twin);
                    prop_assert_eq!(frame.length(), twin.len());
                    prop_assert_eq!(frame.head(), &twin[..frame.head().len()]);
                    prop_assert_eq!(frame.trailer(), twin.last_chunk().copied().unwrap_or_default());
                }
            }
            Ok(())
        })
        .unwrap();
    let back = memory.stats();
    assert_eq!(
        (back.buffers_free, back.bodies_free),
        (free.buffers_free, free.bodies_free)
    );
}

#[test]
fn a_frame_changes_threads_unchanged_and_a_full_ring_returns_it() {
    let (memory, mut port) = open("dpdk:net_null6,no-rx=1");
    let free = memory.stats();
    let ring = MoveRing::<PortId, Mbuf>::new(4);
    let from = PortId::new(3).unwrap();
    let frame = memory.copy_from(&bytes(1024, 1)).unwrap();
    let place = frame.head().as_ptr() as usize;
    HandOver::push(&ring, from, frame)
        .map_err(|(reason, _)| reason)
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (port, frame) = ring.pop().unwrap();
            assert_eq!((port, frame.head().as_ptr() as usize), (from, place));
            assert_eq!(frame.to_vec(), bytes(1024, 1));
        });
    });
    for n in 0..4 {
        let frame = memory.copy_from(&bytes(2048 + n, n)).unwrap();
        let copy = memory.replicate(&frame, 128, true).unwrap();
        HandOver::push(&ring, from, copy)
            .map_err(|(reason, _)| reason)
            .unwrap();
    }
    assert_eq!((HandOver::len(&ring), HandOver::capacity(&ring)), (4, 4));
    let more = memory.copy_from(&[7; 60]).unwrap();
    let (reason, more) = HandOver::push(&ring, from, more).unwrap_err();
    assert_eq!((reason, more.to_vec()), (DropReason::TxFull, vec![7; 60]));
    drop(more);
    // Frames in a dropped ring return to their pools.
    drop(ring);
    let mut none = Batch::new();
    port.send(&mut none);
    let back = memory.stats();
    assert_eq!(
        (back.buffers_free, back.bodies_free),
        (free.buffers_free, free.bodies_free)
    );
}

/// Threads replicate frames, write to them, drop them and pass them on, originals and replicas. Each frame always
/// equals its model, a byte vector.
#[test]
fn shared_frames_equal_copies_in_several_threads() {
    const THREADS: usize = 3;
    const STEPS: usize = 30_000;
    const HAVE: usize = 60;
    let seed: u64 = std::env::var("CASTNET_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(7);
    eprintln!("CASTNET_SEED={seed}");
    let device = spec("dpdk:net_null7,no-rx=1");
    let runtime = runtime(&[device.dpdk().unwrap()], THREADS);
    let memory = runtime.memory().unwrap();
    let free = memory.stats();
    let rings: Vec<_> = (0..THREADS)
        .map(|_| MoveRing::<Vec<u8>, Mbuf>::new(256))
        .collect();
    std::thread::scope(|scope| {
        for own in 0..THREADS {
            let (runtime, rings) = (&runtime, &rings);
            scope.spawn(move || {
                let memory = runtime.memory().unwrap();
                share_from(&memory, 0);
                // xorshift is good enough to choose steps.
                let mut state = (seed << 8 | own as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                let mut random = |below: usize| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 11) as usize % below
                };
                let mut frames: Vec<(Mbuf, Vec<u8>)> = Vec::new();
                for step in 0..STEPS {
                    while frames.len() < HAVE
                        && let Some((twin, frame)) = rings[own].pop()
                    {
                        frames.push((frame, twin));
                    }
                    if frames.is_empty() {
                        let twin = bytes(140 + random(2000), step);
                        frames.push((memory.copy_from(&twin).unwrap(), twin));
                    }
                    let (at, room) = (random(frames.len()), frames.len() < HAVE);
                    let (frame, twin) = &mut frames[at];
                    match random(8) {
                        0..3 if room => {
                            let copies: Vec<_> = match random(4) {
                                // A frame whose body was lent without its tail cannot lend.
                                0 => (0..=random(3))
                                    .rev()
                                    .filter_map(|left| memory.lend(frame, left))
                                    .collect(),
                                kind => vec![memory.replicate(frame, 128, kind > 1).unwrap()],
                            };
                            let twin = twin.clone();
                            frames.extend(copies.into_iter().map(|copy| (copy, twin.clone())));
                        }
                        0..4 => drop(frames.swap_remove(at)),
                        4 => {
                            let (place, byte) = (random(frame.head().len()), step as u8);
                            frame.head_mut()[place] = byte;
                            twin[place] = byte;
                        }
                        5 => {
                            let trailer = (step as u32).to_be_bytes();
                            frame.set_trailer(trailer);
                            // Borrowed bytes cannot be written. The check below compares the content.
                            if frame.trailer() == trailer {
                                *twin.last_chunk_mut().unwrap() = trailer;
                            }
                        }
                        _ => {
                            let (frame, twin) = frames.swap_remove(at);
                            // A full ring returns the frame, which is dropped.
                            let _ = rings[random(THREADS)].push(twin, frame);
                        }
                    }
                    if !frames.is_empty() {
                        let (frame, twin) = &frames[random(frames.len())];
                        assert!(frame.to_vec() == *twin, "thread {own}, step {step}, seed {seed}");
                    }
                }
            });
        }
    });
    for (twin, frame) in rings.iter().flat_map(|ring| std::iter::from_fn(|| ring.pop())) {
        assert_eq!(frame.to_vec(), twin);
    }
    let back = memory.stats();
    assert_eq!(
        (back.buffers_free, back.bodies_free),
        (free.buffers_free, free.bodies_free)
    );
}

#[test]
fn a_device_without_rules_reports_the_refused_rule() {
    let text = "dpdk:net_null8,queues=2,no-rx=1";
    let (_memory, port) = open(text);
    let table = port.flow_table().expect("several queues");
    let wanted = [
        (Ipv4Addr::new(10, 200, 0, 1), 1),
        (Ipv4Addr::new(10, 200, 0, 2), 5),
    ];
    let Steered {
        rules,
        refused,
        reason,
    } = table.steer(&wanted);
    // The thread of the second address does not receive here.
    assert_eq!((rules, refused), (0, 1), "{reason}");
    assert!(
        reason.contains("udp dst is 4791 / end actions queue index 1 / end"),
        "{reason}"
    );
    assert_ne!(port.steering(), Steering::FlowRules);
    drop(port);
    // The device is closed. Control does not keep it open.
    assert_eq!(table.steer(&wanted), Steered::default());
    let (_memory, single) = open("dpdk:net_null9,no-rx=1");
    assert!(single.flow_table().is_none(), "there is only one queue");
}

#[test]
fn the_hash_depends_on_the_destination_alone_and_spreads() {
    let key = destination_key();
    let mut queues = BTreeSet::new();
    for dst in 0..64_u8 {
        let dst = Ipv4Addr::new(10, 200, 0, dst);
        let hash = toeplitz(&key, [10, 0, 0, 1].into(), dst);
        let mut tuple = [0x0A00_0001, u32::from_be_bytes([10, 200, 0, dst.octets()[3]])];
        // SAFETY: the tuple has two words, and the key is longer than needed.
        let theirs = unsafe { castnet_dpdk_sys::cn_softrss(tuple.as_mut_ptr(), 2, key.as_ptr()) };
        assert_eq!(theirs, hash, "DPDK computes another hash");
        for src in [[10, 0, 0, 2], [192, 168, 7, 9], [255; 4]] {
            assert_eq!(toeplitz(&key, src.into(), dst), hash, "{dst}");
        }
        queues.insert(hash % 4);
    }
    assert_eq!(queues.len(), 4, "all of four queues are used by 64 groups");
    assert_eq!(KEY_LENGTH, 52);
}

#[test]
fn a_device_describes_itself() {
    let spec = spec("dpdk:net_null8,no-rx=1,queues=2,rx=256");
    let memory = runtime(&[spec.dpdk().unwrap()], 3).memory().unwrap();
    let port = memory.open(&spec, Sides::Both, 0).unwrap();
    let device = port.info().device;
    assert_eq!(device.driver, "net_null");
    assert_eq!((device.rx_queues, device.tx_queues), (2, Some(3)));
    assert_eq!(device.speed_mbps, Some(10_000));
    assert!(device.multi_segment && port.multi_segment());
    assert_eq!(device.steering, port.steering());
    // This device does not report the occupancy of its ring. Others report at most the capacity.
    assert!(port.receive_ring().is_none_or(|ring| ring.used <= ring.size));
}

/// The hash of an IPv4 packet's addresses, as a device computes it.
fn toeplitz(key: &[u8; KEY_LENGTH], src: Ipv4Addr, dst: Ipv4Addr) -> u32 {
    let input = (u64::from(src.to_bits()) << 32) | u64::from(dst.to_bits());
    let mut hash = 0;
    for bit in (0..64).filter(|bit| input >> (63 - bit) & 1 != 0) {
        let window = (0..32).fold(0, |window, i| {
            let at = bit + i;
            window << 1 | u32::from(key[at / 8] >> (7 - at % 8) & 1)
        });
        hash ^= window;
    }
    hash
}
