//! Collectives with whole frames: through one switch, and through two tiers of them, against sums computed plainly.

use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, EventKind, FrameFilter, Refusal, TapId, Verdict as End_};
use castnet_rules::{CollectiveMode, LossPolicy, StragglerPolicy, TranslatedRule};
use castnet_wire::{
    Aeth, Call, CallFlags, Control, DataType, DropReason, Nanos, Opcode, Parsed, Primitive, Psn, Qpn,
    Syndrome, Verdict, parse_frame,
};
use proptest::prelude::*;

const LONG: Nanos = Nanos::from_secs(60);

pub(crate) fn any_job(ranks: usize) -> impl Strategy<Value = Job> {
    let primitive = prop::sample::select(vec![
        Primitive::AllReduce,
        Primitive::Reduce,
        Primitive::Broadcast,
    ]);
    let data_type = prop::sample::select(vec![
        DataType::I32,
        DataType::U64,
        DataType::U8,
        DataType::F32,
        DataType::F64,
    ]);
    (primitive, data_type, 0..ranks, 0usize..700, any::<u64>()).prop_map(
        move |(primitive, data_type, root, elements, seed)| {
            job(primitive, data_type, root, elements, ranks, seed)
        },
    )
}

/// Floats are small whole numbers here, so that their sum is exact whatever the order.
pub(crate) fn job(
    primitive: Primitive,
    data_type: DataType,
    root: usize,
    elements: usize,
    ranks: usize,
    seed: u64,
) -> Job {
    let mut dice = Dice::new(seed);
    let mut element = |out: &mut Vec<u8>| match data_type {
        DataType::F32 => out.extend((dice.roll(1000) as f32 - 500.0).to_le_bytes()),
        DataType::F64 => out.extend((dice.roll(1000) as f64 - 500.0).to_le_bytes()),
        _ => out.extend(&dice.roll(u64::MAX).to_le_bytes()[..data_type.size()]),
    };
    let data = (0..ranks).map(|_| {
        let mut bytes = Vec::new();
        (0..elements).for_each(|_| element(&mut bytes));
        bytes
    });
    Job {
        primitive,
        root,
        data_type,
        elements,
        data: data.collect(),
    }
}

pub(super) fn any_faults() -> impl Strategy<Value = Faults> {
    let rate = || prop_oneof![2 => Just(0u64), 1 => 1u64..40];
    (rate(), rate(), rate(), rate()).prop_map(|(lost, doubled, delayed, corrupted)| Faults {
        lost,
        doubled,
        delayed,
        corrupted,
    })
}

pub(super) fn finish(net: &mut Net, jobs: &[Job]) -> Result<(), TestCaseError> {
    let done = net.run(jobs, T0 + LONG);
    let states: Vec<_> = net
        .ranks
        .iter()
        .map(|r| (r.acked, r.packets.len(), r.got.len()))
        .collect();
    prop_assert!(done, "not done: (acked, of, got) {states:?}");
    net.assert_results(jobs);
    net.engines.iter().for_each(assert_conserved);
    Ok(())
}

