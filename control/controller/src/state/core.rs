//! The controller's state in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use castnet_proto::v1;
use castnet_rules::Ipv4Net;
use castnet_wire::McstId;

use crate::config::Config;
use crate::error::Refusal;
use crate::state::broken_links::Changed;
use crate::state::change::{Postponed, WhenStored};
use crate::state::driver::Works;
use crate::state::fabric::{Fabric, Facts};
use crate::state::journal::Journal;
use crate::state::lost_switches::Signs;
use crate::state::multicast_routes::MulticastRoutes;
use crate::state::others::Others;
use crate::state::pace::Pace;
use crate::state::table::{Groups, Usage};
use crate::state::timers::Timers;
use crate::state::unexplained::Departed;
use crate::state::written_off::AllWrittenOff;
use crate::state::{Collective, Draws, Effect, Entry, Multicast, Owner, Reach, Record};
use crate::store::{StoreError, Stored, Table};

/// Events that a slow reader may lag behind before it loses some.
pub(crate) const EVENTS_MAX: usize = 1024;

pub(crate) struct Core {
    pub(crate) config: Arc<Config>,
    /// What is to be done outside, in order.
    pub(crate) effects: Vec<Effect>,
    /// The time, and the same since 1970 in nanoseconds, as of the start of a change.
    pub(crate) now: Instant,
    pub(crate) unix_ns: u64,
    /// Whether there is anybody who gets events.
    pub(crate) is_watched: bool,
    pub(crate) facts: Fabric,
    /// Of hosts that change their addresses.
    pub(crate) moves: Pace,
    /// Of hosts that join running streams, for which groups are planned under the lock.
    pub(crate) late_joins: Pace,
    /// Of owners of groups, for warnings that their hosts can cause at will.
    warnings: Pace,
    /// Last report of each switch about itself, and what other owners use of it.
    pub(crate) capabilities: BTreeMap<String, (v1::Capabilities, Usage)>,
    /// Whether a switch had been restarted when it last reported about itself; none at its first report.
    pub(crate) were_restarted: BTreeMap<String, bool>,
    pub(crate) groups: Groups,
    pub(crate) written_off: AllWrittenOff,
    /// Groups whose records in the store do not read, and why. What switches have of them stays as it is.
    pub(crate) set_apart: BTreeMap<String, String>,
    pub(crate) others: Others,
    pub(crate) departed: Departed,
    /// Number of the last call to join.
    pub(crate) calls: u64,
    /// Number of the last state of a group that was shown.
    pub(crate) numbers: AtomicU64,
    /// Pool of McstIDs that are not of one switch.
    pub(crate) mcst_pool: Ipv4Net,
    /// McstID given out last, per pool: the search continues after it, so that none is used again soon.
    pub(crate) last_mcst_ids: BTreeMap<Ipv4Net, McstId>,
    /// Changes that are not on disk yet.
    pub(crate) journal: Journal,
    /// Why the store cannot be written now.
    pub(crate) store_error: Option<Arc<StoreError>>,
    /// Work that waits for a batch, by its number.
    pub(crate) waiting: BTreeMap<u64, Vec<WhenStored>>,
    pub(crate) postponed: Postponed,
    pub(crate) links_changed: Changed,
    pub(crate) signs: Signs,
    pub(crate) multicast_routes: MulticastRoutes,
    pub(crate) timers: Timers<Owner>,
    pub(crate) works: Works,
    pub(crate) draws: Draws,
}

impl Core {
    /// The state as it is stored, before anything is heard of switches. Nobody is to know the seed: PSNs of ranks follow from it.
    pub(crate) fn new(config: Arc<Config>, stored: Stored, now: Instant, seed: u64) -> Self {
        let mut groups = Groups::new(config.mcst_pool);
        for record in stored.groups {
            groups.put(record.after_restart());
        }
        for (entry, reason) in &stored.set_apart {
            tracing::error!(%entry, reason, "set apart: castnet store check says more; what switches have of it stays");
        }
        let apart = stored
            .set_apart
            .into_iter()
            .filter(|(key, _)| key.table == Table::Groups);
        let set_apart: BTreeMap<String, String> = apart.map(|(key, reason)| (key.name, reason)).collect();
        let switches = config.switches.iter().map(|s| s.name.clone());
        let mut multicast_routes = MulticastRoutes::new(config.topology.as_ref()).unwrap_or_default();
        // Before a router is asked what it has: it keeps the routes of these groups.
        multicast_routes.keep_all(&groups);
        // What is in memory alone is new at each start, as everybody knows.
        let is_stored = config.store.is_some() || config.etcd.is_some();
        let may_be_older = is_stored || !set_apart.is_empty();
        Self {
            effects: Vec::new(),
            now,
            unix_ns: 0,
            is_watched: false,
            facts: Fabric::new(Facts::new(
                config.topology.clone(),
                switches.clone(),
                stored.hosts,
            )),
            moves: Pace::new(8, Duration::from_secs(1)),
            late_joins: Pace::new(64, Duration::from_millis(250)),
            warnings: Pace::new(64, Duration::from_secs(1)),
            capabilities: BTreeMap::new(),
            were_restarted: BTreeMap::new(),
            groups,
            written_off: stored.written_off,
            others: Others::new(stored.is_new && is_stored, may_be_older, switches),
            set_apart,
            departed: Departed::default(),
            calls: 0,
            numbers: AtomicU64::new(0),
            mcst_pool: config.mcst_pool,
            last_mcst_ids: BTreeMap::new(),
            journal: Journal::new(stored.versions),
            store_error: None,
            waiting: BTreeMap::new(),
            postponed: Postponed::default(),
            links_changed: Changed::default(),
            signs: Signs::default(),
            multicast_routes,
            timers: Timers::default(),
            works: Works::default(),
            draws: Draws::new(seed),
            config,
        }
    }

