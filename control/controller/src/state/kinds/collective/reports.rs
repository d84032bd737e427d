//! What switches report of collective groups.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use castnet_proto::convert::disagreement_from_proto;
use castnet_proto::v1;
use castnet_wire::{Control, Verdict};

use super::record::Collective;
use crate::state::{Core, Due, Ending, Entry, Event, Phase, Record};

/// How late the next report of a stall may come.
const REPORT_MARGIN: Duration = Duration::from_millis(500);

impl Core {
    pub(crate) fn member_failed(&mut self, switch: &str, failed: v1::MemberFailed) {
        let (generation, syndrome, next_hop) = (failed.generation, failed.syndrome, &failed.next_hop);
        let found = self.collective_at(&failed.mcst_id);
        if found.is_some_and(|(entry, _)| is_late(entry, switch, generation)) {
            return;
        }
        let rank = found.and_then(|(_, group)| group.rank_at(next_hop));
        let owner = found.map_or_else(String::new, |(entry, _)| entry.record().owner.clone());
        if self.may_warn(&owner) {
            tracing::warn!(switch, group = failed.group, next_hop, syndrome, "member failed");
        }
        let event = v1::controller_event::Event::MemberFailed(v1::MemberFailed {
            switch_name: switch.into(),
            rank: rank.map(u32::from),
            ..failed.clone()
        });
        self.publish(event);
        self.receiver_failed(switch, &failed);
        self.broke(&failed.mcst_id, generation, switch, |group, _| {
            let who = rank.map_or_else(|| format!("host {next_hop}"), |rank| group.rank_name(rank));
            let reason = format!("{who} has ended its connection, with NAK syndrome {syndrome:#04x}");
            Ending::failed(generation, rank, None, reason)
        });
    }

    pub(crate) fn conflict(&mut self, switch: &str, conflict: &v1::CollectiveConflict) {
        let said = conflict.disagreement.unwrap_or_default();
        let said = disagreement_from_proto("disagreement", &said);
        self.broke(&conflict.mcst_id, conflict.generation, switch, |group, record| {
            let said = match said {
                Ok(said) => said,
                Err(invalid) => {
                    tracing::warn!(switch, %invalid, "a report of a conflict does not read");
                    let reason = format!("the ranks disagree; switch {switch} does not say more");
                    return Ending::failed(record.generation, None, None, reason);
                }
            };
            // Each switch reports what the tree's root sends to the ranks; reports that differ are merged.
            let before = record
                .ended
                .as_ref()
                .filter(|e| e.generation == record.generation);
            let all = match before.and_then(|e| e.conflict) {
                Some(mut before) if before.sequence == said.sequence => {
                    before.merge(&said);
                    before
                }
                Some(before) => before,
                None => said,
            };
            disagreement(group, record.generation, all)
        });
    }

    /// A switch reports that a generation cannot go on; `why` makes the ending from the record.
    fn broke(
        &mut self,
        mcst_id: &str,
        generation: u64,
        switch: &str,
        why: impl FnOnce(&Collective, &Record) -> Ending,
    ) {
        let Some((entry, group)) = self.collective_at(mcst_id) else {
            return;
        };
        if is_late(entry, switch, generation) {
            return;
        }
        let name = entry.record().name.clone();
        let ending = why(group, entry.record());
        if self.may_warn_of(&name) {
            let reason = &ending.failure.reason;
            tracing::warn!(group = name, switch, reason, "a generation cannot go on");
        }
        self.end(&name, ending);
    }

    fn end(&mut self, name: &str, ending: Ending) {
        let Ok(record) = self.group(name).map(Entry::record) else {
            return;
        };
        let again = (name.to_owned(), ending.clone());
        match record.phase {
            _ if record.generation != ending.generation => return,
            Phase::Active => self.try_step(name, Event::Broke, Some(ending)),
            // The ranks were faster than the report of the switch: later calls get the cause.
            Phase::Broken => self.try_change(name, |r| {
                let unexplained = |e: &Ending| {
                    e.generation == ending.generation
                        && e.rank.is_none()
                        && (e.conflict.is_none() || ending.conflict.is_some())
                };
                if r.ended.as_ref().is_some_and(unexplained) {
                    r.ended = Some(ending);
                }
            }),
            _ => return,
        }
        // Work to retry: a switch reports it only once.
        self.journal.retry(move |core| core.end(&again.0, again.1));
    }

