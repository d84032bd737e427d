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
//! reported. All switches of a group have the same number of slots.

use castnet_rules::{ENDPOINTS_MAX, GroupRule, HostEndpoint, TranslatedRule};
use castnet_topology::{Distances, SwitchKind, Topology};

use crate::error::{Lack, PlanError, Shortage};
use crate::grow::{CANDIDATES_MAX, Leaf, cost, grow, leave_out};
use crate::load::LinkLoad;
use crate::plan::{Plan, needed_mtu, no_path, too_narrow};
use crate::request::{Request, Room, Rooms, slots, slots_min};
use crate::rules::write;

pub(crate) fn place(
    topology: &Topology,
    load: &LinkLoad,
    rooms: &Rooms,
    request: &Request,
    (window_packets, rule): (u16, TranslatedRule),
    ranks: &[HostEndpoint],
) -> Result<Plan, PlanError> {
    let usable = wide_enough(topology, request)?;
    let wanted = slots(window_packets, rule.message_packets);
    let fewest = slots_min(window_packets);
    let fit = |slots| fit(&usable, load, rooms, (request, slots), ranks);
    let found = match fit(wanted)? {
        Err(shortages) if fewest < wanted && shortages.iter().any(Shortage::is_of_memory) => fit(fewest)?,
        found => found,
    };
    found.map_err(|shortages| match shortages.is_empty() {
        true => no_path(topology, request, 0),
        false => PlanError::NoRoom { shortages },
    })
}

/// The best tree of switches with room; or the switches without room, if the ranks cannot be linked without them.
fn fit(
    usable: &Topology,
    load: &LinkLoad,
    rooms: &Rooms,
    wanted: (&Request, u16),
    ranks: &[HostEndpoint],
) -> Result<Result<Plan, Vec<Shortage>>, PlanError> {
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

/// The fabric without the links that cannot carry full packets.
///
/// # Errors
/// A rank's only link is one of these.
fn wide_enough(topology: &Topology, request: &Request) -> Result<Topology, PlanError> {
    let mut usable = topology.clone();
    for (id, link) in topology.links().filter(|(_, l)| l.mtu < needed_mtu(request)) {
        usable.set_link_up(id, false);
        let hosts = [link.a.node(), link.b.node()];
        if request.members.iter().any(|r| hosts.contains(&r.host.as_str())) {
            return Err(too_narrow(request, link));
        }
    }
    Ok(usable)
}

/// The best tree of the lowest level; `None` if no switch reaches all ranks.
fn lowest(
    usable: &Topology,
    load: &LinkLoad,
    (request, slots): (&Request, u16),
    ranks: &[HostEndpoint],
) -> Result<Option<Plan>, PlanError> {
    let members = ranks.iter().zip(&request.members);
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
    write(usable, (request, slots), ranks, (&root, &parents)).map(Some)
}

/// The Castnet switches of the lowest level with the distances to them, by groups on their links, then by name.
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

impl Shortage {
    fn is_of_memory(&self) -> bool {
        matches!(self.lack, Lack::Memory { .. })
    }

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
