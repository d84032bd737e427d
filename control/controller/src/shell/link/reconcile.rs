//! Brings a whole switch to the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_proto::convert::mcst_id_from_proto;
use castnet_proto::v1;
use castnet_rules::lane_of;
use castnet_wire::McstId;

use super::{Client, GROUPS_TOGETHER, Link, SwitchError, call};
use crate::shell::shared::Shared;
use crate::state::reconcile::{Found, Rules, split};
use crate::state::{Core, Effect, view};

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
        let found = self.sort(&mut shared.lock(), &shared.term.owner, listed);
        let read = |core: &Core| {
            (
                wanted(core, switch),
                of_others_now(core, &found),
                kept(core, switch),
            )
        };
        let ((names, wanted), replaced, kept) = shared.read(read).await?;
        let (removals, there) = split(&wanted, &replaced, &found);
        tracing::debug!(switch, ?removals, "reconciling");
        // Addresses of rules that the switch may have afterwards. A group may end meanwhile: its driver waits for the turn.
        let mut may_stay: BTreeSet<McstId> = wanted.into_keys().chain(kept).collect();
        for (mcst_id, generation) in removals {
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
        for names in names.chunks(GROUPS_TOGETHER) {
            self.reconcile_groups(shared, client, names, (&there, &may_stay))
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
        (there, may_stay): (&Rules, &BTreeSet<McstId>),
    ) -> Result<(), SwitchError> {
        let switch = &self.config.name;
        let mut parts = self.parts(shared, names, Some(there)).await?;
        // Its driver removes a group that has ended meanwhile.
        parts.retain(|part| part.generation.is_some());
        let rules: usize = parts.iter().map(|part| part.rules.len()).sum();
        if rules > 0 {
            tracing::info!(switch, rules, "installing what is lacking");
        }
        let brought = self.bring(client, shared, parts).await;
        let brought = brought
            .into_iter()
            .map(|(part, done)| unless_lost(done).map(|refused| (part, refused)));
        let brought: Vec<_> = brought.collect::<Result<_, SwitchError>>()?;
        let mut settled = BTreeMap::new();
        let mut core = shared.lock();
        for (part, refused) in &brought {
            if let Some(error) = refused {
                core.unsettled(switch, part.group, &error.failure(switch).reason);
            }
            let has_all = part.has_rest && refused.is_none();
            if part.kept.is_none() {
                settled.insert(part.group, part.generation.filter(|_| has_all));
            }
        }
        core.settled(switch, names, &settled, may_stay);
        Ok(())
    }
}

/// A refusal concerns only what was refused.
fn unless_lost(done: Result<(), SwitchError>) -> Result<Option<SwitchError>, SwitchError> {
    match done {
        Err(error @ SwitchError::Unreachable(_)) => Err(error),
        done => Ok(done.err()),
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

/// Addresses that have rules of groups that this controller does not know any more, and that it has given to others since.
fn of_others_now(core: &Core, found: &[Found]) -> BTreeSet<McstId> {
    let is_other = |rule: &&Found| {
        let now = core.groups.by_mcst_id(rule.mcst_id);
        now.is_some_and(|entry| entry.record().name != rule.group)
    };
    found.iter().filter(is_other).map(|rule| rule.mcst_id).collect()
}

/// Addresses of rules that the store does not explain.
fn kept(core: &Core, switch: &str) -> BTreeSet<McstId> {
    let found = core.others.unexplained_on(switch);
    found.map(|found| found.mcst_id).collect()
}

/// The groups of a switch, and the desired generations there, by the address of each lane.
fn wanted(core: &Core, switch: &str) -> (Vec<String>, Rules) {
    let names = core.groups.on_switch(switch);
    let records = names
        .iter()
        .filter_map(|name| Some(core.groups.get(name)?.record()));
    let wanted = records.filter_map(|r| Some((r, r.wanted_rule(switch)?.generation)));
    let wanted = wanted.flat_map(|(r, generation)| r.mcst_ids_on(switch).map(move |lane| (lane, generation)));
    let wanted = wanted.collect();
    (names, wanted)
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
        let removed = |rule: Found| of_others_now(&core, &[rule]).contains(&own);
        assert!(!removed(found(own, "job")) && removed(found(own, "g")));
        assert!(of_others_now(&core, &[found(other, "g")]).is_empty());
    }
}
