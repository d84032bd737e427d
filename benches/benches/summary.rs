//! One table: every figure next to its baseline of the same run, the goals, and the allocations.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Display;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use castnet_reduce::Checksum;
use castnet_rules::CollectiveMode;
use castnet_wire::icrc::{self, HeaderDelta, ShiftCache};
use castnet_wire::{BATCH, Qpn, parse_frame};
use common::collective::{self, Sums};
use common::samples::{self, SAMPLES, lowest, lowest_of, median};
use common::{ACKS, Bench, data};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; counting is one atomic addition.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

struct Table {
    met: bool,
}

impl Table {
    fn row(
        &mut self,
        what: &str,
        figure: String,
        baseline: impl Display,
        ratio: impl Display,
        goal: Option<(String, bool)>,
    ) {
        let goal = goal.map_or(String::new(), |(text, met)| {
            self.met &= met;
            format!("{text} {}", if met { "met" } else { "MISSED" })
        });
        println!("{what:<44} {figure:>12} {baseline:>30} {ratio:>22}  {goal}");
    }

    /// A row with the time of the port alone, and the difference.
    fn port(&mut self, what: &str, figure: f64, moved: f64, goal: Option<(String, bool)>) {
        let (baseline, more) = (format!("{} port moves it", ns(moved)), ns(figure - moved));
        self.row(what, ns(figure), baseline, format!("+{more}"), goal);
    }
}

fn ns(value: f64) -> String {
    format!("{value:.1} ns")
}

/// A goal for a ratio. Nanoseconds differ between processors by more than a factor of two.
fn at_most(most: f64, ratio: f64) -> (String, bool) {
    (format!("<= {most} x: {ratio:.2} x"), ratio <= most)
}

fn main() {
    println!("Lowest of {SAMPLES} samples each; figures compare within this run only.\n");
    println!(
        "{:<44} {:>12} {:>30} {:>22}  goal",
        "per frame", "castnet", "baseline", "ratio or difference"
    );
    let mut table = Table { met: true };
    // `cargo bench --bench summary -- sums` runs one part only.
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    type Part = fn(&mut Table);
    let parts: [(&str, Part); 10] = [
        ("parse", parse),
        ("plain", plain),
        ("acks", acks),
        ("replication", replication),
        ("repair", repair),
        ("core", core),
        ("sums", sums),
        ("modes", modes),
        ("icrcs", icrcs),
        ("allocations", allocations),
    ];
    for (name, part) in parts {
        if only.as_ref().is_none_or(|only| only == name) {
            part(&mut table);
        }
    }
    println!(
        "\n{}",
        if table.met {
            "All goals met."
        } else {
            "Not all goals met."
        }
    );
}

fn parse(table: &mut Table) {
    let frames: Vec<Vec<u8>> = (0..BATCH).map(|_| data(1024)).collect();
    const ROUNDS: u64 = 1_000;
    let run = |each: &dyn Fn(&[u8])| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            for frame in &frames {
                each(black_box(frame));
            }
        }
        (start.elapsed(), ROUNDS * BATCH as u64)
    };
    let [parse, touch] = lowest([
        &mut || {
            run(&|frame| {
                let _ = black_box(&parse_frame(&frame[..128], frame.len()));
            })
        },
        &mut || {
            run(&|frame| {
                let _ = black_box(&<[u8; 58]>::try_from(&frame[..58]));
            })
        },
    ]);
    table.row(
        "parse",
        ns(parse),
        format!("{} copy its headers", ns(touch)),
        format!("{:.1} x", parse / touch),
        None,
    );
}

fn plain(table: &mut Table) {
    const BATCHES: u64 = 400;
    let items = BATCHES * BATCH as u64;
    let mut bench = Bench::new(8);
    let mut other = Bench::new(8);
    let [refuse, moved] = lowest([&mut || (bench.refuse(true, BATCHES), items), &mut || {
        (other.refuse(false, BATCHES), items)
    }]);
    table.port("parse, classify and drop a foreign frame", refuse, moved, None);
    let [switch, moved] = lowest([&mut || (bench.switch(true, BATCHES), items), &mut || {
        (other.switch(false, BATCHES), items)
    }]);
    table.port("switch a frame of no group (FDB hit)", switch, moved, None);
}

