//! Takes a group from one resting phase to the next: plans it and programs its switches, or removes it from them. While it runs, its switches
//! get its changed rules.
//!
//! One step at a time, each of which waits for something outside. Nothing of it is stored: the next start reads the desired state from the
//! store, and the reported state from the switches. A group that has changed when its step ends is looked at anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Checkpoint;
use crate::state::journal::Pending;
use crate::state::{
    After, Asked, Cause, Core, Due, Effect, Ending, Entry, Event, Failure, Layout, NoPlan, Phase, Plan,
    Planning, Record, planning,
};

/// Maximum number of calls per switch of a tree in one installation.
const CALLS_PER_SWITCH_MAX: usize = 4;

/// What is done for a group.
pub(crate) struct Work {
    /// Of the step. What comes for an earlier one is without effect.
    number: u64,
    /// When it has waited long enough for reports.
    until: Option<Instant>,
    step: Step,
}

/// What calls for work: whether the group is removed, its generation, and whether it has a plan.
type Call = (bool, u64, bool);

/// What the work waits for.
enum Step {
    /// What calls for it is on disk, as it was when the batch had it last.
    Stored { batch: u64, call: Call },
    /// A plan. `reports`: those that there were when it was asked for.
    Planned { reports: u64 },
    /// Reports without which the group cannot be planned.
    Reported(Failure),
    /// A switch does its part of a task on this generation.
    Synced(String, u64, Task),
}

/// What the switches of a group do one after the other.
enum Task {
    /// They get its rules of this plan; the number of calls that are left.
    Install(Arc<Plan>, usize),
    /// They lose its rules: those that are left, and those that have none.
    Remove(VecDeque<String>, BTreeSet<String>),
    /// They get its changed rules, or lose them if they are not in the tree any more: those that are left.
    Update(VecDeque<String>),
}

/// The work on all groups.
#[derive(Default)]
pub(crate) struct Works {
    /// Of the last step.
    number: u64,
    /// Groups that wait for reports, and have got none since.
    to_report: BTreeSet<String>,
    /// Running groups whose changed rules are to go to their switches, and whether the leaves come first.
    pub(crate) updates: BTreeMap<String, bool>,
    /// Number of times at which there was something new of switches or hosts.
    reports: u64,
}

impl Works {
    fn is_needed(&self, record: &Record) -> bool {
        record.phase.needs_driver() || self.updates.contains_key(&record.name)
    }
}

/// Why a switch does not do what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Declined {
    pub(crate) failure: Failure,
    pub(crate) words: String,
    /// Memory for slots is short: fewer may fit.
    pub(crate) is_of_memory: bool,
}

