//! Helpers for installing a group of any kind, and its errors.

use core::net::Ipv4Addr;

use castnet_rules::{Fault, GroupRule, NextHop};
use castnet_wire::layout::PACKET_HEADERS;
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::{MacAddr, McstId, PortId, Reth};

use crate::config::PortInfo;
use crate::tables::next_hops::NextHopsFull;

/// Bytes around the payload of the largest packet: IPv4, UDP, BTH, RETH, ImmDt and ICRC.
pub(crate) const OVERHEAD: usize = PACKET_HEADERS + Reth::LEN + 4 + ICRC_LEN;

/// Why a group cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum InstallError {
    /// The rule is inconsistent.
    #[error("the rule has {} fault(s); the first: {}", .0.len(), .0.first().map(ToString::to_string).unwrap_or_default())]
    Faults(Vec<Fault>),
    /// An endpoint is at a port that the switch does not have, though it has one of a higher number.
    #[error("endpoint {endpoint} is at port {port}, which this switch does not have")]
    NoPort { endpoint: usize, port: PortId },
    /// The rule has no Ethernet address for a next hop, and the switch does not know one.
    #[error(
        "endpoint {endpoint}: the Ethernet address of {ip} at port {port} is unknown: no route and no neighbour has it. Set it in \
         the rule (mac), add a route to {ip} by port {port} (castnet route add), or let the switch see {ip} by ARP"
    )]
    NoMac {
        endpoint: usize,
        port: PortId,
        ip: Ipv4Addr,
    },
    /// Packets of the group are too long for a port.
    #[error("path MTU {pmtu} needs an MTU of {need} on port {port}, which has {mtu}")]
    MtuTooSmall {
        port: PortId,
        /// The group's path MTU in bytes.
        pmtu: usize,
        need: usize,
        mtu: usize,
    },
    /// The number of groups has reached its limit.
    #[error("{max} groups are installed: no place for another")]
    GroupsFull { max: usize },
    /// The memory reserved for groups is used up.
    #[error("the group needs {need} bytes, {left} of {max} are left")]
    NoMemory {
        need: usize,
        left: usize,
        /// Most bytes for all groups.
        max: usize,
    },
    /// The table of next hops' Ethernet addresses is full.
    #[error("no capacity for another next hop's Ethernet address")]
    NextHopsFull,
    /// The McstID is an address of the switch itself.
    #[error("{mcst_id} is an address of this switch")]
    OwnAddress { mcst_id: McstId },
}

/// The number of ports as rules count them: one more than the highest port number.
pub fn port_count(ports: &[PortInfo]) -> usize {
    ports.iter().map(|port| port.id.index() + 1).max().unwrap_or(0)
}

pub(crate) fn macs(rule: &GroupRule) -> impl Iterator<Item = MacAddr> + Clone {
    rule.endpoints.iter().map(|endpoint| endpoint.next_hop.mac())
}

pub(crate) fn rule_bytes(rule: &GroupRule) -> usize {
    let endpoints = rule.endpoints.iter().map(|endpoint| {
        let ranks = match &endpoint.next_hop {
            NextHop::Switch { ranks, .. } => size_of_val(&**ranks),
            NextHop::Host(_) => 0,
        };
        size_of_val(endpoint) + endpoint.next_hop.name().len() + ranks
    });
    rule.name.len() + endpoints.sum::<usize>()
}

/// The UDP source port of a group's feedback, in the range of RoCEv2: constant for the group, and entropy for equal-cost paths.
pub(crate) fn feedback_sport(mcst_id: McstId) -> u16 {
    let address = u32::from(mcst_id.0);
    0xC000 | ((address ^ address >> 14 ^ address >> 28) & 0x3FFF) as u16
}

impl From<NextHopsFull> for InstallError {
    fn from(_: NextHopsFull) -> Self {
        Self::NextHopsFull
    }
}
