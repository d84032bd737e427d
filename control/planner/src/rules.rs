//! From a tree to one rule per switch, for groups of all kinds.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{Endpoint, FaultKind, GroupRule, HostEndpoint, MulticastRule, NextHop, TranslatedRule};
use castnet_topology::Topology;
use castnet_wire::{MacAddr, McstId, PortId, Qpn};

use crate::error::PlanError;
use crate::grow::{Children, Parents, children};
use crate::plan::Plan;
use crate::request::{Request, RequestKind};
use crate::tree::{Path, Role, Tree, TreeNode};

/// What all rules of a group share.
struct Writer<'a> {
    topology: &'a Topology,
    request: &'a Request,
    slots: u16,
    /// By name in the tree, with the index in the request.
    members: BTreeMap<&'a str, (usize, &'a HostEndpoint)>,
    children: Children,
}

/// The plan for the tree of `parents` below `root`. `members` are those of the request, with their names in the tree.
pub(crate) fn write(
    topology: &Topology,
    (request, slots): (&Request, u16),
    members: &[HostEndpoint],
    (root, parents): (&str, &Parents),
) -> Result<Plan, PlanError> {
    let by_name = members.iter().enumerate();
    let writer = Writer {
        topology,
        request,
        slots,
        members: by_name.map(|(i, host)| (host.name.as_str(), (i, host))).collect(),
        children: children(parents),
    };
    let tree = Tree {
        root: writer.node(root, None),
    };
    let mut rules = BTreeMap::new();
    writer.write(&tree.root, None, &mut rules);
    number(&mut rules, |host| {
        let (member, _) = writer.members.get(host.name.as_str())?;
        Some(request.members[*member].host.as_str())
    });
    address(&tree, &request.mcst_ids, &mut rules)?;
    for (switch, rule) in &rules {
        let mut faults = rule.check(PortId::COUNT);
        if rule.translated().is_some() {
            // The switch lacks room; the rule has no fault.
            faults.retain(|fault| !matches!(fault.kind, FaultKind::TooManyEndpoints { .. }));
        }
        if !faults.is_empty() {
            let switch = switch.clone();
            return Err(PlanError::BadRule { switch, faults });
        }
    }
    Ok(Plan { tree, rules })
}

impl Writer<'_> {
    fn node(&self, name: &str, up: Option<Path>) -> TreeNode {
        let role = match self.members.get(name) {
            Some((member, host)) => self.role(*member, host),
            None => Role::Switch,
        };
        let children = self.children.get(name).into_iter().flatten();
        let children = children.map(|(link, child)| self.node(child, Some(link.clone())));
        TreeNode {
            name: name.into(),
            role,
            up,
            children: children.collect(),
        }
    }

    fn role(&self, member: usize, host: &HostEndpoint) -> Role {
        let (ip, qpn) = (host.ip, host.qpn);
        match self.request.kind {
            RequestKind::Multicast(MulticastRule { source, .. }) if usize::from(source) == member => {
                Role::Source { ip, qpn }
            }
            RequestKind::Multicast(_) => Role::Receiver { ip, qpn },
            RequestKind::Collective { .. } => Role::Rank {
                rank: member as u16,
                ip,
                qpn,
            },
        }
    }

    fn write(&self, node: &TreeNode, parent: Option<&TreeNode>, rules: &mut BTreeMap<String, GroupRule>) {
        if node.role == Role::Switch {
            rules.insert(node.name.clone(), self.rule(node, parent));
        }
        for child in &node.children {
            self.write(child, Some(node), rules);
        }
    }

    fn rule(&self, node: &TreeNode, parent: Option<&TreeNode>) -> GroupRule {
        let mut elsewhere = match self.request.kind {
            RequestKind::Multicast(_) => BTreeSet::new(),
            RequestKind::Collective { .. } => (0..self.members.len() as u16).collect(),
        };
        let mut endpoints = Vec::new();
        for child in &node.children {
            let mut below = BTreeSet::new();
            ranks_below(child, &mut below);
            elsewhere.retain(|rank| !below.contains(rank));
            endpoints.extend(child.up.as_ref().and_then(|up| {
                let hop = self.next_hop(&child.name, (up, up.far_port()), below)?;
                Some(Endpoint::new(up.near_port()?, hop))
            }));
        }
        if let Some((parent, up)) = parent.zip(node.up.as_ref()) {
            let hop = self.next_hop(&parent.name, (up, up.near_port()), elsewhere);
            endpoints.extend(up.far_port().zip(hop).map(|(port, hop)| Endpoint::new(port, hop)));
        }
        let order = |e: &Endpoint| (e.next_hop.ranks().first().copied(), e.port);
        endpoints.sort_by(|x, y| {
            let names = || x.next_hop.name().cmp(y.next_hop.name());
            order(x).cmp(&order(y)).then_with(names)
        });
        let upstream = |parent: &TreeNode| endpoints.iter().position(|e| e.next_hop.name() == parent.name);
        let upstream = parent.and_then(upstream).map(|index| index as u16);
        let kind = match self.request.kind {
            RequestKind::Multicast(rule) => MulticastRule {
                source: upstream.unwrap_or_default(),
                ..rule
            }
            .into(),
            RequestKind::Collective { rule, .. } => TranslatedRule {
                slots: self.slots,
                parent: upstream,
                ..rule
            }
            .into(),
        };
        GroupRule {
            name: self.request.name.clone(),
            generation: self.request.generation,
            mcst_id: self.request.mcst_id,
            pmtu: self.request.pmtu,
            stall_timeout_ms: self.request.stall_timeout_ms,
            endpoints,
            kind,
        }
    }

    /// Next hop to a node of the tree, by the path to it, its port there, and the ranks behind it.
    fn next_hop(
        &self,
        name: &str,
        (path, port): (&Path, Option<PortId>),
        ranks: BTreeSet<u16>,
    ) -> Option<NextHop> {
        match (self.members.get(name), port) {
            (Some((_, host)), _) => Some(host_hop(host, path)),
            (None, Some(port)) => {
                let ranks = ranks.into_iter().collect();
                Some(switch_hop(self.topology, name, (path, port), ranks))
            }
            (None, None) => None,
        }
    }
}

