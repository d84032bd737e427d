//! A running group whose tree has lost a link gets another tree, and its stream goes on.
//!
//! Members keep their queue pairs, PSNs and addresses. The rules are a new generation that does not carry on the state of the
//! old one, as paths of a switch may lead to other receivers now: each switch learns from the next data and the answers to it
//! how far its paths are, like one that was restarted, and acknowledges nothing until then, so M1 and M2 hold. What was lost with
//! the link is sent again by the source, after a NAK or its time-out.

use std::sync::Arc;

use castnet_rules::Endpoint;

use super::late::has_host;
use crate::broken_links;
use crate::core::{Core, Shared};
use crate::driver;
use crate::kinds::Kind;
use crate::planning::{Layout, NoPlan};
use crate::record::{Plan, Record};

/// Finds a tree without the links that are down. If there is none, the state of the group says why.
pub(crate) async fn replan(shared: Arc<Shared>, name: String, lost: String) {
    let wanted = |core: &mut Core| {
        core.give_up_all_joining(&name, &lost);
        wanted(core, &name).ok_or(())
    };
    let then = |core: &mut Core, wanted: Record, layout: Result<Layout, _>| {
        let is_same = |r: &Record| r.generation + 1 == wanted.generation && r.phase.has_run();
        if !core.groups.get(&name).is_some_and(|e| is_same(e.record())) {
            return;
        }
        let layout = layout.and_then(|layout| driver::ready(core, layout));
        let placed = match layout {
            Ok(layout) => place(core, &wanted, layout).map_err(str::to_owned),
            Err(NoPlan::NotYet(failure) | NoPlan::Never(failure)) => Err(failure.reason),
        };
        match placed {
            Ok(()) => {
                tracing::warn!(group = name, lost, "gets another tree");
                core.update(&name, true);
            }
            Err(reason) => {
                let note = format!("no other tree: {reason}");
                if let Some(entry) = core.groups.get_mut(&name)
                    && entry.note != note
                {
                    tracing::warn!(group = name, lost, reason, "gets no other tree");
                    entry.note = note;
                    core.notify(&name);
                }
            }
        }
    };
    // Otherwise it has another tree already, or does not run any more.
    let _: Result<(), ()> = shared.plan(wanted, then).await;
}

/// The group with the members that take part, if links of it are down.
fn wanted(core: &Core, name: &str) -> Option<Record> {
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
fn place(core: &mut Core, wanted: &Record, layout: Layout) -> Result<(), &'static str> {
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
