//! Installs and removes groups: their owners, and refusals.

use std::collections::BTreeMap;

use castnet_proto::convert::{Invalid, refuse, rule_faults};
use castnet_proto::v1::{ControllerTerm, InstallOutcome};
use castnet_rules::{Fault, GroupKind, GroupRule, Ipv4Net, Route};
use castnet_wire::McstId;
use castnet_worker::engine::InstallError as Refused;
use castnet_worker::{Dataplane, InstallError, Installed, Installer, Stopped};
use tonic::{Code, Status};

use crate::shell::service::route_refused;
use crate::{Owners, Shared};

/// The owner of groups of an operator or a rule file.
const NOBODY: &str = "";

/// The controller that makes a call; `None`: an operator.
pub(crate) type Caller = Option<ControllerTerm>;

impl Owners {
    pub(crate) fn check(&mut self, caller: &Caller) -> Result<(), Status> {
        let Some(term) = caller else {
            return Ok(());
        };
        let groups = &self.groups;
        self.terms
            .check(term, |owner| groups.values().any(|of| of == owner))
    }

    /// Sets the routes of an owner within a scope. Those of groups of other controllers stay. Routes with next hops, as of relays, have no
    /// owner: they follow from the fabric, and are the same for all controllers. Returns how many were added or changed, and removed.
    pub(crate) fn set_routes(
        &mut self,
        dataplane: &Dataplane,
        owner: &str,
        scope: &[Ipv4Net],
        mut routes: Vec<Route>,
    ) -> Result<(usize, usize), Status> {
        let is_within = |prefix: &Ipv4Net| scope.iter().any(|scope| scope.contains(prefix));
        // Nobody could take back those of an owner that is forgotten.
        let (own, terms) = (owner, &self.terms);
        let others = |owner: &str| owner != own && terms.knows(owner);
        if let Some((route, other)) = routes.iter().find_map(|route| {
            let other = self.routes.get(&route.prefix).filter(|owner| others(owner))?;
            Some((route, other))
        }) {
            let reason = format!(
                "the route to {} is of {other} (if it does not return: castnet group purge --owner {other})",
                route.prefix
            );
            return Err(refuse(Code::AlreadyExists, "routes", reason));
        }
        let own_routes = routes
            .iter()
            .filter(|route| !owner.is_empty() && !route.copy_to.is_empty());
        let own_routes: Vec<_> = own_routes.map(|route| (route.prefix, owner.to_owned())).collect();
        let kept = dataplane.routes().into_iter().filter(|route| {
            let owner = self.routes.get(&route.prefix);
            is_within(&route.prefix) && owner.is_some_and(|owner| others(owner))
        });
        routes.extend(kept);
        let done = dataplane.set_routes_within(scope, routes);
        let done = done.map_err(|error| route_refused(error, |routes| routes))?;
        self.routes
            .retain(|prefix, owner| !is_within(prefix) || others(owner));
        self.routes.extend(own_routes);
        Ok(done)
    }
}

impl Shared {
    pub(crate) fn owner_of(&self, mcst_id: McstId) -> String {
        self.owners
            .lock()
            .groups
            .get(&mcst_id)
            .cloned()
            .unwrap_or_default()
    }

    /// Calls `all` with a function that installs one rule for `owner`. All rules are published together.
    pub(crate) fn install<T>(
        &self,
        caller: Caller,
        owner: &str,
        all: impl FnOnce(&mut dyn FnMut(&GroupRule) -> Result<InstallOutcome, Status>) -> T,
    ) -> Result<T, Status> {
        let mut owners = self.owners.lock();
        owners.check(&caller)?;
        if let Some(term) = caller.filter(|term| term.owner != owner) {
            let reason = format!(
                "the controller of {:?} installs no groups of {}",
                term.owner,
                who(owner)
            );
            return Err(refuse(Code::InvalidArgument, "owner", reason));
        }
        let owners = &mut owners.groups;
        let together =
            |installer: &mut Installer<'_>| all(&mut |rule| install(installer, owners, rule, owner));
        self.dataplane.install_together(together).map_err(stopped)
    }

    /// Removes a group if it has this owner and generation; false if there was none. Without an owner a controller removes its own groups
    /// only, an operator any.
    pub(crate) fn remove(
        &self,
        caller: Caller,
        mcst_id: McstId,
        owner: Option<&str>,
        generation: Option<u64>,
    ) -> Result<bool, Status> {
        let mut owners = self.owners.lock();
        owners.check(&caller)?;
        let owners = &mut owners.groups;
        let Some(running) = self.dataplane.rule(mcst_id) else {
            return Ok(false);
        };
        let has = owners.get(&mcst_id).map_or(NOBODY, String::as_str);
        let owner = owner.or(caller.as_ref().map(|term| &*term.owner));
        if let Some(owner) = owner.filter(|owner| *owner != has) {
            let (name, has, owner) = (&running.name, who(has), who(owner));
            let reason = format!("group {name:?} is of {has}, not of {owner}");
            return Err(refuse(Code::FailedPrecondition, "owner", reason));
        }
        if let Some(generation) = generation.filter(|g| *g != running.generation) {
            let (name, runs) = (&running.name, running.generation);
            let reason = format!("group {name:?} runs generation {runs}, not {generation}");
            return Err(refuse(Code::FailedPrecondition, "generation", reason));
        }
        let removed = self.dataplane.remove_group(mcst_id).map_err(stopped)?;
        owners.remove(&mcst_id);
        Ok(removed.is_some())
    }
}

