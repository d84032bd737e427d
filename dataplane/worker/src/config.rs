//! What a dataplane starts with.

use std::time::Duration;

use castnet_engine::EngineConfig;
use castnet_port::{PoolConfig, PortSpec};
use castnet_wire::PortId;

use crate::balance::Balance;

/// A switch: its ports, its workers and its limits.
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// The engine's configuration. Its `ports` are filled in from what is opened, and its `mac`, where it is zero, from
    /// the first port. `groups_max` and `memory_bytes_max` are for all workers together.
    pub engine: EngineConfig,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// One thread each; at least one.
    pub workers: Vec<WorkerConfig>,
    /// The buffers of each worker.
    pub pool: PoolConfig,
    /// Frames that fit into the ring between each pair of workers.
    pub hand_over: usize,
    /// Frames of a group that is moved which its new worker holds until it has the group; further ones wait in ports and
    /// rings.
    pub hold: usize,
    /// Whether a frame that finds the ring to another worker full waits, and all others of that worker's ports behind it,
    /// instead of being dropped. While a group is moved it does in any case.
    pub patient: bool,
    /// When groups are moved from worker to worker by themselves; `None` for never. With one worker they never are.
    pub balance: Option<Balance>,
    /// Events that wait for each listener before further ones are only counted.
    pub events_max: usize,
}

impl DataplaneConfig {
    /// A switch of this name with these ports and one worker that is not pinned and sleeps when idle.
    pub fn new(switch: impl Into<String>, ports: Vec<PortConfig>) -> Self {
        Self {
            engine: EngineConfig::new(switch, Vec::new()),
            ports,
            workers: vec![WorkerConfig::default()],
            pool: PoolConfig::default(),
            hand_over: 512,
            hold: 512,
            patient: false,
            balance: Some(Balance::default()),
            events_max: 1024,
        }
    }
}

/// One port of the switch.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its number.
    pub id: PortId,
    /// Its name, as operators and LLDP neighbours see it.
    pub name: String,
    /// What it is.
    pub spec: PortSpec,
    /// Whether frames to unknown and to group Ethernet addresses are flooded to it.
    pub flood: bool,
}

impl PortConfig {
    /// A port that is flooded to, as all ports of an Ethernet switch are.
    pub fn new(id: PortId, name: impl Into<String>, spec: impl Into<PortSpec>) -> Self {
        Self {
            id,
            name: name.into(),
            spec: spec.into(),
            flood: true,
        }
    }
}

/// One worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The core that it is pinned to; `None` for any.
    pub core: Option<usize>,
    /// What it does when there is nothing to do.
    pub idle: Idle,
}

/// What a worker does when a round found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Looks again at once: the least latency, and a whole core.
    Busy,
    /// Looks again some times, then offers its core to others some times, then sleeps until a port or a command wakes it.
    Adaptive {
        /// Rounds that find nothing before it yields.
        spins: u32,
        /// Further such rounds before it sleeps.
        yields: u32,
        /// The longest sleep.
        sleep: Duration,
    },
}

impl Default for Idle {
    /// 200 rounds, 20 yields, sleeps of up to a millisecond.
    fn default() -> Self {
        Self::Adaptive {
            spins: 200,
            yields: 20,
            sleep: Duration::from_millis(1),
        }
    }
}
