//! Measures one collective of eight ranks.

use std::error::Error;
use std::net::Ipv4Addr;

use castnet_comm::machine::{Collective, HostBasedConfig, InNetworkConfig, Machine, Task};
use castnet_endpoint::{ReactionConfig, Repeat};
use castnet_planner::{Member, Request};
use castnet_rules::{CollectiveMode, LossPolicy, TranslatedRule};
use castnet_sim::{End, LinkProfile, RankQp, SimConfig, Simulation};
use castnet_topology::{End as LinkEnd, LinkId, Topology};
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::{BitRate, McstId, Nanos, Pmtu, Qpn};

use super::counts::Counts;
use super::ideal::{self, Ideal};
use super::machine::Rank;
use super::relay::{Relay, channel_ends};
use super::steps::Steps;

/// Ranks in all tables but 34.
pub(crate) const RANKS: u16 = 8;
/// Path MTU; see [`super::paper`] on header bytes.
const PMTU: Pmtu = Pmtu::B4096;
/// Address of the group in the switch.
pub(crate) const GROUP: McstId = McstId(Ipv4Addr::new(10, 255, 0, 1));
/// Bytes of a piece in the ring. In tables 26 and 28 a rank forwards a message of 64 KiB as a whole, and stores 128
/// KiB of longer ones.
const RING_PIECE: u32 = 128 << 10;
/// Messages in flight between ranks of a ring.
const RING_DEPTH: u32 = 4;

/// Settings that the paper does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) window: u32,
    /// The last one requests an ACK.
    pub(crate) message_packets: u32,
    /// QP time-out exponent: 4.096 us * 2^t.
    pub(crate) timeout: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// In the switch, by EPIC Mode-II.
    Epic(LossPolicy),
    /// In the switch, by EPIC Mode-III.
    Augmented,
    /// In the switch, by EPIC Mode-I.
    Terminated,
    /// By Mode-III, with ranks that may have more packets in flight than the switch has room for, and lower their rate on a CNP, or do not.
    Ahead { windows: u32, reacts: bool },
    /// In the switch, but the Broadcasts of an AllGather are sequential: each begins when the previous is acknowledged.
    InTurn,
    /// By CommLib's algorithms: rings, except for Reduce, Broadcast and Barrier, which follow appendix K.
    Ring,
    /// By rings that match the paper's tables: each step begins when the sends of the previous one are acknowledged.
    Steps,
    /// By ideal ranks, unlike RC queue pairs, and a switch that only reflects.
    Ideal {
        window: u32,
        /// See [`Ideal::notice`].
        notice: Nanos,
    },
}

/// What the queue pairs of ranks in the switch send again, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// As the software RNIC in a group of that mode: where the switch repairs (Mode-II with repair, Mode-III) one packet for a request, and it keeps
    /// what it receives behind a gap; otherwise all that follow. It probes where an answer is overdue.
    Software,
    /// As RNICs: all packets from that of a NAK on, or from the oldest unacknowledged one after a time-out (go-back-N). No probes.
    GoBack,
}

/// Number of lossy links, and their loss rate in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    pub(crate) links: u32,
    pub(crate) rate: f64,
}

impl Loss {
    pub(crate) const NONE: Self = Self { links: 0, rate: 0.0 };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) method: Method,
    pub(crate) hosts: Hosts,
    pub(crate) collective: Collective,
    /// Message length as appendix K counts it.
    pub(crate) bytes: u64,
    pub(crate) loss: Loss,
    pub(crate) net: Net,
    pub(crate) seed: u64,
}

/// The hosts and their links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Net {
    pub(crate) ranks: u16,
    pub(crate) gbps: u64,
    /// Of the link of rank 0.
    pub(crate) first_gbps: u64,
}

impl Net {
    pub(crate) const PAPER: Self = Self {
        ranks: RANKS,
        gbps: 100,
        first_gbps: 100,
    };

    fn link(&self, loss: f64) -> LinkProfile {
        LinkProfile {
            rate_bps: self.gbps * 1_000_000_000,
            ..link(loss)
        }
    }
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) times: Times,
    /// Zero for ideal ranks. Repetitions of the switch are told for AllReduces alone.
    pub(crate) counts: Counts,
}

/// Duration of a run, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Until the last byte of a result reached the last rank that receives one.
    pub(crate) arrived: f64,
    /// Until the last rank's call returned: its results are complete, and its own memory is free.
    pub(crate) returned: f64,
    /// Until, in addition, everything sent was acknowledged.
    pub(crate) settled: f64,
}

impl Times {
    pub(crate) fn with(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            arrived: f(self.arrived, other.arrived),
            returned: f(self.returned, other.returned),
            settled: f(self.settled, other.settled),
        }
    }
}

