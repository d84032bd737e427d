//! Broadcasts on the simulated network.

use std::net::Ipv4Addr;

use castnet_comm::machine::{BroadcastAlgorithm, Collective, HostBasedConfig, Task};
use castnet_endpoint::Repeat;
use castnet_group::{Distribution, TreeShape};
use castnet_planner::{Member, Request};
use castnet_rules::{MulticastRule, RepairRule};
use castnet_sim::{HostCost, LinkProfile, RankQp, Routes, SimConfig, Simulation};
use castnet_topology::{End, LinkId, Topology};
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};

use crate::sim::figures::Failed;

const PMTU: Pmtu = Pmtu::B4096;
/// Packets of a QP that are sent and not acknowledged.
const WINDOW: u16 = 256;
/// Longer messages to several peers are sent one after the other: MPI's rendezvous protocol.
const IN_TURN_ABOVE: u32 = 8 << 10;
/// Most slices or calls in flight between two hosts.
const DEPTH: u32 = 64;
/// Virtual time after which a Broadcast has failed.
const PATIENCE: Nanos = Nanos::from_secs(100);
/// A run is examined for its end after this virtual time.
const STEP: Nanos = Nanos::from_millis(1);

/// A fabric with its routes.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) topology: Topology,
    pub(crate) routes: Routes,
    /// Propagation delay of its links.
    pub(crate) delay: Nanos,
    /// Threads of a simulation.
    pub(crate) threads: usize,
}

impl Fabric {
    pub(crate) fn new(topology: Topology, delay: Nanos, threads: usize) -> Self {
        let routes = Routes::new(&topology);
        Self {
            topology,
            routes,
            delay,
            threads,
        }
    }

    /// Cepheus V.C: three tiers, 1,024 hosts, edge switches of 64 ports, no oversubscription. The paper does not give the
    /// delay of links.
    pub(crate) fn fat_tree(threads: usize) -> Result<Self, Failed> {
        Ok(Self::new(
            Topology::three_tier(4, 8, 32)?,
            Nanos::from_micros(1),
            threads,
        ))
    }

    /// Cepheus IV: four hosts at one switch.
    pub(crate) fn testbed(delay: Nanos) -> Result<Self, Failed> {
        Ok(Self::new(Topology::star(4)?, delay, 1))
    }
}

/// How data reach all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    /// By a multicast group in the switches.
    Cepheus,
    /// By a binomial tree of hosts, whole messages.
    BinomialTree,
    /// From host to host, in so many slices.
    Chain { slices: u16 },
    /// From the source to each host.
    Unicasts,
}

/// A Broadcast of the first of `members` hosts to the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broadcast {
    pub(crate) method: Method,
    pub(crate) members: u16,
    pub(crate) bytes: u64,
    /// How often it is called, each time without waiting for the previous one.
    pub(crate) calls: u32,
    pub(crate) host_cost: HostCost,
    pub(crate) loss: Loss,
    /// The switches of the group repair losses.
    pub(crate) repairs: bool,
    /// Shape of the group's tree among relays.
    pub(crate) tree: TreeShape,
    /// Longer messages of a binomial tree to several peers are sent one after the other.
    pub(crate) in_turn_above: u32,
    pub(crate) seed: u64,
}

/// Probability that a switch loses a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loss {
    /// On each link that leaves a switch.
    pub(crate) rate: f64,
    /// QP time-out exponent: 4.096 us * 2^t. 0: that of [`RankQp`].
    pub(crate) timeout: u8,
}

/// Duration of a Broadcast in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Until the last receiver had all data.
    pub(crate) arrived: f64,
    /// Until the last call returned: the source's, when all data are acknowledged.
    pub(crate) returned: f64,
    /// Handled events of the simulation.
    pub(crate) events: u64,
}

impl Broadcast {
    /// Without loss, by hosts that take no time.
    pub(crate) fn new(method: Method, members: u16, bytes: u64) -> Self {
        Self {
            method,
            members,
            bytes,
            calls: 1,
            host_cost: HostCost::default(),
            loss: Loss::default(),
            repairs: false,
            tree: TreeShape::Shortest,
            in_turn_above: IN_TURN_ABOVE,
            seed: 1,
        }
    }

    /// The Broadcast of a message of any length: that of more than `whole` bytes is continued at the rate of the second half
    /// of `whole`.
    pub(crate) fn measure(&self, fabric: &Fabric, whole: u64) -> Result<Times, Failed> {
        if self.bytes <= whole {
            return self.simulate(fabric);
        }
        let of = |bytes| Self { bytes, ..*self }.simulate(fabric);
        let (half, full) = (of(whole / 2)?, of(whole)?);
        let times = (self.bytes - whole) as f64 / (whole - whole / 2) as f64;
        Ok(Times {
            arrived: full.arrived + (full.arrived - half.arrived) * times,
            returned: full.returned + (full.returned - half.returned) * times,
            events: half.events + full.events,
        })
    }

    fn simulate(&self, fabric: &Fabric) -> Result<Times, Failed> {
        let mut sim = self.build(fabric)?;
        for _ in 0..self.calls {
            for host in self.hosts() {
                sim.start_task(&host, self.task(), None).ok_or("no rank")?;
            }
        }
        self.finish(&mut sim)
    }

