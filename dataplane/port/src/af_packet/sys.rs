//! The `unsafe` interface to the kernel's packet sockets: the mapped ring, sending, socket options and interface ioctls.
//!
//! Frames are received in a ring of TPACKET_V2, which has one status word per frame, so a frame can be read as soon as it
//! arrives. TPACKET_V3 delivers frames in blocks, and a partly filled block only when its timer fires, a
//! millisecond or a jiffy later. A RoCE sender that stops at 128 unacknowledged packets would wait for that
//! timer in every window, at every switch. Slots hold a frame of the MTU. A longer one is a super-frame, and the kernel also
//! keeps it whole in the socket (PACKET_COPY_THRESH), from where it is read.
//!
//! Frames are sent by `sendmmsg`, from the buffers in which they lie. Single frames cost the same as with a send ring, and
//! super-frames cost less.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use castnet_wire::MacAddr;
use libc::{c_int, c_void};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};

use super::cut::{VNET_HEADER, VnetHeader};
use super::transmit::SEND_MAX;
use crate::port::RingUse;

/// The maximum number of bytes before a received frame in its slot: header, `sockaddr_ll`, `virtio_net_hdr`, alignment of
/// the IP header.
const RX_OVERHEAD: usize = 128;
/// Bytes that, with a `virtio_net_hdr`, keep the IP header aligned to 16 bytes.
const RX_RESERVE: c_int = 6;
/// Bytes of super-frames that may wait to be read.
const RX_COPIES: usize = 8 << 20;
/// Bytes of a block of ring memory: small, because the kernel allocates it contiguously. Slots do not cross blocks.
const BLOCK: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    slot: usize,
    per_block: usize,
    blocks: usize,
}

impl Layout {
    fn new(frames: usize, frame_max: usize) -> Self {
        let slot = (frame_max + RX_OVERHEAD)
            .next_multiple_of(libc::TPACKET_ALIGNMENT)
            .min(BLOCK);
        let per_block = BLOCK / slot;
        Self {
            slot,
            per_block,
            blocks: frames.max(1).div_ceil(per_block),
        }
    }

    fn slots(self) -> usize {
        self.per_block * self.blocks
    }

    fn bytes(self) -> usize {
        self.blocks * BLOCK
    }

    fn offset(self, index: usize) -> usize {
        index / self.per_block * BLOCK + index % self.per_block * self.slot
    }
}

/// The memory of a ring, shared with the kernel.
#[derive(Debug)]
struct Map {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping is of no thread. It is reached through this handle alone, which is not `Clone`.
unsafe impl Send for Map {}

impl Map {
    fn new(fd: &OwnedFd, option: c_int, layout: Layout) -> io::Result<Self> {
        set_option(
            fd,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as c_int),
        )?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: layout.blocks as u32,
            tp_frame_size: layout.slot as u32,
            tp_frame_nr: layout.slots() as u32,
        };
        set_option(fd, option, &request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; existing memory is not touched. The
        // descriptor is open and the result is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                layout.bytes(),
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { base, layout })
    }

    fn header(&self, index: usize) -> NonNull<libc::tpacket2_hdr> {
        assert!(
            index < self.layout.slots(),
            "slot {index} of {}",
            self.layout.slots()
        );
        // SAFETY: the index is in the ring, so the offset and the slot after it are inside the mapping, which
        // is less than isize::MAX bytes.
        unsafe { self.base.add(self.layout.offset(index)).cast() }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        let header = self.header(index).as_ptr();
        // SAFETY: the status word is the first field of the header, is inside the mapping while `self` exists, is
        // aligned (slots are aligned to 16 bytes), and is accessed only as one word by this program and the kernel.
        unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) }
    }

    /// Bytes `from..from + length` of a slot, limited to the slot.
    ///
    /// # Safety
    /// The slot's status must give it to the caller, and no other slice of it may exist.
    unsafe fn bytes(&mut self, index: usize, from: usize, length: usize) -> &mut [u8] {
        let from = from.min(self.layout.slot);
        let length = length.min(self.layout.slot - from);
        let slot = self.header(index).cast::<u8>();
        // SAFETY: inside the slot and so inside the mapping. By the caller's promise nothing else reads or writes it.
        unsafe { std::slice::from_raw_parts_mut(slot.add(from).as_ptr(), length) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was created in `new` with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.layout.bytes()) };
    }
}

