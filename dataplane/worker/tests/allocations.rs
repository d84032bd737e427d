//! In steady state a worker's loop does not allocate (contract S2): not for frames, hand-over, sleeping, or
//! commands that only read.
#![allow(unsafe_code)]

#[path = "worker/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
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

fn iteration(h: &mut [Host], psn: u32) {
    for n in 0..2 {
        let source = n * 3;
        h[source].send(&[
            data(n, source, psn, 900),
            plain(host_mac(source), host_mac(3 - source), psn, 700),
        ]);
        for receiver in [1, 2] {
            assert_eq!(h[receiver].receive(1).len(), 1);
            h[receiver].send_one(ack(n, receiver, psn));
        }
        // The plain frame sent before arrives at the other source, and the ACK here.
        h[3 - source].receive(1);
        h[source].receive(1);
    }
}

#[test]
fn an_iteration_allocates_nothing() {
    for workers in [1, 2] {
        let lab = Lab::new(4, workers);
        let mut h = lab.hosts();
        for n in [0, 3] {
            // Both hosts are learned before allocations are counted.
            h[n].send_one(plain(host_mac(n), castnet_wire::MacAddr::BROADCAST, 0, 60));
            for other in (0..4).filter(|other| *other != n) {
                h[other].receive(1);
            }
        }
        lab.install(&rule(0, &[0, 1, 2]));
        lab.install(&rule(1, &[3, 1, 2]));
        (0..50).for_each(|psn| iteration(&mut h, psn));
        let before = BY_WORKERS.load(Ordering::Relaxed);
        assert!(before > 0, "set-up allocates, and that is counted");
        for psn in 50..500_u32 {
            // Moving groups and holding their frames allocates nothing.
            if psn.is_multiple_of(10) && workers > 1 {
                for n in 0..2 {
                    lab.dataplane
                        .move_group(mcst(n), (psn as usize / 10 + n) % 2)
                        .ok();
                }
            }
            iteration(&mut h, psn);
        }
        lab.dataplane.counters().unwrap();
        let after = BY_WORKERS.load(Ordering::Relaxed);
        let last = lab.dataplane.stop().unwrap();
        assert_eq!((last.totals.replicated, last.totals.dropped), (1000, 0));
        assert_eq!(after - before, 0, "{workers} workers");
    }
}