fn install(
    installer: &mut Installer<'_>,
    owners: &mut BTreeMap<McstId, String>,
    rule: &GroupRule,
    owner: &str,
) -> Result<InstallOutcome, Status> {
    let rule = &*installer.resolve(rule).map_err(stopped)?;
    let mcst_id = rule.mcst_id;
    if let Some(running) = installer.rule(mcst_id) {
        let has = owners.get(&mcst_id).map_or(NOBODY, String::as_str);
        if has != owner {
            let (name, who) = (&running.name, who(has));
            let reason = format!("{mcst_id} is the address of group {name:?} of {who}");
            return Err(refuse(Code::AlreadyExists, "rule.mcst_id", reason));
        }
        if running.name == rule.name && running.generation == rule.generation {
            return unchanged(running, rule);
        }
    }
    let installed = installer.install(rule).map_err(|error| refusal(rule, &error))?;
    owners.insert(mcst_id, owner.into());
    Ok(match installed {
        Installed::New { .. } => InstallOutcome::Installed,
        Installed::Replaced { .. } => InstallOutcome::Replaced,
        Installed::Unchanged => InstallOutcome::Unchanged,
    })
}

/// The same generation must be the same rule. The start PSN of a multicast group may differ: when a rule is installed
/// again after the source has started, it is unknown and not needed.
fn unchanged(running: &GroupRule, rule: &GroupRule) -> Result<InstallOutcome, Status> {
    let mut rule = rule.clone();
    if let (GroupKind::Multicast(running), GroupKind::Multicast(rule)) = (&running.kind, &mut rule.kind) {
        rule.start_psn = running.start_psn;
    }
    if rule == *running {
        return Ok(InstallOutcome::Unchanged);
    }
    let reason = format!(
        "group {:?} runs another rule under generation {}: give a newer one",
        running.name, rule.generation
    );
    Err(refuse(Code::FailedPrecondition, "rule.generation", reason))
}

fn who(owner: &str) -> String {
    if owner == NOBODY {
        "an operator".into()
    } else {
        format!("{owner:?}")
    }
}

pub(crate) fn stopped(stopped: Stopped) -> Status {
    Status::unavailable(stopped.to_string())
}

/// The status for a refused rule, with field paths of the request.
fn refusal(rule: &GroupRule, error: &InstallError) -> Status {
    let kind = rule.kind.name();
    // Faults of the checker, with the real ports and groups of the switch.
    let faults = |faults: &[Fault], code| match Invalid::all(rule_faults("rule", kind, faults)) {
        Some(invalid) => invalid.refuse(code),
        None => Status::new(code, "rule: refused"),
    };
    let (code, field) = match error {
        InstallError::Refused(refused) => match refused {
            Refused::Faults(found) => return faults(found, Code::InvalidArgument),
            Refused::NoPort { endpoint, .. } => {
                (Code::InvalidArgument, format!("rule.endpoints[{endpoint}].port"))
            }
            Refused::NoMac { endpoint, .. } => {
                let hop = rule.endpoints.get(*endpoint).map(|e| &e.next_hop);
                let hop = if hop.is_some_and(|hop| hop.host().is_some()) {
                    "host"
                } else {
                    "switch"
                };
                (
                    Code::FailedPrecondition,
                    format!("rule.endpoints[{endpoint}].{hop}.mac"),
                )
            }
            Refused::MtuTooSmall { .. } => (Code::InvalidArgument, "rule.pmtu".into()),
            Refused::OwnAddress { .. } => (Code::InvalidArgument, "rule.mcst_id".into()),
            // Fewer slots need less memory.
            Refused::NoMemory { .. } if rule.translated().is_some() => {
                (Code::ResourceExhausted, format!("rule.{kind}.slots"))
            }
            Refused::GroupsFull { .. } | Refused::NoMemory { .. } | Refused::NextHopsFull => {
                (Code::ResourceExhausted, "rule".into())
            }
        },
        InstallError::Clash(found) => return faults(found, Code::AlreadyExists),
        InstallError::Older { .. } => (Code::FailedPrecondition, "rule.generation".into()),
        _ => return Status::unavailable(error.to_string()),
    };
    refuse(code, field, error.to_string())
}
