//! Events for the operator, in a bounded queue that the worker drains.

use std::collections::VecDeque;

use castnet_collective::path::WORDS_MAX;
use castnet_collective::translated::Refusal;
use castnet_collective::{EndpointId, EndpointSet};
use castnet_rules::GroupRule;
use castnet_wire::{Control, Limit, McstId, Nanos, PortId, Psn};

use crate::observe::neighbour::Neighbour;

/// How often a group reports a kind of event that its members can cause at will, so that it does not displace other events.
pub(crate) const REPORTS: Limit = Limit::new(8, Nanos::from_millis(100));

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// Time of the event.
    pub at: Nanos,
    /// The event.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A path of a group has not acknowledged data for longer than the group's stall time.
    PathStalled {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoint that the path leads to: its index.
        endpoint: u16,
        /// Time of its last progress.
        since: Nanos,
        /// How often the packet that it lacks was sent to it again since then.
        tries: u16,
    },
    /// A group without a configured start PSN has received the first data of its source.
    BaselineLearned {
        /// The group.
        mcst_id: McstId,
        /// The PSN of the first packet.
        psn: Psn,
    },
    /// A joining member of a multicast group gets data from this packet on. Repeated while the member has not acknowledged it and the
    /// source goes back to it.
    PathJoined {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoint: its index.
        endpoint: u16,
        /// The PSN of the first packet.
        psn: Psn,
    },
    /// A member of a group whose source may change wants to send while another one sends or waits to send. Reported once for each source.
    SourcesCompete {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoint of the member: its index.
        endpoint: u16,
    },
    /// A receiver has ended its connection with a fatal NAK, or the source's data cannot be delivered to it.
    MemberFailed {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoint: its index.
        endpoint: u16,
        /// The AETH syndrome byte.
        syndrome: u8,
    },
    /// A packet of a collective group has waited for longer than the group's stall time. A group reports at most eight at once and ten a
    /// second, and all groups that wait for somebody at the same port 256 at once and 250 a second.
    CollectiveStalled {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoints whose contribution is missing or, where none is, that have not acknowledged.
        waiting_for: EndpointSet<WORDS_MAX>,
        /// The packet, by the group's PSN.
        psn: Psn,
        /// Time at which a packet was last finished.
        since: Nanos,
    },
    /// A packet of a rank breaks a rule of the collective group, and is dropped. Reported once for each rank, and 16 times at once and four times
    /// a second for each port.
    RankRefused {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The endpoint of the rank: its index.
        endpoint: u16,
        /// Number of the collective in the group.
        sequence: u32,
        /// The broken rule.
        why: Refusal,
    },
    /// The ranks of a collective group called different collectives.
    CollectiveConflict {
        /// The group.
        mcst_id: McstId,
        /// The version of its rule.
        generation: u64,
        /// The merged control message, with the two different calls.
        control: Control,
    },
    /// A new neighbour on a link.
    NeighbourAppeared(Neighbour),
    /// A known neighbour has changed its description or its port.
    NeighbourChanged(Neighbour),
    /// A neighbour has expired, was withdrawn or displaced, or its port went down.
    NeighbourGone(Neighbour),
    /// A host claims an address that was seen at another port, or with another Ethernet address. The host that has it is asked, and keeps it
    /// unless it is silent three times.
    AddressClaimed {
        /// Who claims it, and where.
        claim: Neighbour,
        /// The port of the host that has it.
        at: PortId,
    },
    /// More neighbours have appeared, changed or gone at a port than the rate limit of these events allows.
    NeighboursUnreported {
        /// The port.
        port: PortId,
        /// The number of unreported changes.
        changes: u64,
    },
    /// The table of neighbours learned from ARP is full. Reported once, until an entry is free again.
    NeighboursFull {
        /// The number of neighbours in the table.
        entries: usize,
        /// The port with most entries: new entries displace its oldest ones.
        port: PortId,
    },
    /// The forwarding database is full. Reported once, until an entry is free again.
    FdbFull {
        /// The number of addresses in the table.
        entries: usize,
        /// The port with most entries: new entries displace its oldest ones.
        port: PortId,
    },
}

/// Events that traffic can cause at will. Each share has a rate limit of its own at each port, so that events of other shares use up nothing
/// of it. Failures have one because they say which member of a group is gone.
#[derive(Clone, Copy)]
enum Share {
    Neighbours,
    Stalls,
    Failures,
    Others,
}

impl Share {
    fn of(kind: &EventKind) -> Self {
        match kind {
            EventKind::NeighbourAppeared(_)
            | EventKind::NeighbourChanged(_)
            | EventKind::NeighbourGone(_)
            | EventKind::AddressClaimed { .. } => Self::Neighbours,
            EventKind::CollectiveStalled { .. } => Self::Stalls,
            EventKind::MemberFailed { .. } => Self::Failures,
            _ => Self::Others,
        }
    }
}

/// Rate limit of a share of a port: a burst of 16, then one each 250 ms.
const FEW: Limit = Limit::new(16, Nanos::from_millis(250));
/// The same for stalls of collective groups that wait for somebody at the port: a burst of 256, then one each 4 ms. Those of paths of multicast
/// groups have no such limit: a receiver is put out because of them.
const STALLS: Limit = Limit::new(256, Nanos::from_millis(4));
/// By [`Share`].
const SHARES: [Limit; 4] = [FEW, STALLS, FEW, FEW];

