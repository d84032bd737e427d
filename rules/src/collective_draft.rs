//! Collective groups that may lack fields, and what must hold of them.

use std::collections::BTreeMap;

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};

use crate::check::{bad_ip, bad_mac, bad_name, reserved};
use crate::collective::{
    CollectiveEndpoint, CollectiveGroup, CollectiveHop, LossPolicy, RANKS_MAX, RankEndpoint, StragglerPolicy,
};
use crate::fault::{Fault, FaultKind};
use crate::limit::Limit;

/// Fewest slots of a group.
const SLOTS_MIN: u16 = 2;
/// Four ticks of a microsecond.
const ACK_TIMEOUT_MIN_US: u32 = 4;

/// A [`CollectiveGroup`] of which some fields could not be read: `None` there, and the checker is silent about them.
#[derive(Clone, Debug, Default)]
pub struct CollectiveDraft {
    /// See [`CollectiveGroup::name`].
    pub name: Option<String>,
    /// See [`CollectiveGroup::generation`].
    pub generation: Option<u64>,
    /// See [`CollectiveGroup::mcst_id`].
    pub mcst_id: Option<McstId>,
    /// See [`CollectiveGroup::pmtu`].
    pub pmtu: Option<Pmtu>,
    /// See [`CollectiveGroup::psn_start`].
    pub psn_start: Option<Psn>,
    /// See [`CollectiveGroup::slots`].
    pub slots: Option<u16>,
    /// See [`CollectiveGroup::message_packets`].
    pub message_packets: Option<u16>,
    /// See [`CollectiveGroup::reproducible`].
    pub reproducible: Option<bool>,
    /// See [`CollectiveGroup::loss_policy`].
    pub loss_policy: Option<LossPolicy>,
    /// See [`CollectiveGroup::straggler_policy`].
    pub straggler_policy: Option<StragglerPolicy>,
    /// See [`CollectiveGroup::ack_timeout_us`].
    pub ack_timeout_us: Option<u32>,
    /// See [`CollectiveGroup::stall_timeout_ms`].
    pub stall_timeout_ms: Option<u32>,
    /// See [`CollectiveGroup::parent`]; the inner `None` is the root's.
    pub parent: Option<Option<PortId>>,
    /// See [`CollectiveGroup::endpoints`]; `None` where the list itself could not be read.
    pub endpoints: Option<Vec<EndpointDraft>>,
}

/// A [`CollectiveEndpoint`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct EndpointDraft {
    /// See [`CollectiveEndpoint::port`].
    pub port: Option<PortId>,
    /// See [`CollectiveEndpoint::next_hop`].
    pub next_hop: Option<CollectiveHopDraft>,
}

/// A [`CollectiveHop`] of which some fields could not be read.
#[derive(Clone, Debug)]
pub enum CollectiveHopDraft {
    /// See [`CollectiveHop::Rank`].
    Rank(RankDraft),
    /// See [`CollectiveHop::Switch`].
    Switch {
        /// Its name.
        name: Option<String>,
        /// Its address.
        mac: Option<MacAddr>,
        /// The ranks behind it.
        ranks: Option<Vec<u16>>,
    },
}

/// A [`RankEndpoint`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct RankDraft {
    /// See [`RankEndpoint::rank`].
    pub rank: Option<u16>,
    /// See [`RankEndpoint::name`].
    pub name: Option<String>,
    /// See [`RankEndpoint::ip`].
    pub ip: Option<Ipv4Addr>,
    /// See [`RankEndpoint::qpn`].
    pub qpn: Option<Qpn>,
    /// See [`RankEndpoint::mac`].
    pub mac: Option<MacAddr>,
    /// See [`RankEndpoint::sq_psn`].
    pub sq_psn: Option<Psn>,
    /// See [`RankEndpoint::rq_psn`].
    pub rq_psn: Option<Psn>,
}

impl CollectiveDraft {
    /// The group, where no field is lacking.
    pub fn finish(self) -> Option<CollectiveGroup> {
        let endpoints = self.endpoints?.into_iter().map(EndpointDraft::finish);
        Some(CollectiveGroup {
            name: self.name?,
            generation: self.generation?,
            mcst_id: self.mcst_id?,
            pmtu: self.pmtu?,
            psn_start: self.psn_start?,
            slots: self.slots?,
            message_packets: self.message_packets?,
            reproducible: self.reproducible?,
            loss_policy: self.loss_policy?,
            straggler_policy: self.straggler_policy?,
            ack_timeout_us: self.ack_timeout_us?,
            stall_timeout_ms: self.stall_timeout_ms?,
            parent: self.parent?,
            endpoints: endpoints.collect::<Option<_>>()?,
        })
    }

