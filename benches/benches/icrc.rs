//! ICRC: computed completely, and incrementally as for a copy to an endpoint of a group.

mod common;

use std::hint::black_box;

use castnet_wire::Qpn;
use castnet_wire::icrc::{self, HeaderDelta, ShiftCache};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for payload in [64, 256, 1024, 4096] {
        let frame = common::data(payload);
        let packet = &frame[14..frame.len() - 4];
        group.bench_function(BenchmarkId::new("full", payload), |b| {
            b.iter(|| icrc::full(&[black_box(packet)]))
        });
        let mut shifts = ShiftCache::<16>::new();
        shifts.get(payload);
        let (old, new) = ([10, 9, 0, 1].into(), [10, 0, 0, 2].into());
        group.bench_function(BenchmarkId::new("difference", payload), |b| {
            b.iter(|| {
                let delta = HeaderDelta::src(black_box([10, 0, 0, 1].into()), old)
                    .and(HeaderDelta::dst(old, black_box(new)))
                    .and(HeaderDelta::dest_qp(Qpn::VIRTUAL, black_box(Qpn::new(0x123))));
                shifts.apply(delta.at_bth(), black_box(payload))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
