//! Groups over a model of the store and of switches, which answer in any order, or fail.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::state::Reach;
use crate::state::core::tests::{core_over, join};
use crate::state::journal::Batch;
use castnet_topology::Topology;
use castnet_wire::McstId;

/// Two leaves below a spine, with a host at each leaf. All have reported.
const FABRIC: &str = r#"
    switches = [{ name = "leaf0", ports = 2 }, { name = "leaf1", ports = 2 }, { name = "spine0", ports = 2 }]
    hosts = [{ name = "h0", ip = "10.0.0.1", mac = "02:00:00:00:00:00" },
             { name = "h1", ip = "10.0.0.2", mac = "02:00:00:00:00:01" }]
    links = [{ a = "leaf0:0", b = "h0" }, { a = "leaf1:0", b = "h1" },
             { a = "leaf0:1", b = "spine0:0" }, { a = "leaf1:1", b = "spine0:1" }]
"#;
const SWITCHES: [&str; 3] = ["leaf0", "leaf1", "spine0"];
const JOBS: [&str; 3] = ["a", "b", "c"];

/// What is outside of the state.
struct World {
    core: Core,
    /// Rules on each switch, with their generations.
    switches: BTreeMap<&'static str, BTreeMap<McstId, u64>>,
    asked: Vec<Asked>,
    /// Calls that are made, and what became of them.
    called: Vec<(Asked, Result<(), Declined>)>,
    plans: Vec<Planning>,
    /// Plans that are made.
    made: Vec<(Planning, Record, Result<Layout, NoPlan>)>,
    under_way: Option<Batch>,
    /// Groups as they are on disk.
    stored: BTreeMap<String, Record>,
}

impl World {
    fn new() -> Self {
        let topology = Topology::from_toml(FABRIC).unwrap();
        let mut core = core_over(topology);
        for switch in SWITCHES {
            core.facts.set_reach(switch, Reach::Up);
        }
        Self {
            core,
            switches: SWITCHES.map(|switch| (switch, BTreeMap::new())).into(),
            asked: Vec::new(),
            called: Vec::new(),
            plans: Vec::new(),
            made: Vec::new(),
            under_way: None,
            stored: BTreeMap::new(),
        }
    }

    /// Takes what the state asks for. A switch is asked only for what is on disk.
    fn take(&mut self) {
        for effect in std::mem::take(&mut self.core.effects) {
            match effect {
                Effect::Plan(planning) => self.plans.push(planning),
                Effect::Sync(asked) => {
                    let now = self.core.group(&asked.group).unwrap().record();
                    let is_removed = |r: &Record| matches!(r.phase, Phase::Removing(_));
                    let of = |r: &Record| (is_removed(r), r.generation, r.plan.is_some());
                    assert_eq!(self.stored.get(&asked.group).map(of), Some(of(now)));
                    self.asked.push(asked);
                }
                _ => {}
            }
        }
    }

    fn join(&mut self, job: &str, rank: u8) {
        // Where it cannot join now, it does not.
        let _ = self.core.seat_rank(join(job, rank, 2, ""), "h").map(drop);
    }

    fn begin_write(&mut self) {
        if self.under_way.is_none() {
            self.under_way = self.core.next_batch();
        }
    }

    fn end_write(&mut self, is_written: bool) {
        let Some(batch) = self.under_way.take() else {
            return;
        };
        if is_written {
            for (name, record) in batch.groups() {
                match record {
                    Some(record) => drop(self.stored.insert(name.into(), record.clone())),
                    None => drop(self.stored.remove(name)),
                }
            }
        }
        self.core.handle_stored(batch, is_written);
    }

    fn make_plan(&mut self, at: usize) {
        if self.plans.is_empty() {
            return;
        }
        let mut planning = self.plans.swap_remove(at % self.plans.len());
        // It is asked for anew for each attempt.
        for _ in 0..2 {
            if (planning.record)(&mut self.core).is_none() {
                return;
            }
        }
        if let Some(record) = (planning.record)(&mut self.core) {
            let layout = self.core.plan_now(&record);
            self.made.push((planning, record, layout));
        }
    }

