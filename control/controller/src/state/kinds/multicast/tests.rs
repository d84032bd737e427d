//! The life of a multicast group by itself, and whom it needs.

use std::sync::Arc;

use castnet_group::{MulticastSettings, StallPolicy};
use castnet_proto::convert::{NewGroup, NewMember};
use castnet_rules::HostEndpoint;
use castnet_wire::{AnySource, Psn};

use super::late::Late;
use super::outside::Outside;
use super::record::{Diverted, JoinedBy, MemberState, Multicast, Seat};
use crate::state::core::tests::{core, end, mcst_id, warnings, write};
use crate::state::lifecycle::PHASES;
use crate::state::{After, Core, Draws, Due, Event, GroupKind, Joining, Kind, Leased, Phase, Record};

/// The first of these sends, and all have joined.
pub(crate) fn request(ends: impl Iterator<Item = HostEndpoint>) -> NewGroup {
    let member = |end: HostEndpoint| NewMember {
        host: end.name.clone(),
        ends: vec![end],
    };
    let members: Vec<NewMember> = ends.map(member).collect();
    NewGroup {
        name: "g".into(),
        source: members[0].host.clone(),
        members,
        start_psn: None,
        mcst_id: None,
        lanes: 1,
        rate_limit: None,
        description: Default::default(),
        settings: MulticastSettings {
            stall_timeout_ms: 700,
            ..MulticastSettings::default()
        },
    }
}

/// h0 sends to h1 and h2, and all have joined.
fn group() -> Multicast {
    Multicast::new(request((0..3).map(end)), Psn::new(0), 100)
}

fn set(group: &mut Multicast, number: usize, change: impl Fn(&Seat) -> MemberState) {
    let member = &mut Arc::make_mut(&mut group.members)[number];
    let seat = member.state.seat().expect("it has joined").clone();
    Arc::make_mut(member).state = change(&seat);
}

/// h1 has joined by call 4, and h2 has left.
fn mixed() -> Multicast {
    let mut group = group();
    set(&mut group, 1, |seat| {
        Joining::Joined(Seat {
            by: JoinedBy::Call(4),
            ..seat.clone()
        })
    });
    set(&mut group, 2, |seat| Joining::Left(seat.clone()));
    group
}

fn is_in(group: &Multicast) -> Vec<bool> {
    let each = group.members.iter();
    each.map(|m| matches!(m.state, Joining::Joined(_))).collect()
}

#[test]
fn a_group_is_placed_when_it_waits_and_the_last_member_has_joined() {
    for phase in PHASES {
        let wanted = (phase == Phase::Registered).then_some(Event::AllJoined);
        assert_eq!(group().follows(phase, 1), wanted, "{phase:?}");
        assert_eq!(mixed().follows(phase, 1), None, "{phase:?}");
    }
}

/// What was given at creation outlives a refusal; connections of one run end together.
#[test]
fn events_leave_members_in_their_seats_or_not() {
    let after = |event, phase| {
        let mut group = mixed();
        group.step(event, phase, 1, &mut Draws::new(1));
        let expected = group.members.iter().map(|m| m.state == Joining::Expected);
        expected.collect::<Vec<_>>()
    };
    for (event, phase, wanted) in [
        (Event::Ended, Phase::Removing(After::Registered), [true; 3]),
        (Event::Lost, Phase::Removing(After::Failed), [true; 3]),
        (Event::Cleared, Phase::Refused, [false, true, false]),
        (Event::Cleared, Phase::Registered, [false; 3]),
        (Event::Cleared, Phase::Failed, [false; 3]),
        (Event::Refused, Phase::Removing(After::Refused), [false; 3]),
        (Event::Withdrawn, Phase::Removing(After::Registered), [false; 3]),
        (Event::Elsewhere, Phase::Removing(After::Registered), [false; 3]),
        (Event::AllJoined, Phase::Installing, [false; 3]),
        (Event::Confirmed, Phase::Active, [false; 3]),
        (Event::SwitchLost, Phase::Degraded, [false; 3]),
        (Event::Destroy, Phase::Removing(After::Gone), [false; 3]),
    ] {
        assert_eq!(after(event, phase), wanted, "{event:?} {phase:?}");
    }
}

