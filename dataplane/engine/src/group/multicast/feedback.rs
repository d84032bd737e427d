//! Feedback that a group sends towards its source: aggregated ACK, NAK and RNR NAK, and forwarded CNPs.
//!
//! Towards the source or a switch behind routers, the frame goes from the McstID to the address and QPN of the next hop. Towards an
//! adjacent switch, it goes to the McstID and the QPN of the endpoint there, as for a member, from this switch's own address or, without
//! one, the McstID: the adjacent switch does not check it.

use castnet_collective::{Multicast, PathId, Signal};
use castnet_wire::{Aeth, Opcode, Psn, Syndrome};

use crate::egress::Egress;
use crate::group::multicast::context::Group;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{self, AckTemplate, Address, LinkHeader};
use crate::output::cx::Cx;

/// Sends an acknowledge packet or, without PSN and AETH, a CNP. See [`acknowledge::feedback`] for `reuse`.
pub(crate) fn send<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    link: &LinkHeader,
    (to, ack): (PathId, Option<(Psn, Aeth)>),
    reuse: Option<E::Buf>,
) {
    let (Some(port), Some(dest)) = (group.hot.port(to), group.hot.dest(to)) else {
        return output
            .counters
            .invariant_violated("feedback is for one of the paths");
    };
    // Only a group whose source changes sends feedback to other paths.
    let other = (to != group.hot.source).then(|| group.feedback_to(to));
    let other = other.map(|address| (AckTemplate::new(&address), address));
    let ack = ack.map(|(psn, aeth)| {
        let (psn, msn) = group.hot.machine.member_feedback(to, psn, aeth.msn);
        (psn, Aeth { msn, ..aeth })
    });
    let (hop, more) = ((port, dest.next_hop()), &mut group.cold.exceptions);
    let addresses = match &other {
        Some((template, address)) => (template, address),
        None => (&group.cold.ack, &group.cold.feedback),
    };
    let Some(frame) = acknowledge::feedback(cx, output, hop, link, addresses, ack, reuse) else {
        more.lost += 1;
        return;
    };
    match ack.map(|(_, aeth)| aeth.syndrome) {
        Some(Syndrome::Ack) => group.hot.counters.acks_out += 1,
        Some(Syndrome::Nak(_)) => more.naks_out += 1,
        Some(Syndrome::RnrNak(_)) => more.rnr_naks_out += 1,
        None => more.cnps_out += 1,
    }
    cx.observer.step(|| {
        let what = match ack {
            Some((psn, Aeth { syndrome, msn })) => format!("{syndrome} of PSN {psn}, MSN {msn},"),
            None => "CNP".into(),
        };
        let decision = format!("{what} for {}", group.cold.describe(to));
        let Address { src, dst, qpn, .. } = *addresses.1;
        let why = format!("dst {dst} qpn {qpn}, src {src}, by port {port}");
        Step::new(Stage::Feedback, decision, why)
    });
    cx.send(&mut output.counters, port, frame);
}

/// Sends a message to a switch: its epoch is in the MSN field of an AETH.
#[cold]
pub(crate) fn send_signal<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    link: &LinkHeader,
    (to, signal, psn, epoch): (PathId, Signal, Psn, u32),
) {
    let (Some(port), Some(dest)) = (group.hot.port(to), group.hot.dest(to)) else {
        return output
            .counters
            .invariant_violated("signals are for one of the paths");
    };
    let address = group.feedback_to(to);
    let message = (opcode_of(signal), psn, epoch);
    let hop = (port, dest.next_hop());
    let sent = acknowledge::send_message(cx, output, hop, link, &address, message, || {
        let why = format!("epoch {epoch}, next PSN {psn}");
        (group.cold.describe(to), why)
    });
    if !sent {
        group.cold.exceptions.lost += 1;
        return;
    }
    group.cold.exceptions.requests_out += u64::from(signal == Signal::Resend);
}

const fn opcode_of(signal: Signal) -> Opcode {
    match signal {
        Signal::Request => Opcode::SourceRequest,
        Signal::Grant => Opcode::SourceGrant,
        Signal::Resend => Opcode::RepairRequest,
    }
}

/// The message of a frame, if the group knows it.
pub(crate) fn signal_of(opcode: Opcode, machine: &Multicast) -> Option<Signal> {
    let known = match opcode {
        Opcode::RepairRequest => machine.repairs(),
        _ => machine.is_switching(),
    };
    let all = [Signal::Request, Signal::Grant, Signal::Resend];
    all.into_iter()
        .find(|signal| known && opcode_of(*signal) == opcode)
}
