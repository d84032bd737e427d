//! Offloads of interfaces. What a port has disabled is enabled again when it gives up its interface.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::AfPacketSpec;
use super::sockets::Interface;
use super::sys;
use crate::port::Sides;

/// A transformation of frames between the wire and the network stack, by the interface or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Fills in UDP and TCP checksums of sent frames.
    TxChecksum,
    /// Segments long TCP frames (TSO).
    TcpSegmentation,
    /// Segments long frames in software before the device (GSO).
    Segmentation,
    /// Merges received frames (GRO).
    Receive,
}

impl Offload {
    /// All offloads.
    pub const ALL: [Self; 4] = [
        Self::TxChecksum,
        Self::TcpSegmentation,
        Self::Segmentation,
        Self::Receive,
    ];

    /// The ethtool command that sets this offload (linux/ethtool.h). The one before it reads it.
    const fn command(self) -> u32 {
        match self {
            Self::TxChecksum => 0x17,
            Self::TcpSegmentation => 0x1f,
            Self::Segmentation => 0x24,
            Self::Receive => 0x2c,
        }
    }

    fn is_on(self, fd: &OwnedFd, interface: &str) -> io::Result<bool> {
        Ok(sys::ethtool_value(fd, interface, self.command() - 1, 0)? != 0)
    }

    fn set(self, fd: &OwnedFd, interface: &str, on: bool) -> io::Result<()> {
        sys::ethtool_value(fd, interface, self.command(), u32::from(on)).map(drop)
    }
}

/// Enables or disables offloads of an interface.
///
/// # Errors
/// The interface does not exist, or the process has no permission (CAP_NET_ADMIN). Offloads that the
/// interface does not have are skipped.
pub fn set_offloads(interface: &str, offloads: &[Offload], on: bool) -> io::Result<()> {
    let socket = sys::packet_socket()?;
    for offload in offloads {
        match offload.set(&socket, interface, on) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Whether an offload of an interface is enabled.
///
/// # Errors
/// The interface does not exist or does not have the offload, or the process may not open packet sockets.
pub fn has_offload(interface: &str, offload: Offload) -> io::Result<bool> {
    offload.is_on(&sys::packet_socket()?, interface)
}

/// A port has disabled the receive offload of an interface, which was enabled. On drop it is enabled again, whatever the name of the interface
/// is by then. Both wait for the kernel.
#[derive(Debug)]
pub(super) struct DisabledReceive(Arc<OwnedFd>);

impl DisabledReceive {
    /// Disables the offload for a port that receives. `known`: what the port has disabled before. `None`: it was disabled, or cannot be.
    pub(super) fn new(
        spec: &AfPacketSpec,
        sides: Sides,
        interface: &Interface,
        known: Option<Self>,
    ) -> Option<Self> {
        if !sides.receives() || spec.keep_offloads {
            return None;
        }
        let (control, name) = (&interface.control, spec.interface.as_str());
        let known = known.filter(|known| sys::bound_to(&known.0) == Some(interface.index));
        let was_on = known.is_some() || Offload::Receive.is_on(control, name).unwrap_or(false);
        // Without permission it stays as it is: packets are taken apart again.
        let is_off = Offload::Receive.set(control, name, false).is_ok();
        known.or_else(|| (was_on && is_off).then(|| Self(control.clone())))
    }
}

impl Drop for DisabledReceive {
    fn drop(&mut self) {
        // An interface that is gone has nothing to restore, nor has another one with its name.
        let name = sys::bound_to(&self.0).and_then(|index| sys::name(&self.0, index));
        if let Some(interface) = name
            && let Err(error) = Offload::Receive.set(&self.0, &interface, true)
        {
            tracing::warn!(interface, %error, "the receive offload (GRO) stays off");
        }
    }
}
