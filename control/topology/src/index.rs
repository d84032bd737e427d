//! The fabric in integers: nodes in order, links by port, and distances that are computed once and shared.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::graph::{LinkId, SwitchKind, Topology, What};

/// Number of a node. Switches by name come first, then hosts by name: numbers compare as [`End`](crate::End)s do. A
/// change of the fabric may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// An [`End`](crate::End) by number; a host has port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndId {
    /// Its switch or host.
    pub node: NodeId,
    /// Its port.
    pub port: u8,
}

/// A link, seen from one of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: LinkId,
    /// Its end at the node.
    pub near: EndId,
    /// Its other end.
    pub far: EndId,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether the link and the far node are up.
    pub up: bool,
}

/// Distances of all switches to one switch in links; [`u16::MAX`]: no path.
pub type Row = Arc<[u16]>;

/// Links from a node to the destination of `distances`; `None`: there is no path, or the node is a host.
#[inline]
pub fn links_from(node: NodeId, distances: &Row) -> Option<u32> {
    let links = *distances.get(node.0 as usize)?;
    (links != u16::MAX).then_some(links.into())
}

#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Place of each node in the topology, by [`NodeId`].
    pub(crate) order: Vec<u32>,
    /// The reverse.
    pub(crate) ids: Vec<NodeId>,
    pub(crate) switches: usize,
    /// Of each node: the kind of a switch; `None`: a host.
    pub(crate) kinds: Vec<Option<SwitchKind>>,
    pub(crate) up: Vec<bool>,
    pub(crate) mtu_min: u32,
    hops: Lists<Hop>,
    /// The switches that a usable link leads to, of each switch.
    near: Lists<NodeId>,
    /// Of each switch: the first one that the same switches are next to, as all edge switches of a pod; itself, if it is down.
    twins: Vec<NodeId>,
    /// Distances to each switch over all links that are up.
    rows: Vec<OnceLock<Row>>,
}

/// A list of each node, one after the other.
#[derive(Clone, Debug)]
struct Lists<T> {
    /// Where the list of each node begins.
    first: Vec<u32>,
    all: Vec<T>,
}

impl<T> Lists<T> {
    fn new() -> Self {
        let first = vec![0];
        Self {
            first,
            all: Vec::new(),
        }
    }

    fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.all.extend(list);
        self.first.push(self.all.len() as u32);
    }

    fn of(&self, node: NodeId) -> &[T] {
        let at = node.0 as usize;
        &self.all[self.first[at] as usize..self.first[at + 1] as usize]
    }
}

impl Index {
    pub(crate) fn new(topology: &Topology) -> Self {
        let name = |n: u32| match &topology.nodes[n as usize].what {
            What::Switch(switch) => (false, switch.name.as_str()),
            What::Host(host) => (true, host.name.as_str()),
        };
        let mut order: Vec<u32> = (0..topology.nodes.len() as u32).collect();
        order.sort_unstable_by_key(|n| name(*n));
        let switches = order.partition_point(|n| !name(*n).0);
        let mut ids = vec![NodeId(0); order.len()];
        for (id, number) in (0..).zip(&order) {
            ids[*number as usize] = NodeId(id);
        }
        let of = |n: &u32| match &topology.nodes[*n as usize].what {
            What::Switch(switch) => (Some(switch.kind), switch.up),
            What::Host(_) => (None, true),
        };
        let (kinds, up): (Vec<Option<SwitchKind>>, Vec<bool>) = order.iter().map(of).unzip();
        let (mut hops, mut near) = (Lists::new(), Lists::new());
        for (id, number) in (0..).map(NodeId).zip(&order) {
            let node = &topology.nodes[*number as usize];
            hops.push(node.links.iter().map(|(port, link_id)| {
                let link = &topology.links[link_id.0 as usize];
                let [a, b] = topology.joined[link_id.0 as usize];
                let (far, far_end) = if a == *number { (b, &link.b) } else { (a, &link.a) };
                let far = EndId {
                    node: ids[far as usize],
                    port: far_end.port_number(),
                };
                Hop {
                    link: *link_id,
                    near: EndId {
                        node: id,
                        port: *port,
                    },
                    far,
                    mtu: link.mtu,
                    up: link.up && up[far.node.0 as usize],
                }
            }));
            let usable = hops.of(id).iter().filter(|hop| hop.up).map(|hop| hop.far.node);
            near.push(usable.filter(|far| (far.0 as usize) < switches));
        }
        let mut firsts: HashMap<&[NodeId], NodeId> = HashMap::new();
        let twin = |node: NodeId| match up[node.0 as usize] {
            true => *firsts.entry(near.of(node)).or_insert(node),
            false => node,
        };
        let twins = (0..switches as u32).map(NodeId).map(twin).collect();
        Self {
            order,
            ids,
            switches,
            twins,
            kinds,
            up,
            mtu_min: topology.links.iter().map(|l| l.mtu).min().unwrap_or(u32::MAX),
            hops,
            near,
            rows: vec![OnceLock::new(); switches],
        }
    }

