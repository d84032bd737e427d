//! Generators of static rules, and the examples that ship.

use castnet_wire::{McstId, Pmtu, PortId};

use crate::fault::{Fault, FaultKind};
use crate::group::{DEFAULT_STALL_TIMEOUT_MS, Endpoint, GroupRule, HostEndpoint, NextHop};
use crate::kinds::GroupKind;
use crate::set::RuleSet;

/// The rule files of two tiers, by the name of their switch.
pub const TWO_TIER_EXAMPLE: [(&str, &str); 3] = [
    ("spine", include_str!("../examples/two-tier/spine.toml")),
    ("leaf-a", include_str!("../examples/two-tier/leaf-a.toml")),
    ("leaf-b", include_str!("../examples/two-tier/leaf-b.toml")),
];

/// The rule file of one switch that adds what three ranks send.
pub const COLLECTIVE_EXAMPLE: &str = include_str!("../examples/collective.toml");

/// The rule file of one switch that forwards between two hosts.
pub const FORWARDING_EXAMPLE: &str = include_str!("../examples/forwarding.toml");

impl RuleSet {
    /// A rule file that shows and explains every field: one switch, four hosts.
    pub const fn schema_example() -> &'static str {
        include_str!("../examples/star.toml")
    }
}

impl GroupRule {
    /// A group on one switch, the only one of its tree: member `i` is at port `i`. A multicast group's source is where
    /// `kind` says, by default the first.
    ///
    /// Refuses what [`GroupRule::check`] refuses, and more members than ports.
    pub fn star(
        name: &str,
        mcst_id: McstId,
        pmtu: Pmtu,
        kind: impl Into<GroupKind>,
        members: Vec<HostEndpoint>,
    ) -> Result<Self, Vec<Fault>> {
        let count = members.len();
        let endpoints = members.into_iter().enumerate().map_while(|(i, member)| {
            let port = u8::try_from(i).ok().and_then(PortId::new)?;
            Some(Endpoint::new(port, NextHop::Host(member)))
        });
        let group = Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            pmtu,
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
            endpoints: endpoints.collect(),
            kind: kind.into(),
        };
        refuse_crowd(group.check(PortId::COUNT), count).map_or(Ok(group), Err)
    }
}

/// The faults of a star, with one more where it has more members than a switch has ports; `None` for none.
fn refuse_crowd(mut faults: Vec<Fault>, members: usize) -> Option<Vec<Fault>> {
    if members > PortId::COUNT {
        let kind = FaultKind::OutOfRange {
            value: format!("{members} members"),
            why: "are too many for one switch: 64 ports, one member each",
        };
        faults.push(Fault::new("members", kind));
    }
    (!faults.is_empty()).then_some(faults)
}
