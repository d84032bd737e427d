//! The state of an agent: the owners of groups and routes, the terms of controllers, and source guards.

use std::collections::BTreeMap;

use castnet_proto::convert::{SourceGuardParts, route_to_proto};
use castnet_proto::v1;
use castnet_proto::v1::ControllerTerm;
use castnet_rules::{Ipv4Net, Route};
use castnet_wire::McstId;
use castnet_worker::engine::{PortSet, SourceGuard};

use crate::state::pipeline::Pipeline;
use crate::state::refusal::{NOBODY, Refusal};
use crate::state::terms::Terms;

/// Owners with a source guard.
pub(crate) const GUARDS_MAX: usize = 64;

/// What an agent knows. In the requests that it handles, `caller` is the controller that calls; `None`: an operator.
#[derive(Debug, Default)]
pub struct Core {
    /// The owner of each group; no entry: an operator.
    pub(super) groups: BTreeMap<McstId, String>,
    /// The controller that has set the route of a group to copy its packets.
    routes: BTreeMap<Ipv4Net, String>,
    /// What each owner has said about ports of hosts.
    guards: BTreeMap<String, SourceGuardParts>,
    terms: Terms,
}

/// The owner of what is to be removed, and the one that was meant, if they differ. Without an owner a controller means itself, an operator
/// anybody.
pub(super) fn of_others(
    of: &str,
    owner: Option<&str>,
    caller: Option<&ControllerTerm>,
) -> Option<(String, String)> {
    let meant = owner.or(caller.map(|term| &*term.owner));
    let not = meant.filter(|meant| *meant != of)?;
    Some((of.to_owned(), not.to_owned()))
}

impl Core {
    /// Fails if the controller that calls has been replaced.
    pub fn check(&mut self, caller: Option<&ControllerTerm>) -> Result<(), Refusal> {
        let (terms, groups) = (&mut self.terms, &self.groups);
        let has_groups = |owner: &str| groups.values().any(|of| of == owner);
        caller.map_or(Ok(()), |term| terms.check(term, has_groups))
    }

    /// The owner of a group; empty: an operator.
    pub fn owner_of(&self, mcst_id: McstId) -> &str {
        self.groups.get(&mcst_id).map_or(NOBODY, String::as_str)
    }

    /// Sets what ports of hosts may not send from, for the owner that calls.
    pub fn set_source_guard(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        guard: SourceGuardParts,
    ) -> Result<(), Refusal> {
        self.check(caller)?;
        let owner = caller.map(|term| term.owner.clone()).unwrap_or_default();
        let (guards, terms) = (&mut self.guards, &self.terms);
        // Those of owners that are forgotten end: nobody could take them back.
        guards.retain(|owner, _| owner.is_empty() || terms.knows(owner));
        let is_full = !guards.contains_key(&owner) && guards.len() >= GUARDS_MAX;
        if guard == SourceGuardParts::default() {
            guards.remove(&owner);
        } else if !is_full {
            guards.insert(owner, guard);
        }
        let all = guards.values().cloned();
        let all = all.map(|SourceGuardParts { hosts, prefixes }| SourceGuard::new(hosts, prefixes));
        pipeline.set_source_guards(all.collect())?;
        match is_full {
            true => Err(Refusal::GuardsFull),
            false => Ok(()),
        }
    }

    /// The ports where controllers have hosts by their topology files.
    pub(super) fn ports_of_hosts(&self) -> PortSet {
        let hosts = self.guards.values().flat_map(|guard| &guard.hosts);
        hosts.map(|(port, _)| *port).collect()
    }

    /// An operator replaces all routes.
    pub fn set_routes(&mut self, pipeline: &mut dyn Pipeline, routes: Vec<Route>) -> Result<(), Refusal> {
        pipeline.set_routes(routes).map_err(Refusal::Routes)?;
        self.routes.clear();
        Ok(())
    }

    /// An operator adds a route. Returns true if it replaced a route with the same prefix.
    pub fn add_route(&mut self, pipeline: &mut dyn Pipeline, route: Route) -> Result<bool, Refusal> {
        let prefix = route.prefix;
        let replaced = pipeline.add_route(route).map_err(Refusal::Route)?;
        self.routes.remove(&prefix);
        Ok(replaced)
    }

    /// Removes a route if it has this owner; false if there is none. Without an owner a controller removes its own routes only, an operator
    /// any. A controller removes no route of an operator.
    pub fn remove_route(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        prefix: Ipv4Net,
        owner: Option<&str>,
    ) -> Result<bool, Refusal> {
        self.check(caller)?;
        if !pipeline.routes().iter().any(|route| route.prefix == prefix) {
            return Ok(false);
        }
        let of = self.routes.get(&prefix).map_or(NOBODY, String::as_str);
        let owner = owner.filter(|owner| caller.is_none() || *owner != NOBODY);
        if let Some((of, not)) = of_others(of, owner, caller) {
            return Err(Refusal::RouteOfOthers { prefix, of, not });
        }
        let removed = pipeline.remove_route(prefix)?;
        self.routes.remove(&prefix);
        Ok(removed)
    }

    /// Sets the routes of the owner that calls within a scope. Those of groups of other controllers stay. Routes with next hops, as of relays,
    /// have no owner: they follow from the fabric, and are the same for all controllers. Returns how many were added or changed, and removed.
    pub fn set_multicast_routes(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        scope: &[Ipv4Net],
        mut routes: Vec<Route>,
    ) -> Result<(usize, usize), Refusal> {
        self.check(caller)?;
        let own = caller.map(|term| &*term.owner).unwrap_or_default();
        let is_within = |prefix: &Ipv4Net| scope.iter().any(|scope| scope.contains(prefix));
        // Nobody could take back those of an owner that is forgotten.
        let terms = &self.terms;
        let others = |owner: &str| owner != own && terms.knows(owner);
        let other_at = |prefix: &Ipv4Net| self.routes.get(prefix).filter(|owner| others(owner));
        let taken = |route: &Route| Some((route.prefix, other_at(&route.prefix)?.clone()));
        if let Some((prefix, owner)) = routes.iter().find_map(taken) {
            return Err(Refusal::RouteTaken { prefix, owner });
        }
        let copies = routes.iter().filter(|route| !route.copy_to.is_empty());
        let own_routes = copies.map(|route| (route.prefix, own.to_owned()));
        let own_routes: Vec<_> = own_routes.filter(|(_, own)| !own.is_empty()).collect();
        let kept = pipeline.routes().into_iter();
        routes.extend(kept.filter(|route| is_within(&route.prefix) && other_at(&route.prefix).is_some()));
        let done = pipeline
            .set_routes_within(scope, routes)
            .map_err(Refusal::Routes)?;
        self.routes
            .retain(|prefix, owner| !is_within(prefix) || others(owner));
        self.routes.extend(own_routes);
        Ok(done)
    }

    /// All routes, with their owners.
    pub fn routes(&self, pipeline: &mut dyn Pipeline) -> Vec<v1::Route> {
        let routes = pipeline.routes();
        let shown = routes.iter().map(|route| v1::Route {
            owner: self.routes.get(&route.prefix).cloned().unwrap_or_default(),
            ..route_to_proto(route)
        });
        shown.collect()
    }
}
