//! The groups of a rule file at one switch, without the controller.

use std::collections::BTreeSet;

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_proto::convert::{install_requests, install_result_from_proto};
use castnet_rules::GroupRule;

/// What an installation has changed so far.
#[derive(Default)]
struct Changed<'r> {
    new: Vec<&'r GroupRule>,
    replaced: Vec<&'r str>,
}

/// Installs groups. New ones go first: only they can be undone, if one is refused.
pub(super) async fn install(agent: &mut api::AgentClient, rules: &[&GroupRule]) -> Outcome {
    let request = api::ListGroupsRequest {
        brief: true,
        ..Default::default()
    };
    let listed = agent.list_groups(request).await?.into_inner().groups;
    let there: BTreeSet<String> = listed.into_iter().filter_map(|g| Some(g.rule?.mcst_id)).collect();
    let is_there = |rule: &&GroupRule| there.contains(&rule.mcst_id.to_string());
    let (old, new): (Vec<_>, Vec<_>) = rules.iter().copied().partition(is_there);
    let mut changed = Changed::default();
    match changed.install(agent, &[new, old].concat()).await {
        Err(failure) => Err(changed.undo(agent, failure).await),
        done => done,
    }
}

impl<'r> Changed<'r> {
    /// Fails at the first refusal; no rule behind it is installed.
    async fn install(&mut self, agent: &mut api::AgentClient, rules: &[&'r GroupRule]) -> Outcome {
        let mut left = rules.iter().copied();
        for request in install_requests("", left.clone()) {
            let request = api::InstallGroupsRequest {
                stop_at_refusal: true,
                ..request
            };
            let results = agent.install_groups(request).await?.into_inner().results;
            for (result, rule) in results.into_iter().zip(left.by_ref()) {
                match install_result_from_proto(result) {
                    Ok(api::InstallOutcome::Installed) => self.new.push(rule),
                    Ok(api::InstallOutcome::Replaced) => self.replaced.push(&rule.name),
                    Ok(_) => {}
                    Err(status) => {
                        return Err(Failure::from(status).while_doing(format!("group {}", rule.name)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what is new. The failure says what stays.
    async fn undo(self, agent: &mut api::AgentClient, mut failure: Failure) -> Failure {
        let mut stay = Vec::new();
        for rule in self.new {
            let request = api::RemoveGroupRequest {
                mcst_id: rule.mcst_id.to_string(),
                owner: Some(String::new()),
                generation: None,
            };
            if agent.remove_group(request).await.is_err() {
                stay.push(rule.name.as_str());
            }
        }
        // Old rules cannot be installed again: a switch does not show their keys of memory.
        for (what, names) in [
            ("installed, and not removed again", stay),
            ("replaced already, and not put back", self.replaced),
        ] {
            if !names.is_empty() {
                failure.what += &format!("; {what}: {}", names.join(", "));
            }
        }
        failure
    }
}