    pub(crate) fn hops(&self, node: NodeId) -> &[Hop] {
        self.hops.of(node)
    }

    pub(crate) fn is_switch(&self, node: NodeId) -> bool {
        (node.0 as usize) < self.switches
    }

    /// Distances to switches that are up, over all links that are up.
    pub(crate) fn rows(&self, to: &[NodeId]) -> Vec<Row> {
        let is_missing = |node: &NodeId| self.rows[node.0 as usize].get().is_none();
        let missing = to.iter().filter(|node| is_missing(node));
        let mut searched: Vec<NodeId> = missing.map(|node| self.twins[node.0 as usize]).collect();
        searched.retain(is_missing);
        searched.sort_unstable();
        searched.dedup();
        if !searched.is_empty() {
            let filled = self.search(&searched, |node| self.near.of(node).iter().copied());
            for (node, row) in searched.iter().zip(filled) {
                _ = self.rows[node.0 as usize].set(row);
            }
        }
        to.iter().map(|node| self.row(*node)).collect()
    }

    /// Distances to a switch that has been searched, or whose twin has. Both are equally far from all others.
    fn row(&self, node: NodeId) -> Row {
        let row = self.rows[node.0 as usize].get_or_init(|| {
            let twin = self.twins[node.0 as usize];
            let twins = self.rows[twin.0 as usize].get();
            let mut row: Vec<u16> = twins.map(|row| row.to_vec()).unwrap_or_default();
            if !row.is_empty() {
                row.swap(node.0 as usize, twin.0 as usize);
            }
            row.into()
        });
        Arc::clone(row)
    }

    /// Breadth-first search from switches that are up, 64 of them in one pass: a bit for each. `near` has the switches
    /// next to one.
    pub(crate) fn search<I>(&self, from: &[NodeId], near: impl Fn(NodeId) -> I) -> Vec<Row>
    where
        I: Iterator<Item = NodeId>,
    {
        let mut rows = Vec::with_capacity(from.len());
        let mut seen = vec![0u64; self.switches];
        let mut news = vec![0u64; self.switches];
        for from in from.chunks(64) {
            let mut table = vec![u16::MAX; from.len() * self.switches];
            seen.fill(0);
            let mut layer: Vec<(NodeId, u64)> = Vec::new();
            for (bit, node) in from.iter().enumerate() {
                table[bit * self.switches + node.0 as usize] = 0;
                seen[node.0 as usize] |= 1 << bit;
                layer.push((*node, 1 << bit));
            }
            for distance in 1.. {
                let mut next = Vec::new();
                for (node, bits) in layer {
                    for far in near(node) {
                        let new = bits & !seen[far.0 as usize];
                        if new != 0 && news[far.0 as usize] == 0 {
                            next.push(far);
                        }
                        news[far.0 as usize] |= new;
                    }
                }
                if next.is_empty() {
                    break;
                }
                let reached = next.into_iter().map(|node| {
                    let at = node.0 as usize;
                    let bits = core::mem::take(&mut news[at]);
                    seen[at] |= bits;
                    let mut left = bits;
                    while left != 0 {
                        table[left.trailing_zeros() as usize * self.switches + at] = distance;
                        left &= left - 1;
                    }
                    (node, bits)
                });
                layer = reached.collect();
            }
            rows.extend(table.chunks(self.switches.max(1)).map(Row::from));
        }
        rows
    }
}
