//! Groups with a rate limit: what is dropped, marked and counted, and what is not metered.

use super::collective::{any_faults, any_job, drops, finish};
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::{ContextStatus, CountersSnapshot, Engine, Verdict};
use castnet_rules::{ForwardingRule, GroupRule};
use castnet_wire::{DropReason, McstId, Nanos, Opcode, RateLimit, Syndrome, TokenBucket};
use proptest::prelude::*;

/// A frame of 1,082 bytes.
fn data(psn: u32, ecn: u8) -> DataFrame {
    let mut frame = DataFrame::new(Opcode::SendMiddle, psn, &[psn as u8; 1024]);
    frame.tos |= ecn;
    frame
}

fn limited(rate_limit: Option<RateLimit>, rule: GroupRule) -> Engine {
    let mut engine = engine(6);
    install(&mut engine, &GroupRule { rate_limit, ..rule });
    engine
}

fn counters(engine: &Engine) -> castnet_engine::MulticastCounters {
    engine.group(MCST).unwrap().counters()
}

proptest! {
    // With random seeds, a case with a burst of one packet and many losses once took minutes.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A source that sends faster, and repeats what was dropped, gets its rate and burst, and nobody else loses a frame.
    #[test]
    fn a_group_gets_its_rate_and_the_others_are_not_disturbed(
        mbps in 10..2_000_u64, burst in 4_000..100_000_u64, gap_ns in 100..2_000_u64, batch in 1..20_u32, ecn in 0..4_u8,
    ) {
        let mut engine = limited(limit(mbps, burst), star(3));
        let free = McstId([10, 9, 0, 2].into());
        install(&mut engine, &GroupRule { mcst_id: free, ..star(3) });
        let (mut psn, mut free_psn, mut now) = (100, 100, T0);
        let (mut bucket, mut marks) = (TokenBucket::new(limit(mbps, burst).unwrap()), 0);
        for _ in 0..200 {
            now += Nanos(gap_ns * u64::from(batch));
            for _ in 0..batch {
                let frame = data(psn, ecn).bytes();
                let sent = feed(&mut engine, now, 0, &frame);
                bucket.refill(now);
                prop_assert_eq!(bucket.take(frame.len() as u64), !sent.is_empty());
                marks += u64::from(!sent.is_empty() && matches!(ecn, 1 | 2) && bucket.is_low());
                psn += u32::from(!sent.is_empty());
                let mut frame = data(free_psn, ecn);
                frame.dst = free.0;
                prop_assert_eq!(feed(&mut engine, now, 0, &frame.bytes()).len(), 3);
                free_psn += 1;
            }
        }
        let frames = u64::from(batch) * 200;
        let allowed = burst + mbps * (now.since(T0).0) / 8_000;
        let got = counters(&engine);
        prop_assert!(got.data_bytes_in <= allowed);
        prop_assert_eq!(got.data_in + got.rate_drops, frames);
        prop_assert_eq!(got.rate_drops, got.dropped);
        prop_assert_eq!(got.rate_drops, drops(&engine, DropReason::OverRate));
        prop_assert_eq!(got.rate_marks, marks);
        assert_conserved(&engine);
    }

    /// C1 and C2 hold: what was dropped is repaired like any loss.
    #[test]
    fn collectives_end_with_the_right_results(
        (ranks, jobs) in (2_usize..6).prop_flat_map(|n| (Just(n), prop::collection::vec(any_job(n), 1..4))),
        faults in any_faults(), mbps in 20..2_000_u64, burst in 1_000..10_000_u64, ecn in 0..3_u8, seed: u64,
    ) {
        let rule = GroupRule { rate_limit: limit(mbps, burst), ..collective_star(ranks) };
        let mut net = Net::star(&rule, &jobs, seed);
        net.faults = faults;
        net.ranks.iter_mut().for_each(|rank| rank.tos |= ecn);
        finish(&mut net, &jobs)?;
    }
}

/// Below half, frames of ECN-capable senders are marked: TOS and checksum change, and nothing else.
#[test]
fn marks_come_before_drops() {
    for ecn in [0, 1, 2, 3] {
        let (mut engine, mut free) = (limited(limit(1, 4 * 1082 + 4), star(3)), limited(None, star(3)));
        for psn in 100..105 {
            let mut frame = data(psn, ecn);
            if psn == 102 {
                frame = frame.vlan(7);
            }
            let expected = {
                // What an unlimited group makes of the marked frame.
                frame.tos |= if psn >= 102 && ecn != 0 { 3 } else { 0 };
                feed(&mut free, T0, 0, &frame.bytes())
            };
            frame.tos = 0x68 | ecn;
            let trace = engine.trace(T0, port(0), &frame.bytes());
            let sent = feed(&mut engine, T0, 0, &frame.bytes());
            let dry: Vec<_> = trace
                .sent
                .iter()
                .map(|s| (s.port.index(), s.bytes.clone()))
                .collect();
            assert_eq!(dry, sent, "a dry run has the level of the bucket");
            if psn == 104 {
                assert_eq!(sent, []);
                assert_eq!(trace.verdict, Verdict::Dropped(DropReason::OverRate));
                let text = trace.to_string();
                assert!(
                    text.contains(
                        "1082 bytes are more than the group's rate limit allows now: 1M, burst 4332 bytes"
                    ),
                    "{text}"
                );
                continue;
            }
            assert_eq!(sent, expected, "ECN {ecn}, PSN {psn}");
            assert!(sent.iter().all(|(_, frame)| is_sound(frame)));
        }
        let got = counters(&engine);
        let marks = if matches!(ecn, 1 | 2) { 2 } else { 0 };
        assert_eq!(
            (got.rate_marks, got.rate_drops, got.dropped),
            (marks, 1, 1),
            "ECN {ecn}"
        );
    }
}

