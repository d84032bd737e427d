//! The group: compiled from its rule, with all memory that it will ever need.

use castnet_collective::path::WORDS_MAX;
use castnet_collective::translated::{
    EndpointConfig, EndpointKind, LossPolicy, StragglerPolicy, TranslatedConfig, TranslatedStatus,
};
use castnet_collective::{EndpointId, EndpointSet, Translated};
use castnet_reduce::{Checksum, Kernel, prefetch};
use castnet_rules::{GroupRule, NextHop, RankPart, TranslatedRule};
use castnet_wire::{Call, CallFlags, DataType, MacAddr, McstId, Nanos, Operation, PortId, Qpn, RoceHeader};
use core::net::Ipv4Addr;

use super::slots::Slots;
use super::translate::{Outlet, Own};
use crate::egress::Egress;
use crate::group::install::{macs, rule_bytes};
use crate::group::kind::{Ahead, Kind};
use crate::group::lookup::LookupTable;
use crate::group::services::Services;
use crate::observe::counters::{
    CollectiveCounters, CongestionCounters, CountersSnapshot, EndpointCounters, EndpointSnapshot,
};
use crate::observe::trace::{Observer, Off, Verdict};
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// Bytes of IP header to ICRC around a payload: IPv4, UDP, BTH, ImmDt and ICRC.
const OVERHEAD: usize = 20 + 8 + 12 + 4 + 4;
/// Ticks per time-out of the members' QPs.
const TICKS: u64 = 4;
/// No endpoint.
const NONE: u8 = u8::MAX;

/// A compiled collective group, ready to be installed: its context, as wide as it needs.
#[derive(Debug)]
pub struct Collective(pub(super) Width);

#[derive(Debug)]
pub(super) enum Width {
    /// Up to 64 endpoints.
    Narrow(Box<CollectiveContext<1>>),
    /// More.
    Wide(Box<CollectiveContext<WORDS_MAX>>),
}

/// The same of a group, whatever its width.
macro_rules! of_any {
    ($collective:expr, $group:ident => $result:expr) => {
        match $collective {
            Collective(Width::Narrow($group)) => $result,
            Collective(Width::Wide($group)) => $result,
        }
    };
}

/// The context of a collective group at a switch (EPIC 4.1), with `W` words in its sets of endpoints. Aligned as [`crate::Group`]
/// is.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CollectiveContext<const W: usize> {
    pub(super) machine: Translated<W>,
    pub(super) slots: Slots<W>,
    /// By endpoint.
    pub(super) outlets: Box<[Outlet]>,
    /// The endpoint of each port, where none has several.
    by_port: [u8; PortId::COUNT],
    /// Where one has.
    table: Option<Box<LookupTable>>,
    pub(super) mcst_id: McstId,
    pub(super) pmtu: usize,
    pub(super) own: Own,
    pub(super) kernels: Kernels,
    pub(super) checksum: Checksum,
    pub(super) counters: CollectiveCounters,
    pub(super) congestion: CongestionCounters,
    /// By endpoint.
    pub(super) per_endpoint: Box<[EndpointCounters]>,
    /// When it will come up in the wheel.
    pub(super) armed_for: Nanos,
    /// Whether it waits for another turn to send.
    pub(super) emitting: bool,
    pub(super) rule: GroupRule,
}

