mod at_switch;
pub(crate) mod collective;
pub(crate) mod create;
mod facts;
mod flags;
mod lanes;
mod lines;
mod members;
pub(crate) mod plan;
mod progress;
mod purge;
mod rule_file;
mod show;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use castnet_console::api;
use castnet_console::connect::{self, CONTROLLER, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Rows};
use castnet_console::units;
use castnet_console::watch::WatchArgs;
use castnet_proto::convert::violations;
use castnet_proto::transport::{Address, Controllers, lost_connection};
use clap::{Args, Subcommand};
use serde::Serialize;
use tonic::Code;

use create::Create;
use lines::{GroupLine, member_lines, rank_lines};
pub(crate) use lines::{job_phase, last_word, or_dash};

/// Creates multicast groups; lists, shows and destroys groups of all kinds
#[derive(Debug, Args)]
#[command(
    after_help = "Groups live at the controller, which plans their trees and programs the switches. A multicast group carries what its source sends to its members. Jobs, whose switches compute with what their ranks send, are groups as well: castnet job creates them. With --agent URL, list, show, members, move, install, destroy and purge go to one switch, which may have groups of a rule file.

Examples:
  castnet group plan g --source h1 --members h2,h3,h4      where it would be placed, and why
  castnet group create g --source h1 --members h2,h3,h4
  castnet group show g                          the tree, and how far each path has acknowledged
  castnet group show job --watch                the tree, the slots in use and the progress of each rank
  castnet group members g
  castnet group destroy g
  castnet group list --agent unix:/run/castnet/leaf1.sock
  castnet group move g --worker 1 --agent unix:/run/castnet/leaf1.sock
  castnet group install rules.toml --agent http://127.0.0.1:7471"
)]
pub(crate) struct GroupCommand {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    place: Place,
}

const CREATE_HELP: &str = "\
Examples:
  castnet group create g --source h1 --members h2,h3,h4 --pmtu 4096
  castnet group create hot --source h1 --members h2,h3,h4 --lanes 4      four workers of each switch share it
  castnet group create slow --source h1 --members h2,h3 --rate 400M      the switch next to h1 takes no more of it
  castnet group create far --source h1 --members h2,h3 --distribution edge:chain    the switches at the hosts pass it on

Then castnet group show NAME names who is missing, and castnet host --help shows how members join.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a multicast group; it waits for its members to join (castnet host)
    #[command(after_help = CREATE_HELP)]
    Create(Create),
    /// Where a multicast group would be placed now, and why; nothing is installed or reserved
    #[command(after_help = "It takes what castnet group create takes.

Examples:
  castnet group plan g --source h1 --members h2,h3,h4
  castnet group plan g --source h1 --members h2,h3,h4 --pmtu 4096 --output json | jq .switches")]
    Plan(Create),
    /// Installs the groups of a rule file at one switch. If one is refused, the new ones are removed again, and the error names those that were
    /// replaced
    #[command(after_help = "Examples:
  castnet group install rules.toml --agent unix:/run/castnet/leaf1.sock
  castnet group install rules.toml weights --agent unix:/run/castnet/leaf1.sock    only that one")]
    Install {
        /// The rule file (castnet rules)
        file: PathBuf,
        /// Only the group of this name
        group: Option<String>,
    },
    /// Lists groups
    #[command(visible_alias = "ls")]
    List,
    /// Shows one group: its tree, and the progress of each path or rank
    #[command(after_help = "Examples:
  castnet group show g
  castnet group show job --watch 2s             every two seconds, until Ctrl-C
  castnet group show job --agent unix:/run/castnet/leaf1.sock    at one switch")]
    Show {
        /// Its name; at a switch, its name or its McstID
        group: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Lists the members or ranks of a group
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
        /// The new worker, counted from 0
        #[arg(long, value_name = "N")]
        worker: u32,
    },
    /// Adds a receiver to a multicast group, also to one that runs
    #[command(after_help = "Examples:
  castnet group add g h9            the group waits for it, or it joins the running group:
  castnet host receive --name h9 --group g --size 64KiB --count 1000 --late ...   from the next message on
  castnet host receive --name h9 --group g --out copy.bin ...                     once all members join again")]
    Add {
        /// Its name
        group: String,
        /// The receiver
        host: String,
    },
    /// Puts a member out of a group, which goes on without it; with a rank, a collective group fails
    #[command(after_help = "Examples:
  castnet group evict g h3          receivers that are left are not disturbed
  castnet group evict job 2         rank 2 of a collective group: it fails at all ranks, which learn why")]
    Evict {
        /// Its name
        group: String,
        /// Its host, or its rank
        #[arg(value_name = "HOST|RANK")]
        member: String,
    },
    /// Removes all groups of one owner from all switches: what a controller that does not return has left there
    #[command(
        after_help = "A controller with the store of the old one has its name, and takes its groups up by itself (castnet store import); no other does. Otherwise they stay until they are removed. Without --yes it says what it would remove; with --yes, nothing to remove is an error.