/// Data of a switch was metered where it entered the tree; feedback is never metered; a frame that is no data of the source takes
/// nothing.
#[test]
fn only_data_of_the_host_that_sends_is_metered() {
    let tiny = limit(1, 1152);
    let below = rule(vec![switch(0), host(1), host(2)]);
    let mut engine = limited(tiny, below);
    for psn in 100..120 {
        let mut frame = data(psn, 2);
        frame.src = [10, 7, 7, 7].into();
        assert_eq!(feed(&mut engine, T0, 0, &frame.bytes()).len(), 2);
    }
    assert_eq!(counters(&engine).rate_drops, 0);

    let mut engine = limited(tiny, star(2));
    let mut stray = data(100, 0);
    (stray.src, stray.ethernet) = (host_ip(1), ethernet(1));
    feed(&mut engine, T0, 1, &stray.bytes());
    assert_eq!(feed(&mut engine, T0, 0, &data(100, 0).bytes()).len(), 2);
    assert_eq!(feed(&mut engine, T0, 0, &data(101, 0).bytes()), []);
    for member in [1, 2] {
        feed(&mut engine, T0, member, &ack(member, 100, 1, Syndrome::Ack));
        feed(&mut engine, T0, member, &cnp(member));
    }
    let got = counters(&engine);
    assert_eq!(
        (got.acks_in, got.acks_out, got.cnps_in, got.cnps_out),
        (2, 1, 2, 1)
    );
    assert_eq!((got.rate_drops, drops(&engine, DropReason::NotSource)), (1, 1));
    assert_conserved(&engine);
}

/// The level comes along, also to a rule that carries on the stream; another limit begins full.
#[test]
fn a_group_that_moves_or_carries_on_gets_no_new_burst() {
    let mut engine = limited(limit(1, 1152), star(2));
    assert_eq!(feed(&mut engine, T0, 0, &data(100, 0).bytes()).len(), 2);
    move_on(&mut engine, T0);
    assert_eq!(feed(&mut engine, T0, 0, &data(101, 0).bytes()), []);
    for (generation, burst, copies) in [(2, 1152, 0), (3, 1153, 2)] {
        let rule = star(2).with_multicast(|rule| rule.carries_on = Some(1));
        let rule = GroupRule {
            generation,
            rate_limit: limit(1, burst),
            ..rule
        };
        let group = castnet_engine::Context::compile(&rule, &engine.config().ports).unwrap();
        engine.install(T0, group).unwrap();
        assert_eq!(feed(&mut engine, T0, 0, &data(101, 0).bytes()).len(), copies);
    }
}

/// Each rank has its own bucket, control messages are not metered, and the switch asks a rank that may be marked to slow down.
#[test]
fn ranks_are_metered_each_by_itself() {
    let jobs = [bytes_of(3)];
    let rule = GroupRule {
        rate_limit: limit(1, 400),
        ..collective_star(3)
    };
    let mut engine = engine(3);
    install_collective(&mut engine, &rule);
    let mut ranks = [0, 1, 2].map(|rank| Rank::new(rank, T0, &jobs));
    ranks[1].tos |= 2;
    let mut cnps = [0; 3];
    for i in 0..4 {
        for rank in &ranks {
            for (port, frame) in feed(&mut engine, T0, rank.rank, &rank.frame(i)) {
                cnps[port] += u32::from(roce(&frame).bth.opcode == Opcode::Cnp);
            }
        }
    }
    let status = engine.collective_status(GROUP).unwrap();
    // Of each rank the control message and one packet of 314 bytes, of 400.
    assert_eq!(
        (status.counters.controls_in, status.counters.contributions),
        (3, 3)
    );
    assert_eq!((status.counters.rate_drops, status.counters.dropped), (6, 6));
    assert_eq!(
        (status.counters.rate_marks, status.congestion.marked, cnps),
        (1, 0, [0, 1, 0])
    );
    assert_conserved(&engine);
}

fn bytes_of(ranks: usize) -> Job {
    let data = (0..ranks).map(|rank| vec![rank as u8; 4 * 256]).collect();
    Job {
        primitive: castnet_wire::Primitive::AllReduce,
        root: 0,
        data_type: castnet_wire::DataType::U8,
        elements: 4 * 256,
        data,
    }
}

#[test]
fn both_hosts_of_a_forwarding_group_are_metered() {
    let pair = GroupRule {
        kind: ForwardingRule {}.into(),
        ..rule(vec![host(0), host(1)])
    };
    let mut engine = limited(limit(1, 2 * 1082), pair);
    for psn in 0..3 {
        for from in [0, 1] {
            let mut frame = data(psn, 2);
            (frame.src, frame.ethernet) = (host_ip(from), ethernet(from));
            let sent = feed(&mut engine, T0, from, &frame.bytes());
            assert_eq!(sent.len(), usize::from(psn < 2));
            let marks = sent.iter().filter(|(_, frame)| roce(frame).tos & 3 == 3);
            assert_eq!(marks.count(), usize::from(psn == 1));
            feed(&mut engine, T0, from, &ack(from, psn, psn, Syndrome::Ack));
        }
    }
    let Some(ContextStatus::Forwarding(status)) = engine.status(MCST) else {
        panic!("a forwarding group");
    };
    let counters = status.counters;
    assert_eq!((counters.forwarded, counters.rate_marks), (10, 2));
    assert_eq!((counters.dropped, counters.rate_drops), (2, 2));
    let mut snapshot = CountersSnapshot::with_capacity(1, 2);
    engine.snapshot(&mut snapshot);
    assert_eq!(snapshot.forwarding.groups[0].counters, counters);
    assert_conserved(&engine);
}
