//! Real interfaces through the kernel's packet sockets, with rings mapped into this process.
//!
//! - A port takes all frames that arrive at the interface, to whatever address, and none that leave it. Leave the
//!   interface without IP addresses, or the kernel answers as well.
//! - A VLAN tag that the kernel took off is put back. A UDP or TCP checksum that the kernel left to the device (its own
//!   traffic over a veth pair has none) is filled in.
//! - The interface's receive offload (GRO), which glues several frames into one, is switched off, since a switch
//!   must forward what was sent. The sender's segmentation offload at the other end of a veth pair has the same effect
//!   and can only be switched off there ([`set_offloads`], or `ethtool -K IF tso off gso off`); until then its
//!   super-frames are counted as [`TooLong`](DropReason::TooLong).
//! - RoCE frames that arrive end here: the kernel's IP stack would route each of them for nothing, and does not see them
//!   while the port is open, from Linux 6.6 on and with CAP_NET_ADMIN.
//! - One thread receives; each thread that sends has its own socket and ring.
//! - The interface's MTU is followed while the port is open, up to what it was when the port was opened: the rings hold no
//!   longer frames.

mod stack;
mod sys;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use castnet_wire::{Batch, DropReason, FrameBuf, MacAddr, Nanos};
use nix::net::if_::if_nametoindex;

use crate::checksum;
use crate::pool::{Pool, PoolBuf};
use crate::port::{Port, PortDevice, PortLink, PortStats, RingUse, Sides, fits_from, frame_max};
use crate::sleep::Sleeper;
use crate::spec::OpenError;
use stack::Unseen;
use sys::{RxRing, TxRing};

/// Frames in the rings of a switch's port.
const RX_FRAMES: usize = 1024;
const TX_FRAMES: usize = 128;

/// Frames that are received or sent at one go.
const BATCH: usize = 32;

/// How often the interface's MTU is looked at. One that was lowered is seen at once, by the first frame that is lost.
const MTU_INTERVAL: Nanos = Nanos::from_millis(50);

/// A real interface, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacketSpec {
    /// Its name, in the network namespace of the thread that opens it.
    pub interface: String,
    /// Frames that the receive ring holds; `None`: 1024. All of its memory is gone through again and again, so a ring that
    /// is larger than bursts ask for costs cache: between hosts on one machine, a sixth of the rate.
    pub rx_frames: Option<usize>,
    /// Frames that each send ring holds; `None`: 128.
    pub tx_frames: Option<usize>,
    /// Whether frames to other Ethernet addresses than the interface's own are taken, as a switch must.
    pub promiscuous: bool,
    /// Whether sent frames go to the device without passing the interface's queueing discipline.
    pub qdisc_bypass: bool,
    /// Whether the receive offload (GRO) stays as it is.
    pub keep_offloads: bool,
    /// Whether RoCE frames go to the kernel's IP stack as well: for a kernel whose own RDMA device shares the interface.
    pub share_roce: bool,
}