impl<const W: usize> CollectiveContext<W> {
    fn build(rule: GroupRule, kind: &TranslatedRule, payload: bool) -> Box<Self> {
        let mut by_port = [NONE; PortId::COUNT];
        for (i, endpoint) in rule.endpoints.iter().enumerate() {
            by_port[endpoint.port.index()] = i as u8;
        }
        let machine = Translated::new(TranslatedConfig {
            endpoints: rule
                .endpoints
                .iter()
                .map(|e| EndpointConfig {
                    kind: endpoint_kind(&e.next_hop),
                    ranks: e.next_hop.ranks().iter().copied().collect(),
                })
                .collect(),
            parent: kind.parent.and_then(|parent| EndpointId::new(parent.into())),
            start_psn: kind.start_psn,
            slots: kind.slots,
            message_packets: kind.message_packets,
            pmtu: rule.pmtu.bytes() as u16,
            reproducible: kind.reproducible,
            // Barriers take one packet each, so there may be as many as slots.
            collectives_max: kind.slots,
            loss: match kind.loss_policy {
                castnet_rules::LossPolicy::Repair => LossPolicy::Repair,
                castnet_rules::LossPolicy::Reflect => LossPolicy::Reflect,
            },
            straggler: match kind.straggler_policy {
                castnet_rules::StragglerPolicy::KeepAlive => StragglerPolicy::KeepAlive,
                castnet_rules::StragglerPolicy::Rnr => StragglerPolicy::Rnr,
                castnet_rules::StragglerPolicy::None => StragglerPolicy::None,
            },
            tick: Nanos(u64::from(kind.ack_timeout_us) * 1_000 / TICKS),
            stall_timeout: Nanos::from_millis(rule.stall_timeout_ms.into()),
        });
        Box::new(Self {
            machine,
            slots: match payload {
                true => Slots::new(&rule, kind),
                false => Slots::without_payload(&rule, kind),
            },
            outlets: rule
                .endpoints
                .iter()
                .map(|e| Outlet::new(e, rule.mcst_id))
                .collect(),
            by_port,
            // What an adjacent switch sends comes from the group.
            table: LookupTable::new(&rule, Some(rule.mcst_id.0)),
            mcst_id: rule.mcst_id,
            pmtu: rule.pmtu.bytes(),
            own: Own::new(rule.mcst_id),
            kernels: Kernels::default(),
            checksum: Checksum::select(),
            counters: CollectiveCounters::default(),
            congestion: CongestionCounters::default(),
            per_endpoint: vec![EndpointCounters::default(); rule.endpoints.len()].into_boxed_slice(),
            armed_for: Nanos::ZERO,
            emitting: false,
            rule,
        })
    }

    fn footprint(&self) -> usize {
        size_of::<Self>() - size_of::<Translated<W>>()
            + self.machine.footprint()
            + self.slots.footprint()
            + self.table.as_ref().map_or(0, |table| table.bytes())
            + size_of_val(&*self.outlets)
            + size_of_val(&*self.per_endpoint)
            + rule_bytes(&self.rule)
    }

    /// The counters of its endpoints, in the order of the rule's.
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

    /// Asks for the memory of the group itself that data from `ingress` touches.
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

    /// What it touches then, beside that.
    #[inline]
    fn prefetch_endpoint(&self, ingress: PortId) {
        let Some(from) = self.endpoint_at(ingress) else {
            return;
        };
        self.machine.prefetch(from, &Ahead);
        if let Some(outlet) = self.outlets.get(from.index()) {
            prefetch(&outlet.address);
            prefetch(&outlet.ect);
        }
        if let Some(endpoint) = self.per_endpoint.get(from.index()) {
            prefetch(&endpoint.contributions);
        }
    }

    /// And what it touches at last.
    #[inline]
    fn prefetch_next(&self, ingress: PortId) {
        let next = self
            .endpoint_at(ingress)
            .and_then(|from| self.machine.prefetch_next(from, &Ahead));
        if let Some(slot) = next {
            self.slots.prefetch(slot);
        }
    }

    /// The endpoint of a port; `None` where ports alone do not say.
    #[inline]
    fn endpoint_at(&self, port: PortId) -> Option<EndpointId> {
        let endpoint = self.by_port[port.index()];
        let told = self.table.is_none() && endpoint != NONE;
        told.then(|| EndpointId::new(endpoint.into()))?
    }

    /// The endpoint that a frame of the group came from: of the fast path and the slow one alike. As for multicast, the fast path
    /// does not know `mac`.
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
        let outlet = self.outlets.get(endpoint.index())?;
        // A rank speaks as itself, a switch as the group there.
        (dest_qp == Qpn::VIRTUAL && outlet.address.dst == src).then_some(endpoint)
    }
}

impl<const W: usize> CollectiveContext<W> {
    fn copy_state(&mut self, of: &Self) {
        self.machine.copy_state(&of.machine);
        for slot in of.machine.slots_in_flight() {
            if let Some(note) = self.slots.note_mut(slot) {
                note.imm = of.slots.note(slot).imm;
            }
        }
        for (outlet, of) in self.outlets.iter_mut().zip(&of.outlets) {
            (outlet.link, outlet.ect) = (of.link, of.ect);
        }
    }

    fn bind(&mut self, next_hops: &mut NextHops) -> Result<(), NextHopsFull> {
        let outlets = &mut self.outlets;
        next_hops.acquire_all(macs(&self.rule), |i, place| outlets[i].next_hop = place)
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        let outlets = self.outlets.iter();
        outlets.for_each(|outlet| next_hops.release(outlet.next_hop));
    }

    #[inline(always)]
    fn prefetch(&self, step: usize, ingress: PortId) {
        match step {
            0 => self.prefetch_self(ingress),
            1 => self.prefetch_endpoint(ingress),
            _ => self.prefetch_next(ingress),
        }
    }

