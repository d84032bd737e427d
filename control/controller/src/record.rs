//! What the controller knows of a group, as it is stored.

use std::collections::{BTreeMap, BTreeSet};

use castnet_proto::convert::NewGroup;
use castnet_rules::{HostEndpoint, MulticastGroup, NextHop, lane_name};
use castnet_wire::{McstId, Pmtu, Psn};
use serde::{Deserialize, Serialize};

use crate::lifecycle::Phase;

/// A group: what was asked for, who has joined, how it is planned and where its rules may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its name.
    pub name: String,
    /// Of the rules of the present or last plan; 0 before the first.
    pub generation: u64,
    /// Its address.
    #[serde(with = "text::mcst_id")]
    pub mcst_id: McstId,
    /// The addresses of its lanes after the first: sub-groups of the same members.
    #[serde(default, with = "text::mcst_ids")]
    pub more_lanes: Vec<McstId>,
    /// Payload bytes of a full packet.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// The source's first PSN.
    #[serde(with = "text::psn")]
    pub start_psn: Psn,
    /// What the source's virtual addresses are relative to.
    pub va_base: u64,
    /// When a stalled path is reported, in milliseconds.
    pub stall_timeout_ms: u32,
    /// The host that sends.
    pub source: String,
    /// All members, the source included, in the order they were given.
    pub members: Vec<MemberRecord>,
    /// Where in its life it is.
    pub phase: Phase,
    /// How it is laid out, while it is installed or being so.
    pub plan: Option<PlanRecord>,
    /// The switches that may have a rule of it. Written before the first is told, cleared as each confirms to have
    /// none.
    pub placed: BTreeSet<String>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The host's name.
    pub host: String,
    /// How far it is.
    pub state: MemberState,
}

/// How far a member is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Has not joined.
    Expected,
    /// Is in.
    Joined {
        /// Its end of the connection.
        endpoint: HostEndpoint,
        /// The same of the lanes after the first.
        #[serde(default)]
        more: Vec<HostEndpoint>,
        /// How it came in.
        by: JoinedBy,
    },
    /// Was in and has left; the rules still name it.
    Left {
        /// Its end of the connection.
        endpoint: HostEndpoint,
        /// The same of the lanes after the first.
        #[serde(default)]
        more: Vec<HostEndpoint>,
    },
}

/// How a member came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinedBy {
    /// Its connection was given when the group was created.
    Creation,
    /// By the call of this number, which stands until the group is active. Numbers start from 1 with each start of the
    /// controller; 0 is a call of an earlier one.
    Call(u64),
}

/// How a group is laid out over the switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The switches of the tree, parents before children.
    pub tree: Vec<TreeSwitch>,
    /// Each switch's part, for the first lane.
    pub rules: BTreeMap<String, MulticastGroup>,
}

/// A switch of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSwitch {
    /// Its name.
    pub name: String,
    /// The switch that data comes from; `None` where the source is at this switch.
    pub parent: Option<String>,
}

impl GroupRecord {
    /// A group as it begins, with the address of each of its lanes; the first has `mcst_id`.
    pub fn new(group: NewGroup, mcst_id: McstId, more_lanes: Vec<McstId>, start_psn: Psn) -> Self {
        let member = |m: castnet_proto::convert::NewMember| {
            let joined = MemberState::joined(m.ends, JoinedBy::Creation);
            MemberRecord {
                host: m.host,
                state: joined.unwrap_or(MemberState::Expected),
            }
        };
        Self {
            name: group.name,
            generation: 0,
            mcst_id,
            more_lanes,
            pmtu: group.pmtu,
            start_psn,
            va_base: group.va_base,
            stall_timeout_ms: group.stall_timeout_ms,
            source: group.source,
            members: group.members.into_iter().map(member).collect(),
            phase: Phase::Registered,
            plan: None,
            placed: BTreeSet::new(),
        }
    }

    /// The addresses of its lanes.
    pub fn mcst_ids(&self) -> impl Iterator<Item = McstId> {
        std::iter::once(self.mcst_id).chain(self.more_lanes.iter().copied())
    }

    /// How many lanes it has.
    pub fn lanes(&self) -> u8 {
        1 + self.more_lanes.len() as u8
    }

    /// A lane's part of what was planned for the first: its own name, address and queue pairs.
    fn lane_rule(&self, rule: &MulticastGroup, lane: u8, mcst_id: McstId) -> MulticastGroup {
        let mut rule = MulticastGroup {
            name: lane_name(&self.name, lane, self.lanes()),
            mcst_id,
            ..rule.clone()
        };
        for path in &mut rule.paths {
            if let NextHop::Host(host) = &mut path.next_hop
                && let Some((_, member)) = self.member(&host.name)
                && let Some(end) = member.state.ends().nth(lane.into())
            {
                *host = end.clone();
            }
        }
        rule
    }

    /// The member of that host, and its place.
    pub fn member(&self, host: &str) -> Option<(usize, &MemberRecord)> {
        self.members.iter().enumerate().find(|(_, m)| m.host == host)
    }

    /// Sets a member's state; whether there is such a member.
    pub fn set_member(&mut self, host: &str, state: MemberState) -> bool {
        let member = self.members.iter_mut().find(|m| m.host == host);
        member.map(|m| m.state = state).is_some()
    }

