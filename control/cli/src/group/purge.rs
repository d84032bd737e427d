//! Removal of all groups of one owner from switches: what a controller that does not return has left there.

use std::collections::BTreeMap;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Page, Report};
use serde::Serialize;

use super::show::owner_text;

const WITH_YES: &str =
    "Again with --yes removes them. A controller that still runs with its store brings them back";

#[derive(Debug, Serialize)]
struct Purged {
    owner: String,
    /// Names of its groups.
    groups: Vec<String>,
    /// False: nothing was removed yet.
    removed: bool,
}

/// Shows the groups of `owner` at a switch, and removes them if `is_meant`.
pub(super) async fn at_switch(
    agent: &mut api::AgentClient,
    owner: String,
    is_meant: bool,
    output: Output,
) -> Outcome {
    let request = api::ListGroupsRequest {
        mcst_id: None,
        brief: true,
    };
    let listed = agent.list_groups(request).await?.into_inner().groups;
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    for group in &listed {
        *owners.entry(owner_text(&group.owner)).or_default() += 1;
    }
    let of_owner = listed.into_iter().filter(|g| g.owner == owner);
    let rules: Vec<api::GroupRule> = of_owner.filter_map(|g| g.rule).collect();
    if rules.is_empty() {
        let owners = owners.iter().map(|(name, groups)| format!("{name} ({groups})"));
        let owners = owners.collect::<Vec<_>>().join(", ");
        let failure = Failure::refused(format!("the switch has no groups of {}", owner_text(&owner)));
        return Err(match owners.is_empty() {
            true => failure.next("it has no groups at all"),
            false => failure.next(format!("owners of its groups: {owners}")),
        });
    }
    let groups: Vec<String> = rules.iter().map(|rule| rule.name.clone()).collect();
    if is_meant {
        for rule in rules {
            let request = api::RemoveGroupRequest {
                mcst_id: rule.mcst_id,
                owner: Some(owner.clone()),
                // One that was replaced meanwhile is of a controller that lives.
                generation: Some(rule.generation),
            };
            agent.remove_group(request).await?;
        }
    }
    let names = groups.join(", ");
    let sentence = match is_meant {
        true => format!("removed from the switch: {names}"),
        false => format!(
            "these groups of {} would be removed from the switch, and their traffic would end: {names}\n{WITH_YES}",
            owner_text(&owner)
        ),
    };
    output.show(&Done {
        facts: Purged {
            owner,
            groups,
            removed: is_meant,
        },
        sentence,
    })
}

/// A group of another owner on the switches of the controller.
#[derive(Debug, Serialize)]
struct LeftLine {
    owner: String,
    group: String,
    /// Those that have it, or had it before it was removed.
    switches: Vec<String>,
}

impl LeftLine {
    fn owner(&self) -> String {
        owner_text(&self.owner)
    }

    fn switches(&self) -> String {
        self.switches.join(" ")
    }
}

columns!(row: LeftLine => row { owner(), group, switches() });

#[derive(Debug, Serialize)]
struct Unfinished {
    switch: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct PurgedEverywhere {
    owner: Option<String>,
    groups: Vec<LeftLine>,
    /// False: nothing was removed yet.
    removed: bool,
    /// Switches that may have more.
    unfinished: Vec<Unfinished>,
}

impl Report for PurgedEverywhere {
    fn page(&self, page: &mut Page) {
        let of = match self.owner.as_deref() {
            None => "of other owners".to_owned(),
            Some(owner) => format!("of {}", owner_text(owner)),
        };
        page.rows(&self.groups, &format!("no switch that answered has groups {of}"));
        for Unfinished { switch, reason } in &self.unfinished {
            page.line(format!("switch {switch} may have more: {reason}"));
        }
        match (&self.owner, self.removed) {
            _ if self.groups.is_empty() => {}
            (_, true) => page.line("These were removed."),
            (None, _) => page.line("castnet group purge --owner NAME says what would be removed"),
            (Some(_), _) => page.line(format!(
                "These would be removed, and their traffic would end.\n{WITH_YES}"
            )),
        }
    }
}

/// Shows the groups of `owner` on all switches of the controller, and removes them if `is_meant`.
pub(super) async fn everywhere(
    controller: &mut api::ControllerClient,
    owner: Option<String>,
    is_meant: bool,
    output: Output,
) -> Outcome {
    let request = api::PurgeGroupsRequest {
        owner: owner.clone(),
        remove: is_meant,
    };
    let switches = controller.purge_groups(request).await?.into_inner().switches;
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut unfinished = Vec::new();
    for left in switches {
        for group in left.groups.into_iter().filter(|g| g.removed == is_meant) {
            let on = groups.entry((group.owner, group.name)).or_default();
            on.push(left.switch_name.clone());
        }
        if !left.reason.is_empty() {
            unfinished.push(Unfinished {
                switch: left.switch_name,
                reason: left.reason,
            });
        }
    }
    let line = |((owner, group), switches)| LeftLine {
        owner,
        group,
        switches,
    };
    let report = PurgedEverywhere {
        owner,
        groups: groups.into_iter().map(line).collect(),
        removed: is_meant,
        unfinished,
    };
    output.show(&report)?;
    let unfinished = report.unfinished.iter().map(|u| u.switch.as_str());
    match unfinished.collect::<Vec<_>>().join(", ") {
        switches if is_meant && !switches.is_empty() => {
            let what = format!("these switches may have more of them: {switches}");
            Err(Failure::unreachable(what).next("do it again when they can be reached"))
        }
        _ => Ok(()),
    }
}
