use core::fmt::Display;

use castnet_rules::Fault;
use castnet_topology::{Cut, End};
use castnet_wire::{McstId, Pmtu};

/// Why a request cannot be planned. [`PlanError::field`] names the field of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum PlanError {
    /// A multicast group without a receiver.
    #[error("members: {members} member(s); a group needs a source and at least one receiver")]
    NoReceivers { members: usize },
    /// Not 2 to [`RANKS_MAX`](castnet_rules::RANKS_MAX) ranks.
    #[error(
        "ranks: {ranks} rank(s); a collective group has 2 to {}",
        castnet_rules::RANKS_MAX
    )]
    BadSize { ranks: usize },
    /// No host of that name.
    #[error("{field}: the fabric has no host {host:?}")]
    UnknownHost { field: String, host: String },
    /// No switch of that name, which has a mode of its own.
    #[error("modes: the fabric has no switch {switch:?}")]
    UnknownSwitch { switch: String },
    /// A host is a member of a multicast group twice.
    #[error("{field}: host {host:?} is {first} already; a host is a member of a group once")]
    MemberTwice {
        field: String,
        host: String,
        first: String,
    },
    /// The source is among the receivers.
    #[error("{field}: host {host:?} is the source")]
    SourceAmongReceivers { field: String, host: String },
    /// Neither fabric nor request has an address of the member.
    #[error("{field}: the {address} of host {host:?} is not known; give it in the request")]
    NoAddress {
        field: String,
        host: String,
        address: &'static str,
    },
    /// The McstID is the address of a host.
    #[error("mcst_id: {mcst_id} is the address of host {host:?}")]
    McstIdIsHost { mcst_id: McstId, host: String },
    /// No path from the source, or rank 0, to another member, or to any Castnet switch.
    #[error("{field}: no path from {from:?} to {to:?}: {}", cut_text(.cut))]
    NoPath {
        field: String,
        from: String,
        to: String,
        cut: Cut,
    },
    /// The fabric has plain switches and routers only.
    #[error("the fabric has no Castnet switch: plain switches and routers run no groups")]
    NoCastnetSwitch,
    /// A needed link cannot carry full packets.
    #[error("pmtu: {} needs an MTU of {needed} on every link, but {a} - {b} has {mtu}", .pmtu.bytes())]
    PmtuTooLarge {
        pmtu: Pmtu,
        /// The link MTU for packets of the path MTU with their headers, in bytes.
        needed: u32,
        a: End,
        b: End,
        /// Its MTU in bytes.
        mtu: u32,
    },
    /// Every tree of a collective group has a switch without room.
    #[error("{}", joined(.shortages))]
    NoRoom { shortages: Vec<Shortage> },
    /// No router replicates, or a switch next to a receiver is not reached over routers alone.
    #[error("distribution: {reason}")]
    NoStaticCore { reason: String },
    /// The tree passes routers, and the request has no McstID for one of its switches.
    #[error("switch {switch:?} has no McstID of its own, as each has where a tree passes routers")]
    NoMcstId { switch: String },
    /// The rule checker refuses values of the request; fields as in the request.
    #[error("{}", joined(.faults))]
    Refused { faults: Vec<Fault> },
    /// The rule checker refuses a rule of the plan: more members are behind one port than a group can have endpoints
    /// there, or the fabric contradicts itself, for instance with an invalid Ethernet address of a port.
    #[error("rule for switch {switch:?}: {}", joined(.faults))]
    BadRule { switch: String, faults: Vec<Fault> },
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

/// What a switch can lack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Lack {
    /// Memory for slots and state, in bytes.
    #[error("needs {needed} bytes for it, {free} are free")]
    Memory { needed: u64, free: u64 },
    /// It takes no more groups.
    #[error("takes no more groups")]
    Groups,
    /// The path MTU.
    #[error("does not carry a path MTU of {}{}", .wanted.bytes(), largest_text(.largest))]
    Pmtu { wanted: Pmtu, largest: Option<Pmtu> },
    /// The tree has more endpoints there than a group can have.
    #[error("has {needed} endpoints in the tree, a group can have {max} there")]
    Endpoints { needed: u64, max: u64 },
}

impl Shortage {
    /// In words, for a group with `lanes`, whose room is that for each of them.
    pub fn words(&self, lanes: u8) -> String {
        format!("switch {} {}", self.switch, self.lack.words(lanes))
    }
}

impl Lack {
    /// See [`Shortage::words`].
    pub fn words(&self, lanes: u8) -> String {
        match self {
            Self::Memory { needed, free } if lanes > 1 => {
                format!(
                    "needs {needed} bytes for each of the group's {lanes} lanes, {free} are free for each"
                )
            }
            Self::Groups if lanes > 1 => {
                format!("takes no more groups of {lanes} lanes, each of which counts")
            }
            lack => lack.to_string(),
        }
    }
}

impl PlanError {
    /// The field of the request at fault, such as `ranks[2]`, or `switches.NAME`; empty if the fabric is at fault.
    pub fn field(&self) -> String {
        match self {
            Self::NoReceivers { .. } => "members".into(),
            Self::BadSize { .. } => "ranks".into(),
            Self::UnknownHost { field, .. }
            | Self::MemberTwice { field, .. }
            | Self::SourceAmongReceivers { field, .. }
            | Self::NoAddress { field, .. }
            | Self::NoPath { field, .. } => field.clone(),
            Self::UnknownSwitch { .. } => "modes".into(),
            Self::NoStaticCore { .. } => "distribution".into(),
            Self::McstIdIsHost { .. } => "mcst_id".into(),
            Self::NoCastnetSwitch => String::new(),
            Self::PmtuTooLarge { .. } => "pmtu".into(),
            Self::NoRoom { shortages } => shortages
                .last()
                .map(|s| format!("switches.{}", s.switch))
                .unwrap_or_default(),
            Self::NoMcstId { switch } | Self::BadRule { switch, .. } => format!("switches.{switch}"),
            Self::Refused { faults } => faults.first().map(|f| f.field.clone()).unwrap_or_default(),
        }
    }

    /// The message without the field in front of it.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        let rest = text
            .strip_prefix(&self.field())
            .and_then(|t| t.strip_prefix(": "));
        rest.map(str::to_owned).unwrap_or(text)
    }
}

fn cut_text(cut: &Cut) -> String {
    match cut {
        Cut::NeverLinked => "the fabric does not link them".into(),
        Cut::Down(down) => down
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn largest_text(largest: &Option<Pmtu>) -> String {
    largest
        .map(|p| format!(", {} at most", p.bytes()))
        .unwrap_or_default()
}

/// The first ones: of 1,024 ranks, each may be at fault.
fn joined<T: Display>(all: &[T]) -> String {
    const TOLD_MAX: usize = 8;
    let mut told: Vec<String> = all.iter().take(TOLD_MAX).map(T::to_string).collect();
    if all.len() > TOLD_MAX {
        told.push(format!("and {} more", all.len() - TOLD_MAX));
    }
    told.join("; ")
}
