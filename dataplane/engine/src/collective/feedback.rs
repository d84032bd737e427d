//! What a collective group says beside data: acknowledge packets (EPIC 4.1: SendAck) and CNPs.

use castnet_collective::EndpointId;
use castnet_wire::{Aeth, FrameBuf, Psn, Syndrome};

use super::context::Collective;
use super::explain;
use super::frame::Hands;
use super::translate::Outlet;
use crate::egress::Egress;
use crate::feedback::{ACK_LEN, CNP_LEN, MACS, write_cnp};
use crate::multicast::Tools;
use crate::pipeline::Cx;
use crate::replicate::set_macs;
use crate::trace::{Observer, Stage, Step};

/// Sends an acknowledge packet.
#[inline]
pub(super) fn acknowledge<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_, '_>,
    group: &mut Collective,
    to: EndpointId,
    psn: Psn,
    aeth: Aeth,
) {
    let (Some(outlet), Some(endpoint)) = (
        group.outlets.get(to.index()),
        group.per_endpoint.get_mut(to.index()),
    ) else {
        return;
    };
    let all = &mut group.counters;
    let tools = &mut hands.tools;
    let Some((mut frame, l3)) = frame(cx, tools, outlet, ACK_LEN) else {
        all.lost += 1;
        endpoint.lost += 1;
        return;
    };
    if let Some(room) = frame.head_mut().get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
        outlet.ack().write(room, outlet.link.tos(), psn, aeth);
    }
    match aeth.syndrome {
        Syndrome::Ack => {
            all.acks_out += 1;
            endpoint.acks_out += 1;
            if hands.timed {
                all.keep_alives += 1;
                endpoint.keep_alives += 1;
            }
        }
        Syndrome::Nak(_) => {
            all.naks_out += 1;
            endpoint.naks_out += 1;
        }
        Syndrome::RnrNak(_) => {
            all.rnr_naks_out += 1;
            endpoint.rnr_naks_out += 1;
        }
    }
    tools.counters.totals.originated += 1;
    cx.observer.step(|| {
        let Aeth { syndrome, msn } = aeth;
        let who = explain::name(&group.rule, to);
        let decision = format!("{syndrome} of PSN {psn}, MSN {msn}, for {who}");
        Step::new(Stage::Feedback, decision, place(outlet))
    });
    cx.send(tools.counters, outlet.port, frame);
}

/// Sends a CNP.
#[cold]
pub(super) fn notify<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_, '_>,
    group: &mut Collective,
    to: EndpointId,
) {
    let Some(outlet) = group.outlets.get(to.index()) else {
        return;
    };
    let tools = &mut hands.tools;
    let Some((mut frame, l3)) = frame(cx, tools, outlet, CNP_LEN) else {
        group.counters.lost += 1;
        if let Some(endpoint) = group.per_endpoint.get_mut(to.index()) {
            endpoint.lost += 1;
        }
        return;
    };
    if let Some(room) = frame.head_mut().get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
        write_cnp(room, &outlet.address, outlet.link.tos());
    }
    group.congestion.cnps_out += 1;
    tools.counters.totals.originated += 1;
    cx.observer.step(|| {
        let decision = format!("CNP for {}", explain::name(&group.rule, to));
        Step::new(Stage::Feedback, decision, place(outlet))
    });
    cx.send(tools.counters, outlet.port, frame);
}

/// A frame to an endpoint with `length` bytes from IPv4 on, which are not written yet, and where these begin. `None`, and
/// counted, where there is no buffer or the port is down.
#[inline]
fn frame<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    outlet: &Outlet,
    length: usize,
) -> Option<(E::Buf, usize)> {
    let link = outlet.link.bytes();
    let l3 = MACS + link.len();
    let frame = if tools.ports.up.contains(outlet.port) {
        cx.egress.allocate(outlet.port, l3 + length)
    } else {
        None
    };
    let Some(mut frame) = frame else {
        tools.counters.totals.copies_lost += 1;
        cx.observer
            .step(|| Step::new(Stage::Feedback, "not sent", "no buffer, or the port is down"));
        return None;
    };
    let head = frame.head_mut();
    set_macs(
        head,
        tools.next_hops.get(outlet.next_hop),
        tools.ports.mac(outlet.port),
    );
    if let Some(room) = head.get_mut(MACS..l3) {
        room.copy_from_slice(link);
    }
    Some((frame, l3))
}

fn place(outlet: &Outlet) -> String {
    format!("dst {}, by port {}", outlet.address.dst, outlet.port)
}
