//! A random tree, group, calls and faults, all from one seed.

use std::net::Ipv4Addr;

use castnet_comm::machine::{Collective, InNetworkConfig, Task};
use castnet_endpoint::Repeat;
use castnet_planner::{Member, Request};
use castnet_rules::{CollectiveMode, LossPolicy, RankPart, StragglerPolicy, TranslatedRule};
use castnet_sim::{LinkProfile, RankQp};
use castnet_topology::{End, Topology};
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One call of all ranks, and the time at which each rank makes it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) task: Task,
    pub(crate) at: Vec<Nanos>,
}

/// A group, and the calls of its ranks.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) request: Request,
    pub(crate) machine: InNetworkConfig,
    pub(crate) qp: RankQp,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) levels: usize,
    pub(crate) topology: Topology,
    /// One group, or two independent groups that share switches and links.
    pub(crate) groups: Vec<Group>,
    /// Profiles of both directions of each link.
    pub(crate) links: Vec<[LinkProfile; 2]>,
    pub(crate) poll_delay: Nanos,
    /// True if links have faults.
    pub(crate) lossy: bool,
}

fn pick<T: Copy>(rng: &mut ChaCha8Rng, from: &[T]) -> T {
    *from.choose(rng).expect("not empty")
}

impl Scenario {
    pub(crate) fn random(seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        // A separate generator for additions, so that the scenarios of old seeds stay the same.
        let more = &mut ChaCha8Rng::seed_from_u64(!seed);
        let size = rng.random_range(2..=8usize);
        let size = match more.random_range(0..16) {
            0 => more.random_range(9..=20),
            _ => size,
        };
        let others = match more.random_bool(0.2) {
            true => more.random_range(2..=5),
            false => 0,
        };
        let (levels, topology, mut hosts) = tree(rng, more, size + others);
        let rest = hosts.split_off(size);
        let (mut links, mut lossy) = (Vec::new(), false);
        let mut groups = vec![Group::random(rng, 255, &hosts, |rng, is_lossy| {
            lossy = is_lossy;
            let profiles = topology
                .links()
                .map(|_| [profile(rng, lossy), profile(rng, lossy)]);
            links.extend(profiles);
        })];
        if !rest.is_empty() {
            groups.push(Group::random(more, 254, &rest, |_, _| {}));
        }
        // Mode-I, II and III in one tree.
        for group in &mut groups {
            let repairs = group.rule().loss_policy == LossPolicy::Repair;
            if repairs && more.random_bool(0.4) {
                let switches: Vec<_> = topology.switches().map(|switch| switch.name.clone()).collect();
                let modes = switches
                    .into_iter()
                    .map(|name| (name, pick(more, CollectiveMode::ALL)));
                group.request.modes = modes.collect();
                group.qp.repeat = Repeat::All;
            }
        }
        Self {
            seed,
            levels,
            topology,
            groups,
            links,
            poll_delay: Nanos(pick(rng, &[0, 300, 2_000, 10_000])),
            lossy,
        }
    }

    /// Returns true if the fabric has more than one path between some nodes.
    pub(crate) fn is_meshed(&self) -> bool {
        let nodes = self.topology.switches().count() + self.topology.hosts().count();
        self.topology.links().count() >= nodes
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!(
            "seed {}: {} levels, switches look after {}",
            self.seed, self.levels, self.poll_delay
        );
        for group in &self.groups {
            text += "\n";
            text += &group.describe();
        }
        text
    }
}