    /// Whether one more warning about groups of this owner is logged now: hosts can cause them as often as they like. Events have all.
    pub(crate) fn may_warn(&mut self, owner: &str) -> bool {
        let turn = self.warnings.turn(owner, self.now);
        turn.map(|turn| self.warnings.take(owner.into(), turn, self.now))
            .is_some()
    }

    /// [`Core::may_warn`] of the owner of this group.
    pub(crate) fn may_warn_of(&mut self, group: &str) -> bool {
        let owner = self.groups.get(group).map(|entry| entry.record().owner.clone());
        self.may_warn(&owner.unwrap_or_default())
    }

    pub(crate) fn group(&self, name: &str) -> Result<&Entry, Refusal> {
        self.groups.get(name).ok_or_else(|| self.unknown(name))
    }

    /// There is no such group; or it may exist, and a member must not be told that it is gone.
    pub(crate) fn unknown(&self, name: &str) -> Refusal {
        let unread = self
            .set_apart
            .get(name)
            .map(|why| format!("its record in the store {why}"));
        let was_here = self.departed.has(name);
        let unasked = || {
            let is_open = self.waits_for_lists() && !was_here;
            is_open.then(|| "what the switches have was not seen yet".to_owned())
        };
        let reason = unread
            .or_else(|| self.unexplained(name))
            .or_else(|| self.others.wrong_store())
            .or_else(|| self.others.doubt().filter(|_| !was_here))
            .or_else(unasked);
        match reason {
            Some(reason) => Refusal::later("group", format!("group {name:?} is not known yet: {reason}")),
            None => Refusal::UnknownGroup { name: name.into() },
        }
    }

    /// Whether a switch that answers has not told yet what it has, while that is of interest.
    pub(crate) fn waits_for_lists(&self) -> bool {
        let down = |switch: &String| {
            let known = self.facts.switches.get(switch);
            known.is_some_and(|(reach, _)| matches!(reach, Reach::Down(_)))
        };
        self.others.unasked().any(|switch| !down(switch))
    }

    pub(crate) fn multicast(&self, name: &str) -> Result<(&Entry, &Multicast), Refusal> {
        self.of_kind(name, Record::multicast)
    }

    pub(crate) fn collective(&self, name: &str) -> Result<(&Entry, &Collective), Refusal> {
        self.of_kind(name, Record::collective)
    }

    fn of_kind<K>(&self, name: &str, kind: fn(&Record) -> Option<&K>) -> Result<(&Entry, &K), Refusal> {
        let entry = self.group(name)?;
        match kind(entry.record()) {
            Some(kind) => Ok((entry, kind)),
            None => Err(Refusal::OtherKind {
                name: name.into(),
                is: match entry.record().collective() {
                    Some(_) => "a job, whose ranks call collectives",
                    None => "a multicast group, no job",
                },
            }),
        }
    }

    /// The group that has this address, as a switch reports it.
    pub(crate) fn at_address(&self, mcst_id: &str) -> Option<&Entry> {
        self.groups.by_mcst_id(mcst_id.parse().ok()?)
    }

    pub(crate) fn collective_at(&self, mcst_id: &str) -> Option<(&Entry, &Collective)> {
        let entry = self.at_address(mcst_id)?;
        Some((entry, entry.record().collective()?))
    }

    /// Whether a group may be created with this name.
    pub(crate) fn free_name(&self, name: &str) -> Result<(), Refusal> {
        let taken = |phase: &str| {
            let reason = format!("there is a group {name:?} already ({phase})");
            Err(Refusal::taken("name", reason))
        };
        match (self.groups.get(name), self.others.wrong_store()) {
            (Some(entry), _) => taken(entry.phase_name()),
            (None, _) if self.set_apart.contains_key(name) => taken("its record does not read"),
            (None, Some(reason)) => Err(Refusal::not_now("name", format!("no group is created: {reason}"))),
            // Its members, who may be back, would get another one.
            (None, None) if self.unexplained(name).is_some() => Err(self.unknown(name)),
            (None, None) => Ok(()),
        }
    }

