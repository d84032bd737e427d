//! The contract that each kind of group meets.

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

/// What lets machines ask for memory.
pub(crate) struct Ahead;

impl Prefetch for Ahead {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

/// What each kind of group does: its memory, its frames, its timers, and its reports. `docs/new-kind.md` walks through it.
///
/// A `slot` is the group's own: timers go by it.
pub(crate) trait Kind: Sized {
    /// Its section of the rule.
    type Rule;
    /// Its state, for people.
    type Status;

    /// Bytes of IP header to ICRC around the payload of the largest packet that it carries.
    const OVERHEAD: usize;

    /// The group of a rule that has been checked, and whose endpoints are [in order](GroupRule::in_order), with all memory
    /// that it will ever need.
    fn new(rule: GroupRule, kind: &Self::Rule) -> Self;

    /// The same without memory for payload, for a dry run.
    fn without_payload(rule: GroupRule, kind: &Self::Rule) -> Self {
        Self::new(rule, kind)
    }

    /// Copies the state that decides what happens to a frame, without payload, from a group of the same rule. Takes no memory.
    fn copy_state(&mut self, _of: &Self) {}

    /// The rule that it runs.
    fn rule(&self) -> &GroupRule;

    /// Bytes that it takes of the memory for groups.
    fn memory_bytes(&self) -> usize;

    /// Takes places for its next hops' Ethernet addresses; gives all back where one does not fit. `own` is the switch's
    /// address, where it has one.
    fn bind(&mut self, next_hops: &mut NextHops, own: Option<Ipv4Addr>) -> Result<(), NextHopsFull>;

    /// Gives these places back.
    fn unbind(&self, next_hops: &mut NextHops);

    /// Prefetches the memory that plain frames touch, in three steps: each needs what the one before it fetched.
    #[inline(always)]
    fn prefetch(&self, _step: usize, _ingress: PortId) {}

    /// Takes in frames to the group that no tap wants to see, until there are no more, or one has to take the slow path, which is
    /// returned: the fast path of a kind that has one.
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

    /// Takes a frame whose destination is the group: finds its sender, checks it, and does what the kind does with it.
    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict;

    /// Its timer in one of the wheels is due.
    fn timeout<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Continues to send: the group was in [`Timers::emitting`](crate::group::services::Timers::emitting).
    fn emit<E: Egress, O: Observer>(&mut self, _: &mut Services, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Arms its timers, after it has come from another engine.
    fn resume(&mut self, _: &mut Services, _now: Nanos, _slot: u32) {}

    /// Counts a frame to the group that was dropped.
    fn note_dropped(&mut self);

    /// Puts its counters into a snapshot; `false` where there is no room.
    fn snapshot(&self, into: &mut CountersSnapshot) -> bool;

    /// Everything about it, for people. Allocates.
    fn status(&self) -> Self::Status;
}
