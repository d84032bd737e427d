//! The groups of a rule file at one switch, without the controller.

use std::collections::BTreeSet;

use castnet_console::api;
use castnet_console::exit::{Failure, Kind, Outcome};
use castnet_proto::convert::{install_requests, install_result_from_proto};
use castnet_rules::GroupRule;

/// What an installation has changed so far.
#[derive(Default)]
struct Changed<'r> {
    new: Vec<&'r GroupRule>,
    replaced: Vec<&'r str>,
    /// Of a call without an answer.
    unknown: Vec<&'r str>,
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
    /// Fails at the first refusal; no rule behind it is installed, unless the switch is too old for that.
    async fn install(&mut self, agent: &mut api::AgentClient, rules: &[&'r GroupRule]) -> Outcome {
        let mut left = rules;
        for request in install_requests("", rules.iter().copied()) {
            let (sent, behind) = left.split_at(request.rules.len());
            left = behind;
            let request = api::InstallGroupsRequest {
                stop_at_refusal: true,
                ..request
            };
            match agent.install_groups(request).await {
                Ok(answer) => self.note(sent, answer.into_inner().results)?,
                Err(status) => {
                    let failure = Failure::from(status);
                    // A switch that refuses the whole call installs nothing.
                    if failure.kind != Kind::Refused {
                        self.unknown = sent.iter().map(|rule| rule.name.as_str()).collect();
                    }
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Takes all results of an answer. Fails with the first refusal.
    fn note(&mut self, rules: &[&'r GroupRule], results: Vec<api::InstallResult>) -> Outcome {
        let mut done = Ok(());
        for (result, rule) in results.into_iter().zip(rules.iter().copied()) {
            match install_result_from_proto(result) {
                Ok(api::InstallOutcome::Installed) => self.new.push(rule),
                Ok(api::InstallOutcome::Replaced) => self.replaced.push(&rule.name),
                Ok(_) => {}
                Err(status) => {
                    let failure = Failure::from(status).while_doing(format!("group {}", rule.name));
                    done = done.and(Err(failure));
                }
            }
        }
        done
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
            ("may be installed", self.unknown),
        ] {
            if !names.is_empty() {
                failure.what += &format!("; {what}: {}", names.join(", "));
            }
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use castnet_proto::convert::install_result_to_proto;
    use castnet_rules::{COLLECTIVE_EXAMPLE, RuleSet};
    use tonic::Status;

    use super::*;

    /// As a switch answers that does not know `stop_at_refusal`.
    #[test]
    fn what_is_installed_behind_a_refusal_is_known() {
        let example = RuleSet::from_toml(COLLECTIVE_EXAMPLE).expect("rules").groups;
        let named = |name: &str| GroupRule {
            name: name.to_owned(),
            ..example[0].clone()
        };
        let all = ["a", "b", "c", "d", "e"].map(named);
        let results = [
            Ok(api::InstallOutcome::Installed),
            Err(Status::already_exists("it is there")),
            Ok(api::InstallOutcome::Installed),
            Err(Status::resource_exhausted("no room")),
            Ok(api::InstallOutcome::Replaced),
        ];
        let results = results.map(install_result_to_proto).into();
        let mut changed = Changed::default();
        let rules: Vec<&GroupRule> = all.iter().collect();
        let refused = changed.note(&rules, results).expect_err("b is refused");
        assert_eq!(refused.what, "group b: it is there");
        let new: Vec<&str> = changed.new.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!((new, changed.replaced), (vec!["a", "c"], vec!["e"]));
    }
}
