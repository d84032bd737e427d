//! The life of a collective group by itself, and what its ranks say.

use std::sync::Arc;
use std::time::Duration;

use castnet_group::CollectiveSettings;
use castnet_proto::convert::DEFAULT_LEASE_MS;
use castnet_rules::HostEndpoint;
use castnet_wire::{Psn, Qpn};

use super::record::{Collective, Seat};
use crate::error::Refusal;
use crate::state::core::tests::{core, end, join, warnings, write};
use crate::state::fabric::SwitchReport;
use crate::state::lifecycle::PHASES;
use crate::state::{After, Core, Draws, Due, Effect, Ends, Event, GroupKind, Joining, Kind, Phase};

/// The generation that runs or ran.
const NOW: u64 = 5;

/// A rank that is in, or waits for, a generation.
fn joined(generation: u64) -> Joining<Seat> {
    Joining::Joined(seat(generation, 1000))
}

fn seat(generation: u64, lease_ms: u64) -> Seat {
    let endpoint = |qpn| HostEndpoint {
        qpn: Qpn::new(qpn),
        ..end(1)
    };
    Seat {
        ends: Ends {
            endpoint: endpoint(17),
            more: vec![endpoint(18)],
        },
        sq_psn: Psn::new(9),
        lease_ms,
        generation,
    }
}

fn left() -> Joining<Seat> {
    Joining::Left(seat(NOW, 1000))
}

/// A group with ranks in these states, at the hosts `h0`, `h1` ...
fn group(states: &[Joining<Seat>], by_call: bool) -> Collective {
    let hosts = (0..states.len()).map(|n| format!("h{n}")).collect();
    let mut group = Collective::new(hosts, CollectiveSettings::default(), by_call);
    for (rank, state) in group.ranks.iter_mut().zip(states) {
        Arc::make_mut(rank).state = state.clone();
    }
    group
}

fn generations(group: &Collective) -> Vec<Option<u64>> {
    let each = group.ranks.iter().map(|rank| match &rank.state {
        Joining::Joined(seat) => Some(seat.generation),
        Joining::Expected | Joining::Left(_) => None,
    });
    each.collect()
}

/// A relay that was named after its host failed the job of that host at its next call.
#[test]
fn a_rank_that_is_in_stays_though_a_switch_has_the_name_of_its_host() {
    let mut core = core(|_| {});
    let seat = |core: &mut Core, rank| core.seat_rank(join("job", rank, 2, ""), "h0").map(drop);
    seat(&mut core, 0).unwrap();
    for name in ["h0", "h1"] {
        core.facts.report(name, SwitchReport::default());
    }
    seat(&mut core, 0).unwrap();
    assert!(seat(&mut core, 1).is_err(), "a new one");
}

/// Ranks join one generation after the present one. Those of the present one wait for nothing.
#[test]
fn a_group_goes_on_by_itself_when_its_ranks_have_joined_or_left() {
    let expected = || Joining::Expected;
    let ranks = [
        ("none", vec![expected(), expected()]),
        ("of this generation", vec![joined(NOW), joined(NOW)]),
        ("one joined", vec![joined(NOW + 1), joined(NOW)]),
        ("one of none joined", vec![expected(), joined(NOW + 1)]),
        ("all joined", vec![joined(NOW + 1), joined(NOW + 1)]),
        ("one left", vec![left(), joined(NOW)]),
        ("all left", vec![left(), left()]),
    ];
    for phase in PHASES {
        for (name, states) in &ranks {
            for by_call in [true, false] {
                let wanted = match (phase, *name) {
                    (Phase::Failed | Phase::Refused, "one joined" | "one of none joined" | "all joined") => {
                        Some(Event::Joined)
                    }
                    (Phase::Registered | Phase::Broken, "all joined") => Some(Event::AllJoined),
                    (Phase::Registered, "one joined" | "one of none joined") => None,
                    // It goes with its last rank.
                    (Phase::Registered, _) if by_call => Some(Event::Destroy),
                    (Phase::Active | Phase::Broken, "all left") => Some(Event::Ended),
                    _ => None,
                };
                let is = group(states, by_call).follows(phase, NOW);
                assert_eq!(is, wanted, "{phase:?}, {name}, by call: {by_call}");
            }
        }
    }
}