/// Who is outside is so for one tree, and why a source went on by itself is told until the next run.
#[test]
fn a_new_tree_has_nobody_outside_and_a_new_run_no_diversion() {
    let begun = || {
        let mut group = group();
        group.outside = vec![Outside {
            host: "h2".into(),
            reason: "full".into(),
            via: "h1".into(),
            number: 1,
        }];
        group.diverted = Some(Diverted {
            reason: "slow".into(),
            hosts: vec!["h0".into()],
        });
        group
    };
    for phase in PHASES {
        let mut group = begun();
        group.step(Event::Confirmed, phase, 1, &mut Draws::new(1));
        assert_eq!(group.outside.is_empty(), !phase.wants_rules(), "{phase:?}");
        assert!(group.diverted.is_some(), "{phase:?}");
    }
    let mut group = begun();
    group.step(Event::AllJoined, Phase::Installing, 1, &mut Draws::new(1));
    assert_eq!((group.outside.is_empty(), group.diverted), (true, None));
}

/// A controller with the group in this phase, in which h1 has joined by this call, with a lease.
fn with_lease(call: u64, phase: Phase) -> Core {
    let mut core = core(|_| {});
    let mut kind = group();
    set(&mut kind, 1, |seat| {
        Joining::Joined(Seat {
            by: JoinedBy::Call(call),
            lease_ms: Some(1000),
            ..seat.clone()
        })
    });
    let mut record = Record::new("g".into(), (mcst_id(1), Vec::new()), Kind::Multicast(kind));
    record.phase = phase;
    core.add(record).unwrap();
    core
}

fn lease(host: &str) -> Due {
    Due::Lease(Leased::Host(host.into()))
}

/// Calls may have ended before: h1 has a lease, and its call was one to an earlier controller.
#[test]
fn a_lease_runs_when_the_group_is_active() {
    let mut core = with_lease(0, Phase::Installing);
    core.run_leases("g");
    assert_eq!(core.group("g").unwrap().timers.first(), None);
    core.step("g", Event::Confirmed, None).unwrap();
    let timers = &core.group("g").unwrap().timers;
    assert_eq!(Vec::from_iter(timers.keys()), [&lease("h1")]);
}

/// Until the store works it could not come back: its lease runs anew then. It was put out at once.
#[test]
fn a_lease_that_ends_while_the_store_fails_runs_again() {
    let mut core = with_lease(5, Phase::Active);
    write(&mut core);
    let is_in = |core: &Core| core.multicast("g").unwrap().1.members[1].state.seat().is_some();
    for fails in [true, true, false] {
        core.host_lease_over("g", "h1");
        let mut batch = core.journal.take(|_| None).expect("it is put out");
        if fails {
            core.take_back(&mut batch);
            batch.retries.drain(..).for_each(|retry| retry(&mut core));
            while core.resume() {}
        }
        assert_eq!(is_in(&core), fails);
        let timers = &mut core.groups.get_mut("g").unwrap().timers;
        assert_eq!(timers.cancel(&lease("h1")), fails);
        core.journal.written();
    }
}

/// A source filled the log: it left to go on from host to host, joined, and left again.
#[test]
fn a_group_that_goes_on_from_host_to_host_again_and_again_has_some_warnings_at_once() {
    let mut core = with_lease(5, Phase::Active);
    let logged = warnings(|| {
        for n in 0..1000 {
            let has_failed = core.divert("g", "h0", format!("slow for the {n}th time"));
            assert!(!has_failed.unwrap());
        }
    });
    assert!((1..100).contains(&logged), "{logged}");
}

/// It comes again while the store fails, by another call.
#[test]
fn a_receiver_that_comes_again_is_not_put_out_for_its_earlier_call() {
    let waits = |core: &mut Core, call| {
        core.try_change("g", |r| {
            let Some(kind) = r.multicast_mut() else { return };
            set(kind, 1, |seat| {
                Joining::Joined(Seat {
                    by: JoinedBy::Call(call),
                    late: Some(Late::Waiting),
                    ..seat.clone()
                })
            });
        });
    };
    for (call, is_put_out) in [(5, true), (6, false)] {
        let mut core = core(|_| {});
        let mut record = Record::new("g".into(), (mcst_id(1), Vec::new()), Kind::Multicast(group()));
        record.phase = Phase::Active;
        core.add(record).unwrap();
        waits(&mut core, 5);
        write(&mut core);
        core.give_up_joining("g", "h1", "its call has ended");
        let mut batch = core.journal.take(|_| None).unwrap();
        core.take_back(&mut batch);
        waits(&mut core, call);
        batch.retries.drain(..).for_each(|retry| retry(&mut core));
        let (_, kind) = core.multicast("g").unwrap();
        assert_eq!(
            kind.members[1].state == Joining::Expected,
            is_put_out,
            "call {call}"
        );
    }
}

