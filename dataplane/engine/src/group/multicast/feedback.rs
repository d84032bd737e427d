//! Feedback that a group sends towards its source: aggregated ACK, NAK and RNR NAK, and forwarded CNPs.
//!
//! Towards the source or a switch behind routers, the frame goes from the McstID to the address and QPN of the next hop. Towards an
//! adjacent switch, it goes to the McstID and the QPN of the endpoint there, as for a member, from this switch's own address or, without
//! one, the McstID: the adjacent switch does not check it.

use castnet_collective::PathId;
use castnet_wire::{Aeth, Psn, Syndrome};

use crate::egress::Egress;
use crate::group::multicast::context::Group;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{self, Address, LinkHeader};
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
    let (hop, more) = ((port, dest.next_hop()), &mut group.cold.exceptions);
    let addresses = (&group.cold.ack, &group.cold.feedback);
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
        let Address { src, dst, qpn, .. } = group.cold.feedback;
        let why = format!("dst {dst} qpn {qpn}, src {src}, by port {port}");
        Step::new(Stage::Feedback, decision, why)
    });
    cx.send(&mut output.counters, port, frame);
}
