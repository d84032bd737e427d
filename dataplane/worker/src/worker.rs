//! The thread of one worker: setup, main loop and shutdown.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use castnet_engine::{Engine, EngineConfig, PortInfo, RegistrationFrame, TAPS_MAX};
use castnet_pfc::{Pfc, PfcShared};
use castnet_port::{
    Batch, FlowTable, HandOver, Memory, OpenError, Port, PortLink, Reattach, Sides, Sleeper, Waker,
};
use castnet_wire::spin::{self, Progress, Spinner};
use castnet_wire::{MacAddr, Nanos};
use crossbeam::channel::{Receiver, Sender};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::command::{Command, Subscriber};
use crate::config::{DataplaneConfig, Idle};
use crate::control::Clock;
use crate::error::StartError;
use crate::hold::MoveState;
use crate::housekeeping::Note;
use crate::meter::{Meter, Occupancy};
use crate::outputs::Outputs;
use crate::published::Published;
use crate::report::WorkerStats;
use crate::ring::Ring;

pub(crate) const LINK_INTERVAL: Nanos = Nanos::from_millis(50);
/// Longest time that an ending worker waits for its ports to send their queued frames.
const DRAIN_MAX: Nanos = Nanos::from_secs(1);

pub(crate) struct WorkerSetup<M: Memory> {
    pub(crate) index: usize,
    pub(crate) config: Arc<DataplaneConfig>,
    pub(crate) clock: Clock,
    pub(crate) published: Arc<ArcSwap<Published>>,
    /// Control reads it.
    pub(crate) generation_in_use: Arc<AtomicU64>,
    /// Rings by worker. The entry at this worker's own index is unused.
    pub(crate) inbound: Vec<Arc<Ring<M>>>,
    pub(crate) outbound: Vec<Arc<Ring<M>>>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) notes: Sender<Note>,
    pub(crate) registrations: Sender<RegistrationFrame>,
    pub(crate) events_lost: Arc<AtomicU64>,
    pub(crate) pfc: Arc<PfcShared>,
    pub(crate) opened: Sender<Result<OpenedWorker, StartError>>,
}

/// Called on the worker's thread, with its index.
pub(crate) type MakeMemory<M> = dyn Fn(usize) -> Result<M, OpenError> + Send + Sync;

pub(crate) struct OpenedWorker {
    pub(crate) alive: Weak<()>,
    pub(crate) waker: Waker,
    /// In the order of the configuration.
    pub(crate) links: Vec<PortLink>,
    pub(crate) flow_tables: Vec<Option<Arc<dyn FlowTable>>>,
    pub(crate) interfaces: Vec<Option<Arc<Reattach>>>,
}

pub(crate) fn run<M: Memory>(setup: WorkerSetup<M>, make: &MakeMemory<M>) {
    let opened = setup.opened.clone();
    match Worker::open(setup, make) {
        Ok((mut worker, ready)) => {
            let _ = opened.send(Ok(ready));
            drop(opened);
            worker.run();
        }
        Err(error) => {
            let _ = opened.send(Err(error));
        }
    }
}

pub(crate) struct Worker<M: Memory> {
    pub(crate) setup: WorkerSetup<M>,
    pub(crate) engine: Engine,
    pub(crate) outputs: Outputs<M>,
    pub(crate) memory: M,
    pub(crate) published: Cache<Arc<ArcSwap<Published>>, Arc<Published>>,
    pub(crate) subscribers: Vec<Subscriber>,
    /// Frames just received, and those of them that this worker processes itself.
    pub(crate) batch: Batch<M::Buf>,
    pub(crate) own_frames: Batch<M::Buf>,
    pub(crate) receiving: bool,
    pub(crate) moving: MoveState<M::Buf>,
    pub(crate) stats: WorkerStats,
    /// Of the ports' rings in slot order, then of the inbound ones.
    pub(crate) rings: Vec<Occupancy>,
    pub(crate) next_link_check: Nanos,
    _alive: Arc<()>,
    sleeper: Sleeper,
    started: Nanos,
    spinner: Spinner,
}

