//! From request to rules.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{
    Endpoint, EndpointDraft, Fault, GroupDraft, GroupRule, HopDraft, HostEndpoint, MulticastRule, NextHop,
};
use castnet_topology::{Cut, Distances, End, Link, LinkId, Topology};
use castnet_wire::{MacAddr, PortId};

use crate::error::PlanError;
use crate::load::LinkLoad;
use crate::request::{Member, Request};
use crate::tree::{Role, Tree, TreeLink, TreeNode};

/// Bytes that a link's MTU must have beyond the path MTU: the longest headers of RoCEv2 over IPv4 (20 IP, 8 UDP,
/// 12 BTH, 28 AtomicETH, 4 ICRC) and 8 to spare.
pub const HEADROOM: u32 = 80;

/// What a request becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The tree.
    pub tree: Tree,
    /// Each switch's part, by its name.
    pub rules: BTreeMap<String, GroupRule>,
}

/// Plans a group. `load` says how many groups each link carries already.
///
/// The same request, with its receivers in any order, gives the same plan.
pub fn plan(topology: &Topology, load: &LinkLoad, request: &Request) -> Result<Plan, PlanError> {
    let members = resolve(topology, request)?;
    let parents = grow(topology, load, request)?;
    check_mtu(topology, request, &parents)?;
    let tree = Tree {
        root: tree_node(
            &request.source.host,
            None,
            request,
            &members,
            &children(topology, &parents),
        ),
    };
    let mut rules = BTreeMap::new();
    write_rules(topology, request, &members, &tree.root, &mut rules)?;
    Ok(Plan { tree, rules })
}

/// The members with their addresses, by host; everything that can be refused without looking for paths.
fn resolve<'r>(
    topology: &Topology,
    request: &'r Request,
) -> Result<BTreeMap<&'r str, HostEndpoint>, PlanError> {
    if request.receivers.is_empty() {
        return Err(PlanError::NoReceivers);
    }
    let mut members: BTreeMap<&str, HostEndpoint> = BTreeMap::new();
    let mut field_of: BTreeMap<&str, String> = BTreeMap::new();
    let mut drafts = Vec::new();
    for (field, member) in request.members() {
        let host = member.host.clone();
        match field_of.get(member.host.as_str()) {
            Some(first) if first == "source" => return Err(PlanError::SourceAmongReceivers { field, host }),
            Some(first) => {
                return Err(PlanError::MemberTwice {
                    field,
                    host,
                    first: first.clone(),
                });
            }
            None => {}
        }
        let endpoint = resolve_member(topology, &field, member)?;
        drafts.push(EndpointDraft {
            port: None,
            next_hop: Some(HopDraft::Host((&endpoint).into())),
        });
        members.insert(&member.host, endpoint);
        field_of.insert(&member.host, field);
    }
    let group = GroupDraft {
        name: Some(request.name.clone()),
        mcst_id: Some(request.mcst_id),
        stall_timeout_ms: Some(request.stall_timeout_ms),
        endpoints: Some(drafts),
        ..GroupDraft::default()
    };
    let faults: Vec<Fault> = group.check(PortId::COUNT).into_iter().map(in_request).collect();
    if !faults.is_empty() {
        return Err(PlanError::Refused { faults });
    }
    match topology.hosts().find(|h| h.ip == Some(request.mcst_id.0)) {
        Some(host) => Err(PlanError::McstIdIsHost {
            mcst_id: request.mcst_id,
            host: host.name.clone(),
        }),
        None => Ok(members),
    }
}

fn resolve_member(topology: &Topology, field: &str, member: &Member) -> Result<HostEndpoint, PlanError> {
    let name = member.host.clone();
    let host = topology.host(&name).ok_or_else(|| PlanError::UnknownMember {
        field: field.into(),
        host: name.clone(),
    })?;
    let lacking = |address| PlanError::NoAddress {
        field: field.into(),
        host: member.host.clone(),
        address,
    };
    Ok(HostEndpoint {
        name,
        ip: member.ip.or(host.ip).ok_or_else(|| lacking("IP address"))?,
        mac: member
            .mac
            .or(host.mac.map(MacAddr))
            .ok_or_else(|| lacking("Ethernet address"))?,
        qpn: member.qpn,
        part: member.memory.into(),
    })
}

