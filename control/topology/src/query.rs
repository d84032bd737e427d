use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::TopologyError;
use crate::graph::{End, Host, Link, LinkId, Switch, SwitchKind, Topology, What};
use crate::index::{EndId, Hop, NodeId, Row, links_from};

/// A link of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The link.
    pub link: LinkId,
    /// The end at the node.
    pub near: End,
    /// The other end.
    pub far: End,
}

/// Something that is down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Down {
    /// A link.
    Link {
        /// One end.
        a: End,
        /// The other.
        b: End,
    },
    /// A switch.
    Switch(String),
}

impl core::fmt::Display for Down {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Link { a, b } => write!(f, "link {a} - {b} is down"),
            Self::Switch(name) => write!(f, "switch {name} is down"),
        }
    }
}

/// Why there is no path between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// There is no path even if everything is up.
    NeverLinked,
    /// There is a path if these are up: a smallest such set, in order from the first node.
    Down(Vec<Down>),
}

/// Distances of all nodes to one node, in links that are up.
#[derive(Clone, Debug)]
pub struct Distances {
    to: Option<NodeId>,
    /// To `to`, or to the switch of the host `to`, which is one link away.
    row: Row,
    host: u32,
}

impl Topology {
    /// The switch of that name.
    pub fn switch(&self, name: &str) -> Option<&Switch> {
        match self.what(name)? {
            What::Switch(switch) => Some(switch),
            What::Host(_) => None,
        }
    }

    /// Whether `name` is a plain switch.
    pub fn is_plain(&self, name: &str) -> bool {
        self.switch(name).is_some_and(|s| s.kind == SwitchKind::Plain)
    }

    /// Whether `name` is a router.
    pub fn is_router(&self, name: &str) -> bool {
        self.switch(name).is_some_and(|s| s.kind == SwitchKind::Router)
    }

    /// Whether `name` is a plain switch or a router.
    pub fn is_forwarder(&self, name: &str) -> bool {
        self.switch(name).is_some_and(|s| s.kind.is_forwarder())
    }

    /// An error for each Castnet switch without a prefix of McstIDs to which routers lead, directly or over plain
    /// switches, up or down; by name.
    pub fn prefixes_missing(&self) -> Vec<TopologyError> {
        let mut missing = BTreeMap::new();
        for router in self.switches().filter(|s| s.kind == SwitchKind::Router) {
            let mut seen = BTreeSet::from([router.name.clone()]);
            let mut open = vec![router.name.clone()];
            while let Some(name) = open.pop() {
                for next in self
                    .neighbours(&name)
                    .into_iter()
                    .map(|n| n.far.node().to_owned())
                {
                    let Some(switch) = self.switch(&next).filter(|_| seen.insert(next.clone())) else {
                        continue;
                    };
                    match switch.kind {
                        SwitchKind::Plain => open.push(next),
                        SwitchKind::Castnet if switch.mcst_prefix.is_none() => {
                            missing.entry(next).or_insert_with(|| router.name.clone());
                        }
                        SwitchKind::Castnet | SwitchKind::Router => {}
                    }
                }
            }
        }
        let missing = missing.into_iter();
        missing
            .map(|(switch, router)| TopologyError::PrefixMissing { switch, router })
            .collect()
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        match self.what(name)? {
            What::Host(host) => Some(host),
            What::Switch(_) => None,
        }
    }

    fn what(&self, name: &str) -> Option<&What> {
        let number = *self.by_name.get(name)?;
        Some(&self.nodes[number as usize].what)
    }

    fn at(&self, node: NodeId) -> &What {
        &self.nodes[self.index().order[node.0 as usize] as usize].what
    }

    /// The number of a node.
    pub fn id(&self, name: &str) -> Option<NodeId> {
        let number = *self.by_name.get(name)?;
        Some(self.index().ids[number as usize])
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        match self.at(node) {
            What::Switch(switch) => &switch.name,
            What::Host(host) => &host.name,
        }
    }

