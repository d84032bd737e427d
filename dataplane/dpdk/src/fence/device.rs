//! Devices and their queues. A queue is a value that one thread has, so nobody shares one.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use castnet_dpdk_sys as sys;
use castnet_port::{BATCH, Batch, MoveRing};
use castnet_wire::MacAddr;

use super::eal::{self, Eal};
use super::flow::Rule;
use super::mbuf::Mbuf;
use super::pool::Lease;
use crate::error::DpdkError;
use crate::flow::Flows;
use crate::rss;

/// Drivers that send frames of several segments and do not say so (seen in DPDK 22.11: they read or free them segment by
/// segment).
const TAKES_SEGMENTS: &[&str] = &["net_null", "net_pcap"];
/// memif. It says that 1518 bytes are the most and that it takes several segments; but it carries whatever fits one buffer
/// of its ring, and where a frame needs several, whether for its length or its segments, its descriptors keep a flag of
/// earlier frames (seen in DPDK 22.11), and later frames come out glued together.
const MEMIF: &str = "net_memif";

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub(crate) driver: String,
    pub(crate) mac: MacAddr,
    pub(crate) rx_queues_max: usize,
    pub(crate) tx_queues_max: usize,
    pub(crate) mtu_min: usize,
    /// As far as the driver knows.
    pub(crate) mtu_max: usize,
    /// Whether what it says of lengths and segments is not to be believed: see [`MEMIF`].
    pub(crate) memif: bool,
    /// The NUMA node that it is attached to, where it is to one.
    pub(crate) numa_node: Option<u32>,
}

/// How a device is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetUp {
    pub(crate) rx_queues: usize,
    /// As many as there are threads, or fewer.
    pub(crate) tx_queues: usize,
    pub(crate) threads: usize,
    pub(crate) rx_frames: usize,
    pub(crate) tx_frames: usize,
    pub(crate) mtu: usize,
    pub(crate) promiscuous: bool,
}

/// A device that DPDK knows and that is ours; taken away when it is dropped.
#[derive(Debug)]
pub(crate) struct Probed {
    port: u16,
    name: String,
}

/// A device that runs. It stops when the last holder, queues included, has gone.
#[derive(Debug)]
pub(crate) struct Device {
    probed: Probed,
    pub(crate) info: DeviceInfo,
    pub(crate) mtu: usize,
    /// Whether it sends frames of several segments.
    pub(crate) multi_segment: bool,
    /// Whether it spreads frames over its receive queues by their destination address.
    pub(crate) rss: bool,
    pub(crate) rx_queues: usize,
    pub(crate) tx_queues: usize,
    /// Frames that each receive queue's ring holds, as the device has adjusted it.
    rx_frames: usize,
    /// Whether it says of received frames whether their IPv4 checksum is right.
    pub(crate) rx_checksum: bool,
    /// By send queue: what threads without one put down for the one that has it. Empty where all have one.
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Its rules, of which control makes as many as there are groups.
    pub(crate) flows: Mutex<Flows<Rule>>,
    rules: AtomicUsize,
    /// The queues that somebody has.
    taken: Mutex<Vec<(Direction, usize)>>,
    _pool: Arc<Lease>,
}

/// Frames on their way to the thread that has a send queue.
pub(crate) type Lane = MoveRing<(), Mbuf>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

/// Devices come and go one at a time.
static HOTPLUG: Mutex<()> = Mutex::new(());

