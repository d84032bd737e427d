//! Directed links of a fabric, shortest paths, and trees of directed links.

use castnet_planner::{Role, TreeNode};
use castnet_topology::{NodeId, Topology};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::sim::figures::Failed;
use crate::sim::peel::group::host;

/// Number of a link in one direction.
pub(super) type DirectedLink = u32;

/// The links that are up, each as two directed links.
#[derive(Debug)]
pub(super) struct Fabric {
    /// By node: directed link and far node.
    next: Vec<Vec<(DirectedLink, NodeId)>>,
    /// Nodes of the hosts, by number.
    hosts: Vec<NodeId>,
    /// By directed link: the host that it leads to.
    leads_to: Vec<Option<u32>>,
    /// By directed link: whether it leads from a host.
    is_uplink: Vec<bool>,
    /// By host: its link to the ToR.
    uplinks: Vec<DirectedLink>,
    /// By destination ToR, by node: links of the shortest path.
    distances: Vec<(NodeId, Vec<u32>)>,
    /// By node: links to the nearest ToR.
    layers: Vec<u32>,
    /// Hosts at each ToR.
    pub(super) at_tor: u32,
    /// ToRs in each pod.
    pub(super) in_pod: u32,
}

impl Fabric {
    /// The fabric as it is now: links that are down are left out. Hosts of one ToR follow one another, as ToRs of one pod do.
    pub(super) fn new(t: &Topology, at_tor: u32, in_pod: u32) -> Result<Self, Failed> {
        let count = t.hosts().count() as u32;
        let hosts: Option<Vec<NodeId>> = (0..count).map(|number| t.id(&host(number))).collect();
        let hosts = hosts.ok_or("hosts are numbered")?;
        let nodes: Vec<NodeId> = t.switch_ids().chain(hosts.iter().copied()).collect();
        let size = nodes.iter().map(|node| node.0 as usize + 1).max().unwrap_or(0);
        let mut fabric = Self {
            next: vec![Vec::new(); size],
            leads_to: vec![None; t.links().count() * 2],
            is_uplink: vec![false; t.links().count() * 2],
            uplinks: vec![0; hosts.len()],
            distances: Vec::new(),
            layers: vec![u32::MAX; size],
            hosts,
            at_tor,
            in_pod,
        };
        for node in nodes {
            for hop in t.hops(node).iter().filter(|hop| hop.up) {
                let link = hop.link.0 * 2 + u32::from(hop.near > hop.far);
                fabric.next[node.0 as usize].push((link, hop.far.node));
            }
        }
        for (number, node) in fabric.hosts.iter().enumerate() {
            let (up, _) = fabric.next[node.0 as usize]
                .first()
                .copied()
                .ok_or("a host has a link")?;
            fabric.uplinks[number] = up;
            fabric.is_uplink[up as usize] = true;
            fabric.leads_to[(up ^ 1) as usize] = Some(number as u32);
        }
        for first in (0..count).step_by(at_tor as usize) {
            let tor = fabric.tor(first)?;
            let distances = fabric.distances_to(tor);
            for (layer, links) in fabric.layers.iter_mut().zip(&distances) {
                *layer = (*layer).min(*links);
            }
            fabric.distances.push((tor, distances));
        }
        Ok(fabric)
    }

    pub(super) fn hosts(&self) -> u32 {
        self.hosts.len() as u32
    }

    pub(super) fn links(&self) -> usize {
        self.leads_to.len()
    }

    pub(super) fn uplink(&self, host: u32) -> DirectedLink {
        self.uplinks[host as usize]
    }

    /// The host where a link ends; `None` at a switch.
    pub(super) fn leads_to(&self, link: DirectedLink) -> Option<u32> {
        self.leads_to[link as usize]
    }

    /// Whether a link begins at a host.
    pub(super) fn is_uplink(&self, link: DirectedLink) -> bool {
        self.is_uplink[link as usize]
    }

    /// The switch of a host.
    fn tor(&self, host: u32) -> Result<NodeId, Failed> {
        let node = self.hosts.get(host as usize).ok_or("a host of the fabric")?;
        let (_, tor) = self.next[node.0 as usize].first().ok_or("a host has a link")?;
        Ok(*tor)
    }

    fn distances_to(&self, tor: NodeId) -> Vec<u32> {
        let mut distances = vec![u32::MAX; self.next.len()];
        distances[tor.0 as usize] = 0;
        let mut layer = vec![tor];
        while !layer.is_empty() {
            let mut outer = Vec::new();
            for node in layer {
                let links = distances[node.0 as usize] + 1;
                // Hosts do not forward.
                for (link, far) in &self.next[node.0 as usize] {
                    if self.leads_to(*link).is_none() && distances[far.0 as usize] == u32::MAX {
                        distances[far.0 as usize] = links;
                        outer.push(*far);
                    }
                }
            }
            layer = outer;
        }
        distances
    }

