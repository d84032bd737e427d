//! What the engine counts: plain numbers that one thread writes, copied into a snapshot when somebody asks.
//!
//! Contract S1 is an equation over [`Totals`]: every frame received is exactly one of switched, routed, flooded,
//! replicated, absorbed or dropped. And what was sent is the frames that went on, their copies, and what the switch
//! itself made: `sent = switched + routed + flooded + replicated + copies + originated`.

use core::net::Ipv4Addr;

use castnet_rules::GroupRule;
use castnet_wire::{DropReason, McstId, PortId};

/// The whole switch (one worker's part of it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that came in.
    pub received: u64,
    /// Of these: sent on to one port by Ethernet address.
    pub switched: u64,
    /// Of these: sent on by IPv4 route.
    pub routed: u64,
    /// Of these: sent on to all ports that flood.
    pub flooded: u64,
    /// Of these: data of a group, sent on to one or more paths.
    pub replicated: u64,
    /// Of these: read by the switch itself and ended here (feedback to a group, ARP requests for it, LLDP).
    pub absorbed: u64,
    /// Of these: dropped, each for one [`DropReason`].
    pub dropped: u64,
    /// Frames sent beside the one that came in, by flooding and replication.
    pub copies: u64,
    /// Copies and frames of the switch's own that could not be made or sent: no free buffer, or the port was down.
    pub copies_lost: u64,
    /// Frames that the switch made: aggregated feedback, ARP replies, LLDP.
    pub originated: u64,
    /// Frames handed to ports for sending.
    pub sent: u64,
}

/// One port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCounters {
    /// The port.
    pub port: PortId,
    /// Frames that came in.
    pub rx_frames: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// Frames handed to the port for sending.
    pub tx_frames: u64,
    /// Their bytes, without FCS.
    pub tx_bytes: u64,
    /// Frames that came in here and were dropped, by [`DropReason::index`].
    pub drops: [u64; DropReason::COUNT],
}

/// One group: what each frame of it touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Data frames taken from the source.
    pub data_in: u64,
    /// Their bytes, without FCS.
    pub data_bytes_in: u64,
    /// Data frames sent to paths.
    pub data_out: u64,
    /// Their bytes.
    pub data_bytes_out: u64,
    /// ACKs from paths.
    pub acks_in: u64,
    /// ACKs towards the source.
    pub acks_out: u64,
    /// The rest: exceptions.
    pub more: GroupExceptions,
}

/// One group: what happens to it now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupExceptions {
    /// NAKs from paths.
    pub naks_in: u64,
    /// NAKs towards the source.
    pub naks_out: u64,
    /// RNR NAKs from paths.
    pub rnr_naks_in: u64,
    /// RNR NAKs towards the source.
    pub rnr_naks_out: u64,
    /// CNPs from paths.
    pub cnps_in: u64,
    /// CNPs towards the source.
    pub cnps_out: u64,
    /// Data frames whose PSN had come before.
    pub retransmitted: u64,
    /// Copies of retransmitted frames that were not made because their path had acknowledged them (M3).
    pub filtered: u64,
    /// Copies of WRITEs that left without a valid key, because they lie outside the memory that their member named.
    pub out_of_range: u64,
    /// Copies and feedback that were not sent: no buffer, or the port was down.
    pub lost: u64,
    /// Frames to the group that were dropped.
    pub dropped: u64,
    /// Stalls of paths that were reported.
    pub stalls: u64,
}

/// One path of a group: exceptions only, so that plain replication writes nothing here.
///
/// The data frames sent to a path that is not the source's are `data_in - filtered - lost` of this path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// ACKs from it.
    pub acks_in: u64,
    /// NAKs from it.
    pub naks_in: u64,
    /// RNR NAKs from it.
    pub rnr_naks_in: u64,
    /// CNPs from it.
    pub cnps_in: u64,
    /// Copies of retransmitted frames that it did not need.
    pub filtered: u64,
    /// Copies of WRITEs that left without a valid key.
    pub out_of_range: u64,
    /// Copies that were not sent to it: no buffer, or the port was down.
    pub lost: u64,
}

/// A collective group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectiveCounters {
    /// Data packets whose payload was added or stored.
    pub contributions: u64,
    /// Their bytes of payload.
    pub contribution_bytes: u64,
    /// Data packets sent.
    pub results: u64,
    /// Their bytes of payload.
    pub result_bytes: u64,
    /// Control messages taken.
    pub controls_in: u64,
    /// Control messages sent.
    pub controls_out: u64,
    /// Packets that had come before.
    pub repeats: u64,
    /// ACKs from endpoints.
    pub acks_in: u64,
    /// NAKs from endpoints.
    pub naks_in: u64,
    /// RNR NAKs from endpoints.
    pub rnr_naks_in: u64,
    /// ACKs to endpoints, keep-alives among them.
    pub acks_out: u64,
    /// NAKs to endpoints.
    pub naks_out: u64,
    /// RNR NAKs to endpoints.
    pub rnr_naks_out: u64,
    /// Of the ACKs: those that time alone asked for.
    pub keep_alives: u64,
    /// Frames to the group that were dropped.
    pub dropped: u64,
    /// Packets and feedback that were not sent: no buffer, or the port was down.
    pub lost: u64,
    /// Stalls that were reported.
    pub stalls: u64,
    /// Conflicts that were reported.
    pub conflicts: u64,
}