#[derive(Debug)]
pub(super) struct RxRing {
    map: Map,
    next: usize,
    fd: Arc<OwnedFd>,
}

/// A received frame in its slot. Dropping it returns the slot to the kernel.
pub(super) struct Received<'a> {
    ring: &'a mut RxRing,
    header: libc::tpacket2_hdr,
}

impl RxRing {
    /// A frame that is longer than `frame_max` is passed by [`Received::copy_to`].
    pub(super) fn new(fd: OwnedFd, frames: usize, frame_max: usize) -> io::Result<Self> {
        set_option(&fd, libc::PACKET_VNET_HDR, &1)?;
        set_option(&fd, libc::PACKET_RESERVE, &RX_RESERVE)?;
        set_option(&fd, libc::PACKET_COPY_THRESH, &1)?;
        buffer(&fd, [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF], RX_COPIES);
        let map = Map::new(&fd, libc::PACKET_RX_RING, Layout::new(frames, frame_max))?;
        Ok(Self {
            map,
            next: 0,
            fd: Arc::new(fd),
        })
    }

    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.status(self.next).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
    }

    pub(super) fn next(&mut self) -> Option<Received<'_>> {
        if self.is_empty() {
            return None;
        }
        let header = self.map.header(self.next);
        // SAFETY: the status, read with acquire order, says that the kernel has written this slot and does
        // not access it.
        let header = unsafe { header.read() };
        Some(Received { ring: self, header })
    }

    /// The kernel fills slots in order, so a binary search counts the used ones. Exact but for frames that arrive meanwhile.
    pub(super) fn usage(&self) -> RingUse {
        let size = self.map.layout.slots();
        let (mut full, mut free) = (0, size);
        while full < free {
            let middle = full + (free - full) / 2;
            let status = self.map.status((self.next + middle) % size);
            if status.load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0 {
                full = middle + 1;
            } else {
                free = middle;
            }
        }
        RingUse { used: full, size }
    }

    /// Frames dropped since the last call because no slot was free.
    pub(super) fn missed(&self) -> u64 {
        // SAFETY: plain integers, for which zeros are valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&stats) as libc::socklen_t;
        let (fd, out) = (self.fd.as_raw_fd(), (&raw mut stats).cast::<c_void>());
        // SAFETY: `out` and `length` describe the memory of `stats`, which outlives the call.
        let rc = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                out,
                &raw mut length,
            )
        };
        if rc == 0 { u64::from(stats.tp_drops) } else { 0 }
    }
}