/// The checker saw the members as endpoints, the source first: its fields become the request's.
fn in_request(mut fault: Fault) -> Fault {
    if let Some((index, rest)) = fault
        .field
        .strip_prefix("endpoints[")
        .and_then(|f| f.split_once("].host."))
        && let Ok(index) = index.parse::<usize>()
    {
        fault.field = match index.checked_sub(1) {
            None => format!("source.{rest}"),
            Some(receiver) => format!("receivers[{receiver}].{rest}"),
        };
    }
    fault
}

/// The tree as each node's link to its parent.
pub(crate) type Parents = BTreeMap<String, (LinkId, String)>;

/// Joins the receivers to the tree one after the other, nearest first.
///
/// A node of the tree hangs on a shortest path from the source. So whoever joins at a node that lies on one of its own
/// shortest paths has a shortest path too, and every node keeps one parent.
fn grow(topology: &Topology, load: &LinkLoad, request: &Request) -> Result<Parents, PlanError> {
    let source = &request.source.host;
    let distances = topology.distances(source);
    let mut order = Vec::new();
    for (i, receiver) in request.receivers.iter().enumerate() {
        let distance = topology
            .distance(&receiver.host, &distances)
            .ok_or_else(|| PlanError::NoPath {
                field: format!("receivers[{i}]"),
                from: source.clone(),
                to: receiver.host.clone(),
                cut: topology.cut(source, &receiver.host).unwrap_or(Cut::NeverLinked),
            })?;
        order.push((distance, receiver.host.as_str()));
    }
    order.sort_unstable();
    let mut parents = Parents::new();
    for (_, receiver) in order {
        join(topology, load, &distances, source, receiver, &mut parents);
    }
    Ok(parents)
}

/// How a node is reached from the tree: new links, groups on them, and the last of them.
#[derive(Clone, Debug)]
struct Way {
    links: u32,
    groups: u64,
    by: Option<(LinkId, String)>,
}

/// Adds `receiver` by the way that takes the fewest new links, and among those the fewest groups; among equals the
/// first in the order of names and ports.
pub(crate) fn join(
    topology: &Topology,
    load: &LinkLoad,
    distances: &Distances,
    source: &str,
    receiver: &str,
    parents: &mut Parents,
) {
    // Walk back from the receiver over its shortest paths as far as the tree, one distance after the other.
    let mut layers: Vec<BTreeSet<String>> = vec![BTreeSet::from([receiver.to_string()])];
    let mut ways: BTreeMap<String, Way> = BTreeMap::new();
    let in_tree = |name: &str, parents: &Parents| name == source || parents.contains_key(name);
    while let Some(layer) = layers.last().filter(|layer| !layer.is_empty()) {
        let mut nearer = BTreeSet::new();
        for name in layer {
            if in_tree(name, parents) {
                ways.insert(
                    name.clone(),
                    Way {
                        links: 0,
                        groups: 0,
                        by: None,
                    },
                );
            } else {
                let hops = topology.next_hops(name, distances);
                nearer.extend(hops.into_iter().map(|hop| hop.far.node().to_string()));
            }
        }
        layers.push(nearer);
    }
    for name in layers.iter().rev().flatten() {
        if ways.contains_key(name) {
            continue;
        }
        let mut hops = topology.next_hops(name, distances);
        hops.sort_by(|x, y| x.far.cmp(&y.far));
        let best = hops
            .into_iter()
            .filter_map(|hop| {
                let way = ways.get(hop.far.node())?;
                let groups = way.groups + u64::from(load.get(hop.link));
                let by = Some((hop.link, hop.far.node().to_string()));
                Some(Way {
                    links: way.links + 1,
                    groups,
                    by,
                })
            })
            .min_by_key(|way| (way.links, way.groups));
        if let Some(best) = best {
            ways.insert(name.clone(), best);
        }
    }
    let mut at = receiver.to_string();
    while let Some((link, parent)) = ways.remove(&at).and_then(|way| way.by) {
        parents.insert(at, (link, parent.clone()));
        at = parent;
    }
}

