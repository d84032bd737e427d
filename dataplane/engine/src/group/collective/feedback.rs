//! What a collective group says beside data: acknowledge packets (EPIC 4.1: SendAck) and CNPs.

use castnet_collective::EndpointId;
use castnet_wire::{Aeth, FrameBuf, Psn, Syndrome};

use super::context::CollectiveContext;
use super::explain;
use super::frame::Hands;
use super::translate::Outlet;
use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{ACK_LEN, CNP_LEN, MACS, write_cnp};
use crate::output::cx::Cx;
use castnet_wire::rewrite::set_macs;

/// Sends an acknowledge packet.
#[inline]
pub(super) fn acknowledge<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
    psn: Psn,
    aeth: Aeth,
) {
    let (Some(outlet), Some(endpoint)) = (
        group.outlets.get(to.index()),
        group.per_endpoint.get_mut(to.index()),
    ) else {
        return hands
            .output
            .counters
            .broken("an acknowledgement is for one of the endpoints");
    };
    let all = &mut group.counters;
    let output = &mut *hands.output;
    let Some((mut frame, l3)) = frame(cx, output, outlet, ACK_LEN) else {
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
    output.counters.totals.originated += 1;
    cx.observer.step(|| {
        let Aeth { syndrome, msn } = aeth;
        let who = explain::name(&group.rule, to);
        let decision = format!("{syndrome} of PSN {psn}, MSN {msn}, for {who}");
        Step::new(Stage::Feedback, decision, place(outlet))
    });
    cx.send(&mut output.counters, outlet.port, frame);
}

/// Sends a CNP.
#[cold]
pub(super) fn notify<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    hands: &mut Hands<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
) {
    let Some(outlet) = group.outlets.get(to.index()) else {
        return hands.output.counters.broken("a CNP is for one of the endpoints");
    };
    let output = &mut *hands.output;
    let Some((mut frame, l3)) = frame(cx, output, outlet, CNP_LEN) else {
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
    output.counters.totals.originated += 1;
    cx.observer.step(|| {
        let decision = format!("CNP for {}", explain::name(&group.rule, to));
        Step::new(Stage::Feedback, decision, place(outlet))
    });
    cx.send(&mut output.counters, outlet.port, frame);
}

/// A frame to an endpoint with `length` bytes from IPv4 on, which are not written yet, and where these begin. `None`, and
/// counted, where there is no buffer or the port is down.
#[inline]
fn frame<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    outlet: &Outlet,
    length: usize,
) -> Option<(E::Buf, usize)> {
    let link = outlet.link.bytes();
    let l3 = MACS + link.len();
    let frame = if output.ports.up.contains(outlet.port) {
        cx.egress.allocate(outlet.port, l3 + length)
    } else {
        None
    };
    let Some(mut frame) = frame else {
        output.counters.totals.copies_lost += 1;
        cx.observer
            .step(|| Step::new(Stage::Feedback, "not sent", "no buffer, or the port is down"));
        return None;
    };
    let head = frame.head_mut();
    set_macs(
        head,
        output.next_hops.get(outlet.next_hop),
        output.ports.mac(outlet.port),
    );
    if let Some(room) = head.get_mut(MACS..l3) {
        room.copy_from_slice(link);
    }
    Some((frame, l3))
}

fn place(outlet: &Outlet) -> String {
    format!("dst {}, by port {}", outlet.address.dst, outlet.port)
}
