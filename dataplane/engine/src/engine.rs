//! The engine: its tables, and the functions that control calls between batches.

use std::sync::Arc;

use castnet_reduce::prefetch;
use castnet_wire::{Ethernet, FrameBuf, McstId, Nanos, PortId};

use crate::address::GroupKey;
use crate::bridge::{Bridge, RegistrationFrame};
use crate::config::{ConfigError, EngineConfig};
use crate::egress::Egress;
use crate::group::collective::{Collective, CollectiveGroupStatus};
use crate::group::context::{Context, ContextStatus, with_group};
use crate::group::install::InstallError;
use crate::group::kind::Kind;
use crate::group::multicast::context::{Group, GroupStatus};
use crate::group::services::{Services, TIMERS_WORK, Timers, WORK_MAX};
use crate::group::table::Groups;
use crate::observe::counters::{CountersSnapshot, Totals};
use crate::observe::events::EngineEvent;
use crate::observe::neighbour::Neighbour;
use crate::observe::tap::{Taps, Watch};
use crate::observe::trace::{Observer, Off};
use crate::output::Output;
use crate::output::cx::Cx;
use crate::tables::fdb::FdbEntry;
use crate::tables::published::Tables;
use crate::tables::wheel::Wheel;

/// Most groups that one call of [`Engine::handle_timeout`] handles: of each wheel, and of those with more to send.
const GROUPS_PER_CALL: usize = 256;

/// The engine of one worker.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) groups: Groups,
    pub(crate) services: Services,
    pub(crate) bridge: Bridge,
    /// The subscribers to traces and captured frames.
    pub taps: Taps,
}

