//! DPDK for one dataplane: its buffers and devices.

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

/// The default if the device supports it: it fits RoCE's largest packets and jumbo frames.
const MTU: usize = 9000;
/// DPDK's cache holds half as many more before it frees any.
const CACHED: usize = CACHE * 3 / 2 + BATCH;
/// Bytes for the EAL and devices, without the buffers.
const BESIDE: usize = 64 << 20;
/// Buffers of AF_XDP, including headers, must fit a page.
const XDP: &str = "net_af_xdp";
const XDP_ROOM: usize = 3328;
/// Per AF_XDP queue: the kernel holds this many per direction.
const XDP_BUFFERS: usize = 8192;

/// DPDK resources that a dataplane needs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads with a [`DpdkMemory`]. Each has its own send queue at each device.
    pub threads: usize,
    /// The longest frame, and in `bodies` the buffers per thread beyond the devices' rings. `buffers` is not used.
    pub pool: PoolConfig,
    /// Capacity in frames of the ring between each pair of threads. Each entry needs a buffer.
    pub hand_over: usize,
    /// Placement of the buffers.
    pub hugepages: Hugepages,
    /// The devices of the ports.
    pub devices: Vec<DpdkSpec>,
}

struct Needs {
    threads: usize,
    /// Whole frames: number and bytes of each.
    whole: usize,
    capacity: usize,
    small: usize,
    xdp: usize,
}

impl Config {
    fn needs(&self) -> Needs {
        let threads = self.threads.max(1);
        // A thread without a send queue has as many entries in the ring to the thread that sends for it.
        let sends: usize = self.devices.iter().map(|d| d.tx_frames * threads).sum();
        let receives: usize = self.devices.iter().map(|d| d.rx_frames * d.queues).sum();
        let ports = self.devices.len();
        let between = threads * (threads - 1) * self.hand_over;
        let whole = sends + receives + between + threads * (CACHED + self.pool.bodies + ports * BATCH);
        // A device's ring holds segments: of the three of a shared frame, one is counted there. Other rings hold
        // frames.
        let small = sends * if threads > 1 { 3 } else { 1 } + threads * (CACHED + 3 * (ports + 1) * BATCH);
        let capacity = self.pool.frame_max.max(HEAD).next_multiple_of(64);
        let xdp = self.devices.iter().filter(|d| d.device.starts_with(XDP));
        let xdp = XDP_BUFFERS * xdp.map(|d| d.queues).sum::<usize>();
        Needs {
            threads,
            whole,
            capacity,
            small,
            xdp,
        }
    }

    /// Memory in bytes for the buffers, the EAL and the devices.
    pub fn bytes(&self) -> usize {
        let needs = self.needs();
        let xdp = match needs.xdp {
            0 => 0,
            count => Lease::bytes(count, XDP_ROOM),
        };
        Lease::bytes(needs.whole, needs.capacity) + Lease::bytes(needs.small, HEAD) + xdp + BESIDE
    }
}

/// DPDK for one dataplane. A device stops when its last port is dropped.
#[derive(Debug)]
pub struct Runtime {
    eal: Eal,
    pub(crate) threads: usize,
    pub(crate) pool: PoolConfig,
    /// Buffers for whole frames; and for the heads, bodies and tails of shared frames.
    pub(crate) whole: Arc<Lease>,
    pub(crate) small: Arc<Lease>,
    xdp: Option<Arc<Lease>>,
    devices: Mutex<BTreeMap<String, Weak<Device>>>,
    /// By the first thread that creates its memory.
    pub(crate) thresholds: OnceLock<Thresholds>,
}

impl Runtime {
    /// Starts DPDK, if it is not running in this process, and allocates the buffers.
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
            whole: Arc::new(Lease::new(eal, needs.whole, needs.capacity)?),
            small: Arc::new(Lease::new(eal, needs.small, HEAD)?),
            xdp: match needs.xdp {
                0 => None,
                count => Some(Arc::new(Lease::new(eal, count, XDP_ROOM)?)),
            },
            devices: Mutex::default(),
            thresholds: OnceLock::new(),
        }))
    }

    /// Returns true if buffers are in hugepages.
    pub fn hugepages(&self) -> bool {
        self.eal.hugepages()
    }

    /// The memory of the calling thread, which is registered with DPDK.
    pub fn memory(self: &Arc<Self>) -> Result<DpdkMemory, DpdkError> {
        let registered = Registered::new(self.eal)?;
        Ok(DpdkMemory::new(self.clone(), registered))
    }

    /// The running device that `spec` describes. Starts it if necessary.
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
            "configured queue (queues=)",
        )?;
        enough("send", info.tx_queues_max, 1, "port")?;
        // The other end of a memif has a configured number of queues. Frames to further queues are lost.
        let (device_max, sends_max) = match info.memif {
            true => (memif_buffer(spec).saturating_sub(frame_max(0)), spec.queues),
            false => (info.mtu_max, info.tx_queues_max),
        };
        let pool = match &self.xdp {
            Some(xdp) if spec.device.starts_with(XDP) => xdp,
            _ => &self.whole,
        };
        let max = device_max.min(pool.capacity - frame_max(0));
        let mtu = spec.mtu.unwrap_or(MTU.min(max));
        if !(info.mtu_min..=max).contains(&mtu) {
            return Err(DpdkError::Mtu {
                device: spec.device.clone(),
                min: info.mtu_min,
                max,
                asked: mtu,
            });
        }
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

/// Both ends must have the same value.
fn memif_buffer(spec: &DpdkSpec) -> usize {
    let options = spec.arguments.split(',');
    let mut given = options.filter_map(|o| o.strip_prefix("bsize=")?.parse().ok());
    given.next_back().unwrap_or(2048)
}
