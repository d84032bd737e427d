//! The tables that control publishes to all workers: an immutable snapshot with a generation.

use core::net::Ipv4Addr;
use std::sync::Arc;

use castnet_rules::{GroupRule, Route};
use castnet_wire::PortId;
use immutable_chunkmap::map::MapM;

use crate::address::GroupKey;
use crate::port_set::PortSet;
use crate::tables::route::Routes;
use crate::tables::source_guard::SourceGuard;

/// The groups of a switch and the worker of each. A copy shares memory with the original, and a change costs the same for any number of
/// groups: a switch publishes a copy each time that a group is installed or removed.
#[derive(Clone, Debug, Default)]
pub struct Owners(MapM<GroupKey, u16>);

impl Owners {
    /// Sets the worker of a group that frames find by this key.
    pub fn insert(&mut self, key: impl Into<GroupKey>, worker: usize) {
        self.0.insert_cow(key.into(), worker as u16);
    }

    /// Removes the key of a group.
    pub fn remove(&mut self, key: impl Into<GroupKey>) {
        self.0.remove_cow(&key.into());
    }

    /// The worker of the group with this key; `None` without group.
    #[inline]
    pub fn get(&self, key: GroupKey) -> Option<usize> {
        self.0.get(&key).map(|worker| usize::from(*worker))
    }
}

/// The hosts next to a switch that are members of its groups, except of those that hosts register, each with its port and number of
/// groups; as cheap as [`Owners`].
#[derive(Clone, Debug, Default)]
pub struct Members(MapM<(PortId, Ipv4Addr), u32>);

impl Members {
    /// Adds the hosts of an installed group.
    pub fn add(&mut self, rule: &GroupRule) {
        for (port, host) in rule.hosts() {
            self.add_one(port, host.ip);
        }
    }

    fn add_one(&mut self, port: PortId, ip: Ipv4Addr) {
        *self.0.get_or_default_cow((port, ip)) += 1;
    }

    /// Removes the hosts of a removed group.
    pub fn remove(&mut self, rule: &GroupRule) {
        for (port, host) in rule.hosts() {
            let key = (port, host.ip);
            match self.0.get_mut_cow(&key) {
                Some(groups) if *groups > 1 => *groups -= 1,
                _ => {
                    self.0.remove_cow(&key);
                }
            }
        }
    }

    fn contains(&self, port: PortId, address: Ipv4Addr) -> bool {
        self.0.get(&(port, address)).is_some()
    }
}

/// Routes, groups with their workers and members, the ports that are up, MTUs of ports, and what hosts may not send from. Control builds it and all workers read it.
/// It is immutable: a worker replaces it between two batches.
#[derive(Clone, Debug)]
pub struct Tables {
    /// A count of publications.
    pub generation: u64,
    /// The groups.
    pub owners: Owners,
    /// The hosts that are members of the switch's groups.
    pub members: Members,
    /// The ports that are up.
    pub up: PortSet,
    /// MTUs in bytes. Other ports keep their MTU.
    pub mtus: Vec<(PortId, usize)>,
    /// Sources that ports of hosts may not have, by each owner.
    pub guards: Arc<[SourceGuard]>,
    pub(crate) routes: Arc<Routes>,
}

impl Default for Tables {
    /// Without routes and groups, with every port up and unchanged MTUs.
    fn default() -> Self {
        Self {
            generation: 0,
            owners: Owners::default(),
            members: Members::default(),
            routes: Arc::default(),
            up: PortSet::ALL,
            mtus: Vec::new(),
            guards: Arc::default(),
        }
    }
}

impl Tables {
    /// Replaces the routes, which have been checked. Of two with the same prefix, the later one is used.
    pub fn set_routes(&mut self, routes: &[Route]) {
        self.routes = Arc::new(Routes::new(routes));
    }

    /// The worker of the group with this key; `None` without group.
    #[inline]
    pub fn owner(&self, key: GroupKey) -> Option<usize> {
        self.owners.get(key)
    }

    /// True for the McstID of a group of this switch.
    pub fn is_group(&self, address: Ipv4Addr) -> bool {
        self.owner(GroupKey::To(address)).is_some()
    }

    /// True if the host at `port` is a member of a group of this switch.
    pub fn is_member(&self, port: PortId, address: Ipv4Addr) -> bool {
        self.members.contains(port, address)
    }
}

impl FromIterator<(PortId, Ipv4Addr)> for Members {
    fn from_iter<I: IntoIterator<Item = (PortId, Ipv4Addr)>>(hosts: I) -> Self {
        let mut members = Self::default();
        hosts.into_iter().for_each(|(port, ip)| members.add_one(port, ip));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_rules::{COLLECTIVE_EXAMPLE, RuleSet};

    #[test]
    fn copies_are_independent_and_a_host_is_a_member_until_its_last_group_is_gone() {
        let set = RuleSet::from_toml(COLLECTIVE_EXAMPLE).expect("the example");
        let rule = &set.groups[0];
        let (port, host) = rule.hosts().next().expect("a host");
        let (mut owners, mut members) = (Owners::default(), Members::default());
        owners.insert(rule.mcst_id, 3);
        (0..2).for_each(|_| members.add(rule));
        let tables = Tables {
            owners: owners.clone(),
            members: members.clone(),
            ..Tables::default()
        };
        owners.remove(rule.mcst_id);
        members.remove(rule);
        assert!(members.contains(port, host.ip));
        members.remove(rule);
        let after = Tables {
            generation: 1,
            owners,
            members,
            ..tables.clone()
        };
        let seen = |t: &Tables| (t.owner(rule.mcst_id.into()), t.is_member(port, host.ip));
        assert_eq!((seen(&tables), seen(&after)), ((Some(3), true), (None, false)));
        // Removing the group of a host that is no member changes nothing.
        let mut none = Members::default();
        none.remove(rule);
        assert!(!none.contains(port, host.ip));
    }
}
