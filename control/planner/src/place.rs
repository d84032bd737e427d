//! IncTree placement: from a request to one collective rule per switch (EPIC 6.1, 6.2).
//!
//! The level of a switch, for a group, is the number of links to the farthest of its ranks: in a Clos network that is the
//! tier from which all ranks are reached downwards (EPIC 6.2), and it has a meaning in any other graph. The root is a
//! switch of the lowest level; among several the one whose tree takes the fewest links, then the one over the links with
//! the fewest groups, then the first by name. The tree is a shortest-path tree from the root in which paths part as late
//! as possible, as that of multicast. Each rank is a leaf of its own.
//!
//! A switch that has no room is left out and the search begins anew, until a tree fits or the ranks cannot be linked any
//! more. Where that was for lack of memory, all is tried again with the fewest slots that a group can do with; then the
//! shortages are told. Slots are the same at all switches of a group.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{
    ENDPOINTS_MAX, Endpoint, Fault, FaultKind, GroupRule, HostEndpoint, RankPart, TranslatedRule,
};
use castnet_topology::{Cut, Distances, SwitchKind, Topology};
use castnet_wire::{MacAddr, PortId};

use crate::collective_request::{CollectiveRequest, RankMember, Room, Rooms, slots, slots_min};
use crate::endpoints::{address, host_hop, number, switch_hop};
use crate::grow::{CANDIDATES_MAX, Children, Leaf, children, cost, grow, leave_out};
use crate::load::LinkLoad;
use crate::overlay::{cut_off, nearest};
use crate::place_error::{Lack, PlaceError, Shortage};
use crate::plan::HEADROOM;
use crate::tree::{Role, Tree, TreeLink, TreeNode};

/// What a request becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectivePlan {
    /// The IncTree: switches with ranks as leaves.
    pub tree: Tree,
    /// Each switch's part, by its name.
    pub rules: BTreeMap<String, GroupRule>,
}

impl CollectivePlan {
    /// What each switch must set aside, in bytes.
    pub fn memory(&self) -> BTreeMap<&str, u64> {
        let each = self.rules.iter();
        each.map(|(switch, rule)| (switch.as_str(), rule.reserved_bytes()))
            .collect()
    }
}

/// Places a group. Endpoints and leaves of the tree have the names of their hosts; where a host has several ranks, they are
/// called `host#rank`. `load` says how many groups each link carries already, `rooms` what each switch has left.
///
/// # Errors
/// Names the rank, the setting or the switches at fault.
pub fn place(
    topology: &Topology,
    load: &LinkLoad,
    rooms: &Rooms,
    request: &CollectiveRequest,
) -> Result<CollectivePlan, PlaceError> {
    let ranks = resolve(topology, request)?;
    let usable = wide_enough(topology, request)?;
    let wanted = slots(request.window_packets, request.message_packets);
    let fewest = slots_min(request.window_packets);
    let fit = |slots| fit(&usable, load, rooms, (request, slots), &ranks);
    let found = match fit(wanted)? {
        Err(shortages) if fewest < wanted && shortages.iter().any(Shortage::is_of_memory) => fit(fewest)?,
        found => found,
    };
    found.map_err(|shortages| match shortages.is_empty() {
        true => no_path(topology, request),
        false => PlaceError::NoRoom { shortages },
    })
}

/// The best tree of switches that have room; or the switches that lack it, without which the ranks cannot be linked.
fn fit(
    usable: &Topology,
    load: &LinkLoad,
    rooms: &Rooms,
    wanted: (&CollectiveRequest, u16),
    ranks: &[HostEndpoint],
) -> Result<Result<CollectivePlan, Vec<Shortage>>, PlaceError> {
    let mut usable = usable.clone();
    let mut shortages: Vec<Shortage> = Vec::new();
    loop {
        let Some(plan) = lowest(&usable, load, wanted, ranks)? else {
            return Ok(Err(shortages));
        };
        let short = plan.rules.iter().find_map(|(switch, rule)| {
            let room = rooms.get(switch);
            Shortage::of(switch, room.unwrap_or(&Room::UNKNOWN), rule)
        });
        match short {
            None => return Ok(Ok(plan)),
            Some(shortage) => {
                usable.set_switch_up(&shortage.switch, false);
                shortages.push(shortage);
            }
        }
    }
}

