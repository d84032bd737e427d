//! Configuration of a dataplane.

use std::time::Duration;

use castnet_engine::EngineConfig;
use castnet_port::{PfcConfig, PoolConfig, PortSpec};
use castnet_wire::PortId;

use crate::balance::Balance;

/// Configuration of a switch: its ports, workers and limits.
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// `ports` is filled in when the ports are opened. A zero `mac` is replaced by that of the first port. `groups_max`
    /// and `memory_bytes_max` apply to all workers together.
    pub engine: EngineConfig,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// One thread each. At least one.
    pub workers: Vec<WorkerConfig>,
    /// The buffers of each worker.
    pub pool: PoolConfig,
    /// Capacity in frames of the ring between each pair of workers.
    pub hand_over: usize,
    /// Frames of a moving group that the target worker holds until it has the group. Others wait in ports and rings.
    pub hold: usize,
    /// Frames that wait for paused ports, per worker. If a port has flow control, the pools have that many buffers and bodies more.
    pub pfc_frames: usize,
    /// True if a frame is blocked, not dropped, when the ring to another worker is full. All later frames of that
    /// worker's ports wait behind it. During a move frames are always blocked.
    pub patient: bool,
    /// When groups move automatically. `None`: never. A single worker is never balanced.
    pub balance: Option<Balance>,
    /// Queued events per subscriber. Further events are only counted.
    pub events_max: usize,
}

impl DataplaneConfig {
    /// With one worker, which is not pinned and sleeps when idle.
    pub fn new(switch: impl Into<String>, ports: Vec<PortConfig>) -> Self {
        Self {
            engine: EngineConfig::new(switch, Vec::new()),
            ports,
            workers: vec![WorkerConfig::default()],
            pool: PoolConfig::default(),
            hand_over: 512,
            hold: 512,
            pfc_frames: 4096,
            patient: false,
            balance: Some(Balance::default()),
            events_max: 1024,
        }
    }

    /// The buffers of each worker, with those for flow control.
    pub fn whole_pool(&self) -> PoolConfig {
        let more = match self.ports.iter().any(|port| port.pfc.is_some()) {
            true => self.pfc_frames,
            false => 0,
        };
        PoolConfig {
            buffers: self.pool.buffers + more,
            bodies: self.pool.bodies + more,
            ..self.pool
        }
    }
}

/// Configuration of one port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Number of the port.
    pub id: PortId,
    /// The name that operators and LLDP neighbours see.
    pub name: String,
    /// The device or link behind the port.
    pub spec: PortSpec,
    /// True if frames to unknown and to group Ethernet addresses are flooded to this port.
    pub flood: bool,
    /// Flow control (PFC). `None`: no class is lossless, and PAUSE is not obeyed.
    pub pfc: Option<PfcConfig>,
}

impl PortConfig {
    /// With flooding enabled, and with the flow control of `spec`.
    pub fn new(id: PortId, name: impl Into<String>, spec: impl Into<PortSpec>) -> Self {
        let (spec, pfc) = spec.into().split_pfc();
        Self {
            id,
            name: name.into(),
            spec,
            flood: true,
            pfc,
        }
    }
}

/// Configuration of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
    /// Behaviour of the worker when it is idle.
    pub idle: Idle,
}

/// Behaviour of a worker after an idle poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once. This has the lowest latency and uses a whole core.
    Busy,
    /// Polls and yields the core in turn, then sleeps until a port or a command wakes the worker ([`spin`](castnet_wire::spin)).
    Adaptive {
        /// The longest sleep.
        sleep: Duration,
    },
}

impl Default for Idle {
    /// Sleeps of up to a millisecond.
    fn default() -> Self {
        Self::Adaptive {
            sleep: Duration::from_millis(1),
        }
    }
}
