//! A multicast group as one switch sees it.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use serde::{Deserialize, Serialize};

use crate::draft::GroupDraft;
use crate::fault::Fault;
use crate::text;

/// How long a path may owe acknowledgements before the operator hears of it, where nothing else is said.
pub const DEFAULT_STALL_TIMEOUT_MS: u32 = 2_000;

/// One switch's part of a multicast group: the Path Index and Path Table of an MFT (Cepheus III.B, Fig. 3), with what
/// connection bridging needs at a leaf (Cepheus III.C).
///
/// A member's QP is connected to `<mcst_id, QPN 1>`; the switch next to a member translates between that and the
/// member's own address and QPN. Between switches frames keep the McstID as their destination.
/// All members are in one VLAN, or in none: copies keep the tags of the source's frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MulticastGroup {
    /// For people and for the controller: unique on a switch; 1 to 64 printable characters without blanks.
    pub name: String,
    /// Counts versions of one group's rule, so that what is installed can be told from what is wanted.
    #[serde(default)]
    pub generation: u64,
    /// The group's address: a unicast IPv4 address that no host has (Cepheus III.A).
    #[serde(with = "text::display")]
    pub mcst_id: McstId,
    /// Payload bytes of a full packet, one value for the whole group.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// The PSN of the source's first packet; where it is `None` the switch learns it from the first data frame.
    ///
    /// Where it is given it must be true of the next data that comes. A switch that starts anew in mid-stream has none to
    /// be given: a source more than 2^23 packets further looks like one that goes back, and is not heard. And a rule is
    /// for one connection: where the members connect anew, install it anew under a newer generation, or the switch takes
    /// the new packets for repetitions of old ones and acknowledges them.
    #[serde(with = "text::psn", default, skip_serializing_if = "Option::is_none")]
    pub start_psn: Option<Psn>,
    /// The virtual address, in the source's WRITEs, that means the start of each member's memory: a member receives
    /// `memory.va + (va - va_base)`.
    #[serde(default)]
    pub va_base: u64,
    /// The port towards the source. Data is taken from there alone; feedback leaves there (AckOutPort).
    #[serde(with = "text::port")]
    pub source: PortId,
    /// The Path Table: every port of the group's tree at this switch with what is behind it, the source's included.
    pub paths: Vec<Path>,
    /// How long, in milliseconds, a path may owe acknowledgements before a stall event names it; at least 1.
    #[serde(default = "default_stall_timeout")]
    pub stall_timeout_ms: u32,
}

const fn default_stall_timeout() -> u32 {
    DEFAULT_STALL_TIMEOUT_MS
}

/// One entry of the Path Table: a port, and the one host or switch of the group behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// The port; one path per port.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// What is behind it.
    #[serde(flatten)]
    pub next_hop: NextHop,
}

/// What is behind a port of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NextHop {
    /// A member: connections are bridged here.
    Host(HostEndpoint),
    /// Another switch of the tree: frames pass with their Ethernet addresses rewritten only.
    #[serde(rename_all = "snake_case")]
    Switch {
        /// Its name.
        name: String,
        /// The address of its port at the other end of the link.
        #[serde(with = "text::display")]
        mac: MacAddr,
    },
}

/// A member of a group: a host's QP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEndpoint {
    /// The host's name.
    pub name: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its QP: not 0 or 1, which are management's, and not 0xffffff, which is InfiniBand multicast's.
    #[serde(with = "text::qpn")]
    pub qpn: Qpn,
    /// Its Ethernet address.
    #[serde(with = "text::display")]
    pub mac: MacAddr,
    /// Where WRITEs to the group land; without it a WRITE does not pass to this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RemoteMemory>,
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

impl MulticastGroup {
    /// The path towards the source, where there is one.
    pub fn source_path(&self) -> Option<&Path> {
        self.paths.iter().find(|p| p.port == self.source)
    }

    /// The paths away from the source.
    pub fn receiver_paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(|p| p.port != self.source)
    }

    /// The members directly behind this switch, the source included where it is one of them.
    pub fn members(&self) -> impl Iterator<Item = (PortId, &HostEndpoint)> {
        self.paths
            .iter()
            .filter_map(|p| p.next_hop.host().map(|h| (p.port, h)))
    }

    /// Every rule that this group breaks on a switch with `ports` ports, fields relative to the group. Empty where it
    /// may be installed. Files, messages and installs all ask here.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        GroupDraft::from(self).check(ports)
    }
}

impl NextHop {
    /// The member, where the next hop is one.
    pub fn host(&self) -> Option<&HostEndpoint> {
        match self {
            Self::Host(host) => Some(host),
            Self::Switch { .. } => None,
        }
    }

    /// The name of the host or switch.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(host) => &host.name,
            Self::Switch { name, .. } => name,
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

impl RemoteMemory {
    /// Whether `length` bytes at `offset` from its start lie in it.
    pub const fn contains(&self, offset: u64, length: u64) -> bool {
        match offset.checked_add(length) {
            Some(end) => end <= self.length,
            None => false,
        }
    }
}
