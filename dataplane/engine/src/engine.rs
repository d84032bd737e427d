//! The engine: its tables, and what control does to them between batches.

use core::net::Ipv4Addr;
use std::collections::VecDeque;
use std::sync::Arc;

use castnet_collective::{Effects, translated};
use castnet_wire::icrc::ShiftCache;
use castnet_wire::{MacAddr, McstId, Nanos, PortId};

use crate::collective::{Collective, CollectiveGroupStatus};
use crate::config::{ConfigError, EngineConfig, PortInfo};
use crate::context::{Context, ContextStatus, Kind};
use crate::counters::{Counters, CountersSnapshot, Totals};
use crate::egress::Egress;
use crate::events::{EngineEvent, Events};
use crate::fdb::{Fdb, FdbEntry};
use crate::group::{Group, GroupStatus, InstallError};
use crate::groups::Groups;
use crate::limit::Limit;
use crate::lldp::ANSWERS;
use crate::neighbours::{Neighbour, Neighbours};
use crate::next_hops::NextHops;
use crate::pipeline::Cx;
use crate::port_set::PortSet;
use crate::tables::Tables;
use crate::tap::{Captured, FrameFilter, TapId, Taps};
use crate::trace::{Off, Recorder, Trace};
use crate::wheel::{FINE_TICK, TICK, Wheel};

/// Frame lengths whose ICRC operators are kept ready: 4 KiB each.
pub(crate) type Shifts = ShiftCache<16>;

/// Bytes of the largest path MTU.
const PAYLOAD_MAX: usize = 4096;

/// No group: no slot of the table of groups has that number.
pub(crate) const NO_GROUP: u32 = u32::MAX;

/// What frames need to know of the ports.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) macs: [MacAddr; PortId::COUNT],
    pub(crate) mtus: [u32; PortId::COUNT],
    /// Those that are configured.
    pub(crate) present: PortSet,
    /// Those of them that are up.
    pub(crate) up: PortSet,
    /// Those of them that are flooded to, up or not.
    pub(crate) flood: PortSet,
}

impl Ports {
    fn new(ports: &[PortInfo]) -> Self {
        let mut table = Self {
            macs: [MacAddr::default(); PortId::COUNT],
            mtus: [0; PortId::COUNT],
            present: ports.iter().map(|p| p.id).collect(),
            up: ports.iter().map(|p| p.id).collect(),
            flood: ports.iter().filter(|p| p.flood).map(|p| p.id).collect(),
        };
        for port in ports {
            table.macs[port.id.index()] = port.mac;
            table.set_mtu(port.id, port.mtu);
        }
        table
    }

    fn set_mtu(&mut self, port: PortId, mtu: usize) {
        self.mtus[port.index()] = u32::try_from(mtu).unwrap_or(u32::MAX);
    }

    #[inline]
    pub(crate) fn mac(&self, port: PortId) -> MacAddr {
        self.macs[port.index()]
    }

    pub(crate) fn mtu(&self, port: PortId) -> usize {
        self.mtus[port.index()] as usize
    }
}

/// One worker's engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) ports: Ports,
    pub(crate) tables: Arc<Tables>,
    pub(crate) groups: Groups,
    pub(crate) next_hops: NextHops,
    pub(crate) shifts: Shifts,
    pub(crate) counters: Counters,
    pub(crate) wheel: Wheel,
    pub(crate) effects: Effects,
    /// Timers of collective groups.
    pub(crate) fine_wheel: Wheel,
    pub(crate) collective_effects: translated::Effects,
    /// Where a payload is put together.
    pub(crate) scratch: Box<[u8; PAYLOAD_MAX]>,
    /// Places of groups that have more to send than one turn lets them.
    pub(crate) emitting: VecDeque<u32>,
    pub(crate) fdb: Fdb,
    pub(crate) neighbours: Neighbours,
    pub(crate) events: Events,
    pub(crate) fdb_full_told: bool,
    pub(crate) taps: Taps,
    pub(crate) lldp_at: Option<Nanos>,
    pub(crate) lldp_answers: Limit,
    pub(crate) ageing_at: Option<Nanos>,
}

