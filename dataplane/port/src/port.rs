//! The trait [`Port`], which every backend implements, and the description and statistics of a port.

use std::fmt;
use std::io;
use std::sync::Arc;

use castnet_wire::{Batch, DropReason, Drops, FrameBuf, MacAddr, Nanos, counters};

use crate::af_packet::Reattach;
use crate::pool::PoolBuf;
use crate::sleep::Sleeper;
use crate::steer::FlowTable;

/// A port whose frames live in the thread's [`Pool`](crate::Pool). Workers use this form.
pub type BoxPort = Box<dyn Port<Buf = PoolBuf>>;

/// One queue of an interface. It belongs to one thread and never blocks. The trait is object-safe.
pub trait Port {
    /// The representation of a frame: a pool buffer, a ring slot or an mbuf.
    type Buf: FrameBuf;

    /// Appends received frames to `batch` until it is full or no frame is left, or after a batch of frames that were dropped.
    /// Without a free buffer, frames stay queued.
    fn receive(&mut self, batch: &mut Batch<Self::Buf>);

    /// True if frames that share their body ([`crate::Memory::replicate`]) need no copy. Read once at start.
    fn multi_segment(&self) -> bool {
        true
    }

    /// Sends all frames of `batch` and empties it. A frame that cannot be sent is dropped and counted as
    /// [`TxFull`](DropReason::TxFull), [`TooLong`](DropReason::TooLong) or [`PortDown`](DropReason::PortDown).
    fn send(&mut self, batch: &mut Batch<Self::Buf>);

    /// As [`Port::send`], but frames that the send queue has no capacity for stay in `batch`, in order. A port that does not know
    /// that sends all, and drops those.
    fn offer(&mut self, batch: &mut Batch<Self::Buf>) {
        self.send(batch);
    }

    /// Calls `take` with up to a batch of received frames, each in one piece, and returns their number. A
    /// frame is passed in place if the port can do that, otherwise in `scratch`, which must hold the longest
    /// frame. Used by receivers that read a frame once and do not keep it.
    fn receive_with(&mut self, scratch: &mut [u8], take: &mut dyn FnMut(&[u8])) -> usize {
        let mut batch = Batch::new();
        self.receive(&mut batch);
        for frame in &batch {
            if frame.head().len() == frame.length() {
                take(frame.head());
            } else if frame.length() <= scratch.len() {
                let length = frame.copy_to(scratch);
                take(&scratch[..length]);
            }
        }
        batch.len()
    }

    /// Sends up to a batch of frames that `fill` writes directly into send memory. Each frame has a slot of
    /// at least `least` bytes. Stops when `fill` returns nothing or no slot is free. Returns the number of
    /// frames and whether `fill` may have more. Returns `None` if the port has no such memory.
    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        let _ = (least, fill);
        None
    }

    /// Description of the port and its current state. Not for the fast path: it may call the kernel.
    fn info(&self) -> PortLink;

    /// The current [`PortLink::mtu`]. Must not allocate if the MTU can change.
    fn mtu(&self) -> usize {
        self.info().mtu
    }

    /// The current [`PortLink::up`], without allocation.
    fn is_up(&self) -> bool;

    /// Statistics since the port was opened.
    fn stats(&self) -> PortStats;

    /// True if [`Port::receive`] may return frames. Always true for a port that can only be polled: its thread stays awake.
    fn ready(&self) -> bool;

    /// Registers the port as a wake source of `sleeper`.
    ///
    /// # Errors
    /// A file descriptor or source slot cannot be allocated.
    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()>;

    /// Performs due work, such as delayed frames or an interrupted send. Called about once per iteration.
    fn poll(&mut self, now: Nanos) {
        let _ = now;
    }

    /// The next time at which [`Port::poll`] has work.
    fn poll_timeout(&self) -> Option<Nanos> {
        None
    }

    /// The number of frames accepted for sending that have not been sent.
    fn pending(&self) -> usize {
        0
    }

    /// Occupancy of the receive rings, if known. For the fast path: no allocation, no call of the kernel.
    fn receive_ring(&self) -> Option<RingUse> {
        None
    }

    /// Bytes accepted for sending that the device, the kernel or the peer still has, if that is known. Ports with rings of frames
    /// estimate it by their mean frame. Without allocation; it may call the kernel.
    fn backlog(&self) -> Option<u64> {
        None
    }

    /// The last known [`PortDevice::speed_mbps`], without allocation. It does not wait for the kernel.
    fn speed_mbps(&self) -> Option<u32> {
        None
    }

    /// The current [`PortDevice::steering`], without allocation.
    fn steering(&self) -> Steering {
        Steering::None
    }

    /// The current [`PortDevice::segmentation`], without allocation.
    fn segmentation(&self) -> Segmentation {
        Segmentation::None
    }

    /// The device's flow table, if it has one and several receive queues. Not for the fast path.
    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        None
    }

    /// For [`InterfaceWatch`](crate::InterfaceWatch): moves this side of the port to another interface. `None` if the port has none.
    fn reattach(&self) -> Option<Arc<Reattach>> {
        None
    }
}