fn ranks_below(node: &TreeNode, all: &mut BTreeSet<u16>) {
    if let Role::Rank { rank, .. } = node.role {
        all.insert(rank);
    }
    node.children.iter().for_each(|child| ranks_below(child, all));
}

/// Next hop to a switch. [`number`] sets its QPN, [`address`] its McstID behind routers. The sending switch resolves
/// the router's Ethernet address itself.
fn switch_hop(topology: &Topology, name: &str, (path, port): (&Path, PortId), ranks: Vec<u16>) -> NextHop {
    let ports = topology.switch(name).map(|s| &s.ports);
    let mac = ports.and_then(|ports| ports.get(&(port.index() as u8)).copied().map(MacAddr));
    NextHop::Switch {
        name: name.into(),
        ip: None,
        qpn: Qpn::VIRTUAL,
        mac: mac.filter(|_| !path.is_routed()).unwrap_or(MacAddr::UNSPECIFIED),
        ranks,
    }
}

fn host_hop(host: &HostEndpoint, path: &Path) -> NextHop {
    let mut hop = NextHop::Host(host.clone());
    if path.is_routed() {
        hop.set_mac(MacAddr::UNSPECIFIED);
    }
    hop
}

/// If the tree passes routers, gives each of its switches its own McstID, which the neighbours' rules name.
fn address(
    tree: &Tree,
    own: &BTreeMap<String, McstId>,
    rules: &mut BTreeMap<String, GroupRule>,
) -> Result<(), PlanError> {
    if !tree.is_routed() {
        return Ok(());
    }
    let own = |switch: &String| {
        let mcst_id = own.get(switch).copied();
        mcst_id.ok_or_else(|| PlanError::NoMcstId {
            switch: switch.clone(),
        })
    };
    for (switch, rule) in rules.iter_mut() {
        rule.mcst_id = own(switch)?;
        for endpoint in &mut rule.endpoints {
            if let NextHop::Switch { name, ip, .. } = &mut endpoint.next_hop {
                *ip = Some(own(name)?.0);
            }
        }
    }
    Ok(())
}

/// Assigns QPNs to the endpoints of a group. Endpoints that share port and source address (several switches at a port,
/// members of one host) get 2, 3 and so on per port. Both ends of an edge between switches know each other's QPN.
///
/// `host_of` is the name of a member's host. Members of one host have one address, but it may be missing from the
/// request, which then has a stand-in for each.
fn number<'r>(rules: &mut BTreeMap<String, GroupRule>, host_of: impl Fn(&HostEndpoint) -> Option<&'r str>) {
    let mut known: BTreeMap<(String, String), Qpn> = BTreeMap::new();
    for (switch, rule) in rules.iter_mut() {
        let alike = |x: &Endpoint, y: &Endpoint| {
            let same_sender = match (x.next_hop.host(), y.next_hop.host()) {
                (Some(x), Some(y)) => x.ip == y.ip || host_of(x) == host_of(y),
                (host, _) => host.is_none(),
            };
            x.port == y.port && same_sender
        };
        let all = &rule.endpoints;
        let shared: Vec<bool> = all
            .iter()
            .map(|x| all.iter().any(|y| !core::ptr::eq(x, y) && alike(x, y)))
            .collect();
        let mut last: BTreeMap<PortId, u32> = BTreeMap::new();
        for (endpoint, shared) in rule.endpoints.iter_mut().zip(shared) {
            if shared {
                let qpn = last.entry(endpoint.port).or_insert(Qpn::VIRTUAL.value());
                *qpn += 1;
                endpoint.virtual_qpn = Qpn::new(*qpn);
            }
            if let NextHop::Switch { name, .. } = &endpoint.next_hop {
                known.insert((switch.clone(), name.clone()), endpoint.virtual_qpn);
            }
        }
    }
    for (switch, rule) in rules.iter_mut() {
        for endpoint in &mut rule.endpoints {
            if let NextHop::Switch { name, qpn, .. } = &mut endpoint.next_hop
                && let Some(own) = known.get(&(name.clone(), switch.clone()))
            {
                *qpn = *own;
            }
        }
    }
}
