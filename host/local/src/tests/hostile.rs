//! A process that writes anything into the segment while other ranks work: their calls end, with any result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_comm::Operation;
use castnet_comm::machine::Collective;

use super::config;
use super::fake::{Board, Fake};
use crate::engine::{Call, Engine, Memory};
use crate::layout::Layout;
use crate::segment::{Segment, Shape};

const RANKS: usize = 3;
const ELEMENTS: usize = 20_000;

/// Makes calls until one fails, at most `calls`.
fn honest(segment: Segment, own: usize, calls: usize) -> usize {
    let layout = Layout::new([0; RANKS]);
    let mut config = config(own, RANKS, "h");
    config.timeouts.collective = Duration::from_millis(100);
    let mut engine = Engine::new(segment, own, &config);
    let mut world = Fake::new(Board::new(1), 0);
    let kinds = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root: 1 },
        Collective::Reduce { root: 2 },
        Collective::Barrier,
    ];
    let collectives = kinds.into_iter().cycle();
    for (done, collective) in collectives.take(calls).enumerate() {
        let call = Call {
            layout: &layout,
            config: &config,
            collective,
            operation: Operation::Sum,
            bytes: if collective == Collective::Barrier {
                0
            } else {
                4 * ELEMENTS
            },
        };
        let (from, mut to) = (vec![1_u8; 4 * ELEMENTS * RANKS], vec![0; 4 * ELEMENTS * RANKS]);
        let memory = match collective {
            Collective::Broadcast { .. } => Memory::InPlace(&mut to, 0, 0),
            _ => Memory::Apart(&from, &mut to),
        };
        if engine.run::<f32, Fake>(&call, memory, &mut world, None).is_err() {
            return done;
        }
    }
    calls
}

fn attack(seed: u64, shape: Shape) {
    println!("seed {seed}");
    let (leader, key) = Segment::create(shape, None).expect("a segment");
    let open = |own| Segment::open(key, shape, own).expect("the same");
    let hostile = leader.bytes_for_tests();
    let others: Vec<_> = (1..RANKS).map(|own| (own, open(own))).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut state = seed;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 20
            };
            while !stop.load(Ordering::Relaxed) {
                // Mostly the counters, which are at the begin. Half of the attacks spare the failure, which ends all at once.
                let least = if seed.is_multiple_of(2) { 0 } else { 24 };
                let most = match random() % 4 {
                    0 => hostile.size() as u64,
                    _ => 1024,
                };
                let value = match random() % 4 {
                    0 => u64::MAX,
                    1 => random() % 16,
                    2 => random(),
                    _ => u64::MAX / 2,
                };
                hostile.write((least + random() % most) as usize, &value.to_le_bytes());
                std::thread::yield_now();
            }
        });
        let mut ranks = vec![scope.spawn(|| honest(leader, 0, 60))];
        for (own, segment) in others {
            ranks.push(scope.spawn(move || honest(segment, own, 60)));
        }
        let done: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    });
}

#[test]
fn no_value_in_the_segment_breaks_a_rank() {
    for seed in 0..60 {
        attack(
            seed,
            Shape {
                ranks: RANKS,
                piece: 4 << 10,
            },
        );
    }
}
