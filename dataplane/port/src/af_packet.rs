//! Network interfaces through the kernel's packet sockets (AF_PACKET), with a receive ring mapped into this process.
//!
//! - A port receives all frames that arrive at the interface, with any destination address, and none that
//!   leave it. The interface should have no IP address; otherwise the kernel replies as well.
//! - A VLAN tag that the kernel removed is reinserted. A UDP or TCP checksum that the kernel left to the
//!   device is filled in, because a veth pair has no such device.
//! - Consecutive RoCE packets of one flow are sent as one super-frame (UDP GSO), unless `gso=off`. Another port takes it
//!   apart. Elsewhere the kernel does; then the packets have a UDP checksum, which is zero otherwise. If the kernel refuses,
//!   packets are sent one by one, as for a device without this offload while the queueing discipline is bypassed: there the
//!   kernel's cutting costs as much as single frames.
//! - Super-frames that arrive (TSO, UDP GSO) are taken apart into the packets that the kernel would make. At the other end
//!   of a veth pair, segmentation offload may stay on. Kinds other than TCP and UDP are dropped by the kernel.
//! - The interface's receive offload (GRO), which merges frames of the wire, is disabled while the port has the interface: packets would be merged and
//!   taken apart again.
//! - RoCE frames that arrive are hidden from the kernel's IP stack, which would otherwise route each of them
//!   in vain. This needs Linux 6.6 and CAP_NET_ADMIN.
//! - One thread receives. Each sending thread has its own socket.
//! - The port follows changes of the interface's MTU up to the MTU at opening, which sizes the slots of the ring; 9000 if it is opened
//!   without its interface.
//! - The interface may be deleted, renamed and made again, and be absent at first: [`InterfaceWatch`] moves the port to the interface
//!   that has its name. The port keeps its Ethernet address, which is in rules, routes and tables of its neighbours.

mod attachment;
mod cut;
mod join;
mod offload;
mod reattach;
mod sockets;
mod stack;
mod sys;
mod transmit;
mod watch;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use castnet_wire::{Batch, DropReason, FrameBuf, MacAddr, Nanos};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::pool::{Pool, PoolBuf};
use crate::port::{
    Port, PortDevice, PortLink, PortStats, RingUse, Segmentation, Sides, fits_from, frame_max,
};
use crate::sleep::{Sleeper, WakeFile};
use crate::spec::OpenError;
pub use attachment::Detached;
use offload::DisabledReceive;
pub use offload::{Offload, has_offload, set_offloads};
pub use reattach::Reattach;
use sockets::{Interface, Receiver, Sockets};
use transmit::{Pieces, SEND_MAX};
pub use watch::InterfaceWatch;

/// Default capacities in frames of a switch port.
const RX_FRAMES: usize = 1024;
const TX_FRAMES: usize = 128;
/// The maximum number of frames per receive call.
const BATCH: usize = 32;
/// The least capacity for a frame that is built in place, and the least send buffer: a few super-frames.
const IN_PLACE_MIN: usize = 4608;
const SEND_BUFFER_MIN: usize = 1 << 19;
/// Interval of reading the interface's MTU. A lower MTU is also detected by the first frame that the kernel refuses. Super-frames
/// that were refused are tried again as often.
const MTU_INTERVAL: Nanos = Nanos::from_millis(50);
/// The largest MTU of a port that is opened without its interface. It reports this one meanwhile: a smaller one would keep groups from a
/// switch whose other ports they fit.
const ABSENT_MTU: usize = 9000;

