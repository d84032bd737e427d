//! A switch's dataplane, from the control side: start it, tell it what to do, ask it how it fares, stop it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use castnet_engine::{
    Captured, Context, DryRun, FdbEntry, FrameFilter, Neighbour, TAPS_MAX, Tables, Trace, destination,
};
use castnet_port::{Memory, OpenError, Pool, Steered};
use castnet_rules::{GroupRule, Ipv4Net, Route};
use castnet_wire::{Drops, McstId, Nanos, PortId};
use crossbeam::channel::{Sender, bounded};
use parking_lot::Mutex;

use crate::command::{self, Command, Sink, Subscriber};
use crate::config::DataplaneConfig;
use crate::control::{Clock, Handle, Installed, Installer, Shared};
use crate::error::{InstallError, MoveError, RouteError, StartError, Stopped, TapError};
use crate::events::{EventStream, MoveCause};
use crate::keeper::{self, Note};
use crate::moves::Moved;
use crate::nursery::{Nursery, join, rings};
use crate::published::Published;
use crate::report::{
    Counters, InstalledGroup, PortReport, Report, Ring, RingReport, WORKERS_MAX, WorkerReport, WorkerStats,
};
use crate::sum::Sum;
use crate::tap::{TapGuard, TapStream};
use crate::worker::{self, MakeMemory, Setup};

/// Traces or captured frames that wait for their reader at most.
const TAP_QUEUE: usize = 4096;

/// A running dataplane. Dropping it stops it.
///
/// All methods may be called from any thread. They wait for the workers, which answer between two batches, so within
/// microseconds as a rule; they are not for async code without `spawn_blocking`.
pub struct Dataplane {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    workers: Vec<JoinHandle<()>>,
    keeper: JoinHandle<()>,
    notes: Sender<Note>,
}

impl Dataplane {
    /// Opens all ports and starts the workers, whose frames live in a [`Pool`] each.
    ///
    /// # Errors
    /// See [`StartError`]; of several the first worker's. Nothing is left running.
    pub fn start(config: DataplaneConfig) -> Result<Self, StartError> {
        let pool = config.pool;
        Self::start_in(config, move |_| Ok(Pool::new(pool)))
    }

    /// The same with memory of another kind: `make` is called on each worker's thread, with the worker's number.
    ///
    /// # Errors
    /// As above.
    pub fn start_in<M: Memory>(
        config: DataplaneConfig,
        make: impl Fn(usize) -> Result<M, OpenError> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let make: Arc<MakeMemory<M>> = Arc::new(make);
        match config.workers.len() {
            0 => return Err(StartError::NoWorkers),
            given if given > WORKERS_MAX => {
                return Err(StartError::TooManyWorkers {
                    given,
                    max: WORKERS_MAX,
                });
            }
            _ => {}
        }
        let config = Arc::new(config);
        let clock = Clock::start();
        let published = Arc::new(ArcSwap::from_pointee(Published::new(Tables::default())));
        let (notes, noted) = bounded(keeper::QUEUE);
        let events_lost = Arc::new(AtomicU64::new(0));
        let rings = rings::<M>(&config);
        let mut nursery = Nursery {
            commands: Vec::new(),
            seen: Vec::new(),
            threads: Vec::new(),
            opened: Vec::new(),
        };
        let mut failed = None;
        for index in 0..config.workers.len() {
            let (commands, orders) = bounded(command::QUEUE);
            let (opened, told) = bounded(1);
            let seen = Arc::new(AtomicU64::new(0));
            let setup = Setup {
                index,
                config: config.clone(),
                clock: clock.clone(),
                published: published.clone(),
                seen: seen.clone(),
                inbound: rings.iter().map(|from| from[index].clone()).collect(),
                outbound: rings[index].clone(),
                commands: orders,
                notes: notes.clone(),
                events_lost: events_lost.clone(),
                opened,
            };
            let thread = thread::Builder::new().name(format!("castnet-w{index}"));
            let make = make.clone();
            match thread.spawn(move || worker::run(setup, &*make)) {
                Ok(thread) => nursery.threads.push(thread),
                Err(error) => {
                    failed = Some(StartError::Thread(error));
                    break;
                }
            }
            nursery.commands.push(commands);
            nursery.seen.push(seen);
            nursery.opened.push(told);
        }
        let (handles, links, flow_tables) = match nursery.ready(failed) {
            Ok(ready) => ready,
            Err((error, threads)) => {
                join(threads);
                return Err(error);
            }
        };
        let shared = Arc::new(Shared::new(
            config,
            clock,
            links,
            published,
            handles,
            flow_tables,
            events_lost,
        ));
        let keeper = thread::Builder::new().name("castnet-keeper".into()).spawn({
            let shared = shared.clone();
            move || keeper::keep(&shared, &noted)
        });
        let keeper = match keeper {
            Ok(keeper) => keeper,
            Err(error) => {
                drop(shared);
                join(nursery.threads);
                return Err(StartError::Thread(error));
            }
        };
        for worker in &shared.workers {
            let _ = worker.send(Command::Go);
        }
        let threads = Threads {
            workers: nursery.threads,
            keeper,
            notes,
        };
        Ok(Self {
            shared,
            threads: Mutex::new(Some(threads)),
        })
    }

