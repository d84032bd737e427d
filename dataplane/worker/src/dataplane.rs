//! [`Dataplane`]: the API that starts, controls, reads and stops the workers of one switch.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use castnet_engine::{
    Captured, Context, DryRun, FdbEntry, FrameFilter, GroupKey, Neighbour, RegistrationFrame, SourceGuard,
    TAPS_MAX, Tables, Trace,
};
use castnet_pfc::PfcShared;
use castnet_port::{Memory, OpenError, Pool, Steered};
use castnet_rules::{GroupRule, Ipv4Net, Route};
use castnet_wire::{DropReason, Drops, MacAddr, McstId, Nanos, PortId};
use crossbeam::channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::command::{self, Command, Sink, Subscriber};
use crate::config::DataplaneConfig;
use crate::control::{Clock, Installed, Installer, SharedControl};
use crate::error::{InstallError, MoveError, RouteError, StartError, Stopped, TapError};
use crate::events::{EventStream, MoveCause};
use crate::housekeeping::{self, Note};
use crate::interfaces::InterfaceThread;
use crate::moves::Moved;
use crate::published::Published;
use crate::report::{
    Counters, InstalledGroup, PortReport, Report, Ring, RingReport, WORKERS_MAX, WorkerReport, WorkerStats,
};
use crate::startup::{OpenedWorkers, StartingWorker, WorkerEnd, await_opened, join, rings};
use crate::sum::Sum;
use crate::tap::{Lost, TapGuard, TapStream};
use crate::worker::{self, MakeMemory, WorkerSetup};

const TAP_QUEUE: usize = 4096;
/// A trace has up to 64 frames that were sent because of one.
const TRACE_QUEUE: usize = 256;
/// Registration packets from all workers.
const REGISTRATION_QUEUE: usize = 64;

/// A running dataplane. Dropping it stops it.
///
/// All methods may be called from any thread. They block until the workers reply. Workers reply between two
/// batches, usually within microseconds. Async code must call them in `spawn_blocking`. They fail once the dataplane
/// has [`Stopped`].
pub struct Dataplane {
    shared: Arc<SharedControl>,
    threads: Mutex<Option<Threads>>,
    registered: Receiver<RegistrationFrame>,
    ended: Receiver<usize>,
}

struct Threads {
    workers: Vec<JoinHandle<()>>,
    /// `None` if no port is on an interface.
    interfaces: Option<InterfaceThread>,
    housekeeping: JoinHandle<()>,
    notes: Sender<Note>,
}

impl Dataplane {
    /// Opens all ports and starts the workers. Each worker keeps its frames in its own [`Pool`].
    ///
    /// # Errors
    /// If several workers fail, the error is that of the first one. No thread is left running.
    pub fn start(config: DataplaneConfig) -> Result<Self, StartError> {
        let pool = config.whole_pool();
        Self::start_in(config, move |_| Ok(Pool::new(pool)))
    }

