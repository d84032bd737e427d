//! In steady state a port does not allocate: not for a frame, a replica or a sleep.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use castnet_port::{
    AfPacketSpec, Batch, FaultControl, Faults, FrameBuf, InterfaceWatch, MemLink, MemLinkConfig, Memory,
    Pool, PoolConfig, Port, PortSpec, Sides, Sleeper,
};
use castnet_wire::{Bth, Ethernet, ExtHeaders, Ipv4, MacAddr, Nanos, Network, Opcode, Psn, Qpn, emit_roce};
use castnet_wrap_up::skip;
use nix::sched::{CloneFlags, unshare};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One iteration: 32 frames in one direction, each replicated and rewritten, and back.
fn iteration(
    pool: &Pool,
    near: &mut impl Port<Buf = castnet_port::PoolBuf>,
    far: &mut impl Port<Buf = castnet_port::PoolBuf>,
    batch: &mut Batch<castnet_port::PoolBuf>,
    bytes: &[u8],
    now: Nanos,
) {
    near.poll(now);
    far.poll(now);
    for length in (0..16).map(|i| 60 + i * 250) {
        let frame = pool.copy_from(&bytes[..length]).unwrap();
        let mut replica = Memory::replicate(pool, &frame, 80, near.multi_segment()).unwrap();
        replica.head_mut()[0] = 1;
        batch.extend([frame, replica]);
    }
    near.send(batch);
    for _ in 0..4 {
        far.receive(batch);
        batch.clear();
    }
}

#[test]
fn a_frame_costs_no_allocation() {
    let (near, far) = MemLink::pair(&MemLinkConfig::default());
    let pool = Pool::new(PoolConfig {
        buffers: 512,
        bodies: 256,
        ..PoolConfig::default()
    });
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        corrupt: 0.1,
        delay: Nanos(500),
        jitter: Nanos(900),
    };
    let control = FaultControl::new(1).with(faults, faults);
    let (mut near, mut far) = (
        control.wrap(near.open(&pool, Sides::Both), 0),
        far.open(&pool, Sides::Both),
    );
    let mut sleeper = Sleeper::new().unwrap();
    far.attach(&mut sleeper).unwrap();
    let (mut batch, bytes) = (Batch::new(), vec![0x5A; 4218]);

    iteration(&pool, &mut near, &mut far, &mut batch, &bytes, Nanos(0));
    let before = ALLOCATIONS.get();
    for i in 1..200 {
        iteration(&pool, &mut near, &mut far, &mut batch, &bytes, Nanos(i * 1000));
        sleeper.sleep(Duration::from_micros(1), || far.ready());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(pool.stats().exhausted, 0);
}

/// Runs of packets are sent and received as super-frames. Needs root.
#[test]
fn a_super_frame_costs_no_allocation() {
    let thread = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skip(
                "super-frames",
                "needs root (CAP_NET_ADMIN) for network namespaces",
            );
        }
        let ip = |line: &str| {
            let status = Command::new("ip").args(line.split_whitespace()).status();
            assert!(status.expect("iproute2 is installed").success(), "{line}");
        };
        ip("link add v0 type veth peer name v1");
        for end in ["v0", "v1"] {
            ip(&format!("link set {end} mtu 4200 up"));
        }
        let pool = Pool::new(PoolConfig::default());
        let open = |interface| AfPacketSpec::new(interface).open(&pool, Sides::Both).unwrap();
        let (mut near, mut far) = (open("v0"), open("v1"));
        let (mut batch, mut scratch) = (Batch::new(), vec![0; 9216]);
        let frames: Vec<_> = (0..32).map(|ident| packet(ident, 4096)).collect();
        let mut arrived = 0;
        for warm_up in [true, false] {
            let before = ALLOCATIONS.get();
            for _ in 0..50 {
                batch.extend(frames.iter().map(|f| pool.copy_from(f).unwrap()));
                near.send(&mut batch);
                far.receive(&mut batch);
                arrived += batch.len();
                batch.clear();
                let mut left = frames.iter();
                near.send_in_place(4200, &mut |slot| {
                    let frame = left.next()?;
                    slot[..frame.len()].copy_from_slice(frame);
                    Some(frame.len())
                });
                arrived += far.receive_with(&mut scratch, &mut |_| {});
                near.poll(Nanos(0));
            }
            assert!(warm_up || ALLOCATIONS.get() == before);
        }
        assert_eq!(arrived, 6400);
    });
    thread.join().unwrap();
}

