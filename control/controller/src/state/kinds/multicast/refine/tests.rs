//! When a group is refined, and which one.

use std::fmt::Write as _;

use castnet_group::MulticastSettings;
use castnet_planner::static_core;
use castnet_proto::convert::NewGroup;
use castnet_rules::HostEndpoint;
use castnet_topology::Topology;
use castnet_wire::Psn;

use super::*;
use crate::state::core::tests::{core_over, end, mcst_id, write};
use crate::state::kinds::multicast::late::Late;
use crate::state::kinds::multicast::tests::request;
use crate::state::{Joining, Kind, Multicast};

/// Four leaves with a host each below a programmable router that is connected.
pub(crate) fn star() -> Core {
    let mut file = "group_addresses = \"239.200.0.0/24\"\n".to_owned();
    file += "[[switches]]\nname = \"core\"\nkind = \"router\"\nprogrammable = true\nports = 4\n";
    for leaf in 0..4 {
        let _ = write!(
            file,
            "[[switches]]\nname = \"leaf{leaf}\"\nports = 2\nmcst_prefix = \"10.21{leaf}.0.0/24\"\n\
             [[hosts]]\nname = \"h{leaf}\"\nip = \"10.0.0.{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
             [[links]]\na = \"leaf{leaf}:0\"\nb = \"h{leaf}\"\n[[links]]\na = \"leaf{leaf}:1\"\nb = \"core:{leaf}\"\n",
            n = leaf + 1
        );
    }
    let mut topology = Topology::from_toml(&file).unwrap();
    let layout = static_core::layout(&topology, "239.1.0.0/16".parse().unwrap()).unwrap();
    for (address, route) in layout.addresses {
        topology.add_multicast_route(address, route).unwrap();
    }
    let mut core = core_over(topology);
    core.facts.set_reach("core", Reach::Up);
    core
}

/// A group of these hosts that runs on all its switches: the first one sends.
pub(crate) fn run(core: &mut Core, name: &str, number: u8, distribution: &str, hosts: &[u8]) {
    let request = request_of(name, distribution, hosts);
    let kind = Kind::Multicast(Multicast::new(request, Psn::new(0), 100));
    let mut record = Record::new(name.into(), (mcst_id(number), Vec::new()), kind);
    (record.phase, record.generation) = (Phase::Active, 1);
    let layout = core.plan_now(&record).unwrap();
    record.own_mcst_ids = layout.new_mcst_ids;
    record.placed = layout.plan.rules.keys().cloned().collect();
    record.plan = Some(Arc::new(layout.plan));
    core.add(record).unwrap();
    confirm(core, name);
}

fn request_of(name: &str, distribution: &str, hosts: &[u8]) -> NewGroup {
    let end = |number: &u8| HostEndpoint {
        name: format!("h{number}"),
        ..end(number + 1)
    };
    NewGroup {
        name: name.into(),
        settings: MulticastSettings {
            distribution: distribution.parse().unwrap(),
            ..MulticastSettings::default()
        },
        ..request(hosts.iter().map(end))
    }
}

/// Sets which part of the stream the first receiver has.
pub(crate) fn set_late(core: &mut Core, name: &str, late: Option<Late>) {
    core.try_change(name, |r| {
        let Some(kind) = r.multicast_mut() else { return };
        let member = &mut Arc::make_mut(&mut kind.members)[1];
        if let Joining::Joined(seat) = &mut Arc::make_mut(member).state {
            seat.late = late;
        }
    });
}

fn confirm(core: &mut Core, name: &str) {
    let entry = core.groups.get_mut(name).unwrap();
    entry.confirmed = entry.record().placed.clone();
}

fn refinement(core: &Core, name: &str) -> Option<Ipv4Addr> {
    let plan = core.group(name).unwrap().record().plan.as_ref()?;
    Some(plan.refinement.as_ref()?.address)
}

