//! Collectives: EPIC's Mode-II (translated), Mode-III (augmented) and Mode-I (terminated).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use castnet_toml_reader::{Table, Value};
use castnet_wire::{CollectiveMode, LossPolicy, Pmtu, Psn, StragglerPolicy};
use serde::{Deserialize, Serialize};

use super::{Fields, bad_index, endpoint_name};
use crate::check::Unread;
use crate::fault::{Fault, FaultKind};
use crate::file::{line, read_psn};
use crate::group::{ENDPOINTS_MAX, Endpoint, GroupRule, NextHop};
use crate::limit::{Limit, MODE_TEXT};
use crate::text;

pub(super) const SLOTS_MIN: u16 = 2;
/// Two for each pipe.
const AUGMENTED_SLOTS_MIN: u32 = 4;
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

/// Most packets of a message in Mode-I: a switch adds a message at once, and handles nothing else meanwhile.
const TERMINATED_MESSAGE_MAX: u16 = 256;
/// In Mode-I: per buffer of an endpoint, for the work requests and what is known of a message.
const STATE_BYTES_PER_BUFFER: u64 = 256;

/// Fields of a group that computes: the IncTree context of EPIC 3.3 and 4.1.
///
/// A rank has one RC QP, connected to `<mcst_id, virtual_qpn>` of its endpoint. The tree aggregates contributions on
/// the way up and distributes the result on the way down. The switch next to a rank translates between its PSNs and the
/// group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslatedRule {
    /// PSN, in the group, of the first collective's control message; the same on all switches.
    #[serde(with = "text::psn", default)]
    pub start_psn: Psn,
    /// How switches carry the connections; the same on all switches of the tree.
    #[serde(with = "text::display", default)]
    pub mode: CollectiveMode,
    /// A power of two, 2 to 32768. In Mode-II the most packets in flight, the ring of 2MW slots of EPIC 4.3: at least two messages. In
    /// Mode-III those of both pipes, 2N in EPIC 4.4: at least four and one message. In Mode-I those in the buffers of each neighbour, and of
    /// each of two pipes: at least two messages.
    pub slots: u16,
    /// Packets per message of the members, M; at least 1.
    #[serde(default = "default_message_packets")]
    pub message_packets: u16,
    /// If true, the switch stores contributions and reduces them in rank order, so that results do not depend on the
    /// order of arrival. Needs memory for one more packet per endpoint and slot.
    #[serde(default)]
    pub reproducible: bool,
    /// Which side repairs losses.
    #[serde(with = "text::display", default)]
    pub loss_policy: LossPolicy,
    /// How ranks that wait for a late one are kept from failing.
    #[serde(with = "text::display", default)]
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

