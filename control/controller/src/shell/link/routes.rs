//! Brings the multicast routes of a switch to the desired ones, and says which sources its hosts may not have.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use castnet_proto::convert::{route_from_proto, route_to_proto};
use castnet_proto::v1;
use castnet_rules::Ipv4Net;
use castnet_topology::{End, SwitchKind, Topology};
use tonic::Code;

use super::{Link, SwitchError, call};
use crate::shell::shared::Shared;

/// Routes that one call changes.
const ROUTES_TOGETHER: usize = 1024;

impl Link {
    /// Sets the routes of the switch that the controller keeps, or the one of `only`.
    pub(crate) async fn sync_routes(
        &self,
        shared: &Shared,
        only: Option<Ipv4Addr>,
    ) -> Result<(), SwitchError> {
        let _turn = self.routes_turn.lock().await;
        let wanted = shared.read(|core| core.wanted_routes(&self.config.name, only));
        let Some(wanted) = wanted.await? else {
            return Ok(());
        };
        let mut client = self.client(shared).await?;
        let differ: Vec<Ipv4Net> = match only {
            Some(address) => vec![address.into()],
            None => {
                let listed = call(shared, client.list_routes(v1::ListRoutesRequest {})).await?;
                let routes = listed.routes.iter().filter_map(|route| {
                    let known = route_from_proto(Some(route)).ok()?;
                    Some((route.owner.as_str(), known))
                });
                let is_ours = |prefix: &Ipv4Net| wanted.scope.iter().any(|scope| scope.contains(prefix));
                let (mut differ, mut stay) = (BTreeSet::new(), BTreeSet::new());
                for (owner, route) in routes.filter(|(_, route)| is_ours(&route.prefix)) {
                    let (prefix, switch) = (route.prefix, &self.config.name);
                    let (is_wanted, is_foreign) = (
                        wanted.routes.get(&prefix),
                        !["", shared.term.owner.as_str()].contains(&owner),
                    );
                    match is_wanted == Some(&route) || is_foreign {
                        true => stay.insert(prefix),
                        false => differ.insert(prefix),
                    };
                    if is_foreign && is_wanted.is_some_and(|wanted| *wanted != route) {
                        tracing::warn!(switch, %prefix, owner, "another controller has set this route, which stays");
                    }
                }
                differ.extend(wanted.routes.keys().filter(|prefix| !stay.contains(*prefix)));
                differ.into_iter().collect()
            }
        };
        for together in differ.chunks(ROUTES_TOGETHER) {
            shared.may_change().await?;
            let routes = together.iter().filter_map(|prefix| wanted.routes.get(prefix));
            let request = v1::SetMulticastRoutesRequest {
                scope: together.iter().map(Ipv4Net::to_string).collect(),
                routes: routes.map(route_to_proto).collect(),
            };
            let done = call(shared, client.set_multicast_routes(request)).await?;
            let (switch, v1::SetMulticastRoutesResponse { added, removed }) = (&self.config.name, done);
            tracing::info!(switch, added, removed, "multicast routes");
        }
        Ok(())
    }

    /// Hosts of the switch must not send in the name of other switches: where groups pass routers, it does not know their addresses there.
    /// It is told once, and again when that changes.
    pub(crate) async fn set_source_guard(&self, shared: &Shared) -> Result<(), SwitchError> {
        let guard = shared.read(|core| {
            let file = core.facts.file.as_ref();
            file.map(|file| guard(file, &self.config.name))
                .unwrap_or_default()
        });
        let guard = guard.await?;
        // Without a lead that is sure, it is said later.
        if self.guard.lock().as_ref() == Some(&guard) || shared.may_change().await.is_err() {
            return Ok(());
        }
        let mut client = self.client(shared).await?;
        match call(shared, client.set_source_guard(guard.clone())).await {
            // An older switch has none.
            Err(SwitchError::Refused(status)) if status.code() == Code::Unimplemented => {
                if !guard.prefixes.is_empty() {
                    let switch = &self.config.name;
                    tracing::warn!(
                        switch,
                        "it does not keep its hosts from sending in the name of other switches: update it"
                    );
                }
            }
            other => drop(other?),
        }
        *self.guard.lock() = Some(guard);
        Ok(())
    }
}

/// A host whose address the file does not have may be within a prefix, as McstIDs can be taken from subnets of hosts. A port that the file does
/// not name may lead to a core. Without prefixes, the ports of hosts matter for MRP.
fn guard(file: &Topology, switch: &str) -> v1::SetSourceGuardRequest {
    let prefixes: Vec<Ipv4Net> = file.switches().filter_map(|s| s.mcst_prefix).collect();
    let is_castnet = file.switch(switch).is_some_and(|s| s.kind == SwitchKind::Castnet);
    if !is_castnet {
        return v1::SetSourceGuardRequest::default();
    }
    let hosts = file.neighbours(switch).into_iter().filter_map(|neighbour| {
        let (End::Switch { port, .. }, End::Host(host)) = (neighbour.near, neighbour.far) else {
            return None;
        };
        Some(v1::HostPort {
            port: port.into(),
            ip: file.host(&host)?.ip?.to_string(),
        })
    });
    v1::SetSourceGuardRequest {
        hosts: hosts.collect(),
        prefixes: prefixes.iter().map(Ipv4Net::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MRP believed LLDP at ports of hosts where no group passes routers.
    #[test]
    fn a_switch_learns_which_ports_are_of_hosts_also_without_prefixes() {
        let file = Topology::leaf_spine(2, 1, 2).unwrap();
        let guard = guard(&file, "leaf0");
        assert!(guard.prefixes.is_empty());
        let ports: Vec<u32> = guard.hosts.iter().map(|host| host.port).collect();
        assert_eq!(ports, [0, 1]);
    }
}