/// How often a task was asked for to refine a group.
fn asked(core: &mut Core) -> usize {
    let refines = |effect: &Effect| matches!(effect, Effect::Refine(_));
    core.effects.drain(..).filter(refines).count()
}

#[test]
fn a_group_is_refined_for_the_plan_that_it_has() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    let draft = core.begin_refinement("g").unwrap();
    let address = draft.refinement.address;
    assert!(core.begin_refinement("g").is_none(), "it is being refined");
    core.finish_refinement("g", draft);
    assert_eq!(refinement(&core, "g"), Some(address));
    assert_eq!(core.group("g").unwrap().record().generation, 2);
    // With its address, its members and its generation.
    run(&mut core, "other", 2, "static", &[0, 1, 2]);
    let draft = core.begin_refinement("other").unwrap();
    core.forget("other").unwrap();
    run(&mut core, "other", 2, "static", &[0, 1, 2]);
    core.finish_refinement("other", draft);
    assert_eq!(refinement(&core, "other"), None);
}

/// Each change of a group that was not confirmed asked for one more task, which asked for the next one.
#[test]
fn one_task_at_a_time_refines_a_group() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    for owner in ["a", "b", "c"] {
        core.try_change("g", |r| r.owner = owner.into());
    }
    assert_eq!(asked(&mut core), 1);
    core.groups.get_mut("g").unwrap().confirmed.clear();
    assert!(core.begin_refinement("g").is_none());
    core.refine_all();
    assert_eq!(asked(&mut core), 1, "until all its switches have it");
    confirm(&mut core, "g");
    // A receiver may wait for the next message for days.
    set_late(&mut core, "g", Some(Late::Waiting));
    assert!(core.begin_refinement("g").is_none());
    assert_eq!(asked(&mut core), 0);
    set_late(&mut core, "g", Some(Late::From(Psn::new(9))));
    assert_eq!(asked(&mut core), 1);
    assert!(core.begin_refinement("g").is_some());
}

/// Its record has the address that routers copy for it.
#[test]
fn no_group_is_refined_beside_one_whose_record_does_not_read() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    core.set_apart.insert("unread".into(), "does not read".into());
    assert!(core.begin_refinement("g").is_none());
    core.set_apart.clear();
    assert!(core.begin_refinement("g").is_some());
}

#[test]
fn a_group_is_refined_again_after_a_write_that_fails() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    write(&mut core);
    let draft = core.begin_refinement("g").unwrap();
    let address = draft.refinement.address;
    core.finish_refinement("g", draft);
    let mut batch = core.journal.take(|_| None).unwrap();
    core.take_back(&mut batch);
    core.effects.clear();
    assert!(core.resume());
    assert_eq!(asked(&mut core), 1);
    core.now = core.poll_timeout().expect("addresses are looked for");
    core.handle_timeout();
    let router = core.wanted_routes("core", Some(address)).unwrap();
    assert!(router.routes.is_empty());
    assert!(core.begin_refinement("g").is_some());
}

/// It was destroyed, and the routers had forgotten it when that could not be stored.
#[test]
fn a_group_that_is_there_again_has_its_address() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    let draft = core.begin_refinement("g").unwrap();
    let address = draft.refinement.address;
    core.finish_refinement("g", draft);
    write(&mut core);
    // Its switches get the changed rules.
    core.handle_timeout();
    core.effects.clear();
    core.forget("g").unwrap();
    let mut batch = core.journal.take(|_| None).unwrap();
    core.now = core.poll_timeout().expect("addresses are looked for");
    core.handle_timeout();
    let has = |core: &Core| {
        let router = core.wanted_routes("core", Some(address)).unwrap();
        router.routes.len() == 1
    };
    assert!(!has(&core));
    core.take_back(&mut batch);
    core.effects.clear();
    core.resume();
    assert!(has(&core));
    let syncs = |effect: &Effect| matches!(effect, Effect::SyncRoutes(router) if router == "core");
    assert!(core.effects.iter().any(syncs));
}
