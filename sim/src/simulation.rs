//! The network and its clock.

use std::collections::BTreeMap;

use castnet_endpoint::{Completion, Endpoint, EndpointConfig};
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine, EngineConfig, InstallError, PortInfo};
use castnet_planner::Plan;
use castnet_rules::GroupRule;
use castnet_topology::{End as LinkEnd, LinkId, Topology};
use castnet_wire::{MacAddr, Nanos, PortId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::link::{Direction, LinkStats};
use crate::node::{HostNode, Kind, Node, NodeId, SwitchNode};
use crate::profile::{LinkProfile, SimConfig};
use crate::queue::EventQueue;
use crate::trace::Trace;
use crate::watch::{View, Watch};

/// Why a fabric cannot be simulated, or a name does not fit it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A host without addresses.
    #[error("host {host:?} has no IP or Ethernet address")]
    NoAddress {
        /// The host.
        host: String,
    },
    /// An engine did not start.
    #[error("switch {switch:?}: {error}")]
    Engine {
        /// The switch.
        switch: String,
        /// Why.
        error: castnet_engine::ConfigError,
    },
    /// No such switch, or it is stopped.
    #[error("no switch {switch:?} is running")]
    NoSwitch {
        /// The name.
        switch: String,
    },
    /// A switch refused a group.
    #[error("switch {switch:?}: {error}")]
    Install {
        /// The switch.
        switch: String,
        /// Why.
        error: InstallError,
    },
    /// A collective group cannot be placed.
    #[error("{reason}")]
    Place {
        /// Why.
        reason: String,
    },
    /// A host cannot be a rank.
    #[error("host {host:?} cannot be a rank: {reason}")]
    Rank {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
}

/// Why [`Simulation::run_until`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What was waited for has come.
    Done,
    /// The deadline came first.
    Deadline,
    /// Nothing is left that could happen.
    Idle,
}

/// What can happen.
pub(crate) enum Event<W> {
    Arrive {
        direction: usize,
        frame: Vec<u8>,
        untouched: bool,
    },
    /// A host's link is free again.
    Ready(NodeId),
    /// A switch's worker looks at its ports.
    Poll(NodeId),
    Timer(NodeId),
    Action(Action<W>),
}

/// What the simulation's owner does later.
pub(crate) type Action<W> = Box<dyn FnOnce(&mut Simulation<W>)>;

/// A network in virtual time.
pub struct Simulation<W = ()> {
    pub(crate) now: Nanos,
    pub(crate) queue: EventQueue<Event<W>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_name: BTreeMap<String, NodeId>,
    /// Two per link: from its end `a`, then from its end `b`.
    pub(crate) directions: Vec<Direction>,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) poll_delay: Nanos,
    pub(crate) trace: Trace,
    pub(crate) watch: W,
    pub(crate) egress: PlainEgress,
    pub(crate) scratch: Vec<u8>,
    pub(crate) events: u64,
}

impl<W: Watch> Simulation<W> {
    /// A network of this fabric, with `watch` looking on. What is down in the fabric is down here.
    ///
    /// # Errors
    /// Hosts need both addresses; switches must start.
    pub fn new(topology: &Topology, config: SimConfig, watch: W) -> Result<Self, SimError> {
        let mut sim = Self {
            now: Nanos::ZERO,
            queue: EventQueue::new(),
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            directions: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            poll_delay: config.poll_delay,
            trace: Trace::new(config.trace_frames_max),
            watch,
            egress: PlainEgress::default(),
            scratch: vec![0; Endpoint::FRAME_MAX],
            events: 0,
        };
        for switch in topology.switches() {
            let config = engine_config(topology, &switch.name, config.seed);
            let engine = start(&config)?;
            sim.add(
                &switch.name,
                Kind::Switch(Box::new(SwitchNode {
                    engine: switch.up.then_some(engine),
                    config,
                    out: [None; PortId::COUNT],
                    received: Vec::new(),
                    poll_waits: false,
                    missed: 0,
                })),
            );
        }
        for host in topology.hosts() {
            let (Some(ip), Some(mac)) = (host.ip, host.mac) else {
                return Err(SimError::NoAddress {
                    host: host.name.clone(),
                });
            };
            sim.add(
                &host.name,
                Kind::Host(Box::new(HostNode {
                    endpoint: Endpoint::new(EndpointConfig::new(MacAddr(mac), ip)),
                    out: None,
                    ready_waits: false,
                    completions: Vec::new(),
                    rank: None,
                })),
            );
        }
        for (_, link) in topology.links() {
            let (Some(a), Some(b)) = (sim.end(&link.a), sim.end(&link.b)) else {
                continue;
            };
            for (from, to) in [(a, b), (b, a)] {
                let number = sim.directions.len();
                sim.directions
                    .push(Direction::new(from, to, config.links, link.up));
                match &mut sim.nodes[from.0.0].kind {
                    Kind::Switch(switch) => switch.out[from.1.index()] = Some(number),
                    Kind::Host(host) => host.out = Some(number),
                }
            }
        }
        (0..sim.nodes.len()).for_each(|node| sim.arm(NodeId(node)));
        Ok(sim)
    }