fn acks(table: &mut Table) {
    const ROUNDS: u64 = 40;
    let items = ROUNDS * u64::from(ACKS);
    let mut cost = [0.0; 2];
    for (i, (what, triggers)) in [
        ("ACK of 8 paths, none forwarded", false),
        ("ACK of 8 paths, and an ACK to the source", true),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut bench, mut other) = (Bench::new(8), Bench::new(8));
        let [ack, moved] = lowest([&mut || (bench.acks(triggers, true, ROUNDS), items), &mut || {
            (other.acks(triggers, false, ROUNDS), items)
        }]);
        cost[i] = ack - moved;
        // In this case two frames are handled: one in, one out.
        let goal = at_most(3.0, cost[i] / moved / if triggers { 2.0 } else { 1.0 });
        table.port(what, ack, moved, Some(goal));
    }
    let mean = (7.0 * cost[0] + cost[1]) / 8.0;
    let what = "mean of 8 receivers' ACKs, one to the source";
    table.row(what, ns(mean), "", "", None);
}

fn replication(table: &mut Table) {
    let mut further_at_64 = 0.0;
    for payload in [64, 1024, 4096] {
        let mut alone = 0.0;
        for receivers in [1, 4, 8, 32] {
            let batches = 1_000 / receivers as u64;
            let items = batches * BATCH as u64;
            let (mut bench, mut other) = (Bench::new(receivers), Bench::new(receivers));
            let [engine, moved] = lowest([&mut || (bench.replicate(payload, batches), items), &mut || {
                (other.move_only(payload, batches), items)
            }]);
            let cost = engine - moved;
            let per_copy = cost / receivers as f64;
            if receivers == 1 {
                alone = cost;
            }
            let port = moved / receivers as f64;
            let goal = (payload == 1024 && receivers >= 8).then(|| at_most(0.5, per_copy / port));
            table.row(
                &format!("replicate 1 to {receivers:2}, {payload:4} B payload"),
                ns(engine),
                format!("{} port moves them", ns(moved)),
                format!("+{} per copy", ns(per_copy)),
                goal,
            );
            if receivers == 8 {
                let further = (cost - alone) / 7.0;
                let goal = match payload {
                    64 => {
                        further_at_64 = further;
                        None
                    }
                    1024 => Some(at_most(0.5, further / port)),
                    _ => Some((
                        format!("as at 64 B: {}", ns(further_at_64)),
                        further <= further_at_64 * 1.25 + 1.0,
                    )),
                };
                let first = format!("first: {}", ns(alone));
                table.row("  each copy after the first", ns(further), "", first, goal);
            }
        }
    }
}

/// Groups whose switches repair: data is verified and kept.
fn repair(table: &mut Table) {
    for payload in [256, 1024, 4096] {
        for receivers in [1, 8] {
            let bench = || Bench::new(receivers);
            let (mut plain, mut fast, mut slow) = (bench(), bench().repairing(), bench().repairing().slow());
            let [plain, fast, slow] = lowest([
                &mut || plain.windows(payload),
                &mut || fast.windows(payload),
                &mut || slow.windows(payload),
            ]);
            table.row(
                &format!("keep and replicate 1 to {receivers}, {payload:4} B payload"),
                ns(fast),
                format!("{} without repair", ns(plain)),
                format!("{:.2} x", fast / plain),
                None,
            );
            let (what, ratio) = ("  on the slow path", format!("{:.2} x", slow / plain));
            table.row(what, ns(slow), "", ratio, None);
        }
    }
}

