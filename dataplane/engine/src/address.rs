//! Addresses of frames that have not been parsed.

use core::net::Ipv4Addr;

use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{Ethernet, MacAddr};

/// The destination address of an IPv4 frame, read at its fixed place. `head` begins with the Ethernet header; up to two
/// VLAN tags are stepped over. For who must know a frame's group before anything else: the dispatch to workers.
#[inline]
pub fn destination(head: &[u8]) -> Option<Ipv4Addr> {
    address(head, 16)
}

/// The source address, likewise.
#[inline]
pub(crate) fn source(head: &[u8]) -> Option<Ipv4Addr> {
    address(head, 12)
}

/// The source MAC address. `head` begins with the Ethernet header.
#[inline]
pub(crate) fn source_mac(head: &[u8]) -> Option<MacAddr> {
    head.get(6..)?.first_chunk().copied().map(MacAddr)
}

#[inline]
fn address(head: &[u8], at: usize) -> Option<Ipv4Addr> {
    let (ethernet, l3) = Ethernet::parse(head).ok()?;
    if ethernet.ethertype != ETHERTYPE_IPV4 {
        return None;
    }
    head.get(l3 + at..)?
        .first_chunk::<4>()
        .map(|octets| Ipv4Addr::from(*octets))
}
