//! Source and members of a multicast group.

use std::sync::Arc;

use castnet_group::MulticastSettings;
use castnet_proto::convert::{NewGroup, NewMember};
use castnet_proto::v1;
use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::late::Late;
use super::outside::Outside;
use crate::state::record::text;
use crate::state::{Ends, Joining};

/// The part of a record that only multicast groups have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// As it was asked for, with the shape of its tree where the controller was to choose it.
    pub settings: MulticastSettings,
    /// The source's first PSN.
    #[serde(with = "text::psn")]
    pub start_psn: Psn,
    /// How the last run was left by its source; `None` while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverted: Option<Diverted>,
    /// Receivers that the tree does not reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<Outside>,
    /// Number of the last choice of who passes the stream on.
    #[serde(default)]
    pub outside_number: u64,
    /// The host that sends, or sends first.
    pub source: String,
    /// All members, the source included, in the order of the request.
    pub members: Arc<Vec<Arc<MemberRecord>>>,
}

/// A source that has left its group to go on from host to host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diverted {
    /// Why.
    pub reason: String,
    /// The source, and the other members that were in the group.
    pub hosts: Vec<String>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The host's name.
    pub host: String,
    /// Whether it has joined.
    pub state: MemberState,
    /// Why it was put out; `None`: it was not, or has joined again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_out: Option<String>,
    /// What it has said when it left; `None`: nothing, or it has joined again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Received>,
}

/// What a receiver that has left has of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// So many bytes.
    pub bytes: u64,
    /// Why it has not everything; empty: it has.
    pub lacks: String,
}

impl From<v1::Received> for Received {
    fn from(v1::Received { bytes, lacks }: v1::Received) -> Self {
        Self { bytes, lacks }
    }
}

impl MemberRecord {
    /// Has not joined.
    pub(crate) fn expected(host: String) -> Self {
        Self {
            host,
            state: Joining::Expected,
            put_out: None,
            received: None,
        }
    }

    pub(crate) fn join(&mut self, seat: Seat) {
        *self = Self {
            state: Joining::Joined(seat),
            ..Self::expected(std::mem::take(&mut self.host))
        };
    }
}

/// Whether a member has joined.
pub type MemberState = Joining<Seat>;

/// What a member joined with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its ends of the connections.
    #[serde(flatten)]
    pub ends: Ends,
    /// How it joined.
    #[serde(default)]
    pub by: JoinedBy,
    /// Milliseconds that it stays after its call has ended; `None`: it needs no call once the group is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Its part of the stream if it joined while that ran; `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// A receiver can be outside; a source waits for those outside.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub co_works: bool,
    /// It keeps what it receives, and can pass it on.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub passes_on: bool,
}

/// How a member joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinedBy {
    /// Its connection was given when the group was created.
    #[default]
    Creation,
    /// By the call of this number, open until the group is active. Numbers start from 1 at each start of the
    /// controller; 0 is a call to an earlier controller.
    Call(u64),
}

impl Multicast {
    /// A new group. Where the controller chooses the tree, a hop takes `latency` hundredths of a copy.
    pub fn new(group: NewGroup, start_psn: Psn, latency: u32) -> Self {
        let member = |m: NewMember| {
            let by = JoinedBy::Creation;
            let seat = Ends::new(m.ends).map(|ends| Seat {
                ends,
                by,
                lease_ms: None,
                late: None,
                co_works: false,
                passes_on: false,
            });
            Arc::new(MemberRecord {
                state: seat.map_or(Joining::Expected, Joining::Joined),
                ..MemberRecord::expected(m.host)
            })
        };
        let payload = group.settings.pmtu.bytes() as u32;
        Self {
            settings: MulticastSettings {
                distribution: group.settings.distribution.resolved(latency, payload),
                ..group.settings
            },
            start_psn,
            diverted: None,
            outside: Vec::new(),
            outside_number: 0,
            source: group.source,
            members: Arc::new(group.members.into_iter().map(member).collect()),
        }
    }

    /// The member of a host, and its index.
    pub fn member(&self, host: &str) -> Option<(usize, &MemberRecord)> {
        let mut members = self.members.iter().map(Arc::as_ref).enumerate();
        members.find(|(_, m)| m.host == host)
    }

    /// To be changed: other members are not copied.
    pub(crate) fn member_mut(&mut self, host: &str) -> Option<&mut MemberRecord> {
        let mut members = Arc::make_mut(&mut self.members).iter_mut();
        members.find(|m| m.host == host).map(Arc::make_mut)
    }

    /// Whether a host is in by this call.
    pub(crate) fn is_by(&self, host: &str, call: u64) -> bool {
        let seat = self.member(host).and_then(|(_, m)| m.state.joined());
        seat.is_some_and(|seat| seat.by == JoinedBy::Call(call))
    }

    /// Whether every member has joined.
    pub fn all_joined(&self) -> bool {
        self.members.iter().all(|m| m.state.joined().is_some())
    }

    /// Whether its traffic ends when this host goes.
    pub(crate) fn needs(&self, host: &str) -> bool {
        self.settings.any_source.is_some() || self.source == host
    }

    /// Whether its traffic is over: a member has gone that it needs, or all receivers in the tree.
    pub fn is_over(&self) -> bool {
        let gone = |m: &Arc<MemberRecord>| m.state.joined().is_none();
        let needed_gone = self.members.iter().any(|m| self.needs(&m.host) && gone(m));
        let mut receivers = self.members.iter().filter(|m| m.host != self.source);
        needed_gone || receivers.all(|m| gone(m) || self.is_outside(&m.host))
    }

    /// Milliseconds after which a switch reports a path that stalls: not later than the group is to do without it.
    pub(crate) fn report_stalls_ms(&self) -> u32 {
        let after = self.settings.on_stall.map_or(u32::MAX, |policy| policy.after_ms);
        self.settings.stall_timeout_ms.min(after)
    }

    /// Hosts that have not joined.
    pub fn expected(&self) -> Vec<&str> {
        let waits = self.members.iter().filter(|m| m.state == Joining::Expected);
        waits.map(|m| m.host.as_str()).collect()
    }

    /// Those that go on from host to host, the source first.
    pub(crate) fn source_first(&self) -> Vec<&str> {
        if let Some(diverted) = &self.diverted {
            return diverted.hosts.iter().map(String::as_str).collect();
        }
        let others = self.members.iter().map(|m| m.host.as_str());
        let others = others.filter(|host| *host != self.source);
        std::iter::once(self.source.as_str()).chain(others).collect()
    }

    /// Members whose state is `of` must join again.
    pub(crate) fn forget(&mut self, of: impl Fn(&MemberState) -> bool) {
        for member in Arc::make_mut(&mut self.members) {
            if of(&member.state) {
                Arc::make_mut(member).state = Joining::Expected;
            }
        }
    }
}

/// Whether a join stands on a call. The call ends with a failure of the group, or with the controller.
pub(crate) fn is_by_call(state: &MemberState) -> bool {
    state.joined().is_some_and(|seat| seat.by != JoinedBy::Creation)
}
