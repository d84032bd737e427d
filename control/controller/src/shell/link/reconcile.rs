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
use crate::state::reconcile::{Found, Version, diff};
use crate::state::{Core, Effect, unexplained, view};

struct Part<'n> {
    name: &'n str,
    generation: u64,
    /// Whether the switch has all lanes except those that it lacks.
    has_rest: bool,
    lacks: usize,
    /// Why nothing is done there.
    kept: Option<String>,
}

impl Link {
    /// Installs all missing rules and removes ours that are not wanted, if the store explains them. Requests of drivers wait meanwhile, so
    /// the result of the query stays true.
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
                kept(core, switch),
            )
        };
        let ((names, wanted), replaced, kept) = shared.read(read).await?;
        found.retain(|rule| !replaced.contains_key(&rule.mcst_id));
        let mut diff = diff(&wanted, &found);
        diff.removals.extend(replaced);
        diff.installs.retain(|mcst_id| !kept.contains(mcst_id));
        tracing::debug!(switch, ?diff, "reconciling");
        // A refusal concerns only what was refused.
        let unless_lost = |done: Result<(), SwitchError>| match done {
            Err(error @ SwitchError::Unreachable(_)) => Err(error),
            done => Ok(done.err()),
        };
        // Addresses of rules that the switch may have afterwards. A group may end meanwhile: its driver waits for the turn.
        let mut may_stay: BTreeSet<McstId> = wanted.into_keys().chain(kept).collect();
        for (mcst_id, generation) in diff.removals {
            tracing::info!(switch, %mcst_id, generation, "removing what is not wanted");
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
    /// operators, other controllers), of groups whose records do not read, or what the store does not explain.
    fn sort(&self, core: &mut Core, own: &str, listed: v1::ListGroupsResponse) -> Vec<Found> {
        let switch = &self.config.name;
        let (mut ours, mut others, mut unexplained) = (Vec::new(), Vec::new(), Vec::new());
        for v1::InstalledGroup { rule, owner, .. } in listed.groups {
            let Some(rule) = rule else { continue };
            let Some(found) = found(&rule) else { continue };
            if owner != own {
                // Groups of rule files have no owner.
                others.push((found.mcst_id, !owner.is_empty()));
            } else if core.set_apart.contains_key(&found.group) {
                others.push((found.mcst_id, false));
            } else if core.is_unexplained(switch, &found) {
                unexplained.push(found);
            } else {
                ours.push(found);
            }
        }
        let is_first = core.others.unasked().any(|unasked| unasked == switch);
        let is_news = core.note_unexplained(switch, unexplained);
        if core.others.listed(switch, others.into_iter())
            && let Some(reason) = core.others.wrong_store()
        {
            tracing::error!(switch, "{reason}");
        }
        if is_news {
            self.warn_of_unexplained(core);
            self.tell(core);
        }
        if is_first {
            // Calls wait for it, and so do routes of groups.
            core.reported();
            if !core.waits_for_lists() {
                let routers = core.programmable_routers().into_iter();
                core.effects.extend(routers.map(Effect::SyncRoutes));
                core.refine_all();
            }
        }
        ours
    }

    /// The store may be an older copy, whose controller would end the groups that were created since.
    fn warn_of_unexplained(&self, core: &mut Core) {
        let switch = &self.config.name;
        let names = view::unknown_groups(core, switch);
        if !names.is_empty() && core.may_warn(switch) {
            let groups = view::first_of(&names, Clone::clone);
            tracing::warn!(
                switch,
                groups,
                "the switch has rules of this controller that its store does not have, and keeps them: start it with the store that has \
                 them, or see castnet group purge"
            );
        }
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
            kept,
        } in parts
        {
            let refused: Vec<SwitchError> = installed.by_ref().take(lacks).filter_map(Result::err).collect();
            if let Some(reason) = kept {
                core.unsettled(switch, name, &reason);
                continue;
            }
            if let Some(error) = refused.first() {
                core.unsettled(switch, name, &error.failure(switch).reason);
            }
            settled.insert(name, Some(generation).filter(|_| has_rest && refused.is_empty()));
        }
        core.settled(switch, names, &settled, may_stay);
        Ok(())
    }
}

/// `None`: the rule does not read.
pub(super) fn found(rule: &v1::GroupRule) -> Option<Found> {
    let group = lane_of(&rule.name).map_or(&*rule.name, |(group, _)| group);
    Some(Found {
        mcst_id: mcst_id_from_proto("mcst_id", &rule.mcst_id).ok()?,
        generation: rule.generation,
        group: group.to_owned(),
    })
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
    let mut lanes = record.mcst_ids_on(switch);
    let kept = lanes.find_map(|lane| core.others.unexplained_at(switch, lane));
    let part = Part {
        name,
        generation,
        has_rest: record.mcst_ids_on(switch).all(has),
        lacks: rules.len(),
        kept: kept.map(unexplained::kept),
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

/// Addresses of rules that the store does not explain.
fn kept(core: &Core, switch: &str) -> BTreeSet<McstId> {
    let found = core.others.unexplained_on(switch);
    found.map(|found| found.mcst_id).collect()
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
    }
}
