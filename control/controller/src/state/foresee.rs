//! Where a group would be placed now, and why. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use castnet_group::CollectiveSettings;
use castnet_planner::{Lack, Shortage};
use castnet_proto::convert::{NewCollective, NewGroup, mode_to_proto, rate_limit_to_proto};
use castnet_proto::v1;
use castnet_proto::v1::endpoint::NextHop;
use castnet_rules::GroupRule;
use castnet_topology::{End, Topology};
use castnet_wire::{McstId, Psn};

use crate::error::Refusal;
use crate::state::kinds::collective::view::{mode, mode_reason};
use crate::state::table::Snapshot;
use crate::state::{Collective, Core, Entry, Kind, Layout, Multicast, NoPlan, Reach, Record, view};

/// A group that is not created yet.
#[derive(Clone)]
pub(crate) enum Wanted {
    Multicast(NewGroup),
    Collective(NewCollective),
}

impl Wanted {
    pub(crate) fn mcst_id(&self) -> Option<McstId> {
        match self {
            Self::Multicast(group) => group.mcst_id,
            Self::Collective(group) => group.mcst_id,
        }
    }

    pub(crate) fn check(&self, core: &Core) -> Result<(), Refusal> {
        match self {
            Self::Multicast(group) => core.check_multicast(group),
            Self::Collective(group) => core.check_collective(group),
        }
    }

    /// As it would be created, with the same refusals. It is to be planned with the default limit of its tenant.
    pub(crate) fn record(&self, core: &Core, owner: &str) -> Result<Record, Refusal> {
        self.check(core)?;
        let (name, description, kind, lanes, rate_limit) = match self {
            Self::Multicast(group) => {
                let start_psn = group.start_psn.unwrap_or(Psn::new(0));
                let kind = Multicast::new(group.clone(), start_psn, core.config.relay_latency);
                let (kind, lanes) = (Kind::Multicast(kind), group.lanes);
                (&group.name, &group.description, kind, lanes, group.rate_limit)
            }
            Self::Collective(group) => {
                let settings = CollectiveSettings::new(&group.settings);
                let (lanes, limit) = (settings.lanes, group.settings.rate_limit);
                let kind = Kind::Collective(Collective::new(group.ranks.clone(), settings, false));
                (&group.name, &group.description, kind, lanes, limit)
            }
        };
        let mcst_ids = core.mcst_ids_for(self.mcst_id(), lanes)?;
        let mut record = Record {
            owner: owner.into(),
            description: description.clone(),
            rate_limit,
            ..Record::new(name.clone(), mcst_ids, kind)
        };
        core.config.assign_tenant(&mut record);
        Ok(record)
    }
}

/// An answer that lacks the load of its links, which may be still to be counted.
pub(crate) struct Foreseen {
    answer: v1::PlanGroupResponse,
    topology: Arc<Topology>,
    /// `None`: there is no plan.
    load: Option<Snapshot>,
}

impl Foreseen {
    /// Whether [`Foreseen::with_load`] takes little time.
    pub(crate) fn is_short(&self) -> bool {
        let load = self.load.as_ref();
        load.is_none_or(|load| load.is_short(&self.topology))
    }

    /// The whole answer. Not to be called under the core's lock.
    pub(crate) fn with_load(mut self) -> v1::PlanGroupResponse {
        let Some(load) = self.load.map(|load| load.get()) else {
            return self.answer;
        };
        for switch in &mut self.answer.switches {
            let name = switch.node.as_ref().map_or("", |node| &node.switch_name);
            for link in &mut switch.links {
                let at = self.topology.link_at(&End::port(name, link.port as u8));
                link.groups = at.map_or(0, |link| load.get(link));
            }
        }
        self.answer
    }
}

/// Needs the core's lock, so it counts nothing.
pub(crate) fn answer(core: &Core, mut record: Record, layout: Result<Layout, NoPlan>) -> Foreseen {
    let mut answer = v1::PlanGroupResponse {
        name: record.name.clone(),
        mcst_id: record.mcst_id.to_string(),
        lanes: record.lanes().into(),
        rate_limit: record.rate_limit.map(rate_limit_to_proto),
        ..Default::default()
    };
    let failure = match layout {
        Ok(layout) => {
            record.own_mcst_ids = layout.new_mcst_ids;
            record.plan = Some(Arc::new(layout.plan));
            None
        }
        Err(NoPlan::NotYet(failure)) => {
            answer.may_come = true;
            Some(failure)
        }
        Err(NoPlan::Never(failure)) => Some(failure),
    };
    answer.refusal = failure.map_or_else(String::new, |failure| {
        format!("{}: {}", failure.field, failure.reason)
    });
    answer.passed_over = passed_over(core, &record);
    let plan = record.plan.as_ref();
    answer.over_covered = plan.map_or_else(Vec::new, |plan| plan.over_covered.iter().cloned().collect());
    if let Some(group) = record.collective() {
        answer.mode = mode_to_proto(mode(&group.settings, &record)).into();
        answer.mode_reason = mode_reason(&group.settings, &record);
    }
    let parties = record.kind.behaviour().parties();
    let joined = parties.iter().filter(|p| p.ends.is_some()).map(|p| p.host);
    let joined: BTreeSet<&str> = joined.collect();
    answer.switches = view::tree(&Entry::new(record.clone()))
        .into_iter()
        .map(|mut node| {
            node.rule
                .iter_mut()
                .for_each(|rule| hide_stand_ins(core, &joined, rule));
            v1::PlannedSwitch {
                room: Some(room(core, &node.switch_name)),
                links: links(&record, &node.switch_name),
                node: Some(node),
            }
        })
        .collect();
    let topology = core.facts.topology();
    let load = plan.map(|_| core.groups.load(&topology, &record.name));
    Foreseen {
        answer,
        topology,
        load,
    }
}

