//! Groups in each mode, over two tiers, whose ranks come late or disagree, or whose switches lose their state in mid-collective. The next
//! generation of a group, with queue pairs of its own, starts afresh.

use castnet_comm::machine::{Collective, Failure, InNetworkConfig, Task};
use castnet_endpoint::Repeat;
use castnet_planner::{Member, Request};
use castnet_rules::{CollectiveMode, GroupRule, RankPart, TranslatedRule};
use castnet_sim::{LinkProfile, RankQp, SimConfig, Simulation, TaskMemory};
use castnet_topology::{LinkId, Topology};
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::values;
use crate::seeds::number;

const HOSTS: [&str; 6] = ["h0", "h1", "h2", "h3", "h4", "h5"];
const SIZE: u16 = HOSTS.len() as u16;
/// Packets of a window.
const WINDOW: u16 = 32;

/// Runs the seed of the environment, or so many, in each mode.
fn in_each_mode(usual: u64, run: impl Fn(u64, CollectiveMode)) {
    let seeds = match number("CASTNET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..usual,
    };
    for seed in seeds {
        for mode in CollectiveMode::ALL {
            run(seed, *mode);
        }
    }
}

struct Net {
    sim: Simulation,
    topology: Topology,
    mode: CollectiveMode,
    /// Ranks repeat and probe as the software RNIC does, and not as rxe.
    soft: bool,
    /// What failed, for messages.
    name: String,
    generation: u8,
}

impl Net {
    fn new(seed: u64, mode: CollectiveMode, loss: f64) -> Self {
        let topology = Topology::leaf_spine(2, 1, 3).expect("a fabric");
        let mut sim = Simulation::new(&topology, SimConfig::new(seed), ()).expect("a network");
        let profile = LinkProfile {
            rate_bps: 10_000_000_000,
            loss,
            ..LinkProfile::default()
        };
        (0..topology.links().count()).for_each(|link| sim.set_profile(LinkId(link as u32), [profile; 2]));
        Self {
            sim,
            topology,
            mode,
            soft: !seed.is_multiple_of(2),
            name: format!("seed {seed}, {mode}"),
            generation: 0,
        }
    }

    /// Joins the next generation of the group. Returns the switches that have it, with their rules.
    fn join(&mut self, qp: RankQp) -> Vec<(String, GroupRule)> {
        self.generation += 1;
        let generation = u32::from(self.generation);
        let members = (0..SIZE).zip(HOSTS).map(|(rank, host)| {
            let psn = |n: u32| Psn::new(Psn::MODULUS - 20 + 8 * n + u32::from(rank));
            Member {
                part: RankPart {
                    rank,
                    sq_psn: psn(generation),
                    rq_psn: psn(2 * generation),
                }
                .into(),
                ..Member::new(host, Qpn::new(0x100 * generation + u32::from(rank)))
            }
        });
        let rule = TranslatedRule {
            mode: self.mode,
            message_packets: 8,
            ..TranslatedRule::root(0)
        };
        let mcst_id = McstId([10, 255, 0, self.generation].into());
        let request = Request::collective("job", mcst_id, Pmtu::B1024, members.collect(), (WINDOW, rule));
        let machine = InNetworkConfig {
            window_packets: WINDOW.into(),
            message_packets: 8,
            ..InNetworkConfig::new(0, SIZE)
        };
        let qp = RankQp {
            repeat: match self.mode {
                _ if !self.soft => Repeat::All,
                CollectiveMode::Translated | CollectiveMode::Augmented => Repeat::Requested,
                CollectiveMode::Terminated => Repeat::All,
            },
            probes: self.soft,
            ..qp
        };
        let plan = self.sim.join_group(&self.topology, &request, machine, qp);
        plan.expect("joined").rules.into_iter().collect()
    }

    fn start(&mut self, rank: u16, call: usize, task: Task) {
        let input = values::input(&task, call, rank, SIZE);
        let host = HOSTS[usize::from(rank)];
        self.sim.start_task(host, task, Some((input, TaskMemory::Slots)));
    }

    /// Runs until all ranks are through with what they were given.
    fn finish(&mut self) {
        let deadline = self.sim.now() + Nanos::from_secs(10);
        let is_done = |sim: &Simulation| {
            HOSTS
                .iter()
                .all(|host| sim.rank(host).is_some_and(|r| r.is_done()))
        };
        self.sim.run_until(deadline, is_done);
        for host in HOSTS {
            let rank = self.sim.rank(host).expect("a rank");
            let faults = rank.faults();
            assert!(
                rank.is_done() && faults.is_empty(),
                "{}: {host}: {faults:?}",
                self.name
            );
        }
    }