/// The edges of a static core, beside a group with as many copies.
fn core(table: &mut Table) {
    type Edge = fn() -> Bench;
    let edges: [(&str, Edge); 2] = [
        ("two copies for 8 edges", || Bench::new(8).source_edge(2)),
        ("from the core, 1 to 2", || Bench::new(2).receiver_edge()),
    ];
    for payload in [64, 1024, 4096] {
        for (what, edge) in edges {
            let (mut plain, mut fast, mut slow) = (Bench::new(2), edge(), edge().slow());
            const BATCHES: u64 = 500;
            let items = BATCHES * BATCH as u64;
            let [plain, fast, slow] = lowest([
                &mut || (plain.replicate(payload, BATCHES), items),
                &mut || (fast.replicate(payload, BATCHES), items),
                &mut || (slow.replicate(payload, BATCHES), items),
            ]);
            let [ratio, slow_ratio] = [fast, slow].map(|ns| format!("{:.2} x", ns / plain));
            let what = format!("{what}, {payload:4} B payload");
            let without = format!("{} 1 to 2 without core", ns(plain));
            table.row(&what, ns(fast), without, ratio, None);
            table.row("  on the slow path", ns(slow), "", slow_ratio, None);
        }
    }
}

fn sums(table: &mut Table) {
    // Many rounds, so that most of them find the cache filled again after other samples.
    const ROUNDS: u64 = 16;
    let checksum = Checksum::select();
    for (payload, reproducible) in [(256, false), (1024, false), (4096, false), (1024, true)] {
        let mut benches = [(); 6].map(|()| Sums::new(payload, |r| r.reproducible = reproducible));
        let [bench, other, finishing, still, alone, ours] = &mut benches;
        let samples = samples::take([
            &mut || bench.contributions(true, ROUNDS),
            &mut || other.contributions(false, ROUNDS),
            &mut || finishing.results(ROUNDS),
            &mut || still.results_moved(ROUNDS),
            &mut || alone.crc_and_add(&crc32fast::hash, ROUNDS),
            &mut || ours.crc_and_add(&|bytes| checksum.update(0, bytes, &[]), ROUNDS),
        ]);
        let [added, moved, last, moved_last, alone, ours] = lowest_of(&samples);
        let over_alone = median(&samples, |[added, moved, .., alone, _]| (added - moved) / alone);
        let over_ours = median(&samples, |[added, moved, .., ours]| (added - moved) / ours);
        let over_port = median(&samples, |[added, moved, last, moved_last, ..]| {
            (last - moved_last - (added - moved)) / (moved_last - moved)
        });
        let kept = if reproducible { ", kept" } else { "" };
        let cost = added - moved;
        let what = format!("contribution, {payload:4} B of f32, verified{kept}");
        table.port(&what, added, moved, None);
        let goal = payload == 1024 && !reproducible;
        table.row(
            "  beside its CRC and its sum alone (median)",
            ns(cost),
            format!("{} with crc32fast", ns(alone)),
            format!("{over_alone:.2} x"),
            goal.then(|| at_most(1.5, over_alone)),
        );
        let (baseline, ratio) = (format!("{} with our CRC", ns(ours)), format!("{over_ours:.2} x"));
        table.row("", String::new(), baseline, ratio, None);
        let per_child = (last - moved_last - cost) / collective::RANKS as f64;
        table.row(
            &format!("the last one, and the result to {} ranks", collective::RANKS),
            ns(last),
            format!("{} port moves them", ns(moved_last)),
            format!("+{} per child", ns(per_child)),
            goal.then(|| at_most(2.0, over_port)),
        );
        let with_ports = (last - moved - cost) / collective::RANKS as f64;
        let port = (moved_last - moved) / collective::RANKS as f64;
        table.row(
            "  of which each child, with what its port needs",
            ns(with_ports),
            format!("{} the port alone", ns(port)),
            format!("{:.1} x", with_ports / port),
            None,
        );
    }
}

