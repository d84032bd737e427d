//! The trait that every backend implements, and what a port tells about itself.

use std::io;
use std::sync::Arc;

use castnet_wire::{Batch, DropReason, Drops, FrameBuf, MacAddr, Nanos, counters};

use crate::pool::PoolBuf;
use crate::sleep::Sleeper;
use crate::steer::FlowTable;

/// A port whose frames live in the thread's [`Pool`](crate::Pool): what a worker holds.
pub type BoxPort = Box<dyn Port<Buf = PoolBuf>>;

/// One queue of an interface. It belongs to one thread and never blocks.
///
/// Object-safe; `BoxPort` is the form that workers use.
pub trait Port {
    /// How this port holds a frame: a pool buffer, a ring slot, an mbuf.
    type Buf: FrameBuf;

    /// Adds received frames to `batch` until it is full or nothing is left. Where there is no free buffer, frames stay
    /// where they are until there is one.
    fn receive(&mut self, batch: &mut Batch<Self::Buf>);

    /// Whether it sends frames whose body others share ([`crate::Memory::replicate`]) as they are. Asked once.
    fn multi_segment(&self) -> bool {
        true
    }

    /// Sends all of `batch` and empties it. A frame that cannot go is dropped and counted under its [`DropReason`]:
    /// [`TxFull`](DropReason::TxFull), [`TooLong`](DropReason::TooLong), [`PortDown`](DropReason::PortDown).
    fn send(&mut self, batch: &mut Batch<Self::Buf>);

    /// Hands received frames to `take`, each in one piece, where they lie if the port can: at most a batch. Returns how
    /// many there were. For those who look at a frame once and keep nothing of it; `scratch` has room for the longest.
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

    /// Sends what `fill` writes, each frame in one piece and in the very memory that it goes out of, of at least `least`
    /// bytes: at most a batch, until `fill` has no more, or there is no room, before which it is not asked. Returns how
    /// many there were, and whether `fill` may have more; `None` from a port that has no such memory.
    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        let _ = (least, fill);
        None
    }

    /// What the port is, as far as it is known now. Not for the path of a frame: it may ask the kernel.
    fn info(&self) -> PortLink;

    /// [`PortLink::mtu`] alone, as last seen; without allocation where it can change.
    fn mtu(&self) -> usize {
        self.info().mtu
    }

    /// [`PortLink::up`] alone, without allocation.
    fn is_up(&self) -> bool;

    /// What it has done since it was opened.
    fn stats(&self) -> PortStats;

    /// Whether [`Port::receive`] would find something. Spurious `true`s are allowed: a port that can only be polled says
    /// so always, and keeps its thread awake.
    fn ready(&self) -> bool;

    /// Lets `sleeper` be woken by what arrives here.
    ///
    /// # Errors
    /// The file descriptors or slots for it cannot be had.
    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()>;

    /// Called about once per round with the time of the round: does what is due (frames that were delayed, a send that
    /// the kernel interrupted).
    fn poll(&mut self, now: Nanos) {
        let _ = now;
    }

    /// When [`Port::poll`] has something to do next.
    fn poll_timeout(&self) -> Option<Nanos> {
        None
    }

    /// Frames that were taken over for sending and are not on their way yet.
    fn pending(&self) -> usize {
        0
    }

    /// How full the rings are that this port receives from, where it can tell. Cheap enough for now and then on the path
    /// of frames: it neither allocates nor asks the kernel.
    fn receive_ring(&self) -> Option<RingUse> {
        None
    }

    /// [`PortDevice::speed_mbps`] alone, without allocation. It may ask the kernel.
    fn speed_mbps(&self) -> Option<u32> {
        None
    }

    /// [`PortDevice::steering`] alone, without allocation.
    fn steering(&self) -> Steering {
        Steering::None
    }

    /// The rules by which the device chooses a receive queue, where it can have such and there is a choice. Not for the path
    /// of a frame.
    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        None
    }
}

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
    fn info(&self) -> PortLink {
        (**self).info()
    }
    fn mtu(&self) -> usize {
        (**self).mtu()
    }
    fn is_up(&self) -> bool {
        (**self).is_up()
    }
    fn stats(&self) -> PortStats {
        (**self).stats()
    }
    fn ready(&self) -> bool {
        (**self).ready()
    }
    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        (**self).attach(sleeper)
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
    fn receive_ring(&self) -> Option<RingUse> {
        (**self).receive_ring()
    }
    fn speed_mbps(&self) -> Option<u32> {
        (**self).speed_mbps()
    }
    fn steering(&self) -> Steering {
        (**self).steering()
    }
    fn flow_table(&self) -> Option<Arc<dyn FlowTable>> {
        (**self).flow_table()
    }
}

