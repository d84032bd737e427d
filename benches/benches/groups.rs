//! What a frame costs over the number of groups that are active at once, on the same ports: data, ACKs and contributions of
//! groups that come in drawn order. The baseline in the same run is one group.
//!
//! `cargo bench -p castnet-benches --bench groups [-- GROUPS_MAX]`: with a number, only up to so many groups.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_engine::{Collective, Engine, Group};
use castnet_port::{Pool, PoolBuf, PoolConfig};
use castnet_rules::{CollectiveGroup, MulticastGroup};
use castnet_wire::{BATCH, Batch, McstId};
use common::collective::{RANKS, contribution, control, rule};
use common::{NOW, Sink, ack_to, data_to, engine_with, port, star};

const COUNTS: [usize; 6] = [1, 16, 256, 4096, 16_384, 100_000];
/// Receivers of a multicast group.
const RECEIVERS: usize = 8;
/// Frames of a take, or more where there are more groups.
const FRAMES: usize = 8192;
/// Frames that are in buffers at once, as in a port's ring.
const RING: usize = 1024;
/// The lowest of so many takes counts.
const TAKES: usize = 7;
/// Bytes of data, and of a contribution.
const DATA: usize = 64;
const SUM: usize = 1024;

fn main() {
    let most = std::env::args().skip(1).find_map(|a| a.parse().ok());
    let counts = COUNTS.into_iter().filter(|&n| most.is_none_or(|most| n <= most));
    println!(
        "Nanoseconds per frame of the engine alone, lowest of {TAKES} takes; groups in drawn order, the same ports.\n"
    );
    println!(
        "{:>8} {:>24} {:>24} {:>24}",
        "groups", "data, 64 B, 1 to 8", "ACK, nothing goes on", "contribution, 1 KiB"
    );
    let mut one = None;
    for count in counts {
        let [data, ack] = multicast(count);
        let row = [data, ack, contributions(count)];
        let one = *one.get_or_insert(row);
        let cells: Vec<String> = row
            .iter()
            .zip(one)
            .map(|(ns, one)| format!("{ns:.1} ({:.2} x)", ns / one))
            .collect();
        println!("{count:>8} {:>24} {:>24} {:>24}", cells[0], cells[1], cells[2]);
    }
}

/// The address of group `n`.
fn group(n: usize) -> McstId {
    let [_, a, b, c] = (n as u32 + 1).to_be_bytes();
    McstId([10, 64 + a, b, c].into())
}

/// The numbers below `count`, each so many times, in an order without a pattern.
fn drawn(count: usize, times: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..times * count).map(|i| i % count).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for i in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

/// The next PSN of group `n`.
fn psn_of(n: usize, next: &mut [u32]) -> u32 {
    next[n] += 1;
    next[n] - 1
}

/// A switch of so many groups, and frames in buffers.
struct Switch {
    engine: Engine,
    sink: Sink,
    frames: Pool,
}

impl Switch {
    fn new(groups: usize, ports: usize) -> Self {
        let engine = engine_with(ports, |config| {
            config.groups_max = groups.max(config.groups_max);
            config.memory_max_bytes = 8 << 30;
        });
        let frames = Pool::new(PoolConfig {
            buffers: 2 * RING,
            bodies: RING,
            frame_max: 2048,
        });
        Self {
            engine,
            sink: Sink::new(),
            frames,
        }
    }

    /// Takes frames in by a port; the time of the engine alone, for each.
    fn feed(&mut self, ingress: usize, frames: impl IntoIterator<Item = Vec<u8>>) -> f64 {
        let (mut total, mut count) = (Duration::ZERO, 0_u64);
        let mut ring: Vec<PoolBuf> = Vec::with_capacity(RING);
        let mut frames = frames.into_iter();
        loop {
            ring.extend(
                frames
                    .by_ref()
                    .take(RING)
                    .filter_map(|f| self.frames.copy_from(&f)),
            );
            if ring.is_empty() {
                return total.as_nanos() as f64 / count as f64;
            }
            count += ring.len() as u64;
            let mut batch = Batch::new();
            let mut waiting = ring.drain(..);
            let start = Instant::now();
            loop {
                batch.extend(waiting.by_ref().take(BATCH));
                if batch.is_empty() {
                    break;
                }
                self.engine
                    .process(NOW, port(ingress), &mut batch, &mut self.sink);
                black_box(&mut self.sink.sent).clear();
            }
            total += start.elapsed();
        }
    }
}

/// Data, and ACKs of one receiver.
fn multicast(count: usize) -> [f64; 2] {
    let mut switch = Switch::new(count, RECEIVERS + 1);
    for n in 0..count {
        let rule = MulticastGroup {
            mcst_id: group(n),
            ..star(RECEIVERS)
        };
        let group = Group::compile(&rule, &switch.engine.config().ports).expect("a right rule");
        switch.engine.install(group).expect("room");
    }
    let order = drawn(count, FRAMES.div_ceil(count));
    let mut next = vec![0; count];
    let mut lowest = [f64::MAX; 2];
    for _ in 0..TAKES {
        let frames: Vec<_> = order.iter().map(|&n| (group(n), psn_of(n, &mut next))).collect();
        let data = switch.feed(0, frames.iter().map(|&(to, psn)| data_to(to, psn, DATA)));
        let ack = switch.feed(
            RECEIVERS,
            frames.iter().map(|&(to, psn)| ack_to(to, RECEIVERS, psn)),
        );
        lowest = [lowest[0].min(data), lowest[1].min(ack)];
    }
    let counters = switch.engine.totals();
    let expected = (TAKES * order.len()) as u64;
    assert_eq!(
        (counters.replicated, counters.absorbed),
        (expected, expected),
        "the right case"
    );
    lowest
}

/// Contributions that are added to what is there, and complete nothing.
fn contributions(count: usize) -> f64 {
    let mut switch = Switch::new(count, RANKS);
    // A batch at the least. The last packet would end the collective and take the slow path.
    let times = (BATCH / count).max(2);
    let packets = times as u32 + 1;
    let slots = (2 * (packets as u16 + 1)).next_power_of_two();
    let rules: Vec<CollectiveGroup> = (0..count)
        .map(|n| CollectiveGroup {
            message_packets: slots / 2,
            ..rule(group(n), slots, SUM)
        })
        .collect();
    let floats: Vec<u8> = (0..SUM / 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let order = drawn(count, times);
    let mut lowest = f64::MAX;
    for _ in 0..TAKES {
        let (mut total, mut frames) = (0.0, 0);
        while frames < FRAMES {
            for rule in &rules {
                switch.engine.remove(rule.mcst_id);
                let group = Collective::compile(rule, &switch.engine.config().ports).expect("a right rule");
                switch.engine.install(group).expect("room");
            }
            for rank in 0..RANKS {
                let of = |n| control(group(n), rank, packets, SUM);
                switch.feed(rank, (0..count).map(of));
            }
            for rank in 0..RANKS - 1 {
                let mut next = vec![1; count];
                let of = |&n: &usize| contribution(&rules[n], rank, psn_of(n, &mut next), &floats);
                let time = switch.feed(rank, order.iter().map(of));
                // The first contribution to a slot is stored.
                if rank > 0 {
                    total += time * order.len() as f64;
                    frames += order.len();
                }
            }
        }
        lowest = lowest.min(total / frames as f64);
    }
    let last = switch.engine.collective(rules[0].mcst_id).map(|g| *g.counters());
    let expected = (RANKS as u64 - 1) * times as u64;
    assert_eq!(
        last.map(|c| (c.contributions, c.results)),
        Some((expected, 0)),
        "the right case"
    );
    lowest
}
