//! Devices and their queues. A queue is a value that one thread owns.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use castnet_dpdk_sys as sys;
use castnet_port::{BATCH, Batch, MoveRing};
use castnet_wire::MacAddr;

use super::eal::{self, Eal};
use super::flow::Rule;
use super::mbuf::Mbuf;
use super::pool::Lease;
use crate::error::DpdkError;
use crate::flow::FlowRules;
use crate::rss;

/// Drivers that send frames of several segments but do not report it: they read or free segment by segment (22.11).
const TAKES_SEGMENTS: &[&str] = &["net_null", "net_pcap"];
/// Memif reports a maximum length of 1518 bytes and support for several segments. In fact it carries any frame that
/// fits one buffer of its ring. If a frame needs several, a stale flag merges later frames into it (DPDK 22.11).
const MEMIF: &str = "net_memif";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub(crate) driver: String,
    pub(crate) mac: MacAddr,
    pub(crate) rx_queues_max: usize,
    pub(crate) tx_queues_max: usize,
    pub(crate) mtu_min: usize,
    pub(crate) mtu_max: usize,
    /// True if the reported lengths and segments are wrong, see [`MEMIF`].
    pub(crate) memif: bool,
    pub(crate) numa_node: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SetUp {
    pub(crate) rx_queues: usize,
    /// The number of threads or less.
    pub(crate) tx_queues: usize,
    pub(crate) threads: usize,
    pub(crate) rx_frames: usize,
    pub(crate) tx_frames: usize,
    pub(crate) mtu: usize,
    pub(crate) promiscuous: bool,
}

/// Dropping it removes the device.
#[derive(Debug)]
pub(crate) struct Probed {
    pub(crate) port: u16,
    pub(crate) name: String,
}

/// It stops when its last owner, including queues, is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) probed: Probed,
    pub(crate) info: DeviceInfo,
    pub(crate) mtu: usize,
    pub(crate) multi_segment: bool,
    /// True if the device spreads frames over its receive queues by destination address.
    pub(crate) rss: bool,
    pub(crate) rx_queues: usize,
    pub(crate) tx_queues: usize,
    /// Of each receive queue, as adjusted by the device.
    rx_frames: usize,
    /// By send queue, for frames of threads without a send queue. Empty if all threads have one.
    pub(crate) send_rings: Vec<Arc<SendRing>>,
    pub(crate) flows: Mutex<FlowRules<Rule>>,
    pub(crate) rules: AtomicUsize,
    taken: Mutex<Vec<(Direction, u16)>>,
    _pool: Arc<Lease>,
}

/// To the thread that owns the send queue.
pub(crate) type SendRing = MoveRing<(), Mbuf>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

static HOTPLUG: Mutex<()> = Mutex::new(());