    /// A shortest path from a switch to the ToR of a host, drawn hop by hop as ECMP does.
    fn to_tor(
        &self,
        mut node: NodeId,
        host: u32,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<(DirectedLink, NodeId)>, Failed> {
        let (tor, distances) = self
            .distances
            .get((host / self.at_tor) as usize)
            .ok_or("a host of the fabric")?;
        let mut path = Vec::new();
        while node != *tor {
            let here = distances[node.0 as usize];
            let is_nearer = |far: &NodeId| here != u32::MAX && distances[far.0 as usize] < here;
            let hops: Vec<_> = self.next[node.0 as usize]
                .iter()
                .filter(|(link, far)| self.leads_to(*link).is_none() && is_nearer(far))
                .collect();
            if hops.is_empty() {
                return Err(NO_PATH.into());
            }
            let hop = *hops[rng.random_range(0..hops.len())];
            path.push(hop);
            node = hop.1;
        }
        Ok(path)
    }

    /// A shortest path from one host to another.
    pub(super) fn path(&self, from: u32, to: u32, rng: &mut ChaCha8Rng) -> Result<Vec<DirectedLink>, Failed> {
        let mut path = vec![self.uplink(from)];
        let inner = self.to_tor(self.tor(from)?, to, rng)?;
        path.extend(inner.into_iter().map(|(link, _)| link));
        path.push(self.uplink(to) ^ 1);
        Ok(path)
    }

    /// Links from a host to an upper switch: the ToR is layer 0, an aggregation switch 1, a core switch 2. Chosen as ECMP does. The
    /// last node is that switch.
    pub(super) fn climb(
        &self,
        from: u32,
        layers: u32,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Vec<DirectedLink>, NodeId), Failed> {
        let mut path = vec![self.uplink(from)];
        let mut node = self.tor(from)?;
        for layer in 1..=layers {
            let is_upper = |far: &NodeId| self.layers[far.0 as usize] == layer;
            let hops: Vec<_> = self.next[node.0 as usize]
                .iter()
                .filter(|(link, far)| self.leads_to(*link).is_none() && is_upper(far))
                .collect();
            if hops.is_empty() {
                return Err(NO_PATH.into());
            }
            let (link, far) = *hops[rng.random_range(0..hops.len())];
            path.push(link);
            node = far;
        }
        Ok((path, node))
    }

    /// The only shortest path down from a switch to a ToR, without the ToR's links to hosts.
    pub(super) fn descend(&self, from: NodeId, tor: u32) -> Result<Vec<DirectedLink>, Failed> {
        // There is one path down in a Clos network without failures, so nothing is drawn.
        let mut rng = rand::SeedableRng::seed_from_u64(0);
        let path = self.to_tor(from, tor * self.at_tor, &mut rng)?;
        Ok(path.into_iter().map(|(link, _)| link).collect())
    }
}

const NO_PATH: &str = "there is no path";

/// A link of a tree, and the links that copies are sent to behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) link: DirectedLink,
    /// The first of the branches behind it, and their number.
    first: u16,
    count: u16,
}

impl Branch {
    /// Indices of the branches behind this one.
    pub(super) fn behind(self) -> std::ops::Range<u16> {
        self.first..self.first + self.count
    }
}

/// A tree of directed links. The first one is the link of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree(Vec<Branch>);

impl Tree {
    pub(super) fn branch(&self, index: u16) -> Branch {
        self.0[usize::from(index)]
    }

    pub(super) fn branches(&self) -> &[Branch] {
        &self.0
    }

    /// A path.
    pub(super) fn path(links: &[DirectedLink]) -> Self {
        let mut builder = TreeBuilder::default();
        builder.extend(None, links);
        builder.build()
    }

    /// The planner's tree of a multicast group.
    pub(super) fn planned(t: &Topology, tree: &castnet_planner::Tree) -> Result<Self, Failed> {
        fn add(
            t: &Topology,
            builder: &mut TreeBuilder,
            above: Option<usize>,
            node: &TreeNode,
        ) -> Result<(), Failed> {
            let mut above = above;
            if let Some(up) = &node.up {
                let [link] = up.links[..] else {
                    return Err("a path without plain switches is one link".into());
                };
                let ends = t.link(link).ok_or("a link of the fabric")?;
                let (lesser, _) = if ends.a < ends.b {
                    (&ends.a, &ends.b)
                } else {
                    (&ends.b, &ends.a)
                };
                above = Some(builder.add(above, link.0 * 2 + u32::from(up.near != *lesser)));
            }
            node.children
                .iter()
                .try_for_each(|child| add(t, builder, above, child))
        }
        debug_assert!(matches!(tree.root.role, Role::Source { .. }));
        let mut builder = TreeBuilder::default();
        add(t, &mut builder, None, &tree.root)?;
        Ok(builder.build())
    }
}

/// A tree that grows from its root.
#[derive(Debug, Default)]
pub(super) struct TreeBuilder(Vec<(DirectedLink, Vec<usize>)>);

impl TreeBuilder {
    /// Adds a copy to a link behind another branch; `None`: at the source. Returns the new branch.
    pub(super) fn add(&mut self, above: Option<usize>, link: DirectedLink) -> usize {
        let index = self.0.len();
        self.0.push((link, Vec::new()));
        if let Some(above) = above {
            self.0[above].1.push(index);
        }
        index
    }

    /// Adds links one behind the other. Returns the last one.
    pub(super) fn extend(&mut self, above: Option<usize>, links: &[DirectedLink]) -> Option<usize> {
        links
            .iter()
            .fold(above, |above, link| Some(self.add(above, *link)))
    }

    /// Adds links one behind the other, and shares those that are there already.
    pub(super) fn merge(&mut self, above: Option<usize>, links: &[DirectedLink]) -> Option<usize> {
        links.iter().fold(above, |above, link| {
            let behind = above.map_or(&[][..], |above| &self.0[above].1);
            let found = behind.iter().find(|branch| self.0[**branch].0 == *link);
            Some(found.copied().unwrap_or_else(|| self.add(above, *link)))
        })
    }

    /// In breadth-first order, so that the branches behind one are consecutive.
    pub(super) fn build(self) -> Tree {
        let mut tree = Tree::default();
        let mut order: Vec<usize> = self.0.first().map(|_| 0).into_iter().collect();
        let mut next = 0;
        while let Some((link, behind)) = order.get(next).map(|index| &self.0[*index]) {
            tree.0.push(Branch {
                link: *link,
                first: order.len() as u16,
                count: behind.len() as u16,
            });
            order.extend(behind);
            next += 1;
        }
        tree
    }
}