/// Mode-II with each policy of loss repair, Mode-III, or Mode-I.
fn set_policy(rule: &mut TranslatedRule, policy: u8) {
    match policy {
        0 => rule.loss_policy = LossPolicy::Repair,
        1 => rule.loss_policy = LossPolicy::Reflect,
        2 => rule.mode = CollectiveMode::Augmented,
        _ => rule.mode = CollectiveMode::Terminated,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn one_switch_adds_what_all_ranks_send(
        (ranks, jobs) in (2usize..7).prop_flat_map(|n| (Just(n), prop::collection::vec(any_job(n), 1..6))),
        faults in any_faults(), reproducible: bool, policy in 0u8..4, vlan: bool, seed: u64,
    ) {
        let rule = collective_star(ranks).with_translated(|rule| {
            rule.reproducible = reproducible;
            set_policy(rule, policy);
        });
        let mut net = Net::star(&rule, &jobs, seed);
        net.faults = faults;
        if vlan {
            net.ranks.iter_mut().for_each(|r| r.vlan = Some(5));
        }
        finish(&mut net, &jobs)?;
    }

    #[test]
    fn two_tiers_add_what_all_ranks_send(
        jobs in prop::collection::vec(any_job(6), 1..5), faults in any_faults(), reproducible: bool, policy in 0u8..4, seed: u64,
    ) {
        let change = |rule: &mut TranslatedRule| {
            rule.reproducible = reproducible;
            set_policy(rule, policy);
        };
        let mut net = Net::two_tiers(change, &jobs, seed);
        net.faults = faults;
        finish(&mut net, &jobs)?;
    }

    #[test]
    fn routers_between_switches_change_no_sum(
        jobs in prop::collection::vec(any_job(6), 1..5), faults in any_faults(), slow: bool, policy in 0u8..4, seed: u64,
    ) {
        let change = |rule: &mut TranslatedRule| set_policy(rule, policy);
        let mut net = Net::routed_tiers(change, &jobs, seed);
        net.faults = faults;
        if slow {
            let tap = TapId::all().next().unwrap();
            let all = |engine: &mut Engine| engine.taps.arm_capture(tap, FrameFilter::default(), 0, u64::MAX);
            net.engines.iter_mut().for_each(all);
        }
        finish(&mut net, &jobs)?;
    }

    /// Rounding depends on the order of additions: if it is to be reproducible, it is the order of ranks.
    #[test]
    fn a_reproducible_sum_does_not_depend_on_who_is_first(
        bits in prop::collection::vec(prop::collection::vec(-1e6f32..1e6, 200), 5), augmented: bool, seed: u64,
    ) {
        let data = bits.iter().map(|v| v.iter().flat_map(|f| f.to_le_bytes()).collect()).collect();
        let jobs = [Job { primitive: Primitive::AllReduce, root: 0, data_type: DataType::F32, elements: 200, data }];
        let rule = collective_star(5).with_translated(|r| {
            r.reproducible = true;
            set_policy(r, if augmented { 2 } else { 0 });
        });
        let mut net = Net::star(&rule, &jobs, seed);
        finish(&mut net, &jobs)?;
    }
}

#[test]
fn corruption_alone_never_changes_a_result() {
    let jobs: Vec<Job> = (0..20)
        .map(|i| job(Primitive::AllReduce, DataType::I32, 0, 400, 6, 77 + i))
        .collect();
    let mut net = Net::two_tiers(|_| {}, &jobs, 3);
    net.faults.corrupted = 100;
    finish(&mut net, &jobs).unwrap();
    assert!(net.corrupted > 100, "{} frames corrupted", net.corrupted);
    let bad: u64 = net.engines.iter().map(|e| drops(e, DropReason::BadIcrc)).sum();
    assert!(bad > 30, "{bad} frames refused for their ICRC");
}

/// A frame with zeros for payload and ICRC.
fn headers(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    if let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) {
        bytes[header.payload_at..header.frame_len].fill(0);
    }
    bytes
}

pub(super) fn drops(engine: &Engine, reason: DropReason) -> u64 {
    let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(4, 64);
    engine.snapshot(&mut snapshot);
    snapshot.drops[reason]
}

#[test]
fn counters_and_status_tell_what_happened() {
    let jobs = [
        job(Primitive::AllReduce, DataType::F32, 0, 320, 3, 1),
        job(Primitive::AllReduce, DataType::F32, 0, 0, 3, 2),
    ];
    let mut net = Net::star(&collective_star(3), &jobs, 1);
    // Nobody waits so long that the switch asks.
    for rank in &mut net.ranks {
        (rank.starts, rank.deadline) = (T0, T0 + TIMEOUT);
    }
    finish(&mut net, &jobs).unwrap();
    let status = net.engines[0].collective_status(GROUP).unwrap();
    let c = status.counters;
    assert_eq!((c.contributions, c.contribution_bytes), (15, 3 * 1280));
    assert_eq!(
        (c.results, c.result_bytes, c.controls_in, c.controls_out),
        (15, 3 * 1280, 6, 6)
    );
    assert_eq!((c.repeats, c.dropped, c.lost, c.stalls), (0, 0, 0, 0));
    for endpoint in &status.endpoints {
        let e = endpoint.counters;
        assert_eq!((e.contributions, e.results, e.naks_in, e.naks_out), (7, 7, 0, 0));
        assert!(e.acks_in > 0 && e.acks_out > 0, "{e:?}");
    }
    assert_eq!((status.slots_used, status.machine.collectives.len()), (0, 0));
    assert_eq!(status.machine.next_sequence, 2);
    let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(4, 64);
    net.engines[0].snapshot(&mut snapshot);
    let [group] = &snapshot.collective.groups[..] else {
        panic!("one group: {snapshot:?}")
    };
    assert_eq!(group.counters, c);
    assert_eq!(snapshot.collective.endpoints_of(group), status.endpoints);
}

