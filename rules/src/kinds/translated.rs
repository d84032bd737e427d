//! Collectives over translated connections: EPIC's Mode-II.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use castnet_toml_reader::{Table, Value};
use castnet_wire::{Pmtu, Psn};
use serde::{Deserialize, Serialize};

use super::endpoint_name;
use crate::draft::{EndpointDraft, EndpointRef, HopDraft, PartDraft};
use crate::fault::{Fault, FaultKind};
use crate::file::{line, read_psn};
use crate::group::{ENDPOINTS_MAX, GroupRule};
use crate::limit::Limit;
use crate::text;

const SLOTS_MIN: u16 = 2;
/// Four ticks of a microsecond.
const ACK_TIMEOUT_MIN_US: u32 = 4;
/// Most ranks of one group.
pub const RANKS_MAX: u16 = 1024;
/// Default QP time-out of members: 4.096 us x 2^14, as RDMA programs commonly use (IBA 9.9.1.5.1, Local ACK Timeout).
pub const DEFAULT_ACK_TIMEOUT_US: u32 = 67_108;
/// Default number of packets per message.
pub const DEFAULT_MESSAGE_PACKETS: u16 = 16;
/// Alignment of slots in bytes: a cache line.
pub const SLOT_ALIGN: usize = 64;
/// Memory of a group beside the payload of its slots: fixed, per endpoint and per slot. Upper bounds of what the engine
/// allocates (a test there checks them), and simple enough for a planner.
const STATE_BYTES: u64 = 4 * 1024;
const STATE_BYTES_PER_ENDPOINT: u64 = 2048;
/// Includes one collective in flight: there may be as many as slots.
const STATE_BYTES_PER_SLOT: u64 = 160;
/// Endpoint sets in this state.
const SETS: u64 = 16;
const SETS_PER_SLOT: u64 = 2;

/// Fields of a group that computes: the IncTree context of EPIC 3.3 and 4.1 for Mode-II.
///
/// A rank has one RC QP, connected to `<mcst_id, virtual_qpn>` of its endpoint. The tree aggregates contributions on
/// the way up and distributes the result on the way down. The switch next to a rank translates between its PSNs and the
/// group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslatedRule {
    /// PSN, in the group, of the first collective's control message; the same on all switches.
    #[serde(with = "text::psn_value", default)]
    pub start_psn: Psn,
    /// Most packets in flight: the ring of 2MW slots of EPIC 4.3. A power of two, 2 to 32768, at least two messages.
    pub slots: u16,
    /// Packets per message of the members, M; at least 1.
    #[serde(default = "default_message_packets")]
    pub message_packets: u16,
    /// If true, the switch stores contributions and reduces them in rank order, so that results do not depend on the
    /// order of arrival. Needs memory for one more packet per endpoint and slot.
    #[serde(default)]
    pub reproducible: bool,
    /// Which side repairs losses.
    #[serde(default)]
    pub loss_policy: LossPolicy,
    /// How ranks that wait for a late one are kept from failing.
    #[serde(default)]
    pub straggler_policy: StragglerPolicy,
    /// QP time-out of the members in microseconds; at least 4. The switch checks them four times in this period.
    #[serde(default = "default_ack_timeout")]
    pub ack_timeout_us: u32,
    /// Index of the endpoint (a switch) towards the root of the tree. `None` at the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u16>,
}

const fn default_message_packets() -> u16 {
    DEFAULT_MESSAGE_PACKETS
}

const fn default_ack_timeout() -> u32 {
    DEFAULT_ACK_TIMEOUT_US
}

/// Which side repairs losses in a collective group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossPolicy {
    /// The switch: it keeps results until they are acknowledged, and sends a NAK for a missing contribution at once.
    #[default]
    Repair,
    /// The hosts: feedback is reflected to them, as in EPIC's Mode-II (4.3).
    Reflect,
}

/// How a rank that waits for a late one is kept from failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StragglerPolicy {
    /// The switch repeats the last ACK, which restarts the timer of the QP.
    #[default]
    KeepAlive,
    /// The switch sends RNR NAKs.
    Rnr,
    /// Nothing: the QP retries, and fails when its retries are used up.
    None,
}