/// The same contribution in each mode. In Mode-III and Mode-I, the last packet of each message is acknowledged at once.
fn modes(table: &mut Table) {
    const ROUNDS: u64 = 16;
    for payload in [256, 1024, 4096] {
        let [mut port, mut translated, mut augmented, mut terminated] = [
            CollectiveMode::Translated,
            CollectiveMode::Translated,
            CollectiveMode::Augmented,
            CollectiveMode::Terminated,
        ]
        .map(|mode| Sums::new(payload, |r| r.mode = mode));
        let samples = samples::take([
            &mut || port.contributions(false, ROUNDS),
            &mut || translated.contributions(true, ROUNDS),
            &mut || augmented.contributions(true, ROUNDS),
            &mut || terminated.contributions(true, ROUNDS),
        ]);
        let lowest = lowest_of(&samples);
        for (name, mode, most) in [("III", 2, 1.3), ("I", 3, 3.0)] {
            let ratio = median(&samples, |s| (s[mode] - s[0]) / (s[1] - s[0]));
            table.row(
                &format!("contribution, {payload:4} B of f32, in Mode-{name}"),
                ns(lowest[mode] - lowest[0]),
                format!("{} in Mode-II", ns(lowest[1] - lowest[0])),
                format!("{ratio:.2} x"),
                (payload == 1024).then(|| at_most(most, ratio)),
            );
        }
    }
}

fn icrcs(table: &mut Table) {
    const ROUNDS: u64 = 5_000;
    for (payload, factor) in [(1024, 4.0), (4096, 10.0)] {
        let frame = data(payload);
        let packet = &frame[14..frame.len() - 4];
        let mut shifts = ShiftCache::<16>::new();
        let (old, new) = ([10, 9, 0, 1].into(), [10, 0, 0, 2].into());
        shifts.get(payload);
        let [full, difference] = lowest([
            &mut || {
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    black_box(icrc::full(&[black_box(packet)]));
                }
                (start.elapsed(), ROUNDS)
            },
            &mut || {
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    let delta = HeaderDelta::src(black_box([10, 0, 0, 1].into()), old)
                        .and(HeaderDelta::dst(old, black_box(new)))
                        .and(HeaderDelta::dest_qp(Qpn::VIRTUAL, black_box(Qpn::new(0x123))));
                    black_box(shifts.apply(delta.at_bth(), black_box(payload)));
                }
                (start.elapsed(), ROUNDS)
            },
        ]);
        let ratio = full / difference;
        let goal = (format!(">= {factor} x"), ratio >= factor);
        table.row(
            &format!("ICRC by difference, {payload} B payload"),
            ns(difference),
            format!("{} in full", ns(full)),
            format!("{ratio:.1} x faster"),
            Some(goal),
        );
    }
}

fn allocations(table: &mut Table) {
    let mut bench = Bench::new(8);
    bench.replicate(1024, 64);
    let count = |run: &mut dyn FnMut(u64)| {
        // Making the frames costs the same for any number of batches: the difference is the engine's.
        let mut allocations = |batches| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            run(batches);
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        let (few, many) = (allocations(8), allocations(4000));
        many - few
    };
    let data = count(&mut |batches| {
        bench.replicate(1024, batches);
    });
    let switched = count(&mut |batches| {
        bench.switch(true, batches);
    });
    // Installing a group allocates, outside of the rounds. The difference between rounds is the engine's.
    let mut sums = Sums::new(1024, |_| ());
    let once = |rounds: &mut dyn FnMut()| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        rounds();
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    sums.all(1);
    let installs = once(&mut || sums.install());
    let added = once(&mut || sums.all(1)) - installs;
    let total = data + switched + added;
    let frames = 2 * 3992 * BATCH + collective::RANKS * (collective::PACKETS as usize + 1);
    table.row(
        "allocations: replicated, switched, added",
        total.to_string(),
        format!("in {frames} frames"),
        "",
        Some(("0".into(), total == 0)),
    );
}
