//! From a tree to one rule per switch, for groups of all kinds.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_group::Distribution;
use castnet_rules::{
    Endpoint, FaultKind, GroupKind, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, TranslatedRule,
};
use castnet_topology::{NodeId, Topology};
use castnet_wire::{MacAddr, McstId, PortId, Qpn};

use crate::error::PlanError;
use crate::grow::{Node, Parents};
use crate::overlay::Route;
use crate::plan::Plan;
use crate::request::{Request, RequestKind, slots, slots_min};
use crate::static_core;
use crate::tree::{Role, Tree, TreeNode};

/// What all rules of a group share.
struct Writer<'a> {
    topology: &'a Topology,
    request: &'a Request,
    slots: u16,
    members: &'a [HostEndpoint],
    /// The children of each node with their paths to it, by port, then by name.
    children: BTreeMap<NodeId, Vec<(&'a Route, Node)>>,
}

/// The plan for the tree of `parents` below `root`. `members` are those of the request, with their names in the tree.
pub(crate) fn write(
    topology: &Topology,
    (request, slots): (&Request, u16),
    members: &[HostEndpoint],
    (root, parents): (Node, &Parents),
) -> Result<Plan, PlanError> {
    let mut children: BTreeMap<NodeId, Vec<(&Route, Node)>> = BTreeMap::new();
    for (child, route) in parents.nodes() {
        children.entry(route.far.node).or_default().push((route, child));
    }
    let mut writer = Writer {
        topology,
        request,
        slots,
        members,
        children: BTreeMap::new(),
    };
    for children in children.values_mut() {
        let name = |node: &Node| writer.name(*node);
        children.sort_by(|(x, a), (y, b)| x.far.cmp(&y.far).then_with(|| name(a).cmp(name(b))));
    }
    writer.children = children;
    let mut rules = BTreeMap::new();
    let (root, _) = writer.node(root, None, &mut rules);
    let tree = Tree { root };
    if request.own_addresses || topology.has_forwarders() && tree.is_routed() {
        address(&request.mcst_ids, &mut rules)?;
    }
    number(&mut rules, request);
    mix(&mut rules, request, slots);
    let over_covered = match request.distribution {
        Distribution::Static { copies } => static_core::assign(topology, &tree, &mut rules, copies)?,
        Distribution::Switches(_) | Distribution::Edge(_) => BTreeSet::new(),
    };
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
    Ok(Plan {
        over_covered,
        tree,
        rules,
        shortages: Vec::new(),
    })
}

impl<'a> Writer<'a> {
    fn name(&self, node: Node) -> &'a str {
        match node {
            Node::Switch(id) => self.topology.name(id),
            Node::Member(member) => &self.members[member].name,
        }
    }

    /// The node with all below it, and the ranks among these. `up` is its parent and the path from there. Adds the rules
    /// of switches.
    fn node(
        &self,
        node: Node,
        up: Option<(Node, &Route)>,
        rules: &mut BTreeMap<String, GroupRule>,
    ) -> (TreeNode, BTreeSet<u16>) {
        let id = match node {
            Node::Switch(id) => Some(id),
            // Only a source has children, and it is the root.
            Node::Member(member) if up.is_none() => self.topology.id(&self.request.members[member].host),
            Node::Member(_) => None,
        };
        let below = id
            .and_then(|id| self.children.get(&id))
            .map_or(&[][..], Vec::as_slice);
        let mut children = Vec::with_capacity(below.len());
        // One more for the parent.
        let mut endpoints = Vec::with_capacity(below.len() + usize::from(!below.is_empty()));
        let mut ranks = BTreeSet::new();
        for (route, child) in below {
            let (tree, theirs) = self.node(*child, Some((node, route)), rules);
            let port = PortId::new(route.far.port);
            let hop = self.next_hop(*child, route, route.near.port, theirs.iter().copied());
            endpoints.extend(port.map(|port| Endpoint::new(port, hop)));
            children.push(tree);
            ranks.extend(theirs);
        }
        let role = match node {
            Node::Switch(_) => Role::Switch,
            Node::Member(member) => self.role(member),
        };
        if let Role::Rank { rank, .. } = role {
            ranks.insert(rank);
        }
        let name = self.name(node);
        if role == Role::Switch {
            rules.insert(name.into(), self.rule(endpoints, up, &ranks));
        }
        let tree = TreeNode {
            name: name.into(),
            role,
            up: up.map(|(_, route)| route.clone().reversed().named(self.topology)),
            children,
        };
        (tree, ranks)
    }

    fn role(&self, member: usize) -> Role {
        let HostEndpoint { ip, qpn, .. } = self.members[member];
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

    /// The rule of a switch with endpoints to its children and the ranks below them.
    fn rule(
        &self,
        mut endpoints: Vec<Endpoint>,
        up: Option<(Node, &Route)>,
        below: &BTreeSet<u16>,
    ) -> GroupRule {
        if let Some((parent, route)) = up {
            let ranks = match self.request.kind {
                RequestKind::Multicast(_) => 0,
                RequestKind::Collective { .. } => self.members.len() as u16,
            };
            let elsewhere = (0..ranks).filter(|rank| !below.contains(rank));
            let hop = self.next_hop(parent, route, route.far.port, elsewhere);
            let port = PortId::new(route.near.port);
            endpoints.extend(port.map(|port| Endpoint::new(port, hop)));
        }
        let order = |e: &Endpoint| (e.next_hop.ranks().first().copied(), e.port);
        endpoints.sort_by(|x, y| {
            let names = || x.next_hop.name().cmp(y.next_hop.name());
            order(x).cmp(&order(y)).then_with(names)
        });
        let parent = up.map(|(parent, _)| self.name(parent));
        let upstream = endpoints.iter().position(|e| Some(e.next_hop.name()) == parent);
        let upstream = upstream.map(|index| index as u16);
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
            rate_limit: self.request.rate_limit,
            endpoints,
            kind,
        }
    }

    /// Next hop to a node of the tree, by the path between the two, its port there, and the ranks behind it.
    fn next_hop(&self, node: Node, route: &Route, port: u8, ranks: impl Iterator<Item = u16>) -> NextHop {
        let routed = route.is_routed(self.topology);
        match node {
            Node::Member(member) => {
                let mut hop = NextHop::Host(self.members[member].clone());
                if routed {
                    hop.set_mac(MacAddr::UNSPECIFIED);
                }
                hop
            }
            // `number` sets the QPN, `address` the McstID behind routers. The sending switch resolves the router's
            // Ethernet address itself.
            Node::Switch(id) => {
                let name = self.topology.name(id);
                let ports = self.topology.switch(name).map(|s| &s.ports);
                let mac = ports.and_then(|ports| ports.get(&port).copied().map(MacAddr));
                NextHop::Switch {
                    name: name.into(),
                    ip: None,
                    qpn: Qpn::VIRTUAL,
                    mac: mac.filter(|_| !routed).unwrap_or(MacAddr::UNSPECIFIED),
                    ranks: ranks.collect(),
                    mode: None,
                    core: None,
                }
            }
        }
    }
}

