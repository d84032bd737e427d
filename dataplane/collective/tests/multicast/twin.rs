//! Compares the machine with its slow twin, and checks it with random input.

use crate::common::twin::{Step, Twin, WINDOW, wrap};
use crate::common::{Switch, path};
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};
use proptest::prelude::*;

/// The next event, relative to the state of the twin.
#[derive(Clone, Copy, Debug)]
enum Draw {
    New {
        gap: i64,
        ack_request: bool,
    },
    Again {
        back: i64,
        ack_request: bool,
    },
    Feedback {
        from: u8,
        ahead_of_own: i64,
        msn: u32,
        syndrome: Syndrome,
    },
    FromAnyone {
        from: u8,
        ack_request: bool,
    },
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        5 => Just(Syndrome::Ack),
        4 => Just(Syndrome::Nak(NakCode::PsnSequenceError)),
        2 => (0u8..32).prop_map(|code| Syndrome::RnrNak(RnrTimer::new(code))),
        1 => prop_oneof![
            Just(Syndrome::Nak(NakCode::InvalidRequest)),
            Just(Syndrome::Nak(NakCode::RemoteAccessError)),
            Just(Syndrome::Nak(NakCode::RemoteOperationalError)),
        ],
    ]
}

fn draw() -> impl Strategy<Value = Draw> {
    prop_oneof![
        4 => (prop_oneof![16 => Just(0i64), 2 => 1i64..4, 1 => WINDOW - 4..WINDOW + 4], any::<bool>())
            .prop_map(|(gap, ack_request)| Draw::New { gap, ack_request }),
        4 => (0i64..8, any::<bool>()).prop_map(|(back, ack_request)| Draw::Again { back, ack_request }),
        12 => (0u8..7, -3i64..5, 0u32..1 << 24, syndrome())
            .prop_map(|(from, ahead_of_own, msn, syndrome)| Draw::Feedback { from, ahead_of_own, msn, syndrome }),
        1 => (0u8..64, any::<bool>()).prop_map(|(from, ack_request)| Draw::FromAnyone { from, ack_request }),
    ]
}

fn step(draw: Draw, twin: &Twin, source: u8, start: i64) -> Step {
    let newest = twin.newest.unwrap_or(start - 1);
    match draw {
        Draw::New { gap, ack_request } => Step::Data {
            from: source,
            at: newest + 1 + gap,
            ack_request,
        },
        Draw::Again { back, ack_request } => Step::Data {
            from: source,
            at: newest - back,
            ack_request,
        },
        Draw::Feedback {
            from,
            ahead_of_own,
            msn,
            syndrome,
        } => {
            // Near what the path itself, the aggregate or the data has reached.
            let own = twin.acked.get(&from).copied().unwrap_or(newest);
            let near = [own, twin.aggregated, newest][ahead_of_own.rem_euclid(3) as usize];
            Step::Feedback {
                from,
                at: near + ahead_of_own,
                msn,
                syndrome,
            }
        }
        Draw::FromAnyone { from, ack_request } => Step::Data {
            from,
            at: newest,
            ack_request,
        },
    }
}

fn event(step: Step) -> Event {
    match step {
        Step::Data {
            from,
            at,
            ack_request,
        } => Event::Data {
            from: path(from),
            psn: wrap(at),
            ack_request,
        },
        Step::Feedback {
            from,
            at,
            msn,
            syndrome,
        } => Event::Feedback {
            from: path(from),
            psn: wrap(at),
            msn,
            syndrome,
        },
    }
}

fn drawn_psn() -> impl Strategy<Value = Psn> {
    prop_oneof![
        (0u32..8),
        ((1 << 23) - 4u32..(1 << 23) + 4),
        (Psn::MODULUS - 8..Psn::MODULUS),
        any::<u32>()
    ]
    .prop_map(Psn::new)
}