    /// Sends an event to all subscribers, once the changes staged so far are on disk.
    pub(crate) fn publish(&mut self, event: v1::controller_event::Event) {
        let event = v1::ControllerEvent {
            at_unix_ns: self.unix_ns,
            event: Some(event),
        };
        if let Some(event) = self.journal.hold_back(event) {
            self.effects.push(Effect::Publish(Box::new(event)));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use castnet_proto::convert::{NewGroup, RankJoin, new_group_from_proto, rank_join_from_proto};
    use castnet_rules::{GroupKind, GroupRule, HostEndpoint, HostPart};
    use castnet_topology::Topology;
    use castnet_wire::{MacAddr, Pmtu, Qpn};
    use tracing::{Level, Metadata, span};

    use super::*;
    use crate::config::SwitchConfig;

    fn switch(name: &str) -> SwitchConfig {
        SwitchConfig {
            name: name.into(),
            agent: "unix:/nowhere".parse().expect("an address"),
        }
    }

    /// One switch, no topology file, and nothing stored.
    pub(crate) fn core(change: impl FnOnce(&mut Config)) -> Core {
        let mut config = Config::new(vec![switch("s")]);
        change(&mut config);
        Core::new(config.into(), Stored::default(), Instant::now(), 1)
    }

    /// The switches of this file, of which nothing was heard.
    pub(crate) fn core_over(file: Topology) -> Core {
        core(|config| {
            config.switches = file.switches().map(|known| switch(&known.name)).collect();
            config.topology = Some(file);
        })
    }

    /// What is staged is on disk.
    pub(crate) fn write(core: &mut Core) {
        let batch = core.next_batch().expect("something is staged");
        core.handle_stored(batch, true);
    }

    /// In the pool of the controller.
    pub(crate) fn mcst_id(last: u8) -> McstId {
        McstId([10, 200, 0, last].into())
    }

    /// Where host `h<number>` has its queue pair, at 10.0.0.<number>.
    pub(crate) fn end(number: u8) -> HostEndpoint {
        HostEndpoint {
            name: format!("h{number}"),
            ip: [10, 0, 0, number].into(),
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            qpn: Qpn::new(17),
            part: HostPart::Plain,
        }
    }

    /// A multicast group of these hosts, of which none has joined. The first one sends.
    pub(crate) fn new_group(name: &str, hosts: &[&str]) -> NewGroup {
        let member = |host: &&str| v1::NewMember {
            host: (*host).into(),
            connection: None,
        };
        let request = v1::CreateGroupRequest {
            name: name.into(),
            source: hosts[0].into(),
            members: hosts.iter().map(member).collect(),
            ..Default::default()
        };
        new_group_from_proto(&request).expect("a group")
    }

    /// A rule without endpoints.
    pub(crate) fn rule(kind: impl Into<GroupKind>) -> GroupRule {
        GroupRule {
            name: "g".into(),
            generation: 1,
            mcst_id: mcst_id(1),
            pmtu: Pmtu::B1024,
            stall_timeout_ms: 1000,
            rate_limit: None,
            endpoints: Vec::new(),
            kind: kind.into(),
        }
    }

    /// A rank of a job, at host `h<rank>`. Its lease is 10 minutes.
    pub(crate) fn join(job: &str, rank: u8, size: u32, secret: &str) -> RankJoin {
        let request = v1::InitGroupRequest {
            job: job.into(),
            rank: rank.into(),
            size,
            host: format!("h{rank}"),
            connection: Some(v1::Connection {
                ip: format!("10.0.0.{}", rank + 1),
                mac: format!("02:00:00:00:00:{rank:02x}"),
                qpn: 2 + u32::from(job.as_bytes()[0]),
                ..Default::default()
            }),
            sq_psn: 9,
            lease_ms: 600_000,
            secret: secret.into(),
            ..Default::default()
        };
        rank_join_from_proto(&request).expect("a rank")
    }

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// How many warnings this causes.
    pub(crate) fn warnings(cause: impl FnOnce()) -> usize {
        let count = Arc::default();
        tracing::subscriber::with_default(Warnings(Arc::clone(&count)), cause);
        count.load(Ordering::Relaxed)
    }

    /// Regression: its own groups were unknown for as long as one switch was down at the first start.
    #[test]
    fn a_group_that_was_destroyed_here_is_gone_also_on_a_new_store() {
        let config = core(|config| config.store = Some("c.redb".into())).config;
        let stored = Stored {
            is_new: true,
            ..Stored::default()
        };
        let mut core = Core::new(config, stored, Instant::now(), 1);
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        core.forget("job").unwrap();
        assert!(matches!(core.unknown("job"), Refusal::UnknownGroup { .. }));
        let unknown = core.unknown("g").to_string();
        assert!(unknown.contains("not known yet"), "{unknown}");
    }
}
