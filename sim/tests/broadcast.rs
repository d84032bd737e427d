//! Broadcasts by a multicast group, and by hosts over a routed fat tree: what arrives, and when.

use std::net::Ipv4Addr;

use castnet_comm::machine::{BroadcastAlgorithm, Collective, HostBasedConfig, Task};
use castnet_planner::{Member, Request};
use castnet_rules::MulticastRule;
use castnet_sim::{HostCost, LinkProfile, RankQp, Routes, SimConfig, Simulation, TaskMemory};
use castnet_topology::Topology;
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};

fn broadcast(bytes: u64) -> Task {
    Task {
        collective: Collective::Broadcast { root: 0 },
        elements: bytes,
        ..Task::BARRIER
    }
}

/// Two pods of two edge switches with four hosts each.
fn fabric() -> (Topology, Vec<String>) {
    let hosts = (0..16).map(|i| format!("h{i}")).collect();
    (Topology::three_tier(2, 2, 4).expect("a fabric"), hosts)
}

/// Runs a Broadcast of `bytes` bytes; its output at each receiver must be that of the source.
fn run(sim: &mut Simulation, hosts: &[String], bytes: u64) {
    let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let kind = TaskMemory::Slots;
    for (i, host) in hosts.iter().enumerate() {
        let input = if i == 0 { data.clone() } else { Vec::new() };
        sim.start_task(host, broadcast(bytes), Some((input, kind)))
            .expect("a rank");
    }
    sim.run(sim.now() + Nanos::from_millis(100));
    for host in hosts {
        let rank = sim.rank(host).expect("a rank");
        assert!(rank.faults().is_empty(), "{host}: {:?}", rank.faults());
        let task = rank.tasks().last().expect("a task");
        assert!(
            matches!(task.ended, Some((_, Ok(())))),
            "{host}: {:?}",
            rank.waiting_for()
        );
        assert!(host == &hosts[0] || task.output() == data, "{host}");
    }
}

#[test]
fn every_broadcast_between_hosts_arrives_over_routes_of_a_fabric_with_loops() {
    let (topology, hosts) = fabric();
    let routes = Routes::new(&topology);
    for (broadcast, loss) in [
        (BroadcastAlgorithm::BinomialTree, 0.0),
        (BroadcastAlgorithm::Chain, 0.0),
        (BroadcastAlgorithm::Unicasts, 0.0),
        (BroadcastAlgorithm::Chain, 0.01),
        (BroadcastAlgorithm::Unicasts, 0.01),
    ] {
        let links = LinkProfile {
            loss,
            ..LinkProfile::default()
        };
        let config = SimConfig {
            links,
            ..SimConfig::new(3)
        };
        let mut sim = Simulation::new(&topology, config, ()).expect("a network");
        sim.install_routes(&routes).expect("all switches run");
        let config = HostBasedConfig {
            message_bytes: 3000,
            broadcast,
            in_turn_above: 2000,
            ..HostBasedConfig::new(0, 0)
        };
        let qp = RankQp {
            timeout: 8,
            ..RankQp::default()
        };
        sim.join_hosts(&hosts, Pmtu::B1024, qp, config).expect("ranks");
        run(&mut sim, &hosts, 20_000);
        // Nothing is flooded: each host gets only what is for it.
        for host in &hosts {
            let stats = sim.endpoint(host).expect("a host").stats();
            assert_eq!(stats.discarded(castnet_endpoint::Discard::NotMyMac), 0, "{host}");
        }
    }
}

fn join_multicast(
    sim: &mut Simulation,
    topology: &Topology,
    hosts: &[String],
    config: HostBasedConfig,
    qp: RankQp,
) {
    let members = hosts.iter().map(|h| Member::new(h, Qpn::new(17))).collect();
    let rule = MulticastRule {
        start_psn: Some(Psn::new(0)),
        ..MulticastRule::default()
    };
    let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let request = Request::multicast("g", mcst_id, Pmtu::B1024, members, rule);
    sim.join_multicast(topology, &request, qp, config)
        .expect("placed");
}

#[test]
fn a_multicast_group_delivers_broadcasts_to_all_its_members_under_loss() {
    let (topology, hosts) = fabric();
    let links = LinkProfile {
        loss: 0.01,
        ..LinkProfile::default()
    };
    let config = SimConfig {
        links,
        ..SimConfig::new(5)
    };
    let mut sim = Simulation::new(&topology, config, ()).expect("a network");
    let qp = RankQp {
        timeout: 8,
        ..RankQp::default()
    };
    let config = HostBasedConfig {
        message_bytes: 7000,
        ..HostBasedConfig::new(0, 0)
    };
    join_multicast(&mut sim, &topology, &hosts, config, qp);
    for bytes in [1, 7000, 50_000] {
        run(&mut sim, &hosts, bytes);
    }
}

#[test]
fn the_processor_of_a_host_takes_its_time_for_each_message() {
    let topology = Topology::star(3).expect("a fabric");
    let hosts: Vec<String> = (0..3).map(|i| format!("h{i}")).collect();
    let ended = |host_cost| {
        let config = SimConfig {
            poll_delay: Nanos::ZERO,
            host_cost,
            ..SimConfig::new(1)
        };
        let mut sim = Simulation::new(&topology, config, ()).expect("a network");
        sim.install_routes(&Routes::new(&topology)).expect("routes");
        let config = HostBasedConfig {
            broadcast: BroadcastAlgorithm::Chain,
            ..HostBasedConfig::new(0, 0)
        };
        let qp = RankQp {
            void_slots: true,
            ..RankQp::default()
        };
        sim.join_hosts(&hosts, Pmtu::B1024, qp, config).expect("ranks");
        for host in &hosts {
            sim.start_task(host, broadcast(64), None).expect("a rank");
        }
        sim.run(Nanos::from_millis(1));
        sim.rank("h2")
            .and_then(|r| r.tasks().next()?.delivered)
            .expect("it arrives")
    };
    let cost = |send, receive| HostCost {
        send: Nanos(send),
        receive: Nanos(receive),
    };
    // Two hops: each host posts the message, and takes it.
    let difference = ended(cost(1000, 300)).since(ended(cost(600, 200)));
    assert_eq!(difference, Nanos(2 * (400 + 100)));
}
