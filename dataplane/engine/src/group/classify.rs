//! Classifies a frame of a group, and checks its packet. Each kind finds the sender of a frame by an exact match on destination QPN,
//! source address and ingress port, and on the source MAC address if the rule requires it (contract C4: one group can never change
//! the state of another).

use core::net::Ipv4Addr;

use castnet_rules::{Endpoint, NextHop};
use castnet_wire::{
    Aeth, DropReason, FrameBuf, Headers, Kind, MacAddr, PortId, Qpn, RoceHeader, Transport, ipv4,
};

/// The class of a frame to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// SEND or WRITE, to be multicast.
    Data,
    /// ACK, NAK or RNR NAK, to be aggregated.
    Feedback(Aeth),
    /// Congestion notification.
    Cnp,
}

/// Checks the IPv4 checksum and the payload length of a frame. Groups of all kinds need these checks. The ICRC is checked elsewhere.
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

/// Returns the class of a packet. Packets with an IETH are not data, because the key to invalidate differs between receivers.
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

/// Explains why a frame matches none of the endpoints at its ingress port. `speaks_as` returns the source address of an endpoint's
/// frames; `None` for any address.
pub(crate) fn explain_not_member<'r>(
    endpoints: impl Iterator<Item = &'r Endpoint>,
    ingress: PortId,
    speaks_as: impl Fn(&NextHop) -> Option<Ipv4Addr>,
    (src, mac): (Ipv4Addr, Option<MacAddr>),
    dest_qp: Qpn,
) -> String {
    let known: Vec<&Endpoint> = endpoints.collect();
    if known.is_empty() {
        return format!("the group has no endpoint at port {ingress}");
    }
    let at = |mac: Option<MacAddr>| mac.map_or_else(String::new, |mac| format!(" at {mac}"));
    let text = |e: &&Endpoint| {
        let ip = speaks_as(&e.next_hop).map_or_else(|| "any address".into(), |ip| ip.to_string());
        let at = at(e.verify_mac.then(|| e.next_hop.mac()));
        format!("{ip}{at} to QPN {}", e.virtual_qpn)
    };
    let mut shown: Vec<String> = known.iter().take(SHOWN_MAX).map(text).collect();
    if known.len() > SHOWN_MAX {
        shown.push(format!("{} more", known.len() - SHOWN_MAX));
    }
    let (shown, verified) = (shown.join(", "), known.iter().any(|e| e.verify_mac));
    let at = at(mac.filter(|_| verified));
    format!("endpoints at port {ingress} speak from {shown}; this is from {src}{at} to QPN {dest_qp}")
}

/// Most endpoints that the text lists. Further ones are only counted.
const SHOWN_MAX: usize = 4;
