//! Multicast: one source, many receivers (Cepheus).

use castnet_toml_reader::{Table, Value};
use castnet_wire::{AnySource, MulticastRepair, Pmtu, Psn};
use serde::{Deserialize, Serialize};

use super::translated::{SLOT_ALIGN, SLOTS_MIN};
use super::{DEFAULT_ACK_TIMEOUT_US, Fields, bad_index, check_no_ranks, endpoint_name};
use crate::check::Unread;
use crate::fault::{Fault, FaultKind};
use crate::file::{ENDPOINT, line, read_psn};
use crate::group::{Endpoint, GroupRule};
use crate::limit::Limit;
use crate::text;

/// Default number of slots of a group that repairs.
pub const DEFAULT_REPAIR_SLOTS: u16 = 256;
/// Link layer with two tags, IPv4 with all options, UDP, BTH, RETH, immediate data and ICRC around a payload.
const FRAME_OVERHEAD: usize = 160;
/// Memory of a group that repairs, beside its slots: fixed, per endpoint and per slot. Upper bounds of what the engine allocates.
const STATE_BYTES: u64 = 4 * 1024;
const STATE_BYTES_PER_ENDPOINT: u64 = 512;
const STATE_BYTES_PER_SLOT: u64 = 4;
/// 64 ticks of a microsecond.
const ACK_TIMEOUT_MIN_US: u32 = 64;

/// Repair from the switch: each switch keeps data until all paths have acknowledged it, and repeats it (the broadcast pipe of EPIC 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairRule {
    /// Packets that are kept: at least as many as the source has outstanding. A power of two, 2 to 32768.
    pub slots: u16,
    /// QP time-out of the source in microseconds; at least 64. A path that is silent for some round trips, at most 1/32 of it, gets its
    /// oldest packet again.
    pub ack_timeout_us: u32,
}

impl Default for RepairRule {
    fn default() -> Self {
        Self {
            slots: DEFAULT_REPAIR_SLOTS,
            ack_timeout_us: DEFAULT_ACK_TIMEOUT_US,
        }
    }
}

impl RepairRule {
    /// Bytes between two packets in slot memory, with their headers.
    pub const fn slot_stride(pmtu: Pmtu) -> usize {
        (pmtu.bytes() + FRAME_OVERHEAD).next_multiple_of(SLOT_ALIGN)
    }

    /// Bytes of group memory: slots and state. Controller and switch both use this number.
    pub const fn memory_bytes(&self, pmtu: Pmtu, endpoints: usize) -> u64 {
        let slot = Self::slot_stride(pmtu) as u64 + STATE_BYTES_PER_SLOT;
        STATE_BYTES + STATE_BYTES_PER_ENDPOINT * endpoints as u64 + slot * self.slots as u64
    }

    fn read(t: &Table<'_>) -> Option<Self> {
        let side = t.get("repair", |v| {
            v.parsed::<MulticastRepair>("a side: \"source\" or \"switch\"")
        });
        if side? == MulticastRepair::Source {
            return None;
        }
        let default = Self::default();
        Some(Self {
            slots: t.get("slots", |v| Limit::SLOTS.read(v)).unwrap_or(default.slots),
            ack_timeout_us: t
                .get("ack_timeout_us", |v| Limit::U32.read(v))
                .unwrap_or(default.ack_timeout_us),
        })
    }

    /// Adds the faults of its fields.
    pub fn check(&self, faults: &mut Vec<Fault>) {
        let (slots, given, least) = (self.slots, self.ack_timeout_us, ACK_TIMEOUT_MIN_US);
        if slots < SLOTS_MIN || !slots.is_power_of_two() {
            faults.push(Fault::new("slots", FaultKind::NotPowerOfTwo { slots }));
        }
        if given < least {
            let kind = FaultKind::ShortAckTimeout { given, least };
            faults.push(Fault::new("ack_timeout_us", kind));
        }
    }
}

/// Fields of a multicast group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MulticastRule {
    /// PSN of the next data packet of the source. `None`: the switch learns it from the first data frame.
    ///
    /// Do not set it for a switch that restarts in mid-stream: a packet more than 2^23 ahead counts as behind and is
    /// ignored. It is valid for one connection: if the members connect again, install the rule with a newer generation.
    /// Otherwise new packets count as repeated ones and are acknowledged.
    #[serde(with = "text::optional_psn", default, skip_serializing_if = "Option::is_none")]
    pub start_psn: Option<Psn>,
    /// A WRITE of the source to `va` is written at `memory.va + (va - va_base)` of each member.
    #[serde(default)]
    pub va_base: u64,
    /// The rule carries on the stream of one that it replaces, of this generation or a newer one: paths that both have keep
    /// their state, others need nothing of the data so far. `None`: the state is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries_on: Option<u64>,
    /// Each host may send, one after the other (Cepheus III.E): `source` is only the first one. Needs `start_psn`, which is
    /// the first PSN of both directions at each host, on all switches of the tree; a switch that restarts has lost how many
    /// packets each host has sent, so the members must connect again, with a newer generation. `None`: only `source` sends.
    #[serde(with = "text::any_source", default, skip_serializing_if = "Option::is_none")]
    pub any_source: Option<AnySource>,
    /// Repair from the switch, on all switches of the tree. `None`: the source repeats what any receiver has lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairRule>,
    /// A NAK of a host that ends its connection is not sent to the source: the switch next to the host reports it, and the group waits for the
    /// host until a rule without it carries on. False: the source gets the NAK, and its connection ends.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub hold_fatal_naks: bool,
    /// Index of the endpoint towards the source. Only it may send data; feedback is sent to it (AckOutPort).
    pub source: u16,
}

