//! A collective group as one switch sees it.

use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use serde::{Deserialize, Serialize};

use crate::collective_draft::CollectiveDraft;
use crate::fault::Fault;
use crate::group::DEFAULT_STALL_TIMEOUT_MS;
use crate::text;

/// Ranks that one group can have.
pub const RANKS_MAX: u16 = 1024;

/// The members' QP time-out, in microseconds, where nothing else is said: 4.096 us x 2^14, what RDMA programs commonly
/// ask for (IBA 9.9.1.5.1, Local ACK Timeout).
pub const DEFAULT_ACK_TIMEOUT_US: u32 = 67_108;

/// Packets per message where nothing else is said.
pub const DEFAULT_MESSAGE_PACKETS: u16 = 16;

/// Bytes that slots begin at a multiple of: a cache line.
pub const SLOT_ALIGN: usize = 64;

/// What a group takes beside its slots' payload: of itself, per endpoint and per slot. Bounds of what the engine takes,
/// held against that by a test there; simple, so that whoever places groups can count beforehand.
const STATE_BYTES: u64 = 4 * 1024;
const STATE_BYTES_PER_ENDPOINT: u64 = 2048;
/// A collective in flight among it: there may be as many as slots.
const STATE_BYTES_PER_SLOT: u64 = 160;

/// One switch's part of a group that computes collectives: the IncTree context of EPIC 3.3 and 4.1 for Mode-II.
///
/// A rank's one RC QP is connected to `<mcst_id, QPN 1>`. What all ranks send is aggregated on the way up the tree, and the
/// result comes down it. The switch next to a rank maps between the rank's PSNs and the group's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveGroup {
    /// For people and for the controller: unique on a switch; 1 to 64 printable characters without blanks.
    pub name: String,
    /// Counts versions of one group's rule, so that what is installed can be told from what is wanted. Members that
    /// connect anew need a new generation.
    #[serde(default)]
    pub generation: u64,
    /// The group's address: a unicast IPv4 address that no host has.
    #[serde(with = "text::display")]
    pub mcst_id: McstId,
    /// Payload bytes of a full packet, one value for the whole group.
    #[serde(with = "text::pmtu")]
    pub pmtu: Pmtu,
    /// The group's PSN of the first collective's control message; the same on all switches.
    #[serde(with = "text::psn_value", default)]
    pub psn_start: Psn,
    /// Packets that may be under way: the ring of 2MW slots of EPIC 4.3. A power of two, 2 to 32768, at least two windows,
    /// so at least two messages.
    pub slots: u16,
    /// Packets per message that members send, M; at least 1.
    #[serde(default = "default_message_packets")]
    pub message_packets: u16,
    /// Whether each contribution is kept until all are there, and they are added in rank order: results do not depend on who
    /// was first. Takes memory for one more packet per endpoint and slot.
    #[serde(default)]
    pub reproducible: bool,
    /// How losses are repaired.
    #[serde(default)]
    pub loss_policy: LossPolicy,
    /// How early ranks are kept waiting.
    #[serde(default)]
    pub straggler_policy: StragglerPolicy,
    /// The members' QP time-out in microseconds; at least 4. The switch looks after them four times as often.
    #[serde(default = "default_ack_timeout")]
    pub ack_timeout_us: u32,
    /// How long, in milliseconds, an incomplete packet may wait for somebody before an event names them; at least 1.
    #[serde(default = "default_stall_timeout")]
    pub stall_timeout_ms: u32,
    /// The port towards the root of the tree: a switch is behind it. `None` at the root.
    #[serde(with = "text::port_option", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PortId>,
    /// Every port of the group's tree at this switch with what is behind it, the parent's included: one per port, in the
    /// order of the lowest ranks behind them. Every rank of the group is behind exactly one.
    pub endpoints: Vec<CollectiveEndpoint>,
}

const fn default_message_packets() -> u16 {
    DEFAULT_MESSAGE_PACKETS
}

const fn default_ack_timeout() -> u32 {
    DEFAULT_ACK_TIMEOUT_US
}

const fn default_stall_timeout() -> u32 {
    DEFAULT_STALL_TIMEOUT_MS
}

/// An endpoint: a port, and the one rank or switch of the group behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CollectiveEndpoint {
    /// The port.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// What is behind it.
    #[serde(flatten)]
    pub next_hop: CollectiveHop,
}

/// What is behind a port of a collective group's tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveHop {
    /// A rank's host.
    Rank(RankEndpoint),
    /// Another switch of the tree.
    #[serde(rename_all = "snake_case")]
    Switch {
        /// Its name.
        name: String,
        /// The address of its port at the other end of the link.
        #[serde(with = "text::display")]
        mac: MacAddr,
        /// All ranks behind that port; behind the parent's those that are on no other port here.
        ranks: Vec<u16>,
    },
}

