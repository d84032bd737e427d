//! From a record to a placement.

use castnet_planner::{CollectiveRequest, LinkLoad, PlaceError, RankMember, Room, Rooms, Shortage, place};
use castnet_wire::{MacAddr, Pmtu, Qpn};

use super::detour::Detours;
use super::record::{CollectiveRecord, Placement, RankState};
use crate::core::Core;
use crate::fabric::Place;
use crate::lifecycle::{Cause, Failure};
use crate::planning::{NoPlan, tree_switches};

/// What a switch has that is not ours, as of its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Bytes of group state.
    pub(crate) memory: u64,
    /// Groups.
    pub(crate) groups: u64,
}

/// What is ours on a switch: bytes that are set aside, and groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    memory: u64,
    groups: u64,
}

impl Core {
    /// What is ours on a switch, but for one group.
    pub(crate) fn own(&self, switch: &str, but: Option<&str>) -> Own {
        let mut own = Own::default();
        for entry in self.groups.values() {
            if entry.record.placed.contains(switch) {
                own.groups += u64::from(entry.record.lanes());
            }
        }
        for record in self.collectives.values().map(|e| &e.record) {
            if but != Some(record.name.as_str()) && record.placed.contains(switch) {
                own.groups += u64::from(record.settings.lanes);
                own.memory += record.reserved_on(switch).unwrap_or(0);
            }
        }
        own
    }

    /// Takes in what a switch says of itself; `before` is what was ours there when it was asked.
    ///
    /// What came or went while it answered may or may not be counted in its answer. It is taken to be, as then no room is
    /// lost: the switch itself has the last word.
    pub(crate) fn learn(&mut self, switch: &str, capabilities: castnet_proto::v1::Capabilities, before: Own) {
        let now = self.own(switch, None);
        let used = capabilities
            .memory_bytes_max
            .saturating_sub(capabilities.memory_bytes_free);
        let foreign = Foreign {
            memory: used.saturating_sub(before.memory.max(now.memory)),
            groups: capabilities.groups.saturating_sub(before.groups.max(now.groups)),
        };
        self.foreign.insert(switch.into(), foreign);
        self.capabilities.insert(switch.into(), capabilities);
    }

    /// What each switch has left for a group.
    fn rooms(&self, group: &str) -> Rooms {
        let room = |(switch, said): (&String, &castnet_proto::v1::Capabilities)| {
            let (foreign, own) = (
                self.foreign.get(switch).copied().unwrap_or_default(),
                self.own(switch, Some(group)),
            );
            // 0: it does not say.
            let left = |max: u64, taken: u64| {
                if max == 0 {
                    u64::MAX
                } else {
                    max.saturating_sub(taken)
                }
            };
            let room = Room {
                memory_free: left(said.memory_bytes_max, foreign.memory + own.memory),
                groups_free: left(said.groups_max, foreign.groups + own.groups),
                endpoints_max: left(said.paths_max.into(), 0),
                pmtus: said.pmtus.iter().filter_map(|p| Pmtu::from_bytes(*p)).collect(),
            };
            (switch.clone(), room)
        };
        self.capabilities.iter().map(room).collect()
    }
}