/// A network interface and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacketSpec {
    /// Name of the interface in the network namespace of the thread that opens it.
    pub interface: String,
    /// Capacity of the receive ring in frames; `None` means 1024. A ring larger than the bursts costs cache, because all
    /// of it is cycled through: a sixth of the rate between hosts on one machine.
    pub rx_frames: Option<usize>,
    /// Frames of each sending thread that may wait in the interface; `None` means 128.
    pub tx_frames: Option<usize>,
    /// True to receive frames to all Ethernet addresses, as a switch must.
    pub promiscuous: bool,
    /// True to bypass the queueing discipline of the interface when sending.
    pub qdisc_bypass: bool,
    /// True to leave the receive offload (GRO) unchanged.
    pub keep_offloads: bool,
    /// True to pass RoCE frames to the kernel's IP stack too, for a kernel whose own RDMA device uses the interface.
    pub share_roce: bool,
    /// True to send runs of RoCE packets as super-frames.
    pub segmentation: bool,
    /// True to open the port without its interface: it is down until an [`InterfaceWatch`] finds one. Its Ethernet address is drawn, the same in
    /// all threads.
    pub is_absent: bool,
}

impl AfPacketSpec {
    /// With the defaults of a switch: promiscuous, no queueing discipline, no receive offload, super-frames.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rx_frames: None,
            tx_frames: None,
            promiscuous: true,
            qdisc_bypass: true,
            keep_offloads: false,
            share_roce: false,
            segmentation: true,
            is_absent: false,
        }
    }

    /// The defaults of one RNIC, whose windows limit the frames in flight: 256 and 64 frames unless configured.
    pub fn for_rnic(self) -> Self {
        Self {
            rx_frames: self.rx_frames.or(Some(256)),
            tx_frames: self.tx_frames.or(Some(64)),
            ..self
        }
    }

    /// Opens the port for the thread that owns `pool`.
    ///
    /// # Errors
    /// The interface does not exist (unless it [`is_absent`](Self::is_absent)), the process has no permission, or the kernel rejected a step
    /// of the setup.
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<AfPacketPort, OpenError> {
        let longest = pool.frame_max().saturating_sub(frame_max(0));
        let mut disabled = None;
        let (mac, mtu, control, sockets) = match self.is_absent {
            true => {
                let control = Arc::new(Interface::control(self)?);
                let mac = drawn_mac(&self.interface);
                (mac, ABSENT_MTU.min(longest), control, None)
            }
            false => {
                let interface = Interface::find(self)?;
                let (mac, mtu) = (interface.mac, interface.mtu.min(longest));
                disabled = DisabledReceive::new(self, sides, &interface, None);
                let sockets = Sockets::open(self, sides, interface, mtu, mac)?;
                (mac, mtu, sockets.control.clone(), Some(Box::new(sockets)))
            }
        };
        let reattach = Reattach::new(self.clone(), sides, (mtu, mac), control, disabled);
        reattach.set_speed(sockets.as_ref().and_then(|_| reattach.read_speed()));
        Ok(AfPacketPort {
            interface: self.interface.clone(),
            mac,
            mtu,
            mtu_max: mtu,
            next_mtu_check: Nanos::ZERO,
            receives: sides.receives(),
            file: WakeFile::new(sockets.as_ref().and_then(|sockets| sockets.file())),
            sockets,
            reattach: Arc::new(reattach),
            arena: vec![0; SEND_MAX * frame_max(mtu).max(IN_PLACE_MIN)].into(),
            unsent: ArrayVec::new(),
            pool: pool.clone(),
            stats: PortStats::default(),
            missed: AtomicU64::new(0),
        })
    }
}

/// A port on a network interface.
#[derive(Debug)]
pub struct AfPacketPort {
    interface: String,
    mac: MacAddr,
    mtu: usize,
    /// The MTU that the slots of the ring are sized for.
    mtu_max: usize,
    next_mtu_check: Nanos,
    receives: bool,
    /// `None` while there is no interface with the port's name.
    sockets: Option<Box<Sockets>>,
    reattach: Arc<Reattach>,
    file: WakeFile,
    /// Memory for frames that are built in place, one behind another.
    arena: Box<[u8]>,
    /// Frames in it that could not be sent yet.
    unsent: ArrayVec<Range<usize>, SEND_MAX>,
    pool: Pool,
    stats: PortStats,
    /// Frames dropped by the kernel. The kernel resets its counter when it is read.
    missed: AtomicU64,
}

impl AfPacketPort {
    /// Returns true if RoCE frames are hidden from the kernel's IP stack.
    pub fn hides_roce(&self) -> bool {
        self.sockets.as_ref().is_some_and(|s| s.roce_filter.is_some())
    }

