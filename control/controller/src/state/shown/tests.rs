use std::collections::BTreeMap;
use std::time::Duration;

use castnet_group::CollectiveSettings;
use castnet_proto::convert::new_group_from_proto;
use castnet_proto::states::WatchedGroups;
use castnet_wire::{McstId, Psn};
use proptest::prelude::*;

use super::*;
use crate::state::core::tests::core;
use crate::state::fabric::SwitchReport;
use crate::state::fabric::tests::{host, host_seen};
use crate::state::{After, Collective, Due, Joining, Kind, Leased, Multicast, Phase, Record};

const MEMBERS: u8 = 5;
const WATCHERS: usize = 3;

/// A new group: `m` has members with connections, `c` has ranks.
fn record(name: &str) -> Record {
    let host = |n: u8| format!("h{n}");
    let member = |n: u8| v1::NewMember {
        host: host(n),
        connection: Some(v1::Connection {
            ip: format!("10.0.0.{n}"),
            mac: format!("02:00:00:00:00:0{n}"),
            qpn: 17,
            ..Default::default()
        }),
    };
    let (kind, mcst_id) = match name {
        "m" => {
            let request = v1::CreateGroupRequest {
                name: name.into(),
                source: host(0),
                members: (0..MEMBERS).map(member).collect(),
                ..Default::default()
            };
            let group = new_group_from_proto(&request).unwrap();
            (Kind::Multicast(Multicast::new(group, Psn::new(1), 100)), 1)
        }
        _ => {
            let hosts = (0..MEMBERS).map(host).collect();
            let settings = CollectiveSettings::default();
            (Kind::Collective(Collective::new(hosts, settings, false)), 2)
        }
    };
    Record::new(
        name.into(),
        (McstId([10, 200, 0, mcst_id].into()), Vec::new()),
        kind,
    )
}

/// A member whose calls end again and again has one timer, that of its last lease.
#[test]
fn a_member_has_one_timer_however_often_its_lease_runs() {
    let mut core = core(|_| {});
    core.groups.put(record("c"));
    let (rank, lease) = (Due::Lease(Leased::Rank(1)), Duration::from_secs(600));
    for _ in 0..1000 {
        core.now += Duration::from_millis(1);
        core.set_timer("c", rank.clone(), lease);
    }
    assert_eq!(core.poll_timeout(), Some(core.now + lease));
    let has = |core: &Core| {
        let timers = &core.group("c").expect("a group").timers;
        timers.time(&rank).is_some()
    };
    core.now += lease - Duration::from_millis(1);
    core.handle_timeout();
    assert!(has(&core));
    core.set_timer("c", Due::Phase, Duration::from_secs(1));
    core.now += Duration::from_millis(1);
    core.handle_timeout();
    // The other one is next.
    assert!(!has(&core));
    assert_eq!(core.poll_timeout(), Some(core.now + Duration::from_millis(999)));
    // A shorter lease does not wait for the end of a longer one.
    core.set_timer("c", rank.clone(), lease);
    core.set_timer("c", rank.clone(), Duration::from_millis(1));
    assert_eq!(core.poll_timeout(), Some(core.now + Duration::from_millis(1)));
    core.forget("c").expect("it is gone");
    assert_eq!(core.poll_timeout(), None);
}

/// What happens to one of the two groups.
#[derive(Clone, Debug)]
enum Change {
    Phase(Phase),
    /// A member leaves, or waits to join again.
    Member(u8, bool),
    Evicted(u8),
    /// A rank's call is open, or has ended.
    Call(u8, bool),
    Planned(bool),
    /// A host is known now, or is forgotten.
    Host(u8, bool),
    /// A switch sees the hosts at these ports.
    Seen(Vec<u8>),
    Destroyed,
    Created,
}

