//! Why a request is refused.

use castnet_proto::convert::Invalid;
use castnet_rules::{GroupRule, Ipv4Net};
use castnet_wire::McstId;
use castnet_worker::engine::InstallError as RefusedBy;
use castnet_worker::{InstallError, RouteError, Stopped};

use crate::state::core::GUARDS_MAX;

/// The owner of groups of an operator or a rule file.
pub(crate) const NOBODY: &str = "";

/// Why a request is refused. Displays the reason without the field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Refusal {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Another controller has taken over from the one that calls, or runs on a copy of its store.
    #[error("{0}")]
    TermOver(String),
    #[error("the controller of {caller:?} installs no groups of {}", who(.owner))]
    ForOthers { caller: String, owner: String },
    #[error("group {name:?} is of {}, not of {}", who(.of), who(.not))]
    OfOthers { name: String, of: String, not: String },
    #[error("group {name:?} runs generation {runs}, not {given}")]
    OtherGeneration { name: String, runs: u64, given: u64 },
    #[error("{ip} is the address of group {name:?} of {}", who(.of))]
    AddressTaken { ip: McstId, name: String, of: String },
    #[error("group {name:?} runs another rule under generation {generation}: give a newer one")]
    OtherRule { name: String, generation: u64 },
    /// The switch refuses the rule.
    #[error("{1}")]
    Install(Fields, InstallError),
    #[error(
        "the route to {prefix} is of {owner} (if it does not return: castnet group purge --owner {owner})"
    )]
    RouteTaken { prefix: Ipv4Net, owner: String },
    #[error("the route to {prefix} is of {}, not of {}", who(.of), who(.not))]
    RouteOfOthers {
        prefix: Ipv4Net,
        of: String,
        not: String,
    },
    /// The switch refuses routes.
    #[error(transparent)]
    Routes(RouteError),
    /// The same for a request with one route.
    #[error(transparent)]
    Route(RouteError),
    #[error("{GUARDS_MAX} owners have a source guard here already")]
    GuardsFull,
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// What of a rule the names of its fields need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Name of the kind.
    pub(crate) kind: &'static str,
    /// It has slots.
    pub(crate) has_slots: bool,
    /// What the endpoint that is wrong leads to.
    pub(crate) hop: &'static str,
}

impl Fields {
    pub(crate) fn of(rule: &GroupRule, error: &InstallError) -> Self {
        let wrong = match error {
            InstallError::Refused(RefusedBy::NoMac { endpoint, .. }) => rule.endpoints.get(*endpoint),
            _ => None,
        };
        Self {
            kind: rule.kind.name(),
            has_slots: rule.translated().is_some(),
            hop: wrong.and_then(|e| e.next_hop.host()).map_or("switch", |_| "host"),
        }
    }
}

fn who(owner: &str) -> String {
    match owner {
        NOBODY => "an operator".into(),
        _ => format!("{owner:?}"),
    }
}