impl Received<'_> {
    /// The bytes of the frame, truncated to the slot.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let (from, length) = (usize::from(self.header.tp_mac), self.header.tp_snaplen as usize);
        let index = self.ring.next;
        // SAFETY: the slot belongs to this program until `drop` sets its status, and `self` is the only
        // `Received` of the ring.
        unsafe { self.ring.map.bytes(index, from, length) }
    }

    /// The header that says whether the frame is a super-frame.
    pub(super) fn vnet_header(&mut self) -> VnetHeader {
        let from = usize::from(self.header.tp_mac).saturating_sub(VNET_HEADER);
        let index = self.ring.next;
        // SAFETY: as in `bytes`. The kernel wrote this header before the frame.
        let bytes = unsafe { self.ring.map.bytes(index, from, VNET_HEADER) };
        VnetHeader::parse(bytes.first_chunk().copied().unwrap_or_default())
    }

    /// True if the whole frame waits in the socket, because it is longer than the slot. Then it must be read.
    pub(super) fn is_copied(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_COPY != 0
    }

    /// Reads the whole frame from the socket, behind its `virtio_net_hdr`. Returns the number of bytes of both, which may
    /// exceed that of `buffer`.
    pub(super) fn copy_to(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(
                self.ring.fd.as_raw_fd(),
                buffer,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC,
            ) {
                // An interface that goes down leaves an error, which the first call returns.
                Err(Errno::ENETDOWN | Errno::EINTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Length on the wire, without a VLAN tag that the kernel removed.
    pub(super) fn wire_length(&self) -> usize {
        self.header.tp_len as usize
    }

    /// True if the UDP or TCP checksum must be completed: the kernel left it to the device.
    pub(super) fn lacks_checksum(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0
    }

    /// The VLAN tag that the kernel removed, in wire format.
    pub(super) fn vlan(&self) -> Option<[u8; 4]> {
        if self.header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let known = self.header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let [a, b] = if known { self.header.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
        let [c, d] = self.header.tp_vlan_tci.to_be_bytes();
        Some([a, b, c, d])
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        let ring = &mut *self.ring;
        ring.map
            .status(ring.next)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        ring.next = (ring.next + 1) % ring.map.layout.slots();
    }
}

/// Sends messages of several parts each, in order. Returns the number of messages sent. An error is that of the first one.
pub(super) fn send_messages(fd: &OwnedFd, messages: &[&[IoSlice<'_>]]) -> io::Result<usize> {
    // SAFETY: pointers and integers, for which zeros are valid.
    let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
    let mut headers: ArrayVec<libc::mmsghdr, SEND_MAX> = ArrayVec::new();
    for parts in messages.iter().take(SEND_MAX) {
        let mut header = empty;
        // `IoSlice` has the layout of `iovec`.
        header.msg_hdr.msg_iov = parts.as_ptr().cast::<libc::iovec>().cast_mut();
        header.msg_hdr.msg_iovlen = parts.len() as _;
        headers.push(header);
    }
    // SAFETY: pointer and length describe `headers`. Each of them describes the parts of a message, which outlive the
    // call. The kernel only reads the parts.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as _,
            libc::MSG_DONTWAIT,
        )
    };
    check(sent)?;
    Ok(sent as usize)
}

/// Opens a packet socket that receives nothing until it is bound.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?)
}

/// Binds a socket to an interface. It receives all frames if `receive` is set, otherwise none.
pub(super) fn bind(fd: &OwnedFd, interface: u32, receive: bool) -> io::Result<()> {
    // SAFETY: plain integers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface as c_int;
    address.sll_protocol = if receive {
        (libc::ETH_P_ALL as u16).to_be()
    } else {
        0
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    check(rc)
}

/// The index of the interface that a socket is bound to. `None` if the interface was deleted or moved to another network
/// namespace: the kernel unbinds its sockets then, for good, also if another interface gets the index.
pub(super) fn bound_to(fd: &OwnedFd) -> Option<u32> {
    // SAFETY: plain integers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    check(rc).ok()?;
    u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0)
}

/// Enables promiscuous mode while the socket is open.
pub(super) fn promiscuous(fd: &OwnedFd, interface: u32) -> io::Result<()> {
    add_membership(fd, interface, libc::PACKET_MR_PROMISC, &[])
}

/// Lets the interface receive frames to a further address while the socket is open.
pub(super) fn further_address(fd: &OwnedFd, interface: u32, mac: MacAddr) -> io::Result<()> {
    /// linux/if_packet.h
    const PACKET_MR_UNICAST: c_int = 3;
    add_membership(fd, interface, PACKET_MR_UNICAST, &mac.0)
}

fn add_membership(fd: &OwnedFd, interface: u32, kind: c_int, address: &[u8]) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: kind as u16,
        mr_alen: address.len() as u16,
        mr_address: [0; 8],
    };
    request.mr_address[..address.len()].copy_from_slice(address);
    set_option(fd, libc::PACKET_ADD_MEMBERSHIP, &request)
}

pub(super) fn set_option<T: Copy>(fd: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    set_any_option(fd, libc::SOL_PACKET, option, value)
}

/// Sets the socket's send buffer to `bytes`.
pub(super) fn send_buffer(fd: &OwnedFd, bytes: usize) {
    buffer(fd, [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF], bytes);
}

/// Sets a buffer of the socket by the first option, above the system's limit, or by the second without that permission.
fn buffer(fd: &OwnedFd, [force, option]: [c_int; 2], bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if set_any_option(fd, libc::SOL_SOCKET, force, &bytes).is_err() {
        let _ = set_any_option(fd, libc::SOL_SOCKET, option, &bytes);
    }
}

