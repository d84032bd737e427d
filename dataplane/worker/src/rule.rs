//! What control installs: the rule of a group of either kind.

use std::net::Ipv4Addr;

use castnet_engine::{Collective, Context, Group, InstallError, PortInfo};
use castnet_rules::{Claims, CollectiveGroup, CollectiveHop, MulticastGroup, NextHop};
use castnet_wire::{MacAddr, McstId, PortId};

/// A group's rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It multicasts.
    Multicast(MulticastGroup),
    /// It computes.
    Collective(CollectiveGroup),
}

impl Rule {
    /// Its address.
    pub fn mcst_id(&self) -> McstId {
        match self {
            Self::Multicast(rule) => rule.mcst_id,
            Self::Collective(rule) => rule.mcst_id,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Multicast(rule) => &rule.name,
            Self::Collective(rule) => &rule.name,
        }
    }

    /// Which version of it.
    pub fn generation(&self) -> u64 {
        match self {
            Self::Multicast(rule) => rule.generation,
            Self::Collective(rule) => rule.generation,
        }
    }

    /// The rule of a multicast group.
    pub fn multicast(&self) -> Option<&MulticastGroup> {
        match self {
            Self::Multicast(rule) => Some(rule),
            Self::Collective(_) => None,
        }
    }

    /// The rule of a collective group.
    pub fn collective(&self) -> Option<&CollectiveGroup> {
        match self {
            Self::Collective(rule) => Some(rule),
            Self::Multicast(_) => None,
        }
    }

    /// What of it other groups may not have too.
    pub(crate) fn claims(&self) -> Claims<'_> {
        match self {
            Self::Multicast(rule) => rule.into(),
            Self::Collective(rule) => rule.into(),
        }
    }

    /// The Ethernet addresses of its next hops, as often as they are named.
    pub(crate) fn next_hops(&self) -> Vec<MacAddr> {
        match self {
            Self::Multicast(rule) => rule.paths.iter().map(|p| p.next_hop.mac()).collect(),
            Self::Collective(rule) => rule.endpoints.iter().map(|e| e.next_hop.mac()).collect(),
        }
    }

    /// Its members next to the switch, each with its port.
    pub(crate) fn hosts(&self) -> Vec<(PortId, Ipv4Addr)> {
        match self {
            Self::Multicast(rule) => rule
                .paths
                .iter()
                .filter_map(|path| match &path.next_hop {
                    NextHop::Host(host) => Some((path.port, host.ip)),
                    NextHop::Switch { .. } => None,
                })
                .collect(),
            Self::Collective(rule) => rule
                .endpoints
                .iter()
                .filter_map(|endpoint| match &endpoint.next_hop {
                    CollectiveHop::Rank(rank) => Some((endpoint.port, rank.ip)),
                    CollectiveHop::Switch { .. } => None,
                })
                .collect(),
        }
    }

    /// Bytes that the group will take. Refuses what cannot run here, without taking memory for slots.
    pub(crate) fn memory_bytes(&self, ports: &[PortInfo]) -> Result<usize, InstallError> {
        match self {
            Self::Multicast(rule) => Group::compile(rule, ports).map(|group| group.memory_bytes()),
            Self::Collective(rule) => {
                Collective::check(rule, ports)?;
                Ok(rule.memory_bytes() as usize)
            }
        }
    }

    /// The group, with all its memory.
    pub(crate) fn compile(&self, ports: &[PortInfo]) -> Result<Context, InstallError> {
        match self {
            Self::Multicast(rule) => Group::compile(rule, ports).map(Context::from),
            Self::Collective(rule) => Collective::compile(rule, ports).map(Context::from),
        }
    }

    /// The group for a dry run, without memory for payload.
    pub(crate) fn compile_dry(&self, ports: &[PortInfo]) -> Result<Context, InstallError> {
        match self {
            Self::Multicast(rule) => Group::compile(rule, ports).map(Context::from),
            Self::Collective(rule) => Collective::compile_dry(rule, ports).map(Context::from),
        }
    }
}
