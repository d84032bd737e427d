//! The fast path of contributions: plain SENDs of one endpoint, to slots that have contributions and still lack others. The slow
//! twin is `frame`.

use castnet_collective::EndpointId;
use castnet_collective::translated::{Event, PacketShape};

use super::context::CollectiveContext;
use super::frame::{AtHand, Hands, carry_out, emit_due, note_data};
use super::slots;
use super::verify::{self, ECN};
use crate::egress::Egress;
use crate::group::headers::{Headers, L3, PLAIN};
use crate::group::services::Services;
use crate::group::services::{AllEffects, EffectsOf};
use crate::observe::trace::Off;
use crate::output::cx::Cx;

/// What ends a run of contributions that need nothing but their sum.
enum End<B> {
    /// There are no more frames.
    Batch,
    /// This frame, which has to take the slow path: nothing has changed.
    Slow(B),
    /// This contribution of this endpoint, whose ICRC is right: more comes of it than its sum.
    Known(B, EndpointId, PacketShape, Headers),
}

impl<const W: usize> CollectiveContext<W>
where
    AllEffects: EffectsOf<W>,
{
    /// Takes in frames until there are no more, or one has to take the slow path, which is returned.
    // Apart: one call for each run of frames to the group.
    #[inline(never)]
    pub(super) fn fast_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        loop {
            let (added, end) = self.add_all(cx, frames);
            services.output.counters.totals.absorbed += added;
            match end {
                End::Batch => return None,
                End::Slow(frame) => return Some(frame),
                End::Known(frame, from, shape, headers) => {
                    self.known_contribution(services, cx, slot, (from, shape, &headers), frame);
                }
            }
        }
    }

    /// A contribution that the machine has more to say about.
    fn known_contribution<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        (from, shape, headers): (EndpointId, PacketShape, &Headers),
        frame: E::Buf,
    ) {
        let Services {
            output,
            timers,
            events,
            scratch,
        } = services;
        let length = shape.payload.into();
        let at_hand = AtHand {
            payload: slots::payload(&frame, PLAIN, length, &mut scratch.payload[..]),
            imm: None,
            length,
        };
        let event = Event::Data {
            from,
            psn: headers.psn(),
            shape,
            ack_request: headers.ack_request(),
        };
        let effects = scratch.collective.of();
        self.machine.handle(cx.now, event, effects);
        note_data(self, from, effects, length);
        let mut hands = Hands {
            output,
            events,
            timed: false,
        };
        let verdict = carry_out(cx, &mut hands, self, effects, Some(&at_hand));
        // Its buffer may be needed for what goes on.
        drop(frame);
        let more = emit_due(cx, &mut hands, self, effects);
        self.schedule(timers, cx.now, slot, more);
        output.counters.account(cx.ingress, verdict);
    }

    /// Adds contributions to slots that have others already and are not complete with them, which needs nothing but the sum;
    /// how many, and what came then.
    #[inline]
    fn add_all<E: Egress>(
        &mut self,
        cx: &Cx<'_, E, Off>,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> (u64, End<E::Buf>) {
        let Some(mut frame) = frames.next() else {
            return (0, End::Batch);
        };
        let mut headers = Headers::of(&frame);
        let (src, qpn) = (headers.src(), headers.qpn());
        let Some(from) = self.sender(cx.ingress, src, qpn, None) else {
            return (0, End::Slow(frame));
        };
        let Self {
            machine,
            slots,
            outlets,
            kernels,
            checksum,
            pmtu,
            ..
        } = self;
        let Some(outlet) = outlets.get(from.index()) else {
            return (0, End::Slow(frame));
        };
        let (mut added, mut bytes) = (0, 0);
        let mut nexts = machine.nexts(from).map(|nexts| {
            let kernel = kernels.select(nexts.call());
            (nexts, kernel)
        });
        let end = loop {
            // What comes back must be marked as this is: else the way back is to be learned anew.
            let ecn = headers.tos() & ECN;
            let usual = headers.is_data()
                && (headers.src(), headers.qpn()) == (src, qpn)
                && ecn != ECN
                && (ecn != 0) == outlet.ect
                && outlet.link.is_plain(headers.tos())
                && headers.payload() as usize <= *pmtu
                && headers.is_sound(&frame);
            let Some(opcode) = headers.send().filter(|_| usual) else {
                break End::Slow(frame);
            };
            let payload = slots::pieces(&frame, PLAIN, headers.payload() as usize);
            let Some(payload) = payload.filter(|_| verify::ends_right(checksum, &frame, L3) == Some(true))
            else {
                break End::Slow(frame);
            };
            let shape = PacketShape {
                opcode,
                payload: headers.payload() as u16,
                pad: 0,
            };
            let taken = nexts.as_mut().and_then(|(nexts, kernel)| {
                let slot = nexts.take(headers.psn(), shape, headers.ack_request())?;
                Some((slot, *kernel))
            });
            let Some((slot, kernel)) = taken else {
                break End::Known(frame, from, shape, headers);
            };
            slots.aggregate(slot, from, false, &kernel, payload);
            added += 1;
            bytes += u64::from(shape.payload);
            match frames.next() {
                Some(next) => frame = next,
                None => break End::Batch,
            }
            headers = Headers::of(&frame);
        };
        self.counters.contributions += added;
        self.counters.contribution_bytes += bytes;
        if let Some(endpoint) = self.per_endpoint.get_mut(from.index()) {
            endpoint.contributions += added;
        }
        (added, end)
    }
}
