//! Speed of the simulator: frames that reach hosts per second, and the time of one simulated second of 1,024 hosts at load. The
//! baseline is the least that a host does for a frame: a copy, and its ICRC. Times are those of the processor, so that other programs on the
//! machine count less.
//!
//! `cargo bench -p castnet-benches --bench sim`

use std::fs;
use std::time::Instant;

use castnet_comm::machine::{Collective, HostBasedConfig, Task};
use castnet_planner::{Member, Request};
use castnet_rules::MulticastRule;
use castnet_sim::{RankQp, Routes, SimConfig, Simulation};
use castnet_topology::Topology;
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn, icrc};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HOSTS: u16 = 1024;
/// Simulated time of a measurement, after the start.
const START: Nanos = Nanos::from_micros(100);
const SPAN: Nanos = Nanos::from_micros(500);
/// A message that outlasts it: 8 MiB take 690 us.
const BYTES: u32 = 16 << 20;

fn main() {
    let topology = Topology::three_tier(4, 8, 32).expect("a fabric");
    let routes = Routes::new(&topology);
    let least = least_ns();
    println!("A copy and the ICRC of a frame of 4 KiB: {least:.0} ns.\n");
    println!(
        "1,024 hosts of a fat tree, 100 Gb/s, path MTU 4096, whole frames. One simulated second, in minutes, at this speed.\n"
    );
    println!(
        "{:24} {:>12} {:>12} {:>14} {:>16} {:>10}",
        "load", "events/s", "frames/s", "ns per frame", "over the least", "minutes"
    );
    for (name, is_group) in [("multicast to 1,023", true), ("512 pairs, unicast", false)] {
        let mut sim = network(&topology, &routes, is_group);
        sim.run(START);
        let (events, frames) = (sim.events(), received(&sim));
        let timer = Timer::start();
        sim.run(START + SPAN);
        let seconds = timer.seconds();
        let (events, frames) = ((sim.events() - events) as f64, (received(&sim) - frames) as f64);
        let per_frame = seconds * 1e9 / frames;
        println!(
            "{name:24} {:>12.0} {:>12.0} {per_frame:>14.0} {:>16.1} {:>10.1}",
            events / seconds,
            frames / seconds,
            per_frame / least,
            seconds * (1e9 / SPAN.0 as f64) / 60.0,
        );
    }
}

/// Seconds of this thread on a processor; those of the clock where the system does not count them.
struct Timer(Instant, Option<u64>);

impl Timer {
    fn on_processor() -> Option<u64> {
        let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok()
    }

    fn start() -> Self {
        Self(Instant::now(), Self::on_processor())
    }

    fn seconds(&self) -> f64 {
        match (self.1, Self::on_processor()) {
            (Some(begin), Some(end)) => (end - begin) as f64 / 1e9,
            _ => self.0.elapsed().as_secs_f64(),
        }
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
fn network(topology: &Topology, routes: &Routes, is_group: bool) -> Simulation {
    let config = SimConfig {
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
    timer.seconds() * 1e9 / f64::from(FRAMES)
}