    fn end_plan(&mut self, at: usize) {
        if !self.made.is_empty() {
            let (planning, record, layout) = self.made.swap_remove(at % self.made.len());
            (planning.then)(&mut self.core, record, layout);
        }
    }

    /// A switch is asked for what is wanted when the call is made, once that is on disk. It may have done it although the answer says otherwise.
    fn call(&mut self, at: usize, is_done: bool, answer: Result<(), Declined>) {
        if self.asked.is_empty() || self.core.journal.pending() != Pending::Nothing {
            return;
        }
        let asked = self.asked.swap_remove(at % self.asked.len());
        if is_done {
            self.sync(&asked.switch, &asked.group);
        }
        self.called.push((asked, answer));
    }

    fn end_call(&mut self, at: usize) {
        if !self.called.is_empty() {
            let (asked, answer) = self.called.swap_remove(at % self.called.len());
            self.core.handle_synced(&asked.group, asked.number, answer);
        }
    }

    fn answer(&mut self, at: usize, answer: Result<(), Declined>) {
        self.call(at, answer.is_ok(), answer);
        self.end_call(0);
    }

    fn sync(&mut self, switch: &str, group: &str) {
        let rules = self.switches.get_mut(switch).unwrap();
        let Some(entry) = self.core.groups.get(group) else {
            return;
        };
        for mcst_id in entry.record().mcst_ids_left_on(switch) {
            rules.remove(&mcst_id);
        }
        for rule in entry.record().wanted_on(switch) {
            rules.insert(rule.mcst_id, rule.generation);
        }
    }

    /// As a link does it when its switch is connected again, and now and then.
    fn reconcile(&mut self, switch: &'static str) {
        let names = self.core.groups.on_switch(switch);
        let rules = self.switches.get_mut(switch).unwrap();
        rules.retain(|mcst_id, _| self.core.groups.by_mcst_id(*mcst_id).is_some());
        for name in &names {
            self.sync(switch, name);
        }
        let mut wanted = BTreeMap::new();
        for name in &names {
            let record = self.core.group(name).unwrap().record();
            if let Some(version) = record.wanted_version(switch) {
                wanted.insert(name.as_str(), Some(version.generation));
            }
        }
        self.core.settled(switch, &names, &wanted, &BTreeSet::new());
    }

    fn pass(&mut self, time: Duration) {
        self.core.now += time;
        while self.core.poll_timeout().is_some_and(|at| at <= self.core.now) {
            self.core.handle_timeout();
            self.take();
        }
    }

    /// From now on all goes well.
    fn settle(&mut self) {
        self.end_write(true);
        self.core.store_error = None;
        while self.core.resume() {}
        for switch in SWITCHES {
            self.core.facts.set_reach(switch, Reach::Up);
        }
        self.core.reported();
        for round in 0..200 {
            self.take();
            self.pass(Duration::ZERO);
            self.begin_write();
            self.end_write(true);
            self.make_plan(0);
            self.end_plan(0);
            self.call(0, true, Ok(()));
            self.end_call(0);
            self.take();
            if round % 50 == 49 {
                self.write_all();
                SWITCHES.into_iter().for_each(|switch| self.reconcile(switch));
            }
        }
        self.write_all();
    }

    fn write_all(&mut self) {
        while self.core.journal.pending() != Pending::Nothing {
            self.begin_write();
            self.end_write(true);
        }
    }
}

fn unreachable() -> Declined {
    Declined::unreachable("leaf0", "it is silent")
}