    /// The switch's name.
    pub fn name(&self) -> &str {
        &self.shared.config.engine.switch
    }

    /// What it was started with.
    pub fn config(&self) -> &DataplaneConfig {
        &self.shared.config
    }

    /// Now, on the dataplane's clock: nanoseconds since the start.
    pub fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// The time of day of a moment on the dataplane's clock.
    pub fn time_of_day(&self, at: Nanos) -> SystemTime {
        self.shared.clock.time_of_day(at)
    }

    // ------------------------------------------------------------------------------------------------- groups

    /// Installs a group, or a new version of one. When this returns, frames of the group are served, and its McstID
    /// is answered in ARP. Traffic of others is not disturbed. Slots are taken of the memory for groups here. The rule is
    /// [resolved](Installer::resolve) first.
    ///
    /// # Errors
    /// See [`InstallError`]: a faulty rule, a port or MTU that does not fit, limits, addresses and names that are taken;
    /// [`castnet_engine::InstallError::NoMemory`] says how much is left.
    pub fn install(&self, rule: &GroupRule) -> Result<Installed, InstallError> {
        self.install_together(|installer| installer.install(rule))?
    }

    /// Installs many groups, one after the other by `install`, and publishes them together. When this returns, frames of all
    /// that were not refused are served. Other changes wait meanwhile; workers do not.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn install_together<T>(&self, install: impl FnOnce(&mut Installer<'_>) -> T) -> Result<T, Stopped> {
        self.shared.install_together(install)
    }

    /// Removes a group and returns its rule; `None` where there is none.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn remove_group(&self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        self.shared.remove(mcst_id)
    }

    /// Moves a group, with all its state, to another worker. When this returns, that worker has it. No frame
    /// is lost, none is sent twice, and those of one connection stay in order.
    ///
    /// # Errors
    /// See [`MoveError`]: no such group or worker, the group is there already, or has no place there.
    pub fn move_group(&self, mcst_id: McstId, worker: usize) -> Result<Moved, MoveError> {
        self.shared.move_group(mcst_id, worker, MoveCause::Asked)
    }

    /// The rules of all groups, in the order of their addresses.
    pub fn rules(&self) -> Vec<GroupRule> {
        self.map_rules(GroupRule::clone)
    }

    /// What `read` finds in the rules of all groups, in the order of their addresses.
    pub fn map_rules<T>(&self, read: impl FnMut(&GroupRule) -> T) -> Vec<T> {
        let state = self.shared.state.lock();
        state.groups.values().map(|g| &g.rule).map(read).collect()
    }

    /// The rule of a group; `None` where there is none.
    pub fn rule(&self, mcst_id: McstId) -> Option<GroupRule> {
        let state = self.shared.state.lock();
        state.groups.get(&mcst_id).map(|g| g.rule.clone())
    }

    /// One group with everything about it; `None` where there is none.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn group(&self, mcst_id: McstId) -> Result<Option<InstalledGroup>, Stopped> {
        let state = self.shared.state.lock();
        let Some(group) = state.groups.get(&mcst_id) else {
            return Ok(None);
        };
        let handle = self.shared.workers.get(group.worker).ok_or(Stopped)?;
        let status = handle.ask(|reply| Command::Status(mcst_id, reply))?;
        Ok(status.map(|status| InstalledGroup {
            worker: group.worker,
            rule: group.rule.clone(),
            status,
        }))
    }

    /// All groups with everything about them, in the order of their addresses.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn groups(&self) -> Result<Vec<InstalledGroup>, Stopped> {
        let addresses: Vec<McstId> = self.shared.state.lock().groups.keys().copied().collect();
        let mut groups = Vec::with_capacity(addresses.len());
        for mcst_id in addresses {
            groups.extend(self.group(mcst_id)?);
        }
        Ok(groups)
    }

    // ------------------------------------------------------------------------------------------------- routes

    /// Replaces all routes.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn set_routes(&self, routes: Vec<Route>) -> Result<(), RouteError> {
        self.shared.set_routes(routes)
    }

    /// Adds a route. `true` where it took the place of the one with the same prefix.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn add_route(&self, route: Route) -> Result<bool, RouteError> {
        self.shared.add_route(route)
    }

    /// Removes the route of a prefix. `false` where there is none.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn remove_route(&self, prefix: Ipv4Net) -> Result<bool, Stopped> {
        self.shared.remove_route(prefix)
    }

    /// All routes, in the order of their prefixes.
    pub fn routes(&self) -> Vec<Route> {
        self.shared.routes()
    }

    /// Counts the publications of tables: routes, groups' addresses and links.
    pub fn generation(&self) -> u64 {
        self.shared.state.lock().generation()
    }

    // ------------------------------------------------------------------------------------------------ reading

    /// All counters. Each worker's are of one moment.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn counters(&self) -> Result<Counters, Stopped> {
        let _still = self.shared.moves.read();
        self.counters_now()
    }

    fn counters_now(&self) -> Result<Counters, Stopped> {
        let mut sum = Sum::new(&self.shared);
        for worker in 0..self.shared.workers.len() {
            let mut report = Report::new();
            loop {
                report = self.shared.workers[worker].ask(|reply| Command::Report(report, reply))?;
                sum.groups(&report, worker);
                if report.counters.next_group == 0 {
                    break;
                }
            }
            sum.add(&report);
        }
        Ok(sum.finish())
    }

    /// The ports with link and counters, in the order of the configuration.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn ports(&self) -> Result<Vec<PortReport>, Stopped> {
        let mut sum = Sum::new(&self.shared);
        for worker in &self.shared.workers {
            let mut report = Report::new();
            report.counters.next_group = usize::MAX;
            sum.add(&*worker.ask(|reply| Command::Report(report, reply))?);
        }
        Ok(sum.finish().ports)
    }

    /// What came of the rules that lead each group's frames to the receive queue of its worker; `None` where the port's device
    /// has no choice of queues, or cannot be told.
    pub fn steered(&self, port: PortId) -> Option<Steered> {
        let place = self.shared.infos.iter().position(|info| info.id == port)?;
        self.shared.flow_tables.came(place)
    }

    /// How the workers fare.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn runtime(&self) -> Result<Vec<WorkerStats>, Stopped> {
        let mut stats = Vec::new();
        for worker in &self.shared.workers {
            let mut report = Report::new();
            report.counters.next_group = usize::MAX;
            stats.push(worker.ask(|reply| Command::Report(report, reply))?.runtime);
        }
        Ok(stats)
    }

    /// How the workers fare, with their rings.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn workers(&self) -> Result<Vec<WorkerReport>, Stopped> {
        let infos = &self.shared.infos;
        let ports = infos.iter().map(|port| Ring::Port {
            id: port.id,
            name: port.name.clone(),
        });
        let rings: Vec<_> = ports
            .chain((0..self.shared.workers.len()).map(Ring::Worker))
            .collect();
        let mut workers = Vec::new();
        for worker in &self.shared.workers {
            let mut report = Report::new();
            report.counters.next_group = usize::MAX;
            let report = worker.ask(|reply| Command::Report(report, reply))?;
            let told = rings.iter().zip(&report.rings);
            let told = told.filter(|(_, occupancy)| occupancy.size > 0);
            let rings = told.map(|(ring, occupancy)| RingReport {
                ring: ring.clone(),
                occupancy: *occupancy,
            });
            workers.push(WorkerReport {
                stats: report.runtime,
                rings: rings.collect(),
            });
        }
        Ok(workers)
    }

    /// Frames that ended anywhere in the switch, ports included.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn drops(&self) -> Result<Drops, Stopped> {
        Ok(self.counters()?.drops)
    }

    /// The Ethernet addresses that are known, in order.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn fdb(&self) -> Result<Vec<FdbEntry>, Stopped> {
        let room = Vec::with_capacity(self.shared.config.engine.fdb_capacity);
        let mut entries = self.first()?.ask(|reply| Command::Fdb(room, reply))?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// Who is on the links, by port.
    ///
    /// # Errors
    /// The dataplane has stopped.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, Stopped> {
        let mut neighbours = self.shared.neighbours()?;
        neighbours.sort_by_key(|n| n.port);
        Ok(neighbours)
    }

    // ----------------------------------------------------------------------------------------------- watching

    /// What happens from now on.
    pub fn events(&self) -> EventStream {
        self.shared
            .listeners
            .subscribe(self.shared.config.events_max, &self.shared.events_lost)
    }

    /// Says what would happen to this frame if it came in by `port`, and changes nothing.
    ///
    /// # Errors
    /// No such port, or the dataplane has stopped.
    pub fn trace(&self, port: PortId, frame: &[u8]) -> Result<Trace, TapError> {
        self.known(port)?;
        let state = self.shared.state.lock();
        let group_of = |address| state.groups.get(&McstId(address));
        let config = worker::engine_config(&self.shared.config, &self.shared.links);
        let mut dry = Box::new(DryRun::new(&config, port, frame.to_vec(), |address| {
            Context::compile_dry(&group_of(address)?.rule, &self.shared.infos).ok()
        }));
        let owner = destination(frame)
            .and_then(group_of)
            .map_or(0, |group| group.worker);
        let worker = self.shared.workers.get(owner).ok_or(Stopped)?;
        dry = worker.ask(|reply| Command::DryRun(dry, reply))?;
        drop(state);
        Ok(dry.run())
    }

    /// The ways of the next `count` frames that `filter` wants. Frames that ended between workers or in a port are not
    /// among them.
    ///
    /// # Errors
    /// As many live traces and captures run as may, no such port, or the dataplane has stopped.
    pub fn trace_live(&self, filter: FrameFilter, count: u64) -> Result<TapStream<Trace>, TapError> {
        self.tap(filter, count, Sink::Traces)
    }

    /// Copies of up to `length_max` bytes of the next `count` frames that `filter` wants. Frames that ended between
    /// workers or in a port are not among them.
    ///
    /// # Errors
    /// As for [`Dataplane::trace_live`].
    pub fn capture(
        &self,
        filter: FrameFilter,
        length_max: usize,
        count: u64,
    ) -> Result<TapStream<Captured>, TapError> {
        self.tap(filter, count, |to| Sink::Captured(to, length_max))
    }

    fn tap<T>(
        &self,
        filter: FrameFilter,
        count: u64,
        sink: impl Fn(Sender<T>) -> Sink,
    ) -> Result<TapStream<T>, TapError> {
        filter.port.map_or(Ok(()), |port| self.known(port))?;
        let guard = TapGuard::take(&self.shared).ok_or(TapError::Full { max: TAPS_MAX })?;
        let (to, from) = bounded(TAP_QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        for worker in &self.shared.workers {
            let subscriber = Subscriber {
                id: guard.id,
                to: sink(to.clone()),
                lost: lost.clone(),
            };
            worker.send(Command::Arm(subscriber, filter, count))?;
        }
        for worker in &self.shared.workers {
            worker.ask(Command::Sync)?;
        }
        Ok(TapStream {
            from,
            left: count,
            lost,
            _guard: guard,
        })
    }

    fn known(&self, port: PortId) -> Result<(), TapError> {
        match self.shared.infos.iter().any(|info| info.id == port) {
            true => Ok(()),
            false => Err(TapError::NoPort(port)),
        }
    }

    fn first(&self) -> Result<&Handle, Stopped> {
        self.shared.workers.first().ok_or(Stopped)
    }

    // ----------------------------------------------------------------------------------------------- stopping

    /// Stops: no port receives any more, what is on its way between workers and in the output is sent, the threads end.
    /// Returns the last counters; `None` where it had stopped before, or a worker had died.
    pub fn stop(&self) -> Option<Counters> {
        let threads = self.threads.lock().take()?;
        // A group that moves arrives first.
        let still = self.shared.moves.write();
        let last = self.wind_up().ok();
        for worker in &self.shared.workers {
            // One that has died has ended already; the others must not wait for it.
            let _ = worker.send(Command::End);
        }
        join(threads.workers);
        drop(still);
        let _ = threads.notes.send(Note::End);
        join(vec![threads.keeper]);
        last
    }

    fn wind_up(&self) -> Result<Counters, Stopped> {
        // Only when nobody receives any more, and nothing waits for a ring, is a ring that is empty empty for good.
        let steps: [fn(Sender<()>) -> Command; 3] = [
            Command::Quiesce,
            |reply| Command::Settle(false, reply),
            Command::Drain,
        ];
        for command in steps {
            for worker in &self.shared.workers {
                worker.ask(command)?;
            }
        }
        self.counters_now()
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Dataplane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataplane")
            .field("switch", &self.name())
            .finish_non_exhaustive()
    }
}
