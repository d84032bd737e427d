//! Reads addresses of frames that have not been parsed.

use core::net::Ipv4Addr;

use castnet_rules::GroupRule;
use castnet_wire::ethernet::{ETHERTYPE_IPV4, SRC_AT};
use castnet_wire::layout;
use castnet_wire::{Ethernet, MacAddr, McstId};

/// What a frame finds its group by. Worker and engine use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKey {
    /// The destination is the group's McstID.
    To(Ipv4Addr),
    /// The destination is a multicast address of a static core; the source is the group's McstID at the switch next to its source. The core
    /// can bring frames to switches without the group, so no group has that destination.
    From(Ipv4Addr),
}

impl GroupKey {
    #[inline(always)]
    pub(crate) fn of(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        match dst.is_multicast() {
            false => Self::To(dst),
            true => Self::From(src),
        }
    }

    /// The key of an IPv4 frame, for the dispatch to workers. `head` begins with the Ethernet header; VLAN tags may follow.
    #[inline]
    pub fn of_frame(head: &[u8]) -> Option<Self> {
        let to = destination(head)?;
        match to.is_multicast() {
            false => Some(Self::To(to)),
            true => source(head).map(Self::From),
        }
    }

    /// All keys of a group.
    pub fn of_group(rule: &GroupRule) -> impl Iterator<Item = Self> {
        let core = rule.core_source().map(Self::From);
        core.into_iter().chain([rule.mcst_id.into()])
    }

    /// In a table of 64-bit keys, none of which has all bits set.
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::To(address) => address.to_bits().into(),
            Self::From(address) => 1 << 32 | u64::from(address.to_bits()),
        }
    }
}

impl From<McstId> for GroupKey {
    fn from(mcst_id: McstId) -> Self {
        Self::To(mcst_id.0)
    }
}

#[inline]
pub(crate) fn destination(head: &[u8]) -> Option<Ipv4Addr> {
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

/// The source of a packet at `l3`.
#[inline]
pub(crate) fn source_behind(ethernet: &Ethernet, l3: usize, head: &[u8]) -> Option<Ipv4Addr> {
    address_behind(ethernet, l3, head, layout::SRC.start)
}

#[inline]
fn address(head: &[u8], at: usize) -> Option<Ipv4Addr> {
    // Hosts remove any number of tags.
    let (ethernet, l3) = match Ethernet::parse(head) {
        Ok(parsed) => parsed,
        Err(_) => Ethernet::parse_any(head).ok()?,
    };
    address_behind(&ethernet, l3, head, at)
}

#[inline]
fn address_behind(ethernet: &Ethernet, l3: usize, head: &[u8], at: usize) -> Option<Ipv4Addr> {
    if ethernet.ethertype != ETHERTYPE_IPV4 {
        return None;
    }
    head.get(l3 + at..)?
        .first_chunk::<4>()
        .map(|octets| Ipv4Addr::from(*octets))
}
