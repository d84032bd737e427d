//! Runs of RoCE packets as super-frames of the kernel: between ports, and where the kernel takes them apart. Needs root.

use std::process::Command;
use std::time::Instant;

use castnet_port::{AfPacketPort, AfPacketSpec, FaultControl, Faults, FrameBuf, Port, Segmentation, Sides};
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::layout::{UDP_CHECKSUM, in_frame};
use castnet_wire::{
    Batch, Bth, Ethernet, ExtHeaders, Ipv4, MacAddr, Nanos, Network, Opcode, Psn, Qpn, emit_roce, icrc,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::af_packet::{TIMEOUT, frame, in_namespace, ip, open, pool, receive, send, sleeper_for, veth};

/// A packet of a flow, with its ICRC.
fn roce(flow: u16, ident: u16, payload: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 0xBB]),
        src: MacAddr([2, 0, 0, 0, 0, 0xAA]),
        vlan: None,
        ethertype: ETHERTYPE_IPV4,
    };
    let network = Network::V4(Ipv4 {
        ident,
        ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    });
    let bth = Bth::new(Opcode::SendMiddle, Qpn::new(7), Psn::new(u32::from(ident)));
    let mut out = vec![0; 5000];
    let length = emit_roce(
        &mut out,
        &ethernet,
        &network,
        0xC000 + flow,
        &bth,
        &ExtHeaders::NONE,
        payload,
    );
    out.truncate(length.unwrap());
    out
}

/// `count` packets of one flow.
pub(crate) fn run(first: u16, count: u16, payload: usize) -> Vec<Vec<u8>> {
    let packet = |i: u16| roce(0, first.wrapping_add(i), &vec![i as u8; payload]);
    (0..count).map(packet).collect()
}

/// Runs of several flows and lengths, with gaps, and frames that are no RoCE packets.
fn mixed() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let part = (0..3u16, any::<u16>(), 1..40u16, 0..1025usize, 0..5u32).prop_map(
        |(flow, ident, count, words, other)| {
            let packet = |i: u16| roce(flow, ident.wrapping_add(i), &vec![i as u8; words * 4]);
            let mut frames: Vec<_> = (0..count).map(packet).collect();
            frames.extend((0..other).map(|n| frame(n, 60 + words, (n == 1).then_some(7))));
            frames
        },
    );
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.concat())
}

/// Receives `count` frames by `receive_with`.
fn receive_in_place(port: &mut AfPacketPort, count: usize) -> Vec<Vec<u8>> {
    let (start, mut frames, mut scratch) = (Instant::now(), Vec::new(), vec![0; 9216]);
    while frames.len() < count {
        assert!(start.elapsed() < TIMEOUT, "{} of {count} frames", frames.len());
        port.receive_with(&mut scratch, &mut |frame| frames.push(frame.to_vec()));
    }
    frames
}

/// Sends the frames as a host does that builds them in send memory.
fn send_in_place(port: &mut AfPacketPort, frames: &[Vec<u8>]) {
    let mut left = frames.iter();
    let mut fill = |slot: &mut [u8]| {
        let frame = left.next()?;
        slot[..frame.len()].copy_from_slice(frame);
        Some(frame.len())
    };
    while let Some((_, true)) = port.send_in_place(4200, &mut fill) {}
}

#[test]
fn any_frames_arrive_as_they_were_sent() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let (mut near, mut far) = (open("v0", &pool), open("v1", &pool));
        let mut at_far = sleeper_for(&mut far);
        let mut runner = TestRunner::deterministic();
        for case in 0..60 {
            let frames = mixed().new_tree(&mut runner).unwrap().current();
            for batch in frames.chunks(100) {
                send(&mut near, &pool, batch);
                assert!(
                    receive(&mut far, &mut at_far, batch.len()) == batch,
                    "case {case}"
                );
                send_in_place(&mut near, batch);
                assert!(receive_in_place(&mut far, batch.len()) == batch, "case {case}");
            }
        }
        assert_eq!(near.stats().tx_frames, far.stats().rx_frames);
        assert_eq!(near.stats().tx_bytes, far.stats().rx_bytes);
        assert_eq!(far.stats().drops.total() + near.stats().drops.total(), 0);
    });
}

