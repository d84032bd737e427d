//! The state of each packet in flight, without its payload. A slot first holds the sum of the children's contributions, and later the
//! result of the whole tree. As in the paper, the slot of a position is `g % slots`. Only positions in `base .. base + slots` are
//! accepted, and a slot is recycled when `base` passes it.

use super::{EndpointId, EndpointSet, PacketShape};
use alloc::boxed::Box;
use alloc::vec;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    #[default]
    Filling,
    /// All children have contributed; the result of the whole tree is missing.
    Partial,
    /// The result for the receivers is present.
    Result,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slot<const W: usize> {
    /// The paper's `arrived`, whose size is `degree`. The result of the parent counts, too.
    pub(super) contributed: EndpointSet<W>,
    pub(super) shape: PacketShape,
    pub(super) phase: Phase,
    /// A contribution has requested an acknowledgement, so the result does, too.
    pub(super) ack_request: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slots<const W: usize>(Box<[Slot<W>]>);

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

    /// CheckDuplicate: true if the packet of the endpoint at `g` has been received.
    pub(super) fn check_duplicate(&self, g: u64, from: EndpointId) -> bool {
        self.at(g).contributed.contains(from)
    }

    /// AggregateData: records the packet of the endpoint at `g` as received.
    pub(super) fn aggregate_data(&mut self, g: u64, from: EndpointId, fan_in: EndpointSet<W>) -> Aggregated {
        let slot = self.at_mut(g);
        let first = slot.contributed.is_empty();
        slot.contributed.insert(from);
        Aggregated {
            first,
            complete: fan_in.minus(slot.contributed).is_empty(),
        }
    }

    /// RecycleBuffer: clears the slots from `start` to before `end`.
    pub(super) fn recycle_buffer(&mut self, start: u64, end: u64) {
        for g in start..end.min(start + self.len()) {
            *self.at_mut(g) = Slot::default();
        }
    }
}
