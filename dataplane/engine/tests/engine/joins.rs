//! Members that join a running stream: rules that carry on, the first message, and what is reported.

use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine, EventKind};
use castnet_rules::GroupRule;
use castnet_wire::{DropReason, Nanos, Opcode, Psn, Syndrome};

use crate::common::*;

const T0: Nanos = Nanos::from_secs(1);

/// Generation 2 of the star: the last receiver joins the stream.
fn with_joining(receivers: usize, since: u64) -> GroupRule {
    let mut rule = star(receivers).with_multicast(|kind| {
        kind.start_psn = None;
        kind.carries_on = Some(since);
    });
    rule.generation = 2;
    rule.endpoints[receivers].joining = true;
    rule
}

fn replace(engine: &mut Engine, rule: &GroupRule) {
    let group = Context::compile(rule, &engine.config().ports).unwrap();
    assert!(engine.install(T0, group).unwrap().is_some());
}

/// The ports that get a packet of 1 KiB.
fn ports_of(engine: &mut Engine, opcode: Opcode, psn: u32) -> Vec<usize> {
    let mut sent: Vec<usize> = feed(engine, T0, 0, &DataFrame::new(opcode, psn, &[7; 1024]).bytes())
        .iter()
        .map(|(port, frame)| {
            assert!(is_sound(frame));
            *port
        })
        .collect();
    sent.sort_unstable();
    sent
}

fn acknowledge(engine: &mut Engine, receivers: impl IntoIterator<Item = usize>, psn: u32) -> Vec<u32> {
    let mut up = Vec::new();
    for n in receivers {
        for (port, frame) in feed(engine, T0, n, &ack(n, psn, 1, Syndrome::Ack)) {
            assert_eq!(port, 0);
            up.push(roce(&frame).bth.psn.value());
        }
    }
    up
}

fn joined(engine: &mut Engine) -> Vec<(u64, u16, u32)> {
    let events = core::iter::from_fn(|| engine.pop_event());
    let joined = events.filter_map(|event| match event.kind {
        EventKind::PathJoined {
            mcst_id: MCST,
            generation,
            endpoint,
            psn,
        } => Some((generation, endpoint, psn.value())),
        _ => None,
    });
    joined.collect()
}

#[test]
fn a_member_joins_with_the_next_message() {
    let mut engine = engine(5);
    install(&mut engine, &star(2));
    assert_eq!(ports_of(&mut engine, Opcode::SendFirst, 100), [1, 2]);
    assert_eq!(acknowledge(&mut engine, [1, 2], 100), [100]);
    assert_eq!(ports_of(&mut engine, Opcode::SendMiddle, 101), [1, 2]);
    replace(&mut engine, &with_joining(3, 1));
    // What the paths have acknowledged is still known.
    let status = engine.group_status(MCST).unwrap().machine;
    assert_eq!(
        (status.agg_ack_psn, status.newest_psn),
        (Some(Psn::new(100)), Some(Psn::new(101)))
    );

    assert_eq!(ports_of(&mut engine, Opcode::SendMiddle, 102), [1, 2]);
    // It holds up nobody.
    assert_eq!(acknowledge(&mut engine, [1, 2], 102), [102]);
    assert_eq!(ports_of(&mut engine, Opcode::SendLast, 103), [1, 2]);
    // A corrupted packet must not pass for the first of a message.
    let mut bad = DataFrame::new(Opcode::SendOnly, 104, &[7; 1024]).bytes();
    bad[14 + 20 + 8] ^= 0x04;
    assert_eq!(feed(&mut engine, T0, 0, &bad), []);
    assert_eq!(joined(&mut engine), []);
    assert_eq!(ports_of(&mut engine, Opcode::SendFirst, 104), [1, 2, 3]);
    assert_eq!(joined(&mut engine), [(2, 3, 104)]);
    assert_eq!(ports_of(&mut engine, Opcode::SendLast, 105), [1, 2, 3]);

    // From now on it counts.
    assert_eq!(acknowledge(&mut engine, [1, 2], 105), [103]);
    assert_eq!(ports_of(&mut engine, Opcode::SendFirst, 104), [3]);
    assert_eq!(joined(&mut engine), [(2, 3, 104)], "reported again");
    assert_eq!(acknowledge(&mut engine, [3], 105), [105]);
    assert_eq!(ports_of(&mut engine, Opcode::SendOnly, 106), [1, 2, 3]);
    assert_eq!(ports_of(&mut engine, Opcode::SendFirst, 104), []);
    assert_eq!(joined(&mut engine), []);

    let counted = engine.group_status(MCST).unwrap().paths;
    let copies: Vec<u64> = counted.iter().skip(1).map(|path| path.copies_out).collect();
    assert_eq!(copies, [5, 5, 4], "since the new rule");
    assert_eq!(engine_drops(&engine), 1);
    assert_conserved(&engine);
}

