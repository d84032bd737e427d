//! What other owners have on the switches, and its removal.

use std::sync::Arc;

use castnet_proto::convert::Invalid;
use castnet_proto::v1;
use tokio::task::JoinSet;

use super::{Link, SwitchError, call};
use crate::error::Refusal;
use crate::shell::shared::Shared;

impl Shared {
    /// Asks all switches at the same time. Ends with the call of the client.
    pub(crate) async fn purge(
        self: &Arc<Self>,
        request: v1::PurgeGroupsRequest,
    ) -> Result<v1::PurgeGroupsResponse, Refusal> {
        match &request.owner {
            None if request.remove => {
                return Err(Invalid::missing("owner", "whose groups are to be removed").into());
            }
            Some(owner) if *owner == self.term.owner => {
                let why = "is this controller: destroy its groups by name";
                return Err(Invalid::out_of_range("owner", owner, why).into());
            }
            _ => {}
        }
        if let Some(owner) = request.owner.as_ref().filter(|_| request.remove) {
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
    async fn purge(&self, shared: &Shared, request: &v1::PurgeGroupsRequest) -> v1::LeftOnSwitch {
        let mut left = v1::LeftOnSwitch {
            switch_name: self.config.name.clone(),
            ..Default::default()
        };
        if let Err(error) = self.try_purge(shared, request, &mut left).await {
            left.reason = error.failure(&left.switch_name).reason;
        }
        left
    }

    async fn try_purge(
        &self,
        shared: &Shared,
        request: &v1::PurgeGroupsRequest,
        left: &mut v1::LeftOnSwitch,
    ) -> Result<(), SwitchError> {
        let is_meant = |owner: &String| match &request.owner {
            Some(wanted) => wanted == owner,
            None => *owner != shared.term.owner,
        };
        let mut client = self.client(shared).await?;
        let brief = v1::ListGroupsRequest {
            mcst_id: None,
            brief: true,
        };
        let listed = call(shared, client.list_groups(brief)).await?;
        for v1::InstalledGroup { rule, owner, .. } in listed.groups {
            if let Some(rule) = rule.filter(|_| is_meant(&owner)) {
                left.groups.push(v1::LeftGroup {
                    name: rule.name,
                    mcst_id: rule.mcst_id,
                    generation: rule.generation,
                    owner,
                    removed: false,
                });
            }
        }
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
            tracing::warn!(switch, group = name, owner, "removed what another owner had left");
        }
        let listed = call(shared, client.list_routes(v1::ListRoutesRequest {})).await?;
        for v1::Route { prefix, owner, .. } in listed.routes {
            // A route without an owner is an operator's.
            if owner.is_empty() || !is_meant(&owner) {
                continue;
            }
            if request.remove {
                shared.may_change().await?;
                let removal = v1::RemoveRouteRequest {
                    prefix: prefix.clone(),
                };
                call(shared, client.remove_route(removal)).await?;
            }
            left.routes.push(prefix);
        }
        Ok(())
    }
}