/// The ranks with their addresses; everything that can be refused without looking for paths.
fn resolve(topology: &Topology, request: &CollectiveRequest) -> Result<Vec<HostEndpoint>, PlaceError> {
    let ranks = request.ranks.len();
    if !(2..=usize::from(castnet_rules::RANKS_MAX)).contains(&ranks) {
        return Err(PlaceError::BadSize { ranks });
    }
    let mut ranks_at: BTreeMap<&str, usize> = BTreeMap::new();
    for member in &request.ranks {
        *ranks_at.entry(&member.host).or_default() += 1;
    }
    let mut rank_of = BTreeMap::new();
    let mut resolved: Vec<HostEndpoint> = Vec::with_capacity(ranks);
    for (rank, member) in request.ranks.iter().enumerate() {
        let name = match ranks_at.get(member.host.as_str()) {
            Some(2..) => format!("{}#{rank}", member.host),
            _ => member.host.clone(),
        };
        let host = topology
            .host(&member.host)
            .ok_or_else(|| PlaceError::UnknownHost {
                rank,
                host: member.host.clone(),
            })?;
        let lacking = |address| PlaceError::NoAddress {
            rank,
            host: member.host.clone(),
            address,
        };
        let part = RankPart {
            rank: rank as u16,
            sq_psn: member.sq_psn,
            rq_psn: member.rq_psn,
        };
        resolved.push(HostEndpoint {
            ip: member.ip.or(host.ip).ok_or_else(|| lacking("IP address"))?,
            mac: member
                .mac
                .or(host.mac.map(MacAddr))
                .ok_or_else(|| lacking("Ethernet address"))?,
            name,
            qpn: member.qpn,
            part: part.into(),
        });
        let (ip, qpn) = (resolved[rank].ip, member.qpn);
        if let Some(first) = rank_of.insert((ip, qpn), rank) {
            let first = format!("ranks[{first}]");
            let kind = FaultKind::DuplicateMember { ip, qpn, first };
            let faults = vec![Fault::new(format!("ranks[{rank}].qpn"), kind)];
            return Err(PlaceError::Refused { faults });
        }
    }
    match topology.hosts().find(|h| h.ip == Some(request.mcst_id.0)) {
        Some(host) => Err(PlaceError::McstIdIsHost {
            mcst_id: request.mcst_id,
            host: host.name.clone(),
        }),
        None => Ok(resolved),
    }
}

/// The fabric without the links that cannot carry full packets.
///
/// # Errors
/// A rank hangs on such a link.
fn wide_enough(topology: &Topology, request: &CollectiveRequest) -> Result<Topology, PlaceError> {
    let needed = request.pmtu.bytes() as u32 + HEADROOM;
    let mut usable = topology.clone();
    for (id, link) in topology.links().filter(|(_, l)| l.mtu < needed) {
        usable.set_link_up(id, false);
        let hosts = [link.a.node(), link.b.node()];
        if request.ranks.iter().any(|r| hosts.contains(&r.host.as_str())) {
            return Err(PlaceError::PmtuTooLarge {
                pmtu: request.pmtu,
                needed,
                a: link.a.clone(),
                b: link.b.clone(),
                mtu: link.mtu,
            });
        }
    }
    Ok(usable)
}

/// The best tree of the lowest level; `None` where no switch reaches all ranks.
fn lowest(
    usable: &Topology,
    load: &LinkLoad,
    (request, slots): (&CollectiveRequest, u16),
    ranks: &[HostEndpoint],
) -> Result<Option<CollectivePlan>, PlaceError> {
    let members = ranks.iter().zip(&request.ranks);
    let leaves: Vec<Leaf> = members
        .map(|(rank, member)| Leaf::new(usable, &rank.name, &member.host))
        .collect();
    let mut roots = roots(usable, load, &leaves);
    roots.truncate(CANDIDATES_MAX);
    let grown = roots.into_iter().map(|(root, distances)| {
        let mut parents = grow(usable, load, (&root, &distances), &leaves);
        leave_out(usable, load, &mut parents);
        (cost(load, &parents), root, parents)
    });
    let Some((_, root, parents)) = grown.min_by(|x, y| (x.0, &x.1).cmp(&(y.0, &y.1))) else {
        return Ok(None);
    };
    let by_name: BTreeMap<&str, &HostEndpoint> = ranks.iter().map(|r| (r.name.as_str(), r)).collect();
    let tree = Tree {
        root: node(&root, None, &by_name, &children(&parents)),
    };
    let mut rules = BTreeMap::new();
    write_rules(usable, (request, slots), &by_name, (&tree.root, None), &mut rules);
    number(&mut rules, |host| {
        let member = request.ranks.get(usize::from(host.rank()?.rank))?;
        Some(member.host.as_str())
    });
    address(&tree, &request.mcst_ids, &mut rules).map_err(|switch| PlaceError::NoMcstId { switch })?;
    for (switch, rule) in &rules {
        let mut faults = rule.check(PortId::COUNT);
        // A shortage of this switch, not a fault of the rule.
        faults.retain(|fault| !matches!(fault.kind, FaultKind::TooManyEndpoints { .. }));
        if !faults.is_empty() {
            return Err(bad_rule(switch, rule, faults));
        }
    }
    Ok(Some(CollectivePlan { tree, rules }))
}

