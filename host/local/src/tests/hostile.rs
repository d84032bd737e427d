//! A process that writes anything into the segment while other ranks work: their calls end, with any result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_comm::Operation;
use castnet_comm::machine::Collective;

use super::config;
use super::fake::{Board, Fake};
use crate::engine::{CHECK_INTERVAL, Call, Engine, Memory};
use crate::layout::Layout;
use crate::segment::{Counter, FAILURE_STEP, Segment, Shape};

const RANKS: usize = 3;
const ELEMENTS: usize = 20_000;

/// Makes calls until one fails, at most `most`.
fn honest(segment: Segment, own: usize, most: usize) -> usize {
    let kinds = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root: 1 },
        Collective::Reduce { root: 2 },
        Collective::Barrier,
    ];
    let kinds = kinds.into_iter().cycle().take(most);
    calls(segment, (own, RANKS), kinds, Duration::from_millis(100))
}

/// Makes calls of these collectives until one fails or takes longer than `timeout`. Returns the number of those before it.
fn calls(
    segment: Segment,
    (own, ranks): (usize, usize),
    collectives: impl Iterator<Item = Collective>,
    timeout: Duration,
) -> usize {
    let layout = Layout::new(vec![0; ranks]);
    let mut config = config(own, ranks, "h");
    config.timeouts.collective = timeout;
    let mut ended = 0;
    let mut engine = Engine::new(segment, own, &config);
    let mut world = Fake::new(Board::new(1), 0);
    for collective in collectives {
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
        let (from, mut to) = (vec![1_u8; 4 * ELEMENTS * ranks], vec![0; 4 * ELEMENTS * ranks]);
        let memory = match collective {
            Collective::Broadcast { .. } => Memory::InPlace(&mut to, 0, 0),
            _ => Memory::Apart(&from, &mut to),
        };
        if engine.run::<f32, Fake>(&call, memory, &mut world, None).is_err() {
            break;
        }
        ended += 1;
    }
    ended
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

/// A rank that has ended a call and fails in the next one does not end the call of a rank that is slower.
#[test]
fn a_failure_of_a_later_call_does_not_end_an_earlier_one() {
    let shape = Shape {
        ranks: 2,
        piece: 4 << 10,
    };
    let (leader, key) = Segment::create(shape, None).expect("a segment");
    let slow = Segment::open(key, shape, 1).expect("the same");
    let done = std::thread::scope(|scope| {
        let barriers = std::iter::repeat_n(Collective::Barrier, 2);
        // The second call fails by the report, not by time.
        let slow = scope.spawn(move || calls(slow, (1, 2), barriers, Duration::from_secs(60)));
        while leader.get(1, Counter::Written) == 0 {
            leader.sleep(leader.events(), Duration::from_millis(1));
        }
        // The leader has ended its first call; the second one, which begins with step 1, has failed.
        leader.fail(1 << FAILURE_STEP | 1 << 16);
        // The slow rank looks at the failure while it waits for the leader. If it does so later, the test shows less.
        let events = leader.events();
        leader.sleep(events, 5 * CHECK_INTERVAL);
        leader.set_call(0, 0, leader.call(1, 0));
        for counter in [
            Counter::Written,
            Counter::Reduced,
            Counter::Published,
            Counter::Taken,
        ] {
            leader.set(0, counter, 1);
        }
        leader.notify();
        slow.join().expect("no panic")
    });
    assert_eq!(done, 1, "the first call ends, the second one fails");
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