impl AfPacketSpec {
    /// The interface of this name: rings as a switch wants them, promiscuous, no queueing discipline, no receive offload.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rx_frames: None,
            tx_frames: None,
            promiscuous: true,
            qdisc_bypass: true,
            keep_offloads: false,
            share_roce: false,
        }
    }

    /// The same for one RNIC, whose windows bound what can come: rings of 256 and 64 frames where none were asked for.
    pub fn for_rnic(self) -> Self {
        Self {
            rx_frames: self.rx_frames.or(Some(256)),
            tx_frames: self.tx_frames.or(Some(64)),
            ..self
        }
    }

    /// Opens it for the thread that owns `pool`.
    ///
    /// # Errors
    /// No such interface, no permission, or a step of the set-up that the kernel refused.
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<AfPacketPort, OpenError> {
        let step = |step: &'static str, hint: &'static str| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::ENODEV | libc::ENXIO) => OpenError::NoSuchInterface(self.interface.clone()),
                Some(libc::EPERM | libc::EACCES) => OpenError::NoPermission {
                    interface: self.interface.clone(),
                },
                _ => OpenError::SetUp {
                    interface: self.interface.clone(),
                    step,
                    source,
                    hint,
                },
            }
        };
        let index = if_nametoindex(self.interface.as_str())
            .map_err(|_| OpenError::NoSuchInterface(self.interface.clone()))?;
        let general = "is AF_PACKET in this kernel, and is this an Ethernet interface?";
        let memory = "take smaller rings (rx=, tx=), or free memory";

        let control = sys::packet_socket().map_err(step("socket", general))?;
        let mac = sys::mac(&control, &self.interface).map_err(step("read the address", general))?;
        let mtu = sys::mtu(&control, &self.interface).map_err(step("read the MTU", general))?;
        let mtu = mtu.min(pool.frame_max().saturating_sub(frame_max(0)));

        let rx = if sides.receives() {
            if !self.keep_offloads {
                // What an interface cannot do, it need not stop doing.
                let _ = set_offloads(&self.interface, &[Offload::Receive], false);
            }
            let fd = sys::packet_socket().map_err(step("socket", general))?;
            sys::set_option(&fd, libc::PACKET_IGNORE_OUTGOING, &1)
                .map_err(step("ignore outgoing frames", "needs Linux 4.20 or newer"))?;
            let ring = RxRing::new(fd, self.rx_frames.unwrap_or(RX_FRAMES), frame_max(mtu))
                .map_err(step("map the receive ring", memory))?;
            sys::bind(ring.file(), index, true).map_err(step("bind", general))?;
            if self.promiscuous {
                sys::promiscuous(ring.file(), index).map_err(step("promiscuous mode", general))?;
            }
            Some(ring)
        } else {
            None
        };
        // Without it the kernel does more than it need; no reason not to begin.
        let unseen = (rx.is_some() && !self.share_roce)
            .then(|| Unseen::new(index).ok())
            .flatten();

        let fd = sys::packet_socket().map_err(step("socket", general))?;
        if self.qdisc_bypass {
            sys::set_option(&fd, libc::PACKET_QDISC_BYPASS, &1).map_err(step(
                "bypass the queueing discipline",
                "or open it with bypass=no",
            ))?;
        }
        let tx_frames = self.tx_frames.unwrap_or(TX_FRAMES);
        sys::send_buffer(&fd, tx_frames * frame_max(mtu));
        let tx = TxRing::new(fd, tx_frames, frame_max(mtu)).map_err(step("map the send ring", memory))?;
        tx.bind(index).map_err(step("bind", general))?;

        Ok(AfPacketPort {
            interface: self.interface.clone(),
            control,
            mac,
            mtu,
            mtu_max: mtu,
            mtu_at: Nanos::ZERO,
            rx,
            tx,
            unseen,
            unkicked: false,
            pool: pool.clone(),
            stats: PortStats::default(),
            missed: AtomicU64::new(0),
        })
    }
}

/// A real interface in the thread that uses it.
#[derive(Debug)]
pub struct AfPacketPort {
    interface: String,
    /// For questions about the interface.
    control: OwnedFd,
    mac: MacAddr,
    mtu: usize,
    /// The MTU that the rings are made for.
    mtu_max: usize,
    /// When the interface's MTU is looked at next.
    mtu_at: Nanos,
    rx: Option<RxRing>,
    tx: TxRing,
    unseen: Option<Unseen>,
    /// Frames lie in the send ring that the kernel has not been told of, or did not take.
    unkicked: bool,
    pool: Pool,
    stats: PortStats,
    /// What the kernel had to drop; it forgets the number when asked.
    missed: AtomicU64,
}

impl AfPacketPort {
    /// Whether RoCE frames end here, unseen by the kernel's IP stack.
    pub fn hides_roce(&self) -> bool {
        self.unseen.is_some()
    }

    /// The interface's driver, and what the kernel knows of the device.
    fn device(&self) -> PortDevice {
        let (driver, bus) = sys::driver(&self.control, &self.interface)
            .unwrap_or_else(|_| ("af_packet".to_owned(), String::new()));
        PortDevice {
            speed_mbps: self.speed_mbps(),
            numa_node: numa_node(&bus),
            ..PortDevice::new(driver)
        }
    }