impl Probed {
    /// Finds or makes a device.
    ///
    /// # Errors
    /// [`DpdkError::NoDevice`].
    pub(crate) fn new(_running: Eal, name: &str, devargs: &str) -> Result<Self, DpdkError> {
        let no_device = |code| DpdkError::NoDevice {
            device: devargs.to_owned(),
            reason: eal::reason(code),
        };
        let (Ok(c_name), Ok(c_devargs)) = (CString::new(name), CString::new(devargs)) else {
            return Err(no_device(-nix::libc::EINVAL));
        };
        let _alone = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        let mut port = u16::MAX;
        // SAFETY: the name ends in a zero, and DPDK writes to `port` alone.
        let mut find = || unsafe { sys::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &mut port) };
        eal::forget_log();
        // A PCI device was probed at the start, as it was allowed there.
        if find() != 0 {
            // SAFETY: the text ends in a zero and is copied.
            let failed = unsafe { sys::rte_dev_probe(c_devargs.as_ptr()) };
            if failed != 0 {
                return Err(no_device(failed));
            }
            let failed = find();
            if failed != 0 {
                return Err(no_device(failed));
            }
        }
        Ok(Self {
            port,
            name: name.to_owned(),
        })
    }

    /// # Errors
    /// [`DpdkError::SetUp`].
    pub(crate) fn info(&self) -> Result<DeviceInfo, DpdkError> {
        let mut info = MaybeUninit::<sys::cn_info>::zeroed();
        eal::forget_log();
        // SAFETY: the device is there; DPDK writes to `info` alone, for which zeros are a value.
        let (failed, info) = unsafe {
            let failed = sys::cn_info(self.port, info.as_mut_ptr());
            (failed, info.assume_init())
        };
        if failed != 0 {
            return Err(self.refused("ask what it is", failed));
        }
        let driver = eal::text(info.driver.as_ptr());
        Ok(DeviceInfo {
            memif: driver == MEMIF,
            driver,
            mac: MacAddr(info.mac),
            rx_queues_max: info.rx_queues_max.into(),
            tx_queues_max: info.tx_queues_max.into(),
            mtu_min: info.mtu_min.into(),
            mtu_max: info.mtu_max.into(),
            numa_node: u32::try_from(info.socket).ok(),
        })
    }

    fn refused(&self, step: &str, code: i32) -> DpdkError {
        DpdkError::SetUp {
            device: self.name.clone(),
            step: step.to_owned(),
            reason: eal::reason(code),
        }
    }

    /// Configures the device and starts it; received frames go to buffers of `pool`, each of which holds a whole frame.
    ///
    /// # Errors
    /// [`DpdkError::SetUp`].
    pub(crate) fn start(self, set_up: SetUp, pool: Arc<Lease>) -> Result<Device, DpdkError> {
        let info = self.info()?;
        let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let mut key = rss::destination_key();
        let mut setup = sys::cn_setup {
            pool: pool.raw(),
            rss_key: key.as_mut_ptr(),
            rx_queues: short(set_up.rx_queues),
            tx_queues: short(set_up.tx_queues),
            rx_descriptors: short(set_up.rx_frames),
            tx_descriptors: short(set_up.tx_frames),
            mtu: short(set_up.mtu.min(info.mtu_max)),
            rss_key_length: rss::KEY_LENGTH as u8,
            promiscuous: set_up.promiscuous.into(),
            multi_segment: 0,
            rss: 0,
            rx_checksum: 0,
        };
        let mut step = ptr::null();
        eal::forget_log();
        // SAFETY: the device is there and stopped; the pool lives for ever, the key until the call is over, as DPDK copies
        // it; the shim writes to `setup` and `step` alone.
        let failed = unsafe { sys::cn_setup(self.port, &mut setup, &mut step) };
        if failed != 0 {
            let step = eal::text(step);
            return Err(self.refused(&step, failed));
        }
        let tx_queues = usize::from(setup.tx_queues);
        // Each place is a buffer, and those are counted: see `Runtime::start`.
        let without = set_up.threads.saturating_sub(tx_queues);
        let clients = without.div_ceil(tx_queues.max(1));
        let lanes = match clients {
            0 => 0,
            _ => tx_queues,
        };
        Ok(Device {
            probed: self,
            multi_segment: TAKES_SEGMENTS.contains(&info.driver.as_str())
                || (setup.multi_segment != 0 && !info.memif),
            info,
            mtu: set_up.mtu,
            rss: setup.rss != 0,
            rx_queues: set_up.rx_queues,
            tx_queues,
            rx_frames: setup.rx_descriptors.into(),
            rx_checksum: setup.rx_checksum != 0,
            lanes: (0..lanes)
                .map(|_| Arc::new(Lane::new(clients * set_up.tx_frames)))
                .collect(),
            flows: Mutex::default(),
            rules: AtomicUsize::new(0),
            taken: Mutex::new(Vec::new()),
            _pool: pool,
        })
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        let _alone = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is ours, and no queue of it is left.
        unsafe { sys::cn_remove(self.port) };
    }
}

impl Device {
    pub(crate) fn name(&self) -> &str {
        &self.probed.name
    }

    /// Whether it has a link, and its speed in Mb/s, 0 where that is unknown.
    pub(crate) fn link(&self) -> (bool, u32) {
        let mut mbps = 0;
        // SAFETY: the device is there, and DPDK writes to `mbps` alone.
        let up = unsafe { sys::cn_link(self.probed.port, &mut mbps) };
        (up != 0, mbps)
    }

    /// Frames that came and were lost in the device.
    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: the device is there.
        unsafe { sys::cn_missed(self.probed.port) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.probed.port
    }

    /// What the thread puts frames down in that is the `rank`th and has no send queue; `None` for one that has.
    pub(crate) fn lane(&self, rank: usize) -> Option<&Arc<Lane>> {
        let at = rank.checked_sub(self.tx_queues)?;
        self.lanes.get(at % self.tx_queues.max(1))
    }

    /// Rules that lead frames to their queues.
    pub(crate) fn rules(&self) -> usize {
        self.rules.load(Ordering::Relaxed)
    }

    pub(crate) fn note_rules(&self, rules: usize) {
        self.rules.store(rules, Ordering::Relaxed);
    }

    fn take(&self, direction: Direction, queue: usize) -> Result<(), DpdkError> {
        let there = match direction {
            Direction::Receive => self.rx_queues,
            Direction::Send => self.tx_queues,
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if queue >= there || taken.contains(&(direction, queue)) {
            return Err(DpdkError::InUse {
                device: self.probed.name.clone(),
            });
        }
        taken.push((direction, queue));
        Ok(())
    }

    fn give(&self, direction: Direction, queue: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|t| *t != (direction, queue));
    }
}

/// A receive queue of a device, in the hands of the one who uses it.
#[derive(Debug)]
pub(crate) struct RxQueue {
    device: Arc<Device>,
    queue: u16,
}

