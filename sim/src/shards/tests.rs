//! The number of threads changes nothing.

use castnet_comm::machine::{BroadcastAlgorithm, Collective, HostBasedConfig, Task};
use castnet_pfc::PfcConfig;
use castnet_planner::{Member, Request};
use castnet_rules::MulticastRule;
use castnet_topology::{LinkId, Topology};
use castnet_wire::red::RedConfig;
use castnet_wire::{ClassSet, McstId, Nanos, Pmtu, Psn, Qpn, TrafficClass};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{HostCost, LinkProfile, RankQp, Routes, SimConfig, SwitchCost};

/// A network and its load, of which a seed decides everything but the number of threads.
fn network(seed: u64, threads: usize) -> Simulation {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let topology = match rng.random_range(0..3) {
        0 => Topology::leaf_spine(
            rng.random_range(1..6),
            rng.random_range(1..4),
            rng.random_range(2..5),
        ),
        1 => Topology::three_tier(rng.random_range(2..5), 2, 2),
        _ => Topology::tree(2, 4),
    };
    let topology = topology.expect("a fabric");
    let links = LinkProfile {
        delay: Nanos(rng.random_range(0..1500)),
        queue_bytes: [20_000, 1 << 20][rng.random_range(0..2)],
        ecn: rng.random_bool(0.3).then(RedConfig::default),
        loss: if rng.random_bool(0.2) { 0.01 } else { 0.0 },
        ..LinkProfile::default()
    };
    let class = TrafficClass::new(0).expect("a class");
    let config = SimConfig {
        links,
        threads,
        poll_delay: Nanos([0, 1000][rng.random_range(0..2)]),
        host_cost: HostCost {
            send: Nanos(rng.random_range(0..2) * 300),
            ..HostCost::default()
        },
        pfc: rng
            .random_bool(0.3)
            .then(|| PfcConfig::new(ClassSet::from_iter([class]))),
        ..SimConfig::new(seed)
    };
    let mut sim = Simulation::new(&topology, config, ()).expect("a network");
    sim.shards.events_min = 0;
    sim.install_routes(&Routes::new(&topology)).expect("switches run");
    for link in 0..topology.links().count() as u32 {
        let profiles = [(); 2].map(|()| LinkProfile {
            rate_bps: [100_000_000_000, 25_000_000_000][rng.random_range(0..2)],
            delay: links.delay + Nanos(rng.random_range(0..200)),
            ..links
        });
        if rng.random_bool(0.2) {
            sim.set_profile(LinkId(link), profiles);
        }
    }
    for switch in topology.switches() {
        if sim.pfc.is_none() && rng.random_bool(0.2) {
            let cost = SwitchCost {
                packet: Nanos(rng.random_range(0..200)),
                copy: Nanos(rng.random_range(0..200)),
                ..SwitchCost::default()
            };
            sim.set_switch_cost(&switch.name, cost).expect("a switch");
        }
    }
    join(&mut sim, &topology, &mut rng);
    let (down, link) = (
        Nanos(rng.random_range(0..300_000)),
        LinkId(rng.random_range(0..4)),
    );
    if rng.random_bool(0.3) {
        sim.at(down, move |sim| sim.set_link_up(link, false));
        sim.at(down + Nanos(20_000), move |sim| sim.set_link_up(link, true));
    }
    sim
}