fn change() -> impl Strategy<Value = Change> {
    let phase = prop_oneof![
        Just(Phase::Registered),
        Just(Phase::Active),
        Just(Phase::Removing(After::Gone))
    ];
    let member = || 0..MEMBERS;
    prop_oneof![
        phase.prop_map(Change::Phase),
        (member(), any::<bool>()).prop_map(|(at, left)| Change::Member(at, left)),
        member().prop_map(Change::Evicted),
        (member(), any::<bool>()).prop_map(|(at, is_open)| Change::Call(at, is_open)),
        any::<bool>().prop_map(Change::Planned),
        (member(), any::<bool>()).prop_map(|(at, known)| Change::Host(at, known)),
        proptest::collection::vec(0u8..4, MEMBERS as usize).prop_map(Change::Seen),
        Just(Change::Destroyed),
        Just(Change::Created),
    ]
}

fn change_member(kind: &mut Kind, at: u8, left: bool) {
    fn next<S: Clone>(state: &mut Joining<S>, left: bool) {
        *state = match state.seat().filter(|_| left) {
            Some(seat) => Joining::Left(seat.clone()),
            None => Joining::Expected,
        };
    }
    match kind {
        Kind::Multicast(kind) => {
            if let Some(member) = Arc::make_mut(&mut kind.members).get_mut(usize::from(at)) {
                next(&mut Arc::make_mut(member).state, left);
            }
        }
        Kind::Collective(kind) => next(&mut Arc::make_mut(&mut kind.ranks[usize::from(at)]).state, left),
    }
}

fn apply(core: &mut Core, name: &str, change: Change) {
    match change {
        Change::Host(at, known) => {
            let name = format!("h{at}");
            return core.facts.set_host(&name, known.then(|| host(&name, at)));
        }
        Change::Seen(ports) => {
            let seen = |(at, port): (u8, u8)| host_seen(port, at, 0);
            let report = SwitchReport {
                ports: BTreeMap::new(),
                neighbours: (0..).zip(ports).map(seen).collect(),
            };
            core.facts.report("s", report);
            return;
        }
        Change::Destroyed => return drop(core.groups.remove(name)),
        Change::Created => return core.groups.put(record(name)),
        _ => {}
    }
    let Some(entry) = core.groups.get_mut(name) else {
        return;
    };
    let mut record = entry.record().clone();
    match change {
        Change::Phase(phase) => record.phase = phase,
        Change::Member(at, left) => change_member(&mut record.kind, at, left),
        Change::Evicted(at) => {
            if let Some(kind) = record.multicast_mut() {
                Arc::make_mut(&mut kind.members).retain(|m| m.host != format!("h{at}"));
            }
        }
        Change::Call(at, is_open) => {
            if is_open {
                entry.present.insert(at.into(), 1);
            } else {
                entry.present.remove(&u16::from(at));
            }
        }
        Change::Planned(planned) => {
            record.plan = planned.then(Arc::default);
        }
        _ => {}
    }
    core.groups.put(record);
}

/// What a client knows that follows a stream of differences.
#[derive(Default)]
struct Client {
    groups: WatchedGroups,
    sent: BTreeMap<String, u64>,
}

impl Client {
    /// Takes in a state; returns the whole one, without its number.
    fn take(&mut self, mut state: Event) -> Event {
        if let Some(parts) = parts(&mut state) {
            self.sent.insert(parts.name.to_owned(), *parts.number);
        }
        let event = v1::ControllerEvent {
            at_unix_ns: 0,
            event: Some(state),
        };
        unnumbered(self.groups.complete(event).unwrap().event.unwrap())
    }
}

fn unnumbered(mut state: Event) -> Event {
    if let Some(parts) = parts(&mut state) {
        *parts.number = 0;
    }
    state
}

