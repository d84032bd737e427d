//! Generators of static rules, and the examples that ship.

use castnet_wire::{McstId, Pmtu, PortId, Psn};

use crate::collective::{
    CollectiveEndpoint, CollectiveGroup, CollectiveHop, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS,
    LossPolicy, RankEndpoint, StragglerPolicy,
};
use crate::fault::{Fault, FaultKind};
use crate::group::{DEFAULT_STALL_TIMEOUT_MS, HostEndpoint, MulticastGroup, NextHop, Path};
use crate::set::RuleSet;

/// The rule files of two tiers, by the name of their switch.
pub const TWO_TIER_EXAMPLE: [(&str, &str); 3] = [
    ("spine", include_str!("../examples/two-tier/spine.toml")),
    ("leaf-a", include_str!("../examples/two-tier/leaf-a.toml")),
    ("leaf-b", include_str!("../examples/two-tier/leaf-b.toml")),
];

/// The rule file of one switch that adds what three ranks send.
pub const COLLECTIVE_EXAMPLE: &str = include_str!("../examples/collective.toml");

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
        refuse_crowd(group.check(PortId::COUNT), count).map_or(Ok(group), Err)
    }
}

impl CollectiveGroup {
    /// A group on one switch, the root and only switch of its tree: the `i`-th member is at port `i` and has the rank that it
    /// says.
    ///
    /// Refuses what [`CollectiveGroup::check`] refuses, and more members than ports.
    pub fn star(
        name: &str,
        mcst_id: McstId,
        pmtu: Pmtu,
        slots: u16,
        members: Vec<RankEndpoint>,
    ) -> Result<Self, Vec<Fault>> {
        let count = members.len();
        let endpoints = members.into_iter().enumerate().map_while(|(i, member)| {
            let port = u8::try_from(i).ok().and_then(PortId::new)?;
            Some(CollectiveEndpoint {
                port,
                next_hop: CollectiveHop::Rank(member),
            })
        });
        let group = Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            pmtu,
            psn_start: Psn::new(0),
            slots,
            message_packets: DEFAULT_MESSAGE_PACKETS.min(slots / 2).max(1),
            reproducible: false,
            loss_policy: LossPolicy::default(),
            straggler_policy: StragglerPolicy::default(),
            ack_timeout_us: DEFAULT_ACK_TIMEOUT_US,
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
            parent: None,
            endpoints: endpoints.collect(),
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