fn any_event() -> impl Strategy<Value = Event> {
    let from = || (0..64usize).prop_map(|i| PathId::new(i % 8).expect("below the most"));
    prop_oneof![
        (from(), drawn_psn(), any::<bool>()).prop_map(|(from, psn, ack_request)| Event::Data {
            from,
            psn,
            ack_request
        }),
        (from(), drawn_psn(), any::<u32>(), syndrome()).prop_map(|(from, psn, msn, syndrome)| {
            Event::Feedback {
                from,
                psn,
                msn,
                syndrome,
            }
        }),
        from().prop_map(|from| Event::Cnp { from }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Equal events give equal effects and state: the machine never misses an entry although it does not scan all of them.
    #[test]
    fn the_machine_agrees_with_its_slow_twin(
        paths in 2u8..7,
        source in 0u8..2,
        start in prop_oneof![Just(0i64), (Psn::MODULUS as i64 - 12)..(Psn::MODULUS as i64 + 3), Just((1 << 23) - 5)],
        told in prop::bool::weighted(0.8),
        holds in prop::collection::btree_set(0u8..7, 0..7),
        draws in prop::collection::vec(draw(), 0..120),
    ) {
        let config = MulticastConfig {
            paths: paths.into(),
            source: path(source),
            start_psn: told.then(|| wrap(start)),
            stall_timeout: Nanos::ZERO,
        };
        let mut switch = Switch::with(config);
        let held = holds.iter().map(|index| path(*index));
        switch.machine = switch.machine.with_held_naks(held);
        let mut twin = Twin::new(paths, source, told.then_some(start));
        twin.holds = holds;
        for draw in draws {
            let step = step(draw, &twin, source, start);
            prop_assert_eq!(switch.event(event(step)), twin.handle(step), "{:?} {:?}", step, twin);
            let status = switch.status();
            prop_assert_eq!(status.newest_psn, twin.newest.map(wrap));
            let me_psn = twin.refused.keys().map(|path| twin.acked[path] + 1).min();
            prop_assert_eq!(status.me_psn, me_psn.map(wrap));
            for entry in status.paths {
                let path = entry.path.index() as u8;
                prop_assert!(entry.ack_psn.is_none_or(|psn| psn == wrap(twin.acked[&path])));
                prop_assert_eq!(entry.refusal, twin.refused.get(&path).copied());
            }
        }
    }

    /// Random PSNs at random times: no panic, no wrong effect, and all invariants of the state hold.
    #[test]
    fn any_input_keeps_the_state_sound(
        start in prop::option::of(drawn_psn()),
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut machine = Multicast::new(MulticastConfig { start_psn: start, ..Switch::config(6) });
        let mut last_agg = None;
        for event in events {
            let mut out = Effects::new();
            let before = machine.clone();
            machine.handle(Nanos::ZERO, event, &mut out);
            // The fast path for the next data of the source comes to the same, or changes nothing.
            if let Event::Data { from, psn, .. } = event
                && from == before.status().source
            {
                let mut short = before.clone();
                if short.next_data(Nanos::ZERO, psn) {
                    prop_assert_eq!(out.as_slice(), &[Effect::Replicate { psn }]);
                    prop_assert_eq!(&short, &machine);
                    prop_assert_eq!(machine.lacking(psn).count(), 5);
                } else {
                    prop_assert_eq!(&short, &before);
                }
            }
            prop_assert!((1..=2).contains(&out.len()), "{:?}", out);
            prop_assert!(out.len() == 1 || !out.contains(&Effect::Absorb));
            prop_assert!(out.len() == 1 || !out.iter().any(|effect| matches!(effect, Effect::Drop(_))));
            let status = machine.status();
            for effect in out {
                match effect {
                    Effect::Replicate { psn } => prop_assert!(machine.lacking(psn).next().is_some_and(|first| first > path(0))),
                    Effect::Acknowledge { to, psn, msn, syndrome } => {
                        prop_assert_eq!(to, path(0));
                        prop_assert!(msn < 1 << 24);
                        let agg = status.agg_ack_psn.or(start.map(Psn::prev));
                        let wanted = if syndrome == Syndrome::Ack { agg } else { agg.map(Psn::next) };
                        // Where the start was learned and nothing is acknowledged, a NAK may name the baseline's next.
                        prop_assert!(wanted.is_none_or(|wanted| wanted == psn));
                    }
                    Effect::Drop(reason) => prop_assert!(reason != DropReason::Malformed),
                    _ => {}
                }
            }
            // AggAckPSN is the lowest AckPSN, no AckPSN is beyond the newest data, AggAckPSN never goes back.
            if let (Some(agg), Some(newest)) = (status.agg_ack_psn, status.newest_psn) {
                let acks = || status.paths.iter().filter_map(|entry| entry.ack_psn);
                prop_assert_eq!(acks().map(|ack| ack.diff(agg)).min(), Some(0));
                prop_assert!(acks().all(|ack| !ack.is_after(newest)));
                prop_assert!(last_agg.is_none_or(|last: Psn| !agg.is_before(last)));
                last_agg = Some(agg);
            }
        }
    }
}