impl Probed {
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
        // SAFETY: the name is zero-terminated, and DPDK writes only to `port`.
        let mut find = || unsafe { sys::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &mut port) };
        eal::forget_log();
        // PCI devices were probed when the environment started.
        if find() != 0 {
            // SAFETY: the text is zero-terminated and copied.
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

    pub(crate) fn info(&self) -> Result<DeviceInfo, DpdkError> {
        let mut info = MaybeUninit::<sys::cn_info>::zeroed();
        eal::forget_log();
        // SAFETY: the device exists. DPDK writes only to `info`, for which zeros are valid.
        let (failed, info) = unsafe {
            let failed = sys::cn_info(self.port, info.as_mut_ptr());
            (failed, info.assume_init())
        };
        if failed != 0 {
            return Err(self.refused("query its properties", failed));
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

    /// Received frames use buffers of `pool`, each of which holds a whole frame.
    pub(crate) fn start(self, set_up: SetUp, pool: Arc<Lease>) -> Result<Device, DpdkError> {
        let info = self.info()?;
        let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let mut key = rss::destination_key();
        let mut setup = sys::cn_setup {
            pool: pool.raw.as_ptr(),
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
        // SAFETY: the device exists and is stopped. The pool exists forever. DPDK copies the key. The shim
        // writes only to `setup` and `step`.
        let failed = unsafe { sys::cn_setup(self.port, &mut setup, &mut step) };
        if failed != 0 {
            let step = eal::text(step);
            return Err(self.refused(&step, failed));
        }
        let tx_queues = usize::from(setup.tx_queues);
        // Each entry of a ring holds a buffer, which `Runtime::start` has counted.
        let without = set_up.threads.saturating_sub(tx_queues);
        let clients = without.div_ceil(tx_queues.max(1));
        let send_rings = if clients == 0 { 0 } else { tx_queues };
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
            send_rings: (0..send_rings)
                .map(|_| Arc::new(SendRing::new(clients * set_up.tx_frames)))
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
        // SAFETY: this value owns the device, and no queue of it exists.
        unsafe { sys::cn_remove(self.port) };
    }
}

impl Device {
    /// True if the link is up, and the speed in Mb/s, 0 if unknown.
    pub(crate) fn link(&self) -> (bool, u32) {
        let mut mbps = 0;
        // SAFETY: the device exists, and DPDK writes only to `mbps`.
        let up = unsafe { sys::cn_link(self.probed.port, &mut mbps) };
        (up != 0, mbps)
    }

    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: the device exists.
        unsafe { sys::cn_missed(self.probed.port) }
    }

    /// For the frames of the thread with index `rank`. `None` if it has a send queue.
    pub(crate) fn send_ring(&self, rank: usize) -> Option<&Arc<SendRing>> {
        let at = rank.checked_sub(self.tx_queues)?;
        self.send_rings.get(at % self.tx_queues.max(1))
    }
}

/// A queue has one owner.
#[derive(Debug)]
struct Claim {
    device: Arc<Device>,
    direction: Direction,
    queue: u16,
}

impl Claim {
    fn new(device: &Arc<Device>, direction: Direction, queue: usize) -> Result<Self, DpdkError> {
        let queues = match direction {
            Direction::Receive => device.rx_queues,
            Direction::Send => device.tx_queues,
        };
        let mut taken = device.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if queue >= queues || taken.contains(&(direction, queue as u16)) {
            return Err(DpdkError::InUse {
                device: device.probed.name.clone(),
            });
        }
        taken.push((direction, queue as u16));
        Ok(Self {
            device: device.clone(),
            direction,
            queue: queue as u16,
        })
    }

    #[inline]
    fn port(&self) -> u16 {
        self.device.probed.port
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut taken = self.device.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|t| *t != (self.direction, self.queue));
    }
}

#[derive(Debug)]
pub(crate) struct RxQueue(Claim);

impl RxQueue {
    /// [`DpdkError::InUse`] if the queue is in use or does not exist.
    pub(crate) fn new(device: &Arc<Device>, queue: usize) -> Result<Self, DpdkError> {
        Claim::new(device, Direction::Receive, queue).map(Self)
    }

    /// Appends received frames up to the capacity of `batch`. A frame of several segments, which occurs only if the
    /// device ignores the buffer size, is copied by `whole`. Returns the number of frames lost because that failed.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        batch: &mut Batch<Mbuf>,
        mut whole: impl FnMut(&[&[u8]]) -> Option<Mbuf>,
    ) -> u64 {
        let mut raw = [ptr::null_mut::<sys::rte_mbuf>(); BATCH];
        let capacity = batch.remaining_capacity().min(BATCH) as u16;
        // SAFETY: this value owns the queue, and the array has this capacity. The written frames are owned by
        // this thread.
        let count = unsafe { sys::cn_rx_burst(self.0.port(), self.0.queue, raw.as_mut_ptr(), capacity) };
        let mut lost = 0;
        let received = &raw[..usize::from(count).min(BATCH)];
        for &raw in received {
            prefetch(raw);
        }
        for &raw in received {
            let Some(raw) = NonNull::new(raw) else { continue };
            // SAFETY: the frame was received and has no other owner. If it has several segments, it is only dropped.
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

    /// True also if the device does not report waiting frames.
    pub(crate) fn ready(&self) -> bool {
        self.waiting().is_none_or(|frames| frames > 0)
    }

    /// `None` if the device does not report it.
    pub(crate) fn waiting(&self) -> Option<usize> {
        // SAFETY: the queue exists and is owned by this value.
        let frames = unsafe { sys::cn_rx_waiting(self.0.port(), self.0.queue) };
        usize::try_from(frames).ok()
    }

    /// In frames.
    pub(crate) fn size(&self) -> usize {
        self.0.device.rx_frames
    }
}

#[inline]
fn prefetch(raw: *const sys::rte_mbuf) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the header of a received buffer exists. Any address may be prefetched.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let data = (*raw).buf_addr.wrapping_add(usize::from((*raw).data_off));
        _mm_prefetch::<_MM_HINT_T0>(data.cast());
        _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(64).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = raw;
}

/// Of a received frame.
const SEGMENTS_MAX: usize = 16;

#[cold]
fn gather(raw: NonNull<sys::rte_mbuf>, whole: &mut impl FnMut(&[&[u8]]) -> Option<Mbuf>) -> Option<Mbuf> {
    let mut parts: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
    let mut at: *const sys::rte_mbuf = raw.as_ptr();
    for part in &mut parts {
        if at.is_null() {
            break;
        }
        // SAFETY: a segment of a frame that is owned here and exists until the caller drops it. No thread writes it.
        unsafe {
            let segment = &*at;
            let start = segment.buf_addr.add(usize::from(segment.data_off));
            *part = std::slice::from_raw_parts(start, usize::from(segment.data_len));
            at = sys::cn_next(at);
        }
    }
    if at.is_null() { whole(&parts) } else { None }
}

#[derive(Debug)]
pub(crate) struct TxQueue(Claim);

impl TxQueue {
    /// [`DpdkError::InUse`] if the queue is in use or does not exist.
    pub(crate) fn new(device: &Arc<Device>, queue: usize) -> Result<Self, DpdkError> {
        Claim::new(device, Direction::Send, queue).map(Self)
    }

    /// Sends the first frames, as many as the device accepts, and keeps the rest. Returns the number sent.
    #[inline]
    pub(crate) fn send(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        let length = batch.len();
        // SAFETY: this value owns the queue. An `Mbuf` is a pointer, and there are `length` of them. The
        // device owns the first `sent` afterwards, so they are removed from the batch without a drop, and the
        // rest moves to the front.
        unsafe {
            let first: *mut *mut sys::rte_mbuf = batch.as_mut_ptr().cast();
            let sent = sys::cn_tx_burst(self.0.port(), self.0.queue, first, length as u16);
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
