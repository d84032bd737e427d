//! Dry runs, live traces and captures of frames.

use core::net::Ipv4Addr;

use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, FrameFilter, Seen, Stage, TapId, Verdict};
use castnet_rules::{GroupRule, RepairRule};
use castnet_wire::{DataType, DropReason, McstId, Opcode, Primitive, Syndrome};

/// An AllReduce of so many zeros.
fn sum(elements: usize, ranks: usize) -> Job {
    Job {
        primitive: Primitive::AllReduce,
        root: 0,
        data_type: DataType::F32,
        elements,
        data: vec![vec![0; 4 * elements]; ranks],
    }
}

#[test]
fn a_trace_names_the_path_that_was_left_out_and_why() {
    let mut engine = star_switch(3);
    for psn in 100..121 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    feed(&mut engine, T0, 3, &ack(3, 120, 1, Syndrome::Ack));
    let trace = engine.trace(T0, port(0), &send(118, &[1; 64]));
    assert_eq!((trace.verdict, trace.group), (Verdict::Replicated, Some(MCST)));
    let text = trace.to_string();
    for fact in [
        "path 3 (port 3, host h3) skipped: AckPSN 120, packet 118",
        "PSN 118 came before",
        "replicate to 2 path(s)",
        "verify    ICRC is right",
        "dst 10.0.0.2, qpn 0x101",
        "end       replicated",
    ] {
        assert!(text.contains(fact), "no {fact:?} in\n{text}");
    }
    let stranger = engine.trace(T0, port(4), &send(121, &[1; 64]));
    assert!(
        stranger
            .to_string()
            .contains("the group has no endpoint at port 4"),
        "{stranger}"
    );
}

#[test]
fn live_traces_and_captures_take_what_their_filters_want_and_end() {
    let mut engine = star_switch(2);
    let [follow, copy, drops] = core::array::from_fn(|n| TapId::all().nth(n).unwrap());
    let of_group = FrameFilter {
        port: Some(port(0)),
        group: Some(MCST),
        ..FrameFilter::default()
    };
    engine.taps.arm_trace(follow, of_group, 2);
    engine.taps.arm_capture(copy, FrameFilter::default(), 60, 4);
    let only_drops = FrameFilter {
        drops: true,
        ..FrameFilter::default()
    };
    engine.taps.arm_capture(drops, only_drops, usize::MAX, 1);
    feed(
        &mut engine,
        T0,
        3,
        &plain_frame(peer_mac(1), peer_mac(3), None, 60),
    );
    for psn in 100..104 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    assert_eq!([follow, copy, drops].map(|id| engine.taps.left(id)), [0, 0, 1]);
    feed(&mut engine, T0, 3, &send(104, &[1; 64]));
    assert_eq!(engine.taps.left(drops), 0);
    feed(&mut engine, T0, 3, &send(104, &[1; 64]));

    let traces: Vec<_> = core::iter::from_fn(|| engine.taps.pop_trace(follow)).collect();
    assert_eq!(traces.len(), 2);
    assert!(
        traces
            .iter()
            .all(|t| t.verdict == Verdict::Replicated && t.sent.len() == 2)
    );
    assert_eq!(traces[0].steps[0].stage, Stage::Classify);
    let seen: Vec<_> = core::iter::from_fn(|| engine.taps.pop_captured(copy)).collect();
    assert_eq!(
        seen.iter().map(|c| (c.seen, c.port.index())).collect::<Vec<_>>(),
        [(Seen::In, 3), (Seen::Out, 0), (Seen::Out, 1), (Seen::Out, 2),]
    );
    assert!(seen.iter().all(|c| c.bytes.len() == 60));
    let dropped = engine.taps.pop_captured(drops).unwrap();
    assert_eq!(
        (dropped.seen, dropped.group),
        (Seen::Dropped(DropReason::NotMember), Some(MCST))
    );
    assert_eq!(engine.taps.pop_captured(drops), None);

    // A subscriber that is not drained loses frames beyond its capacity; another one loses nothing.
    engine.taps.arm_trace(follow, FrameFilter::default(), u64::MAX);
    engine.taps.arm_trace(copy, FrameFilter::default(), u64::MAX);
    let mut followed = 0;
    for _ in 0..1500 {
        engine.begin_iteration();
        feed(&mut engine, T0, 3, &send(104, &[1; 64]));
        followed += u64::from(engine.taps.pop_trace(copy).is_some());
    }
    let waiting = core::iter::from_fn(|| engine.taps.pop_trace(follow)).count() as u64;
    assert_eq!(followed, 1500);
    assert_eq!(engine.taps.take_lost(follow), (1500 - waiting, 0));
    assert_eq!([follow, copy].map(|id| engine.taps.take_lost(id)), [(0, 0); 2]);
    assert_eq!(engine.taps.lost(), 1500 - waiting);
    engine.taps.disarm(follow);
    engine.taps.disarm(copy);
    feed(&mut engine, T0, 3, &send(104, &[1; 64]));
    assert_eq!(engine.taps.pop_trace(copy), None);
}