    pub(crate) fn waits(&mut self, switch: &str, stalled: &v1::CollectiveStalled) {
        let Some((entry, group)) = self.collective_at(&stalled.mcst_id) else {
            return;
        };
        if is_late(entry, switch, stalled.generation) {
            return;
        }
        let (name, phase) = (entry.record().name.clone(), entry.record().phase);
        // A switch that still waits reports it again after each stall time-out.
        let stall = Duration::from_millis(group.settings.stall_timeout_ms.into());
        let known = stalled.ranks.iter().filter_map(|r| u16::try_from(*r).ok());
        let ranks: Vec<u16> = known.collect();
        let host = |rank: &u16| {
            let known = group.ranks.get(usize::from(*rank));
            known.map_or_else(String::new, |r| r.host.clone())
        };
        let known = entry.stalls.get(switch);
        let is_news = known != Some(&ranks);
        let event = v1::controller_event::Event::CollectiveStalled(v1::CollectiveStalled {
            group: name.clone(),
            switch_name: switch.into(),
            hosts: ranks.iter().map(host).collect(),
            ranks: ranks.iter().map(|r| u32::from(*r)).collect(),
            ..stalled.clone()
        });
        self.publish(event);
        if is_news && self.may_warn_of(&name) {
            tracing::warn!(group = name, switch, ?ranks, "collective stalls");
        }
        let Some(entry) = self.groups.get_mut(&name).filter(|_| phase == Phase::Active) else {
            return;
        };
        entry.stalls.insert(switch.into(), ranks);
        self.update_waiting(&name);
        self.set_timer(&name, Due::Stall(switch.into()), 2 * stall + REPORT_MARGIN);
    }

    /// A switch has not said again that it waits.
    pub(crate) fn stall_over(&mut self, name: &str, switch: &str) {
        if let Some(entry) = self.groups.get_mut(name) {
            entry.stalls.remove(switch);
            self.update_waiting(name);
        }
    }

    fn update_waiting(&mut self, name: &str) {
        if let Some(entry) = self.groups.get_mut(name) {
            let ranks = waited_for(entry);
            if entry.waiting_for != ranks {
                entry.waiting_for = ranks;
                self.notify(name);
            }
        }
    }
}

/// The ranks that switches wait for. A switch far from a rank names all ranks behind a port; the report of the rank's
/// own switch takes precedence.
fn waited_for(entry: &Entry) -> Vec<u16> {
    let rules = entry.record().plan.iter().flat_map(|p| &p.rules);
    let own: BTreeMap<u16, &String> = rules
        .flat_map(|(switch, rule)| {
            let ranks = rule.endpoints.iter().filter_map(|e| e.next_hop.rank());
            ranks.map(move |rank| (rank.rank, switch))
        })
        .collect();
    let mut all = BTreeSet::new();
    for (switch, ranks) in &entry.stalls {
        let counts = |rank: &&u16| {
            let own = own.get(*rank);
            own.is_none_or(|own| *own == switch || !entry.stalls.contains_key(*own))
        };
        all.extend(ranks.iter().filter(counts).copied());
    }
    all.into_iter().collect()
}

fn is_late(entry: &Entry, switch: &str, generation: u64) -> bool {
    let (group, present) = (&entry.record().name, entry.record().generation);
    let late = generation != present;
    if late {
        tracing::debug!(group, switch, generation, present, "a late report");
    }
    late
}

fn disagreement(group: &Collective, generation: u64, conflict: Control) -> Ending {
    let Control {
        sequence, rank, call, ..
    } = conflict;
    let mut reason = format!(
        "the ranks disagree about collective {sequence}: {} called {call}",
        group.rank_name(rank)
    );
    if let Verdict::Conflict { rank, call } = conflict.verdict {
        let _ = write!(reason, ", {} called {call}", group.rank_name(rank));
    }
    Ending {
        conflict: Some(conflict),
        ..Ending::failed(generation, None, None, reason)
    }
}