/// No call to another controller is open. A group that runs keeps its members, who call again.
#[test]
fn after_a_restart_calls_are_those_of_an_earlier_controller() {
    for phase in PHASES {
        let mut group = mixed();
        group.after_restart(phase);
        let waits = matches!(phase, Phase::Registered | Phase::Removing(After::Registered));
        assert_eq!(is_in(&group), [true, !waits, false], "{phase:?}");
        let by = |n: usize| group.members[n].state.seat().map(|seat| seat.by);
        assert_eq!(by(0), Some(JoinedBy::Creation));
        assert_eq!(by(1), (!waits).then_some(JoinedBy::Call(0)), "{phase:?}");
        assert!(!group.is_by("h1", 4));
    }
    let group = mixed();
    let calls = [("h1", 4), ("h1", 5), ("h0", 4), ("h9", 4)];
    assert_eq!(
        calls.map(|(host, call)| group.is_by(host, call)),
        [true, false, false, false]
    );
}

/// A group of one source needs it, and a receiver. One whose members all send needs each.
#[test]
fn a_group_is_over_without_its_source_or_all_receivers() {
    let gone = |any_source, which: &[usize]| {
        let mut group = group();
        group.settings.any_source = any_source;
        for number in which {
            set(&mut group, *number, |seat| Joining::Left(seat.clone()));
        }
        group.is_over()
    };
    for (which, one, any) in [
        (&[][..], false, false),
        (&[0], true, true),
        (&[1], false, true),
        (&[2], false, true),
        (&[1, 2], true, true),
    ] {
        assert_eq!(gone(None, which), one, "{which:?}");
        assert_eq!(gone(Some(AnySource::Bridged), which), any, "{which:?}");
    }
    // Those outside get nothing from the tree.
    let mut all = group();
    all.outside = ["h1", "h2"]
        .map(|host| Outside {
            host: host.into(),
            reason: String::new(),
            via: String::new(),
            number: 0,
        })
        .into();
    assert!(all.is_over());
    all.outside.pop();
    assert!(!all.is_over());
    assert_eq!(
        ["h1", "h2", "h9"].map(|host| all.is_outside(host)),
        [true, false, false]
    );
    let with = |any_source| {
        let mut group = group();
        group.settings.any_source = any_source;
        group
    };
    let needs = |any_source| {
        let group = with(any_source);
        ["h0", "h1"].map(|host| group.needs(host))
    };
    assert_eq!(needs(None), [true, false]);
    assert_eq!(needs(Some(AnySource::Bridged)), [true, true]);
    for any_source in [None, Some(AnySource::Bridged)] {
        assert_eq!(with(any_source).outlives_switches(), any_source.is_none());
    }
}

#[test]
fn a_stall_is_reported_in_time_for_what_follows_it() {
    for (after_ms, wanted) in [(None, 700), (Some(699), 699), (Some(700), 700), (Some(701), 700)] {
        let on_stall = after_ms.map(|after_ms| StallPolicy {
            after_ms,
            fails: true,
        });
        let mut group = group();
        group.settings.on_stall = on_stall;
        assert_eq!(group.report_stalls_ms(), wanted);
    }
}

/// Of the request to create the group.
#[test]
fn fields_of_the_planner_become_those_of_the_request() {
    for (planned, wanted) in [
        ("members[2]", "members[2].host"),
        ("members[2].name", "members[2].host"),
        ("members[2].qpn", "members[2].connection.qpn"),
        ("members[10].ip", "members[10].connection.ip"),
        ("mcst_id", "mcst_id"),
        ("pmtu", "pmtu"),
    ] {
        assert_eq!(group().request_field(planned.into()), wanted);
    }
    assert_eq!(group().party_field(2), "members[2].host");
    for phase in PHASES {
        let wanted = if phase == Phase::Refused {
            "failed"
        } else {
            phase.name()
        };
        assert_eq!(group().phase_name(phase), wanted);
    }
}

#[test]
fn members_are_found_by_their_hosts() {
    let mut group = group();
    assert!(group.all_joined() && group.expected().is_empty());
    set(&mut group, 1, |_| Joining::Expected);
    assert!(!group.all_joined());
    assert_eq!(group.expected(), ["h1"]);
    let at = |host| group.member(host).map(|(at, _)| at);
    assert_eq!([at("h0"), at("h2"), at("h3")], [Some(0), Some(2), None]);
}
