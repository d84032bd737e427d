//! Groups at one switch, without the controller.

use castnet_console::api;
use castnet_console::api::installed_group::State;
use castnet_console::columns;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Page, Report, Rows, remark};
use castnet_console::settings;
use castnet_proto::convert::{install_requests, install_result_from_proto};
use castnet_wire::McstId;
use serde::Serialize;

use super::forwarding::SwitchForwardingReport;
use super::{Destroyed, Verb, collective, show};
use crate::pick;

#[derive(Debug, Serialize)]
struct SwitchGroupLine {
    group: String,
    kind: &'static str,
    mcst_id: String,
    owner: String,
    generation: u64,
    /// The endpoint that data comes from, and its port: of a multicast group.
    source: Option<String>,
    source_port: Option<u32>,
    /// Its endpoints at the switch.
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

/// Who installed a group.
pub(super) fn owner_text(owner: &str) -> String {
    match owner {
        "" => "operator",
        owner => owner,
    }
    .to_owned()
}

fn switch_group_line(installed: api::InstalledGroup) -> SwitchGroupLine {
    let rule = installed.rule.clone().unwrap_or_default();
    let source = rule.upstream().filter(|_| rule.multicast().is_some());
    let line = SwitchGroupLine {
        group: rule.name.clone(),
        kind: "unknown",
        mcst_id: rule.mcst_id.clone(),
        owner: installed.owner.clone(),
        generation: rule.generation,
        source: source.map(|endpoint| endpoint.name().to_owned()),
        source_port: source.map(|endpoint| endpoint.port),
        endpoints: rule.endpoints.len(),
        pmtu: rule.pmtu,
        memory_bytes: 0,
        worker: installed.worker,
        data_in: 0,
        copies_out: 0,
        acks_in: 0,
        acks_out: 0,
    };
    match installed.state {
        Some(State::Multicast(state)) => {
            let counters = state.counters.unwrap_or_default();
            SwitchGroupLine {
                kind: "multicast",
                memory_bytes: state.hot_bytes + state.cold_bytes,
                data_in: counters.data_in,
                copies_out: counters.copies_out,
                acks_in: counters.acks_in,
                acks_out: counters.acks_out,
                ..line
            }
        }
        Some(State::Translated(state)) => {
            let counters = state.counters.unwrap_or_default();
            SwitchGroupLine {
                kind: "collective",
                memory_bytes: state.memory_bytes,
                data_in: counters.contributions,
                copies_out: counters.results,
                acks_in: counters.acks_in,
                acks_out: counters.acks_out,
                ..line
            }
        }
        Some(State::Forwarding(state)) => SwitchGroupLine {
            kind: "forwarding",
            memory_bytes: state.memory_bytes,
            data_in: state.endpoints.iter().map(|e| e.frames_in).sum(),
            copies_out: state.forwarded,
            ..line
        },
        None => line,
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

/// A collective group as one switch has it.
#[derive(Debug, Serialize)]
pub(super) struct SwitchCollectiveReport {
    switch: String,
    group: String,
    kind: &'static str,
    mcst_id: String,
    owner: String,
    generation: u64,
    start_psn: u32,
    #[serde(flatten)]
    policies: collective::Policies,
    /// The endpoint towards the root, and its port; none at the root.
    parent: Option<String>,
    parent_port: Option<u32>,
    worker: u32,
    /// Of a group that failed for it.
    conflict: Option<collective::Conflict>,
    progress: Option<collective::Progress>,
    endpoints: Vec<collective::EndpointRow>,
}

impl SwitchCollectiveReport {
    pub(super) fn new(switch: String, installed: api::InstalledGroup) -> Self {
        let progress = collective::progress(&installed);
        let endpoints = collective::endpoint_rows(&installed);
        let said = installed.translated().and_then(|state| state.conflict);
        let rule = installed.rule.unwrap_or_default();
        let kind = rule.translated().copied().unwrap_or_default();
        let parent_port = rule.upstream().map(|endpoint| endpoint.port);
        let parent = rule.upstream().map(|endpoint| endpoint.name().to_owned());
        Self {
            policies: collective::Policies::from(&rule),
            conflict: said.map(|said| collective::Conflict::new(&said, |rank| host_of(&rule, rank))),
            start_psn: kind.start_psn,
            switch,
            group: rule.name,
            kind: "collective",
            mcst_id: rule.mcst_id,
            owner: installed.owner,
            generation: rule.generation,
            parent,
            parent_port,
            worker: installed.worker,
            progress,
            endpoints,
        }
    }
}

/// The host of a rank next to the switch.
fn host_of(rule: &api::GroupRule, rank: u32) -> Option<String> {
    use api::endpoint::NextHop;
    rule.endpoints
        .iter()
        .find_map(|endpoint| match &endpoint.next_hop {
            Some(NextHop::Host(host)) if host.rank().is_some_and(|part| part.rank == rank) => {
                Some(host.name.clone())
            }
            _ => None,
        })
}

impl Report for SwitchCollectiveReport {
    fn page(&self, page: &mut Page) {
        page.title(format!(
            "Collective group {} at {}{}",
            self.group,
            self.switch,
            collective::progress_text(self.progress.as_ref())
        ));
        let parent = match (&self.parent, self.parent_port) {
            (Some(name), Some(port)) => format!("{name}, port {port}"),
            _ => "none: the tree's root".to_owned(),
        };
        let memory = self.progress.as_ref().map_or(0, |p| p.memory_bytes);
        let facts = [
            ("McstID", self.mcst_id.clone()),
            ("owner", owner_text(&self.owner)),
            ("generation", self.generation.to_string()),
            ("start PSN", self.start_psn.to_string()),
            ("PMTU", self.policies.pmtu.to_string()),
            ("message", format!("{} packets", self.policies.message_packets)),
        ];
        let place = [
            ("parent", parent),
            ("memory", castnet_console::units::bytes(memory)),
            ("worker", self.worker.to_string()),
        ];
        page.facts(
            &facts
                .into_iter()
                .chain(self.policies.facts())
                .chain(place)
                .collect::<Vec<_>>(),
        );
        if let Some(conflict) = &self.conflict {
            conflict.page(page);
        }
        page.title("Endpoints");
        page.rows(&self.endpoints, "none");
    }
}

/// A group of any kind.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Shown {
    Multicast(show::SwitchGroupReport),
    Collective(SwitchCollectiveReport),
    Forwarding(SwitchForwardingReport),
}

impl Shown {
    fn new(switch: String, group: api::InstalledGroup) -> Self {
        match group.state {
            Some(State::Translated(_)) => Self::Collective(SwitchCollectiveReport::new(switch, group)),
            Some(State::Forwarding(state)) => {
                let rule = group.rule.unwrap_or_default();
                Self::Forwarding(SwitchForwardingReport::new(switch, (rule, group.worker), state))
            }
            _ => Self::Multicast(show::SwitchGroupReport::new(switch, group)),
        }
    }

    fn show_members(self, output: Output) -> Outcome {
        match self {
            Self::Multicast(report) => output.show(&Rows::new(report.paths, "no paths")),
            Self::Collective(report) => output.show(&Rows::new(report.endpoints, "no endpoints")),
            Self::Forwarding(report) => output.show(&Rows::new(report.endpoints, "no endpoints")),
        }
    }
}

impl Report for Shown {
    fn page(&self, page: &mut Page) {
        match self {
            Self::Multicast(report) => report.page(page),
            Self::Collective(report) => report.page(page),
            Self::Forwarding(report) => report.page(page),
        }
    }
}

#[derive(Debug, Serialize)]
struct Moved {
    group: String,
    from: u32,
    to: u32,
}

/// The switch does not move a group: what to do next.
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

/// Removes the groups that a file has brought, as not all of it can be had. What ran before stays.
async fn take_back(agent: &mut api::AgentClient, groups: &[McstId]) {
    for mcst_id in groups {
        let request = api::RemoveGroupRequest {
            mcst_id: mcst_id.to_string(),
            owner: Some(String::new()),
            generation: None,
        };
        if let Err(status) = agent.remove_group(request).await {
            remark(&format!(
                "group {mcst_id} is not taken back: {}",
                status.message()
            ));
        }
    }
}

/// The verbs at one switch.
pub(crate) async fn run(verb: Verb, mut agent: api::AgentClient, output: Output) -> Outcome {
    match verb {
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
                Ok(Shown::new(switch, group))
            };
            watch.show(output, look).await
        }
        Verb::Members { group } => {
            let group = one(&mut agent, &group).await?;
            Shown::new(String::new(), group).show_members(output)
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
            let rules = settings::read_rules(file)?;
            let wanted = |name: &str| create.name.as_deref().is_none_or(|only| only == name);
            let groups: Vec<_> = rules.groups.iter().filter(|g| wanted(&g.name)).collect();
            if groups.is_empty() {
                return Err(Failure::usage(format!("{} holds no such group", file.display())));
            }
            let (mut left, mut new, mut refused) = (groups.iter(), Vec::new(), None);
            for request in install_requests("", groups.iter().copied()) {
                let results = match agent.install_groups(request).await {
                    Ok(answer) => answer.into_inner().results,
                    Err(status) => {
                        refused = Some(Failure::from(status));
                        break;
                    }
                };
                for (result, rule) in results.into_iter().zip(left.by_ref()) {
                    match install_result_from_proto(result) {
                        Ok(api::InstallOutcome::Installed) => new.push(rule.mcst_id),
                        Ok(_) => {}
                        Err(status) => {
                            let failure = Failure::from(status).while_doing(format!("group {}", rule.name));
                            refused.get_or_insert(failure);
                        }
                    }
                }
                if refused.is_some() {
                    break;
                }
            }
            if let Some(failure) = refused {
                take_back(&mut agent, &new).await;
                return Err(failure);
            }
            let names: Vec<_> = groups.iter().map(|g| g.name.clone()).collect();
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