/// A trace of a frame to many takes long, and a subscriber must not keep all other frames waiting.
#[test]
fn an_iteration_records_some_traces_and_counts_the_others() {
    let mut engine = star_switch(60);
    let follow = TapId::all().next().unwrap();
    let of_group = FrameFilter {
        group: Some(MCST),
        ..FrameFilter::default()
    };
    let all = TapId::all().nth(1).unwrap();
    engine.taps.arm_trace(follow, of_group, 1000);
    engine.taps.arm_trace(all, FrameFilter::default(), 1000);
    let plain = plain_frame(peer_mac(0), peer_mac(1), None, 60);
    for _ in 0..100 {
        feed(&mut engine, T0, 0, &plain);
    }
    for psn in 100..200 {
        feed(&mut engine, T0, 0, &send(psn, &[1; 64]));
    }
    let traced = |engine: &mut Engine, id| core::iter::from_fn(|| engine.taps.pop_trace(id)).count() as u64;
    let first = traced(&mut engine, follow);
    let (full, skipped) = engine.taps.take_lost(follow);
    assert_eq!(full, 0);
    assert!((1..=3).contains(&first), "{first} traces beside those of others");
    assert_eq!((first + skipped, engine.taps.left(follow)), (100, 1000 - first));
    // At another port, and in the next iteration, there are more.
    traced(&mut engine, all);
    feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
    assert_eq!(traced(&mut engine, follow), 1);
    engine.begin_iteration();
    feed(&mut engine, T0, 0, &send(200, &[1; 64]));
    assert_eq!(traced(&mut engine, follow), 1);
}

/// The filter sees a frame whole though less of it is kept, and of a malformed one the addresses that can be read.
#[test]
fn a_filter_by_address_sees_frames_that_are_cut_or_malformed() {
    let mut engine = star_switch(2);
    let from_source = FrameFilter {
        src: Some(host_ip(0)),
        dst: Some(MCST.0),
        ..FrameFilter::default()
    };
    let tap = TapId::all().next().unwrap();
    let mut captured = |bytes: &[u8], filter: FrameFilter| {
        engine.taps.arm_capture(tap, filter, 14, u64::MAX);
        feed(&mut engine, T0, 0, bytes);
        let seen: Vec<_> = core::iter::from_fn(|| engine.taps.pop_captured(tap)).collect();
        assert!(seen.iter().all(|c| c.bytes.len() == 14));
        seen.iter().map(|c| c.seen).collect::<Vec<_>>()
    };
    assert_eq!(captured(&send(100, &[1; 64]), from_source), [Seen::In]);
    let malformed = Seen::Dropped(DropReason::Malformed);
    for cut in [14 + 20, 14 + 30] {
        assert_eq!(captured(&send(101, &[1; 64])[..cut], from_source), [malformed]);
    }
    let tagged = DataFrame::new(Opcode::SendOnly, 101, &[1; 64]).vlan(7).bytes();
    assert_eq!(captured(&tagged[..18 + 20], from_source), [malformed]);
    let by_reason = FrameFilter {
        reason: Some(DropReason::Malformed),
        ..from_source
    };
    assert_eq!(captured(&send(101, &[1; 64])[..40], by_reason), [malformed]);
    assert_eq!(captured(&send(101, &[1; 64]), by_reason), []);
    let from_other = FrameFilter {
        src: Some(host_ip(1)),
        ..FrameFilter::default()
    };
    assert_eq!(captured(&send(102, &[1; 64])[..40], from_other), []);
}

