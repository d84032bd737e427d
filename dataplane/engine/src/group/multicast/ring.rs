//! The kept packets of a group that repairs losses, and the copies that are sent from them. The machine decides which packet is in which slot.

use castnet_collective::Resend;
use castnet_reduce::Checksum;
use castnet_rules::{GroupRule, RepairRule};
use castnet_wire::{FrameBuf, Parsed, parse_frame};

use crate::egress::Egress;
use crate::group::multicast::context::Group;
use crate::group::multicast::replicate::{self, count_lost_copy};
use crate::group::rewrite::request_ack;
use crate::group::services::FRAME;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::cx::Cx;

/// Most packets of a group from its ring in one call.
const RESENDS_MAX: usize = 64;

/// Whole packets, as received. All memory is allocated when the group is compiled.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    stride: usize,
    /// Without padding. 0: nothing is kept.
    lengths: Box<[u16]>,
    pub(super) checksum: Checksum,
    /// The group is queued because it has more to send.
    pub(super) emitting: bool,
}

impl Ring {
    /// Without payload, nothing is kept.
    pub(super) fn new(rule: &GroupRule, repair: &RepairRule, payload: bool) -> Self {
        let (stride, slots) = (RepairRule::slot_stride(rule.pmtu), usize::from(repair.slots));
        Self {
            // Not zeros: the kernel would map zeroed pages at the first access, while a frame is handled.
            bytes: vec![u8::MAX; if payload { stride * slots } else { 0 }].into_boxed_slice(),
            stride,
            lengths: vec![0; slots].into_boxed_slice(),
            checksum: Checksum::select(),
            emitting: false,
        }
    }

    pub(super) fn footprint(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + size_of_val(&*self.lengths)
    }

    #[inline]
    pub(super) fn keep(&mut self, slot: u16, frame: &impl FrameBuf, frame_len: usize) {
        let at = usize::from(slot) * self.stride;
        let slot = self.lengths.get_mut(usize::from(slot));
        let room = self.bytes.get_mut(at..at + frame_len);
        let fits = frame_len <= self.stride;
        debug_assert!(fits, "a packet of the path MTU fits with all its headers");
        if let (Some(length), Some(room), true) = (slot, room, fits) {
            *length = frame.copy_to(room) as u16;
        }
    }

    fn packet(&self, slot: u16) -> Option<&[u8]> {
        let length = usize::from(*self.lengths.get(usize::from(slot))?);
        let at = usize::from(slot) * self.stride;
        self.bytes
            .get(at..at + length)
            .filter(|packet| !packet.is_empty())
    }
}

/// Sends what the machine wants from the ring, while work is left for this iteration. Returns true if there may be more.
pub(super) fn resend<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    work: &mut usize,
    group: &mut Group,
) -> bool {
    for _ in 0..RESENDS_MAX {
        if *work == 0 {
            return group.hot.machine.has_resends();
        }
        let Some(resend) = group.hot.machine.poll_resend() else {
            return false;
        };
        *work = work.saturating_sub(FRAME);
        send(cx, output, group, resend);
    }
    true
}

fn send<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    resend: Resend,
) {
    let Resend { path, psn, slot, .. } = resend;
    let Some(port) = group.hot.port(path) else {
        return output
            .counters
            .invariant_violated("packets are for one of the paths");
    };
    let packet = group.cold.ring.as_ref().and_then(|ring| ring.packet(slot));
    // Only a dry run keeps none.
    let Some(packet) = packet else {
        return;
    };
    let copy = match output.ports.up.contains(port) {
        true => cx.egress.gather(port, &[packet]),
        false => None,
    };
    let Some(mut copy) = copy else {
        return count_lost_copy(group, &mut output.counters, path);
    };
    let Ok(Parsed::Roce(header)) = parse_frame(copy.head(), copy.length()) else {
        return output.counters.invariant_violated("a kept packet can be parsed");
    };
    if header.bth.psn != psn {
        return output
            .counters
            .invariant_violated("a slot has the packet of the machine");
    }
    if resend.ack_request && !header.bth.ack_request {
        request_ack(&mut copy, &header);
    }
    cx.observer.step(|| {
        let decision = format!("send PSN {psn} again");
        Step::new(
            Stage::Replicate,
            decision,
            format!("from slot {slot} of the ring"),
        )
    });
    let length = copy.length() as u64;
    replicate::send_one(cx, output, group, &header, (port, path), copy);
    output.counters.totals.originated += 1;
    group.hot.counters.copies_out += 1;
    group.hot.counters.copy_bytes_out += length;
    group.cold.exceptions.resent += 1;
    if let Some(counters) = group.paths.get_mut(path.index()) {
        counters.resent += 1;
    }
}
