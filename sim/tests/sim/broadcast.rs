//! Broadcasts by a multicast group, and by hosts over a routed fat tree: what arrives, and when.

use std::net::Ipv4Addr;

use castnet_comm::machine::{BroadcastAlgorithm, Collective, HostBasedConfig, Task};
use castnet_group::{Distribution, TreeShape};
use castnet_planner::{Member, Request};
use castnet_rules::MulticastRule;
use castnet_sim::{HostCost, LinkProfile, RankQp, Routes, SimConfig, Simulation, SwitchCost, TaskMemory};
use castnet_topology::{SwitchKind, Topology};
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
    (qp, tree): (RankQp, TreeShape),
) {
    let members = hosts.iter().map(|h| Member::new(h, Qpn::new(17))).collect();
    let rule = MulticastRule {
        start_psn: Some(Psn::new(0)),
        ..MulticastRule::default()
    };
    let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let request = Request {
        distribution: Distribution::Switches(tree.into()),
        ..Request::multicast("g", mcst_id, Pmtu::B1024, members, rule)
    };
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
    join_multicast(&mut sim, &topology, &hosts, config, (qp, TreeShape::Shortest));
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
        copy_per_kib: Nanos::ZERO,
    };
    // Two hops: each host posts the message, and takes it.
    let difference = ended(cost(1000, 300)).since(ended(cost(600, 200)));
    assert_eq!(difference, Nanos(2 * (400 + 100)));
}

/// When each host has the data of a Broadcast, after one that teaches the ordinary switch where the others are.
fn delivered(sim: &mut Simulation, hosts: &[String], bytes: u64) -> Vec<Nanos> {
    for _ in 0..2 {
        for host in hosts {
            sim.start_task(host, broadcast(bytes), None).expect("a rank");
        }
        sim.run(sim.now() + Nanos::from_millis(1));
    }
    let delivered = |host: &String| sim.rank(host)?.tasks().last()?.delivered;
    hosts[1..]
        .iter()
        .map(|host| delivered(host).expect("it arrives"))
        .collect()
}

/// Four hosts, each at a switch whose processor takes time, joined by an ordinary switch.
fn relays(cost: SwitchCost, bytes: u64, tree: Option<TreeShape>) -> Vec<Nanos> {
    let mut topology = Topology::leaf_spine(4, 1, 1).expect("a fabric");
    topology.set_switch_kind("spine0", SwitchKind::Plain);
    let hosts: Vec<String> = (0..4).map(|i| format!("h{i}")).collect();
    let config = SimConfig {
        poll_delay: Nanos::ZERO,
        ..SimConfig::new(1)
    };
    let mut sim = Simulation::new(&topology, config, ()).expect("a network");
    sim.install_routes(&Routes::new(&topology)).expect("routes");
    let config = HostBasedConfig {
        broadcast: BroadcastAlgorithm::Unicasts,
        ..HostBasedConfig::new(0, 4)
    };
    let qp = RankQp {
        void_slots: true,
        ..RankQp::default()
    };
    match tree {
        Some(tree) => join_multicast(&mut sim, &topology, &hosts, config, (qp, tree)),
        None => sim.join_hosts(&hosts, Pmtu::B1024, qp, config).expect("ranks"),
    }
    for switch in ["leaf0", "leaf1", "leaf2", "leaf3"] {
        sim.set_switch_cost(switch, cost).expect("a switch");
    }
    delivered(&mut sim, &hosts, bytes)
}

/// By how much later the hosts have the data if costs are higher by 1 us for a request, 100 ns for a packet, 10 ns for a copy.
fn later(bytes: u64, tree: Option<TreeShape>) -> Vec<u64> {
    let cost = |more: u64| SwitchCost {
        message: Nanos(20_000 + 1000 * more),
        packet: Nanos(5_000 + 100 * more),
        control: Nanos(1),
        copy: Nanos(700 + 10 * more),
    };
    let (low, high) = (relays(cost(0), bytes, tree), relays(cost(1), bytes, tree));
    low.iter()
        .zip(high)
        .map(|(low, high)| high.since(*low).0)
        .collect()
}

#[test]
fn the_processor_of_a_switch_takes_its_time_for_each_frame_and_each_copy() {
    // The source takes up one request after the other; each destination receives a packet.
    assert_eq!(later(1, None), [1100, 2100, 3100]);
    // One request, then copies.
    assert_eq!(later(1, Some(TreeShape::Star)), [1100, 1110, 1120]);
    // Each relay makes a copy for the next one.
    assert_eq!(later(1, Some(TreeShape::Chain)), [1100, 1210, 1320]);
    // The second packet waits for the first one's turn at the source and at each relay, which takes it up before it copies the first one.
    assert_eq!(later(2000, Some(TreeShape::Chain)), [1200, 1410, 1620]);
}

#[test]
fn messages_wait_for_a_process_that_computes() {
    let topology = Topology::star(2).expect("a fabric");
    let hosts: Vec<String> = (0..2).map(|i| format!("h{i}")).collect();
    for receive in [Nanos::ZERO, Nanos(500)] {
        let config = SimConfig {
            host_cost: HostCost {
                receive,
                copy_per_kib: receive,
                ..HostCost::default()
            },
            ..SimConfig::new(1)
        };
        let mut sim = Simulation::new(&topology, config, ()).expect("a network");
        sim.install_routes(&Routes::new(&topology)).expect("routes");
        let config = HostBasedConfig::new(0, 2);
        sim.join_hosts(&hosts, Pmtu::B1024, RankQp::default(), config)
            .expect("ranks");
        let late = Nanos::from_micros(80);
        assert!(sim.compute("h1", late) && !sim.compute("h9", late));
        sim.start_task("h0", broadcast(4096), None).expect("a rank");
        sim.run(late);
        sim.start_task("h1", broadcast(4096), None).expect("a rank");
        sim.run(Nanos::from_millis(1));
        let task = sim.rank("h1").and_then(|rank| rank.tasks().next());
        // The RNIC has taken and acknowledged the message long before.
        assert_eq!(task.and_then(|t| t.delivered), Some(late + Nanos(receive.0 * 5)));
        let source = sim.rank("h0").and_then(|rank| rank.tasks().next()?.ended);
        assert!(
            source.is_some_and(|(at, _)| at < Nanos::from_micros(20)),
            "{source:?}"
        );
    }
}