    /// Names of the members.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.members).map(|i| format!("h{i}"))
    }

    /// What each member calls.
    pub(crate) fn task(&self) -> Task {
        Task {
            collective: Collective::Broadcast { root: 0 },
            operation: Operation::Sum,
            data_type: DataType::U8,
            flags: CallFlags(0),
            elements: self.bytes,
        }
    }

    /// A network in which the members have joined, and no call is made.
    pub(crate) fn build(&self, fabric: &Fabric) -> Result<Simulation, Failed> {
        let links = LinkProfile {
            delay: fabric.delay,
            ..LinkProfile::default()
        };
        let config = SimConfig {
            // Switches take no time beyond that of links.
            poll_delay: Nanos::ZERO,
            host_cost: self.host_cost,
            links,
            threads: fabric.threads,
            ..SimConfig::new(self.seed)
        };
        let mut sim = Simulation::new(&fabric.topology, config, ())?;
        sim.install_routes(&fabric.routes)?;
        self.set_loss(&mut sim, &fabric.topology, links);
        self.join(&mut sim, &fabric.topology)?;
        Ok(sim)
    }

    fn set_loss(&self, sim: &mut Simulation, topology: &Topology, links: LinkProfile) {
        let lossy = LinkProfile {
            loss: self.loss.rate,
            ..links
        };
        for (link, ends) in topology.links().filter(|_| self.loss.rate > 0.0) {
            let profile = |from: &End| match from {
                End::Host(_) => links,
                End::Switch { .. } => lossy,
            };
            let profiles = [profile(&ends.a), profile(&ends.b)];
            sim.set_profile(LinkId(link.0), profiles);
        }
    }

    fn join(&self, sim: &mut Simulation, topology: &Topology) -> Result<(), Failed> {
        let hosts: Vec<String> = self.hosts().collect();
        let (broadcast, slices) = match self.method {
            Method::Cepheus | Method::Unicasts => (BroadcastAlgorithm::Unicasts, 1),
            Method::BinomialTree => (BroadcastAlgorithm::BinomialTree, 1),
            Method::Chain { slices } => (BroadcastAlgorithm::Chain, slices),
        };
        let message_bytes = self.bytes.div_ceil(slices.max(1).into()).next_multiple_of(8);
        let config = HostBasedConfig {
            message_bytes: u32::try_from(message_bytes)?,
            depth: if slices > 1 || self.calls > 1 { DEPTH } else { 1 },
            broadcast,
            in_turn_above: match self.method {
                Method::BinomialTree => self.in_turn_above,
                _ => u32::MAX,
            },
            ..HostBasedConfig::new(0, self.members)
        };
        let timeout = match self.loss.timeout {
            0 => RankQp::default().timeout,
            timeout => timeout,
        };
        let qp = RankQp {
            window: WINDOW.into(),
            timeout,
            repeat: match self.repairs {
                true => Repeat::One,
                false => Repeat::All,
            },
            probes: true,
            void_slots: true,
            ..RankQp::default()
        };
        if self.method != Method::Cepheus {
            sim.join_hosts(&hosts, PMTU, qp, config)?;
            return Ok(());
        }
        let qpn = Qpn::new(17);
        let members = hosts.iter().map(|host| Member::new(host, qpn)).collect();
        let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
        let rule = MulticastRule {
            start_psn: Some(Psn::new(0)),
            repair: self.repairs.then_some(RepairRule {
                slots: WINDOW,
                ack_timeout_us: (4.096 * f64::from(1_u32 << timeout)) as u32,
            }),
            ..MulticastRule::default()
        };
        let request = Request {
            distribution: Distribution::Switches(self.tree.into()),
            ..Request::multicast("group", mcst_id, PMTU, members, rule)
        };
        sim.join_multicast(topology, &request, qp, config)?;
        Ok(())
    }

    fn finish(&self, sim: &mut Simulation) -> Result<Times, Failed> {
        self.run_to_end(sim)?;
        let mut times = Times {
            events: sim.events(),
            ..Times::default()
        };
        for host in self.hosts() {
            for task in sim.rank(&host).ok_or("no rank")?.tasks() {
                let delivered = task.delivered.map_or(0.0, |at| at.0 as f64);
                times.arrived = times.arrived.max(delivered);
                let ended = task.ended.map_or(0.0, |(at, _)| at.0 as f64);
                times.returned = times.returned.max(ended);
            }
        }
        Ok(times)
    }

    /// Runs until all calls have ended. Fails if one fails, or does not end.
    pub(crate) fn run_to_end(&self, sim: &mut Simulation) -> Result<(), Failed> {
        let is_done = |sim: &Simulation, host: &str| sim.rank(host).is_some_and(|rank| rank.is_done());
        while !self.hosts().all(|host| is_done(sim, &host)) {
            if sim.now() > PATIENCE {
                return Err(format!("{self:?} has not ended after {PATIENCE}").into());
            }
            sim.run(sim.now() + STEP);
        }
        for host in self.hosts() {
            let rank = sim.rank(&host).ok_or("no rank")?;
            if let Some(fault) = rank.faults().first() {
                return Err(format!("{host}: {fault}").into());
            }
            let failure = rank.tasks().find_map(|task| task.ended?.1.err());
            if let Some(failure) = failure {
                return Err(format!("{host}: {failure}").into());
            }
        }
        Ok(())
    }
}
