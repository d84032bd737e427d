//! What the operator should hear of without asking: a bounded queue that the worker drains.

use std::collections::VecDeque;

use castnet_wire::{Control, McstId, Nanos, PortId, Psn};

use crate::neighbours::Neighbour;
use crate::port_set::PortSet;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// When.
    pub at: Nanos,
    /// What.
    pub kind: EventKind,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A path of a group owes acknowledgements for longer than the group's stall time.
    PathStalled {
        /// The group.
        mcst_id: McstId,
        /// The port of the path.
        port: PortId,
        /// Since when nothing has come.
        since: Nanos,
    },
    /// A group without a configured start PSN saw its source's first data.
    BaselineLearned {
        /// The group.
        mcst_id: McstId,
        /// The PSN of the first packet.
        psn: Psn,
    },
    /// A receiver ended its connection with a fatal NAK, or the source's data cannot be delivered to it.
    MemberFailed {
        /// The group.
        mcst_id: McstId,
        /// Which version of its rule.
        generation: u64,
        /// The port of the path.
        port: PortId,
        /// The AETH syndrome byte.
        syndrome: u8,
    },
    /// A packet of a collective group has waited for longer than the group's stall time.
    CollectiveStalled {
        /// The group.
        mcst_id: McstId,
        /// Which version of its rule.
        generation: u64,
        /// The ports whose contribution is missing or, where none is, that have not acknowledged.
        waiting_for: PortSet,
        /// The packet, by the group's PSN.
        psn: Psn,
        /// Since when nothing was finished.
        since: Nanos,
    },
    /// The ranks of a collective group called different collectives.
    CollectiveConflict {
        /// The group.
        mcst_id: McstId,
        /// Which version of its rule.
        generation: u64,
        /// Who said what.
        control: Control,
    },
    /// Somebody new on a link.
    NeighbourAppeared(Neighbour),
    /// Somebody known says something else than before, or speaks from another port.
    NeighbourChanged(Neighbour),
    /// Nothing was heard of somebody for as long as he said to wait.
    NeighbourGone(Neighbour),
    /// The forwarding database is full: further addresses are flooded. Told once until there is place again.
    FdbFull {
        /// The addresses it holds.
        entries: usize,
    },
}

/// The queue: where it is full, events are counted and forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    queue: VecDeque<EngineEvent>,
    capacity: usize,
    lost: u64,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            lost: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Nanos, kind: EventKind) {
        if self.queue.len() < self.capacity {
            self.queue.push_back(EngineEvent { at, kind });
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<EngineEvent> {
        self.queue.pop_front()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}