    /// Every rule that what is known of this group breaks on a switch with `ports` ports; fields are relative to the
    /// group.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |field: &str, kind| faults.push(Fault::new(field, kind));
        if let Some(kind) = self.name.as_deref().and_then(bad_name) {
            fault("name", kind);
        }
        if let Some(kind) = self.mcst_id.and_then(|m| bad_ip(m.0)) {
            fault("mcst_id", kind);
        }
        if self.message_packets == Some(0) {
            fault("message_packets", FaultKind::EmptyMessages);
        }
        if let Some(kind) = self.slots.and_then(|slots| self.bad_slots(slots)) {
            fault("slots", kind);
        }
        if let Some(given) = self.ack_timeout_us.filter(|t| *t < ACK_TIMEOUT_MIN_US) {
            let least = ACK_TIMEOUT_MIN_US;
            fault("ack_timeout_us", FaultKind::ShortAckTimeout { given, least });
        }
        if self.stall_timeout_ms == Some(0) {
            fault("stall_timeout_ms", FaultKind::ZeroStallTimeout);
        }
        let Some(endpoints) = &self.endpoints else {
            return faults;
        };
        if let Some(kind) = self.bad_parent(endpoints) {
            fault("parent", kind);
        }
        if endpoints.len() < 2 {
            let endpoints = endpoints.len();
            fault("endpoints", FaultKind::TooFewEndpoints { endpoints });
        }
        check_ports(endpoints, ports, &mut faults);
        self.check_hops(endpoints, &mut faults);
        check_ranks(endpoints, &mut faults);
        faults
    }

    fn bad_slots(&self, slots: u16) -> Option<FaultKind> {
        if slots < SLOTS_MIN || !slots.is_power_of_two() {
            return Some(FaultKind::NotPowerOfTwo { slots });
        }
        let message_packets = self.message_packets?;
        let need = 2 * u32::from(message_packets);
        (u32::from(slots) < need).then_some(FaultKind::TooFewSlots {
            slots,
            message_packets,
            need,
        })
    }

    fn bad_parent(&self, endpoints: &[EndpointDraft]) -> Option<FaultKind> {
        let parent = self.parent??;
        // A port that could not be read may be the parent's: silence until it is known.
        let ports: Vec<PortId> = endpoints.iter().map(|e| e.port).collect::<Option<_>>()?;
        let Some(endpoint) = endpoints.iter().find(|e| e.port == Some(parent)) else {
            return Some(FaultKind::ParentNotAnEndpoint { parent, ports });
        };
        matches!(endpoint.next_hop, Some(CollectiveHopDraft::Rank(_)))
            .then_some(FaultKind::ParentIsRank { parent })
    }

    fn check_hops(&self, endpoints: &[EndpointDraft], faults: &mut Vec<Fault>) {
        let mut name_of: BTreeMap<&str, String> = BTreeMap::new();
        let mut ip_of: BTreeMap<Ipv4Addr, String> = BTreeMap::new();
        for (i, endpoint) in endpoints.iter().enumerate() {
            let (kind, name, mac) = match &endpoint.next_hop {
                Some(CollectiveHopDraft::Rank(rank)) => ("rank", &rank.name, rank.mac),
                Some(CollectiveHopDraft::Switch { name, mac, .. }) => ("switch", name, *mac),
                None => continue,
            };
            let hop = format!("endpoints[{i}].{kind}");
            if let Some(name) = name.as_deref() {
                let field = format!("{hop}.name");
                if let Some(kind) = bad_name(name) {
                    faults.push(Fault::new(field, kind));
                } else if let Some(first) = name_of.get(name).cloned() {
                    let name = name.into();
                    faults.push(Fault::new(field, FaultKind::DuplicateName { name, first }));
                } else {
                    name_of.insert(name, hop.clone());
                }
            }
            if let Some(kind) = mac.and_then(bad_mac) {
                faults.push(Fault::new(format!("{hop}.mac"), kind));
            }
            let Some(CollectiveHopDraft::Rank(rank)) = &endpoint.next_hop else {
                continue;
            };
            if let Some(qpn) = rank.qpn.filter(|q| reserved(*q)) {
                faults.push(Fault::new(format!("{hop}.qpn"), FaultKind::ReservedQpn { qpn }));
            }
            let Some(ip) = rank.ip else { continue };
            let field = format!("{hop}.ip");
            if let Some(kind) = bad_ip(ip) {
                faults.push(Fault::new(field, kind));
            } else if self.mcst_id.is_some_and(|m| m.0 == ip) {
                let group = "this group".into();
                faults.push(Fault::new(field, FaultKind::MemberIsMcstId { ip, group }));
            } else if let Some(first) = ip_of.get(&ip).cloned() {
                faults.push(Fault::new(field, FaultKind::DuplicateMemberIp { ip, first }));
            } else {
                ip_of.insert(ip, hop);
            }
        }
    }
}

