//! The fast path, for batches of frames that no subscriber wants.
//!
//! The headers of a frame alone decide whether it takes the fast path, and its group has all state that it needs. For a batch of several
//! groups, the engine first looks up all groups in stages: each prefetches the memory that the next one reads, so that up to 32 memory
//! latencies overlap. Frames of no group take it if their flow is cached. Every other frame takes the slow path, in the order of the batch; the fast path has changed nothing for it.

use core::net::Ipv4Addr;

use castnet_wire::layout::{DST, in_frame};
use castnet_wire::{BATCH, Batch, FrameBuf, PortId};

use crate::egress::Egress;
use crate::engine::Engine;
use crate::group::context::with_group;
use crate::group::kind::Kind;
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
                None => same_group
                    .find_map(|frame| self.bridge.cached_frame(cx, &mut self.services.output, frame)),
            } {
                self.slow(cx, frame);
            }
            slots = &slots[same..];
        }
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
