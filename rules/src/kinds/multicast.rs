//! Multicast: one source, many receivers (Cepheus).

use castnet_toml_reader::{Table, Value};
use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::{Fields, bad_index, check_no_ranks, endpoint_name};
use crate::check::Unread;
use crate::fault::{Fault, FaultKind};
use crate::file::{ENDPOINT, line, read_psn};
use crate::group::{Endpoint, GroupRule};
use crate::limit::Limit;
use crate::text;

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
    /// packets each host has sent, so the members must connect again, with a newer generation.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub any_source: bool,
    /// Index of the endpoint towards the source. Only it may send data; feedback is sent to it (AckOutPort).
    pub source: u16,
}

impl MulticastRule {
    pub(super) fn read<'t>(t: &'t Table<'_>) -> (Self, Option<Value<'t>>) {
        let rule = Self {
            start_psn: t.get("start_psn", read_psn),
            va_base: t.get("va_base", |v| Limit::U64.read(v)).unwrap_or_default(),
            carries_on: t.get("carries_on", |v| Limit::U64.read(v)),
            any_source: t.get("any_source", Value::flag).unwrap_or_default(),
            source: 0,
        };
        (rule, t.need("source", ENDPOINT, Some))
    }
}

impl Fields for MulticastRule {
    fn check(&self, endpoints: &[Endpoint], unread: &Unread, faults: &mut Vec<Fault>) {
        faults.extend(bad_index(self.source, endpoints).map(|kind| Fault::new("source", kind)));
        if self.any_source {
            if self.start_psn.is_none() && !unread.has("start_psn") {
                faults.push(Fault::new("start_psn", FaultKind::AnySourceNeedsPsn));
            }
            let joins = |(i, endpoint): (usize, &Endpoint)| {
                endpoint.joining.then(|| format!("endpoints[{i}].joining"))
            };
            let carries_on = self.carries_on.map(|_| "carries_on".to_owned());
            let fixed = endpoints.iter().enumerate().filter_map(joins).chain(carries_on);
            faults.extend(fixed.map(|field| Fault::new(field, FaultKind::AnySourceIsFixed)));
        }
        check_no_ranks(endpoints, faults);
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
            source,
        } = self;
        if let Some(generation) = carries_on {
            line(out, format_args!("carries_on = {generation}"));
        }
        if let Some(psn) = start_psn {
            line(out, format_args!("start_psn = {psn}"));
        }
        if *any_source {
            line(out, format_args!("any_source = true"));
        }
        let source = endpoint_name(group, *source);
        line(out, format_args!("va_base = {va_base:#x}\nsource = {source}"));
    }
}
