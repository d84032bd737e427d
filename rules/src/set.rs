use serde::{Deserialize, Serialize};

use crate::check::{self, Unread};
use crate::fault::Fault;
use crate::group::GroupRule;
use crate::route::Route;

/// All rules of one switch. `castnet switch --rules FILE` runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    /// Groups of all kinds.
    #[serde(default)]
    pub groups: Vec<GroupRule>,
    /// Static routes.
    #[serde(default)]
    pub routes: Vec<Route>,
}

impl RuleSet {
    /// Every fault on a switch with `ports` ports, of each group and route and between them.
    pub fn check(&self, ports: usize) -> Vec<Fault> {
        let mut groups = check::Groups::new(ports);
        let (mut faults, unread) = (Vec::new(), Unread::default());
        for (i, group) in self.groups.iter().enumerate() {
            let found = groups.check(group, &unread).into_iter();
            faults.extend(found.map(|fault| fault.within(&format!("groups[{i}]"))));
        }
        faults.extend(check::check_routes(&self.routes, ports, &unread));
        faults
    }
}
