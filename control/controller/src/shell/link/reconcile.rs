//! Brings a whole switch to the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_proto::convert::mcst_id_from_proto;
use castnet_proto::v1;
use castnet_rules::{GroupRule, lane_of};
use castnet_wire::McstId;

use super::install::some;
use super::{Client, GROUPS_TOGETHER, Link, SwitchError, call};
use crate::shell::shared::Shared;
use crate::state::Core;
use crate::state::reconcile::{Found, Version, diff};

struct Part<'n> {
    name: &'n str,
    generation: u64,
    /// Whether the switch has all lanes except those that it lacks.
    has_rest: bool,
    lacks: usize,
}

impl Link {
    /// Installs all missing rules and removes ours that are not wanted. Requests of drivers wait meanwhile, so the
    /// result of the query stays true.
    pub(super) async fn reconcile(
        &self,
        shared: &Arc<Shared>,
        client: &mut Client,
    ) -> Result<(), SwitchError> {
        let switch = &self.config.name;
        let _turn = self.turn.lock().await;
        let request = v1::ListGroupsRequest {
            mcst_id: None,
            brief: true,
        };
        let listed = call(shared, client.list_groups(request)).await?;
        let mut found = self.sort(&mut shared.lock(), &shared.term.owner, listed);
        let read = |core: &Core| {
            (
                wanted(core, switch),
                of_others_now(core, &found),
                unknown(core, &found),
            )
        };
        let ((names, wanted), replaced, unknown) = shared.read(read).await?;
        found.retain(|rule| !replaced.contains_key(&rule.mcst_id));
        let mut diff = diff(&wanted, &found);
        diff.removals.extend(replaced);
        tracing::debug!(switch, ?diff, "reconciling");
        // A refusal concerns only what was refused.
        let unless_lost = |done: Result<(), SwitchError>| match done {
            Err(error @ SwitchError::Unreachable(_)) => Err(error),
            done => Ok(done.err()),
        };
        // Addresses of rules that the switch may have afterwards. A group may end meanwhile: its driver waits for the turn.
        let mut may_stay: BTreeSet<McstId> = wanted.into_keys().collect();
        for (mcst_id, generation) in diff.removals {
            match unknown.get(&mcst_id) {
                Some(group) => {
                    tracing::warn!(switch, %mcst_id, generation, group, "removing the rules of a group that the store does not have");
                }
                None => tracing::info!(switch, %mcst_id, generation, "removing what is not wanted"),
            }
            let mcst_ids = [mcst_id];
            let removed = self.remove(client, shared, &mcst_ids, Some(generation));
            if let Some(error) = unless_lost(removed.await)? {
                tracing::warn!(switch, %error, "removal refused");
                may_stay.insert(mcst_id);
            }
        }
        if let Some(error) = unless_lost(self.sync_routes(shared, None).await)? {
            tracing::warn!(switch, %error, "multicast routes refused");
        }
        if let Some(error) = unless_lost(self.set_source_guard(shared).await)? {
            tracing::warn!(switch, %error, "source guard refused");
        }
        {
            let mut core = shared.lock();
            if core.cleaned(switch, &may_stay) {
                self.tell(&mut core);
            }
        }
        let lacking = diff.installs;
        if !lacking.is_empty() {
            tracing::info!(switch, rules = lacking.len(), "installing what is lacking");
        }
        let ours = found.iter().map(|f| (f.mcst_id, f.generation)).collect();
        for names in names.chunks(GROUPS_TOGETHER) {
            self.reconcile_groups(shared, client, names, (&lacking, &ours, &may_stay))
                .await?;
        }
        Ok(())
    }

    /// Returns the groups of this controller, and notes what else the switch has. That stays as it is: it is of other owners (rule files,
    /// operators, other controllers), or of groups whose records do not read.
    fn sort(&self, core: &mut Core, own: &str, listed: v1::ListGroupsResponse) -> Vec<Found> {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for v1::InstalledGroup { rule, owner, .. } in listed.groups {
            let Some(rule) = rule else { continue };
            let Ok(mcst_id) = mcst_id_from_proto("mcst_id", &rule.mcst_id) else {
                continue;
            };
            let (generation, is_own) = (rule.generation, owner == own);
            let group = lane_of(&rule.name).map_or(&*rule.name, |(group, _)| group);
            match is_own && !core.set_apart.contains_key(group) {
                true => ours.push(Found {
                    mcst_id,
                    generation,
                    group: group.to_owned(),
                }),
                // Groups of rule files have no owner.
                false => others.push((mcst_id, !is_own && !owner.is_empty())),
            }
        }
        let switch = &self.config.name;
        let is_first = core.others.unasked().any(|unasked| unasked == switch);
        if core.others.listed(switch, others.into_iter())
            && let Some(reason) = core.others.wrong_store()
        {
            tracing::error!(switch, "{reason}");
        }
        if is_first {
            // Calls wait for it.
            core.reported();
        }
        ours
    }