macro_rules! named {
    ($type:ident, $($variant:ident = $name:literal),*) => {
        impl $type {
            /// All values.
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

/// Error: the text names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such policy")]
pub struct UnknownPolicy;

impl TranslatedRule {
    /// The rule of a tree with one switch, with defaults; but a message has at most half of the slots.
    pub fn root(slots: u16) -> Self {
        Self {
            start_psn: Psn::new(0),
            slots,
            message_packets: DEFAULT_MESSAGE_PACKETS.min(slots / 2).max(1),
            reproducible: false,
            loss_policy: LossPolicy::default(),
            straggler_policy: StragglerPolicy::default(),
            ack_timeout_us: DEFAULT_ACK_TIMEOUT_US,
            parent: None,
        }
    }

    /// Bytes between the payloads of two packets in slot memory.
    pub const fn slot_stride(pmtu: Pmtu) -> usize {
        pmtu.bytes().next_multiple_of(SLOT_ALIGN)
    }

    /// Packets that a slot stores: the sum and, in a reproducible group, each contribution.
    pub const fn packets_per_slot(&self, endpoints: usize) -> usize {
        match self.reproducible {
            true => endpoints + 1,
            false => 1,
        }
    }

    /// Payload bytes of all slots.
    pub const fn slot_bytes(&self, pmtu: Pmtu, endpoints: usize) -> u64 {
        self.slots as u64 * Self::slot_stride(pmtu) as u64 * self.packets_per_slot(endpoints) as u64
    }

    /// Bytes of group memory: slots and state. Controller and switch both use this number.
    pub const fn memory_bytes(&self, pmtu: Pmtu, endpoints: usize) -> u64 {
        // Extra bytes of each endpoint set in a group of more than 64 endpoints.
        let extra_set_bytes = if endpoints > 64 {
            ENDPOINTS_MAX as u64 / 8 - 8
        } else {
            0
        };
        self.slot_bytes(pmtu, endpoints)
            + STATE_BYTES
            + SETS * extra_set_bytes
            + STATE_BYTES_PER_ENDPOINT * endpoints as u64
            + (STATE_BYTES_PER_SLOT + SETS_PER_SLOT * extra_set_bytes) * self.slots as u64
    }

    pub(super) fn upstream(&self) -> Option<u16> {
        self.parent
    }

    pub(super) fn upstream_mut(&mut self) -> Option<&mut u16> {
        self.parent.as_mut()
    }

    pub(super) fn reserved_bytes(&self, group: &GroupRule) -> u64 {
        self.memory_bytes(group.pmtu, group.endpoints.len())
    }

    pub(super) fn write(&self, group: &GroupRule, out: &mut String) {
        let Self {
            start_psn,
            slots,
            message_packets,
            reproducible,
            loss_policy,
            straggler_policy,
            ack_timeout_us,
            parent,
        } = self;
        line(
            out,
            format_args!(
                "start_psn = {start_psn}\nslots = {slots}\nmessage_packets = {message_packets}\nreproducible = \
                 {reproducible}\nloss_policy = \"{loss_policy}\"\nstraggler_policy = \"{straggler_policy}\"\n\
                 ack_timeout_us = {ack_timeout_us}"
            ),
        );
        if let Some(parent) = parent {
            line(out, format_args!("parent = {}", endpoint_name(group, *parent)));
        }
    }
}

/// A [`TranslatedRule`] that is being read.
#[allow(missing_docs, reason = "the fields of a draft are those of its rule")]
#[derive(Clone, Debug, Default)]
pub struct TranslatedDraft {
    pub start_psn: Option<Psn>,
    pub slots: Option<u16>,
    pub message_packets: Option<u16>,
    pub reproducible: Option<bool>,
    pub loss_policy: Option<LossPolicy>,
    pub straggler_policy: Option<StragglerPolicy>,
    pub ack_timeout_us: Option<u32>,
    /// The inner `None` is the root's.
    pub parent: Option<Option<EndpointRef>>,
}

impl From<&TranslatedRule> for TranslatedDraft {
    fn from(rule: &TranslatedRule) -> Self {
        Self {
            start_psn: Some(rule.start_psn),
            slots: Some(rule.slots),
            message_packets: Some(rule.message_packets),
            reproducible: Some(rule.reproducible),
            loss_policy: Some(rule.loss_policy),
            straggler_policy: Some(rule.straggler_policy),
            ack_timeout_us: Some(rule.ack_timeout_us),
            parent: Some(rule.parent.map(EndpointRef::Index)),
        }
    }
}

impl TranslatedDraft {
    pub(super) fn finish(self, endpoints: &[EndpointDraft]) -> Option<TranslatedRule> {
        Some(TranslatedRule {
            start_psn: self.start_psn?,
            slots: self.slots?,
            message_packets: self.message_packets?,
            reproducible: self.reproducible?,
            loss_policy: self.loss_policy?,
            straggler_policy: self.straggler_policy?,
            ack_timeout_us: self.ack_timeout_us?,
            parent: match self.parent? {
                Some(parent) => Some(parent.find(endpoints).ok()??),
                None => None,
            },
        })
    }

    pub(super) fn check(&self, endpoints: Option<&[EndpointDraft]>, faults: &mut Vec<Fault>) {
        let mut fault = |field: &str, kind| faults.push(Fault::new(field, kind));
        if self.message_packets == Some(0) {
            fault("message_packets", FaultKind::EmptyMessages);
        }
        if let Some(kind) = self.slots.and_then(|slots| self.bad_slots(slots)) {
            fault("slots", kind);
        }
        if let Some(given) = self.ack_timeout_us.filter(|t| *t < ACK_TIMEOUT_MIN_US) {
            let least = ACK_TIMEOUT_MIN_US;
            fault("ack_timeout_us", FaultKind::ShortAckTimeout { given, least });
        }
        if let Some(endpoints) = endpoints {
            if let Some(kind) = self.bad_parent(endpoints) {
                fault("parent", kind);
            }
            check_ranks(endpoints, faults);
        }
    }

    fn bad_slots(&self, slots: u16) -> Option<FaultKind> {
        if slots < SLOTS_MIN || !slots.is_power_of_two() {
            return Some(FaultKind::NotPowerOfTwo { slots });
        }
        let message_packets = self.message_packets?;
        let need = 2 * u32::from(message_packets);
        (u32::from(slots) < need).then_some(FaultKind::TooFewSlots {
            slots,
            message_packets,
            need,
        })
    }

    fn bad_parent(&self, endpoints: &[EndpointDraft]) -> Option<FaultKind> {
        let index = match self.parent.as_ref()?.as_ref()?.find(endpoints) {
            Ok(index) => index?,
            Err(kind) => return Some(kind),
        };
        match &endpoints[usize::from(index)].next_hop {
            Some(HopDraft::Host(host)) => {
                let name = host.name.clone().unwrap_or_default();
                Some(FaultKind::ParentIsRank { name })
            }
            _ => None,
        }
    }

    pub(super) fn read(t: &Table<'_>) -> Self {
        Self {
            start_psn: t.optional("start_psn", Psn::new(0), read_psn),
            slots: t.need("slots", "a power of two, 2 to 32768", |v| Limit::SLOTS.read(v)),
            message_packets: t.optional("message_packets", DEFAULT_MESSAGE_PACKETS, |v| Limit::U16.read(v)),
            reproducible: t.optional("reproducible", false, Value::flag),
            loss_policy: t.optional("loss_policy", LossPolicy::default(), |v| {
                v.parsed("a policy: \"repair\" or \"reflect\"")
            }),
            straggler_policy: t.optional("straggler_policy", StragglerPolicy::default(), |v| {
                v.parsed("a policy: \"keep-alive\", \"rnr\" or \"none\"")
            }),
            ack_timeout_us: t.optional("ack_timeout_us", DEFAULT_ACK_TIMEOUT_US, |v| Limit::U32.read(v)),
            parent: t.optional("parent", None, |v| EndpointRef::read(v).map(Some)),
        }
    }
}

/// Each rank from 0 on must be behind exactly one endpoint, and each host must have a rank.
fn check_ranks(endpoints: &[EndpointDraft], faults: &mut Vec<Fault>) {
    let mut endpoint_of: BTreeMap<u16, usize> = BTreeMap::new();
    let mut all_known = true;
    for (i, endpoint) in endpoints.iter().enumerate() {
        let field = |of: &str| format!("endpoints[{i}].{of}");
        let (field, ranks) = match &endpoint.next_hop {
            Some(HopDraft::Host(host)) => match &host.part {
                Some(PartDraft::Rank(part)) => (field("host.rank"), part.rank.map(|r| vec![r])),
                Some(_) => {
                    faults.push(Fault::new(field("host"), FaultKind::HostWithoutRank));
                    (String::new(), None)
                }
                None => (String::new(), None),
            },
            Some(HopDraft::Switch(switch)) => (field("switch.ranks"), switch.ranks.clone()),
            None => (String::new(), None),
        };
        let Some(ranks) = ranks else {
            all_known = false;
            continue;
        };
        if ranks.is_empty() {
            faults.push(Fault::new(field.clone(), FaultKind::NoRanks));
        }
        for rank in ranks {
            if rank >= RANKS_MAX {
                all_known = false;
                faults.push(Fault::new(field.clone(), Limit::RANK.fault(rank)));
            } else if let Some(first) = endpoint_of.get(&rank) {
                let first = format!("endpoints[{first}]");
                faults.push(Fault::new(
                    field.clone(),
                    FaultKind::DuplicateRank { rank, first },
                ));
            } else {
                endpoint_of.insert(rank, i);
            }
        }
    }
    // A rank that could not be read may be the missing one.
    let Some((most, _)) = endpoint_of.last_key_value().filter(|_| all_known) else {
        return;
    };
    if let Some(rank) = (0..*most).find(|rank| !endpoint_of.contains_key(rank)) {
        let most = *most;
        faults.push(Fault::new("endpoints", FaultKind::NoEndpointFor { rank, most }));
    }
}
