//! A compiled collective group, with all its memory.

use castnet_collective::path::WORDS_MAX;
use castnet_collective::translated::{EndpointConfig, EndpointKind, TranslatedConfig, TranslatedStatus};
use castnet_collective::{EndpointId, EndpointSet, Translated};
use castnet_reduce::{Checksum, Kernel, prefetch};
use castnet_rules::{GroupRule, NextHop, RankPart, TranslatedRule};
use castnet_wire::layout::PACKET_HEADERS;
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::{
    Call, CallFlags, CollectiveMode, DataType, Limit, MacAddr, McstId, Nanos, Operation, PortId, Psn, Qpn,
    RoceHeader, TokenBucket,
};
use core::net::Ipv4Addr;

use super::slots::Slots;
use super::terminated::TerminatedContext;
use super::translate::{EndpointConnection, GroupHeader};
use crate::egress::Egress;
use crate::group::install::{macs, rule_bytes};
use crate::group::kind::{EnginePrefetch, Kind};
use crate::group::lookup::LookupTable;
use crate::group::meter;
use crate::group::services::{CollectiveEffects, EffectsOfWidth, Scheduled, Services};
use crate::observe::counters::{
    CollectiveCounters, CongestionCounters, CountersSnapshot, EndpointCounters, EndpointSnapshot,
};
use crate::observe::events::REPORTS;
use crate::observe::trace::{Observer, Off, Verdict};
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// IPv4, UDP, BTH, ImmDt and ICRC around a payload.
pub(crate) const OVERHEAD: usize = PACKET_HEADERS + 4 + ICRC_LEN;
/// Machine ticks per time-out of the members' QPs.
pub(super) const TICKS: u64 = 4;
const NONE: u8 = u8::MAX;

/// A compiled collective group. The width of its endpoint sets depends on the number of endpoints.
#[derive(Debug)]
#[expect(
    private_interfaces,
    reason = "only the engine handles groups of a known width"
)]
pub enum Collective {
    /// Up to 64 endpoints.
    Narrow(Box<CollectiveContext<1>>),
    /// More than 64 endpoints.
    Wide(Box<CollectiveContext<WORDS_MAX>>),
    /// Mode-I.
    Terminated(Box<TerminatedContext>),
}

impl Collective {
    /// The rule is checked, its endpoints are in order. `payload`: with memory for payload.
    pub(crate) fn new(rule: GroupRule, kind: &TranslatedRule, payload: bool) -> Self {
        let config = machine_config(&rule, kind);
        match rule.endpoints.len() <= EndpointSet::<1>::CAPACITY {
            _ if kind.mode == CollectiveMode::Terminated => {
                Self::Terminated(TerminatedContext::new(config, rule, kind, payload))
            }
            true => Self::Narrow(CollectiveContext::new(config, rule, kind, payload)),
            false => Self::Wide(CollectiveContext::new(config, rule, kind, payload)),
        }
    }

    pub(crate) fn copy_state(&mut self, of: &Self) {
        match (self, of) {
            (Self::Narrow(group), Self::Narrow(of)) => group.copy_state(of),
            (Self::Wide(group), Self::Wide(of)) => group.copy_state(of),
            (Self::Terminated(group), Self::Terminated(of)) => group.copy_state(of),
            _ => debug_assert!(false, "both groups have the same rule"),
        }
    }