impl Group {
    /// A group of ranks on `hosts`. `between` draws other values at the position in the random sequence where they
    /// have always been drawn, and returns whether links are lossy.
    fn random(
        rng: &mut ChaCha8Rng,
        number: u8,
        hosts: &[String],
        between: impl FnOnce(&mut ChaCha8Rng, bool),
    ) -> Self {
        let size = hosts.len();
        let pmtu = pick(rng, &Pmtu::ALL);
        let window = pick(rng, &[2, 3, 4, 7, 8, 16, 16, 32, 64]);
        let message = rng.random_range(1..=u32::min(window, 16));
        let lossy = rng.random_bool(0.7);
        let reproducible = rng.random_bool(0.25);
        let timeout = rng.random_range(6..9);
        let ranks = (0..).zip(hosts).map(|(rank, host)| Member {
            part: RankPart {
                rank,
                sq_psn: psn(rng),
                rq_psn: psn(rng),
            }
            .into(),
            ..Member::new(host, Qpn::new(rng.random_range(2..0xFF_FFFF)))
        });
        let ranks = ranks.collect();
        let drawn: u8 = rng.random();
        let mcst_id = McstId(Ipv4Addr::new(10, number, drawn, 1));
        let (start_psn, loss_policy) = (psn(rng), pick(rng, LossPolicy::ALL));
        // Drawn from what was drawn before, so that the other values of a seed stay.
        let mode = match (loss_policy, start_psn.value() % 4) {
            (LossPolicy::Repair, 1 | 3) => CollectiveMode::Augmented,
            (LossPolicy::Repair, 2) => CollectiveMode::Terminated,
            _ => CollectiveMode::Translated,
        };
        let rule = TranslatedRule {
            start_psn,
            mode,
            message_packets: message as u16,
            reproducible,
            loss_policy,
            straggler_policy: pick(rng, StragglerPolicy::ALL),
            ack_timeout_us: (4096 << timeout) / 1000,
            ..TranslatedRule::root(0)
        };
        let name = format!("group-{number}");
        let request = Request {
            stall_timeout_ms: 10,
            ..Request::collective(&name, mcst_id, pmtu, ranks, (window as u16, rule))
        };
        let machine = InNetworkConfig {
            window_packets: window,
            message_packets: message,
            calls_max: rng.random_range(1..=8),
            ..InNetworkConfig::new(0, size as u16)
        };
        between(rng, lossy);
        Self {
            steps: steps(rng, size, pmtu, reproducible),
            request,
            machine,
            qp: RankQp {
                timeout,
                window: pick(rng, &[16, 64, 129, 1024]),
                min_rnr_timer: rng.random_range(1..8),
                // Drawn from what was drawn before, too.
                repeat: match (mode, loss_policy) {
                    _ if drawn.is_multiple_of(2) => Repeat::All,
                    (CollectiveMode::Augmented, _) | (CollectiveMode::Translated, LossPolicy::Repair) => {
                        Repeat::Requested
                    }
                    _ => Repeat::All,
                },
                probes: (drawn / 2).is_multiple_of(2),
                ..RankQp::default()
            },
        }
    }

    pub(crate) fn rule(&self) -> &TranslatedRule {
        self.request.translated().expect("it computes")
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.request.members.iter().map(|r| r.host.as_str())
    }

    fn describe(&self) -> String {
        let (request, machine) = (&self.request, &self.machine);
        let rule = self.rule();
        let calls: Vec<String> = self
            .steps
            .iter()
            .map(|s| {
                let t = &s.task;
                let latest = s.at.iter().max().copied().unwrap_or_default();
                format!(
                    "{:?} of {} {} by {} (flags {}), all in at {latest}",
                    t.collective, t.elements, t.data_type, t.operation, t.flags.0
                )
            })
            .collect();
        format!(
            "{}: {} ranks, modes {:?}, PMTU {}, window {}, messages of {}, {} calls at a time, {}, loss {}, stragglers {}, reproducible {}, PSN \
             from {}, {:?}\n  {}",
            request.name,
            request.members.len(),
            request.modes,
            request.pmtu.bytes(),
            machine.window_packets,
            machine.message_packets,
            machine.calls_max,
            rule.mode,
            rule.loss_policy,
            rule.straggler_policy,
            rule.reproducible,
            rule.start_psn,
            self.qp,
            calls.join("\n  ")
        )
    }
}

fn psn(rng: &mut ChaCha8Rng) -> Psn {
    Psn::new(match rng.random_range(0..4) {
        0 => 0,
        1 => Psn::MODULUS - rng.random_range(1..80),
        _ => rng.random_range(0..Psn::MODULUS),
    })
}

