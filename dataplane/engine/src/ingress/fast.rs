//! The fast path, for batches of frames that no subscriber wants.
//!
//! The headers of a frame alone decide whether it takes the fast path, and its group has all state that it needs. For a batch of several
//! groups, the engine first looks up all groups in stages: each prefetches the memory that the next one reads, so that up to 32 memory
//! latencies overlap. Frames of no group take it if their flow is cached. Every other frame takes the slow path, in the order of the batch; the fast path has changed nothing for it.

use core::net::Ipv4Addr;

use castnet_wire::icrc::HeaderDelta;
use castnet_wire::layout::{DST, in_frame};
use castnet_wire::{BATCH, Batch, FrameBuf, PortId};

use crate::address::GroupKey;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::group::context::with_group;
use crate::group::headers::Headers;
use crate::group::kind::Kind;
use crate::group::rewrite::set_plain_destination;
use crate::group::table::NO_GROUP;
use crate::observe::trace::Off;
use crate::output::cx::Cx;

/// The destination of a plain frame; without meaning for others, but safe to look up.
#[inline(always)]
fn dst(frame: &impl FrameBuf) -> Ipv4Addr {
    let octets = frame.head().get(in_frame(DST)).and_then(|b| b.first_chunk::<4>());
    octets.map_or(Ipv4Addr::UNSPECIFIED, |octets| Ipv4Addr::from(*octets))
}

impl Engine {
    #[inline(never)]
    pub(crate) fn fast_batch<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, batch: &mut Batch<E::Buf>) {
        let Some(first) = batch.first().map(dst) else {
            return;
        };
        let mut slots = [NO_GROUP; BATCH];
        if batch.iter().all(|frame| dst(frame) == first) {
            slots = [self.groups.find_next(first).unwrap_or(NO_GROUP); BATCH];
        } else {
            self.find_groups(cx.ingress, batch, &mut slots[..batch.len()]);
        }
        let mut slots = &slots[..batch.len()];
        let mut frames = batch.drain(..);
        while let Some(&slot) = slots.first() {
            let same = slots.iter().take_while(|other| **other == slot).count();
            let mut same_group = frames.by_ref().take(same);
            while let Some(frame) = match self.groups.at_mut(slot) {
                Some(group) => {
                    with_group!(group, group => group.fast_frames(&mut self.services, cx, slot, &mut same_group))
                }
                None => self.ungrouped_frames(cx, &mut same_group),
            } {
                self.slow(cx, frame);
            }
            slots = &slots[same..];
        }
    }

    /// Handles frames to no McstID: those whose flow is cached, and data of a static core. Returns the first one that needs the slow path.
    #[inline]
    fn ungrouped_frames<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        let mut next = frames.next();
        while let Some(mut frame) = next {
            if dst(&frame).is_multicast() {
                match self.core_frames(cx, frame, frames) {
                    Ok(other) => {
                        next = other;
                        continue;
                    }
                    Err(other) => frame = other,
                }
            }
            let output = &mut self.services.output;
            if let Some(slow) = self.bridge.cached_frame(cx, output, frame) {
                return Some(slow);
            }
            next = frames.next();
        }
        None
    }

    /// Handles plain data that a static core has brought for a group here, and the following `frames` while they are alike. They become
    /// data from the switch next to the source. Returns the next frame or, as an error with nothing changed, the first one if it is no
    /// such data. Slow twin: `core_frame`.
    #[inline(never)]
    fn core_frames<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        frame: E::Buf,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Result<Option<E::Buf>, E::Buf> {
        let first = Headers::of(&frame);
        let is_data = first.is_data() && first.is_sound(&frame);
        let Some((slot, port, mcst_id)) = is_data.then(|| self.core_group(cx.ingress, &first)).flatten()
        else {
            return Err(frame);
        };
        let addresses = (first.dst(), mcst_id);
        let delta = HeaderDelta::dst(addresses.0, addresses.1).at_bth();
        let after_bth = first.payload() as usize;
        let change = self.services.output.shifts.apply(delta, after_bth);
        let mut run = Batch::<E::Buf>::new();
        let mut next = Some(frame);
        while let Some(mut frame) = next.take() {
            let headers = Headers::of(&frame);
            if !headers.is_data_like(&first) || !headers.is_sound(&frame) || run.is_full() {
                next = Some(frame);
                break;
            }
            set_plain_destination(&mut frame, change, addresses);
            run.push(frame);
            next = frames.next();
        }
        let ingress = std::mem::replace(&mut cx.ingress, port);
        let mut run = run.drain(..);
        while let Some(frame) = match self.groups.at_mut(slot) {
            Some(group) => {
                with_group!(group, group => group.fast_frames(&mut self.services, cx, slot, &mut run))
            }
            None => run.next(),
        } {
            let verdict = self.forward(cx, frame);
            self.services.output.counters.account(ingress, verdict);
        }
        cx.ingress = ingress;
        Ok(next)
    }

    /// The slot, the source's port and the McstID of the group here that plain data of a static core is for. `None` if this switch is a
    /// relay, too.
    fn core_group(&self, ingress: PortId, headers: &Headers) -> Option<(u32, PortId, Ipv4Addr)> {
        let (src, dst) = (headers.src(), headers.dst());
        let slot = self.groups.find_key(GroupKey::From(src))?;
        let context = self.groups.at(slot)?;
        let (group, source) = (context.multicast()?, context.rule().upstream()?);
        let is_from_source = source.next_hop.core() == Some(dst)
            && group.hot.sender(source.port, src, headers.qpn(), None) == Some(group.hot.source);
        let is_of_core = self.bridge.leads_to_core(ingress, source.port);
        let is_relay = self.bridge.tables.routes.replicates(dst);
        (is_from_source && is_of_core && !is_relay).then_some((slot, source.port, group.hot.mcst_id.0))
    }

    /// Writes the group slot of each frame to `slots`, and prefetches what plain frames of these groups touch.
    #[inline(never)]
    fn find_groups<B: FrameBuf>(&self, ingress: PortId, batch: &Batch<B>, slots: &mut [u32]) {
        let mut homes = [0; BATCH];
        for (frame, home) in batch.iter().zip(&mut homes) {
            *home = self.groups.prefetch_index(dst(frame));
        }
        for ((frame, home), slot) in batch.iter().zip(homes).zip(&mut *slots) {
            *slot = self.groups.find_from(home, dst(frame)).unwrap_or(NO_GROUP);
            self.groups.prefetch_slot(*slot);
            self.services.timers.coarse.prefetch(*slot);
        }
        let groups = || slots.iter().filter_map(|slot| self.groups.at(*slot));
        groups().for_each(|group| with_group!(group, group => group.prefetch(0, ingress)));
        groups().for_each(|group| with_group!(group, group => group.prefetch(1, ingress)));
        groups().for_each(|group| with_group!(group, group => group.prefetch(2, ingress)));
    }

    // Not inlined: large, and rarely called from here.
    #[inline(never)]
    pub(crate) fn slow<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, frame: E::Buf) {
        let verdict = self.forward(cx, frame);
        self.services.output.counters.account(cx.ingress, verdict);
    }
}
