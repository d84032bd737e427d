//! In steady state a worker over DPDK devices allocates nothing (contract S2), whatever frames become: copies, replicas
//! that share, frames handed over, frames that another worker sends, answers, drops.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use castnet_dpdk_tests::frames::{ack, arp, data, group, host_mac, mcst, plain};
use castnet_dpdk_tests::{Switch, config, wait, write_pcap};
use castnet_wire::{MacAddr, Syndrome};
use nix::libc;

static BY_WORKERS: AtomicU64 = AtomicU64::new(0);

/// Whether this thread is a worker's. All others may allocate, the test's and the one that keeps house among them.
fn is_worker() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: a thread's name takes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"castnet-w")
}

struct Counting;

// SAFETY: everything is handed to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_worker() {
            BY_WORKERS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frames_over_dpdk_devices_allocate_nothing() {
    for (workers, sends) in [(1, 1), (2, 2), (2, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let lengths = [64, 1024, 4096];
        let mut frames: Vec<_> = (0..240)
            .map(|psn| data(psn % 2, 0, psn as u32 / 2, lengths[psn % 3], psn % 5 == 0))
            .collect();
        frames.push(plain(host_mac(0), MacAddr::BROADCAST, 3000, 1));
        frames.push(plain(host_mac(0), host_mac(0), 60, 1));
        frames.push(arp(0, mcst(0).0));
        frames.push(ack(0, 0, 1, Syndrome::Ack));
        write_pcap(&folder.path().join("in.pcap"), &frames);
        // The file over and over, and three ports that swallow what they are sent.
        let out = ",tx_pcap=/dev/null".repeat(sends);
        let source = format!("dpdk:net_pcap4{workers},rx_pcap={path}/in.pcap,infinite_rx=1{out}");
        // net_null has a queue for each worker, net_pcap as many as it has files to write.
        let sink = |n| match sends {
            1 => format!("dpdk:net_pcap5{n},tx_pcap=/dev/null"),
            _ => format!("dpdk:net_null4{n},no-rx=1"),
        };
        let specs: Vec<_> = std::iter::once(source).chain((1..4).map(sink)).collect();
        let groups = [group(0, &[0, 1, 2, 3]), group(1, &[0, 1, 3])];
        let switch = Switch::start(config(&specs, workers, 1024), &groups);
        switch.open();
        wait(&switch.dataplane, "it is warm", |c| c.totals.received > 50_000);
        let before = BY_WORKERS.load(Ordering::Relaxed);
        assert!(before > 0, "set-up allocates, and that is counted");
        let from = switch.dataplane.counters().unwrap().totals.received;
        wait(&switch.dataplane, "it has run", |c| {
            c.totals.received > from + 500_000
        });
        let after = BY_WORKERS.load(Ordering::Relaxed);
        let last = switch.dataplane.stop().unwrap();
        assert!(
            last.totals.copies > 500_000 && last.totals.copies_lost == 0,
            "{:?}",
            last.totals
        );
        assert_eq!(after - before, 0, "{workers} workers, {sends} send queues");
        let handed: u64 = last.workers.iter().map(|w| w.counters.handed_over).sum();
        assert_eq!(handed > 0, workers > 1, "the second group is the second worker's");
    }
}
