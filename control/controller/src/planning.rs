//! From a record to a plan: the request that the planner understands, and its answer.

use castnet_planner::{LinkLoad, Member, PlanError, Request, Role, Tree, TreeNode, plan};
use castnet_rules::HostEndpoint;
use castnet_wire::{MacAddr, Qpn};

use crate::core::Core;
use crate::fabric::Place;
use crate::lifecycle::{Cause, Failure};
use crate::record::{GroupRecord, PlanRecord, TreeSwitch};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPlan {
    /// Perhaps there will be one when switches have reported more.
    NotYet(Failure),
    /// There is none.
    Never(Failure),
}

/// Plans a group over the fabric as it is known now, with the groups that are laid out already.
///
/// A member that has not joined yet is planned for with a stand-in for its queue pair.
pub(crate) fn plan_group(core: &Core, record: &GroupRecord) -> Result<PlanRecord, NoPlan> {
    locate(core, record)?;
    let topology = core.facts.topology();
    let others = core.groups.values().filter(|e| e.record.name != record.name);
    // Each lane is a group on its links.
    let rules = others.flat_map(|e| {
        let plan = (0..e.record.lanes()).flat_map(|_| &e.record.plan);
        plan.flat_map(|p| p.rules.iter())
    });
    let load = LinkLoad::from_rules(&topology, rules.map(|(switch, rule)| (switch.as_str(), rule)));
    let request = request(record);
    let plan = plan(&topology, &load, &request).map_err(|error| {
        let failure = Failure {
            cause: Cause::Unfit,
            field: field(record, &request, error.field()),
            reason: without_field(&error),
        };
        // Reports trickle in; a file is complete from the start.
        match error {
            PlanError::NoPath { .. } if core.facts.file.is_none() => NoPlan::NotYet(failure),
            _ => NoPlan::Never(failure),
        }
    })?;
    Ok(PlanRecord {
        tree: tree_switches(&plan.tree),
        rules: plan.rules,
    })
}

/// Every member must have a place.
fn locate(core: &Core, record: &GroupRecord) -> Result<(), NoPlan> {
    for (i, member) in record.members.iter().enumerate() {
        let reason = match core.facts.place(&member.host) {
            Place::At { .. } => continue,
            Place::Ambiguous(ports) => {
                let ports: Vec<String> = ports
                    .into_iter()
                    .map(|(switch, port)| format!("{switch}:{port}"))
                    .collect();
                format!(
                    "host {:?} was seen at {} at once; waits for LLDP to tell which of them is a link between switches",
                    member.host,
                    ports.join(" and ")
                )
            }
            Place::Unseen => format!(
                "host {:?}{} was not seen yet; looked for its ARP at the ports without LLDP neighbours of {}",
                member.host,
                member
                    .state
                    .endpoint()
                    .map(|e| format!(" ({}, {})", e.ip, e.mac))
                    .unwrap_or_default(),
                core.facts.switches.keys().cloned().collect::<Vec<_>>().join(", ")
            ),
        };
        let field = format!("members[{i}].host");
        return Err(NoPlan::NotYet(Failure {
            cause: Cause::Unseen,
            field,
            reason,
        }));
    }
    Ok(())
}

fn request(record: &GroupRecord) -> Request {
    let member = |(i, host, endpoint): (usize, &str, Option<&HostEndpoint>)| match endpoint {
        Some(e) => Member {
            host: host.into(),
            ip: Some(e.ip),
            mac: Some(e.mac),
            qpn: e.qpn,
            memory: e.memory,
        },
        None => {
            // Any addresses that no host has: 198.18.0.0/15 is set aside for measurements (RFC 2544).
            let [hi, lo] = (i as u16).to_be_bytes();
            let (ip, mac) = ([198, 18, hi, lo].into(), MacAddr([2, 0, 198, 18, hi, lo]));
            Member {
                host: host.into(),
                ip: Some(ip),
                mac: Some(mac),
                qpn: Qpn::new(2),
                memory: None,
            }
        }
    };
    let members = record
        .members
        .iter()
        .enumerate()
        .map(|(i, m)| (i, m.host.as_str(), m.state.endpoint()));
    let (source, receivers): (Vec<_>, Vec<_>) = members.partition(|(_, host, _)| *host == record.source);
    let source = source.into_iter().next().unwrap_or((0, &record.source, None));
    Request {
        name: record.name.clone(),
        generation: record.generation,
        mcst_id: record.mcst_id,
        pmtu: record.pmtu,
        start_psn: Some(record.start_psn),
        va_base: record.va_base,
        stall_timeout_ms: record.stall_timeout_ms,
        source: member(source),
        receivers: receivers.into_iter().map(member).collect(),
    }
}

/// The planner's field as the request to create a group has it.
fn field(record: &GroupRecord, request: &Request, planned: &str) -> String {
    let (host, rest) = match planned.strip_prefix("source") {
        Some(rest) => (Some(&request.source.host), rest),
        None => match planned.strip_prefix("receivers[").and_then(|r| r.split_once(']')) {
            Some((index, rest)) => (
                index
                    .parse()
                    .ok()
                    .and_then(|i: usize| request.receivers.get(i))
                    .map(|m| &m.host),
                rest,
            ),
            None => (None, planned),
        },
    };
    let index = host.and_then(|host| record.member(host)).map(|(i, _)| i);
    match (index, rest.strip_prefix('.')) {
        (Some(i), Some(inner)) if matches!(inner, "ip" | "mac" | "qpn") || inner.starts_with("memory") => {
            format!("members[{i}].connection.{inner}")
        }
        (Some(i), _) => format!("members[{i}].host"),
        (None, _) if planned.is_empty() => "topology".into(),
        (None, _) => planned.into(),
    }
}

fn without_field(error: &PlanError) -> String {
    let text = error.to_string();
    match text
        .strip_prefix(error.field())
        .and_then(|t| t.strip_prefix(": "))
    {
        Some(rest) if !error.field().is_empty() => rest.into(),
        _ => text,
    }
}

/// The switches of a tree, parents before children.
pub(crate) fn tree_switches(tree: &Tree) -> Vec<TreeSwitch> {
    let mut all = Vec::new();
    let mut next: Vec<(&TreeNode, Option<&str>)> = vec![(&tree.root, None)];
    let mut at = 0;
    while let Some((node, parent)) = next.get(at).copied() {
        at += 1;
        let here = (node.role == Role::Switch).then_some(node.name.as_str());
        all.extend(here.map(|name| TreeSwitch {
            name: name.into(),
            parent: parent.map(String::from),
        }));
        next.extend(node.children.iter().map(|child| (child, here)));
    }
    all
}
