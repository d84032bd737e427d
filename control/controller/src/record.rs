//! What the controller knows of a group, as it is stored.

use std::collections::{BTreeMap, BTreeSet};

use castnet_proto::convert::NewGroup;
use castnet_rules::{HostEndpoint, MulticastGroup};
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
        /// How it came in.
        by: JoinedBy,
    },
    /// Was in and has left; the rules still name it.
    Left {
        /// Its end of the connection.
        endpoint: HostEndpoint,
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
    /// Each switch's part.
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
    /// A group as it begins.
    pub fn new(group: NewGroup, mcst_id: McstId, start_psn: Psn) -> Self {
        let member = |m: castnet_proto::convert::NewMember| {
            let by = JoinedBy::Creation;
            let joined = m.endpoint.map(|endpoint| MemberState::Joined { endpoint, by });
            MemberRecord {
                host: m.host,
                state: joined.unwrap_or(MemberState::Expected),
            }
        };
        Self {
            name: group.name,
            generation: 0,
            mcst_id,
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

    /// The switch's part, where the group's rules belong on its switches and this is one of them.
    pub fn wanted_on(&self, switch: &str) -> Option<crate::reconcile::Wanted> {
        let rule = self.plan.as_ref()?.rules.get(switch)?;
        let wanted = || crate::reconcile::Wanted {
            rule: crate::reconcile::Rule::Multicast(rule.clone()),
            has_run: self.phase.has_run(),
        };
        self.phase.wants_rules().then(wanted)
    }
}

impl MemberState {
    /// Its end of the connection, once it has joined.
    pub fn endpoint(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Expected => None,
            Self::Joined { endpoint, .. } | Self::Left { endpoint } => Some(endpoint),
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