fn check_ports(endpoints: &[EndpointDraft], ports: usize, faults: &mut Vec<Fault>) {
    let mut port_of: BTreeMap<PortId, usize> = BTreeMap::new();
    for (i, endpoint) in endpoints.iter().enumerate() {
        let Some(port) = endpoint.port else { continue };
        let field = format!("endpoints[{i}].port");
        if port.index() >= ports {
            faults.push(Fault::new(field.clone(), FaultKind::NoSuchPort { port, ports }));
        }
        if let Some(first) = port_of.get(&port) {
            let first = format!("endpoints[{first}]");
            faults.push(Fault::new(field, FaultKind::DuplicatePort { port, first }));
        } else {
            port_of.insert(port, i);
        }
    }
}

/// Each rank from 0 on is behind exactly one endpoint.
fn check_ranks(endpoints: &[EndpointDraft], faults: &mut Vec<Fault>) {
    let mut endpoint_of: BTreeMap<u16, usize> = BTreeMap::new();
    let mut all_known = true;
    for (i, endpoint) in endpoints.iter().enumerate() {
        let (field, ranks) = match &endpoint.next_hop {
            Some(CollectiveHopDraft::Rank(rank)) => {
                (format!("endpoints[{i}].rank.rank"), rank.rank.map(|r| vec![r]))
            }
            Some(CollectiveHopDraft::Switch { ranks, .. }) => {
                (format!("endpoints[{i}].switch.ranks"), ranks.clone())
            }
            None => (String::new(), None),
        };
        let Some(ranks) = ranks else {
            all_known = false;
            continue;
        };
        if ranks.is_empty() {
            faults.push(Fault::new(field.clone(), FaultKind::NoRanks));
        }
        for rank in ranks {
            if rank >= RANKS_MAX {
                all_known = false;
                faults.push(Fault::new(field.clone(), Limit::RANK.fault(rank)));
            } else if let Some(first) = endpoint_of.get(&rank) {
                let first = format!("endpoints[{first}]");
                faults.push(Fault::new(
                    field.clone(),
                    FaultKind::DuplicateRank { rank, first },
                ));
            } else {
                endpoint_of.insert(rank, i);
            }
        }
    }
    // A rank that could not be read may be the one that is lacking.
    let Some((most, _)) = endpoint_of.last_key_value().filter(|_| all_known) else {
        return;
    };
    if let Some(rank) = (0..*most).find(|rank| !endpoint_of.contains_key(rank)) {
        let most = *most;
        faults.push(Fault::new("endpoints", FaultKind::NoEndpointFor { rank, most }));
    }
}

impl EndpointDraft {
    fn finish(self) -> Option<CollectiveEndpoint> {
        let next_hop = match self.next_hop? {
            CollectiveHopDraft::Rank(rank) => CollectiveHop::Rank(RankEndpoint {
                rank: rank.rank?,
                name: rank.name?,
                ip: rank.ip?,
                qpn: rank.qpn?,
                mac: rank.mac?,
                sq_psn: rank.sq_psn?,
                rq_psn: rank.rq_psn?,
            }),
            CollectiveHopDraft::Switch { name, mac, ranks } => CollectiveHop::Switch {
                name: name?,
                mac: mac?,
                ranks: ranks?,
            },
        };
        Some(CollectiveEndpoint {
            port: self.port?,
            next_hop,
        })
    }
}

impl From<&CollectiveGroup> for CollectiveDraft {
    fn from(group: &CollectiveGroup) -> Self {
        Self {
            name: Some(group.name.clone()),
            generation: Some(group.generation),
            mcst_id: Some(group.mcst_id),
            pmtu: Some(group.pmtu),
            psn_start: Some(group.psn_start),
            slots: Some(group.slots),
            message_packets: Some(group.message_packets),
            reproducible: Some(group.reproducible),
            loss_policy: Some(group.loss_policy),
            straggler_policy: Some(group.straggler_policy),
            ack_timeout_us: Some(group.ack_timeout_us),
            stall_timeout_ms: Some(group.stall_timeout_ms),
            parent: Some(group.parent),
            endpoints: Some(group.endpoints.iter().map(EndpointDraft::from).collect()),
        }
    }
}

impl From<&CollectiveEndpoint> for EndpointDraft {
    fn from(endpoint: &CollectiveEndpoint) -> Self {
        let next_hop = match &endpoint.next_hop {
            CollectiveHop::Rank(rank) => CollectiveHopDraft::Rank(RankDraft {
                rank: Some(rank.rank),
                name: Some(rank.name.clone()),
                ip: Some(rank.ip),
                qpn: Some(rank.qpn),
                mac: Some(rank.mac),
                sq_psn: Some(rank.sq_psn),
                rq_psn: Some(rank.rq_psn),
            }),
            CollectiveHop::Switch { name, mac, ranks } => CollectiveHopDraft::Switch {
                name: Some(name.clone()),
                mac: Some(*mac),
                ranks: Some(ranks.clone()),
            },
        };
        Self {
            port: Some(endpoint.port),
            next_hop: Some(next_hop),
        }
    }
}
