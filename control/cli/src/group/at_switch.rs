//! Groups at one switch, without the controller.

use serde::Serialize;

use super::{Destroyed, Verb, show};
use crate::api;
use crate::exit::{Failure, Outcome};
use crate::output::{Done, Output, Row, Rows};
use crate::{pick, rules};

#[derive(Debug, Serialize)]
struct SwitchGroupLine {
    group: String,
    mcst_id: String,
    owner: String,
    generation: u64,
    source_port: u32,
    paths: usize,
    pmtu: u32,
    worker: u32,
    data_in: u64,
    copies_out: u64,
    acks_in: u64,
    acks_out: u64,
}

impl Row for SwitchGroupLine {
    const COLUMNS: &'static [&'static str] = &[
        "group",
        "mcst id",
        "owner",
        "source port",
        "paths",
        "pmtu",
        "worker",
        "data in",
        "copies out",
        "acks in",
        "acks out",
    ];

    fn cells(&self) -> Vec<String> {
        use crate::units::count;
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            if self.owner.is_empty() {
                "operator".to_owned()
            } else {
                self.owner.clone()
            },
            self.source_port.to_string(),
            self.paths.to_string(),
            self.pmtu.to_string(),
            self.worker.to_string(),
            count(self.data_in),
            count(self.copies_out),
            count(self.acks_in),
            count(self.acks_out),
        ]
    }
}

fn switch_group_line(installed: api::InstalledGroup) -> SwitchGroupLine {
    let counters = installed.counters.unwrap_or_default();
    let rule = installed.group.unwrap_or_default();
    SwitchGroupLine {
        group: rule.name,
        mcst_id: rule.mcst_id,
        owner: installed.owner,
        generation: rule.generation,
        source_port: rule.source_port,
        paths: rule.paths.len(),
        pmtu: rule.pmtu,
        worker: installed.worker,
        data_in: counters.data_in,
        copies_out: counters.copies_out,
        acks_in: counters.acks_in,
        acks_out: counters.acks_out,
    }
}

async fn one(agent: &mut api::AgentClient, group: &str) -> Outcome<api::InstalledGroup> {
    let mcst_id = pick::mcst_id(agent, group).await?;
    let request = api::ListGroupsRequest {
        mcst_id: Some(mcst_id),
    };
    let mut groups = agent.list_groups(request).await?.into_inner().groups;
    groups
        .pop()
        .ok_or_else(|| Failure::refused(format!("the switch has no group '{group}'")))
}

/// The verbs at one switch.
pub(crate) async fn run(verb: Verb, mut agent: api::AgentClient, output: Output) -> Outcome {
    match verb {
        Verb::List => {
            let groups = agent
                .list_groups(api::ListGroupsRequest { mcst_id: None })
                .await?
                .into_inner()
                .groups;
            let rows = groups.into_iter().map(switch_group_line).collect();
            output.show(&Rows::new(rows, "the switch has no groups"))
        }
        Verb::Show { group } => {
            let installed = one(&mut agent, &group).await?;
            let capabilities = agent
                .get_capabilities(api::GetCapabilitiesRequest {})
                .await?
                .into_inner();
            output.show(&show::SwitchGroupReport::new(capabilities.switch_name, installed))
        }
        Verb::Members { group } => {
            let installed = one(&mut agent, &group).await?;
            let report = show::SwitchGroupReport::new(String::new(), installed);
            output.show(&Rows::new(report.paths, "no paths"))
        }
        Verb::Destroy { group } => {
            let mcst_id = pick::mcst_id(&mut agent, &group).await?;
            let request = api::RemoveGroupRequest {
                mcst_id,
                owner: None,
                generation: None,
            };
            if !agent.remove_group(request).await?.into_inner().removed {
                return Err(Failure::refused(format!("the switch has no group '{group}'")));
            }
            let sentence = format!("group {group} is gone from the switch");
            output.show(&Done {
                facts: Destroyed {
                    group,
                    complete: true,
                    pending_switches: vec![],
                },
                sentence,
            })
        }
        Verb::Create(create) => {
            let Some(file) = &create.rules else {
                return Err(
                    Failure::usage("a switch takes its groups from a rule file: --rules FILE").next(
                        "castnet rules example > rules.toml\nor leave --agent out and ask the controller",
                    ),
                );
            };
            let rules = rules::load(file)?;
            let wanted = |name: &str| create.name.as_deref().is_none_or(|only| only == name);
            let groups: Vec<_> = rules.groups.iter().filter(|g| wanted(&g.name)).collect();
            if groups.is_empty() {
                return Err(Failure::usage(format!("{} holds no such group", file.display())));
            }
            let mut names = Vec::new();
            for group in groups {
                let request = api::InstallGroupRequest {
                    rule: Some(api::install_group_request::Rule::Group(
                        castnet_proto::convert::group_to_proto(group),
                    )),
                    owner: String::new(),
                };
                agent
                    .install_group(request)
                    .await
                    .map_err(|s| Failure::from(s).while_doing(format!("group {}", group.name)))?;
                names.push(group.name.clone());
            }
            #[derive(Serialize)]
            struct Installed {
                installed: Vec<String>,
            }
            let sentence = format!("installed: {}", names.join(", "));
            output.show(&Done {
                facts: Installed { installed: names },
                sentence,
            })
        }
    }
}
