//! The engine: its tables, and what control does to them between batches.

use std::sync::Arc;

use castnet_wire::{McstId, Nanos, PortId};

use crate::bridge::Bridge;
use crate::config::{ConfigError, EngineConfig};
use crate::egress::Egress;
use crate::group::collective::{Collective, CollectiveGroupStatus};
use crate::group::context::{Context, ContextStatus};
use crate::group::install::InstallError;
use crate::group::kind::Kind;
use crate::group::multicast::context::{Group, GroupStatus};
use crate::group::services::Services;
use crate::group::table::Groups;
use crate::observe::counters::{CountersSnapshot, Totals};
use crate::observe::events::EngineEvent;
use crate::observe::neighbour::Neighbour;
use crate::observe::tap::{Captured, FrameFilter, TapId, Taps};
use crate::observe::trace::{Off, Recorder, Trace};
use crate::output::Output;
use crate::output::cx::Cx;
use crate::tables::fdb::FdbEntry;
use crate::tables::published::Tables;

/// One worker's engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) groups: Groups,
    pub(crate) services: Services,
    /// What belongs to no group.
    pub(crate) bridge: Bridge,
    pub(crate) taps: Taps,
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
        let config = Arc::new(config);
        Self {
            groups: Groups::new(config.groups_max, config.memory_bytes_max, config.hash_seed),
            services: Services::new(&config),
            bridge: Bridge::new(config.clone()),
            taps: Taps::default(),
            config,
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
        group.bind(
            &mut self.services.output.next_hops,
            self.config.addresses.first().copied(),
        )?;
        let (place, replaced) = self.groups.insert(group);
        self.services.timers.disarm(place);
        if let Some(replaced) = &replaced {
            replaced.unbind(&mut self.services.output.next_hops);
        }
        Ok(replaced)
    }

    /// Takes a group out of service; it is the caller's to free, elsewhere, or to [attach](Engine::attach) to another
    /// engine.
    pub fn remove(&mut self, mcst_id: McstId) -> Option<Context> {
        let (place, group) = self.groups.remove(mcst_id)?;
        self.services.timers.disarm(place);
        group.unbind(&mut self.services.output.next_hops);
        Some(group)
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
        match self.groups.get(mcst_id)? {
            Context::Multicast(group) => Some(group.status()),
            _ => None,
        }
    }

    /// The state of a collective group, for people. Allocates.
    pub fn collective_status(&self, mcst_id: McstId) -> Option<CollectiveGroupStatus> {
        self.collective(mcst_id).map(Collective::status)
    }

    /// Takes new tables. What was learned on ports that went down is forgotten.
    pub fn set_tables(&mut self, now: Nanos, tables: Arc<Tables>) {
        let Services { output, events, .. } = &mut self.services;
        self.bridge.set_tables(now, tables, &mut output.ports, events);
    }

    /// The tables in use.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.bridge.tables
    }

    // ------------------------------------------------------------------------------------------------- timers

    /// When [`Engine::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let own = self.bridge.poll_timeout();
        own.into_iter().chain(self.services.timers.poll()).min()
    }

    /// Does what time asks for: LLDP, a bounded piece of ageing, stall reports of groups, what collective groups repeat or
    /// have yet to send.
    pub fn handle_timeout<E: Egress>(&mut self, now: Nanos, egress: &mut E) {
        if self.taps.armed() {
            let mut recorder = Recorder::new(now, PortId::default(), Vec::new());
            self.on_time(now, egress, &mut recorder);
            let trace = recorder.finish(crate::observe::trace::Verdict::Absorbed);
            self.taps.take_sent(&trace);
        } else {
            self.on_time(now, egress, &mut Off);
        }
    }

    fn on_time<E: Egress, O: crate::observe::trace::Observer>(
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
        let Self {
            groups,
            services,
            bridge,
            ..
        } = self;
        bridge.handle_timeout(&mut cx, services);
        while let Some(slot) = services.timers.coarse.pop(now) {
            groups.with(slot, |group| group.timeout(services, &mut cx, slot));
        }
        while let Some(slot) = services.timers.fine.pop(now) {
            groups.with(slot, |group| group.timeout(services, &mut cx, slot));
        }
        // Those that have still more to send queue up again.
        for _ in 0..services.timers.emitting.len() {
            let Some(slot) = services.timers.emitting.pop_front() else {
                return;
            };
            groups.with(slot, |group| group.emit(services, &mut cx, slot));
        }
    }

    // ------------------------------------------------------------------------------------------------ reading

    /// What happened, oldest first.
    pub fn pop_event(&mut self) -> Option<EngineEvent> {
        self.services.events.pop()
    }

    /// Events that found the queue full.
    pub fn events_lost(&self) -> u64 {
        self.services.events.lost()
    }

    /// The switch's totals.
    pub fn totals(&self) -> Totals {
        self.services.output.counters.totals
    }

    /// Fills a snapshot: totals and ports always, groups from [`CountersSnapshot::next_group`] on while they fit into
    /// what `into` has room for. Does not allocate where `into` was made with room.
    pub fn snapshot(&self, into: &mut CountersSnapshot) {
        let Output { ports, counters, .. } = &self.services.output;
        into.totals = counters.totals;
        into.drops = counters.drops();
        into.clear();
        let present = ports.present.into_iter();
        into.ports.extend(present.map(|port| (port, counters.port(port))));
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
        self.bridge.fdb.entries(now)
    }

    /// Who is on the links.
    pub fn neighbours(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        self.bridge.neighbours.iter(now)
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
}