/// A multicast group of some hosts, and collectives of the others.
fn join(sim: &mut Simulation, topology: &Topology, rng: &mut impl RngExt) {
    let hosts: Vec<String> = topology.hosts().map(|host| host.name.clone()).collect();
    let (group, others) = hosts.split_at(rng.random_range(0..=hosts.len()));
    let qp = RankQp {
        timeout: 5,
        void_slots: true,
        ..RankQp::default()
    };
    let config = HostBasedConfig {
        message_bytes: 16 << 10,
        depth: 8,
        broadcast: [BroadcastAlgorithm::Chain, BroadcastAlgorithm::Unicasts][rng.random_range(0..2)],
        ..HostBasedConfig::new(0, 0)
    };
    if group.len() > 1 {
        let members = group.iter().map(|host| Member::new(host, Qpn::new(17))).collect();
        let rule = MulticastRule {
            start_psn: Some(Psn::new(0)),
            ..MulticastRule::default()
        };
        let request = Request::multicast("g", McstId([10, 255, 0, 1].into()), Pmtu::B4096, members, rule);
        sim.join_multicast(topology, &request, qp, config).expect("ranks");
    }
    if others.len() > 1 {
        sim.join_hosts(others, Pmtu::B1024, qp, config).expect("ranks");
    }
    for (hosts, collectives) in [
        (group, &[Collective::Broadcast { root: 0 }][..]),
        (
            others,
            &[
                Collective::Broadcast { root: 0 },
                Collective::AllReduce,
                Collective::AllGather,
            ],
        ),
    ] {
        let collective = collectives[rng.random_range(0..collectives.len())];
        let elements = rng.random_range(1..200_000);
        let task = Task {
            collective,
            elements,
            ..Task::BARRIER
        };
        for host in hosts {
            let host = host.clone();
            let start = move |sim: &mut Simulation| _ = sim.start_task(&host, task, None);
            match rng.random_bool(0.5) {
                true => start(sim),
                false => sim.at(Nanos(rng.random_range(0..4) * 10_000), start),
            }
        }
    }
}

/// The whole state.
fn state(sim: &Simulation) -> Vec<String> {
    let links = sim.directions.iter().map(|direction| format!("{direction:?}"));
    let nodes = sim.nodes.iter().map(|node| format!("{node:?}"));
    let rest = format!("{} {} {:?}", sim.now(), sim.events(), sim.storms());
    nodes.chain(links).chain([rest]).collect()
}

/// The state after a run, and whether threads ran.
fn outcome(seed: u64, threads: usize) -> (Vec<String>, bool) {
    let mut sim = network(seed, threads);
    for end in [100, 150, 1000, 5000] {
        sim.run(Nanos::from_micros(end));
    }
    (state(&sim), sim.shards.runs > 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_number_of_threads_changes_nothing(seed in any::<u64>()) {
        let (one, _) = outcome(seed, 1);
        for threads in [2, 3] {
            let (several, _) = outcome(seed, threads);
            prop_assert_eq!(one.len(), several.len());
            for (one, several) in one.iter().zip(&several) {
                prop_assert_eq!(one, several, "{} threads", threads);
            }
        }
    }
}

#[test]
fn most_networks_run_on_threads() {
    let runs = (0..12).filter(|seed| outcome(*seed, 3).1).count();
    assert!((6..12).contains(&runs), "{runs} of 12");
}

/// Two leaves send to the spine, the second one 1,000 ns after the first. Its frame arrives when the spine polls for the frame of the first,
/// and was sent when that one arrived: only their sources order these two events.
#[test]
fn a_frame_that_arrives_when_a_switch_polls_is_in_order() {
    let topology = Topology::leaf_spine(2, 1, 2).expect("a fabric");
    let run = |threads, first: &'static str, second: &'static str| {
        let links = LinkProfile {
            // With 6 ns for a short frame, as long as until a poll.
            delay: Nanos(994),
            ..LinkProfile::default()
        };
        let config = SimConfig {
            links,
            threads,
            ..SimConfig::new(1)
        };
        let mut sim = Simulation::new(&topology, config, ()).expect("a network");
        sim.shards.events_min = 0;
        for (at, host) in [(5_000, first), (6_000, second)] {
            let mut frame = vec![0xFF; 60];
            frame[6..12].copy_from_slice(&sim.endpoint(host).expect("a host").config().mac.0);
            sim.at(Nanos(at), move |sim| _ = sim.inject(host, frame));
        }
        sim.run(Nanos::from_millis(1));
        assert_eq!(sim.shards.runs > 0, threads > 1);
        state(&sim)
    };
    for (first, second) in [("h0", "h2"), ("h2", "h0")] {
        assert_eq!(run(1, first, second), run(2, first, second));
    }
}
