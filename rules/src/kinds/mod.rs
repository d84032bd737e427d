//! The fields that each kind of group adds to a rule, their checks, and their form in files.
//!
//! A new kind is a file here and a line in [`kinds!`]: see `docs/new-kind.md`.

mod forwarding;
mod multicast;
mod translated;

use castnet_toml_reader::{Table, Value};
use serde::{Deserialize, Serialize};

pub use forwarding::ForwardingRule;
pub use multicast::{DEFAULT_REPAIR_SLOTS, MulticastRule, RepairRule};
pub use translated::{
    DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, RANKS_MAX, SLOT_ALIGN, TranslatedRule,
};

use crate::check::Unread;
use crate::fault::{Fault, FaultKind};
use crate::file::quoted;
use crate::group::{Endpoint, GroupRule, NextHop};

/// The fields that a kind adds to a rule.
pub(crate) trait Fields {
    fn check(&self, endpoints: &[Endpoint], unread: &Unread, faults: &mut Vec<Fault>);

    /// Writes them as in files.
    fn write(&self, group: &GroupRule, out: &mut String);

    /// Index of the endpoint towards the source or root.
    fn upstream(&self) -> Option<u16> {
        None
    }

    fn upstream_mut(&mut self) -> Option<&mut u16> {
        None
    }

    /// Memory that a switch reserves at installation.
    fn reserved_bytes(&self, _: &GroupRule) -> u64 {
        0
    }
}

/// Declares the enum over all kinds.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($rule:ident) = $name:literal,)*) => {
        /// The kind of a group, with the fields that only this kind has.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum GroupKind {
            $($(#[$doc])* $kind($rule),)*
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

            pub(crate) fn fields(&self) -> &dyn Fields {
                match self {
                    $(Self::$kind(rule) => rule,)*
                }
            }

            pub(crate) fn fields_mut(&mut self) -> &mut dyn Fields {
                match self {
                    $(Self::$kind(rule) => rule,)*
                }
            }

            /// Reads the fields of the kind `name`, and the value that names the endpoint towards the source or root:
            /// its index is 0 until the endpoints have been read. `None` for an unknown kind.
            pub(crate) fn read<'t>(name: &str, t: &'t Table<'_>) -> Option<(Self, Option<Value<'t>>)> {
                match name {
                    $($name => {
                        let (rule, upstream) = $rule::read(t);
                        Some((rule.into(), upstream))
                    })*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// One source, many receivers (Cepheus).
    Multicast(MulticastRule) = "multicast",
    /// Collectives over translated connections (EPIC's Mode-II).
    Translated(TranslatedRule) = "translated",
    /// Two endpoints, each of which gets what the other one sends.
    Forwarding(ForwardingRule) = "forwarding",
}

/// As written in files.
fn endpoint_name(group: &GroupRule, index: u16) -> String {
    let endpoint = group.endpoints.get(usize::from(index));
    quoted(endpoint.map_or("", |e| e.next_hop.name()))
}

fn bad_index(index: u16, endpoints: &[Endpoint]) -> Option<FaultKind> {
    let endpoints = endpoints.len();
    (usize::from(index) >= endpoints).then_some(FaultKind::NoSuchEndpoint { index, endpoints })
}

/// For kinds without ranks.
fn check_no_ranks(endpoints: &[Endpoint], faults: &mut Vec<Fault>) {
    for (i, endpoint) in endpoints.iter().enumerate() {
        let field = match &endpoint.next_hop {
            hop if hop.ranks().is_empty() => continue,
            NextHop::Host(_) => "host.rank",
            NextHop::Switch { .. } => "switch.ranks",
        };
        let field = format!("endpoints[{i}].{field}");
        faults.push(Fault::new(field, FaultKind::RankOfNoCollective));
    }
}
