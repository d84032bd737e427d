//! How many groups a link carries: what load balancing looks at.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::GroupRule;
use castnet_topology::{End, LinkId, Topology};
use castnet_wire::{McstId, PortId};

use crate::plan::Plan;
use crate::tree::Tree;

/// Groups per link (Cepheus III.C: the port that is "least used by MGs").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkLoad {
    groups: BTreeMap<LinkId, u32>,
}

impl LinkLoad {
    /// No groups anywhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counted from rules that are installed or wanted, each with the name of its switch. A group counts once per
    /// link, though both ends have a rule for it; links that the fabric does not have do not count.
    pub fn from_rules<'a>(
        topology: &Topology,
        rules: impl IntoIterator<Item = (&'a str, &'a GroupRule)>,
    ) -> Self {
        let mut load = Self::new();
        let mut pairs: BTreeSet<(LinkId, McstId)> = BTreeSet::new();
        for (switch, group) in rules {
            let ends = group
                .endpoints
                .iter()
                .map(|e| End::port(switch, e.port.index() as u8));
            let links = ends.filter_map(|end| topology.link_at(&end));
            pairs.extend(links.map(|link| (link, group.mcst_id)));
        }
        for (link, _) in pairs {
            *load.groups.entry(link).or_default() += 1;
        }
        load
    }

    /// Counted from the ports that groups use, each with the name of its switch and the number of its groups. Where the two
    /// ends of a link say different things, the larger number counts.
    pub fn from_ports<'a>(
        topology: &Topology,
        ports: impl IntoIterator<Item = (&'a str, PortId, u32)>,
    ) -> Self {
        let mut load = Self::new();
        for (switch, port, groups) in ports {
            if let Some(link) = topology.link_at(&End::port(switch, port.index() as u8)) {
                let most = load.groups.entry(link).or_default();
                *most = groups.max(*most);
            }
        }
        load
    }

    /// Groups on that link.
    pub fn get(&self, link: LinkId) -> u32 {
        self.groups.get(&link).copied().unwrap_or(0)
    }

    /// Counts a plan that is carried out.
    pub fn add(&mut self, plan: &Plan) {
        self.add_tree(&plan.tree);
    }

    /// Counts a tree of either kind.
    pub fn add_tree(&mut self, tree: &Tree) {
        for link in tree.links() {
            *self.groups.entry(link).or_default() += 1;
        }
    }

    /// Forgets a plan that is taken back.
    pub fn remove(&mut self, plan: &Plan) {
        for link in plan.tree.links() {
            if let Some(groups) = self.groups.get_mut(&link) {
                *groups = groups.saturating_sub(1);
            }
        }
    }
}