/// Result of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iteration {
    Busy,
    Empty,
    End,
}

impl<M: Memory> Worker<M> {
    fn open(setup: WorkerSetup<M>, make: &MakeMemory<M>) -> Result<(Self, OpenedWorker), StartError> {
        let (index, config) = (setup.index, setup.config.clone());
        let core = config.workers.get(index).and_then(|w| w.core);
        if let Some(core) = core {
            pin(index, core)?;
        }
        let memory = make(index).map_err(|source| StartError::Memory {
            worker: index,
            source,
        })?;
        let mut sleeper = Sleeper::new().map_err(StartError::Thread)?;
        let pfc = Pfc::new(&setup.pfc, index, config.pfc_frames);
        let meter = Meter::new(setup.clock.clone());
        let mut outputs = Outputs::new(memory.clone(), meter, pfc, setup.notes.clone());
        let (mut links, mut flow_tables, mut interfaces) = (Vec::new(), Vec::new(), Vec::new());
        for (port_index, port) in config.ports.iter().enumerate() {
            let rank = rank(index, port_index, config.workers.len());
            let receives = rank < port.spec.receivers();
            let sides = if receives { Sides::Both } else { Sides::Send };
            let failed = |source| StartError::Port {
                id: port.id,
                name: port.name.clone(),
                source,
            };
            let mut open = memory.open(&port.spec, sides, rank).map_err(failed)?;
            open.attach(&mut sleeper).map_err(StartError::Thread)?;
            let link = open.info();
            flow_tables.push(open.flow_table());
            interfaces.push(open.reattach());
            outputs.add(port.id, open, &link, receives, rank == 0);
            links.push(link);
        }
        for (from, ring) in setup
            .inbound
            .iter()
            .enumerate()
            .filter(|(from, _)| *from != index)
        {
            debug_assert!(from < config.workers.len());
            ring.attach(&mut sleeper).map_err(StartError::Thread)?;
        }
        let engine = create_engine(&config, index, &links)?;
        let alive = Arc::new(());
        let ready = OpenedWorker {
            alive: Arc::downgrade(&alive),
            waker: sleeper.waker(),
            links,
            flow_tables,
            interfaces,
        };
        let mut stats = WorkerStats::new(index, core);
        stats.clock_hz = setup.clock.ticks_per_second();
        let worker = Self {
            rings: vec![Occupancy::default(); config.ports.len() + setup.inbound.len()],
            engine,
            outputs,
            memory,
            published: Cache::new(setup.published.clone()),
            subscribers: Vec::with_capacity(TAPS_MAX),
            batch: Batch::new(),
            own_frames: Batch::new(),
            receiving: true,
            moving: MoveState::new(&config),
            stats,
            next_link_check: Nanos::ZERO,
            _alive: alive,
            sleeper,
            started: Nanos::ZERO,
            spinner: Spinner::new(Progress::Adaptive),
            setup,
        };
        Ok((worker, ready))
    }

    fn run(&mut self) {
        match self.setup.commands.recv() {
            Ok(Command::Go) => {}
            // Another worker could not open its ports.
            _ => return,
        }
        self.started = self.setup.clock.now();
        let mut last = self.started;
        let mut idle = false;
        loop {
            let now = self.setup.clock.now();
            self.stats.elapsed = now.since(self.started);
            if idle {
                self.stats.idle += now.since(last);
            }
            last = now;
            self.stats.counters.polls += 1;
            match self.iterate(now) {
                Iteration::Busy => {
                    idle = false;
                    self.spinner.worked();
                }
                Iteration::Empty => {
                    idle = true;
                    self.stats.counters.idle_polls += 1;
                    self.wait(now);
                }
                Iteration::End => return,
            }
        }
    }

