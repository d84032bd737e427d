//! `castnet group`: multicast groups, at the controller or at one switch.

pub(crate) mod show;

use std::path::PathBuf;
use std::str::FromStr;

use castnet_proto::transport::Address;
use castnet_wire::{MacAddr, Qpn};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::api;
use crate::connect::{self, CONTROLLER, Tls};
use crate::exit::{Failure, Outcome};
use crate::output::{Done, Output, Row, Rows};
use crate::{pick, rules};

/// Creates, lists, shows and destroys multicast groups
#[derive(Debug, Args)]
#[command(
    after_help = "Groups live at the controller, which plans their trees and programs the switches. With --agent URL, the same verbs speak to one switch instead, whose groups come from a rule file.

Examples:
  castnet group create g --source h1 --members h2,h3,h4
  castnet group show g                          the tree, and how far each path has acknowledged
  castnet group members g
  castnet group destroy g
  castnet group list --agent unix:/run/castnet/leaf1.sock
  castnet group create --agent http://127.0.0.1:7471 --rules rules.toml"
)]
pub(crate) struct GroupCommand {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a group; it waits for its members to join (castnet host)
    Create(Create),
    /// Lists groups
    #[command(visible_alias = "ls")]
    List,
    /// Shows one group: its tree, and how far each path has acknowledged
    Show {
        /// Its name; at a switch, its name or its McstID
        group: String,
    },
    /// Lists the members of a group and how far each is
    Members {
        /// Its name; at a switch, its name or its McstID
        group: String,
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

#[derive(Debug, Args)]
struct Create {
    /// Its name: letters, digits, '-', '_' and '.'
    #[arg(required_unless_present = "rules")]
    name: Option<String>,
    /// The host that sends
    #[arg(long, value_name = "HOST", required_unless_present = "rules")]
    source: Option<String>,
    /// The hosts that receive, with commas or given again; the source need not be named again
    #[arg(
        long,
        value_name = "HOST,...",
        value_delimiter = ',',
        required_unless_present = "rules"
    )]
    members: Vec<String>,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = pmtu)]
    pmtu: u32,
    /// The group's address; without it, the next free one of the controller's pool
    #[arg(long, value_name = "IP")]
    mcst_id: Option<std::net::Ipv4Addr>,
    /// The source's first PSN; without it, the controller draws one
    #[arg(long, value_name = "PSN", value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    start_psn: Option<u32>,
    /// What the source's virtual addresses are relative to, for WRITE
    #[arg(long, value_name = "VA", default_value = "0", value_parser = number)]
    va_base: u64,
    /// A path that acknowledges nothing for so long while it should is reported
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    stall_timeout_ms: u32,
    /// A member whose RNIC another tool drives: it counts as joined at once
    #[arg(long, value_name = "HOST=IP,MAC,QPN[,VA,RKEY,LENGTH]")]
    connection: Vec<Joined>,
    /// With --agent: installs the groups of this rule file (those named, or all)
    #[arg(long, value_name = "FILE", requires = "agent", conflicts_with_all = ["source", "members", "connection"])]
    rules: Option<PathBuf>,
}

/// One of the five path MTUs.
pub(crate) fn pmtu(text: &str) -> Result<u32, String> {
    let fault = || format!("'{text}' is no RoCE path MTU: 256, 512, 1024, 2048 or 4096");
    let bytes = text.parse().map_err(|_| fault())?;
    castnet_wire::Pmtu::from_bytes(bytes)
        .map(|_| bytes)
        .ok_or_else(fault)
}

/// A number, decimal or with `0x`.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let fault = || format!("'{text}' is no number: write it decimal or with 0x");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| fault()),
        None => text.parse().map_err(|_| fault()),
    }
}

/// A QPN that a queue pair may have.
pub(crate) fn qpn(text: &str) -> Result<Qpn, String> {
    let value = number(text)?;
    if (2..0xFF_FFFF).contains(&value) {
        Ok(Qpn::new(value as u32))
    } else {
        Err(format!("'{text}' is no QPN of a queue pair: 2 to 0xfffffe"))
    }
}

/// A member with its connection, as written.
#[derive(Clone, Debug)]
struct Joined {
    host: String,
    connection: api::Connection,
}