    /// Bytes that the group has allocated: at most [`GroupRule::reserved_bytes`].
    pub fn footprint(&self) -> usize {
        match self {
            Self::Narrow(group) => group.footprint(),
            Self::Wide(group) => group.footprint(),
            Self::Terminated(group) => group.footprint(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &CollectiveCounters {
        match self {
            Self::Narrow(group) => &group.counters,
            Self::Wide(group) => &group.counters,
            Self::Terminated(group) => &group.counters,
        }
    }
}

/// The context of a collective group at a switch (EPIC 4.1), with `W` words in its sets of endpoints, aligned like [`crate::Group`].
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CollectiveContext<const W: usize> {
    pub(super) machine: Translated<W>,
    pub(super) slots: Slots<W>,
    pub(super) connections: Box<[EndpointConnection]>,
    /// The endpoint of each port, or [`NONE`], if there is no `table`.
    by_port: [u8; PortId::COUNT],
    /// Present if a port has several endpoints.
    table: Option<Box<LookupTable>>,
    pub(super) mcst_id: McstId,
    pub(super) pmtu: usize,
    /// By endpoint; empty without a rate limit.
    pub(super) meters: Box<[Option<TokenBucket>]>,
    pub(super) group_header: GroupHeader,
    pub(super) kernels: KernelCache,
    pub(super) checksum: Checksum,
    pub(super) counters: CollectiveCounters,
    pub(super) congestion: CongestionCounters,
    pub(super) per_endpoint: Box<[EndpointCounters]>,
    pub(super) scheduled: Scheduled,
    pub(super) stalls: Limit,
    /// The failure of a member was reported.
    pub(super) failure_reported: bool,
    pub(super) rule: GroupRule,
}

impl<const W: usize> CollectiveContext<W> {
    fn new(config: TranslatedConfig, rule: GroupRule, kind: &TranslatedRule, payload: bool) -> Box<Self> {
        let mut by_port = [NONE; PortId::COUNT];
        for (i, endpoint) in rule.endpoints.iter().enumerate() {
            by_port[endpoint.port.index()] = i as u8;
        }
        Box::new(Self {
            machine: Translated::new(config),
            slots: Slots::new(&rule, kind, payload),
            connections: rule
                .endpoints
                .iter()
                .map(|e| EndpointConnection::new(e, rule.mcst_id))
                .collect(),
            by_port,
            // Frames of an adjacent switch have the McstID as their source.
            table: LookupTable::new(&rule, Some(rule.mcst_id.0)),
            mcst_id: rule.mcst_id,
            pmtu: rule.pmtu.bytes(),
            meters: match rule.rate_limit {
                Some(_) => rule.endpoints.iter().map(|e| meter::of(&rule, e)).collect(),
                None => Box::default(),
            },
            group_header: GroupHeader::new(rule.mcst_id),
            kernels: KernelCache::default(),
            checksum: Checksum::select(),
            counters: CollectiveCounters::default(),
            congestion: CongestionCounters::default(),
            per_endpoint: vec![EndpointCounters::default(); rule.endpoints.len()].into_boxed_slice(),
            scheduled: Scheduled::default(),
            stalls: REPORTS,
            failure_reported: false,
            rule,
        })
    }

    fn footprint(&self) -> usize {
        size_of::<Self>() - size_of::<Translated<W>>()
            + self.machine.footprint()
            + self.slots.footprint()
            + self.table.as_ref().map_or(0, |table| table.bytes())
            + size_of_val(&*self.connections)
            + size_of_val(&*self.meters)
            + size_of_val(&*self.per_endpoint)
            + rule_bytes(&self.rule)
    }

    /// In the order of the rule.
    fn endpoints(&self) -> impl Iterator<Item = EndpointSnapshot> {
        self.rule
            .endpoints
            .iter()
            .zip(&self.per_endpoint)
            .map(|(endpoint, counters)| EndpointSnapshot {
                port: endpoint.port,
                counters: *counters,
            })
    }

    #[inline]
    fn prefetch_self(&self, ingress: PortId) {
        prefetch(&self.machine);
        prefetch(&self.slots);
        prefetch(&self.kernels);
        match &self.table {
            None => prefetch(&self.by_port[ingress.index()]),
            Some(table) => prefetch(&**table),
        }
        prefetch(&self.counters.contributions);
    }

    #[inline]
    fn prefetch_endpoint(&self, ingress: PortId) {
        let Some(from) = self.endpoint_at(ingress) else {
            return;
        };
        self.machine.prefetch(from, &EnginePrefetch);
        if let Some(connection) = self.connections.get(from.index()) {
            prefetch(&connection.address);
            prefetch(&connection.ect);
        }
        if let Some(meter) = self.meters.get(from.index()) {
            prefetch(meter);
        }
        if let Some(endpoint) = self.per_endpoint.get(from.index()) {
            prefetch(&endpoint.contributions);
        }
    }

    #[inline]
    fn prefetch_next(&self, ingress: PortId) {
        let next = self
            .endpoint_at(ingress)
            .and_then(|from| self.machine.prefetch_next(from, &EnginePrefetch));
        if let Some(slot) = next {
            self.slots.prefetch(slot);
        }
    }

    /// The endpoint of a port. `None` without one, or if the group needs its look-up table.
    #[inline]
    fn endpoint_at(&self, port: PortId) -> Option<EndpointId> {
        let endpoint = self.by_port[port.index()];
        let unique = self.table.is_none() && endpoint != NONE;
        unique.then(|| EndpointId::new(endpoint.into()))?
    }

    /// The endpoint that sent a frame. The fast path passes `None` for `mac`, so an endpoint that verifies it takes the slow path.
    #[inline(always)]
    pub(super) fn sender(
        &self,
        ingress: PortId,
        src: Ipv4Addr,
        dest_qp: Qpn,
        mac: Option<MacAddr>,
    ) -> Option<EndpointId> {
        if let Some(table) = &self.table {
            return EndpointId::new(table.find(ingress, src, dest_qp, mac)?);
        }
        let endpoint = self.endpoint_at(ingress)?;
        let connection = self.connections.get(endpoint.index())?;
        // Frames of a rank have its own address as their source, frames of an adjacent switch the McstID.
        (dest_qp == Qpn::VIRTUAL && connection.address.dst == src).then_some(endpoint)
    }

    fn copy_state(&mut self, of: &Self) {
        self.machine.copy_state(&of.machine);
        for slot in of.machine.slots_in_flight() {
            if let Some(metadata) = self.slots.metadata_mut(slot) {
                metadata.imm = of.slots.metadata(slot).imm;
            }
        }
        for (connection, of) in self.connections.iter_mut().zip(&of.connections) {
            (connection.link, connection.ect) = (of.link, of.ect);
        }
        self.meters.clone_from_slice(&of.meters);
    }
}

impl<const W: usize> Kind for Box<CollectiveContext<W>>
where
    CollectiveEffects: EffectsOfWidth<W>,
{
    type Status = CollectiveGroupStatus;

    fn rule(&self) -> &GroupRule {
        &self.rule
    }

    fn memory_bytes(&self) -> usize {
        self.rule.reserved_bytes() as usize
    }

    fn bind(&mut self, next_hops: &mut NextHops, _: Option<Ipv4Addr>) -> Result<(), NextHopsFull> {
        let CollectiveContext {
            rule, connections, ..
        } = &mut **self;
        next_hops.acquire_all(macs(rule), |i, index| connections[i].next_hop = index)
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        let connections = self.connections.iter();
        connections.for_each(|connection| next_hops.release(connection.next_hop));
    }

    #[inline(always)]
    fn prefetch(&self, step: usize, ingress: PortId) {
        match step {
            0 => self.prefetch_self(ingress),
            1 => self.prefetch_endpoint(ingress),
            _ => self.prefetch_next(ingress),
        }
    }

    #[inline(always)]
    fn fast_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        CollectiveContext::fast_frames(self, services, cx, slot, frames)
    }

    #[inline]
    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        self.on_frame(services, cx, slot, header, src, frame)
    }

    fn timeout<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        self.on_timeout(services, cx, slot);
    }

