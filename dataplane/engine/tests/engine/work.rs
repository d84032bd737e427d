//! Groups share the work of an iteration: what their members ask for delays it no further than the frames of some tenths of a millisecond.

use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, EngineConfig, EventKind};
use castnet_rules::{CollectiveMode, GroupKind, GroupRule, RepairRule};
use castnet_wire::{Aeth, Batch, DataType, McstId, NakCode, Nanos, Opcode, Primitive, Syndrome};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::collective::job;
use super::repair::tick;
use crate::common::collective::*;
use crate::common::*;

/// Most frames that groups send in one iteration beside the effects of frames.
const FRAMES_MAX: usize = 1024;

/// The results of collectives of one packet wait for that of the first one, of which rank 0 holds back its contribution. Returns rank 0.
fn hold_back(engine: &mut Engine, calls: usize) -> Rank {
    let rule = collective_star(2).with_translated(|rule| {
        (rule.slots, rule.message_packets) = (8192, 1);
    });
    install_collective(engine, &rule);
    let jobs: Vec<Job> = (0..calls as u64)
        .map(|i| job(Primitive::AllReduce, DataType::U8, 0, 8, 2, i))
        .collect();
    let ranks = [0, 1].map(|rank| Rank::new(rank, T0, &jobs));
    for i in 0..2 * calls {
        feed(engine, T0, 1, &ranks[1].frame(i));
        if i != 1 {
            feed(engine, T0, 0, &ranks[0].frame(i));
        }
    }
    let [first, _] = ranks;
    first
}

#[test]
fn pending_results_are_sent_in_many_iterations() {
    let calls = 1500;
    let mut engine = engine(2);
    let rank = hold_back(&mut engine, calls);
    let mut frames: Batch<Vec<u8>> = Batch::new();
    frames.push(rank.frame(1));
    let mut sent = 0;
    // A batch, then three with old ACKs.
    for _ in 0..4 {
        while frames.len() < 32 {
            frames.push(rank.ack(rq_psn(0), Syndrome::Ack));
        }
        let mut egress = PlainEgress::default();
        engine.process(T0, port(0), &mut frames, &mut egress);
        sent += taken(egress).len();
    }
    // Beside that, each frame has a result as an effect of its own, for two.
    let most = FRAMES_MAX + 2 * 128 + 1;
    assert!((FRAMES_MAX..=most).contains(&sent), "{sent} frames");
    while engine.poll_timeout() == Some(Nanos::ZERO) {
        let more = tick(&mut engine, T0).len();
        assert!(more <= FRAMES_MAX, "{more} frames");
        sent += more;
    }
    assert!(sent >= 2 * (2 * calls - 1), "{sent} frames");
}

/// A sum in rank order is made of all contributions when it is sent. A rank that comes late completes many sums at once.
#[test]
fn sums_in_rank_order_are_made_in_many_iterations() {
    let (ranks, packets) = (60, 32);
    let mut engine = engine(2);
    install_collective(
        &mut engine,
        &one_armed_star(ranks).with_translated(|rule| (rule.reproducible, rule.slots) = (true, 64)),
    );
    let elements = packets * PMTU.bytes() / 4;
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, elements, ranks, 1)];
    let all: Vec<Rank> = (0..ranks).map(|rank| Rank::new(rank, T0, &jobs)).collect();
    let is_result = |frame: &(_, Vec<u8>)| frame.1.len() > PMTU.bytes();
    all.iter()
        .for_each(|rank| drop(feed(&mut engine, T0, 0, &rank.frame(0))));
    for i in 1..=packets {
        let early = all[1..]
            .iter()
            .map(|rank| feed(&mut engine, T0, 0, &rank.frame(i)));
        assert!(early.flatten().all(|frame| !is_result(&frame)));
    }
    let mut frames: Batch<Vec<u8>> = Batch::new();
    (1..=packets).for_each(|i| frames.push(all[0].frame(i)));
    let mut egress = PlainEgress::default();
    engine.process(T0, port(0), &mut frames, &mut egress);
    let mut sent = vec![taken(egress)];
    while engine.poll_timeout() == Some(Nanos::ZERO) {
        sent.push(tick(&mut engine, T0));
    }
    // Each takes as long as to combine 60 packets and to send as many.
    let results: Vec<_> = sent
        .iter()
        .map(|all| all.iter().filter(|f| is_result(f)).count() / ranks)
        .collect();
    assert_eq!(results.iter().sum::<usize>(), packets, "{results:?}");
    assert!(results.iter().all(|sums| *sums <= 14), "{results:?}");
}