impl Engine {
    /// An engine without groups and routes, every port up. Takes the memory of all tables.
    ///
    /// # Errors
    /// The configuration contradicts itself or is too large.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::build(config))
    }

    /// The same with a configuration that has been checked.
    pub(crate) fn build(config: EngineConfig) -> Self {
        let seed = config.hash_seed;
        Self {
            ports: Ports::new(&config.ports),
            tables: Arc::default(),
            groups: Groups::new(config.groups_max, config.memory_bytes_max, seed),
            next_hops: NextHops::new(config.next_hops_max, seed),
            shifts: Shifts::new(),
            counters: Counters::new(),
            wheel: Wheel::new(config.groups_max, TICK),
            effects: Effects::new(),
            fine_wheel: Wheel::new(config.groups_max, FINE_TICK),
            collective_effects: translated::Effects::new(),
            scratch: Box::new([0; PAYLOAD_MAX]),
            emitting: VecDeque::with_capacity(config.groups_max),
            fdb: Fdb::new(config.fdb_capacity, config.fdb_ageing, seed),
            neighbours: Neighbours::new(config.neighbours_max, config.fdb_ageing, seed),
            events: Events::new(config.events_max),
            fdb_full_told: false,
            taps: Taps::default(),
            lldp_at: config.lldp_interval.map(|_| Nanos::ZERO),
            lldp_answers: ANSWERS,
            ageing_at: None,
            config: Arc::new(config),
        }
    }

    /// What it was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    // ------------------------------------------------------------------------------------------------ control

    /// Puts a compiled group in service. Where one of the same address runs, the new one takes its place with fresh
    /// state; where that one runs the very same rule, it stays as it is, and the new one is handed back. Either way the
    /// group that is returned is the caller's to free, elsewhere.
    ///
    /// Takes time in proportion to the group's paths, and no memory.
    ///
    /// # Errors
    /// No place or memory for it; nothing has changed then.
    pub fn install(&mut self, group: impl Into<Context>) -> Result<Option<Context>, InstallError> {
        let mut group = group.into();
        let mcst_id = group.mcst_id();
        if self.config.addresses.contains(&mcst_id.0) {
            return Err(InstallError::OwnAddress { mcst_id });
        }
        if self
            .groups
            .get(mcst_id)
            .is_some_and(|running| running.same_rule(&group))
        {
            return Ok(Some(group));
        }
        self.groups.room_for(&group)?;
        group.bind(&mut self.next_hops, self.config.addresses.first().copied())?;
        let (place, replaced) = self.groups.insert(group);
        self.quiet(place);
        if let Some(replaced) = &replaced {
            replaced.unbind(&mut self.next_hops);
        }
        Ok(replaced)
    }

    /// Takes a group out of service; it is the caller's to free, elsewhere, or to [attach](Engine::attach) to another
    /// engine.
    pub fn remove(&mut self, mcst_id: McstId) -> Option<Context> {
        let (place, group) = self.groups.remove(mcst_id)?;
        self.quiet(place);
        group.unbind(&mut self.next_hops);
        Some(group)
    }

    /// Nothing is due at a place any more.
    fn quiet(&mut self, place: u32) {
        self.wheel.disarm(place);
        self.fine_wheel.disarm(place);
        self.emitting.retain(|other| *other != place);
    }

    /// The multicast group of this address.
    pub fn group(&self, mcst_id: McstId) -> Option<&Group> {
        self.groups.get(mcst_id)?.multicast()
    }

    /// The collective group of this address.
    pub fn collective(&self, mcst_id: McstId) -> Option<&Collective> {
        self.groups.get(mcst_id)?.collective()
    }

    /// All groups, in no particular order but always the same.
    pub fn groups(&self) -> impl Iterator<Item = &Context> {
        self.groups.iter()
    }

    /// How many groups of all kinds there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Bytes that all groups take.
    pub fn group_memory_bytes(&self) -> usize {
        self.groups.memory_used()
    }

    /// The state of a group, for people. Allocates.
    pub fn status(&self, mcst_id: McstId) -> Option<ContextStatus> {
        self.groups.get(mcst_id).map(Context::status)
    }

    /// The state of a multicast group, for people. Allocates.
    pub fn group_status(&self, mcst_id: McstId) -> Option<GroupStatus> {
        self.group(mcst_id).map(Group::status)
    }

    /// The state of a collective group, for people. Allocates.
    pub fn collective_status(&self, mcst_id: McstId) -> Option<CollectiveGroupStatus> {
        self.collective(mcst_id).map(Collective::status)
    }

    /// Takes new tables. What was learned on ports that went down is forgotten.
    pub fn set_tables(&mut self, now: Nanos, tables: Arc<Tables>) {
        let up = tables.up().and(self.ports.present);
        let gone = PortSet(self.ports.up.0 & !up.0);
        if !gone.is_empty() {
            self.fdb.flush(|port| gone.contains(port));
            self.neighbours
                .flush(now, |port| gone.contains(port), &mut self.events);
        }
        let came = PortSet(up.0 & !self.ports.up.0);
        if !came.is_empty() && self.lldp_at.is_some() {
            self.lldp_at = Some(now);
        }
        self.ports.up = up;
        for (port, mtu) in &tables.mtus {
            self.ports.set_mtu(*port, *mtu);
        }
        self.tables = tables;
    }

    /// The tables in use.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    // ------------------------------------------------------------------------------------------------- timers

    /// When [`Engine::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        // What a group could not send in one turn is due at once.
        let emission = (!self.emitting.is_empty()).then_some(Nanos::ZERO);
        [
            self.lldp_at,
            self.ageing_at,
            self.wheel.poll(),
            self.fine_wheel.poll(),
            emission,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what time asks for: LLDP, a bounded piece of ageing, stall reports of groups, what collective groups repeat or
    /// have yet to send.
    pub fn handle_timeout<E: Egress>(&mut self, now: Nanos, egress: &mut E) {
        if self.taps.armed() {
            let mut recorder = Recorder::new(now, PortId::default(), Vec::new());
            self.on_time(now, egress, &mut recorder);
            let trace = recorder.finish(crate::trace::Verdict::Absorbed);
            self.taps.take_sent(&trace);
        } else {
            self.on_time(now, egress, &mut Off);
        }
    }

    fn on_time<E: Egress, O: crate::trace::Observer>(
        &mut self,
        now: Nanos,
        egress: &mut E,
        observer: &mut O,
    ) {
        let mut cx = Cx {
            now,
            ingress: PortId::default(),
            egress,
            observer,
        };
        if let (Some(at), Some(interval)) = (self.lldp_at, self.config.lldp_interval)
            && now >= at
        {
            self.lldp_at = Some(now + interval);
            self.send_lldp(&mut cx, interval);
        }
        if self.ageing_at.is_some_and(|at| now >= at) {
            self.age(now);
        }
        while let Some(place) = self.wheel.pop(now) {
            self.group_timeout(&mut cx, place);
        }
        while let Some(place) = self.fine_wheel.pop(now) {
            self.group_timeout(&mut cx, place);
        }
        // Those that have still more to send queue up again.
        for _ in 0..self.emitting.len() {
            let Some(place) = self.emitting.pop_front() else {
                return;
            };
            self.group_emit(&mut cx, place);
        }
    }

    /// Starts the ageing timer where it does not run; called when something was learned.
    pub(crate) fn start_ageing(&mut self, now: Nanos) {
        if self.ageing_at.is_none() {
            self.ageing_at = Some(now + self.ageing_interval());
        }
    }

    fn ageing_interval(&self) -> Nanos {
        self.fdb.sweep_interval().min(self.neighbours.sweep_interval())
    }

    fn age(&mut self, now: Nanos) {
        self.fdb.age(now);
        self.neighbours.age(now, &mut self.events);
        self.events.report_unreported(now);
        if self.fdb.len() < self.config.fdb_capacity {
            self.fdb_full_told = false;
        }
        let idle = self.fdb.len() == 0 && self.neighbours.is_empty();
        self.ageing_at = (!idle).then(|| now + self.ageing_interval());
    }

    // ------------------------------------------------------------------------------------------------ reading

    /// What happened, oldest first.
    pub fn pop_event(&mut self) -> Option<EngineEvent> {
        self.events.pop()
    }

    /// Events that found the queue full.
    pub fn events_lost(&self) -> u64 {
        self.events.lost()
    }

    /// The switch's totals.
    pub fn totals(&self) -> Totals {
        self.counters.totals
    }

    /// Fills a snapshot: totals and ports always, groups from [`CountersSnapshot::next_group`] on while they fit into
    /// what `into` has room for. Does not allocate where `into` was made with room.
    pub fn snapshot(&self, into: &mut CountersSnapshot) {
        into.totals = self.counters.totals;
        into.drops = self.counters.drops();
        into.clear();
        into.ports.extend(
            self.ports
                .present
                .into_iter()
                .map(|port| (port, self.counters.port(port))),
        );
        let mut first = true;
        for place in into.next_group..self.groups.places() {
            let Some(context) = self.groups.at(place as u32) else {
                continue;
            };
            if !context.snapshot(into) {
                // A group that does not even fit alone is passed over, or the walk would never end.
                into.next_group = if first { place + 1 } else { place };
                return;
            }
            first = false;
        }
        into.next_group = 0;
    }

    /// The Ethernet addresses that are known, in no particular order.
    pub fn fdb(&self, now: Nanos) -> impl Iterator<Item = FdbEntry> {
        self.fdb.entries(now)
    }

    /// Who is on the links.
    pub fn neighbours(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        self.neighbours.iter(now)
    }

    // ----------------------------------------------------------------------------------------------- watching

    /// Records for a subscriber the way of the next `count` frames that `filter` wants; they wait for
    /// [`Engine::pop_trace`]. Takes the place of what the subscriber had.
    pub fn arm_trace(&mut self, id: TapId, filter: FrameFilter, count: u64) {
        self.taps.arm_trace(id, filter, count);
    }

    /// Copies for a subscriber up to `length_max` bytes of each of the next `count` frames that `filter` wants; they wait
    /// for [`Engine::pop_captured`]. Takes the place of what the subscriber had.
    pub fn arm_capture(&mut self, id: TapId, filter: FrameFilter, length_max: usize, count: u64) {
        self.taps.arm_capture(id, filter, length_max, count);
    }

    /// How many frames a subscriber still wants; 0 where there is none.
    pub fn tap_left(&self, id: TapId) -> u64 {
        self.taps.left(id)
    }

    /// Ends a subscriber, with what waits for it.
    pub fn disarm(&mut self, id: TapId) {
        self.taps.disarm(id);
    }

    /// The oldest live trace that waits for a subscriber.
    pub fn pop_trace(&mut self, id: TapId) -> Option<Trace> {
        self.taps.pop_trace(id)
    }

    /// The oldest captured frame that waits for a subscriber.
    pub fn pop_captured(&mut self, id: TapId) -> Option<Captured> {
        self.taps.pop_captured(id)
    }

    /// Wanted frames that found a subscriber's queue full, since this was asked last.
    pub fn take_tap_lost(&mut self, id: TapId) -> u64 {
        self.taps.take_lost(id)
    }

    /// What [`Engine::take_tap_lost`] has returned, of all subscribers.
    pub fn taps_lost(&self) -> u64 {
        self.taps.lost()
    }

    /// Whether `address` is a group's or the switch's own: ARP for it is answered.
    pub(crate) fn answers_for(&self, address: Ipv4Addr) -> bool {
        self.is_group(address) || self.config.addresses.contains(&address)
    }

    pub(crate) fn is_group(&self, address: Ipv4Addr) -> bool {
        self.groups.find(address).is_some() || self.tables.is_group(address)
    }
}
