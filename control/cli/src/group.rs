//! `castnet group`: multicast and collective groups, at the controller or at one switch.

mod at_switch;
pub(crate) mod collective;
mod create;
pub(crate) mod forwarding;
mod lanes;
pub(crate) mod show;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use castnet_console::api;
use castnet_console::connect::{self, CONTROLLER, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Page, Report, Row, Rows};
use castnet_console::units;
use castnet_console::watch::WatchArgs;
use castnet_proto::transport::Address;
use clap::{Args, Subcommand};
use serde::Serialize;

use create::Create;
pub(crate) use create::{number, qpn, virtual_qpn};

/// Creates, lists, shows and destroys groups: multicast, and collectives computed in the switches
#[derive(Debug, Args)]
#[command(
    after_help = "Groups live at the controller, which plans their trees and programs the switches. A multicast group carries what its source sends to its members. A collective group adds up, in the switches, what its ranks send (castnet host allreduce --help); ranks also create one by themselves when they start. With --agent URL, the same verbs speak to one switch instead, whose groups come from a rule file.

Examples:
  castnet group create g --source h1 --members h2,h3,h4
  castnet group show g                          the tree, and how far each path has acknowledged
  castnet group create job --collective --ranks h1,h2,h3,h4
  castnet group show job --watch                the tree, the slots in use and how far each rank is
  castnet group members g
  castnet group destroy g
  castnet group list --agent unix:/run/castnet/leaf1.sock
  castnet group move g --worker 1 --agent unix:/run/castnet/leaf1.sock
  castnet group create --agent http://127.0.0.1:7471 --rules rules.toml"
)]
pub(crate) struct GroupCommand {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    place: Place,
}

const CREATE_HELP: &str = "\
A multicast group needs --source and --members, a collective group --collective and --ranks, a switch without a controller \
--agent and --rules.

Examples:
  castnet group create g --source h1 --members h2,h3,h4 --pmtu 4096
  castnet group create hot --source h1 --members h2,h3,h4 --lanes 4      for four workers of each switch to share
  castnet group create job --collective --ranks h1,h2,h3,h4
  castnet group create job --collective --ranks h1,h2,h3,h4 --reproducible --window 256 --pmtu 4096
  castnet group create --agent http://127.0.0.1:7471 --rules rules.toml

Then: castnet group show NAME tells who is missing; castnet host --help how members and ranks join.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a group; it waits for its members or ranks to join (castnet host)
    #[command(after_help = CREATE_HELP)]
    Create(Create),
    /// Lists groups
    #[command(visible_alias = "ls")]
    List,
    /// Shows one group: its tree, and how far each path or rank is
    #[command(after_help = "Examples:
  castnet group show g
  castnet group show job --watch 2s             who is how far, again and again, until Ctrl-C
  castnet group show job --agent unix:/run/castnet/leaf1.sock    what one switch has of it")]
    Show {
        /// Its name; at a switch, its name or its McstID
        group: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Lists the members or ranks of a group and how far each is
    Members {
        /// Its name; at a switch, its name or its McstID
        group: String,
    },
    /// Moves a group, with all its state, to another worker of a switch; no frame of it is lost
    #[command(
        after_help = "A switch of several workers moves groups off overloaded ones by itself (castnet switch --balance); castnet runtime shows how busy each worker is.

Examples:
  castnet group list --agent unix:/run/castnet/leaf1.sock     which worker has which group
  castnet group move g --worker 1 --agent unix:/run/castnet/leaf1.sock"
    )]
    Move {
        /// Its name or its McstID
        group: String,
        /// The worker that it goes to, counted from 0
        #[arg(long, value_name = "N")]
        worker: u32,
    },
    /// Takes a group off all switches and forgets it
    #[command(visible_alias = "rm")]
    Destroy {
        /// Its name; at a switch, its name or its McstID
        group: String,
    },
}

/// The controller, or one switch.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
struct Place {
    /// The controller
    #[arg(long, global = true, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Address,
    /// One switch instead of the controller
    #[arg(long, global = true, value_name = "URL")]
    agent: Option<Address>,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Debug, Serialize)]
