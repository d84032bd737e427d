//! Rules on switches that have this controller as their owner, and of which its store does not say what they are.
//!
//! An older copy of a store does not have the groups that were created since, or has them in an earlier generation. A copy that was made
//! in the term of the last controller has the next epoch, as the store itself has, so no fence sees it. So a switch loses a rule only if
//! the store, or this controller itself, explains it: its group is there with this generation or a later one, was written off, or was
//! removed since the start. All others stay as those of other owners do, until an operator purges them.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use castnet_wire::McstId;

use crate::state::reconcile::Found;
use crate::state::{Core, Entry, Event, Phase, Record};

/// Addresses of groups that are remembered after their end. A call that was held back comes within seconds.
const DEPARTED_MAX: usize = 4096;

/// Groups that this controller has removed since it started, by name and address, with their last generations: a call that was held back
/// may install one of them after its removal.
#[derive(Default)]
pub(crate) struct Departed {
    generations: BTreeMap<(String, McstId), u64>,
    order: VecDeque<(String, McstId)>,
}

impl Departed {
    pub(crate) fn note(&mut self, record: &Record) {
        for mcst_id in record.all_mcst_ids() {
            let key = (record.name.clone(), mcst_id);
            let last = self.generations.get(&key).copied();
            let generation = record.generation.max(last.unwrap_or_default());
            self.generations.insert(key.clone(), generation);
            if last.is_none() {
                self.order.push_back(key);
            }
        }
        while self.order.len() > DEPARTED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.generations.remove(&oldest);
            }
        }
    }

    /// Whether a group of this name has ended.
    pub(crate) fn has(&self, group: &str) -> bool {
        let first = (group.to_owned(), McstId(Ipv4Addr::UNSPECIFIED));
        let next = self.generations.range(first..).next();
        next.is_some_and(|((name, _), _)| name == group)
    }

    fn explains(&self, found: &Found) -> bool {
        let last = self.generations.get(&(found.group.clone(), found.mcst_id));
        last.is_some_and(|last| *last >= found.generation)
    }
}

impl Core {
    /// Whether a rule of this controller on a switch stays because nobody knows what it is. What was so once stays so: a controller on
    /// the wrong store may count its own generations on.
    pub(crate) fn is_unexplained(&self, switch: &str, found: &Found) -> bool {
        self.others.unexplained_at(switch, found.mcst_id) == Some(found) || !self.explains(found)
    }

    fn explains(&self, found: &Found) -> bool {
        let is_of = |entry: &Entry| {
            let record = entry.record();
            record.generation >= found.generation && record.all_mcst_ids().any(|own| own == found.mcst_id)
        };
        let written_off = self.written_off.get(&found.mcst_id);
        self.groups.get(&found.group).is_some_and(is_of)
            || written_off.is_some_and(|written_off| written_off.group == found.group)
            || self.departed.explains(found)
    }

    /// Notes what a switch has of that, all of it. Returns whether it is news.
    pub(crate) fn note_unexplained(&mut self, switch: &str, found: Vec<Found>) -> bool {
        let Some(gone) = self.others.set_unexplained(switch, found) else {
            return false;
        };
        for mcst_id in gone {
            self.settle_at(mcst_id);
        }
        true
    }

    /// Such a rule was removed.
    pub(crate) fn purged(&mut self, switch: &str, mcst_id: McstId) {
        self.others.forget_unexplained(switch, mcst_id);
        self.settle_at(mcst_id);
    }

    /// A group that has waited for its address goes on.
    fn settle_at(&mut self, mcst_id: McstId) {
        let Some(entry) = self.groups.by_mcst_id(mcst_id) else {
            return;
        };
        let name = entry.record().name.clone();
        if let Err(error) = self.settle(&name) {
            tracing::error!(group = name, %error, "step failed");
        }
    }

