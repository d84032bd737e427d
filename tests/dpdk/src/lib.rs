//! The switch over DPDK devices: frames, files of frames, and a dataplane that runs them through.
#![cfg(feature = "dpdk")]

pub mod frames;
pub mod gate;
pub mod program;
pub mod wrap;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use castnet_dpdk::{Config, Hugepages, Runtime, Thresholds};
use castnet_port::{Pool, PoolConfig, PortSpec};
use castnet_rules::GroupRule;
use castnet_wire::{MacAddr, PortId};
use castnet_worker::{Counters, Dataplane, DataplaneConfig, PortConfig, WorkerConfig};
use gate::Gate;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use wrap::Wrapped;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// From which lengths on replicas of a [`Switch`] share their body, whatever is cheapest on this machine.
pub const THRESHOLDS: Thresholds = Thresholds {
    lend: 1024,
    share: 2048,
};

/// Port `n` of the switch.
pub fn port(n: usize) -> PortId {
    PortId::new(n as u8).expect("below 64")
}

/// Writes frames into a file.
pub fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = PcapWriter::new(File::create(path).expect("a file")).expect("a writer");
    for frame in frames {
        let packet = PcapPacket::new(Duration::ZERO, frame.len() as u32, frame);
        writer.write_packet(&packet).expect("written");
    }
}

/// All frames of a file.
pub fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).expect("the file")).expect("a capture");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a frame").data.into_owned());
    }
    frames
}

/// A switch of these ports and so many workers; `hand_over` frames fit between two of them.
pub fn config(specs: &[String], workers: usize, hand_over: usize) -> DataplaneConfig {
    let ports = specs.iter().enumerate().map(|(n, spec)| {
        let spec: PortSpec = spec.parse().expect("a port");
        PortConfig::new(port(n), format!("p{n}"), spec)
    });
    let mut config = DataplaneConfig::new("s1", ports.collect());
    config.engine.lldp_interval = None;
    config.engine.hash_seed = 1;
    config.engine.mac = MacAddr([2, 0xCA, 0x57, 0, 0, 1]);
    config.workers = vec![WorkerConfig::default(); workers];
    config.hand_over = hand_over;
    // Groups stay where a test expects them.
    config.balance = None;
    config.pool = PoolConfig {
        buffers: 4096,
        bodies: 2048,
        frame_max: 9216,
    };
    config
}

/// A process has one memory of DPDK, as large as its first switch needs: the tests of a program take turns.
static DPDK: Mutex<()> = Mutex::new(());

/// A switch that receives nothing before its gate opens.
pub struct Switch {
    /// It.
    pub dataplane: Dataplane,
    gate: Arc<AtomicBool>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Switch {
    /// Starts it with these groups, over DPDK's buffers where a port is a DPDK device.
    pub fn start(config: DataplaneConfig, groups: &[GroupRule]) -> Self {
        let gate = Arc::new(AtomicBool::new(false));
        let devices: Vec<_> = config
            .ports
            .iter()
            .filter_map(|p| p.spec.dpdk().cloned())
            .collect();
        let (pool, open, hand_over) = (config.pool, gate.clone(), config.hand_over);
        let turn = (!devices.is_empty()).then(|| DPDK.lock().unwrap_or_else(PoisonError::into_inner));
        let dataplane = if devices.is_empty() {
            Dataplane::start_in(config, move |_| {
                Ok(Wrapped::new(Pool::new(pool), Gate::new(open.clone())))
            })
        } else {
            let runtime = Runtime::start(&Config {
                threads: config.workers.len(),
                pool,
                hand_over,
                hugepages: Hugepages::No,
                devices,
            });
            let runtime = runtime.expect("DPDK");
            Dataplane::start_in(config, move |_| {
                let memory = runtime.memory()?;
                memory.set_thresholds(THRESHOLDS);
                Ok(Wrapped::new(memory, Gate::new(open.clone())))
            })
        };
        let dataplane = dataplane.expect("a dataplane");
        for group in groups {
            dataplane.install(group).expect("a group");
        }
        Self {
            dataplane,
            gate,
            _turn: turn,
        }
    }

    /// Lets frames in.
    pub fn open(&self) {
        self.gate.store(true, Ordering::Relaxed);
    }

    /// The addresses of its ports.
    pub fn macs(&self) -> Vec<MacAddr> {
        let ports = self.dataplane.ports().expect("ports");
        ports.iter().map(|p| p.link.mac).collect()
    }
}

/// Waits until the counters say so.
pub fn wait(dataplane: &Dataplane, what: &str, done: impl Fn(&Counters) -> bool) -> Counters {
    let start = Instant::now();
    loop {
        let counters = dataplane.counters().expect("counters");
        if done(&counters) {
            return counters;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{what}: {:?} {:?}",
            counters.totals,
            counters.drops
        );
        std::thread::yield_now();
    }
}