Examples:
  castnet group purge                           what other owners have on the switches of the controller, and what its store does not have
  castnet group purge --owner controller-3f2a9c
  castnet group purge --owner controller-3f2a9c --yes
  castnet group purge --owner controller-3f2a9c --yes --agent unix:/run/castnet/leaf1.sock    at one switch
  castnet group purge --owner operator --agent unix:/run/castnet/leaf1.sock    what rule files and operators have there"
    )]
    Purge {
        /// Name of the controller that installed them; operator: those of operators and rule files
        #[arg(long, value_name = "NAME", value_parser = purge::owner)]
        owner: Option<String>,
        /// Remove them
        #[arg(long, requires = "owner")]
        yes: bool,
    },
    /// Removes a group from all switches and from the controller
    #[command(
        visible_alias = "rm",
        after_help = "Examples:
  castnet group destroy g
  castnet group destroy g --force       also if a switch cannot be reached: the name is free at once"
    )]
    Destroy {
        /// Its name; at a switch, its name or its McstID
        group: String,
        /// Do not wait for switches that cannot be reached: each loses its part when it returns
        #[arg(long)]
        force: bool,
    },
}

/// The controller, or one switch.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
struct Place {
    #[command(flatten)]
    at: AtController,
    /// One switch instead of the controller
    #[arg(long, global = true, value_name = "URL")]
    agent: Option<Address>,
}

/// The controller.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
pub(crate) struct AtController {
    /// Address of the controller; of several, all with commas between them
    #[arg(long, global = true, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Controllers,
    #[command(flatten)]
    tls: Tls,
}

impl AtController {
    pub(crate) async fn connect(&self) -> Outcome<api::ControllerClient> {
        connect::controller(&self.controller, &self.tls.security()?).await
    }

    /// Names the controller to other commands; empty for the default one.
    pub(crate) fn flag(&self) -> String {
        match self.controller.to_string() {
            default if default == CONTROLLER => String::new(),
            other => format!(" --controller {other}"),
        }
    }
}

/// Empty unless switches have McstIDs of their own.
fn mcst_ids(state: &api::GroupState) -> BTreeMap<String, String> {
    let members = state.members.iter();
    members
        .filter_map(|m| Some((m.host.clone(), m.mcst_id.clone()?)))
        .collect()
}

fn member_addresses(common: &str, own: &BTreeMap<String, String>) -> String {
    let own = own.iter();
    lanes::addresses(common, own.map(|(host, own)| (host.as_str(), Some(own.as_str()))))
}

pub(crate) fn rank_addresses(state: &api::CollectiveState) -> String {
    let ranks = state.members.iter();
    let ranks: Vec<_> = ranks
        .map(|m| (format!("rank {}", m.rank), m.mcst_id.as_deref()))
        .collect();
    let ranks = ranks.iter().map(|(rank, own)| (rank.as_str(), *own));
    lanes::addresses(&state.mcst_id, ranks)
}

pub(crate) fn in_lanes(lanes: usize) -> String {
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
    phase: String,
    /// Members that no switch has seen, where others were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_seen: Vec<String>,
}