fn star(ranks: u16) -> Result<(Topology, Vec<String>), castnet_topology::TopologyError> {
    let mut t = Topology::new();
    let mac = |port: u8| [6, 0, 0, 0, 0, port];
    t.add_switch("switch", (0..ranks as u8).map(|p| (p, mac(p))))?;
    let mut hosts = Vec::new();
    for rank in 0..ranks as u8 {
        let name = format!("h{rank}");
        let ip = Ipv4Addr::new(10, 0, 0, rank + 1);
        t.add_host(&name, Some(ip), Some([2, 0, 0, 0, 0, rank]))?;
        t.connect(LinkEnd::host(name.clone()), LinkEnd::port("switch", rank), 9000)?;
        hosts.push(name);
    }
    Ok((t, hosts))
}

fn task(collective: Collective, bytes: u64) -> Task {
    let elements = match collective {
        Collective::Barrier => 0,
        Collective::ReduceScatter => bytes / u64::from(RANKS) / 4,
        _ => bytes / 4,
    };
    Task {
        collective,
        operation: Operation::Sum,
        data_type: DataType::F32,
        flags: CallFlags(0),
        elements,
    }
}

pub(crate) fn measure(setting: Setting, run: &Run) -> Result<Measured, Box<dyn Error + Send + Sync>> {
    let Run {
        method,
        collective,
        bytes,
        loss,
        net,
        seed,
        ..
    } = *run;
    let packets = bytes.div_ceil(PMTU.bytes() as u64);
    if let Method::Ideal { window, notice } = method {
        let ideal = Ideal {
            ranks: RANKS.into(),
            packets: packets as usize,
            window: window as usize,
            notice,
            loss: loss.rate,
            lossy_links: loss.links as usize,
        };
        let time = ideal::allreduce(ideal, link(0.0), seed).0 as f64;
        return Ok(Measured {
            times: Times {
                arrived: time,
                returned: time,
                settled: time,
            },
            counts: Counts::default(),
        });
    }
    let (topology, hosts) = star(net.ranks)?;
    let config = SimConfig {
        // An ASIC handles frames without a polling delay.
        poll_delay: Nanos::ZERO,
        links: net.link(0.0),
        ..SimConfig::new(seed)
    };
    let mut sim = Simulation::new(&topology, config, ())?;
    match method {
        Method::Epic(_) | Method::InTurn | Method::Augmented | Method::Ahead { .. } | Method::Terminated => {
            join(&mut sim, &topology, &hosts, setting, run)?
        }
        Method::Ring | Method::Steps | Method::Ideal { .. } => {
            wire_up(&mut sim, &hosts, setting, method, collective)?
        }
    }
    // The switch learns the addresses of all hosts.
    call(&mut sim, &hosts, Task::BARRIER)?;
    for i in 0..loss.links {
        sim.set_profile(LinkId(i), [link(loss.rate); 2]);
    }
    if net.first_gbps != net.gbps {
        let gbps = net.first_gbps;
        sim.set_profile(LinkId(0), [Net { gbps, ..net }.link(0.0); 2]);
    }
    let before = Counts::so_far(&sim, &hosts, setting, net);
    let times = match method {
        Method::InTurn => in_turn(&mut sim, &hosts, bytes)?,
        _ => call(&mut sim, &hosts, task(collective, bytes))?,
    };
    let counts = Counts::so_far(&sim, &hosts, setting, net);
    Ok(Measured {
        times,
        counts: counts.of_allreduce(&before, packets, net.ranks.into()),
    })
}

/// An AllGather whose Broadcasts are sequential.
fn in_turn(
    sim: &mut Simulation,
    hosts: &[String],
    bytes: u64,
) -> Result<Times, Box<dyn Error + Send + Sync>> {
    let mut sum = Times::default();
    for root in 0..RANKS {
        let times = call(sim, hosts, task(Collective::Broadcast { root }, bytes))?;
        let start = sum.settled;
        sum = times.with(times, |t, _| start + t);
    }
    Ok(sum)
}

fn qp(setting: Setting) -> RankQp {
    RankQp {
        timeout: setting.timeout,
        window: 1024,
        ..RankQp::default()
    }
}

