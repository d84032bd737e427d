//! Distribution trees and IncTrees, for drawing and counting.

use core::fmt;
use core::net::Ipv4Addr;

use castnet_topology::{End, LinkId};
use castnet_wire::{PortId, Qpn};

/// The tree of one group. Displays as lines with box-drawing characters; port numbers are in brackets:
///
/// ```text
/// h0 10.0.0.1 QP 0x11, source
/// └─[0] leaf0
///    ├─[1]─ h1 10.0.0.2 QP 0x12
///    └─[2]─[0] spine0
///       └─[1]─[2] leaf1
///          └─[0]─(rack)─ h2 10.0.0.3 QP 0x13
/// ```
///
/// Plain switches and routers are not nodes: those between two nodes are in parentheses, routers in angle brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The source of a multicast group; the topmost switch of an IncTree.
    pub root: TreeNode,
}

/// A Castnet switch or a member of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeNode {
    /// Name of the switch or host; `host#rank` if the host has several ranks of the group.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// The path from its parent; `None` at the root.
    pub up: Option<Path>,
    /// The nodes that it replicates to, by port.
    pub children: Vec<TreeNode>,
}

/// What a node of a tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host that sends.
    Source {
        /// Its address.
        ip: Ipv4Addr,
        /// Its QP.
        qpn: Qpn,
    },
    /// A switch.
    Switch,
    /// A host that receives.
    Receiver {
        /// Its address.
        ip: Ipv4Addr,
        /// Its QP.
        qpn: Qpn,
    },
    /// The host of a rank of a collective group.
    Rank {
        /// Its rank.
        rank: u16,
        /// Its address.
        ip: Ipv4Addr,
        /// Its QP.
        qpn: Qpn,
    },
}

/// A path between two nodes of a tree: one link, or several over plain switches and routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it begins.
    pub near: End,
    /// Where it ends.
    pub far: End,
    /// The links, at least one, from `near` to `far`.
    pub links: Vec<LinkId>,
    /// Plain switches and routers between the links.
    pub via: Vec<String>,
    /// Those of `via` that are routers. If there are any, the ends are in different networks.
    pub routers: Vec<String>,
}

impl Tree {
    /// All nodes, parents first.
    pub fn nodes(&self) -> Vec<&TreeNode> {
        let mut all = vec![&self.root];
        let mut next = 0;
        while let Some(node) = all.get(next).copied() {
            all.extend(&node.children);
            next += 1;
        }
        all
    }

    /// All links, each as often as it carries each frame of the source: once, but links of plain switches may repeat.
    pub fn links(&self) -> Vec<LinkId> {
        let paths = self.nodes().into_iter().filter_map(|n| n.up.as_ref());
        paths.flat_map(|up| up.links.iter().copied()).collect()
    }

    /// Whether one of its paths passes a router.
    pub fn is_routed(&self) -> bool {
        let nodes = self.nodes();
        let mut paths = nodes.iter().filter_map(|n| n.up.as_ref());
        paths.any(Path::is_routed)
    }

    /// Castnet switches from the source to the farthest receiver.
    pub fn tiers(&self) -> usize {
        fn deepest(node: &TreeNode) -> usize {
            let own = usize::from(node.role == Role::Switch);
            own + node.children.iter().map(deepest).max().unwrap_or(0)
        }
        deepest(&self.root)
    }
}

impl Path {
    /// The port where it begins; `None` at a host.
    pub fn near_port(&self) -> Option<PortId> {
        port(&self.near)
    }

    /// The port where it ends; `None` at a host.
    pub fn far_port(&self) -> Option<PortId> {
        port(&self.far)
    }

    /// Whether routers lie between its ends.
    pub fn is_routed(&self) -> bool {
        !self.routers.is_empty()
    }
}

fn port(end: &End) -> Option<PortId> {
    match end {
        End::Switch { port, .. } => PortId::new(*port),
        End::Host(_) => None,
    }
}

impl TreeNode {
    fn draw(&self, f: &mut fmt::Formatter<'_>, indent: &str) -> fmt::Result {
        for (i, child) in self.children.iter().enumerate() {
            let last = i + 1 == self.children.len();
            write!(f, "\n{indent}{}", if last { "└─" } else { "├─" })?;
            if let Some(up) = &child.up {
                if let Some(port) = up.near_port() {
                    write!(f, "[{port}]─")?;
                }
                for name in &up.via {
                    match up.routers.contains(name) {
                        true => write!(f, "<{name}>─")?,
                        false => write!(f, "({name})─")?,
                    }
                }
                if let Some(port) = up.far_port() {
                    write!(f, "[{port}]")?;
                }
            }
            write!(f, " {child}")?;
            child.draw(f, &format!("{indent}{}", if last { "   " } else { "│  " }))?;
        }
        Ok(())
    }
}

impl fmt::Display for TreeNode {
    /// Without its children.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::Source { ip, qpn } => write!(f, "{} {ip} QP {qpn}, source", self.name),
            Role::Receiver { ip, qpn } => write!(f, "{} {ip} QP {qpn}", self.name),
            Role::Rank { rank, ip, qpn } => write!(f, "rank {rank}: {} {ip} QP {qpn}", self.name),
            Role::Switch => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root)?;
        self.root.draw(f, "")
    }
}
