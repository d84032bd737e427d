//! Takes a group from one resting phase to the next: plans it and programs its switches, or removes it from them.
//!
//! One task per group at a time. It may be dropped at any point, as if the controller were killed: the next start reads
//! the desired state from the store, and the reported state from the switches.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::config::Checkpoint;
use crate::shell::link::SwitchError;
use crate::shell::shared::Shared;
use crate::state::core::Core;
use crate::state::lifecycle::{After, Event, Failure, Phase};
use crate::state::planning::{self, Layout, NoPlan};
use crate::state::record::{Ending, Plan, Record};
use crate::state::table::Entry;

/// Maximum number of calls per switch of a tree in one installation.
const CALLS_PER_SWITCH_MAX: usize = 4;

/// The installation was cancelled.
struct Cancelled;

/// Works on a group until it rests.
pub(crate) async fn drive(shared: Arc<Shared>, name: String) {
    // Once the controller stops, no step succeeds, and it would be tried for ever.
    while !shared.stopped.is_cancelled() {
        // What calls for work must be on disk first; if it was taken back, there may be nothing to do.
        let stored = shared.durable().await.is_ok();
        let record = {
            let mut core = shared.lock();
            let store_works = stored && core.store_error.is_none();
            let Some(entry) = core.groups.get_mut(&name) else {
                return;
            };
            let needs_driver = entry.record().phase.needs_driver();
            if !needs_driver || !store_works {
                entry.driven = false;
                if needs_driver {
                    core.postpone(name);
                }
                return;
            }
            entry.record().clone()
        };
        match record.phase {
            Phase::Removing(_) => {
                if !remove(&shared, record).await {
                    return;
                }
            }
            _ => install(&shared, record).await,
        }
    }
}

/// From Installing to Active, or to Removing if anything fails: all switches or none.
async fn install(shared: &Arc<Shared>, record: Record) {
    let (name, generation) = (record.name.as_str(), record.generation);
    let pass = |checkpoint| shared.config.checkpoints.pass(checkpoint);
    pass(Checkpoint::Joined).await;
    let plan = match record.plan {
        None => lay_out(shared, name, generation).await,
        placed => placed,
    };
    let Some(plan) = plan else { return };
    // If the plan was taken back, there is nothing to install.
    if shared.durable().await.is_err() {
        return;
    }
    pass(Checkpoint::Planned).await;
    // A switch that restarts meanwhile gets its rule again. The limit is for one that restarts all the time.
    let mut calls_left = CALLS_PER_SWITCH_MAX * plan.rules.len();
    while let Some(switch) = next_switch(shared, name, generation, &plan) {
        let done = match shared.links.get(&switch) {
            Some(link) if calls_left > 0 => link.sync(shared, name).await,
            Some(_) => Err(SwitchError::Unreachable("it was lost again and again".into())),
            None => Err(SwitchError::Unreachable("no agent is configured for it".into())),
        };
        calls_left = calls_left.saturating_sub(1);
        match done {
            Ok(()) => {
                let mut core = shared.lock();
                if placed_by(&core, name, generation, &plan).is_some()
                    && let Some(entry) = core.groups.get_mut(name)
                {
                    entry.problems.remove(&switch);
                    entry.confirmed.insert(switch.clone());
                    core.notify(name);
                }
            }
            Err(error) => return turned_down(shared, name, generation, &plan, (&switch, &error)).await,
        }
        pass(Checkpoint::Installed(switch)).await;
    }
    pass(Checkpoint::AllInstalled).await;
    let mut core = shared.lock();
    // If a switch was lost since, the next iteration installs its rule again.
    if placed_by(&core, name, generation, &plan).is_some_and(Entry::is_confirmed) {
        core.try_step(name, Event::Confirmed, None);
    }
}

/// The next switch that has not confirmed; `None`: all have confirmed, or the installation is cancelled.
fn next_switch(shared: &Arc<Shared>, name: &str, generation: u64, plan: &Arc<Plan>) -> Option<String> {
    let core = shared.lock();
    let entry = placed_by(&core, name, generation, plan)?;
    // From the leaves to the first: when one gets its rule, all below it are ready.
    let mut switches = plan.tree.iter().rev().map(|s| &s.name);
    switches.find(|s| !entry.confirmed.contains(*s)).cloned()
}

