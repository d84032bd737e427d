//! A group as one switch sees it: the fields that all kinds have.

use core::net::Ipv4Addr;

use castnet_wire::{CollectiveMode, MacAddr, McstId, Pmtu, PortId, Psn, Qpn, RateLimit};
use serde::{Deserialize, Serialize};

use crate::kinds::{GroupKind, MulticastRule, TranslatedRule};
use crate::text;

/// Most endpoints of one group on one switch.
pub const ENDPOINTS_MAX: usize = 1024;
/// Default of [`GroupRule::stall_timeout_ms`].
pub const DEFAULT_STALL_TIMEOUT_MS: u32 = 2_000;

/// One switch's part of a group: its address, its endpoints here, and the fields of its kind (EPIC 3.1, 4.1; for
/// multicast the Path Index and Path Table of an MFT, Cepheus III.B, Fig. 3).
///
/// The QP of a member is connected to `<mcst_id, virtual_qpn>` of its endpoint. The switch next to a member translates
/// that to the member's address and QPN. Adjacent switches have the same McstID for a group, and frames between them
/// keep it as destination. Across routers each switch has its own: see [`NextHop::Switch`]. All members are in the same
/// VLAN, or in none: copies keep the VLAN tags of the source's frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRule {
    /// Name, unique on a switch; 1 to 64 printable characters without blanks.
    pub name: String,
    /// Version of the rule: shows whether the wanted rule is installed. Members that connect again need a new one.
    #[serde(default)]
    pub generation: u64,
    /// Address of the group: a unicast IPv4 address that no host has (Cepheus III.A).
    #[serde(with = "text::display")]
    pub mcst_id: McstId,
    /// Payload bytes of a full packet, for the whole group.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// Time in milliseconds until a stall event names an endpoint that the group waits for; at least 1.
    #[serde(default = "default_stall_timeout")]
    pub stall_timeout_ms: u32,
    /// Limit of the data of each host here: of the source of a multicast group, of each rank, of both hosts of a forwarding group. Data of
    /// switches was metered before. Feedback and control messages are not metered. `None`: no limit.
    #[serde(default, with = "text::rate_limit", skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Endpoints at this switch, with those towards source or root; with ranks, in the order of the lowest rank.
    pub endpoints: Vec<Endpoint>,
    /// Kind of the group, with its fields.
    pub kind: GroupKind,
}

pub(crate) const fn default_stall_timeout() -> u32 {
    DEFAULT_STALL_TIMEOUT_MS
}

/// A neighbour of the group at this switch: a QP of a host, or another switch (EPIC 3.1). A port may have several: the
/// ranks of a host, or all hosts behind an ordinary switch.
///
/// The endpoint of a frame is found by ingress port, destination QPN and source address, and must be unique. Frames of a
/// host or of a switch behind routers have its address as source. Those of an adjacent switch have unknown source
/// addresses, so no other endpoint of its port may have the same `virtual_qpn`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// Port of the endpoint.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// Destination QPN of its frames. [`Qpn::VIRTUAL`] if port and source address identify the endpoint.
    #[serde(with = "text::qpn", default = "default_virtual_qpn")]
    pub virtual_qpn: Qpn,
    /// If true, its frames must have the MAC address of the next hop as source. They do not take the fast path.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub verify_mac: bool,
    /// A member of a multicast group that joins the running stream: it gets data from the next message on, and holds up
    /// nobody before. The switch reports the PSN of that message's first packet, which its queue pair must expect.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub joining: bool,
    /// The next hop behind the port.
    #[serde(flatten)]
    pub next_hop: NextHop,
}

impl Endpoint {
    /// An endpoint with `virtual_qpn` [`Qpn::VIRTUAL`] and without `verify_mac`, not joining.
    pub const fn new(port: PortId, next_hop: NextHop) -> Self {
        Self {
            port,
            virtual_qpn: Qpn::VIRTUAL,
            verify_mac: false,
            joining: false,
            next_hop,
        }
    }
}

const fn default_virtual_qpn() -> Qpn {
    Qpn::VIRTUAL
}

