//! Speed of the generator itself, without a switch: frames made and counted per second on one core.
//!
//! `cargo bench -p castnet-traffic`

use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_port::{Batch, Memory, Pool, PoolBuf, PoolConfig};
use castnet_traffic::{HEADER, Host, Pattern, Place, Plan, Scenario, Sizes};
use castnet_wire::Nanos;

/// The fastest of so many samples of a millisecond counts: other load on the machine only adds time.
const SAMPLES: usize = 400;

fn main() {
    println!(
        "{:<12} {:>8} {:>16} {:>12} {:>12}",
        "pattern", "payload", "M frames/s", "ns a frame", "Gb/s"
    );
    for (pattern, host, sizes) in [
        (Pattern::Ack, 1, vec![64]),
        (Pattern::Cnp, 1, vec![64]),
        (Pattern::Nak, 1, vec![64]),
        (Pattern::Multicast, 0, vec![64, 1024, 4096]),
        (Pattern::Aggregate, 1, vec![1024, 4096]),
    ] {
        for size in sizes {
            let scenario = Scenario {
                sizes: Sizes::from(size),
                ..Scenario::new(pattern.into())
            };
            let plan = Plan::own(&scenario, &Place::star(scenario.places())).expect("a plan");
            let (frame, bytes) = make(&plan, host);
            println!(
                "{:<12} {size:>8} {:>16.1} {frame:>12.1} {:>12.1}",
                pattern.name(),
                1e3 / frame,
                8.0 * bytes / frame
            );
        }
    }
}

/// Nanoseconds per frame of a host, including allocation and release, and bytes per frame.
fn make(plan: &Plan, place: usize) -> (f64, f64) {
    let pool = Pool::new(PoolConfig::default());
    let mut host: Host<PoolBuf> = Host::new(plan, place, |bytes| pool.copy_from(bytes)).expect("a host");
    host.unbind();
    let (mut best, mut batch) = (f64::MAX, Batch::new());
    for _ in 0..SAMPLES {
        let (start, before) = (Instant::now(), host.counts().sent);
        while start.elapsed() < Duration::from_millis(1) {
            for _ in 0..32 {
                host.fill(Nanos(1), &mut batch, |original| {
                    pool.replicate(original, HEADER, true)
                });
                black_box(&mut batch).clear();
            }
        }
        let made = host.counts().sent - before;
        best = best.min(start.elapsed().as_nanos() as f64 / made as f64);
    }
    let counts = host.counts();
    (best, counts.sent_bytes as f64 / counts.sent as f64)
}
