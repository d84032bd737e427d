//! Groups at one switch, without the controller.

use castnet_console::api;
use castnet_console::api::installed_group::State;
use castnet_console::columns;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Rows};
use castnet_console::settings;
use castnet_console::units::plural;
use serde::Serialize;

use super::progress::Progress;
use super::show::{SwitchReport, owner_text};
use super::{Destroyed, Verb, purge, rule_file};
use crate::pick;

#[derive(Debug, Serialize)]
struct SwitchGroupLine {
    group: String,
    kind: &'static str,
    mcst_id: String,
    owner: String,
    generation: u64,
    /// The endpoint that data comes from, and its port; multicast only.
    source: Option<String>,
    source_port: Option<u32>,
    endpoints: usize,
    pmtu: u32,
    memory_bytes: u64,
    worker: u32,
    data_in: u64,
    copies_out: u64,
    acks_in: u64,
    acks_out: u64,
}

impl SwitchGroupLine {
    fn owner(&self) -> String {
        owner_text(&self.owner)
    }
}

columns!(row: SwitchGroupLine => row {
    group, kind, mcst_id, owner(), source, endpoints, pmtu, memory_bytes as "memory", worker, data_in, copies_out,
    acks_in, acks_out,
});

fn switch_group_line(installed: api::InstalledGroup) -> SwitchGroupLine {
    let (kind, memory_bytes, [data_in, copies_out, acks_in, acks_out]) = match installed.state {
        Some(State::Multicast(state)) => {
            let n = state.counters.unwrap_or_default();
            let counts = [n.data_in, n.copies_out, n.acks_in, n.acks_out];
            ("multicast", state.hot_bytes + state.cold_bytes, counts)
        }
        Some(State::Translated(state)) => {
            let n = state.counters.unwrap_or_default();
            let counts = [n.contributions, n.results, n.acks_in, n.acks_out];
            ("collective", state.memory_bytes, counts)
        }
        Some(State::Forwarding(state)) => {
            let frames_in: u64 = state.endpoints.iter().map(|e| e.frames_in).sum();
            let counts = [frames_in, state.forwarded, 0, 0];
            ("forwarding", state.memory_bytes, counts)
        }
        None => ("unknown", 0, [0; 4]),
    };
    let rule = installed.rule.unwrap_or_default();
    let source = rule.upstream().filter(|_| rule.multicast().is_some());
    SwitchGroupLine {
        source: source.map(|endpoint| endpoint.name().to_owned()),
        source_port: source.map(|endpoint| endpoint.port),
        endpoints: rule.endpoints.len(),
        group: rule.name,
        kind,
        mcst_id: rule.mcst_id,
        owner: installed.owner,
        generation: rule.generation,
        pmtu: rule.pmtu,
        memory_bytes,
        worker: installed.worker,
        data_in,
        copies_out,
        acks_in,
        acks_out,
    }
}

async fn one(agent: &mut api::AgentClient, group: &str) -> Outcome<api::InstalledGroup> {
    let mcst_id = pick::mcst_id(agent, group).await?;
    let request = api::ListGroupsRequest {
        mcst_id: Some(mcst_id),
        ..Default::default()
    };
    let mut listed = agent.list_groups(request).await?.into_inner();
    listed
        .groups
        .pop()
        .ok_or_else(|| Failure::refused(format!("the switch has no group '{group}'")))
}

#[derive(Debug, Serialize)]
struct Moved {
    group: String,
    from: u32,
    to: u32,
}

fn move_refused(status: tonic::Status, group: &str) -> Failure {
    let code = status.code();
    let failure = Failure::from(status);
    match code {
        tonic::Code::NotFound => failure.next("castnet group list --agent URL shows the switch's groups"),
        tonic::Code::InvalidArgument => failure.next("castnet runtime shows the switch's workers"),
        tonic::Code::FailedPrecondition => {
            failure.next(format!("castnet group show {group} --agent URL shows its worker"))
        }
        _ => failure,
    }
}

