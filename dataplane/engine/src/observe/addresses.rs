//! The addresses of any frame, for filters.

use core::net::Ipv4Addr;

use castnet_wire::ethernet::{ETHERTYPE_ARP, ETHERTYPE_AT, ETHERTYPE_IPV4, is_tag};
use castnet_wire::{Arp, FrameBuf, VlanTag, layout};

/// Source and destination of a frame.
pub(super) type Addresses = (Option<Ipv4Addr>, Option<Ipv4Addr>);

/// Of the outermost IPv4 or ARP header. The frame may be malformed otherwise. Behind many tags, it does not lie in the head.
pub(super) fn addresses(frame: &impl FrameBuf) -> Addresses {
    let head = frame.head();
    match ethertype_at(head) + 2 + Arp::LEN <= head.len() || head.len() == frame.length() {
        true => addresses_in(head),
        false => addresses_in(&frame.segments().concat()),
    }
}

fn ethertype(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Where the EtherType behind all tags is, or would be.
fn ethertype_at(frame: &[u8]) -> usize {
    let mut at = ETHERTYPE_AT;
    while ethertype(frame, at).is_some_and(is_tag) {
        at += VlanTag::LEN;
    }
    at
}

fn addresses_in(frame: &[u8]) -> Addresses {
    let at = ethertype_at(frame);
    let (src, dst) = match ethertype(frame, at) {
        Some(ETHERTYPE_IPV4) => (layout::SRC.start, layout::DST.start),
        Some(ETHERTYPE_ARP) => (Arp::SENDER_IP.start, Arp::TARGET_IP.start),
        _ => return (None, None),
    };
    let address = |offset: usize| {
        let octets = frame.get(at + 2 + offset..)?.first_chunk::<4>()?;
        Some(Ipv4Addr::from(*octets))
    };
    (address(src), address(dst))
}