fn join(
    sim: &mut Simulation,
    topology: &Topology,
    hosts: &[String],
    setting: Setting,
    run: &Run,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (method, net) = (run.method, run.net);
    let ranks = hosts.iter().map(|h| Member::new(h, Qpn::new(17))).collect();
    let rule = TranslatedRule {
        mode: match method {
            Method::Augmented | Method::Ahead { .. } => CollectiveMode::Augmented,
            Method::Terminated => CollectiveMode::Terminated,
            _ => CollectiveMode::Translated,
        },
        loss_policy: match method {
            Method::Epic(policy) => policy,
            _ => LossPolicy::Repair,
        },
        message_packets: setting.message_packets as u16,
        ack_timeout_us: (4096 << setting.timeout) / 1000,
        ..TranslatedRule::root(0)
    };
    let request = Request::collective("group", GROUP, PMTU, ranks, (setting.window as u16, rule));
    let (windows, reacts) = match method {
        Method::Ahead { windows, reacts } => (windows, reacts),
        _ => (1, false),
    };
    let machine = InNetworkConfig {
        window_packets: setting.window * windows,
        message_packets: setting.message_packets,
        ..InNetworkConfig::new(0, net.ranks)
    };
    let line = BitRate::new(net.gbps * 1_000_000_000);
    let qp = RankQp {
        repeat: match (run.hosts, method) {
            (Hosts::GoBack, _) => Repeat::All,
            (
                Hosts::Software,
                Method::Epic(LossPolicy::Repair) | Method::Augmented | Method::Ahead { .. },
            ) => Repeat::Requested,
            (Hosts::Software, _) => Repeat::All,
        },
        probes: run.hosts == Hosts::Software,
        reaction: line.filter(|_| reacts).map(ReactionConfig::new),
        ..qp(setting)
    };
    sim.join_group(topology, &request, machine, qp)?;
    Ok(())
}

/// Connects the ranks. The links of a ring, rank to rank, go through the switch, whose egress ports take no time. The
/// barrier by way of rank 0 uses the star.
fn wire_up(
    sim: &mut Simulation,
    hosts: &[String],
    setting: Setting,
    method: Method,
    collective: Collective,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let in_steps = method == Method::Steps;
    let relayed = matches!(
        collective,
        Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier
    );
    if collective != Collective::Barrier {
        let mut line = link(0.0);
        if in_steps && relayed {
            // A rank forwards when the previous rank has its acknowledgement: one link delay later.
            line.delay = line.delay + line.delay;
        }
        for i in 0..hosts.len() as u32 {
            sim.set_profile(LinkId(i), [line, NO_DELAY]);
        }
    }
    if !in_steps && !relayed {
        sim.join_hosts(
            hosts,
            PMTU,
            qp(setting),
            HostBasedConfig::new(0, hosts.len() as u16),
        )?;
        return Ok(());
    }
    sim.join_connected(hosts, PMTU, qp(setting), |rank| {
        let mut channel_ends = channel_ends(rank, RANKS);
        let machine: Box<dyn Machine + Send> = if relayed {
            let (relay, channels) = (Relay::new(rank, RANKS), channel_ends.len() as u16);
            Box::new(Rank::new(relay, channels, RING_PIECE, RING_DEPTH))
        } else {
            channel_ends.truncate(2);
            Box::new(Rank::new(Steps::new(RANKS), 2, RING_PIECE, RING_DEPTH))
        };
        (machine, channel_ends)
    })?;
    Ok(())
}

pub(crate) fn link(loss: f64) -> LinkProfile {
    LinkProfile {
        rate_bps: 100_000_000_000,
        delay: Nanos::from_micros(1),
        loss,
        ..LinkProfile::default()
    }
}

const NO_DELAY: LinkProfile = LinkProfile {
    rate_bps: 1_000_000_000_000_000,
    delay: Nanos::ZERO,
    queue_bytes: 1 << 30,
    ecn: None,
    loss: 0.0,
    duplication: 0.0,
    reordering: 0.0,
    reordering_delay_max: Nanos::ZERO,
    corruption: 0.0,
};

fn call(sim: &mut Simulation, hosts: &[String], task: Task) -> Result<Times, Box<dyn Error + Send + Sync>> {
    let start = sim.now();
    for host in hosts {
        sim.start_task(host, task, None).ok_or("no rank")?;
    }
    let mut returned = Nanos::ZERO;
    // The condition is checked after each event: the call is not over while it runs at the first unfinished rank.
    let (mut first, mut settled) = (0, false);
    let end = sim.run_until(Nanos::from_secs(1000), |sim| {
        while let Some(rank) = hosts.get(first).and_then(|h| sim.rank(h)) {
            if !rank.is_done() || settled && !rank.is_drained() {
                return false;
            }
            first += 1;
            if first == hosts.len() && !settled {
                returned = sim.now();
                settled = true;
                first = 0;
            }
        }
        true
    });
    let mut arrived = None;
    for host in hosts {
        let rank = sim.rank_mut(host).ok_or("no rank")?;
        if let Some(fault) = rank.faults().first() {
            return Err(fault.clone().into());
        }
        if let Some(Err(failure)) = rank
            .tasks()
            .find_map(|t| t.ended.map(|(_, how)| how).filter(Result::is_err))
        {
            return Err(failure.into());
        }
        arrived = arrived.max(rank.tasks().filter_map(|t| t.delivered).max());
        rank.forget();
    }
    if end != End::Done {
        return Err(format!("the simulation ended with {end:?} at {}", sim.now()).into());
    }
    let since = |at: Nanos| at.since(start).0 as f64;
    Ok(Times {
        arrived: since(arrived.unwrap_or(returned)),
        returned: since(returned),
        settled: since(sim.now()),
    })
}
