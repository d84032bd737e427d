//! Super-frames towards tap devices, whose other end is a program that reads single frames, such as QEMU. Needs root.
//!
//! Unsafe: one ioctl that attaches a file to a tap device.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use castnet_port::{AfPacketSpec, Batch, Port, Segmentation, Sides};
use castnet_wire::DropReason;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::af_packet::{TIMEOUT, frame, in_namespace, ip, open, pool, receive, send, sleeper_for, veth};
use crate::superframes::{run, same_but_for_checksum};

/// Creates a tap device that is up, and returns its other end.
pub(crate) fn tap(name: &str, mtu: usize) -> File {
    device(name, mtu, 0)
}

fn device(name: &str, mtu: usize, flags: libc::c_int) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .expect("tap devices are in this kernel");
    // SAFETY: integers, and a union of integers and a pointer, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: the request is a whole `ifreq` with a zero-terminated name, as this command requires, and outlives the call.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    ip(&format!("link set {name} mtu {mtu} up"));
    file
}

/// What a plain reader gets: a frame with each call.
fn read(mut tap: &File, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let mut fds = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(TIMEOUT).expect("a time");
        let ready = poll(&mut fds, timeout).expect("polled");
        assert_eq!(ready, 1, "{} of {count} frames", frames.len());
        let mut bytes = vec![0; 70_000];
        let length = tap.read(&mut bytes).expect("read");
        bytes.truncate(length);
        frames.push(bytes);
    }
    frames
}

/// A TCP super-frame of packets of 1000 bytes, behind its `virtio_net_hdr`. Its IP header gives another length.
fn bad_super_frame(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; 10 + length];
    // Flag: the checksum is missing. Kind: TCP over IPv4.
    bytes[..2].copy_from_slice(&[1, 1]);
    for (at, value) in [(2, 54_u16), (4, 1000), (6, 34), (8, 16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    let frame = &mut bytes[10..];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xBB, 2, 0, 0, 0, 0, 0xAA, 8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 99, 0, 1, 0, 0, 64, 6]);
    frame[46] = 0x50;
    bytes
}

#[test]
fn refused_super_frames_keep_the_thread_for_no_longer_than_a_batch() {
    in_namespace(|| {
        let mut writer = device("tap0", 4200, libc::IFF_VNET_HDR);
        let pool = pool();
        let mut port = open("tap0", &pool);
        // Short ones fit their slots. The kernel keeps some of the long ones, and the others are missed.
        for (length, count) in [(2_000, 100), (60_000, 600)] {
            for _ in 0..count {
                writer.write_all(&bad_super_frame(length)).expect("written");
            }
            let waiting = |port: &castnet_port::AfPacketPort| port.receive_ring().expect("a ring").used;
            let (start, mut left) = (Instant::now(), waiting(&port));
            assert_eq!(left, count);
            while left > 0 {
                assert!(start.elapsed() < TIMEOUT, "{left} of {count} frames");
                let mut batch = Batch::new();
                port.receive(&mut batch);
                let taken = left - waiting(&port);
                assert!(batch.is_empty() && taken <= batch.capacity(), "{taken} at once");
                left -= taken;
            }
        }
        let stats = port.stats();
        assert!(
            stats.drops[DropReason::Malformed] > 100 && stats.rx_missed > 0,
            "{stats:?}"
        );
    });
}

#[test]
fn a_reader_of_a_tap_gets_single_packets() {
    in_namespace(|| {
        let reader = tap("tap0", 4200);
        let pool = pool();
        for bypass in [true, false] {
            let mut spec = AfPacketSpec::new("tap0");
            spec.qdisc_bypass = bypass;
            let mut port = spec.open(&pool, Sides::Send).unwrap();
            for (payload, count) in [(4096, 32), (1024, 32), (256, 32), (0, 3)] {
                let frames = run(65_530, count, payload);
                send(&mut port, &pool, &frames);
                let arrived = read(&reader, frames.len());
                if bypass {
                    // The device takes no super-frames.
                    assert!(arrived == frames, "{payload} bytes");
                } else {
                    same_but_for_checksum(&arrived, &frames);
                }
            }
            let segmentation = port.info().device.segmentation;
            assert_eq!(
                matches!(segmentation, Segmentation::Refused(_)),
                bypass,
                "{segmentation}"
            );
            assert_eq!(port.stats().drops.total(), 0);
        }
    });
}

/// As a guest behind an ordinary switch: the port's device takes super-frames, and the kernel cuts them for the tap.
#[test]
fn a_reader_of_a_tap_at_a_bridge_gets_single_packets() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let mut reader = tap("tap0", 4200);
        ip("link add bridge type bridge mcast_snooping 0");
        for port in ["v1", "tap0"] {
            ip(&format!("link set {port} master bridge"));
        }
        ip("link set bridge mtu 4200 up");
        let (pool, start) = (pool(), Instant::now());
        let mut port = AfPacketSpec::new("v0").open(&pool, Sides::Send).unwrap();
        let mut bytes = vec![0; 9216];
        // A port of a bridge forwards after a while.
        while reader.read(&mut bytes).is_err() {
            assert!(start.elapsed() < TIMEOUT);
            send(&mut port, &pool, &[frame(1, 60, None)]);
        }
        while reader.read(&mut bytes).is_ok() {}
        for (payload, count) in [(4096, 32), (1024, 32), (256, 32), (0, 3)] {
            let frames = run(65_530, count, payload);
            send(&mut port, &pool, &frames);
            same_but_for_checksum(&read(&reader, frames.len()), &frames);
        }
        assert_eq!(port.info().device.segmentation, Segmentation::On);
    });
}

#[test]
fn frames_of_a_program_behind_a_tap_arrive_while_super_frames_go_to_it() {
    in_namespace(|| {
        let mut writer = tap("tap0", 4200);
        let pool = pool();
        let mut port = open("tap0", &pool);
        let mut sleeper = sleeper_for(&mut port);
        for first in 0..10 {
            let frames = run(first * 30, 30, 1024);
            send(&mut port, &pool, &frames);
            for frame in &frames {
                writer.write_all(frame).expect("written");
            }
            assert_eq!(receive(&mut port, &mut sleeper, frames.len()), frames);
            assert_eq!(read(&writer, frames.len()), frames);
        }
    });
}