/// Implements the methods of [`Port`] that describe the device, by those of another port.
macro_rules! delegate_port {
    (|$this:ident| $inner:expr) => {
        fn info(&self) -> $crate::PortLink {
            let $this = self;
            $inner.info()
        }
        fn mtu(&self) -> usize {
            let $this = self;
            $inner.mtu()
        }
        fn is_up(&self) -> bool {
            let $this = self;
            $inner.is_up()
        }
        fn attach(&mut self, sleeper: &mut $crate::Sleeper) -> std::io::Result<()> {
            let $this = self;
            $inner.attach(sleeper)
        }
        fn receive_ring(&self) -> Option<$crate::RingUse> {
            let $this = self;
            $inner.receive_ring()
        }
        fn backlog(&self) -> Option<u64> {
            let $this = self;
            $inner.backlog()
        }
        fn speed_mbps(&self) -> Option<u32> {
            let $this = self;
            $inner.speed_mbps()
        }
        fn steering(&self) -> $crate::Steering {
            let $this = self;
            $inner.steering()
        }
        fn segmentation(&self) -> $crate::Segmentation {
            let $this = self;
            $inner.segmentation()
        }
        fn flow_table(&self) -> Option<std::sync::Arc<dyn $crate::FlowTable>> {
            let $this = self;
            $inner.flow_table()
        }
        fn reattach(&self) -> Option<std::sync::Arc<$crate::Reattach>> {
            let $this = self;
            $inner.reattach()
        }
    };
}
pub(crate) use delegate_port;

impl<P: Port + ?Sized> Port for Box<P> {
    type Buf = P::Buf;

    fn receive(&mut self, batch: &mut Batch<Self::Buf>) {
        (**self).receive(batch);
    }
    fn multi_segment(&self) -> bool {
        (**self).multi_segment()
    }
    fn send(&mut self, batch: &mut Batch<Self::Buf>) {
        (**self).send(batch);
    }
    fn offer(&mut self, batch: &mut Batch<Self::Buf>) {
        (**self).offer(batch);
    }
    fn receive_with(&mut self, scratch: &mut [u8], take: &mut dyn FnMut(&[u8])) -> usize {
        (**self).receive_with(scratch, take)
    }
    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        (**self).send_in_place(least, fill)
    }
    fn stats(&self) -> PortStats {
        (**self).stats()
    }
    fn ready(&self) -> bool {
        (**self).ready()
    }
    fn poll(&mut self, now: Nanos) {
        (**self).poll(now);
    }
    fn poll_timeout(&self) -> Option<Nanos> {
        (**self).poll_timeout()
    }
    fn pending(&self) -> usize {
        (**self).pending()
    }

    delegate_port!(|this| (**this));
}

/// The sides of a port that a thread opens. One thread receives from each queue; any number may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Receive and send.
    Both,
    /// Send only. `receive` returns nothing.
    Send,
}

impl Sides {
    /// Returns true if this includes receiving.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Both)
    }
}

/// Description of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// Name known to the operator: of an interface, a file or a link.
    pub name: String,
    /// Ethernet address.
    pub mac: MacAddr,
    /// The largest packet at layer 3 in bytes. A frame may have 14 bytes more, and 4 for a VLAN tag.
    pub mtu: usize,
    /// True if frames can be sent.
    pub up: bool,
    /// The device behind the port.
    pub device: PortDevice,
}

