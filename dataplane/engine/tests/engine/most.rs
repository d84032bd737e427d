//! Groups with as many endpoints as there can be, all behind one port.

use super::collective::job;
use super::replication::twin;
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::{EventKind, FrameFilter, TapId};
use castnet_rules::ENDPOINTS_MAX;
use castnet_wire::{DataType, Nanos, Primitive, Psn, Syndrome};

#[test]
fn multicast_to_as_many_receivers_as_there_can_be() {
    let group = rule((0..ENDPOINTS_MAX).map(|n| host_at(0, n)).collect());
    // By the fast path, and by the slow one: a tap that wants all frames takes them off it.
    for slow in [false, true] {
        let mut engine = engine(1);
        install(&mut engine, &group);
        if slow {
            let tap = TapId::all().next().unwrap();
            engine.taps.arm_capture(tap, FrameFilter::default(), 64, u64::MAX);
        }
        let mut first = 0;
        // The last has lost the first packet.
        for (psn, lacking) in [
            (100, 1..ENDPOINTS_MAX),
            (101, 1..ENDPOINTS_MAX),
            (100, 1023..1024),
        ] {
            let frame = send(psn, &[7; 600]);
            let sent = feed(&mut engine, T0, 0, &frame);
            let copies: Vec<Vec<u8>> = sent.into_iter().map(|(_, frame)| frame).collect();
            let expected = group.endpoints[lacking]
                .iter()
                .map(|path| twin(&frame, &group, path));
            assert!(copies.into_iter().eq(expected), "slow: {slow}, PSN {psn}");
            if first == 0 {
                first = psn;
                continue;
            }
            // All but the last acknowledge, which causes no feedback yet.
            for n in 1..ENDPOINTS_MAX - 1 {
                assert!(feed(&mut engine, T0, 0, &ack(n, 101, 1, Syndrome::Ack)).is_empty());
            }
        }
        let sent = feed(&mut engine, T0, 0, &ack(ENDPOINTS_MAX - 1, 101, 1, Syndrome::Ack));
        let [(_, frame)] = sent.as_slice() else {
            panic!("one acknowledgement: {}", sent.len())
        };
        let header = roce(frame);
        assert_eq!(header.bth.psn, Psn::new(101));
        assert_eq!(header.aeth.map(|a| a.syndrome), Some(Syndrome::Ack));
        assert_eq!(header.ip.v4(), Some((MCST.0, host_ip(0))));
    }
}

#[test]
fn collectives_of_as_many_ranks_as_there_can_be() {
    let group = one_armed_star(ENDPOINTS_MAX);
    let jobs = [
        job(Primitive::AllReduce, DataType::I32, 0, 150, ENDPOINTS_MAX, 1),
        job(Primitive::Reduce, DataType::U64, 700, 40, ENDPOINTS_MAX, 2),
        job(Primitive::Broadcast, DataType::U8, 1023, 300, ENDPOINTS_MAX, 3),
    ];
    let mut net = Net::one_armed(&group, &jobs, 12);
    net.faults = Faults {
        lost: 2,
        doubled: 2,
        ..Faults::default()
    };
    assert!(net.run(&jobs, Nanos::from_secs(60)), "it ends");
    for rank in &net.ranks {
        for (job, (_, data)) in jobs.iter().zip(rank.results(&jobs)) {
            assert!(data == job.expected(rank.rank), "rank {}", rank.rank);
        }
    }
    let status = net.engines[0].collective_status(GROUP).unwrap();
    assert!(
        status.counters.naks_out + status.counters.repeats > 0,
        "nothing was lost"
    );
}

/// One of the largest number of ranks is missing: the report names it.
#[test]
fn the_last_rank_of_all_is_waited_for() {
    let group = one_armed_star(ENDPOINTS_MAX);
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 1, ENDPOINTS_MAX, 1)];
    let mut net = Net::one_armed(&group, &jobs, 1);
    net.ranks.pop();
    net.run(&jobs, T0 + Nanos::from_millis(600));
    let stalled = std::iter::from_fn(|| net.engines[0].pop_event()).find_map(|event| match event.kind {
        EventKind::CollectiveStalled { waiting_for, .. } => Some(waiting_for),
        _ => None,
    });
    let waited: Vec<usize> = stalled.unwrap().iter().map(|endpoint| endpoint.index()).collect();
    assert_eq!(waited, [ENDPOINTS_MAX - 1]);
}
