//! The sockets of one side of a port. All of them are bound to one interface.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use castnet_wire::{DropReason, MacAddr};
use nix::net::if_::if_nametoindex;

use super::cut::{Cutter, VNET_HEADER};
use super::stack::RoceFilter;
use super::sys::{self, RxRing};
use super::transmit::Transmitter;
use super::{AfPacketSpec, RX_FRAMES, SEND_BUFFER_MIN, TX_FRAMES};
use crate::checksum;
use crate::port::{Sides, frame_max};
use crate::spec::OpenError;

const GENERAL: &str = "is AF_PACKET in this kernel, and is this an Ethernet interface?";
const DESCRIPTORS: &str = "raise the limit of open files: ulimit -n, LimitNOFILE";

/// An interface that exists.
#[derive(Debug)]
pub(super) struct Interface {
    /// Bound to the interface, and receives nothing: for questions to the kernel.
    pub(super) control: Arc<OwnedFd>,
    pub(super) index: u32,
    pub(super) mac: MacAddr,
    pub(super) mtu: usize,
}

impl Interface {
    /// The interface that has the name now.
    pub(super) fn find(spec: &AfPacketSpec) -> Result<Self, OpenError> {
        let name = spec.interface.as_str();
        let index = if_nametoindex(name);
        let index = index.map_err(|errno| failed(spec, "find it", GENERAL)(errno.into()))?;
        let control = Self::control(spec)?;
        sys::bind(&control, index, false).map_err(failed(spec, "bind", GENERAL))?;
        Ok(Self {
            mac: sys::mac(&control, name).map_err(failed(spec, "read the address", GENERAL))?,
            mtu: sys::mtu(&control, name).map_err(failed(spec, "read the MTU", GENERAL))?,
            control: Arc::new(control),
            index,
        })
    }

    /// A socket for questions to the kernel.
    pub(super) fn control(spec: &AfPacketSpec) -> Result<OwnedFd, OpenError> {
        sys::packet_socket().map_err(failed(spec, "socket", GENERAL))
    }
}

/// The error of a step of the setup.
fn failed<'a>(
    spec: &'a AfPacketSpec,
    step: &'static str,
    hint: &'static str,
) -> impl FnOnce(io::Error) -> OpenError + use<'a> {
    move |source| match source.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => OpenError::NoSuchInterface(spec.interface.clone()),
        Some(libc::EPERM | libc::EACCES) => OpenError::NoPermission {
            interface: spec.interface.clone(),
        },
        errno => OpenError::SetUp {
            interface: spec.interface.clone(),
            step,
            source,
            hint: match errno {
                Some(libc::EMFILE | libc::ENFILE) => DESCRIPTORS,
                _ => hint,
            },
        },
    }
}

/// Sockets that are bound to an interface. If the interface is deleted, they stay without one. Closing them waits for the
/// kernel.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) control: Arc<OwnedFd>,
    pub(super) rx: Option<Receiver>,
    pub(super) tx: Transmitter,
    pub(super) roce_filter: Option<RoceFilter>,
}

impl Sockets {
    /// Opens sockets for frames of up to `mtu`. `mac` is the address of the port, which the interface need not have.
    pub(super) fn open(
        spec: &AfPacketSpec,
        sides: Sides,
        interface: Interface,
        mtu: usize,
        mac: MacAddr,
    ) -> Result<Self, OpenError> {
        let step = |step, hint| failed(spec, step, hint);
        let memory = "take smaller rings (rx=, tx=), or free memory";
        let index = interface.index;
        let rx = if sides.receives() {
            let fd = sys::packet_socket().map_err(step("socket", GENERAL))?;
            sys::set_option(&fd, libc::PACKET_IGNORE_OUTGOING, &1)
                .map_err(step("ignore outgoing frames", "needs Linux 4.20 or newer"))?;
            let ring = RxRing::new(fd, spec.rx_frames.unwrap_or(RX_FRAMES), frame_max(mtu))
                .map_err(step("map the receive ring", memory))?;
            sys::bind(ring.file(), index, true).map_err(step("bind", GENERAL))?;
            if spec.promiscuous {
                sys::promiscuous(ring.file(), index).map_err(step("promiscuous mode", GENERAL))?;
            } else if mac != interface.mac {
                sys::further_address(ring.file(), index, mac)
                    .map_err(step("receive frames to the port's address", GENERAL))?;
            }
            Some(Receiver::new(ring))
        } else {
            None
        };
        // Optional: without the filter the kernel only does unnecessary work.
        let roce_filter = (rx.is_some() && !spec.share_roce)
            .then(|| RoceFilter::new(index).ok())
            .flatten();

        let fd = sys::packet_socket().map_err(step("socket", GENERAL))?;
        if spec.qdisc_bypass {
            sys::set_option(&fd, libc::PACKET_QDISC_BYPASS, &1).map_err(step(
                "bypass the queueing discipline",
                "or open it with bypass=no",
            ))?;
        }
        let waiting = spec.tx_frames.unwrap_or(TX_FRAMES) * frame_max(mtu);
        sys::send_buffer(&fd, waiting.max(SEND_BUFFER_MIN));
        sys::bind(&fd, index, false).map_err(step("bind", GENERAL))?;
        let tx = Transmitter::new(fd, spec.segmentation).map_err(step("send super-frames", GENERAL))?;
        Ok(Self {
            control: interface.control,
            rx,
            tx,
            roce_filter,
        })
    }

