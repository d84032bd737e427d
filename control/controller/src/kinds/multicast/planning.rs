//! From a multicast group to the request that the planner understands, and its answer.

use castnet_planner::{Member, PlanError, Request};
use castnet_rules::HostEndpoint;
use castnet_wire::Qpn;

use super::record::Multicast;
use crate::core::Core;
use crate::lifecycle::{Cause, Failure};
use crate::planning::{NoPlan, load, locate, stand_in, tree_switches};
use crate::record::{Plan, Record};

/// Plans a group over the fabric as it is known now, with the groups that are laid out already.
///
/// A member that has not joined yet is planned for with a stand-in for its queue pair.
pub(crate) fn plan(group: &Multicast, core: &Core, record: &Record) -> Result<Plan, NoPlan> {
    locate(core, record)?;
    let topology = core.facts.topology();
    let request = Request {
        mcst_ids: core.first_offers(record),
        ..request(group, record)
    };
    let plan =
        castnet_planner::plan(&topology, &load(core, &topology, record), &request).map_err(|error| {
            let failure = Failure {
                cause: Cause::Unfit,
                field: field(group, &request, error.field()),
                reason: without_field(&error),
            };
            // Reports trickle in; a file is complete from the start.
            match error {
                PlanError::NoMcstId { switch } => NoPlan::Never(core.no_mcst_id(record, &switch)),
                PlanError::NoPath { .. } if core.facts.file.is_none() => NoPlan::NotYet(failure),
                _ => NoPlan::Never(failure),
            }
        })?;
    Ok(Plan {
        tree: tree_switches(&plan.tree),
        rules: plan.rules,
    })
}

fn request(group: &Multicast, record: &Record) -> Request {
    let member = |(i, host, endpoint): (usize, &str, Option<&HostEndpoint>)| match endpoint {
        Some(e) => Member {
            host: host.into(),
            ip: Some(e.ip),
            mac: Some(e.mac),
            qpn: e.qpn,
            memory: e.memory().copied(),
        },
        None => {
            let (ip, mac) = stand_in(i);
            Member {
                host: host.into(),
                ip: Some(ip),
                mac: Some(mac),
                qpn: Qpn::new(2),
                memory: None,
            }
        }
    };
    let members = group
        .members
        .iter()
        .enumerate()
        .map(|(i, m)| (i, m.host.as_str(), m.state.endpoint()));
    let (source, receivers): (Vec<_>, Vec<_>) = members.partition(|(_, host, _)| *host == group.source);
    let source = source.into_iter().next().unwrap_or((0, &group.source, None));
    Request {
        name: record.name.clone(),
        generation: record.generation,
        mcst_id: record.mcst_id,
        mcst_ids: Default::default(),
        pmtu: group.pmtu,
        start_psn: Some(group.start_psn),
        va_base: group.va_base,
        stall_timeout_ms: group.stall_timeout_ms,
        source: member(source),
        receivers: receivers.into_iter().map(member).collect(),
    }
}

/// The planner's field as the request to create a group has it.
fn field(group: &Multicast, request: &Request, planned: &str) -> String {
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
    let index = host.and_then(|host| group.member(host)).map(|(i, _)| i);
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