#[test]
fn ranks_that_disagree_are_all_told_who_said_what() {
    let good = [job(Primitive::AllReduce, DataType::I32, 0, 64, 6, 1)];
    let other = [job(Primitive::AllReduce, DataType::I32, 0, 65, 6, 1)];
    let mut net = Net::two_tiers(|_| {}, &good, 9);
    net.ranks[3] = Rank::new(3, T0, &other);
    net.run(&good, T0 + Nanos::from_millis(200));
    for rank in &net.ranks {
        let first = rank.got.first().expect("a control result");
        let Verdict::Conflict {
            rank: other_rank,
            call,
        } = Control::parse(&first.payload).unwrap().verdict
        else {
            panic!("rank {} was told of no conflict", rank.rank);
        };
        let (said, by) = (
            Control::parse(&first.payload).unwrap().call,
            Control::parse(&first.payload).unwrap().rank,
        );
        let elements = [(by, said.elements), (other_rank, call.elements)];
        assert!(
            elements.contains(&(3, 65)) && elements.iter().any(|e| e.1 == 64),
            "{elements:?}"
        );
        assert_eq!(rank.got.len(), 1, "no data after that");
    }
    let mut told = 0;
    for engine in &mut net.engines {
        while let Some(event) = engine.pop_event() {
            if let EventKind::CollectiveConflict {
                mcst_id,
                generation,
                control,
            } = event.kind
            {
                assert_eq!((mcst_id, generation, control.sequence), (GROUP, 1, 0));
                told += 1;
            }
        }
        assert_conserved(engine);
    }
    assert!(told >= 1);
}

#[test]
fn who_keeps_others_waiting_is_named_and_the_others_are_kept_alive() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 4, 1)];
    let mut net = Net::star(&collective_star(4), &jobs, 2);
    net.ranks[2].starts = T0 + Nanos::from_secs(2);
    net.ranks[2].deadline = net.ranks[2].starts;
    net.run(&jobs, T0 + Nanos::from_secs(1));
    let event = core::iter::from_fn(|| net.engines[0].pop_event()).find_map(|e| match e.kind {
        EventKind::CollectiveStalled {
            waiting_for,
            generation: 1,
            ..
        } => Some(waiting_for),
        _ => None,
    });
    let waited_for: Vec<_> = event.expect("a stall").iter().map(|e| e.index()).collect();
    assert_eq!(waited_for, [2]);
    let keep_alives = net.engines[0].collective(GROUP).unwrap().counters().keep_alives;
    assert!(keep_alives > 100, "{keep_alives}");
    finish(&mut net, &jobs).unwrap();
    // Two frames each, sent once: there were no retransmissions.
    let repeats = net.engines[0].collective(GROUP).unwrap().counters().repeats;
    assert_eq!(repeats, 0);
}

/// A rank of a group in Mode-I that notifies of congestion gets its results at the rate of DCQCN, the others as fast as before.
#[test]
fn a_congested_rank_gets_the_results_of_terminated_connections_slowly() {
    // More than the burst of the limit.
    let jobs: Vec<Job> = (0..30)
        .map(|i| job(Primitive::AllReduce, DataType::I32, 0, 700, 3, i))
        .collect();
    let time = |cnps: u64| {
        let rule = collective_star(3).with_translated(|rule| rule.mode = CollectiveMode::Terminated);
        let mut net = Net::star(&rule, &jobs, 1);
        let starts = T0 + Nanos::from_millis(2);
        for rank in &mut net.ranks {
            (rank.starts, rank.deadline) = (starts, starts);
        }
        let mut cnp = DataFrame::new(Opcode::Cnp, 0, &[]);
        (cnp.src, cnp.dst, cnp.ethernet) = (host_ip(1), GROUP.0, ethernet(1));
        for i in 0..cnps {
            let now = T0 + Nanos::from_micros(50 * i);
            feed(&mut net.engines[0], now, 1, &cnp.bytes());
        }
        finish(&mut net, &jobs).unwrap();
        let status = net.engines[0].collective_status(GROUP).unwrap();
        assert_eq!(status.congestion.cnps_in, cnps);
        net.now.0 - starts.0
    };
    let (free, congested) = (time(0), time(40));
    assert!(congested > 4 * free, "{congested} ns, {free} ns without CNPs");
}

