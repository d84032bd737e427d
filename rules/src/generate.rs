//! Generators of static rules, and the examples that ship.

use castnet_wire::{McstId, Pmtu, PortId};

use crate::fault::{Fault, FaultKind};
use crate::group::{DEFAULT_STALL_TIMEOUT_MS, HostEndpoint, MulticastGroup, NextHop, Path};
use crate::set::RuleSet;

/// The rule files of two tiers, by the name of their switch.
pub const TWO_TIER_EXAMPLE: [(&str, &str); 3] = [
    ("spine", include_str!("../examples/two-tier/spine.toml")),
    ("leaf-a", include_str!("../examples/two-tier/leaf-a.toml")),
    ("leaf-b", include_str!("../examples/two-tier/leaf-b.toml")),
];

impl RuleSet {
    /// A rule file that shows and explains every field: one switch, four hosts.
    pub const fn schema_example() -> &'static str {
        include_str!("../examples/star.toml")
    }
}

impl MulticastGroup {
    /// A group on one switch: the first member is the source, member `i` is at port `i`, the PSN is learned.
    ///
    /// Refuses what [`MulticastGroup::check`] refuses, and more members than ports.
    pub fn star(
        name: &str,
        mcst_id: McstId,
        pmtu: Pmtu,
        members: Vec<HostEndpoint>,
    ) -> Result<Self, Vec<Fault>> {
        let count = members.len();
        let paths = members.into_iter().enumerate().map_while(|(i, member)| {
            let port = u8::try_from(i).ok().and_then(PortId::new)?;
            Some(Path {
                port,
                next_hop: NextHop::Host(member),
            })
        });
        let group = Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            pmtu,
            start_psn: None,
            va_base: 0,
            source: PortId::default(),
            paths: paths.collect(),
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
        };
        let mut faults = group.check(PortId::COUNT);
        if count > PortId::COUNT {
            let kind = FaultKind::OutOfRange {
                value: format!("{count} members"),
                why: "are too many for one switch: 64 ports, one member each",
            };
            faults.push(Fault::new("members", kind));
        }
        if faults.is_empty() { Ok(group) } else { Err(faults) }
    }
}