/// Members that have not joined get the address that the controller knows, if any, and no queue pair.
fn hide_stand_ins(core: &Core, joined: &BTreeSet<&str>, rule: &mut v1::GroupRule) {
    for endpoint in &mut rule.endpoints {
        if let Some(NextHop::Host(host)) = &mut endpoint.next_hop
            && !joined.contains(host.name.as_str())
        {
            let (ip, _) = core.facts.addresses(&host.name);
            (host.ip, host.mac, host.qpn) =
                (ip.map(|ip| ip.to_string()).unwrap_or_default(), String::new(), 0);
        }
    }
}

/// What a switch has left now.
fn room(core: &Core, switch: &str) -> v1::SwitchRoom {
    let Some((said, _)) = core.capabilities.get(switch) else {
        return v1::SwitchRoom::default();
    };
    let used = core.used(switch, None);
    v1::SwitchRoom {
        memory_bytes_max: said.memory_bytes_max,
        memory_bytes_free: said.memory_bytes_max.saturating_sub(used.memory),
        groups_max: said.groups_max,
        groups_free: said.groups_max.saturating_sub(used.groups),
    }
}

/// The links of a switch of the tree, without their load.
fn links(record: &Record, switch: &str) -> Vec<v1::PlannedLink> {
    let rule = record.plan.as_ref().and_then(|plan| plan.rules.get(switch));
    let endpoints = rule.iter().flat_map(|rule| &rule.endpoints);
    // Several ranks can share a port.
    let by_port: BTreeMap<u32, Vec<String>> = endpoints.fold(BTreeMap::new(), |mut all, endpoint| {
        let next_hops: &mut Vec<String> = all.entry(endpoint.port.index() as u32).or_default();
        next_hops.push(endpoint.next_hop.name().into());
        all
    });
    let link = |(port, next_hops): (u32, Vec<String>)| v1::PlannedLink {
        port,
        next_hops,
        groups: 0,
    };
    by_port.into_iter().map(link).collect()
}

/// Switches that the group cannot be placed on.
fn passed_over(core: &Core, record: &Record) -> Vec<v1::PassedOver> {
    let rules = record.plan.iter().flat_map(|plan| plan.rules.values());
    let smallest = rules.min_by_key(|rule| rule.reserved_bytes());
    let others = core
        .facts
        .switches
        .iter()
        .filter(|(name, _)| !record.plan.as_ref().is_some_and(|p| p.rules.contains_key(*name)));
    let reason = |(name, (reach, _)): (&String, &(Reach, _))| {
        let reason = match reach {
            Reach::Down(reason) => Some(format!("cannot be reached: {reason}")),
            Reach::Unknown => Some("was not reached yet".into()),
            Reach::Up => shortage(core, record, name, smallest),
        };
        Some(v1::PassedOver {
            switch_name: name.clone(),
            reason: reason?,
        })
    };
    others.filter_map(reason).collect()
}

/// What a switch lacks even for the smallest rule of the group; without a plan, for any rule.
fn shortage(core: &Core, record: &Record, switch: &str, smallest: Option<&GroupRule>) -> Option<String> {
    let room = core.room(record, switch);
    match smallest {
        Some(rule) => Shortage::of(switch, &room, rule).map(|short| short.lack.words(record.lanes())),
        None => (room.groups_free == 0).then(|| Lack::Groups.words(record.lanes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::core::tests::new_group;
    use crate::state::kinds::multicast::refine::tests::star;
    use crate::state::{Cause, Failure};

    /// Others wait for the lock, and a reader could hold it as long as it takes to count all groups.
    #[test]
    fn an_answer_counts_no_load_under_the_lock() {
        let wanted = Wanted::Multicast(new_group("g", &["h0", "h1"]));
        let core = star();
        let record = wanted.record(&core, "").unwrap();
        let unseen = NoPlan::NotYet(Failure::new(Cause::Unseen, "members[0]", "not seen"));
        // Another controller makes the plan.
        let layout = star().plan_now(&record).unwrap();
        let is_counted = || core.groups.load(&core.facts.topology(), "").is_counted();
        for (layout, is_counted_after) in [(Err(unseen), false), (Ok(layout), true)] {
            let foreseen = answer(&core, record.clone(), layout);
            assert!(!is_counted());
            let answer = foreseen.with_load();
            assert_eq!(
                (is_counted(), answer.switches.is_empty()),
                (is_counted_after, !is_counted_after)
            );
        }
    }
}
