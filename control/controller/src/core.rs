//! The controller's state, and every change of it.
//!
//! One lock holds all of it. A change of a group is made on a copy, written to the store and only then seen by anybody
//! ([`Shared::change`]); the lock is held over the write, which orders what is on the disk as it is in memory. No lock
//! is held over a call to a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use castnet_proto::v1;
use castnet_wire::McstId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::collective::exchange::Exchanges;
use crate::collective::planning::Foreign;
use crate::collective::state::CollectiveEntry;
use crate::config::Config;
use crate::error::Refusal;
use crate::fabric::Facts;
use crate::lifecycle::{Event, Next, Phase};
use crate::link::Link;
use crate::record::{GroupRecord, MemberState};
use crate::store::Store;
use crate::{driver, view};

/// Events that a slow reader may lag behind before it loses some.
const EVENTS_MAX: usize = 1024;

/// A group in memory.
pub(crate) struct Entry {
    pub(crate) record: GroupRecord,
    /// The switches known to have their part of the present generation.
    pub(crate) confirmed: BTreeSet<String>,
    /// Why a switch does not have what it should.
    pub(crate) problems: BTreeMap<String, String>,
    /// What an installation waits for.
    pub(crate) note: String,
    /// A task works on it.
    pub(crate) driven: bool,
    /// Ticks at each change.
    pub(crate) changed: watch::Sender<()>,
}

impl Entry {
    pub(crate) fn new(record: GroupRecord) -> Self {
        Self {
            record,
            confirmed: BTreeSet::new(),
            problems: BTreeMap::new(),
            note: String::new(),
            driven: false,
            changed: watch::Sender::new(()),
        }
    }

    /// The switches of its tree that are not known to have their part.
    pub(crate) fn unconfirmed(&self) -> Vec<&str> {
        let tree = self.record.plan.iter().flat_map(|p| p.rules.keys());
        tree.filter(|s| !self.confirmed.contains(*s))
            .map(String::as_str)
            .collect()
    }
}

/// All that is known.
pub(crate) struct Core {
    pub(crate) facts: Facts,
    /// What each switch said of itself last.
    pub(crate) capabilities: BTreeMap<String, v1::Capabilities>,
    pub(crate) groups: BTreeMap<String, Entry>,
    /// No name is in both.
    pub(crate) collectives: BTreeMap<String, CollectiveEntry>,
    /// What each switch has that is not ours.
    pub(crate) foreign: BTreeMap<String, Foreign>,
    /// Number of the last call to join.
    pub(crate) calls: u64,
    /// The McstID that was given out last: the next one comes after it, so that none is used again soon.
    pub(crate) last_mcst_id: Option<McstId>,
}

impl Core {
    /// The group, or why not.
    pub(crate) fn group(&self, name: &str) -> Result<&Entry, Refusal> {
        self.groups
            .get(name)
            .ok_or_else(|| Refusal::UnknownGroup { name: name.into() })
    }

    /// The name of the group of that McstID.
    pub(crate) fn by_mcst_id(&self, mcst_id: McstId) -> Option<&str> {
        self.mcst_ids()
            .find(|(_, theirs)| *theirs == mcst_id)
            .map(|(name, _)| name)
    }

    /// All groups of both kinds, by name, with the McstIDs of their lanes.
    pub(crate) fn mcst_ids(&self) -> impl Iterator<Item = (&str, McstId)> {
        let multicast = self.groups.values().flat_map(|e| {
            let name = e.record.name.as_str();
            e.record.mcst_ids().map(move |mcst_id| (name, mcst_id))
        });
        let collective = self.collectives.values().flat_map(|e| {
            let name = e.record.name.as_str();
            e.record.mcst_ids().map(move |mcst_id| (name, mcst_id))
        });
        multicast.chain(collective)
    }

    /// The names of all groups of both kinds.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.groups.keys().chain(self.collectives.keys())
    }

    /// A name must be nobody's yet.
    pub(crate) fn free_name(&self, name: &str) -> Result<(), Refusal> {
        let multicast = self.groups.get(name).map(|e| view::phase_name(&e.record.phase));
        let collective = self.collectives.get(name).map(|e| e.record.phase.name());
        match multicast.or(collective) {
            Some(phase) => Err(Refusal::DuplicateGroup {
                name: name.into(),
                phase,
            }),
            None => Ok(()),
        }
    }

    /// The parts that a switch shall have of the lanes of a group of either kind: of all or of none.
    pub(crate) fn wanted_on(&self, group: &str, switch: &str) -> Vec<crate::reconcile::Wanted> {
        match (self.groups.get(group), self.collectives.get(group)) {
            (Some(e), _) => e.record.wanted_on(switch),
            (None, Some(e)) => e.record.wanted_on(switch),
            (None, None) => Vec::new(),
        }
    }
}

