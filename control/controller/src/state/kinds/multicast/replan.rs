//! A running group whose tree has lost a link gets another tree, and its stream goes on.
//!
//! Members keep their queue pairs, PSNs and addresses. The rules are a new generation that does not carry on the state of the
//! old one, as paths of a switch may lead to other receivers now: each switch learns from the next data and the answers to it
//! how far its paths are, like one that was restarted, and acknowledges nothing until then, so M1 and M2 hold. What was lost with
//! the link is sent again by the source, after a NAK or its time-out.

use std::sync::Arc;

use castnet_rules::Endpoint;

use super::late::has_host;
use crate::state::broken_links;
use crate::state::core::Core;
use crate::state::kinds::Kind;
use crate::state::planning::Layout;
use crate::state::record::{Plan, Record};

/// The group with the members that take part, if links of it are down.
pub(crate) fn wanted(core: &Core, name: &str) -> Option<Record> {
    let entry = core.groups.get(name)?;
    let record = entry.record();
    if !broken_links::is_watched(record) || broken_links::down(core, entry).is_empty() {
        return None;
    }
    let before = record.plan.clone()?;
    let mut wanted = record.clone();
    wanted.generation += 1;
    if let Kind::Multicast(kind) = &mut wanted.kind {
        let is_in = |host: &str| before.rules.values().any(|rule| has_host(rule, host));
        Arc::make_mut(&mut kind.members).retain(|m| is_in(&m.host));
    }
    Some(wanted)
}

/// Stores the new tree. Fails if members would have to connect in another way.
pub(crate) fn place(core: &mut Core, wanted: &Record, layout: Layout) -> Result<(), &'static str> {
    let Layout {
        plan, new_mcst_ids, ..
    } = layout;
    match &wanted.plan {
        Some(before) => serves_all_of(&plan, before)?,
        None => return Err("it has no plan"),
    }
    if let Some(entry) = core.groups.get_mut(&wanted.name) {
        entry.live.links_down.clear();
        entry.note.clear();
    }
    core.try_change(&wanted.name, |r| {
        r.generation = wanted.generation;
        r.own_mcst_ids.extend(new_mcst_ids);
        r.placed.extend(plan.rules.keys().cloned());
        r.plan = Some(Arc::new(plan));
    });
    Ok(())
}

/// Fails unless each member finds its queue pair, and the address of its switch, where they were.
fn serves_all_of(plan: &Plan, before: &Plan) -> Result<(), &'static str> {
    for (switch, old) in &before.rules {
        let mut hosts = old
            .endpoints
            .iter()
            .filter(|e| e.next_hop.host().is_some())
            .peekable();
        let Some(new) = plan.rules.get(switch) else {
            match hosts.peek() {
                Some(_) => return Err("members would have to connect to another switch"),
                None => continue,
            }
        };
        let finds = |old: &Endpoint| {
            let same = |new: &Endpoint| {
                (new.port, new.virtual_qpn, &new.next_hop) == (old.port, old.virtual_qpn, &old.next_hop)
            };
            new.endpoints.iter().any(same)
        };
        if hosts.peek().is_some() && new.mcst_id != old.mcst_id {
            return Err(
                "the other one passes routers, and the address that its members connected to is not routed to their switches",
            );
        }
        if !hosts.all(finds) {
            return Err("members would have to connect to other queue pairs");
        }
    }
    Ok(())
}