impl TranslatedRule {
    /// The rule of a tree with one switch, with defaults; but a message has at most half of the slots.
    pub fn root(slots: u16) -> Self {
        Self {
            start_psn: Psn::new(0),
            mode: CollectiveMode::default(),
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

    /// Packets that a slot of contributions stores: the sum and, in a reproducible group, each contribution.
    pub const fn packets_per_slot(&self, endpoints: usize) -> usize {
        match self.reproducible {
            true => endpoints + 1,
            false => 1,
        }
    }

    /// Slots of contributions, which come first: all in Mode-II, those of the aggregation pipe in Mode-III. Others store one packet.
    pub const fn aggregation_slots(&self) -> u16 {
        match self.mode {
            CollectiveMode::Translated => self.slots,
            CollectiveMode::Augmented => self.slots / 2,
            CollectiveMode::Terminated => 0,
        }
    }

    /// Messages in the buffers of each neighbour, and of each of two pipes, in Mode-I.
    pub const fn messages(&self) -> u16 {
        self.slots
            / if self.message_packets == 0 {
                1
            } else {
                self.message_packets
            }
    }

    /// Payload bytes of all slots.
    pub const fn slot_bytes(&self, pmtu: Pmtu, endpoints: usize) -> u64 {
        if matches!(self.mode, CollectiveMode::Terminated) {
            let packets = self.messages() as u64 * self.message_packets as u64;
            return (endpoints as u64 + 2) * packets * pmtu.bytes() as u64;
        }
        let sums = self.aggregation_slots() as u64;
        let packets = sums * self.packets_per_slot(endpoints) as u64 + (self.slots as u64 - sums);
        packets * Self::slot_stride(pmtu) as u64
    }

    /// Bytes of group memory: slots and state. Controller and switch both use this number.
    pub const fn memory_bytes(&self, pmtu: Pmtu, endpoints: usize) -> u64 {
        // Extra bytes of each endpoint set in a group of more than 64 endpoints.
        let extra_set_bytes = if endpoints > 64 {
            ENDPOINTS_MAX as u64 / 8 - 8
        } else {
            0
        };
        let buffers = match self.mode {
            CollectiveMode::Terminated => self.messages() as u64 * endpoints as u64,
            _ => 0,
        };
        self.slot_bytes(pmtu, endpoints)
            + STATE_BYTES_PER_BUFFER * buffers
            + STATE_BYTES
            + SETS * extra_set_bytes
            + STATE_BYTES_PER_ENDPOINT * endpoints as u64
            + (STATE_BYTES_PER_SLOT + SETS_PER_SLOT * extra_set_bytes) * self.slots as u64
    }

    /// Why a switch of another mode cannot be at the other end of an edge. What meets there is an RC connection that both ends keep
    /// reliable on their own.
    fn bad_edge(&self, there: CollectiveMode) -> Option<FaultKind> {
        if there == self.mode {
            return Some(FaultKind::SameMode { mode: there });
        }
        (self.loss_policy == LossPolicy::Reflect).then_some(FaultKind::ReflectingEdge { there })
    }

    fn bad_slots(&self) -> Option<FaultKind> {
        let (slots, message_packets) = (self.slots, self.message_packets);
        if slots < SLOTS_MIN || !slots.is_power_of_two() {
            return Some(FaultKind::NotPowerOfTwo { slots });
        }
        let need = match self.mode {
            CollectiveMode::Translated | CollectiveMode::Terminated => 2 * u32::from(message_packets),
            CollectiveMode::Augmented => u32::from(message_packets).max(AUGMENTED_SLOTS_MIN),
        };
        (u32::from(slots) < need).then_some(FaultKind::TooFewSlots {
            slots,
            message_packets,
            need,
        })
    }

    pub(super) fn read<'t>(t: &'t Table<'_>) -> (Self, Option<Value<'t>>) {
        let mut rule = Self {
            start_psn: t.get("start_psn", read_psn).unwrap_or_default(),
            mode: t.get("mode", |v| v.parsed(MODE_TEXT)).unwrap_or_default(),
            slots: t
                .need("slots", "a power of two, 2 to 32768", |v| Limit::SLOTS.read(v))
                .unwrap_or_default(),
            message_packets: t
                .optional("message_packets", DEFAULT_MESSAGE_PACKETS, |v| Limit::U16.read(v))
                .unwrap_or_default(),
            reproducible: t.get("reproducible", Value::flag).unwrap_or_default(),
            loss_policy: t
                .get("loss_policy", |v| v.parsed("a policy: \"repair\" or \"reflect\""))
                .unwrap_or_default(),
            straggler_policy: t
                .get("straggler_policy", |v| {
                    v.parsed("a policy: \"keep-alive\", \"rnr\" or \"none\"")
                })
                .unwrap_or_default(),
            ack_timeout_us: t
                .get("ack_timeout_us", |v| Limit::U32.read(v))
                .unwrap_or(DEFAULT_ACK_TIMEOUT_US),
            parent: None,
        };
        let parent = t.value("parent");
        rule.parent = parent.map(|_| 0);
        (rule, parent)
    }
}

impl Fields for TranslatedRule {
    fn upstream(&self) -> Option<u16> {
        self.parent
    }

    fn upstream_mut(&mut self) -> Option<&mut u16> {
        self.parent.as_mut()
    }

    fn reserved_bytes(&self, group: &GroupRule) -> u64 {
        self.memory_bytes(group.pmtu, group.endpoints.len())
    }

    fn write(&self, group: &GroupRule, out: &mut String) {
        let Self {
            start_psn,
            mode,
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
                "start_psn = {start_psn}\nmode = \"{mode}\"\nslots = {slots}\nmessage_packets = {message_packets}\nreproducible = \
                 {reproducible}\nloss_policy = \"{loss_policy}\"\nstraggler_policy = \"{straggler_policy}\"\n\
                 ack_timeout_us = {ack_timeout_us}"
            ),
        );
        if let Some(parent) = parent {
            line(out, format_args!("parent = {}", endpoint_name(group, *parent)));
        }
    }

