//! Reads addresses of frames that have not been parsed.

use core::net::Ipv4Addr;

use castnet_wire::ethernet::{ETHERTYPE_IPV4, SRC_AT};
use castnet_wire::layout;
use castnet_wire::{Ethernet, MacAddr};

/// The destination of an IPv4 frame, for the dispatch to workers. `head` begins with the Ethernet header; two VLAN tags may follow.
#[inline]
pub fn destination(head: &[u8]) -> Option<Ipv4Addr> {
    address(head, layout::DST.start)
}

#[inline]
pub(crate) fn source(head: &[u8]) -> Option<Ipv4Addr> {
    address(head, layout::SRC.start)
}

#[inline]
pub(crate) fn source_mac(head: &[u8]) -> Option<MacAddr> {
    head.get(SRC_AT..)?.first_chunk().copied().map(MacAddr)
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
