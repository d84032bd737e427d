//! From request to rules.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{
    Endpoint, EndpointDraft, Fault, GroupDraft, GroupRule, HopDraft, HostEndpoint, MulticastRule,
};
use castnet_topology::{Link, Topology};
use castnet_wire::{MacAddr, PortId};

use crate::endpoints::{address, host_hop, number, switch_hop};
use crate::error::PlanError;
use crate::grow::{CANDIDATES_MAX, Children, Leaf, Parents, children, cost, grow, leave_out};
use crate::load::LinkLoad;
use crate::overlay::{Path, cut_off};
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
    let parents = best_tree(topology, load, request)?;
    check_mtu(topology, request, &parents)?;
    let tree = Tree {
        root: tree_node(&request.source.host, None, request, &members, &children(&parents)),
    };
    let mut rules = BTreeMap::new();
    write_rules(topology, request, &members, (&tree.root, None), &mut rules);
    number(&mut rules, |host| {
        members.get_key_value(host.name.as_str()).map(|(name, _)| *name)
    });
    address(&tree, &request.mcst_ids, &mut rules).map_err(|switch| PlanError::NoMcstId { switch })?;
    for (switch, rule) in &rules {
        let faults = rule.check(PortId::COUNT);
        if !faults.is_empty() {
            let switch = switch.clone();
            return Err(PlanError::BadRule { switch, faults });
        }
    }
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
            next_hop: Some(HopDraft::Host((&endpoint).into())),
            ..EndpointDraft::default()
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
    // The members are not all at one switch: their number says nothing.
    let faults = group.check(PortId::COUNT).into_iter();
    let faults: Vec<Fault> = faults
        .filter(|f| f.field != "endpoints")
        .map(in_request)
        .collect();
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

/// The best tree: of those that begin at one of the source's nearest Castnet switches the one that takes the fewest links,
/// then the one with the least load on them, then the first by the switch's name.
fn best_tree(topology: &Topology, load: &LinkLoad, request: &Request) -> Result<Parents, PlanError> {
    let leaf = |member: &Member| Leaf::new(topology, &member.host, &member.host);
    let source = leaf(&request.source);
    let leaves: Vec<Leaf> = request.receivers.iter().map(leaf).collect();
    let mut entries: Vec<(u64, &Path)> = source
        .nearest()
        .iter()
        .map(|path| (path.load(load), path))
        .collect();
    entries.sort_by_key(|(groups, _)| *groups);
    let mut seen = BTreeSet::new();
    entries.retain(|(_, path)| seen.insert(path.far.node()));
    entries.truncate(CANDIDATES_MAX);
    let mut trees = Vec::new();
    for (_, entry) in entries {
        let first = entry.far.node();
        let distances = topology.distances(first);
        if leaves
            .iter()
            .any(|leaf| leaf.distance(topology, &distances).is_none())
        {
            return Err(no_path(topology, request));
        }
        let mut parents = grow(topology, load, (first, &distances), &leaves);
        parents.insert(first.into(), entry.reversed());
        leave_out(topology, load, &mut parents);
        trees.push((cost(load, &parents), first, parents));
    }
    let best = trees.into_iter().min_by(|x, y| (x.0, x.1).cmp(&(y.0, y.1)));
    best.map(|(.., parents)| parents)
        .ok_or_else(|| no_path(topology, request))
}

/// Why no tree reaches all receivers: the first that is cut off from the source, or the source itself where it is cut off from
/// all Castnet switches.
fn no_path(topology: &Topology, request: &Request) -> PlanError {
    let from = request.source.host.clone();
    let cut = |(i, receiver): (usize, &Member)| {
        Some(PlanError::NoPath {
            field: format!("receivers[{i}]"),
            from: from.clone(),
            to: receiver.host.clone(),
            cut: topology.cut(&from, &receiver.host)?,
        })
    };
    let found = request.receivers.iter().enumerate().find_map(cut);
    found.unwrap_or_else(|| match cut_off(topology, &from) {
        Some((to, cut)) => PlanError::NoPath {
            field: "source".into(),
            from,
            to,
            cut,
        },
        None => PlanError::NoCastnetSwitch,
    })
}

fn check_mtu(topology: &Topology, request: &Request, parents: &Parents) -> Result<(), PlanError> {
    let needed = request.pmtu.bytes() as u32 + HEADROOM;
    let narrow = parents
        .values()
        .flat_map(|path| path.links.iter().filter_map(|link| topology.link(*link)))
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
        .map(|(link, child)| tree_node(child, Some(link.clone()), request, members, children))
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
    (node, parent): (&TreeNode, Option<&TreeNode>),
    rules: &mut BTreeMap<String, GroupRule>,
) {
    if let Some((parent, up)) = parent.zip(node.up.as_ref())
        && let Some(own_port) = up.own_port
    {
        let next_hop = |name: &str, path: &TreeLink, port: Option<PortId>| {
            let member = || members.get(name).map(|host| host_hop(host, path));
            port.map(|port| switch_hop(topology, name, (path, port), Vec::new()))
                .or_else(member)
        };
        let below = node.children.iter().filter_map(|child| {
            let up = child.up.as_ref()?;
            Some(Endpoint::new(
                up.parent_port?,
                next_hop(&child.name, up, up.own_port)?,
            ))
        });
        let source = next_hop(&parent.name, up, up.parent_port);
        let source = source.map(|hop| Endpoint::new(own_port, hop));
        let mut endpoints: Vec<Endpoint> = source.into_iter().chain(below).collect();
        endpoints.sort_by(|x, y| (x.port, x.next_hop.name()).cmp(&(y.port, y.next_hop.name())));
        let source = endpoints.iter().position(|e| e.next_hop.name() == parent.name);
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
                source: source.unwrap_or_default() as u16,
            }
            .into(),
        };
        rules.insert(node.name.clone(), rule);
    }
    for child in &node.children {
        write_rules(topology, request, members, (child, Some(node)), rules);
    }
}