    fn check(&self, endpoints: &[Endpoint], unread: &Unread, faults: &mut Vec<Fault>) {
        let mut fault = |field: &str, kind| faults.push(Fault::new(field, kind));
        if self.message_packets == 0 {
            fault("message_packets", FaultKind::EmptyMessages);
        }
        let (given, most) = (self.message_packets, TERMINATED_MESSAGE_MAX);
        if self.mode == CollectiveMode::Terminated && given > most {
            fault("message_packets", FaultKind::LongMessages { given, most });
        }
        if let Some(kind) = self.bad_slots() {
            fault("slots", kind);
        }
        if self.mode != CollectiveMode::Translated && self.loss_policy == LossPolicy::Reflect {
            fault("loss_policy", FaultKind::ModeReflects { mode: self.mode });
        }
        let (given, least) = (self.ack_timeout_us, ACK_TIMEOUT_MIN_US);
        if given < least {
            fault("ack_timeout_us", FaultKind::ShortAckTimeout { given, least });
        }
        if let Some(kind) = self.parent.and_then(|parent| bad_parent(parent, endpoints)) {
            fault("parent", kind);
        }
        for (i, endpoint) in endpoints.iter().enumerate() {
            if let Some(there) = endpoint.next_hop.mode()
                && let Some(kind) = self.bad_edge(there)
            {
                fault(&format!("endpoints[{i}].switch.mode"), kind);
            }
        }
        check_ranks(endpoints, unread, faults);
    }
}

fn bad_parent(parent: u16, endpoints: &[Endpoint]) -> Option<FaultKind> {
    let Some(endpoint) = endpoints.get(usize::from(parent)) else {
        return bad_index(parent, endpoints);
    };
    let name = endpoint.next_hop.host()?.name.clone();
    Some(FaultKind::ParentIsRank { name })
}

/// Each rank from 0 on must be behind exactly one endpoint, and each host must have a rank.
fn check_ranks(endpoints: &[Endpoint], unread: &Unread, faults: &mut Vec<Fault>) {
    let mut endpoint_of: BTreeMap<u16, usize> = BTreeMap::new();
    let mut all_known = true;
    for (i, endpoint) in endpoints.iter().enumerate() {
        let mut fault = |field: &str, kind| faults.push(Fault::new(format!("endpoints[{i}].{field}"), kind));
        if unread.has_hop(i) || unread.has(format_args!("endpoints[{i}].switch.ranks")) {
            all_known = false;
            continue;
        }
        let ranks = endpoint.next_hop.ranks();
        let field = match endpoint.next_hop {
            NextHop::Host(_) if ranks.is_empty() => {
                all_known = false;
                fault("host", FaultKind::HostWithoutRank);
                continue;
            }
            NextHop::Host(_) => "host.rank",
            NextHop::Switch { .. } => "switch.ranks",
        };
        if ranks.is_empty() {
            fault(field, FaultKind::NoRanks);
        }
        for (j, &rank) in ranks.iter().enumerate() {
            if rank >= RANKS_MAX {
                all_known = false;
                let field = match endpoint.next_hop {
                    NextHop::Host(_) => field.into(),
                    NextHop::Switch { .. } => format!("{field}[{j}]"),
                };
                fault(&field, Limit::RANK.fault(rank));
                continue;
            }
            match endpoint_of.entry(rank) {
                Entry::Occupied(first) => {
                    let first = format!("endpoints[{}]", first.get());
                    fault(field, FaultKind::DuplicateRank { rank, first });
                }
                Entry::Vacant(entry) => _ = entry.insert(i),
            }
        }
    }
    // A rank that could not be read may be the missing one.
    let Some((&most, _)) = endpoint_of.last_key_value().filter(|_| all_known) else {
        return;
    };
    if let Some(rank) = (0..most).find(|rank| !endpoint_of.contains_key(rank)) {
        faults.push(Fault::new("endpoints", FaultKind::NoEndpointFor { rank, most }));
    }
}
