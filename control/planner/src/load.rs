//! How many groups a link carries: what load balancing looks at.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::MulticastGroup;
use castnet_topology::{End, LinkId, Topology};
use castnet_wire::McstId;

use crate::plan::Plan;

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
        let mut pairs: BTreeSet<(LinkId, McstId)> = BTreeSet::new();
        for (switch, group) in rules {
            for path in &group.paths {
                let end = End::port(switch, path.port.index() as u8);
                pairs.extend(topology.link_at(&end).map(|link| (link, group.mcst_id)));
            }
        }
        let mut load = Self::new();
        for (link, _) in pairs {
            *load.groups.entry(link).or_default() += 1;
        }
        load
    }

    /// Groups on that link.
    pub fn get(&self, link: LinkId) -> u32 {
        self.groups.get(&link).copied().unwrap_or(0)
    }

    /// Counts a plan that is carried out.
    pub fn add(&mut self, plan: &Plan) {
        for link in plan.tree.links() {
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