/// The size of a trace does not grow with the group, except for the sent frames.
#[test]
fn a_trace_of_a_large_group_names_only_a_few_endpoints() {
    const RANKS: usize = 60;
    let jobs = [sum(64, RANKS)];
    let mut engine = engine(RANKS);
    install_collective(&mut engine, &collective_star(RANKS));
    let frame = |rank: usize| Rank::new(rank, T0, &jobs).frame(0);
    let machine = |engine: &Engine, rank: usize| {
        let trace = engine.trace(T0, port(rank), &frame(rank));
        let step = trace.steps.iter().find(|s| s.stage == Stage::Machine).unwrap();
        (step.to_owned(), trace.sent.len())
    };
    let (first, _) = machine(&engine, 0);
    let waits = "waiting for endpoint 1 (port 1, rank 1 on h1), endpoint 2 (port 2, rank 2 on h2), endpoint 3 (port 3, rank 3 \
                 on h3), endpoint 4 (port 4, rank 4 on h4), 55 more";
    assert!(first.facts[0].ends_with(waits), "{first:?}");
    (1..RANKS).for_each(|rank| drop(feed(&mut engine, T0, rank, &frame(rank))));
    let (last, sent) = machine(&engine, 0);
    assert_eq!((last.facts.len(), sent), (2, RANKS));
    assert!(last.facts[1].starts_with("endpoint 0 (port 0, rank 0 on h0): expects"));
    assert!(last.decision.contains("56 more"), "{}", last.decision);
}

/// A trace of a frame that goes to many endpoints shows some of them, and counts the others.
#[test]
fn a_trace_of_many_copies_is_bounded() {
    const RECEIVERS: usize = 200;
    let mut engine = engine(2);
    let endpoints = (0..=RECEIVERS).map(|n| host_at(usize::from(n > 0), n));
    install(&mut engine, &rule(endpoints.collect()));
    let trace = engine.trace(T0, port(0), &send(100, &[1; 64]));
    assert_eq!((trace.verdict, trace.sent.len()), (Verdict::Replicated, 64));
    let last = trace.steps.last().unwrap();
    assert!(last.decision.ends_with("136 more frames"), "{last:?}");
    assert!(trace.steps.len() <= 257, "{}", trace.steps.len());
    let machine = trace.steps.iter().find(|s| s.stage == Stage::Machine).unwrap();
    let named = machine
        .facts
        .iter()
        .filter(|fact| fact.starts_with("path "))
        .count();
    assert_eq!(named, 16, "{machine:?}");
    assert!(
        machine.facts.last().unwrap().ends_with("more paths"),
        "{machine:?}"
    );
}

