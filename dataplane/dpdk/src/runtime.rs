//! DPDK for one dataplane: its buffers and its devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use castnet_port::{BATCH, DpdkSpec, PoolConfig, frame_max};

use crate::error::DpdkError;
use crate::fence::device::{Device, Probed, SetUp};
use crate::fence::eal::{Eal, EalConfig, Hugepages, Registered};
use crate::fence::mbuf::HEAD;
use crate::fence::pool::{CACHE, Lease};
use crate::memory::DpdkMemory;
use crate::sharing::Thresholds;

/// The MTU of a device that takes as much: RoCE's largest packets and those of jumbo Ethernet.
const MTU: usize = 9000;
/// Buffers of each thread's caches: DPDK's own holds half as much again before it gives back.
const CACHED: usize = CACHE * 3 / 2 + BATCH;

/// What EAL and devices take beside the buffers, in bytes.
const BESIDE: usize = 64 << 20;

/// AF_XDP's buffers lie within a page, headers included.
const XDP: &str = "net_af_xdp";
const XDP_ROOM: usize = 3328;
/// Buffers for each of its queues: the kernel holds as many for either direction.
const XDP_BUFFERS: usize = 8192;

/// What a dataplane needs of DPDK.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that will have a [`DpdkMemory`]: each sends on a queue of its own of each device.
    pub threads: usize,
    /// The longest frame. `bodies` counts the buffers of each thread beyond those in the devices' rings; `buffers` is not
    /// used.
    pub pool: PoolConfig,
    /// Frames that wait between each two threads at most: each is a buffer.
    pub hand_over: usize,
    /// Where buffers live.
    pub hugepages: Hugepages,
    /// The devices that ports will name.
    pub devices: Vec<DpdkSpec>,
}

/// How many buffers that makes.
struct Needs {
    threads: usize,
    /// Whole frames, and their bytes.
    whole: usize,
    room: usize,
    small: usize,
    xdp: usize,
}

impl Config {
    fn needs(&self) -> Needs {
        let threads = self.threads.max(1);
        // A thread without a send queue has as many places in the ring to the one that sends for it.
        let sends: usize = self.devices.iter().map(|d| d.tx_frames * threads).sum();
        let receives: usize = self.devices.iter().map(|d| d.rx_frames * d.queues).sum();
        let ports = self.devices.len();
        let between = threads * (threads - 1) * self.hand_over;
        let whole = sends + receives + between + threads * (CACHED + self.pool.bodies + ports * BATCH);
        // A device's ring holds segments; a frame that shares has three, of which one is counted there. A ring between threads holds
        // frames.
        let small = sends * if threads > 1 { 3 } else { 1 } + threads * (CACHED + 3 * (ports + 1) * BATCH);
        let room = self.pool.frame_max.max(HEAD).next_multiple_of(64);
        let xdp = self.devices.iter().filter(|d| d.device.starts_with(XDP));
        let xdp = XDP_BUFFERS * xdp.map(|d| d.queues).sum::<usize>();
        Needs {
            threads,
            whole,
            room,
            small,
            xdp,
        }
    }

    /// Bytes of memory that DPDK needs for it: the buffers, and what EAL and devices take beside.
    pub fn bytes(&self) -> usize {
        let needs = self.needs();
        let xdp = if needs.xdp == 0 {
            0
        } else {
            Lease::bytes(needs.xdp, XDP_ROOM)
        };
        Lease::bytes(needs.whole, needs.room) + Lease::bytes(needs.small, HEAD) + xdp + BESIDE
    }
}

/// DPDK for one dataplane. Devices stop when the last port over them has gone.
#[derive(Debug)]
pub struct Runtime {
    eal: Eal,
    threads: usize,
    pool: PoolConfig,
    /// Buffers for whole frames, and for the heads, bodies and tails of those that share.
    whole: Arc<Lease>,
    small: Arc<Lease>,
    /// Those that AF_XDP receives into, where there is such a device.
    xdp: Option<Arc<Lease>>,
    devices: Mutex<BTreeMap<String, Weak<Device>>>,
    /// Measured by the first thread that has memory.
    thresholds: OnceLock<Thresholds>,
}