    /// Installs the missing rules of these groups, and notes their state there.
    async fn reconcile_groups(
        &self,
        shared: &Arc<Shared>,
        client: &mut Client,
        names: &[String],
        (lacking, ours, may_stay): (&BTreeSet<McstId>, &BTreeMap<McstId, u64>, &BTreeSet<McstId>),
    ) -> Result<(), SwitchError> {
        let switch = &self.config.name;
        let mut read = Vec::new();
        while read.len() < names.len() {
            let left = names.iter().skip(read.len());
            let parts = |core: &Core| {
                let each = left.clone().map(|name| part(core, switch, name, (lacking, ours)));
                some(each, |part| part.as_ref().map_or(&[], |(_, rules)| rules))
            };
            read.extend(shared.read(parts).await?);
        }
        let (parts, rules): (Vec<_>, Vec<_>) = read.into_iter().flatten().unzip();
        let rules: Vec<GroupRule> = rules.into_iter().flatten().collect();
        let installed = self.install(client, shared, &rules).await;
        if let Some(Err(error @ SwitchError::Unreachable(_))) = installed.last() {
            return Err(error.clone());
        }
        let mut installed = installed.into_iter();
        let mut settled = BTreeMap::new();
        let mut core = shared.lock();
        for Part {
            name,
            generation,
            has_rest,
            lacks,
        } in parts
        {
            let refused: Vec<SwitchError> = installed.by_ref().take(lacks).filter_map(Result::err).collect();
            if let Some(error) = refused.first() {
                core.unsettled(switch, name, &error.failure(switch).reason);
            }
            settled.insert(name, Some(generation).filter(|_| has_rest && refused.is_empty()));
        }
        core.settled(switch, names, &settled, may_stay);
        Ok(())
    }
}

/// What a switch lacks of a group, with the rules. `None`: no rules belong there.
fn part<'n>(
    core: &Core,
    switch: &str,
    name: &'n str,
    (lacking, ours): (&BTreeSet<McstId>, &BTreeMap<McstId, u64>),
) -> Option<(Part<'n>, Vec<GroupRule>)> {
    let record = core.groups.get(name)?.record();
    let Version { generation, .. } = record.wanted_version(switch)?;
    let mut rules = Vec::new();
    if record.mcst_ids_on(switch).any(|lane| lacking.contains(&lane)) {
        rules = record.wanted_on(switch);
        rules.retain(|rule| lacking.contains(&rule.mcst_id));
    }
    let has = |lane| lacking.contains(&lane) || ours.get(&lane) == Some(&generation);
    let part = Part {
        name,
        generation,
        has_rest: record.mcst_ids_on(switch).all(has),
        lacks: rules.len(),
    };
    Some((part, rules))
}

/// Rules of groups that this controller does not know any more, at addresses that it has given to others since, with their generations.
fn of_others_now(core: &Core, found: &[Found]) -> BTreeMap<McstId, u64> {
    let is_other = |rule: &&Found| {
        let now = core.groups.by_mcst_id(rule.mcst_id);
        now.is_some_and(|entry| entry.record().name != rule.group)
    };
    let others = found.iter().filter(is_other);
    others.map(|rule| (rule.mcst_id, rule.generation)).collect()
}

/// Groups of which the store knows nothing, as after an older export was imported, by their McstIDs.
fn unknown(core: &Core, found: &[Found]) -> BTreeMap<McstId, String> {
    let is_unknown = |rule: &&Found| {
        core.groups.get(&rule.group).is_none() && !core.written_off.contains_key(&rule.mcst_id)
    };
    let unknown = found.iter().filter(is_unknown);
    unknown.map(|rule| (rule.mcst_id, rule.group.clone())).collect()
}

/// The groups of a switch, and the desired versions there, by the address of each lane.
fn wanted(core: &Core, switch: &str) -> (Vec<String>, BTreeMap<McstId, Version>) {
    let names = core.groups.on_switch(switch);
    let records = names
        .iter()
        .filter_map(|name| Some(core.groups.get(name)?.record()));
    let versions = records.filter_map(|r| Some((r, r.wanted_version(switch)?)));
    let versions = versions.flat_map(|(r, version)| r.mcst_ids_on(switch).map(move |lane| (lane, version)));
    let versions = versions.collect();
    (names, versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::core::tests::{core, join};
    use crate::state::written_off::WrittenOff;

    /// As after a store was restored from a backup: the address that a forgotten group had was given to another one.
    #[test]
    fn rules_of_forgotten_groups_are_not_taken_for_those_of_others() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let own = core.group("job").unwrap().record().mcst_id;
        let other = McstId([10, 200, 9, 9].into());
        let found = |mcst_id, group: &str| Found {
            mcst_id,
            generation: 3,
            group: group.into(),
        };
        let removed = |rule: Found| of_others_now(&core, &[rule]).contains_key(&own);
        assert!(!removed(found(own, "job")) && removed(found(own, "g")));
        assert!(of_others_now(&core, &[found(other, "g")]).is_empty());
        // Only an end that nobody has asked for is worth a warning.
        let is_unknown = |core: &Core, group| unknown(core, &[found(other, group)]).contains_key(&other);
        assert!(!is_unknown(&core, "job") && is_unknown(&core, "g"));
        let written_off = WrittenOff {
            group: "g".into(),
            switches: BTreeSet::new(),
        };
        core.written_off.insert(other, written_off);
        assert!(!is_unknown(&core, "g"));
    }
}
