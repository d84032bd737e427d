//! A neighbour at the other end of a link, for events and display.

use core::fmt::{Display, Write as _};
use core::net::Ipv4Addr;

use arrayvec::ArrayString;
use castnet_wire::{MacAddr, Nanos, PortId};

/// Bytes of a name that are kept.
pub const NAME_MAX: usize = 64;

/// A short name, escaped ([`castnet_wire::lldp::Printable`]) and cut at [`NAME_MAX`] bytes.
pub type Name = ArrayString<NAME_MAX>;

/// Formats `text`, cut at the border of a written piece.
pub(crate) fn name(text: impl Display) -> Name {
    let mut name = Name::new();
    let _ = write!(name, "{text}");
    name
}

/// A neighbour at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The port of this switch.
    pub port: PortId,
    /// What the neighbour has announced, and the protocol.
    pub said: Said,
    /// When the last frame of the neighbour was received.
    pub seen: Nanos,
}

/// The announcement of a neighbour.
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and a box would allocate on the path of a frame"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// By LLDP.
    Lldp {
        /// Chassis id: an Ethernet address, or text.
        chassis: Name,
        /// Port id of the neighbour's port.
        remote_port: Name,
        /// System name.
        system: Name,
        /// Ethernet address of the neighbour's port: the source of its frames.
        mac: MacAddr,
        /// Time to live.
        ttl: Nanos,
    },
    /// By ARP.
    Arp {
        /// Its address.
        ip: Ipv4Addr,
        /// Its Ethernet address.
        mac: MacAddr,
    },
}