/// A rank's QP, and where its PSNs begin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankEndpoint {
    /// Its rank: 0 to one less than the group has, below [`RANKS_MAX`].
    pub rank: u16,
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
    /// The PSN of the first packet that its QP sends.
    #[serde(with = "text::psn_value")]
    pub sq_psn: Psn,
    /// The PSN of the first packet that its QP expects.
    #[serde(with = "text::psn_value")]
    pub rq_psn: Psn,
}

/// Who repairs losses in a collective group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossPolicy {
    /// The switch: results stay in their slots until they are acknowledged, and gaps in contributions are NAKed at once.
    #[default]
    Repair,
    /// The hosts: feedback is reflected to them, as in EPIC's Mode-II (4.3).
    Reflect,
}

/// How a rank that waits for a later one is kept from giving up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StragglerPolicy {
    /// Its last ACK is repeated, which starts its QP's timer anew.
    #[default]
    KeepAlive,
    /// RNR NAKs.
    Rnr,
    /// Nothing: its QP retries, and fails where its retries are used up.
    None,
}

macro_rules! named {
    ($type:ident, $($variant:ident = $name:literal),*) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in files and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownPolicy;

            fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
                Self::ALL.iter().find(|p| p.name() == text).copied().ok_or(UnknownPolicy)
            }
        }
    };
}

named!(LossPolicy, Repair = "repair", Reflect = "reflect");
named!(
    StragglerPolicy,
    KeepAlive = "keep-alive",
    Rnr = "rnr",
    None = "none"
);

/// A text that names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such policy")]
pub struct UnknownPolicy;

impl CollectiveGroup {
    /// The endpoint of `port`, where there is one.
    pub fn endpoint(&self, port: PortId) -> Option<&CollectiveEndpoint> {
        self.endpoints.iter().find(|e| e.port == port)
    }

    /// The ranks directly behind this switch.
    pub fn ranks(&self) -> impl Iterator<Item = (PortId, &RankEndpoint)> {
        self.endpoints
            .iter()
            .filter_map(|e| e.next_hop.rank().map(|r| (e.port, r)))
    }

    /// How many ranks the whole group has.
    pub fn size(&self) -> usize {
        self.endpoints.iter().map(|e| e.next_hop.ranks().len()).sum()
    }

    /// Bytes of payload that one slot holds, for each packet that it keeps.
    pub const fn slot_stride(&self) -> usize {
        self.pmtu.bytes().next_multiple_of(SLOT_ALIGN)
    }

    /// Packets that one slot keeps: the sum, and each contribution where the result is to be reproducible.
    pub fn packets_per_slot(&self) -> usize {
        match self.reproducible {
            true => self.endpoints.len() + 1,
            false => 1,
        }
    }

    /// Bytes of payload that all slots hold.
    pub fn slot_bytes(&self) -> u64 {
        u64::from(self.slots) * self.slot_stride() as u64 * self.packets_per_slot() as u64
    }

    /// Bytes that the group takes of a switch's memory for groups: its slots, and its state. Controller and switch both count
    /// this.
    pub fn memory_bytes(&self) -> u64 {
        self.slot_bytes()
            + STATE_BYTES
            + STATE_BYTES_PER_ENDPOINT * self.endpoints.len() as u64
            + STATE_BYTES_PER_SLOT * u64::from(self.slots)
    }

    /// Every rule that this group breaks on a switch with `ports` ports, fields relative to the group. Empty where it
    /// may be installed. Files, messages and installs all ask here.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        CollectiveDraft::from(self).check(ports)
    }
}

impl CollectiveHop {
    /// The rank, where the next hop is one.
    pub fn rank(&self) -> Option<&RankEndpoint> {
        match self {
            Self::Rank(rank) => Some(rank),
            Self::Switch { .. } => None,
        }
    }

    /// All ranks behind it.
    pub fn ranks(&self) -> &[u16] {
        match self {
            Self::Rank(rank) => core::slice::from_ref(&rank.rank),
            Self::Switch { ranks, .. } => ranks,
        }
    }

    /// The name of the host or switch.
    pub fn name(&self) -> &str {
        match self {
            Self::Rank(rank) => &rank.name,
            Self::Switch { name, .. } => name,
        }
    }

    /// The Ethernet address that frames on the link are for.
    pub fn mac(&self) -> MacAddr {
        match self {
            Self::Rank(rank) => rank.mac,
            Self::Switch { mac, .. } => *mac,
        }
    }
}
