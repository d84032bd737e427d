//! Every change of a collective group. As for multicast groups: on a copy, stored, and only then seen by anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use castnet_proto::v1;
use castnet_wire::{Control, McstId, Psn, Verdict};
use tokio::sync::watch;
use tokio::time::Instant;

use super::detour::Detours;
use super::lifecycle::{After, Event, Next, Phase};
use super::links::DownLinks;
use super::record::{CollectiveRecord, Ending};
use super::{driver, view};
use crate::core::{Core, Shared};
use crate::error::Refusal;
use crate::lifecycle::{Cause, Failure};
use crate::requests::draw;

/// A collective group in memory.
pub(crate) struct CollectiveEntry {
    pub(crate) record: CollectiveRecord,
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
    /// The ranks that are in, and whether their calls stand.
    pub(crate) present: BTreeMap<u16, Presence>,
    /// The ranks that switches wait for, by the last report of each, and when that came.
    pub(crate) stalls: BTreeMap<String, (Instant, Vec<u16>)>,
    /// The ranks that are waited for, by all of these.
    pub(crate) waiting_for: Vec<u16>,
    /// What switches said to placements since it was last active.
    pub(crate) detours: Detours,
    /// For an active group: why it is not where it was placed first; may be empty.
    pub(crate) detoured: String,
    /// For an active group: the links of its tree that are down.
    pub(crate) links_down: DownLinks,
}

/// Whether the call of a rank that is in stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// This call stands.
    Here(u64),
    /// This was the last; the lease runs.
    Away(u64),
}

