//! Speed of the simulator, on one thread and on two: frames that reach hosts per second, and the time of one simulated second of 1,024
//! hosts at load. The baseline is the least that a host does for a frame: a copy, and its ICRC.
//!
//! `cargo bench -p castnet-benches --bench sim`

use std::fs;
use std::time::Instant;

use castnet_comm::machine::{Collective, HostBasedConfig, Task};
use castnet_planner::{Member, Request};
use castnet_rules::MulticastRule;
use castnet_sim::{LinkStats, RankQp, Routes, SimConfig, Simulation};
use castnet_topology::Topology;
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn, icrc};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HOSTS: u16 = 1024;
/// Simulated time of a measurement, after the start.
const START: Nanos = Nanos::from_micros(200);
const SPAN: Nanos = Nanos::from_micros(100);
const SPANS: u64 = 4;
/// A message that outlasts it: 8 MiB take 690 us.
const BYTES: u32 = 16 << 20;
const THREADS: [usize; 2] = [1, 2];

fn main() {
    let topology = Topology::three_tier(4, 8, 32).expect("a fabric");
    let routes = Routes::new(&topology);
    let least = least_ns();
    println!("A copy and the ICRC of a frame of 4 KiB: {least:.0} ns.\n");
    println!(
        "1,024 hosts of a fat tree, 100 Gb/s, path MTU 4096, whole frames. One simulated second, in minutes, at this speed.\n"
    );
    println!(
        "{:20} {:>7} {:>12} {:>12} {:>13} {:>15} {:>8} {:>18} {:>7}",
        "load",
        "threads",
        "events/s",
        "frames/s",
        "ns per frame",
        "over the least",
        "minutes",
        "processor minutes",
        "faster"
    );
    for (name, is_group) in [("multicast to 1,023", true), ("512 pairs, unicast", false)] {
        let mut sims = THREADS.map(|threads| network(&topology, &routes, is_group, threads));
        sims.iter_mut().for_each(|sim| _ = sim.run(START));
        let before = sims.each_ref().map(counts);
        let mut times = THREADS.map(|_| Seconds::default());
        // In turn, since other programs on the machine come and go.
        for span in 1..=SPANS {
            for (sim, times) in sims.iter_mut().zip(&mut times) {
                let timer = Timer::start();
                sim.run(START + Nanos(SPAN.0 * span));
                let Seconds { clock, processor } = timer.seconds();
                times.clock += clock;
                times.processor += processor;
            }
        }
        let after = sims.each_ref().map(counts);
        assert_eq!(after[0], after[1], "the result depends on the number of threads");
        let events = (after[0].events - before[0].events) as f64;
        let frames = (after[0].frames - before[0].frames) as f64;
        for (threads, Seconds { clock, processor }) in THREADS.iter().zip(&times) {
            let per_frame = clock * 1e9 / frames;
            let minutes = |seconds: f64| seconds * (1e9 / (SPAN.0 * SPANS) as f64) / 60.0;
            println!(
                "{name:20} {threads:>7} {:>12.0} {:>12.0} {per_frame:>13.0} {:>15.1} {:>8.1} {:>18.1} {:>7.2}",
                events / clock,
                frames / clock,
                per_frame / least,
                minutes(*clock),
                minutes(*processor),
                times[0].clock / clock,
            );
        }
    }
}

#[derive(Default)]
struct Seconds {
    clock: f64,
    /// Of all threads.
    processor: f64,
}

struct Timer(Instant, f64);

impl Timer {
    /// Processor seconds of this process; 0 where the system does not count them.
    fn on_processor() -> f64 {
        let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // User and system time in hundredths, the 14th and 15th field. The second one, the name, ends with a parenthesis.
        let fields = text.rsplit(')').next().unwrap_or_default().split(' ');
        let hundredths = fields
            .skip(12)
            .take(2)
            .filter_map(|ticks| ticks.parse::<f64>().ok());
        hundredths.sum::<f64>() / 100.0
    }

    fn start() -> Self {
        Self(Instant::now(), Self::on_processor())
    }

    fn seconds(&self) -> Seconds {
        Seconds {
            clock: self.0.elapsed().as_secs_f64(),
            processor: Self::on_processor() - self.1,
        }
    }
}

#[derive(Debug, PartialEq)]
struct Counts {
    events: u64,
    /// That have reached hosts.
    frames: u64,
    links: LinkStats,
}

fn counts(sim: &Simulation) -> Counts {
    Counts {
        events: sim.events(),
        frames: received(sim),
        links: sim.totals(),
    }
}

fn names() -> Vec<String> {
    (0..HOSTS).map(|i| format!("h{i}")).collect()
}

fn received(sim: &Simulation) -> u64 {
    let requests = |host: &String| sim.endpoint(host).map_or(0, |e| e.stats().requests_in);
    names().iter().map(requests).sum()
}

/// One Broadcast to all hosts by a group, or one from each second host to the next one in another rack.
fn network(topology: &Topology, routes: &Routes, is_group: bool, threads: usize) -> Simulation {
    let config = SimConfig {
        threads,
        poll_delay: Nanos::ZERO,
        ..SimConfig::new(1)
    };
    let mut sim = Simulation::new(topology, config, ()).expect("a network");
    sim.install_routes(routes).expect("switches run");
    let hosts = names();
    let qp = RankQp {
        window: 256,
        void_slots: true,
        ..RankQp::default()
    };
    let config = HostBasedConfig {
        message_bytes: 16 << 10,
        depth: 16,
        ..HostBasedConfig::new(0, HOSTS)
    };
    if is_group {
        let members = hosts.iter().map(|h| Member::new(h, Qpn::new(17))).collect();
        let rule = MulticastRule {
            start_psn: Some(Psn::new(0)),
            ..MulticastRule::default()
        };
        let mcst_id = McstId([10, 255, 0, 1].into());
        let request = Request::multicast("g", mcst_id, Pmtu::B4096, members, rule);
        sim.join_multicast(topology, &request, qp, config).expect("ranks");
        for host in &hosts {
            start(&mut sim, host, 0);
        }
    } else {
        let half = hosts.len() / 2;
        for pair in hosts[..half]
            .iter()
            .zip(&hosts[half..])
            .map(|(a, b)| [a.clone(), b.clone()])
        {
            sim.join_hosts(&pair, Pmtu::B4096, qp, config).expect("ranks");
            for host in &pair {
                start(&mut sim, host, 0);
            }
        }
    }
    sim
}

fn start(sim: &mut Simulation, host: &str, root: u16) {
    let task = Task {
        collective: Collective::Broadcast { root },
        elements: BYTES.into(),
        ..Task::BARRIER
    };
    sim.start_task(host, task, None).expect("a rank");
}

fn least_ns() -> f64 {
    const FRAMES: u32 = 200_000;
    let frame = vec![7_u8; 4178];
    let mut copy = vec![0; frame.len()];
    let timer = Timer::start();
    for _ in 0..FRAMES {
        copy.copy_from_slice(std::hint::black_box(&frame));
        std::hint::black_box(icrc::verify_bytes(&copy, 14, copy.len()));
    }
    timer.seconds().clock * 1e9 / f64::from(FRAMES)
}
