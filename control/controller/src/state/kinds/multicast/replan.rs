//! A running group whose tree has lost a link gets another tree, and its stream goes on.
//!
//! Members keep their queue pairs, PSNs and addresses. The rules are a new generation that does not carry on the state of the
//! old one, as paths of a switch may lead to other receivers now: each switch learns from the next data and the answers to it
//! how far its paths are, like one that was restarted, and acknowledges nothing until then, so M1 and M2 hold. What was lost with
//! the link is sent again by the source, after a NAK or its time-out.

use std::sync::Arc;

use castnet_rules::Endpoint;

use super::late::has_host;
use crate::state::{Core, Entry, Layout, NoPlan, Plan, Planning, Record, broken_links, planning};

/// How the note of a group begins that gets no other tree.
const NO_OTHER_TREE: &str = "no other tree: ";

/// Finds a tree without the links that are down. If there is none, the state of the group says why.
pub(crate) fn planning(name: String, lost: String) -> Planning {
    let again = lost.clone();
    Planning {
        record: Box::new(move |core| begin(core, &name, &lost)),
        then: Box::new(move |core, wanted, layout| end(core, &wanted, layout, &again)),
    }
}

/// The group with the members that take part, if links of it are down. No receiver joins the stream meanwhile.
fn begin(core: &mut Core, name: &str, lost: &str) -> Option<Record> {
    // Those that join a tree without broken links go on.
    wanted(core, name)?;
    core.give_up_all_joining(name, lost);
    wanted(core, name)
}

fn wanted(core: &Core, name: &str) -> Option<Record> {
    let entry = core.groups.get(name)?;
    let record = entry.record();
    if !broken_links::is_watched(record) || broken_links::down(core, entry).is_empty() {
        return None;
    }
    let before = record.plan.clone()?;
    let mut wanted = record.clone();
    wanted.generation += 1;
    if let Some(kind) = wanted.multicast_mut() {
        let is_in = |host: &str| before.rules.values().any(|rule| has_host(rule, host));
        Arc::make_mut(&mut kind.members).retain(|m| is_in(&m.host));
    }
    Some(wanted)
}

/// Gives the group the new tree. If there is none, its state says why. `wanted`: as it began.
fn end(core: &mut Core, wanted: &Record, layout: Result<Layout, NoPlan>, lost: &str) {
    let is_same = |r: &Record| {
        let has_plan = wanted.plan.as_ref().is_some_and(|plan| r.is_placed_by(plan));
        has_plan && r.generation + 1 == wanted.generation && r.phase.has_run()
    };
    let name = &wanted.name;
    if !core.groups.get(name).is_some_and(|e| is_same(e.record())) {
        return;
    }
    let layout = layout.and_then(|layout| planning::ready(core, layout));
    let placed = match layout {
        Ok(layout) => place(core, wanted, layout).map_err(str::to_owned),
        Err(NoPlan::NotYet(failure) | NoPlan::Never(failure)) => Err(failure.reason),
    };
    match placed {
        Ok(()) => {
            if core.may_warn_of(name) {
                tracing::warn!(group = name, lost, "gets another tree");
            }
            core.update(name, true);
        }
        Err(reason) => {
            let note = format!("{NO_OTHER_TREE}{reason}");
            if let Some(entry) = core.groups.get_mut(name)
                && entry.note != note
            {
                entry.note = note;
                if core.may_warn_of(name) {
                    tracing::warn!(group = name, lost, reason, "gets no other tree");
                }
                core.notify(name);
            }
        }
    }
}

/// All links of a group are up: it needs no other tree.
pub(crate) fn forget_failure(entry: &mut Entry) {
    if entry.note.starts_with(NO_OTHER_TREE) {
        entry.note.clear();
    }
}

