//! Multicast: one source, many receivers (Cepheus).

use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::{check_no_ranks, end};
use crate::draft::{EndpointDraft, EndpointRef};
use crate::fault::Fault;
use crate::file::line;
use crate::group::GroupRule;
use crate::limit::Limit;
use crate::reader::{Fields, Reader, optional, read_psn};
use crate::text;

/// What a multicast group needs beside what all groups have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MulticastRule {
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
    /// The endpoint towards the source: its index. Data is taken from there alone; feedback leaves there (AckOutPort).
    pub source: u16,
}

/// A [`MulticastRule`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct MulticastDraft {
    /// See [`MulticastRule::start_psn`]; the inner `None` is the rule's.
    pub start_psn: Option<Option<Psn>>,
    /// See [`MulticastRule::va_base`].
    pub va_base: Option<u64>,
    /// See [`MulticastRule::source`].
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

    pub(super) fn read<'t>(r: &mut Reader<'t>, f: &mut Fields<'_, 't>) -> Self {
        Self {
            start_psn: optional(r, f, "start_psn", None, |r, v| read_psn(r, v).map(Some)),
            va_base: optional(r, f, "va_base", 0, |r, v| r.number(v, &Limit::U64)),
            source: f
                .need(r, "source", EndpointRef::EXPECTED)
                .and_then(|v| EndpointRef::read(r, &v)),
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
        let source = end(group, *source);
        line(out, format_args!("va_base = {va_base:#x}\nsource = {source}"));
    }
}