/// Of a generation that ends, all ranks call again. Of one that was not installed, they wait for the next. A rank that waits for a later one
/// stays.
#[test]
fn events_leave_ranks_in_their_seats_or_not() {
    use Event as E;
    let states = [
        joined(NOW - 1),
        joined(NOW),
        joined(NOW + 1),
        Joining::Expected,
        left(),
    ];
    let before = [Some(NOW - 1), Some(NOW), Some(NOW + 1), None, None];
    for event in [
        E::Joined,
        E::AllJoined,
        E::Withdrawn,
        E::Elsewhere,
        E::Confirmed,
        E::Refused,
        E::SwitchLost,
        E::SwitchesBack,
        E::Broke,
        E::TimeUp,
        E::Lost,
        E::Ended,
        E::Destroy,
        E::Cleared,
    ] {
        let mut group = group(&states, true);
        group.step(event, Phase::Active, NOW, &mut Draws::new(1));
        let wanted = match event {
            E::Withdrawn | E::Elsewhere => [Some(NOW + 1), Some(NOW + 1), Some(NOW + 1), None, None],
            E::Refused | E::Broke | E::TimeUp | E::Lost | E::Ended => [None, None, Some(NOW + 1), None, None],
            _ => before,
        };
        assert_eq!(generations(&group), wanted, "{event:?}");
        // Who left the generation that ended is a rank again.
        let ends = wanted[0].is_none();
        assert_eq!(group.ranks[4].state == Joining::Expected, ends, "{event:?}");
        assert!(!group.all_left());
    }
}

/// Each generation has PSNs of its own, so frames of an old one are not taken for those of a new one.
#[test]
fn psns_are_drawn_when_a_generation_is_installed_and_not_before() {
    let psns = |group: &Collective| {
        let ranks = group.ranks.iter().map(|rank| rank.rq_psn);
        std::iter::once(group.start_psn).chain(ranks).collect::<Vec<_>>()
    };
    let mut group = group(&[joined(NOW + 1), joined(NOW + 1), joined(NOW + 1)], true);
    let (before, mut draws) = (psns(&group), Draws::new(1));
    group.step(
        Event::AllJoined,
        Phase::Removing(After::Registered),
        NOW,
        &mut draws,
    );
    assert_eq!(psns(&group), before);
    group.step(Event::AllJoined, Phase::Installing, NOW + 1, &mut draws);
    // All equal by chance: once in 2^96.
    assert_ne!(psns(&group), before);
    let after = psns(&group);
    assert!(
        after.iter().any(|psn| *psn != after[0]),
        "each is drawn: {after:?}"
    );
}

#[test]
fn what_depends_on_the_generation_of_a_seat_does_so_exactly() {
    for (generation, waits) in [(NOW - 1, false), (NOW, false), (NOW + 1, true)] {
        let all = group(&[joined(generation), joined(NOW + 1)], true);
        assert_eq!(all.all_joined(NOW), waits);
        assert_eq!(all.expected(NOW).is_empty(), waits);
        let one = group(&[joined(generation), Joining::Expected], true);
        assert_eq!((one.some_joined(NOW), one.all_joined(NOW)), (waits, false));
        assert_eq!(one.expected(NOW), if waits { vec![1] } else { vec![0, 1] });
    }
}

#[test]
fn a_broken_group_waits_for_the_longest_lease() {
    let leases = |each: &[u64]| {
        let states: Vec<_> = each.iter().map(|ms| Joining::Joined(seat(NOW, *ms))).collect();
        group(&states, true).notice()
    };
    assert_eq!(leases(&[20, 900, 30]), Duration::from_millis(900));
    assert_eq!(
        group(&[Joining::Expected], true).notice(),
        Duration::from_millis(DEFAULT_LEASE_MS.into())
    );
}

#[test]
fn a_group_of_a_job_goes_with_its_ranks_and_none_survives_a_switch() {
    for by_call in [true, false] {
        let group = group(&[joined(NOW)], by_call);
        assert_eq!((group.lingers(), group.outlives_switches()), (by_call, false));
    }
    for phase in PHASES {
        let wanted = if phase == Phase::Registered {
            "gathering"
        } else {
            phase.name()
        };
        assert_eq!(group(&[], true).phase_name(phase), wanted);
    }
    assert_eq!(group(&[], true).party_field(3), "ranks[3]");
}

