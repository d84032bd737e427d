//! How many groups use a link, for load balancing.

use castnet_rules::{Endpoint, GroupRule, NextHop};
use castnet_topology::{Chunks, End, EndId, LinkId, Topology, Usable};
use castnet_wire::{MacAddr, PortId};

use crate::overlay::between;
use crate::plan::HEADROOM;
use crate::tree::Tree;

/// Groups per link (Cepheus III.C: the port "least used by MGs"). A tree that uses a link several times, for instance
/// to a Castnet switch behind a plain one, counts as often. A clone is cheap: it shares what neither changes.
#[derive(Clone, Debug, Default)]
pub struct LinkLoad {
    /// By number of the link, at least up to the last one with a group: by the rules of the lesser end of a path, and
    /// of the greater one. If these differ, the larger number counts.
    groups: Chunks<[u32; 2]>,
}

impl PartialEq for LinkLoad {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&self.groups, &other.groups);
        let groups = |of: &Chunks<[u32; 2]>, at| of.get(at).copied().unwrap_or_default();
        (0..one.len().max(other.len())).all(|at| groups(one, at) == groups(other, at))
    }
}

impl Eq for LinkLoad {}

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

    /// Its links, and whether its switch is the greater end.
    fn links(&self, topology: &Topology) -> Option<(Vec<LinkId>, bool)> {
        let near = EndId {
            node: topology.id(&self.switch)?,
            port: self.port.index() as u8,
        };
        let first = topology.hops(near.node).iter().find(|hop| hop.near == near)?;
        if !topology.forwards(first.far.node) {
            return Some((vec![first.link], near > first.far));
        }
        let far = self.far(topology)?;
        let fabric = Usable::new(topology, self.mtu);
        let route = between(&fabric, near, far)?;
        Some((route.links().collect(), near > far))
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

    /// Counts edges with their numbers of groups.
    pub fn from_edges<'a>(topology: &Topology, edges: impl IntoIterator<Item = (&'a Edge, u32)>) -> Self {
        let mut load = Self::new();
        for (edge, groups) in edges {
            load.add_edge(topology, edge, groups);
        }
        load
    }

    /// For a group that keeps to the tree of these edges: one group on each other link, none on theirs.
    pub fn beside(topology: &Topology, tree: impl IntoIterator<Item = Edge>) -> Self {
        let mut own = Self::new();
        tree.into_iter().for_each(|edge| own.add_edge(topology, &edge, 1));
        let mut load = Self::new();
        for (link, _) in topology.links().filter(|(link, _)| own.get(*link) == 0) {
            load.change(link, false, |_| 1);
        }
        load
    }

    /// Counts an edge. Links that the fabric does not have are ignored.
    pub fn add_edge(&mut self, topology: &Topology, edge: &Edge, groups: u32) {
        if let Some((links, end)) = edge.links(topology) {
            links
                .into_iter()
                .for_each(|link| self.change(link, end, |counted| counted + groups));
        }
    }

    /// Takes back what [`add_edge`](Self::add_edge) counted in the same fabric.
    pub fn remove_edge(&mut self, topology: &Topology, edge: &Edge, groups: u32) {
        if let Some((links, end)) = edge.links(topology) {
            for link in links {
                self.change(link, end, |counted| counted.saturating_sub(groups));
            }
        }
    }

    /// Number of groups on a link.
    pub fn get(&self, link: LinkId) -> u32 {
        let groups = self.groups.get(link.0 as usize);
        groups.map_or(0, |[lesser, greater]| *lesser.max(greater))
    }

    /// Counts the tree of a group.
    pub fn add(&mut self, tree: &Tree) {
        for path in tree.nodes().into_iter().filter_map(|node| node.up.as_ref()) {
            for (end, other) in [(&path.near, &path.far), (&path.far, &path.near)] {
                if let End::Switch { .. } = end {
                    path.links
                        .iter()
                        .for_each(|link| self.change(*link, end > other, |counted| counted + 1));
                }
            }
        }
    }

    fn change(&mut self, link: LinkId, end: bool, change: impl FnOnce(u32) -> u32) {
        let number = link.0 as usize;
        while self.groups.len() <= number {
            self.groups.push([0, 0]);
        }
        if let Some(counted) = self.groups.get_mut(number) {
            counted[usize::from(end)] = change(counted[usize::from(end)]);
        }
    }
}