/// Contract C4, and S1 for what a group cannot use.
#[test]
fn frames_that_are_no_members_of_the_group_end_counted() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 3, 1)];
    let rank = Rank::new(0, T0, &jobs);
    let good = |edit: &dyn Fn(&mut DataFrame)| {
        let sent = &rank.packets[0];
        let mut frame = DataFrame::new(sent.opcode, sq_psn(0).value(), &sent.payload);
        frame.dst = GROUP.0;
        frame.ext.imm = sent.imm;
        edit(&mut frame);
        frame.bytes()
    };
    let corrupt = |at: usize| {
        let mut bytes = good(&|_| {});
        bytes[at] ^= 4;
        bytes
    };
    let mut engine = engine(5);
    install_collective(&mut engine, &collective_star(3));
    for (ingress, bytes, reason) in [
        (1, good(&|_| {}), DropReason::NotMember),
        (4, good(&|_| {}), DropReason::NotMember),
        (0, good(&|f| f.src = host_ip(1)), DropReason::NotMember),
        (0, good(&|f| f.src = GROUP.0), DropReason::NotMember),
        (0, good(&|f| f.dest_qp = Qpn::new(2)), DropReason::NotMember),
        (
            0,
            good(&|f| f.opcode = Opcode::UcSendOnlyImm),
            DropReason::NotMulticastable,
        ),
        (
            1,
            good(&|f| (f.opcode, f.payload, f.ext.imm) = (Opcode::Cnp, Vec::new(), None)),
            DropReason::NotMember,
        ),
        (0, good(&|f| f.payload = vec![0; 64]), DropReason::Malformed),
        (0, good(&|f| f.payload = vec![0; 260]), DropReason::OverPmtu),
        (0, good(&|f| f.payload.truncate(63)), DropReason::Malformed),
        (0, corrupt(14 + 44 + 20), DropReason::BadIcrc),
        (0, corrupt(14 + 40 + 1), DropReason::BadIcrc),
        (0, corrupt(14 + 8), DropReason::BadIpChecksum),
        (
            0,
            good(&|f| (f.opcode, f.ext.imm) = (Opcode::SendOnly, None)),
            DropReason::ControlMissing,
        ),
    ] {
        let dry = engine.trace(T0, port(ingress), &bytes);
        assert_eq!(dry.verdict, End_::Dropped(reason), "{dry}");
        let before = drops(&engine, reason);
        feed(&mut engine, T0, ingress, &bytes);
        assert_eq!(drops(&engine, reason), before + 1);
        assert_conserved(&engine);
    }
    let group = engine.collective(GROUP).unwrap();
    assert_eq!((group.counters().dropped, group.counters().controls_in), (14, 0));
    feed(&mut engine, T0, 0, &good(&|_| {}));
    assert_eq!(engine.collective(GROUP).unwrap().counters().controls_in, 1);
}

#[test]
fn a_control_message_that_comes_again_is_a_repeat() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 2, 1)];
    let mut engine = engine(2);
    install_collective(&mut engine, &collective_star(2));
    let ranks = [0, 1].map(|rank| Rank::new(rank, T0, &jobs));
    // Before the other rank has sent its message, after it, and after the end.
    for rank in [0, 0, 1, 0] {
        feed(&mut engine, T0, rank, &ranks[rank].frame(0));
    }
    for rank in &ranks {
        let ack = rank.ack(rq_psn(rank.rank), Syndrome::Ack);
        feed(&mut engine, T0, rank.rank, &ack);
    }
    feed(&mut engine, T0, 0, &ranks[0].frame(0));
    let status = engine.collective_status(GROUP).unwrap();
    assert_eq!((status.counters.controls_in, status.counters.repeats), (2, 3));
    let by_endpoint = |i: usize| {
        let counters = &status.endpoints[i].counters;
        (counters.contributions, counters.repeats)
    };
    assert_eq!([by_endpoint(0), by_endpoint(1)], [(1, 3), (1, 0)]);
}

