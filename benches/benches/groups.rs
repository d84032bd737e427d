//! Time per frame over the number of active groups on the same ports: data, ACKs and contributions in random order of
//! groups, and all three mixed. The baseline is one group. In a second table a trace of another group is armed.
//!
//! `cargo bench -p castnet-benches --bench groups [-- GROUPS_MAX]`: a number limits the number of groups.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_engine::{Engine, FrameFilter, TapId};
use castnet_port::{Pool, PoolBuf, PoolConfig};
use castnet_rules::GroupRule;
use castnet_wire::{BATCH, Batch, McstId};
use common::collective::{RANKS, contribution, control, rule};
use common::{
    MCST, NOW, Sink, ack_to, data_from, engine_with, floats, group, group_counts, install, port, star,
};

const COUNTS: [usize; 7] = [1, 16, 256, 1024, 4096, 16_384, 100_000];
const RECEIVERS: usize = 8;
/// Frames per sample; more if there are more groups.
const FRAMES: usize = 8192;
/// Frames in buffers at once, as in a port's ring.
const RING: usize = 1024;
/// Number of samples; the lowest one counts.
const SAMPLES: usize = 7;
/// Bytes of data, and of a contribution.
const DATA: usize = 64;
const SUM: usize = 1024;
const TRACED: usize = 256;
/// The last column has a third as many groups of each kind, at least one.
const COLUMNS: [&str; 4] = [
    "data, 64 B, 1 to 8",
    "ACK, none forwarded",
    "contribution, 1 KiB",
    "all three mixed",
];

fn main() {
    println!(
        "Nanoseconds per frame of the engine alone, lowest of {SAMPLES} samples; groups in random order, the same ports.\n"
    );
    let [data, ack, sum, mixed] = COLUMNS;
    println!("{:>8} {data:>22} {ack:>22} {sum:>22} {mixed:>22}", "groups");
    let measured = |count: usize, traced: bool| {
        let [data, ack] = multicast(count, traced);
        [data, ack, contributions(count, traced), all_mixed(count, traced)]
    };
    let print = |title: &str, row: [f64; 4], one: [f64; 4]| {
        let cells: Vec<String> = row
            .iter()
            .zip(one)
            .map(|(ns, one)| format!("{:>22}", format!("{ns:.1} ({:.2} x)", ns / one)))
            .collect();
        println!("{title:>8} {}", cells.join(" "));
    };
    let mut one = None;
    for count in group_counts(&COUNTS) {
        let row = measured(count, false);
        print(&count.to_string(), row, *one.get_or_insert(row));
    }
    println!("\n{TRACED} groups, and a trace of another one's frames by the same port.\n");
    let row = measured(TRACED, false);
    print("none", row, row);
    print("armed", measured(TRACED, true), row);
}

