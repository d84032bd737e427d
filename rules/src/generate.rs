//! Generators of static rules, and the example files.

use castnet_wire::{McstId, Pmtu, PortId};

use crate::fault::{Fault, FaultKind};
use crate::group::{DEFAULT_STALL_TIMEOUT_MS, Endpoint, GroupRule, HostEndpoint, NextHop};
use crate::kinds::GroupKind;
use crate::set::RuleSet;

/// Rule files of a fabric with two tiers, by switch.
pub const TWO_TIER_EXAMPLE: [(&str, &str); 3] = [
    ("spine", include_str!("../examples/two-tier/spine.toml")),
    ("leaf-a", include_str!("../examples/two-tier/leaf-a.toml")),
    ("leaf-b", include_str!("../examples/two-tier/leaf-b.toml")),
];

/// Rule file of one switch that adds the contributions of three ranks.
pub const COLLECTIVE_EXAMPLE: &str = include_str!("../examples/collective.toml");
/// Rule file of one switch that forwards between two hosts.
pub const FORWARDING_EXAMPLE: &str = include_str!("../examples/forwarding.toml");

impl RuleSet {
    /// A rule file that explains every field: one switch, four hosts.
    pub const fn schema_example() -> &'static str {
        include_str!("../examples/star.toml")
    }
}

impl GroupRule {
    /// A group on a single switch: member `i` is at port `i`. `kind` names the source of a multicast group, by default
    /// the first member. Refuses what [`GroupRule::check`] refuses, and more members than ports.
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
            rate_limit: None,
            endpoints: endpoints.collect(),
            kind: kind.into(),
        };
        let mut faults = group.check(PortId::COUNT);
        if count > PortId::COUNT {
            let kind = FaultKind::OutOfRange {
                value: format!("{count} members"),
                why: "are too many for one switch: 64 ports, one member each",
            };
            faults.push(Fault::new("members", kind));
        }
        match faults.is_empty() {
            true => Ok(group),
            false => Err(faults),
        }
    }
}