/// A slot of the ring has what the kernel passed as one frame.
#[test]
fn a_run_is_one_frame_of_the_kernel() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let mut near = open("v0", &pool);
        for (segmentation, payload, count, slots) in [
            (true, 4096, 30, 2),
            (true, 1024, 32, 1),
            (true, 256, 32, 1),
            (false, 1024, 32, 32),
        ] {
            let mut spec = AfPacketSpec::new("v0");
            spec.segmentation = segmentation;
            let mut near = spec.open(&pool, Sides::Send).unwrap();
            let mut far = open("v1", &pool);
            let mut at_far = sleeper_for(&mut far);
            let frames = run(9, count, payload);
            send(&mut near, &pool, &frames);
            let start = Instant::now();
            while far.receive_ring().unwrap().used < slots {
                assert!(start.elapsed() < TIMEOUT, "{payload} bytes");
            }
            assert_eq!(far.receive_ring().unwrap().used, slots, "{payload} bytes");
            assert_eq!(receive(&mut far, &mut at_far, frames.len()), frames);
            let expected = [Segmentation::Off, Segmentation::On][usize::from(segmentation)];
            assert_eq!(near.info().device.segmentation, expected);
        }
        // More than a port can keep are counted as missed, and those that are kept arrive.
        let mut far = open("v1", &pool);
        for first in 0..600 {
            send_in_place(&mut near, &run(first, 15, 4096));
        }
        let stats = far.stats();
        let (mut arrived, mut batch) = (0, Batch::new());
        while far.ready() {
            far.receive(&mut batch);
            arrived += batch.drain(..).count() as u64;
        }
        assert_eq!(stats.rx_missed, 0, "the kernel had slots");
        assert_eq!(arrived + far.stats().rx_missed, 9000);
        assert!(arrived > 0 && far.stats().rx_missed > 0);
    });
}

/// The kernel sends what single sends would have been, but for the UDP checksum.
pub(crate) fn same_but_for_checksum(arrived: &[Vec<u8>], sent: &[Vec<u8>]) {
    assert_eq!(arrived.len(), sent.len());
    for (arrived, sent) in arrived.iter().zip(sent) {
        let mut plain = arrived.clone();
        plain[in_frame(UDP_CHECKSUM)].fill(0);
        assert!(plain == *sent, "{arrived:?}");
        assert_ne!(arrived[in_frame(UDP_CHECKSUM)], [0; 2]);
        assert!(udp_checksum_is_right(arrived));
        assert!(icrc::verify_bytes(arrived, 14, arrived.len()), "{arrived:?}");
    }
}

fn udp_checksum_is_right(frame: &[u8]) -> bool {
    let (addresses, segment) = (&frame[26..34], &frame[34..]);
    let pseudo = [addresses, &[0, 17], &frame[38..40], segment].concat();
    let sum: u32 = pseudo
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| u32::from(b)))
        .sum();
    castnet_wire::ipv4::fold(sum) == 0xFFFF
}

#[test]
fn the_kernel_takes_super_frames_apart_where_a_device_cannot() {
    in_namespace(|| {
        // v0 = v1 on a bridge with w1 = w0, x1 = x0 and y1 = y0. The devices x1 and y1 have no segmentation.
        for pair in ["v", "w", "x", "y"] {
            veth(&format!("{pair}0"), &format!("{pair}1"), 4200);
        }
        ip("link add bridge type bridge mcast_snooping 0");
        for port in ["v1", "w1", "x1", "y1"] {
            ip(&format!("link set {port} master bridge"));
        }
        ip("link set bridge mtu 4200 up");
        ip("link set x1 gso_max_size 2000");
        let off = ["-K", "y1", "tx-udp-segmentation", "off"];
        let is_off = Command::new("ethtool")
            .args(off)
            .output()
            .is_ok_and(|out| out.status.success());
        let pool = pool();
        let [mut near, mut whole, mut cut, mut off] =
            ["v0", "w0", "x0", "y0"].map(|interface| open(interface, &pool));
        let (mut at_whole, mut at_cut) = (sleeper_for(&mut whole), sleeper_for(&mut cut));
        let mut at_off = sleeper_for(&mut off);
        let start = Instant::now();
        // A port of a bridge forwards after a while.
        while !whole.ready() || !cut.ready() || !off.ready() {
            assert!(start.elapsed() < TIMEOUT);
            send(&mut near, &pool, &[frame(1, 60, None)]);
        }
        let drain = |port: &mut AfPacketPort| {
            let mut scratch = vec![0; 9216];
            while port.receive_with(&mut scratch, &mut |_| {}) > 0 {}
        };
        drain(&mut whole);
        drain(&mut cut);
        drain(&mut off);
        for (payload, count) in [(4096, 32), (1024, 32), (256, 32), (4, 2)] {
            let frames = run(65_530, count, payload);
            send(&mut near, &pool, &frames);
            assert_eq!(receive(&mut whole, &mut at_whole, frames.len()), frames);
            let arrived = receive(&mut off, &mut at_off, frames.len());
            if is_off {
                same_but_for_checksum(&arrived, &frames);
            } else {
                assert_eq!(arrived, frames, "without ethtool");
            }
            let arrived = receive(&mut cut, &mut at_cut, frames.len());
            if payload > 60 {
                same_but_for_checksum(&arrived, &frames);
            } else {
                // Short enough for the device.
                assert_eq!(arrived, frames);
            }
        }
    });
}