/// A random tree of switches, or a tree with extra links, with hosts at any switch and ranks in any order.
fn tree(rng: &mut ChaCha8Rng, more: &mut ChaCha8Rng, hosts: usize) -> (usize, Topology, Vec<String>) {
    let levels = rng.random_range(1..=3);
    let switches = match levels {
        1 => 1,
        levels => rng.random_range(levels..levels + 4),
    };
    let mut t = Topology::new();
    let mut level_of: Vec<usize> = Vec::new();
    let mut ports = vec![0u8; switches];
    let mut take = |s: usize| {
        ports[s] += 1;
        End::port(format!("s{s}"), ports[s] - 1)
    };
    for s in 0..switches {
        t.add_switch(&format!("s{s}"), (0..32).map(|p| (p, [6, 0, 0, 0, s as u8, p])))
            .expect("a new name");
        if s == 0 {
            level_of.push(0);
            continue;
        }
        // The first switches form a chain of full depth. The others are attached anywhere above the lowest level.
        let parents: Vec<usize> = (0..s).filter(|p| level_of[*p] + 1 < levels).collect();
        let parent = if s < levels { s - 1 } else { pick(rng, &parents) };
        level_of.push(level_of[parent] + 1);
        let (a, b) = (take(parent), take(s));
        t.connect(a, b, 9000).expect("free ports");
    }
    // Some fabrics have more than one path: the planner selects a tree.
    if switches > 1 && more.random_bool(0.3) {
        for _ in 0..more.random_range(1..=3) {
            let a = more.random_range(0..switches);
            let b = (a + more.random_range(1..switches)) % switches;
            let (a, b) = (take(a), take(b));
            t.connect(a, b, 9000).expect("free ports");
        }
    }
    let mut names: Vec<String> = (0..hosts).map(|h| format!("h{h}")).collect();
    for (h, name) in names.iter().enumerate() {
        let ip = Ipv4Addr::new(10, 0, 0, h as u8 + 1);
        t.add_host(name, Some(ip), Some([2, 0, 0, 0, 0, h as u8]))
            .expect("a new name");
        t.connect(take(rng.random_range(0..switches)), End::host(name.clone()), 9000)
            .expect("free ports");
    }
    names.shuffle(rng);
    (levels, t, names)
}

fn profile(rng: &mut ChaCha8Rng, lossy: bool) -> LinkProfile {
    let mut some = |most: f64| {
        let bad = lossy && rng.random_bool(0.4);
        if bad { rng.random_range(0.0..most) } else { 0.0 }
    };
    let (loss, duplication, reordering, corruption) = (some(0.05), some(0.03), some(0.05), some(0.03));
    LinkProfile {
        rate_bps: pick(rng, &[10, 100, 100]) * 1_000_000_000,
        delay: Nanos(rng.random_range(100..10_000)),
        ecn: None,
        queue_bytes: pick(rng, &[40_000, 1 << 20, 1 << 20]),
        loss,
        duplication,
        reordering,
        reordering_delay_max: Nanos(rng.random_range(1_000..40_000)),
        corruption,
    }
}

fn steps(rng: &mut ChaCha8Rng, size: usize, pmtu: Pmtu, reproducible: bool) -> Vec<Step> {
    let count = rng.random_range(1..=6);
    let late = rng.random_bool(0.3);
    let mut at = vec![Nanos::ZERO; size];
    let mut all = Vec::new();
    for _ in 0..count {
        let root = rng.random_range(0..size as u16);
        let collective = match rng.random_range(0..8) {
            0 | 1 => Collective::AllReduce,
            2 | 3 => Collective::Reduce { root },
            4 | 5 => Collective::Broadcast { root },
            6 => pick(rng, &[Collective::ReduceScatter, Collective::AllGather]),
            _ => Collective::Barrier,
        };
        let task = match collective {
            Collective::Barrier => Task::BARRIER,
            _ => task(rng, collective, pmtu, reproducible),
        };
        for at in &mut at {
            if late && rng.random_bool(0.3) {
                *at += Nanos(rng.random_range(0..3_000_000));
            }
        }
        all.push(Step { task, at: at.clone() });
    }
    all
}

fn task(rng: &mut ChaCha8Rng, collective: Collective, pmtu: Pmtu, reproducible: bool) -> Task {
    let (operation, data_type) = loop {
        let (operation, data_type) = (pick(rng, Operation::ALL), pick(rng, DataType::ALL));
        if operation.supports(data_type) {
            break (operation, data_type);
        }
    };
    let packet = (pmtu.bytes() / data_type.size()) as u64;
    let blocks = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
    let elements = match rng.random_range(0..8) {
        0 => 0,
        1 => rng.random_range(1..=packet),
        2 => packet * rng.random_range(1..=4),
        _ if blocks => rng.random_range(0..=packet * 8),
        _ => rng.random_range(0..=packet * 40),
    };
    let saturate = !data_type.is_float() && operation == Operation::Sum && rng.random_bool(0.3);
    let mut flags = CallFlags(0);
    if saturate {
        flags.0 |= CallFlags::SATURATE.0;
    }
    if reproducible && rng.random_bool(0.7) {
        flags.0 |= CallFlags::REPRODUCIBLE.0;
    }
    Task {
        collective,
        operation,
        data_type,
        flags,
        elements,
    }
}