impl RxQueue {
    /// # Errors
    /// [`DpdkError::InUse`]: somebody has it, or there is no such queue.
    pub(crate) fn new(device: &Arc<Device>, queue: usize) -> Result<Self, DpdkError> {
        device.take(Direction::Receive, queue)?;
        Ok(Self {
            device: device.clone(),
            queue: queue as u16,
        })
    }

    /// Adds what has come to `batch`, as much as it holds. A frame of several segments, which are there only where the
    /// device does not keep to the buffers' size, is made whole by `whole`, or lost and counted in what is returned.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        batch: &mut Batch<Mbuf>,
        mut whole: impl FnMut(&[&[u8]]) -> Option<Mbuf>,
    ) -> u64 {
        let mut raw = [ptr::null_mut::<sys::rte_mbuf>(); BATCH];
        let room = batch.remaining_capacity().min(BATCH) as u16;
        // SAFETY: the queue is ours, and the array has room for as many; DPDK writes frames that are ours from here on.
        let count = unsafe { sys::cn_rx_burst(self.device.probed.port, self.queue, raw.as_mut_ptr(), room) };
        let mut lost = 0;
        let received = &raw[..usize::from(count).min(BATCH)];
        for &raw in received {
            prefetch(raw);
        }
        for &raw in received {
            let Some(raw) = NonNull::new(raw) else { continue };
            // SAFETY: received, so it is there and ours; where it has several segments, it is only dropped.
            let frame = unsafe { Mbuf::from_raw(raw) };
            if frame.segment_count() == 1 {
                batch.push(frame);
            } else {
                match gather(raw, &mut whole) {
                    Some(whole) => batch.push(whole),
                    None => lost += 1,
                }
            }
        }
        lost
    }

    /// Whether frames wait; `true` where the device does not tell.
    pub(crate) fn ready(&self) -> bool {
        self.waiting().is_none_or(|frames| frames > 0)
    }

    /// Frames that wait, where the device tells.
    pub(crate) fn waiting(&self) -> Option<usize> {
        // SAFETY: the queue is there and ours.
        let frames = unsafe { sys::cn_rx_waiting(self.device.probed.port, self.queue) };
        usize::try_from(frames).ok()
    }

    /// Frames that its ring holds.
    pub(crate) fn size(&self) -> usize {
        self.device.rx_frames
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        self.device.give(Direction::Receive, self.queue.into());
    }
}

/// Has the first lines of a frame on their way while those before it are looked at.
#[inline]
fn prefetch(raw: *const sys::rte_mbuf) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a received buffer's header is there; prefetching any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let data = (*raw).buf_addr.wrapping_add(usize::from((*raw).data_off));
        _mm_prefetch::<_MM_HINT_T0>(data.cast());
        _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(64).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = raw;
}

/// Segments of a received frame at most.
const SEGMENTS_MAX: usize = 16;

#[cold]
fn gather(raw: NonNull<sys::rte_mbuf>, whole: &mut impl FnMut(&[&[u8]]) -> Option<Mbuf>) -> Option<Mbuf> {
    let mut parts: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
    let mut at: *const sys::rte_mbuf = raw.as_ptr();
    for part in &mut parts {
        if at.is_null() {
            break;
        }
        // SAFETY: a segment of a frame that is ours and lives until the caller drops it; nobody writes it meanwhile.
        unsafe {
            let segment = &*at;
            let start = segment.buf_addr.add(usize::from(segment.data_off));
            *part = std::slice::from_raw_parts(start, usize::from(segment.data_len));
            at = sys::cn_next(at);
        }
    }
    if at.is_null() { whole(&parts) } else { None }
}

/// A send queue of a device, in the hands of the one who uses it.
#[derive(Debug)]
pub(crate) struct TxQueue {
    device: Arc<Device>,
    queue: u16,
}

impl TxQueue {
    /// # Errors
    /// [`DpdkError::InUse`]: somebody has it, or there is no such queue.
    pub(crate) fn new(device: &Arc<Device>, queue: usize) -> Result<Self, DpdkError> {
        device.take(Direction::Send, queue)?;
        Ok(Self {
            device: device.clone(),
            queue: queue as u16,
        })
    }

    /// Hands over the first frames of `batch`, as many as the device takes, and keeps the rest. Returns how many went.
    #[inline]
    pub(crate) fn send(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        let length = batch.len();
        // SAFETY: the queue is ours. An `Mbuf` is a pointer to one, and there are `length` of them; the device owns the first
        // `sent` from here on, so those are taken out of the batch without dropping them, and the rest moves up.
        unsafe {
            let first: *mut *mut sys::rte_mbuf = batch.as_mut_ptr().cast();
            let sent = sys::cn_tx_burst(self.device.probed.port, self.queue, first, length as u16);
            let sent = usize::from(sent).min(length);
            batch.set_len(0);
            if sent < length {
                ptr::copy(first.add(sent), first, length - sent);
                batch.set_len(length - sent);
            }
            sent
        }
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        self.device.give(Direction::Send, self.queue.into());
    }
}
