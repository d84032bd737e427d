//! A worker's thread: set-up, the loop over its rounds, the end.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use castnet_engine::{Engine, EngineConfig, PortInfo, TAPS_MAX};
use castnet_port::{Batch, FlowTable, HandOver, Memory, OpenError, Port, PortLink, Sides, Sleeper, Waker};
use castnet_wire::{MacAddr, Nanos};
use crossbeam::channel::{Receiver, Sender};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::command::{Command, Subscriber};
use crate::config::{DataplaneConfig, Idle};
use crate::control::Clock;
use crate::error::StartError;
use crate::hold::Moving;
use crate::keeper::Note;
use crate::meter::{Meter, Occupancy};
use crate::outputs::Outputs;
use crate::published::Published;
use crate::report::WorkerStats;

/// How often a worker looks after the links of its ports.
pub(crate) const LINK_INTERVAL: Nanos = Nanos::from_millis(50);
/// How long a worker that ends waits for frames that its ports hold back.
const LINGER: Nanos = Nanos::from_secs(1);

/// Frames on their way from one worker to another, with the port they came in by.
pub(crate) type Ring<M> = Arc<<M as Memory>::HandOver>;

/// What a worker's thread is born with.
pub(crate) struct Setup<M: Memory> {
    pub(crate) index: usize,
    pub(crate) config: Arc<DataplaneConfig>,
    pub(crate) clock: Clock,
    pub(crate) published: Arc<ArcSwap<Published>>,
    /// The generation in use, for control.
    pub(crate) seen: Arc<AtomicU64>,
    /// By worker; this one's own place is never used.
    pub(crate) inbound: Vec<Ring<M>>,
    pub(crate) outbound: Vec<Ring<M>>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) notes: Sender<Note>,
    pub(crate) events_lost: Arc<AtomicU64>,
    pub(crate) opened: Sender<Result<Opened, StartError>>,
}

/// Makes the memory of one worker, on that worker's thread.
pub(crate) type MakeMemory<M> = dyn Fn(usize) -> Result<M, OpenError> + Send + Sync;

/// What a worker tells when it is ready.
pub(crate) struct Opened {
    /// Gone when the worker is.
    pub(crate) life: Weak<()>,
    pub(crate) waker: Waker,
    /// In the order of the configuration.
    pub(crate) links: Vec<PortLink>,
    /// Of each port, where its device can have rules.
    pub(crate) flow_tables: Vec<Option<Arc<dyn FlowTable>>>,
}

/// The thread.
pub(crate) fn run<M: Memory>(setup: Setup<M>, make: &MakeMemory<M>) {
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
    pub(crate) index: usize,
    pub(crate) config: Arc<DataplaneConfig>,
    pub(crate) clock: Clock,
    pub(crate) engine: Engine,
    pub(crate) outputs: Outputs<M>,
    pub(crate) memory: M,
    pub(crate) published: Cache<Arc<ArcSwap<Published>>, Arc<Published>>,
    pub(crate) seen: Arc<AtomicU64>,
    pub(crate) inbound: Vec<Ring<M>>,
    pub(crate) outbound: Vec<Ring<M>>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) notes: Sender<Note>,
    pub(crate) events_lost: Arc<AtomicU64>,
    /// Those who want live traces or captured frames.
    pub(crate) subscribers: Vec<Subscriber>,
    /// Frames just received, and those of them that stay here.
    pub(crate) batch: Batch<M::Buf>,
    pub(crate) mine: Batch<M::Buf>,
    pub(crate) receiving: bool,
    pub(crate) moving: Moving<M::Buf>,
    pub(crate) stats: WorkerStats,
    /// How full the rings are: those of the ports in the order of the slots, then the inbound ones.
    pub(crate) rings: Vec<Occupancy>,
    pub(crate) links_at: Nanos,
    _life: Arc<()>,
    sleeper: Sleeper,
    started: Nanos,
    /// Rounds in a row that found nothing.
    empty: u32,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Busy,
    Empty,
    /// The last one.
    End,
}

impl<M: Memory> Worker<M> {
    fn open(setup: Setup<M>, make: &MakeMemory<M>) -> Result<(Self, Opened), StartError> {
        let Setup {
            index,
            config,
            clock,
            published,
            seen,
            inbound,
            outbound,
            commands,
            notes,
            events_lost,
            ..
        } = setup;
        let core = config.workers.get(index).and_then(|w| w.core);
        if let Some(core) = core {
            pin(index, core)?;
        }
        let memory = make(index).map_err(|source| StartError::Memory {
            worker: index,
            source,
        })?;
        let mut sleeper = Sleeper::new().map_err(StartError::Thread)?;
        let mut outputs = Outputs::new(memory.clone(), Meter::new(clock.clone()));
        let (mut links, mut flow_tables) = (Vec::new(), Vec::new());
        for (place, port) in config.ports.iter().enumerate() {
            let rank = rank(index, place, config.workers.len());
            let receives = rank < port.spec.receivers();
            let sides = if receives { Sides::Both } else { Sides::Send };
            let failed = |source| StartError::Port {
                id: port.id,
                name: port.name.clone(),
                source,
            };
            let mut open = memory.open(&port.spec, sides, rank).map_err(failed)?;
            open.attach(&mut sleeper).map_err(StartError::Thread)?;
            links.push(open.info());
            flow_tables.push(open.flow_table());
            outputs.add(port.id, open, receives, rank == 0);
        }
        for (from, ring) in inbound.iter().enumerate().filter(|(from, _)| *from != index) {
            debug_assert!(from < config.workers.len());
            ring.attach(&mut sleeper).map_err(StartError::Thread)?;
        }
        let engine = engine(&config, index, &links)?;
        let life = Arc::new(());
        let ready = Opened {
            life: Arc::downgrade(&life),
            waker: sleeper.waker(),
            links,
            flow_tables,
        };
        let mut stats = WorkerStats::new(index, core);
        stats.clock_hz = clock.ticks_per_second();
        let worker = Self {
            index,
            clock,
            rings: vec![Occupancy::default(); config.ports.len() + inbound.len()],
            engine,
            outputs,
            memory,
            published: Cache::new(published),
            seen,
            inbound,
            outbound,
            commands,
            notes,
            events_lost,
            subscribers: Vec::with_capacity(TAPS_MAX),
            batch: Batch::new(),
            mine: Batch::new(),
            receiving: true,
            moving: Moving::new(&config),
            stats,
            links_at: Nanos::ZERO,
            _life: life,
            sleeper,
            started: Nanos::ZERO,
            empty: 0,
            config,
        };
        Ok((worker, ready))
    }

