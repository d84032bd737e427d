//! What other owners have on the switches, and what this one has there that its store does not have; and its removal.

use std::sync::Arc;

use castnet_proto::convert::{Invalid, mcst_id_from_proto};
use castnet_proto::v1;
use tokio::task::JoinSet;

use super::reconcile::found;
use super::{Link, SwitchError, call};
use crate::error::Refusal;
use crate::shell::shared::Shared;
use crate::state::Core;

impl Shared {
    /// Asks all switches at the same time. Ends with the call of the client.
    pub(crate) async fn purge(
        self: &Arc<Self>,
        request: v1::PurgeGroupsRequest,
    ) -> Result<v1::PurgeGroupsResponse, Refusal> {
        if request.remove && request.owner.is_none() {
            return Err(Invalid::missing("owner", "whose groups are to be removed").into());
        }
        let of_others = |owner: &&String| request.remove && **owner != self.term.owner;
        if let Some(owner) = request.owner.as_ref().filter(of_others) {
            // Also where no switch has any more: members may wait for that owner.
            self.lock().others.purge(owner);
        }
        let mut switches = JoinSet::new();
        for link in self.links.values() {
            let (shared, link, request) = (self.clone(), link.clone(), request.clone());
            switches.spawn(async move { link.purge(&shared, &request).await });
        }
        let mut switches = switches.join_all().await;
        switches.sort_by(|a, b| a.switch_name.cmp(&b.switch_name));
        Ok(v1::PurgeGroupsResponse { switches })
    }
}

impl Link {
    async fn purge(&self, shared: &Arc<Shared>, request: &v1::PurgeGroupsRequest) -> v1::LeftOnSwitch {
        let mut left = v1::LeftOnSwitch {
            switch_name: self.config.name.clone(),
            ..Default::default()
        };
        if let Err(error) = self.try_purge(shared, request, &mut left).await {
            left.refuses = matches!(error, SwitchError::Refused(_));
            left.reason = error.failure(&left.switch_name).reason;
        }
        left
    }

    async fn try_purge(
        &self,
        shared: &Arc<Shared>,
        request: &v1::PurgeGroupsRequest,
        left: &mut v1::LeftOnSwitch,
    ) -> Result<(), SwitchError> {
        let own = &shared.term.owner;
        let is_asked_for = |owner: &String| request.owner.as_ref().is_none_or(|wanted| wanted == owner);
        let mut client = self.client(shared).await?;
        let brief = v1::ListGroupsRequest {
            mcst_id: None,
            brief: true,
        };
        let listed = call(shared, client.list_groups(brief)).await?;
        let listed = listed
            .groups
            .into_iter()
            .filter(|group| is_asked_for(&group.owner));
        left.groups = {
            let core = shared.lock();
            let listed = listed.filter(|group| group.owner != *own || self.is_unexplained(&core, group));
            listed.filter_map(left_group).collect()
        };
        let groups = left.groups.iter_mut();
        for group in groups.take_while(|_| request.remove) {
            shared.may_change().await?;
            let removal = v1::RemoveGroupRequest {
                mcst_id: group.mcst_id.clone(),
                owner: Some(group.owner.clone()),
                // One that was replaced meanwhile is of a controller that lives.
                generation: Some(group.generation),
            };
            call(shared, client.remove_group(removal)).await?;
            group.removed = true;
            let (switch, name, owner) = (&left.switch_name, &group.name, &group.owner);
            tracing::warn!(switch, group = name, owner, "removed by a purge");
            if owner == own
                && let Ok(mcst_id) = mcst_id_from_proto("mcst_id", &group.mcst_id)
            {
                let mut core = shared.lock();
                core.purged(switch, mcst_id);
                self.tell(&mut core);
            }
        }
        let listed = call(shared, client.list_routes(v1::ListRoutesRequest {})).await?;
        for v1::Route { prefix, owner, .. } in listed.routes {
            // A route without an owner is an operator's.
            if owner.is_empty() || owner == *own || !is_asked_for(&owner) {
                continue;
            }
            if request.remove {
                shared.may_change().await?;
                let removal = v1::RemoveRouteRequest {
                    prefix: prefix.clone(),
                    owner: Some(owner),
                };
                call(shared, client.remove_route(removal)).await?;
            }
            left.routes.push(prefix);
        }
        Ok(())
    }

    fn is_unexplained(&self, core: &Core, group: &v1::InstalledGroup) -> bool {
        let found = group.rule.as_ref().and_then(found);
        found.is_some_and(|found| {
            !core.set_apart.contains_key(&found.group) && core.is_unexplained(&self.config.name, &found)
        })
    }
}

fn left_group(v1::InstalledGroup { rule, owner, .. }: v1::InstalledGroup) -> Option<v1::LeftGroup> {
    let v1::GroupRule {
        name,
        mcst_id,
        generation,
        ..
    } = rule?;
    Some(v1::LeftGroup {
        name,
        mcst_id,
        generation,
        owner,
        removed: false,
    })
}