fn check_mtu(topology: &Topology, request: &Request, parents: &Parents) -> Result<(), PlanError> {
    let needed = request.pmtu.bytes() as u32 + HEADROOM;
    let narrow = parents
        .values()
        .filter_map(|(link, _)| topology.link(*link))
        .find(|l| l.mtu < needed);
    match narrow {
        Some(Link { a, b, mtu, .. }) => Err(PlanError::PmtuTooLarge {
            pmtu: request.pmtu,
            needed,
            a: a.clone(),
            b: b.clone(),
            mtu: *mtu,
        }),
        None => Ok(()),
    }
}

/// The tree as each node's links to its children, in the order of its ports.
pub(crate) type Children = BTreeMap<String, Vec<(TreeLink, String)>>;

pub(crate) fn children(topology: &Topology, parents: &Parents) -> Children {
    let mut all = Children::new();
    for (child, (id, parent)) in parents {
        let Some(link) = topology.link(*id) else { continue };
        let (parent_port, own_port) = (port(link.near(parent)), port(link.near(child)));
        all.entry(parent.clone()).or_default().push((
            TreeLink {
                link: *id,
                parent_port,
                own_port,
            },
            child.clone(),
        ));
    }
    for list in all.values_mut() {
        list.sort_by_key(|(link, _)| link.parent_port);
    }
    all
}

fn port(end: &End) -> Option<PortId> {
    match end {
        End::Switch { port, .. } => PortId::new(*port),
        End::Host(_) => None,
    }
}

fn tree_node(
    name: &str,
    up: Option<TreeLink>,
    request: &Request,
    members: &BTreeMap<&str, HostEndpoint>,
    children: &Children,
) -> TreeNode {
    let role = match members.get(name) {
        Some(m) if name == request.source.host => Role::Source { ip: m.ip, qpn: m.qpn },
        Some(m) => Role::Receiver { ip: m.ip, qpn: m.qpn },
        None => Role::Switch,
    };
    let children = children
        .get(name)
        .into_iter()
        .flatten()
        .map(|(link, child)| tree_node(child, Some(*link), request, members, children))
        .collect();
    TreeNode {
        name: name.into(),
        role,
        up,
        children,
    }
}

fn write_rules(
    topology: &Topology,
    request: &Request,
    members: &BTreeMap<&str, HostEndpoint>,
    node: &TreeNode,
    rules: &mut BTreeMap<String, GroupRule>,
) -> Result<(), PlanError> {
    if node.role == Role::Switch
        && let Some(source) = node.up.and_then(|up| up.own_port)
    {
        let ports = node
            .children
            .iter()
            .filter_map(|c| c.up.and_then(|up| up.parent_port));
        let mut endpoints: Vec<Endpoint> = core::iter::once(source)
            .chain(ports)
            .filter_map(|port| {
                Some(Endpoint {
                    port,
                    next_hop: next_hop(topology, members, &node.name, port)?,
                })
            })
            .collect();
        endpoints.sort_by_key(|e| e.port);
        let rule = GroupRule {
            name: request.name.clone(),
            generation: request.generation,
            mcst_id: request.mcst_id,
            pmtu: request.pmtu,
            stall_timeout_ms: request.stall_timeout_ms,
            endpoints,
            kind: MulticastRule {
                start_psn: request.start_psn,
                va_base: request.va_base,
                source,
            }
            .into(),
        };
        let faults = rule.check(PortId::COUNT);
        if !faults.is_empty() {
            return Err(PlanError::BadRule {
                switch: node.name.clone(),
                faults,
            });
        }
        rules.insert(node.name.clone(), rule);
    }
    node.children
        .iter()
        .try_for_each(|child| write_rules(topology, request, members, child, rules))
}

/// What is behind a switch's port.
fn next_hop(
    topology: &Topology,
    members: &BTreeMap<&str, HostEndpoint>,
    switch: &str,
    port: PortId,
) -> Option<NextHop> {
    let id = topology.link_at(&End::port(switch, port.index() as u8))?;
    match topology.link(id)?.far(switch) {
        End::Host(name) => members.get(name.as_str()).cloned().map(NextHop::Host),
        End::Switch { switch, port } => {
            let mac = topology.switch(switch)?.ports.get(port).copied()?;
            Some(NextHop::switch(switch.clone(), MacAddr(mac)))
        }
    }
}
