//! Packets of one flow over a veth pair, one by one and as super-frames: nanoseconds of one core per packet, for sending,
//! with the work of the kernel, and for receiving.
//!
//! `cargo bench -p castnet-port --bench superframes`. Needs root and `ip`.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use castnet_port::{AfPacketSpec, Batch, Pool, PoolConfig, Port, Sides};
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{Bth, Ethernet, ExtHeaders, Ipv4, MacAddr, Network, Opcode, Psn, Qpn, emit_roce};
use nix::sched::{CloneFlags, unshare};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SLICE: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("SKIPPED: super-frames: needs root (CAP_NET_ADMIN) for network namespaces");
        return Ok(());
    }
    let ip = |line: &str| Command::new("ip").args(line.split_whitespace()).status();
    ip("link add v0 type veth peer name v1")?;
    for end in ["v0", "v1"] {
        ip(&format!("link set {end} mtu 4200 up"))?;
    }
    println!("ns per packet, of the best burst within {SLICE:?}");
    println!(
        "{:<28} {:>8} {:>8} {:>8} {:>8} {:>7}",
        "", "send", "receive", "send", "receive", "ratio"
    );
    println!("{:<28} {:>17} {:>17}", "", "one by one", "super-frames");
    for (what, payload, burst) in [
        ("1 packet of 64 bytes", 8, 1),
        ("1 packet of 4 KiB", 4096, 1),
        ("4 packets of 4 KiB", 4096, 4),
        ("30 packets of 4 KiB", 4096, 30),
        ("4 packets of 1 KiB", 1024, 4),
        ("32 packets of 1 KiB", 1024, 32),
    ] {
        for (path, in_place) in [("buffers", false), ("in place", true)] {
            let [single, joined] = [false, true].map(|on| measure(on, payload, burst, in_place));
            let ((a, b), (c, d)) = (single?, joined?);
            let what = format!("{what}, {path}");
            let ratio = (a + b) / (c + d);
            println!("{what:<28} {a:>8.0} {b:>8.0} {c:>8.0} {d:>8.0} {ratio:>7.2}");
        }
    }
    Ok(())
}

/// Nanoseconds per packet of sending and of receiving bursts, alternately, on one core.
fn measure(segmentation: bool, payload: usize, burst: u16, in_place: bool) -> Result<(f64, f64)> {
    let pool = Pool::new(PoolConfig::default());
    let open = |interface: &str| {
        let mut spec = AfPacketSpec::new(interface);
        spec.segmentation = segmentation;
        spec.open(&pool, Sides::Both)
    };
    let (mut near, mut far) = (open("v0")?, open("v1")?);
    let frames = (0..burst)
        .map(|i| packet(i, payload))
        .collect::<Result<Vec<_>>>()?;
    let (mut batch, mut scratch) = (Batch::new(), vec![0; 9216]);
    let (mut sending, mut receiving, start) = (Duration::MAX, Duration::MAX, Instant::now());
    while start.elapsed() < SLICE {
        let (mut left, mut packets) = (frames.iter(), 0);
        if !in_place {
            batch.extend(left.by_ref().filter_map(|f| pool.copy_from(f)));
        }
        let before = Instant::now();
        if in_place {
            near.send_in_place(4200, &mut |slot| {
                let frame = left.next()?;
                slot[..frame.len()].copy_from_slice(frame);
                Some(frame.len())
            });
        } else {
            near.send(&mut batch);
        }
        let between = Instant::now();
        while far.ready() {
            if in_place {
                packets += far.receive_with(&mut scratch, &mut |_| {});
            } else {
                far.receive(&mut batch);
                packets += batch.len();
                batch.clear();
            }
        }
        // The kernel sends frames of its own.
        if packets < frames.len() {
            return Err(format!("{packets} of {burst} packets have arrived").into());
        }
        sending = sending.min(between - before);
        receiving = receiving.min(between.elapsed());
    }
    let per_packet = |time: Duration| time.as_nanos() as f64 / f64::from(burst);
    Ok((per_packet(sending), per_packet(receiving)))
}

fn packet(ident: u16, payload: usize) -> Result<Vec<u8>> {
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: MacAddr([4; 6]),
        vlan: None,
        ethertype: ETHERTYPE_IPV4,
    };
    let network = Network::V4(Ipv4 {
        ident,
        ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    });
    let bth = Bth::new(Opcode::SendMiddle, Qpn::new(7), Psn::new(u32::from(ident)));
    let (mut out, payload) = (vec![0; 5000], vec![1; payload]);
    let length = emit_roce(
        &mut out,
        &ethernet,
        &network,
        0xC000,
        &bth,
        &ExtHeaders::NONE,
        &payload,
    )?;
    out.truncate(length);
    Ok(out)
}