    /// The end of that number.
    pub fn end(&self, end: EndId) -> End {
        match self.at(end.node) {
            What::Switch(switch) => End::port(switch.name.as_str(), end.port),
            What::Host(host) => End::host(host.name.as_str()),
        }
    }

    /// The kind of a switch; `None`: a host.
    pub fn kind(&self, node: NodeId) -> Option<SwitchKind> {
        self.index().kinds[node.0 as usize]
    }

    /// Whether the node is a plain switch or a router.
    pub fn forwards(&self, node: NodeId) -> bool {
        self.kind(node).is_some_and(SwitchKind::is_forwarder)
    }

    /// Links of a node by port, up or down.
    pub fn hops(&self, node: NodeId) -> &[Hop] {
        self.index().hops(node)
    }

    /// The host of that number.
    pub fn host_at(&self, node: NodeId) -> Option<&Host> {
        match self.at(node) {
            What::Host(host) => Some(host),
            What::Switch(_) => None,
        }
    }

    /// The first host with this address.
    pub fn host_with(&self, ip: Ipv4Addr) -> Option<&Host> {
        let ids = &self.index().ids;
        let first = self.ips.all_of(&ip.to_bits()).map(|at| ids[at]).min()?;
        self.host_at(first).filter(|host| host.ip == Some(ip))
    }

    /// Numbers of all switches.
    pub fn switch_ids(&self) -> impl Iterator<Item = NodeId> {
        (0..self.index().switches as u32).map(NodeId)
    }