impl FromStr for Joined {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write HOST=IP,MAC,QPN or HOST=IP,MAC,QPN,VA,RKEY,LENGTH";
        let (host, rest) = text.split_once('=').ok_or(form)?;
        let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
        let (ip, mac, qpn_text, memory) = match parts[..] {
            [ip, mac, qpn] => (ip, mac, qpn, None),
            [ip, mac, qpn, va, rkey, length] => (ip, mac, qpn, Some((va, rkey, length))),
            _ => return Err(form.to_owned()),
        };
        ip.parse::<std::net::Ipv4Addr>()
            .map_err(|_| format!("'{ip}' is no IPv4 address"))?;
        mac.parse::<MacAddr>().map_err(|e| format!("'{mac}' is {e}"))?;
        let memory = match memory {
            None => None,
            Some((va, rkey, length)) => {
                let rkey =
                    u32::try_from(number(rkey)?).map_err(|_| format!("'{rkey}' is no rkey: 32 bits"))?;
                Some(api::RemoteMemory {
                    va: number(va)?,
                    rkey,
                    length: number(length)?,
                })
            }
        };
        let connection = api::Connection {
            ip: ip.to_owned(),
            mac: mac.to_owned(),
            qpn: qpn(qpn_text)?.value(),
            memory,
        };
        Ok(Self {
            host: host.to_owned(),
            connection,
        })
    }
}

impl Create {
    fn request(self) -> api::CreateGroupRequest {
        let source = self.source.unwrap_or_default();
        let mut hosts = vec![source.clone()];
        for host in self.members.iter().chain(self.connection.iter().map(|c| &c.host)) {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        let connection = |host: &str| {
            self.connection
                .iter()
                .find(|c| c.host == host)
                .map(|c| c.connection.clone())
        };
        let members = hosts
            .into_iter()
            .map(|host| api::NewMember {
                connection: connection(&host),
                host,
            })
            .collect();
        api::CreateGroupRequest {
            name: self.name.unwrap_or_default(),
            source,
            members,
            pmtu: self.pmtu,
            start_psn: self.start_psn,
            va_base: self.va_base,
            mcst_id: self.mcst_id.map(|ip| ip.to_string()),
            stall_timeout_ms: self.stall_timeout_ms,
        }
    }
}

#[derive(Debug, Serialize)]
struct GroupLine {
    group: String,
    mcst_id: String,
    phase: String,
    source: String,
    members: usize,
    joined: usize,
    pmtu: u32,
    switches: Vec<String>,
    reason: String,
}

impl Row for GroupLine {
    const COLUMNS: &'static [&'static str] = &[
        "group", "mcst id", "phase", "source", "joined", "pmtu", "switches", "remark",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.mcst_id.clone(),
            self.phase.clone(),
            self.source.clone(),
            format!("{} of {}", self.joined, self.members),
            self.pmtu.to_string(),
            self.switches.join(" "),
            self.reason.clone(),
        ]
    }
}

#[derive(Debug, Serialize)]
struct MemberLine {
    host: String,
    role: &'static str,
    phase: &'static str,
    ip: Option<String>,
    mac: Option<String>,
    qpn: Option<u32>,
    switch: Option<String>,
    port: Option<u32>,
}

impl Row for MemberLine {
    const COLUMNS: &'static [&'static str] = &["host", "role", "phase", "ip", "mac", "qpn", "switch", "port"];

    fn cells(&self) -> Vec<String> {
        let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.host.clone(),
            self.role.to_owned(),
            self.phase.to_owned(),
            text(&self.ip),
            text(&self.mac),
            self.qpn.map_or_else(|| "-".to_owned(), |q| format!("{q:#x}")),
            text(&self.switch),
            self.port.map_or_else(|| "-".to_owned(), |p| p.to_string()),
        ]
    }
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
        phase: phase_name(state.phase()).to_owned(),
        members: state.members.len(),
        joined,
        group: state.name,
        mcst_id: state.mcst_id,
        source: state.source,
        pmtu: state.pmtu,
        switches: group.tree.into_iter().map(|node| node.switch_name).collect(),
        reason: state.reason,
    }
}

fn member_line(member: api::MemberState) -> MemberLine {
    let (role, phase) = (role_name(member.role()), member_phase_name(member.phase()));
    let connection = member.connection;
    MemberLine {
        host: member.host,
        role,
        phase,
        ip: connection.as_ref().map(|c| c.ip.clone()),
        mac: connection.as_ref().map(|c| c.mac.clone()),
        qpn: connection.as_ref().map(|c| c.qpn),
        switch: Some(member.switch_name).filter(|name| !name.is_empty()),
        port: member.port,
    }
}

#[derive(Debug, Serialize)]
struct Created {
    group: String,
    mcst_id: String,
    start_psn: u32,
    pmtu: u32,
    phase: &'static str,
}

