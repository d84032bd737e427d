//! The contract of each kind of group.

use core::net::Ipv4Addr;

use castnet_collective::Prefetch;
use castnet_reduce::prefetch;
use castnet_rules::GroupRule;
use castnet_wire::{Nanos, PortId, RoceHeader};

use super::services::Services;
use crate::egress::Egress;
use crate::observe::counters::CountersSnapshot;
use crate::observe::trace::{Observer, Off, Verdict};
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// Prefetches memory for the protocol machines, which forbid unsafe code.
pub(crate) struct EnginePrefetch;

impl Prefetch for EnginePrefetch {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

/// The functions of a kind of group: memory, frames, timers and reports. `docs/new-kind.md` explains them by an example.
///
/// The argument `slot` is the slot of the group in the table of groups. Timers are armed for a slot.
pub(crate) trait Kind {
    /// Its state, for display.
    type Status;

    /// The running rule.
    fn rule(&self) -> &GroupRule;

    /// Bytes of group memory that the group uses.
    fn memory_bytes(&self) -> usize;

    /// Acquires table entries for the Ethernet addresses of its next hops; acquires none if one does not fit. `own` is the address
    /// of the switch, if it has one.
    fn bind(&mut self, next_hops: &mut NextHops, own: Option<Ipv4Addr>) -> Result<(), NextHopsFull>;

    /// Releases these table entries.
    fn unbind(&self, next_hops: &mut NextHops);

    /// Prefetches the memory that plain frames touch, in three steps. Each step reads memory that the step before it prefetched.
    #[inline(always)]
    fn prefetch(&self, _step: usize, _ingress: PortId) {}

    /// The fast path: handles frames to the group that no subscriber wants. Returns the first frame that needs the slow path, or
    /// `None` after all frames. The default has no fast path.
    #[inline(always)]
    fn fast_frames<E: Egress>(
        &mut self,
        _: &mut Services,
        _: &mut Cx<'_, E, Off>,
        _slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        frames.next()
    }

    /// The slow path: handles one frame whose destination is the group.
    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict;

    /// Handles a timer of the group that is due in one of the wheels.
    fn timeout<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Continues to send. The group was queued in [`Timers::emitting`](crate::group::services::Timers::emitting).
    fn emit<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Arms the timers of a group that was moved from another engine.
    fn resume(&mut self, _: &mut Services, _now: Nanos, _slot: u32) {}

    /// Counts a dropped frame of the group.
    fn note_dropped(&mut self);

    /// Adds the counters of the group to a snapshot. Returns false if its capacity is used up.
    fn snapshot(&self, into: &mut CountersSnapshot) -> bool;

    /// The whole state of the group, for display. Allocates.
    fn status(&self) -> Self::Status;
}
