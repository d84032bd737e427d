//! One to many over DPDK's virtual devices: a file that net_pcap reads over and over, and net_null to send to. The switch with
//! connection bridging beside a loop that does nothing but copy, in one run, on one core; and copies beside shared bodies.
//!
//! `cargo bench -p castnet-dpdk-tests --features dpdk [-- SECONDS [PAYLOAD [FANOUT]]]`: with a payload only rows of that, and without
//! the second table.

fn main() {
    #[cfg(feature = "dpdk")]
    dpdk::main();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use castnet_dpdk::{Config, DpdkMemory, Hugepages, Mbuf, Runtime, Thresholds};
    use castnet_dpdk_tests::frames::{data, group};
    use castnet_dpdk_tests::gate::Gate;
    use castnet_dpdk_tests::wrap::Wrapped;
    use castnet_dpdk_tests::{config, write_pcap};
    use castnet_port::{Batch, DpdkSpec, Memory, MemoryPort, PoolConfig, Port, PortSpec, Sides};
    use castnet_worker::{Dataplane, Idle, WorkerConfig};
    use nix::sys::resource::{UsageWho, getrusage};

    /// Frames of the file; net_pcap keeps them all in buffers.
    const FRAMES: usize = 512;

    pub(super) fn main() {
        // Cargo adds arguments of its own.
        let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse::<f64>().ok());
        let time = Duration::from_secs_f64(numbers.next().unwrap_or(1.0));
        let mut only = || numbers.next().map(|n| n as usize);
        let (only_payload, only_fanout) = (only(), only());
        let folder = tempfile::tempdir().expect("a folder");
        println!("DPDK: {}", castnet_dpdk::version());
        println!("million frames out per second of a core, one worker, net_pcap in, net_null out");
        println!(
            "{:>8} {:>6} {:>10} {:>10} {:>10} {:>8}",
            "payload", "fanout", "copy loop", "switch", "ns a copy", "ratio"
        );
        for payload in [64, 1024, 4096] {
            if only_payload.is_some_and(|only| only != payload) {
                continue;
            }
            let file = folder.path().join(format!("{payload}.pcap"));
            let frames: Vec<_> = (0..FRAMES)
                .map(|psn| data(0, 0, psn as u32, payload, false))
                .collect();
            write_pcap(&file, &frames);
            for fanout in [1, 4, 8] {
                if only_fanout.is_some_and(|only| only != fanout) {
                    continue;
                }
                let copy = copy_loop(&file, fanout, Way::Copied, time);
                let switch = switch(&file, fanout, time);
                println!(
                    "{payload:>8} {fanout:>6} {copy:>10.2} {switch:>10.2} {:>10.1} {:>8.2}",
                    1e3 / switch,
                    switch / copy
                );
            }
        }
        if only_payload.is_some() {
            return;
        }
        println!("\ncopied, shared, lent, 1 to 8, million frames out per second of a core, without a switch");
        println!(
            "{:>8} {:>10} {:>10} {:>10}",
            "payload", "copied", "shared", "lent"
        );
        for payload in [512, 1024, 1536, 2048, 3072, 4096, 8192] {
            let file = folder.path().join(format!("{payload}.pcap"));
            let frames: Vec<_> = (0..FRAMES)
                .map(|psn| data(0, 0, psn as u32, payload, false))
                .collect();
            write_pcap(&file, &frames);
            let [copied, shared, lent] =
                [Way::Copied, Way::Shared, Way::Lent].map(|way| copy_loop(&file, 8, way, time));
            println!("{payload:>8} {copied:>10.2} {shared:>10.2} {lent:>10.2}");
        }
    }

    fn specs(file: &Path, fanout: usize) -> Vec<String> {
        let source = format!(
            "dpdk:net_pcap0,rx_pcap={},infinite_rx=1,tx_pcap=/dev/null",
            file.display()
        );
        let sink = |n| format!("dpdk:net_null{n},no-rx=1");
        std::iter::once(source).chain((1..=fanout).map(sink)).collect()
    }

    fn runtime(devices: Vec<DpdkSpec>, pool: PoolConfig) -> Arc<Runtime> {
        Runtime::start(&Config {
            threads: 1,
            hand_over: 0,
            pool,
            hugepages: Hugepages::Auto,
            devices,
        })
        .expect("DPDK")
    }

    /// How the copy loop makes a replica.
    #[derive(Clone, Copy)]
    enum Way {
        Copied,
        Shared,
        Lent,
    }

    /// Receives, makes the replicas, writes the first 64 bytes of each and the trailer where it is its own, and sends them.
    fn copy_loop(file: &Path, fanout: usize, way: Way, time: Duration) -> f64 {
        let specs: Vec<PortSpec> = specs(file, fanout)
            .iter()
            .map(|s| s.parse().expect("a port"))
            .collect();
        let devices = specs.iter().filter_map(|s| s.dpdk().cloned()).collect();
        let memory = runtime(devices, config(&[], 1, 1).pool).memory().expect("memory");
        memory.set_thresholds(Thresholds {
            lend: 0,
            share: match way {
                Way::Shared => 0,
                Way::Copied | Way::Lent => usize::MAX,
            },
        });
        let mut ports: Vec<MemoryPort<DpdkMemory>> = specs
            .iter()
            .map(|s| memory.open(s, Sides::Both, 0).expect("a port"))
            .collect();
        let (source, sinks) = ports.split_first_mut().expect("a source");
        let mut out: Vec<Batch<Mbuf>> = (0..fanout).map(|_| Batch::new()).collect();
        let mut batch = Batch::new();
        let (mut start, mut cpu, mut sent, mut warm) = (Instant::now(), cpu_time(), 0_u64, false);
        loop {
            for _ in 0..64 {
                source.receive(&mut batch);
                for frame in batch.drain(..) {
                    let (last, others) = out.split_last_mut().expect("a sink");
                    let mut to_come = others.len();
                    for out in others.iter_mut() {
                        to_come -= 1;
                        let copy = match way {
                            Way::Lent => memory.lend(&frame, to_come),
                            Way::Copied | Way::Shared => memory.replicate(&frame, 64, true),
                        };
                        let mut copy = copy.expect("a buffer");
                        touch(&mut copy);
                        out.push(copy);
                    }
                    let mut frame = frame;
                    touch(&mut frame);
                    last.push(frame);
                }
                for (out, sink) in out.iter_mut().zip(sinks.iter_mut()) {
                    sent += out.len() as u64;
                    sink.send(out);
                }
            }
            let elapsed = start.elapsed();
            if !warm && elapsed > time / 4 {
                (start, cpu, sent, warm) = (Instant::now(), cpu_time(), 0, true);
            } else if elapsed > time {
                return sent as f64 / (cpu_time() - cpu) / 1e6;
            }
        }
    }

    /// Seconds of a core that this process has used: one thread of it is busy. What else runs on the machine takes
    /// time from it, but less of what this counts.
    fn cpu_time() -> f64 {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
        let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    }

    fn touch(frame: &mut Mbuf) {
        use castnet_port::FrameBuf;
        if let Some(head) = frame.head_mut().first_chunk_mut::<54>() {
            head.fill(0x5A);
        }
        frame.set_trailer([0x5A; 4]);
    }

    fn switch(file: &Path, fanout: usize, time: Duration) -> f64 {
        let mut config = config(&specs(file, fanout), 1, 1);
        config.workers = vec![WorkerConfig {
            core: None,
            idle: Idle::Busy,
        }];
        let devices = config
            .ports
            .iter()
            .filter_map(|p| p.spec.dpdk().cloned())
            .collect();
        let runtime = runtime(devices, config.pool);
        let gate = Arc::new(AtomicBool::new(false));
        let open = gate.clone();
        let make = move |_| {
            Ok(Wrapped::new(
                runtime.memory()?,
                Gate::new(open.clone()).numbered(),
            ))
        };
        let dataplane = Dataplane::start_in(config, make).expect("a dataplane");
        let ports: Vec<_> = (0..=fanout).collect();
        dataplane.install(&group(0, &ports)).expect("a group");
        gate.store(true, Ordering::Relaxed);
        let sent = || {
            let totals = dataplane.counters().expect("counters").totals;
            (cpu_time(), totals.replicated, totals.replicated + totals.copies)
        };
        thread::sleep(time / 10);
        let (from, _, before) = sent();
        let start = Instant::now();
        let (to, after) = loop {
            thread::sleep(time / 50);
            let (to, frames, after) = sent();
            // Nobody acknowledges, so the source must not get too far ahead.
            if start.elapsed() > time || frames > 3_000_000 {
                break (to, after);
            }
        };
        dataplane.stop();
        (after - before) as f64 / (to - from) / 1e6
    }
}
