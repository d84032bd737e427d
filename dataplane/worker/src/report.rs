//! What a dataplane tells about itself.

use castnet_engine::{
    CollectiveCounters, ContextStatus, CountersSnapshot, EndpointSnapshot, ForwardingCounters,
    ForwardingEndpoint, MulticastCounters, PathSnapshot, PortCounters, Totals,
};
use castnet_port::{BATCH, PoolStats, PortLink, PortStats, Steering, copy_port_stats};
use castnet_rules::GroupRule;
use castnet_wire::{CounterSet, DropReason, Drops, McstId, Nanos, PortId, counters};

use crate::meter::{Clocks, Occupancy};

counters! {
    /// What a worker has done since its start.
    pub struct WorkerCounters => copy_worker_counters {
        /// Iterations of its loop.
        polls,
        /// Of these: those that found nothing to do.
        idle_polls,
        /// Times that it went to sleep.
        sleeps,
        /// Frames that it received from its ports.
        frames,
        /// Frames that it handed over to other workers.
        handed_over,
        /// Frames that others handed over to it.
        taken_over,
        /// Frames of others that it dropped because there was no place in their worker's ring.
        hand_over_drops,
        /// Commands that it carried out.
        commands,
        /// Groups that were moved here.
        groups_in,
        /// Groups that were moved away from here.
        groups_out,
        /// Events, traces and captured frames that found no place inside the engine.
        lost,
    }
}

/// How a worker fares, since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Its number.
    pub worker: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// What it has done.
    pub counters: WorkerCounters,
    /// Time since the start.
    pub elapsed: Nanos,
    /// Of this: in polls that found nothing, or asleep.
    pub idle: Nanos,
    /// Batches by their size: how many had so many frames, from 0 (never counted) to a full one.
    pub batch_sizes: [u64; BATCH + 1],
    /// Groups that it has.
    pub groups: usize,
    /// Bytes of state of these groups.
    pub group_memory_bytes: usize,
    /// The generation of the tables that it uses.
    pub generation: u64,
    /// Its buffers.
    pub pool: PoolStats,
    /// Clocks by what they went to, in a sample of the polls.
    pub clocks: Clocks,
    /// Clocks per second.
    pub clock_hz: u64,
}

impl WorkerStats {
    pub(crate) fn new(worker: usize, core: Option<usize>) -> Self {
        Self {
            worker,
            core,
            counters: WorkerCounters::default(),
            elapsed: Nanos::ZERO,
            idle: Nanos::ZERO,
            batch_sizes: [0; BATCH + 1],
            groups: 0,
            group_memory_bytes: 0,
            generation: 0,
            pool: PoolStats {
                buffers: 0,
                buffers_free: 0,
                bodies_free: 0,
                exhausted: 0,
            },
            clocks: Clocks::default(),
            clock_hz: 0,
        }
    }

    /// Frames that it had in hand: those of its ports, and those of other workers.
    pub fn handled(&self) -> u64 {
        self.counters.frames + self.counters.taken_over
    }

    /// The share of time that it was idle, 0 to 1.
    pub fn idle_share(&self) -> f64 {
        if self.elapsed == Nanos::ZERO {
            0.0
        } else {
            self.idle.0 as f64 / self.elapsed.0 as f64
        }
    }

    /// Frames per batch that was received, on average.
    pub fn batch_mean(&self) -> f64 {
        let batches: u64 = self.batch_sizes.iter().sum();
        if batches == 0 {
            0.0
        } else {
            self.counters.frames as f64 / batches as f64
        }
    }
}

/// Workers at most: what is handed over is told apart by bits of a word.
pub(crate) const WORKERS_MAX: usize = 64;

/// Groups, and paths of all of them, in one report of a worker; further ones come in the next.
const GROUPS_PER_REPORT: usize = 256;
const PATHS_PER_REPORT: usize = 2048;

/// What a worker says of one port.
#[derive(Debug)]
pub(crate) struct PortNow {
    /// What the port did.
    pub(crate) stats: PortStats,
    /// What ended between it and the engine.
    pub(crate) drops: Drops,
    /// Of the worker that watches the link: its speed, and how frames get to queues.
    pub(crate) link: Option<(Option<u32>, Steering)>,
}

/// What one worker says in one go. Made by control with room for all.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) at: Nanos,
    pub(crate) counters: CountersSnapshot,
    /// In the order of the configuration.
    pub(crate) ports: Vec<PortNow>,
    /// How full its rings were: those of the ports in the same order, then those of the other workers in theirs.
    pub(crate) rings: Vec<Occupancy>,
    pub(crate) runtime: WorkerStats,
}

