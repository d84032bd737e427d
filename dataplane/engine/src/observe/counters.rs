//! The counters of the engine: plain numbers that one thread writes, and snapshots of them.
//!
//! Contract S1 over [`Totals`]: every received frame is exactly one of switched, routed, flooded, replicated, absorbed or dropped, and
//! `sent = switched + routed + flooded + replicated + copies + originated`.
//!
//! A counter is named here and in the message that reports it (`agent.proto`), and nowhere else: sums, JSON and rates visit the fields.

use core::net::Ipv4Addr;

use castnet_rules::GroupRule;
use castnet_wire::{CounterSet, DropReason, Drops, McstId, PortId, counters};

use crate::observe::trace::Verdict;

counters! {
    /// The whole switch (one worker's part of it).
    pub struct Totals => copy_totals {
        /// Frames that came in.
        received,
        /// Received frames that were sent to one port by Ethernet address.
        switched,
        /// Received frames that were sent by IPv4 route.
        routed,
        /// Received frames that were sent to all flood ports.
        flooded,
        /// Received data frames of a group that were sent to one or more paths.
        replicated,
        /// Received frames that the switch itself consumed (feedback to a group, ARP requests for it, LLDP).
        absorbed,
        /// Received frames that were dropped, each for one [`DropReason`].
        dropped,
        /// Frames sent in addition to the received one, by flooding and replication.
        copies,
        /// Copies and originated frames that could not be made or sent: no free buffer, or the port was down.
        copies_lost,
        /// Frames that the switch made: aggregated feedback, ARP replies, LLDP.
        originated,
        /// Frames handed to ports for sending.
        sent,
        /// Violated internal invariants. It is always zero, unless Castnet has a bug that should be reported.
        internal_errors,
    }
}

counters! {
    /// The counters of a port that every frame changes.
    pub struct PortTraffic {
        /// Frames that came in.
        rx_frames,
        /// Their bytes, without FCS.
        rx_bytes,
        /// Frames handed to the port for sending.
        tx_frames,
        /// Their bytes, without FCS.
        tx_bytes,
    }
}

counters! {
    /// One port.
    pub struct PortCounters {
        ;
        /// Frames and bytes.
        traffic: PortTraffic,
        /// Received frames that were dropped.
        drops: Drops,
    }
}

counters! {
    /// One multicast group.
    pub struct MulticastCounters => copy_multicast_counters {
        /// Counters that plain data and ACKs change.
        hot: pub(crate) HotCounters {
            /// Data frames taken from the source.
            data_in,
            /// Their bytes, without FCS.
            data_bytes_in,
            /// Data frames sent to paths.
            copies_out,
            /// Their bytes.
            copy_bytes_out,
            /// ACKs from paths.
            acks_in,
            /// ACKs towards the source.
            acks_out,
        }
        /// Counters that change rarely.
        exceptions: pub(crate) Exceptions {
            /// NAKs from paths.
            naks_in,
            /// NAKs towards the source.
            naks_out,
            /// RNR NAKs from paths.
            rnr_naks_in,
            /// RNR NAKs towards the source.
            rnr_naks_out,
            /// CNPs from paths.
            cnps_in,
            /// CNPs towards the source.
            cnps_out,
            /// CNPs that were absorbed, because another path is more congested (M4).
            cnps_filtered,
            /// Received data frames with an earlier PSN.
            retransmitted_in,
            /// Copies of received frames that were not made: the path had acknowledged the frame (M3), or is sent it later by repair.
            filtered,
            /// Copies of WRITEs that were sent with an invalid key, because they lie outside the memory of the member.
            out_of_range,
            /// Copies and feedback that were not sent: no buffer, or the port was down.
            lost,
            /// Frames to the group that were dropped.
            dropped,
            /// Of the dropped frames: data over the rate limit.
            rate_drops,
            /// Data frames that were marked (ECN: CE) because the sender comes near the rate limit.
            rate_marks,
            /// Reported stalls of paths.
            stalls,
            /// Data frames that were kept for repair.
            kept,
            /// Copies that were sent from the kept frames; a part of `copies_out`.
            resent,
            /// Requests of switches for a packet.
            requests_in,
            /// Requests for a packet to the switch towards the source.
            requests_out,
        }
    }
}

counters! {
    /// One path of a group: exceptions only, so that plain replication writes nothing here. Unless it is the source's path, the data
    /// frames sent to it are `data_in - filtered - lost + resent`, the latter three of this path.
    pub struct PathCounters => copy_path_counters {
        /// ACKs from it.
        acks_in,
        /// NAKs from it.
        naks_in,
        /// RNR NAKs from it.
        rnr_naks_in,
        /// CNPs from it.
        cnps_in,
        /// Copies of received frames that it did not need, or was sent later by repair.
        filtered,
        /// Copies of WRITEs that were sent with an invalid key.
        out_of_range,
        /// Copies that were not sent to it: no buffer, or the port was down.
        lost,
        /// Copies that were sent to it from the kept frames.
        resent,
    }
}