/// If it is full, further events are only counted. Any host can cause neighbour events at the speed of its link, and other events in as many
/// groups as it has: they are rate-limited for each port, and use at most half of the queue, so that they displace neither other events nor
/// those of another port.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    queue: VecDeque<EngineEvent>,
    capacity: usize,
    lost: u64,
    unreported: Box<[u64; PortId::COUNT]>,
    limits: Box<[[Limit; SHARES.len()]; PortId::COUNT]>,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            lost: 0,
            unreported: Box::new([0; PortId::COUNT]),
            limits: Box::new([SHARES; PortId::COUNT]),
        }
    }

    pub(crate) fn push(&mut self, at: Nanos, kind: EventKind) {
        if self.queue.len() < self.capacity {
            self.queue.push_back(EngineEvent { at, kind });
        } else {
            self.lost += 1;
        }
    }

    /// Reports an event that traffic of a port can cause at will, within the rate limit of its share. The others are counted: changes of
    /// neighbours for [`EventKind::NeighboursUnreported`], stalls by their groups.
    pub(crate) fn of_port(&mut self, at: Nanos, port: PortId, kind: EventKind) {
        let share = Share::of(&kind);
        let limit = &mut self.limits[port.index()][share as usize];
        if self.queue.len() < self.capacity / 2 && limit.allows(at) {
            self.push(at, kind);
            return;
        }
        match share {
            Share::Neighbours => self.unreported[port.index()] += 1,
            Share::Stalls => {}
            Share::Failures | Share::Others => self.lost += 1,
        }
    }

    /// The same for an endpoint of a group.
    pub(crate) fn of_endpoint(&mut self, at: Nanos, rule: &GroupRule, endpoint: usize, kind: EventKind) {
        let port = rule.endpoints.get(endpoint).map(|endpoint| endpoint.port);
        self.of_port(at, port.unwrap_or_default(), kind);
    }

    /// Reports that a member has failed. The first failure of a group and generation may use the whole queue: the controller ends a generation
    /// of a collective group because of it.
    pub(crate) fn failure(
        &mut self,
        at: Nanos,
        rule: &GroupRule,
        endpoint: usize,
        syndrome: u8,
        is_first: bool,
    ) {
        let kind = EventKind::MemberFailed {
            mcst_id: rule.mcst_id,
            generation: rule.generation,
            endpoint: endpoint as u16,
            syndrome,
        };
        match is_first {
            true => self.push(at, kind),
            false => self.of_endpoint(at, rule, endpoint, kind),
        }
    }

    /// Reports that a packet of a collective group waits for these endpoints.
    pub(crate) fn stall(
        &mut self,
        at: Nanos,
        rule: &GroupRule,
        waiting_for: EndpointSet<WORDS_MAX>,
        (psn, since): (Psn, Nanos),
    ) {
        let kind = EventKind::CollectiveStalled {
            mcst_id: rule.mcst_id,
            generation: rule.generation,
            waiting_for,
            psn,
            since,
        };
        let first = waiting_for.iter().next().map_or(0, EndpointId::index);
        self.of_endpoint(at, rule, first, kind);
    }

    /// Reports that ranks have called different collectives. Once in a generation: nothing is served after it.
    pub(crate) fn conflict(&mut self, at: Nanos, rule: &GroupRule, control: Control) {
        let kind = EventKind::CollectiveConflict {
            mcst_id: rule.mcst_id,
            generation: rule.generation,
            control,
        };
        self.push(at, kind);
    }

    pub(crate) fn report_suppressed(&mut self, at: Nanos) {
        for (n, changes) in self.unreported.iter_mut().enumerate() {
            if let (Some(port), 1..) = (PortId::new(n as u8), *changes)
                && self.queue.len() < self.capacity
            {
                let changes = std::mem::take(changes);
                let kind = EventKind::NeighboursUnreported { port, changes };
                self.queue.push_back(EngineEvent { at, kind });
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<EngineEvent> {
        self.queue.pop_front()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_of_neighbours_displace_no_events_and_are_counted() {
        let mut events = Events::new(40);
        let [p0, p1, p2] = [0, 1, 2].map(|n| PortId::new(n).unwrap_or_default());
        let change = |port| {
            EventKind::NeighbourGone(Neighbour {
                port,
                said: crate::Said::Arp {
                    ip: [10, 0, 0, 1].into(),
                    mac: castnet_wire::MacAddr::default(),
                },
                seen: Nanos::ZERO,
            })
        };
        for at in 0..1000 {
            events.of_port(Nanos(at), p0, change(p0));
            events.of_port(Nanos(at), p1, change(p1));
        }
        // Half of the queue is reserved for other events, so the flood of the third port gets nothing.
        events.of_port(Nanos(1000), p2, change(p2));
        let full = EventKind::FdbFull { entries: 1, port: p0 };
        (0..20).for_each(|_| events.push(Nanos(1000), full));
        assert_eq!(events.lost(), 0);
        let popped: Vec<EventKind> = core::iter::from_fn(|| events.pop()).map(|e| e.kind).collect();
        let of = |kind| popped.iter().filter(|k| **k == kind).count();
        assert_eq!([of(change(p0)), of(change(p1)), of(full)], [10, 10, 20]);
        events.report_suppressed(Nanos(2000));
        events.report_suppressed(Nanos(2000));
        let counted: Vec<EventKind> = core::iter::from_fn(|| events.pop()).map(|e| e.kind).collect();
        let unreported = |port, changes| EventKind::NeighboursUnreported { port, changes };
        assert_eq!(
            counted,
            [unreported(p0, 990), unreported(p1, 990), unreported(p2, 1)]
        );
        // The first port has six left of its sixteen, and one more every quarter of a second.
        (0..50).for_each(|_| events.of_port(Nanos(2000), p0, change(p0)));
        assert_eq!(core::iter::from_fn(|| events.pop()).count(), 6);
        events.of_port(Nanos::from_millis(251), p0, change(p0));
        assert_eq!(core::iter::from_fn(|| events.pop()).count(), 1);
    }
}