/// The group, while this installation is not cancelled.
fn installing<'c>(core: &'c Core, name: &str, generation: u64) -> Option<&'c Entry> {
    let entry = core.groups.get(name)?;
    let present = (entry.record().generation, entry.record().phase);
    (present == (generation, Phase::Installing)).then_some(entry)
}

/// The same, while it is installed by this plan: a store that fails may have taken it back.
fn placed_by<'c>(core: &'c Core, name: &str, generation: u64, plan: &Arc<Plan>) -> Option<&'c Entry> {
    installing(core, name, generation).filter(|entry| entry.record().is_placed_by(plan))
}

fn to_place(core: &Core, name: &str, generation: u64) -> Result<Record, Cancelled> {
    let entry = installing(core, name, generation).ok_or(Cancelled)?;
    Ok(entry.record().clone())
}

/// A switch refused its part: places the group again, or refuses it if there is no other place.
async fn turned_down(
    shared: &Arc<Shared>,
    name: &str,
    generation: u64,
    plan: &Plan,
    (switch, error): (&str, &SwitchError),
) {
    let failure = error.failure(switch);
    let may_move = {
        let mut core = shared.lock();
        // A multicast group gives up a switch only if the receivers there may be outside.
        let stays = |e: &Entry| e.record().multicast().is_some() && !may_split(e);
        let stays = installing(&core, name, generation).is_none_or(stays);
        match (core.groups.get_mut(name), plan.rules.get(switch)) {
            (Some(entry), Some(rule)) if !stays => {
                entry.detours.note(switch, rule, error.is_of_memory(), &failure)
            }
            _ => false,
        }
    };
    if !may_move {
        return refuse(&mut shared.lock(), (name, generation), failure);
    }
    let to_place = |core: &mut Core| to_place(core, name, generation);
    let then = |core: &mut Core, _, layout| match layout {
        Ok(_) => {
            let reason = failure.reason;
            tracing::warn!(group = name, switch, reason, "placing the group again");
            core.try_step(name, Event::Elsewhere, None);
        }
        Err(NoPlan::NotYet(failure) | NoPlan::Never(failure)) => refuse(core, (name, generation), failure),
    };
    // If the installation is cancelled, there is nothing to do.
    let _: Result<(), Cancelled> = shared.plan(to_place, then).await;
}

fn refuse(core: &mut Core, (name, generation): (&str, u64), failure: Failure) {
    if installing(core, name, generation).is_some() {
        let ending = Ending::refused(generation, failure);
        let (field, reason) = (&ending.failure.field, &ending.failure.reason);
        // Hosts that create jobs which no switch takes do not fill the log.
        let is_job = core.collective(name).is_ok_and(|(_, group)| group.by_call);
        match is_job {
            true => tracing::info!(group = name, field, reason, "installation refused"),
            false => tracing::warn!(group = name, field, reason, "installation refused"),
        }
        core.try_step(name, Event::Refused, Some(ending));
    }
}

/// Places the group and stores that; waits for missing reports. `None`: there is nothing to install.
async fn lay_out(shared: &Arc<Shared>, name: &str, generation: u64) -> Option<Arc<Plan>> {
    let deadline = Instant::now() + shared.config.timeouts.host;
    let mut changes = shared.fabric.subscribe();
    let mut follow = shared.lock().follow(name).ok()?;
    let mut cancelled = std::pin::pin!(async {
        while installing(&shared.lock(), name, generation).is_some() {
            follow.changed().await;
        }
    });
    loop {
        changes.mark_unchanged();
        let to_place = |core: &mut Core| to_place(core, name, generation);
        let then = |core: &mut Core, _, layout: Result<Layout, NoPlan>| {
            // It may have been cancelled while it was planned.
            installing(core, name, generation)?;
            match layout.and_then(|layout| planning::place(core, name, layout)) {
                Ok(plan) => Some(Ok(plan)),
                Err(NoPlan::Never(failure)) => {
                    refuse(core, (name, generation), failure);
                    None
                }
                Err(NoPlan::NotYet(failure)) => {
                    if let Some(entry) = core.groups.get_mut(name)
                        && entry.note != failure.reason
                    {
                        entry.note.clone_from(&failure.reason);
                        core.notify(name);
                    }
                    Some(Err(failure))
                }
            }
        };
        let failure = match shared.plan(to_place, then).await.ok()?? {
            Ok(plan) => return Some(plan),
            Err(failure) => failure,
        };
        let waited = tokio::select! {
            () = &mut cancelled => return None,
            waited = timeout_at(deadline, changes.changed()) => waited,
        };
        if waited.is_err() {
            if goes_without(shared, name, generation) {
                continue;
            }
            let waited = shared.config.timeouts.host;
            let reason = format!("{}; waited {waited:?}", failure.reason);
            let failure = Failure { reason, ..failure };
            refuse(&mut shared.lock(), (name, generation), failure);
            return None;
        }
    }
}