/// The sockets of a port are replaced because its interface is deleted and made again. Needs root.
#[test]
fn other_sockets_cost_the_ports_thread_no_allocation() {
    let thread = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skip(
                "replaced sockets",
                "needs root (CAP_NET_ADMIN) for network namespaces",
            );
        }
        let ip = |line: &str| {
            let status = Command::new("ip").args(line.split_whitespace()).status();
            assert!(status.expect("iproute2 is installed").success(), "{line}");
        };
        ip("link add v0 type veth peer name v1");
        let pool = Pool::new(PoolConfig::default());
        let mut port = AfPacketSpec::new("v0").open(&pool, Sides::Both).unwrap();
        let mut sleeper = Sleeper::new().unwrap();
        port.attach(&mut sleeper).unwrap();
        let mut watch = InterfaceWatch::new(vec![vec![port.reattach().unwrap()]]).unwrap();
        for (line, attached) in [
            ("link delete v0", false),
            ("link add v0 type veth peer name v1", true),
        ] {
            ip(line);
            let (start, mut changed) = (Instant::now(), None);
            while changed != Some(attached) {
                watch.poll(Nanos(0), &mut |_, detached| changed = Some(detached.is_none()));
                assert!(start.elapsed() < Duration::from_secs(120), "{line}: no change");
            }
            let before = ALLOCATIONS.get();
            port.poll(Nanos(0));
            sleeper.sleep(Duration::from_micros(1), || port.ready());
            assert_eq!(ALLOCATIONS.get() - before, 0, "{line}");
            assert_eq!(port.receive_ring().is_some(), attached, "{line}");
        }
    });
    thread.join().unwrap();
}

fn packet(ident: u16, payload: usize) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: MacAddr([4; 6]),
        vlan: None,
        ethertype: 0x0800,
    };
    let network = Network::V4(Ipv4 {
        ident,
        ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
    });
    let bth = Bth::new(Opcode::SendMiddle, Qpn::new(7), Psn::new(1));
    let (mut out, none, payload) = (vec![0; 5000], ExtHeaders::NONE, vec![1; payload]);
    let length = emit_roce(&mut out, &ethernet, &network, 0xC000, &bth, &none, &payload);
    out.truncate(length.unwrap());
    out
}

#[test]
fn a_frame_over_shared_memory_costs_no_allocation() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), Pool::new(PoolConfig::default()));
    let open = |options: &str| {
        let text = format!("memif:{}{options}", folder.path().join("s").display());
        text.parse::<PortSpec>()
            .unwrap()
            .open(&pool, Sides::Both)
            .unwrap()
    };
    // Frames of several buffers, too.
    let (mut near, mut far) = (open(""), open(",role=client,buffer=2048"));
    let mut now = Nanos(0);
    while !(near.is_up() && far.is_up()) {
        now += Nanos::from_millis(20);
        near.poll(now);
        far.poll(now);
    }
    let mut sleeper = Sleeper::new().unwrap();
    far.attach(&mut sleeper).unwrap();
    let (mut batch, bytes) = (Batch::new(), vec![0x5A; 4218]);
    iteration(&pool, &mut near, &mut far, &mut batch, &bytes, now);
    let before = ALLOCATIONS.get();
    for _ in 0..200 {
        now += Nanos::from_millis(1);
        iteration(&pool, &mut near, &mut far, &mut batch, &bytes, now);
        iteration(&pool, &mut far, &mut near, &mut batch, &bytes, now);
        sleeper.sleep(Duration::from_micros(1), || far.ready());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(
        (near.stats().drops.total(), near.stats().rx_frames),
        (0, 200 * 32)
    );
}