impl MulticastRule {
    pub(super) fn read<'t>(t: &'t Table<'_>) -> (Self, Option<Value<'t>>) {
        let rule = Self {
            start_psn: t.get("start_psn", read_psn),
            va_base: t.get("va_base", |v| Limit::U64.read(v)).unwrap_or_default(),
            carries_on: t.get("carries_on", |v| Limit::U64.read(v)),
            any_source: t
                .get("any_source", |v| {
                    v.flag_or("true, false, \"bridged\" or \"synchronized\"")
                })
                .flatten(),
            repair: RepairRule::read(t),
            hold_fatal_naks: t.get("hold_fatal_naks", Value::flag).unwrap_or_default(),
            source: 0,
        };
        (rule, t.need("source", ENDPOINT, Some))
    }
}

impl Fields for MulticastRule {
    fn check(&self, endpoints: &[Endpoint], unread: &Unread, faults: &mut Vec<Fault>) {
        faults.extend(bad_index(self.source, endpoints).map(|kind| Fault::new("source", kind)));
        if self.any_source.is_some() {
            if self.start_psn.is_none() && !unread.has("start_psn") {
                faults.push(Fault::new("start_psn", FaultKind::AnySourceNeedsPsn));
            }
            let joins = |(i, endpoint): (usize, &Endpoint)| {
                endpoint.joining.then(|| format!("endpoints[{i}].joining"))
            };
            let carries_on = self.carries_on.map(|_| "carries_on".to_owned());
            let fixed = endpoints.iter().enumerate().filter_map(joins).chain(carries_on);
            faults.extend(fixed.map(|field| Fault::new(field, FaultKind::AnySourceIsFixed)));
            let hosts = endpoints
                .iter()
                .enumerate()
                .filter_map(|(i, e)| Some((i, e.next_hop.host()?)));
            let (with, without): (Vec<_>, Vec<_>) = hosts.partition(|(_, host)| host.memory().is_some());
            let lacking = without.iter().filter(|_| !with.is_empty());
            faults.extend(
                lacking.map(|(i, _)| {
                    Fault::new(format!("endpoints[{i}].host.memory"), FaultKind::AnySourceWrites)
                }),
            );
        }
        if let Some(repair) = &self.repair {
            repair.check(faults);
            if self.any_source == Some(AnySource::Synchronized) {
                faults.push(Fault::new("repair", FaultKind::AnySourceRepairs));
            }
        }
        check_no_ranks(endpoints, faults);
    }

    fn reserved_bytes(&self, group: &GroupRule) -> u64 {
        let bytes = |repair: RepairRule| repair.memory_bytes(group.pmtu, group.endpoints.len());
        self.repair.map_or(0, bytes)
    }

    fn upstream(&self) -> Option<u16> {
        Some(self.source)
    }

    fn upstream_mut(&mut self) -> Option<&mut u16> {
        Some(&mut self.source)
    }

    fn write(&self, group: &GroupRule, out: &mut String) {
        let Self {
            start_psn,
            va_base,
            carries_on,
            any_source,
            repair,
            hold_fatal_naks,
            source,
        } = self;
        if let Some(generation) = carries_on {
            line(out, format_args!("carries_on = {generation}"));
        }
        if let Some(psn) = start_psn {
            line(out, format_args!("start_psn = {psn}"));
        }
        match any_source {
            None => {}
            Some(AnySource::Bridged) => line(out, format_args!("any_source = true")),
            Some(numbers) => line(out, format_args!("any_source = \"{numbers}\"")),
        }
        if let Some(RepairRule {
            slots,
            ack_timeout_us,
        }) = repair
        {
            let side = MulticastRepair::Switch;
            line(
                out,
                format_args!("repair = \"{side}\"\nslots = {slots}\nack_timeout_us = {ack_timeout_us}"),
            );
        }
        if *hold_fatal_naks {
            line(out, format_args!("hold_fatal_naks = true"));
        }
        let source = endpoint_name(group, *source);
        line(out, format_args!("va_base = {va_base:#x}\nsource = {source}"));
    }
}
