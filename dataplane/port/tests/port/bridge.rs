//! A port whose frames live in another memory than its thread's. Frames cross the bridge unchanged, no frame
//! is lost when one side has no buffers, and the counters count the delivered frames.

use castnet_port::{
    Batch, Bridge, FrameBuf, MemLink, MemLinkConfig, Memory, Pool, PoolBuf, PoolConfig, Port, Sides,
};
use castnet_wire::DropReason;

fn pool(buffers: usize, frame_max: usize) -> Pool {
    Pool::new(PoolConfig {
        buffers,
        bodies: buffers,
        frame_max,
    })
}

fn frame(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 3 + length) as u8).collect()
}

#[test]
fn frames_cross_in_order_and_wait_for_buffers() {
    let (near, far) = MemLink::pair(&MemLinkConfig::default());
    let (inside, outside, host) = (pool(256, 4400), pool(8, 2000), pool(256, 4400));
    let mut far = far.open(&host, Sides::Both);
    let port = Box::new(near.open(&inside, Sides::Both));
    let mut bridge: Bridge<Pool, Pool> = Bridge::new(port, inside.clone(), outside.clone());

    let lengths = [60, 1000, 3000, 132, 133, 2000, 2001, 64, 65, 66, 67, 68, 69, 70];
    let mut batch = Batch::<PoolBuf>::new();
    batch.extend(lengths.iter().map(|&n| host.copy_from(&frame(n)).unwrap()));
    far.send(&mut batch);

    // Eight buffers at a time. Frames longer than the outer buffers are dropped and counted.
    let (mut got, mut held) = (Vec::new(), Vec::new());
    bridge.receive(&mut batch);
    assert_eq!(batch.len(), 8);
    assert!(bridge.ready() && !outside.has_capacity());
    assert_eq!(bridge.stats().rx_frames, 8);
    held.extend(batch.drain(..));
    bridge.receive(&mut batch);
    assert!(batch.is_empty(), "nothing is free");
    got.extend(held.drain(..).map(|f: PoolBuf| f.to_vec()));
    bridge.receive(&mut batch);
    got.extend(batch.drain(..).map(|f| f.to_vec()));
    let short: Vec<_> = lengths
        .iter()
        .filter(|n| **n <= 2000)
        .map(|n| frame(*n))
        .collect();
    assert_eq!(got, short);
    let stats = bridge.stats();
    assert_eq!(stats.rx_frames, 12);
    assert_eq!(stats.rx_bytes, short.iter().map(|f| f.len() as u64).sum::<u64>());
    assert_eq!(stats.drops[DropReason::TooLong], 2);

    // In the other direction: replicas and new frames live in the outer memory.
    batch.extend(outside.copy_from(&frame(1000)));
    let copy = Memory::replicate(&outside, &batch[0], 60, bridge.multi_segment()).unwrap();
    batch.push(copy);
    batch.extend(outside.allocate(1500));
    assert!(Memory::replicate(&outside, &batch[0], PoolBuf::HEAD + 1, true).is_none());
    bridge.send(&mut batch);
    assert!(batch.is_empty());
    far.receive(&mut batch);
    let back: Vec<_> = batch.drain(..).map(|f| f.to_vec()).collect();
    assert_eq!(back, [frame(1000), frame(1000), vec![0; 1500]]);
    assert_eq!((bridge.stats().tx_frames, bridge.pending()), (3, 0));
    assert_eq!(Memory::stats(&outside).buffers_free, 8);
}

#[test]
fn what_is_offered_and_does_not_fit_stays_in_its_memory() {
    let (near, far) = MemLink::pair(&MemLinkConfig::default().capacity(3));
    // Two buffers inside: a full ring and missing buffers both leave frames.
    let (inside, outside, host) = (pool(2, 400), pool(16, 2000), pool(16, 2000));
    let mut far = far.open(&host, Sides::Both);
    let port = Box::new(near.open(&inside, Sides::Both));
    let mut bridge: Bridge<Pool, Pool> = Bridge::new(port, inside, outside.clone());
    let lengths = [60, 500, 61, 62, 63, 64];
    let mut batch = Batch::<PoolBuf>::new();
    batch.extend(lengths.iter().map(|&n| outside.copy_from(&frame(n)).unwrap()));
    let left = |batch: &Batch<PoolBuf>| batch.iter().map(|f| f.length()).collect::<Vec<_>>();
    bridge.offer(&mut batch);
    assert_eq!(left(&batch), [62, 63, 64], "500 bytes are too long");
    bridge.offer(&mut batch);
    assert_eq!(left(&batch), [63, 64]);
    bridge.offer(&mut batch);
    assert_eq!(left(&batch), [63, 64]);
    let stats = bridge.stats();
    assert_eq!(
        (
            stats.tx_frames,
            stats.drops[DropReason::TooLong],
            stats.drops.total()
        ),
        (3, 1, 1)
    );
    let mut got = Batch::new();
    far.receive(&mut got);
    assert_eq!(left(&got), [60, 61, 62]);
}
