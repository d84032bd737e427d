//! Names, addresses and QPs that no two groups of a switch may share.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::net::Ipv4Addr;

use castnet_wire::{McstId, Qpn};

use crate::fault::{Fault, FaultKind};
use crate::group::GroupRule;

/// Who has named the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedBy {
    /// A controller or a rule file.
    Control,
    /// A host that registers the group. It names whom it likes, so its members bind only other such groups: frames find their group by the
    /// McstID, and the QP of a member may be in several.
    Host,
}

/// Index of the groups of one switch by values that must be unique: names, McstIDs, and addresses and QPs of members
/// and of switches behind routers. Rule files are checked group by group against earlier groups, installs against
/// installed groups. The cost of a check depends on the members of the group, not on the number of groups.
#[derive(Clone, Debug, Default)]
pub struct GroupIndex {
    names: BTreeMap<Arc<str>, McstId>,
    mcst_ids: BTreeMap<McstId, Arc<str>>,
    /// Addresses and QPs by who named them, with the name of the group of each.
    qps: BTreeMap<(NamedBy, Ipv4Addr, Qpn), Arc<str>>,
    /// See [`GroupRule::core_source`].
    core_sources: BTreeMap<Ipv4Addr, Arc<str>>,
}

impl GroupIndex {
    /// Conflicts with indexed groups except `instead_of`, which `group` replaces. Fields are relative to the group.
    pub fn check(&self, group: &GroupRule, named_by: NamedBy, instead_of: Option<&str>) -> Vec<Fault> {
        let binding: &[_] = match named_by {
            NamedBy::Control => &[NamedBy::Control],
            NamedBy::Host => &[NamedBy::Control, NamedBy::Host],
        };
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
        let members = |&by: &NamedBy| {
            let (first, last) = (Qpn::new(0), Qpn::new(0xFF_FFFF));
            self.qps.range((by, mcst_id.0, first)..=(by, mcst_id.0, last))
        };
        let mut there = binding.iter().flat_map(members);
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
            let mut holders = binding.iter().filter_map(|&by| self.qps.get(&(by, ip, qpn)));
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
    pub fn insert(&mut self, group: &GroupRule, named_by: NamedBy) {
        let name: Arc<str> = group.name.as_str().into();
        if !name.is_empty() {
            self.names.entry(name.clone()).or_insert(group.mcst_id);
        }
        if !group.mcst_id.0.is_unspecified() {
            self.mcst_ids.entry(group.mcst_id).or_insert_with(|| name.clone());
        }
        if let Some(ip) = group.core_source() {
            self.core_sources.entry(ip).or_insert_with(|| name.clone());
        }
        for (ip, qpn) in group.endpoints.iter().filter_map(|e| e.next_hop.qp()) {
            self.qps
                .entry((named_by, ip, qpn))
                .or_insert_with(|| name.clone());
        }
    }

    /// Removes a group that [`GroupIndex::insert`] has added with the same `named_by`.
    pub fn remove(&mut self, group: &GroupRule, named_by: NamedBy) {
        self.names.remove(&*group.name);
        self.mcst_ids.remove(&group.mcst_id);
        if let Some(ip) = group.core_source() {
            self.core_sources.remove(&ip);
        }
        for (ip, qpn) in group.endpoints.iter().filter_map(|e| e.next_hop.qp()) {
            self.qps.remove(&(named_by, ip, qpn));
        }
    }
}

fn describe(name: &str) -> String {
    match name {
        "" => "another group".into(),
        name => format!("group {name:?}"),
    }
}
