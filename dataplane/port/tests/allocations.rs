//! In steady state a port does not allocate: not for a frame, a replica or a sleep.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use castnet_port::{
    Batch, FaultControl, Faults, FrameBuf, MemLink, MemLinkConfig, Memory, Pool, PoolConfig, Port, Sides,
    Sleeper,
};
use castnet_wire::Nanos;

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
