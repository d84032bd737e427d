//! IncTree placement: from a request to one collective rule per switch (EPIC 6.1, 6.2).
//!
//! The level of a switch, for a group, is the number of links to the farthest rank: in a Clos network the tier that
//! reaches all ranks downwards (EPIC 6.2), and defined in any graph. The root is a switch of the lowest level; among
//! several the one whose tree has the fewest links, then the fewest groups on its links, then the first by name. As for
//! multicast, the tree is a shortest-path tree from the root whose paths part as late as possible. Each rank is a leaf
//! of its own.
//!
//! A switch without room is left out and the search starts again, until a tree fits or the ranks cannot be linked. If
//! memory is lacking, the search is repeated with the fewest slots that a group can work with before shortages are
//! reported, and then with Mode-III, if the mode may be chosen. All switches of a group with the same mode have the same number of slots.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{ENDPOINTS_MAX, GroupRule, TranslatedRule};
use castnet_topology::{NodeId, Row, SwitchKind, Topology, Usable};
use castnet_wire::CollectiveMode;

use crate::error::{Lack, PlanError, Shortage};
use crate::grow::{CANDIDATES_MAX, Leaf, Node, grow, leave_out};
use crate::load::LinkLoad;
use crate::plan::{Members, Plan, needed_mtu, no_path, too_narrow};
use crate::request::{Request, RequestKind, Room, Rooms, slots, slots_min};
use crate::rules::write;

/// Places the group in its mode or, if that lacks memory and the request allows it, in Mode-III.
pub(crate) fn place(
    topology: &Topology,
    load: &LinkLoad,
    rooms: &dyn Rooms,
    request: &Request,
    (window_packets, rule): (u16, TranslatedRule),
    ranks: &Members,
) -> Result<Plan, PlanError> {
    if let Some(switch) = request.modes.keys().find(|name| topology.switch(name).is_none()) {
        return Err(PlanError::UnknownSwitch {
            switch: switch.clone(),
        });
    }
    let usable = wide_enough(topology, request)?;
    let wanted = slots(window_packets, rule.message_packets, rule.mode);
    let fewest = slots_min(window_packets, rule.message_packets, rule.mode);
    let fit = |slots| fit(&usable, load, rooms, (request, slots), ranks);
    let found = match fit(wanted)? {
        Err(shortages) if fewest < wanted && shortages.iter().any(Shortage::is_of_memory) => fit(fewest)?,
        found => found,
    };
    let shortages = match found {
        Ok(plan) => return Ok(plan),
        Err(shortages) if shortages.is_empty() => return Err(no_path(topology, request, 0)),
        Err(shortages) => shortages,
    };
    if request.may_augment && shortages.iter().any(Shortage::is_of_memory) {
        let rule = TranslatedRule {
            mode: CollectiveMode::Augmented,
            ..rule
        };
        let request = Request {
            kind: RequestKind::Collective { window_packets, rule },
            may_augment: false,
            ..request.clone()
        };
        let placed = place(topology, load, rooms, &request, (window_packets, rule), ranks);
        if let Ok(plan) = placed {
            return Ok(Plan { shortages, ..plan });
        }
    }
    Err(PlanError::NoRoom { shortages })
}

/// The best tree of switches with room; or the switches without room, if the ranks cannot be linked without them.
fn fit(
    usable: &Usable<'_>,
    load: &LinkLoad,
    rooms: &dyn Rooms,
    wanted: (&Request, u16),
    ranks: &Members,
) -> Result<Result<Plan, Vec<Shortage>>, PlanError> {
    let mut usable = usable.clone();
    let mut shortages: Vec<Shortage> = Vec::new();
    loop {
        let Some(plan) = lowest(&usable, load, wanted, ranks)? else {
            return Ok(Err(shortages));
        };
        let short = plan
            .rules
            .iter()
            .find_map(|(switch, rule)| Shortage::of(switch, &rooms.room(switch), rule));
        match short {
            None => return Ok(Ok(plan)),
            Some(shortage) => {
                usable.without.extend(usable.topology.id(&shortage.switch));
                shortages.push(shortage);
            }
        }
    }
}