counters! {
    /// A collective group.
    pub struct CollectiveCounters => copy_collective_counters {
        /// Data packets whose payload was added or stored.
        contributions,
        /// Their bytes of payload.
        contribution_bytes,
        /// Data packets sent.
        results,
        /// Their bytes of payload.
        result_bytes,
        /// Control messages received.
        controls_in,
        /// Control messages sent.
        controls_out,
        /// Repeated packets.
        repeats,
        /// ACKs from endpoints.
        acks_in,
        /// NAKs from endpoints.
        naks_in,
        /// RNR NAKs from endpoints.
        rnr_naks_in,
        /// ACKs to endpoints, keep-alives among them.
        acks_out,
        /// NAKs to endpoints.
        naks_out,
        /// RNR NAKs to endpoints.
        rnr_naks_out,
        /// Of the ACKs: those that only a timer has caused.
        keep_alives,
        /// Frames to the group that were dropped.
        dropped,
        /// Of the dropped frames: data over the rate limit.
        rate_drops,
        /// Data packets for which a rank was asked to slow down (CNP) because it comes near the rate limit.
        rate_marks,
        /// Packets and feedback that were not sent: no buffer, or the port was down.
        lost,
        /// Reported stalls.
        stalls,
        /// Reported conflicts.
        conflicts,
    }
}

counters! {
    /// Congestion in a collective group.
    pub struct CongestionCounters {
        /// Data and control packets received with a congestion mark (ECN: CE).
        marked,
        /// CNPs from endpoints.
        cnps_in,
        /// CNPs to endpoints.
        cnps_out,
    }
}

counters! {
    /// One endpoint of a collective group.
    pub struct EndpointCounters => copy_endpoint_counters {
        /// Data and control packets taken from it.
        contributions,
        /// Repeated packets from it.
        repeats,
        /// Packets sent to it.
        results,
        /// ACKs from it.
        acks_in,
        /// NAKs from it.
        naks_in,
        /// RNR NAKs from it.
        rnr_naks_in,
        /// ACKs to it, keep-alives among them.
        acks_out,
        /// NAKs to it.
        naks_out,
        /// RNR NAKs to it.
        rnr_naks_out,
        /// Of the ACKs: those that only a timer has caused.
        keep_alives,
        /// Packets and feedback that were not sent to it: no buffer, or the port was down.
        lost,
    }
}

/// One endpoint of a collective group in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// Its port.
    pub port: PortId,
    /// Its counters.
    pub counters: EndpointCounters,
}

counters! {
    /// A forwarding group.
    pub struct ForwardingCounters => copy_forwarding_counters {
        /// Frames sent to the other endpoint.
        forwarded,
        /// Frames to the group that were dropped.
        dropped,
        /// Of the dropped frames: data over the rate limit.
        rate_drops,
        /// Data frames that were marked (ECN: CE) because the sender comes near the rate limit.
        rate_marks,
    }
}

/// One endpoint of a forwarding group in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingEndpoint {
    /// Its port.
    pub port: PortId,
    /// Frames taken from it.
    pub frames_in: u64,
    /// Frames sent to it.
    pub frames_out: u64,
}

/// One group in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSnapshot<C> {
    /// Its address.
    pub mcst_id: McstId,
    /// The version of its running rule.
    pub generation: u64,
    /// Its counters.
    pub counters: C,
    /// Index of its first endpoint in [`KindSnapshot::endpoints`].
    first: usize,
    count: usize,
}

/// The groups of one kind in a snapshot, up to its capacity.
#[derive(Clone, Debug)]
pub struct KindSnapshot<C, E> {
    /// The groups.
    pub groups: Vec<GroupSnapshot<C>>,
    /// The endpoints of all of them.
    pub endpoints: Vec<E>,
}

impl<C, E> KindSnapshot<C, E> {
    fn with_capacity(groups: usize, endpoints: usize) -> Self {
        Self {
            groups: Vec::with_capacity(groups),
            endpoints: Vec::with_capacity(endpoints),
        }
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.endpoints.clear();
    }

    /// Returns false if the capacity is used up.
    pub(crate) fn add(&mut self, rule: &GroupRule, counters: C, endpoints: impl Iterator<Item = E>) -> bool {
        fn room<T>(list: &Vec<T>, more: usize) -> bool {
            list.len() + more <= list.capacity()
        }
        let count = rule.endpoints.len();
        let fits = room(&self.groups, 1) && room(&self.endpoints, count);
        if fits {
            self.groups.push(GroupSnapshot {
                mcst_id: rule.mcst_id,
                generation: rule.generation,
                counters,
                first: self.endpoints.len(),
                count,
            });
            self.endpoints.extend(endpoints);
        }
        fits
    }