/// A device and its capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDevice {
    /// Name of the driver in the kernel or DPDK, or of the backend.
    pub driver: String,
    /// Link speed in Mb/s. `None` if it is unknown or does not apply.
    pub speed_mbps: Option<u32>,
    /// The number of receive queues of all threads together.
    pub rx_queues: usize,
    /// The number of send queues. `None` if each sending thread has its own.
    pub tx_queues: Option<usize>,
    /// The method that selects one of several receive queues.
    pub steering: Steering,
    /// True if frames of several segments can be sent, so that replicas share their payload.
    pub multi_segment: bool,
    /// Whether runs of packets are sent as super-frames.
    pub segmentation: Segmentation,
    /// The NUMA node that the device is attached to.
    pub numa_node: Option<u32>,
}

impl PortDevice {
    /// A device with this driver and one receive queue. Everything else is unknown.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            rx_queues: 1,
            ..Self::default()
        }
    }
}

/// The method by which a device selects the receive queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// One queue, or an unknown selection. Workers hand over frames of other workers' groups.
    #[default]
    None,
    /// A hash of the destination address (receive-side scaling).
    Rss,
    /// A rule per group address, which selects the queue of the group's worker.
    FlowRules,
}

impl Steering {
    /// The name shown to operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rss => "rss",
            Self::FlowRules => "flow rules",
        }
    }
}

/// Whether a port sends runs of RoCE packets as super-frames, which the device or the kernel takes apart (UDP GSO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// The backend has no super-frames.
    #[default]
    None,
    /// It does.
    On,
    /// It is configured not to.
    Off,
    /// The kernel does not accept super-frames for this interface, with this error number. It is asked again periodically.
    Refused(i32),
}

impl fmt::Display for Segmentation {
    /// What an operator reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            // The kernel drops super-frames for a device without this offload if the queueing discipline is bypassed.
            Self::Refused(libc::ENOBUFS) => f.write_str("refused: tx-udp-segmentation is off"),
            Self::Refused(error) => write!(f, "refused: {}", io::Error::from_raw_os_error(*error)),
        }
    }
}

/// Occupancy of a ring in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingUse {
    /// Frames in the ring.
    pub used: usize,
    /// Capacity of the ring.
    pub size: usize,
}

counters! {
    /// Statistics of a port in frames and bytes, without the FCS.
    pub struct PortStats => copy_port_stats {
        /// Frames returned by [`Port::receive`].
        rx_frames,
        /// Bytes of these frames.
        rx_bytes,
        /// Frames lost before they reached this program, as reported by the kernel or the device.
        rx_missed,
        /// Frames sent.
        tx_frames,
        /// Bytes of these frames.
        tx_bytes,
        /// Frames sent as parts of super-frames (UDP GSO).
        tx_gso,
        /// Frames marked as congested (ECN: CE) before they were sent, because the port's queue was long.
        ecn_marks,
        ;
        /// Frames dropped in the port, in either direction.
        drops: Drops,
    }
}

impl PortStats {
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason] += 1;
    }

    pub(crate) fn count_received(&mut self, length: usize) {
        self.rx_frames += 1;
        self.rx_bytes += length as u64;
    }

    pub(crate) fn count_sent(&mut self, length: usize) {
        self.tx_frames += 1;
        self.tx_bytes += length as u64;
    }

    /// The bytes of so many frames in a send queue, by the mean frame sent so far.
    pub(crate) fn queued_bytes(&self, frames: usize) -> u64 {
        let mean = self.tx_bytes / self.tx_frames.max(1);
        mean * frames as u64
    }

    /// Counts a frame of `length` bytes that was sent or dropped.
    pub(crate) fn count_send(&mut self, length: usize, sent: Result<(), DropReason>) {
        match sent {
            Ok(()) => self.count_sent(length),
            Err(reason) => self.count_drop(reason),
        }
    }
}

/// Bytes of an Ethernet header, and of a VLAN tag.
const ETHERNET: usize = 14;
const VLAN: usize = 4;

/// The longest frame in bytes of a port with this MTU.
pub const fn frame_max(mtu: usize) -> usize {
    mtu + ETHERNET + VLAN
}

/// Returns true if a port with this MTU may send the frame. Only a tagged frame may use the four bytes of the tag.
pub fn fits(frame: &impl FrameBuf, mtu: usize) -> bool {
    fits_from(frame.head(), frame.length(), mtu)
}

/// As [`fits`], for a frame of `length` bytes that starts with `head`.
pub(crate) fn fits_from(head: &[u8], length: usize, mtu: usize) -> bool {
    length <= mtu + ETHERNET
        || (length <= frame_max(mtu) && matches!(head.get(12..14), Some([0x81, 0x00] | [0x88, 0xA8])))
}
