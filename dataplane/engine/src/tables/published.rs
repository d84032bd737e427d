//! What control publishes to all workers at once: an immutable snapshot with a generation.

use core::net::Ipv4Addr;
use std::sync::Arc;

use castnet_rules::{GroupRule, Route};
use castnet_wire::{McstId, PortId};
use immutable_chunkmap::map::MapM;

use crate::port_set::PortSet;
use crate::tables::route::Routes;

/// The addresses of all groups of a switch, with the worker that has each.
///
/// A copy shares its memory with the original, and a change of one group costs the same however many there are: a switch
/// publishes a copy each time that a group comes or goes.
#[derive(Clone, Debug, Default)]
pub struct Owners(MapM<Ipv4Addr, u16>);

impl Owners {
    /// The group is this worker's from now on.
    pub fn insert(&mut self, mcst_id: McstId, worker: usize) {
        self.0.insert_cow(mcst_id.0, worker as u16);
    }

    /// The group is gone.
    pub fn remove(&mut self, mcst_id: McstId) {
        self.0.remove_cow(&mcst_id.0);
    }

    /// The worker that has the group of this address; `None` where it is no group's.
    #[inline]
    pub fn get(&self, address: Ipv4Addr) -> Option<usize> {
        self.0.get(&address).map(|worker| usize::from(*worker))
    }
}

/// The hosts next to a switch that are members of its groups, each with its port and the number of its groups. Copies and
/// changes cost as those of [`Owners`].
#[derive(Clone, Debug, Default)]
pub struct Members(MapM<(PortId, Ipv4Addr), u32>);

impl Members {
    /// A group was installed.
    pub fn add(&mut self, rule: &GroupRule) {
        for (port, host) in rule.hosts() {
            self.add_one(port, host.ip);
        }
    }

    fn add_one(&mut self, port: PortId, ip: Ipv4Addr) {
        *self.0.get_or_default_cow((port, ip)) += 1;
    }

    /// A group was removed.
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

/// Routes, the addresses of all groups of the switch whichever worker has them and their members, which ports are up, and
/// their MTUs. Built by control, read by every worker, never changed: a new one takes its place between two batches.
#[derive(Clone, Debug)]
pub struct Tables {
    generation: u64,
    owners: Owners,
    members: Members,
    pub(crate) routes: Arc<Routes>,
    pub(crate) up: PortSet,
    pub(crate) mtus: Vec<(PortId, usize)>,
}

impl Default for Tables {
    /// No routes, no groups, every port up with the MTU that it had.
    fn default() -> Self {
        Self {
            generation: 0,
            owners: Owners::default(),
            members: Members::default(),
            routes: Arc::default(),
            up: PortSet::ALL,
            mtus: Vec::new(),
        }
    }
}

impl Tables {
    /// The tables of this generation, all groups being worker 0's. `routes` are checked already; of two with one prefix the
    /// later counts.
    pub fn new(
        generation: u64,
        groups: impl IntoIterator<Item = McstId>,
        routes: &[Route],
        up: impl IntoIterator<Item = PortId>,
    ) -> Self {
        let mut owners = Owners::default();
        groups.into_iter().for_each(|group| owners.insert(group, 0));
        Self {
            generation,
            owners,
            up: up.into_iter().collect(),
            ..Self::default()
        }
        .with_routes(routes)
    }

    /// The same, of another generation, with these ports up.
    #[must_use]
    pub fn next(&self, generation: u64, up: PortSet) -> Self {
        Self {
            generation,
            up,
            ..self.clone()
        }
    }

    /// The same with other routes.
    #[must_use]
    pub fn with_routes(mut self, routes: &[Route]) -> Self {
        self.routes = Arc::new(Routes::new(routes));
        self
    }

    /// The same with these groups.
    #[must_use]
    pub fn with_owners(mut self, owners: Owners) -> Self {
        self.owners = owners;
        self
    }

    /// The same with these hosts as members of the switch's groups.
    #[must_use]
    pub fn with_members(mut self, members: Members) -> Self {
        self.members = members;
        self
    }

    /// The same with these MTUs, in bytes; ports that are not named keep theirs.
    #[must_use]
    pub fn with_mtus(mut self, mtus: impl IntoIterator<Item = (PortId, usize)>) -> Self {
        self.mtus = mtus.into_iter().collect();
        self
    }

    /// Counts the publications.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The ports that are up.
    pub fn up(&self) -> PortSet {
        self.up
    }

    /// The worker that has the group of this address; `None` where it is no group's.
    #[inline]
    pub fn owner(&self, address: Ipv4Addr) -> Option<usize> {
        self.owners.get(address)
    }

    /// Whether `address` is the McstID of a group of this switch.
    pub fn is_group(&self, address: Ipv4Addr) -> bool {
        self.owner(address).is_some()
    }

    /// Whether the host of this address at `port` is a member of a group of this switch.
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
    fn a_copy_stays_as_it_was_and_a_host_is_a_member_until_its_last_group_is_gone() {
        let set = RuleSet::from_toml(COLLECTIVE_EXAMPLE).expect("the example");
        let rule = &set.groups[0];
        let (port, host) = rule.hosts().next().expect("a host");
        let (mut owners, mut members) = (Owners::default(), Members::default());
        owners.insert(rule.mcst_id, 3);
        (0..2).for_each(|_| members.add(rule));
        let tables = Tables::default()
            .with_owners(owners.clone())
            .with_members(members.clone());
        owners.remove(rule.mcst_id);
        members.remove(rule);
        assert!(members.contains(port, host.ip));
        members.remove(rule);
        let after = tables
            .next(1, PortSet::ALL)
            .with_owners(owners)
            .with_members(members);
        let seen = |t: &Tables| (t.owner(rule.mcst_id.0), t.is_member(port, host.ip));
        assert_eq!((seen(&tables), seen(&after)), ((Some(3), true), (None, false)));
        // Of a host that is no member, nothing is forgotten.
        let mut none = Members::default();
        none.remove(rule);
        assert!(!none.contains(port, host.ip));
    }
}