impl Report {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            at: Nanos::ZERO,
            counters: CountersSnapshot::with_capacity(GROUPS_PER_REPORT, PATHS_PER_REPORT),
            ports: Vec::with_capacity(PortId::COUNT),
            rings: Vec::with_capacity(PortId::COUNT + WORKERS_MAX),
            runtime: WorkerStats::new(0, None),
        })
    }
}

/// A ring that a worker takes frames from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The receive queues of a port that are this worker's.
    Port {
        /// Its number.
        id: PortId,
        /// Its name.
        name: String,
    },
    /// Frames that another worker hands over.
    Worker(usize),
}

/// How full a ring was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingReport {
    /// Which one.
    pub ring: Ring,
    /// How full.
    pub occupancy: Occupancy,
}

/// How a worker fares, and its rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// The worker.
    pub stats: WorkerStats,
    /// The rings that tell how full they are: ports, then other workers.
    pub rings: Vec<RingReport>,
}

/// A port: what it is, what its queues did, and what the engines counted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Its number.
    pub id: PortId,
    /// Its name in the switch.
    pub name: String,
    /// What it is; its link as last seen.
    pub link: PortLink,
    /// What its queues did, those of all workers together. Its drops are frames that ended in the port.
    pub stats: PortStats,
    /// What the engines counted. Its drops are frames that came in here and ended in an engine or on the way there.
    pub engine: PortCounters,
}

counters! {
    /// What a port did: its queues and the engines in one.
    pub struct PortTotals => copy_port_totals {
        /// See [`PortStats`].
        rx_frames,
        /// See [`PortStats`].
        rx_bytes,
        /// See [`PortStats`].
        tx_frames,
        /// See [`PortStats`].
        tx_bytes,
        /// See [`PortStats`].
        rx_missed,
        /// Frames that the send queue had no room for.
        tx_full,
        /// Frames that were dropped, for any reason.
        dropped,
    }
}

impl PortReport {
    /// What it did, and the drops by reason.
    pub fn totals(&self) -> (PortTotals, Drops) {
        let mut drops = self.engine.drops;
        drops.add(&self.stats.drops);
        let totals = copy_port_stats!(self.stats => PortTotals {
            tx_full: self.stats.drops[DropReason::TxFull],
            dropped: drops.total(),
        });
        (totals, drops)
    }
}

/// A group's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// Its name.
    pub name: String,
    /// Its address.
    pub mcst_id: McstId,
    /// Which version of its rule runs.
    pub generation: u64,
    /// The worker that has it.
    pub worker: usize,
    /// What it has done.
    pub counters: KindReport,
}

/// What a group of one kind has done: its counters, and those of its endpoints in the order of its own rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindReport {
    /// It multicasts.
    Multicast(MulticastCounters, Vec<PathSnapshot>),
    /// It computes.
    Translated(CollectiveCounters, Vec<EndpointSnapshot>),
    /// It forwards.
    Forwarding(ForwardingCounters, Vec<ForwardingEndpoint>),
}

impl KindReport {
    /// Of a group that multicasts: its counters and its paths.
    pub fn multicast(&self) -> Option<(&MulticastCounters, &[PathSnapshot])> {
        match self {
            Self::Multicast(counters, paths) => Some((counters, paths)),
            _ => None,
        }
    }

    /// Of a group that computes: its counters and its endpoints.
    pub fn translated(&self) -> Option<(&CollectiveCounters, &[EndpointSnapshot])> {
        match self {
            Self::Translated(counters, endpoints) => Some((counters, endpoints)),
            _ => None,
        }
    }
}

/// A group with everything about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledGroup {
    /// The worker that has it.
    pub worker: usize,
    /// Its rule as it was installed.
    pub rule: GroupRule,
    /// How it fares. Its own rule has the endpoints in the order of their ports, or of the lowest ranks behind them.
    pub status: ContextStatus,
}

/// All counters.
///
/// Each frame that the workers took from their ports has one end:
/// `received = switched + routed + flooded + replicated + absorbed + dropped`. And what the engines sent, the ports
/// sent or dropped: `sent = sum(tx_frames) + sum(tx drops)`, where no fault injector is between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// When, on the dataplane's clock.
    pub at: Nanos,
    /// Of all workers together; frames that ended on their way to another worker are received and dropped.
    pub totals: Totals,
    /// Frames that ended anywhere in the switch, ports included.
    pub drops: Drops,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// The groups, in the order of their addresses.
    pub groups: Vec<GroupReport>,
    /// The workers.
    pub workers: Vec<WorkerStats>,
}

impl Counters {
    /// The group of this address.
    pub fn group(&self, mcst_id: McstId) -> Option<&GroupReport> {
        self.groups.iter().find(|g| g.mcst_id == mcst_id)
    }

    /// The port of this number.
    pub fn port(&self, id: PortId) -> Option<&PortReport> {
        self.ports.iter().find(|p| p.id == id)
    }
}