#[test]
fn who_breaks_a_rule_of_the_group_is_named_in_an_event() {
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, 320, 2, 1)];
    let mut engine = engine(2);
    install_collective(&mut engine, &collective_star(2));
    let mut ranks = [0, 1].map(|rank| Rank::new(rank, T0, &jobs));
    for rank in &ranks {
        feed(&mut engine, T0, rank.rank, &rank.frame(0));
    }
    for rank in &ranks {
        let ack = rank.ack(rq_psn(rank.rank), Syndrome::Ack);
        feed(&mut engine, T0, rank.rank, &ack);
    }
    // Rank 1 begins with half a packet, and is the first to send.
    ranks[1].packets[1].payload.truncate(PMTU.bytes() / 2);
    let told = feed(&mut engine, T0, 1, &ranks[1].frame(1));
    let ended = Syndrome::Nak(castnet_wire::NakCode::InvalidRequest);
    assert_eq!(roce(&told[0].1).aeth.unwrap().syndrome, ended);
    feed(&mut engine, T0, 0, &ranks[0].frame(1));
    assert_eq!(drops(&engine, DropReason::ContributionMismatch), 1);
    let event = engine.pop_event().expect("an event").kind;
    let EventKind::RankRefused {
        endpoint: by,
        sequence: 0,
        why: Refusal::Cut {
            packet: 0,
            found,
            expected,
        },
        ..
    } = event
    else {
        panic!("{event:?}");
    };
    assert_eq!((by, engine.pop_event()), (1, None));
    assert_eq!(
        (found.opcode, expected.opcode),
        (Opcode::SendFirst, Opcode::SendFirst)
    );
    assert_eq!(usize::from(found.payload) * 2, usize::from(expected.payload));
}

/// They were added in the order of arrival.
#[test]
fn rank_order_is_refused_by_a_group_that_is_not_reproducible() {
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, 320, 2, 1)];
    for reproducible in [false, true] {
        let mut engine = engine(2);
        install_collective(
            &mut engine,
            &collective_star(2).with_translated(|r| r.reproducible = reproducible),
        );
        let mut rank = Rank::new(1, T0, &jobs);
        let call = Call {
            flags: CallFlags::REPRODUCIBLE,
            ..jobs[0].call()
        };
        rank.packets[0] = control(0, 1, call);
        feed(&mut engine, T0, 1, &rank.frame(0));
        let refused = u64::from(!reproducible);
        assert_eq!(drops(&engine, DropReason::NotReproducible), refused);
        let event = engine.pop_event().map(|e| e.kind);
        let is_named = matches!(
            event,
            Some(EventKind::RankRefused {
                why: Refusal::NotReproducible,
                ..
            })
        );
        assert_eq!(is_named, !reproducible, "{event:?}");
    }
}

/// A receiver's CNP goes to the senders of its data. A mark on a contribution causes a CNP to its sender. Data to a
/// rank is ECN-capable if data from it is.
#[test]
fn congestion_is_told_to_those_who_can_do_something_about_it() {
    let jobs = [job(Primitive::Broadcast, DataType::U8, 0, 600, 3, 1)];
    let mut engine = engine(3);
    install_collective(&mut engine, &collective_star(3));
    let ranks = [0, 1, 2].map(|rank| Rank::new(rank, T0, &jobs));
    let with_ecn = |rank: usize, i: usize, ecn: u8| {
        let mut bytes = ranks[rank].frame(i);
        bytes[15] |= ecn;
        let change = castnet_wire::ipv4::ChecksumDelta::word(0x4500, 0x4500 | u16::from(ecn));
        let checksum = change.apply(u16::from_be_bytes([bytes[24], bytes[25]]));
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        bytes
    };
    // What comes from rank 1 may be marked, what comes from rank 2 may not.
    for (rank, ecn) in [(0, 0), (1, 1), (2, 0)] {
        feed(&mut engine, T0, rank, &with_ecn(rank, 0, ecn));
    }
    for rank in &ranks {
        let ack = rank.ack(rq_psn(rank.rank), Syndrome::Ack);
        feed(&mut engine, T0, rank.rank, &ack);
    }
    for (i, ecn) in [(1, 0), (2, 2), (3, 3)] {
        let sent = feed(&mut engine, T0, 0, &with_ecn(0, i, ecn));
        for (port, ecn) in [(1, 2), (2, 0)] {
            let (_, bytes) = sent.iter().find(|(p, _)| *p == port).unwrap();
            assert_eq!(bytes[15] & 3, ecn, "what goes to a rank is as what comes from it");
            assert!(is_sound(bytes) && castnet_wire::ipv4::checksum_is_right(&bytes[14..]));
        }
        let told = sent.iter().filter(|(port, _)| *port == 0).count();
        assert_eq!(told, usize::from(ecn == 3), "a mark is told to the sender");
    }
    let cnp_of = |n: usize| {
        let mut frame = DataFrame::new(Opcode::Cnp, 0, &[0; 16]);
        (frame.src, frame.dst, frame.ethernet) = (host_ip(n), GROUP.0, ethernet(n));
        frame.payload = Vec::new();
        frame.bytes()
    };
    let later = T0 + castnet_collective::translated::CNP_INTERVAL;
    let sent = feed(&mut engine, later, 1, &cnp_of(1));
    assert_eq!(feed(&mut engine, later, 2, &cnp_of(2)), [], "told already");
    let [(0, bytes)] = sent.as_slice() else {
        panic!("one CNP to the source: {sent:?}");
    };
    let header = roce(bytes);
    assert_eq!((header.bth.opcode, header.bth.becn), (Opcode::Cnp, true));
    assert_eq!(header.bth.dest_qp, host_qpn(0));
    assert_eq!(header.ip.v4(), Some((GROUP.0, host_ip(0))));
    assert!(is_sound(bytes) && castnet_wire::ipv4::checksum_is_right(&bytes[14..]));
    let congestion = engine.collective_status(GROUP).unwrap().congestion;
    assert_eq!(
        (congestion.marked, congestion.cnps_in, congestion.cnps_out),
        (1, 2, 2)
    );
    assert_conserved(&engine);
}

