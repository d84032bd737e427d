//! The control side of a dataplane: the installed groups and routes, their workers, and the publication of tables.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use castnet_engine::{
    Context, GroupKey, InstallError as Refused, Members, Owners, PortInfo, PortSet, RegistrationConfig,
    SourceGuard, Tables, port_count,
};
use castnet_pfc::PfcShared;
use castnet_port::{PortLink, Waker};
use castnet_rules::{GroupIndex, GroupRule, Ipv4Net, NamedBy, Route, RuleSet, lane_of};
use castnet_wire::{MacAddr, McstId, Nanos, PortId};
use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::balance::expected_load;
use crate::command::Command;
use crate::config::DataplaneConfig;
use crate::error::{InstallError, RouteError, Stopped};
use crate::events::{Subscribers, SwitchEvent, SwitchEventKind};
use crate::published::Published;
use crate::report::Report;
use crate::steering::FlowTables;
use crate::worker::port_infos;

/// Nanoseconds since the start, for all workers.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    origin: quanta::Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let clock = quanta::Clock::new();
        Self {
            origin: clock.now(),
            clock,
        }
    }

    /// For tests: advances only when the test says so, at one nanosecond per tick.
    #[cfg(test)]
    pub(crate) fn mock() -> (Self, Arc<quanta::Mock>) {
        let (clock, hand) = quanta::Clock::mock();
        let origin = clock.now();
        (Self { clock, origin }, hand)
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.clock.now().saturating_duration_since(self.origin).as_nanos() as u64)
    }

    /// The processor's counter (TSC), or its substitute.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.raw()
    }

    pub(crate) fn ticks_per_second(&self) -> u64 {
        const MANY: u64 = 1 << 32;
        let nanos = self.clock.delta_as_nanos(0, MANY).max(1);
        (u128::from(MANY) * 1_000_000_000 / u128::from(nanos)) as u64
    }

    /// As the machine's clock has it now: it may have been set since the start.
    pub(crate) fn time_of_day(&self, at: Nanos) -> SystemTime {
        let today = SystemTime::now();
        let [at, now] = [at, self.now()].map(|time| Duration::from_nanos(time.0));
        (today + at).checked_sub(now).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

pub(crate) struct WorkerHandle {
    pub(crate) commands: Sender<Command>,
    pub(crate) waker: Waker,
    pub(crate) generation_in_use: Arc<AtomicU64>,
    /// Expires when the worker ends.
    pub(crate) alive: Weak<()>,
}

/// How often a caller that waits for a worker checks that the worker is alive.
const ALIVE_CHECK: Duration = Duration::from_millis(50);

impl WorkerHandle {
    /// Sends a command. Blocks while the queue is full.
    pub(crate) fn send(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// Without groups.
    pub(crate) fn report(&self) -> Result<Box<Report>, Stopped> {
        let mut report = Report::new();
        report.counters.next_group = usize::MAX;
        self.request(|reply| Command::Report(report, reply))
    }

    pub(crate) fn request<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, Stopped> {
        let (reply, answer) = bounded(1);
        self.send(command(reply))?;
        loop {
            match answer.recv_timeout(ALIVE_CHECK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                // A worker that ended with commands in its queue keeps their reply channels open.
                Err(RecvTimeoutError::Timeout) if self.alive.strong_count() == 0 => {
                    return answer.try_recv().map_err(|_| Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The number of groups that use each port.
#[derive(Clone, Copy)]
pub(crate) struct PortCounts(pub(crate) [usize; PortId::COUNT]);

impl Default for PortCounts {
    fn default() -> Self {
        Self([0; PortId::COUNT])
    }
}

/// What decides whether a port is up.
struct PortStates {
    /// Ports with a link, as workers have reported.
    linked: PortSet,
    /// Why ports have no interface.
    reasons: BTreeMap<PortId, String>,
}

impl PortStates {
    fn up(&self) -> PortSet {
        let without = self.reasons.keys();
        without.fold(self.linked, |up, port| up.without(*port))
    }
}

pub(crate) struct RegisteredGroup {
    /// With its endpoints in the engine's order.
    pub(crate) rule: GroupRule,
    pub(crate) worker: usize,
    pub(crate) memory: usize,
}

/// A function that changes it holds its lock until the workers use the change.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) groups: BTreeMap<McstId, RegisteredGroup>,
    index: GroupIndex,
    owners: Owners,
    members: Members,
    /// Hosts register groups with the addresses of its pool.
    registration: Option<RegistrationConfig>,
    routes: BTreeMap<Ipv4Net, Route>,
    /// Those published last.
    tables: Tables,
    /// Bytes of all groups.
    memory_used: usize,
    groups_per_worker: Vec<usize>,
    pub(crate) groups_per_port: PortCounts,
    /// Lanes per worker, by name of the group that has the lanes.
    lanes_per_worker: BTreeMap<String, Vec<usize>>,
    pub(crate) generation: u64,
    /// A group is being moved: no frame may be dropped between workers.
    pub(crate) patient: bool,
    /// Per worker, the last measured load and the number of groups added since. Empty if load is not measured.
    loads: Vec<(f64, usize)>,
    /// Tables that a worker may still use. They are kept so that control frees them, not a worker.
    retired: Vec<Arc<Published>>,
}

/// Result of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The group is new.
    New {
        /// The worker that serves the group.
        worker: usize,
    },
    /// The rule replaced another version. The state of the group is reset.
    Replaced {
        /// The generation of the replaced version.
        before: u64,
    },
    /// The same rule was already installed. Nothing has changed.
    Unchanged,
}

pub(crate) struct SharedControl {
    pub(crate) config: Arc<DataplaneConfig>,
    pub(crate) clock: Clock,
    pub(crate) infos: Vec<PortInfo>,
    pub(crate) links: Vec<PortLink>,
    /// Ports that are up.
    up: AtomicU64,
    port_states: Mutex<PortStates>,
    /// Current MTUs in the order of `infos`, which has those at start.
    mtus: Vec<AtomicUsize>,
    published: Arc<ArcSwap<Published>>,
    pub(crate) state: Mutex<State>,
    /// Write-locked during a move, read-locked by readers that need a stable assignment. Locked before `state`.
    pub(crate) moves: RwLock<()>,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) flow_tables: FlowTables,
    pub(crate) subscribers: Subscribers,
    pub(crate) events_lost: Arc<AtomicU64>,
    pub(crate) pfc: Arc<PfcShared>,
    /// Taps in use: bit n is set for [`TapId`](castnet_engine::TapId) n.
    pub(crate) taps: AtomicU64,
}

impl SharedControl {
    pub(crate) fn new(
        config: Arc<DataplaneConfig>,
        clock: Clock,
        (workers, links, flow_tables): (Vec<WorkerHandle>, Vec<PortLink>, FlowTables),
        published: Arc<ArcSwap<Published>>,
        events_lost: Arc<AtomicU64>,
        pfc: Arc<PfcShared>,
    ) -> Self {
        let infos = port_infos(&config, &links);
        let state = State {
            registration: config.engine.registration.clone(),
            ..State::default()
        };
        let up: PortSet = infos
            .iter()
            .zip(&links)
            .filter(|(_, l)| l.up)
            .map(|(i, _)| i.id)
            .collect();
        let shared = Self {
            config,
            clock,
            links,
            up: AtomicU64::new(up.0),
            port_states: Mutex::new(PortStates {
                linked: up,
                reasons: BTreeMap::new(),
            }),
            mtus: infos.iter().map(|i| AtomicUsize::new(i.mtu)).collect(),
            infos,
            published,
            state: Mutex::new(state),
            moves: RwLock::default(),
            workers,
            flow_tables,
            subscribers: Subscribers::default(),
            events_lost,
            pfc,
            taps: AtomicU64::default(),
        };
        shared.publish(&mut shared.state.lock());
        shared
    }

    pub(crate) fn is_up(&self, port: PortId) -> bool {
        PortSet(self.up.load(Ordering::Relaxed)).contains(port)
    }

    pub(crate) fn port_name(&self, port: PortId) -> String {
        self.infos
            .iter()
            .find(|i| i.id == port)
            .map(|i| i.name.clone())
            .unwrap_or_default()
    }

    /// With their current MTUs.
    pub(crate) fn infos_now(&self) -> Vec<PortInfo> {
        let mut infos = self.infos.clone();
        for (info, mtu) in infos.iter_mut().zip(&self.mtus) {
            info.mtu = mtu.load(Ordering::Relaxed);
        }
        infos
    }

    /// Why a port has no interface. `None` if it has one.
    pub(crate) fn no_interface(&self, port: PortId) -> Option<String> {
        self.port_states.lock().reasons.get(&port).cloned()
    }

    /// A worker reports a link. Returns the event if the port has changed.
    pub(crate) fn set_link(&self, port: PortId, up: bool, mtu: usize) -> Option<SwitchEventKind> {
        self.change_port(port, |states, mtu_now| {
            match up {
                true => states.linked.insert(port),
                false => states.linked = states.linked.without(port),
            }
            mtu_now.store(mtu, Ordering::Relaxed);
        })
    }

    /// The port has no interface, for this reason, or has one again. Returns the event if the port has changed.
    pub(crate) fn set_interface(&self, port: PortId, reason: Option<String>) -> Option<SwitchEventKind> {
        self.change_port(port, |states, _| {
            match reason {
                Some(reason) => states.reasons.insert(port, reason),
                None => states.reasons.remove(&port),
            };
        })
    }

    fn change_port(
        &self,
        port: PortId,
        change: impl FnOnce(&mut PortStates, &AtomicUsize),
    ) -> Option<SwitchEventKind> {
        let mut state = self.state.lock();
        let port_index = self.infos.iter().position(|info| info.id == port)?;
        let mtu = &self.mtus[port_index];
        let mut states = self.port_states.lock();
        let event = |states: &PortStates| SwitchEventKind::Port {
            port,
            name: self.infos[port_index].name.clone(),
            up: states.up().contains(port),
            mtu: mtu.load(Ordering::Relaxed),
            reason: states.reasons.get(&port).cloned(),
        };
        let before = event(&states);
        change(&mut states, mtu);
        self.up.store(states.up().0, Ordering::Relaxed);
        let after = event(&states);
        drop(states);
        if after == before {
            return None;
        }
        self.publish(&mut state);
        Some(after)
    }

    /// Workers load the new tables before their next batch.
    pub(crate) fn publish(&self, state: &mut State) {
        state.generation += 1;
        let up = PortSet(self.up.load(Ordering::Relaxed));
        let mtus = self.infos.iter().zip(&self.mtus);
        let mtus = mtus.map(|(info, mtu)| (info.id, mtu.load(Ordering::Relaxed)));
        // Unchanged parts share memory with the tables published before.
        let tables = &mut state.tables;
        (tables.generation, tables.up) = (state.generation, up);
        tables.owners = state.owners.clone();
        tables.members = state.members.clone();
        tables.mtus = mtus.collect();
        let published = Published::new(state.tables.clone(), state.patient || self.config.patient);
        let before = self.published.swap(Arc::new(published));
        state.retired.push(before);
        let oldest = self
            .workers
            .iter()
            .map(|w| w.generation_in_use.load(Ordering::Acquire))
            .min()
            .unwrap_or(0);
        state.retired.retain(|tables| tables.generation() >= oldest);
        self.workers.iter().for_each(|w| w.waker.wake());
        self.steer(state);
    }

    /// Until a device's rule is active, workers hand the group's frames over.
    fn steer(&self, state: &State) {
        // The frames of a moving group are held. Its rule is updated after the move.
        if state.patient {
            return;
        }
        let groups = state
            .groups
            .iter()
            .map(|(mcst_id, group)| (*mcst_id, group.worker));
        for port_index in self.flow_tables.steer(groups) {
            let name = self.infos.get(port_index).map(|info| info.name.as_str());
            let steered = self.flow_tables.result(port_index).unwrap_or_default();
            tracing::info!(
                port = name.unwrap_or_default(),
                rules = steered.rules,
                refused = steered.refused,
                reason = steered.reason,
                "no flow rule for some groups: their frames arrive at any queue, and workers hand them over"
            );
        }
    }

    pub(crate) fn publish_and_wait(&self, state: &mut State) -> Result<(), Stopped> {
        self.publish(state);
        for worker in &self.workers {
            worker.request(Command::Sync)?;
        }
        Ok(())
    }

    pub(crate) fn install_together<T>(
        &self,
        install: impl FnOnce(&mut Installer<'_>) -> T,
    ) -> Result<T, Stopped> {
        let mut installer = Installer {
            shared: self,
            state: self.state.lock(),
            infos: self.infos_now(),
            events: Vec::new(),
        };
        let result = install(&mut installer);
        let Installer {
            mut state, events, ..
        } = installer;
        if !events.is_empty() {
            self.publish_and_wait(&mut state)?;
        }
        drop(state);
        events.into_iter().for_each(|kind| self.send_event(kind));
        Ok(result)
    }

    /// The group is served once the tables are published.
    fn install_unpublished(
        &self,
        state: &mut State,
        infos: &[PortInfo],
        rule: &GroupRule,
    ) -> Result<Installed, InstallError> {
        let rule = &*self.resolve(state, rule)?;
        // Slots can be large, so a context that reserves memory is compiled only after the limits are checked.
        let mut made = None;
        let memory = match Context::reserved(rule, infos)? {
            Some(bytes) => bytes,
            None => made.insert(Context::compile(rule, infos)?).memory_bytes(),
        };
        let before = state.check(rule)?;
        let ordered = rule.clone().in_order();
        if before.as_ref().is_some_and(|(_, running)| *running == ordered) {
            return Ok(Installed::Unchanged);
        }
        self.check_limits(state, rule.mcst_id, memory)?;
        let worker = match &before {
            Some((worker, _)) => *worker,
            None => state.choose_worker(&rule.name, self.workers.len()),
        };
        let group = made.map_or_else(|| Context::compile(rule, infos), Ok)?;
        let handle = self.workers.get(worker).ok_or(Stopped)?;
        // The worker returns the replaced context, or the new one if both are equal or it is refused. Control frees it.
        let answer = handle.request(|reply| Command::Install(group, reply))?;
        drop(answer.map_err(|(refused, _)| refused)?);
        if let (None, Some((_, since))) = (&before, state.loads.get_mut(worker)) {
            *since += 1;
        }
        state.unregister(rule.mcst_id);
        state.register(RegisteredGroup {
            rule: ordered,
            worker,
            memory,
        });
        Ok(match before {
            None => Installed::New { worker },
            Some((_, running)) => Installed::Replaced {
                before: running.generation,
            },
        })
    }

    /// Limits of the whole switch. Each engine alone would allow as much.
    fn check_limits(&self, state: &State, mcst_id: McstId, need: usize) -> Result<(), Refused> {
        let replaced = state.groups.get(&mcst_id).map(|g| g.memory);
        let max = self.config.engine.groups_max;
        if replaced.is_none() && state.groups.len() >= max {
            return Err(Refused::GroupsFull { max });
        }
        let max = self.config.engine.memory_bytes_max;
        let used = state.memory_used;
        let left = (max + replaced.unwrap_or(0)).saturating_sub(used);
        if need > left {
            Err(Refused::NoMemory { need, left, max })
        } else {
            Ok(())
        }
    }

    pub(crate) fn remove(&self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        let mut state = self.state.lock();
        let Some(group) = state.unregister(mcst_id) else {
            return Ok(None);
        };
        // Hand-over to the group's worker must stop first.
        self.publish_and_wait(&mut state)?;
        let handle = self.workers.get(group.worker).ok_or(Stopped)?;
        drop(handle.request(|reply| Command::Remove(mcst_id, reply))?);
        drop(state);
        self.send_event(SwitchEventKind::GroupRemoved {
            mcst_id,
            name: group.rule.name.clone(),
        });
        Ok(Some(group.rule))
    }

    pub(crate) fn set_routes(&self, routes: Vec<Route>) -> Result<(), RouteError> {
        self.check_routes(&routes)?;
        let mut state = self.state.lock();
        state.routes = routes.into_iter().map(|r| (r.prefix, r)).collect();
        state.compile_routes();
        Ok(self.publish_and_wait(&mut state)?)
    }

    pub(crate) fn add_route(&self, route: Route) -> Result<bool, RouteError> {
        self.check_routes(std::slice::from_ref(&route))?;
        let mut state = self.state.lock();
        let replaced = state.routes.insert(route.prefix, route).is_some();
        state.compile_routes();
        self.publish_and_wait(&mut state)?;
        Ok(replaced)
    }

    /// Returns how many routes are new or different, and how many are gone.
    pub(crate) fn set_routes_within(
        &self,
        scope: &[Ipv4Net],
        routes: Vec<Route>,
    ) -> Result<(usize, usize), RouteError> {
        self.check_routes(&routes)?;
        let mut state = self.state.lock();
        let before = state.routes.len();
        let prefixes: BTreeSet<Ipv4Net> = routes.iter().map(|route| route.prefix).collect();
        let is_within = |prefix: &Ipv4Net| scope.iter().any(|scope| scope.contains(prefix));
        state
            .routes
            .retain(|prefix, _| prefixes.contains(prefix) || !is_within(prefix));
        let removed = before - state.routes.len();
        let mut added = 0;
        for route in routes {
            if state.routes.get(&route.prefix) != Some(&route) {
                added += 1;
                state.routes.insert(route.prefix, route);
            }
        }
        if added + removed > 0 {
            state.compile_routes();
            self.publish_and_wait(&mut state)?;
        }
        Ok((added, removed))
    }

    pub(crate) fn set_source_guards(&self, guards: Vec<SourceGuard>) -> Result<(), Stopped> {
        let mut state = self.state.lock();
        if *state.tables.guards != *guards {
            state.tables.guards = guards.into();
            self.publish_and_wait(&mut state)?;
        }
        Ok(())
    }

    pub(crate) fn remove_route(&self, prefix: Ipv4Net) -> Result<bool, Stopped> {
        let mut state = self.state.lock();
        let removed = state.routes.remove(&prefix).is_some();
        if removed {
            state.compile_routes();
            self.publish_and_wait(&mut state)?;
        }
        Ok(removed)
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        self.state.lock().routes.values().cloned().collect()
    }

    fn check_routes(&self, routes: &[Route]) -> Result<(), RouteError> {
        let set = RuleSet {
            routes: routes.to_vec(),
            ..RuleSet::default()
        };
        let faults = set.check(port_count(&self.infos));
        if !faults.is_empty() {
            return Err(RouteError::Faults(faults));
        }
        for route in routes {
            let is_known = |port| self.infos.iter().any(|info| info.id == port);
            if let Some(hop) = route.next_hops.iter().find(|hop| !is_known(hop.port)) {
                return Err(RouteError::NoPort {
                    prefix: route.prefix.to_string(),
                    port: hop.port,
                });
            }
        }
        Ok(())
    }

    pub(crate) fn name_of(&self, mcst_id: McstId) -> Option<String> {
        let state = self.state.lock();
        state.groups.get(&mcst_id).map(|g| g.rule.name.clone())
    }

    pub(crate) fn send_event(&self, kind: SwitchEventKind) {
        self.subscribers.send(&SwitchEvent {
            at: self.clock.now(),
            kind,
        });
    }
}

/// Installs groups that are published together: [`Dataplane::install_together`](crate::Dataplane::install_together).
pub struct Installer<'d> {
    shared: &'d SharedControl,
    state: MutexGuard<'d, State>,
    /// They cannot change while `state` is locked.
    infos: Vec<PortInfo>,
    events: Vec<SwitchEventKind>,
}

impl Installer<'_> {
    /// `None` if there is no such group.
    pub fn rule(&self, mcst_id: McstId) -> Option<&GroupRule> {
        self.state.groups.get(&mcst_id).map(|g| &g.rule)
    }

    /// Fills in the next hops' Ethernet addresses that the rule leaves open and the switch knows. Sources are
    /// the running rule of the same generation, the routes, and ARP.
    pub fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped> {
        self.shared.resolve(&self.state, rule)
    }

    /// Installs a group, or a new version of one, with its next hops [resolved](Installer::resolve).
    ///
    /// # Errors
    /// As [`Dataplane::install`](crate::Dataplane::install). An error does not affect the other groups.
    pub fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError> {
        let installed = self
            .shared
            .install_unpublished(&mut self.state, &self.infos, rule)?;
        if installed != Installed::Unchanged {
            self.events.push(SwitchEventKind::GroupInstalled {
                mcst_id: rule.mcst_id,
                name: rule.name.clone(),
                generation: rule.generation,
            });
        }
        Ok(installed)
    }
}

impl State {
    /// Returns the worker and rule of the running version.
    fn check(&self, rule: &GroupRule) -> Result<Option<(usize, GroupRule)>, InstallError> {
        let name = rule.name.as_str();
        // A group with this address but another name is a clash, not an older version.
        let running = self.groups.get(&rule.mcst_id).filter(|g| g.rule.name == name);
        let instead_of = running.map(|g| g.rule.name.as_str());
        let faults = self.index.check(rule, self.named_by(rule), instead_of);
        if !faults.is_empty() {
            return Err(InstallError::Clash(faults));
        }
        let Some(running) = running else {
            return Ok(None);
        };
        if running.rule.generation > rule.generation {
            return Err(InstallError::Older {
                name: name.into(),
                running: running.rule.generation,
                given: rule.generation,
            });
        }
        Ok(Some((running.worker, running.rule.clone())))
    }

    pub(crate) fn set_loads(&mut self, busy: &[f64]) {
        self.loads.clear();
        self.loads.extend(busy.iter().map(|busy| (*busy, 0)));
    }

    /// Changes the number of groups of each port of a rule by `more`.
    fn count_ports(&mut self, rule: &GroupRule, more: isize) {
        let ports: PortSet = rule.endpoints.iter().map(|e| e.port).collect();
        for port in ports {
            let count = &mut self.groups_per_port.0[port.index()];
            *count = count.saturating_add_signed(more);
        }
    }

    /// Who has named the members of a group. Only those that control names stay neighbours at their ports: those that a host names would
    /// displace the neighbours at other ports, or could not move, and a controller could not have them as members.
    fn named_by(&self, rule: &GroupRule) -> NamedBy {
        match &self.registration {
            Some(config) if config.covers(rule.mcst_id.0) => NamedBy::Host,
            _ => NamedBy::Control,
        }
    }

    fn register(&mut self, group: RegisteredGroup) {
        let named_by = self.named_by(&group.rule);
        self.index.insert(&group.rule, named_by);
        if named_by == NamedBy::Control {
            self.members.add(&group.rule);
        }
        self.memory_used += group.memory;
        self.count(&group, 1);
        self.count_ports(&group.rule, 1);
        for key in GroupKey::of_group(&group.rule) {
            self.owners.insert(key, group.worker);
        }
        self.groups.insert(group.rule.mcst_id, group);
    }

    fn unregister(&mut self, mcst_id: McstId) -> Option<RegisteredGroup> {
        let group = self.groups.remove(&mcst_id)?;
        let named_by = self.named_by(&group.rule);
        self.index.remove(&group.rule, named_by);
        if named_by == NamedBy::Control {
            self.members.remove(&group.rule);
        }
        self.memory_used -= group.memory;
        self.count(&group, -1);
        self.count_ports(&group.rule, -1);
        GroupKey::of_group(&group.rule).for_each(|key| self.owners.remove(key));
        Some(group)
    }

    pub(crate) fn reassign(&mut self, mcst_id: McstId, worker: usize) {
        if let Some(mut group) = self.unregister(mcst_id) {
            group.worker = worker;
            self.register(group);
        }
    }

    /// From the route to `ip` with the longest prefix.
    pub(crate) fn next_hop_mac(&self, ip: Ipv4Addr, port: PortId) -> Option<MacAddr> {
        let routes = self.routes.values().filter(|route| route.prefix.contains(&ip));
        let longest = routes.max_by_key(|route| route.prefix.prefix_len())?;
        let hop = longest.next_hops.iter().find(|hop| hop.port == port)?;
        Some(hop.mac)
    }

    fn compile_routes(&mut self) {
        let routes: Vec<Route> = self.routes.values().cloned().collect();
        self.tables.set_routes(&routes);
    }

    /// Changes the number of groups and lanes of the group's worker by `more`.
    fn count(&mut self, group: &RegisteredGroup, more: isize) {
        let worker = group.worker;
        let add = |counts: &mut Vec<usize>| {
            counts.resize(counts.len().max(worker + 1), 0);
            counts[worker] = counts[worker].saturating_add_signed(more);
        };
        add(&mut self.groups_per_worker);
        if let Some((of, _)) = lane_of(&group.rule.name) {
            let lanes = self.lanes_per_worker.entry(of.to_owned()).or_default();
            add(lanes);
            if lanes.iter().all(|n| *n == 0) {
                self.lanes_per_worker.remove(of);
            }
        }
    }

    /// The least loaded worker as far as the load is known, then the one with the fewest groups, then the first. Lanes
    /// go to the worker with the fewest other lanes of the same group.
    fn choose_worker(&self, name: &str, workers: usize) -> usize {
        let of = lane_of(name).and_then(|(group, _)| self.lanes_per_worker.get(group));
        let count = |counts: &Vec<usize>, worker: usize| counts.get(worker).copied().unwrap_or(0);
        // Key per worker: other lanes of the same group, expected load, groups.
        let key = |&worker: &usize| {
            let lanes = of.map_or(0, |lanes| count(lanes, worker));
            let groups = count(&self.groups_per_worker, worker);
            let load = self.loads.get(worker);
            let expected = load.map_or(0, |(busy, since)| expected_load(*busy, *since, groups));
            (lanes, expected, groups)
        };
        (0..workers).min_by_key(key).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a switch that had started before its machine knew the time gave all captures wrong times.
    #[test]
    fn the_time_of_day_is_what_the_machine_has_now() {
        const DAY: Duration = Duration::from_secs(86_400);
        let (clock, hand) = Clock::mock();
        hand.increment(10 * DAY.as_nanos() as u64);
        let (before, at) = (SystemTime::now(), clock.now());
        let now = clock.time_of_day(at);
        assert!(before <= now && now <= SystemTime::now(), "{now:?}");
        assert!(clock.time_of_day(Nanos::ZERO) < now - 9 * DAY);
    }
}
