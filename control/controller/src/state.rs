//! All changes of groups. A change is made on a copy, then put in place and staged together; nothing of it leaves the
//! controller before it is stored (see `journal.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::v1;

use crate::core::{Core, Shared};
use crate::detour::Detours;
use crate::driver;
use crate::error::Refusal;
use crate::journal::Undo;
use crate::kinds::collective::links;
use crate::lifecycle::{Event, Next, Phase};
use crate::record::{Ending, Record};
use crate::table::Entry;

impl Shared {
    pub(crate) fn add(self: &Arc<Self>, core: &mut Core, record: Record) -> Result<(), Refusal> {
        core.journal.check_open()?;
        core.journal.stage_added(&record);
        let name = record.name.clone();
        tracing::info!(group = name, mcst_id = %record.mcst_id, lanes = record.lanes(), "created");
        if let Some(last) = record.mcst_ids().last() {
            core.last_mcst_ids.insert(core.mcst_pool, last);
        }
        core.given_out(&record.own_mcst_ids);
        core.groups.put(record);
        self.notify(core, &name);
        Ok(())
    }

    /// Changes a group, and starts the work that follows.
    pub(crate) fn change(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), Refusal> {
        let mut record = core.group(name)?.record().clone();
        change(&mut record);
        self.replace(core, record)
    }

    fn replace(self: &Arc<Self>, core: &mut Core, record: Record) -> Result<(), Refusal> {
        let name = record.name.clone();
        core.journal.check_open()?;
        let Some(entry) = core.groups.get(&name) else {
            return Err(Refusal::UnknownGroup { name });
        };
        if *entry.record() == record {
            return Ok(());
        }
        core.journal.stage_changed(entry);
        let rules_end = record.generation != entry.record().generation || !record.phase.wants_rules();
        if let Some(entry) = core.groups.get_mut(&name).filter(|_| rules_end) {
            entry.confirmed.clear();
            entry.problems.retain(|switch, _| record.placed.contains(switch));
            entry.live.rules_ended();
        }
        core.groups.put(record);
        self.notify(core, &name);
        self.drive(core, &name);
        Ok(())
    }

    /// Takes a group one step on in its life, and further steps that follow. An event that does not fit the phase is
    /// late and has no effect.
    pub(crate) fn step(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        self.one_step(core, name, event, ending)?;
        self.settle(core, name)
    }

    /// Takes the steps that follow from the state of a group.
    pub(crate) fn settle(self: &Arc<Self>, core: &mut Core, name: &str) -> Result<(), Refusal> {
        // A group that is gone has no more steps.
        while let Some(event) = core.groups.get(name).and_then(|e| follows(e.record())) {
            self.one_step(core, name, event, None)?;
        }
        Ok(())
    }

    fn one_step(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        let entry = core.group(name)?;
        let (mut record, from) = (entry.record().clone(), entry.phase_name());
        let phase = match record.phase.step(event) {
            Some(Next::Phase(phase)) => phase,
            Some(Next::Gone) => return self.forget(core, name),
            None => {
                tracing::debug!(group = name, phase = from, ?event, "event without effect");
                return Ok(());
            }
        };
        let kind = record.kind.behaviour();
        let (notice, to) = (kind.notice(), kind.phase_name(phase));
        let why = ending.as_ref().map(Ending::words);
        tracing::info!(group = name, from, to, why);
        record.phase = phase;
        match event {
            Event::AllJoined if phase == Phase::Installing => {
                record.generation += 1;
                record.plan = None;
            }
            Event::Refused | Event::Broke | Event::Lost => record.ended = ending.or(record.ended),
            Event::Cleared => record.plan = None,
            _ => {}
        }
        record.kind.behaviour_mut().step(event, phase, record.generation);
        if let Some(entry) = core.groups.get_mut(name) {
            entry.note.clear();
            entry.live.links_down.clear();
            entry.detoured.clear();
            match event {
                Event::Confirmed => entry.detoured = std::mem::take(&mut entry.detours).words(),
                // The refusals count only while the group is placed again at once.
                Event::Cleared if follows(&record) != Some(Event::AllJoined) => {
                    entry.detours = Detours::default();
                }
                _ => {}
            }
        }
        let watched = phase == Phase::Active && !record.kind.behaviour().outlives_switches();
        // A link may have gone down during the installation.
        let broken = watched && !links::down(&core.facts, &record).is_empty();
        self.replace(core, record)?;
        if broken {
            self.fabric_changed();
        }
        self.arm(core, name, notice);
        Ok(())
    }

    fn arm(self: &Arc<Self>, core: &Core, name: &str, notice: Duration) {
        let Some(record) = core.groups.get(name).map(Entry::record) else {
            return;
        };
        let (generation, phase) = (record.generation, record.phase);
        let (after, event) = match phase {
            Phase::Broken => (notice, Event::TimeUp),
            Phase::Failed | Phase::Refused if record.kind.behaviour().lingers() => {
                (self.config.timeouts.linger, Event::Destroy)
            }
            _ => return,
        };
        self.later(name, after, move |shared, core, name| {
            let same = |e: &Entry| (e.record().generation, e.record().phase) == (generation, phase);
            if core.group(name).is_ok_and(same) {
                shared.try_step(core, name, event, None);
            }
        });
    }

