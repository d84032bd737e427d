//! Sends feedback of a collective group: acknowledge packets (EPIC 4.1: SendAck) and CNPs.

use castnet_collective::EndpointId;
use castnet_wire::{Aeth, Opcode, Psn, Syndrome};

use super::context::CollectiveContext;
use super::explain;
use super::frame::EffectCx;
use crate::egress::Egress;
use crate::observe::counters::{CollectiveCounters, EndpointCounters};
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::acknowledge;
use crate::output::cx::Cx;

/// Sends an acknowledge packet or, without PSN and AETH, a CNP.
#[inline]
pub(super) fn send<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
    ack: Option<(Psn, Aeth)>,
) {
    let output = &mut *effect_cx.output;
    let (Some(connection), Some(endpoint)) = (
        group.connections.get(to.index()),
        group.per_endpoint.get_mut(to.index()),
    ) else {
        return output
            .counters
            .invariant_violated("feedback is for one of the endpoints");
    };
    let (hop, all) = ((connection.port, connection.next_hop), &mut group.counters);
    let addresses = (&connection.ack, &connection.address);
    let Some(frame) = acknowledge::feedback(cx, output, hop, &connection.link, addresses, ack, None) else {
        all.lost += 1;
        endpoint.lost += 1;
        return;
    };
    match ack {
        Some((_, aeth)) => count(all, endpoint, aeth.syndrome),
        None => group.congestion.cnps_out += 1,
    }
    if effect_cx.timed && ack.is_some_and(|(_, aeth)| aeth.syndrome == Syndrome::Ack) {
        all.keep_alives += 1;
        endpoint.keep_alives += 1;
    }
    cx.observer.step(|| {
        let who = explain::name(&group.rule, to);
        let decision = match ack {
            Some((psn, Aeth { syndrome, msn })) => format!("{syndrome} of PSN {psn}, MSN {msn}, for {who}"),
            None => format!("CNP for {who}"),
        };
        let why = format!("dst {}, by port {}", connection.address.dst, connection.port);
        Step::new(Stage::Feedback, decision, why)
    });
    cx.send(&mut output.counters, connection.port, frame);
}

/// Asks a rank to send one packet again: decision 5.
#[cold]
pub(super) fn request<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    effect_cx: &mut EffectCx<'_>,
    group: &mut CollectiveContext<W>,
    to: EndpointId,
    psn: Psn,
) {
    let output = &mut *effect_cx.output;
    let Some(connection) = group.connections.get(to.index()) else {
        return output
            .counters
            .invariant_violated("requests are for one of the endpoints");
    };
    let hop = (connection.port, connection.next_hop);
    let message = (Opcode::RepairRequest, psn, 0);
    let sent = acknowledge::send_message(
        cx,
        output,
        hop,
        &connection.link,
        &connection.address,
        message,
        || (explain::name(&group.rule, to), format!("it lacks PSN {psn}")),
    );
    if !sent {
        group.counters.lost += 1;
    }
}

/// Counts feedback that is sent.
#[inline]
pub(super) fn count(all: &mut CollectiveCounters, endpoint: &mut EndpointCounters, syndrome: Syndrome) {
    let (all, endpoint) = match syndrome {
        Syndrome::Ack => (&mut all.acks_out, &mut endpoint.acks_out),
        Syndrome::Nak(_) => (&mut all.naks_out, &mut endpoint.naks_out),
        Syndrome::RnrNak(_) => (&mut all.rnr_naks_out, &mut endpoint.rnr_naks_out),
    };
    *all += 1;
    *endpoint += 1;
}