fn set_any_option<T: Copy>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let (pointer, length) = (
        (&raw const *value).cast::<c_void>(),
        size_of::<T>() as libc::socklen_t,
    );
    // SAFETY: pointer and length describe `value`, which outlives the call. The kernel only reads it.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, length) };
    check(rc)
}

/// Bytes of the kernel's memory for frames that were sent on a socket and have not left.
pub(super) fn out_queue(fd: &OwnedFd) -> Option<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: this command writes an `int`, which outlives the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(rc).ok()?;
    u64::try_from(bytes).ok()
}

/// True if the interface with this index has this name. `None` if there is none. The kernel loads no module.
pub(super) fn is_named(fd: &OwnedFd, index: u32, interface: &str) -> Option<bool> {
    Some(name_bytes(fd, index)?.eq(interface.bytes()))
}

/// The name of the interface with this index.
pub(super) fn name(fd: &OwnedFd, index: u32) -> Option<String> {
    let name: Vec<u8> = name_bytes(fd, index)?.collect();
    Some(String::from_utf8_lossy(&name).into_owned())
}

fn name_bytes(fd: &OwnedFd, index: u32) -> Option<impl Iterator<Item = u8>> {
    let mut request = request_for("").ok()?;
    request.ifr_ifru.ifru_ifindex = c_int::try_from(index).ok()?;
    ask(fd, &mut request, libc::SIOCGIFNAME).ok()?;
    let name = request.ifr_name.into_iter().map(|c| c as u8);
    Some(name.take_while(|byte| *byte != 0))
}

/// The index of the interface with this name.
pub(super) fn index(fd: &OwnedFd, interface: &str) -> io::Result<u32> {
    let request = interface_request(fd, interface, libc::SIOCGIFINDEX)?;
    // SAFETY: the kernel has filled in this member of the union; any bits are an integer.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

pub(super) fn mtu(fd: &OwnedFd, interface: &str) -> io::Result<usize> {
    let request = interface_request(fd, interface, libc::SIOCGIFMTU)?;
    // SAFETY: the kernel has filled in this member of the union; any bits are an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// The Ethernet address of an interface. The error is `InvalidData` if it is not an Ethernet interface.
pub(super) fn mac(fd: &OwnedFd, interface: &str) -> io::Result<MacAddr> {
    let request = interface_request(fd, interface, libc::SIOCGIFHWADDR)?;
    // SAFETY: the kernel has filled in this member of the union; any bits are integers.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if ![libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not an Ethernet interface",
        ));
    }
    let mut bytes = [0; 6];
    for (byte, from) in bytes.iter_mut().zip(address.sa_data) {
        *byte = from.cast_unsigned();
    }
    Ok(MacAddr(bytes))
}

/// Returns true if an interface is up and has a carrier.
pub(super) fn is_up(fd: &OwnedFd, interface: &str) -> io::Result<bool> {
    let request = interface_request(fd, interface, libc::SIOCGIFFLAGS)?;
    // SAFETY: the kernel has filled in this member of the union; any bits are an integer.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & (libc::IFF_UP | libc::IFF_RUNNING) == libc::IFF_UP | libc::IFF_RUNNING)
}

/// What a sub-command that takes one value reads; or the value, if it sets that.
pub(super) fn ethtool_value(fd: &OwnedFd, interface: &str, command: u32, value: u32) -> io::Result<u32> {
    /// `struct ethtool_value` of linux/ethtool.h.
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        value: u32,
    }
    let mut argument = EthtoolValue { command, value };
    // SAFETY: these sub-commands take an `ethtool_value`.
    unsafe { ethtool(fd, interface, &mut argument)? };
    Ok(argument.value)
}

