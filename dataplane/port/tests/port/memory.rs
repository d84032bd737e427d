//! Memory links: order, limits, threads and sleeping.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use castnet_port::{Batch, MemEnd, MemLink, MemLinkConfig, Pool, PoolBuf, PoolConfig, Port, Sides, Sleeper};
use castnet_wire::DropReason;
use proptest::prelude::*;

fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 256,
        bodies: 128,
        frame_max: 9216,
    })
}

/// Receives all frames that have arrived.
fn drain(port: &mut impl Port<Buf = PoolBuf>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut batch = Batch::new();
    loop {
        port.receive(&mut batch);
        if batch.is_empty() {
            return frames;
        }
        frames.extend(batch.drain(..).map(|f| f.to_vec()));
    }
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
    assert!(batch.is_empty());
}

proptest! {
    #[test]
    fn frames_arrive_in_order_and_whole_up_to_the_capacity(
        lengths in prop::collection::vec(0usize..1600, 0..60), capacity in 1usize..40,
    ) {
        let pool = pool();
        let (a, b) = MemLink::pair(&MemLinkConfig::default().capacity(capacity));
        let (mut a, mut b) = (a.open(&pool, Sides::Both), b.open(&pool, Sides::Both));
        let frames: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(i, &n)| vec![i as u8; n]).collect();
        send(&mut a, &pool, &frames);
        let fit = frames.len().min(capacity);
        prop_assert_eq!(drain(&mut b), &frames[..fit]);
        prop_assert_eq!(a.stats().tx_frames, fit as u64);
        prop_assert_eq!(a.stats().drops[DropReason::TxFull], (frames.len() - fit) as u64);
        prop_assert_eq!(b.stats().rx_bytes, frames[..fit].iter().map(|f| f.len() as u64).sum::<u64>());
        // What is offered and does not fit stays, in order, and is not counted.
        let mut batch: Batch<PoolBuf> = frames.iter().take(32).map(|f| pool.copy_from(f).unwrap()).collect();
        a.offer(&mut batch);
        let offered = frames.len().min(32).min(capacity);
        let left: Vec<_> = batch.drain(..).map(|f| f.to_vec()).collect();
        prop_assert_eq!(left, &frames[offered..frames.len().min(32)]);
        prop_assert_eq!(drain(&mut b), &frames[..offered]);
        prop_assert_eq!(a.stats().drops[DropReason::TxFull], (frames.len() - fit) as u64);
        // All slots are free again.
        send(&mut b, &pool, &frames[..fit]);
        send(&mut a, &pool, &frames[..fit]);
        prop_assert_eq!(drain(&mut a), &frames[..fit]);
        prop_assert_eq!(drain(&mut b), &frames[..fit]);
    }
}

#[test]
fn the_mtu_holds_and_a_vlan_tag_comes_on_top() {
    let pool = pool();
    let (a, b) = MemLink::pair(&MemLinkConfig::default().mtu(1500));
    let (mut a, mut b) = (a.open(&pool, Sides::Both), b.open(&pool, Sides::Both));
    let mut tagged = vec![0; 1518];
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let longer = [tagged.clone(), vec![0]].concat();
    send(
        &mut a,
        &pool,
        &[vec![0; 1514], vec![0; 1515], tagged.clone(), longer],
    );
    assert_eq!(drain(&mut b), [vec![0; 1514], tagged]);
    assert_eq!(a.stats().drops[DropReason::TooLong], 2);
}

#[test]
fn a_pulled_cable_and_a_lost_peer_are_port_down() {
    let pool = pool();
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let cable = b.clone();
    let mut a = a.open(&pool, Sides::Both);
    let mut b = {
        let end = b;
        end.open(&pool, Sides::Both)
    };
    let frame = [vec![1; 60]];
    send(&mut a, &pool, &frame);
    cable.set_up(false);
    assert!(!a.info().up && !b.info().up);
    send(&mut a, &pool, &frame);
    cable.set_up(true);
    send(&mut a, &pool, &frame);
    assert_eq!(
        (drain(&mut b).len(), a.stats().drops[DropReason::PortDown]),
        (2, 1)
    );
    drop((b, cable));
    assert!(!a.info().up);
    send(&mut a, &pool, &frame);
    assert_eq!(a.stats().drops[DropReason::PortDown], 2);
}

#[test]
fn frames_wait_in_the_link_while_no_buffer_is_free() {
    let small = Pool::new(PoolConfig {
        buffers: 4,
        bodies: 4,
        frame_max: 2000,
    });
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let large = pool();
    let (mut a, mut b) = (a.open(&large, Sides::Both), b.open(&small, Sides::Both));
    let frames: Vec<_> = (0..10).map(|i| vec![i; 300]).collect();
    send(&mut a, &large, &frames);
    let mut batch = Batch::new();
    b.receive(&mut batch);
    assert_eq!(batch.len(), 4);
    b.receive(&mut batch);
    assert_eq!((batch.len(), b.stats().drops.total()), (4, 0));
    drop(batch);
    assert_eq!(drain_slowly(&mut b), &frames[4..]);

    send(&mut a, &large, &[vec![0; 3000], vec![9; 60]]);
    assert_eq!(
        drain_slowly(&mut b),
        [vec![9; 60]],
        "a frame that never fits is counted and does not block"
    );
    assert_eq!(b.stats().drops[DropReason::TooLong], 1);
}

