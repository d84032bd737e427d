//! The fast path of contributions: plain SENDs of one endpoint, to slots with contributions that stay incomplete. Slow twin: `frame`.

use castnet_collective::EndpointId;
use castnet_collective::translated::{Event, PacketShape};
use castnet_wire::ipv4::ECN;

use super::context::{CollectiveContext, kernel_key};
use super::frame::{EffectCx, Received, carry_out, count_data, emit_due};
use super::slots;
use crate::egress::Egress;
use crate::group::headers::{Headers, L3, PLAIN};
use crate::group::services::Services;
use crate::group::services::{CollectiveEffects, EffectsOfWidth};
use crate::group::verify;
use crate::observe::trace::Off;
use crate::output::cx::Cx;

/// The end of a run of contributions that are only added.
enum End<B> {
    /// There are no more frames.
    Batch,
    /// The frame needs the slow path. It has changed nothing.
    Slow(B),
    /// A verified contribution of the endpoint with further effects.
    MoreEffects(B, EndpointId, PacketShape, Headers),
}

impl<const W: usize> CollectiveContext<W>
where
    CollectiveEffects: EffectsOfWidth<W>,
{
    /// Returns the first frame that needs the slow path.
    // Not inlined: one call for each run of frames to the group.
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
                End::MoreEffects(frame, from, shape, headers) => {
                    self.handle_contribution(services, cx, slot, (from, shape, &headers), frame);
                }
            }
        }
    }

    fn handle_contribution<E: Egress>(
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
            work,
        } = services;
        let length = shape.payload.into();
        let received = Received {
            payload: slots::payload(&frame, PLAIN, length, &mut scratch.room[..]),
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
        count_data(self, from, effects, length);
        let mut effect_cx = EffectCx::new(output, events, false);
        let verdict = carry_out(cx, &mut effect_cx, self, effects, Some(&received));
        // Frees the buffer before further frames are allocated.
        drop(frame);
        let more = emit_due(cx, &mut effect_cx, self, effects, work);
        self.schedule(timers, cx.now, slot, more);
        output.counters.account(cx.ingress, verdict);
    }

    /// Adds contributions to slots that have some and stay incomplete. Returns their number, and why the run ends.
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
            connections,
            kernels,
            checksum,
            pmtu,
            meters,
            ..
        } = self;
        let Some(connection) = connections.get(from.index()) else {
            return (0, End::Slow(frame));
        };
        let (mut count, mut bytes) = (0, 0);
        // The bytes of frames that a rate limit lets pass without a mark.
        let mut meter = meters.get_mut(from.index()).and_then(Option::as_mut);
        let most = meter.as_mut().map_or(u64::MAX, |meter| {
            meter.refill(cx.now);
            meter.bytes_above_half()
        });
        let mut left = most;
        let mut nexts = machine.nexts(cx.now, from).map(|nexts| {
            let kernel = kernels.select(kernel_key(nexts.call()));
            (nexts, kernel)
        });
        let end = loop {
            // A frame whose tags, class of service or ECT differ from the connection's takes the slow path, which updates them.
            let ecn = headers.tos() & ECN;
            let usual = headers.is_data()
                && (headers.src(), headers.qpn()) == (src, qpn)
                && ecn != ECN
                && (ecn != 0) == connection.ect
                && connection.link.is_plain(headers.tos())
                && headers.payload() as usize <= *pmtu
                && u64::from(headers.length) <= left
                && headers.is_sound(&frame);
            let Some(opcode) = headers.send().filter(|_| usual) else {
                break End::Slow(frame);
            };
            let payload = verify::pieces(&frame, PLAIN, headers.payload() as usize);
            let Some(payload) =
                payload.filter(|_| verify::is_sound_in_place(checksum, &frame, L3) == Some(true))
            else {
                break End::Slow(frame);
            };
            left -= u64::from(headers.length);
            let shape = PacketShape {
                opcode,
                payload: headers.payload() as u16,
                pad: 0,
            };
            let added = nexts.as_mut().and_then(|(nexts, kernel)| {
                let slot = nexts.take(headers.psn(), shape, headers.ack_request())?;
                Some((slot, *kernel))
            });
            let Some((slot, kernel)) = added else {
                break End::MoreEffects(frame, from, shape, headers);
            };
            slots.aggregate(slot, from, false, &kernel, payload);
            count += 1;
            bytes += u64::from(shape.payload);
            match frames.next() {
                Some(next) => frame = next,
                None => break End::Batch,
            }
            headers = Headers::of(&frame);
        };
        if let Some(meter) = meter {
            meter.take(most - left);
        }
        self.counters.contributions += count;
        self.counters.contribution_bytes += bytes;
        if let Some(endpoint) = self.per_endpoint.get_mut(from.index()) {
            endpoint.contributions += count;
        }
        (count, end)
    }
}