impl Core {
    /// Works on a group that needs it, unless that is being done.
    pub(crate) fn drive(&mut self, name: &str) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let record = entry.record();
        let is_due = match &entry.work {
            None => self.works.is_needed(record),
            Some(work) => match work.step {
                // Other changes keep nobody waiting: a switch gets nothing that is not on disk.
                Step::Stored { call, .. } => call != called_for(record),
                // Whoever ends the group does not wait for reports.
                Step::Reported(_) => record.phase != Phase::Installing,
                // Nor for a switch that is to have what it loses again.
                Step::Synced(_, _, Task::Update(_)) => record.phase.needs_driver(),
                _ => false,
            },
        };
        if is_due {
            self.go_on_when_stored(name);
        }
    }

    /// What calls for work must be on disk first.
    fn go_on_when_stored(&mut self, name: &str) {
        match self.journal.pending() {
            Pending::Nothing => self.go_on(name),
            Pending::Batch(batch) => {
                let Some(entry) = self.groups.get_mut(name) else {
                    return;
                };
                let now = called_for(entry.record());
                match entry.work.as_mut().map(|work| &mut work.step) {
                    Some(Step::Stored { batch: own, call }) if *own == batch => *call = now,
                    _ => {
                        let step = Step::Stored { batch, call: now };
                        let Some(number) = self.begin_step(name, step) else {
                            return;
                        };
                        let name = name.to_owned();
                        self.when_stored(move |core, is_written| core.go_on_after(&name, number, is_written));
                    }
                }
            }
            // Once the controller stops, no step succeeds.
            Pending::Forever => {}
        }
    }

    /// The batch that the group has waited for has ended.
    fn go_on_after(&mut self, name: &str, number: u64, is_written: bool) {
        match is_written {
            _ if self.at_step(name, number).is_none() => {}
            // Others use the lock in between.
            true => self.set_timer(name, Due::Work, Duration::ZERO),
            false => self.rest(name),
        }
    }

    /// There is something new of switches or hosts.
    pub(crate) fn reported(&mut self) {
        self.works.reports += 1;
        for name in std::mem::take(&mut self.works.to_report) {
            // Others use the lock in between.
            self.set_timer(&name, Due::Work, Duration::ZERO);
        }
        self.effects.push(Effect::FabricChanged);
    }

    /// What the work has waited for is stored or reported, or it has waited for long enough.
    pub(crate) fn work_due(&mut self, name: &str) {
        let work = self.groups.get(name).and_then(|entry| entry.work.as_ref());
        match work.map(|work| &work.step) {
            Some(Step::Stored { .. }) => self.go_on(name),
            Some(Step::Reported(failure)) => {
                let failure = failure.clone();
                match self.works.to_report.contains(name) {
                    true => self.reports_are_missing(name, failure),
                    false => self.go_on(name),
                }
            }
            _ => {}
        }
    }

    /// The next step of a group, by its record.
    fn go_on(&mut self, name: &str) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let record = entry.record();
        let update = self.works.updates.remove(name);
        if let Some(leaves_first) = update.filter(|_| record.phase.has_run()) {
            let mut switches = top_down(record);
            if leaves_first {
                // What is to be removed comes last in either order.
                let tree = record.plan.as_ref().map_or(0, |plan| plan.tree.len());
                switches[..tree].reverse();
            }
            switches.retain(|switch| !entry.confirmed.contains(*switch));
            let (generation, left) = (record.generation, switches.into_iter().cloned().collect());
            return self.update_next(name, generation, left);
        }
        if !record.phase.needs_driver() || self.store_error.is_some() {
            return self.rest(name);
        }
        match (record.phase, &record.plan) {
            (Phase::Removing(_), _) => self.begin_removal(name),
            (_, None) => self.ask_for_plan(name),
            (_, Some(plan)) => {
                // A switch that restarts meanwhile gets its rule again. The limit is for one that restarts all the time.
                let (plan, calls_left) = (plan.clone(), CALLS_PER_SWITCH_MAX * plan.rules.len());
                self.install_next(name, plan, calls_left, Some(Checkpoint::Planned));
            }
        }
    }

    /// Nothing is done for the group. If there is something to do, it is done when the store works.
    fn rest(&mut self, name: &str) {
        if let Some(entry) = self.groups.get_mut(name) {
            entry.work = None;
            if self.works.is_needed(entry.record()) {
                self.postpone(name.into());
            }
        }
    }

    /// Returns its number.
    fn begin_step(&mut self, name: &str, step: Step) -> Option<u64> {
        let waits = matches!(step, Step::Planned { .. } | Step::Reported(_));
        let deadline = self.now + self.config.timeouts.host;
        let entry = self.groups.get_mut(name)?;
        let until = entry.work.as_ref().and_then(|work| work.until).or(Some(deadline));
        self.works.number += 1;
        let number = self.works.number;
        entry.work = Some(Work {
            number,
            until: until.filter(|_| waits),
            step,
        });
        self.works.to_report.remove(name);
        self.cancel_timer(name, &Due::Work);
        Some(number)
    }

    /// The group, if its work is still at this step.
    fn at_step(&self, name: &str, number: u64) -> Option<&Entry> {
        let entry = self.groups.get(name)?;
        let is_at = |work: &Work| work.number == number;
        entry.work.as_ref().is_some_and(is_at).then_some(entry)
    }

    fn begin_planning(&mut self, name: &str) -> Option<u64> {
        let reports = self.works.reports;
        self.begin_step(name, Step::Planned { reports })
    }

    fn ask_for_plan(&mut self, name: &str) {
        let Some(number) = self.begin_planning(name) else {
            return;
        };
        let (group, again) = (name.to_owned(), name.to_owned());
        self.effects.push(Effect::Plan(Planning {
            record: Box::new(move |core| core.wants_plan(&group, number, |record| record.plan.is_none())),
            then: Box::new(move |core, record, layout| core.planned(&again, number, &record, layout)),
        }));
    }

    /// The group, if it is still to be planned.
    fn wants_plan(&mut self, name: &str, number: u64, is_so: impl Fn(&Record) -> bool) -> Option<Record> {
        let record = self.at_step(name, number)?.record();
        if record.phase == Phase::Installing && is_so(record) {
            return Some(record.clone());
        }
        self.go_on_when_stored(name);
        None
    }

    /// A group is planned: it is placed, or waits for missing reports.
    fn planned(&mut self, name: &str, number: u64, planned: &Record, layout: Result<Layout, NoPlan>) {
        let Some(entry) = self.at_step(name, number) else {
            return;
        };
        let record = entry.record();
        let is_same = record.plan.is_none() && is_installing(record, planned.generation);
        let placed = match is_same {
            true => layout.and_then(|layout| planning::place(self, name, layout)),
            // It changed while it was planned.
            false => return self.go_on_when_stored(name),
        };
        match placed {
            Ok(()) => {}
            Err(NoPlan::Never(failure)) => self.refuse(name, planned.generation, failure),
            Err(NoPlan::NotYet(failure)) => return self.wait_for_reports(name, failure),
        }
        self.go_on_when_stored(name);
    }

    fn wait_for_reports(&mut self, name: &str, failure: Failure) {
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        if entry.note != failure.reason {
            entry.note.clone_from(&failure.reason);
            self.notify(name);
        }
        let work = self.groups.get(name).and_then(|entry| entry.work.as_ref());
        let Some(Work { until, step, .. }) = work else {
            return;
        };
        let (until, now) = (until.unwrap_or(self.now), self.now);
        let are_new = matches!(step, Step::Planned { reports } if *reports != self.works.reports);
        if are_new {
            return self.go_on(name);
        }
        if until <= now {
            return self.reports_are_missing(name, failure);
        }
        self.begin_step(name, Step::Reported(failure));
        self.works.to_report.insert(name.into());
        self.set_timer(name, Due::Work, until - now);
    }

    /// The reports that were waited for have not come: the group is tried without the receivers that are missing, or refused.
    fn reports_are_missing(&mut self, name: &str, failure: Failure) {
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        let generation = entry.record().generation;
        let is_installing = is_installing(entry.record(), generation);
        if is_installing && may_split(entry) && !entry.detours.has_waited() {
            entry.detours.note_waited();
            return self.go_on(name);
        }
        if is_installing {
            let waited = self.config.timeouts.host;
            let reason = format!("{}; waited {waited:?}", failure.reason);
            self.refuse(name, generation, Failure { reason, ..failure });
        }
        self.go_on_when_stored(name);
    }

    /// Asks the next switch that has not confirmed. When all have, the group is active.
    fn install_next(&mut self, name: &str, plan: Arc<Plan>, calls_left: usize, after: Option<Checkpoint>) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let generation = entry.record().generation;
        // From the leaves to the first: when one gets its rule, all below it are ready.
        let mut switches = plan.tree.iter().rev().map(|s| &s.name).chain(plan.rules.keys());
        let Some(switch) = switches.find(|s| !entry.confirmed.contains(*s)).cloned() else {
            // If a switch was lost since, it gets its rule again.
            if entry.is_confirmed() {
                self.try_step(name, Event::Confirmed, None);
            }
            return self.go_on_when_stored(name);
        };
        let unreachable = match self.facts.switches.contains_key(&switch) {
            false => Some("no agent is configured for it"),
            true if calls_left == 0 => Some("it was lost again and again"),
            true => None,
        };
        if let Some(reason) = unreachable {
            let declined = Declined::unreachable(&switch, reason);
            return self.turned_down(name, generation, &plan, (&switch, declined));
        }
        let task = Task::Install(plan, calls_left.saturating_sub(1));
        self.sync(name, (switch, generation), task, after);
    }

    fn sync(
        &mut self,
        name: &str,
        (switch, generation): (String, u64),
        task: Task,
        after: Option<Checkpoint>,
    ) {
        let then = match &task {
            Task::Install(..) => Some(Checkpoint::Installed(switch.clone())),
            Task::Remove(..) => Some(Checkpoint::Removed(switch.clone())),
            Task::Update(_) => None,
        };
        if let Some(number) = self.begin_step(name, Step::Synced(switch.clone(), generation, task)) {
            let group = name.into();
            self.effects.push(Effect::Sync(Asked {
                group,
                switch,
                number,
                after,
                then,
            }));
        }
    }

    /// A switch has the rules that a group wants there now, or declines them.
    pub(crate) fn handle_synced(&mut self, name: &str, number: u64, done: Result<(), Declined>) {
        if self.at_step(name, number).is_none() {
            return;
        }
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        let step = entry.work.take().map(|work| work.step);
        let Some(Step::Synced(switch, generation, task)) = step else {
            return;
        };
        match task {
            Task::Install(plan, calls_left) => {
                // A store that fails may have taken the plan back.
                let record = entry.record();
                let is_same = is_installing(record, generation) && record.is_placed_by(&plan);
                match done {
                    _ if !is_same => self.go_on_when_stored(name),
                    Ok(()) => {
                        self.has_its_part(&switch, name);
                        self.install_next(name, plan, calls_left, None);
                    }
                    Err(declined) => self.turned_down(name, generation, &plan, (&switch, declined)),
                }
            }
            Task::Remove(left, mut cleared) => {
                match done {
                    Ok(()) => drop(cleared.insert(switch)),
                    Err(Declined { words: reason, .. }) => {
                        tracing::warn!(group = name, switch, reason, "cannot be cleaned now");
                        entry.problems.insert(switch, reason);
                    }
                }
                self.remove_next(name, (generation, left, cleared), None);
            }
            Task::Update(left) => {
                let runs = |r: &Record| r.generation == generation && r.phase.has_run();
                match done {
                    _ if !runs(entry.record()) => return self.go_on_when_stored(name),
                    Ok(()) => self.has_its_part(&switch, name),
                    Err(Declined { failure, .. }) => {
                        let reason = failure.reason;
                        self.unsettled(&switch, name, &reason);
                        self.give_up_all_joining(name, &format!("switch {switch} {reason}"));
                    }
                }
                self.recover(name);
                // Those that are given up change the rules again.
                let goes_on = |e: &Entry| e.work.is_none() && runs(e.record());
                if self.groups.get(name).is_some_and(goes_on) {
                    self.update_next(name, generation, left);
                }
            }
        }
    }

    /// The switches of a running group get its changed rules when they are on disk, one after the other: the top one first, or the leaves, so
    /// that all below a switch are ready for what it sends them. One that cannot be reached gets them when it is reconciled; nobody joins then.
    pub(crate) fn update(&mut self, name: &str, leaves_first: bool) {
        self.works.updates.insert(name.into(), leaves_first);
        self.go_on_when_stored(name);
    }

    fn update_next(&mut self, name: &str, generation: u64, mut left: VecDeque<String>) {
        let Some(switch) = left.pop_front() else {
            return self.rest(name);
        };
        self.sync(name, (switch, generation), Task::Update(left), None);
    }

    /// A switch refused its part: places the group again, or refuses it if there is no other place.
    fn turned_down(
        &mut self,
        name: &str,
        generation: u64,
        plan: &Plan,
        (switch, declined): (&str, Declined),
    ) {
        let Declined {
            failure,
            is_of_memory,
            ..
        } = declined;
        let may_move = match (self.groups.get_mut(name), plan.rules.get(switch)) {
            // A multicast group gives up a switch only if the receivers there may be outside.
            (Some(entry), Some(rule)) if entry.record().multicast().is_none() || may_split(entry) => {
                entry.detours.note(switch, rule, is_of_memory, &failure)
            }
            _ => false,
        };
        if !may_move {
            self.refuse(name, generation, failure);
            return self.go_on_when_stored(name);
        }
        let Some(number) = self.begin_planning(name) else {
            return;
        };
        let (group, again, switch) = (name.to_owned(), name.to_owned(), switch.to_owned());
        let is_so = move |record: &Record| is_installing(record, generation);
        self.effects.push(Effect::Plan(Planning {
            record: Box::new(move |core| core.wants_plan(&group, number, is_so)),
            then: Box::new(move |core, _, layout| {
                let Some(entry) = core.at_step(&again, number) else {
                    return;
                };
                match layout {
                    // It changed while it was planned.
                    _ if !is_so(entry.record()) => {}
                    Ok(_) => {
                        let reason = failure.reason;
                        if core.may_warn_of(&again) {
                            tracing::warn!(group = again, switch, reason, "placing the group again");
                        }
                        core.try_step(&again, Event::Elsewhere, None);
                    }
                    Err(NoPlan::NotYet(failure) | NoPlan::Never(failure)) => {
                        core.refuse(&again, generation, failure);
                    }
                }
                core.go_on_when_stored(&again);
            }),
        }));
    }

    fn refuse(&mut self, name: &str, generation: u64, failure: Failure) {
        let ending = Ending::refused(generation, failure);
        let (field, reason) = (&ending.failure.field, &ending.failure.reason);
        // Hosts that create jobs which no switch takes do not fill the log.
        let is_job = self.collective(name).is_ok_and(|(_, group)| group.by_call);
        match is_job {
            true => tracing::info!(group = name, field, reason, "installation refused"),
            false if self.may_warn_of(name) => {
                tracing::warn!(group = name, field, reason, "installation refused");
            }
            false => {}
        }
        self.try_step(name, Event::Refused, Some(ending));
    }

    /// Removes the group from its switches, the top one first: that stops all traffic.
    fn begin_removal(&mut self, name: &str) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let record = entry.record();
        let placed = top_down(record)
            .into_iter()
            .filter(|s| record.placed.contains(*s));
        // One that is not in the configuration any more cannot be asked.
        let is_known = |switch: &&String| self.facts.switches.contains_key(*switch);
        let (left, cleared): (Vec<&String>, Vec<&String>) = placed.partition(is_known);
        let left = left.into_iter().cloned().collect();
        let cleared = cleared.into_iter().cloned().collect();
        let generation = record.generation;
        self.remove_next(name, (generation, left, cleared), Some(Checkpoint::Removing));
    }

    fn remove_next(
        &mut self,
        name: &str,
        (generation, mut left, cleared): (u64, VecDeque<String>, BTreeSet<String>),
        after: Option<Checkpoint>,
    ) {
        let Some(switch) = left.pop_front() else {
            return self.removed(name, generation, &cleared);
        };
        self.sync(name, (switch, generation), Task::Remove(left, cleared), after);
    }

    /// All its switches were asked.
    fn removed(&mut self, name: &str, generation: u64, cleared: &BTreeSet<String>) {
        let is_same = |r: &Record| r.generation == generation && matches!(r.phase, Phase::Removing(_));
        if !self.groups.get(name).is_some_and(|e| is_same(e.record())) {
            // The removal was not stored.
            return self.go_on_when_stored(name);
        }
        self.try_change(name, |r| r.placed.retain(|s| !cleared.contains(s)));
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        entry.work = None;
        // Name and McstID are free again only when no switch knows them. Otherwise the group goes on, and switches that
        // cannot be reached are cleaned later: the next generation replaces this one.
        let must_wait =
            entry.record().phase == Phase::Removing(After::Gone) && !entry.record().placed.is_empty();
        if must_wait {
            return self.notify(name);
        }
        self.try_step(name, Event::Cleared, None);
        self.go_on_when_stored(name);
    }
}

impl Declined {
    fn unreachable(switch: &str, reason: &str) -> Self {
        Self {
            failure: Failure::at(switch, Cause::Unreachable, format!("cannot be reached: {reason}")),
            words: reason.into(),
            is_of_memory: false,
        }
    }
}

fn called_for(record: &Record) -> Call {
    let is_removed = matches!(record.phase, Phase::Removing(_));
    (is_removed, record.generation, record.plan.is_some())
}

fn is_installing(record: &Record, generation: u64) -> bool {
    (record.generation, record.phase) == (generation, Phase::Installing)
}

/// Whether a multicast group may run without some of its receivers.
fn may_split(entry: &Entry) -> bool {
    let kind = entry.record().multicast();
    kind.is_some_and(|kind| !kind.may_be_outside().is_empty())
}

/// The switches of a group's tree, the top one first, then others that may have a part of it.
pub(crate) fn top_down(record: &Record) -> Vec<&String> {
    let tree = record.plan.iter().flat_map(|p| &p.tree);
    let mut switches: Vec<&String> = tree.map(|s| &s.name).collect();
    let others: Vec<&String> = record.placed.iter().filter(|s| !switches.contains(s)).collect();
    switches.extend(others);
    switches
}

#[cfg(test)]
mod tests;
