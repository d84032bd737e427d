//! Classifies a frame of a group, and checks its packet. A kind finds the sender by destination QPN, source address and ingress port,
//! and the source MAC address if the rule requires it (contract C4).

use core::net::Ipv4Addr;

use castnet_rules::{Endpoint, GroupRule, NextHop};
use castnet_wire::{Aeth, DropReason, FrameBuf, Headers, Kind, MacAddr, PortId, RoceHeader, Transport, ipv4};

use crate::observe::trace::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// SEND or WRITE, to be multicast.
    Data,
    /// ACK, NAK or RNR NAK, to be aggregated.
    Feedback(Aeth),
    Cnp,
}

pub(crate) type Refusal = (Stage, DropReason);

pub(crate) const NOT_MEMBER: Refusal = (Stage::Classify, DropReason::NotMember);

/// Checks the IPv4 checksum and the payload length, for all kinds. The ICRC is checked elsewhere.
#[inline]
pub(crate) fn check_packet(header: &RoceHeader, frame: &impl FrameBuf, pmtu: usize) -> Result<(), Refusal> {
    if !frame.checksum_good() && !ipv4::checksum_is_right(frame.head().get(header.l3..).unwrap_or_default()) {
        return Err((Stage::Verify, DropReason::BadIpChecksum));
    }
    match header.payload_len > pmtu {
        true => Err((Stage::Verify, DropReason::OverPmtu)),
        false => Ok(()),
    }
}

/// Packets with an IETH are not data, because the key to invalidate differs between receivers.
#[inline]
pub(crate) fn class(header: &RoceHeader) -> Result<Class, Refusal> {
    let info = header.bth.opcode.info();
    let class = match (info.transport, info.kind) {
        (Transport::Rc, Kind::Send | Kind::Write) if !info.headers.contains(Headers::IETH) => {
            Some(Class::Data)
        }
        (Transport::Rc, Kind::Ack) => header.aeth.map(Class::Feedback),
        (Transport::Cnp, Kind::Cnp) => Some(Class::Cnp),
        _ => None,
    };
    class.ok_or((Stage::Classify, DropReason::NotMulticastable))
}

/// Why a frame was refused. `speaks_as` returns the source address of an endpoint's frames; `None` for any. The texts are those of the
/// kind for an opcode without a class, and for a wrong ICRC.
pub(crate) fn explain_refusal(
    reason: DropReason,
    rule: &GroupRule,
    (ingress, src, mac): (PortId, Ipv4Addr, Option<MacAddr>),
    header: &RoceHeader,
    speaks_as: impl Fn(&NextHop) -> Option<Ipv4Addr>,
    [no_class, wrong_icrc]: [&str; 2],
) -> String {
    match reason {
        DropReason::NotMulticastable => return format!("{} {no_class}", header.bth.opcode),
        DropReason::OverPmtu => {
            return format!(
                "payload of {} bytes, path MTU {}",
                header.payload_len,
                rule.pmtu.bytes()
            );
        }
        DropReason::BadIcrc => return wrong_icrc.into(),
        DropReason::NotMember => {}
        other => return other.to_string(),
    }
    let known: Vec<&Endpoint> = rule.endpoints.iter().filter(|e| e.port == ingress).collect();
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
    let (at, dest_qp) = (at(mac.filter(|_| verified)), header.bth.dest_qp);
    format!("endpoints at port {ingress} speak from {shown}; this is from {src}{at} to QPN {dest_qp}")
}

/// Most endpoints listed. Further ones are counted.
const SHOWN_MAX: usize = 4;
