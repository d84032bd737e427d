//! Somebody at the other end of a link, as events and people see him.

use core::fmt::{Display, Write as _};
use core::net::Ipv4Addr;

use arrayvec::ArrayString;
use castnet_wire::{MacAddr, Nanos, PortId};

/// Bytes of a name that are kept.
pub const NAME_MAX: usize = 64;

/// A short name, escaped ([`castnet_wire::lldp::Printable`]) and cut at [`NAME_MAX`] bytes.
pub type Name = ArrayString<NAME_MAX>;

/// What `text` displays, cut to a [`Name`] between two of the pieces that it is written in.
pub(crate) fn name(text: impl Display) -> Name {
    let mut name = Name::new();
    let _ = write!(name, "{text}");
    name
}

/// Somebody at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Our port.
    pub port: PortId,
    /// How we know, and what he said.
    pub said: Said,
    /// When he was last heard.
    pub seen: Nanos,
}

/// What a neighbour said of himself.
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
        /// Port id at his side.
        remote_port: Name,
        /// System name.
        system: Name,
        /// How long it stays true.
        ttl: Nanos,
    },
    /// By ARP.
    Arp {
        /// His address.
        ip: Ipv4Addr,
        /// His Ethernet address.
        mac: MacAddr,
    },
}
