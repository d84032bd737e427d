//! Which hosts next to the switch are members of its groups: their ARP entries never give way to others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::Ipv4Addr;

use castnet_wire::PortId;

use crate::rule::Rule;

/// The hosts, and of how many groups each is a member.
#[derive(Debug, Default)]
pub(crate) struct Members(BTreeMap<(PortId, Ipv4Addr), usize>);

impl Members {
    /// A group was installed.
    pub(crate) fn add(&mut self, rule: &Rule) {
        for host in rule.hosts() {
            *self.0.entry(host).or_default() += 1;
        }
    }

    /// A group was removed.
    pub(crate) fn remove(&mut self, rule: &Rule) {
        for host in rule.hosts() {
            if let Entry::Occupied(mut groups) = self.0.entry(host) {
                *groups.get_mut() -= 1;
                if *groups.get() == 0 {
                    groups.remove();
                }
            }
        }
    }

    /// Each once, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortId, Ipv4Addr)> {
        self.0.keys().copied()
    }
}
