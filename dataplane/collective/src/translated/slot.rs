//! The state of each packet in flight, without its payload. A slot first holds the sum of the children's contributions, and later the
//! result of the whole tree. In Mode-III the aggregation pipe has the sum, and the broadcast pipe the result. As in the paper, the slot of
//! a position is `g % N` with `N` slots. Only positions in `psn_start .. psn_start + N` are accepted, and a slot is recycled when
//! `psn_start` passes it.

use super::pipe::Pipe;
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

/// The slots of all pipes, one pipe after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Slots<const W: usize> {
    slots: Box<[Slot<W>]>,
    /// Slots of one pipe, the paper's `N`: a power of two.
    ring: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aggregated {
    pub(super) first: bool,
    pub(super) complete: bool,
}

impl<const W: usize> Slots<W> {
    /// `pipes`: one or two.
    pub(super) fn new(slots: u16, pipes: u16) -> Self {
        let slots = slots.clamp(2 * pipes, 1 << 15).next_power_of_two();
        Self {
            slots: vec![Slot::default(); slots.into()].into_boxed_slice(),
            ring: slots / pipes,
        }
    }

    /// Slots of all pipes.
    pub(super) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Slots of one pipe.
    #[inline]
    pub(super) fn ring(&self) -> u64 {
        self.ring.into()
    }

    pub(super) fn bytes(&self) -> usize {
        core::mem::size_of_val(&*self.slots)
    }

    #[inline]
    pub(super) fn number(&self, pipe: Pipe, g: u64) -> u16 {
        pipe as u16 * self.ring + (g & (self.ring() - 1)) as u16
    }

    #[inline]
    pub(super) fn at(&self, pipe: Pipe, g: u64) -> &Slot<W> {
        &self.slots[usize::from(self.number(pipe, g))]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, pipe: Pipe, g: u64) -> &mut Slot<W> {
        let number = usize::from(self.number(pipe, g));
        &mut self.slots[number]
    }

    pub(super) fn numbered(&self, number: u16) -> &Slot<W> {
        &self.slots[usize::from(number) & (self.slots.len() - 1)]
    }

    /// CheckDuplicate: true if the packet of the endpoint at `g` has been received.
    pub(super) fn check_duplicate(&self, pipe: Pipe, g: u64, from: EndpointId) -> bool {
        self.at(pipe, g).contributed.contains(from)
    }

    /// AggregateData: records the packet of the endpoint at `g` as received.
    pub(super) fn aggregate_data(
        &mut self,
        pipe: Pipe,
        g: u64,
        from: EndpointId,
        fan_in: EndpointSet<W>,
    ) -> Aggregated {
        let slot = self.at_mut(pipe, g);
        let first = slot.contributed.is_empty();
        slot.contributed.insert(from);
        Aggregated {
            first,
            complete: fan_in.minus(slot.contributed).is_empty(),
        }
    }

    /// RecycleBuffer: clears the slots from `start` to before `end`.
    pub(super) fn recycle_buffer(&mut self, pipe: Pipe, start: u64, end: u64) {
        let (ring, count) = (
            usize::from(self.ring),
            end.saturating_sub(start).min(self.ring()) as usize,
        );
        let (first, whole) = (usize::from(self.number(pipe, start)), pipe as usize * ring);
        let before_wrap = count.min(whole + ring - first);
        for part in [first..first + before_wrap, whole..whole + count - before_wrap] {
            self.slots[part].fill(Slot::default());
        }
    }
}
