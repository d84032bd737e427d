//! How many groups use a link, for load balancing.

use std::collections::BTreeMap;

use castnet_rules::{Endpoint, GroupRule, NextHop};
use castnet_topology::{EndId, LinkId, Topology, Usable};
use castnet_wire::{MacAddr, PortId};

use crate::overlay::between;
use crate::plan::HEADROOM;
use crate::tree::Tree;

/// Groups per link (Cepheus III.C: the port "least used by MGs"). A tree that uses a link several times, for instance
/// to a Castnet switch behind a plain one, counts as often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkLoad {
    /// By number of the link, up to the last one with a group.
    groups: Vec<u32>,
}

/// An edge of a tree in the rule of a switch: from a port of the switch to an endpoint, over plain switches and routers
/// if one is at that port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    switch: String,
    port: PortId,
    to: String,
    far: Far,
    /// The least MTU of its links in bytes.
    mtu: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Far {
    Host,
    /// The port of a switch that has this Ethernet address.
    Mac(MacAddr),
    /// The port of a switch behind routers, where the rule of that switch is known.
    Port(Option<PortId>),
}

impl Edge {
    /// The edge of an endpoint in the rule of `switch`. `other` has the rules of the group at other switches.
    pub fn new<'r>(
        switch: &str,
        rule: &GroupRule,
        endpoint: &Endpoint,
        other: impl FnOnce(&str) -> Option<&'r GroupRule>,
    ) -> Self {
        let far = match &endpoint.next_hop {
            NextHop::Host(_) => Far::Host,
            NextHop::Switch { name, mac, .. } if *mac == MacAddr::UNSPECIFIED => {
                let back = |e: &&Endpoint| e.next_hop.host().is_none() && e.next_hop.name() == switch;
                let back = other(name).and_then(|rule| rule.endpoints.iter().find(back));
                Far::Port(back.map(|endpoint| endpoint.port))
            }
            NextHop::Switch { mac, .. } => Far::Mac(*mac),
        };
        Self {
            switch: switch.into(),
            port: endpoint.port,
            to: endpoint.next_hop.name().into(),
            far,
            // Collective groups avoid narrow links. Multicast groups that would use one are refused.
            mtu: rule
                .translated()
                .map_or(0, |_| rule.pmtu.bytes() as u32 + HEADROOM),
        }
    }

    /// Its links, in the same order from both ends.
    fn links(&self, topology: &Topology) -> Option<Vec<LinkId>> {
        let near = EndId {
            node: topology.id(&self.switch)?,
            port: self.port.index() as u8,
        };
        let first = topology.hops(near.node).iter().find(|hop| hop.near == near)?;
        if !topology.forwards(first.far.node) {
            return Some(vec![first.link]);
        }
        let far = self.far(topology)?;
        let fabric = Usable::new(topology, self.mtu);
        between(&fabric, near.min(far), near.max(far)).map(|route| route.links)
    }

    /// The far end of a path over plain switches and routers. Ranks that share a host are called `host#rank`.
    fn far(&self, topology: &Topology) -> Option<EndId> {
        let port = match &self.far {
            Far::Host => {
                let short = self.to.rsplit_once('#').map(|(host, _)| host);
                let names = core::iter::once(self.to.as_str()).chain(short);
                let mut ids = names.filter_map(|name| topology.id(name));
                let node = ids.find(|node| topology.kind(*node).is_none())?;
                return Some(EndId { node, port: 0 });
            }
            Far::Mac(mac) => {
                let mut ports = topology.switch(&self.to)?.ports.iter();
                *ports.find(|(_, own)| **own == mac.0)?.0
            }
            Far::Port(port) => (*port)?.index() as u8,
        };
        let node = topology.id(&self.to)?;
        Some(EndId { node, port })
    }
}

impl LinkLoad {
    /// No groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts edges with their numbers of groups. The rules of both ends count an edge: if their sums differ, the
    /// larger one counts. Links that the fabric does not have are ignored.
    pub fn from_edges<'a>(topology: &Topology, edges: impl IntoIterator<Item = (&'a Edge, u32)>) -> Self {
        let mut sums: BTreeMap<Vec<LinkId>, BTreeMap<&str, u32>> = BTreeMap::new();
        for (edge, groups) in edges {
            if let Some(links) = edge.links(topology) {
                *sums.entry(links).or_default().entry(&edge.switch).or_default() += groups;
            }
        }
        let mut load = Self::new();
        for (links, by_switch) in sums {
            load.count(links, by_switch.into_values().max().unwrap_or(0));
        }
        load
    }

    /// Number of groups on a link.
    pub fn get(&self, link: LinkId) -> u32 {
        self.groups.get(link.0 as usize).copied().unwrap_or(0)
    }

    /// Counts the tree of a group.
    pub fn add(&mut self, tree: &Tree) {
        self.count(tree.links(), 1);
    }

    fn count(&mut self, links: Vec<LinkId>, groups: u32) {
        for link in links.into_iter().filter(|_| groups > 0) {
            let at = link.0 as usize;
            self.groups.resize(self.groups.len().max(at + 1), 0);
            self.groups[at] += groups;
        }
    }
}
