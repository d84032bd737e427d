//! The second stage of a group with a static core (PEEL 3.3). It begins with a copy for each address of its cover. In the background,
//! programmable routers get a rule for it. Then the switch next to its source sends one copy, to an address of the group, and these routers
//! make the copies for the addresses of the cover. Nothing changes for the receivers, and a packet takes the one way or the other.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_rules::{GroupRule, NextHop};
use serde::{Deserialize, Serialize};

use super::late;
use crate::state::{Core, Effect, Entry, Phase, Plan, Reach, Record, multicast_routes};

/// One copy to an address of the group, of which programmable routers make several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refinement {
    /// The address of the group.
    pub address: Ipv4Addr,
    /// What the copies are addressed to: addresses of the static core, and switches.
    pub copies: Vec<Ipv4Addr>,
}

pub(crate) struct Draft {
    /// The plan that it is for: another group of this name has another one.
    before: Arc<Plan>,
    pub(crate) refinement: Refinement,
    pub(crate) routers: Vec<String>,
}

/// Whether a group may get a second stage.
fn is_wanted(record: &Record) -> bool {
    let is_static = |kind: &super::record::Multicast| kind.settings.distribution.is_static();
    let plan = record.plan.as_ref();
    record.phase == Phase::Active
        && record.lanes() == 1
        && record.multicast().is_some_and(is_static)
        && plan.is_some_and(|plan| plan.refinement.is_none() && copies(plan).is_some())
}

/// What the source's switch sends copies to; `None`: fewer than two, or they are for different queue pairs.
fn copies(plan: &Plan) -> Option<Vec<Ipv4Addr>> {
    let mut copies = Vec::new();
    let mut qpns = Vec::new();
    for hop in below(plan.rules.get(&plan.tree.first()?.name)?) {
        let address = hop.core().or(hop.ip())?;
        if !copies.contains(&address) {
            copies.push(address);
        }
        qpns.push(hop.qpn());
    }
    (copies.len() > 1 && qpns.windows(2).all(|two| two[0] == two[1])).then_some(copies)
}

/// The switches that the one next to the source sends to: all that it is next to, as the source is a host.
fn below(rule: &GroupRule) -> impl Iterator<Item = &NextHop> {
    let hops = rule.endpoints.iter().map(|endpoint| &endpoint.next_hop);
    hops.filter(|hop| hop.host().is_none())
}

impl Core {
    /// The routers that are to have a rule for each group that is refined.
    pub(crate) fn programmable_routers(&self) -> Vec<String> {
        let file = self.facts.file.iter();
        file.flat_map(|file| file.programmable().map(|router| router.name.clone()))
            .collect()
    }

    /// Refines all groups that may be, when a router has come.
    pub(crate) fn refine_all(&mut self) {
        for name in self.groups.names() {
            self.refine_soon(&name);
        }
    }

    /// Refines a group soon, if it may be, and groups have addresses.
    pub(crate) fn refine_soon(&mut self, name: &str) {
        let file = self.facts.file.as_ref();
        let entry = self.groups.get(name);
        if file.is_some_and(|file| file.group_addresses().is_some())
            && entry.is_some_and(|entry| is_wanted(entry.record()))
            && self.multicast_routes.refined_soon.insert(name.into())
        {
            self.effects.push(Effect::Refine(name.into()));
        }
    }

    /// Carries out [`Effect::Refine`]: takes an address for the group, if it can be refined now.
    pub(crate) fn begin_refinement(&mut self, name: &str) -> Option<Draft> {
        self.multicast_routes.refined_soon.remove(name);
        // A group whose record does not read may have any address, and so may one that the store does not have.
        if !self.set_apart.is_empty() || self.others.has_unexplained() || self.waits_for_lists() {
            return None;
        }
        let block = self.facts.file.as_ref()?.group_addresses()?;
        let routers = self.programmable_routers();
        let is_up = |name: &String| matches!(self.facts.switches.get(name), Some((Reach::Up, _)));
        let (entry, kind) = self.multicast(name).ok()?;
        let record = entry.record();
        let is_ready = !routers.is_empty() && routers.iter().all(is_up);
        if !is_ready || !is_wanted(record) || self.multicast_routes.is_being_refined(name) {
            return None;
        }
        // Then it changes, and is looked at again.
        if kind.members.iter().any(|member| member.is_waiting()) {
            return None;
        }
        if !entry.is_confirmed() {
            self.refine_soon(name);
            return None;
        }
        let before = record.plan.clone()?;
        let copies = copies(&before)?;
        let Some(address) = self.multicast_routes.take(block, name, &copies) else {
            if self.may_warn_of(name) {
                tracing::warn!(group = name, %block, "no group address is free: it stays on those of the static core");
            }
            return None;
        };
        Some(Draft {
            before,
            refinement: Refinement { address, copies },
            routers,
        })
    }

    /// The routers are ready: the source's switch sends one copy from now on.
    pub(crate) fn finish_refinement(&mut self, name: &str, draft: Draft) {
        let Draft {
            before, refinement, ..
        } = draft;
        let address = refinement.address;
        self.multicast_routes.settle(address);
        let fits = |entry: &Entry| {
            let record = entry.record();
            record.is_placed_by(&before) && is_wanted(record) && entry.is_confirmed()
        };
        if !self.groups.get(name).is_some_and(fits) {
            return multicast_routes::sweep_soon(self);
        }
        let mut plan = Plan::clone(&before);
        let top = before.tree.first().and_then(|top| plan.rules.get_mut(&top.name));
        for endpoint in top.into_iter().flat_map(|rule| &mut rule.endpoints) {
            if let NextHop::Switch { core, .. } = &mut endpoint.next_hop {
                *core = Some(address);
            }
        }
        plan.refinement = Some(refinement);
        tracing::info!(group = name, %address, "one copy to the programmable routers from now on");
        self.try_change(name, |record| late::replace(record, &before, plan));
        self.update(name, true);
    }
}

#[cfg(test)]
pub(crate) mod tests;