    pub(super) fn note_dropped(&mut self) {
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
            memory_bytes: self.rule.reserved_bytes() as usize,
        }
    }
}

impl Collective {
    fn build(rule: GroupRule, kind: &TranslatedRule, payload: bool) -> Self {
        Self(match rule.endpoints.len() <= EndpointSet::<1>::CAPACITY {
            true => Width::Narrow(CollectiveContext::build(rule, kind, payload)),
            false => Width::Wide(CollectiveContext::build(rule, kind, payload)),
        })
    }

    /// Bytes that it does take: never more than [`GroupRule::reserved_bytes`].
    pub fn footprint(&self) -> usize {
        of_any!(self, group => group.footprint())
    }

    /// Its counters.
    pub fn counters(&self) -> &CollectiveCounters {
        of_any!(self, group => &group.counters)
    }
}

impl Kind for Collective {
    type Rule = TranslatedRule;
    type Status = CollectiveGroupStatus;

    const OVERHEAD: usize = OVERHEAD;

    fn new(rule: GroupRule, kind: &TranslatedRule) -> Self {
        Self::build(rule, kind, true)
    }

    fn without_payload(rule: GroupRule, kind: &TranslatedRule) -> Self {
        Self::build(rule, kind, false)
    }

    fn copy_state(&mut self, of: &Self) {
        match (&mut self.0, &of.0) {
            (Width::Narrow(group), Width::Narrow(of)) => group.copy_state(of),
            (Width::Wide(group), Width::Wide(of)) => group.copy_state(of),
            _ => debug_assert!(false, "both run one rule"),
        }
    }

    fn rule(&self) -> &GroupRule {
        of_any!(self, group => &group.rule)
    }

    /// What the rule says that it takes.
    fn memory_bytes(&self) -> usize {
        self.rule().reserved_bytes() as usize
    }

    fn bind(&mut self, next_hops: &mut NextHops, _: Option<Ipv4Addr>) -> Result<(), NextHopsFull> {
        of_any!(self, group => group.bind(next_hops))
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        of_any!(self, group => group.unbind(next_hops))
    }

    #[inline(always)]
    fn prefetch(&self, step: usize, ingress: PortId) {
        of_any!(self, group => group.prefetch(step, ingress))
    }

    #[inline(always)]
    fn fast_frames<E: Egress>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, Off>,
        slot: u32,
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Option<E::Buf> {
        of_any!(self, group => group.fast_frames(services, cx, slot, frames))
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
        of_any!(self, group => group.on_frame(services, cx, slot, header, src, frame))
    }

    fn timeout<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        of_any!(self, group => group.on_timeout(services, cx, slot))
    }

    fn emit<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        of_any!(self, group => group.on_emit(services, cx, slot))
    }

    fn resume(&mut self, services: &mut Services, now: Nanos, slot: u32) {
        of_any!(self, group => group.on_resume(&mut services.timers, now, slot))
    }

    fn note_dropped(&mut self) {
        of_any!(self, group => group.note_dropped())
    }

    fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
        of_any!(self, group => group.snapshot(into))
    }

    fn status(&self) -> CollectiveGroupStatus {
        of_any!(self, group => group.status())
    }
}

/// How contributions become one, as the last collective asked for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernels(Option<((Operation, DataType, CallFlags), Kernel)>);

impl Kernels {
    /// How those of this call do.
    #[inline]
    pub(super) fn select(&mut self, call: &Call) -> Kernel {
        let key = (call.operation, call.data_type, call.flags);
        match self.0 {
            Some((selected, kernel)) if selected == key => kernel,
            _ => {
                let kernel = Kernel::select(call.operation, call.data_type, call.flags);
                self.0 = Some((key, kernel));
                kernel
            }
        }
    }
}

fn endpoint_kind(hop: &NextHop) -> EndpointKind {
    match hop.rank() {
        Some(&RankPart { rank, sq_psn, rq_psn }) => EndpointKind::Rank { rank, sq_psn, rq_psn },
        None => EndpointKind::Switch,
    }
}

/// A collective group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveGroupStatus {
    /// Its rule, endpoints in the order of the lowest ranks behind them; an endpoint's place is its number in `machine`.
    pub rule: GroupRule,
    /// The protocol state.
    pub machine: TranslatedStatus,
    /// Counters of the group.
    pub counters: CollectiveCounters,
    /// Congestion that was heard of.
    pub congestion: CongestionCounters,
    /// Counters of its endpoints, in the order of the rule's.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Packets that are not finished.
    pub slots_used: usize,
    /// Bytes that it takes of the memory for groups.
    pub memory_bytes: usize,
}
