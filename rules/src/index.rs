//! Names, addresses and QPs that no two groups of a switch may share.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::net::Ipv4Addr;

use castnet_wire::{McstId, Qpn};

use crate::fault::{Fault, FaultKind};
use crate::group::GroupRule;

/// Addresses and QPs, with the name of the group of each.
type QueuePairs = BTreeMap<(Ipv4Addr, Qpn), Arc<str>>;

/// Index of the groups of one switch by values that must be unique: names, McstIDs, and addresses and QPs of members
/// and of switches behind routers. Rule files are checked group by group against earlier groups, installs against
/// installed groups. The cost of a check depends on the members of the group, not on the number of groups.
#[derive(Clone, Debug, Default)]
pub struct GroupIndex {
    names: BTreeMap<Arc<str>, McstId>,
    mcst_ids: BTreeMap<McstId, Arc<str>>,
    qps: QueuePairs,
    /// Those of groups that hosts register. A host names whom it likes, so they bind only other such groups: frames find their group by the
    /// McstID, and the QP of a member may be in several.
    registered_qps: QueuePairs,
    /// See [`GroupRule::core_source`].
    core_sources: BTreeMap<Ipv4Addr, Arc<str>>,
}

impl GroupIndex {
    /// Conflicts with indexed groups except `instead_of`, which `group` replaces. Fields are relative to the group.
    pub fn check(&self, group: &GroupRule, instead_of: Option<&str>) -> Vec<Fault> {
        self.check_with(group, instead_of, &[&self.qps])
    }

    /// As [`GroupIndex::check`] for a group that a host registers: the QPs of other such groups are taken, too.
    pub fn check_registered(&self, group: &GroupRule, instead_of: Option<&str>) -> Vec<Fault> {
        self.check_with(group, instead_of, &[&self.qps, &self.registered_qps])
    }

    fn check_with(&self, group: &GroupRule, instead_of: Option<&str>, taken: &[&QueuePairs]) -> Vec<Fault> {
        let is_other = |name: &Arc<str>| Some(&**name) != instead_of;
        let mut faults = Vec::new();
        if let Some((name, first)) = self.names.get_key_value(&*group.name)
            && is_other(name)
        {
            let first = match first.0.is_unspecified() {
                true => "another group".into(),
                false => format!("group {first}"),
            };
            let name = name.to_string();
            faults.push(Fault::new("name", FaultKind::DuplicateName { name, first }));
        }
        let mcst_id = group.mcst_id;
        if let Some(first) = self.mcst_ids.get(&mcst_id).filter(|name| is_other(name)) {
            let first = describe(first);
            let kind = FaultKind::DuplicateMcstId { mcst_id, first };
            faults.push(Fault::new("mcst_id", kind));
        }
        let members = (mcst_id.0, Qpn::new(0))..=(mcst_id.0, Qpn::new(0xFF_FFFF));
        let mut there = taken.iter().flat_map(|qps| qps.range(members.clone()));
        if let Some((_, name)) = there.find(|(_, name)| is_other(name)) {
            let group = describe(name);
            let kind = FaultKind::McstIdIsMember { mcst_id, group };
            faults.push(Fault::new("mcst_id", kind));
        }
        for (i, hop) in group.endpoints.iter().map(|e| &e.next_hop).enumerate() {
            let Some(ip) = hop.ip() else { continue };
            let mut fault = |field, fault| {
                let field = format!("endpoints[{i}].{}.{field}", hop.kind());
                faults.push(Fault::new(field, fault));
            };
            if let Some(name) = self.mcst_ids.get(&McstId(ip)).filter(|name| is_other(name)) {
                let group = describe(name);
                fault("ip", FaultKind::MemberIsMcstId { ip, group });
            }
            let Some((ip, qpn)) = hop.qp() else { continue };
            let mut holders = taken.iter().filter_map(|qps| qps.get(&(ip, qpn)));
            if let Some(name) = holders.find(|name| is_other(name)) {
                let group = describe(name);
                fault("qpn", FaultKind::DuplicateQp { ip, qpn, group });
            }
        }
        if let Some(ip) = group.core_source()
            && let Some(name) = self.core_sources.get(&ip).filter(|name| is_other(name))
            && let Some(upstream) = group.kind.fields().upstream()
        {
            let group = describe(name);
            let field = format!("endpoints[{upstream}].switch.ip");
            faults.push(Fault::new(field, FaultKind::DuplicateCoreSource { ip, group }));
        }
        faults
    }

    /// Adds a group, without placeholders. Values of another group stay with that group.
    pub fn insert(&mut self, group: &GroupRule) {
        self.insert_addresses(group);
        insert_qps(&mut self.qps, group);
    }

    /// Adds a group that a host registers: its QPs are checked by [`GroupIndex::check_registered`] alone.
    pub fn insert_registered(&mut self, group: &GroupRule) {
        self.insert_addresses(group);
        insert_qps(&mut self.registered_qps, group);
    }

    fn insert_addresses(&mut self, group: &GroupRule) {
        let name: Arc<str> = group.name.as_str().into();
        if !name.is_empty() {
            self.names.entry(name.clone()).or_insert(group.mcst_id);
        }
        if !group.mcst_id.0.is_unspecified() {
            self.mcst_ids.entry(group.mcst_id).or_insert_with(|| name.clone());
        }
        if let Some(ip) = group.core_source() {
            self.core_sources.entry(ip).or_insert(name);
        }
    }

    /// Removes a group that [`GroupIndex::insert`] has added.
    pub fn remove(&mut self, group: &GroupRule) {
        self.remove_addresses(group);
        remove_qps(&mut self.qps, group);
    }

    /// Removes a group that [`GroupIndex::insert_registered`] has added.
    pub fn remove_registered(&mut self, group: &GroupRule) {
        self.remove_addresses(group);
        remove_qps(&mut self.registered_qps, group);
    }

    fn remove_addresses(&mut self, group: &GroupRule) {
        self.names.remove(&*group.name);
        self.mcst_ids.remove(&group.mcst_id);
        if let Some(ip) = group.core_source() {
            self.core_sources.remove(&ip);
        }
    }
}

fn insert_qps(qps: &mut QueuePairs, group: &GroupRule) {
    let name: Arc<str> = group.name.as_str().into();
    for qp in group.endpoints.iter().filter_map(|e| e.next_hop.qp()) {
        qps.entry(qp).or_insert_with(|| name.clone());
    }
}

fn remove_qps(qps: &mut QueuePairs, group: &GroupRule) {
    for qp in group.endpoints.iter().filter_map(|e| e.next_hop.qp()) {
        qps.remove(&qp);
    }
}

fn describe(name: &str) -> String {
    match name {
        "" => "another group".into(),
        name => format!("group {name:?}"),
    }
}