/// The next hop behind a port of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NextHop {
    /// A member. The switch translates between its connection and the group's.
    Host(HostEndpoint),
    /// Another switch of the tree. Frames to an adjacent switch keep the McstID, but get new MAC addresses and QPN.
    /// Frames to a switch behind routers are rewritten like those to a host, except for RETH.
    #[serde(rename_all = "snake_case")]
    Switch {
        /// Name of the switch.
        name: String,
        /// Behind routers: the group's McstID there, destination of frames to it and source of frames from it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip: Option<Ipv4Addr>,
        /// Its `virtual_qpn` for this switch.
        #[serde(with = "text::qpn", default = "default_virtual_qpn")]
        qpn: Qpn,
        /// MAC address of the link's remote port; across routers, of the first router or [`MacAddr::UNSPECIFIED`].
        #[serde(with = "text::display")]
        mac: MacAddr,
        /// All ranks behind it; for the parent, those behind no other endpoint here. Empty in a group without ranks.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranks: Vec<u16>,
        /// The mode of a collective group there, if it is another one than here: the edge is then an RC connection with PSNs of its own.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "text::optional_mode"
        )]
        mode: Option<CollectiveMode>,
        /// Of a multicast group with switches behind a core that replicates by static routes: a multicast address of such a route, which
        /// leads to this switch. Data for two or more switches with the same address is sent once, to this address; data from this
        /// switch may come to it. Repeated data for one switch, and feedback, have unicast addresses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        core: Option<Ipv4Addr>,
    },
}

/// A member of a group: a host's QP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "text::Host<String>")]
pub struct HostEndpoint {
    /// Name of the host.
    pub name: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// QPN of the member: not 0 or 1 (management), and not 0xffffff (InfiniBand multicast).
    pub qpn: Qpn,
    /// MAC address of the host or the router to it. [`MacAddr::UNSPECIFIED`]: the switch finds it at installation.
    pub mac: MacAddr,
    /// The host's role in its kind of group.
    pub part: HostPart,
}

/// The role of a host in its kind of group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostPart {
    /// A member without memory for WRITEs.
    #[default]
    Plain,
    /// A multicast member with memory for WRITEs. Members without it do not get WRITEs.
    Memory(RemoteMemory),
    /// A rank of a group that computes.
    Rank(RankPart),
}

/// Registered memory of a member: the target of the group's WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteMemory {
    /// Virtual address of its first byte, at the member.
    pub va: u64,
    /// Key that allows remote writes.
    pub rkey: u32,
    /// Length in bytes, at least 1.
    pub length: u64,
}

/// The rank of a member, and the first PSNs of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPart {
    /// Below the number of ranks of the group, and below [`crate::RANKS_MAX`].
    pub rank: u16,
    /// First PSN that its QP sends.
    #[serde(with = "text::psn")]
    pub sq_psn: Psn,
    /// First PSN that its QP expects.
    #[serde(with = "text::psn")]
    pub rq_psn: Psn,
}

impl GroupRule {
    /// `None` for another kind.
    pub const fn multicast(&self) -> Option<&MulticastRule> {
        match &self.kind {
            GroupKind::Multicast(rule) => Some(rule),
            _ => None,
        }
    }

    /// Fields of a group that computes; `None` for another kind.
    pub const fn translated(&self) -> Option<&TranslatedRule> {
        match &self.kind {
            GroupKind::Translated(rule) => Some(rule),
            _ => None,
        }
    }

    /// Changes the multicast fields, if there are any.
    #[must_use]
    pub fn with_multicast(mut self, change: impl FnOnce(&mut MulticastRule)) -> Self {
        if let GroupKind::Multicast(rule) = &mut self.kind {
            change(rule);
        }
        self
    }

    /// Changes the fields of a group that computes, if there are any.
    #[must_use]
    pub fn with_translated(mut self, change: impl FnOnce(&mut TranslatedRule)) -> Self {
        if let GroupKind::Translated(rule) = &mut self.kind {
            change(rule);
        }
        self
    }

    /// The endpoint towards source or root; `None` if the root is at this switch.
    pub fn upstream(&self) -> Option<&Endpoint> {
        let index = self.kind.fields().upstream()?;
        self.endpoints.get(usize::from(index))
    }

    /// The source address of data that comes from a static core: the group's McstID at the switch next to the source. Unique at a switch.
    pub fn core_source(&self) -> Option<Ipv4Addr> {
        let hop = &self.multicast().and(self.upstream())?.next_hop;
        hop.core().and(hop.ip()).filter(|ip| !ip.is_unspecified())
    }