impl CollectiveEntry {
    pub(crate) fn new(record: CollectiveRecord) -> Self {
        Self {
            record,
            confirmed: BTreeSet::new(),
            problems: BTreeMap::new(),
            note: String::new(),
            driven: false,
            changed: watch::Sender::new(()),
            present: BTreeMap::new(),
            stalls: BTreeMap::new(),
            waiting_for: Vec::new(),
            detours: Detours::default(),
            detoured: String::new(),
            links_down: DownLinks::new(),
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

impl Core {
    /// The collective group, or why not.
    pub(crate) fn collective(&self, name: &str) -> Result<&CollectiveEntry, Refusal> {
        self.collectives
            .get(name)
            .ok_or_else(|| Refusal::UnknownGroup { name: name.into() })
    }

    /// The collective group of that McstID.
    pub(crate) fn collective_by_mcst_id(&self, mcst_id: &str) -> Option<&CollectiveEntry> {
        let mcst_id = mcst_id.parse().ok().map(McstId)?;
        self.collectives
            .values()
            .find(|e| e.record.mcst_ids().any(|m| m == mcst_id))
    }
}

impl Ending {
    /// Of an installation.
    pub(crate) fn refused(record: &CollectiveRecord, failure: Failure) -> Self {
        let Failure { cause, field, reason } = failure;
        let switch = field.strip_prefix("switches.").map(String::from);
        let rank = field
            .strip_prefix("ranks[")
            .and_then(|f| f.split_once(']'))
            .and_then(|(rank, _)| rank.parse().ok());
        // The planner's words name the switch already.
        let named = match &switch {
            Some(name) if !reason.starts_with("switch ") => format!("switch {name} {reason}"),
            _ => reason,
        };
        Self {
            generation: record.generation,
            refused: true,
            cause,
            field,
            rank,
            switch,
            reason: named,
            conflict: None,
        }
    }

    /// Of a generation whose ranks called different collectives.
    pub(crate) fn conflict(record: &CollectiveRecord, conflict: Control) -> Self {
        let Control {
            sequence, rank, call, ..
        } = conflict;
        let mut reason = format!(
            "the ranks disagree about collective {sequence}: {} called {call}",
            record.rank_name(rank)
        );
        if let Verdict::Conflict { rank, call } = conflict.verdict {
            let _ = write!(reason, ", {} called {call}", record.rank_name(rank));
        }
        Self {
            conflict: Some(conflict),
            ..Self::failed(record, None, None, reason)
        }
    }

    /// Of a generation that ran.
    pub(crate) fn failed(
        record: &CollectiveRecord,
        rank: Option<u16>,
        switch: Option<&str>,
        reason: String,
    ) -> Self {
        Self {
            generation: record.generation,
            refused: false,
            cause: Cause::Refused,
            field: String::new(),
            rank,
            switch: switch.map(String::from),
            reason,
            conflict: None,
        }
    }
}

impl Shared {
    /// Adds a collective group that is stored before anybody sees it.
    pub(crate) fn add_collective(
        self: &Arc<Self>,
        core: &mut Core,
        record: CollectiveRecord,
    ) -> Result<(), Refusal> {
        self.with_store(|store| store.put_collective(&record))?;
        let name = record.name.clone();
        tracing::info!(group = name, mcst_id = %record.mcst_id, ranks = record.ranks.len(), "collective group created");
        core.last_mcst_id = record.mcst_ids().last();
        core.collectives
            .insert(name.clone(), CollectiveEntry::new(record));
        self.told_collective(core, &name);
        Ok(())
    }

    /// Changes a collective group: on a copy, which is stored before anybody sees it. Starts the work that the change
    /// calls for.
    pub(crate) fn change_collective(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut CollectiveRecord),
    ) -> Result<(), Refusal> {
        let mut record = core.collective(name)?.record.clone();
        change(&mut record);
        self.replace_collective(core, record)
    }

    fn replace_collective(
        self: &Arc<Self>,
        core: &mut Core,
        record: CollectiveRecord,
    ) -> Result<(), Refusal> {
        let name = record.name.clone();
        let Some(entry) = core.collectives.get_mut(&name) else {
            return Err(Refusal::UnknownGroup { name });
        };
        if entry.record == record {
            return Ok(());
        }
        self.with_store(|store| store.put_collective(&record))?;
        if record.generation != entry.record.generation || !record.phase.wants_rules() {
            entry.confirmed.clear();
            entry.stalls.clear();
            entry.waiting_for.clear();
            entry.problems.retain(|switch, _| record.placed.contains(switch));
        }
        entry.record = record;
        let record = &entry.record;
        entry.present.retain(|rank, _| record.seat(*rank).is_some());
        self.told_collective(core, &name);
        self.drive_collective(core, &name);
        Ok(())
    }

    /// Takes a collective group one step on in its life, and further where that makes it ready to go on. An event that
    /// does not go with its phase is late news: nothing happens.
    pub(crate) fn step_collective(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        self.one_step(core, name, event, ending)?;
        // What follows by itself. A collective group that is gone by now has nothing to follow.
        while let Ok(entry) = core.collective(name) {
            let Some(event) = follows(&entry.record) else {
                break;
            };
            self.one_step(core, name, event, None)?;
        }
        Ok(())
    }

    /// What follows by itself on a change of ranks.
    pub(crate) fn settle_collective(self: &Arc<Self>, core: &mut Core, name: &str) -> Result<(), Refusal> {
        match core.collective(name).map(|e| follows(&e.record)) {
            Ok(Some(event)) => self.step_collective(core, name, event, None),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    fn one_step(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        let mut record = core.collective(name)?.record.clone();
        let before = record.phase;
        let phase = match before.step(event) {
            Ok(Next::Phase(phase)) => phase,
            Ok(Next::Gone) => return self.forget_collective(core, name),
            Err(late) => {
                tracing::debug!(group = name, %late, "event without effect");
                return Ok(());
            }
        };
        let why = ending.as_ref().map(|e| e.reason.as_str());
        tracing::info!(group = name, from = before.name(), to = phase.name(), why);
        record.phase = phase;
        match event {
            Event::AllJoined if phase == Phase::Installing => {
                record.generation += 1;
                record.plan = None;
                record.psn_start = Psn::new(draw() as u32);
                for rank in &mut record.ranks {
                    rank.rq_psn = Psn::new(draw() as u32);
                }
            }
            Event::Withdrawn | Event::Elsewhere => record.put_off(),
            Event::Refused | Event::Broke | Event::Lost => {
                record.ended = ending.or(record.ended);
                record.end();
            }
            Event::TimeUp | Event::Ended => record.end(),
            Event::Cleared => record.plan = None,
            Event::Joined | Event::AllJoined | Event::Confirmed | Event::Destroy => {}
        }
        if let Some(entry) = core.collectives.get_mut(name) {
            entry.note.clear();
            entry.links_down.clear();
            entry.detoured.clear();
            match event {
                Event::Confirmed => entry.detoured = std::mem::take(&mut entry.detours).words(),
                // Only where it goes straight on is what switches said still news.
                Event::Cleared if phase != Phase::Gathering || !record.all_joined() => {
                    entry.detours = Detours::default();
                }
                _ => {}
            }
        }
        let (generation, lease) = (record.generation, core.collective(name)?.record.longest_lease());
        let lingers = matches!(phase, Phase::Failed | Phase::Refused) && record.by_call;
        self.replace_collective(core, record)?;
        if phase == Phase::Active {
            // Links may have gone down while switches were told.
            self.fabric_changed();
        }
        if phase == Phase::Broken {
            self.later(name, lease, move |shared, core, name| {
                let same = |e: &CollectiveEntry| e.record.generation == generation;
                if core.collective(name).is_ok_and(same) {
                    shared.try_step_collective(core, name, Event::TimeUp, None);
                }
            });
        }
        if lingers {
            let linger = self.config.timeouts.linger;
            self.later(name, linger, move |shared, core, name| {
                let idle = |e: &CollectiveEntry| {
                    let record = &e.record;
                    record.generation == generation && matches!(record.phase, Phase::Failed | Phase::Refused)
                };
                if core.collective(name).is_ok_and(idle) {
                    shared.try_step_collective(core, name, Event::Destroy, None);
                }
            });
        }
        Ok(())
    }

    /// Does something with a group after a time, if the controller still runs.
    pub(crate) fn later(
        self: &Arc<Self>,
        name: &str,
        after: Duration,
        act: impl FnOnce(&Arc<Self>, &mut Core, &str) + Send + 'static,
    ) {
        let (shared, name) = (self.clone(), name.to_owned());
        self.spawn(async move {
            tokio::time::sleep(after).await;
            let mut core = shared.lock();
            act(&shared, &mut core, &name);
        });
    }

    fn forget_collective(&self, core: &mut Core, name: &str) -> Result<(), Refusal> {
        self.with_store(|store| store.remove_collective(name))?;
        if let Some(entry) = core.collectives.remove(name) {
            tracing::info!(group = name, "gone");
            entry.changed.send_replace(());
            self.publish(v1::controller_event::Event::GroupGone(name.into()));
        }
        Ok(())
    }

    /// Notes what an installation waits for; not stored.
    pub(crate) fn note_collective(&self, core: &mut Core, name: &str, note: String) {
        if let Some(entry) = core.collectives.get_mut(name)
            && entry.note != note
        {
            entry.note = note;
            self.told_collective(core, name);
        }
    }

    /// Tells everybody how a collective group is now.
    pub(crate) fn told_collective(&self, core: &Core, name: &str) {
        if let Some(entry) = core.collectives.get(name) {
            entry.changed.send_replace(());
            self.publish(v1::controller_event::Event::Collective(view::state(core, entry)));
        }
    }

    /// Starts a task on a collective group that needs one and has none.
    pub(crate) fn drive_collective(self: &Arc<Self>, core: &mut Core, name: &str) {
        if let Some(entry) = core.collectives.get_mut(name)
            && !entry.driven
            && entry.record.phase.needs_driver()
        {
            entry.driven = true;
            self.spawn(driver::drive(self.clone(), name.into()));
        }
    }

    /// As [`Shared::step_collective`], where nobody waits for the answer.
    pub(crate) fn try_step_collective(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        event: Event,
        ending: Option<Ending>,
    ) {
        if let Err(error) = self.step_collective(core, name, event, ending) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    /// As [`Shared::change_collective`], where nobody waits for the answer.
    pub(crate) fn try_change_collective(
        self: &Arc<Self>,
        core: &mut Core,
        name: &str,
        change: impl FnOnce(&mut CollectiveRecord),
    ) {
        if let Err(error) = self.change_collective(core, name, change) {
            tracing::error!(group = name, %error, "change failed");
        }
    }

    /// As [`Shared::settled`], for collective groups: a part that a switch had and has no more is lost for good, and the
    /// group with it.
    pub(crate) fn settled_collectives(
        self: &Arc<Self>,
        core: &mut Core,
        switch: &str,
        wanted: &BTreeMap<String, Option<u64>>,
    ) {
        for name in core.collectives.keys().cloned().collect::<Vec<_>>() {
            let Some(entry) = core.collectives.get_mut(&name) else {
                continue;
            };
            let record = &entry.record;
            match wanted.get(&name) {
                Some(Some(generation)) if *generation == record.generation && record.phase.wants_rules() => {
                    let had_problem = entry.problems.remove(switch).is_some();
                    if entry.confirmed.insert(switch.into()) || had_problem {
                        self.told_collective(core, &name);
                    }
                }
                Some(None) if record.phase.has_run() => {
                    let reason = format!("switch {switch} has lost its part: it was restarted");
                    let ending = Ending::failed(record, None, Some(switch), reason);
                    self.try_step_collective(core, &name, Event::Lost, Some(ending));
                }
                None if !record.phase.wants_rules() && record.placed.contains(switch) => {
                    entry.problems.remove(switch);
                    self.try_change_collective(core, &name, |r| {
                        r.placed.remove(switch);
                    });
                    self.drive_collective(core, &name);
                }
                _ => {}
            }
        }
    }

    /// As [`Shared::unsettled`], for collective groups. Those that run are told, and go on: their frames may well flow.
    pub(crate) fn unsettled_collectives(
        self: &Arc<Self>,
        core: &mut Core,
        switch: &str,
        group: Option<&str>,
        reason: &str,
    ) {
        for name in core.collectives.keys().cloned().collect::<Vec<_>>() {
            let Some(entry) = core.collectives.get_mut(&name) else {
                continue;
            };
            let concerned =
                !entry.record.wanted_on(switch).is_empty() || entry.record.placed.contains(switch);
            if !concerned || group.is_some_and(|g| g != name) {
                continue;
            }
            entry.confirmed.remove(switch);
            entry.problems.insert(switch.into(), reason.into());
            self.told_collective(core, &name);
        }
    }
}

/// What follows by itself on how a group is.
fn follows(record: &CollectiveRecord) -> Option<Event> {
    match record.phase {
        Phase::Failed | Phase::Refused if record.some_joined() => Some(Event::Joined),
        Phase::Gathering | Phase::Broken if record.all_joined() => Some(Event::AllJoined),
        // Nobody is left of those whose calls it was made for.
        Phase::Gathering if record.by_call && !record.some_joined() => Some(Event::Destroy),
        Phase::Active | Phase::Broken if record.all_left() => Some(Event::Ended),
        Phase::Gathering
        | Phase::Installing
        | Phase::Active
        | Phase::Broken
        | Phase::Failed
        | Phase::Refused
        | Phase::Removing(After::Gathering | After::Failed | After::Refused | After::Gone) => None,
    }
}