/// The fabric without the links that cannot carry full packets.
///
/// # Errors
/// A rank's only link is one of these.
fn wide_enough<'t>(topology: &'t Topology, request: &Request) -> Result<Usable<'t>, PlanError> {
    let mtu = needed_mtu(request);
    let links = request
        .members
        .iter()
        .filter_map(|rank| topology.attachment(&rank.host));
    let links = links.filter_map(|(id, ..)| Some((id, topology.link(id)?)));
    match links.filter(|(_, link)| link.mtu < mtu).min_by_key(|(id, _)| *id) {
        Some((_, link)) => Err(too_narrow(request, link)),
        None => Ok(Usable::new(topology, mtu)),
    }
}

/// The best tree of the lowest level; `None` if no switch reaches all ranks.
fn lowest(
    usable: &Usable<'_>,
    load: &LinkLoad,
    (request, slots): (&Request, u16),
    ranks: &Members,
) -> Result<Option<Plan>, PlanError> {
    let hosts = ranks.hosts.iter().enumerate();
    let leaves = hosts.map(|(index, host)| Leaf::new(usable, index, *host));
    let leaves: Vec<Leaf> = leaves.collect();
    let roots = roots(usable, load, &leaves);
    let rows = usable.distances(&roots);
    let grown = roots.into_iter().zip(rows).map(|(root, distances)| {
        let mut parents = grow(usable, load, (root, &distances), &leaves, ranks.hosts.len());
        leave_out(usable, load, &mut parents);
        (parents.cost(load), root, parents)
    });
    let Some((_, root, parents)) = grown.min_by_key(|(cost, root, _)| (*cost, *root)) else {
        return Ok(None);
    };
    let root = Node::Switch(root);
    write(
        usable.topology,
        (request, slots),
        &ranks.endpoints,
        (root, &parents),
    )
    .map(Some)
}

/// The first [`CANDIDATES_MAX`] Castnet switches of the lowest level, by groups on their links, then by name.
fn roots(usable: &Usable<'_>, load: &LinkLoad, leaves: &[Leaf]) -> Vec<NodeId> {
    let topology = usable.topology;
    // Leaves with the same paths are equally far from everything.
    let far = leaves
        .iter()
        .map(|leaf| leaf.nearest.iter().map(|route| (route.far.node, route.length())));
    let entries: BTreeSet<Vec<(NodeId, u32)>> = far.map(Iterator::collect).collect();
    let nodes: BTreeSet<NodeId> = entries.iter().flatten().map(|(node, _)| *node).collect();
    let nodes: Vec<NodeId> = nodes.into_iter().collect();
    let rows: BTreeMap<NodeId, Row> = nodes.iter().copied().zip(usable.distances(&nodes)).collect();
    let mut levels: Vec<u16> = vec![0; topology.switch_ids().count()];
    for entry in &entries {
        // No path stays no path: additions saturate.
        let mut nearest = vec![u16::MAX; levels.len()];
        for (node, length) in entry {
            for (nearest, distance) in nearest.iter_mut().zip(&rows[node][..]) {
                *nearest = distance.saturating_add(*length as u16).min(*nearest);
            }
        }
        for (level, nearest) in levels.iter_mut().zip(nearest) {
            *level = nearest.max(*level);
        }
    }
    let can_be =
        |node: &NodeId| topology.kind(*node) == Some(SwitchKind::Castnet) && usable.has_switch(*node);
    let level = |node: &NodeId| levels[node.0 as usize];
    let lowest = topology
        .switch_ids()
        .filter(can_be)
        .map(|node| level(&node))
        .min();
    let Some(lowest) = lowest.filter(|level| *level < u16::MAX) else {
        return Vec::new();
    };
    let roots = topology
        .switch_ids()
        .filter(|node| level(node) == lowest && can_be(node));
    let mut roots: Vec<NodeId> = roots.collect();
    roots.sort_by_cached_key(|node| {
        let links = topology.hops(*node).iter();
        links.map(|hop| u64::from(load.get(hop.link))).sum::<u64>()
    });
    roots.truncate(CANDIDATES_MAX);
    roots
}

impl Shortage {
    fn is_of_memory(&self) -> bool {
        matches!(self.lack, Lack::Memory { .. })
    }

    /// What a switch with this room lacks for a rule, if anything.
    pub fn of(switch: &str, room: &Room, rule: &GroupRule) -> Option<Self> {
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