fn drain_slowly(port: &mut impl Port<Buf = PoolBuf>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while port.ready() {
        let mut batch = Batch::new();
        port.receive(&mut batch);
        frames.extend(batch.iter().map(PoolBuf::to_vec));
    }
    frames
}

/// Sends `count` numbered frames as `sender`. Waits for capacity before each.
fn flood(end: MemEnd, sender: u8, count: u32) {
    let pool = pool();
    let mut port = end.open(&pool, Sides::Send);
    for number in 0..count {
        let bytes = [&[sender][..], &number.to_be_bytes(), &[0; 200]].concat();
        let sent = port.stats().tx_frames;
        while port.stats().tx_frames == sent {
            send(&mut port, &pool, std::slice::from_ref(&bytes));
            thread::yield_now();
        }
    }
}

#[test]
fn several_threads_send_and_one_that_sleeps_receives() {
    const SENDERS: u8 = 3;
    const COUNT: u32 = 20_000;
    let (near, far) = MemLink::pair(&MemLinkConfig::default().capacity(64).mtu(300));
    let start = Arc::new(Barrier::new(usize::from(SENDERS)));
    let threads: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (end, start) = (near.clone(), start.clone());
            thread::spawn(move || {
                start.wait();
                flood(end, sender, COUNT);
            })
        })
        .collect();
    let pool = pool();
    let mut port = far.open(&pool, Sides::Both);
    let mut sleeper = Sleeper::new().unwrap();
    port.attach(&mut sleeper).unwrap();
    let mut last = [None; SENDERS as usize];
    let mut batch = Batch::new();
    let mut received = 0_u32;
    loop {
        port.receive(&mut batch);
        for frame in batch.drain(..) {
            let bytes = frame.to_vec();
            let (sender, number) = (
                usize::from(bytes[0]),
                u32::from_be_bytes(bytes[1..5].try_into().unwrap()),
            );
            assert_eq!(
                number,
                last[sender].map_or(0, |before: u32| before + 1),
                "in order per sender"
            );
            last[sender] = Some(number);
            received += 1;
        }
        if threads.iter().all(|t| t.is_finished()) && !port.ready() {
            break;
        }
        sleeper.sleep(Duration::from_millis(20), || port.ready());
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(received, COUNT * u32::from(SENDERS));
}

const PATIENCE: Duration = Duration::from_secs(120);

/// Sends each received frame back, `iterations` times.
fn ping_pong(end: MemEnd, serves: bool, iterations: u32) {
    let pool = pool();
    let mut port = end.open(&pool, Sides::Both);
    let mut sleeper = Sleeper::new().unwrap();
    port.attach(&mut sleeper).unwrap();
    if serves {
        send(&mut port, &pool, &[vec![0; 60]]);
    }
    let mut batch = Batch::new();
    for _ in 0..iterations {
        while batch.is_empty() {
            sleeper.sleep(2 * PATIENCE, || port.ready());
            port.receive(&mut batch);
        }
        port.send(&mut batch);
    }
}

#[test]
fn no_wakeup_is_lost() {
    let (near, far) = MemLink::pair(&MemLinkConfig::default());
    // Both ends exist until both threads have ended.
    let ends = (near.clone(), far.clone());
    let start = Instant::now();
    let threads = [
        thread::spawn(|| ping_pong(near, true, 3_000)),
        thread::spawn(|| ping_pong(far, false, 3_000)),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    drop(ends);
    assert!(
        start.elapsed() < PATIENCE,
        "a lost wakeup costs a sleep that takes all patience"
    );
}

#[test]
fn ring_occupancy_is_reported_through_bridges_and_fault_injectors() {
    use castnet_port::{Bridge, FaultControl, RingUse};
    let (near, far) = MemLink::pair(&MemLinkConfig::default().capacity(16));
    let (here, there) = (pool(), pool());
    let mut near = near.open(&here, Sides::Both);
    let inner = FaultControl::new(1).wrap(far.open(&there, Sides::Both), 0);
    let mut far: Bridge<Pool, Pool> = Bridge::new(Box::new(inner), there, here.clone());
    let told = |port: &Bridge<Pool, Pool>| port.receive_ring();
    assert_eq!(told(&far), Some(RingUse { used: 0, size: 16 }));
    let mut batch = Batch::new();
    batch.extend((0..5).map(|_| here.copy_from(&[0; 60]).unwrap()));
    near.send(&mut batch);
    assert_eq!(told(&far), Some(RingUse { used: 5, size: 16 }));
    far.receive(&mut batch);
    assert_eq!(
        (batch.len(), told(&far)),
        (5, Some(RingUse { used: 0, size: 16 }))
    );
    assert_eq!(
        (far.info().device.driver.as_str(), far.speed_mbps()),
        ("memory", None)
    );
    // An end that only sends has no receive ring.
    let (end, _other) = MemLink::pair(&MemLinkConfig::default());
    assert_eq!(end.open(&here, Sides::Send).receive_ring(), None);
}