    /// Sorts the endpoints as a switch keeps them: by the lowest rank behind them, or by port without ranks.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        let mut order: Vec<u16> = (0..self.endpoints.len() as u16).collect();
        order.sort_by_key(|i| {
            let endpoint = &self.endpoints[usize::from(*i)];
            (endpoint.next_hop.ranks().iter().min(), endpoint.port)
        });
        if let Some(index) = self.kind.fields_mut().upstream_mut()
            && let Some(new) = order.iter().position(|i| i == index)
        {
            *index = new as u16;
        }
        if !order.is_sorted() {
            self.endpoints = order
                .iter()
                .map(|i| self.endpoints[usize::from(*i)].clone())
                .collect();
        }
        self
    }

    /// Members next to this switch, with their ports.
    pub fn hosts(&self) -> impl Iterator<Item = (PortId, &HostEndpoint)> {
        self.endpoints
            .iter()
            .filter_map(|e| e.next_hop.host().map(|h| (e.port, h)))
    }

    /// Ranks of the whole group; 0 for a kind without ranks.
    pub fn size(&self) -> usize {
        self.endpoints.iter().map(|e| e.next_hop.ranks().len()).sum()
    }

    /// Bytes that a switch reserves at installation for slots and state of a group that computes; 0 for other kinds.
    pub fn reserved_bytes(&self) -> u64 {
        self.kind.fields().reserved_bytes(self)
    }
}

impl NextHop {
    /// An adjacent switch of a tree without ranks, with QPN [`Qpn::VIRTUAL`].
    pub const fn switch(name: String, mac: MacAddr) -> Self {
        Self::Switch {
            name,
            ip: None,
            qpn: Qpn::VIRTUAL,
            mac,
            ranks: Vec::new(),
            mode: None,
            core: None,
        }
    }

    /// The member, if the next hop is a host.
    pub fn host(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Host(host) => Some(host),
            Self::Switch { .. } => None,
        }
    }

    /// The rank, if the next hop is a host with a rank.
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

    /// The mode of a collective group at a switch, if it is another one than here.
    pub const fn mode(&self) -> Option<CollectiveMode> {
        match self {
            Self::Host(_) => None,
            Self::Switch { mode, .. } => *mode,
        }
    }

    /// Destination IP address of frames to it and source of frames from it. `None` for an adjacent switch.
    pub const fn ip(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Host(host) => Some(host.ip),
            Self::Switch { ip, .. } => *ip,
        }
    }

    /// The address of the static core that leads to the switch, if the group uses one.
    pub const fn core(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Host(_) => None,
            Self::Switch { core, .. } => *core,
        }
    }

    /// Destination QPN of frames to it.
    pub const fn qpn(&self) -> Qpn {
        match self {
            Self::Host(host) => host.qpn,
            Self::Switch { qpn, .. } => *qpn,
        }
    }

    /// Destination address and QPN of frames to it, unique at a switch. `None` without an address, and for placeholders.
    pub(crate) fn qp(&self) -> Option<(Ipv4Addr, Qpn)> {
        let ip = self.ip().filter(|ip| !ip.is_unspecified());
        ip.zip(Some(self.qpn()).filter(|qpn| qpn.value() != 0))
    }

    /// Its table in files.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Switch { .. } => "switch",
        }
    }

    /// Name of the host or switch.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(host) => &host.name,
            Self::Switch { name, .. } => name,
        }
    }

    /// Sets the MAC address.
    pub fn set_mac(&mut self, new: MacAddr) {
        match self {
            Self::Host(host) => host.mac = new,
            Self::Switch { mac, .. } => *mac = new,
        }
    }

    /// Destination MAC address of frames to it.
    pub fn mac(&self) -> MacAddr {
        match self {
            Self::Host(host) => host.mac,
            Self::Switch { mac, .. } => *mac,
        }
    }
}

impl HostEndpoint {
    /// Memory for WRITEs.
    pub const fn memory(&self) -> Option<&RemoteMemory> {
        match &self.part {
            HostPart::Memory(memory) => Some(memory),
            _ => None,
        }
    }

    /// Rank and first PSNs.
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
    /// Whether `length` bytes at `offset` lie inside the memory.
    pub const fn contains(&self, offset: u64, length: u64) -> bool {
        match offset.checked_add(length) {
            Some(end) => end <= self.length,
            None => false,
        }
    }
}