/// The link speed in Mb/s, if known. Waits until nobody configures an interface.
pub(super) fn speed_mbps(fd: &OwnedFd, interface: &str) -> Option<u32> {
    /// `struct ethtool_cmd` of linux/ethtool.h.
    #[repr(C)]
    struct EthtoolCmd {
        command: u32,
        supported: u32,
        advertising: u32,
        speed: u16,
        _ports: [u8; 6],
        _packets: [u32; 2],
        speed_high: u16,
        _mdix: [u8; 2],
        _rest: [u32; 3],
    }
    const GET_SETTINGS: u32 = 0x1;
    const { assert!(size_of::<EthtoolCmd>() == 44) };
    // SAFETY: plain integers, for which zeros are valid.
    let mut settings: EthtoolCmd = unsafe { std::mem::zeroed() };
    settings.command = GET_SETTINGS;
    // SAFETY: this sub-command takes an `ethtool_cmd`.
    unsafe { ethtool(fd, interface, &mut settings) }.ok()?;
    let speed = u32::from(settings.speed_high) << 16 | u32::from(settings.speed);
    // All ones means unknown.
    (speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

/// The driver's name and the bus address of an interface. The bus address of a virtual interface is empty.
pub(super) fn driver(fd: &OwnedFd, interface: &str) -> io::Result<(String, String)> {
    /// `struct ethtool_drvinfo` of linux/ethtool.h.
    #[repr(C)]
    struct EthtoolDrvinfo {
        command: u32,
        driver: [u8; 32],
        _versions: [u8; 64],
        bus_info: [u8; 32],
        _rest: [u8; 64],
    }
    const GET_DRIVER: u32 = 0x3;
    const { assert!(size_of::<EthtoolDrvinfo>() == 196) };
    // SAFETY: plain integers, for which zeros are valid.
    let mut info: EthtoolDrvinfo = unsafe { std::mem::zeroed() };
    info.command = GET_DRIVER;
    // SAFETY: this sub-command takes an `ethtool_drvinfo`.
    unsafe { ethtool(fd, interface, &mut info)? };
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    Ok((text(&info.driver), text(&info.bus_info)))
}

/// # Safety
/// `argument` must be the structure that the sub-command in its first word takes.
unsafe fn ethtool<T>(fd: &OwnedFd, interface: &str, argument: &mut T) -> io::Result<()> {
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut *argument).cast();
    // SAFETY: the request is a whole `ifreq` whose data points at the structure of the sub-command, by the
    // caller's promise. Both outlive the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    check(rc)
}

fn interface_request(fd: &OwnedFd, interface: &str, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    let mut request = request_for(interface)?;
    ask(fd, &mut request, what)?;
    Ok(request)
}

/// `what` is a command that fills in `request`, and takes no address in it.
fn ask(fd: &OwnedFd, request: &mut libc::ifreq, what: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the request is a whole `ifreq` with a zero-terminated name, as these commands require, and
    // outlives the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), what, &raw mut *request) };
    check(rc)
}

fn request_for(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: integers, and a union of integers and a pointer, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_its_index() {
        // Any socket will do. The loopback interface is the first one of a network namespace.
        let fd = OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        assert_eq!(index(&fd, "lo").unwrap(), 1);
        for (index, name, expected) in [
            (1, "lo", Some(true)),
            (1, "l", Some(false)),
            (1, "lo0", Some(false)),
            (1, "", Some(false)),
            (i32::MAX as u32, "lo", None),
            (u32::MAX, "lo", None),
        ] {
            assert_eq!(is_named(&fd, index, name), expected, "{index} {name}");
        }
        let names = [1, i32::MAX as u32].map(|index| name(&fd, index));
        assert_eq!(names, [Some("lo".to_owned()), None]);
    }

    #[test]
    fn slots_lie_inside_blocks_and_do_not_overlap() {
        for frame_max in [60, 1518, 4218, 9018, 9234, 60_000] {
            let layout = Layout::new(700, frame_max);
            assert!(layout.slots() >= 700 && layout.slot >= frame_max + RX_OVERHEAD);
            for index in 0..layout.slots() {
                let (start, end) = (layout.offset(index), layout.offset(index) + layout.slot);
                assert_eq!(
                    start / BLOCK,
                    (end - 1) / BLOCK,
                    "frame_max {frame_max}, slot {index}"
                );
                assert!(end <= layout.bytes() && start % libc::TPACKET_ALIGNMENT == 0);
                assert!(index == 0 || layout.offset(index - 1) + layout.slot <= start);
            }
        }
    }
}