    /// True if the interface of these sockets still exists and has this name. `control` was bound first, so this is not true of
    /// sockets some of which are bound to another interface with the same index.
    ///
    /// For a name that no interface has, the kernel starts a program that loads a module, and waits for it. So the index comes first.
    pub(super) fn are_on(&self, interface: &str) -> bool {
        let Some(bound) = sys::bound_to(&self.control) else {
            return false;
        };
        match sys::is_named(&self.control, bound, interface) {
            // It may be an alternative name of the interface.
            Some(false) => sys::index(&self.control, interface).is_ok_and(|index| index == bound),
            Some(true) => true,
            None => false,
        }
    }

    /// Readable when a frame has arrived.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        self.rx.as_ref().map(|rx| rx.ring.file().clone())
    }
}

/// The receiving side: a ring, and the super-frame that is being taken apart.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) ring: RxRing,
    cutter: Cutter,
    /// Packets that the kernel could not keep because too many super-frames waited.
    unread: u64,
}

impl Receiver {
    fn new(ring: RxRing) -> Self {
        Self {
            ring,
            cutter: Cutter::new(),
            unread: 0,
        }
    }

    /// Frames that the kernel has lost. It resets its counter: those since the last call, and those that it could not keep.
    pub(super) fn missed(&self) -> (u64, u64) {
        (self.ring.missed(), self.unread)
    }

    /// Passes the next packet in up to three pieces to `with`. An error is a frame without a packet, with the reason if it must
    /// be dropped. Those without a reason are in [`Receiver::missed`].
    pub(super) fn next<T>(
        &mut self,
        with: impl FnOnce(&[&[u8]]) -> Result<T, DropReason>,
    ) -> Option<Result<T, Option<DropReason>>> {
        if self.cutter.is_empty() {
            let mut received = self.ring.next()?;
            if received.vnet_header().is_single() && !received.is_copied() {
                return Some(take(received, with).map_err(Some));
            }
            if let Err(reason) = load(received, &mut self.cutter, &mut self.unread) {
                return Some(Err(reason));
            }
        }
        self.cutter.next().map(|packet| with(&[packet]).map_err(Some))
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.cutter.is_empty() || !self.ring.is_empty()
    }
}

/// Moves a frame that is a super-frame, or longer than its slot, to `cutter`. An error without a reason: it is counted in `unread`.
fn load(
    mut received: sys::Received<'_>,
    cutter: &mut Cutter,
    unread: &mut u64,
) -> Result<(), Option<DropReason>> {
    let (header, tag, length) = (received.vnet_header(), received.vlan(), received.wire_length());
    let buffer = cutter.buffer();
    if received.is_copied() {
        let read = received.copy_to(buffer).unwrap_or(0);
        if read != VNET_HEADER + length {
            return Err(Some(DropReason::TooLong));
        }
    } else {
        let bytes = received.bytes();
        if bytes.len() < length {
            *unread += header.packets(length);
            return Err(None);
        }
        buffer[VNET_HEADER..VNET_HEADER + length].copy_from_slice(bytes);
    }
    cutter.start(header, length, tag).map_err(Some)
}

/// Passes one received frame in up to three pieces to `with`. Returns the reason if the frame must be dropped.
fn take<T>(
    mut received: sys::Received<'_>,
    with: impl FnOnce(&[&[u8]]) -> Result<T, DropReason>,
) -> Result<T, DropReason> {
    let (wire_length, vlan, lacks_checksum) =
        (received.wire_length(), received.vlan(), received.lacks_checksum());
    let bytes = received.bytes();
    if bytes.len() < wire_length {
        return Err(DropReason::TooLong);
    }
    if lacks_checksum {
        checksum::complete(bytes);
    }
    match (vlan, bytes.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) => with(&[addresses, &tag, rest]),
        _ => with(&[bytes]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interface_that_is_not_there_is_missing() {
        let spec = AfPacketSpec::new("h1");
        let text = |errno| failed(&spec, "find it", GENERAL)(io::Error::from_raw_os_error(errno)).to_string();
        for missing in [libc::ENODEV, libc::ENXIO] {
            assert!(
                text(missing).starts_with("no interface `h1`"),
                "{}",
                text(missing)
            );
        }
        let full = text(libc::EMFILE);
        assert!(
            full.contains("(find it): Too many open files") && full.ends_with(DESCRIPTORS),
            "{full}"
        );
        assert!(text(libc::EINVAL).ends_with(GENERAL));
    }
}