#[test]
fn a_host_gets_the_result_for_which_it_asks_and_no_other() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 512, 2, 1)];
    let mut engine = engine(2);
    install_collective(&mut engine, &collective_star(2));
    let ranks = [0, 1].map(|rank| Rank::new(rank, T0, &jobs));
    let packets = ranks[0].packets.len();
    for i in 0..packets {
        for rank in &ranks {
            feed(&mut engine, T0, rank.rank, &rank.frame(i));
        }
    }
    let mut request = DataFrame::new(Opcode::RepairRequest, rq_psn(0).add(2).value(), &[]);
    request.dst = GROUP.0;
    request.ext.aeth = Some(Aeth {
        syndrome: Syndrome::Ack,
        msn: 0,
    });
    let sent = feed(&mut engine, T0, 0, &request.bytes());
    let psns: Vec<_> = sent
        .iter()
        .map(|(port, frame)| (*port, roce(frame).bth.psn))
        .collect();
    assert_eq!(psns, [(0, rq_psn(0).add(2))]);
    // Nothing that it has.
    feed(
        &mut engine,
        T0,
        0,
        &ranks[0].ack(rq_psn(0).add(packets as i32 - 1), Syndrome::Ack),
    );
    assert_eq!(feed(&mut engine, T0, 0, &request.bytes()), []);
}

#[test]
fn a_trace_tells_what_each_stage_decided() {
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, 64, 2, 1)];
    let mut engine = engine(3);
    install_collective(&mut engine, &collective_star(2));
    let ranks = [Rank::new(0, T0, &jobs), Rank::new(1, T0, &jobs)];
    feed(&mut engine, T0, 0, &ranks[0].frame(0));
    let sent = feed(&mut engine, T0, 1, &ranks[1].frame(0));
    assert_eq!(sent.len(), 2, "the control message comes back to both");
    feed(&mut engine, T0, 0, &ranks[0].frame(1));
    let trace = engine.trace(T0, port(1), &ranks[1].frame(1));
    let text = trace.to_string();
    for fact in [
        "group sum, RC SEND_ONLY from endpoint 1 (port 1, rank 1 on h1)",
        "verify    ICRC is right",
        "256 bytes added into slot",
        "is complete",
        "dst 10.0.0.1, qpn 0x100, PSN",
        "end       absorbed",
    ] {
        assert!(text.contains(fact), "no {fact:?} in\n{text}");
    }
    assert_eq!(trace.sent.len(), 2);
}

