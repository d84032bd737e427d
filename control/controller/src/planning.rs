//! From a record to a plan: what planning is alike for all kinds of groups.

use castnet_planner::{LinkLoad, Role, Room, Rooms, Tree, TreeNode};
use castnet_proto::v1;
use castnet_topology::Topology;
use castnet_wire::{MacAddr, Pmtu};

use crate::core::Core;
use crate::fabric::Place;
use crate::lifecycle::{Cause, Failure};
use crate::record::{Record, TreeSwitch};
use crate::table::Own;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPlan {
    /// Perhaps there will be one when switches have reported more.
    NotYet(Failure),
    /// There is none.
    Never(Failure),
}

impl NoPlan {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::NotYet(failure) | Self::Never(failure) => failure,
        }
    }
}

/// What a switch has that is not ours, as of its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Bytes of group state.
    pub(crate) memory: u64,
    /// Groups.
    pub(crate) groups: u64,
}

impl Core {
    /// Takes in what a switch says of itself; `before` is what was ours there when it was asked.
    ///
    /// What came or went while it answered may or may not be counted in its answer. It is taken to be, as then no room is
    /// lost: the switch itself has the last word.
    pub(crate) fn learn(&mut self, switch: &str, capabilities: v1::Capabilities, before: Own) {
        let now = self.groups.own(switch, None);
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

    /// What each switch has left for each lane of a group.
    pub(crate) fn rooms(&self, record: &Record) -> Rooms {
        let lanes = u64::from(record.lanes());
        let room = |(switch, said): (&String, &v1::Capabilities)| {
            let (foreign, own) = (
                self.foreign.get(switch).copied().unwrap_or_default(),
                self.groups.own(switch, Some(&record.name)),
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
                memory_free: left(said.memory_bytes_max, foreign.memory + own.memory) / lanes,
                groups_free: left(said.groups_max, foreign.groups + own.groups) / lanes,
                endpoints_max: left(said.endpoints_max.into(), 0),
                pmtus: said.pmtus.iter().filter_map(|p| Pmtu::from_bytes(*p)).collect(),
            };
            (switch.clone(), room)
        };
        self.capabilities.iter().map(room).collect()
    }
}

/// Counts the groups on each link of the fabric, but for this one.
pub(crate) fn load(core: &Core, topology: &Topology, record: &Record) -> LinkLoad {
    LinkLoad::from_edges(topology, core.groups.load(&record.name))
}

/// Every host of a group must have a place.
pub(crate) fn locate(core: &Core, record: &Record) -> Result<(), NoPlan> {
    for party in record.kind.behaviour().parties() {
        let host = party.host;
        let reason = match core.facts.place(host) {
            Place::At { .. } => continue,
            Place::Ambiguous(ports) => {
                let ports: Vec<String> = ports.iter().map(|(s, p)| format!("{s}:{p}")).collect();
                format!(
                    "host {host:?} was seen at {} at once; waits for LLDP to tell which of them is a link between switches",
                    ports.join(" and ")
                )
            }
            Place::Unseen => {
                let end = party.ends.first();
                format!(
                    "host {host:?}{} was not seen yet; looked for its ARP at the ports without LLDP neighbours of {}",
                    end.map(|e| format!(" ({}, {})", e.ip, e.mac)).unwrap_or_default(),
                    core.facts.switches.keys().cloned().collect::<Vec<_>>().join(", ")
                )
            }
        };
        return Err(NoPlan::NotYet(Failure {
            cause: Cause::Unseen,
            field: party.field,
            reason,
        }));
    }
    Ok(())
}

/// Addresses that no host has, for a member that has not joined yet: 198.18.0.0/15 is set aside for measurements
/// (RFC 2544).
pub(crate) fn stand_in(member: usize) -> (std::net::Ipv4Addr, MacAddr) {
    let [hi, lo] = (member as u16).to_be_bytes();
    ([198, 18, hi, lo].into(), MacAddr([2, 0, 198, 18, hi, lo]))
}

/// The switches of a tree, parents before children.
pub(crate) fn tree_switches(tree: &Tree) -> Vec<TreeSwitch> {
    let mut all = Vec::new();
    let mut next: Vec<(&TreeNode, Option<&str>)> = vec![(&tree.root, None)];
    let mut at = 0;
    while let Some((node, parent)) = next.get(at).copied() {
        at += 1;
        let here = (node.role == Role::Switch).then_some(node.name.as_str());
        all.extend(here.map(|name| TreeSwitch {
            name: name.into(),
            parent: parent.map(String::from),
        }));
        next.extend(node.children.iter().map(|child| (child, here)));
    }
    all
}