pub(crate) async fn run(verb: Verb, mut agent: api::AgentClient, output: Output) -> Outcome {
    match verb {
        Verb::Create(_) | Verb::Plan(_) => Err(Failure::usage(
            "the controller creates and plans groups; the groups of a switch alone come from a rule file",
        )
        .next("leave --agent out, or castnet rules example > rules.toml and castnet group install rules.toml --agent URL")),
        Verb::List => {
            let listed = agent
                .list_groups(api::ListGroupsRequest::default())
                .await?
                .into_inner();
            let rows = listed.groups.into_iter().map(switch_group_line).collect();
            output.show(&Rows::new(rows, "the switch has no groups"))
        }
        Verb::Show { group, watch } => {
            let request = api::GetCapabilitiesRequest {};
            let capabilities = agent.get_capabilities(request).await?.into_inner();
            let look = async || {
                let switch = capabilities.switch_name.clone();
                let group = one(&mut agent, &group).await?;
                Ok(SwitchReport::new(switch, group))
            };
            watch.show(output, look).await
        }
        Verb::Members { group } => {
            let group = one(&mut agent, &group).await?;
            Progress::of(&group).show_table(output)
        }
        Verb::Move { group, worker } => {
            let mcst_id = pick::mcst_id(&mut agent, &group).await?;
            let request = api::MoveGroupRequest { mcst_id, worker };
            let answer = agent.move_group(request).await;
            let answer = answer.map_err(|status| move_refused(status, &group))?;
            let api::MoveGroupResponse { from, to } = answer.into_inner();
            let sentence = format!("group {group} moved from worker {from} to worker {to}");
            output.show(&Done {
                facts: Moved { group, from, to },
                sentence,
            })
        }
        Verb::Purge { owner: None, .. } => Err(Failure::usage("name the owner: --owner NAME")
            .next("castnet group list --agent URL shows the owners of the groups of a switch")),
        Verb::Purge {
            owner: Some(owner),
            yes,
        } => purge::at_switch(&mut agent, owner, yes, output).await,
        Verb::Add { group, .. } | Verb::Evict { group, .. } => Err(Failure::usage(format!(
            "the controller knows the members of group {group}, a switch only its own"
        ))
        .next("leave --agent out")),
        Verb::Destroy { group, force: true } => Err(Failure::usage(format!(
            "group {group} is removed from this switch alone: --force is for switches that the controller cannot reach"
        ))
        .next(format!("castnet group destroy {group} --agent URL"))),
        Verb::Destroy { group, force: false } => {
            let mcst_id = pick::mcst_id(&mut agent, &group).await?;
            let request = api::RemoveGroupRequest {
                mcst_id,
                owner: None,
                generation: None,
            };
            if !agent.remove_group(request).await?.into_inner().removed {
                return Err(Failure::refused(format!("the switch has no group '{group}'")));
            }
            let sentence = format!("group {group} is removed from the switch");
            output.show(&Done {
                facts: Destroyed {
                    group,
                    complete: true,
                    pending_switches: vec![],
                    written_off_switches: vec![],
                },
                sentence,
            })
        }
        Verb::Install { file, group } => {
            let rules = settings::read_rules(&file)?;
            let wanted = |name: &str| group.as_deref().is_none_or(|only| only == name);
            let groups: Vec<_> = rules.groups.iter().filter(|g| wanted(&g.name)).collect();
            if groups.is_empty() {
                let file = file.display();
                return Err(match &group {
                    Some(name) => Failure::usage(format!("{file} has no group '{name}'")),
                    None => Failure::usage(format!("{file} has no groups"))
                        .next("castnet route add installs routes"),
                });
            }
            rule_file::install(&mut agent, &groups).await?;
            let names: Vec<_> = groups.iter().map(|g| g.name.clone()).collect();
            #[derive(Serialize)]
            struct Installed {
                installed: Vec<String>,
                routes_not_installed: usize,
            }
            let mut sentence = format!("installed: {}", names.join(", "));
            let routes = rules.routes.len();
            if routes > 0 {
                let routes = plural(routes, "route");
                sentence += &format!("\nnot installed: {routes} of {}; castnet route add does it", file.display());
            }
            output.show(&Done {
                facts: Installed {
                    installed: names,
                    routes_not_installed: routes,
                },
                sentence,
            })
        }
    }
}
