//! Which endpoint of a group a frame came from, and what it is (EPIC 4.1: LookupTable; contract C4).

use core::net::Ipv4Addr;

use castnet_collective::EndpointId;
use castnet_wire::{Aeth, Control, DropReason, Headers, Kind, Opcode, PortId, Qpn, RoceHeader, Transport};

use super::context::Collective;

/// What a frame is to a collective group.
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

/// The endpoint that a frame of the group came from: of the fast path and the slow one alike.
#[inline(always)]
pub(super) fn sender(group: &Collective, ingress: PortId, src: Ipv4Addr, dest_qp: Qpn) -> Option<EndpointId> {
    let endpoint = group.endpoint_at(ingress)?;
    let outlet = group.outlets.get(endpoint.index())?;
    // A rank speaks as itself, a switch as the group.
    (dest_qp == Qpn::VIRTUAL && outlet.address.dst == src).then_some(endpoint)
}

/// The endpoint that a frame came from and its class, or why it ends.
#[inline]
pub(super) fn lookup(
    group: &Collective,
    ingress: PortId,
    src: Ipv4Addr,
    header: &RoceHeader,
) -> Result<(EndpointId, Class), DropReason> {
    let endpoint = sender(group, ingress, src, header.bth.dest_qp).ok_or(DropReason::NotMember)?;
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

/// Why `lookup` refused, for people.
pub(super) fn explain(group: &Collective, ingress: PortId, src: Ipv4Addr, header: &RoceHeader) -> String {
    let outlet = group
        .endpoint_at(ingress)
        .and_then(|e| group.outlets.get(e.index()));
    let Some(outlet) = outlet else {
        return format!("the group has no endpoint at port {ingress}");
    };
    if header.bth.dest_qp != Qpn::VIRTUAL {
        let qpn = header.bth.dest_qp;
        return format!("members speak to QPN {}, this is for {qpn}", Qpn::VIRTUAL);
    }
    if outlet.address.dst != src {
        let dst = outlet.address.dst;
        return format!("who is at port {ingress} speaks as {dst}, this is from {src}");
    }
    format!("{} is neither SEND nor feedback", header.bth.opcode)
}