    /// Whether this event has to wait: a switch has a rule at an address of the group that may be a later generation of it.
    pub(crate) fn must_wait(&self, name: &str, event: Event) -> bool {
        let Some(entry) = self.groups.get(name) else {
            return false;
        };
        let record = entry.record();
        let begins = event == Event::AllJoined && record.phase == Phase::Registered;
        begins
            && record
                .all_mcst_ids()
                .any(|own| self.others.has_unexplained_at(own))
    }

    /// Why a group may exist that the store does not have, or only in an earlier generation: a switch has it.
    pub(crate) fn unexplained(&self, group: &str) -> Option<String> {
        let switch = self.others.switch_with_unexplained(group)?;
        Some(format!(
            "switch {switch} has rules of it that the store does not have: start the controller with the store that has them, or remove \
             them (castnet group purge shows how)"
        ))
    }
}

/// Why nothing is done with the rules of a group at a switch.
pub(crate) fn kept(found: &Found) -> String {
    let Found {
        mcst_id,
        generation,
        group,
    } = found;
    format!(
        "it has generation {generation} of group {group} at {mcst_id}, which the store of this controller does not have, and keeps it: \
         castnet group purge shows how it is removed"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::state::core::tests::{core, join};
    use crate::state::written_off::WrittenOff;

    fn found(mcst_id: McstId, generation: u64, group: &str) -> Found {
        Found {
            mcst_id,
            generation,
            group: group.into(),
        }
    }

    #[test]
    fn a_rule_is_explained_by_its_group_by_what_was_written_off_and_by_what_has_ended() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        core.change("job", |r| r.generation = 3).unwrap();
        let own = core.group("job").unwrap().record().mcst_id;
        let other = McstId([10, 200, 9, 9].into());
        let is = |core: &Core, mcst_id, generation, group: &str| {
            core.is_unexplained("s", &found(mcst_id, generation, group))
        };
        assert_eq!(
            [2, 3, 4].map(|at| is(&core, own, at, "job")),
            [false, false, true]
        );
        // At another address it is another group of the same name, and at this one another group.
        assert!(is(&core, other, 1, "job") && is(&core, own, 1, "g"));
        let written_off = WrittenOff {
            group: "g".into(),
            switches: BTreeSet::new(),
        };
        core.written_off.insert(other, written_off);
        assert!(!is(&core, other, 9, "g") && is(&core, other, 9, "k"));
        let record = core.group("job").unwrap().record().clone();
        core.groups.remove("job");
        assert!(is(&core, own, 3, "job") && !core.departed.has("job"));
        core.departed.note(&record);
        assert!(!is(&core, own, 3, "job") && is(&core, own, 4, "job"));
        assert!(core.departed.has("job") && !core.departed.has("jo"));
    }

    #[test]
    fn what_was_not_explained_once_stays_so_until_it_is_gone() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let own = core.group("job").unwrap().record().mcst_id;
        let later = found(own, 1, "job");
        assert!(
            core.note_unexplained("s", vec![later.clone()])
                && !core.note_unexplained("s", vec![later.clone()])
        );
        assert!(core.must_wait("job", Event::AllJoined) && !core.must_wait("job", Event::Destroy));
        assert!(
            core.others.have(own) && core.unexplained("job").is_some() && core.unexplained("g").is_none()
        );
        core.change("job", |r| r.generation = 1).unwrap();
        assert!(core.is_unexplained("s", &later));
        assert!(core.note_unexplained("s", Vec::new()));
        assert!(!core.is_unexplained("s", &later) && !core.must_wait("job", Event::AllJoined));
    }

    #[test]
    fn those_that_have_ended_are_bounded() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let mut record = core.group("job").unwrap().record().clone();
        for n in 0..DEPARTED_MAX + 10 {
            record.name = format!("job{n}");
            core.departed.note(&record);
            core.departed.note(&record);
        }
        let Departed { generations, order } = &core.departed;
        assert_eq!((generations.len(), order.len()), (DEPARTED_MAX, DEPARTED_MAX));
        assert!(!core.departed.has("job9") && core.departed.has("job10"));
    }
}