/// The Castnet switches of the lowest level with the distances to them; those whose links carry the fewest groups first, then
/// by name.
fn roots(usable: &Topology, load: &LinkLoad, leaves: &[Leaf]) -> Vec<(String, Distances)> {
    let mut lowest = u32::MAX;
    let mut all = Vec::new();
    for switch in usable
        .switches()
        .filter(|s| s.up && s.kind == SwitchKind::Castnet)
    {
        let distances = usable.distances(&switch.name);
        let each = leaves.iter().map(|leaf| leaf.distance(usable, &distances));
        let Some(level) = each
            .collect::<Option<Vec<u32>>>()
            .and_then(|d| d.into_iter().max())
        else {
            continue;
        };
        if level < lowest {
            lowest = level;
            all.clear();
        }
        if level == lowest {
            let links = usable.neighbours(&switch.name).into_iter();
            let groups: u64 = links.map(|n| u64::from(load.get(n.link))).sum();
            all.push((groups, switch.name.clone(), distances));
        }
    }
    all.sort_by(|x, y| (x.0, &x.1).cmp(&(y.0, &y.1)));
    all.into_iter()
        .map(|(_, name, distances)| (name, distances))
        .collect()
}

fn node(
    name: &str,
    up: Option<TreeLink>,
    ranks: &BTreeMap<&str, &HostEndpoint>,
    children: &Children,
) -> TreeNode {
    let rank = ranks.get(name).and_then(|host| Some((host, host.rank()?)));
    let role = match rank {
        Some((host, part)) => Role::Rank {
            rank: part.rank,
            ip: host.ip,
            qpn: host.qpn,
        },
        None => Role::Switch,
    };
    let below = children.get(name).into_iter().flatten();
    let children = below
        .map(|(link, child)| node(child, Some(link.clone()), ranks, children))
        .collect();
    TreeNode {
        name: name.into(),
        role,
        up,
        children,
    }
}

/// The ranks in a part of the tree.
fn ranks_below(node: &TreeNode, all: &mut BTreeSet<u16>) {
    if let Role::Rank { rank, .. } = node.role {
        all.insert(rank);
    }
    node.children.iter().for_each(|child| ranks_below(child, all));
}

fn write_rules(
    topology: &Topology,
    (request, slots): (&CollectiveRequest, u16),
    by_name: &BTreeMap<&str, &HostEndpoint>,
    (node, parent): (&TreeNode, Option<&TreeNode>),
    rules: &mut BTreeMap<String, GroupRule>,
) {
    if node.role != Role::Switch {
        return;
    }
    let mut elsewhere: BTreeSet<u16> = (0..request.ranks.len() as u16).collect();
    let mut endpoints = Vec::new();
    for child in &node.children {
        let mut below = BTreeSet::new();
        ranks_below(child, &mut below);
        elsewhere.retain(|rank| !below.contains(rank));
        let Some((path, port)) = child.up.as_ref().and_then(|path| Some((path, path.parent_port?))) else {
            continue;
        };
        let next_hop = match (by_name.get(child.name.as_str()), path.own_port) {
            (Some(rank), _) => host_hop(rank, path),
            (None, Some(far)) => {
                let ranks = below.into_iter().collect();
                switch_hop(topology, &child.name, (path, far), ranks)
            }
            (None, None) => continue,
        };
        endpoints.push(Endpoint::new(port, next_hop));
    }
    let ends = |path: &TreeLink| path.own_port.zip(path.parent_port);
    if let Some((path, parent)) = node.up.as_ref().zip(parent)
        && let Some((port, far)) = ends(path)
    {
        let ranks = elsewhere.into_iter().collect();
        let hop = switch_hop(topology, &parent.name, (path, far), ranks);
        endpoints.push(Endpoint::new(port, hop));
    }
    endpoints.sort_by_key(|e| e.next_hop.ranks().first().copied());
    let up = parent.and_then(|parent| endpoints.iter().position(|e| e.next_hop.name() == parent.name));
    let up = up.map(|index| index as u16);
    let rule = GroupRule {
        name: request.name.clone(),
        generation: request.generation,
        mcst_id: request.mcst_id,
        pmtu: request.pmtu,
        stall_timeout_ms: request.stall_timeout_ms,
        endpoints,
        kind: TranslatedRule {
            start_psn: request.start_psn,
            slots,
            message_packets: request.message_packets,
            reproducible: request.reproducible,
            loss_policy: request.loss_policy,
            straggler_policy: request.straggler_policy,
            ack_timeout_us: request.ack_timeout_us,
            parent: up,
        }
        .into(),
    };
    rules.insert(node.name.clone(), rule);
    for child in &node.children {
        write_rules(topology, (request, slots), by_name, (child, Some(node)), rules);
    }
}

