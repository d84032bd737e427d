//! All changes of groups. A change is made on a copy, then put in place and staged together; nothing of it leaves the
//! controller before it is stored (see `journal.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event as Told;
use castnet_wire::McstId;

use crate::error::Refusal;
use crate::state::effect::Work;
use crate::state::journal::{Batch, Pending, Undo, Value};
use crate::state::lifecycle::Next;
use crate::state::shown::Cache;
use crate::state::{
    Core, Detours, Due, Effect, Ending, Entry, Event, Owner, Phase, Record, broken_links, multicast_routes,
};
use crate::store::{Key, Table, etcd};

/// Groups whose work is resumed at once: others use the lock in between.
const RESUMED_TOGETHER: usize = 256;

/// How long an event waits for others of its group.
const EVENT_PAUSE: Duration = Duration::from_millis(100);

/// Work that follows a batch, and whether that was written.
pub(crate) type WhenStored = Box<dyn FnOnce(&mut Core, bool) + Send>;

/// Work whose changes could not be written.
#[derive(Default)]
pub(crate) struct Postponed {
    pub(crate) groups: BTreeSet<String>,
    pub(crate) works: VecDeque<Work>,
}

impl Core {
    pub(crate) fn add(&mut self, mut record: Record) -> Result<(), Refusal> {
        self.journal.check_open()?;
        self.config.assign_tenant(&mut record);
        self.check_quotas(&self.config, &record)?;
        if self.config.etcd.is_some() {
            record.check_size(etcd::BYTES_MAX)?;
        }
        self.journal.stage_added(&record);
        let (name, mcst_id, lanes) = (record.name.clone(), record.mcst_id, record.lanes());
        let group = name.clone();
        self.journal
            .log(move || tracing::info!(group, %mcst_id, lanes, "created"));
        if let Some(last) = record.mcst_ids().last() {
            let pool = self.mcst_pool;
            self.last_mcst_ids.insert(pool, last);
        }
        self.given_out(&record.own_mcst_ids);
        self.groups.put(record);
        self.notify(&name);
        Ok(())
    }