    fn emit<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        self.on_emit(services, cx, slot);
    }

    fn resume(&mut self, services: &mut Services, now: Nanos, slot: u32) {
        let more = std::mem::take(&mut self.scheduled.emitting);
        self.schedule(&mut services.timers, now, slot, more);
    }

    fn note_dropped(&mut self) {
        self.counters.dropped += 1;
    }

    fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
        into.collective.add(&self.rule, self.counters, self.endpoints())
    }

    fn status(&self) -> CollectiveGroupStatus {
        let machine = self.machine.status();
        let ahead = machine
            .endpoints
            .iter()
            .map(|e| e.expected.diff(machine.base).max(e.next.diff(machine.base)));
        let slots = self.rule.translated().map_or(0, |kind| kind.slots);
        let slots_used = ahead.max().unwrap_or(0).clamp(0, slots.into()) as usize;
        CollectiveGroupStatus {
            rule: self.rule.clone(),
            machine,
            counters: self.counters,
            congestion: self.congestion,
            endpoints: self.endpoints().collect(),
            slots_used,
            memory_bytes: self.memory_bytes(),
        }
    }
}

/// What the kernel of a call depends on.
pub(super) type KernelKey = (Operation, DataType, CallFlags);

pub(super) fn kernel_key(call: &Call) -> KernelKey {
    (call.operation, call.data_type, call.flags)
}

