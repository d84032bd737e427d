//! The control side of a dataplane: what is installed, who has it, and how that reaches the workers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use castnet_engine::{
    Context, InstallError as Refused, Members, Owners, PortInfo, PortSet, Tables, port_count,
};
use castnet_port::{PortLink, Waker};
use castnet_rules::{GroupIndex, GroupRule, Ipv4Net, Route, RuleSet, lane_of};
use castnet_wire::{MacAddr, McstId, Nanos, PortId};
use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::balance::expected;
use crate::command::Command;
use crate::config::DataplaneConfig;
use crate::error::{InstallError, RouteError, Stopped};
use crate::events::{Listeners, SwitchEvent, SwitchEventKind};
use crate::published::Published;
use crate::steering::FlowTables;
use crate::worker::port_infos;

/// One clock for all workers: nanoseconds since the start, and what time of day that was.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    origin: quanta::Instant,
    started: SystemTime,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.now();
        Self {
            clock,
            origin,
            started: SystemTime::now(),
        }
    }

    /// One that goes on when the test says so, a nanosecond a tick.
    #[cfg(test)]
    pub(crate) fn mock() -> (Self, Arc<quanta::Mock>) {
        let (clock, hand) = quanta::Clock::mock();
        let (origin, started) = (clock.now(), SystemTime::UNIX_EPOCH);
        let clock = Self {
            clock,
            origin,
            started,
        };
        (clock, hand)
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.clock.now().saturating_duration_since(self.origin).as_nanos() as u64)
    }

    /// The processor's counter, or what stands in for it.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.raw()
    }

    /// Its ticks per second.
    pub(crate) fn ticks_per_second(&self) -> u64 {
        const MANY: u64 = 1 << 32;
        let nanos = self.clock.delta_as_nanos(0, MANY).max(1);
        (u128::from(MANY) * 1_000_000_000 / u128::from(nanos)) as u64
    }

    pub(crate) fn time_of_day(&self, at: Nanos) -> SystemTime {
        self.started + Duration::from_nanos(at.0)
    }
}

/// How control reaches one worker.
pub(crate) struct Handle {
    commands: Sender<Command>,
    waker: Waker,
    seen: Arc<AtomicU64>,
    /// Gone when the worker is.
    life: Weak<()>,
}

/// How often one who waits for a worker makes sure that it lives.
const LIFE_CHECK: Duration = Duration::from_millis(50);

impl Handle {
    pub(crate) fn new(commands: Sender<Command>, waker: Waker, seen: Arc<AtomicU64>, life: Weak<()>) -> Self {
        Self {
            commands,
            waker,
            seen,
            life,
        }
    }

