use std::collections::BTreeSet;

use crate::graph::Topology;
use crate::index::{EndId, Hop, NodeId, Row};

/// The part of a fabric that a group may use: links that are up, with an MTU of at least `mtu`, and switches that are up
/// and not in `without`.
#[derive(Clone, Debug)]
pub struct Usable<'t> {
    /// The fabric.
    pub topology: &'t Topology,
    /// The least MTU in bytes.
    pub mtu: u32,
    /// Switches that it must not use.
    pub without: BTreeSet<NodeId>,
}

impl<'t> Usable<'t> {
    /// All that is up, with links of at least this MTU.
    pub fn new(topology: &'t Topology, mtu: u32) -> Self {
        let without = BTreeSet::new();
        Self {
            topology,
            mtu,
            without,
        }
    }

    /// Usable links of a node by port.
    #[inline]
    pub fn hops(&self, node: NodeId) -> impl Iterator<Item = &'t Hop> + Clone {
        self.topology.hops(node).iter().filter(|hop| self.has(hop))
    }

    /// The link at an end, if it is usable.
    pub fn hop(&self, end: EndId) -> Option<&'t Hop> {
        let hops = self.topology.hops(end.node);
        let at = hops.binary_search_by_key(&end.port, |hop| hop.near.port).ok()?;
        Some(&hops[at]).filter(|hop| self.has(hop))
    }

    #[inline]
    fn has(&self, hop: &Hop) -> bool {
        hop.up && hop.mtu >= self.mtu && !self.without.contains(&hop.far.node)
    }

    /// Whether a switch may be used.
    pub fn has_switch(&self, node: NodeId) -> bool {
        self.topology.alive(node) && !self.without.contains(&node)
    }

    /// Distances of all switches to each of these usable switches, by number, in links; [`u16::MAX`]: no path. Distances
    /// in the whole fabric are computed once and shared.
    pub fn distances(&self, to: &[NodeId]) -> Vec<Row> {
        let index = self.topology.index();
        if self.without.is_empty() && index.mtu_min >= self.mtu {
            index.rows(to)
        } else {
            let far = |node| self.hops(node).map(|hop| hop.far.node);
            index.search(to, |node| far(node).filter(|far| index.is_switch(*far)))
        }
    }
}
