//! Feedback frames that a group sends towards its source: aggregated ACK, NAK and RNR NAK, and forwarded CNPs.
//!
//! Towards the source itself or a switch behind routers, the frame has the McstID as its source address, and the address and QPN of
//! the next hop as its destination. Towards an adjacent switch, the destination is the McstID and the QPN of the endpoint there, as
//! for a member. The adjacent switch does not check the source address: it is the own address of this switch or, without one, the
//! McstID.

use castnet_collective::PathId;
use castnet_wire::{Aeth, FrameBuf, Psn, Syndrome};

use crate::egress::Egress;
use crate::group::multicast::context::Group;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{ACK_LEN, Address, CNP_LEN, LinkHeader, MACS, write_cnp};
use crate::output::cx::Cx;
use castnet_wire::ethernet::set_macs;

/// A feedback frame to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Feedback {
    Acknowledge {
        to: PathId,
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Cnp {
        to: PathId,
    },
}

/// Sends a feedback frame. It reuses the buffer of `reuse` if that has the same length. Counts the frame as lost if there is no buffer
/// or the port is down.
pub(crate) fn send<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    link: &LinkHeader,
    feedback: Feedback,
    reuse: Option<E::Buf>,
) {
    let (to, packet_len) = match feedback {
        Feedback::Acknowledge { to, .. } => (to, ACK_LEN),
        Feedback::Cnp { to } => (to, CNP_LEN),
    };
    let l3 = MACS + link.bytes().len();
    let port = group.hot.port(to).filter(|port| output.ports.up.contains(*port));
    // The frame that caused the feedback has the same tags at the same offset.
    let reuse = reuse.filter(|f| f.length() == l3 + packet_len && f.head().len() >= l3 + packet_len);
    let in_place = reuse.is_some();
    let frame = port.and_then(|port| reuse.or_else(|| cx.egress.allocate(port, l3 + packet_len)));
    let (Some(port), Some(mut frame), Some(dest)) = (port, frame, group.hot.dest(to)) else {
        group.cold.exceptions.lost += 1;
        output.counters.totals.copies_lost += 1;
        cx.observer.step(|| {
            Step::new(
                Stage::Feedback,
                "not sent",
                "no buffer, or the source's port is down",
            )
        });
        return;
    };
    let head = frame.head_mut();
    set_macs(
        head,
        output.next_hops.get(dest.next_hop()),
        output.ports.mac(port),
    );
    if let Some(room) = head.get_mut(MACS..l3).filter(|_| !in_place) {
        room.copy_from_slice(link.bytes());
    }
    let packet = head.get_mut(l3..).unwrap_or_default();
    match feedback {
        Feedback::Acknowledge {
            psn, msn, syndrome, ..
        } => {
            if let Some(room) = packet.first_chunk_mut() {
                group
                    .cold
                    .ack
                    .write(room, link.tos(), psn, Aeth { syndrome, msn });
            }
        }
        Feedback::Cnp { .. } => {
            if let Some(room) = packet.first_chunk_mut() {
                write_cnp(room, &group.cold.feedback, link.tos());
            }
        }
    }
    count(group, &feedback);
    output.counters.totals.originated += 1;
    cx.observer.step(|| {
        let Address { src, dst, qpn, .. } = group.cold.feedback;
        let why = format!("dst {dst} qpn {qpn}, src {src}, by port {port}");
        Step::new(
            Stage::Feedback,
            format!("{} for {}", title(&feedback), group.cold.describe(to)),
            why,
        )
    });
    cx.send(&mut output.counters, port, frame);
}

#[inline]
fn count(group: &mut Group, feedback: &Feedback) {
    let more = &mut group.cold.exceptions;
    match feedback {
        Feedback::Acknowledge {
            syndrome: Syndrome::Ack,
            ..
        } => group.hot.counters.acks_out += 1,
        Feedback::Acknowledge {
            syndrome: Syndrome::Nak(_),
            ..
        } => more.naks_out += 1,
        Feedback::Acknowledge {
            syndrome: Syndrome::RnrNak(_),
            ..
        } => more.rnr_naks_out += 1,
        Feedback::Cnp { .. } => more.cnps_out += 1,
    }
}

fn title(feedback: &Feedback) -> String {
    match feedback {
        Feedback::Acknowledge {
            psn, syndrome, msn, ..
        } => format!("{syndrome} of PSN {psn}, MSN {msn},"),
        Feedback::Cnp { .. } => "CNP".into(),
    }
}