    /// Has the kernel send what is committed. Returns whether the interface is up as far as that shows.
    fn kick(&mut self) -> bool {
        let result = self.tx.kick();
        self.unkicked = self.tx.is_unsettled();
        if result.is_err_and(|error| error.raw_os_error() == Some(libc::ENETDOWN)) {
            return false;
        }
        if self.unkicked {
            self.settle();
        }
        true
    }

    /// The kernel did not take all that it was given. It drops what is longer than its MTU, and stops where it has no memory.
    #[cold]
    fn settle(&mut self) {
        self.follow_mtu();
        let (mtu, stats) = (self.mtu, &mut self.stats);
        self.tx.settle(|head, length| {
            if let Err(reason) = check_length(head, length, mtu) {
                stats.tx_frames -= 1;
                stats.tx_bytes -= length as u64;
                stats.count_drop(reason);
            }
        });
        self.unkicked = self.tx.is_unsettled();
    }

    /// Goes by the interface's MTU as it is now, as far as the rings allow.
    fn follow_mtu(&mut self) {
        if let Ok(mtu) = sys::mtu(&self.control, &self.interface) {
            self.mtu = mtu.min(self.mtu_max);
        }
    }

    fn send_one(&mut self, frame: &PoolBuf) -> Result<(), DropReason> {
        let length = frame.length();
        check_length(frame.head(), length, self.mtu)?;
        if self.tx.reserve().is_none() {
            self.kick();
        }
        let slot = self.tx.reserve().ok_or(DropReason::TxFull)?;
        frame.copy_to(slot);
        self.tx.commit(length);
        self.unkicked = true;
        Ok(())
    }
}

/// The NUMA node of a device on the PCI bus.
fn numa_node(bus: &str) -> Option<u32> {
    // The address is the kernel's own word, but a path is made of it.
    if bus.is_empty()
        || !bus
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
    {
        return None;
    }
    let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/numa_node")).ok()?;
    // -1 where the machine does not tell.
    node.trim().parse().ok()
}

/// Whether a frame that starts with `head` may go out.
fn check_length(head: &[u8], length: usize, mtu: usize) -> Result<(), DropReason> {
    if length < frame_max(0) - 4 {
        return Err(DropReason::Malformed);
    }
    // On top of the MTU the kernel allows the tag of 802.1Q, and no other.
    let other_tag = || matches!(head.get(12..14), Some([0x88, 0xA8]));
    if !fits_from(head, length, mtu) || (length > frame_max(mtu) - 4 && other_tag()) {
        return Err(DropReason::TooLong);
    }
    Ok(())
}

/// One frame out of the ring, in up to three pieces, to `with`; or why there is none.
fn take<T>(mut received: sys::Received<'_>, with: impl FnOnce(&[&[u8]]) -> T) -> Result<T, DropReason> {
    let (wire_length, vlan, lacks_checksum) =
        (received.wire_length(), received.vlan(), received.lacks_checksum());
    let bytes = received.bytes();
    if bytes.len() < wire_length {
        return Err(DropReason::TooLong);
    }
    if lacks_checksum {
        checksum::complete(bytes);
    }
    Ok(match (vlan, bytes.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) => with(&[addresses, &tag, rest]),
        _ => with(&[bytes]),
    })
}