/// What the checker says of a rule: of the request's values where it can be said of them.
fn bad_rule(switch: &str, rule: &GroupRule, faults: Vec<Fault>) -> PlaceError {
    let in_request = |fault: &Fault| {
        let mut fault = fault.clone();
        if let Some((index, rest)) = fault
            .field
            .strip_prefix("endpoints[")
            .and_then(|f| f.split_once("].host."))
        {
            let rank = rule
                .endpoints
                .get(index.parse::<usize>().ok()?)?
                .next_hop
                .rank()?
                .rank;
            fault.field = format!("ranks[{rank}].{rest}");
            return Some(fault);
        }
        (!fault.field.starts_with("endpoints") && fault.field != "parent").then_some(fault)
    };
    match faults.iter().map(in_request).collect::<Option<Vec<Fault>>>() {
        Some(faults) => PlaceError::Refused { faults },
        None => PlaceError::BadRule {
            switch: switch.into(),
            faults,
        },
    }
}

/// Why no Castnet switch reaches all ranks: the first rank that rank 0 does not reach, a link that is too narrow for full packets,
/// or that rank 0 reaches no Castnet switch.
fn no_path(topology: &Topology, request: &CollectiveRequest) -> PlaceError {
    let from = request.ranks.first().map(|r| r.host.clone()).unwrap_or_default();
    let cut = |(rank, member): (usize, &RankMember)| {
        Some((rank, member.host.clone(), topology.cut(&from, &member.host)?))
    };
    let apart = request.ranks.iter().enumerate().skip(1).find_map(cut);
    let found = match apart {
        None if nearest(topology, &from).is_empty() => match cut_off(topology, &from) {
            Some((switch, cut)) => Some((0, switch, cut)),
            None => return PlaceError::NoCastnetSwitch,
        },
        found => found,
    };
    let needed = request.pmtu.bytes() as u32 + HEADROOM;
    let narrow = topology.links().find(|(_, l)| l.mtu < needed);
    match (found, narrow) {
        (None, Some((_, link))) => PlaceError::PmtuTooLarge {
            pmtu: request.pmtu,
            needed,
            a: link.a.clone(),
            b: link.b.clone(),
            mtu: link.mtu,
        },
        (found, _) => {
            let (rank, to, cut) = found.unwrap_or((1, request.ranks[1].host.clone(), Cut::NeverLinked));
            PlaceError::NoPath { rank, from, to, cut }
        }
    }
}

impl Shortage {
    fn is_of_memory(&self) -> bool {
        matches!(self.lack, Lack::Memory { .. })
    }

    /// What the switch lacks for the rule, if anything.
    fn of(switch: &str, room: &Room, rule: &GroupRule) -> Option<Self> {
        let endpoints = rule.endpoints.len() as u64;
        let endpoints_max = room.endpoints_max.min(ENDPOINTS_MAX as u64);
        let needed = rule.reserved_bytes();
        let lack = if room.groups_free == 0 {
            Lack::Groups
        } else if !room.pmtus.is_empty() && !room.pmtus.contains(&rule.pmtu) {
            Lack::Pmtu {
                wanted: rule.pmtu,
                largest: room.pmtus.iter().copied().max(),
            }
        } else if endpoints > endpoints_max {
            Lack::Endpoints {
                needed: endpoints,
                max: endpoints_max,
            }
        } else if needed > room.memory_free {
            Lack::Memory {
                needed,
                free: room.memory_free,
            }
        } else {
            return None;
        };
        Some(Self {
            switch: switch.into(),
            lack,
        })
    }
}
