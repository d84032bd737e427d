//! The fast path, for batches of frames that no subscriber wants.
//!
//! The headers of a frame alone decide whether it takes the fast path, and its group has all state that it needs. For a batch of several
//! groups, the engine first looks up all groups in stages: each prefetches the memory that the next one reads, so that up to 32 memory
//! latencies overlap. Frames of no group take it if their flow is cached. Every other frame takes the slow path, in the order of the batch; the fast path has changed nothing for it.

use castnet_wire::layout::{DST, SRC, in_frame};
use castnet_wire::{BATCH, Batch, FrameBuf, PortId};

use crate::address::GroupKey;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::group::context::{Context, with_group};
use crate::group::kind::Kind;
use crate::group::table::{NO_GROUP, OF_CORE};
use crate::observe::trace::Off;
use crate::output::cx::Cx;

/// The key of a plain frame; without meaning for others, but safe to look up.
#[inline(always)]
fn key(frame: &impl FrameBuf) -> GroupKey {
    let addresses = frame.head().get(in_frame(SRC.start..DST.end));
    let [a, b, c, d, dst @ ..] = addresses
        .and_then(|b| b.first_chunk::<8>())
        .copied()
        .unwrap_or_default();
    GroupKey::of([a, b, c, d].into(), dst.into())
}

impl Engine {
    #[inline(never)]
    pub(crate) fn fast_batch<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, batch: &mut Batch<E::Buf>) {
        let Some(first) = batch.first().map(key) else {
            return;
        };
        let mut slots = [NO_GROUP; BATCH];
        if batch.iter().all(|frame| key(frame) == first) {
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
                None if slot == NO_GROUP => self.ungrouped_frames(cx, &mut same_group),
                None => self.core_frames(cx, slot & !OF_CORE, &mut same_group),
            } {
                self.slow(cx, frame);
            }
            slots = &slots[same..];
        }
    }

    /// Handles frames of no group whose flow is cached. Returns the first one that needs the slow path.
    #[inline]
    fn ungrouped_frames<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        let output = &mut self.services.output;
        frames.find_map(|frame| self.bridge.cached_frame(cx, output, frame))
    }

    /// Handles plain data that a static core has brought for a group here. Returns the first frame that needs the slow path: each one, if this
    /// switch is a relay, too. Slow twin: `core_frame`.
    #[inline(never)]
    fn core_frames<E: Egress>(
        &mut self,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        let Some(Context::Multicast(group)) = self.groups.at_mut(slot) else {
            return frames.next();
        };
        let source = group.cold.rule.upstream();
        match source.and_then(|source| Some((source.port, source.next_hop.core()?))) {
            Some((port, address))
                if self.bridge.leads_to_core(cx.ingress, port)
                    && !self.bridge.tables.routes.replicates(address) =>
            {
                group.fast_core_frames(&mut self.services, cx, (slot, address), frames)
            }
            _ => frames.next(),
        }
    }

    /// Writes the group slot of each frame to `slots`, and prefetches what plain frames of these groups touch.
    #[inline(never)]
    fn find_groups<B: FrameBuf>(&self, ingress: PortId, batch: &Batch<B>, slots: &mut [u32]) {
        let mut homes = [0; BATCH];
        for (frame, home) in batch.iter().zip(&mut homes) {
            *home = self.groups.prefetch_index(key(frame));
        }
        for ((frame, home), slot) in batch.iter().zip(homes).zip(&mut *slots) {
            *slot = self.groups.find_from(home, key(frame)).unwrap_or(NO_GROUP);
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
