//! Groups that move between engines at any moment continue as if they had not moved.

use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, EventKind, Expected, GroupStatus, InstallError};
use castnet_rules::GroupRule;
use castnet_wire::{DataType, NakCode, Nanos, Opcode, Primitive, Syndrome};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Data { psn: u32, length: usize },
    Feedback { from: usize, psn: u32, nak: bool },
    Cnp { from: usize },
    Wait { ms: u64 },
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (100u32..130, 0usize..600).prop_map(|(psn, length)| Step::Data { psn, length }),
        6 => (1usize..4, 99u32..130, 0u8..8).prop_map(|(from, psn, nak)| Step::Feedback { from, psn, nak: nak == 0 }),
        1 => (1usize..4).prop_map(|from| Step::Cnp { from }),
        1 => (0u64..400).prop_map(|ms| Step::Wait { ms }),
        4 => Just(Step::Move),
    ]
}

fn frame(step: &Step) -> Option<(usize, Vec<u8>)> {
    Some(match *step {
        Step::Data { psn, length } => {
            let mut frame = DataFrame::new(Opcode::SendOnly, psn, &vec![psn as u8; length]);
            frame.ack_request = true;
            (0, frame.bytes())
        }
        Step::Feedback { from, psn, nak } => {
            let syndrome = if nak {
                Syndrome::Nak(NakCode::PsnSequenceError)
            } else {
                Syndrome::Ack
            };
            (from, ack(from, psn, psn - 98, syndrome))
        }
        Step::Cnp { from } => (from, cnp(from)),
        Step::Wait { .. } | Step::Move => return None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What leaves, the group's state and counters are those of a group that stays, and so is who is told to have stalled.
    #[test]
    fn a_multicast_group_goes_on(steps in prop::collection::vec(step(), 1..120)) {
        let rule = GroupRule { stall_timeout_ms: 300, ..star(3) };
        let mut engines = [0; 2].map(|_| engine(5));
        engines.iter_mut().for_each(|engine| install(engine, &rule));
        let [mut stays, mut moves] = engines;
        let (mut now, mut stalled) = (T0, [Vec::new(), Vec::new()]);
        for step in steps {
            match (&step, frame(&step)) {
                (_, Some((ingress, bytes))) => {
                    now += Nanos::from_micros(10);
                    let frames = feed(&mut moves, now, ingress, &bytes);
                    prop_assert_eq!(feed(&mut stays, now, ingress, &bytes), frames);
                }
                (Step::Wait { ms }, _) => now += Nanos::from_millis(*ms),
                _ => {
                    // The events of the old engine have been collected before.
                    drain(&mut moves, &mut stalled[1]);
                    move_on(&mut moves, now);
                }
            }
            for (engine, stalled) in [&mut stays, &mut moves].into_iter().zip(&mut stalled) {
                let mut egress = PlainEgress::default();
                engine.handle_timeout(now, &mut egress);
                drain(engine, stalled);
            }
            prop_assert_eq!(state(&stays), state(&moves));
        }
        // Both report the paths that are still waited for.
        let waited_for = stays.group_status(MCST).unwrap().machine.waiting_for;
        for (engine, stalled) in [&mut stays, &mut moves].into_iter().zip(&mut stalled) {
            engine.handle_timeout(now + Nanos::from_secs(1), &mut PlainEgress::default());
            drain(engine, stalled);
        }
        let [stayed, moved] = stalled;
        if waited_for.is_some() {
            prop_assert_eq!(stayed.last(), moved.last());
            prop_assert!(moved.last().is_some());
        }
    }

    /// Every result is right, whatever is lost, doubled or late meanwhile: slots, results to be sent again and timers
    /// come along.
    #[test]
    fn collectives_go_on(
        ranks in 2usize..6, elements in prop::collection::vec(1usize..1500, 1..4), lost in 0u64..30, delayed in 0u64..30, seed: u64,
    ) {
        let jobs: Vec<Job> = elements
            .iter()
            .map(|n| Job {
                primitive: Primitive::AllReduce,
                root: 0,
                data_type: DataType::I32,
                elements: *n,
                data: (0..ranks)
                    .map(|r| (0..*n).flat_map(|i| ((i * 31 + r * 7) as u32 ^ seed as u32).to_le_bytes()).collect())
                    .collect(),
            })
            .collect();
        let mut net = Net::star(&collective_star(ranks), &jobs, seed);
        net.faults = Faults { lost, delayed, ..Faults::default() };
        net.moving = Some((Dice::new(seed ^ 0xCA57), 0));
        prop_assert!(net.run(&jobs, T0 + Nanos::from_secs(60)), "not done");
        net.assert_results(&jobs);
        net.engines.iter().for_each(assert_conserved);
    }
}

/// All but how often it was told of stalls: a timer that is armed anew may come a tick of the wheel later, and what came
/// meanwhile ends the wait.
fn state(engine: &Engine) -> GroupStatus {
    let mut status = engine.group_status(MCST).unwrap();
    status.counters.stalls = 0;
    status
}

fn drain(engine: &mut Engine, stalled: &mut Vec<(usize, Nanos)>) {
    while let Some(event) = engine.pop_event() {
        if let EventKind::PathStalled { endpoint, since, .. } = event.kind {
            stalled.push((endpoint.into(), since));
        }
    }
}

/// A reservation for a group is kept until the group is attached, or released.
#[test]
fn a_promise_is_kept_or_given_back() {
    let mut config = config(5);
    config.next_hops_max = 4;
    let mut engine = Engine::new(config).unwrap();
    let hosts = |from: usize| rule((from..from + 3).map(host).collect());
    let mut coming = Expected::new(&hosts(0), 100);
    engine.expect(&mut coming).unwrap();
    let mut other = Expected::new(&hosts(2), 100);
    assert_eq!(engine.expect(&mut other), Err(InstallError::NextHopsFull));
    engine.unexpect(&coming);
    engine.expect(&mut other).unwrap();
    engine.unexpect(&other);
    let mut large = Expected::new(&hosts(0), usize::MAX);
    assert!(matches!(
        engine.expect(&mut large),
        Err(InstallError::NoMemory { .. })
    ));
    assert_eq!(large.mcst_id(), MCST);
}