/// Gives each switch its mode with the slots for it, and the modes of its neighbours.
fn mix(rules: &mut BTreeMap<String, GroupRule>, request: &Request, chosen: u16) {
    let RequestKind::Collective { window_packets, rule } = request.kind else {
        return;
    };
    let is_most = chosen == slots(window_packets, rule.message_packets, rule.mode);
    let size = if is_most { slots } else { slots_min };
    let mode_at = |switch: &str| request.modes.get(switch).copied().unwrap_or(rule.mode);
    for (switch, group) in rules {
        let mode = mode_at(switch);
        for endpoint in &mut group.endpoints {
            if let NextHop::Switch {
                name, mode: there, ..
            } = &mut endpoint.next_hop
            {
                *there = Some(mode_at(name)).filter(|there| *there != mode);
            }
        }
        if let GroupKind::Translated(kind) = &mut group.kind
            && mode != rule.mode
        {
            (kind.mode, kind.slots) = (mode, size(window_packets, rule.message_packets, mode));
        }
    }
}

/// Gives each switch its own McstID, which the neighbours' rules name.
fn address(own: &BTreeMap<String, McstId>, rules: &mut BTreeMap<String, GroupRule>) -> Result<(), PlanError> {
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
/// Members of one host have one address, but it may be missing from the request, which then has a stand-in for each.
fn number(rules: &mut BTreeMap<String, GroupRule>, request: &Request) {
    /// Whose frames an endpoint may be confused with: those of an adjacent switch have the addresses of any host.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Sender<'r> {
        Any,
        Ip(Ipv4Addr),
        Host(&'r str),
    }
    let host_of = |host: &HostEndpoint| match host.part {
        HostPart::Rank(part) => Some(Sender::Host(&request.members[usize::from(part.rank)].host)),
        HostPart::Plain | HostPart::Memory(_) => None,
    };
    let senders = |hop: &NextHop| match (hop, hop.ip()) {
        (NextHop::Host(host), _) => [Some(Sender::Ip(host.ip)), host_of(host)],
        (NextHop::Switch { .. }, Some(ip)) => [Some(Sender::Ip(ip)), None],
        (NextHop::Switch { .. }, None) => [Some(Sender::Any), None],
    };
    let mut known: BTreeMap<(String, String), Qpn> = BTreeMap::new();
    for (switch, rule) in rules.iter_mut() {
        let mut at_port = [0; PortId::COUNT];
        for endpoint in &rule.endpoints {
            at_port[endpoint.port.index()] += 1;
        }
        let is_alone = |endpoint: &Endpoint| at_port[endpoint.port.index()] == 1;
        let mut alike: BTreeMap<(PortId, Sender<'_>), u32> = BTreeMap::new();
        for endpoint in rule.endpoints.iter().filter(|endpoint| !is_alone(endpoint)) {
            let any = endpoint.next_hop.ip().map(|_| Sender::Any);
            let each = senders(&endpoint.next_hop).into_iter().chain([any]);
            for sender in each.flatten() {
                *alike.entry((endpoint.port, sender)).or_default() += 1;
            }
        }
        let mut last: BTreeMap<PortId, u32> = BTreeMap::new();
        for endpoint in &mut rule.endpoints {
            let mut each = senders(&endpoint.next_hop).into_iter().flatten();
            if !is_alone(endpoint) && each.any(|sender| alike[&(endpoint.port, sender)] > 1) {
                let qpn = last.entry(endpoint.port).or_insert(Qpn::VIRTUAL.value());
                *qpn += 1;
                endpoint.virtual_qpn = Qpn::new(*qpn);
                if let NextHop::Switch { name, .. } = &endpoint.next_hop {
                    known.insert((switch.clone(), name.clone()), endpoint.virtual_qpn);
                }
            }
        }
    }
    // All others keep the QPN that both ends have from the start.
    if known.is_empty() {
        return;
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