/// A buffer with what was received. There was room, so a frame for which there is none is longer than this pool's.
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
        let Some(ring) = &mut self.rx else { return };
        while !batch.is_full() && self.pool.has_room() {
            let Some(received) = ring.next() else { break };
            match take(received, |pieces| into_buffer(&self.pool, pieces)).flatten() {
                Ok(frame) => {
                    self.stats.count_received(frame.length());
                    batch.push(frame);
                }
                Err(reason) => self.stats.count_drop(reason),
            }
        }
    }

    fn receive_with(&mut self, scratch: &mut [u8], with: &mut dyn FnMut(&[u8])) -> usize {
        let Some(ring) = &mut self.rx else { return 0 };
        let mut count = 0;
        while count < BATCH
            && let Some(received) = ring.next()
        {
            count += 1;
            let length = take(received, |pieces| match pieces {
                [whole] => {
                    with(whole);
                    Ok(whole.len())
                }
                // A tag that the kernel took off.
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
            });
            match length.flatten() {
                Ok(length) => self.stats.count_received(length),
                Err(reason) => self.stats.count_drop(reason),
            }
        }
        count
    }

    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        // A ring for small frames would have them refused before they are known to be too long.
        if self.tx.slot_bytes() < least {
            return None;
        }
        if self.unkicked && !self.kick() {
            return Some((0, false));
        }
        let (mut count, mut more) = (0, true);
        while count < BATCH {
            if self.tx.reserve().is_none() {
                self.kick();
            }
            let Some(slot) = self.tx.reserve() else { break };
            let Some(length) = fill(slot) else {
                more = false;
                break;
            };
            count += 1;
            match check_length(slot, length, self.mtu) {
                Ok(()) => {
                    self.tx.commit(length);
                    self.unkicked = true;
                    self.stats.count_sent(length);
                }
                Err(reason) => self.stats.count_drop(reason),
            }
        }
        if self.unkicked {
            self.kick();
        }
        Some((count, more))
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.is_empty() {
            return;
        }
        // What the kernel did not take last time tells whether the interface is down, before more is piled up.
        let up = !self.unkicked || self.kick();
        for frame in batch.drain(..) {
            let sent = if up {
                self.send_one(&frame)
            } else {
                Err(DropReason::PortDown)
            };
            match sent {
                Ok(()) => self.stats.count_sent(frame.length()),
                Err(reason) => self.stats.count_drop(reason),
            }
        }
        if up {
            self.kick();
        }
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
        sys::is_up(&self.control, &self.interface).unwrap_or(false)
    }

    fn stats(&self) -> PortStats {
        let now = self.rx.as_ref().map_or(0, RxRing::missed);
        let rx_missed = self.missed.fetch_add(now, Ordering::Relaxed) + now;
        PortStats {
            rx_missed,
            ..self.stats
        }
    }

    fn ready(&self) -> bool {
        self.rx.as_ref().is_some_and(|ring| !ring.is_empty())
    }

    fn receive_ring(&self) -> Option<RingUse> {
        self.rx.as_ref().map(RxRing::usage)
    }

    fn speed_mbps(&self) -> Option<u32> {
        sys::speed_mbps(&self.control, &self.interface)
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        match &self.rx {
            Some(ring) => sleeper.add_file(ring.file().clone()),
            None => Ok(()),
        }
    }

    fn poll(&mut self, now: Nanos) {
        if self.unkicked {
            self.kick();
        }
        if now >= self.mtu_at {
            self.mtu_at = now + MTU_INTERVAL;
            self.follow_mtu();
        }
    }
}

/// Something that an interface, or the kernel for it, does to frames on their way between the wire and the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Fills in UDP and TCP checksums of what is sent.
    TxChecksum,
    /// Cuts long TCP frames (TSO).
    TcpSegmentation,
    /// The same in software, just before the device (GSO).
    Segmentation,
    /// Glues received frames together (GRO).
    Receive,
}

impl Offload {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::TxChecksum,
        Self::TcpSegmentation,
        Self::Segmentation,
        Self::Receive,
    ];

    /// ethtool's command that sets it (linux/ethtool.h).
    const fn command(self) -> u32 {
        match self {
            Self::TxChecksum => 0x17,
            Self::TcpSegmentation => 0x1f,
            Self::Segmentation => 0x24,
            Self::Receive => 0x2c,
        }
    }
}

/// Switches offloads of an interface on or off. Off is what the hosts' ends of veth pairs need, where a switch stands in
/// for the device that would have cut long frames.
///
/// # Errors
/// No such interface, or no permission (CAP_NET_ADMIN). Offloads that an interface does not have are left out.
pub fn set_offloads(interface: &str, offloads: &[Offload], on: bool) -> io::Result<()> {
    let socket = sys::packet_socket()?;
    for offload in offloads {
        match sys::ethtool_set(&socket, interface, offload.command(), u32::from(on)) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => other?,
        }
    }
    Ok(())
}
