//! What each kind of group adds to a rule: its section, what must hold of it, and how it stands in files.
//!
//! A further kind is one more file here, a variant of [`crate::GroupKind`] and of [`KindDraft`], and a line in each `match`
//! of this file.

mod multicast;
mod translated;

pub use multicast::{MulticastDraft, MulticastRule};
pub use translated::{
    DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, LossPolicy, RANKS_MAX, SLOT_ALIGN, StragglerPolicy,
    TranslatedDraft, TranslatedRule, UnknownPolicy,
};

use crate::draft::EndpointDraft;
use crate::fault::Fault;
use crate::file::quoted;
use crate::group::{GroupKind, GroupRule};
use crate::reader::{Fields, Reader};

/// A [`GroupKind`] of which some fields could not be read.
#[derive(Clone, Debug)]
pub enum KindDraft {
    /// See [`GroupKind::Multicast`].
    Multicast(MulticastDraft),
    /// See [`GroupKind::Translated`].
    Translated(TranslatedDraft),
}

impl KindDraft {
    /// The section, where no field is lacking.
    pub(crate) fn finish(self, endpoints: &[EndpointDraft]) -> Option<GroupKind> {
        Some(match self {
            Self::Multicast(draft) => GroupKind::Multicast(draft.finish(endpoints)?),
            Self::Translated(draft) => GroupKind::Translated(draft.finish(endpoints)?),
        })
    }

    /// What the kind demands of its own fields and of the group's endpoints, where they could be read.
    pub(crate) fn check(&self, endpoints: Option<&[EndpointDraft]>, faults: &mut Vec<Fault>) {
        match self {
            Self::Multicast(draft) => draft.check(endpoints, faults),
            Self::Translated(draft) => draft.check(endpoints, faults),
        }
    }

    /// Reads the fields that the kind of this name adds to a group's table.
    pub(crate) fn read<'t>(name: &str, r: &mut Reader<'t>, f: &mut Fields<'_, 't>) -> Option<Self> {
        match name {
            "multicast" => Some(Self::Multicast(MulticastDraft::read(r, f))),
            "translated" => Some(Self::Translated(TranslatedDraft::read(r, f))),
            _ => None,
        }
    }
}

impl GroupKind {
    /// Writes the fields that the kind adds to the table of `group`.
    pub(crate) fn write(&self, group: &GroupRule, out: &mut String) {
        match self {
            Self::Multicast(rule) => rule.write(group, out),
            Self::Translated(rule) => rule.write(group, out),
        }
    }
}

/// How a file names an endpoint of a group.
fn end(group: &GroupRule, index: u16) -> String {
    let endpoint = group.endpoints.get(usize::from(index));
    quoted(endpoint.map_or("", |e| e.next_hop.name()))
}

impl From<&GroupKind> for KindDraft {
    fn from(kind: &GroupKind) -> Self {
        match kind {
            GroupKind::Multicast(rule) => Self::Multicast(rule.into()),
            GroupKind::Translated(rule) => Self::Translated(rule.into()),
        }
    }
}
