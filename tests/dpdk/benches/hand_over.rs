//! What it costs to hand a frame over to another worker: by pointer, as DPDK's buffers go, beside by copy into a slot and out
//! of it, as the pool's must. Nanoseconds for each frame, in one thread and between two.

fn main() {
    #[cfg(feature = "dpdk")]
    dpdk::main();
    #[cfg(not(feature = "dpdk"))]
    println!("built without the feature dpdk");
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use castnet_dpdk::{Config, DpdkMemory, Hugepages, Mbuf, Runtime};
    use castnet_port::{BATCH, FrameRing, HandOver, MoveRing, PoolConfig};
    use castnet_wire::PortId;

    const LENGTHS: [usize; 3] = [64, 1024, 4096];
    const PLACES: usize = 512;
    /// Frames on their way at a time, between two threads.
    const FLYING: usize = 256;
    const ROUNDS: usize = 7;
    const TIME: Duration = Duration::from_millis(60);

    pub(super) fn main() {
        // Cargo's own arguments for benches are of no interest here.
        let runtime = Runtime::start(&Config {
            threads: 2,
            hand_over: PLACES,
            pool: PoolConfig::default(),
            hugepages: Hugepages::Auto,
            devices: Vec::new(),
        })
        .expect("DPDK");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        println!("ns for each frame that is handed over; the best of {ROUNDS} rounds");
        println!("{:>8} {:>24} {:>24}", "", "one thread", "between two threads");
        println!(
            "{:>8} {:>9} {:>9} {:>4} {:>9} {:>9} {:>4}",
            "bytes", "copy", "pointer", "", "copy", "pointer", ""
        );
        for length in LENGTHS {
            let mut best = [f64::MAX; 4];
            for _ in 0..ROUNDS {
                let mut now = [f64::MAX; 4];
                now[0] = alone::<FrameRing<PortId>>(&runtime, length);
                now[1] = alone::<MoveRing<PortId, Mbuf>>(&runtime, length);
                if cores > 1 {
                    now[2] = between::<FrameRing<PortId>>(&runtime, length);
                    now[3] = between::<MoveRing<PortId, Mbuf>>(&runtime, length);
                }
                for (best, now) in best.iter_mut().zip(now) {
                    *best = best.min(now);
                }
            }
            let [a, b, c, d] = best;
            print!("{length:>8} {a:>9.1} {b:>9.1} {:>3.1}x", a / b);
            match cores {
                1 => println!("   (one core)"),
                _ => println!(" {c:>9.1} {d:>9.1} {:>3.1}x", c / d),
            }
        }
    }

    fn frames(memory: &DpdkMemory, length: usize, count: usize) -> Vec<Mbuf> {
        (0..count)
            .map(|_| memory.copy_from(&vec![0x5A; length]).expect("a buffer"))
            .collect()
    }

    fn port() -> PortId {
        PortId::new(1).expect("below 64")
    }

    /// Batches in and out again, in one thread.
    fn alone<R: HandOver<Mbuf>>(runtime: &Arc<Runtime>, length: usize) -> f64 {
        let memory = runtime.memory().expect("a thread");
        let ring = R::new(PLACES, 9216);
        let mut frames = frames(&memory, length, BATCH);
        let (start, mut count) = (Instant::now(), 0_u64);
        while start.elapsed() < TIME {
            for _ in 0..64 {
                for frame in frames.drain(..) {
                    let _ = ring.push(port(), frame);
                }
                while let Some(popped) = ring.pop(&memory) {
                    frames.extend(popped.ok().map(|(_, frame)| frame));
                }
                count += BATCH as u64;
            }
        }
        assert_eq!(frames.len(), BATCH, "none was lost");
        start.elapsed().as_nanos() as f64 / count as f64
    }

    /// The same frames to another thread and back, over two rings.
    fn between<R: HandOver<Mbuf>>(runtime: &Arc<Runtime>, length: usize) -> f64 {
        let (there, back) = (R::new(PLACES, 9216), R::new(PLACES, 9216));
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let memory = runtime.memory().expect("a thread");
                while !end.load(Ordering::Relaxed) {
                    pass(&there, &back, &memory);
                }
            });
            let memory = runtime.memory().expect("a thread");
            for frame in frames(&memory, length, FLYING) {
                let _ = there.push(port(), frame);
            }
            let (start, mut passed) = (Instant::now(), 0_u64);
            while start.elapsed() < TIME {
                passed += pass(&back, &there, &memory);
            }
            let time = start.elapsed().as_nanos() as f64;
            end.store(true, Ordering::Relaxed);
            time / passed as f64
        })
    }

    /// Passes a batch on, and waits a little where there is none.
    fn pass<R: HandOver<Mbuf>>(from: &R, to: &R, memory: &DpdkMemory) -> u64 {
        let mut passed = 0;
        for _ in 0..BATCH {
            let Some(Ok((port, frame))) = from.pop(memory) else {
                break;
            };
            let _ = to.push(port, frame);
            passed += 1;
        }
        if passed == 0 {
            // The other may have this very core, where others are busy too.
            std::thread::yield_now();
        }
        passed
    }
}