/// Packets that a timer sends again from the ring of a multicast group are of that group.
#[test]
fn what_a_group_repeats_is_captured_for_it() {
    let mut engine = engine(3);
    let repair = RepairRule {
        slots: 16,
        ack_timeout_us: 640,
    };
    install(
        &mut engine,
        &star(1).with_multicast(|rule| rule.repair = Some(repair)),
    );
    let mut data = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
    data.ack_request = true;
    assert_eq!(feed(&mut engine, T0, 0, &data.bytes()).len(), 1);
    let tap = TapId::all().next().unwrap();
    let of_group = FrameFilter {
        group: Some(MCST),
        ..FrameFilter::default()
    };
    engine.taps.arm_capture(tap, of_group, usize::MAX, u64::MAX);
    let mut egress = PlainEgress::default();
    for _ in 0..100 {
        if !egress.sent.is_empty() {
            break;
        }
        let due = engine.poll_timeout().expect("the path is silent");
        engine.handle_timeout(due, &mut egress);
    }
    let seen = core::iter::from_fn(|| engine.taps.pop_captured(tap));
    let seen: Vec<_> = seen.map(|c| (c.seen, c.port, c.bytes)).collect();
    let sent = egress.sent.into_iter();
    let sent: Vec<_> = sent.map(|(port, bytes)| (Seen::Out, port, bytes)).collect();
    assert!(!sent.is_empty());
    assert_eq!(seen, sent);
}

/// Frames sent by timers are attributed to their group, also if many groups are due at once. So are frames that a group
/// sends in later polls because of the limit of one poll.
#[test]
fn what_timers_and_later_polls_send_is_captured_for_its_own_group() {
    const OTHER_GROUP: McstId = McstId(Ipv4Addr::new(10, 9, 1, 2));
    let jobs = [sum(64 * 40, 2)];
    let ranks = [Rank::new(0, T0, &jobs), Rank::new(1, T0, &jobs)];
    let mut engine = engine(3);
    for (name, mcst_id) in [("sum", GROUP), ("other", OTHER_GROUP)] {
        let rule = GroupRule {
            name: name.into(),
            mcst_id,
            ..collective_star(2).with_translated(|rule| rule.slots = 64)
        };
        install_collective(&mut engine, &rule);
    }
    let frame = |rank: usize, i: usize, mcst_id: McstId| {
        let sent = &ranks[rank].packets[i];
        let mut frame = DataFrame::new(sent.opcode, sq_psn(rank).add(i as i32).value(), &sent.payload);
        (frame.src, frame.dst, frame.ethernet) = (host_ip(rank), mcst_id.0, ethernet(rank));
        frame.ext.imm = sent.imm;
        frame.bytes()
    };
    let tap = TapId::all().next().unwrap();
    engine
        .taps
        .arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
    let mut egress = PlainEgress::default();
    for mcst_id in [GROUP, OTHER_GROUP] {
        feed_into(&mut engine, T0, 0, &frame(0, 0, mcst_id), &mut egress);
    }
    // Both wait for rank 1, so both keep rank 0 alive.
    let due = T0 + TIMEOUT;
    engine.handle_timeout(due, &mut egress);
    // All that rank 0 sends but its first packet, then that: more is complete at once than one poll may send.
    feed_into(&mut engine, due, 1, &frame(1, 0, GROUP), &mut egress);
    for i in 1..=40 {
        feed_into(&mut engine, due, 1, &frame(1, i, GROUP), &mut egress);
    }
    for i in (2..=40).chain([1]) {
        feed_into(&mut engine, due, 0, &frame(0, i, GROUP), &mut egress);
    }
    let before = egress.sent.len();
    while engine.poll_timeout().is_some_and(|at| at <= due) {
        engine.handle_timeout(due, &mut egress);
    }
    assert!(egress.sent.len() > before, "nothing was left for later polls");

    let seen = core::iter::from_fn(|| engine.taps.pop_captured(tap));
    let out: Vec<_> = seen.filter(|c| c.seen == Seen::Out).collect();
    assert_eq!(out.len(), egress.sent.len());
    for captured in &out {
        let (from, _) = roce(&captured.bytes).ip.v4().unwrap();
        assert_eq!(captured.group, Some(McstId(from)));
    }
    assert!(out.iter().any(|c| c.group == Some(OTHER_GROUP)));
}