    /// Whether every member is in.
    pub fn all_joined(&self) -> bool {
        self.members
            .iter()
            .all(|m| matches!(m.state, MemberState::Joined { .. }))
    }

    /// Whether its traffic is over: the source has left, or no receiver is left.
    pub fn is_over(&self) -> bool {
        let left = |m: &MemberRecord| matches!(m.state, MemberState::Left { .. });
        let source_left = self.members.iter().any(|m| m.host == self.source && left(m));
        source_left || self.members.iter().filter(|m| m.host != self.source).all(left)
    }

    /// Who is still waited for.
    pub fn expected(&self) -> Vec<&str> {
        let waits = self.members.iter().filter(|m| m.state == MemberState::Expected);
        waits.map(|m| m.host.as_str()).collect()
    }

    /// All members must join again: connections of one group start and end together, as they share one PSN space.
    pub fn forget_connections(&mut self) {
        for member in &mut self.members {
            member.state = MemberState::Expected;
        }
    }

    /// Joins that stood on a call are over: the calls ended with the failure, or with the controller.
    pub fn forget_calls(&mut self) {
        for member in &mut self.members {
            if matches!(
                member.state,
                MemberState::Joined {
                    by: JoinedBy::Call(_),
                    ..
                }
            ) {
                member.state = MemberState::Expected;
            }
        }
    }

    /// The switch's part of each lane, where the group's rules belong on its switches and this is one of them; else
    /// nothing.
    pub fn wanted_on(&self, switch: &str) -> Vec<crate::reconcile::Wanted> {
        let rule = self.plan.as_ref().and_then(|p| p.rules.get(switch));
        let Some(rule) = rule.filter(|_| self.phase.wants_rules()) else {
            return Vec::new();
        };
        let wanted = |(lane, mcst_id)| crate::reconcile::Wanted {
            rule: crate::reconcile::Rule::Multicast(self.lane_rule(rule, lane, mcst_id)),
            has_run: self.phase.has_run(),
        };
        (0..).zip(self.mcst_ids()).map(wanted).collect()
    }
}

impl MemberState {
    /// In, with these ends of its connections; `None` where there is none.
    pub fn joined(ends: Vec<HostEndpoint>, by: JoinedBy) -> Option<Self> {
        let mut ends = ends.into_iter();
        ends.next().map(|endpoint| Self::Joined {
            endpoint,
            more: ends.collect(),
            by,
        })
    }

    /// Its ends of the connections, one for each lane, once it has joined.
    pub fn ends(&self) -> impl Iterator<Item = &HostEndpoint> {
        let more: &[HostEndpoint] = match self {
            Self::Expected => &[],
            Self::Joined { more, .. } | Self::Left { more, .. } => more,
        };
        self.endpoint().into_iter().chain(more)
    }

    /// Its end of the first lane's connection, once it has joined.
    pub fn endpoint(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Expected => None,
            Self::Joined { endpoint, .. } | Self::Left { endpoint, .. } => Some(endpoint),
        }
    }
}

impl PlanRecord {
    /// The switches from the receivers to the source: whoever gets its rule has only switches below it that are ready.
    pub fn downstream_first(&self) -> impl Iterator<Item = &str> {
        self.tree.iter().rev().map(|s| s.name.as_str())
    }
}

/// How the small types are stored.
pub(crate) mod text {
    /// Declares a serde module that stores `$type` as `$raw`.
    macro_rules! stored {
        ($name:ident, $type:ty, $raw:ty, $to:expr, $from:expr, $what:literal) => {
            pub(crate) mod $name {
                use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

                pub(crate) fn serialize<S: Serializer>(value: &$type, s: S) -> Result<S::Ok, S::Error> {
                    let to: fn(&$type) -> $raw = $to;
                    to(value).serialize(s)
                }

                pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                    let from: fn($raw) -> Option<$type> = $from;
                    from(<$raw>::deserialize(d)?).ok_or_else(|| D::Error::custom($what))
                }
            }
        };
    }

    use castnet_wire::{Control as C, McstId as M, Pmtu as P, Psn as N};

    stored!(
        mcst_id,
        super::M,
        std::net::Ipv4Addr,
        |m| m.0,
        |ip| Some(super::M(ip)),
        "not a McstID"
    );
    stored!(
        mcst_ids,
        Vec<super::M>,
        Vec<std::net::Ipv4Addr>,
        |ids| ids.iter().map(|m| m.0).collect(),
        |ips| Some(ips.into_iter().map(super::M).collect()),
        "not McstIDs"
    );
    stored!(
        pmtu,
        super::P,
        u32,
        |p| p.bytes() as u32,
        super::P::from_bytes,
        "not a path MTU"
    );
    stored!(
        psn,
        super::N,
        u32,
        |p| p.value(),
        |v| (v < super::N::MODULUS).then(|| super::N::new(v)),
        "not a PSN"
    );
    // As it is on the wire: that layout has a version of its own.
    stored!(
        control,
        Option<super::C>,
        Option<Vec<u8>>,
        |control| control.map(|c| {
            let mut bytes = [0; super::C::LEN];
            c.emit(&mut bytes);
            bytes.into()
        }),
        |bytes| bytes
            .map(|b| super::C::parse(&b).ok())
            .map_or(Some(None), |c| c.map(Some)),
        "not a control message"
    );
}