/// Places a group on the fabric as it is known now, beside the groups that are laid out already.
///
/// A rank that has not joined yet is planned for with a stand-in for its queue pair.
pub(crate) fn place_group(core: &Core, record: &CollectiveRecord) -> Result<Placement, NoPlan> {
    locate(core, record)?;
    let topology = core.facts.topology();
    // Each lane is a group on its links and switches.
    let multicast = core.groups.values().flat_map(|e| {
        let lanes = 0..e.record.lanes();
        lanes.flat_map(|_| &e.record.plan)
    });
    let rules = multicast.flat_map(|p| p.rules.iter());
    let mut load = LinkLoad::from_rules(&topology, rules.map(|(switch, rule)| (switch.as_str(), rule)));
    let others = core.collectives.values().filter(|e| e.record.name != record.name);
    let rules = others.flat_map(|e| {
        let plan = (0..e.record.settings.lanes).flat_map(|_| &e.record.plan);
        plan.flat_map(|p| p.rules.iter())
    });
    load.add_collectives(&topology, rules.map(|(switch, rule)| (switch.as_str(), rule)));
    let mut rooms = core.rooms(&record.name);
    for room in rooms.values_mut() {
        let lanes = u64::from(record.settings.lanes.max(1));
        room.memory_free /= lanes;
        room.groups_free /= lanes;
    }
    let none = Detours::default();
    let detours = core.collectives.get(&record.name).map_or(&none, |e| &e.detours);
    detours.apply(&mut rooms);
    let plan = place(&topology, &load, &rooms, &request(record)).map_err(|error| {
        let cause = match error {
            PlaceError::NoRoom { .. } => Cause::NoRoom,
            _ => Cause::Unfit,
        };
        let failure = Failure {
            cause,
            field: error.field(),
            reason: match &error {
                PlaceError::NoRoom { shortages } => told(shortages, detours),
                _ => error.reason(),
            },
        };
        // Reports trickle in; a file is complete from the start.
        match error {
            PlaceError::NoPath { .. } if core.facts.file.is_none() && detours.is_empty() => {
                NoPlan::NotYet(failure)
            }
            _ => NoPlan::Never(detours.end(failure)),
        }
    })?;
    Ok(Placement {
        tree: tree_switches(&plan.tree),
        rules: plan.rules,
    })
}

/// What switches lack: in their own words, where they have said so.
fn told(shortages: &[Shortage], detours: &Detours) -> String {
    let each = shortages
        .iter()
        .map(|s| detours.of(&s.switch).unwrap_or_else(|| s.to_string()));
    each.collect::<Vec<_>>().join("; ")
}

/// Every rank's host must have a place.
fn locate(core: &Core, record: &CollectiveRecord) -> Result<(), NoPlan> {
    for (rank, member) in record.ranks.iter().enumerate() {
        let reason = match core.facts.place(&member.host) {
            Place::At { .. } => continue,
            Place::Ambiguous(ports) => {
                let ports: Vec<String> = ports.iter().map(|(s, p)| format!("{s}:{p}")).collect();
                format!(
                    "host {:?} was seen at {} at once; waits for LLDP to tell which of them is a link between switches",
                    member.host,
                    ports.join(" and ")
                )
            }
            Place::Unseen => format!(
                "host {:?} was not seen yet; looked for its ARP at the ports without LLDP neighbours of {}",
                member.host,
                core.facts.switches.keys().cloned().collect::<Vec<_>>().join(", ")
            ),
        };
        return Err(NoPlan::NotYet(Failure {
            cause: Cause::Unseen,
            field: format!("ranks[{rank}]"),
            reason,
        }));
    }
    Ok(())
}

fn request(record: &CollectiveRecord) -> CollectiveRequest {
    let settings = &record.settings;
    let ranks = record
        .ranks
        .iter()
        .enumerate()
        .map(|(i, rank)| match &rank.state {
            RankState::Joined(seat) | RankState::Left(seat) => RankMember {
                host: rank.host.clone(),
                ip: Some(seat.endpoint.ip),
                mac: Some(seat.endpoint.mac),
                qpn: seat.endpoint.qpn,
                sq_psn: seat.sq_psn,
                rq_psn: rank.rq_psn,
            },
            RankState::Expected => {
                // Any addresses that no host has: 198.18.0.0/15 is set aside for measurements (RFC 2544).
                let [hi, lo] = (i as u16).to_be_bytes();
                RankMember {
                    ip: Some([198, 18, hi, lo].into()),
                    mac: Some(MacAddr([2, 0, 198, 18, hi, lo])),
                    ..RankMember::new(&rank.host, Qpn::new(2))
                }
            }
        });
    CollectiveRequest {
        generation: record.generation,
        psn_start: record.psn_start,
        message_packets: settings.message_packets,
        reproducible: settings.reproducible,
        loss_policy: settings.loss_policy,
        straggler_policy: settings.straggler_policy,
        ack_timeout_us: settings.ack_timeout_us,
        stall_timeout_ms: settings.stall_timeout_ms,
        ..CollectiveRequest::new(
            &record.name,
            record.mcst_id,
            settings.pmtu,
            settings.window_packets,
            ranks.collect(),
        )
    }
}
