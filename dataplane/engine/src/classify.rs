//! Which class a frame of a group is of, and whether its sender may send it: an exact match on destination QPN, source
//! address and ingress port (contract C4: one group can never reach another's state).

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{Aeth, DropReason, Ethernet, Headers, Kind, PortId, Qpn, RoceHeader, Transport};

use crate::group::Hot;

/// What a group does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// SEND or WRITE: multicast it.
    Data,
    /// ACK, NAK, RNR NAK: gather it.
    Feedback(Aeth),
    /// Congestion notification.
    Cnp,
}

/// The path that a frame of the group came by: of the fast path and the slow one alike.
#[inline(always)]
pub(crate) fn sender(hot: &Hot, ingress: PortId, src: Ipv4Addr, dest_qp: Qpn) -> Option<PathId> {
    let path = hot.path(ingress)?;
    let leg = hot.leg(path)?;
    // Behind a switch are members that only the switches next to them know.
    let known = dest_qp == Qpn::VIRTUAL && (!leg.is_host() || leg.ip == src.octets());
    known.then_some(path)
}

/// The path that a frame came by and its class, or why it ends.
#[inline]
pub(crate) fn classify(
    hot: &Hot,
    ingress: PortId,
    src: Ipv4Addr,
    header: &RoceHeader,
) -> Result<(PathId, Class), DropReason> {
    let path = sender(hot, ingress, src, header.bth.dest_qp).ok_or(DropReason::NotMember)?;
    class(header)
        .map(|class| (path, class))
        .ok_or(DropReason::NotMulticastable)
}

/// The class of a packet. Those with an IETH are no data: the key that they take back is another at each receiver.
#[inline]
fn class(header: &RoceHeader) -> Option<Class> {
    let info = header.bth.opcode.info();
    match (info.transport, info.kind) {
        (Transport::Rc, Kind::Send | Kind::Write) if !info.headers.contains(Headers::IETH) => {
            Some(Class::Data)
        }
        (Transport::Rc, Kind::Ack) => header.aeth.map(Class::Feedback),
        (Transport::Cnp, Kind::Cnp) => Some(Class::Cnp),
        _ => None,
    }
}

/// Why `classify` refused, for people.
pub(crate) fn explain(hot: &Hot, ingress: PortId, src: Ipv4Addr, header: &RoceHeader) -> String {
    let Some(leg) = hot.path(ingress).and_then(|path| hot.leg(path)) else {
        return format!("the group has no path at port {ingress}");
    };
    if header.bth.dest_qp != Qpn::VIRTUAL {
        return format!(
            "members speak to QPN {}, this is for {}",
            Qpn::VIRTUAL,
            header.bth.dest_qp
        );
    }
    if leg.is_host() && leg.ip != src.octets() {
        return format!(
            "the member at port {ingress} is {}, this is from {src}",
            Ipv4Addr::from(leg.ip)
        );
    }
    format!("{} cannot be multicast", header.bth.opcode)
}

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
