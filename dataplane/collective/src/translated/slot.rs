//! The slots: what is known of each packet in flight, beside its payload.
//!
//! A slot holds, one after the other, the sum of the children's contributions and the result of all. A position has the
//! slot `g % slots`, as in the paper; which position a slot holds follows from `base`, since only positions in
//! `base .. base + slots` are let in, and a slot is recycled when `base` passes it.

use super::{EndpointId, EndpointSet, PacketShape};
use alloc::boxed::Box;
use alloc::vec;

/// How far a packet is at this switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    /// Contributions are missing.
    #[default]
    Filling,
    /// All of the children's are in, the result of the whole tree is not.
    Partial,
    /// What goes to the receivers is here.
    Result,
}

/// One slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slot<const W: usize> {
    /// The paper's `arrived`, for all endpoints; its number of members is `degree`. The parent's result counts too.
    pub(super) contributed: EndpointSet<W>,
    pub(super) shape: PacketShape,
    pub(super) phase: Phase,
    /// A contribution asked for an acknowledgement, so what comes of it must.
    pub(super) ack_request: bool,
}

/// All slots of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slots<const W: usize>(Box<[Slot<W>]>);

/// What a contribution did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aggregated {
    pub(super) first: bool,
    pub(super) complete: bool,
}

impl<const W: usize> Slots<W> {
    pub(super) fn new(slots: u16) -> Self {
        let slots = usize::from(slots.clamp(2, 1 << 15)).next_power_of_two();
        Self(vec![Slot::default(); slots].into_boxed_slice())
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn bytes(&self) -> usize {
        core::mem::size_of_val(&*self.0)
    }

    /// The slot's number, for the engine.
    #[inline]
    pub(super) fn number(&self, g: u64) -> u16 {
        (g & (self.len() - 1)) as u16
    }

    #[inline]
    pub(super) fn at(&self, g: u64) -> &Slot<W> {
        &self.0[usize::from(self.number(g))]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, g: u64) -> &mut Slot<W> {
        let number = usize::from(self.number(g));
        &mut self.0[number]
    }

    pub(super) fn numbered(&self, number: u16) -> &Slot<W> {
        &self.0[usize::from(number) & (self.0.len() - 1)]
    }

    /// CheckDuplicate: whether the endpoint's packet at `g` is in.
    pub(super) fn check_duplicate(&self, g: u64, from: EndpointId) -> bool {
        self.at(g).contributed.contains(from)
    }

    /// AggregateData: the endpoint's packet at `g` is in now.
    pub(super) fn aggregate_data(&mut self, g: u64, from: EndpointId, fan_in: EndpointSet<W>) -> Aggregated {
        let slot = self.at_mut(g);
        let first = slot.contributed.is_empty();
        slot.contributed.insert(from);
        Aggregated {
            first,
            complete: fan_in.minus(slot.contributed).is_empty(),
        }
    }

    /// RecycleBuffer: positions from `start` to before `end` are over.
    pub(super) fn recycle_buffer(&mut self, start: u64, end: u64) {
        for g in start..end.min(start + self.len()) {
            *self.at_mut(g) = Slot::default();
        }
    }
}
