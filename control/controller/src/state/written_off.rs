//! Groups that were destroyed by force while switches could not be reached.
//!
//! The group is forgotten, and its name is free. Its McstIDs are not: a switch that returns may still have rules for
//! them. They are free again when each of these switches has returned and has no rules for them, or is not in the
//! configuration any more.

use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::McstId;
use serde::{Deserialize, Serialize};

use crate::config::SwitchConfig;
use crate::error::Refusal;
use crate::state::{After, Core, Phase};

/// A McstID of a group that was destroyed by force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenOff {
    /// Name of the group.
    pub group: String,
    /// Switches that may still have its rule.
    pub switches: BTreeSet<String>,
}

/// By McstID.
pub(crate) type AllWrittenOff = BTreeMap<McstId, WrittenOff>;

impl Core {
    /// Names of destroyed groups that a switch may still have.
    pub(crate) fn written_off_on(&self, switch: &str) -> Vec<String> {
        let there = self.written_off.values().filter(|w| w.switches.contains(switch));
        let names: BTreeSet<&String> = there.map(|w| &w.group).collect();
        names.into_iter().cloned().collect()
    }

    /// The same for all switches, in one walk.
    pub(crate) fn written_off_by_switch(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for WrittenOff { group, switches } in self.written_off.values() {
            for switch in switches {
                groups.entry(switch.clone()).or_default().insert(group.clone());
            }
        }
        groups
    }

    /// Forgets a group whose removal waits for switches. Returns these.
    pub(crate) fn write_off(&mut self, group: &str) -> Result<Vec<String>, Refusal> {
        let Ok(entry) = self.group(group) else {
            return Ok(Vec::new());
        };
        let record = entry.record().clone();
        // It is another group of the same name.
        if record.phase != Phase::Removing(After::Gone) {
            return Ok(Vec::new());
        }
        self.journal.check_open()?;
        for switch in &record.placed {
            for mcst_id in record.mcst_ids_left_on(switch) {
                let before = self.written_off.get(&mcst_id).cloned();
                let now = before.unwrap_or_else(|| WrittenOff {
                    group: group.into(),
                    switches: BTreeSet::new(),
                });
                let mut switches = now.switches.clone();
                switches.insert(switch.clone());
                self.set_written_off(mcst_id, Some(WrittenOff { switches, ..now }));
            }
        }
        let (name, switches) = (group.to_owned(), record.placed.clone());
        self.journal.log(move || {
            tracing::warn!(
                group = name,
                ?switches,
                "written off: they may still have the group"
            )
        });
        self.forget(group)?;
        Ok(record.placed.into_iter().collect())
    }

    /// A switch was just reconciled: it has none of our rules but at the addresses that `may_stay`. Returns whether that is news.
    pub(crate) fn cleaned(&mut self, switch: &str, may_stay: &BTreeSet<McstId>) -> bool {
        self.not_written_off(|name, mcst_id| name == switch && !may_stay.contains(&mcst_id))
    }

    /// Forgets switches that are not configured.
    pub(crate) fn forget_other_switches(&mut self) {
        let config = self.config.clone();
        self.not_written_off(|name, _| config.switches.iter().all(|switch| switch.name != name));
    }

    /// A switch that these do not have, and a group that it has to have.
    pub(crate) fn used_beside(&self, switches: &[SwitchConfig]) -> Option<(String, String)> {
        let missing = |own: &&SwitchConfig| switches.iter().all(|switch| switch.name != own.name);
        self.config.switches.iter().filter(missing).find_map(|own| {
            let has = |name: &String| {
                let entry = self.groups.get(name);
                entry.is_some_and(|entry| entry.record().wanted_rule(&own.name).is_some())
            };
            let group = self.groups.on_switch(&own.name).into_iter().find(has)?;
            Some((own.name.clone(), group))
        })
    }

    fn not_written_off(&mut self, is_clean: impl Fn(&str, McstId) -> bool) -> bool {
        let mut changed = AllWrittenOff::new();
        for (mcst_id, before) in &self.written_off {
            let mut now = before.clone();
            now.switches.retain(|switch| !is_clean(switch, *mcst_id));
            if now != *before {
                changed.insert(*mcst_id, now);
            }
        }
        let any = !changed.is_empty();
        for (mcst_id, now) in changed {
            self.set_written_off(mcst_id, Some(now).filter(|now| !now.switches.is_empty()));
        }
        any
    }

    fn set_written_off(&mut self, mcst_id: McstId, now: Option<WrittenOff>) {
        let before = self.written_off.get(&mcst_id).cloned();
        self.journal.stage_written_off(mcst_id, before, now.is_some());
        self.put_written_off(mcst_id, now);
    }

    pub(crate) fn put_written_off(&mut self, mcst_id: McstId, now: Option<WrittenOff>) {
        match now {
            Some(now) => drop(self.written_off.insert(mcst_id, now)),
            None => drop(self.written_off.remove(&mcst_id)),
        }
    }
}
