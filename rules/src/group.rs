//! A group as one switch sees it: what groups of all kinds have in common.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use serde::{Deserialize, Serialize};

use crate::draft::GroupDraft;
use crate::fault::Fault;
use crate::kinds::{GroupKind, MulticastRule, TranslatedRule};
use crate::text;

/// Endpoints that one group can have on one switch.
pub const ENDPOINTS_MAX: usize = 1024;

/// How long, in milliseconds, an endpoint may owe what the group waits for before the operator hears of it, where nothing
/// else is said.
pub const DEFAULT_STALL_TIMEOUT_MS: u32 = 2_000;

/// One switch's part of a group: its address, its endpoints on this switch, and what its kind adds (EPIC 3.1, 4.1; for
/// multicast the Path Index and Path Table of an MFT, Cepheus III.B, Fig. 3).
///
/// A member's QP is connected to `<mcst_id, virtual_qpn>` of its endpoint; the switch next to a member translates between that and
/// the member's own address and QPN. Between adjacent switches frames keep the McstID as their destination, and the group has the
/// same McstID on both. Over routers each switch has a McstID of its own for the group: see [`NextHop::Switch`].
/// All members are in one VLAN, or in none: copies keep the tags of the source's frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRule {
    /// For people and for the controller: unique on a switch; 1 to 64 printable characters without blanks.
    pub name: String,
    /// Counts versions of one group's rule, so that what is installed can be told from what is wanted. Members that
    /// connect anew need a new generation.
    #[serde(default)]
    pub generation: u64,
    /// The group's address: a unicast IPv4 address that no host has (Cepheus III.A).
    #[serde(with = "text::display")]
    pub mcst_id: McstId,
    /// Payload bytes of a full packet, one value for the whole group.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// How long, in milliseconds, an endpoint may owe what the group waits for before a stall event names it; at least 1.
    #[serde(default = "default_stall_timeout")]
    pub stall_timeout_ms: u32,
    /// Every endpoint of the group's tree at this switch, the ones towards its source or root included. In a group with
    /// ranks they stand in the order of the lowest ranks behind them.
    pub endpoints: Vec<Endpoint>,
    /// How the group is realized.
    pub kind: GroupKind,
}

pub(crate) const fn default_stall_timeout() -> u32 {
    DEFAULT_STALL_TIMEOUT_MS
}

/// A neighbour of the group on this switch: a QP of a host, or another switch (EPIC 3.1). Several may be behind one port: the
/// ranks of one host, or all hosts of an ordinary switch that the port is linked to.
///
/// A frame's endpoint is the one of its ingress port, destination QPN and source address, and must be the only one: the frames of
/// a host or of a switch behind routers come from its address; those of an adjacent switch, from addresses that this switch does
/// not know, so no other endpoint at its port has the same `virtual_qpn`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The port.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// The group's QPN on this switch for this endpoint: what its frames are addressed to. [`Qpn::VIRTUAL`] where port and source
    /// address alone say whose they are.
    #[serde(with = "text::qpn", default = "default_virtual_qpn")]
    pub virtual_qpn: Qpn,
    /// Whether its frames must come from the Ethernet address of its next hop: others are not its frames then. They are not
    /// taken by the fast path.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub verify_mac: bool,
    /// What is behind it.
    #[serde(flatten)]
    pub next_hop: NextHop,
}

impl Endpoint {
    /// One whose frames are addressed to [`Qpn::VIRTUAL`].
    pub const fn new(port: PortId, next_hop: NextHop) -> Self {
        Self {
            port,
            virtual_qpn: Qpn::VIRTUAL,
            verify_mac: false,
            next_hop,
        }
    }
}

const fn default_virtual_qpn() -> Qpn {
    Qpn::VIRTUAL
}