    /// Takes back what could not be written, the last change first. Work that remains for the groups is tried again
    /// after a pause.
    pub(crate) fn take_back(self: &Arc<Self>, core: &mut Core, undone: impl IntoIterator<Item = Undo>) {
        let mut names = BTreeSet::new();
        for undo in undone {
            match undo {
                Undo::Host(name, before) => core.facts.set(&name, before),
                Undo::Added(name) => {
                    if let Some(gone) = core.groups.remove(&name) {
                        gone.changed.send_replace(());
                    }
                }
                Undo::Changed(record, confirmed) => {
                    let name = record.name.clone();
                    core.groups.put(*record);
                    if let Some(entry) = core.groups.get_mut(&name) {
                        // No switch has got what is taken back.
                        entry.confirmed = confirmed;
                        entry.confirmed.retain(|s| !entry.problems.contains_key(s));
                    }
                    names.insert(name);
                }
                Undo::Forgotten(entry) => {
                    names.insert(entry.record().name.clone());
                    core.groups.put_back(*entry);
                }
            }
        }
        self.fabric_changed();
        for name in names {
            let Some(entry) = core.groups.get_mut(&name) else {
                continue;
            };
            entry.live.rules_ended();
            let notice = entry.record().kind.behaviour().notice();
            self.notify(core, &name);
            self.arm(core, &name, notice);
            self.lease_absent(core, &name);
            self.later(&name, self.config.timeouts.backoff.1, |shared, core, name| {
                shared.drive(core, name);
                let problems = core.groups.get(name).map(|e| e.problems.clone());
                for (switch, reason) in problems.unwrap_or_default() {
                    shared.unsettled(core, &switch, name, &reason);
                }
                shared.recover(core, name);
                if let Err(error) = shared.settle(core, name) {
                    tracing::error!(group = name, %error, "step failed");
                }
            });
        }
    }

    fn forget(&self, core: &mut Core, name: &str) -> Result<(), Refusal> {
        core.journal.check_open()?;
        if let Some(entry) = core.groups.remove(name) {
            tracing::info!(group = name, "gone");
            entry.changed.send_replace(());
            core.journal.stage_forgotten(entry);
            self.publish(core, v1::controller_event::Event::GroupGone(name.into()));
        }
        Ok(())
    }

    /// Notes what an installation waits for; not stored.
    pub(crate) fn note(&self, core: &mut Core, name: &str, note: String) {
        if let Some(entry) = core.groups.get_mut(name)
            && entry.note != note
        {
            entry.note = note;
            self.notify(core, name);
        }
    }

    pub(crate) fn notify(&self, core: &mut Core, name: &str) {
        if let Some(entry) = core.groups.get(name) {
            entry.changed.send_replace(());
            // Later subscribers read the change with the state of the group.
            if self.events.receiver_count() == 0 {
                return;
            }
            let event = entry.record().kind.behaviour().event(core, entry);
            self.publish(core, event);
        }
    }

    /// Starts a task for a group that needs one and has none.
    pub(crate) fn drive(self: &Arc<Self>, core: &mut Core, name: &str) {
        if let Some(entry) = core.groups.get_mut(name)
            && !entry.driven
            && entry.record().phase.needs_driver()
        {
            entry.driven = true;
            self.spawn(driver::drive(self.clone(), name.into()));
        }
    }

    /// A switch was just reconciled for these groups. `wanted`: those whose rules were wanted there, with the
    /// generations that are there now, if any. It has no rules of the others.
    pub(crate) fn settled(
        self: &Arc<Self>,
        core: &mut Core,
        switch: &str,
        names: &[String],
        wanted: &BTreeMap<&str, Option<u64>>,
    ) {
        for name in names {
            let Some(entry) = core.groups.get_mut(name) else {
                continue;
            };
            let record = entry.record();
            let (generation, phase) = (record.generation, record.phase);
            let is_placed = record.placed.contains(switch);
            match wanted.get(name.as_str()) {
                Some(Some(there)) if *there == generation && phase.wants_rules() => {
                    let had_problem = entry.problems.remove(switch).is_some();
                    if entry.confirmed.insert(switch.into()) || had_problem {
                        self.notify(core, name);
                    }
                }
                Some(None) if phase.has_run() && !record.kind.behaviour().outlives_switches() => {
                    let reason = format!("switch {switch} has lost its part: it was restarted");
                    let ending = Ending::failed(generation, None, Some(switch), reason);
                    self.try_step(core, name, Event::Lost, Some(ending));
                }
                None if !phase.wants_rules() && is_placed => {
                    entry.problems.remove(switch);
                    self.try_change(core, name, |r| {
                        r.placed.remove(switch);
                    });
                    self.drive(core, name);
                }
                _ => {}
            }
            self.recover(core, name);
        }
    }

    fn recover(self: &Arc<Self>, core: &mut Core, name: &str) {
        let back = |e: &Entry| e.record().phase == Phase::Degraded && e.is_confirmed();
        if core.group(name).is_ok_and(back) {
            self.try_step(core, name, Event::SwitchesBack, None);
        }
    }

    /// A switch lacks its part of a group, or cannot be reached. The group goes on: traffic may still flow.
    pub(crate) fn unsettled(self: &Arc<Self>, core: &mut Core, switch: &str, name: &str, reason: &str) {
        let Some(entry) = core.groups.get_mut(name).filter(|e| e.concerns(switch)) else {
            return;
        };
        entry.confirmed.remove(switch);
        entry.problems.insert(switch.into(), reason.into());
        let degrades = entry.record().kind.behaviour().outlives_switches();
        if degrades && entry.record().phase == Phase::Active {
            self.try_step(core, name, Event::SwitchLost, None);
        } else {
            self.notify(core, name);
        }
    }

    /// Like [`Shared::step`]; logs errors.
    pub(crate) fn try_step(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) {
        if let Err(error) = self.step(core, name, event, ending) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    /// Like [`Shared::change`]; logs errors.
    pub(crate) fn try_change(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut Record),
    ) {
        if let Err(error) = self.change(core, name, change) {
            tracing::error!(group = name, %error, "change failed");
        }
    }
}

fn follows(record: &Record) -> Option<Event> {
    record.kind.behaviour().follows(record.phase, record.generation)
}
