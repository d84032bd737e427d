//! Relays at the edge that repair (docs/decisions/0022), under loss: whatever frame is lost, and at whatever hop, that costs some round trips,
//! and no time-out of a queue pair, which takes 67 ms.

use std::net::Ipv4Addr;

use castnet_comm::machine::{Collective, HostBasedConfig, Task};
use castnet_endpoint::Repeat;
use castnet_group::{Distribution, TreeShape};
use castnet_planner::{Member, Request};
use castnet_rules::{MulticastRule, RepairRule};
use castnet_sim::{
    End, Fate, Hop, LinkProfile, NodeId, RankQp, Routes, SimConfig, Simulation, TaskMemory, View, Watch,
};
use castnet_topology::{LinkId, SwitchKind, Topology};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::seeds::number;

const SHAPES: [TreeShape; 3] = [TreeShape::Chain, TreeShape::Binomial, TreeShape::Star];
/// Broadcasts that measure the round trips before the one that loses a frame.
const BEFORE: usize = 6;
/// Most time that a lost frame costs: some round trips of about 10 us, where no answer is overdue before 20 us.
const COST_MAX: Nanos = Nanos::from_micros(500);

/// When a frame was sent on which hop, oldest first.
#[derive(Default)]
struct Frames(Vec<(Nanos, Hop)>);

impl Watch for Frames {
    fn sent(&mut self, view: &View<'_>, hop: Hop, _: &[u8], _: Fate) {
        self.0.push((view.now, hop));
    }
}

/// Hosts with a relay each, joined by an ordinary switch.
struct Net {
    sim: Simulation<Frames>,
    hosts: Vec<String>,
    /// The ends of each link.
    links: Vec<[NodeId; 2]>,
    bytes: u64,
    name: String,
}

impl Net {
    fn new(seed: u64, shape: TreeShape, hosts: usize, bytes: u64, loss: f64) -> Self {
        let mut topology = Topology::leaf_spine(hosts, 1, 1).expect("a fabric");
        topology.set_switch_kind("spine0", SwitchKind::Plain);
        let hosts: Vec<String> = (0..hosts).map(|i| format!("h{i}")).collect();
        let config = SimConfig {
            poll_delay: Nanos::ZERO,
            links: LinkProfile {
                loss,
                ..LinkProfile::default()
            },
            ..SimConfig::new(seed)
        };
        let mut sim = Simulation::new(&topology, config, Frames::default()).expect("a network");
        sim.install_routes(&Routes::new(&topology)).expect("routes");
        let rule = MulticastRule {
            start_psn: Some(Psn::new(0)),
            repair: Some(RepairRule::default()),
            ..MulticastRule::default()
        };
        let members = hosts.iter().map(|h| Member::new(h, Qpn::new(17))).collect();
        let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
        let request = Request {
            distribution: Distribution::Switches(shape.into()),
            ..Request::multicast("g", mcst_id, Pmtu::B1024, members, rule)
        };
        let config = HostBasedConfig {
            message_bytes: 4096,
            ..HostBasedConfig::new(0, 0)
        };
        // As `castnet host send` has it.
        let qp = RankQp {
            repeat: Repeat::One,
            probes: true,
            retry_cnt: 3,
            ..RankQp::default()
        };
        sim.join_multicast(&topology, &request, qp, config)
            .expect("placed");
        let node = |name: &str| sim.node(name).expect("a node");
        let links = topology.links();
        let links = links.map(|(_, link)| [node(link.a.node()), node(link.b.node())]);
        Self {
            links: links.collect(),
            name: format!("seed {seed}, {shape:?}, {} hosts, {bytes} bytes", hosts.len()),
            sim,
            hosts,
            bytes,
        }
    }

    /// As `new`, without loss, when it has measured its round trips.
    fn measured(seed: u64, shape: TreeShape, hosts: usize, bytes: u64) -> Self {
        let mut net = Self::new(seed, shape, hosts, bytes, 0.0);
        for _ in 0..BEFORE {
            net.broadcast();
        }
        net.sim.watch_mut().0.clear();
        net
    }