/// Barriers take one packet each: a group takes as many of them as it has slots.
#[test]
fn collectives_in_flight_are_bounded_by_the_slots_alone() {
    for slots in [8, 512] {
        let rule = collective_star(2).with_translated(|rule| {
            (rule.slots, rule.message_packets) = (slots, 1);
        });
        let barriers: Vec<Job> = (0..=slots)
            .map(|i| job(Primitive::AllReduce, DataType::U8, 0, 0, 2, i.into()))
            .collect();
        let mut engine = engine(2);
        install_collective(&mut engine, &rule);
        let rank = Rank::new(0, T0, &barriers);
        for i in 0..usize::from(slots) {
            assert_eq!(drops(&engine, DropReason::EarlyContribution), 0);
            feed(&mut engine, T0, 0, &rank.frame(i));
        }
        assert_eq!(drops(&engine, DropReason::EarlyContribution), 0);
        let status = engine.collective_status(GROUP).unwrap();
        assert_eq!(status.machine.collectives.len(), usize::from(slots));
        feed(&mut engine, T0, 0, &rank.frame(slots.into()));
        assert_eq!(drops(&engine, DropReason::EarlyContribution), 1);
    }
}

#[test]
fn a_port_that_is_down_or_a_lack_of_buffers_costs_packets_and_no_result() {
    let jobs = [job(Primitive::AllReduce, DataType::I32, 0, 64, 2, 1)];
    let mut engine = engine(3);
    install_collective(&mut engine, &collective_star(2));
    let ranks = [Rank::new(0, T0, &jobs), Rank::new(1, T0, &jobs)];
    let mut none = PlainEgress {
        buffers: Some(1),
        ..PlainEgress::default()
    };
    feed_into(&mut engine, T0, 0, &ranks[0].frame(0), &mut none);
    feed_into(&mut engine, T0, 1, &ranks[1].frame(0), &mut none);
    assert_conserved(&engine);
    let group = engine.collective(GROUP).unwrap();
    assert_eq!((group.counters().controls_out, group.counters().lost), (1, 1));
    // Time brings the other its control message.
    let mut egress = PlainEgress::default();
    let at = engine.poll_timeout().unwrap() + TIMEOUT;
    engine.handle_timeout(at, &mut egress);
    engine.handle_timeout(at + TIMEOUT, &mut egress);
    assert!(
        egress.sent.iter().any(|(p, _)| *p == port(1)),
        "{:?}",
        egress.sent.len()
    );
    assert_conserved(&engine);
}

#[derive(Clone, Debug)]
struct Odd {
    ingress: usize,
    opcode: Opcode,
    psn: i32,
    payload: usize,
    src: usize,
    imm: bool,
    ack: u8,
    mutate: Option<(prop::sample::Index, u8)>,
}