    /// Sends a command, waiting where the queue is full.
    pub(crate) fn send(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, Stopped> {
        let (reply, answer) = bounded(1);
        self.send(command(reply))?;
        loop {
            match answer.recv_timeout(LIFE_CHECK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                // A command that a worker left in its queue keeps its answer's channel open.
                Err(RecvTimeoutError::Timeout) if self.life.strong_count() == 0 => {
                    return answer.try_recv().map_err(|_| Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// A group as control remembers it.
pub(crate) struct Registered {
    /// Its endpoints in the engine's order.
    pub(crate) rule: GroupRule,
    pub(crate) worker: usize,
    pub(crate) memory: usize,
}

/// What is installed. Whoever changes it holds its lock until the workers have it.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) groups: BTreeMap<McstId, Registered>,
    index: GroupIndex,
    /// What is published of the groups.
    owners: Owners,
    members: Members,
    routes: BTreeMap<Ipv4Net, Route>,
    /// What was published last.
    tables: Tables,
    /// Bytes that all groups take, and how many groups each worker has.
    memory_used: usize,
    groups_of: Vec<usize>,
    /// By name of a group with lanes, how many of them each worker has.
    lanes_of: BTreeMap<String, Vec<usize>>,
    generation: u64,
    /// Whether a group moves, so that no frame may be lost between workers.
    pub(crate) patient: bool,
    /// How busy the workers were when last looked at, and how many groups each got since; empty where nobody looks.
    loads: Vec<(f64, usize)>,
    /// Tables that a worker may still use; freed here and not there.
    retired: Vec<Arc<Published>>,
}

/// What an installation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// It is new, and this worker has it.
    New {
        /// The worker.
        worker: usize,
    },
    /// It took the place of another version, with fresh state.
    Replaced {
        /// The generation that ran before.
        before: u64,
    },
    /// The very same rule runs already; nothing was touched.
    Unchanged,
}

/// All that control, keeper and streams share.
pub(crate) struct Shared {
    pub(crate) config: Arc<DataplaneConfig>,
    pub(crate) clock: Clock,
    pub(crate) infos: Vec<PortInfo>,
    pub(crate) links: Vec<PortLink>,
    up: AtomicU64,
    /// In the order of `infos`, whose own are those of the start.
    mtus: Vec<AtomicUsize>,
    published: Arc<ArcSwap<Published>>,
    pub(crate) state: Mutex<State>,
    /// Held while a group moves, and while somebody reads what must not be read then. Taken before `state`.
    pub(crate) moves: RwLock<()>,
    pub(crate) workers: Vec<Handle>,
    pub(crate) flow_tables: FlowTables,
    pub(crate) listeners: Listeners,
    pub(crate) events_lost: Arc<AtomicU64>,
    /// The numbers of subscribers that are taken: bit n for [`TapId`](castnet_engine::TapId) n.
    pub(crate) taps: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        config: Arc<DataplaneConfig>,
        clock: Clock,
        links: Vec<PortLink>,
        published: Arc<ArcSwap<Published>>,
        workers: Vec<Handle>,
        flow_tables: FlowTables,
        events_lost: Arc<AtomicU64>,
    ) -> Self {
        let infos = port_infos(&config, &links);
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
            mtus: infos.iter().map(|i| AtomicUsize::new(i.mtu)).collect(),
            infos,
            published,
            state: Mutex::default(),
            moves: RwLock::default(),
            workers,
            flow_tables,
            listeners: Listeners::default(),
            events_lost,
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

    /// The ports as they are now.
    pub(crate) fn infos_now(&self) -> Vec<PortInfo> {
        let mut infos = self.infos.clone();
        for (info, mtu) in infos.iter_mut().zip(&self.mtus) {
            info.mtu = mtu.load(Ordering::Relaxed);
        }
        infos
    }

    /// A port's link came or went, or its MTU changed.
    pub(crate) fn set_link(&self, port: PortId, up: bool, mtu: usize) {
        let mut state = self.state.lock();
        if let Some(place) = self.infos.iter().position(|i| i.id == port) {
            self.mtus[place].store(mtu, Ordering::Relaxed);
        }
        let bit = 1 << port.index();
        match up {
            true => self.up.fetch_or(bit, Ordering::Relaxed),
            false => self.up.fetch_and(!bit, Ordering::Relaxed),
        };
        self.publish(&mut state);
    }

    /// Gives all workers new tables of what is in `state`; they take them before their next batch.
    pub(crate) fn publish(&self, state: &mut State) {
        state.generation += 1;
        let up = PortSet(self.up.load(Ordering::Relaxed));
        let mtus = self.infos.iter().zip(&self.mtus);
        let mtus = mtus.map(|(info, mtu)| (info.id, mtu.load(Ordering::Relaxed)));
        // What did not change shares its memory with what was published before.
        state.tables = state
            .tables
            .next(state.generation, up)
            .with_owners(state.owners.clone())
            .with_members(state.members.clone())
            .with_mtus(mtus);
        let published = Published::new(state.tables.clone()).patient(state.patient || self.config.patient);
        let before = self.published.swap(Arc::new(published));
        state.retired.push(before);
        let oldest = self
            .workers
            .iter()
            .map(|w| w.seen.load(Ordering::Acquire))
            .min()
            .unwrap_or(0);
        state.retired.retain(|tables| tables.generation() >= oldest);
        self.workers.iter().for_each(|w| w.waker.wake());
        self.steer(state);
    }

    /// Tells devices where each group's frames are to come in. Until they do, workers hand them over.
    fn steer(&self, state: &State) {
        // A group that is on its way from worker to worker is held; its rule follows once it is there.
        if state.patient {
            return;
        }
        let groups = state
            .groups
            .iter()
            .map(|(mcst_id, group)| (*mcst_id, group.worker));
        for place in self.flow_tables.steer(groups) {
            let name = self
                .infos
                .get(place)
                .map(|info| info.name.as_str())
                .unwrap_or_default();
            let steered = self.flow_tables.came(place).unwrap_or_default();
            tracing::info!(
                port = name,
                rules = steered.rules,
                refused = steered.refused,
                reason = steered.reason,
                "no flow rule for some groups: their frames come in by any queue, and workers hand them over"
            );
        }
    }

    /// The same, and waits until all workers use them.
    pub(crate) fn publish_and_wait(&self, state: &mut State) -> Result<(), Stopped> {
        self.publish(state);
        for worker in &self.workers {
            worker.ask(Command::Sync)?;
        }
        Ok(())
    }

    /// Runs `install` on all groups that are to be published together, and publishes them.
    pub(crate) fn install_together<T>(
        &self,
        install: impl FnOnce(&mut Installer<'_>) -> T,
    ) -> Result<T, Stopped> {
        let mut installer = Installer {
            shared: self,
            state: self.state.lock(),
            infos: self.infos_now(),
            news: Vec::new(),
        };
        let result = install(&mut installer);
        let Installer { mut state, news, .. } = installer;
        if !news.is_empty() {
            self.publish_and_wait(&mut state)?;
        }
        drop(state);
        news.into_iter().for_each(|kind| self.tell(kind));
        Ok(result)
    }

    /// Puts a group into its worker's engine. It is served once the tables are published.
    fn put(
        &self,
        state: &mut State,
        infos: &[PortInfo],
        rule: &GroupRule,
    ) -> Result<Installed, InstallError> {
        let rule = &*self.resolve(state, rule)?;
        // Slots can be large: a group that reserves memory is made only when there is a place for it.
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
        self.room_for(state, rule.mcst_id, memory)?;
        let worker = match &before {
            Some((worker, _)) => *worker,
            None => state.place(&rule.name, self.workers.len()),
        };
        let group = match made {
            Some(group) => group,
            None => Context::compile(rule, infos)?,
        };
        let handle = self.workers.get(worker).ok_or(Stopped)?;
        // What comes back is the group that ran before, or the new one where both do the same: freed here.
        drop(handle.ask(|reply| Command::Install(group, reply))??);
        if let (None, Some((_, since))) = (&before, state.loads.get_mut(worker)) {
            *since += 1;
        }
        state.forget(rule.mcst_id);
        state.register(Registered {
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

    /// The limits of the whole switch; each worker's engine alone would allow as much.
    fn room_for(&self, state: &State, mcst_id: McstId, need: usize) -> Result<(), Refused> {
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
        let Some(group) = state.forget(mcst_id) else {
            return Ok(None);
        };
        // First nobody hands frames over any more, then the group goes.
        self.publish_and_wait(&mut state)?;
        let handle = self.workers.get(group.worker).ok_or(Stopped)?;
        drop(handle.ask(|reply| Command::Remove(mcst_id, reply))?);
        drop(state);
        self.tell(SwitchEventKind::GroupRemoved {
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
            let unknown = route
                .next_hops
                .iter()
                .find(|hop| !self.infos.iter().any(|i| i.id == hop.port));
            if let Some(hop) = unknown {
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

    pub(crate) fn tell(&self, kind: SwitchEventKind) {
        self.listeners.tell(&SwitchEvent {
            at: self.clock.now(),
            kind,
        });
    }
}

/// Installs groups that are published together: see [`Dataplane::install_together`](crate::Dataplane::install_together).
pub struct Installer<'d> {
    shared: &'d Shared,
    state: MutexGuard<'d, State>,
    /// The ports, which stay as they are while `state` is locked.
    infos: Vec<PortInfo>,
    news: Vec<SwitchEventKind>,
}

impl Installer<'_> {
    /// The rule of a group; `None` where there is none.
    pub fn rule(&self, mcst_id: McstId) -> Option<&GroupRule> {
        self.state.groups.get(&mcst_id).map(|g| &g.rule)
    }

    /// The rule with the Ethernet addresses of next hops that it leaves open, as far as the switch knows them: from the same
    /// generation of the rule where it runs, from its routes, and from ARP.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn resolve<'r>(&self, rule: &'r GroupRule) -> Result<Cow<'r, GroupRule>, Stopped> {
        self.shared.resolve(&self.state, rule)
    }

    /// Installs a group, or a new version of one, with its next hops [resolved](Installer::resolve). It is served once all groups
    /// are published.
    ///
    /// # Errors
    /// As those of [`Dataplane::install`](crate::Dataplane::install). The other groups are not concerned.
    pub fn install(&mut self, rule: &GroupRule) -> Result<Installed, InstallError> {
        let installed = self.shared.put(&mut self.state, &self.infos, rule)?;
        if installed != Installed::Unchanged {
            self.news.push(SwitchEventKind::GroupInstalled {
                mcst_id: rule.mcst_id,
                name: rule.name.clone(),
                generation: rule.generation,
            });
        }
        Ok(installed)
    }
}

impl State {
    /// Whether the rule goes with what is installed; and the worker and rule of the version that runs.
    fn check(&self, rule: &GroupRule) -> Result<Option<(usize, GroupRule)>, InstallError> {
        let name = rule.name.as_str();
        // A group of this address and another name is no older version of it: a clash.
        let running = self.groups.get(&rule.mcst_id).filter(|g| g.rule.name == name);
        let faults = self
            .index
            .check(&rule.into(), running.map(|g| g.rule.name.as_str()));
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

    /// Remembers how busy the workers are.
    pub(crate) fn loaded(&mut self, busy: &[f64]) {
        self.loads.clear();
        self.loads.extend(busy.iter().map(|busy| (*busy, 0)));
    }

    /// Takes a group in.
    fn register(&mut self, group: Registered) {
        self.index.insert(&(&group.rule).into());
        self.members.add(&group.rule);
        self.memory_used += group.memory;
        self.count(&group, group.worker, 1);
        self.owners.insert(group.rule.mcst_id, group.worker);
        self.groups.insert(group.rule.mcst_id, group);
    }

    /// Lets a group go.
    fn forget(&mut self, mcst_id: McstId) -> Option<Registered> {
        let group = self.groups.remove(&mcst_id)?;
        self.index.remove(&(&group.rule).into());
        self.members.remove(&group.rule);
        self.memory_used -= group.memory;
        self.count(&group, group.worker, -1);
        self.owners.remove(mcst_id);
        Some(group)
    }

    /// The group is another worker's from now on.
    pub(crate) fn give(&mut self, mcst_id: McstId, worker: usize) {
        if let Some(mut group) = self.forget(mcst_id) {
            group.worker = worker;
            self.register(group);
        }
    }

    /// The next hop at `port` of the route to `ip` with the longest prefix.
    pub(crate) fn routed(&self, ip: Ipv4Addr, port: PortId) -> Option<MacAddr> {
        let routes = self.routes.values().filter(|route| route.prefix.contains(&ip));
        let longest = routes.max_by_key(|route| route.prefix.prefix_len())?;
        let hop = longest.next_hops.iter().find(|hop| hop.port == port)?;
        Some(hop.mac)
    }

    /// The routes have changed.
    fn compile_routes(&mut self) {
        let routes: Vec<Route> = self.routes.values().cloned().collect();
        self.tables = std::mem::take(&mut self.tables).with_routes(&routes);
    }

    /// Counts a group more or less of a worker's.
    fn count(&mut self, group: &Registered, worker: usize, more: isize) {
        let add = |counts: &mut Vec<usize>| {
            counts.resize(counts.len().max(worker + 1), 0);
            counts[worker] = counts[worker].saturating_add_signed(more);
        };
        add(&mut self.groups_of);
        if let Some((of, _)) = lane_of(&group.rule.name) {
            let lanes = self.lanes_of.entry(of.to_owned()).or_default();
            add(lanes);
            if lanes.iter().all(|n| *n == 0) {
                self.lanes_of.remove(of);
            }
        }
    }

    /// The worker for a new group: the least busy one, as far as that is known; of several the one with the fewest groups, of
    /// several the first. Lanes of one group go where the fewest others of them are: they are there to be spread.
    fn place(&self, name: &str, workers: usize) -> usize {
        let of = lane_of(name).and_then(|(group, _)| self.lanes_of.get(group));
        let count = |counts: &Vec<usize>, worker: usize| counts.get(worker).copied().unwrap_or(0);
        // Other lanes of the same group, how busy the worker will be, and groups.
        let mut load: Vec<(usize, u32, usize)> = (0..workers)
            .map(|w| {
                (
                    of.map_or(0, |lanes| count(lanes, w)),
                    0,
                    count(&self.groups_of, w),
                )
            })
            .collect();
        for ((_, busy, groups), (was, since)) in load.iter_mut().zip(&self.loads) {
            *busy = expected(*was, *since, *groups);
        }
        load.iter()
            .enumerate()
            .min_by_key(|(_, load)| **load)
            .map_or(0, |(worker, _)| worker)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