/// Hosts that no switch has seen, while it has seen others of the group: one may be a wrong name, for which the group would wait.
pub(crate) fn not_seen(members: &[api::MemberState]) -> Vec<String> {
    let named = || members.iter().filter(|m| !m.host.is_empty());
    match named().any(|m| !m.switch_name.is_empty()) {
        true => named()
            .filter(|m| m.switch_name.is_empty())
            .map(|m| m.host.clone())
            .collect(),
        false => Vec::new(),
    }
}

/// Of a thousand hosts, all others are in `castnet group show`, and in JSON.
const HOSTS_NAMED_MAX: usize = 8;

pub(crate) fn warning(not_seen: &[String]) -> String {
    match not_seen.is_empty() {
        true => String::new(),
        false => format!(
            "\nno switch has seen {} yet: the group waits for ever if that is a wrong name (castnet topology lists who was seen)",
            units::first_of(not_seen.iter(), HOSTS_NAMED_MAX)
        ),
    }
}

fn group_created(state: api::GroupState) -> Done<Created> {
    let phase = last_word(state.phase().as_str_name());
    let waits: Vec<_> = state
        .members
        .iter()
        .filter(|m| m.phase() == api::MemberPhase::Expected)
        .map(|m| m.host.as_str())
        .collect();
    let waits = match waits.is_empty() {
        true => String::new(),
        false => {
            let waits = units::first_of(waits.iter(), HOSTS_NAMED_MAX);
            format!("; waits for {waits} to join (castnet host --help)")
        }
    };
    let (mcst_ids, not_seen) = (mcst_ids(&state), not_seen(&state.members));
    let sentence = format!(
        "group {} has McstID {}{} and is {phase}{waits}{}",
        state.name,
        member_addresses(&state.mcst_id, &mcst_ids),
        in_lanes(state.lanes.len()),
        warning(&not_seen)
    );
    Done {
        facts: Created {
            group: state.name,
            mcst_id: state.mcst_id,
            mcst_ids,
            lanes: state.lanes.len().max(1),
            start_psn: state.start_psn,
            pmtu: state.pmtu,
            phase,
            not_seen,
        },
        sentence,
    }
}

#[derive(Debug, Serialize)]
struct Destroyed {
    group: String,
    complete: bool,
    pending_switches: Vec<String>,
    written_off_switches: Vec<String>,
}

fn destroyed(group: String, answer: api::DestroyGroupResponse) -> Done<Destroyed> {
    let (pending, written_off) = (&answer.pending_switches, &answer.written_off_switches);
    let sentence = if answer.complete {
        format!("group {group} is removed from all switches")
    } else if written_off.is_empty() {
        format!(
            "group {group} is destroyed; it is removed from {} as soon as they can be reached, and its name is free \
             then (at once: castnet group destroy {group} --force)",
            pending.join(", ")
        )
    } else {
        format!(
            "group {group} is gone; written off: {}. They may still forward for it. When they return, they lose \
             it, and its McstID is free again",
            written_off.join(", ")
        )
    };
    Done {
        facts: Destroyed {
            group,
            complete: answer.complete,
            pending_switches: answer.pending_switches,
            written_off_switches: answer.written_off_switches,
        },
        sentence,
    }
}

/// What was asked for is decided, and done at all switches but these. Who goes on as if it were done everywhere must know.
fn still_pending(switches: &[String]) -> Outcome {
    match switches {
        [] => Ok(()),
        _ => Err(
            Failure::unreachable(format!("{} cannot be reached now", switches.join(", "))).next(
                "castnet topology shows why; the controller does the rest as soon as they can be reached",
            ),
        ),
    }
}

pub(crate) fn refused(status: tonic::Status) -> Failure {
    let (code, violations) = (status.code(), violations(&status));
    let is_answered = lost_connection(&status).is_none();
    let mut failure = Failure::from(status);
    if !violations.is_empty() {
        failure.what = flags::flags().refusal(&violations);
    }
    match code {
        _ if !is_answered => failure,
        Code::NotFound | Code::AlreadyExists => {
            failure.next("castnet group list shows the groups, castnet topology the switches and hosts")
        }
        Code::InvalidArgument => {
            failure.next("castnet group create --help, or castnet job create --help, lists the settings")
        }
        Code::ResourceExhausted => {
            failure.next("castnet topology shows how much memory and how many groups each switch has left")
        }
        Code::FailedPrecondition if flags::are_of_fabric(&violations) => failure.next(
            "castnet topology shows the switches, which of them can be reached, and where hosts were seen; try again when what is down is back",
        ),
        _ => failure,
    }
}