    /// Waits until all workers are there, then goes from round to round.
    fn run(&mut self) {
        match self.commands.recv() {
            Ok(Command::Go) => {}
            // Another worker could not open its ports: nothing has begun.
            _ => return,
        }
        self.started = self.clock.now();
        let mut last = self.started;
        let mut idle = false;
        loop {
            let now = self.clock.now();
            self.stats.elapsed = now.since(self.started);
            if idle {
                self.stats.idle += now.since(last);
            }
            last = now;
            self.stats.counters.polls += 1;
            match self.round(now) {
                Round::Busy => {
                    idle = false;
                    self.empty = 0;
                }
                Round::Empty => {
                    idle = true;
                    self.stats.counters.idle_polls += 1;
                    self.rest(now);
                }
                Round::End => return,
            }
        }
    }

    /// What is done when there is nothing to do.
    fn rest(&mut self, now: Nanos) {
        let idle = self
            .config
            .workers
            .get(self.index)
            .map(|w| w.idle)
            .unwrap_or_default();
        let Idle::Adaptive { spins, yields, sleep } = idle else {
            hint::spin_loop();
            return;
        };
        self.empty = self.empty.saturating_add(1);
        if self.empty <= spins {
            hint::spin_loop();
        } else if self.empty <= spins.saturating_add(yields) {
            thread::yield_now();
        } else {
            self.sleep(now, sleep);
        }
    }

    fn sleep(&mut self, now: Nanos, longest: Duration) {
        let timers = [
            self.engine.poll_timeout(),
            self.outputs.poll_timeout(),
            Some(self.links_at),
        ];
        let due = timers.into_iter().flatten().min().unwrap_or(Nanos::MAX);
        let timeout = Duration::from_nanos(due.since(now).0).min(longest);
        if timeout.is_zero() {
            return;
        }
        if !self.moving.is_idle() {
            // What a group's move waits for wakes nobody.
            thread::yield_now();
            return;
        }
        if self.receiving && self.outputs.ready() {
            // A port that can only be polled says so always: then others may have the core, but nobody sleeps.
            thread::yield_now();
            return;
        }
        self.stats.counters.sleeps += 1;
        let Self {
            sleeper,
            outputs,
            inbound,
            commands,
            published,
            seen,
            receiving,
            ..
        } = self;
        sleeper.sleep(timeout, || {
            !commands.is_empty()
                || published.load().generation() != seen.load(Ordering::Relaxed)
                || (*receiving && outputs.ready())
                || inbound.iter().any(|ring| !ring.is_empty())
        });
    }

    /// No worker receives any more: takes what is still on its way here, and sends what is still held.
    pub(crate) fn drain(&mut self) {
        let start = self.clock.now();
        loop {
            let now = self.clock.now();
            let taken = self.take_over(now);
            for slot in &mut self.outputs.slots {
                slot.port.poll(now);
            }
            self.outputs.flush();
            let held: usize = self.outputs.slots.iter().map(|s| s.port.pending()).sum();
            if taken == 0 && (held == 0 || now.since(start) > LINGER) {
                return;
            }
            if taken == 0 {
                thread::yield_now();
            }
        }
    }
}

/// The place of a worker among those that use a port: 0 for the one whose turn the port is, and which receives from it.
/// Where a port has several receive queues, the next ones receive as well.
pub(crate) fn rank(worker: usize, place: usize, workers: usize) -> usize {
    (worker + workers - place % workers) % workers
}

/// What all engines run with.
pub(crate) fn engine_config(config: &DataplaneConfig, links: &[PortLink]) -> EngineConfig {
    let mut own = config.engine.clone();
    own.ports = port_infos(config, links);
    if own.mac == MacAddr::default() {
        own.mac = own.ports.first().map(|p| p.mac).unwrap_or_default();
    }
    own
}

/// The engine of one worker. Only worker 0 speaks LLDP, as only it hears it.
fn engine(config: &DataplaneConfig, index: usize, links: &[PortLink]) -> Result<Engine, StartError> {
    let mut own = engine_config(config, links);
    if index != 0 {
        own.lldp_interval = None;
    }
    Engine::new(own).map_err(StartError::Config)
}

/// The ports as engines see them.
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