    /// Broadcasts from the first host to all others, a microsecond from now. Returns the time until all have the data and everything is
    /// acknowledged.
    fn broadcast(&mut self) -> Nanos {
        let Self {
            sim, hosts, bytes, ..
        } = self;
        let start = sim.now() + Nanos::from_micros(1);
        sim.at(start, |_| {});
        sim.run(start);
        let data: Vec<u8> = (0..*bytes).map(|i| (i * 31 % 251) as u8).collect();
        let task = Task {
            collective: Collective::Broadcast { root: 0 },
            elements: *bytes,
            ..Task::BARRIER
        };
        for (i, host) in hosts.iter().enumerate() {
            let input = if i == 0 { data.clone() } else { Vec::new() };
            sim.start_task(host, task, Some((input, TaskMemory::Slots)))
                .expect("a rank");
        }
        let end = sim.run_until(start + Nanos::from_secs(10), |sim| {
            let mut ranks = hosts.iter().filter_map(|host| sim.rank(host));
            ranks.all(|rank| rank.is_done() && rank.is_drained())
        });
        assert_eq!(end, End::Done, "{}", self.name);
        for host in hosts.iter() {
            let rank = sim.rank_mut(host).expect("a rank");
            assert!(rank.faults().is_empty(), "{}: {:?}", self.name, rank.faults());
            for task in rank.tasks() {
                assert!(matches!(task.ended, Some((_, Ok(())))), "{}: {host}", self.name);
                assert!(
                    host == &hosts[0] || task.output() == data,
                    "{}: {host}",
                    self.name
                );
            }
            rank.forget();
        }
        sim.now().since(start)
    }

    /// Loses what is sent on a hop at that time.
    fn lose(&mut self, (at, hop): (Nanos, Hop)) {
        let ends = [hop.from, hop.to];
        let is_it = |link: &[NodeId; 2]| link.iter().all(|end| ends.contains(end));
        let link = self.links.iter().position(is_it).expect("a link");
        let direction = usize::from(self.links[link][0] != hop.from);
        for (at, loss) in [(Nanos(at.0 - 1), 1.0), (Nanos(at.0 + 1), 0.0)] {
            let mut profiles = [LinkProfile::default(); 2];
            profiles[direction].loss = loss;
            self.sim
                .at(at, move |sim| sim.set_profile(LinkId(link as u32), profiles));
        }
    }

    fn timeouts(&self) -> u64 {
        let endpoints = self.hosts.iter().filter_map(|host| self.sim.endpoint(host));
        endpoints.map(|endpoint| endpoint.stats().timeouts).sum()
    }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    number("CASTNET_SEED").map_or(0..usual, |seed| seed..seed + 1)
}

/// Each frame of a Broadcast is lost once: data, the last packet, ACKs, the last ACK, at each hop.
#[test]
fn a_lost_frame_costs_some_round_trips_wherever_it_is_lost() {
    for (seed, shape) in seeds(3).flat_map(|seed| SHAPES.map(|shape| (seed, shape))) {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (hosts, bytes) = (rng.random_range(3..=5), rng.random_range(1..=8 * 1024));
        let mut net = Net::measured(seed, shape, hosts, bytes);
        let usual = net.broadcast();
        let frames = std::mem::take(&mut net.sim.watch_mut().0);
        // A packet and its ACK on each link, at least.
        assert!(frames.len() >= 2 * net.links.len(), "{}", net.name);
        let mut worst = usual;
        for (at, hop) in frames {
            let mut net = Net::measured(seed, shape, hosts, bytes);
            net.lose((at, hop));
            let took = net.broadcast();
            let view = net.sim.view();
            let what = format!(
                "{}: the frame from {} to {} at {at} is lost: {took}, not {usual}",
                net.name,
                view.name(hop.from),
                view.name(hop.to)
            );
            assert!(net.sim.totals().lost > 0, "{what}");
            assert_eq!(net.timeouts(), 0, "{what}");
            assert!(took <= usual + COST_MAX, "{what}");
            worst = worst.max(took);
        }
        println!("{}: {usual}, at most {worst} with a lost frame", net.name);
        assert!(worst > usual, "{}: no frame matters", net.name);
    }
}

/// Also where repetitions and requests for them are lost.
#[test]
fn relays_mend_random_losses_without_a_time_out() {
    let mut lost = 0;
    for (seed, shape) in seeds(10).flat_map(|seed| SHAPES.map(|shape| (seed, shape))) {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (hosts, bytes) = (rng.random_range(3..=6), rng.random_range(1..=32 * 1024));
        let mut net = Net::new(seed, shape, hosts, bytes, 0.02);
        for _ in 0..20 {
            net.broadcast();
        }
        assert_eq!(net.timeouts(), 0, "{}", net.name);
        lost += net.sim.totals().lost;
    }
    assert!(lost > 100, "{lost} frames are lost");
}
