//! The fields that each kind of group adds to a rule, their checks, and their form in files.
//!
//! A new kind is a file here and a line in [`kinds!`]: see `docs/new-kind.md`.

mod forwarding;
mod multicast;
mod translated;

use castnet_toml_reader::Table;
use serde::{Deserialize, Serialize};

pub use forwarding::{ForwardingDraft, ForwardingRule};
pub use multicast::{MulticastDraft, MulticastRule};
pub use translated::{
    DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, LossPolicy, RANKS_MAX, SLOT_ALIGN, StragglerPolicy,
    TranslatedDraft, TranslatedRule, UnknownPolicy,
};

use crate::draft::{EndpointDraft, HopDraft, PartDraft};
use crate::fault::{Fault, FaultKind};
use crate::file::quoted;
use crate::group::GroupRule;

/// Declares the enums over all kinds, and the functions that dispatch to the kind.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($rule:ident, $draft:ident) = $name:literal,)*) => {
        /// The kind of a group, with the fields that only this kind has.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum GroupKind {
            $($(#[$doc])* $kind($rule),)*
        }

        /// A [`GroupKind`] that is being read.
        #[derive(Clone, Debug)]
        pub enum KindDraft {
            $($(#[$doc])* $kind($draft),)*
        }

        $(impl From<$rule> for GroupKind {
            fn from(rule: $rule) -> Self {
                Self::$kind(rule)
            }
        })*

        impl GroupKind {
            /// The names of all kinds in files and tables.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Its name in files and tables.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name,)*
                }
            }

            /// Index of the endpoint towards the source or root.
            pub(crate) fn upstream(&self) -> Option<u16> {
                match self {
                    $(Self::$kind(rule) => rule.upstream(),)*
                }
            }

            pub(crate) fn upstream_mut(&mut self) -> Option<&mut u16> {
                match self {
                    $(Self::$kind(rule) => rule.upstream_mut(),)*
                }
            }

            pub(crate) fn reserved_bytes(&self, group: &GroupRule) -> u64 {
                match self {
                    $(Self::$kind(rule) => rule.reserved_bytes(group),)*
                }
            }

            /// Writes the fields of the kind.
            pub(crate) fn write(&self, group: &GroupRule, out: &mut String) {
                match self {
                    $(Self::$kind(rule) => rule.write(group, out),)*
                }
            }
        }

        impl KindDraft {
            /// Its name in files and tables.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name,)*
                }
            }

            /// `None` if a field is missing.
            pub(crate) fn finish(self, endpoints: &[EndpointDraft]) -> Option<GroupKind> {
                Some(match self {
                    $(Self::$kind(draft) => GroupKind::$kind(draft.finish(endpoints)?),)*
                })
            }

            /// Checks the fields of the kind, and the endpoints if they could be read.
            pub(crate) fn check(&self, endpoints: Option<&[EndpointDraft]>, faults: &mut Vec<Fault>) {
                match self {
                    $(Self::$kind(draft) => draft.check(endpoints, faults),)*
                }
            }

            pub(crate) fn read(name: &str, t: &Table<'_>) -> Option<Self> {
                match name {
                    $($name => Some(Self::$kind($draft::read(t))),)*
                    _ => None,
                }
            }
        }

        impl From<&GroupKind> for KindDraft {
            fn from(kind: &GroupKind) -> Self {
                match kind {
                    $(GroupKind::$kind(rule) => Self::$kind(rule.into()),)*
                }
            }
        }
    };
}

kinds! {
    /// One source, many receivers (Cepheus).
    Multicast(MulticastRule, MulticastDraft) = "multicast",
    /// Collectives over translated connections (EPIC's Mode-II).
    Translated(TranslatedRule, TranslatedDraft) = "translated",
    /// Two endpoints, each of which gets what the other one sends.
    Forwarding(ForwardingRule, ForwardingDraft) = "forwarding",
}

/// As written in files.
fn endpoint_name(group: &GroupRule, index: u16) -> String {
    let endpoint = group.endpoints.get(usize::from(index));
    quoted(endpoint.map_or("", |e| e.next_hop.name()))
}

/// For kinds without ranks.
fn check_no_ranks(endpoints: &[EndpointDraft], faults: &mut Vec<Fault>) {
    for (i, endpoint) in endpoints.iter().enumerate() {
        let (field, has_ranks) = match &endpoint.next_hop {
            Some(HopDraft::Host(host)) => ("host.rank", matches!(host.part, Some(PartDraft::Rank(_)))),
            Some(HopDraft::Switch(switch)) => (
                "switch.ranks",
                switch.ranks.as_ref().is_some_and(|r| !r.is_empty()),
            ),
            None => continue,
        };
        if has_ranks {
            let field = format!("endpoints[{i}].{field}");
            faults.push(Fault::new(field, FaultKind::RankOfNoCollective));
        }
    }
}
