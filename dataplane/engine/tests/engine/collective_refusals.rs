//! What a collective group does not take, in each mode, and what becomes of who sends it.

use castnet_engine::{EventKind, Verdict as End_};
use castnet_rules::CollectiveMode;
use castnet_wire::{
    Aeth, AtomicEth, DataType, Deth, DropReason, ExtHeaders, Kind, NakCode, Opcode, Primitive, Qpn, Reth,
    Syndrome, Transport,
};

use crate::collective::{drops, job};
use crate::common::collective::*;
use crate::common::*;

const MODES: [CollectiveMode; 3] = [
    CollectiveMode::Translated,
    CollectiveMode::Augmented,
    CollectiveMode::Terminated,
];

/// All headers that an opcode may have.
fn all_headers() -> ExtHeaders {
    let reth = Reth {
        va: 0,
        rkey: 1,
        dma_len: 64,
    };
    ExtHeaders {
        deth: Some(Deth {
            qkey: 1,
            source_qp: Qpn::new(5),
        }),
        reth: Some(reth),
        atomic_eth: Some(AtomicEth {
            va: 0,
            rkey: 1,
            swap_add: 0,
            compare: 0,
        }),
        aeth: Some(Aeth {
            syndrome: Syndrome::Ack,
            msn: 0,
        }),
        atomic_ack: Some(0),
        imm: Some(7),
        ieth: Some(1),
    }
}

/// Ranks send SENDs of a reliable connection, without a key to invalidate, and answer results. Nothing else is of the group.
#[test]
fn a_collective_group_takes_sends_and_feedback_of_reliable_connections_alone() {
    for mode in MODES {
        let mut engine = engine(4);
        let rule = collective_star(3).with_translated(|rule| rule.mode = mode);
        install_collective(&mut engine, &rule);
        for &opcode in Opcode::ALL {
            let info = opcode.info();
            let payload: &[u8] = if info.has_payload { &[0; 64] } else { &[] };
            let mut frame = DataFrame::new(opcode, sq_psn(0).value(), payload);
            (frame.dst, frame.ext) = (GROUP.0, all_headers());
            let with_key = matches!(opcode, Opcode::SendLastInv | Opcode::SendOnlyInv);
            let takes = match info.transport {
                Transport::Rc => matches!(info.kind, Kind::Send | Kind::Ack) && !with_key,
                Transport::Castnet => opcode == Opcode::RepairRequest && mode != CollectiveMode::Terminated,
                transport => transport == Transport::Cnp,
            };
            let before = drops(&engine, DropReason::NotMulticastable);
            let dry = engine.trace(T0, port(0), &frame.bytes()).verdict;
            assert_eq!(
                dry != End_::Dropped(DropReason::NotMulticastable),
                takes,
                "{mode:?} {opcode}"
            );
            feed(&mut engine, T0, 0, &frame.bytes());
            let refused = drops(&engine, DropReason::NotMulticastable) - before;
            assert_eq!(refused, u64::from(!takes), "{mode:?} {opcode}");
            assert_conserved(&engine);
        }
    }
}

/// A message of another length than its call says. Its connection ends with a NAK, and nothing of the rank counts any more, whatever it
/// sends; the others are served.
#[test]
fn a_rank_that_is_refused_in_mode_one_is_not_served_any_more() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 3, 1)];
    let mut engine = engine(3);
    let rule = collective_star(3).with_translated(|rule| rule.mode = CollectiveMode::Terminated);
    install_collective(&mut engine, &rule);
    let mut ranks = [0, 1, 2].map(|rank| Rank::new(rank, T0, &jobs));
    for rank in &ranks {
        feed(&mut engine, T0, rank.rank, &rank.frame(0));
    }
    for rank in &ranks {
        let ack = rank.ack(rq_psn(rank.rank), Syndrome::Ack);
        feed(&mut engine, T0, rank.rank, &ack);
    }
    // Contributions are added in the order of endpoints: the fault shows when it is the turn of rank 1.
    let answers = |engine: &mut castnet_engine::Engine, rank: &Rank| {
        let sent = feed(engine, T0, rank.rank, &rank.frame(1));
        let each = sent.iter();
        each.map(|(port, frame)| (*port, roce(frame).aeth.map(|aeth| aeth.syndrome)))
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(&mut engine, &ranks[0]), [(0, Some(Syndrome::Ack))]);
    ranks[1].packets[1].payload.truncate(100);
    let refused = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(answers(&mut engine, &ranks[1]).last(), Some(&(1, Some(refused))));
    let events: Vec<_> = core::iter::from_fn(|| engine.pop_event()).collect();
    let [event] = &events[..] else {
        panic!("one event: {events:?}");
    };
    let EventKind::MemberFailed {
        mcst_id,
        generation,
        endpoint,
        syndrome,
    } = event.kind
    else {
        panic!("{event:?}");
    };
    assert_eq!((mcst_id, generation, endpoint), (GROUP, 1, 1));
    assert_eq!(syndrome, refused.byte());

    // What it sends again, what follows, and what it answers.
    let whole = Rank::new(1, T0, &jobs);
    let next = sq_psn(1).add(2);
    let follows = DataFrame {
        src: host_ip(1),
        dst: GROUP.0,
        ethernet: ethernet(1),
        ..DataFrame::new(Opcode::SendOnly, next.value(), &[0; 256])
    };
    let answer = whole.ack(rq_psn(1), Syndrome::Ack);
    for (n, frame) in (1..).zip([whole.frame(1), ranks[1].frame(1), follows.bytes(), answer]) {
        assert_eq!(feed(&mut engine, T0, 1, &frame), []);
        assert_eq!(drops(&engine, DropReason::GroupFailed), n);
        assert_conserved(&engine);
    }
    // The sum waits for ever for the one that is lacking.
    assert_eq!(answers(&mut engine, &ranks[2]), [(2, Some(Syndrome::Ack))]);
    let counters = *engine.collective(GROUP).unwrap().counters();
    assert_eq!(
        (counters.dropped, counters.contributions, counters.results),
        (5, 3, 0)
    );
    assert_eq!(engine.pop_event(), None);
}

/// Its connection ended without a word, and the others waited until their time-outs.
#[test]
fn a_message_without_its_begin_ends_a_rank_with_an_event() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 2, 1)];
    let mut engine = engine(2);
    let rule = collective_star(2).with_translated(|rule| rule.mode = CollectiveMode::Terminated);
    install_collective(&mut engine, &rule);
    let ranks = [0, 1].map(|rank| Rank::new(rank, T0, &jobs));
    for rank in &ranks {
        feed(&mut engine, T0, rank.rank, &rank.frame(0));
    }
    let middle = DataFrame {
        src: host_ip(1),
        dst: GROUP.0,
        ethernet: ethernet(1),
        ..DataFrame::new(Opcode::SendMiddle, sq_psn(1).add(1).value(), &[0; 256])
    };
    let sent = feed(&mut engine, T0, 1, &middle.bytes());
    let refused = Some(Syndrome::Nak(NakCode::InvalidRequest));
    let answer = sent.last().and_then(|(_, frame)| roce(frame).aeth);
    assert_eq!(answer.map(|aeth| aeth.syndrome), refused);
    let events: Vec<_> = core::iter::from_fn(|| engine.pop_event()).collect();
    let [event] = &events[..] else {
        panic!("one event: {events:?}");
    };
    assert!(
        matches!(event.kind, EventKind::MemberFailed { endpoint: 1, .. }),
        "{event:?}"
    );
    assert_conserved(&engine);
}