impl GroupCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        if let Verb::Create(create) | Verb::Plan(create) = &self.verb {
            create.check()?;
        }
        let security = self.place.at.tls.security()?;
        if let Some(address) = &self.place.agent {
            let agent = connect::agent(address, &security).await?;
            return at_switch::run(self.verb, agent, output).await;
        }
        if let Verb::Install { file, .. } = &self.verb {
            let file = file.display();
            return Err(
                Failure::usage(format!("the rules of {file} are those of one switch: name it"))
                    .next(format!("castnet group install {file} --agent URL")),
            );
        }
        let mut controller = self.place.at.connect().await?;
        match self.verb {
            Verb::Create(create) => {
                let request = create.request();
                let answer = controller.create_group(request).await;
                let state = answer.map_err(refused)?.into_inner().group;
                output.show(&group_created(state.unwrap_or_default()))
            }
            Verb::Plan(create) => {
                let group = api::plan_group_request::Group::Multicast(create.request());
                plan::run(&self.place.at, group, output).await
            }
            // Refused above.
            Verb::Install { .. } => Ok(()),
            Verb::List => {
                let listed = controller
                    .list_groups(api::ListControllerGroupsRequest {})
                    .await?
                    .into_inner();
                let collectives = listed.collectives.into_iter().map(GroupLine::from);
                let groups = listed.groups.into_iter().map(GroupLine::from);
                let mut rows: Vec<_> = groups.chain(collectives).collect();
                rows.sort_by(|x, y| x.group.cmp(&y.group));
                output.show(&Rows::new(rows, "no groups: castnet group create --help"))
            }
            Verb::Show { group, watch } => {
                let look = async || {
                    let request = api::GetGroupRequest { group: group.clone() };
                    let answer = controller.get_group(request).await;
                    let found = answer.map_err(refused)?.into_inner();
                    let request = api::ListSwitchesRequest {};
                    let switches = match controller.list_switches(request).await {
                        Ok(listed) => listed.into_inner().switches,
                        // A member may see its group, but no switch.
                        Err(status) if status.code() == Code::PermissionDenied => Vec::new(),
                        Err(status) => return Err(status.into()),
                    };
                    Ok(show::GroupReport::gather(found, &switches, &security).await)
                };
                watch.show(output, look).await
            }
            Verb::Members { group } => {
                let group = controller
                    .get_group(api::GetGroupRequest { group })
                    .await
                    .map_err(refused)?
                    .into_inner();
                if let Some(collective) = group.collective {
                    let lines = rank_lines(&collective.state.unwrap_or_default());
                    return output.show(&Rows::new(lines, "no ranks"));
                }
                let lines = member_lines(group.state.unwrap_or_default());
                output.show(&Rows::new(lines, "no members"))
            }
            Verb::Move { group, .. } => Err(Failure::usage(format!(
                "each switch has its own workers: name the switch at which group {group} moves"
            ))
            .next(format!("castnet group move {group} --worker N --agent URL"))),
            Verb::Purge { owner, yes } => purge::everywhere(&mut controller, owner, yes, output).await,
            Verb::Add { group, host } => members::add(&mut controller, group, host, output).await,
            Verb::Evict { group, member } => members::evict(&mut controller, group, member, output).await,
            Verb::Destroy { group, force } => {
                let request = api::DestroyGroupRequest {
                    group: group.clone(),
                    force,
                };
                let answer = controller.destroy_group(request).await;
                let answer = answer.map_err(refused)?.into_inner();
                let pending = still_pending(&answer.pending_switches);
                output.conclude(&destroyed(group, answer), pending)
            }
        }
    }
}