#[derive(Debug, Serialize)]
struct Destroyed {
    group: String,
    complete: bool,
    pending_switches: Vec<String>,
}

impl GroupCommand {
    /// Speaks to the controller, or to one switch.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.place.tls.security()?;
        if let Some(address) = &self.place.agent {
            let agent = connect::agent(address, &security).await?;
            return at_switch(self.verb, agent, output).await;
        }
        let mut controller = connect::controller(&self.place.controller, &security).await?;
        match self.verb {
            Verb::Create(create) => {
                let state = controller
                    .create_group(create.request())
                    .await?
                    .into_inner()
                    .group;
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
                let sentence = format!(
                    "group {} has McstID {} and is {phase}{waits}",
                    state.name, state.mcst_id
                );
                output.show(&Done {
                    facts: Created {
                        group: state.name,
                        mcst_id: state.mcst_id,
                        start_psn: state.start_psn,
                        pmtu: state.pmtu,
                        phase,
                    },
                    sentence,
                })
            }
            Verb::List => {
                let groups = controller
                    .list_groups(api::ListControllerGroupsRequest {})
                    .await?
                    .into_inner()
                    .groups;
                let rows = groups.into_iter().map(group_line).collect();
                output.show(&Rows::new(rows, "no groups: castnet group create --help"))
            }
            Verb::Show { group } => {
                let group = controller
                    .get_group(api::GetGroupRequest { group })
                    .await?
                    .into_inner();
                let switches = controller
                    .list_switches(api::ListSwitchesRequest {})
                    .await?
                    .into_inner()
                    .switches;
                output.show(&show::GroupReport::gather(group, &switches, &security).await)
            }
            Verb::Members { group } => {
                let group = controller
                    .get_group(api::GetGroupRequest { group })
                    .await?
                    .into_inner();
                let members = group.state.unwrap_or_default().members;
                output.show(&Rows::new(
                    members.into_iter().map(member_line).collect(),
                    "no members",
                ))
            }
            Verb::Destroy { group } => {
                let request = api::DestroyGroupRequest { group: group.clone() };
                let answer = controller.destroy_group(request).await?.into_inner();
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
async fn at_switch(verb: Verb, mut agent: api::AgentClient, output: Output) -> Outcome {
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
                    group: Some(castnet_proto::convert::group_to_proto(group)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_written_in_one_word() {
        let joined: Joined = "h1=10.0.0.1,02:00:00:00:00:01,0x11"
            .parse()
            .expect("a connection");
        assert_eq!((joined.host.as_str(), joined.connection.qpn), ("h1", 0x11));
        let joined: Joined = "h1=10.0.0.1,02:00:00:00:00:01,17,0x1000,0xab,4096"
            .parse()
            .expect("with memory");
        let memory = joined.connection.memory.expect("memory");
        assert_eq!((memory.va, memory.rkey, memory.length), (0x1000, 0xab, 4096));
        for bad in [
            "h1",
            "h1=10.0.0.1",
            "h1=10.0.0.300,02:00:00:00:00:01,17",
            "h1=10.0.0.1,02:00,17",
            "h1=10.0.0.1,02:00:00:00:00:01,1",
            "h1=10.0.0.1,02:00:00:00:00:01,17,0x1000",
            "h1=10.0.0.1,02:00:00:00:00:01,17,0,0x1ffffffff,1",
        ] {
            assert!(bad.parse::<Joined>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_source_is_a_member_and_nobody_is_one_twice() {
        let create = Create {
            name: Some("g".to_owned()),
            source: Some("h1".to_owned()),
            members: vec!["h2".to_owned(), "h1".to_owned(), "h2".to_owned()],
            pmtu: 1024,
            mcst_id: None,
            start_psn: None,
            va_base: 0,
            stall_timeout_ms: 1000,
            connection: vec![
                "h3=10.0.0.3,02:00:00:00:00:03,0x13"
                    .parse()
                    .expect("a connection"),
            ],
            rules: None,
        };
        let request = create.request();
        let hosts: Vec<_> = request
            .members
            .iter()
            .map(|m| (m.host.as_str(), m.connection.is_some()))
            .collect();
        assert_eq!(hosts, [("h1", false), ("h2", false), ("h3", true)]);
    }

    #[test]
    fn numbers_are_checked_where_they_are_written() {
        assert_eq!(pmtu("4096"), Ok(4096));
        assert!(pmtu("1500").is_err());
        assert_eq!(number("0x10"), Ok(16));
        assert!(number("ten").is_err());
        assert!(qpn("0").is_err() && qpn("0x1000000").is_err() && qpn("0x11").is_ok());
    }
}