    fn add(&mut self, name: &str, kind: Kind) {
        self.by_name.insert(name.into(), NodeId(self.nodes.len()));
        self.nodes.push(Node {
            name: name.into(),
            kind,
            timer: None,
        });
    }

    fn end(&self, end: &LinkEnd) -> Option<(NodeId, PortId)> {
        let node = self.node(end.node())?;
        match end {
            LinkEnd::Switch { port, .. } => Some((node, PortId::new(*port)?)),
            LinkEnd::Host(_) => Some((node, PortId::default())),
        }
    }

    // ------------------------------------------------------------------------------------------------ looking

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Events that have happened.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The switch or host of that name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// All nodes.
    pub fn view(&self) -> View<'_> {
        View {
            now: self.now,
            nodes: &self.nodes,
        }
    }

    /// A host's endpoint.
    pub fn endpoint(&self, host: &str) -> Option<&Endpoint> {
        self.view().endpoint(self.node(host)?)
    }

    /// A switch's engine, where it runs.
    pub fn engine(&self, switch: &str) -> Option<&Engine> {
        self.view().engine(self.node(switch)?)
    }

    /// How a host's work requests ended, and when, oldest first.
    pub fn completions(&self, host: &str) -> &[(Nanos, Completion)] {
        let node = self.node(host).and_then(|n| self.nodes[n.0].host());
        node.map_or(&[], |host| &host.completions)
    }

    /// What happened on both directions of a link: from its end `a`, and from its end `b`.
    pub fn stats(&self, link: LinkId) -> Option<[LinkStats; 2]> {
        let first = link.0 as usize * 2;
        Some([
            self.directions.get(first)?.stats,
            self.directions.get(first + 1)?.stats,
        ])
    }

    /// What happened on all links together.
    pub fn totals(&self) -> LinkStats {
        self.directions
            .iter()
            .fold(LinkStats::default(), |sum, d| LinkStats {
                sent: sum.sent + d.stats.sent,
                sent_bytes: sum.sent_bytes + d.stats.sent_bytes,
                delivered: sum.delivered + d.stats.delivered,
                queue_full: sum.queue_full + d.stats.queue_full,
                lost: sum.lost + d.stats.lost,
                duplicated: sum.duplicated + d.stats.duplicated,
                reordered: sum.reordered + d.stats.reordered,
                corrupted: sum.corrupted + d.stats.corrupted,
                down: sum.down + d.stats.down,
            })
    }

    /// Frames that came to a switch while it was stopped.
    pub fn missed(&self, switch: &str) -> u64 {
        self.node(switch)
            .and_then(|n| self.nodes[n.0].switch())
            .map_or(0, |s| s.missed)
    }

    /// The Ethernet address of the switch port that a host hangs on: its next hop towards anywhere.
    pub fn first_hop_mac(&self, host: &str) -> Option<MacAddr> {
        let out = self.nodes[self.node(host)?.0].host()?.out?;
        let (switch, port) = self.directions[out].to;
        let ports = &self.nodes[switch.0].switch()?.config.ports;
        ports.iter().find(|p| p.id == port).map(|p| p.mac)
    }

    /// The newest frames.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Who looks on.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// Who looks on.
    pub fn watch_mut(&mut self) -> &mut W {
        &mut self.watch
    }

    // ----------------------------------------------------------------------------------------------- changing

    /// How both directions of a link behave from now on.
    pub fn set_profile(&mut self, link: LinkId, profiles: [LinkProfile; 2]) {
        let first = link.0 as usize * 2;
        for (direction, profile) in self.directions.iter_mut().skip(first).zip(profiles) {
            direction.profile = profile;
        }
    }

    /// Takes a link up or down; frames on their way arrive.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.directions
            .iter_mut()
            .skip(link.0 as usize * 2)
            .take(2)
            .for_each(|d| d.up = up);
    }

    /// Lets a host do something, then sends what comes of it. `None` where there is no such host.
    pub fn with_endpoint<R>(&mut self, host: &str, act: impl FnOnce(&mut Endpoint, Nanos) -> R) -> Option<R> {
        let (node, now) = (self.node(host)?, self.now);
        let result = act(&mut self.nodes[node.0].host_mut()?.endpoint, now);
        self.tend_host(node);
        Some(result)
    }

    /// Lets a switch's owner do something. `None` where there is no such switch, or it is stopped.
    pub fn with_engine<R>(&mut self, switch: &str, act: impl FnOnce(&mut Engine, Nanos) -> R) -> Option<R> {
        let (node, now) = (self.node(switch)?, self.now);
        let result = act(self.nodes[node.0].switch_mut()?.engine.as_mut()?, now);
        self.arm(node);
        Some(result)
    }

    /// Installs a group at a switch.
    ///
    /// # Errors
    /// [`SimError::NoSwitch`], [`SimError::Install`].
    pub fn install(&mut self, switch: &str, group: &GroupRule) -> Result<(), SimError> {
        self.install_at(switch, |engine| {
            let group = Context::compile(group, &engine.config().ports)?;
            engine.install(group).map(drop)
        })
    }

    /// Has the engine of a switch take a group of either kind.
    pub(crate) fn install_at(
        &mut self,
        switch: &str,
        install: impl FnOnce(&mut Engine) -> Result<(), InstallError>,
    ) -> Result<(), SimError> {
        match self.with_engine(switch, |engine, _| install(engine)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(SimError::Install {
                switch: switch.into(),
                error,
            }),
            None => Err(SimError::NoSwitch {
                switch: switch.into(),
            }),
        }
    }

    /// Installs a plan's rules at all its switches.
    ///
    /// # Errors
    /// As [`Simulation::install`].
    pub fn install_plan(&mut self, plan: &Plan) -> Result<(), SimError> {
        plan.rules
            .iter()
            .try_for_each(|(switch, rule)| self.install(switch, rule))
    }

    /// Stops a switch: it forgets everything, and frames that come to it are lost.
    pub fn stop_switch(&mut self, switch: &str) {
        let Some(node) = self.node(switch) else { return };
        if let Some(switch) = self.nodes[node.0].switch_mut() {
            switch.engine = None;
            switch.missed += switch
                .received
                .iter()
                .map(|(_, frames)| frames.len() as u64)
                .sum::<u64>();
            switch.received.clear();
            self.watch.stopped(node);
        }
    }

    /// Starts a stopped switch afresh: no groups, nothing learned.
    ///
    /// # Errors
    /// [`SimError::NoSwitch`].
    pub fn start_switch(&mut self, switch: &str) -> Result<(), SimError> {
        let no_switch = || SimError::NoSwitch {
            switch: switch.into(),
        };
        let node = self.node(switch).ok_or_else(no_switch)?;
        let stopped = self.nodes[node.0].switch_mut().ok_or_else(no_switch)?;
        stopped.engine = Some(start(&stopped.config)?);
        self.arm(node);
        Ok(())
    }

    /// Does something later; at once, in its turn, where `at` has passed.
    pub fn at(&mut self, at: Nanos, action: impl FnOnce(&mut Self) + 'static) {
        self.queue.push(at.max(self.now), Event::Action(Box::new(action)));
    }

    /// Puts a frame on a host's link as if the host had sent it. Whether there is such a host.
    pub fn inject(&mut self, host: &str, frame: Vec<u8>) -> bool {
        let out = self.node(host).and_then(|n| self.nodes[n.0].host()?.out);
        out.map(|direction| self.send(direction, frame)).is_some()
    }
}

fn start(config: &EngineConfig) -> Result<Engine, SimError> {
    Engine::new(config.clone()).map_err(|error| SimError::Engine {
        switch: config.switch.clone(),
        error,
    })
}

/// Small tables: a simulation has many switches and few groups.
fn engine_config(topology: &Topology, name: &str, seed: u64) -> EngineConfig {
    let ports = topology
        .switch(name)
        .into_iter()
        .flat_map(|s| &s.ports)
        .filter_map(|(port, mac)| {
            let link = topology
                .link_at(&LinkEnd::port(name, *port))
                .and_then(|l| topology.link(l));
            Some(PortInfo {
                id: PortId::new(*port)?,
                name: format!("{name}:{port}"),
                mac: MacAddr(*mac),
                mtu: link.map_or(9000, |l| l.mtu as usize),
                flood: link.is_some(),
            })
        });
    EngineConfig {
        groups_max: 16,
        next_hops_max: 256,
        fdb_capacity: 256,
        neighbours_max: 64,
        lldp_interval: None,
        events_max: 64,
        hash_seed: seed,
        ..EngineConfig::new(name, ports.collect())
    }
}
