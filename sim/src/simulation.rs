//! The simulated network and its clock.

use std::collections::{BTreeMap, VecDeque};

use castnet_endpoint::{Completion, Endpoint, EndpointConfig};
use castnet_engine::{Context, Engine, EngineConfig, InstallError, PortInfo};
use castnet_pfc::{Gate, PfcConfig};
use castnet_planner::Plan;
use castnet_rules::GroupRule;
use castnet_topology::{End as LinkEnd, LinkId, Topology};
use castnet_wire::icrc::ShiftCache;
use castnet_wire::{CounterSet, MacAddr, Nanos, PortId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::flow::{FlowControl, Storm};
use crate::frame::{Contiguous, Frame, Sent};
use crate::link::{Direction, LinkStats};
use crate::node::{HostNode, Kind, Node, NodeId, ReceivedFrame, SwitchNode};
use crate::profile::{HostCost, LinkProfile, SimConfig};
use crate::queue::{EventQueue, Key};
use crate::service::{Service, SwitchCost};
use crate::shards::{Mail, Shards};
use crate::trace::Trace;
use crate::watch::{View, Watch};

/// Errors of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum SimError {
    /// The host has no addresses.
    #[error("host {host:?} has no IP or Ethernet address")]
    NoAddress { host: String },
    /// The engine of a switch did not start.
    #[error("switch {switch:?}: {error}")]
    Engine {
        switch: String,
        error: castnet_engine::ConfigError,
    },
    /// The switch does not exist, or is stopped.
    #[error("no switch {switch:?} is running")]
    NoSwitch { switch: String },
    /// A switch refused a group.
    #[error("switch {switch:?}: {error}")]
    Install { switch: String, error: InstallError },
    /// A collective group cannot be placed.
    #[error("{reason}")]
    Place { reason: String },
    /// The host cannot be a rank.
    #[error("host {host:?} cannot be a rank: {reason}")]
    Rank { host: String, reason: String },
}

/// Why [`Simulation::run_until`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The condition was met.
    Done,
    /// The deadline was reached.
    Deadline,
    /// No event is left.
    Idle,
}

pub(crate) enum Event {
    Arrive {
        direction: u32,
        frame: Frame,
        untouched: bool,
    },
    /// The link of a host is idle again.
    Ready(NodeId),
    /// The worker of a switch polls its ports.
    Poll(NodeId),
    /// A copy has left a switch, and the next one may.
    Left(NodeId),
    /// The processor of a host has done the oldest piece of its work.
    Work(NodeId),
    Timer(NodeId),
}

type Action<W> = Box<dyn FnOnce(&mut Simulation<W>) + Send>;

/// A network in virtual time.
pub struct Simulation<W = ()> {
    pub(crate) now: Nanos,
    pub(crate) queue: EventQueue<Event>,
    pub(crate) actions: BTreeMap<Key, VecDeque<Action<W>>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_name: BTreeMap<String, NodeId>,
    /// Two per link: from its end `a`, and from its end `b`.
    pub(crate) directions: Vec<Direction>,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) poll_delay: Nanos,
    pub(crate) pfc: Option<PfcConfig>,
    pub(crate) host_cost: HostCost,
    /// Hosts send to their first hop, not to the host itself.
    pub(crate) is_routed: bool,
    pub(crate) trace: Trace,
    pub(crate) watch: W,
    pub(crate) sent: Sent,
    /// Memory for the frames that a switch handles.
    pub(crate) polled: Vec<ReceivedFrame>,
    pub(crate) contiguous: Contiguous,
    /// For the ICRC of payloads of zeros.
    pub(crate) shifts: ShiftCache<4>,
    pub(crate) storms: Vec<Storm>,
    pub(crate) scratch: Vec<u8>,
    /// Chance has decided about frames: the random numbers that a frame gets depend on the order of all events.
    pub(crate) has_chance: bool,
    pub(crate) events: u64,
    pub(crate) shards: Shards,
    /// Frames for other shards, by shard. Empty while the simulation is whole.
    pub(crate) outboxes: Vec<Vec<Mail>>,
}