/// Whether a multicast group may run without some of its receivers.
fn may_split(entry: &Entry) -> bool {
    let kind = entry.record().multicast();
    kind.is_some_and(|kind| !kind.may_be_outside().is_empty())
}

/// The reports that were waited for have not come. Whether the group can be tried without the receivers that are missing.
fn goes_without(shared: &Arc<Shared>, name: &str, generation: u64) -> bool {
    let mut core = shared.lock();
    if !installing(&core, name, generation).is_some_and(may_split) {
        return false;
    }
    let entry = core.groups.get_mut(name).filter(|e| !e.detours.has_waited());
    entry.map(|entry| entry.detours.note_waited()).is_some()
}

/// The switches of a group's tree, the top one first, then others that may have a part of it.
fn top_down(record: &Record) -> Vec<&String> {
    let tree = record.plan.iter().flat_map(|p| &p.tree);
    let mut switches: Vec<&String> = tree.map(|s| &s.name).collect();
    let others: Vec<&String> = record.placed.iter().filter(|s| !switches.contains(s)).collect();
    switches.extend(others);
    switches
}

/// Brings the changed rules of a running group to its switches: the top one first, or the leaves, so that all below a switch
/// are ready for what it sends them. A switch that cannot be reached gets them when it is reconciled; nobody joins then.
pub(crate) async fn update(shared: Arc<Shared>, name: String, leaves_first: bool) {
    if shared.durable().await.is_err() {
        return;
    }
    let (generation, switches) = {
        let core = shared.lock();
        let Some(record) = core.groups.get(&name).map(Entry::record) else {
            return;
        };
        let mut switches: Vec<String> = top_down(record).into_iter().cloned().collect();
        if leaves_first {
            // What is to be removed comes last in either order.
            let tree = record.plan.as_ref().map_or(0, |plan| plan.tree.len());
            switches[..tree].reverse();
        }
        (record.generation, switches)
    };
    for switch in switches {
        let done = match shared.links.get(&switch) {
            Some(link) => link.sync(&shared, &name).await,
            None => Err(SwitchError::Unreachable("no agent is configured for it".into())),
        };
        let mut core = shared.lock();
        let runs = |r: &Record| r.generation == generation && r.phase.has_run();
        if !core.groups.get(&name).is_some_and(|e| runs(e.record())) {
            return;
        }
        match done {
            Ok(()) => core.has_its_part(&switch, &name),
            Err(error) => {
                let reason = error.failure(&switch).reason;
                core.unsettled(&switch, &name, &reason);
                core.give_up_all_joining(&name, &format!("switch {switch} {reason}"));
            }
        }
        core.recover(&name);
    }
}

