//! Which class a frame of a group is of, and whether its sender may send it: an exact match on destination QPN, source
//! address and ingress port (contract C4: one group can never reach another's state).

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_rules::{Endpoint, NextHop};
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{
    Aeth, DropReason, Ethernet, FrameBuf, Headers, Kind, PortId, Qpn, RoceHeader, Transport, ipv4,
};

use crate::group::{Group, Hot};

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

/// The path that a frame came by and its class, or why it ends.
#[inline]
pub(crate) fn classify(
    hot: &Hot,
    ingress: PortId,
    src: Ipv4Addr,
    header: &RoceHeader,
) -> Result<(PathId, Class), DropReason> {
    let path = hot
        .sender(ingress, src, header.bth.dest_qp)
        .ok_or(DropReason::NotMember)?;
    class(header)
        .map(|class| (path, class))
        .ok_or(DropReason::NotMulticastable)
}

/// Why a frame ends before its group sees what it is about: the checks of all kinds, but for that of the ICRC.
#[inline]
pub(crate) fn check_packet(
    header: &RoceHeader,
    frame: &impl FrameBuf,
    pmtu: usize,
) -> Result<(), DropReason> {
    if !frame.checksum_good() && !ipv4::checksum_is_right(frame.head().get(header.l3..).unwrap_or_default()) {
        return Err(DropReason::BadIpChecksum);
    }
    match header.payload_len > pmtu {
        true => Err(DropReason::OverPmtu),
        false => Ok(()),
    }
}

/// The class of a packet. Those with an IETH are no data: the key that they take back is another at each receiver.
#[inline]
pub(crate) fn class(header: &RoceHeader) -> Option<Class> {
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
pub(crate) fn explain(group: &Group, ingress: PortId, src: Ipv4Addr, header: &RoceHeader) -> String {
    if group.hot.sender(ingress, src, header.bth.dest_qp).is_some() {
        return format!("{} cannot be multicast", header.bth.opcode);
    }
    let rule = &group.cold.rule;
    let at = group
        .hot
        .paths_at(ingress)
        .filter_map(|path| rule.endpoints.get(path.index()));
    stranger(
        at,
        ingress,
        |hop| hop.host().map(|host| host.ip),
        src,
        header.bth.dest_qp,
    )
}

/// Why a frame is of none of the endpoints at its ingress port, for people. `speaks_as` is the address that an endpoint's frames
/// come from; `None` for any.
pub(crate) fn stranger<'r>(
    endpoints: impl Iterator<Item = &'r Endpoint>,
    ingress: PortId,
    speaks_as: impl Fn(&NextHop) -> Option<Ipv4Addr>,
    src: Ipv4Addr,
    dest_qp: Qpn,
) -> String {
    let known: Vec<(Qpn, Option<Ipv4Addr>)> = endpoints
        .map(|e| (e.virtual_qpn, speaks_as(&e.next_hop)))
        .collect();
    if known.is_empty() {
        return format!("the group has no endpoint at port {ingress}");
    }
    let text = |(qpn, ip): &(Qpn, Option<Ipv4Addr>)| match ip {
        Some(ip) => format!("{ip} to QPN {qpn}"),
        None => format!("any address to QPN {qpn}"),
    };
    let mut shown: Vec<String> = known.iter().take(SHOWN_MAX).map(text).collect();
    if known.len() > SHOWN_MAX {
        shown.push(format!("{} more", known.len() - SHOWN_MAX));
    }
    let shown = shown.join(", ");
    format!("endpoints at port {ingress} speak from {shown}; this is from {src} to QPN {dest_qp}")
}

/// Endpoints that are shown before the rest is only counted.
const SHOWN_MAX: usize = 4;

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