/// What is behind a port of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NextHop {
    /// A member: connections are bridged here.
    Host(HostEndpoint),
    /// Another switch of the tree. Frames to an adjacent one keep the McstID; their Ethernet addresses are rewritten, and their
    /// QPN where that differs. Frames to one behind routers are rewritten as those to a host, but for RETH.
    #[serde(rename_all = "snake_case")]
    Switch {
        /// Its name.
        name: String,
        /// Where routers lie between: the McstID of the group at that switch, which they route to it. Frames to it are for this
        /// address, and its frames come from there. `None` where it is adjacent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip: Option<Ipv4Addr>,
        /// Its `virtual_qpn` for this switch.
        #[serde(with = "text::qpn", default = "default_virtual_qpn")]
        qpn: Qpn,
        /// The address of its port at the other end of the link; where routers lie between, of the first of them.
        /// [`MacAddr::UNSPECIFIED`] there: as for a host.
        #[serde(with = "text::display")]
        mac: MacAddr,
        /// In a group with ranks, all that are behind it; behind the parent those that are behind no other endpoint here.
        /// Else empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranks: Vec<u16>,
    },
}

/// A member of a group: a host's QP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "text::Host<String>")]
pub struct HostEndpoint {
    /// The host's name.
    pub name: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its QP: not 0 or 1, which are management's, and not 0xffffff, which is InfiniBand multicast's.
    pub qpn: Qpn,
    /// Its Ethernet address, or that of the router towards it. [`MacAddr::UNSPECIFIED`]: the switch finds it when the group is
    /// installed, in its routes or among its neighbours.
    pub mac: MacAddr,
    /// What it is to its kind of group.
    pub part: HostPart,
}

/// What a host is to its kind of group, beside its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostPart {
    /// A member that is sent no WRITEs.
    #[default]
    Plain,
    /// Where WRITEs to a multicast group land; without it a WRITE does not pass to this member.
    Memory(RemoteMemory),
    /// One of the ranks of a group that computes.
    Rank(RankPart),
}

/// A member's registered memory: the target of the group's WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteMemory {
    /// Its first byte's virtual address, at the member.
    pub va: u64,
    /// The key that allows remote writes.
    pub rkey: u32,
    /// Bytes, at least 1.
    pub length: u64,
}

/// A member's rank, and where the PSNs of its QP begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPart {
    /// Its rank: 0 to one less than the group has, below [`crate::RANKS_MAX`].
    pub rank: u16,
    /// The PSN of the first packet that its QP sends.
    #[serde(with = "text::psn_value")]
    pub sq_psn: Psn,
    /// The PSN of the first packet that its QP expects.
    #[serde(with = "text::psn_value")]
    pub rq_psn: Psn,
}

impl GroupRule {
    /// What its kind adds, where it multicasts.
    pub const fn multicast(&self) -> Option<&MulticastRule> {
        match &self.kind {
            GroupKind::Multicast(rule) => Some(rule),
            _ => None,
        }
    }

    /// What its kind adds, where it computes over translated connections.
    pub const fn translated(&self) -> Option<&TranslatedRule> {
        match &self.kind {
            GroupKind::Translated(rule) => Some(rule),
            _ => None,
        }
    }

    /// The same rule with another part of its kind, where it multicasts.
    #[must_use]
    pub fn with_multicast(mut self, change: impl FnOnce(&mut MulticastRule)) -> Self {
        if let GroupKind::Multicast(rule) = &mut self.kind {
            change(rule);
        }
        self
    }

    /// The same rule with another part of its kind, where it computes over translated connections.
    #[must_use]
    pub fn with_translated(mut self, change: impl FnOnce(&mut TranslatedRule)) -> Self {
        if let GroupKind::Translated(rule) = &mut self.kind {
            change(rule);
        }
        self
    }

    /// The endpoint towards the source or root of the tree; `None` where the root is at this switch.
    pub fn upstream(&self) -> Option<&Endpoint> {
        let index = self.kind.upstream()?;
        self.endpoints.get(usize::from(index))
    }

