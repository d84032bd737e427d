//! All rules of one switch.

use serde::{Deserialize, Serialize};

use crate::check;
use crate::collective::CollectiveGroup;
use crate::collective_draft::CollectiveDraft;
use crate::draft::{GroupDraft, RouteDraft};
use crate::fault::Fault;
use crate::group::MulticastGroup;
use crate::route::Route;

/// All rules of one switch: what `castnet switch --rules FILE` runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    /// Multicast groups.
    #[serde(default)]
    pub groups: Vec<MulticastGroup>,
    /// Groups that compute collectives.
    #[serde(default)]
    pub collectives: Vec<CollectiveGroup>,
    /// Static routes.
    #[serde(default)]
    pub routes: Vec<Route>,
}

impl RuleSet {
    /// Every rule that this set breaks on a switch with `ports` ports: those of each group and route, and those
    /// between them. Empty where it may be installed.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        let groups: Vec<GroupDraft> = self.groups.iter().map(GroupDraft::from).collect();
        let collectives: Vec<CollectiveDraft> = self.collectives.iter().map(CollectiveDraft::from).collect();
        let routes: Vec<RouteDraft> = self.routes.iter().map(RouteDraft::from).collect();
        check::switch(&groups, &collectives, &routes, ports)
    }
}