/// Stores the new tree. Fails if members would have to connect in another way.
fn place(core: &mut Core, wanted: &Record, layout: Layout) -> Result<(), &'static str> {
    match &wanted.plan {
        Some(before) => serves_all_of(&layout.plan, before)?,
        None => return Err("it has no plan"),
    }
    if let Some(entry) = core.groups.get_mut(&wanted.name) {
        entry.links_down.clear();
        entry.note.clear();
    }
    core.try_change(&wanted.name, |r| {
        r.generation = wanted.generation;
        r.place(layout);
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

#[cfg(test)]
mod tests {
    use castnet_topology::Topology;

    use super::*;
    use crate::state::core::tests::core_over;
    use crate::state::fabric::tests::port;
    use crate::state::fabric::{PortReport, Reach, SwitchReport};
    use crate::state::kinds::multicast::late::Late;
    use crate::state::kinds::multicast::refine::tests::{run, set_late};

    /// Two leaves below two spines; h0 is at leaf0, the others are at leaf1.
    fn fabric() -> Core {
        let mut file = String::new();
        for name in ["leaf0", "leaf1", "spine0", "spine1"] {
            file += &format!("[[switches]]\nname = \"{name}\"\nports = 4\n");
        }
        for (host, at) in [(0, "leaf0:0"), (1, "leaf1:0"), (2, "leaf1:1")] {
            file += &format!(
                "[[hosts]]\nname = \"h{host}\"\nip = \"10.0.0.{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
                 [[links]]\na = \"{at}\"\nb = \"h{host}\"\n",
                n = host + 1
            );
        }
        for (leaf, spine) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let port = 2 + spine;
            file += &format!("[[links]]\na = \"leaf{leaf}:{port}\"\nb = \"spine{spine}:{leaf}\"\n");
        }
        let topology = Topology::from_toml(&file).unwrap();
        let mut core = core_over(topology);
        for name in ["leaf0", "leaf1", "spine0", "spine1"] {
            core.facts.set_reach(name, Reach::Up);
        }
        core
    }

    /// The link of leaf0 that group g uses goes down.
    fn break_link(core: &mut Core) {
        let plan = core.group("g").unwrap().record().plan.clone().unwrap();
        let mut up = plan.rules["leaf0"]
            .endpoints
            .iter()
            .filter(|e| e.next_hop.host().is_none());
        let (number, port) = port("up", up.next().unwrap().port.index() as u8);
        let report = SwitchReport {
            ports: [(number, PortReport { up: false, ..port })].into(),
            neighbours: Vec::new(),
        };
        core.facts.report("leaf0", report);
    }

    fn waits(core: &Core) -> bool {
        let (_, kind) = core.multicast("g").unwrap();
        kind.is_waiting("h1")
    }

    /// The link was back, or the group had another tree already.
    #[test]
    fn who_joins_a_tree_without_broken_links_goes_on() {
        let mut core = fabric();
        run(&mut core, "g", 1, "switches", &[0, 1, 2]);
        set_late(&mut core, "g", Some(Late::Waiting));
        assert!(begin(&mut core, "g", "a link is down").is_none());
        assert!(waits(&core));
        break_link(&mut core);
        let wanted = begin(&mut core, "g", "a link is down").unwrap();
        assert!(!waits(&core));
        // It was taken out, and the tree is another one.
        let members = &wanted.multicast().unwrap().members;
        let members: Vec<&str> = members.iter().map(|m| m.host.as_str()).collect();
        assert_eq!((members, wanted.generation), (vec!["h0", "h2"], 3));
    }

    #[test]
    fn another_group_of_the_name_keeps_its_tree() {
        let mut core = fabric();
        let generation = |core: &Core| core.group("g").unwrap().record().generation;
        for is_other in [true, false] {
            run(&mut core, "g", 1, "switches", &[0, 1, 2]);
            break_link(&mut core);
            let wanted = begin(&mut core, "g", "").unwrap();
            let planned = core.plan_now(&wanted);
            if is_other {
                core.forget("g").unwrap();
                run(&mut core, "g", 1, "switches", &[0, 1, 2]);
            }
            end(&mut core, &wanted, planned, "");
            assert_eq!(generation(&core), if is_other { 1 } else { 2 });
            core.forget("g").unwrap();
        }
    }
}
