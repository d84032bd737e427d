//! Finds the endpoint that sent a frame, and the class of the frame (EPIC 4.1: LookupTable; contract C4).

use core::net::Ipv4Addr;

use castnet_collective::EndpointId;
use castnet_rules::NextHop;
use castnet_wire::{
    Aeth, Control, DropReason, Headers, Kind, MacAddr, Opcode, PortId, RoceHeader, Transport,
};

use super::context::CollectiveContext;
use crate::group::classify::explain_not_member;

/// The class of a frame to a collective group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A contribution or a result.
    Data,
    /// A control message.
    Control,
    /// ACK, NAK, RNR NAK.
    Feedback(Aeth),
    /// Congestion notification.
    Cnp,
}

/// Returns the endpoint that sent a frame and the class of the frame, or the reason for its drop.
#[inline]
pub(super) fn lookup<const W: usize>(
    group: &CollectiveContext<W>,
    ingress: PortId,
    src: Ipv4Addr,
    mac: Option<MacAddr>,
    header: &RoceHeader,
) -> Result<(EndpointId, Class), DropReason> {
    let endpoint = group
        .sender(ingress, src, header.bth.dest_qp, mac)
        .ok_or(DropReason::NotMember)?;
    class(header)
        .map(|class| (endpoint, class))
        .ok_or(DropReason::NotMulticastable)
}

#[inline]
fn class(header: &RoceHeader) -> Option<Class> {
    let info = header.bth.opcode.info();
    match (info.transport, info.kind) {
        (Transport::Rc, Kind::Send) if info.headers.contains(Headers::IETH) => None,
        (Transport::Rc, Kind::Send) => {
            let control = header.bth.opcode == Opcode::SendOnlyImm && header.imm == Some(Control::IMMEDIATE);
            Some(if control { Class::Control } else { Class::Data })
        }
        (Transport::Rc, Kind::Ack) => header.aeth.map(Class::Feedback),
        (Transport::Cnp, Kind::Cnp) => Some(Class::Cnp),
        _ => None,
    }
}

/// Explains why `lookup` refused a frame.
pub(super) fn explain<const W: usize>(
    group: &CollectiveContext<W>,
    ingress: PortId,
    src: Ipv4Addr,
    mac: Option<MacAddr>,
    header: &RoceHeader,
) -> String {
    if group.sender(ingress, src, header.bth.dest_qp, mac).is_some() {
        return format!("{} is neither SEND nor feedback", header.bth.opcode);
    }
    // Frames of an adjacent switch have the McstID as their source.
    let speaks_as = |hop: &NextHop| Some(hop.ip().unwrap_or(group.mcst_id.0));
    let endpoints = group.rule.endpoints.iter().filter(|e| e.port == ingress);
    explain_not_member(endpoints, ingress, speaks_as, (src, mac), header.bth.dest_qp)
}
