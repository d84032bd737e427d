//! Source and members of a multicast group.

use std::sync::Arc;

use castnet_proto::convert::{NewGroup, NewMember};
use castnet_rules::HostEndpoint;
use castnet_wire::{Pmtu, Psn};
use serde::{Deserialize, Serialize};

use crate::record::text;

/// The part of a record that only multicast groups have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// Payload bytes of a full packet.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// The source's first PSN.
    #[serde(with = "text::psn")]
    pub start_psn: Psn,
    /// What the source's virtual addresses are relative to.
    pub va_base: u64,
    /// Milliseconds after which a stalled path is reported.
    pub stall_timeout_ms: u32,
    /// The host that sends.
    pub source: String,
    /// All members, the source included, in the order of the request.
    pub members: Arc<Vec<MemberRecord>>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The host's name.
    pub host: String,
    /// Whether it has joined.
    pub state: MemberState,
}

/// Whether a member has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Has not joined.
    Expected,
    /// Has joined.
    Joined {
        /// Its end of the connection.
        endpoint: HostEndpoint,
        /// The same of the lanes after the first.
        #[serde(default)]
        more: Vec<HostEndpoint>,
        /// How it joined.
        by: JoinedBy,
    },
    /// Has left; the rules still name it.
    Left {
        /// Its end of the connection.
        endpoint: HostEndpoint,
        /// The same of the lanes after the first.
        #[serde(default)]
        more: Vec<HostEndpoint>,
    },
}

/// How a member joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinedBy {
    /// Its connection was given when the group was created.
    Creation,
    /// By the call of this number, which stands until the group is active. Numbers start from 1 at each start of the
    /// controller; 0 is a call to an earlier controller.
    Call(u64),
}

impl Multicast {
    /// A new group.
    pub fn new(group: NewGroup, start_psn: Psn) -> Self {
        let member = |m: NewMember| {
            let joined = MemberState::joined(m.ends, JoinedBy::Creation);
            MemberRecord {
                host: m.host,
                state: joined.unwrap_or(MemberState::Expected),
            }
        };
        Self {
            pmtu: group.pmtu,
            start_psn,
            va_base: group.va_base,
            stall_timeout_ms: group.stall_timeout_ms,
            source: group.source,
            members: Arc::new(group.members.into_iter().map(member).collect()),
        }
    }

    /// The member of a host, and its index.
    pub fn member(&self, host: &str) -> Option<(usize, &MemberRecord)> {
        self.members.iter().enumerate().find(|(_, m)| m.host == host)
    }

    pub(crate) fn set_member(&mut self, host: &str, state: MemberState) {
        let mut members = Arc::make_mut(&mut self.members).iter_mut();
        if let Some(member) = members.find(|m| m.host == host) {
            member.state = state;
        }
    }

    /// Whether every member has joined.
    pub fn all_joined(&self) -> bool {
        self.members
            .iter()
            .all(|m| matches!(m.state, MemberState::Joined { .. }))
    }

    /// Whether its traffic is over: the source has left, or all receivers.
    pub fn is_over(&self) -> bool {
        let left = |m: &MemberRecord| matches!(m.state, MemberState::Left { .. });
        let source_left = self.members.iter().any(|m| m.host == self.source && left(m));
        source_left || self.members.iter().filter(|m| m.host != self.source).all(left)
    }

    /// Hosts that have not joined.
    pub fn expected(&self) -> Vec<&str> {
        let waits = self.members.iter().filter(|m| m.state == MemberState::Expected);
        waits.map(|m| m.host.as_str()).collect()
    }

    /// All members must join again: connections of one group start and end together, as they share one PSN space.
    pub fn forget_connections(&mut self) {
        for member in Arc::make_mut(&mut self.members) {
            member.state = MemberState::Expected;
        }
    }

    /// Ends joins that stand on a call: the calls ended with the failure, or with the controller.
    pub fn forget_calls(&mut self) {
        for member in Arc::make_mut(&mut self.members) {
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

    /// Marks joins that stand on a call as calls to an earlier controller.
    pub(crate) fn calls_are_old(&mut self) {
        for member in Arc::make_mut(&mut self.members) {
            if let MemberState::Joined {
                by: JoinedBy::Call(call),
                ..
            } = &mut member.state
            {
                *call = 0;
            }
        }
    }
}

impl MemberState {
    /// Joined with these ends, one per lane; `None` without ends.
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
        self.endpoint().into_iter().chain(self.more())
    }

    /// Its ends of the lanes after the first.
    pub fn more(&self) -> &[HostEndpoint] {
        match self {
            Self::Expected => &[],
            Self::Joined { more, .. } | Self::Left { more, .. } => more,
        }
    }

    /// Its end of the first lane, once it has joined.
    pub fn endpoint(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Expected => None,
            Self::Joined { endpoint, .. } | Self::Left { endpoint, .. } => Some(endpoint),
        }
    }
}