proptest! {
    /// Whatever happens, and however seldom a client looks, what it puts together is the state.
    #[test]
    fn differences_put_together_are_the_state(
        steps in proptest::collection::vec((any::<bool>(), change(), 0usize..WATCHERS + 2), 1..60),
    ) {
        let mut core = core(|_| {});
        let mut clients: [Client; WATCHERS] = Default::default();
        ["m", "c"].into_iter().for_each(|name| core.groups.put(record(name)));
        for (is_multicast, change, watcher) in steps {
            apply(&mut core, if is_multicast { "m" } else { "c" }, change);
            let Some(client) = clients.get_mut(watcher) else {
                continue;
            };
            for entry in core.groups.after(None) {
                let sent = client.sent.get(&entry.record().name).copied();
                let state = core.shown(entry).since(sent);
                let anew = Shown::new(&core, entry).since(None);
                prop_assert_eq!(client.take(state), unnumbered(anew));
            }
        }
    }
}

/// One member that joins or leaves is one member that is sent.
#[test]
fn a_change_of_a_member_sends_this_member() {
    let mut core = core(|_| {});
    for name in ["m", "c"] {
        core.groups.put(record(name));
        apply(&mut core, name, Change::Phase(Phase::Active));
        let first = core.shown(core.groups.get(name).unwrap());
        match name {
            "m" => apply(&mut core, name, Change::Member(2, true)),
            _ => apply(&mut core, name, Change::Host(2, true)),
        }
        if name == "c" {
            apply(&mut core, name, Change::Seen(vec![3, 3, 1, 3, 3]));
        }
        let mut state = core
            .shown(core.groups.get(name).unwrap())
            .since(Some(first.number));
        let parts = parts(&mut state).unwrap();
        let hosts: Vec<&str> = parts.members.iter().map(|m| m.host.as_str()).collect();
        let positions = parts.difference.as_ref().map(|d| d.positions.clone());
        assert_eq!((hosts, positions), (vec!["h2"], Some(vec![2])), "{name}");
    }
}

/// A member takes the position of another one. A client that has not seen that learns that the other one is gone.
#[test]
fn a_member_in_the_position_of_another_one_sends_the_whole_state() {
    let mut core = core(|_| {});
    let mut client = Client::default();
    core.groups.put(record("m"));
    let first = core.shown(core.groups.get("m").unwrap());
    client.take(first.since(None));
    for changes in [
        &[Change::Evicted(0)][..],
        &[Change::Created, Change::Evicted(1)],
        &[Change::Evicted(0)],
    ] {
        for change in changes {
            apply(&mut core, "m", change.clone());
        }
        core.shown(core.groups.get("m").unwrap());
    }
    let entry = core.groups.get("m").unwrap();
    let state = core.shown(entry).since(Some(first.number));
    assert_eq!(
        client.take(state),
        unnumbered(Shown::new(&core, entry).since(None))
    );
}

/// Clients that take nothing hold states: each costs little beside the members that have changed.
#[test]
fn states_share_the_members_that_have_not_changed() {
    let mut core = core(|_| {});
    core.groups.put(record("c"));
    let before = core.shown(core.groups.get("c").unwrap());
    apply(&mut core, "c", Change::Host(1, true));
    apply(&mut core, "c", Change::Seen(vec![3, 1, 3, 3, 3]));
    let after = core.shown(core.groups.get("c").unwrap());
    let pairs = before.members.iter().zip(&after.members);
    let shared: Vec<bool> = pairs.map(|(before, after)| Arc::ptr_eq(before, after)).collect();
    assert_eq!(shared, [true, false, true, true, true]);
}

#[test]
fn a_state_does_not_keep_the_plan_that_it_was_made_from() {
    let mut core = core(|_| {});
    core.groups.put(record("c"));
    apply(&mut core, "c", Change::Planned(true));
    let entry = core.groups.get("c").unwrap();
    let (_held, plan) = (core.shown(entry), plan(entry).0.unwrap());
    assert!(plan.upgrade().is_some());
    apply(&mut core, "c", Change::Planned(false));
    assert!(plan.upgrade().is_none());
}