/// The kernel that was used last.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelCache(Option<(KernelKey, Kernel)>);

impl KernelCache {
    #[inline]
    pub(super) fn select(&mut self, key: KernelKey) -> Kernel {
        match self.0 {
            Some((selected, kernel)) if selected == key => kernel,
            _ => {
                let kernel = Kernel::select(key.0, key.1, key.2);
                self.0 = Some((key, kernel));
                kernel
            }
        }
    }
}

fn machine_config(rule: &GroupRule, kind: &TranslatedRule) -> TranslatedConfig {
    TranslatedConfig {
        endpoints: rule
            .endpoints
            .iter()
            .map(|e| EndpointConfig {
                kind: endpoint_kind(&e.next_hop, kind.start_psn),
                ranks: e.next_hop.ranks().iter().copied().collect(),
            })
            .collect(),
        parent: kind.parent.and_then(|parent| EndpointId::new(parent.into())),
        start_psn: kind.start_psn,
        slots: kind.slots,
        message_packets: kind.message_packets,
        pmtu: rule.pmtu.bytes() as u16,
        reproducible: kind.reproducible,
        // A barrier needs one packet, so there can be as many collectives as slots.
        collectives_max: kind.slots,
        mode: kind.mode,
        loss: kind.loss_policy,
        straggler: kind.straggler_policy,
        tick: Nanos(u64::from(kind.ack_timeout_us) * 1_000 / TICKS),
        stall_timeout: Nanos::from_millis(rule.stall_timeout_ms.into()),
    }
}

/// The PSNs of a connection between switches of different modes start, both ways, at that of the group.
fn endpoint_kind(hop: &NextHop, start_psn: Psn) -> EndpointKind {
    let (rank, sq_psn, rq_psn, is_host) = match (hop.rank(), hop.mode(), hop.ranks()) {
        (Some(&RankPart { rank, sq_psn, rq_psn }), ..) => (rank, sq_psn, rq_psn, true),
        (None, Some(_), &[rank, ..]) => (rank, start_psn, start_psn, false),
        _ => return EndpointKind::Switch,
    };
    EndpointKind::Rank {
        rank,
        sq_psn,
        rq_psn,
        is_host,
    }
}

/// The state of a collective group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveGroupStatus {
    /// Its rule, endpoints in the order of the lowest ranks behind them, which is the numbering in `machine`.
    pub rule: GroupRule,
    /// The protocol state.
    pub machine: TranslatedStatus,
    /// Counters of the group.
    pub counters: CollectiveCounters,
    /// Counters of congestion.
    pub congestion: CongestionCounters,
    /// Counters of its endpoints, in the order of the rule.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Slots of unfinished packets.
    pub slots_used: usize,
    /// Bytes of group memory that the group uses.
    pub memory_bytes: usize,
}

#[cfg(test)]
mod tests {
    use castnet_rules::HostEndpoint;

    use super::*;

    /// A switch may repeat a NAK on purpose, also one that is as a host.
    #[test]
    fn only_a_host_is_a_host() {
        let start = Psn::new(7);
        let (sq_psn, rq_psn) = (Psn::new(1), Psn::new(2));
        let host = HostEndpoint {
            name: "h".into(),
            ip: [10, 0, 0, 1].into(),
            mac: MacAddr([2; 6]),
            qpn: Qpn::new(17),
            part: RankPart {
                rank: 3,
                sq_psn,
                rq_psn,
            }
            .into(),
        };
        let switch = |mode| NextHop::Switch {
            name: "s".into(),
            ip: None,
            mac: MacAddr([2; 6]),
            qpn: Qpn::new(5),
            ranks: vec![3, 4],
            mode,
            core: None,
        };
        let rank = |sq_psn, rq_psn, is_host| EndpointKind::Rank {
            rank: 3,
            sq_psn,
            rq_psn,
            is_host,
        };
        for (hop, kind) in [
            (NextHop::Host(host), rank(sq_psn, rq_psn, true)),
            (
                switch(Some(CollectiveMode::Terminated)),
                rank(start, start, false),
            ),
            (switch(None), EndpointKind::Switch),
        ] {
            assert_eq!(endpoint_kind(&hop, start), kind);
        }
    }
}
