//! Making and counting frames allocates nothing, for any pattern.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use castnet_port::{Batch, Memory, Pool, PoolBuf, PoolConfig};
use castnet_traffic::{Check, HEADER, Host, Place, Plan, Scenario};
use castnet_wire::Nanos;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; counting uses only a constant-initialized thread
// local.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's guarantees are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` with this layout, so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frames_are_made_and_counted_without_allocation() {
    let mut scenario = Scenario {
        sizes: "64:7,1024:4,4096:1".parse().expect("sizes"),
        groups: 3,
        receivers: 2,
        check: Check::All,
        ..Scenario::new("mix".parse().expect("a mix"))
    };
    scenario.rate = "1G".parse().expect("a rate");
    let plan = Plan::own(&scenario, &Place::star(3)).expect("a plan");
    let pool = Pool::new(PoolConfig::default());
    for place in 0..3 {
        let mut host: Host<PoolBuf> = Host::new(&plan, place, |bytes| pool.copy_from(bytes)).expect("a host");
        host.unbind();
        let mut batch = Batch::new();
        let before = ALLOCATIONS.get();
        for round in 0..2_000 {
            host.fill(Nanos(round * 1_000), &mut batch, |original| {
                pool.replicate(original, HEADER, true)
            });
            // Most of these frames are for no flow of this host. A sink handles its own in the same way, and counts
            // them.
            for frame in batch.drain(..) {
                host.take(Nanos(round * 1_000), &frame);
            }
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "place {place}");
        assert!(host.counts().sent > 10_000);
    }
}