struct GroupLine {
    group: String,
    kind: &'static str,
    mcst_id: String,
    lanes: usize,
    phase: String,
    source: String,
    members: usize,
    joined: usize,
    pmtu: u32,
    /// Set aside for it on all switches together; 0 for a multicast group, whose state is small.
    memory_bytes: u64,
    switches: Vec<String>,
    reason: String,
}

impl Row for GroupLine {
    const COLUMNS: &'static [&'static str] = &[
        "group", "kind", "mcst id", "lanes", "phase", "source", "joined", "pmtu", "memory", "switches",
        "remark",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.kind.to_owned(),
            self.mcst_id.clone(),
            self.lanes.to_string(),
            self.phase.clone(),
            or_dash(&self.source),
            format!("{} of {}", self.joined, self.members),
            self.pmtu.to_string(),
            match self.memory_bytes {
                0 => "-".to_owned(),
                memory => units::bytes(memory),
            },
            self.switches.join(" "),
            self.reason.clone(),
        ]
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

#[derive(Debug, Serialize)]
struct MemberLine {
    host: String,
    role: &'static str,
    phase: &'static str,
    ip: Option<String>,
    mac: Option<String>,
    qpn: Option<u32>,
    /// Those of the lanes after the first.
    more_qpns: Vec<u32>,
    switch: Option<String>,
    port: Option<u32>,
    /// What its queue pair of the first lane is connected to.
    mcst_id: String,
    remote_qpn: u32,
}

impl Row for MemberLine {
    const COLUMNS: &'static [&'static str] = &[
        "host",
        "role",
        "phase",
        "ip",
        "mac",
        "qpn",
        "switch",
        "port",
        "connects to",
    ];

    fn cells(&self) -> Vec<String> {
        let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.host.clone(),
            self.role.to_owned(),
            self.phase.to_owned(),
            text(&self.ip),
            text(&self.mac),
            qpns(self.qpn, &self.more_qpns),
            text(&self.switch),
            self.port.map_or_else(|| "-".to_owned(), |p| p.to_string()),
            remote(&self.mcst_id, self.remote_qpn),
        ]
    }
}

/// What a member's queue pair is connected to.
fn remote(mcst_id: &str, qpn: u32) -> String {
    format!("{mcst_id} QP {qpn:#x}")
}

/// The McstID that each member is told, where switches have their own.
fn mcst_ids(state: &api::GroupState) -> BTreeMap<String, String> {
    let members = state.members.iter();
    members
        .filter_map(|m| Some((m.host.clone(), m.mcst_id.clone()?)))
        .collect()
}

/// A member's queue pairs, one for each lane.
fn qpns(first: Option<u32>, more: &[u32]) -> String {
    let all = first.iter().chain(more).map(|q| format!("{q:#x}"));
    or_dash(&all.collect::<Vec<_>>().join(" "))
}

/// The phase's name as people read it.
pub(crate) fn phase_name(phase: api::GroupPhase) -> &'static str {
    match phase {
        api::GroupPhase::Unspecified => "unknown",
        api::GroupPhase::Registered => "registered",
        api::GroupPhase::Installing => "installing",
        api::GroupPhase::Active => "active",
        api::GroupPhase::Degraded => "degraded",
        api::GroupPhase::Removing => "removing",
        api::GroupPhase::Failed => "failed",
    }
}

pub(crate) fn role_name(role: api::Role) -> &'static str {
    match role {
        api::Role::Unspecified => "-",
        api::Role::Source => "source",
        api::Role::Receiver => "receiver",
    }
}

fn member_phase_name(phase: api::MemberPhase) -> &'static str {
    match phase {
        api::MemberPhase::Unspecified => "unknown",
        api::MemberPhase::Expected => "expected",
        api::MemberPhase::Joined => "joined",
        api::MemberPhase::Away => "away",
        api::MemberPhase::Left => "left",
    }
}

fn group_line(group: api::Group) -> GroupLine {
    let state = group.state.unwrap_or_default();
    let joined = state
        .members
        .iter()
        .filter(|m| m.phase() == api::MemberPhase::Joined)
        .count();
    GroupLine {
        kind: "multicast",
        memory_bytes: 0,
        phase: phase_name(state.phase()).to_owned(),
        members: state.members.len(),
        joined,
        lanes: state.lanes.len().max(1),
        group: state.name,
        mcst_id: state.mcst_id,
        source: state.source,
        pmtu: state.pmtu,
        switches: group.tree.into_iter().map(|node| node.switch_name).collect(),
        reason: state.reason,
    }
}

