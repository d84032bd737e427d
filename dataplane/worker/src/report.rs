//! What a dataplane tells about itself.

use castnet_engine::{
    CollectiveCounters, ContextStatus, CountersSnapshot, EndpointSnapshot, ForwardingCounters,
    ForwardingEndpoint, GroupCounters, PathSnapshot, PortCounters, Totals,
};
use castnet_port::{BATCH, PoolStats, PortLink, PortStats, Steering};
use castnet_rules::GroupRule;
use castnet_wire::{DropReason, McstId, Nanos, PortId};

use crate::meter::{Clocks, Occupancy};

/// How a worker fares, since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// Its number.
    pub worker: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Rounds of its loop.
    pub rounds: u64,
    /// Rounds that found nothing to do.
    pub rounds_empty: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Time since the start.
    pub elapsed: Nanos,
    /// Of this: in rounds that found nothing, or asleep.
    pub idle: Nanos,
    /// Frames that it received from its ports.
    pub frames: u64,
    /// Batches by their size: how many had so many frames, from 0 (never counted) to a full one.
    pub batches: [u64; BATCH + 1],
    /// Frames that it handed over to other workers.
    pub handed_over: u64,
    /// Frames that others handed over to it.
    pub taken_over: u64,
    /// Commands that it carried out.
    pub commands: u64,
    /// Groups that were moved here, and away from here.
    pub groups_in: u64,
    /// See `groups_in`.
    pub groups_out: u64,
    /// Groups that it has.
    pub groups: usize,
    /// Bytes of state of these groups.
    pub group_memory_bytes: usize,
    /// The generation of the tables that it uses.
    pub generation: u64,
    /// Events, traces and captured frames that found no place inside the engine.
    pub engine_lost: u64,
    /// Its buffers.
    pub pool: PoolStats,
    /// Frames of others that it dropped because there was no place in their worker's ring.
    pub hand_over_drops: u64,
    /// Clocks by what they went to, in a sample of the rounds.
    pub clocks: Clocks,
    /// Clocks per second.
    pub clock_hz: u64,
}

impl WorkerStats {
    pub(crate) fn new(worker: usize, core: Option<usize>) -> Self {
        Self {
            worker,
            core,
            rounds: 0,
            rounds_empty: 0,
            sleeps: 0,
            elapsed: Nanos::ZERO,
            idle: Nanos::ZERO,
            frames: 0,
            batches: [0; BATCH + 1],
            handed_over: 0,
            taken_over: 0,
            commands: 0,
            groups_in: 0,
            groups_out: 0,
            groups: 0,
            group_memory_bytes: 0,
            generation: 0,
            engine_lost: 0,
            pool: PoolStats {
                buffers: 0,
                buffers_free: 0,
                bodies_free: 0,
                exhausted: 0,
            },
            hand_over_drops: 0,
            clocks: Clocks::default(),
            clock_hz: 0,
        }
    }

    /// Frames that it had in hand: those of its ports, and those of other workers.
    pub fn handled(&self) -> u64 {
        self.frames + self.taken_over
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
        let batches: u64 = self.batches.iter().sum();
        if batches == 0 {
            0.0
        } else {
            self.frames as f64 / batches as f64
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
    pub(crate) drops: [u64; DropReason::COUNT],
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
    Multicast(GroupCounters, Vec<PathSnapshot>),
    /// It computes.
    Translated(CollectiveCounters, Vec<EndpointSnapshot>),
    /// It forwards.
    Forwarding(ForwardingCounters, Vec<ForwardingEndpoint>),
}

impl KindReport {
    /// Of a group that multicasts: its counters and its paths.
    pub fn multicast(&self) -> Option<(&GroupCounters, &[PathSnapshot])> {
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
    /// Frames that ended anywhere in the switch, ports included, by [`DropReason::index`].
    pub drops: [u64; DropReason::COUNT],
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// The groups, in the order of their addresses.
    pub groups: Vec<GroupReport>,
    /// The workers.
    pub workers: Vec<WorkerStats>,
}

impl Counters {
    /// Frames that ended for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// The group of this address.
    pub fn group(&self, mcst_id: McstId) -> Option<&GroupReport> {
        self.groups.iter().find(|g| g.mcst_id == mcst_id)
    }

    /// The port of this number.
    pub fn port(&self, id: PortId) -> Option<&PortReport> {
        self.ports.iter().find(|p| p.id == id)
    }
}

/// Adds the totals of one worker to those of the others.
pub(crate) fn add_totals(sum: &mut Totals, more: &Totals) {
    let Totals {
        received,
        switched,
        routed,
        flooded,
        replicated,
        absorbed,
        dropped,
        copies,
        copies_lost,
        originated,
        sent,
    } = *more;
    sum.received += received;
    sum.switched += switched;
    sum.routed += routed;
    sum.flooded += flooded;
    sum.replicated += replicated;
    sum.absorbed += absorbed;
    sum.dropped += dropped;
    sum.copies += copies;
    sum.copies_lost += copies_lost;
    sum.originated += originated;
    sum.sent += sent;
}
