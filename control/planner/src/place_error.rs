//! Why there is no place for a collective group.

use castnet_rules::Fault;
use castnet_topology::{Cut, End};
use castnet_wire::{McstId, Pmtu};

use crate::error::{cut_text, faults_text};

/// Why a collective group cannot be placed. [`PlaceError::field`] names the field at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Too few ranks, or too many.
    #[error(
        "ranks: {ranks} rank(s); a collective group has 2 to {}",
        castnet_rules::RANKS_MAX
    )]
    BadSize {
        /// How many.
        ranks: usize,
    },
    /// No host of that name.
    #[error("ranks[{rank}]: the fabric has no host {host:?}")]
    UnknownHost {
        /// The rank.
        rank: usize,
        /// The name.
        host: String,
    },
    /// Neither fabric nor request know an address of the rank's host.
    #[error("ranks[{rank}]: the {address} of host {host:?} is not known; give it in the request")]
    NoAddress {
        /// The rank.
        rank: usize,
        /// The host.
        host: String,
        /// Which address.
        address: &'static str,
    },
    /// The McstID is a host's address.
    #[error("mcst_id: {mcst_id} is the address of host {host:?}")]
    McstIdIsHost {
        /// The McstID.
        mcst_id: McstId,
        /// The host.
        host: String,
    },
    /// No Castnet switch reaches all ranks.
    #[error("ranks[{rank}]: no path from {from:?} to {to:?}: {}", cut_text(.cut))]
    NoPath {
        /// The rank that is cut off; 0, where no Castnet switch is reached.
        rank: usize,
        /// Rank 0's host.
        from: String,
        /// The rank's host, or the Castnet switch that is cut off by the fewest things that are down.
        to: String,
        /// Where it is cut.
        cut: Cut,
    },
    /// Plain switches alone cannot run a group.
    #[error("the fabric has no Castnet switch: plain switches and routers run no groups")]
    NoCastnetSwitch,
    /// A link that is needed cannot carry full packets.
    #[error("pmtu: {} needs an MTU of {needed} on every link, but {a} - {b} has {mtu}", .pmtu.bytes())]
    PmtuTooLarge {
        /// The path MTU asked for.
        pmtu: Pmtu,
        /// The link MTU that it needs.
        needed: u32,
        /// One end of the link.
        a: End,
        /// The other end.
        b: End,
        /// Its MTU.
        mtu: u32,
    },
    /// Every tree has a switch without room.
    #[error("{}", shortages_text(.shortages))]
    NoRoom {
        /// The switches that were tried and what they lack, in the order they were tried; at least one. The last is the
        /// one that the ranks could not be linked without.
        shortages: Vec<Shortage>,
    },
    /// The tree passes routers, and the request has no McstID for one of its switches.
    #[error("switch {switch:?} has no McstID of its own, as each has where a tree passes routers")]
    NoMcstId {
        /// The switch.
        switch: String,
    },
    /// What the rules' checker says of the request's values.
    #[error("{}", faults_text(.faults))]
    Refused {
        /// At least one.
        faults: Vec<Fault>,
    },
    /// A rule that the planner made breaks the checker's rules: the fabric contradicts itself.
    #[error("rule for switch {switch:?}: {}", faults_text(.faults))]
    BadRule {
        /// The switch.
        switch: String,
        /// At least one.
        faults: Vec<Fault>,
    },
}

/// What a switch lacks for a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("switch {switch} {lack}")]
pub struct Shortage {
    /// The switch.
    pub switch: String,
    /// What it lacks.
    pub lack: Lack,
}

/// What can be short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// Memory for slots and state.
    #[error("needs {needed} bytes for it, {free} are free")]
    Memory {
        /// Bytes that the group takes there.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Places for groups.
    #[error("takes no more groups")]
    Groups,
    /// A path MTU that it cannot carry.
    #[error("does not carry a path MTU of {}{}", .wanted.bytes(), largest_text(.largest))]
    Pmtu {
        /// The path MTU asked for.
        wanted: Pmtu,
        /// The largest that it carries.
        largest: Option<Pmtu>,
    },
    /// More endpoints than a group can have there.
    #[error("has {needed} endpoints in the tree, a group can have {max} there")]
    Endpoints {
        /// Endpoints of the tree.
        needed: u64,
        /// What it takes.
        max: u64,
    },
}

impl PlaceError {
    /// The field of the request that is at fault, such as `ranks[2]`, or `switches.NAME`; empty where it is the fabric.
    pub fn field(&self) -> String {
        match self {
            Self::BadSize { .. } => "ranks".into(),
            Self::NoCastnetSwitch => String::new(),
            Self::UnknownHost { rank, .. } | Self::NoAddress { rank, .. } | Self::NoPath { rank, .. } => {
                format!("ranks[{rank}]")
            }
            Self::McstIdIsHost { .. } => "mcst_id".into(),
            Self::PmtuTooLarge { .. } => "pmtu".into(),
            Self::NoRoom { shortages } => shortages
                .last()
                .map(|s| format!("switches.{}", s.switch))
                .unwrap_or_default(),
            Self::Refused { faults } => faults.first().map(|f| f.field.clone()).unwrap_or_default(),
            Self::BadRule { switch, .. } | Self::NoMcstId { switch } => format!("switches.{switch}"),
        }
    }

    /// The reason without the field in front of it.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        let rest = text
            .strip_prefix(&self.field())
            .and_then(|t| t.strip_prefix(": "));
        rest.map(str::to_owned).unwrap_or(text)
    }
}

fn largest_text(largest: &Option<Pmtu>) -> String {
    largest
        .map(|p| format!(", {} at most", p.bytes()))
        .unwrap_or_default()
}

fn shortages_text(shortages: &[Shortage]) -> String {
    shortages
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
