//! What calls are refused with.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_endpoint::{MemoryError, PostError, QpError};
use castnet_wire::{Pmtu, Qpn};

/// Why an RNIC did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RnicError {
    /// A QP could not be made or changed.
    #[error(transparent)]
    Qp(#[from] QpError),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A memory region could not be made or found.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Bytes outside a memory region.
    #[error("{length} bytes at {offset} are outside a memory region of {region} bytes")]
    OutOfBounds {
        /// First byte, relative to the region's start.
        offset: u64,
        /// Bytes.
        length: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// Nobody answered for the address of the next hop.
    #[error("no answer from {next_hop} to ARP, the next hop towards {remote}, within {waited:?}")]
    Unreachable {
        /// Where the QP should connect to.
        remote: Ipv4Addr,
        /// Whose Ethernet address was asked for.
        next_hop: Ipv4Addr,
        /// How long.
        waited: Duration,
    },
    /// Too many addresses are being resolved.
    #[error("all {max} entries of the neighbour table are in use")]
    NeighboursFull {
        /// The bound.
        max: usize,
    },
    /// The path MTU does not fit the port.
    #[error("path MTU {} does not fit: the port carries at most {}", .asked.bytes(), .active.bytes())]
    PmtuTooLarge {
        /// The path MTU asked for.
        asked: Pmtu,
        /// The largest that fits.
        active: Pmtu,
    },
    /// The port is too narrow for any RoCEv2 path MTU.
    #[error("the port's MTU is {mtu}; RoCEv2 needs at least {least}")]
    MtuTooSmall {
        /// Bytes at layer 3.
        mtu: usize,
        /// The least that works.
        least: usize,
    },
    /// The device gives numbers itself.
    #[error("this device does not let its user choose QP number {qpn}")]
    ChosenQpn {
        /// The number asked for.
        qpn: Qpn,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}