fn odd() -> impl Strategy<Value = Odd> {
    let opcode = prop::sample::select(vec![
        Opcode::SendFirst,
        Opcode::SendMiddle,
        Opcode::SendLast,
        Opcode::SendOnly,
        Opcode::SendOnlyImm,
        Opcode::SendLastImm,
        Opcode::Ack,
        Opcode::WriteOnly,
    ]);
    let length = prop_oneof![Just(256usize), Just(64), 0usize..300];
    (
        (
            0usize..4,
            opcode,
            -5i32..40,
            length,
            0usize..5,
            any::<bool>(),
            any::<u8>(),
        ),
        prop::option::weighted(0.2, any::<(prop::sample::Index, u8)>()),
    )
        .prop_map(|((ingress, opcode, psn, payload, src, imm, ack), mutate)| Odd {
            ingress,
            opcode,
            psn,
            payload,
            src: if src < 4 { ingress } else { 0 },
            imm,
            ack,
            mutate,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// S1 over any traffic: every frame has one end; a dry run says what then happens, byte for byte; nothing panics.
    #[test]
    fn any_frame_ends_and_is_counted(
        odds in prop::collection::vec((odd(), any::<bool>()), 1..80), controls in 0usize..4, buffers in prop::option::of(0usize..60), reproducible: bool, policy in 0u8..4,
    ) {
        let jobs = [job(Primitive::AllReduce, DataType::U64, 0, 300, 3, 1), job(Primitive::Broadcast, DataType::U8, 1, 500, 3, 1)];
        let mut engine = engine(4);
        let rule = collective_star(3).with_translated(|rule| {
            rule.reproducible = reproducible;
            set_policy(rule, policy);
            if policy == 1 {
                rule.straggler_policy = StragglerPolicy::Rnr;
            }
        });
        install_collective(&mut engine, &rule);
        let mut egress = PlainEgress { buffers, ..PlainEgress::default() };
        let mut now = T0;
        for rank in 0..controls.min(3) {
            feed_into(&mut engine, now, rank, &Rank::new(rank, T0, &jobs).frame(0), &mut egress);
        }
        for (odd, traced) in odds {
            now += Nanos::from_micros(300);
            let rank = Rank::new(odd.src % 3, T0, &jobs);
            let i = (odd.psn.max(0) as usize) % rank.packets.len();
            let bytes = if odd.imm && odd.opcode != Opcode::Ack {
                rank.frame(i)
            } else {
                let base = if odd.opcode == Opcode::Ack { rq_psn(odd.src % 3) } else { sq_psn(odd.src % 3) };
                let payload = if odd.opcode == Opcode::Ack { 0 } else { odd.payload };
                let mut frame = DataFrame::new(odd.opcode, base.add(odd.psn).value(), &vec![7; payload]);
                (frame.src, frame.dst, frame.ethernet) = (host_ip(odd.src), GROUP.0, ethernet(odd.ingress));
                frame.ack_request = odd.ack & 1 != 0;
                frame.ext.imm = Some(if odd.ack & 2 != 0 { Control::IMMEDIATE } else { 5 });
                frame.ext.reth = Some(Default::default());
                let syndrome = castnet_wire::Syndrome::from_byte(odd.ack).unwrap_or(castnet_wire::Syndrome::Ack);
                frame.ext.aeth = Some(castnet_wire::Aeth { syndrome, msn: 0 });
                frame.bytes()
            };
            let mut bytes = bytes;
            if let Some((at, byte)) = odd.mutate {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let dry = traced.then(|| engine.trace(now, port(odd.ingress), &bytes));
            let sent_before = egress.sent.len();
            feed_into(&mut engine, now, odd.ingress, &bytes, &mut egress);
            assert_conserved(&engine);
            if let Some(dry) = dry.filter(|_| buffers.is_none()) {
                let sent: Vec<_> = egress.sent[sent_before..].iter().map(|(p, f)| (*p, headers(f))).collect();
                let told: Vec<_> = dry.sent.into_iter().map(|s| (s.port, headers(&s.bytes))).collect();
                prop_assert_eq!(told, sent, "{:?}", dry.steps);
            }
            if engine.poll_timeout().is_some_and(|at| at <= now) {
                engine.handle_timeout(now, &mut egress);
                assert_conserved(&engine);
            }
        }
        for (_, frame) in &egress.sent {
            prop_assert!(!is_ours(frame) || is_sound(frame));
        }
        prop_assert!(engine.collective_status(GROUP).is_some());
    }
}

/// Switches use the PSNs of the group between each other, independently of the ranks' PSNs.
#[test]
fn between_switches_a_packet_has_the_groups_psn_and_address() {
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, 64, 2, 1)];
    let mut engine = engine(10);
    let leaf = collective_rule(vec![rank_at(0, 0), switch_at(9, &[1])], Some(9));
    let start_psn = leaf.translated().unwrap().start_psn;
    install_collective(&mut engine, &leaf);
    let rank = Rank::new(0, T0, &jobs);
    let up = feed(&mut engine, T0, 0, &rank.frame(0));
    let (at, frame) = up
        .iter()
        .find(|(p, _)| *p == 9)
        .expect("the control message goes up");
    let header = roce(frame);
    assert_eq!(*at, 9);
    assert_eq!(header.ip.v4(), Some((GROUP.0, GROUP.0)));
    assert_eq!((header.bth.dest_qp, header.bth.psn), (Qpn::VIRTUAL, start_psn));
    assert_eq!(
        (&frame[..6], &frame[6..12]),
        (&peer_mac(9).0[..], &port_mac(9).0[..])
    );
    assert_eq!((header.bth.pkey, header.bth.ack_request), (0xFFFF, true));
    assert_eq!(frame[14 + 8], 64, "TTL");
    assert_eq!(frame[14 + 6] & 0x40, 0x40, "don't fragment");
    let up = feed(&mut engine, T0, 0, &rank.frame(1));
    let header = roce(&up[0].1);
    assert_eq!((header.bth.psn, header.payload_len), (start_psn.next(), 256));
    assert_eq!(Psn::new(0xFF_FFFB), header.bth.psn);
}