fn member_line(group: &str, member: api::MemberState) -> MemberLine {
    let (role, phase) = (role_name(member.role()), member_phase_name(member.phase()));
    let connection = member.connection;
    MemberLine {
        host: member.host,
        role,
        phase,
        ip: connection.as_ref().map(|c| c.ip.clone()),
        mac: connection.as_ref().map(|c| c.mac.clone()),
        qpn: connection.as_ref().map(|c| c.qpn),
        more_qpns: connection.map_or_else(Vec::new, more_qpns),
        switch: Some(member.switch_name).filter(|name| !name.is_empty()),
        port: member.port,
        mcst_id: member.mcst_id.unwrap_or_else(|| group.to_owned()),
        remote_qpn: 1,
    }
}

fn more_qpns(connection: api::Connection) -> Vec<u32> {
    connection.more_lanes.iter().map(|lane| lane.qpn).collect()
}

/// ` in 4 lanes`; nothing where there is one.
fn in_lanes(lanes: usize) -> String {
    match lanes {
        0 | 1 => String::new(),
        more => format!(", {more} lanes"),
    }
}

#[derive(Debug, Serialize)]
struct Created {
    group: String,
    mcst_id: String,
    /// Where switches have their own, that of each member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    mcst_ids: BTreeMap<String, String>,
    lanes: usize,
    start_psn: u32,
    pmtu: u32,
    phase: &'static str,
}

#[derive(Debug, Serialize)]
struct CollectiveCreated {
    group: String,
    mcst_id: String,
    lanes: usize,
    ranks: usize,
    slots: u32,
    phase: &'static str,
}

fn collective_created(state: api::CollectiveState) -> Done<CollectiveCreated> {
    let phase = collective::phase_name(state.phase());
    let reason = match state.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let mut sentence = format!(
        "collective group {} has McstID {}{} and is {phase}{reason}",
        state.name,
        collective::addresses(&state),
        in_lanes(state.lanes.len())
    );
    if let Some(first) = state.members.first() {
        sentence.push_str(&format!(
            "\neach rank joins with such as: castnet host allreduce --job {} --size {} --rank 0 --name {}",
            state.name,
            state.members.len(),
            first.host
        ));
    }
    Done {
        facts: CollectiveCreated {
            group: state.name,
            mcst_id: state.mcst_id,
            lanes: state.lanes.len().max(1),
            ranks: state.members.len(),
            slots: state.slots,
            phase,
        },
        sentence,
    }
}

#[derive(Debug, Serialize)]
struct Destroyed {
    group: String,
    complete: bool,
    pending_switches: Vec<String>,
}

/// A group of either kind.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Shown {
    Multicast(show::GroupReport),
    Collective(collective::CollectiveReport),
}

impl Report for Shown {
    fn page(&self, page: &mut Page) {
        match self {
            Self::Multicast(report) => report.page(page),
            Self::Collective(report) => report.page(page),
        }
    }
}

/// The controller said no to something about `group`: what to do next.
fn refused(status: tonic::Status, group: &str) -> Failure {
    let code = status.code();
    let failure = Failure::from(status);
    match code {
        tonic::Code::NotFound => {
            failure.next("castnet group list shows the groups, castnet topology the switches and hosts")
        }
        tonic::Code::AlreadyExists => failure.next(format!(
            "castnet group show {group} shows it; castnet group destroy {group} makes room for another"
        )),
        tonic::Code::InvalidArgument => failure.next("castnet group create --help has what can be given"),
        tonic::Code::ResourceExhausted => {
            failure.next("castnet topology shows how much memory and how many groups each switch has left")
        }
        _ => failure,
    }
}