    fn wait(&mut self, now: Nanos) {
        let idle = self
            .setup
            .config
            .workers
            .get(self.setup.index)
            .map(|w| w.idle)
            .unwrap_or_default();
        let Idle::Adaptive { sleep } = idle else {
            hint::spin_loop();
            return;
        };
        match self.spinner.idle(now) {
            spin::Idle::Spin => hint::spin_loop(),
            spin::Idle::Yield => {
                thread::yield_now();
                self.spinner.yielded(now, self.setup.clock.now());
            }
            spin::Idle::Sleep => self.sleep(now, sleep),
        }
    }

    fn sleep(&mut self, now: Nanos, longest: Duration) {
        let timers = [
            self.engine.poll_timeout(),
            self.outputs.poll_timeout(),
            Some(self.next_link_check),
        ];
        let due = timers.into_iter().flatten().min().unwrap_or(Nanos::MAX);
        let timeout = Duration::from_nanos(due.since(now).0).min(longest);
        if timeout.is_zero() {
            return;
        }
        if !self.moving.is_idle() {
            // The conditions that a move waits for do not wake the worker.
            thread::yield_now();
            return;
        }
        if self.receiving && self.outputs.ready() {
            // A port that can only be polled is always ready. Yield the core, but do not sleep.
            thread::yield_now();
            return;
        }
        self.stats.counters.sleeps += 1;
        let Self {
            sleeper,
            outputs,
            setup,
            published,
            receiving,
            ..
        } = self;
        sleeper.sleep(timeout, || {
            !setup.commands.is_empty()
                || published.load().generation() != setup.generation_in_use.load(Ordering::Relaxed)
                || (*receiving && outputs.ready())
                || setup.inbound.iter().any(|ring| !ring.is_empty())
        });
    }

    /// Called when no worker receives any more. Processes the inbound rings and sends what the ports still hold.
    pub(crate) fn drain(&mut self) {
        let start = self.setup.clock.now();
        loop {
            let now = self.setup.clock.now();
            self.engine.begin_iteration();
            let taken = self.take_over(now);
            // What groups have queued, and no other timers.
            let is_queued = self.engine.poll_timeout() == Some(Nanos::ZERO);
            if is_queued {
                self.engine.handle_timeout(now, &mut self.outputs);
            }
            for slot in &mut self.outputs.slots {
                slot.port.poll(now);
            }
            self.outputs.flush();
            self.outputs.poll_pfc(now);
            let held = self.outputs.pending();
            if taken == 0 && (held == 0 && !is_queued || now.since(start) > DRAIN_MAX) {
                return;
            }
            if taken == 0 {
                thread::yield_now();
            }
        }
    }
}

/// The index of a worker among those that use a port, 0 for the worker to which it is assigned. A worker receives from
/// the port if its index is below the number of receive queues.
pub(crate) fn rank(worker: usize, port_index: usize, workers: usize) -> usize {
    (worker + workers - port_index % workers) % workers
}

pub(crate) fn engine_config(config: &DataplaneConfig, links: &[PortLink]) -> EngineConfig {
    let mut engine_config = config.engine.clone();
    engine_config.ports = port_infos(config, links);
    if engine_config.mac == MacAddr::default() {
        engine_config.mac = engine_config.ports.first().map(|p| p.mac).unwrap_or_default();
    }
    engine_config
}

/// Only worker 0 sends LLDP, because only worker 0 receives it.
fn create_engine(config: &DataplaneConfig, index: usize, links: &[PortLink]) -> Result<Engine, StartError> {
    let mut engine_config = engine_config(config, links);
    if index != 0 {
        engine_config.lldp_interval = None;
    }
    Engine::new(engine_config).map_err(StartError::Config)
}

pub(crate) fn port_infos(config: &DataplaneConfig, links: &[PortLink]) -> Vec<PortInfo> {
    let ports = config.ports.iter().zip(links);
    ports
        .map(|(port, link)| PortInfo {
            id: port.id,
            name: port.name.clone(),
            mac: link.mac,
            mtu: link.mtu,
            flood: port.flood,
        })
        .collect()
}

fn pin(worker: usize, core: usize) -> Result<(), StartError> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|reason| StartError::Pin {
            worker,
            core,
            reason: reason.desc().to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
        })
}