    /// Changes a group, and starts the work that follows.
    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(&mut Record)) -> Result<(), Refusal> {
        let mut record = self.group(name)?.record().clone();
        change(&mut record);
        self.replace(record)
    }

    fn replace(&mut self, record: Record) -> Result<(), Refusal> {
        let name = record.name.clone();
        self.journal.check_open()?;
        let Some(entry) = self.groups.get_mut(&name) else {
            return Err(Refusal::UnknownGroup { name });
        };
        if *entry.record() == record {
            return Ok(());
        }
        let address = |record: &Record| Some(record.plan.as_ref()?.refinement.as_ref()?.address);
        let before = address(entry.record());
        let is_freed = before.is_some() && address(&record) != before;
        self.journal.stage_changed(entry);
        if record.generation != entry.record().generation || !record.phase.wants_rules() {
            entry.confirmed.clear();
            entry.problems.retain(|switch, _| record.placed.contains(switch));
            entry.rules_ended();
            self.works.updates.remove(&name);
        }
        self.groups.put(record);
        self.notify(&name);
        self.drive(&name);
        if is_freed {
            multicast_routes::sweep_soon(self);
        }
        self.refine_soon(&name);
        Ok(())
    }

    /// Takes a group one step on in its life, and further steps that follow. An event that does not fit the phase is
    /// late and has no effect.
    pub(crate) fn step(&mut self, name: &str, event: Event, ending: Option<Ending>) -> Result<(), Refusal> {
        self.one_step(name, event, ending)?;
        self.settle(name)
    }

    /// Takes the steps that follow from the state of a group.
    pub(crate) fn settle(&mut self, name: &str) -> Result<(), Refusal> {
        // A group that is gone has no more steps.
        while let Some(event) = self.groups.get(name).and_then(|e| follows(e.record())) {
            if self.must_wait(name, event) {
                break;
            }
            self.one_step(name, event, None)?;
        }
        Ok(())
    }

    fn one_step(&mut self, name: &str, event: Event, ending: Option<Ending>) -> Result<(), Refusal> {
        let entry = self.group(name)?;
        let (mut record, from) = (entry.record().clone(), entry.phase_name());
        let phase = match record.phase.step(event) {
            Some(Next::Phase(phase)) => phase,
            Some(Next::Gone) => return self.forget(name),
            None => {
                tracing::debug!(group = name, phase = from, ?event, "event without effect");
                return Ok(());
            }
        };
        let kind = record.kind.behaviour();
        let to = kind.phase_name(phase);
        let why = ending.as_ref().map(Ending::words);
        record.phase = phase;
        match event {
            Event::AllJoined if phase == Phase::Installing => {
                record.generation += 1;
                record.plan = None;
            }
            Event::Refused | Event::Broke | Event::Lost | Event::Ended => {
                record.ended = ending.or(record.ended);
            }
            Event::Cleared => record.plan = None,
            _ => {}
        }
        let kind = record.kind.behaviour_mut();
        kind.step(event, phase, record.generation, &mut self.draws);
        if let Some(entry) = self.groups.get_mut(name) {
            entry.note.clear();
            entry.links_down.clear();
            match event {
                Event::Confirmed => entry.note = std::mem::take(&mut entry.detours).words(),
                // The refusals count only while the group is placed again at once.
                Event::Cleared if follows(&record) != Some(Event::AllJoined) => {
                    entry.detours = Detours::default();
                }
                _ => {}
            }
        }
        self.replace(record)?;
        let group = name.to_owned();
        self.journal.log(move || tracing::info!(group, from, to, why));
        // A link may have gone down during the installation.
        let down =
            |e: &Entry| broken_links::is_watched(e.record()) && !broken_links::down(self, e).is_empty();
        if self.groups.get(name).is_some_and(down) {
            self.links_changed.groups.insert(name.into());
            self.effects.push(Effect::FabricChanged);
        }
        self.arm(name);
        if event == Event::Confirmed {
            // Calls may have ended before, as by a restart of the controller.
            self.run_leases(name);
        }
        Ok(())
    }

    /// What happens to a group after a time in its phase.
    fn next_in_time(&self, name: &str) -> Option<(Duration, Event)> {
        let record = self.groups.get(name)?.record();
        let kind = record.kind.behaviour();
        match record.phase {
            Phase::Broken => Some((kind.notice(), Event::TimeUp)),
            Phase::Failed | Phase::Refused if kind.lingers() => {
                Some((self.config.timeouts.linger, Event::Destroy))
            }
            _ => None,
        }
    }

    /// The time of a group in its phase begins.
    pub(crate) fn arm(&mut self, name: &str) {
        match self.next_in_time(name) {
            Some((after, _)) => self.set_timer(name, Due::Phase, after),
            None => self.cancel_timer(name, &Due::Phase),
        }
    }

    pub(crate) fn phase_over(&mut self, name: &str) {
        if let Some((_, event)) = self.next_in_time(name) {
            self.try_step(name, event, None);
        }
    }

    /// What is staged, with the present values.
    pub(crate) fn next_batch(&mut self) -> Option<Batch> {
        let (groups, facts, written_off) = (&self.groups, &self.facts, &self.written_off);
        self.journal.take(|key| match key.table {
            Table::Groups => groups
                .get(&key.name)
                .map(|e| Value::Group(Box::new(e.record().clone()))),
            Table::Hosts => facts.hosts.get(&key.name).cloned().map(Value::Host),
            Table::WrittenOff => {
                let mcst_id = key.name.parse().ok().map(McstId);
                let entry = mcst_id.and_then(|id| written_off.get(&id));
                entry.cloned().map(Value::WrittenOff)
            }
            Table::Meta => None,
        })
    }

    /// A batch is on disk, or cannot be written: then it is taken back, with what was staged on top of it. Returns the numbers of the batches
    /// that have ended.
    pub(crate) fn handle_stored(&mut self, mut batch: Batch, is_written: bool) -> Vec<u64> {
        if is_written {
            self.journal.written();
            batch.messages.drain(..).for_each(|message| message());
            let lost = (batch.events_lost > 0).then_some(v1::ControllerEvent {
                at_unix_ns: 0,
                event: Some(Told::Lagged(batch.events_lost)),
            });
            let events = lost.into_iter().chain(batch.events);
            self.effects
                .extend(events.map(|event| Effect::Publish(Box::new(event))));
            self.batch_ended(batch.number, true);
            return vec![batch.number];
        }
        let mut rest = self.take_back(&mut batch);
        let works = batch.retries.drain(..).chain(rest.retries.drain(..));
        self.postponed.works.extend(works);
        for event in batch.events.drain(..).chain(rest.events.drain(..)) {
            // Reports of switches stay true; states of groups are reported anew.
            match &event.event {
                Some(Told::GroupGone(_)) => {}
                Some(Told::Group(state)) => self.notify(&state.name),
                Some(Told::Collective(state)) => self.notify(&state.name),
                _ => self.effects.push(Effect::Publish(Box::new(event))),
            }
        }
        let ended = vec![batch.number, rest.number];
        for batch in &ended {
            self.batch_ended(*batch, false);
        }
        ended
    }

    /// Does work when all that was staged is on disk, or was taken back.
    pub(crate) fn when_stored(&mut self, work: impl FnOnce(&mut Self, bool) + Send + 'static) {
        match self.journal.pending() {
            Pending::Nothing => work(self, true),
            Pending::Batch(batch) => self.waiting.entry(batch).or_default().push(Box::new(work)),
            // Once the controller stops, nothing follows.
            Pending::Forever => {}
        }
    }

    fn batch_ended(&mut self, batch: u64, is_written: bool) {
        for work in self.waiting.remove(&batch).into_iter().flatten() {
            work(self, is_written);
        }
    }

    /// Takes back a batch that could not be written, and what was staged on top of it, which is returned. Work that remains for the groups
    /// waits until the store works.
    pub(crate) fn take_back(&mut self, batch: &mut Batch) -> Batch {
        let mut rest = self.journal.failed(batch);
        // They are in the table again when all are as they were: meanwhile one may have an address that another one had before.
        let mut groups: BTreeMap<String, Option<Entry>> = BTreeMap::new();
        for (Key { name, .. }, undo) in rest.undo().chain(batch.undo()) {
            match undo {
                Undo::Host(before) => self.facts.set_host(&name, before),
                Undo::WrittenOff(mcst_id, before) => self.put_written_off(mcst_id, before),
                Undo::Group(before) => {
                    let group = groups
                        .entry(name)
                        .or_insert_with_key(|name| self.groups.remove(name));
                    if let Some(gone) = before.restore(group) {
                        self.effects.extend(told_gone(&gone));
                    }
                }
            }
        }
        let mut names = BTreeSet::new();
        for (name, group) in groups {
            if let Some(group) = group {
                self.groups.put_back(group);
                self.follow_timers(&name);
                names.insert(name);
            } else {
                self.timers.cancel(&Owner::Group(name));
            }
        }
        self.reported();
        for name in names {
            if let Some(entry) = self.groups.get_mut(&name) {
                entry.rules_ended();
            }
            self.notify(&name);
            self.postpone(name);
        }
        rest
    }

    /// The work on a group continues when the store works.
    pub(crate) fn postpone(&mut self, name: String) {
        self.postponed.groups.insert(name);
        self.effects.push(Effect::Staged);
    }

    /// Continues some of the work that could not be stored. Returns whether there was any.
    pub(crate) fn resume(&mut self) -> bool {
        let (mut works, mut names) = (Vec::new(), Vec::new());
        for _ in 0..RESUMED_TOGETHER {
            names.extend(self.postponed.groups.pop_first());
            works.extend(self.postponed.works.pop_front());
        }
        for name in &names {
            self.take_up(name);
        }
        let any = !works.is_empty() || !names.is_empty();
        for work in works {
            work(self);
        }
        any
    }

    fn take_up(&mut self, name: &str) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let problems = entry.problems.clone();
        self.links_changed.groups.insert(name.into());
        self.effects.push(Effect::FabricChanged);
        self.arm(name);
        self.lease_absent(name);
        self.run_leases(name);
        self.drive(name);
        for (switch, reason) in problems {
            self.unsettled(&switch, name, &reason);
        }
        self.recover(name);
        multicast_routes::taken_back(self, name);
        if let Err(error) = self.settle(name) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    pub(crate) fn forget(&mut self, name: &str) -> Result<(), Refusal> {
        self.journal.check_open()?;
        if let Some(entry) = self.groups.remove(name) {
            self.timers.cancel(&Owner::Group(name.into()));
            self.effects.extend(told_gone(&entry));
            self.departed.note(entry.record());
            let plan = entry.record().plan.as_ref();
            if plan.is_some_and(|plan| plan.refinement.is_some()) {
                multicast_routes::sweep_soon(self);
            }
            self.journal.stage_forgotten(entry);
            let group = name.to_owned();
            self.journal.log(move || tracing::info!(group, "gone"));
            self.publish(Told::GroupGone(name.into()));
        }
        Ok(())
    }

    pub(crate) fn notify(&mut self, name: &str) {
        self.notify_members(name);
        self.cancel_timer(name, &Due::Event);
        if let Some(entry) = self.groups.get(name).filter(|_| self.is_watched) {
            let event = self.event(entry);
            self.publish(event);
        }
    }

    /// Who watches all groups gets one event of what happens within a moment: calls of many ranks end at once, and begin again.
    pub(crate) fn notify_soon(&mut self, name: &str) {
        self.notify_members(name);
        if self.is_watched && !self.has_timer(name, &Due::Event) {
            self.set_timer(name, Due::Event, EVENT_PAUSE);
        }
    }

    fn notify_members(&mut self, name: &str) {
        if let Some(entry) = self.groups.get(name) {
            let followed = entry.followers.upgrade();
            let is_followed = followed.is_some();
            self.effects.extend(followed.map(|followers| Effect::Changed {
                followers,
                news: Some(entry.record().kind.behaviour().news(entry)),
            }));
            // Later subscribers read the change with the state of the group.
            if !self.is_watched && !is_followed {
                *entry.shown.lock() = Cache::default();
            }
        }
    }

    /// A switch was just reconciled for these groups. `wanted`: those whose rules were wanted there, with the
    /// generations that are there now, if any. It has no rules of the others but at the addresses that `may_stay`.
    pub(crate) fn settled(
        &mut self,
        switch: &str,
        names: &[String],
        wanted: &BTreeMap<&str, Option<u64>>,
        may_stay: &BTreeSet<McstId>,
    ) {
        for name in names {
            let Some(entry) = self.groups.get_mut(name) else {
                continue;
            };
            let record = entry.record();
            let (generation, phase) = (record.generation, record.phase);
            let is_cleared = || {
                let mut left = record.mcst_ids_left_on(switch).into_iter();
                record.placed.contains(switch) && left.all(|mcst_id| !may_stay.contains(&mcst_id))
            };
            match wanted.get(name.as_str()) {
                Some(Some(there)) if *there == generation && phase.wants_rules() => {
                    let had_problem = entry.problems.remove(switch).is_some();
                    if entry.confirmed.insert(switch.into()) || had_problem {
                        self.notify(name);
                    }
                }
                Some(None) if phase.has_run() && !record.kind.behaviour().outlives_switches() => {
                    // What is there until a switch is lost goes by no restart.
                    let was_restarted = match entry.confirmed.contains(switch) {
                        true => Some(false),
                        false => self.were_restarted.get(switch).copied(),
                    };
                    let why = lost_by(was_restarted);
                    let reason = format!("switch {switch} has lost its part: {why}");
                    let ending = Ending::failed(generation, None, Some(switch), reason);
                    self.try_step(name, Event::Lost, Some(ending));
                }
                // It has been restarted since it confirmed.
                Some(None) => drop(entry.confirmed.remove(switch)),
                // It is removed, or was evicted with the members there.
                None if record.wanted_rule(switch).is_none() && is_cleared() => {
                    self.has_its_part(switch, name)
                }
                _ => {}
            }
            self.recover(name);
        }
    }

    /// A switch has its part of a running group: its rules, or none if it is not in the tree.
    pub(crate) fn has_its_part(&mut self, switch: &str, name: &str) {
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        entry.problems.remove(switch);
        if entry.record().wanted_rule(switch).is_some() {
            entry.confirmed.insert(switch.into());
        } else if entry.record().placed.contains(switch) {
            return self.try_change(name, |r| {
                r.placed.remove(switch);
            });
        }
        self.notify(name);
    }

    pub(crate) fn recover(&mut self, name: &str) {
        let back = |e: &Entry| e.record().phase == Phase::Degraded && e.is_confirmed();
        if self.group(name).is_ok_and(back) {
            self.try_step(name, Event::SwitchesBack, None);
        }
    }

    /// A switch lacks its part of a group, or cannot be reached. The group goes on: traffic may still flow.
    pub(crate) fn unsettled(&mut self, switch: &str, name: &str, reason: &str) {
        let store_fails = self.store_error.is_some();
        let Some(entry) = self.groups.get_mut(name).filter(|e| e.concerns(switch)) else {
            return;
        };
        entry.confirmed.remove(switch);
        let before = entry.problems.insert(switch.into(), reason.into());
        // While the store fails, a step would be taken back again: it was postponed when the problem came up.
        if store_fails && before.as_deref() == Some(reason) {
            return;
        }
        let record = entry.record();
        let degrades = record.kind.behaviour().outlives_switches() && record.wanted_rule(switch).is_some();
        if degrades && entry.record().phase == Phase::Active {
            self.try_step(name, Event::SwitchLost, None);
        } else {
            self.notify(name);
        }
    }

    /// Like [`Core::step`]; logs errors.
    pub(crate) fn try_step(&mut self, name: &str, event: Event, ending: Option<Ending>) {
        if let Err(error) = self.step(name, event, ending) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    /// Like [`Core::change`]; logs errors.
    pub(crate) fn try_change(&mut self, name: &str, change: impl FnOnce(&mut Record)) {
        if let Err(error) = self.change(name, change) {
            tracing::error!(group = name, %error, "change failed");
        }
    }
}

/// Why a switch does not have a part that it had.
fn lost_by(was_restarted: Option<bool>) -> &'static str {
    match was_restarted {
        Some(true) => "it was restarted",
        Some(false) => "somebody removed it there; its audit log says who",
        None => "it was restarted, or somebody removed it there; its audit log says who",
    }
}

/// Who follows a group is to know that it is gone.
fn told_gone(entry: &Entry) -> Option<Effect> {
    let followers = entry.followers.upgrade()?;
    Some(Effect::Changed {
        followers,
        news: None,
    })
}

fn follows(record: &Record) -> Option<Event> {
    record.kind.behaviour().follows(record.phase, record.generation)
}

#[cfg(test)]
mod tests;