fn no_room(switch: &str) -> Declined {
    Declined {
        failure: Failure::at(switch, Cause::NoRoom, "refuses: full"),
        words: "full".into(),
        is_of_memory: false,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Join(usize, u8),
    Leave(usize, u8),
    Destroy(usize),
    Begin,
    End(bool),
    StoreFails,
    StoreWorks,
    MakePlan(usize),
    EndPlan(usize),
    Call(usize),
    Unreachable(usize, bool),
    NoRoom(usize),
    EndCall(usize),
    Down(usize),
    /// It has not reported yet.
    Silent(usize),
    Up(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let (job, any, switch) = (|| 0..JOBS.len(), || 0..8usize, || 0..SWITCHES.len());
    prop_oneof![
        6 => (job(), 0..2u8).prop_map(|(job, rank)| Act::Join(job, rank)),
        1 => (job(), 0..2u8).prop_map(|(job, rank)| Act::Leave(job, rank)),
        1 => job().prop_map(Act::Destroy),
        6 => Just(Act::Begin),
        6 => proptest::bool::weighted(0.9).prop_map(Act::End),
        1 => Just(Act::StoreFails),
        2 => Just(Act::StoreWorks),
        4 => any().prop_map(Act::MakePlan),
        4 => any().prop_map(Act::EndPlan),
        6 => any().prop_map(Act::Call),
        1 => (any(), proptest::bool::ANY).prop_map(|(at, is_done)| Act::Unreachable(at, is_done)),
        1 => any().prop_map(Act::NoRoom),
        6 => any().prop_map(Act::EndCall),
        1 => switch().prop_map(Act::Down),
        1 => switch().prop_map(Act::Silent),
        2 => switch().prop_map(Act::Up),
        3 => prop_oneof![Just(0), 1..20_000u64].prop_map(Act::Pass),
    ]
}

fn apply(world: &mut World, act: &Act) {
    match *act {
        Act::Join(job, rank) => world.join(JOBS[job], rank),
        Act::Leave(job, rank) => drop(world.core.leave_collective(JOBS[job], rank.into())),
        Act::Destroy(job) => drop(world.core.destroy(JOBS[job])),
        Act::Begin => world.begin_write(),
        Act::End(is_written) => world.end_write(is_written && world.core.store_error.is_none()),
        Act::StoreFails => {
            let error = crate::store::StoreError::Closed { store: "s".into() };
            world.core.store_error = Some(error.into());
        }
        Act::StoreWorks => {
            world.core.store_error = None;
            while world.core.resume() {}
        }
        Act::MakePlan(at) => world.make_plan(at),
        Act::EndPlan(at) => world.end_plan(at),
        Act::Call(at) => world.call(at, true, Ok(())),
        Act::Unreachable(at, is_done) => world.call(at, is_done, Err(unreachable())),
        Act::NoRoom(at) => world.call(at, false, Err(no_room(SWITCHES[at % SWITCHES.len()]))),
        Act::EndCall(at) => world.end_call(at),
        Act::Down(switch) => {
            let down = Reach::Down("it is silent".into());
            world.core.facts.set_reach(SWITCHES[switch], down);
            world.core.reported();
        }
        Act::Silent(switch) => {
            world.core.facts.set_reach(SWITCHES[switch], Reach::Unknown);
        }
        Act::Up(switch) => {
            world.core.facts.set_reach(SWITCHES[switch], Reach::Up);
            world.core.reported();
        }
        Act::Pass(ms) => world.pass(Duration::from_millis(ms)),
    }
    world.take();
}

proptest! {
    /// After the last fault each group rests, and switches have what the groups want there, and nothing else.
    #[test]
    fn in_the_end_each_group_is_where_its_record_says(acts in proptest::collection::vec(act(), 1..120)) {
        let mut world = World::new();
        for act in &acts {
            apply(&mut world, act);
        }
        world.settle();
        let mut wanted: BTreeMap<&str, BTreeMap<McstId, u64>> =
            SWITCHES.map(|switch| (switch, BTreeMap::new())).into();
        for entry in world.core.groups.after(None) {
            let record = entry.record();
            prop_assert!(!record.phase.needs_driver(), "{} is {}", record.name, entry.phase_name());
            prop_assert!(entry.work.is_none(), "{}", record.name);
            for (switch, rules) in &mut wanted {
                rules.extend(record.wanted_on(switch).iter().map(|rule| (rule.mcst_id, rule.generation)));
            }
        }
        prop_assert_eq!(&world.switches, &wanted);
        prop_assert!(world.asked.is_empty() && world.plans.is_empty() && world.made.is_empty());
        let works = &world.core.works;
        prop_assert!(world.core.waiting.is_empty() && works.to_report.is_empty());
    }
}

/// A job of both hosts, up to the first call to a switch.
fn with_job() -> World {
    let mut world = World::new();
    world.join("a", 0);
    world.join("a", 1);
    step(&mut world);
    world.make_plan(0);
    world.end_plan(0);
    step(&mut world);
    world
}

/// What is staged is on disk, and what follows is done.
fn step(world: &mut World) {
    world.begin_write();
    world.end_write(true);
    world.pass(Duration::ZERO);
    world.take();
}

fn phase(world: &World) -> Phase {
    world.core.group("a").unwrap().record().phase
}

#[test]
fn switches_are_asked_from_the_leaves_up_and_from_the_top_down() {
    let mut world = with_job();
    let mut order = Vec::new();
    while let Some(asked) = world.asked.first() {
        order.push(asked.switch.clone());
        world.answer(0, Ok(()));
        step(&mut world);
    }
    assert_eq!(phase(&world), Phase::Active);
    let plan = world.core.group("a").unwrap().record().plan.clone().unwrap();
    let tree: Vec<_> = plan.tree.iter().map(|s| s.name.clone()).collect();
    assert!(order.iter().eq(tree.iter().rev()), "{order:?}");
    world.core.destroy("a").unwrap();
    step(&mut world);
    order.clear();
    while let Some(asked) = world.asked.first() {
        order.push(asked.switch.clone());
        world.answer(0, Ok(()));
        world.take();
    }
    assert_eq!(order, tree);
    step(&mut world);
    assert!(world.core.group("a").is_err());
}

/// Whoever ends the group does not wait for the reports that it waits for.
#[test]
fn a_group_that_waits_for_reports_ends_at_once() {
    let mut world = World::new();
    world.core.facts.set_reach("spine0", Reach::Unknown);
    world.join("a", 0);
    world.join("a", 1);
    step(&mut world);
    world.make_plan(0);
    world.end_plan(0);
    assert_eq!(phase(&world), Phase::Installing);
    assert!(world.core.works.to_report.contains("a"));
    world.core.destroy("a").unwrap();
    step(&mut world);
    step(&mut world);
    assert!(world.core.group("a").is_err());
}

/// Each report lets it be planned again; none gives it more time.
#[test]
fn reports_are_waited_for_until_the_time_is_over() {
    let mut world = World::new();
    world.core.facts.set_reach("spine0", Reach::Unknown);
    world.join("a", 0);
    world.join("a", 1);
    step(&mut world);
    let limit = world.core.config.timeouts.host;
    for _ in 0..3 {
        assert_eq!(world.plans.len(), 1);
        world.make_plan(0);
        world.end_plan(0);
        world.pass(limit / 4);
        assert!(world.plans.is_empty(), "nothing new was reported");
        world.core.reported();
        world.pass(Duration::ZERO);
    }
    world.make_plan(0);
    world.end_plan(0);
    world.pass(limit / 4);
    step(&mut world);
    step(&mut world);
    assert_eq!(phase(&world), Phase::Refused);
    let record = world.core.group("a").unwrap().record();
    let reason = &record.ended.as_ref().unwrap().failure.reason;
    assert!(reason.ends_with(&format!("; waited {limit:?}")), "{reason}");
}

/// A report that came while the group was planned is not missed.
#[test]
fn what_is_reported_while_a_group_is_planned_counts() {
    for is_new in [false, true] {
        let mut world = World::new();
        world.join("a", 0);
        world.join("a", 1);
        step(&mut world);
        world.make_plan(0);
        let (planning, record, _) = world.made.remove(0);
        if is_new {
            world.core.reported();
        }
        let layout = Err(NoPlan::NotYet(unreachable().failure));
        (planning.then)(&mut world.core, record, layout);
        world.take();
        assert_eq!(world.plans.len(), usize::from(is_new));
    }
}

/// The group was written off, or what called for the call was taken back, while the switch was asked.
#[test]
fn an_answer_counts_only_for_what_was_asked_for() {
    // Another group has its name.
    let mut world = with_job();
    world.core.groups.remove("a").unwrap();
    world.join("a", 0);
    world.join("a", 1);
    let number = world.asked[0].number;
    world.core.handle_synced("a", number, Ok(()));
    assert!(world.core.group("a").unwrap().confirmed.is_empty());
    // It has another plan.
    let mut world = with_job();
    let number = world.asked[0].number;
    let plan = world.core.group("a").unwrap().record().plan.clone().unwrap();
    let other = Plan {
        shortages: "none".into(),
        ..(*plan).clone()
    };
    world.core.try_change("a", |r| r.plan = Some(Arc::new(other)));
    world.core.handle_synced("a", number, Ok(()));
    assert!(world.core.group("a").unwrap().confirmed.is_empty());
    step(&mut world);
    assert_eq!(world.asked.len(), 2, "the switch is asked for the other one");
    // Once is enough.
    let number = world.asked[1].number;
    for _ in 0..2 {
        world.core.handle_synced("a", number, Ok(()));
    }
    assert_eq!(world.core.group("a").unwrap().confirmed.len(), 1);
}

/// Until the store works, the switches are left alone.
#[test]
fn what_cannot_be_stored_is_done_when_the_store_works() {
    let mut world = World::new();
    world.join("a", 0);
    step(&mut world);
    world.join("a", 1);
    world.begin_write();
    world.end_write(false);
    world.pass(Duration::ZERO);
    assert!(world.plans.is_empty());
    assert!(world.core.group("a").unwrap().work.is_none());
    world.core.resume();
    world.join("a", 1);
    step(&mut world);
    assert_eq!(world.plans.len(), 1);
}

/// One that restarts all the time does not keep its group waiting for ever.
#[test]
fn a_switch_that_is_lost_again_and_again_is_given_up() {
    let mut world = with_job();
    let mut calls = 0;
    while phase(&world) == Phase::Installing {
        world.answer(0, Ok(()));
        calls += 1;
        for switch in SWITCHES {
            world.core.unsettled(switch, "a", "it was restarted");
        }
        step(&mut world);
        if world.made.is_empty() && !world.plans.is_empty() {
            world.make_plan(0);
            world.end_plan(0);
        }
        assert!(calls <= CALLS_PER_SWITCH_MAX * SWITCHES.len() + 1, "{calls}");
    }
}

/// A group that is removed for good goes when no switch knows it, and not before.
#[test]
fn a_group_is_gone_when_all_its_switches_are_clean() {
    let mut world = with_job();
    for _ in SWITCHES {
        world.answer(0, Ok(()));
        step(&mut world);
    }
    world.core.destroy("a").unwrap();
    step(&mut world);
    world.answer(0, Err(unreachable()));
    for _ in 0..2 {
        step_if_staged(&mut world);
        world.answer(0, Ok(()));
    }
    step_if_staged(&mut world);
    let entry = world.core.group("a").unwrap();
    assert_eq!(entry.record().phase, Phase::Removing(After::Gone));
    assert!(entry.work.is_none() && entry.record().placed.len() == 1);
    SWITCHES.into_iter().for_each(|switch| world.reconcile(switch));
    step(&mut world);
    step_if_staged(&mut world);
    assert!(world.core.group("a").is_err());
}

fn step_if_staged(world: &mut World) {
    if world.core.journal.pending() != Pending::Nothing {
        step(world);
    }
    world.take();
}

/// Once the controller stops, nothing begins.
#[test]
fn nothing_is_begun_after_the_end() {
    let mut world = with_job();
    world.core.destroy("a").unwrap();
    world.core.journal.close();
    let number = world.asked[0].number;
    world.core.handle_synced("a", number, Ok(()));
    world.core.drive("a");
    world.pass(Duration::ZERO);
    assert_eq!((world.asked.len(), world.plans.len()), (1, 0));

    // Nothing is placed, so nobody is asked.
    let mut world = World::new();
    world.join("a", 0);
    world.core.destroy("a").unwrap();
    world.begin_write();
    world.end_write(true);
    world.core.journal.close();
    world.pass(Duration::ZERO);
    assert!(world.core.group("a").is_ok());
}

/// Its members come and go while it waits for the store: it waits no longer for that.
#[test]
fn changes_of_others_keep_no_work_waiting() {
    let mut world = with_job();
    world.call(0, true, Ok(()));
    world.core.destroy("a").unwrap();
    world.end_call(0);
    world.begin_write();
    world.core.try_change("a", |r| r.owner = "somebody".into());
    world.end_write(true);
    world.pass(Duration::ZERO);
    world.take();
    assert_eq!(world.asked.len(), 1, "it is removed");
}

/// Changed rules go to one switch after the other: the leaves first, or the top one.
#[test]
fn changed_rules_go_to_the_switches_in_order() {
    for leaves_first in [false, true] {
        let mut world = running();
        let plan = world.core.group("a").unwrap().record().plan.clone().unwrap();
        let mut order: Vec<String> = plan.tree.iter().map(|s| s.name.clone()).collect();
        if leaves_first {
            order.reverse();
        }
        update(&mut world, leaves_first);
        step(&mut world);
        for switch in &order {
            let asked: Vec<&String> = world.asked.iter().map(|asked| &asked.switch).collect();
            assert_eq!(asked, [switch]);
            world.answer(0, Ok(()));
            world.take();
        }
        let entry = world.core.group("a").unwrap();
        assert!(world.asked.is_empty() && entry.work.is_none() && entry.is_confirmed());
    }
}

/// A later update takes the place of an earlier one. If it cannot be stored, the earlier one goes on where it was.
#[test]
fn an_update_goes_on_when_the_next_one_could_not_be_stored() {
    for is_written in [false, true] {
        let mut world = running();
        update(&mut world, true);
        step(&mut world);
        world.answer(0, Ok(()));
        world.take();
        update(&mut world, true);
        world.begin_write();
        world.end_write(is_written);
        // It was asked for the earlier one.
        world.answer(0, Ok(()));
        assert!(world.asked.is_empty());
        world.core.resume();
        world.pass(Duration::ZERO);
        world.take();
        let mut asked = 0;
        while !world.asked.is_empty() {
            world.answer(0, Ok(()));
            world.take();
            asked += 1;
        }
        assert_eq!(asked, SWITCHES.len() - usize::from(!is_written));
        let entry = world.core.group("a").unwrap();
        assert!(entry.work.is_none() && entry.is_confirmed());
    }
}

/// The end of a group does not wait for a switch that is to get changed rules.
#[test]
fn a_group_whose_rules_change_ends_at_once() {
    let mut world = running();
    update(&mut world, false);
    step(&mut world);
    world.core.destroy("a").unwrap();
    step(&mut world);
    assert_eq!(world.asked.len(), 2, "it is removed");
}

/// A job that runs on all switches.
fn running() -> World {
    let mut world = with_job();
    for _ in SWITCHES {
        world.answer(0, Ok(()));
        step(&mut world);
    }
    assert_eq!(phase(&world), Phase::Active);
    world
}

fn update(world: &mut World, leaves_first: bool) {
    world.core.try_change("a", |r| r.generation += 1);
    world.core.update("a", leaves_first);
}