    /// Starts a dataplane whose frames live in memory of type `M`. `make` is called on each worker's thread
    /// with the worker's index.
    pub fn start_in<M: Memory>(
        config: DataplaneConfig,
        make: impl Fn(usize) -> Result<M, OpenError> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let make: Arc<MakeMemory<M>> = Arc::new(make);
        let (given, max) = (config.workers.len(), WORKERS_MAX);
        if given == 0 {
            return Err(StartError::NoWorkers);
        }
        if given > max {
            return Err(StartError::TooManyWorkers { given, max });
        }
        let config = Arc::new(config);
        let clock = Clock::start();
        let published = Arc::new(ArcSwap::from_pointee(Published::new(Tables::default(), false)));
        let (notes, noted) = bounded(housekeeping::QUEUE);
        let (registrations, registered) = bounded(REGISTRATION_QUEUE);
        let (ends, ended) = bounded(given);
        let events_lost = Arc::new(AtomicU64::new(0));
        let rings = rings::<M>(&config);
        let pfc = PfcShared::new(
            config.ports.iter().map(|port| port.pfc.as_ref()),
            config.workers.len(),
        );
        let (mut threads, mut starting, mut failed) = (Vec::new(), Vec::new(), None);
        for index in 0..config.workers.len() {
            let (commands, command_queue) = bounded(command::QUEUE);
            let (opened, opened_reply) = bounded(1);
            let generation_in_use = Arc::new(AtomicU64::new(0));
            let setup = WorkerSetup {
                index,
                config: config.clone(),
                clock: clock.clone(),
                published: published.clone(),
                generation_in_use: generation_in_use.clone(),
                inbound: rings.iter().map(|from| from[index].clone()).collect(),
                outbound: rings[index].clone(),
                commands: command_queue,
                notes: notes.clone(),
                registrations: registrations.clone(),
                events_lost: events_lost.clone(),
                pfc: pfc.clone(),
                opened,
            };
            let thread = thread::Builder::new().name(format!("castnet-w{index}"));
            let make = make.clone();
            let end = WorkerEnd(index, ends.clone());
            let run = move || {
                let _end = end;
                worker::run(setup, &*make);
            };
            match thread.spawn(run) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    failed = Some(StartError::Thread(error));
                    break;
                }
            }
            starting.push(StartingWorker {
                commands,
                generation_in_use,
                opened: opened_reply,
            });
        }
        let OpenedWorkers {
            handles,
            links,
            flow_tables,
            interfaces,
        } = match await_opened(starting, failed) {
            Ok(ready) => ready,
            Err(error) => {
                join(threads);
                return Err(error);
            }
        };
        let shared = Arc::new(SharedControl::new(
            config,
            clock,
            (handles, links, flow_tables),
            published,
            events_lost,
            pfc,
        ));
        let housekeeping = thread::Builder::new().name("castnet-control".into()).spawn({
            let shared = shared.clone();
            move || housekeeping::run(&shared, &noted)
        });
        let housekeeping = match housekeeping {
            Ok(housekeeping) => housekeeping,
            Err(error) => {
                drop(shared);
                join(threads);
                return Err(StartError::Thread(error));
            }
        };
        let interfaces = match InterfaceThread::start(interfaces, &shared, &notes) {
            Ok(interfaces) => interfaces,
            Err(error) => {
                let _ = notes.send(Note::End);
                join(vec![housekeeping]);
                drop(shared);
                join(threads);
                return Err(StartError::Thread(error));
            }
        };
        for worker in &shared.workers {
            let _ = worker.send(Command::Go);
        }
        let threads = Threads {
            workers: threads,
            interfaces,
            housekeeping,
            notes,
        };
        Ok(Self {
            shared,
            threads: Mutex::new(Some(threads)),
            registered,
            ended,
        })
    }

    /// The switch's name.
    pub fn name(&self) -> &str {
        &self.shared.config.engine.switch
    }

    /// What the dataplane was started with.
    pub fn config(&self) -> &DataplaneConfig {
        &self.shared.config
    }

    /// Nanoseconds since the start, on the dataplane's clock.
    pub fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Converts a time on the dataplane's clock, by what the machine's clock says now.
    pub fn time_of_day(&self, at: Nanos) -> SystemTime {
        self.shared.clock.time_of_day(at)
    }

    /// Installs a group, or a new version of one, with its next hops [resolved](Installer::resolve). On return its
    /// frames are served, ARP requests for its McstID answered, and its slots allocated. Other groups are not
    /// disturbed.
    ///
    /// # Errors
    /// The rule is faulty, a port or MTU does not fit, a limit is reached ([`castnet_engine::InstallError::NoMemory`]
    /// has the number of bytes left), or an address or name is taken.
    pub fn install(&self, rule: &GroupRule) -> Result<Installed, InstallError> {
        self.install_together(|installer| installer.install(rule))?
    }

    /// Installs several groups and publishes them together. `install` installs them one by one. When this
    /// returns, the frames of all installed groups are served. Other changes wait until then; workers do not.
    pub fn install_together<T>(&self, install: impl FnOnce(&mut Installer<'_>) -> T) -> Result<T, Stopped> {
        self.shared.install_together(install)
    }

    /// Removes a group and returns its rule. Returns `None` if there is no such group.
    pub fn remove_group(&self, mcst_id: McstId) -> Result<Option<GroupRule>, Stopped> {
        self.shared.remove(mcst_id)
    }

    /// Moves a group with all its state. On return the new worker has it. No frame is lost or sent twice, and the
    /// frames of each connection stay in order.
    ///
    /// # Errors
    /// The group or the worker does not exist, or the worker has the group already or no capacity for it.
    pub fn move_group(&self, mcst_id: McstId, worker: usize) -> Result<Moved, MoveError> {
        self.shared.move_group(mcst_id, worker, MoveCause::Asked)
    }

    /// In the order of the McstIDs.
    pub fn rules(&self) -> Vec<GroupRule> {
        self.map_rules(GroupRule::clone)
    }

    /// Results of `read` for the rule of each group, in the order of the McstIDs.
    pub fn map_rules<T>(&self, read: impl FnMut(&GroupRule) -> T) -> Vec<T> {
        let state = self.shared.state.lock();
        state.groups.values().map(|g| &g.rule).map(read).collect()
    }

    /// `None` if there is no such group.
    pub fn rule(&self, mcst_id: McstId) -> Option<GroupRule> {
        self.read_rule(mcst_id, GroupRule::clone)
    }

    /// Result of `read` for the rule of a group. `None` if there is no such group.
    pub fn read_rule<T>(&self, mcst_id: McstId, read: impl FnOnce(&GroupRule) -> T) -> Option<T> {
        let state = self.shared.state.lock();
        state.groups.get(&mcst_id).map(|g| read(&g.rule))
    }

    /// The rule and status of one group. Returns `None` if there is no such group.
    pub fn group(&self, mcst_id: McstId) -> Result<Option<InstalledGroup>, Stopped> {
        let state = self.shared.state.lock();
        let Some(group) = state.groups.get(&mcst_id) else {
            return Ok(None);
        };
        let handle = self.shared.workers.get(group.worker).ok_or(Stopped)?;
        let status = handle.request(|reply| Command::Status(mcst_id, reply))?;
        Ok(status.map(|status| InstalledGroup {
            worker: group.worker,
            rule: group.rule.clone(),
            status,
        }))
    }

    /// The rules and status of all groups, in the order of their McstIDs.
    pub fn groups(&self) -> Result<Vec<InstalledGroup>, Stopped> {
        let addresses: Vec<McstId> = self.shared.state.lock().groups.keys().copied().collect();
        let mut groups = Vec::with_capacity(addresses.len());
        for mcst_id in addresses {
            groups.extend(self.group(mcst_id)?);
        }
        Ok(groups)
    }

    /// The number of groups that use each port, by its number.
    pub fn groups_per_port(&self) -> [usize; PortId::COUNT] {
        self.shared.state.lock().groups_per_port.0
    }

    /// The registration packets of MRP, if the engine is [configured](castnet_engine::RegistrationConfig) to take them. Each packet is
    /// received once. The channel ends with the dataplane.
    pub fn registrations(&self) -> &Receiver<RegistrationFrame> {
        &self.registered
    }

    /// Receives the index of each worker whose thread has ended. Before [`Dataplane::stop`] that is one that has died: the switch does not
    /// forward any more what that worker had.
    pub fn ended(&self) -> &Receiver<usize> {
        &self.ended
    }

    /// Counts a frame that came in by `port`, and that control has dropped.
    pub fn count_drop(&self, port: PortId, reason: DropReason) -> Result<(), Stopped> {
        let worker = self.shared.workers.first().ok_or(Stopped)?;
        worker.send(Command::CountDrop(port, reason))
    }

    /// Sends frames, each by its port. Those for which no buffer is free or whose port is down are lost.
    pub fn transmit(&self, frames: Vec<(PortId, Vec<u8>)>) -> Result<(), Stopped> {
        let worker = self.shared.workers.first().ok_or(Stopped)?;
        worker.request(|reply| Command::Transmit(frames, reply)).map(drop)
    }

    /// Ethernet address of a port.
    pub fn port_mac(&self, port: PortId) -> Option<MacAddr> {
        let info = self.shared.infos.iter().find(|info| info.id == port);
        info.map(|info| info.mac)
    }

    /// Whether a port is up.
    pub fn is_up(&self, port: PortId) -> bool {
        self.shared.is_up(port)
    }

    /// Replaces all routes.
    pub fn set_routes(&self, routes: Vec<Route>) -> Result<(), RouteError> {
        self.shared.set_routes(routes)
    }

    /// Adds a route. Returns true if it replaced a route with the same prefix.
    pub fn add_route(&self, route: Route) -> Result<bool, RouteError> {
        self.shared.add_route(route)
    }

    /// Sets all routes within the prefixes of `scope`, at once; other routes stay. Returns how many are new or different, and how many are
    /// gone.
    ///
    /// # Errors
    /// Those of [`Dataplane::set_routes`]. Nothing is changed then.
    pub fn set_routes_within(
        &self,
        scope: &[Ipv4Net],
        routes: Vec<Route>,
    ) -> Result<(usize, usize), RouteError> {
        self.shared.set_routes_within(scope, routes)
    }

    /// Replaces what ports of hosts may not send from.
    pub fn set_source_guards(&self, guards: Vec<SourceGuard>) -> Result<(), Stopped> {
        self.shared.set_source_guards(guards)
    }

    /// Removes the route with this prefix. Returns false if there is none.
    pub fn remove_route(&self, prefix: Ipv4Net) -> Result<bool, Stopped> {
        self.shared.remove_route(prefix)
    }

    /// In the order of the prefixes.
    pub fn routes(&self) -> Vec<Route> {
        self.shared.routes()
    }

    /// The number of times that tables were published: routes, group addresses and links.
    pub fn generation(&self) -> u64 {
        self.shared.state.lock().generation
    }

    // ------------------------------------------------------------------------------------------------ reading

    /// All counters. The counters of each worker are a consistent snapshot.
    pub fn counters(&self) -> Result<Counters, Stopped> {
        let _no_moves = self.shared.moves.read();
        self.counters_now()
    }

    fn counters_now(&self) -> Result<Counters, Stopped> {
        let mut sum = Sum::new(&self.shared);
        for worker in 0..self.shared.workers.len() {
            let mut report = Report::new();
            loop {
                report = self.shared.workers[worker].request(|reply| Command::Report(report, reply))?;
                sum.groups(&report, worker);
                if report.counters.next_group == 0 {
                    break;
                }
            }
            sum.add(&report);
        }
        Ok(sum.finish())
    }

    /// All ports with their links and counters, in the order of the configuration.
    pub fn ports(&self) -> Result<Vec<PortReport>, Stopped> {
        let mut sum = Sum::new(&self.shared);
        for worker in &self.shared.workers {
            sum.add(&*worker.report()?);
        }
        Ok(sum.finish().ports)
    }

    /// Result of flow steering: rules of the device that direct each group's frames to the receive queue of its worker.
    /// `None` if the device does not support rules.
    pub fn steered(&self, port: PortId) -> Option<Steered> {
        let port_index = self.shared.infos.iter().position(|info| info.id == port)?;
        self.shared.flow_tables.result(port_index)
    }

    /// The statistics of each worker.
    pub fn runtime(&self) -> Result<Vec<WorkerStats>, Stopped> {
        let workers = self.shared.workers.iter();
        workers.map(|worker| Ok(worker.report()?.runtime)).collect()
    }

    /// The statistics of each worker and the occupancy of its rings.
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
            let report = worker.report()?;
            let occupancies = rings.iter().zip(&report.rings);
            let reported = occupancies.filter(|(_, occupancy)| occupancy.size > 0);
            let rings = reported.map(|(ring, occupancy)| RingReport {
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

    /// Frames dropped anywhere in the switch, including the ports.
    pub fn drops(&self) -> Result<Drops, Stopped> {
        Ok(self.counters()?.drops)
    }

    /// The learned Ethernet addresses, in order.
    pub fn fdb(&self) -> Result<Vec<FdbEntry>, Stopped> {
        let entries = Vec::with_capacity(self.shared.config.engine.fdb_capacity);
        let worker = self.shared.workers.first().ok_or(Stopped)?;
        let mut entries = worker.request(|reply| Command::Fdb(entries, reply))?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// The neighbours on the links, ordered by port.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, Stopped> {
        let mut neighbours = self.shared.neighbours()?;
        neighbours.sort_by_key(|n| n.port);
        Ok(neighbours)
    }

    /// Subscribes to events from now on.
    pub fn events(&self) -> EventStream {
        self.shared
            .subscribers
            .subscribe(self.shared.config.events_max, &self.shared.events_lost)
    }

    /// Traces this frame as if `port` had received it. Changes no state.
    pub fn trace(&self, port: PortId, frame: &[u8]) -> Result<Trace, TapError> {
        self.check_port(port)?;
        let state = self.shared.state.lock();
        let group_of = |key| match key {
            GroupKey::To(address) => state.groups.get(&McstId(address)),
            from => {
                let mut groups = state.groups.values();
                groups.find(|group| GroupKey::of_group(&group.rule).any(|key| key == from))
            }
        };
        let (mut config, infos) = (
            worker::engine_config(&self.shared.config, &self.shared.links),
            self.shared.infos_now(),
        );
        config.ports.clone_from(&infos);
        let mut dry = Box::new(DryRun::new(&config, port, frame.to_vec(), |key| {
            Context::compile_dry(&group_of(key)?.rule, &infos).ok()
        }));
        let owner = GroupKey::of_frame(frame)
            .and_then(group_of)
            .map_or(0, |group| group.worker);
        let worker = self.shared.workers.get(owner).ok_or(Stopped)?;
        dry = worker.request(|reply| Command::DryRun(dry, reply))?;
        drop(state);
        Ok(dry.run())
    }

    /// Traces the next `count` frames that match `filter`, except those dropped between workers or in a port.
    ///
    /// # Errors
    /// All tap slots are in use, the port does not exist, or the dataplane has stopped.
    pub fn trace_live(&self, filter: FrameFilter, count: u64) -> Result<TapStream<Trace>, TapError> {
        self.tap(filter, count, TRACE_QUEUE, Sink::Traces)
    }

    /// Captures up to `length_max` bytes of each of the next `count` frames that match `filter`. Frames that
    /// are dropped between workers or in a port are not captured.
    pub fn capture(
        &self,
        filter: FrameFilter,
        length_max: usize,
        count: u64,
    ) -> Result<TapStream<Captured>, TapError> {
        self.tap(filter, count, TAP_QUEUE, |to| Sink::Captured(to, length_max))
    }

    fn tap<T>(
        &self,
        filter: FrameFilter,
        count: u64,
        depth: usize,
        sink: impl Fn(Sender<T>) -> Sink,
    ) -> Result<TapStream<T>, TapError> {
        filter.port.map_or(Ok(()), |port| self.check_port(port))?;
        let guard = TapGuard::take(&self.shared).ok_or(TapError::Full { max: TAPS_MAX })?;
        let (to, from) = bounded(depth);
        let lost = Arc::<Lost>::default();
        for worker in &self.shared.workers {
            let subscriber = Subscriber {
                id: guard.id,
                to: sink(to.clone()),
                lost: lost.clone(),
            };
            worker.send(Command::Arm(subscriber, filter, count))?;
        }
        for worker in &self.shared.workers {
            worker.request(Command::Sync)?;
        }
        Ok(TapStream {
            from,
            left: count,
            lost,
            _guard: guard,
        })
    }

    fn check_port(&self, port: PortId) -> Result<(), TapError> {
        match self.shared.infos.iter().any(|info| info.id == port) {
            true => Ok(()),
            false => Err(TapError::NoPort(port)),
        }
    }

    // ----------------------------------------------------------------------------------------------- stopping

    /// Stops receiving, sends the frames that are queued between workers and in the outputs, and ends the threads.
    /// Returns the final counters, `None` if the dataplane had already stopped or a worker had died.
    pub fn stop(&self) -> Option<Counters> {
        let threads = self.threads.lock().take()?;
        let no_moves = self.shared.moves.write();
        let last = self.stop_workers().ok();
        for worker in &self.shared.workers {
            // If a worker has died, the others must still end.
            let _ = worker.send(Command::End);
        }
        join(threads.workers);
        drop(no_moves);
        if let Some(interfaces) = threads.interfaces {
            interfaces.stop();
        }
        let _ = threads.notes.send(Note::End);
        join(vec![threads.housekeeping]);
        last
    }

    fn stop_workers(&self) -> Result<Counters, Stopped> {
        // An empty ring stays empty only when no worker receives and no frame is blocked on a ring.
        let steps: [fn(Sender<()>) -> Command; 3] = [
            Command::Quiesce,
            |reply| Command::Barrier(false, reply),
            Command::Drain,
        ];
        for command in steps {
            for worker in &self.shared.workers {
                worker.request(command)?;
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