    fn receiver(&self) -> Option<&Receiver> {
        self.sockets.as_ref()?.rx.as_ref()
    }

    fn device(&self) -> PortDevice {
        let known = self.sockets.as_ref();
        let known = known.and_then(|s| sys::driver(&s.control, &self.interface).ok());
        let (driver, bus) = known.unwrap_or_else(|| ("af_packet".to_owned(), String::new()));
        PortDevice {
            speed_mbps: self.speed_mbps(),
            numa_node: numa_node(&bus),
            segmentation: self.segmentation(),
            ..PortDevice::new(driver)
        }
    }

    /// Reads the interface's MTU and applies it up to the limit of the rings.
    fn update_mtu(&mut self) {
        if let Some(sockets) = &self.sockets
            && sockets.are_on(&self.interface)
            && let Ok(mtu) = sys::mtu(&sockets.control, &self.interface)
        {
            self.mtu = mtu.min(self.mtu_max);
        }
    }

    /// Replaces the sockets by those that another thread has opened. That thread closes the old ones. What waits in them is lost.
    #[cold]
    fn exchange_sockets(&mut self) {
        let reattach = self.reattach.clone();
        reattach.exchange(|sockets| {
            let old = std::mem::replace(&mut self.sockets, sockets);
            self.file.set(self.sockets.as_ref().and_then(|s| s.file()));
            if let Some(old) = &old {
                self.stats.tx_gso += old.tx.joined();
            }
            if let Some(rx) = old.as_ref().and_then(|old| old.rx.as_ref()) {
                let (missed, unread) = rx.missed();
                let waiting = rx.ring.usage().used as u64;
                self.missed
                    .fetch_add(missed + unread + waiting, Ordering::Relaxed);
            }
            old
        });
        self.stats.drops[DropReason::PortDown] += self.unsent.len() as u64;
        self.unsent.clear();
        self.update_mtu();
    }

