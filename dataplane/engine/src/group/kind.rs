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

/// Prefetches for the protocol machines, which forbid unsafe code.
pub(crate) struct EnginePrefetch;

impl Prefetch for EnginePrefetch {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

/// The contract of each kind of group: memory, frames, timers and reports; `docs/new-kind.md` explains it by an example. `slot` is the
/// group's slot in the table of groups, for which timers are armed.
pub(crate) trait Kind {
    type Status;

    fn rule(&self) -> &GroupRule;

    fn memory_bytes(&self) -> usize;

    /// Acquires table entries for the Ethernet addresses of its next hops; none if one does not fit. `own` is the switch's address.
    fn bind(&mut self, next_hops: &mut NextHops, own: Option<Ipv4Addr>) -> Result<(), NextHopsFull>;

    fn unbind(&self, next_hops: &mut NextHops);

    /// Prefetches the memory of plain frames, in three steps. Each reads what the step before it prefetched.
    #[inline(always)]
    fn prefetch(&self, _step: usize, _ingress: PortId) {}

    /// The fast path, for frames that no subscriber wants. Returns the first frame that needs the slow path.
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

    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict;

    /// A timer of the group is due in one of the wheels.
    fn timeout<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Continues to send: the group was queued in [`Timers::emitting`](crate::group::services::Timers::emitting).
    fn emit<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Arms the timers of a group that was moved from another engine.
    fn resume(&mut self, _: &mut Services, _now: Nanos, _slot: u32) {}

    fn note_dropped(&mut self);

    /// Returns false if the capacity of the snapshot is used up.
    fn snapshot(&self, into: &mut CountersSnapshot) -> bool;

    fn status(&self) -> Self::Status;
}
