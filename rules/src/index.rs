//! Names, addresses and QPs that no two groups of a switch may share.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::net::Ipv4Addr;

use castnet_wire::{McstId, Qpn};

use crate::draft::{EndpointDraft, GroupDraft, HopDraft};
use crate::fault::{Fault, FaultKind};
use crate::group::{Endpoint, GroupRule};

/// Index of the groups of one switch by values that must be unique: names, McstIDs, and addresses and QPs of members
/// and of switches behind routers. Rule files are checked group by group against earlier groups, installs against
/// installed groups. The cost of a check depends on the members of the group, not on the number of groups.
#[derive(Clone, Debug, Default)]
pub struct GroupIndex {
    names: BTreeMap<Arc<str>, Option<McstId>>,
    mcst_ids: BTreeMap<McstId, Arc<str>>,
    qps: BTreeMap<(Ipv4Addr, Qpn), Arc<str>>,
}

/// Values of one group that must be unique; `None` if a value could not be read.
#[derive(Clone, Debug)]
pub struct Claims<'a> {
    name: Option<&'a str>,
    mcst_id: Option<McstId>,
    /// Members next to the switch, and switches behind routers.
    next_hops: Vec<Addressed>,
}

/// A next hop with an address.
#[derive(Clone, Copy, Debug)]
struct Addressed {
    /// Index in the group's list.
    endpoint: usize,
    /// Its table: `host` or `switch`.
    kind: &'static str,
    ip: Ipv4Addr,
    qpn: Option<Qpn>,
}

impl GroupIndex {
    /// Conflicts with indexed groups except `instead_of`, which `group` replaces. Fields are relative to the group.
    pub fn check(&self, group: &Claims<'_>, instead_of: Option<&str>) -> Vec<Fault> {
        let is_other = |name: &Arc<str>| Some(&**name) != instead_of;
        let mut faults = Vec::new();
        if let Some((name, first)) = group.name.and_then(|name| self.names.get_key_value(name))
            && is_other(name)
        {
            let first = first.map_or_else(|| "another group".into(), |m| format!("group {m}"));
            let name = name.to_string();
            faults.push(Fault::new("name", FaultKind::DuplicateName { name, first }));
        }
        if let Some(mcst_id) = group.mcst_id {
            if let Some(first) = self.mcst_ids.get(&mcst_id).filter(|name| is_other(name)) {
                let first = describe(first);
                let kind = FaultKind::DuplicateMcstId { mcst_id, first };
                faults.push(Fault::new("mcst_id", kind));
            }
            let members = self
                .qps
                .range((mcst_id.0, Qpn::new(0))..=(mcst_id.0, Qpn::new(0xFF_FFFF)));
            if let Some((_, name)) = { members }.find(|(_, name)| is_other(name)) {
                let group = describe(name);
                let kind = FaultKind::McstIdIsMember { mcst_id, group };
                faults.push(Fault::new("mcst_id", kind));
            }
        }
        for hop in &group.next_hops {
            let Addressed {
                endpoint, kind, ip, ..
            } = *hop;
            let fault = |field, fault| Fault::new(format!("endpoints[{endpoint}].{kind}.{field}"), fault);
            if let Some(name) = self.mcst_ids.get(&McstId(ip)).filter(|name| is_other(name)) {
                let group = describe(name);
                faults.push(fault("ip", FaultKind::MemberIsMcstId { ip, group }));
            }
            let Some(qpn) = hop.qpn else { continue };
            if let Some(name) = self.qps.get(&(ip, qpn)).filter(|name| is_other(name)) {
                let group = describe(name);
                faults.push(fault("qpn", FaultKind::DuplicateQp { ip, qpn, group }));
            }
        }
        faults
    }

    /// Adds a group. Values of another group stay with that group.
    pub fn insert(&mut self, group: &Claims<'_>) {
        let name: Arc<str> = group.name.unwrap_or_default().into();
        if group.name.is_some() {
            self.names.entry(name.clone()).or_insert(group.mcst_id);
        }
        if let Some(mcst_id) = group.mcst_id {
            self.mcst_ids.entry(mcst_id).or_insert_with(|| name.clone());
        }
        for qp in group.qps() {
            self.qps.entry(qp).or_insert_with(|| name.clone());
        }
    }

    /// Removes a group.
    pub fn remove(&mut self, group: &Claims<'_>) {
        let name = group.name.unwrap_or_default();
        self.names.remove(name);
        if let Some(mcst_id) = group.mcst_id {
            self.mcst_ids.remove(&mcst_id);
        }
        for qp in group.qps() {
            self.qps.remove(&qp);
        }
    }
}

impl Claims<'_> {
    fn qps(&self) -> impl Iterator<Item = (Ipv4Addr, Qpn)> {
        self.next_hops.iter().filter_map(|hop| Some((hop.ip, hop.qpn?)))
    }
}

impl<'a> From<&'a GroupRule> for Claims<'a> {
    fn from(group: &'a GroupRule) -> Self {
        let addressed = |(endpoint, e): (usize, &Endpoint)| {
            Some(Addressed {
                endpoint,
                kind: if e.next_hop.host().is_some() {
                    "host"
                } else {
                    "switch"
                },
                ip: e.next_hop.ip()?,
                qpn: Some(e.next_hop.qpn()),
            })
        };
        Self {
            name: Some(&group.name),
            mcst_id: Some(group.mcst_id),
            next_hops: group.endpoints.iter().enumerate().filter_map(addressed).collect(),
        }
    }
}

impl<'a> From<&'a GroupDraft> for Claims<'a> {
    fn from(group: &'a GroupDraft) -> Self {
        let endpoints = group.endpoints.iter().flatten().enumerate();
        let addressed = |(endpoint, e): (usize, &EndpointDraft)| {
            let (kind, ip, qpn) = match e.next_hop.as_ref()? {
                HopDraft::Host(host) => ("host", host.ip?, host.qpn),
                HopDraft::Switch(switch) => ("switch", switch.ip??, switch.qpn),
            };
            Some(Addressed {
                endpoint,
                kind,
                ip,
                qpn,
            })
        };
        Self {
            name: group.name.as_deref(),
            mcst_id: group.mcst_id,
            next_hops: endpoints.filter_map(addressed).collect(),
        }
    }
}

fn describe(name: &str) -> String {
    match name {
        "" => "another group".into(),
        name => format!("group {name:?}"),
    }
}