impl<W: Watch> Simulation<W> {
    /// A network of this topology, observed by `watch`. Links that are down in the topology are down. Fails if a host
    /// lacks an address, or a switch does not start.
    pub fn new(topology: &Topology, config: SimConfig, watch: W) -> Result<Self, SimError> {
        let mut sim = Self::empty(&config, watch);
        let pfc = config.pfc.as_ref();
        for switch in topology.switches() {
            let config = EngineConfig {
                filter_cnps: config.filter_cnps,
                ..engine_config(topology, &switch.name, config.seed)
            };
            let engine = start(&config)?;
            sim.add(
                &switch.name,
                Kind::Switch(Box::new(SwitchNode {
                    engine: switch.up.then_some(engine),
                    config,
                    out: [None; PortId::COUNT],
                    received: Vec::new(),
                    flow: None,
                    poll_waits: false,
                    service: None,
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
                    gate: pfc.map(|config| Gate::new(config.clone())),
                    completions: Vec::new(),
                    rank: None,
                    work: VecDeque::new(),
                    works: false,
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
                    Kind::Elsewhere => {}
                }
            }
        }
        sim.shards = Shards::new(config.threads, &sim.nodes, &sim.directions);
        sim.pfc = config.pfc;
        for node in 0..sim.nodes.len() {
            sim.start_flow(NodeId(node));
            sim.arm(NodeId(node));
        }
        Ok(sim)
    }

    /// Without nodes and links.
    fn empty(config: &SimConfig, watch: W) -> Self {
        Self {
            now: Nanos::ZERO,
            queue: EventQueue::new(),
            actions: BTreeMap::new(),
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            directions: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            poll_delay: config.poll_delay,
            pfc: None,
            host_cost: config.host_cost,
            is_routed: false,
            trace: Trace::new(config.trace_frames_max),
            watch,
            sent: Sent::default(),
            polled: Vec::new(),
            contiguous: Contiguous::default(),
            shifts: ShiftCache::new(),
            storms: Vec::new(),
            scratch: vec![0; Endpoint::FRAME_MAX],
            has_chance: config.links.has_chance(),
            events: 0,
            shards: Shards::default(),
            outboxes: Vec::new(),
        }
    }

    /// A simulation without nodes and links that handles events as this one does.
    pub(crate) fn shard(&self, shards: usize) -> Simulation {
        let config = SimConfig {
            poll_delay: self.poll_delay,
            host_cost: self.host_cost,
            ..SimConfig::new(0)
        };
        let mut shard = Simulation::empty(&config, ());
        shard.now = self.now;
        shard.outboxes.resize_with(shards, Vec::new);
        shard
    }

    /// Starts flow control at a switch, with empty queues.
    fn start_flow(&mut self, node: NodeId) {
        let (Some(config), Some(switch)) = (&self.pfc, self.nodes[node.0].switch_mut()) else {
            return;
        };
        let ports = switch.out.iter().enumerate();
        let ports = ports.fold(0, |bits, (slot, out)| bits | u64::from(out.is_some()) << slot);
        switch.flow = FlowControl::new(config, ports).map(Box::new);
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

    /// Current time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of handled events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The switch or host with this name.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// A view of all nodes.
    pub fn view(&self) -> View<'_> {
        View {
            now: self.now,
            nodes: &self.nodes,
        }
    }

    /// Endpoint of a host.
    pub fn endpoint(&self, host: &str) -> Option<&Endpoint> {
        self.view().endpoint(self.node(host)?)
    }

    /// Engine of a switch, if it runs.
    pub fn engine(&self, switch: &str) -> Option<&Engine> {
        self.view().engine(self.node(switch)?)
    }

    /// Completions of a host with their times, oldest first.
    pub fn completions(&self, host: &str) -> &[(Nanos, Completion)] {
        let node = self.node(host).and_then(|n| self.nodes[n.0].host());
        node.map_or(&[], |host| &host.completions)
    }

    /// Counters of both directions of a link: from its end `a`, and from its end `b`.
    pub fn stats(&self, link: LinkId) -> Option<[LinkStats; 2]> {
        let first = link.0 as usize * 2;
        Some([
            self.directions.get(first)?.stats,
            self.directions.get(first + 1)?.stats,
        ])
    }

    /// Sum of the counters of all links.
    pub fn totals(&self) -> LinkStats {
        let mut sum = LinkStats::default();
        for direction in &self.directions {
            sum.add(&direction.stats);
        }
        sum
    }

    /// Frames that reached a switch while it was stopped.
    pub fn missed(&self, switch: &str) -> u64 {
        self.node(switch)
            .and_then(|n| self.nodes[n.0].switch())
            .map_or(0, |s| s.missed)
    }

    /// MAC address of the switch port that a host is connected to: its next hop for all destinations.
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

    /// The observer.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// The observer.
    pub fn watch_mut(&mut self) -> &mut W {
        &mut self.watch
    }

    /// Sets the profiles of both directions of a link.
    pub fn set_profile(&mut self, link: LinkId, profiles: [LinkProfile; 2]) {
        self.has_chance |= profiles.iter().any(LinkProfile::has_chance);
        let first = link.0 as usize * 2;
        for (direction, profile) in self.directions.iter_mut().skip(first).zip(profiles) {
            direction.set_profile(profile);
        }
    }

    /// The processor of a switch takes time for each frame, instead of polling for all. Not for switches with flow control. Fails with
    /// [`SimError::NoSwitch`].
    pub fn set_switch_cost(&mut self, switch: &str, cost: SwitchCost) -> Result<(), SimError> {
        let node = self.node(switch);
        let ends = self.directions.iter();
        let hosts = ends.filter(|d| Some(d.from.0) == node && self.nodes[d.to.0.0].host().is_some());
        let hosts = hosts.map(|direction| direction.from.1).collect();
        let found = node.and_then(|node| self.nodes[node.0].switch_mut());
        let switch = found.ok_or_else(|| SimError::NoSwitch {
            switch: switch.into(),
        })?;
        switch.service = Some(Box::new(Service::new(cost, hosts)));
        Ok(())
    }

    /// Takes a link up or down. Frames in flight arrive.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.directions
            .iter_mut()
            .skip(link.0 as usize * 2)
            .take(2)
            .for_each(|d| d.up = up);
    }

    /// Whether a port of a switch has a link that is up.
    pub fn is_port_up(&self, switch: &str, port: PortId) -> bool {
        let found = self.node(switch).and_then(|node| self.nodes[node.0].switch());
        let out = found.and_then(|switch| switch.out[port.index()]);
        out.is_some_and(|number| self.directions[number].up)
    }

    /// Calls `act` on the endpoint of a host, then sends what results. `None` if there is no such host.
    pub fn with_endpoint<R>(&mut self, host: &str, act: impl FnOnce(&mut Endpoint, Nanos) -> R) -> Option<R> {
        let (node, now) = (self.node(host)?, self.now);
        let result = act(&mut self.nodes[node.0].host_mut()?.endpoint, now);
        self.serve_host(node);
        Some(result)
    }

    /// Calls `act` on the engine of a switch. `None` if there is no such switch, or it is stopped.
    pub fn with_engine<R>(&mut self, switch: &str, act: impl FnOnce(&mut Engine, Nanos) -> R) -> Option<R> {
        let (node, now) = (self.node(switch)?, self.now);
        let result = act(self.nodes[node.0].switch_mut()?.engine.as_mut()?, now);
        self.arm(node);
        Some(result)
    }

    /// Installs a group on a switch, or fails with [`SimError::NoSwitch`] or [`SimError::Install`].
    pub fn install(&mut self, switch: &str, group: &GroupRule) -> Result<(), SimError> {
        self.install_at(switch, |engine, now| {
            let group = Context::compile(group, &engine.config().ports)?;
            engine
                .install(now, group)
                .map(drop)
                .map_err(|(refused, _)| refused)
        })
    }

    pub(crate) fn install_at(
        &mut self,
        switch: &str,
        install: impl FnOnce(&mut Engine, Nanos) -> Result<(), InstallError>,
    ) -> Result<(), SimError> {
        match self.with_engine(switch, install) {
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

    /// Installs the rules of a plan on all its switches, as [`Simulation::install`] does.
    pub fn install_plan(&mut self, plan: &Plan) -> Result<(), SimError> {
        plan.rules
            .iter()
            .try_for_each(|(switch, rule)| self.install(switch, rule))
    }

    /// Stops a switch. It loses its state, and frames that reach it are lost.
    pub fn stop_switch(&mut self, switch: &str) {
        let Some(node) = self.node(switch) else { return };
        if let Some(switch) = self.nodes[node.0].switch_mut() {
            switch.engine = None;
            switch.service.iter_mut().for_each(|service| service.stop());
            switch.missed += switch.received.drain(..).count() as u64;
            self.watch.stopped(node);
        }
    }

    /// Starts a stopped switch with empty state: no groups, nothing learned. Fails with [`SimError::NoSwitch`].
    pub fn start_switch(&mut self, switch: &str) -> Result<(), SimError> {
        let no_switch = || SimError::NoSwitch {
            switch: switch.into(),
        };
        let node = self.node(switch).ok_or_else(no_switch)?;
        let stopped = self.nodes[node.0].switch_mut().ok_or_else(no_switch)?;
        stopped.engine = Some(start(&stopped.config)?);
        self.start_flow(node);
        self.arm(node);
        Ok(())
    }

    /// Schedules an action. If `at` has passed, it runs next, after other events of the current time.
    pub fn at(&mut self, at: Nanos, action: impl FnOnce(&mut Self) + Send + 'static) {
        let key = Key::new(at.max(self.now), self.now, u8::MAX);
        self.actions.entry(key).or_default().push_back(Box::new(action));
    }

    /// Sends a frame on the link of a host. Returns false if there is no such host.
    pub fn inject(&mut self, host: &str, frame: Vec<u8>) -> bool {
        let out = self.node(host).and_then(|n| self.nodes[n.0].host()?.out);
        out.map(|direction| self.send(direction, Frame::new(&frame)))
            .is_some()
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
        flows: 256,
        fdb_capacity: 256,
        neighbours_max: 64,
        lldp_interval: None,
        events_max: 64,
        hash_seed: seed,
        ..EngineConfig::new(name, ports.collect())
    }
}