/// Which sides of a port a thread opens. One thread receives from a port; any number may send on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Receive and send.
    Both,
    /// Send only; `receive` finds nothing.
    Send,
}

impl Sides {
    /// Whether frames are received.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Both)
    }
}

/// What a port is: its name, its address, the largest IP packet in bytes, whether it has a link, and what drives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// As the operator knows it: an interface's name, a file's, a link's.
    pub name: String,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The largest packet at layer 3, in bytes; a frame may have 14 more, and 4 for a VLAN tag.
    pub mtu: usize,
    /// Whether frames can go.
    pub up: bool,
    /// What is behind it.
    pub device: PortDevice,
}

/// What drives a port, and what that can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDevice {
    /// The driver's name, as the kernel or DPDK has it, or the backend's.
    pub driver: String,
    /// The link's speed in Mb/s; `None` where it is unknown or means nothing.
    pub speed_mbps: Option<u32>,
    /// Queues that are received from, those of all threads together.
    pub rx_queues: usize,
    /// Queues that are sent on; `None` where each thread that sends has one of its own.
    pub tx_queues: Option<usize>,
    /// How frames get to one of several receive queues.
    pub steering: Steering,
    /// Whether frames of several segments can be sent, so that replicas share their payload.
    pub multi_segment: bool,
    /// The NUMA node that it is attached to.
    pub numa_node: Option<u32>,
}

impl PortDevice {
    /// A device of this driver with one receive queue, of which nothing else is known.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            rx_queues: 1,
            ..Self::default()
        }
    }
}

/// How frames get to one of a device's receive queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// There is one queue, or the device spreads frames as it likes; workers hand over what is not theirs.
    #[default]
    None,
    /// By a hash of the destination address (receive-side scaling).
    Rss,
    /// By a rule for each group's address, to the queue of the group's worker.
    FlowRules,
}

impl Steering {
    /// How operators read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rss => "rss",
            Self::FlowRules => "flow rules",
        }
    }
}

/// How full a ring is, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingUse {
    /// Frames in it.
    pub used: usize,
    /// Frames that fit.
    pub size: usize,
}

counters! {
    /// What a port has done, in frames and bytes (without FCS).
    pub struct PortStats => copy_port_stats {
        /// Frames that [`Port::receive`] delivered.
        rx_frames,
        /// Their bytes.
        rx_bytes,
        /// Frames that were lost before they reached this program, as the kernel or the device tells.
        rx_missed,
        /// Frames that went out.
        tx_frames,
        /// Their bytes.
        tx_bytes,
        ;
        /// Frames that ended in the port, in either direction.
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
}

/// Bytes of an Ethernet header and of a VLAN tag.
const ETHERNET: usize = 14;
const VLAN: usize = 4;

/// The longest frame of a port with this MTU, in bytes.
pub const fn frame_max(mtu: usize) -> usize {
    mtu + ETHERNET + VLAN
}

/// Whether a frame may go out of a port with this MTU: only a tagged one may have the four bytes more.
pub fn fits(frame: &impl FrameBuf, mtu: usize) -> bool {
    fits_from(frame.head(), frame.length(), mtu)
}

/// The same of a frame of `length` bytes that starts with `head`.
pub(crate) fn fits_from(head: &[u8], length: usize, mtu: usize) -> bool {
    length <= mtu + ETHERNET
        || (length <= frame_max(mtu) && matches!(head.get(12..14), Some([0x81, 0x00] | [0x88, 0xA8])))
}