    /// Sends frames. An error has the number of those that were sent or dropped; the others cannot be sent now.
    fn send_frames(&mut self, frames: &[Pieces<'_>]) -> Result<(), (usize, DropReason)> {
        let (stats, mut was_too_long) = (&mut self.stats, false);
        let Some(sockets) = &mut self.sockets else {
            return Err((0, DropReason::PortDown));
        };
        let result = sockets.tx.send(frames, &mut |index, sent| {
            was_too_long |= sent == Err(DropReason::TooLong);
            stats.count_send(frames[index].iter().map(|p| p.len()).sum(), sent);
        });
        if was_too_long {
            self.update_mtu();
        }
        // Without a carrier, the kernel reports a full queue.
        result.map_err(|(sent, reason)| {
            let is_down = reason == DropReason::PortDown || !self.is_up();
            (sent, if is_down { DropReason::PortDown } else { reason })
        })
    }

    /// Sends what could not be sent when it was built. Returns the reason if some is left.
    fn send_unsent(&mut self) -> Result<(), DropReason> {
        let unsent = std::mem::take(&mut self.unsent);
        self.send_built(unsent)
    }

    fn send_built(&mut self, mut frames: ArrayVec<Range<usize>, SEND_MAX>) -> Result<(), DropReason> {
        let arena = std::mem::take(&mut self.arena);
        let pieces: ArrayVec<Pieces<'_>, SEND_MAX> = frames
            .iter()
            .map(|range| [&arena[range.clone()], &[], &[]])
            .collect();
        let result = self.send_frames(&pieces);
        drop(pieces);
        self.arena = arena;
        result.map_err(|(sent, reason)| {
            frames.drain(..sent);
            self.unsent = frames;
            reason
        })
    }
}

/// Whether an interface of the network namespace of this thread has the name now. Where that cannot be known, as without descriptors, it may.
pub fn has_interface(name: &str) -> bool {
    !matches!(if_nametoindex(name), Err(Errno::ENODEV | Errno::ENXIO))
}

/// An address of a port without its interface: the same for all threads of this process.
fn drawn_mac(interface: &str) -> MacAddr {
    static DRAWN: OnceLock<RandomState> = OnceLock::new();
    let drawn = DRAWN.get_or_init(RandomState::new).hash_one(interface);
    let [_, a, b, c, d, e, ..] = drawn.to_be_bytes();
    // Administered locally, and of one interface.
    MacAddr([2, a, b, c, d, e])
}

fn numa_node(bus: &str) -> Option<u32> {
    // The address comes from the kernel but is used in a path, so it is checked.
    if bus.is_empty()
        || !bus
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
    {
        return None;
    }
    let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/numa_node")).ok()?;
    // -1 means unknown.
    node.trim().parse().ok()
}

fn check_length(head: &[u8], length: usize, mtu: usize) -> Result<(), DropReason> {
    if length < frame_max(0) - 4 {
        return Err(DropReason::Malformed);
    }
    // Above the MTU, the kernel allows an 802.1Q tag and no other tag.
    let other_tag = || matches!(head.get(12..14), Some([0x88, 0xA8]));
    if !fits_from(head, length, mtu) || (length > frame_max(mtu) - 4 && other_tag()) {
        return Err(DropReason::TooLong);
    }
    Ok(())
}

/// A buffer is free, so an allocation can fail only because the frame is too long.
fn into_buffer(pool: &Pool, pieces: &[&[u8]]) -> Result<PoolBuf, DropReason> {
    let frame = match pieces {
        [whole] => pool.copy_from(whole),
        _ => pool.gather(pieces),
    };
    frame.ok_or(DropReason::TooLong)
}

impl Port for AfPacketPort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        let Some(receiver) = self.sockets.as_mut().and_then(|s| s.rx.as_mut()) else {
            return;
        };
        // Bounded, because a neighbour whose frames are all dropped would otherwise keep this thread here.
        for _ in 0..BATCH {
            if batch.is_full() || !self.pool.has_capacity() {
                break;
            }
            let Some(received) = receiver.next(|pieces| into_buffer(&self.pool, pieces)) else {
                break;
            };
            match received {
                Ok(frame) => {
                    self.stats.count_received(frame.length());
                    batch.push(frame);
                }
                Err(Some(reason)) => self.stats.count_drop(reason),
                Err(None) => {}
            }
        }
    }

    fn receive_with(&mut self, scratch: &mut [u8], with: &mut dyn FnMut(&[u8])) -> usize {
        let Some(receiver) = self.sockets.as_mut().and_then(|s| s.rx.as_mut()) else {
            return 0;
        };
        let mut count = 0;
        while count < BATCH
            && let Some(length) = receiver.next(|pieces| match pieces {
                [whole] => {
                    with(whole);
                    Ok(whole.len())
                }
                // The kernel removed a tag.
                _ => {
                    let length = pieces.iter().map(|p| p.len()).sum();
                    let whole = scratch.get_mut(..length).ok_or(DropReason::TooLong)?;
                    let mut at = 0;
                    for piece in pieces {
                        whole[at..at + piece.len()].copy_from_slice(piece);
                        at += piece.len();
                    }
                    with(whole);
                    Ok(length)
                }
            })
        {
            count += 1;
            match length {
                Ok(length) => self.stats.count_received(length),
                Err(Some(reason)) => self.stats.count_drop(reason),
                Err(None) => {}
            }
        }
        count
    }

    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        if self.arena.len() / SEND_MAX < least {
            return None;
        }
        if let Err(reason) = self.send_unsent() {
            return Some((0, reason == DropReason::TxFull));
        }
        let (mut frames, mut at, mut count, mut more) = (ArrayVec::new(), 0, 0, true);
        while count < SEND_MAX {
            let slot = &mut self.arena[at..];
            let Some(length) = fill(slot) else {
                more = false;
                break;
            };
            count += 1;
            match check_length(slot, length, self.mtu) {
                Ok(()) => {
                    frames.push(at..at + length);
                    at += length;
                }
                Err(reason) => self.stats.count_drop(reason),
            }
        }
        match self.send_built(frames) {
            Err(DropReason::PortDown) => more = false,
            Err(_) => more = true,
            Ok(()) => {}
        }
        Some((count, more))
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        self.offer(batch);
        self.stats.drops[DropReason::TxFull] += batch.len() as u64;
        batch.clear();
    }

    fn offer(&mut self, batch: &mut Batch<PoolBuf>) {
        // Frames that were built in place before go first.
        if !self.unsent.is_empty()
            && let Err(reason) = self.send_unsent()
        {
            if reason != DropReason::TxFull {
                self.stats.drops[reason] += batch.len() as u64;
                batch.clear();
            }
            return;
        }
        let (stats, mtu) = (&mut self.stats, self.mtu);
        batch.retain(|frame| {
            let length = check_length(frame.head(), frame.length(), mtu);
            length.map_err(|reason| stats.count_drop(reason)).is_ok()
        });
        let frames: Batch<Pieces<'_>> = batch.iter().map(|frame| frame.segments()).collect();
        let taken = match self.send_frames(&frames) {
            Ok(()) => frames.len(),
            Err((sent, DropReason::TxFull)) => sent,
            Err((sent, reason)) => {
                self.stats.drops[reason] += (frames.len() - sent) as u64;
                frames.len()
            }
        };
        drop(frames);
        batch.drain(..taken);
    }

    fn info(&self) -> PortLink {
        PortLink {
            name: self.interface.clone(),
            mac: self.mac,
            mtu: self.mtu,
            up: self.is_up(),
            device: self.device(),
        }
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn is_up(&self) -> bool {
        self.sockets.as_ref().is_some_and(|sockets| {
            sockets.are_on(&self.interface) && sys::is_up(&sockets.control, &self.interface).unwrap_or(false)
        })
    }

    fn stats(&self) -> PortStats {
        let (now, unread) = self.receiver().map_or((0, 0), Receiver::missed);
        let rx_missed = self.missed.fetch_add(now, Ordering::Relaxed) + now + unread;
        PortStats {
            rx_missed,
            tx_gso: self.stats.tx_gso + self.sockets.as_ref().map_or(0, |s| s.tx.joined()),
            ..self.stats
        }
    }

    fn ready(&self) -> bool {
        self.receiver().is_some_and(Receiver::is_ready)
    }

    fn receive_ring(&self) -> Option<RingUse> {
        self.receiver().map(|rx| rx.ring.usage())
    }

    /// Memory of the kernel for frames in the queueing discipline and in the ring of the device: more than the bytes of the frames. A
    /// veth pair has no queue.
    fn backlog(&self) -> Option<u64> {
        self.sockets.as_ref()?.tx.backlog()
    }

    /// By the last reading of an [`InterfaceWatch`]: the kernel's answer waits for whoever configures an interface. Without a watch the
    /// kernel is asked.
    fn speed_mbps(&self) -> Option<u32> {
        let sockets = self.sockets.as_ref()?;
        match self.reattach.is_watched() {
            true => self.reattach.speed_mbps(),
            false => sys::speed_mbps(&sockets.control, &self.interface),
        }
    }

    fn segmentation(&self) -> Segmentation {
        let sockets = self.sockets.as_ref();
        sockets.map_or(Segmentation::None, |s| s.tx.segmentation())
    }

    fn reattach(&self) -> Option<Arc<Reattach>> {
        Some(self.reattach.clone())
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        match self.receives {
            true => sleeper.add_wake_file(self.file.clone()),
            false => Ok(()),
        }
    }

    fn pending(&self) -> usize {
        self.unsent.len()
    }

    fn poll(&mut self, now: Nanos) {
        if self.reattach.is_offered() {
            self.exchange_sockets();
        }
        // What is left is tried again by the next call.
        let _ = self.send_unsent();
        if now >= self.next_mtu_check {
            self.next_mtu_check = now + MTU_INTERVAL;
            self.update_mtu();
            if let Some(sockets) = &mut self.sockets {
                sockets.tx.resume();
            }
        }
    }
}
