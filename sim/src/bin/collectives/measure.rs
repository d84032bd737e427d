//! One collective of eight ranks, timed.

use std::net::Ipv4Addr;

use castnet_comm::machine::{Collective, HostBasedConfig, InNetworkConfig, Task};
use castnet_planner::{CollectiveRequest, RankMember};
use castnet_rules::LossPolicy;
use castnet_sim::{End, LinkProfile, RankQp, SimConfig, Simulation};
use castnet_topology::{End as LinkEnd, LinkId, Topology};
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::{McstId, Nanos, Pmtu, Qpn};

use crate::relay::{Relay, wires};

/// Ranks of appendix K.
pub(crate) const RANKS: u16 = 8;
/// Path MTU; see [`crate::paper`] on how much a header costs there.
const PMTU: Pmtu = Pmtu::B4096;
/// Packets in flight of a rank, CommLib's usual: 256 KiB, four times what fits on the way there and back.
const WINDOW: u32 = 64;
/// Bytes of a piece on its way round the ring. In tables 26 and 28 a message of 64 KiB goes on from each rank as a whole, and of longer
/// ones so much as 128 KiB are in each rank.
const RING_PIECE: u32 = 128 << 10;
/// Messages in flight between ranks of a ring.
const RING_DEPTH: u32 = 4;
/// QP time-out: 32.8 us, the shortest beyond a window's time on the wire and the way there and back (26 us).
const TIMEOUT: u8 = 3;

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// In the switch, by EPIC Mode-II.
    Epic(LossPolicy),
    /// By CommLib's algorithms, rings but for Reduce, Broadcast and Barrier, which are those of appendix K.
    Ring,
}

/// Which links lose how many of their frames, both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    pub(crate) links: u32,
    pub(crate) rate: f64,
}

impl Loss {
    pub(crate) const NONE: Self = Self { links: 0, rate: 0.0 };
}

/// How long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Until the last rank had its results.
    pub(crate) results: Nanos,
    /// Until, besides, all that was sent was acknowledged.
    pub(crate) settled: Nanos,
}

fn star() -> Result<(Topology, Vec<String>), castnet_topology::TopologyError> {
    let mut t = Topology::new();
    let mac = |port: u8| [6, 0, 0, 0, 0, port];
    t.add_switch("switch", (0..RANKS as u8).map(|p| (p, mac(p))))?;
    let mut hosts = Vec::new();
    for rank in 0..RANKS as u8 {
        let name = format!("h{rank}");
        let ip = Ipv4Addr::new(10, 0, 0, rank + 1);
        t.add_host(&name, Some(ip), Some([2, 0, 0, 0, 0, rank]))?;
        t.connect(LinkEnd::host(name.clone()), LinkEnd::port("switch", rank), 9000)?;
        hosts.push(name);
    }
    Ok((t, hosts))
}

/// A task of `bytes`, as appendix K divides them.
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

/// Bytes that appendix K divides by the time.
pub(crate) fn counted(way: Way, collective: Collective, bytes: u64) -> f64 {
    let (bytes, ranks) = (bytes as f64, f64::from(RANKS));
    match (way, collective) {
        (Way::Epic(_), Collective::AllGather) => bytes * ranks,
        (Way::Ring, Collective::AllGather) => bytes * (ranks - 1.0),
        (Way::Ring, Collective::ReduceScatter) => bytes * (ranks - 1.0) / ranks,
        _ => bytes,
    }
}

/// Runs a collective, after a barrier.
pub(crate) fn measure(
    way: Way,
    collective: Collective,
    bytes: u64,
    loss: Loss,
    seed: u64,
) -> Result<Times, Box<dyn std::error::Error>> {
    let (topology, hosts) = star()?;
    let config = SimConfig {
        // An ASIC: no worker that has to look.
        poll_delay: Nanos::ZERO,
        links: link(0.0),
        ..SimConfig::new(seed)
    };
    let mut sim = Simulation::new(&topology, config, ())?;
    let qp = RankQp {
        timeout: TIMEOUT,
        window: 1024,
        ..RankQp::default()
    };
    match way {
        Way::Epic(loss_policy) => {
            let ranks = hosts.iter().map(|h| RankMember::new(h, Qpn::new(17))).collect();
            let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
            let request = CollectiveRequest {
                loss_policy,
                ack_timeout_us: (4096 << TIMEOUT) / 1000,
                ..CollectiveRequest::new("group", mcst_id, PMTU, WINDOW as u16, ranks)
            };
            let machine = InNetworkConfig {
                window_packets: WINDOW,
                ..InNetworkConfig::new(0, RANKS)
            };
            sim.join_group(&topology, &request, machine, qp)?;
        }
        Way::Ring => {
            // A ring has links from rank to rank. Here they go through the switch, whose ports on the way out cost nothing; the
            // barrier by way of rank 0 has the star.
            if collective != Collective::Barrier {
                for i in 0..u32::from(RANKS) {
                    sim.set_profile(LinkId(i), [link(0.0), PATCH]);
                }
            }
            match collective {
                Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => {
                    sim.join_wired(&hosts, PMTU, qp, |rank| {
                        let machine = Relay::new(rank, RANKS, RING_PIECE, RING_DEPTH);
                        (Box::new(machine), wires(rank, RANKS))
                    })?;
                }
                _ => sim.join_hosts(&hosts, PMTU, qp, HostBasedConfig::new(0, RANKS))?,
            }
        }
    }
    // Teaches the switch where everybody is.
    run(&mut sim, &hosts, Task::BARRIER)?;
    for i in 0..loss.links {
        sim.set_profile(LinkId(i), [link(loss.rate); 2]);
    }
    run(&mut sim, &hosts, task(collective, bytes))
}

fn link(loss: f64) -> LinkProfile {
    LinkProfile {
        rate_bps: 100_000_000_000,
        delay: Nanos::from_micros(1),
        loss,
        ..LinkProfile::default()
    }
}

/// No link at all: what arrives is there.
const PATCH: LinkProfile = LinkProfile {
    rate_bps: 1_000_000_000_000_000,
    delay: Nanos::ZERO,
    queue_bytes: 1 << 30,
    loss: 0.0,
    duplication: 0.0,
    reordering: 0.0,
    reordering_delay_max: Nanos::ZERO,
    corruption: 0.0,
};

fn run(sim: &mut Simulation, hosts: &[String], task: Task) -> Result<Times, Box<dyn std::error::Error>> {
    let start = sim.now();
    for host in hosts {
        sim.start_task(host, task, None).ok_or("no rank")?;
    }
    let mut results = Nanos::ZERO;
    // Asked after each event: what is not yet done at the first rank that is not, cannot be over.
    let (mut first, mut settled) = (0, false);
    let end = sim.run_until(Nanos::from_secs(1000), |sim| {
        while let Some(rank) = hosts.get(first).and_then(|h| sim.rank(h)) {
            if !rank.is_done() || settled && !rank.is_drained() {
                return false;
            }
            first += 1;
            if first == hosts.len() && !settled {
                results = sim.now();
                settled = true;
                first = 0;
            }
        }
        true
    });
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
        rank.forget();
    }
    if end != End::Done {
        return Err(format!("the simulation ended with {end:?} at {}", sim.now()).into());
    }
    Ok(Times {
        results: results.since(start),
        settled: sim.now().since(start),
    })
}