/// What all tasks share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) owner: String,
    pub(crate) links: BTreeMap<String, Arc<Link>>,
    pub(crate) exchanges: Exchanges,
    core: Mutex<Core>,
    /// `None` once the controller is stopping: whatever is still under way can change nothing any more.
    store: Mutex<Option<Store>>,
    events: broadcast::Sender<v1::ControllerEvent>,
    fabric: watch::Sender<()>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    pub(crate) fn new(config: Config, store: Store, core: Core) -> Self {
        let links = config
            .switches
            .iter()
            .map(|s| (s.name.clone(), Arc::new(Link::new(s.clone()))))
            .collect();
        Self {
            config,
            owner: store.owner().into(),
            links,
            exchanges: Exchanges::default(),
            core: Mutex::new(core),
            store: Mutex::new(Some(store)),
            events: broadcast::Sender::new(EVENTS_MAX),
            fabric: watch::Sender::new(()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Runs `task` until the controller stops: then it is dropped where it stands, as if the process had been killed.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Ends all tasks and closes the store.
    pub(crate) async fn stop(&self) {
        self.stop_now();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// As [`Shared::stop`], without waiting.
    pub(crate) fn stop_now(&self) {
        self.stop.cancel();
        self.store.lock().take();
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<v1::ControllerEvent> {
        self.events.subscribe()
    }

    pub(crate) fn publish(&self, event: v1::controller_event::Event) {
        let at_unix_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64);
        // Nobody listens: nothing to tell.
        let _ = self.events.send(v1::ControllerEvent {
            at_unix_ns,
            event: Some(event),
        });
    }

    /// Ticks whenever switches or hosts report something new.
    pub(crate) fn fabric_changes(&self) -> watch::Receiver<()> {
        self.fabric.subscribe()
    }

    pub(crate) fn fabric_changed(&self) {
        self.fabric.send_replace(());
    }

    pub(crate) fn with_store<T>(
        &self,
        act: impl FnOnce(&Store) -> Result<T, crate::store::StoreError>,
    ) -> Result<T, Refusal> {
        let store = self.store.lock();
        let store = store.as_ref().ok_or(Refusal::Stopping)?;
        Ok(act(store)?)
    }

    /// Adds a group that is stored before anybody sees it.
    pub(crate) fn add(self: &Arc<Self>, core: &mut Core, record: GroupRecord) -> Result<(), Refusal> {
        self.with_store(|store| store.put_group(&record))?;
        let name = record.name.clone();
        core.groups.insert(name.clone(), Entry::new(record));
        self.told(core, &name);
        Ok(())
    }

    /// Changes a group: on a copy, which is stored before anybody sees it. Starts the work that the change calls for.
    pub(crate) fn change(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut GroupRecord),
    ) -> Result<(), Refusal> {
        let mut record = core.group(name)?.record.clone();
        change(&mut record);
        self.replace(core, record)
    }

    fn replace(self: &Arc<Self>, core: &mut Core, record: GroupRecord) -> Result<(), Refusal> {
        let name = record.name.clone();
        let Some(entry) = core.groups.get_mut(&name) else {
            return Err(Refusal::UnknownGroup { name });
        };
        if entry.record == record {
            return Ok(());
        }
        self.with_store(|store| store.put_group(&record))?;
        if record.generation != entry.record.generation || !record.phase.wants_rules() {
            entry.confirmed.clear();
            entry.problems.retain(|switch, _| record.placed.contains(switch));
        }
        entry.record = record;
        self.told(core, &name);
        self.drive(core, &name);
        Ok(())
    }

    /// Takes a group one step on in its life. An event that does not go with its phase is late news: nothing happens.
    pub(crate) fn step(self: &Arc<Self>, core: &mut Core, name: &str, event: Event) -> Result<(), Refusal> {
        let mut record = core.group(name)?.record.clone();
        let next = match record.phase.clone().step(event.clone()) {
            Ok(next) => next,
            Err(late) => {
                tracing::debug!(group = name, %late, "event without effect");
                return Ok(());
            }
        };
        let Next::Phase(phase) = next else {
            return self.forget(core, name);
        };
        tracing::info!(
            group = name,
            from = view::phase_name(&record.phase),
            to = view::phase_name(&phase)
        );
        match (&event, &phase) {
            (Event::AllJoined, _) => {
                record.generation += 1;
                record.plan = None;
            }
            (Event::Ended, _) => record.forget_connections(),
            (Event::Cleared, Phase::Registered) => record.plan = None,
            (Event::Cleared, Phase::Failed(_)) => {
                record.plan = None;
                record.forget_calls();
            }
            _ => {}
        }
        record.phase = phase;
        if let Some(entry) = core.groups.get_mut(name) {
            entry.note.clear();
        }
        self.replace(core, record)?;
        // The members that stayed when another withdrew may be complete again by now.
        let complete = |e: &Entry| e.record.phase == Phase::Registered && e.record.all_joined();
        if core.group(name).is_ok_and(complete) {
            self.step(core, name, Event::AllJoined)?;
        }
        Ok(())
    }

    fn forget(&self, core: &mut Core, name: &str) -> Result<(), Refusal> {
        self.with_store(|store| store.remove_group(name))?;
        if let Some(entry) = core.groups.remove(name) {
            tracing::info!(group = name, "gone");
            entry.changed.send_replace(());
            self.publish(v1::controller_event::Event::GroupGone(name.into()));
        }
        Ok(())
    }

    /// Notes what an installation waits for; not stored.
    pub(crate) fn note(&self, core: &mut Core, name: &str, note: String) {
        if let Some(entry) = core.groups.get_mut(name)
            && entry.note != note
        {
            entry.note = note;
            self.told(core, name);
        }
    }

    /// Tells everybody how a group is now.
    pub(crate) fn told(&self, core: &Core, name: &str) {
        if let Some(entry) = core.groups.get(name) {
            entry.changed.send_replace(());
            self.publish(v1::controller_event::Event::Group(view::group_state(
                core, entry, None,
            )));
        }
    }

    /// Starts a task on a group that needs one and has none.
    pub(crate) fn drive(self: &Arc<Self>, core: &mut Core, name: &str) {
        if let Some(entry) = core.groups.get_mut(name)
            && !entry.driven
            && entry.record.phase.needs_driver()
        {
            entry.driven = true;
            self.spawn(driver::drive(self.clone(), name.into()));
        }
    }

    /// A switch can be reached, and was just looked through: `wanted` are the groups whose rules were wanted there, with
    /// the generations that are there now, if any; it has no other rules of ours.
    pub(crate) fn settled(
        self: &Arc<Self>,
        core: &mut Core,
        switch: &str,
        wanted: &BTreeMap<String, Option<u64>>,
    ) {
        self.settled_collectives(core, switch, wanted);
        for name in core.groups.keys().cloned().collect::<Vec<_>>() {
            let Some(entry) = core.groups.get_mut(&name) else {
                continue;
            };
            let record = &entry.record;
            if wanted.get(&name) == Some(&Some(record.generation)) && record.phase.wants_rules() {
                entry.problems.remove(switch);
                if entry.confirmed.insert(switch.into()) {
                    self.told(core, &name);
                }
            } else if !wanted.contains_key(&name)
                && !record.phase.wants_rules()
                && record.placed.contains(switch)
            {
                entry.problems.remove(switch);
                self.try_change(core, &name, |r| {
                    r.placed.remove(switch);
                });
                self.drive(core, &name);
            }
            let back = |e: &Entry| e.record.phase == Phase::Degraded && e.unconfirmed().is_empty();
            if core.group(&name).is_ok_and(back) {
                self.try_step(core, &name, Event::SwitchesBack);
            }
        }
    }

    /// A switch does not have what it should, or nobody knows: groups with a part there are degraded.
    pub(crate) fn unsettled(
        self: &Arc<Self>,
        core: &mut Core,
        switch: &str,
        group: Option<&str>,
        reason: &str,
    ) {
        self.unsettled_collectives(core, switch, group, reason);
        for name in core.groups.keys().cloned().collect::<Vec<_>>() {
            let Some(entry) = core.groups.get_mut(&name) else {
                continue;
            };
            let concerned =
                !entry.record.wanted_on(switch).is_empty() || entry.record.placed.contains(switch);
            if !concerned || group.is_some_and(|g| g != name) {
                continue;
            }
            entry.confirmed.remove(switch);
            entry.problems.insert(switch.into(), reason.into());
            if entry.record.phase == Phase::Active {
                self.try_step(core, &name, Event::SwitchLost);
            } else {
                self.told(core, &name);
            }
        }
    }

    /// As [`Shared::step`], where nobody waits for the answer.
    pub(crate) fn try_step(self: &Arc<Self>, core: &mut Core, name: &str, event: Event) {
        if let Err(error) = self.step(core, name, event) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    /// As [`Shared::change`], where nobody waits for the answer.
    pub(crate) fn try_change(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut GroupRecord),
    ) {
        if let Err(error) = self.change(core, name, change) {
            tracing::error!(group = name, %error, "change failed");
        }
    }
}

/// The groups of the store, as they are after a restart of the controller.
pub(crate) fn after_restart(mut record: GroupRecord) -> GroupRecord {
    match record.phase {
        Phase::Registered => record.forget_calls(),
        // Which switches can be reached is found out anew.
        Phase::Degraded => record.phase = Phase::Active,
        _ => {}
    }
    for member in &mut record.members {
        if let MemberState::Joined {
            by: crate::record::JoinedBy::Call(call),
            ..
        } = &mut member.state
        {
            *call = 0;
        }
    }
    record
}
