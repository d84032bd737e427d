//! Brings the changed rules of a running group to its switches, one after the other: the top one first, or the leaves, so that all below a
//! switch are ready for what it sends them. A switch that cannot be reached gets them when it is reconciled; nobody joins then.

use std::collections::{BTreeMap, VecDeque};

use super::{Declined, top_down};
use crate::state::{Asked, Core, Effect, Entry, Owner, Record};

/// Updates that begin at once: others use the lock in between.
const BEGUN_TOGETHER: usize = 64;

/// A group, and whether its leaves come first.
type Update = (String, bool);

/// The updates of all groups.
#[derive(Default)]
pub(crate) struct Updates {
    /// Those that may begin.
    stored: VecDeque<Update>,
    /// Those of which a switch has been asked, by the number of that step.
    asked: BTreeMap<u64, Step>,
}

struct Step {
    group: String,
    generation: u64,
    switch: String,
    left: VecDeque<String>,
}

impl Core {
    /// The switches of a running group get its changed rules, when they are on disk.
    pub(crate) fn update(&mut self, group: &str, leaves_first: bool) {
        let update = (group.to_owned(), leaves_first);
        self.when_stored(move |core, is_written| {
            if is_written {
                core.updates.stored.push_back(update);
                core.timers.set(Owner::Updates, core.now);
            }
        });
    }

    pub(crate) fn begin_updates(&mut self) {
        for _ in 0..BEGUN_TOGETHER {
            let Some((group, leaves_first)) = self.updates.stored.pop_front() else {
                return;
            };
            let Some(record) = self.groups.get(&group).map(Entry::record) else {
                continue;
            };
            let mut switches: Vec<String> = top_down(record).into_iter().cloned().collect();
            if leaves_first {
                // What is to be removed comes last in either order.
                let tree = record.plan.as_ref().map_or(0, |plan| plan.tree.len());
                switches[..tree].reverse();
            }
            let generation = record.generation;
            self.update_next(group, generation, switches.into());
        }
        self.timers.set(Owner::Updates, self.now);
    }

    fn update_next(&mut self, group: String, generation: u64, mut left: VecDeque<String>) {
        let Some(switch) = left.pop_front() else { return };
        let number = self.works.next_number();
        self.effects.push(Effect::Sync(Asked {
            group: group.clone(),
            switch: switch.clone(),
            number,
            after: None,
            then: None,
        }));
        let step = Step {
            group,
            generation,
            switch,
            left,
        };
        self.updates.asked.insert(number, step);
    }

    /// A switch has the rules of an update now, or declines them; no effect for other numbers.
    pub(super) fn handle_updated(&mut self, number: u64, done: Result<(), Declined>) {
        let Some(step) = self.updates.asked.remove(&number) else {
            return;
        };
        let Step {
            group,
            generation,
            switch,
            left,
        } = step;
        let runs = |r: &Record| r.generation == generation && r.phase.has_run();
        if !self.groups.get(&group).is_some_and(|e| runs(e.record())) {
            return;
        }
        match done {
            Ok(()) => self.has_its_part(&switch, &group),
            Err(Declined { failure, .. }) => {
                let reason = failure.reason;
                self.unsettled(&switch, &group, &reason);
                self.give_up_all_joining(&group, &format!("switch {switch} {reason}"));
            }
        }
        self.recover(&group);
        self.update_next(group, generation, left);
    }
}