    /// All switches, by name.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.all().filter_map(|what| match what {
            What::Switch(switch) => Some(switch),
            What::Host(_) => None,
        })
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.all().filter_map(|what| match what {
            What::Host(host) => Some(host),
            What::Switch(_) => None,
        })
    }

    fn all(&self) -> impl Iterator<Item = &What> {
        let order = self.index().order.iter();
        order.map(|number| &self.nodes[*number as usize].what)
    }

    /// All links, oldest first.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        (0..).map(LinkId).zip(self.links.iter())
    }

    /// The least MTU of a link, in bytes; [`u32::MAX`] if there are no links.
    pub fn mtu_min(&self) -> u32 {
        self.index().mtu_min
    }

    /// The link of that number.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get(id.0 as usize)
    }

    /// The link at that end.
    pub fn link_at(&self, end: &End) -> Option<LinkId> {
        let number = *self.by_name.get(end.node())?;
        let node = &self.nodes[number as usize];
        if matches!(end, End::Host(_)) != matches!(node.what, What::Host(_)) {
            return None;
        }
        let at = node
            .links
            .binary_search_by_key(&end.port_number(), |(port, _)| *port);
        Some(node.links[at.ok()?].1)
    }

    /// Links of a node by port, up or down.
    pub fn neighbours(&self, name: &str) -> Vec<Neighbour> {
        let node = self.by_name.get(name).map(|n| &self.nodes[*n as usize]);
        let links = node.into_iter().flat_map(|node| &node.links);
        let neighbour = |(_, id): &(u8, LinkId)| {
            let link = &self.links[id.0 as usize];
            Neighbour {
                link: *id,
                near: link.near(name).clone(),
                far: link.far(name).clone(),
            }
        };
        links.map(neighbour).collect()
    }

    /// The link, switch and port of a host, up or down.
    pub fn attachment(&self, host: &str) -> Option<(LinkId, &str, u8)> {
        let number = *self.by_name.get(host)?;
        let node = &self.nodes[number as usize];
        let (_, link) = node
            .links
            .first()
            .filter(|_| matches!(node.what, What::Host(_)))?;
        match self.link(*link)?.far(host) {
            End::Switch { switch, port } => Some((*link, switch, *port)),
            End::Host(_) => None,
        }
    }

    /// Distances of all nodes to `to`. Hosts do not forward, nor do switches that are down.
    pub fn distances(&self, to: &str) -> Distances {
        let to = self.id(to).filter(|to| self.alive(*to));
        let host = to.filter(|to| self.kind(*to).is_none());
        let switch = match host {
            None => to,
            Some(host) => self.hops(host).iter().find(|h| h.up).map(|h| h.far.node),
        };
        let row = switch.map(|switch| self.index().rows(&[switch]).remove(0));
        Distances {
            to,
            row: row.unwrap_or_default(),
            host: host.is_some().into(),
        }
    }

    /// Distance of one node in links; `None` if there is no path.
    pub fn distance(&self, from: &str, distances: &Distances) -> Option<u32> {
        let from = self.id(from).filter(|_| distances.to.is_some())?;
        let to_row = |switch| Some(links_from(switch, &distances.row)? + distances.host);
        if Some(from) == distances.to {
            return Some(0);
        }
        match self.kind(from) {
            Some(_) => to_row(from),
            None => Some(to_row(self.hops(from).iter().find(|h| h.up)?.far.node)? + 1),
        }
    }

    /// The links of `from` on shortest paths, by port; empty if there is no path. `distances` are those to the
    /// destination.
    pub fn next_hops(&self, from: &str, distances: &Distances) -> Vec<Neighbour> {
        let Some(here) = self.distance(from, distances).filter(|d| *d > 0) else {
            return Vec::new();
        };
        let mut hops = self.neighbours(from);
        hops.retain(|n| {
            self.link(n.link).is_some_and(|l| l.up)
                && self.distance(n.far.node(), distances) == Some(here - 1)
        });
        hops
    }

    /// Whether frames can pass from one node to the other.
    pub fn connected(&self, from: &str, to: &str) -> bool {
        self.distance(from, &self.distances(to)).is_some()
    }

    /// Why there is no path between two nodes; `None` if there is one, or if a node does not exist.
    pub fn cut(&self, from: &str, to: &str) -> Option<Cut> {
        let (start, goal) = (self.id(from)?, self.id(to)?);
        // Find the path with the fewest links and switches that are down: each costs 1, everything else 0.
        let start_cost = u32::from(!self.alive(start));
        let mut best: BTreeMap<NodeId, (u32, Option<Hop>)> = BTreeMap::new();
        best.insert(start, (start_cost, None));
        let mut queue = VecDeque::from([(start, start_cost)]);
        while let Some((node, cost)) = queue.pop_front() {
            if best.get(&node).is_some_and(|(known, _)| *known < cost)
                || (node != start && self.kind(node).is_none())
            {
                continue;
            }
            let mut hops = self.hops(node).to_vec();
            hops.sort_by_key(|hop| hop.link);
            for hop in hops {
                let next = hop.far.node;
                let link_up = self.links[hop.link.0 as usize].up;
                let cost_next = cost + u32::from(!link_up) + u32::from(!self.alive(next));
                if best.get(&next).is_none_or(|(known, _)| cost_next < *known) {
                    best.insert(next, (cost_next, Some(hop)));
                    if cost_next == cost {
                        queue.push_front((next, cost))
                    } else {
                        queue.push_back((next, cost_next))
                    }
                }
            }
        }
        let Some((cost, _)) = best.get(&goal) else {
            return Some(Cut::NeverLinked);
        };
        if *cost == 0 {
            return None;
        }
        let mut down = Vec::new();
        let mut at = goal;
        loop {
            if !self.alive(at) {
                down.push(Down::Switch(self.name(at).into()));
            }
            let Some((_, Some(hop))) = best.get(&at) else {
                break;
            };
            let link = &self.links[hop.link.0 as usize];
            if !link.up {
                down.push(Down::Link {
                    a: link.a.clone(),
                    b: link.b.clone(),
                });
            }
            at = hop.near.node;
        }
        down.reverse();
        Some(Cut::Down(down))
    }

    pub(crate) fn alive(&self, node: NodeId) -> bool {
        self.index().up[node.0 as usize]
    }
}