impl Engine {
    /// An engine without groups and routes, with every port up. Allocates all tables. Fails as [`EngineConfig::check`].
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::build(config))
    }

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

    /// Its configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Installs a compiled group, without allocating, in time proportional to its paths. Its state is fresh, unless its rule
    /// [carries on](castnet_rules::MulticastRule::carries_on) the stream of the one that it replaces. Returns the group that it
    /// replaces, or itself if its rule is already running, to be freed on another thread.
    ///
    /// # Errors
    /// The McstID is an address of the switch, or no capacity or memory is left for the group. Nothing has changed then. The group comes
    /// back, to be freed on another thread as well.
    pub fn install(
        &mut self,
        now: Nanos,
        mut group: Context,
    ) -> Result<Option<Context>, (InstallError, Context)> {
        let mcst_id = group.mcst_id();
        if self.config.addresses.contains(&mcst_id.0) {
            return Err((InstallError::OwnAddress { mcst_id }, group));
        }
        if self
            .groups
            .get(mcst_id)
            .is_some_and(|running| running.same_rule(&group))
        {
            return Ok(Some(group));
        }
        if let Err(error) = self.groups.check_capacity(mcst_id, group.memory_bytes()) {
            return Err((error, group));
        }
        if let Some(old) = self.groups.get(mcst_id) {
            group.carry_on(old);
        }
        if let Context::Multicast(group) = &mut group {
            group.filter_cnps(self.config.filter_cnps);
        }
        let own = self.config.addresses.first().copied();
        let next_hops = &mut self.services.output.next_hops;
        if let Err(full) = with_group!(&mut group, group => group.bind(next_hops, own)) {
            return Err((full.into(), group));
        }
        let (slot, replaced) = self.groups.insert(group);
        self.bridge.forget_flows();
        self.services.timers.disarm(slot);
        if let Some(replaced) = &replaced {
            with_group!(replaced, group => group.unbind(&mut self.services.output.next_hops));
        }
        self.resume(now, slot);
        Ok(replaced)
    }

    /// Removes a group, to be freed on another thread or [attached](Engine::attach) to another engine.
    pub fn remove(&mut self, mcst_id: McstId) -> Option<Context> {
        let (slot, group) = self.groups.remove(mcst_id)?;
        self.bridge.forget_flows();
        self.services.timers.disarm(slot);
        with_group!(&group, group => group.unbind(&mut self.services.output.next_hops));
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

    /// All groups, in order of their slots.
    pub fn groups(&self) -> impl Iterator<Item = &Context> {
        self.groups.iter()
    }

    /// The number of groups of all kinds.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of memory of all groups.
    pub fn group_memory_bytes(&self) -> usize {
        self.groups.memory_used()
    }

    /// The state of a group, for display. Allocates.
    pub fn status(&self, mcst_id: McstId) -> Option<ContextStatus> {
        self.groups.get(mcst_id).map(Context::status)
    }

    /// The state of a multicast group, for display. Allocates.
    pub fn group_status(&self, mcst_id: McstId) -> Option<GroupStatus> {
        match self.status(mcst_id)? {
            ContextStatus::Multicast(status) => Some(status),
            _ => None,
        }
    }

    /// The state of a collective group, for display. Allocates.
    pub fn collective_status(&self, mcst_id: McstId) -> Option<CollectiveGroupStatus> {
        match self.status(mcst_id)? {
            ContextStatus::Collective(status) => Some(status),
            _ => None,
        }
    }

    /// Replaces the tables. Addresses learned on ports that went down are forgotten.
    pub fn set_tables(&mut self, now: Nanos, tables: Arc<Tables>) {
        let Services { output, events, .. } = &mut self.services;
        output.routes = tables.routes.clone();
        self.bridge.set_tables(now, tables, &mut output.ports, events);
    }

    /// The tables in use.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.bridge.tables
    }

    /// The time at which [`Engine::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let own = self.bridge.poll_timeout();
        own.into_iter().chain(self.services.timers.poll()).min()
    }

    /// Gives groups new work, and traces new time, for this iteration. Without it, only [`Engine::handle_timeout`] does.
    pub fn begin_iteration(&mut self) {
        self.services.work = WORK_MAX;
        self.taps.begin_iteration();
    }

    /// Runs due timers: LLDP, a bounded part of ageing, stall reports, retransmissions and pending emissions of a bounded number of groups.
    /// While further groups are due, so is [`Engine::poll_timeout`]: handle frames, and call it again.
    pub fn handle_timeout<E: Egress>(&mut self, now: Nanos, egress: &mut E) {
        self.taps.begin_iteration();
        if self.taps.want_sent() {
            let mut watch = Watch::of_timers(std::mem::take(&mut self.taps), now);
            self.on_time(now, egress, &mut watch);
            self.taps = watch.finish();
        } else {
            self.on_time(now, egress, &mut Off);
        }
    }

    fn on_time<E: Egress, O: Observer>(&mut self, now: Nanos, egress: &mut E, observer: &mut O) {
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
        services.work = TIMERS_WORK;
        bridge.handle_timeout(&mut cx, services);
        let wheels: [fn(&mut Timers) -> &mut Wheel; 2] = [|all| &mut all.coarse, |all| &mut all.fine];
        for wheel in wheels {
            for _ in 0..GROUPS_PER_CALL {
                if services.work == 0 {
                    break;
                }
                let Some(slot) = wheel(&mut services.timers).pop(now) else {
                    break;
                };
                groups.with(
                    slot,
                    |group| with_group!(group, group => group.timeout(services, &mut cx, slot)),
                );
            }
        }
        services.work += WORK_MAX - TIMERS_WORK;
        // A group that has still more to send is queued again. When the work of this iteration is done, the next one goes on from there.
        for _ in 0..services.timers.emitting.len().min(GROUPS_PER_CALL) {
            if services.work == 0 {
                return;
            }
            let Some(slot) = services.timers.emitting.pop_front() else {
                return;
            };
            groups.with(
                slot,
                |group| with_group!(group, group => group.emit(services, &mut cx, slot)),
            );
        }
    }

    /// Prefetches what each batch touches. [`Engine::prefetch`] reads some of it.
    pub fn prefetch_state(&self) {
        prefetch(&self.taps);
        prefetch(&self.groups);
        self.bridge.prefetch();
        prefetch(&self.services.output.counters);
        self.services.timers.prefetch();
    }

    /// Prefetches what a routed frame touches. [`Engine::egress_of`] reads some of it.
    pub fn prefetch(&self, ingress: PortId, frame: &impl FrameBuf) {
        if let Some(key) = GroupKey::of_frame(frame.head()) {
            self.groups.prefetch_index(key);
        }
        self.bridge.prefetch_flow(ingress, frame.head());
        self.services.output.counters.prefetch(ingress);
    }

    /// The port by which a routed frame of a cached flow leaves. `None` for other frames.
    pub fn egress_of(&self, now: Nanos, ingress: PortId, frame: &impl FrameBuf) -> Option<PortId> {
        self.bridge.egress_of(now, ingress, frame.head())
    }

    /// Removes and returns the oldest event.
    pub fn pop_event(&mut self) -> Option<EngineEvent> {
        self.services.events.pop()
    }

    /// Removes and returns the oldest registration packet.
    pub fn pop_registration(&mut self) -> Option<RegistrationFrame> {
        self.bridge.registrations.pop()
    }

    /// Sends a frame that control has made. It is lost if no buffer is free.
    pub fn transmit<E: Egress>(&mut self, port: PortId, frame: &[u8], egress: &mut E) {
        let Output { ports, counters, .. } = &mut self.services.output;
        if !ports.up.contains(port) || frame.len() > ports.mtu(port) + Ethernet::LEN {
            counters.totals.copies_lost += 1;
            return;
        }
        match egress.gather(port, &[frame]) {
            Some(buffer) => {
                counters.totals.originated += 1;
                counters.sent(port, 1, frame.len() as u64);
                egress.send(port, buffer);
            }
            None => counters.totals.copies_lost += 1,
        }
    }

    /// Events lost because the queue was full, or traffic of a port caused too many.
    pub fn events_lost(&self) -> u64 {
        self.services.events.lost()
    }

    /// The switch's totals.
    pub fn totals(&self) -> Totals {
        self.services.output.counters.totals
    }

    /// Fills totals, ports, and groups from [`CountersSnapshot::next_group`] on. Allocates only if there is no capacity for the ports.
    pub fn snapshot(&self, into: &mut CountersSnapshot) {
        let Output { ports, counters, .. } = &self.services.output;
        into.totals = counters.totals;
        into.drops = counters.drops();
        into.clear();
        let present = ports.present.into_iter();
        into.ports.extend(present.map(|port| (port, counters.port(port))));
        let mut first = true;
        for slot in into.next_group..self.groups.slot_count() {
            let Some(context) = self.groups.at(slot as u32) else {
                continue;
            };
            if !with_group!(context, group => group.snapshot(into)) {
                // A group that does not fit alone is skipped; otherwise the walk would never end.
                into.next_group = if first { slot + 1 } else { slot };
                return;
            }
            first = false;
        }
        into.next_group = 0;
    }

    /// The learned Ethernet addresses, in no particular order.
    pub fn fdb(&self, now: Nanos) -> impl Iterator<Item = FdbEntry> {
        self.bridge.fdb.entries(now)
    }

    /// The known neighbours on all links.
    pub fn neighbours(&self, now: Nanos) -> impl Iterator<Item = Neighbour> {
        self.bridge.neighbours.iter(now)
    }
}
