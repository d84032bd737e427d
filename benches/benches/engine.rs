//! The engine per batch of 32 frames. The baseline of each case only moves the bytes of the port.

mod common;

use std::hint::black_box;

use castnet_wire::{BATCH, parse_frame};
use common::{ACKS, Bench, data};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    let frame = data(1024);
    group.bench_function("roce", |b| {
        b.iter(|| parse_frame(black_box(&frame[..128]), frame.len()))
    });
    group.bench_function("baseline", |b| {
        b.iter(|| <[u8; 58]>::try_from(&black_box(&frame)[..58]))
    });
    group.finish();
}

fn plain(c: &mut Criterion) {
    let mut group = c.benchmark_group("plain");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, engine) in [("castnet", true), ("baseline", false)] {
        let mut bench = Bench::new(8);
        group.bench_function(BenchmarkId::new("refuse", name), |b| {
            b.iter_custom(|n| bench.refuse(engine, n))
        });
        group.bench_function(BenchmarkId::new("switch", name), |b| {
            b.iter_custom(|n| bench.switch(engine, n))
        });
    }
    group.finish();
}

fn acks(c: &mut Criterion) {
    let mut group = c.benchmark_group("ack");
    group.throughput(Throughput::Elements(ACKS.into()));
    for (case, triggers) in [("absorbed", false), ("triggering", true)] {
        for (name, engine) in [("castnet", true), ("baseline", false)] {
            let mut bench = Bench::new(8);
            group.bench_function(BenchmarkId::new(case, name), |b| {
                b.iter_custom(|n| bench.acks(triggers, engine, n));
            });
        }
    }
    group.finish();
}

fn replicate(c: &mut Criterion) {
    for payload in [64, 1024, 4096] {
        let mut group = c.benchmark_group(format!("replicate {payload} B"));
        for receivers in [1, 4, 8, 32] {
            group.throughput(Throughput::Elements((BATCH * receivers) as u64));
            let mut bench = Bench::new(receivers);
            group.bench_function(BenchmarkId::new("castnet", receivers), |b| {
                b.iter_custom(|n| bench.replicate(payload, n));
            });
            group.bench_function(BenchmarkId::new("baseline", receivers), |b| {
                b.iter_custom(|n| bench.move_only(payload, n));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, parse, plain, acks, replicate);
criterion_main!(benches);
