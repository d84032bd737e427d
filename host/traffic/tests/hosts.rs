//! Frames of hosts are valid, PSNs are consecutive, and shares are kept; received frames are counted correctly.

use std::collections::BTreeMap;

use castnet_traffic::{Host, Pattern, Place, Plan, Rate, Scenario, Workload};
use castnet_wire::{
    Batch, Bth, Ethernet, ExtHeaders, IpAddrs, Nanos, Network, Opcode, Parsed, Psn, Qpn, RoceHeader,
    Syndrome, emit_roce, icrc, parse_frame,
};
use proptest::prelude::*;

const NS: u64 = 1_000;

fn host(plan: &Plan, place: usize) -> Host<Vec<u8>> {
    Host::new(plan, place, |bytes| Some(bytes.to_vec())).expect("a host")
}

/// The next batch.
fn fill(host: &mut Host<Vec<u8>>, now: u64) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    host.fill(Nanos(now), &mut batch, |template| Some(template.clone()));
    batch.into_iter().collect()
}

fn parse(frame: &[u8]) -> RoceHeader {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) => header,
        other => panic!("{other:?}"),
    }
}

fn group_of(header: &RoceHeader) -> std::net::Ipv4Addr {
    match header.ip {
        IpAddrs::V4 { dst, .. } => dst,
        IpAddrs::V6 { .. } => panic!("IPv6"),
    }
}

/// A data frame of the source as the switch forwards it to a receiver: built from scratch.
fn forwarded_to(plan: &Plan, place: usize, frame: &[u8]) -> Vec<u8> {
    let header = parse(frame);
    let flow = plan.hosts[place]
        .flows
        .iter()
        .find(|f| f.mcst_id.0 == group_of(&header))
        .expect("a flow");
    let ethernet = Ethernet {
        dst: flow.ends.from,
        src: flow.ends.to,
        vlan: None,
        ethertype: 0x0800,
    };
    let mut out = vec![0; frame.len()];
    let bth = Bth {
        dest_qp: flow.qpn,
        ..header.bth
    };
    let payload = &frame[header.payload_at..header.payload_at + header.payload_len];
    let network = Network::v4(flow.mcst_id.0, flow.ends.src);
    emit_roce(
        &mut out,
        &ethernet,
        &network,
        0xC000,
        &bth,
        &ExtHeaders::NONE,
        payload,
    )
    .expect("room");
    out
}