#[test]
fn packets_go_one_by_one_while_the_kernel_refuses_super_frames() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let (mut near, mut far) = (open("v0", &pool), open("v1", &pool));
        let mut at_far = sleeper_for(&mut far);
        let frames = run(1, 20, 1024);
        let mut pass = |near: &mut AfPacketPort| {
            send(near, &pool, &frames);
            let slots = far.receive_ring().unwrap().used;
            assert_eq!(receive(&mut far, &mut at_far, frames.len()), frames);
            send_in_place(near, &frames);
            assert_eq!(receive(&mut far, &mut at_far, frames.len()), frames);
            (slots, near.info().device.segmentation)
        };
        assert_eq!(pass(&mut near), (1, Segmentation::On));
        ip("link set v0 gso_max_size 2000");
        for _ in 0..3 {
            let (slots, segmentation) = pass(&mut near);
            assert_eq!(slots, frames.len());
            assert!(matches!(segmentation, Segmentation::Refused(_)), "{segmentation}");
            assert!(
                segmentation.to_string().contains("tx-udp-segmentation"),
                "{segmentation}"
            );
        }
        ip("link set v0 gso_max_size 65536");
        assert_eq!(pass(&mut near).0, frames.len(), "not tried with each batch");
        near.poll(Nanos::from_secs(1));
        assert_eq!(pass(&mut near), (1, Segmentation::On));
        assert_eq!(near.stats().drops.total(), 0);

        // Through the queueing discipline, the kernel takes them apart.
        ip("link set v0 gso_max_size 2000");
        let mut spec = AfPacketSpec::new("v0");
        spec.qdisc_bypass = false;
        let mut near = spec.open(&pool, Sides::Send).unwrap();
        send(&mut near, &pool, &frames);
        same_but_for_checksum(&receive(&mut far, &mut at_far, frames.len()), &frames);
        assert_eq!(near.info().device.segmentation, Segmentation::On);
    });
}

/// A fault injector has packets, not super-frames, on both sides.
#[test]
fn losses_are_of_single_packets() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let faults = Faults {
            loss: 0.2,
            ..Faults::NONE
        };
        let control = FaultControl::new(5).with(faults, faults);
        let mut near = control.wrap(open("v0", &pool), 0);
        let mut far = control.wrap(open("v1", &pool), 1);
        let (mut sent, mut arrived, mut batch) = (Vec::new(), Vec::new(), castnet_port::Batch::new());
        for round in 0..40 {
            let frames = run(round * 25, 25, 1024);
            send(&mut near, &pool, &frames);
            sent.extend(frames);
            for _ in 0..3 {
                far.receive(&mut batch);
                arrived.extend(batch.drain(..).map(|f| f.to_vec()));
            }
        }
        assert!((500..800).contains(&arrived.len()), "{} of 1000", arrived.len());
        let mut left = sent.iter();
        assert!(
            arrived.iter().all(|f| left.any(|s| s == f)),
            "in order and unchanged"
        );
        let lost: u64 = [near.stats(), far.stats()].iter().map(|s| s.drops.total()).sum();
        assert_eq!(arrived.len() as u64 + lost, 1000);
        assert!(batch.iter().all(|f| f.length() > 0));
    });
}
