//! Rings between threads. Both kinds behave as a queue.

use std::collections::VecDeque;

use castnet_port::{FrameRing, HandOver, MoveRing, Pool, PoolBuf, PoolConfig};
use castnet_wire::{DropReason, PortId};
use proptest::prelude::*;

const FRAME_MAX: usize = 300;

fn port(n: usize) -> PortId {
    PortId::new(n as u8).unwrap()
}

/// Pushes a frame of this many bytes, or pops one.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push(usize),
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(0..FRAME_MAX + 3).prop_map(Step::Push), Just(Step::Pop)];
    proptest::collection::vec(step, 0..80)
}

fn bytes(length: usize, n: usize) -> Vec<u8> {
    (0..length).map(|i| (i + n) as u8).collect()
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(steps in steps(), capacity in 1..9_usize) {
        let pool = Pool::new(PoolConfig { buffers: 64, bodies: 64, frame_max: 2 * FRAME_MAX });
        let free = pool.stats();
        let copied: FrameRing<PortId> = HandOver::<PoolBuf>::new(capacity, FRAME_MAX);
        let moved = MoveRing::<PortId, Vec<u8>>::new(capacity);
        // Frames as port and bytes. A ring that moves frames has no limit on their length.
        let mut twins = [VecDeque::new(), VecDeque::new()];
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(length) => {
                    let (port, frame) = (port(n % 64), bytes(length, n));
                    let full = twins[0].len() == capacity;
                    let expected = match () {
                        () if length > FRAME_MAX => Some(DropReason::TooLong),
                        () if full => Some(DropReason::TxFull),
                        () => None,
                    };
                    let buffer = pool.copy_from(&frame).unwrap();
                    let answer = HandOver::push(&copied, port, buffer).err();
                    prop_assert!(answer.as_ref().is_none_or(|(_, buffer)| buffer.to_vec() == frame), "it comes back");
                    prop_assert_eq!(answer.map(|(reason, _)| reason), expected);
                    if expected.is_none() {
                        twins[0].push_back((port, frame.clone()));
                    }
                    let full = twins[1].len() == capacity;
                    prop_assert_eq!(moved.push(port, frame.clone()).err(), full.then(|| frame.clone()));
                    if !full {
                        twins[1].push_back((port, frame));
                    }
                }
                Step::Pop => {
                    let popped = HandOver::pop(&copied, &pool).map(|p| p.map(|(port, frame)| (port, frame.to_vec())).unwrap());
                    prop_assert_eq!(popped, twins[0].pop_front());
                    prop_assert_eq!(moved.pop(), twins[1].pop_front());
                }
            }
            prop_assert_eq!((copied.len(), copied.is_empty()), (twins[0].len(), twins[0].is_empty()));
            prop_assert_eq!((moved.len(), moved.is_empty()), (twins[1].len(), twins[1].is_empty()));
            prop_assert_eq!(HandOver::<PoolBuf>::capacity(&copied), capacity);
            prop_assert_eq!(HandOver::<Vec<u8>>::capacity(&moved), capacity);
        }
        prop_assert_eq!(pool.stats(), free);
    }
}

#[test]
fn frames_cross_threads_once_and_in_order() {
    let ring = MoveRing::<usize, Vec<u8>>::new(16);
    let frames = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..frames {
                let mut frame = bytes(n % 70, n);
                // A full ring returns the frame.
                while let Err(returned) = ring.push(n, frame) {
                    frame = returned;
                    std::thread::yield_now();
                }
                ring.wake();
            }
        });
        for n in 0..frames {
            let (meta, frame) = loop {
                match ring.pop() {
                    Some(popped) => break popped,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((meta, frame), (n, bytes(n % 70, n)));
        }
    });
    assert!(ring.is_empty());
}
