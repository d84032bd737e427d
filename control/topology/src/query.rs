use std::collections::{BTreeMap, BTreeSet, VecDeque};

use petgraph::graph::{EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::error::TopologyError;
use crate::graph::{End, Host, Link, LinkId, Node, Switch, SwitchKind, Topology};

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
    by_node: Vec<Option<u32>>,
}

impl Topology {
    /// The switch of that name.
    pub fn switch(&self, name: &str) -> Option<&Switch> {
        match self.node(name)? {
            Node::Switch(switch) => Some(switch),
            Node::Host(_) => None,
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
        self.switch(name).is_some_and(|s| s.kind != SwitchKind::Castnet)
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
        match self.node(name)? {
            Node::Host(host) => Some(host),
            Node::Switch(_) => None,
        }
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).and_then(|i| self.graph.node_weight(*i))
    }

    /// All switches, by name.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.by_name.keys().filter_map(|name| self.switch(name))
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.by_name.keys().filter_map(|name| self.host(name))
    }

    /// All links, oldest first.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.graph
            .edge_references()
            .map(|e| (LinkId(e.id().index() as u32), e.weight()))
    }

    /// The link of that number.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.graph.edge_weight(EdgeIndex::new(id.0 as usize))
    }

    /// The link at that end.
    pub fn link_at(&self, end: &End) -> Option<LinkId> {
        self.by_end.get(end).map(|e| LinkId(e.index() as u32))
    }

    /// Links of a node by port, up or down.
    pub fn neighbours(&self, name: &str) -> Vec<Neighbour> {
        let Some(index) = self.by_name.get(name) else {
            return Vec::new();
        };
        let mut all: Vec<Neighbour> = self
            .graph
            .edges(*index)
            .map(|e| Neighbour {
                link: LinkId(e.id().index() as u32),
                near: e.weight().near(name).clone(),
                far: e.weight().far(name).clone(),
            })
            .collect();
        all.sort_by(|x, y| x.near.cmp(&y.near));
        all
    }

    /// The link, switch and port of a host, up or down.
    pub fn attachment(&self, host: &str) -> Option<(LinkId, &str, u8)> {
        let edge = self.by_end.get(&End::Host(host.into()))?;
        match self.graph.edge_weight(*edge)?.far(host) {
            End::Switch { switch, port } => Some((LinkId(edge.index() as u32), switch, *port)),
            End::Host(_) => None,
        }
    }

    /// Distances of all nodes to `to`. Hosts do not forward, nor do switches that are down.
    pub fn distances(&self, to: &str) -> Distances {
        let mut by_node = vec![None; self.graph.node_count()];
        let Some(start) = self.by_name.get(to).copied().filter(|i| self.alive(*i)) else {
            return Distances { by_node };
        };
        by_node[start.index()] = Some(0);
        let mut queue = VecDeque::from([(start, 0)]);
        while let Some((node, distance)) = queue.pop_front() {
            if node != start && matches!(self.graph[node], Node::Host(_)) {
                continue;
            }
            for edge in self.graph.edges(node).filter(|e| e.weight().up) {
                let next = edge.target();
                if by_node[next.index()].is_none() && self.alive(next) {
                    by_node[next.index()] = Some(distance + 1);
                    queue.push_back((next, distance + 1));
                }
            }
        }
        Distances { by_node }
    }

    /// Distance of one node in links; `None` if there is no path.
    pub fn distance(&self, from: &str, distances: &Distances) -> Option<u32> {
        let index = self.by_name.get(from)?;
        distances.by_node.get(index.index()).copied().flatten()
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
        let (start, goal) = (*self.by_name.get(from)?, *self.by_name.get(to)?);
        // Find the path with the fewest links and switches that are down: each costs 1, everything else 0.
        let start_cost = u32::from(!self.alive(start));
        let mut best: BTreeMap<NodeIndex, (u32, Option<EdgeIndex>)> = BTreeMap::new();
        best.insert(start, (start_cost, None));
        let mut queue = VecDeque::from([(start, start_cost)]);
        while let Some((node, cost)) = queue.pop_front() {
            if best.get(&node).is_some_and(|(known, _)| *known < cost)
                || (node != start && matches!(self.graph[node], Node::Host(_)))
            {
                continue;
            }
            let mut edges: Vec<EdgeIndex> = self.graph.edges(node).map(|e| e.id()).collect();
            edges.sort();
            for edge in edges {
                let Some((a, b)) = self.graph.edge_endpoints(edge) else {
                    continue;
                };
                let next = if a == node { b } else { a };
                let cost_next = cost + u32::from(!self.graph[edge].up) + u32::from(!self.alive(next));
                if best.get(&next).is_none_or(|(known, _)| cost_next < *known) {
                    best.insert(next, (cost_next, Some(edge)));
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
            if let Node::Switch(s) = &self.graph[at]
                && !s.up
            {
                down.push(Down::Switch(s.name.clone()));
            }
            let Some((_, Some(edge))) = best.get(&at) else {
                break;
            };
            let link = &self.graph[*edge];
            if !link.up {
                down.push(Down::Link {
                    a: link.a.clone(),
                    b: link.b.clone(),
                });
            }
            let Some((a, b)) = self.graph.edge_endpoints(*edge) else {
                break;
            };
            at = if a == at { b } else { a };
        }
        down.reverse();
        Some(Cut::Down(down))
    }

    fn alive(&self, node: NodeIndex) -> bool {
        match &self.graph[node] {
            Node::Switch(s) => s.up,
            Node::Host(_) => true,
        }
    }
}