    /// The endpoints of one of its groups, in the order of the group's rule.
    pub fn endpoints_of(&self, group: &GroupSnapshot<C>) -> &[E] {
        let from = self.endpoints.get(group.first..);
        from.and_then(|e| e.get(..group.count)).unwrap_or_default()
    }
}

impl<C, E> Default for KindSnapshot<C, E> {
    fn default() -> Self {
        Self::with_capacity(0, 0)
    }
}

/// One path in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSnapshot {
    /// Its port.
    pub port: PortId,
    /// True if it is the path towards the source.
    pub source: bool,
    /// Data frames sent to it.
    pub copies_out: u64,
    /// Its exceptions.
    pub counters: PathCounters,
}

/// A copy of all counters. The caller creates it once with sufficient capacity, and fills it repeatedly.
#[derive(Clone, Debug, Default)]
pub struct CountersSnapshot {
    /// Counters of the whole switch.
    pub totals: Totals,
    /// Drops of all ports.
    pub drops: Drops,
    /// Each port, in order of its number.
    pub ports: Vec<(PortId, PortCounters)>,
    /// Multicast groups and their paths.
    pub multicast: KindSnapshot<MulticastCounters, PathSnapshot>,
    /// Collective groups and their endpoints.
    pub collective: KindSnapshot<CollectiveCounters, EndpointSnapshot>,
    /// Forwarding groups and their endpoints.
    pub forwarding: KindSnapshot<ForwardingCounters, ForwardingEndpoint>,
    /// Slot at which the next snapshot starts: the first group that did not fit, or 0 after the last one.
    pub next_group: usize,
}

impl CountersSnapshot {
    /// Empty, with capacity for `groups` groups of each kind and `endpoints` endpoints of all groups of a kind.
    pub fn with_capacity(groups: usize, endpoints: usize) -> Self {
        Self {
            ports: Vec::with_capacity(PortId::COUNT),
            multicast: KindSnapshot::with_capacity(groups, endpoints),
            collective: KindSnapshot::with_capacity(groups, endpoints),
            forwarding: KindSnapshot::with_capacity(groups, endpoints),
            ..Self::default()
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ports.clear();
        self.multicast.clear();
        self.collective.clear();
        self.forwarding.clear();
    }

    /// The multicast group of this address, if the snapshot has it.
    pub fn group(&self, address: Ipv4Addr) -> Option<&GroupSnapshot<MulticastCounters>> {
        self.multicast.groups.iter().find(|g| g.mcst_id.0 == address)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) totals: Totals,
    traffic: Box<[PortTraffic; PortId::COUNT]>,
    drops: Box<[Drops; PortId::COUNT]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            totals: Totals::default(),
            traffic: Box::new([PortTraffic::default(); PortId::COUNT]),
            drops: Box::new([Drops::default(); PortId::COUNT]),
        }
    }

    pub(crate) fn prefetch(&self, port: PortId) {
        castnet_reduce::prefetch(&self.traffic[port.index()]);
    }

    pub(crate) fn received(&mut self, port: PortId, frames: u64, bytes: u64) {
        self.totals.received += frames;
        let traffic = &mut self.traffic[port.index()];
        traffic.rx_frames += frames;
        traffic.rx_bytes += bytes;
    }

    pub(crate) fn sent(&mut self, port: PortId, frames: u64, bytes: u64) {
        self.totals.sent += frames;
        let traffic = &mut self.traffic[port.index()];
        traffic.tx_frames += frames;
        traffic.tx_bytes += bytes;
    }

    /// Debug builds panic.
    #[cold]
    pub(crate) fn invariant_violated(&mut self, invariant: &str) {
        debug_assert!(false, "{invariant}");
        self.totals.internal_errors += 1;
    }

    #[inline]
    pub(crate) fn account(&mut self, ingress: PortId, verdict: Verdict) {
        let totals = &mut self.totals;
        match verdict {
            Verdict::Replicated => totals.replicated += 1,
            Verdict::Absorbed => totals.absorbed += 1,
            Verdict::Switched => totals.switched += 1,
            Verdict::Routed => totals.routed += 1,
            Verdict::Flooded => totals.flooded += 1,
            Verdict::Dropped(reason) => self.dropped(ingress, reason),
        }
    }

    fn dropped(&mut self, port: PortId, reason: DropReason) {
        self.totals.dropped += 1;
        self.drops[port.index()][reason] += 1;
    }

    pub(crate) fn port(&self, port: PortId) -> PortCounters {
        PortCounters {
            traffic: self.traffic[port.index()],
            drops: self.drops[port.index()],
        }
    }

    pub(crate) fn drops(&self) -> Drops {
        let mut sum = Drops::default();
        for port in self.drops.iter() {
            sum.add(port);
        }
        sum
    }
}
