//! Why there is no plan.

use castnet_rules::Fault;
use castnet_topology::{Cut, End};
use castnet_wire::{McstId, Pmtu};

/// Why a request cannot be met. [`PlanError::field`] names the field of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nobody to send to.
    #[error("receivers: empty; a group needs at least one receiver")]
    NoReceivers,
    /// No host of that name.
    #[error("{field}: the fabric has no host {host:?}")]
    UnknownMember {
        /// The member's field.
        field: String,
        /// The name.
        host: String,
    },
    /// A host twice: a switch has one path per port, so a host is a member once.
    #[error("{field}: host {host:?} is {first} already; a host is a member of a group once")]
    MemberTwice {
        /// The member's field.
        field: String,
        /// The host.
        host: String,
        /// The field that names it first.
        first: String,
    },
    /// The source cannot receive what it sends.
    #[error("{field}: host {host:?} is the source")]
    SourceAmongReceivers {
        /// The receiver's field.
        field: String,
        /// The host.
        host: String,
    },
    /// Neither fabric nor request know an address of the member.
    #[error("{field}: the {address} of host {host:?} is not known; give it in the request")]
    NoAddress {
        /// The member's field.
        field: String,
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
    /// No path from the source to a receiver, or to any Castnet switch.
    #[error("{field}: no path from {from:?} to {to:?}: {}", cut_text(.cut))]
    NoPath {
        /// The receiver's field; the source's, where no Castnet switch is reached.
        field: String,
        /// The source.
        from: String,
        /// The receiver, or the Castnet switch that is cut off by the fewest things that are down.
        to: String,
        /// Where it is cut.
        cut: Cut,
    },
    /// Plain switches alone cannot run a group.
    #[error("the fabric has no Castnet switch: plain switches and routers run no groups")]
    NoCastnetSwitch,
    /// A link of the tree cannot carry full packets.
    #[error("pmtu: {} needs an MTU of {needed} on every link, but {a} - {b} has {mtu}", .pmtu.bytes())]
    PmtuTooLarge {
        /// The path MTU asked for.
        pmtu: Pmtu,
        /// The link MTU that it needs: packets of the path MTU with their headers.
        needed: u32,
        /// One end of the link.
        a: End,
        /// The other end.
        b: End,
        /// Its MTU.
        mtu: u32,
    },
    /// The tree passes routers, and the request has no McstID for one of its switches.
    #[error("switch {switch:?} has no McstID of its own, as each has where a tree passes routers")]
    NoMcstId {
        /// The switch.
        switch: String,
    },
    /// What the rules' own checker says of the request's values, fields as in the request.
    #[error("{}", faults_text(.faults))]
    Refused {
        /// At least one.
        faults: Vec<Fault>,
    },
    /// A rule that the planner made breaks the checker's rules: more members are behind one port of a switch than a group can
    /// have endpoints there, or the fabric contradicts itself, for instance with a port's Ethernet address that is none.
    #[error("rule for switch {switch:?}: {}", faults_text(.faults))]
    BadRule {
        /// The switch.
        switch: String,
        /// At least one.
        faults: Vec<Fault>,
    },
}

impl PlanError {
    /// The field of the request that is at fault, such as `receivers[2]`; empty where it is the fabric.
    pub fn field(&self) -> &str {
        match self {
            Self::NoReceivers => "receivers",
            Self::UnknownMember { field, .. }
            | Self::MemberTwice { field, .. }
            | Self::SourceAmongReceivers { field, .. }
            | Self::NoAddress { field, .. }
            | Self::NoPath { field, .. } => field,
            Self::McstIdIsHost { .. } => "mcst_id",
            Self::PmtuTooLarge { .. } => "pmtu",
            Self::Refused { faults } => faults.first().map_or("", |f| &f.field),
            Self::BadRule { .. } | Self::NoCastnetSwitch | Self::NoMcstId { .. } => "",
        }
    }
}

pub(crate) fn cut_text(cut: &Cut) -> String {
    match cut {
        Cut::NeverLinked => "the fabric does not link them".into(),
        Cut::Down(down) => down
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

pub(crate) fn faults_text(faults: &[Fault]) -> String {
    faults
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