    /// The same rule with its endpoints in the order in which a switch keeps them: in a group with ranks that of the lowest
    /// ranks behind them, else that of their ports.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        let mut order: Vec<u16> = (0..self.endpoints.len() as u16).collect();
        order.sort_by_key(|i| {
            let endpoint = &self.endpoints[usize::from(*i)];
            (endpoint.next_hop.ranks().iter().min(), endpoint.port)
        });
        if let Some(index) = self.kind.upstream_mut()
            && let Some(place) = order.iter().position(|i| i == index)
        {
            *index = place as u16;
        }
        if !order.is_sorted() {
            self.endpoints = order
                .iter()
                .map(|i| self.endpoints[usize::from(*i)].clone())
                .collect();
        }
        self
    }

    /// The members directly behind this switch, each with its port.
    pub fn hosts(&self) -> impl Iterator<Item = (PortId, &HostEndpoint)> {
        self.endpoints
            .iter()
            .filter_map(|e| e.next_hop.host().map(|h| (e.port, h)))
    }

    /// How many ranks the whole group has; 0 in a group without.
    pub fn size(&self) -> usize {
        self.endpoints.iter().map(|e| e.next_hop.ranks().len()).sum()
    }

    /// Bytes that a switch reserves for it when it is installed: the slots and state of a group that computes. 0 for kinds
    /// that take little and only what their endpoints need.
    pub fn reserved_bytes(&self) -> u64 {
        self.kind.reserved_bytes(self)
    }

    /// Every rule that this group breaks on a switch with `ports` ports, fields relative to the group. Empty where it
    /// may be installed. Files, messages and installs all ask here.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        GroupDraft::from(self).check(ports)
    }
}

impl NextHop {
    /// An adjacent switch of a tree without ranks, whose QPN for this switch is [`Qpn::VIRTUAL`].
    pub const fn switch(name: String, mac: MacAddr) -> Self {
        Self::Switch {
            name,
            ip: None,
            qpn: Qpn::VIRTUAL,
            mac,
            ranks: Vec::new(),
        }
    }

    /// The member, where the next hop is one.
    pub fn host(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Host(host) => Some(host),
            Self::Switch { .. } => None,
        }
    }

    /// The rank that is behind it directly, where one is.
    pub fn rank(&self) -> Option<&RankPart> {
        self.host()?.rank()
    }

    /// All ranks behind it.
    pub fn ranks(&self) -> &[u16] {
        match self {
            Self::Host(host) => host.rank().map(|r| &r.rank).map_or(&[], core::slice::from_ref),
            Self::Switch { ranks, .. } => ranks,
        }
    }

    /// Its address: where frames to it are for, and its frames come from. `None` for an adjacent switch.
    pub const fn ip(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Host(host) => Some(host.ip),
            Self::Switch { ip, .. } => *ip,
        }
    }

    /// Its QPN: what frames to it are addressed to.
    pub const fn qpn(&self) -> Qpn {
        match self {
            Self::Host(host) => host.qpn,
            Self::Switch { qpn, .. } => *qpn,
        }
    }

    /// The name of the host or switch.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(host) => &host.name,
            Self::Switch { name, .. } => name,
        }
    }

    /// Gives it this Ethernet address.
    pub fn set_mac(&mut self, new: MacAddr) {
        match self {
            Self::Host(host) => host.mac = new,
            Self::Switch { mac, .. } => *mac = new,
        }
    }

    /// The Ethernet address that frames on the link are for.
    pub fn mac(&self) -> MacAddr {
        match self {
            Self::Host(host) => host.mac,
            Self::Switch { mac, .. } => *mac,
        }
    }
}

impl HostEndpoint {
    /// Where WRITEs to it land.
    pub const fn memory(&self) -> Option<&RemoteMemory> {
        match &self.part {
            HostPart::Memory(memory) => Some(memory),
            _ => None,
        }
    }

    /// Its rank.
    pub const fn rank(&self) -> Option<&RankPart> {
        match &self.part {
            HostPart::Rank(rank) => Some(rank),
            _ => None,
        }
    }
}

impl From<RankPart> for HostPart {
    fn from(rank: RankPart) -> Self {
        Self::Rank(rank)
    }
}

impl From<Option<RemoteMemory>> for HostPart {
    fn from(memory: Option<RemoteMemory>) -> Self {
        memory.map_or(Self::Plain, Self::Memory)
    }
}

impl RemoteMemory {
    /// Whether `length` bytes at `offset` from its start lie in it.
    pub const fn contains(&self, offset: u64, length: u64) -> bool {
        match offset.checked_add(length) {
            Some(end) => end <= self.length,
            None => false,
        }
    }
}