/// The numbers below `count`, each `times` times, in random order.
fn random_order(count: usize, times: usize) -> Vec<usize> {
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

fn psn_of(n: usize, next: &mut [u32]) -> u32 {
    next[n] += 1;
    next[n] - 1
}

struct Switch {
    engine: Engine,
    sink: Sink,
    frames: Pool,
}

impl Switch {
    fn new(groups: usize, ports: usize, traced: bool) -> Self {
        let mut engine = engine_with(ports, |config| {
            config.groups_max = groups.max(config.groups_max);
            config.memory_bytes_max = 8 << 30;
        });
        for tap in TapId::all().take(traced.into()) {
            let filter = FrameFilter {
                port: Some(port(1)),
                group: Some(MCST),
                ..FrameFilter::default()
            };
            engine.taps.arm_trace(tap, filter, u64::MAX);
        }
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

    fn multicast(&mut self, mcst_id: McstId, source: usize) {
        let rule = GroupRule {
            mcst_id,
            ..star(RECEIVERS).with_multicast(|rule| rule.source = source as u16)
        };
        install(&mut self.engine, &rule);
    }

    fn collectives(&mut self, rules: &[GroupRule], packets: u32) {
        for rule in rules {
            install(&mut self.engine, rule);
        }
        for rank in 0..RANKS {
            self.feed(
                rank,
                rules.iter().map(|rule| control(rule.mcst_id, rank, packets, SUM)),
            );
        }
    }

    /// Sends frames to a port. Returns the engine's time per frame.
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

fn multicast(count: usize, traced: bool) -> [f64; 2] {
    let mut switch = Switch::new(count, RECEIVERS + 1, traced);
    (0..count).for_each(|n| switch.multicast(group(n), 1));
    let order = random_order(count, FRAMES.div_ceil(count));
    let mut next = vec![0; count];
    let mut lowest = [f64::MAX; 2];
    for _ in 0..SAMPLES {
        let frames: Vec<_> = order.iter().map(|&n| (group(n), psn_of(n, &mut next))).collect();
        let data = switch.feed(1, frames.iter().map(|&(to, psn)| data_from(1, to, psn, DATA)));
        let ack = switch.feed(
            RECEIVERS,
            frames.iter().map(|&(to, psn)| ack_to(to, RECEIVERS, psn)),
        );
        lowest = [lowest[0].min(data), lowest[1].min(ack)];
    }
    let counters = switch.engine.totals();
    let expected = (SAMPLES * order.len()) as u64;
    assert_eq!(
        (counters.replicated, counters.absorbed),
        (expected, expected),
        "the intended case is measured"
    );
    lowest
}

/// Collective groups whose ranks send `packets` packets. The last packet would end the collective and take the slow
/// path, so the group expects one more.
fn rules(groups: impl Iterator<Item = McstId>, packets: u32) -> Vec<GroupRule> {
    let slots = (2 * (packets as u16 + 2)).next_power_of_two();
    let rule = |group| rule(group, slots, SUM).with_translated(|rule| rule.message_packets = slots / 2);
    groups.map(rule).collect()
}

fn contributions(count: usize, traced: bool) -> f64 {
    let mut switch = Switch::new(count, RANKS, traced);
    // The same number of buffered frames as with many groups.
    let times = (RING / count).max(2);
    let rules = rules((0..count).map(group), times as u32);
    let (order, floats) = (random_order(count, times), floats(SUM));
    let mut lowest = f64::MAX;
    for _ in 0..SAMPLES {
        let (mut total, mut frames) = (0.0, 0);
        while frames < FRAMES {
            switch.collectives(&rules, times as u32 + 1);
            for rank in 0..RANKS - 1 {
                let mut next = vec![1; count];
                let of = |&n: &usize| contribution(&rules[n], rank, psn_of(n, &mut next), &floats);
                let time = switch.feed(rank, order.iter().map(of));
                // The first contribution to a slot is stored, not added.
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
        "the intended case is measured"
    );
    lowest
}

/// Frames at one port in random order: data of groups with their source there, ACKs to others, and contributions.
fn all_mixed(count: usize, traced: bool) -> f64 {
    let each = count.div_ceil(3);
    let mut switch = Switch::new(3 * each, RECEIVERS + 1, traced);
    let times = (RING / 3 / each).max(2);
    let rules = rules((0..each).map(|n| group(3 * n)), times as u32);
    for n in 0..each {
        switch.multicast(group(3 * n + 1), 1);
        switch.multicast(group(3 * n + 2), 0);
    }
    let (order, floats) = (random_order(3 * each, times), floats(SUM));
    let mut psns = vec![0; 3 * each];
    let mut lowest = f64::MAX;
    for _ in 0..SAMPLES {
        let (mut total, mut frames) = (0.0, 0);
        while frames < FRAMES {
            switch.collectives(&rules, times as u32 + 1);
            // Data of a collective follows its control message.
            psns.iter_mut().step_by(3).for_each(|psn| *psn = 1);
            let before = psns.clone();
            let first = |n: &&usize| *n % 3 != 1;
            let of = |&n: &usize| match n % 3 {
                0 => contribution(&rules[n / 3], 0, psn_of(n, &mut psns), &floats),
                _ => data_from(0, group(n), psn_of(n, &mut psns), DATA),
            };
            switch.feed(0, order.iter().filter(first).map(of));
            let mut again = before;
            let of = |&n: &usize| {
                let psn = psn_of(n, &mut again);
                match n % 3 {
                    0 => contribution(&rules[n / 3], 1, psn, &floats),
                    1 => data_from(1, group(n), psn, DATA),
                    _ => ack_to(group(n), 1, psn),
                }
            };
            total += switch.feed(1, order.iter().map(of)) * order.len() as f64;
            psns = again;
            frames += order.len();
        }
        lowest = lowest.min(total / frames as f64);
    }
    let dropped = switch.engine.totals().dropped;
    assert_eq!(dropped, 0, "the intended case is measured");
    lowest
}