impl GroupCommand {
    /// Speaks to the controller, or to one switch.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.place.tls.security()?;
        if let Some(address) = &self.place.agent {
            let agent = connect::agent(address, &security).await?;
            return at_switch::run(self.verb, agent, output).await;
        }
        let mut controller = connect::controller(&self.place.controller, &security).await?;
        match self.verb {
            Verb::Create(create) if create.collective.collective => {
                let request = create.collective_request();
                let name = request.name.clone();
                let answer = controller.create_collective(request).await;
                let state = answer.map_err(|s| refused(s, &name))?.into_inner().group;
                output.show(&collective_created(state.unwrap_or_default()))
            }
            Verb::Create(create) => {
                let request = create.request();
                let name = request.name.clone();
                let answer = controller.create_group(request).await;
                let state = answer.map_err(|s| refused(s, &name))?.into_inner().group;
                let state = state.unwrap_or_default();
                let phase = phase_name(state.phase());
                let waits: Vec<_> = state
                    .members
                    .iter()
                    .filter(|m| m.phase() == api::MemberPhase::Expected)
                    .map(|m| m.host.as_str())
                    .collect();
                let waits = if waits.is_empty() {
                    String::new()
                } else {
                    format!("; waits for {} to join (castnet host --help)", waits.join(", "))
                };
                let mcst_ids = mcst_ids(&state);
                let own = mcst_ids
                    .iter()
                    .map(|(host, own)| (host.as_str(), Some(own.as_str())));
                let sentence = format!(
                    "group {} has McstID {}{} and is {phase}{waits}",
                    state.name,
                    lanes::addresses(&state.mcst_id, own),
                    in_lanes(state.lanes.len())
                );
                output.show(&Done {
                    facts: Created {
                        group: state.name,
                        mcst_id: state.mcst_id,
                        mcst_ids,
                        lanes: state.lanes.len().max(1),
                        start_psn: state.start_psn,
                        pmtu: state.pmtu,
                        phase,
                    },
                    sentence,
                })
            }
            Verb::List => {
                let listed = controller
                    .list_groups(api::ListControllerGroupsRequest {})
                    .await?
                    .into_inner();
                let collectives = listed.collectives.into_iter().map(collective::group_line);
                let mut rows: Vec<GroupLine> = listed
                    .groups
                    .into_iter()
                    .map(group_line)
                    .chain(collectives)
                    .collect();
                rows.sort_by(|x, y| x.group.cmp(&y.group));
                output.show(&Rows::new(rows, "no groups: castnet group create --help"))
            }
            Verb::Show { group, watch } => {
                let look = async || {
                    let request = api::GetGroupRequest { group: group.clone() };
                    let answer = controller.get_group(request).await;
                    let found = answer.map_err(|s| refused(s, &group))?.into_inner();
                    let request = api::ListSwitchesRequest {};
                    let switches = controller.list_switches(request).await?.into_inner().switches;
                    Ok(match found.collective {
                        Some(found) => {
                            let report = collective::CollectiveReport::gather(found, &switches, &security);
                            Shown::Collective(report.await)
                        }
                        None => {
                            Shown::Multicast(show::GroupReport::gather(found, &switches, &security).await)
                        }
                    })
                };
                watch.show(output, look).await
            }
            Verb::Members { group } => {
                let group = controller
                    .get_group(api::GetGroupRequest { group: group.clone() })
                    .await
                    .map_err(|s| refused(s, &group))?
                    .into_inner();
                if let Some(collective) = group.collective {
                    let lines = collective::rank_lines(&collective.state.unwrap_or_default());
                    return output.show(&Rows::new(lines, "no ranks"));
                }
                let state = group.state.unwrap_or_default();
                let members = state.members.into_iter();
                let lines = members.map(|m| member_line(&state.mcst_id, m));
                output.show(&Rows::new(lines.collect(), "no members"))
            }
            Verb::Move { group, .. } => Err(Failure::usage(format!(
                "each switch has workers of its own: at which is group {group} to move?"
            ))
            .next(format!("castnet group move {group} --worker N --agent URL"))),
            Verb::Destroy { group } => {
                let request = api::DestroyGroupRequest { group: group.clone() };
                let answer = controller.destroy_group(request).await;
                let answer = answer.map_err(|s| refused(s, &group))?.into_inner();
                let sentence = if answer.complete {
                    format!("group {group} is gone from all switches")
                } else {
                    format!(
                        "group {group} is forgotten; it is taken off {} as soon as they can be reached",
                        answer.pending_switches.join(", ")
                    )
                };
                output.show(&Done {
                    facts: Destroyed {
                        group,
                        complete: answer.complete,
                        pending_switches: answer.pending_switches,
                    },
                    sentence,
                })
            }
        }
    }
}