    /// That each task of all ranks has its result. Returns how many there are.
    fn check(&self) -> usize {
        let mut checked = 0;
        for (rank, host) in (0..SIZE).zip(HOSTS) {
            for (call, task) in self.sim.rank(host).expect("a rank").tasks().enumerate() {
                let Some((_, result)) = task.ended else { continue };
                assert_eq!(result, Ok(()), "{}: call {call} at rank {rank}", self.name);
                let must = values::output(&task.task, call, rank, SIZE);
                assert!(task.output() == must, "{}: call {call} at rank {rank}", self.name);
                checked += 1;
            }
        }
        checked
    }
}

fn sum(elements: u64) -> Task {
    Task {
        collective: Collective::AllReduce,
        operation: Operation::Sum,
        data_type: DataType::I32,
        flags: CallFlags(0),
        elements,
    }
}

/// Queue pairs with a time-out of 67 ms and three retries would be dead ten times over: switches keep the early ranks alive.
#[test]
fn a_rank_that_is_seconds_late_costs_nobody_a_queue_pair() {
    in_each_mode(4, |seed, mode| {
        let mut net = Net::new(seed, mode, 0.0);
        net.join(RankQp {
            timeout: 14,
            retry_cnt: 3,
            ..RankQp::default()
        });
        let late = ChaCha8Rng::seed_from_u64(seed).random_range(0..SIZE);
        let tasks = [
            sum(20_000),
            Task {
                collective: Collective::Broadcast { root: late },
                ..sum(3_000)
            },
        ];
        for (call, task) in tasks.into_iter().enumerate() {
            (0..SIZE)
                .filter(|rank| *rank != late)
                .for_each(|rank| net.start(rank, call, task));
            let later = net.sim.now() + Nanos::from_secs(4);
            net.sim.run(later);
            net.start(late, call, task);
            net.finish();
        }
        assert_eq!(net.check(), 12, "{}", net.name);
    });
}

/// None of the three switches of the tree continues a sum that it does not know, with its rule or without: what ends has the right result, and
/// the rest never ends. The next generation of the group sums as if nothing had been.
#[test]
fn a_switch_that_loses_its_state_in_mid_sum_gives_no_wrong_sum() {
    let mut killed_within = 0;
    for seed in 0..number("CASTNET_SEED").map_or(12, |_| 1) {
        let seed = number("CASTNET_SEED").unwrap_or(seed);
        for mode in CollectiveMode::ALL {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let mut net = Net::new(seed, *mode, [0.0, 0.01][rng.random_range(0..2)]);
            let switches = net.join(RankQp {
                timeout: 8,
                ..RankQp::default()
            });
            for call in 0..6 {
                (0..SIZE).for_each(|rank| net.start(rank, call, sum(20_000)));
            }
            net.sim.run(Nanos::from_micros(rng.random_range(50..400)));
            let (lost, rule) = &switches[rng.random_range(0..switches.len())];
            net.sim.stop_switch(lost);
            net.sim.start_switch(lost).expect("started");
            // A controller that has not noticed that the state is gone.
            if rng.random() {
                net.sim.install(lost, rule).expect("installed");
            }
            let later = net.sim.now() + Nanos::from_millis(500);
            net.sim.run(later);
            let ended = net.check();
            killed_within += usize::from(ended < 6 * usize::from(SIZE));
            net.join(RankQp::default());
            for call in 0..2 {
                (0..SIZE).for_each(|rank| net.start(rank, call, sum(20_000)));
            }
            net.finish();
            assert_eq!(net.check(), 12, "{}", net.name);
        }
    }
    assert!(killed_within > 0, "each sum had ended before");
}

/// One rank makes another call than the others. All learn it, with a rank and a call of either side, and the next generation sums.
#[test]
fn ranks_that_disagree_all_learn_who_said_what() {
    in_each_mode(6, |seed, mode| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut net = Net::new(seed, mode, [0.0, 0.01][rng.random_range(0..2)]);
        net.join(RankQp::default());
        let odd = rng.random_range(0..SIZE);
        for rank in 0..SIZE {
            net.start(rank, 0, sum(if rank == odd { 2_000 } else { 6_000 }));
        }
        net.finish();
        for host in HOSTS {
            for task in net.sim.rank(host).expect("a rank").tasks() {
                let Some((_, Err(Failure::Conflict { first, second, .. }))) = &task.ended else {
                    panic!("{}: {host}: {:?}", net.name, task.ended);
                };
                let is_odd = [first, second].map(|(rank, call)| (*rank == odd, call.elements == 2_000));
                assert!(
                    is_odd[0].0 != is_odd[1].0 && is_odd.iter().all(|(rank, call)| rank == call),
                    "{}: rank {odd} is odd, not {first:?} and {second:?}",
                    net.name
                );
            }
        }
        net.join(RankQp::default());
        (0..SIZE).for_each(|rank| net.start(rank, 0, sum(6_000)));
        net.finish();
        assert_eq!(net.check(), 6, "{}", net.name);
    });
}
