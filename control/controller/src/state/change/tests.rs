//! What cannot be written is taken back whole, whatever happened in between.

use std::any::Any;
use std::sync::Arc;

use castnet_group::CollectiveSettings;
use proptest::prelude::*;

use super::*;
use crate::state::core::tests::{core, join, mcst_id, write};
use crate::state::{After, Collective, HostRecord, Kind};

/// A group of two ranks that wait.
fn record(name: &str, last: u8) -> Record {
    let settings = CollectiveSettings::default();
    let kind = Collective::new(vec!["h0".into(), "h1".into()], settings, false);
    Record::new(name.into(), (mcst_id(last), Vec::new()), Kind::Collective(kind))
}

fn begin(core: &mut Core) -> Batch {
    core.journal.take(|_| None).expect("something is staged")
}

type Follower = Arc<dyn Any + Send + Sync>;

/// Who follows the group of this name learns of each change of it, and when it is gone.
fn follow(core: &mut Core, name: &str) -> Follower {
    let follower: Follower = Arc::new(());
    core.groups.get_mut(name).expect("a group").followers = Arc::downgrade(&follower);
    follower
}

/// What it was told last: whether the group is there.
fn told(core: &mut Core, follower: &Follower) -> Option<bool> {
    let mut told = core.effects.drain(..).filter_map(|effect| match effect {
        Effect::Changed { followers, news } if Arc::ptr_eq(&followers, follower) => Some(news.is_some()),
        _ => None,
    });
    told.next_back()
}

#[test]
fn a_group_that_came_and_went_and_came_in_a_batch_that_fails_is_not_there() {
    let mut core = core(|_| {});
    core.add(record("g", 1)).unwrap();
    let first = follow(&mut core, "g");
    core.forget("g").unwrap();
    assert_eq!(told(&mut core, &first), Some(false));
    assert_eq!(Arc::weak_count(&first), 0, "nothing keeps it");
    core.add(record("g", 2)).unwrap();
    core.try_change("g", |r| r.generation = 7);
    let last = follow(&mut core, "g");
    let mut batch = begin(&mut core);
    core.take_back(&mut batch);
    assert!(core.group("g").is_err());
    assert_eq!(told(&mut core, &last), Some(false));
    assert!(
        [1, 2]
            .iter()
            .all(|n| core.groups.by_mcst_id(mcst_id(*n)).is_none())
    );
    assert!(core.postponed.groups.is_empty());
    // It can be there again.
    core.add(record("g", 1)).unwrap();
    write(&mut core);
}

#[test]
fn a_group_that_went_before_another_of_its_name_came_in_a_batch_that_fails_is_there_as_it_was() {
    for is_changed in [false, true] {
        let mut core = core(|_| {});
        core.add(record("g", 1)).unwrap();
        core.groups.get_mut("g").unwrap().confirmed.insert("s".into());
        write(&mut core);
        let own = follow(&mut core, "g");
        if is_changed {
            core.try_change("g", |r| r.generation = 7);
        }
        core.forget("g").unwrap();
        core.add(record("g", 2)).unwrap();
        let other = follow(&mut core, "g");
        core.try_change("g", |r| r.generation = 8);
        core.forget("g").unwrap();
        // Its address is another group's for a moment.
        core.add(record("a", 1)).unwrap();
        core.add(record("g", 3)).unwrap();
        let mut batch = begin(&mut core);
        core.take_back(&mut batch);
        let entry = core.group("g").unwrap();
        assert_eq!(*entry.record(), record("g", 1));
        assert_eq!(Vec::from_iter(&entry.confirmed), ["s"]);
        assert!(entry.work.is_none());
        assert_eq!(Arc::weak_count(&other), 0, "nothing keeps it");
        // It is the one that is followed.
        core.notify("g");
        assert_eq!(told(&mut core, &own), Some(true));
        let holders = [1, 2, 3].map(|n| core.groups.by_mcst_id(mcst_id(n)).map(|e| &*e.record().name));
        assert_eq!(holders, [Some("g"), None, None]);
        assert_eq!(core.groups.names(), ["g"]);
        assert_eq!(Vec::from_iter(&core.postponed.groups), ["g"]);
    }
}

/// Work follows when the store works: until then it would be taken back again, at once and for ever.
#[test]
fn what_is_taken_back_is_looked_at_again_when_the_store_works() {
    let mut core = core(|_| {});
    core.add(record("g", 1)).unwrap();
    write(&mut core);
    core.links_changed = Default::default();
    core.try_change("g", |r| r.generation = 7);
    let mut batch = begin(&mut core);
    core.take_back(&mut batch);
    assert!(core.links_changed.groups.is_empty());
    assert!(core.resume());
    assert_eq!(Vec::from_iter(&core.links_changed.groups), ["g"]);
}