#[test]
fn ranks_are_found_by_their_hosts_and_named_with_them() {
    let mut group = group(&[joined(NOW), joined(NOW), Joining::Expected, joined(NOW)], true);
    for (rank, host) in ["a", "b", "", "b"].into_iter().enumerate() {
        Arc::make_mut(&mut group.ranks[rank]).host = host.into();
    }
    let names: Vec<_> = (0..5).map(|rank| group.rank_name(rank)).collect();
    let wanted = [
        "rank 0 (host a)",
        "rank 1 (host b)",
        "rank 2",
        "rank 3 (host b)",
        "rank 4",
    ];
    assert_eq!(names, wanted);
    assert_eq!(
        [group.rank_at("a"), group.rank_at("b"), group.rank_at("c")],
        [Some(0), Some(1), None]
    );
    assert_eq!(group.only_rank_at("g", "a").ok(), Some(0));
    for (host, words) in [
        ("b", "ranks of group \"g\": 1, 3;"),
        ("c", "its members: a, b, b"),
    ] {
        let refused = group.only_rank_at("g", host).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let seats: Vec<_> = (0..6).map(|rank| group.seat(rank).is_some()).collect();
    assert_eq!(seats, [true, true, false, true, false, false]);
}

/// A host filled the log: it joined jobs with leases of 1 ms, and went.
#[test]
fn a_lease_that_ends_before_the_group_runs_is_no_warning() {
    let logged = |phase, generation| {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        core.seat_rank(join("job", 1, 2, ""), "h1").map(drop).unwrap();
        core.try_change("job", |r| (r.phase, r.generation) = (phase, generation));
        let entry = core.groups.get_mut("job").unwrap();
        entry.present.remove(&0);
        warnings(|| core.rank_lease_over("job", 0))
    };
    assert_eq!(logged(Phase::Registered, 0), 0);
    assert_eq!(logged(Phase::Broken, 0), 0, "it waits for the next run");
    assert_ne!(logged(Phase::Active, 1), 0);
}

/// The bound on time-outs is for jobs that ranks create: the ranks of others name what they have.
#[test]
fn ranks_join_and_come_back_with_a_time_out_that_they_may_not_choose() {
    let mut core = core(|_| {});
    let short = |job: &str, rank| {
        let mut join = join(job, rank, 2, "");
        join.settings.ack_timeout_us = Some(524);
        join
    };
    let mut stalls = join("new", 0, 2, "");
    stalls.settings.stall_timeout_ms = Some(99);
    for refused in [short("new", 0), stalls] {
        let refusal = core.seat_rank(refused, "h0").map(drop).unwrap_err();
        assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal:?}");
        assert!(core.collective("new").is_err());
    }

    core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
    let refusal = core.multicast("job").map(drop).unwrap_err().to_string();
    assert_eq!(refusal, "group \"job\" is a job, whose ranks call collectives");
    core.try_change("job", |r| match &mut r.kind {
        Kind::Collective(group) => group.settings.ack_timeout_us = 524,
        Kind::Multicast(_) => unreachable!(),
    });
    for _ in ["joins", "comes back"] {
        core.seat_rank(short("job", 1), "h1").map(drop).unwrap();
    }
}

/// A host that said that it joins again created jobs under any name, such as that of a group of MRP.
#[test]
fn who_joins_again_creates_no_job_with_a_name_that_no_new_job_has() {
    let mut core = core(|_| {});
    let mut again = |name: &str, lanes: u8| {
        let mut join = join("job", 0, 2, "");
        let lane = |n| HostEndpoint {
            qpn: Qpn::new(1000 + n),
            ..join.endpoint.clone()
        };
        join.more = (1..lanes).map(|n| lane(u32::from(n))).collect();
        join.job = name.into();
        (join.settings.lanes, join.rejoin_of) = (Some(lanes), Some(1));
        core.seat_rank(join, "h0").map(drop)
    };
    let long = "j".repeat(62);
    for (name, lanes) in [
        ("10.200.0.56", 1),
        ("..", 1),
        ("mrp-10.0.0.200", 1),
        (long.as_str(), 2),
    ] {
        let is_refused = matches!(again(name, lanes), Err(Refusal::Invalid(_)));
        assert!(is_refused, "{name}");
    }
    again(&long[1..], 2).unwrap();
    assert_eq!(core.groups.names(), [&long[1..]]);
}

/// Ranks of a large job that came back one by one, as after a restart of the controller, pushed out the events of other groups.
#[test]
fn calls_of_ranks_that_end_or_begin_at_once_are_one_event() {
    const HERE: u8 = 8;
    let mut core = core(|_| {});
    core.is_watched = true;
    // One more is expected, so nothing else happens.
    let sit = |core: &mut Core, rank| {
        let join = join("job", rank, u32::from(HERE) + 1, "");
        let seated = core.seat_rank(join, &format!("h{rank}"));
        seated.map(|seated| seated.call).unwrap()
    };
    let events = |core: &mut Core| {
        let published = std::mem::take(&mut core.effects).into_iter();
        published
            .filter(|effect| matches!(effect, Effect::Publish(_)))
            .count()
    };
    let mut calls: Vec<u64> = (0..HERE).map(|rank| sit(&mut core, rank)).collect();
    write(&mut core);
    core.notify("job");
    events(&mut core);
    for returns in [false, true, false] {
        for rank in 0..HERE {
            match returns {
                true => calls[usize::from(rank)] = sit(&mut core, rank),
                false => core.away("job", rank.into(), calls[usize::from(rank)]),
            }
        }
        assert_eq!(events(&mut core), 0, "they wait for each other");
        core.now = core.poll_timeout().expect("an event is due");
        core.handle_timeout();
        assert_eq!(events(&mut core), 1);
    }
    // Another event of the group has it already.
    sit(&mut core, 0);
    core.notify("job");
    assert_eq!(events(&mut core), 1);
    assert!(!core.has_timer("job", &Due::Event));
}
