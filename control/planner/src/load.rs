//! How many groups a link carries: what load balancing looks at.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{CollectiveGroup, MulticastGroup};
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
        rules: impl IntoIterator<Item = (&'a str, &'a MulticastGroup)>,
    ) -> Self {
        let ports = rules.into_iter().flat_map(|(switch, group)| {
            let each = group.paths.iter();
            each.map(move |path| (switch, group.mcst_id, path.port))
        });
        let mut load = Self::new();
        load.count(topology, ports);
        load
    }

    /// Counts collective groups too, as [`LinkLoad::from_rules`] does multicast groups.
    pub fn add_collectives<'a>(
        &mut self,
        topology: &Topology,
        rules: impl IntoIterator<Item = (&'a str, &'a CollectiveGroup)>,
    ) {
        let ports = rules.into_iter().flat_map(|(switch, group)| {
            let each = group.endpoints.iter();
            each.map(move |endpoint| (switch, group.mcst_id, endpoint.port))
        });
        self.count(topology, ports);
    }

    fn count<'a>(&mut self, topology: &Topology, ports: impl Iterator<Item = (&'a str, McstId, PortId)>) {
        let mut pairs: BTreeSet<(LinkId, McstId)> = BTreeSet::new();
        for (switch, mcst_id, port) in ports {
            let end = End::port(switch, port.index() as u8);
            pairs.extend(topology.link_at(&end).map(|link| (link, mcst_id)));
        }
        for (link, _) in pairs {
            *self.groups.entry(link).or_default() += 1;
        }
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
