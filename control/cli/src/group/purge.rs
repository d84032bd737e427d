//! Removal of all groups of one owner from a switch: what a controller that does not return has left there.

use std::collections::BTreeMap;

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output};
use serde::Serialize;

use super::show::owner_text;

#[derive(Debug, Serialize)]
struct Purged {
    owner: String,
    /// Names of its groups.
    groups: Vec<String>,
    /// False: nothing was removed yet.
    removed: bool,
}

/// Shows the groups of `owner`, and removes them if `is_meant`.
pub(super) async fn run(
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
            "these groups of {} would be removed from the switch, and their traffic would end: {names}\n\
             Again with --yes removes them. A controller that still runs with its store brings them back",
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