/// The switch was restarted after it had confirmed, and before the group was active.
#[test]
fn a_switch_that_lacks_its_part_has_not_confirmed() {
    let mut core = core(|_| {});
    core.add(record("g", 1)).unwrap();
    core.try_change("g", |r| (r.phase, r.generation) = (Phase::Installing, 1));
    for there in [None, Some(1)] {
        core.groups.get_mut("g").unwrap().confirmed.insert("s".into());
        core.settled("s", &["g".into()], &[("g", there)].into(), &BTreeSet::new());
        let has_confirmed = core.group("g").unwrap().confirmed.contains("s");
        assert_eq!(has_confirmed, there.is_some());
    }
}

/// The driver of a group that ends meanwhile removes what may stay.
#[test]
fn a_switch_that_was_reconciled_has_nothing_but_what_may_stay() {
    for (stays, is_cleared) in [(None, true), (Some(2), true), (Some(1), false)] {
        let mut core = core(|_| {});
        core.add(record("g", 1)).unwrap();
        core.try_change("g", |r| {
            r.placed.insert("s".into());
            r.phase = Phase::Removing(After::Gone);
        });
        let may_stay = stays.map(mcst_id).into_iter().collect();
        core.settled("s", &["g".into()], &BTreeMap::new(), &may_stay);
        assert_eq!(
            core.group("g").unwrap().record().placed.is_empty(),
            is_cleared,
            "{stays:?}"
        );
    }
}

/// A host could fill the memory while one write is slow.
#[test]
fn what_is_staged_does_not_grow_with_the_number_of_changes() {
    let mut core = core(|_| {});
    for _ in 0..100 {
        core.seat_rank(join("job", 0, 1024, ""), "h0").map(drop).unwrap();
        core.leave_collective("job", 0).unwrap();
        core.step("job", Event::Cleared, None).unwrap();
    }
    // The group, and its host.
    let mut batch = begin(&mut core);
    assert_eq!(batch.writes.len(), 2);
    assert_eq!(batch.undo().count(), 2);
}

/// By the numbers of a group and of an address or a host.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8, u8),
    Change(u8),
    Forget(u8),
    Host(u8, u8),
    ForgetHost(u8),
    /// What is staged is being written.
    Begin,
}

fn step() -> impl Strategy<Value = Step> {
    let few = || 0u8..4;
    prop_oneof![
        (few(), few()).prop_map(|(n, at)| Step::Add(n, at)),
        few().prop_map(Step::Change),
        few().prop_map(Step::Forget),
        (few(), few()).prop_map(|(n, at)| Step::Host(n, at)),
        few().prop_map(Step::ForgetHost),
        Just(Step::Begin),
    ]
}

fn apply(core: &mut Core, step: Step) {
    let (group, host) = (|n| format!("g{n}"), |n| format!("host{n}"));
    match step {
        Step::Add(n, at)
            if core.group(&group(n)).is_err() && core.groups.by_mcst_id(mcst_id(at)).is_none() =>
        {
            core.add(record(&group(n), at)).unwrap();
        }
        Step::Change(n) => core.try_change(&group(n), |r| r.generation += 1),
        Step::Forget(n) => core.forget(&group(n)).unwrap(),
        Step::Host(n, at) => {
            let end = join("job", at, 4, "").endpoint;
            core.know(&castnet_rules::HostEndpoint { name: host(n), ..end })
                .unwrap();
        }
        Step::ForgetHost(n) => drop(core.forget_host(&host(n))),
        Step::Add(..) | Step::Begin => {}
    }
}

/// Groups, hosts, and who has which address.
type Picture = (
    Vec<Record>,
    Vec<HostRecord>,
    Vec<(Option<String>, bool, Option<String>)>,
);

fn picture(core: &Core) -> Picture {
    let groups = core.groups.after(None).map(|e| e.record().clone());
    let addresses = (0..4).map(|n| {
        let id = mcst_id(n);
        let mut free = core
            .groups
            .mcst_ids()
            .free_in("10.200.0.0/24".parse().unwrap(), None);
        (
            core.groups.by_mcst_id(id).map(|e| e.record().name.clone()),
            free.any(|ip| ip == id.0),
            core.facts
                .host_of([10, 0, 0, n + 1].into(), None)
                .map(str::to_owned),
        )
    });
    (
        groups.collect(),
        core.facts.hosts.values().cloned().collect(),
        addresses.collect(),
    )
}

proptest! {
    /// Changes before a write, during it and after it.
    #[test]
    fn a_write_that_fails_leaves_what_was_there(
        before in proptest::collection::vec(step(), 0..8),
        after in proptest::collection::vec(step(), 1..24),
    ) {
        let mut core = core(|_| {});
        core.journal.stage_host("", None, false);
        before.into_iter().for_each(|step| apply(&mut core, step));
        write(&mut core);
        let was = picture(&core);
        let mut under_way = None;
        for step in after {
            match step {
                Step::Begin if under_way.is_none() => under_way = core.journal.take(|_| None),
                _ => apply(&mut core, step),
            }
        }
        if let Some(mut batch) = under_way.or_else(|| core.journal.take(|_| None)) {
            core.take_back(&mut batch);
        }
        prop_assert_eq!(picture(&core), was);
    }
}