/// Removes the group from its switches, the top one first: that stops all traffic. Whether there may be more to do.
async fn remove(shared: &Arc<Shared>, record: Record) -> bool {
    let name = record.name.as_str();
    shared.config.checkpoints.pass(Checkpoint::Removing).await;
    let (mut switches, mut cleared) = (top_down(&record), Vec::new());
    switches.retain(|s| record.placed.contains(*s));
    for switch in switches {
        let done = match shared.links.get(switch) {
            Some(link) => link.sync(shared, name).await,
            // It is not in the configuration any more: it cannot be asked.
            None => Ok(()),
        };
        match done {
            Ok(()) => cleared.push(switch),
            Err(error) => {
                let reason = error.to_string();
                tracing::warn!(group = name, switch, reason, "cannot be cleaned now");
                if let Some(entry) = shared.lock().groups.get_mut(name) {
                    entry.problems.insert(switch.clone(), reason);
                }
            }
        }
        let checkpoint = Checkpoint::Removed(switch.clone());
        shared.config.checkpoints.pass(checkpoint).await;
    }
    let mut core = shared.lock();
    let Ok(now) = core.group(name).map(Entry::record) else {
        return false;
    };
    if now.mcst_id != record.mcst_id {
        // It was written off meanwhile. Another one that has its name has its own driver.
        return false;
    }
    if now.generation != record.generation || !matches!(now.phase, Phase::Removing(_)) {
        // The removal was not stored.
        return true;
    }
    core.try_change(name, |r| r.placed.retain(|s| !cleared.contains(&s)));
    let Some(entry) = core.groups.get_mut(name) else {
        return false;
    };
    // Name and McstID are free again only when no switch knows them. Otherwise the group goes on, and switches that
    // cannot be reached are cleaned later: the next generation replaces this one.
    let must_wait = entry.record().phase == Phase::Removing(After::Gone) && !entry.record().placed.is_empty();
    if must_wait {
        entry.driven = false;
        core.notify(name);
    } else {
        core.try_step(name, Event::Cleared, None);
    }
    !must_wait
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use castnet_wire::McstId;

    use super::*;
    use crate::shell::shared::tests::{end_batch, shared};
    use crate::state::core::tests::join;

    /// A job whose hosts no switch has seen, in this phase; a switch that is not in the configuration may have its rule.
    fn with_job(phase: Phase) -> (Arc<Shared>, Record) {
        let shared = shared();
        let mut core = shared.lock();
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        core.seat_rank(join("job", 1, 2, ""), "h1").map(drop).unwrap();
        core.change("job", |r| {
            r.phase = phase;
            r.placed.insert("gone".into());
        })
        .unwrap();
        let record = core.group("job").unwrap().record().clone();
        drop(core);
        (shared, record)
    }

    /// Whoever ends the group waits for this task.
    #[tokio::test]
    async fn a_group_that_waits_for_its_hosts_ends_at_once() {
        let (shared, record) = with_job(Phase::Installing);
        let mut waits = std::pin::pin!(lay_out(&shared, "job", record.generation));
        assert!(poll_once(&mut waits).await.is_pending());
        shared.lock().notify("job");
        assert!(poll_once(&mut waits).await.is_pending());
        shared.lock().destroy("job").map(drop).unwrap();
        assert!(matches!(poll_once(&mut waits).await, Poll::Ready(None)));
    }

    async fn poll_once<T>(work: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
        std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *work).poll(cx))).await
    }

    /// The group was written off or its removal taken back while switches were asked.
    #[tokio::test]
    async fn a_removal_ends_only_what_it_was_begun_for() {
        let gone = Phase::Removing(After::Gone);
        let other = McstId([10, 200, 9, 9].into());
        for (phase, generation, mcst_id, is_cleared, goes_on) in [
            (gone, 1, None, true, true),
            (gone, 1, Some(other), false, false),
            (gone, 2, None, false, true),
            (Phase::Active, 1, None, false, true),
        ] {
            let (shared, mut record) = with_job(phase);
            record.phase = gone;
            record.mcst_id = mcst_id.unwrap_or(record.mcst_id);
            record.generation = generation;
            // Nothing is being written: what is staged is on disk.
            end_batch(&shared);
            let more = remove(&shared, record).await;
            let core = shared.lock();
            let there = core.group("job").map(|entry| entry.record().placed.len());
            let found = (there.ok() != Some(1), more);
            assert_eq!(found, (is_cleared, goes_on), "{phase:?} {generation} {mcst_id:?}");
        }
    }

    /// A plan that could not be stored is none.
    #[tokio::test]
    async fn a_group_is_active_by_the_plan_that_was_installed() {
        let (shared, record) = with_job(Phase::Installing);
        let plan = Arc::new(Plan {
            tree: Vec::new(),
            rules: Default::default(),
            shortages: String::new(),
            refinement: None,
            over_covered: Default::default(),
        });
        let is_placed = |shared: &Arc<Shared>| {
            let core = shared.lock();
            placed_by(&core, "job", record.generation, &plan).is_some()
        };
        assert!(!is_placed(&shared));
        shared.lock().try_change("job", |r| r.plan = Some(plan.clone()));
        assert!(is_placed(&shared));
        let other = Plan {
            shortages: "none".into(),
            ..(*plan).clone()
        };
        shared
            .lock()
            .try_change("job", |r| r.plan = Some(Arc::new(other)));
        assert!(!is_placed(&shared));
    }
}