fn engine_drops(engine: &Engine) -> u64 {
    let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(1, 8);
    engine.snapshot(&mut snapshot);
    snapshot.drops[DropReason::BadIcrc]
}

/// The source may be silent from then on.
#[test]
fn a_rule_that_carries_on_still_reports_a_path_that_stalls() {
    let mut engine = engine(5);
    install(&mut engine, &star(2));
    ports_of(&mut engine, Opcode::SendFirst, 100);
    acknowledge(&mut engine, [1], 100);
    replace(&mut engine, &with_joining(3, 1));
    let mut egress = PlainEgress::default();
    while let Some(at) = engine.poll_timeout().filter(|at| *at < T0 + Nanos::from_secs(4)) {
        engine.handle_timeout(at, &mut egress);
    }
    let events = core::iter::from_fn(|| engine.pop_event());
    let stalled = events.filter_map(|event| match event.kind {
        EventKind::PathStalled {
            generation,
            endpoint,
            since,
            ..
        } => Some((generation, endpoint, since)),
        _ => None,
    });
    assert_eq!(stalled.collect::<Vec<_>>(), [(2, 2, T0)]);
}

/// A switch that served none of the group: it acknowledges what comes before the first message.
#[test]
fn a_switch_without_other_members_acknowledges_for_the_one_that_waits() {
    let mut engine = engine(3);
    install(&mut engine, &with_joining(1, 1));
    assert_eq!(ports_of(&mut engine, Opcode::SendMiddle, 500), [0]);
    assert_eq!(ports_of(&mut engine, Opcode::SendLast, 501), [0]);
    assert_eq!(ports_of(&mut engine, Opcode::SendOnly, 502), [1]);
    assert_eq!(joined(&mut engine), [(2, 1, 502)]);
    assert_eq!(acknowledge(&mut engine, [1], 502), [502]);
    assert_conserved(&engine);
}

/// The rule of another stream, or of none, has no state to carry on.
#[test]
fn a_rule_carries_on_from_its_own_stream_only() {
    let kept = |rule: &GroupRule| {
        let mut engine = engine(5);
        install(&mut engine, &star(2));
        ports_of(&mut engine, Opcode::SendOnly, 100);
        acknowledge(&mut engine, [1, 2], 100);
        replace(&mut engine, rule);
        engine.group_status(MCST).unwrap().machine.agg_ack_psn.is_some()
    };
    assert!(kept(&with_joining(3, 1)));
    assert!(!kept(&with_joining(3, 2)), "the old rule is of a stream before");
    assert!(!kept(
        &with_joining(3, 1).with_multicast(|kind| kind.carries_on = None)
    ));
    let mut other_source = with_joining(3, 1);
    other_source.endpoints[0] = host_at(0, 9);
    assert!(!kept(&other_source));
    // One that comes back with a new queue pair is a new path: the old acknowledgements are not its own.
    let mut returns = with_joining(2, 1);
    returns.endpoints[2] = castnet_rules::Endpoint {
        port: port(2),
        joining: true,
        ..host_at(2, 7)
    };
    assert!(kept(&returns));
}