/// A group of this number, all of whose ranks have a result that they do not acknowledge.
fn unanswered(engine: &mut Engine, number: u8, ranks: usize, mode: CollectiveMode) {
    let rule = GroupRule {
        mcst_id: McstId(Ipv4Addr::new(10, 9, 2, number)),
        ..one_armed_star(ranks)
    };
    let rule = rule.with_translated(|rule| (rule.ack_timeout_us, rule.mode) = (4, mode));
    install_collective(engine, &rule);
    let jobs = [job(Primitive::AllReduce, DataType::U8, 0, 0, ranks, 1)];
    for rank in 0..ranks {
        let mut rank = Rank::new(rank, T0, &jobs);
        rank.mcst_id = rule.mcst_id;
        feed(engine, T0, 0, &rank.frame(0));
    }
}

/// 128 groups with the shortest time-out of all would repeat 2048 packets in each iteration.
#[test]
fn timers_of_many_groups_take_turns_and_leave_work_for_others() {
    // Timers have half of the work. In Mode-I, repeats are emissions, too. A group ends with the packet that uses up the rest.
    for (mode, most) in [
        (CollectiveMode::Translated, FRAMES_MAX / 2 + 16),
        (CollectiveMode::Terminated, FRAMES_MAX + 16),
    ] {
        let (groups, ranks, calls) = (128, 16, 1500);
        let mut engine = Engine::new(EngineConfig {
            groups_max: 256,
            ..config(2)
        })
        .unwrap();
        let rank = hold_back(&mut engine, calls);
        (0..groups).for_each(|number| unanswered(&mut engine, number, ranks, mode));
        feed(&mut engine, T0, 0, &rank.frame(1));
        let (mut repeating, mut results) = (BTreeSet::new(), 0);
        for i in 1..=16 {
            let now = T0 + Nanos::from_millis(i);
            let mut repeats = 0;
            for (_, frame) in tick(&mut engine, now) {
                let (src, _) = roce(&frame).ip.v4().unwrap();
                match McstId(src) {
                    GROUP => results += 1,
                    McstId(other) => {
                        repeats += 1;
                        repeating.insert(other);
                    }
                }
            }
            assert!(repeats <= most, "{mode}: {repeats} repeats");
        }
        assert!(results >= 128, "{mode}: {results} results");
        assert_eq!(repeating.len(), usize::from(groups), "{mode}");
    }
}

/// Each of 32 groups would send eight packets to each of eight receivers at once.
#[test]
fn repeats_of_many_multicast_groups_take_turns() {
    let (groups, receivers, packets) = (32, 8, 16);
    let mut engine = engine(receivers + 1);
    let at = |number: u8, mut frame: DataFrame| {
        frame.dst = Ipv4Addr::new(10, 9, 3, number);
        frame.bytes()
    };
    for number in 0..groups {
        let mut rule = star(receivers);
        rule.mcst_id = McstId(Ipv4Addr::new(10, 9, 3, number));
        if let GroupKind::Multicast(kind) = &mut rule.kind {
            kind.repair = Some(RepairRule {
                slots: packets,
                ..RepairRule::default()
            });
        }
        install(&mut engine, &rule);
        for psn in 100..100 + u32::from(packets) {
            let data = DataFrame::new(Opcode::SendOnly, psn, &[7; 8]);
            feed(&mut engine, T0, 0, &at(number, data));
        }
        for n in 1..=receivers {
            let mut nak = DataFrame::new(Opcode::Ack, 100, &[]);
            (nak.src, nak.ethernet) = (host_ip(n), ethernet(n));
            let syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
            nak.ext.aeth = Some(Aeth { syndrome, msn: 0 });
            feed(&mut engine, T0, n, &at(number, nak));
        }
    }
    let sent = [(); 3].map(|()| tick(&mut engine, T0).len());
    assert_eq!(sent, [FRAMES_MAX, FRAMES_MAX, 0]);
}

#[test]
fn stalls_are_counted_each_and_reported_some_times_a_second() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Terminated] {
        let rule = collective_star(2).with_translated(|rule| rule.mode = mode);
        let rule = GroupRule {
            stall_timeout_ms: 1,
            ..rule
        };
        let mut engine = engine(2);
        install_collective(&mut engine, &rule);
        let jobs = [job(Primitive::AllReduce, DataType::U8, 0, 0, 2, 1)];
        feed(&mut engine, T0, 0, &Rank::new(0, T0, &jobs).frame(0));
        let mut reports = 0;
        for i in 1..=1000 {
            tick(&mut engine, T0 + Nanos::from_millis(i));
            let events = std::iter::from_fn(|| engine.pop_event());
            let stall = |kind| matches!(kind, EventKind::CollectiveStalled { .. });
            reports += events.filter(|event| stall(event.kind)).count();
        }
        let stalls = engine.collective(GROUP).unwrap().counters().stalls;
        assert!(stalls > 300, "{stalls} stalls");
        assert!((8..=18).contains(&reports), "{mode}: {reports} reports");
    }
}
