//! Brings the multicast routes of a switch to the desired ones.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use castnet_proto::convert::{route_from_proto, route_to_proto};
use castnet_proto::v1;
use castnet_rules::Ipv4Net;

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
        let within = shared.config.timeouts.switch;
        let _turn = self.routes_turn.lock().await;
        let wanted = shared.read(|core| core.wanted_routes(&self.config.name, only));
        let Some(wanted) = wanted.await? else {
            return Ok(());
        };
        let mut client = self.client(within).await?;
        let differ: Vec<Ipv4Net> = match only {
            Some(address) => vec![address.into()],
            None => {
                let listed = call(within, client.list_routes(v1::ListRoutesRequest {})).await?;
                let routes = listed
                    .routes
                    .iter()
                    .filter_map(|route| route_from_proto(Some(route)).ok());
                let is_ours = |prefix: &Ipv4Net| wanted.scope.iter().any(|scope| scope.contains(prefix));
                let (mut differ, mut same) = (BTreeSet::new(), BTreeSet::new());
                for route in routes.filter(|route| is_ours(&route.prefix)) {
                    match wanted.routes.get(&route.prefix) == Some(&route) {
                        true => same.insert(route.prefix),
                        false => differ.insert(route.prefix),
                    };
                }
                differ.extend(wanted.routes.keys().filter(|prefix| !same.contains(*prefix)));
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
            let done = call(within, client.set_multicast_routes(request)).await?;
            let (switch, v1::SetMulticastRoutesResponse { added, removed }) = (&self.config.name, done);
            tracing::info!(switch, added, removed, "multicast routes");
        }
        Ok(())
    }
}
