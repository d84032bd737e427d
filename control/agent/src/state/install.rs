//! Installs and removes groups, and checks their owners.

use std::collections::BTreeMap;

use castnet_proto::v1::{ControllerTerm, InstallOutcome};
use castnet_rules::{GroupKind, GroupRule};
use castnet_wire::McstId;
use castnet_worker::{Installed, Stopped};

use crate::state::core::{Core, of_others};
use crate::state::pipeline::{Installer, Pipeline};
use crate::state::refusal::{Fields, NOBODY, Refusal};

/// Installs one of several groups.
type InstallOne<'a> = dyn FnMut(&GroupRule) -> Result<InstallOutcome, Refusal> + 'a;

impl Core {
    /// Installs a group for `owner`.
    pub fn install_group(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        owner: &str,
        rule: &GroupRule,
    ) -> Result<InstallOutcome, Refusal> {
        let mut installed = Err(Stopped.into());
        self.install_each(pipeline, caller, owner, &mut |install| installed = install(rule))?;
        installed
    }

    /// Installs groups for `owner` in this order, also after one that is refused unless `stop_at_refusal`. All are published together.
    pub fn install_groups(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        owner: &str,
        rules: Vec<Result<GroupRule, Refusal>>,
        stop_at_refusal: bool,
    ) -> Result<Vec<Result<InstallOutcome, Refusal>>, Refusal> {
        let mut results = Vec::with_capacity(rules.len());
        let mut rules = rules.into_iter();
        self.install_each(pipeline, caller, owner, &mut |install| {
            for rule in rules.by_ref() {
                let result = rule.and_then(|rule| install(&rule));
                let ends = stop_at_refusal && result.is_err();
                results.push(result);
                if ends {
                    break;
                }
            }
        })?;
        Ok(results)
    }

    /// Lets `all` install groups for `owner`.
    fn install_each(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        owner: &str,
        all: &mut dyn FnMut(&mut InstallOne<'_>),
    ) -> Result<(), Refusal> {
        self.check(caller)?;
        if let Some(term) = caller.filter(|term| term.owner != owner) {
            let (caller, owner) = (term.owner.clone(), owner.to_owned());
            return Err(Refusal::ForOthers { caller, owner });
        }
        let groups = &mut self.groups;
        let done = pipeline.install_together(&mut |installer| {
            all(&mut |rule| install(installer, groups, rule, owner));
        });
        Ok(done?)
    }

    /// Removes a group if it has this owner and generation; false if there was none. Without an owner a controller removes its own groups
    /// only, an operator any.
    pub fn remove_group(
        &mut self,
        pipeline: &mut dyn Pipeline,
        caller: Option<&ControllerTerm>,
        mcst_id: McstId,
        owner: Option<&str>,
        generation: Option<u64>,
    ) -> Result<bool, Refusal> {
        self.check(caller)?;
        let mut running = None;
        pipeline.read_rule(mcst_id, &mut |rule| {
            running = Some((rule.name.clone(), rule.generation))
        });
        let Some((name, runs)) = running else {
            return Ok(false);
        };
        if let Some((of, not)) = of_others(self.owner_of(mcst_id), owner, caller) {
            return Err(Refusal::OfOthers { name, of, not });
        }
        if let Some(given) = generation.filter(|given| *given != runs) {
            return Err(Refusal::OtherGeneration { name, runs, given });
        }
        let removed = pipeline.remove_group(mcst_id)?;
        self.groups.remove(&mcst_id);
        Ok(removed.is_some())
    }
}

fn install(
    installer: &mut dyn Installer,
    owners: &mut BTreeMap<McstId, String>,
    rule: &GroupRule,
    owner: &str,
) -> Result<InstallOutcome, Refusal> {
    let rule = &*installer.resolve(rule)?;
    let ip = rule.mcst_id;
    if let Some(running) = installer.rule(ip) {
        let of = owners.get(&ip).map_or(NOBODY, String::as_str);
        if of != owner {
            let (name, of) = (running.name.clone(), of.to_owned());
            return Err(Refusal::AddressTaken { ip, name, of });
        }
        if running.name == rule.name && running.generation == rule.generation {
            return unchanged(running, rule);
        }
    }
    let installed = installer.install(rule);
    let installed = installed.map_err(|error| Refusal::Install(Fields::of(rule, &error), error))?;
    owners.insert(ip, owner.into());
    Ok(match installed {
        Installed::New { .. } => InstallOutcome::Installed,
        Installed::Replaced { .. } => InstallOutcome::Replaced,
        Installed::Unchanged => InstallOutcome::Unchanged,
    })
}

/// The same generation must be the same rule. The start PSN of a multicast group may differ: when a rule is installed
/// again after the source has started, it is unknown and not needed.
fn unchanged(running: &GroupRule, rule: &GroupRule) -> Result<InstallOutcome, Refusal> {
    let mut rule = rule.clone();
    if let (GroupKind::Multicast(running), GroupKind::Multicast(rule)) = (&running.kind, &mut rule.kind) {
        rule.start_psn = running.start_psn;
    }
    if rule == *running {
        return Ok(InstallOutcome::Unchanged);
    }
    let GroupRule { name, generation, .. } = rule;
    Err(Refusal::OtherRule { name, generation })
}
