//! The fast path of contributions: those of one endpoint, as long as each has the header of an earlier one.

use castnet_collective::EndpointId;
use castnet_collective::translated::Event;
use castnet_wire::{Batch, FrameBuf, PortId};

use super::context::Collective;
use super::frame::{AtHand, Hands, carry_out, emit_due, hands, note_data};
use super::slots;
use super::verify::Known;
use crate::context::Context;
use crate::egress::Egress;
use crate::engine::{Engine, NO_GROUP};
use crate::multicast::Tools;
use crate::pipeline::Cx;
use crate::trace::Off;

/// What ends a run of contributions.
enum End<B> {
    /// There are no more frames.
    Batch,
    /// This frame, of which nothing is known.
    Unknown(B),
    /// This contribution, whose ICRC is right: more comes of it than its sum.
    Known(B, Known),
}

impl Engine {
    /// Whether a collective group was spoken to here last.
    pub(crate) fn is_collective(&self, ingress: PortId) -> bool {
        self.recent[ingress.index()] != NO_GROUP
    }

    /// Takes a batch in at such a port.
    // Apart: one call a batch, and multicast must not pay for it.
    #[inline(never)]
    pub(crate) fn collective_batch<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, batch: &mut Batch<E::Buf>) {
        let mut frames = batch.drain(..);
        while let Some(frame) = self.contributions(cx, &mut frames) {
            self.no_contribution(cx, frame);
        }
    }

    /// A frame that is none.
    // Apart, so that the general path stays inlined in the loop over multicast's frames: here it is rare.
    #[inline(never)]
    fn no_contribution<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, frame: E::Buf) {
        self.other_than_data(cx, frame);
    }

    /// Takes contributions whose header is that of an earlier one, with the same checks and the same effects as on the slow
    /// path, but for what is known. Returns the first frame that is something else, with nothing looked at.
    fn contributions<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        let place = self.recent[cx.ingress.index()];
        loop {
            let Some(Context::Collective(group)) = self.groups.at_mut(place) else {
                return frames.next();
            };
            let Some(from) = group.endpoint_at(cx.ingress) else {
                return frames.next();
            };
            let (added, end) = group.add_all(from, frames);
            self.counters.totals.absorbed += added;
            match end {
                End::Batch => return None,
                End::Unknown(frame) => return Some(frame),
                End::Known(frame, known) => self.known_contribution(cx, place, from, frame, known),
            }
        }
    }

    /// A contribution that the machine has more to say about.
    fn known_contribution<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        place: u32,
        from: EndpointId,
        frame: E::Buf,
        known: Known,
    ) {
        let Some(Context::Collective(group)) = self.groups.at_mut(place) else {
            return;
        };
        let length = known.shape.payload.into();
        let at_hand = AtHand {
            payload: slots::payload(&frame, known.payload_at, length, &mut self.scratch[..]),
            imm: None,
            length,
        };
        let event = Event::Data {
            from,
            psn: known.psn,
            shape: known.shape,
            ack_request: known.ack_request,
        };
        let effects = &mut self.collective_effects;
        group.machine.handle(cx.now, event, effects);
        note_data(group, from, effects, length);
        let mut hands = hands!(self, timed: false);
        let verdict = carry_out(cx, &mut hands, group, effects, Some(&at_hand));
        // Its buffer may be needed for what goes on.
        drop(frame);
        let more = emit_due(cx, &mut hands, group, effects);
        self.schedule(cx.now, place, more);
        self.account(cx.ingress, verdict);
    }
}

impl Collective {
    /// Adds contributions to slots that have others already and are not complete with them, which needs nothing but the sum;
    /// how many, and what came then.
    #[inline]
    fn add_all<B: FrameBuf>(
        &mut self,
        from: EndpointId,
        frames: &mut impl Iterator<Item = B>,
    ) -> (u64, End<B>) {
        let Self {
            machine,
            slots,
            outlets,
            kernels,
            checksum,
            ..
        } = self;
        let Some(outlet) = outlets.get(from.index()) else {
            return (0, frames.next().map_or(End::Batch, End::Unknown));
        };
        let (mut added, mut bytes) = (0, 0);
        let mut nexts = machine.nexts(from).map(|nexts| {
            let kernel = kernels.select(nexts.call());
            (nexts, kernel)
        });
        let end = loop {
            let Some(frame) = frames.next() else {
                break End::Batch;
            };
            let Some(known) = outlet.headers.known(&outlet.link, outlet.ect, &frame) else {
                break End::Unknown(frame);
            };
            let Some(payload) = known.payload(checksum, &frame) else {
                break End::Unknown(frame);
            };
            let taken = nexts.as_mut().and_then(|(nexts, kernel)| {
                let slot = nexts.take(known.psn, known.shape, known.ack_request)?;
                Some((slot, *kernel))
            });
            let Some((slot, kernel)) = taken else {
                break End::Known(frame, known);
            };
            slots.aggregate(slot, from, false, &kernel, payload);
            added += 1;
            bytes += u64::from(known.shape.payload);
        };
        self.counters.contributions += added;
        self.counters.contribution_bytes += bytes;
        if let Some(endpoint) = self.per_endpoint.get_mut(from.index()) {
            endpoint.contributions += added;
        }
        (added, end)
    }
}
