//! Reports and counters of a dataplane.

use castnet_engine::{
    CollectiveCounters, ContextStatus, CountersSnapshot, EndpointSnapshot, ForwardingCounters,
    ForwardingEndpoint, MulticastCounters, PathSnapshot, PortCounters, Totals,
};
use castnet_pfc::PfcClassReport;
use castnet_port::{BATCH, PoolStats, PortLink, PortStats, Segmentation, Steering, copy_port_stats};
use castnet_rules::GroupRule;
use castnet_wire::{CounterSet, DropReason, Drops, McstId, Nanos, PortId, counters};

use crate::meter::{Clocks, Occupancy};

counters! {
    /// Counters of a worker since its start.
    pub struct WorkerCounters => copy_worker_counters {
        /// Iterations of its loop.
        polls,
        /// Polls that found nothing to do.
        idle_polls,
        /// Times that the worker went to sleep.
        sleeps,
        /// Frames received from the worker's ports.
        frames,
        /// Frames handed over to other workers.
        handed_over,
        /// Frames taken over from other workers.
        taken_over,
        /// Frames dropped because the ring to their worker was full.
        hand_over_drops,
        /// Commands executed.
        commands,
        /// Groups moved to this worker.
        groups_in,
        /// Groups moved away from this worker.
        groups_out,
        /// Events, traces and captured frames lost because a queue in the engine was full, or a port caused too many events.
        lost,
    }
}

/// Statistics of a worker since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Index of the worker.
    pub worker: usize,
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
    /// Counters of the worker.
    pub counters: WorkerCounters,
    /// Time since the worker's start.
    pub elapsed: Nanos,
    /// The part of `elapsed` spent in idle polls and asleep.
    pub idle: Nanos,
    /// Received batches by size. Empty ones are not counted.
    pub batch_sizes: [u64; BATCH + 1],
    /// The number of the worker's groups.
    pub groups: usize,
    /// Bytes of state of these groups.
    pub group_memory_bytes: usize,
    /// Generation of the tables in use.
    pub generation: u64,
    /// Statistics of the worker's buffers.
    pub pool: PoolStats,
    /// Clocks per part of the loop, sampled.
    pub clocks: Clocks,
    /// Frequency of the clock.
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
}

/// The hand-over keeps a set of workers in one 64-bit word.
pub(crate) const WORKERS_MAX: usize = 64;

/// In one report, with the paths of all of them. Further groups follow in the next report.
const GROUPS_PER_REPORT: usize = 256;
const PATHS_PER_REPORT: usize = 2048;

#[derive(Debug)]
pub(crate) struct PortNow {
    /// Of the worker's side of the port.
    pub(crate) stats: PortStats,
    /// Between the port and the engine.
    pub(crate) drops: Drops,
    /// Link speed, steering mode and segmentation, from the worker that reports the link.
    pub(crate) link: Option<(Option<u32>, Steering, Segmentation)>,
}

/// Control allocates it with its full capacity.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) at: Nanos,
    pub(crate) counters: CountersSnapshot,
    /// In the order of the configuration.
    pub(crate) ports: Vec<PortNow>,
    /// Of the ports in the same order, then of the rings from the other workers by index.
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
    /// This worker's receive queues at a port.
    Port {
        /// Number of the port.
        id: PortId,
        /// Name of the port.
        name: String,
    },
    /// The ring of frames from another worker.
    Worker(usize),
}

/// Occupancy of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingReport {
    /// The ring.
    pub ring: Ring,
    /// Its occupancy.
    pub occupancy: Occupancy,
}

/// Statistics of a worker and its rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// Statistics of the worker.
    pub stats: WorkerStats,
    /// The rings that report their occupancy: first ports, then other workers.
    pub rings: Vec<RingReport>,
}

/// Report of a port: its description, its queues' statistics and the engines' counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Number of the port.
    pub id: PortId,
    /// Name of the port in the switch.
    pub name: String,
    /// Description of the port, with its link as last read.
    pub link: PortLink,
    /// Why the port has no interface, and is down. `None` if it has one.
    pub reason: Option<String>,
    /// Statistics of the queues of all workers. The drops are frames dropped in the port.
    pub stats: PortStats,
    /// Counters of the engines. The drops are frames received here and dropped in an engine or on the way to one.
    pub engine: PortCounters,
    /// Flow control of each lossless class. Empty without flow control.
    pub pfc: Vec<PfcClassReport>,
}

counters! {
    /// Counters of a port: its queues and the engines combined.
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
        /// See [`PortStats`].
        tx_gso,
        /// See [`PortStats`].
        ecn_marks,
        /// Frames dropped because the send queue was full.
        tx_full,
        /// Frames that were dropped, for any reason.
        dropped,
    }
}

impl PortReport {
    /// Returns the combined counters and the drops by reason.
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

/// Counters of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// Name of the group.
    pub name: String,
    /// McstID of the group.
    pub mcst_id: McstId,
    /// Generation of the installed rule.
    pub generation: u64,
    /// The worker that has the group.
    pub worker: usize,
    /// Counters of the group and its endpoints.
    pub counters: KindReport,
}

/// Counters of a group and of its endpoints, by the group's kind. Endpoints are in the order of the group's rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindReport {
    /// A multicast group.
    Multicast(MulticastCounters, Vec<PathSnapshot>),
    /// A collective group.
    Translated(CollectiveCounters, Vec<EndpointSnapshot>),
    /// A forwarding group.
    Forwarding(ForwardingCounters, Vec<ForwardingEndpoint>),
}

impl KindReport {
    /// Counters and paths of a multicast group, `None` for other kinds.
    pub fn multicast(&self) -> Option<(&MulticastCounters, &[PathSnapshot])> {
        match self {
            Self::Multicast(counters, paths) => Some((counters, paths)),
            _ => None,
        }
    }

    /// Counters and endpoints of a collective group, `None` for other kinds.
    pub fn translated(&self) -> Option<(&CollectiveCounters, &[EndpointSnapshot])> {
        match self {
            Self::Translated(counters, endpoints) => Some((counters, endpoints)),
            _ => None,
        }
    }
}

/// An installed group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledGroup {
    /// The worker that has it.
    pub worker: usize,
    /// The rule as it was installed.
    pub rule: GroupRule,
    /// Its rule has the endpoints in the order of their ports, or of the lowest ranks behind them.
    pub status: ContextStatus,
}

/// All counters of a switch.
///
/// Each received frame has exactly one outcome: `received = switched + routed + flooded + replicated +
/// absorbed + dropped`. Each frame sent by an engine is sent or dropped by a port: `sent = sum(tx_frames) +
/// sum(tx drops)`, unless a fault injector wraps the port. PFC frames are only in the counters of the ports and of flow control. Frames
/// that flow control holds back are sent by the engine and not yet by the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time of the snapshot on the dataplane's clock.
    pub at: Nanos,
    /// Totals of all workers. Frames dropped on the way to another worker count as received and dropped.
    pub totals: Totals,
    /// Frames dropped anywhere in the switch, including the ports.
    pub drops: Drops,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// The groups, in the order of their McstIDs.
    pub groups: Vec<GroupReport>,
    /// The workers.
    pub workers: Vec<WorkerStats>,
}

impl Counters {
    /// The group with this McstID.
    pub fn group(&self, mcst_id: McstId) -> Option<&GroupReport> {
        self.groups.iter().find(|g| g.mcst_id == mcst_id)
    }

    /// The port with this number.
    pub fn port(&self, id: PortId) -> Option<&PortReport> {
        self.ports.iter().find(|p| p.id == id)
    }
}
