//! Sends feedback of a collective group: acknowledge packets (EPIC 4.1: SendAck) and CNPs.

use castnet_collective::EndpointId;
use castnet_wire::{Aeth, FrameBuf, Psn, Syndrome};

use super::context::CollectiveContext;
use super::explain;
use super::frame::EffectCx;
use super::translate::EndpointConnection;
use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{ACK_LEN, CNP_LEN, MACS, write_cnp};
use crate::output::cx::Cx;
use castnet_wire::ethernet::set_macs;

/// Sends an acknowledge packet.
#[inline]
pub(super) fn acknowledge<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
    psn: Psn,
    aeth: Aeth,
) {
    let (Some(connection), Some(endpoint)) = (
        group.connections.get(to.index()),
        group.per_endpoint.get_mut(to.index()),
    ) else {
        return effect_cx
            .output
            .counters
            .invariant_violated("an acknowledgement is for one of the endpoints");
    };
    let all = &mut group.counters;
    let output = &mut *effect_cx.output;
    let Some((mut frame, l3)) = frame(cx, output, connection, ACK_LEN) else {
        all.lost += 1;
        endpoint.lost += 1;
        return;
    };
    if let Some(room) = frame.head_mut().get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
        connection.ack().write(room, connection.link.tos(), psn, aeth);
    }
    match aeth.syndrome {
        Syndrome::Ack => {
            all.acks_out += 1;
            endpoint.acks_out += 1;
            if effect_cx.timed {
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
        Step::new(Stage::Feedback, decision, place(connection))
    });
    cx.send(&mut output.counters, connection.port, frame);
}

/// Sends a CNP.
#[cold]
pub(super) fn notify<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
) {
    let Some(connection) = group.connections.get(to.index()) else {
        return effect_cx
            .output
            .counters
            .invariant_violated("a CNP is for one of the endpoints");
    };
    let output = &mut *effect_cx.output;
    let Some((mut frame, l3)) = frame(cx, output, connection, CNP_LEN) else {
        group.counters.lost += 1;
        if let Some(endpoint) = group.per_endpoint.get_mut(to.index()) {
            endpoint.lost += 1;
        }
        return;
    };
    if let Some(room) = frame.head_mut().get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
        write_cnp(room, &connection.address, connection.link.tos());
    }
    group.congestion.cnps_out += 1;
    output.counters.totals.originated += 1;
    cx.observer.step(|| {
        let decision = format!("CNP for {}", explain::name(&group.rule, to));
        Step::new(Stage::Feedback, decision, place(connection))
    });
    cx.send(&mut output.counters, connection.port, frame);
}

/// Allocates a frame to an endpoint, with `length` bytes from the IPv4 header on that the caller writes. Returns it with the offset
/// of the IPv4 header. Returns `None` and counts the loss if there is no buffer or the port is down.
#[inline]
fn frame<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    connection: &EndpointConnection,
    length: usize,
) -> Option<(E::Buf, usize)> {
    let link = connection.link.bytes();
    let l3 = MACS + link.len();
    let frame = if output.ports.up.contains(connection.port) {
        cx.egress.allocate(connection.port, l3 + length)
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
        output.next_hops.get(connection.next_hop),
        output.ports.mac(connection.port),
    );
    if let Some(room) = head.get_mut(MACS..l3) {
        room.copy_from_slice(link);
    }
    Some((frame, l3))
}

fn place(connection: &EndpointConnection) -> String {
    format!("dst {}, by port {}", connection.address.dst, connection.port)
}