fn patterns() -> impl Strategy<Value = Workload> {
    let words = [
        "multicast",
        "ack",
        "nak",
        "cnp",
        "aggregate",
        "mix",
        "mix:multicast=3,cnp=2",
        "mix:ack=1,aggregate=5",
    ];
    proptest::sample::select(words.to_vec()).prop_map(|w| w.parse().expect("a workload"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each frame parses and has the right ICRC, and the new PSNs of each flow are consecutive.
    #[test]
    fn every_frame_is_valid_and_psns_are_consecutive(
        workload in patterns(), sizes in proptest::sample::select(vec!["64", "1024", "64:7,1024:4,4096:1", "0:1,9:2"]),
        groups in 1_usize..4, receivers in 2_usize..5, message in 1_u32..70, window in 2_u32..200
    ) {
        let scenario = Scenario {
            sizes: sizes.parse().expect("sizes"), groups, receivers, message, window, ..Scenario::new(workload)
        };
        let plan = Plan::own(&scenario, &Place::star(scenario.places())).expect("a plan");
        for place in 0..plan.hosts.len() {
            let mut host = host(&plan, place);
            host.unbind();
            let mut next: BTreeMap<_, Psn> = BTreeMap::new();
            let mut made = 0;
            for round in 0..12 {
                let frames = fill(&mut host, round * NS);
                for frame in &frames {
                    let header = parse(frame);
                    prop_assert!(icrc::verify_bytes(frame, 14, frame.len()));
                    let group = group_of(&header);
                    let flow = plan.hosts[place].flows.iter().find(|f| f.mcst_id.0 == group).expect("a flow");
                    let step = match (flow.pattern, flow.role.name()) {
                        (Pattern::Ack, "source") => (window / 2).max(1),
                        (Pattern::Multicast, "receiver") => message.min(window / 2).max(1),
                        _ => 1,
                    };
                    // NAKs repeat a PSN, and CNPs have none.
                    if header.bth.opcode == Opcode::Cnp || (flow.pattern == Pattern::Nak && flow.role.name() == "receiver") {
                        continue;
                    }
                    let expected = next.entry((group, header.bth.opcode == Opcode::Ack)).or_insert(Psn::new(step - 1));
                    prop_assert_eq!(header.bth.psn, *expected);
                    *expected = expected.add(step as i32);
                }
                made += frames.len() as u64;
            }
            prop_assert_eq!(host.counts().sent, made);
        }
    }

    /// Patterns that always have frames to send get their shares, up to one quantum each.
    #[test]
    fn shares_of_a_mix_are_kept(multicast in 1_u32..10, nak in 1_u32..10, seed_sizes in 0_usize..3) {
        let workload = format!("mix:multicast={multicast},nak={nak}").parse().expect("a mix");
        let sizes = ["64", "1024", "64:3,256:1"][seed_sizes].parse().expect("sizes");
        let scenario = Scenario { sizes, groups: 3, ..Scenario::new(workload) };
        let plan = Plan::own(&scenario, &Place::star(9)).expect("a plan");
        let mut source = host(&plan, 0);
        source.unbind();
        let mut had: BTreeMap<_, f64> = BTreeMap::new();
        for round in 0..200 {
            for frame in fill(&mut source, round * NS) {
                let group = group_of(&parse(&frame));
                let flow = plan.hosts[0].flows.iter().find(|f| f.mcst_id.0 == group).expect("a flow");
                *had.entry(flow.pattern.name()).or_default() += 1.0;
            }
        }
        let all: f64 = had.values().sum();
        let fair = all * f64::from(multicast) / f64::from(multicast + nak);
        prop_assert!((had["multicast"] - fair).abs() <= 8.0, "{:?} of {}", had, all);
    }

    /// Data is lost, repeated or damaged at random: the counters equal what was done to it.
    #[test]
    fn a_sink_counts_all_losses(fates in proptest::collection::vec(0_u8..8, 64..400)) {
        let mut scenario = Scenario::new(Pattern::Multicast.into());
        (scenario.receivers, scenario.check) = (1, castnet_traffic::Check::All);
        let plan = Plan::own(&scenario, &Place::star(2)).expect("a plan");
        let (mut source, mut sink) = (host(&plan, 0), host(&plan, 1));
        source.unbind();
        let mut frames = Vec::new();
        while frames.len() < fates.len() + 1 {
            frames.extend(fill(&mut source, 5));
        }
        frames.truncate(fates.len() + 1);
        let last = frames.pop().expect("one");
        let (mut lost, mut twice, mut damaged) = (0, 0, 0);
        for (frame, fate) in frames.iter().zip(&fates) {
            let mut copy = forwarded_to(&plan, 1, frame);
            match fate {
                0 => lost += 1,
                1 => {
                    twice += 1;
                    sink.take(Nanos(10), &copy);
                    sink.take(Nanos(10), &copy);
                }
                2 => {
                    damaged += 1;
                    let end = copy.len() - 10;
                    copy[end] ^= 1;
                    sink.take(Nanos(10), &copy);
                }
                _ => sink.take(Nanos(10), &copy),
            }
        }
        sink.take(Nanos(10), &forwarded_to(&plan, 1, &last));
        let counts = sink.report().flows[0].counts;
        prop_assert_eq!(counts.missing, lost + damaged);
        prop_assert_eq!((counts.repeats, counts.bad_icrc), (twice, damaged));
        prop_assert_eq!(counts.data_received + counts.missing, frames.len() as u64 + 1 + counts.repeats);
        let report = sink.report();
        prop_assert!(castnet_traffic::HostReport::latency([&report]).is_some_and(|l| l.p50_ns >= 4 && l.max_ns <= 10) || lost + damaged > 0);
    }
}

#[test]
fn a_rate_is_kept_and_split_among_the_senders() {
    let scenario = Scenario {
        rate: Rate::Frames(1e6),
        receivers: 4,
        ..Scenario::new("mix:cnp=3,ack=1".parse().expect("a mix"))
    };
    let plan = Plan::own(&scenario, &Place::star(5)).expect("a plan");
    let (mut cnps, mut acks) = (0_u32, 0_u32);
    for place in 1..5 {
        let mut host = host(&plan, place);
        host.unbind();
        for now in 0..100_000_u64 {
            for frame in fill(&mut host, now * 100) {
                match parse(&frame).bth.opcode {
                    Opcode::Cnp => cnps += 1,
                    _ => acks += 1,
                }
            }
        }
    }
    // 10 ms: 7,500 and 2,500.
    assert!(
        cnps.abs_diff(7_500) < 20 && acks.abs_diff(2_500) < 20,
        "{cnps} and {acks}"
    );
}

#[test]
fn a_number_of_frames_is_split_exactly() {
    let scenario = Scenario {
        frames: Some(1_003),
        receivers: 4,
        ..Scenario::new(Pattern::Ack.into())
    };
    let plan = Plan::own(&scenario, &Place::star(5)).expect("a plan");
    let sent = |place| {
        let mut host = host(&plan, place);
        host.unbind();
        while !fill(&mut host, 0).is_empty() {}
        host.counts().driven
    };
    assert_eq!((1..5).map(sent).collect::<Vec<_>>(), [251, 251, 251, 250]);
}

#[test]
fn a_source_stops_at_its_window_and_continues_after_an_acknowledgement_or_time_out() {
    let scenario = Scenario {
        window: 8,
        message: 4,
        receivers: 1,
        ..Scenario::new(Pattern::Multicast.into())
    };
    let plan = Plan::own(&scenario, &Place::star(2)).expect("a plan");
    let (mut source, mut sink) = (host(&plan, 0), host(&plan, 1));
    let frames = fill(&mut source, 1);
    assert_eq!((frames.len(), fill(&mut source, 2).len()), (8, 0));
    let asks: Vec<_> = frames.iter().map(|f| parse(f).bth.ack_request).collect();
    assert_eq!(asks, [false, false, false, true, false, false, false, true]);
    for frame in &frames[..4] {
        sink.take(Nanos(3), &forwarded_to(&plan, 1, frame));
    }
    let answers = fill(&mut sink, 4);
    let [answer] = answers.as_slice() else {
        panic!("one ACK, not {}", answers.len())
    };
    let aeth = parse(answer).aeth.expect("an AETH");
    assert_eq!(
        (parse(answer).bth.psn, aeth.syndrome, aeth.msn),
        (Psn::new(3), Syndrome::Ack, 1)
    );
    // With one receiver, the switch forwards it to the address and QP of the source.
    let mut passed = answer.clone();
    let own = &plan.hosts[0].flows[0];
    let network = Network::v4(own.mcst_id.0, own.ends.src);
    let ethernet = Ethernet {
        dst: own.ends.from,
        src: own.ends.to,
        vlan: None,
        ethertype: 0x0800,
    };
    let ext = ExtHeaders {
        aeth: Some(aeth),
        ..ExtHeaders::NONE
    };
    emit_roce(
        &mut passed,
        &ethernet,
        &network,
        1,
        &Bth::new(Opcode::Ack, own.qpn, Psn::new(3)),
        &ext,
        &[],
    )
    .expect("room");
    source.take(Nanos(5), &passed);
    assert_eq!(fill(&mut source, 6).len(), 4);
    // After a long time without frames the source continues, and counts it.
    assert_eq!(fill(&mut source, 30_000_000).len(), 0);
    assert_eq!(fill(&mut source, 30_000_001).len(), 8);
    assert_eq!(source.report().flows[0].counts.timeouts, 1);
}

#[test]
fn frames_for_an_unknown_qp_are_only_counted() {
    let scenario = Scenario::new(Pattern::Multicast.into());
    let plan = Plan::own(&scenario, &Place::star(9)).expect("a plan");
    let (mut source, mut sink) = (host(&plan, 0), host(&plan, 1));
    let mut frame = forwarded_to(&plan, 1, &fill(&mut source, 0)[0]);
    frame[47..50].copy_from_slice(&Qpn::new(0x77).to_bytes());
    sink.take(Nanos(0), &frame);
    sink.take(Nanos(0), &vec![0; 60]);
    assert_eq!((sink.counts().received, sink.counts().others), (2, 2));
    assert_eq!(sink.report().flows[0].counts.data_received, 0);
}