impl Runtime {
    /// Starts DPDK, if this process has not yet, and reserves the buffers.
    ///
    /// # Errors
    /// [`DpdkError::Start`], [`DpdkError::Hugepages`], [`DpdkError::Buffers`].
    pub fn start(config: &Config) -> Result<Arc<Self>, DpdkError> {
        let needs = config.needs();
        let eal = Eal::start(&EalConfig {
            hugepages: config.hugepages,
            bytes: config.bytes(),
            pci: config
                .devices
                .iter()
                .filter(|d| d.is_pci())
                .map(DpdkSpec::devargs)
                .collect(),
        })?;
        Ok(Arc::new(Self {
            eal,
            threads: needs.threads,
            pool: config.pool,
            whole: Arc::new(Lease::new(eal, needs.whole, needs.room)?),
            small: Arc::new(Lease::new(eal, needs.small, HEAD)?),
            xdp: match needs.xdp {
                0 => None,
                count => Some(Arc::new(Lease::new(eal, count, XDP_ROOM)?)),
            },
            devices: Mutex::default(),
            thresholds: OnceLock::new(),
        }))
    }

    /// Whether buffers live in hugepages.
    pub fn hugepages(&self) -> bool {
        self.eal.hugepages()
    }

    /// The memory of the thread that calls this, which becomes one of DPDK's.
    ///
    /// # Errors
    /// [`DpdkError::Thread`].
    pub fn memory(self: &Arc<Self>) -> Result<DpdkMemory, DpdkError> {
        let registered = Registered::new(self.eal)?;
        Ok(DpdkMemory::new(self.clone(), registered))
    }

    pub(crate) fn thresholds(&self) -> &OnceLock<Thresholds> {
        &self.thresholds
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn pool(&self) -> PoolConfig {
        self.pool
    }

    pub(crate) fn whole(&self) -> &Arc<Lease> {
        &self.whole
    }

    pub(crate) fn small(&self) -> &Arc<Lease> {
        &self.small
    }

    /// The device that `spec` describes: running, if somebody has it, or else set up and started.
    pub(crate) fn device(&self, spec: &DpdkSpec) -> Result<Arc<Device>, DpdkError> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(&spec.device).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let device = Arc::new(self.start_device(spec)?);
        devices.insert(spec.device.clone(), Arc::downgrade(&device));
        Ok(device)
    }

    fn start_device(&self, spec: &DpdkSpec) -> Result<Device, DpdkError> {
        let probed = Probed::new(self.eal, &spec.device, &spec.devargs())?;
        let info = probed.info()?;
        let enough = |direction, max, asked, what| {
            if asked <= max {
                return Ok(());
            }
            Err(DpdkError::Queues {
                device: spec.device.clone(),
                direction,
                max,
                asked,
                what,
            })
        };
        enough(
            "receive",
            info.rx_queues_max,
            spec.queues,
            "that queues= asks for",
        )?;
        enough("send", info.tx_queues_max, 1, "port")?;
        let device_max = if info.memif {
            memif_buffer(spec).saturating_sub(frame_max(0))
        } else {
            info.mtu_max
        };
        let pool = match &self.xdp {
            Some(xdp) if spec.device.starts_with(XDP) => xdp,
            _ => &self.whole,
        };
        let max = device_max.min(pool.room() - frame_max(0));
        let mtu = spec.mtu.unwrap_or(MTU.min(max));
        if !(info.mtu_min..=max).contains(&mtu) {
            return Err(DpdkError::Mtu {
                device: spec.device.clone(),
                min: info.mtu_min,
                max,
                asked: mtu,
            });
        }
        // The other end of a memif has as many queues as it was told, and what goes to others is lost.
        let sends_max = if info.memif {
            spec.queues
        } else {
            info.tx_queues_max
        };
        let set_up = SetUp {
            rx_queues: spec.queues,
            tx_queues: self.threads.min(sends_max),
            threads: self.threads,
            rx_frames: spec.rx_frames,
            tx_frames: spec.tx_frames,
            mtu,
            promiscuous: spec.promiscuous,
        };
        probed.start(set_up, pool.clone())
    }
}

/// Bytes of a buffer in the ring of a memif device, as both of its ends must be told.
fn memif_buffer(spec: &DpdkSpec) -> usize {
    let options = spec.arguments.split(',');
    let mut given = options.filter_map(|o| o.strip_prefix("bsize=")?.parse().ok());
    given.next_back().unwrap_or(2048)
}