/// Congestion in a collective group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounters {
    /// Data and control packets that were marked on their way (ECN: CE).
    pub marked: u64,
    /// CNPs from endpoints.
    pub cnps_in: u64,
    /// CNPs to endpoints.
    pub cnps_out: u64,
}

/// One endpoint of a collective group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Data and control packets taken from it.
    pub contributions: u64,
    /// Packets of it that had come before.
    pub repeats: u64,
    /// Packets sent to it.
    pub results: u64,
    /// ACKs from it.
    pub acks_in: u64,
    /// NAKs from it.
    pub naks_in: u64,
    /// RNR NAKs from it.
    pub rnr_naks_in: u64,
    /// ACKs to it, keep-alives among them.
    pub acks_out: u64,
    /// NAKs to it.
    pub naks_out: u64,
    /// RNR NAKs to it.
    pub rnr_naks_out: u64,
    /// Of the ACKs: those that time alone asked for.
    pub keep_alives: u64,
    /// Packets and feedback that were not sent to it: no buffer, or the port was down.
    pub lost: u64,
}

/// One endpoint of a collective group in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// Its port.
    pub port: PortId,
    /// Its counters.
    pub counters: EndpointCounters,
}

/// A group that forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingCounters {
    /// Frames that went on to the other endpoint.
    pub forwarded: u64,
    /// Frames to the group that were dropped.
    pub dropped: u64,
}

/// One endpoint of a group that forwards, in a snapshot.
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
    /// Which version of its rule runs.
    pub generation: u64,
    /// Its counters.
    pub counters: C,
    /// Its first endpoint's place in [`KindSnapshot::endpoints`].
    first: usize,
    /// How many endpoints follow from there.
    count: usize,
}

/// The groups of one kind in a snapshot, as many as there was room for.
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

    /// Puts the group of `rule` in; `false` where there is no room for it.
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
    /// Whether it is the path towards the source.
    pub source: bool,
    /// Data frames sent to it.
    pub data_out: u64,
    /// Its exceptions.
    pub counters: PathCounters,
}

/// A copy of all counters. The caller makes it once with room for what it wants, and has it filled again and again.
#[derive(Clone, Debug, Default)]
pub struct CountersSnapshot {
    /// The whole.
    pub totals: Totals,
    /// Drops of all ports by [`DropReason::index`].
    pub drops: [u64; DropReason::COUNT],
    /// Each port, in order of its number.
    pub ports: Vec<PortCounters>,
    /// Groups that multicast, and their paths.
    pub multicast: KindSnapshot<GroupCounters, PathSnapshot>,
    /// Groups that compute, and their endpoints.
    pub collective: KindSnapshot<CollectiveCounters, EndpointSnapshot>,
    /// Groups that forward, and their endpoints.
    pub forwarding: KindSnapshot<ForwardingCounters, ForwardingEndpoint>,
    /// Where the next snapshot starts among the groups; 0 from the first. [`crate::Engine::snapshot`] moves it on to
    /// the first group that had no room, or back to 0 when it reached the last.
    pub next_group: usize,
}

impl CountersSnapshot {
    /// An empty one with room for so many groups of each kind and, in all of a kind together, endpoints.
    pub fn with_capacity(groups: usize, endpoints: usize) -> Self {
        Self {
            ports: Vec::with_capacity(PortId::COUNT),
            multicast: KindSnapshot::with_capacity(groups, endpoints),
            collective: KindSnapshot::with_capacity(groups, endpoints),
            forwarding: KindSnapshot::with_capacity(groups, endpoints),
            ..Self::default()
        }
    }

    /// Takes all out but the place where the next one starts.
    pub(crate) fn clear(&mut self) {
        self.ports.clear();
        self.multicast.clear();
        self.collective.clear();
        self.forwarding.clear();
    }

    /// The multicast group of this address, where the snapshot has it.
    pub fn group(&self, address: Ipv4Addr) -> Option<&GroupSnapshot<GroupCounters>> {
        self.multicast.groups.iter().find(|g| g.mcst_id.0 == address)
    }

    /// Drops of all ports for `reason`.
    pub fn drops_for(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }
}

/// What every frame touches of a port, together; drops apart.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
}

/// The engine's own.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) totals: Totals,
    traffic: Box<[Traffic; PortId::COUNT]>,
    drops: Box<[[u64; DropReason::COUNT]; PortId::COUNT]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            totals: Totals::default(),
            traffic: Box::new([Traffic::default(); PortId::COUNT]),
            drops: Box::new([[0; DropReason::COUNT]; PortId::COUNT]),
        }
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

    pub(crate) fn dropped(&mut self, port: PortId, reason: DropReason) {
        self.totals.dropped += 1;
        self.drops[port.index()][reason.index()] += 1;
    }

    pub(crate) fn port(&self, port: PortId) -> PortCounters {
        let Traffic {
            rx_frames,
            rx_bytes,
            tx_frames,
            tx_bytes,
        } = self.traffic[port.index()];
        PortCounters {
            port,
            rx_frames,
            rx_bytes,
            tx_frames,
            tx_bytes,
            drops: self.drops[port.index()],
        }
    }

    /// Drops of all ports together.
    pub(crate) fn drops(&self) -> [u64; DropReason::COUNT] {
        let mut sum = [0; DropReason::COUNT];
        for port in self.drops.iter() {
            for (sum, n) in sum.iter_mut().zip(port) {
                *sum += n;
            }
        }
        sum
    }
}
