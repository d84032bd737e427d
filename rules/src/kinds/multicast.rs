//! Multicast: one source, many receivers (Cepheus).

use castnet_toml_reader::Table;
use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::{check_no_ranks, endpoint_name};
use crate::draft::{EndpointDraft, EndpointRef};
use crate::fault::Fault;
use crate::file::{line, read_psn};
use crate::group::GroupRule;
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
    #[serde(with = "text::psn", default, skip_serializing_if = "Option::is_none")]
    pub start_psn: Option<Psn>,
    /// A WRITE of the source to `va` is written at `memory.va + (va - va_base)` of each member.
    #[serde(default)]
    pub va_base: u64,
    /// Index of the endpoint towards the source. Only it may send data; feedback is sent to it (AckOutPort).
    pub source: u16,
}

/// A [`MulticastRule`] that is being read.
#[allow(missing_docs, reason = "the fields of a draft are those of its rule")]
#[derive(Clone, Debug, Default)]
pub struct MulticastDraft {
    /// The inner `None` is the rule's.
    pub start_psn: Option<Option<Psn>>,
    pub va_base: Option<u64>,
    pub source: Option<EndpointRef>,
}

impl From<&MulticastRule> for MulticastDraft {
    fn from(rule: &MulticastRule) -> Self {
        Self {
            start_psn: Some(rule.start_psn),
            va_base: Some(rule.va_base),
            source: Some(EndpointRef::Index(rule.source)),
        }
    }
}

impl MulticastDraft {
    pub(super) fn finish(self, endpoints: &[EndpointDraft]) -> Option<MulticastRule> {
        Some(MulticastRule {
            start_psn: self.start_psn?,
            va_base: self.va_base?,
            source: self.source?.find(endpoints).ok()??,
        })
    }

    pub(super) fn check(&self, endpoints: Option<&[EndpointDraft]>, faults: &mut Vec<Fault>) {
        let Some(endpoints) = endpoints else { return };
        if let Some(Err(kind)) = self.source.as_ref().map(|source| source.find(endpoints)) {
            faults.push(Fault::new("source", kind));
        }
        check_no_ranks(endpoints, faults);
    }

    pub(super) fn read(t: &Table<'_>) -> Self {
        Self {
            start_psn: t.optional("start_psn", None, |v| read_psn(v).map(Some)),
            va_base: t.optional("va_base", 0, |v| Limit::U64.read(v)),
            source: t.need("source", EndpointRef::EXPECTED, EndpointRef::read),
        }
    }
}

impl MulticastRule {
    pub(super) fn upstream(&self) -> Option<u16> {
        Some(self.source)
    }

    pub(super) fn upstream_mut(&mut self) -> Option<&mut u16> {
        Some(&mut self.source)
    }

    pub(super) fn reserved_bytes(&self, _: &GroupRule) -> u64 {
        0
    }

    pub(super) fn write(&self, group: &GroupRule, out: &mut String) {
        let Self {
            start_psn,
            va_base,
            source,
        } = self;
        if let Some(psn) = start_psn {
            line(out, format_args!("start_psn = {psn}"));
        }
        let source = endpoint_name(group, *source);
        line(out, format_args!("va_base = {va_base:#x}\nsource = {source}"));
    }
}
