//! One switch with one worker: unicast, groups, reading by control, limits, shutdown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use castnet_port::spec::Backend;
use castnet_port::{
    AfPacketSpec, Batch, BoxPort, FaultControl, Faults, MemLink, MemLinkConfig, OpenError, Pool, PoolBuf,
    Port, PortLink, PortSpec, PortStats, Sides, Sleeper,
};
use castnet_wire::{DropReason, MacAddr, Nanos, Psn};
use castnet_worker::engine::{
    EventKind, FrameFilter, InstallError as Refused, Said, Seen, TAPS_MAX, Verdict,
};
use castnet_worker::rules::{GroupRule, Route, RouteHop};
use castnet_worker::{
    Dataplane, DataplaneConfig, Idle, InstallError, Installed, PortConfig, RouteError, StartError, Stopped,
    SwitchEventKind, TapError, WorkerConfig,
};
use crossbeam::channel::RecvTimeoutError;

#[test]
fn addresses_are_learned_and_unicast_goes_one_way() {
    let lab = Lab::new(3, 1);
    let mut h = lab.hosts();
    h[0].send_one(plain(host_mac(0), host_mac(1), 1, 64));
    assert_eq!(h[1].receive(1), h[2].receive(1), "unknown: flooded");
    h[1].send_one(plain(host_mac(1), host_mac(0), 2, 1500));
    assert_eq!(h[0].receive(1), [plain(host_mac(1), host_mac(0), 2, 1500)]);
    h[0].send_one(plain(host_mac(0), host_mac(1), 3, 4000));
    assert_eq!(number(&h[1].receive(1)[0]), 3);
    let fdb = lab.dataplane.fdb().unwrap();
    assert_eq!(
        fdb.iter().map(|e| (e.mac, e.port)).collect::<Vec<_>>(),
        [(host_mac(0), port(0)), (host_mac(1), port(1))]
    );
    let last = lab.dataplane.stop().unwrap();
    assert_eq!((last.totals.flooded, last.totals.switched), (1, 2));
    assert!(h[2].poll().is_empty());
    assert_conserved(&last);
}

/// Hosts remove any number of tags, and a buffer shows the begin of a frame alone: what cannot be seen must not pass.
#[test]
fn nobody_speaks_in_the_name_of_a_group_behind_so_many_tags_that_its_address_is_not_seen() {
    let lab = Lab::new(4, 1);
    let mut h = lab.hosts();
    lab.install(&rule(1, &[0, 1, 2]));
    let mut forged = ack(1, 3, 7);
    // From the group's address to a member; no checksum is looked at.
    forged[26..30].copy_from_slice(&mcst(1).0.octets());
    forged[30..34].copy_from_slice(&host_ip(0).octets());
    forged[..6].copy_from_slice(&host_mac(0).0);
    for tags in 0..=40 {
        let mut frame = forged.clone();
        frame.splice(12..12, [0x81, 0, 0, 0].repeat(tags));
        h[3].send_one(frame);
    }
    let marker = plain(host_mac(3), host_mac(0), 1, 64);
    h[3].send_one(marker.clone());
    for host in &mut h[..3] {
        assert_eq!(host.receive(1), std::slice::from_ref(&marker));
    }
    assert_conserved(&lab.dataplane.stop().unwrap());
}

#[test]
fn a_group_replicates_and_aggregates_feedback() {
    let lab = Lab::new(4, 1);
    let mut h = lab.hosts();
    assert_eq!(
        lab.dataplane.install(&rule(1, &[0, 1, 2, 3])),
        Ok(Installed::New { worker: 0 })
    );

    h[0].send_one(arp_request(0, mcst(1).0));
    assert_eq!(h[0].receive(1).len(), 1, "the switch answers for the McstID");

    for psn in 0..100 {
        h[0].send_one(data(1, 0, psn, 1024));
        for (n, host) in h.iter_mut().enumerate().skip(1) {
            let got = roce(&host.receive(1)[0]);
            assert_eq!((got.bth.psn, got.bth.dest_qp), (Psn::new(psn), qpn(1, n)));
        }
        for (n, host) in h.iter_mut().enumerate().skip(1) {
            host.send_one(ack(1, n, psn));
        }
        let ack = roce(&h[0].receive(1)[0]);
        assert_eq!((ack.bth.psn, ack.bth.dest_qp), (Psn::new(psn), qpn(1, 0)));
    }

    let group = lab.dataplane.group(mcst(1)).unwrap().unwrap();
    assert_eq!((group.worker, &group.rule), (0, &rule(1, &[0, 1, 2, 3])));
    let counters = group.status.multicast().unwrap().counters;
    assert_eq!((counters.data_in, counters.acks_out), (100, 100));
    assert_eq!(lab.dataplane.groups().unwrap().len(), 1);
    let counters = lab.dataplane.counters().unwrap();
    let report = counters.group(mcst(1)).unwrap();
    let (of_group, paths) = report.counters.multicast().unwrap();
    assert_eq!(
        (report.name.as_str(), of_group.copies_out, paths.len()),
        ("g1", 300, 4)
    );

    assert_eq!(
        lab.dataplane.remove_group(mcst(1)).unwrap(),
        Some(rule(1, &[0, 1, 2, 3]))
    );
    assert_eq!(lab.dataplane.remove_group(mcst(1)).unwrap(), None);
    assert_eq!(lab.dataplane.group(mcst(1)).unwrap(), None);
    assert_conserved(&lab.dataplane.stop().unwrap());
}

#[test]
fn a_rule_that_does_not_fit_is_refused_and_changes_nothing() {
    let lab = Lab::with(3, 1, |config| {
        config.engine.groups_max = 3;
        config.engine.memory_bytes_max = 4000;
    });
    let install = |rule| lab.dataplane.install(&rule);
    install(rule(1, &[0, 1])).unwrap();
    assert_eq!(install(rule(1, &[0, 1])), Ok(Installed::Unchanged));

    let clashes = |rule: GroupRule| match install(rule) {
        Err(InstallError::Clash(faults)) => faults.into_iter().map(|f| f.to_string()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let mut renamed = rule(1, &[0, 1]);
    renamed.name = "other".into();
    assert_eq!(
        clashes(renamed),
        [
            "mcst_id: 10.200.0.1 is the McstID of group \"g1\" too",
            "endpoints[0].host.qpn: the QP 0x200 of 10.0.0.1 belongs to group \"g1\" already: a QP is a member of one group",
            "endpoints[1].host.qpn: the QP 0x201 of 10.0.0.2 belongs to group \"g1\" already: a QP is a member of one group",
        ]
    );
    let mut moved = rule(2, &[0, 1]);
    moved.name = "g1".into();
    assert_eq!(
        clashes(moved),
        ["name: \"g1\" is the name of group 10.200.0.1 too"]
    );
    let mut on_a_member = rule(2, &[1, 2]);
    on_a_member.mcst_id.0 = host_ip(0);
    assert_eq!(
        clashes(on_a_member),
        ["mcst_id: 10.0.0.1 is the address of a member of group \"g1\": no host has the address of a group"]
    );
    let mut older = rule(1, &[0, 2]);
    older.generation = 0;
    assert_eq!(
        install(older),
        Err(InstallError::Older {
            name: "g1".into(),
            running: 1,
            given: 0
        })
    );
    assert!(matches!(
        install(rule(2, &[0, 7])),
        Err(InstallError::Refused(Refused::Faults(f))) if f[0].field == "endpoints[1].port"
    ));
    assert!(matches!(
        install(rule(2, &[0])),
        Err(InstallError::Refused(Refused::Faults(_)))
    ));
    let mut large = rule(2, &[0, 1]);
    large.pmtu = castnet_wire::Pmtu::B4096;
    assert!(install(large.clone()).is_ok(), "4096 fits an MTU of 4200");
    lab.dataplane.remove_group(mcst(2)).unwrap();

    let mut newer = rule(1, &[0, 1, 2]);
    newer.generation = 5;
    assert_eq!(install(newer), Ok(Installed::Replaced { before: 1 }));
    install(rule(2, &[0, 1])).unwrap();
    install(rule(3, &[0, 1])).unwrap();
    assert_eq!(
        install(rule(4, &[0, 1])),
        Err(InstallError::Refused(Refused::GroupsFull { max: 3 }))
    );
    assert_eq!(
        lab.dataplane
            .rules()
            .iter()
            .map(|r| r.name.as_str())
            .collect::<Vec<_>>(),
        ["g1", "g2", "g3"]
    );

    let small = Lab::with(3, 1, |config| config.engine.memory_bytes_max = 700);
    assert!(matches!(
        small.dataplane.install(&rule(1, &[0, 1, 2])),
        Err(InstallError::Refused(Refused::NoMemory { max: 700, .. }))
    ));
    let narrow = Dataplane::start(DataplaneConfig::new(
        "s",
        vec![
            PortConfig::new(port(0), "a", named_link("narrow-a", 1500)),
            PortConfig::new(port(1), "b", named_link("narrow-b", 1500)),
        ],
    ))
    .unwrap();
    assert!(matches!(
        narrow.install(&large),
        Err(InstallError::Refused(Refused::MtuTooSmall { mtu: 1500, .. }))
    ));
}

#[test]
fn a_changed_mtu_raises_an_event_and_applies_to_frames_and_rules() {
    let mut ours = None;
    let lab = Lab::with(3, 1, |config| {
        if let PortSpec::Memory(end) = &config.ports[1].spec {
            ours = Some(end.clone());
        }
    });
    let (ours, events) = (ours.unwrap(), lab.dataplane.events());
    let mut h = lab.hosts();
    h[1].send_one(plain(host_mac(1), MacAddr::BROADCAST, 0, 60));
    h[0].receive(1);
    let mut rule = rule(1, &[0, 1]);
    rule.pmtu = castnet_wire::Pmtu::B4096;
    // A port does not exceed the MTU that it was opened with.
    for (set, mtu) in [(1500, 1500), (9000, 4200)] {
        ours.set_mtu(set);
        assert_eq!(
            events.recv_timeout(TIMEOUT).unwrap().kind,
            SwitchEventKind::Port {
                port: port(1),
                name: "p1".into(),
                up: true,
                mtu,
                reason: None
            }
        );
        assert_eq!(lab.dataplane.ports().unwrap()[1].link.mtu, mtu);
        h[0].send_one(plain(host_mac(0), host_mac(1), 1, 1515));
        match mtu {
            1500 => {
                let counters = lab.wait("it is too long", |c| c.drops[DropReason::TooLong] == 1);
                // The engine counts the drop, not the port.
                assert_eq!(counters.ports[0].engine.drops[DropReason::TooLong], 1);
                assert!(matches!(
                    lab.dataplane.install(&rule),
                    Err(InstallError::Refused(Refused::MtuTooSmall { mtu: 1500, .. }))
                ));
            }
            _ => {
                assert_eq!(h[1].receive(1).len(), 1);
                lab.dataplane.install(&rule).unwrap();
            }
        }
    }
}

fn named_link(name: &str, mtu: usize) -> castnet_port::MemEnd {
    let config = castnet_port::MemLinkConfig::between(name, "far").mtu(mtu);
    castnet_port::MemLink::pair(&config).0
}

#[test]
fn routes_are_checked_used_and_listed() {
    let lab = Lab::new(3, 1);
    let route = |prefix: &str, p: usize| Route {
        prefix: prefix.parse().unwrap(),
        next_hops: vec![RouteHop {
            port: port(p),
            mac: host_mac(p),
        }],
        replicate: false,
        copy_to: Vec::new(),
    };
    let generation = lab.dataplane.generation();
    assert!(matches!(
        lab.dataplane.add_route(route("10.7.0.0/16", 9)),
        Err(RouteError::Faults(f)) if f[0].field == "routes[0].next_hops[0].port"
    ));
    let empty = Route {
        prefix: "10.7.0.0/16".parse().unwrap(),
        next_hops: Vec::new(),
        replicate: false,
        copy_to: Vec::new(),
    };
    assert!(matches!(lab.dataplane.set_routes(vec![empty]), Err(RouteError::Faults(f)) if f.len() == 1));
    assert_eq!(lab.dataplane.generation(), generation, "nothing was published");
    assert_eq!(lab.dataplane.add_route(route("10.7.0.0/16", 1)), Ok(false));
    assert_eq!(lab.dataplane.add_route(route("10.7.0.0/16", 2)), Ok(true));
    lab.dataplane.add_route(route("10.8.0.0/16", 2)).unwrap();
    assert_eq!(
        lab.dataplane.routes(),
        [route("10.7.0.0/16", 2), route("10.8.0.0/16", 2)]
    );
    assert_eq!(
        lab.dataplane.remove_route("10.8.0.0/16".parse().unwrap()),
        Ok(true)
    );
    assert_eq!(
        lab.dataplane.remove_route("10.8.0.0/16".parse().unwrap()),
        Ok(false)
    );
}

#[test]
fn a_frame_is_traced_and_captured() {
    let lab = Lab::new(4, 2);
    let mut h = lab.hosts();
    lab.install(&rule(1, &[0, 1, 2]));
    lab.install(&rule(2, &[3, 1, 2]));
    let dry = lab.dataplane.trace(port(0), &data(1, 0, 0, 64)).unwrap();
    assert_eq!(
        (dry.verdict, dry.sent.len(), dry.group),
        (Verdict::Replicated, 2, Some(mcst(1)))
    );
    assert_eq!(
        lab.dataplane.trace(port(3), &data(2, 3, 0, 64)).unwrap().verdict,
        Verdict::Replicated
    );
    assert_eq!(lab.dataplane.trace(port(9), &[]), Err(TapError::NoPort(port(9))));
    assert_eq!(
        lab.dataplane.counters().unwrap().totals.received,
        0,
        "a dry run sends no frame"
    );

    let drops = FrameFilter {
        drops: true,
        ..FrameFilter::default()
    };
    let mut capture = lab.dataplane.capture(drops, usize::MAX, 2).unwrap();
    let others: Vec<_> = (1..TAPS_MAX)
        .map(|_| lab.dataplane.capture(drops, usize::MAX, u64::MAX).unwrap())
        .collect();
    let full = lab.dataplane.trace_live(drops, 1).err();
    assert_eq!(full, Some(TapError::Full { max: TAPS_MAX }));
    drop(others);
    let filter = FrameFilter {
        group: Some(mcst(2)),
        ..FrameFilter::default()
    };
    let mut trace = lab.dataplane.trace_live(filter, 10).unwrap();

    h[0].send(&[data(1, 0, 0, 64), data(1, 3, 1, 64), data(1, 0, 1, 64)]);
    let dropped = capture.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        (dropped.port, dropped.seen),
        (port(0), Seen::Dropped(DropReason::NotMember))
    );
    assert_eq!(dropped.bytes, data(1, 3, 1, 64));
    assert!(lab.dataplane.time_of_day(dropped.at) <= std::time::SystemTime::now());
    h[3].send_one(data(2, 3, 0, 64));
    let seen = trace.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        (seen.ingress, seen.verdict, seen.sent.len()),
        (port(3), Verdict::Replicated, 2)
    );
    drop((capture, trace));

    let mut whole = lab
        .dataplane
        .capture(FrameFilter::default(), usize::MAX, 3)
        .unwrap();
    h[0].send_one(data(1, 0, 2, 64));
    let three: Vec<_> = (0..3)
        .map(|_| whole.recv_timeout(TIMEOUT).unwrap().seen)
        .collect();
    assert_eq!(three, [Seen::In, Seen::Out, Seen::Out]);
    assert!(whole.recv_timeout(TIMEOUT).is_err(), "that was all");
    drop(whole);
    lab.dataplane.stop();
    assert!(lab.dataplane.capture(drops, usize::MAX, 1).is_err());
}

/// A burst creates more traces than a subscriber who does not read can have waiting. It receives them or their number, and then the end,
/// also where another worker has seen nothing.
#[test]
fn a_subscriber_receives_a_burst_or_counts_its_losses() {
    const FRAMES: u64 = 600;
    for workers in [1, 2] {
        let lab = Lab::new(9, workers);
        let mut h = lab.hosts();
        lab.install(&rule(1, &[0, 1, 2, 3, 4, 5, 6, 7, 8]));
        let mut capture = lab
            .dataplane
            .capture(FrameFilter::default(), usize::MAX, FRAMES * 9)
            .unwrap();
        let frames: Vec<_> = (0..FRAMES).map(|psn| data(1, 0, psn as u32, 64)).collect();
        for (frames, sent) in frames.chunks(200).zip([200, 400, 600]) {
            h[0].send(frames);
            lab.wait("all are replicated", |c| c.totals.replicated == sent);
        }
        let (mut seen, start) = (0, Instant::now());
        loop {
            match capture.recv_timeout(Duration::from_millis(10)) {
                Ok(_) => seen += 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            assert!(start.elapsed() < TIMEOUT, "{seen} seen, {} lost", capture.lost());
        }
        assert!(capture.lost() > 0);
        assert_eq!(seen + capture.lost(), FRAMES * 9, "{workers} workers");
        assert_eq!(lab.dataplane.counters().unwrap().totals.copies_lost, 0);
    }
}

/// A member of a group stays a neighbour on whichever worker, even if many other hosts appear at its port.
#[test]
fn members_stay_neighbours() {
    let lab = Lab::with(4, 2, |config| config.engine.neighbours_max = 8);
    lab.install(&rule(1, &[2, 3]));
    lab.install(&rule(2, &[0, 1]));
    let mut h = lab.hosts();
    h[0].send_one(arp_request(0, host_ip(9)));
    h[1].send_one(arp_request(1, host_ip(9)));
    for n in 0..100 {
        let mut claim = arp_request(1, host_ip(9));
        // Offsets of the Ethernet source and of the ARP sender.
        for at in [6, 22] {
            claim[at..at + 6].copy_from_slice(&[2, 0xEE, 0, 0, 0, n]);
        }
        claim[28..32].copy_from_slice(&[172, 16, 0, n]);
        h[1].send_one(claim);
    }
    lab.wait("all were taken in", |c| c.totals.received == 102);
    let neighbours = lab.dataplane.neighbours().unwrap();
    assert_eq!(neighbours.len(), 8);
    for n in 0..2 {
        let is_it = |said: &Said| matches!(said, Said::Arp { ip, .. } if *ip == host_ip(n));
        assert!(
            neighbours.iter().any(|neighbour| is_it(&neighbour.said)),
            "host {n}"
        );
    }
}

#[test]
fn an_open_next_hop_is_resolved_by_routes_and_arp() {
    let lab = Lab::new(3, 1);
    let mut h = lab.hosts();
    let open = |generation| {
        let mut rule = GroupRule {
            generation,
            ..rule(1, &[0, 1, 2])
        };
        let receivers = rule.endpoints[1..].iter_mut();
        receivers.for_each(|e| e.next_hop.set_mac(MacAddr::UNSPECIFIED));
        rule
    };
    let refused = lab.dataplane.install(&open(1)).unwrap_err();
    let (endpoint, port_1, ip) = (1, port(1), host_ip(1));
    assert_eq!(
        refused,
        InstallError::Refused(Refused::NoMac {
            endpoint,
            port: port_1,
            ip
        })
    );
    assert!(refused.to_string().contains("castnet route add"), "{refused}");

    // The longest prefix wins. A route through another port than the endpoint's is not used; ARP is used instead.
    let via = |prefix: &str, last| Route {
        prefix: prefix.parse().unwrap(),
        next_hops: vec![RouteHop {
            port: port_1,
            mac: MacAddr([6, 0, 0, 0, 0, last]),
        }],
        replicate: false,
        copy_to: Vec::new(),
    };
    let routes = vec![via("10.0.0.0/8", 8), via("10.0.0.2/32", 32)];
    lab.dataplane.set_routes(routes).unwrap();
    let refused = lab.dataplane.install(&open(1));
    assert!(matches!(
        refused,
        Err(InstallError::Refused(Refused::NoMac { endpoint: 2, .. }))
    ));
    h[2].send_one(arp_request(2, host_ip(9)));
    lab.wait("it was seen", |c| c.totals.received == 1);
    assert_eq!(lab.dataplane.install(&open(1)), Ok(Installed::New { worker: 0 }));
    let macs = || -> Vec<MacAddr> {
        let rule = lab.dataplane.rule(mcst(1)).unwrap();
        rule.endpoints.iter().map(|e| e.next_hop.mac()).collect()
    };
    assert_eq!(macs(), [host_mac(0), MacAddr([6, 0, 0, 0, 0, 32]), host_mac(2)]);
    h[1].poll();
    h[0].send_one(data(1, 0, 0, 64));
    assert_eq!(h[1].receive(1)[0][..6], [6, 0, 0, 0, 0, 32]);

    // The address is kept while this generation is installed. The next generation is resolved again.
    lab.dataplane.set_routes(vec![via("10.0.0.0/8", 8)]).unwrap();
    assert_eq!(lab.dataplane.install(&open(1)), Ok(Installed::Unchanged));
    assert_eq!(
        lab.dataplane.install(&open(2)),
        Ok(Installed::Replaced { before: 1 })
    );
    assert_eq!(macs(), [host_mac(0), MacAddr([6, 0, 0, 0, 0, 8]), host_mac(2)]);
}

#[test]
fn changes_raise_events() {
    let lab = Lab::new(2, 1);
    let events = lab.dataplane.events();
    let next = || events.recv_timeout(TIMEOUT).unwrap().kind;
    lab.install(&rule(1, &[0, 1]));
    assert_eq!(
        next(),
        SwitchEventKind::GroupInstalled {
            mcst_id: mcst(1),
            name: "g1".into(),
            generation: 1
        }
    );
    let mut h = lab.hosts();
    h[0].send_one(arp_request(0, host_ip(1)));
    assert!(matches!(next(), SwitchEventKind::Engine(EventKind::NeighbourAppeared(n)) if n.port == port(0)));
    assert_eq!(lab.dataplane.neighbours().unwrap().len(), 1);
    lab.dataplane.remove_group(mcst(1)).unwrap();
    assert_eq!(
        next(),
        SwitchEventKind::GroupRemoved {
            mcst_id: mcst(1),
            name: "g1".into()
        }
    );

    lab.ends[1].set_up(false);
    assert_eq!(
        next(),
        SwitchEventKind::Port {
            port: port(1),
            name: "p1".into(),
            up: false,
            mtu: 4200,
            reason: None
        }
    );
    assert!(!lab.dataplane.ports().unwrap()[1].link.up);
    lab.ends[1].set_up(true);
    assert_eq!(
        next(),
        SwitchEventKind::Port {
            port: port(1),
            name: "p1".into(),
            up: true,
            mtu: 4200,
            reason: None
        }
    );
    assert!(lab.dataplane.ports().unwrap()[1].link.up);
    assert_eq!(events.lost(), 0);
    lab.dataplane.stop();
    assert!(
        events.recv_timeout(TIMEOUT).is_err(),
        "the stream ends with the dataplane"
    );
}

#[test]
fn stopping_sends_what_was_received_and_ends_everything() {
    for workers in [1, 2, 3] {
        let lab = Lab::new(3, workers);
        let mut h = lab.hosts();
        h[1].send_one(plain(host_mac(1), MacAddr::BROADCAST, 0, 60));
        h[0].receive(1);
        // Port 2 may belong to another worker, which hands its frames over to worker 0.
        for n in [0, 2] {
            h[n].send(
                &(0..500)
                    .map(|i| plain(host_mac(n), host_mac(1), i, 300))
                    .collect::<Vec<_>>(),
            );
        }
        let last = lab.dataplane.stop().unwrap();
        let left: usize = 1001 - last.totals.received as usize;
        assert_eq!(
            last.totals.switched as usize,
            h[1].poll().len(),
            "{workers} workers: {left} were not processed"
        );
        assert_conserved(&last);
        assert_eq!(lab.dataplane.stop(), None);
        assert_eq!(lab.dataplane.counters(), Err(Stopped));
        assert_eq!(
            lab.dataplane.install(&rule(1, &[0, 1])),
            Err(InstallError::Stopped(Stopped))
        );
    }
}

#[test]
fn frames_held_by_a_port_are_sent_before_the_end() {
    let faults = FaultControl::new(1).with(
        Faults::NONE,
        Faults {
            delay: Nanos::from_millis(30),
            ..Faults::NONE
        },
    );
    let lab = Lab::with(2, 1, |config| {
        let spec = config.ports[1].spec.clone();
        config.ports[1].spec = spec.with_faults(faults);
    });
    let mut h = lab.hosts();
    h[0].send(
        &(0..20)
            .map(|i| plain(host_mac(0), MacAddr::BROADCAST, i, 60))
            .collect::<Vec<_>>(),
    );
    lab.wait("all received", |c| c.totals.received == 20);
    lab.dataplane.stop().unwrap();
    assert_eq!(h[1].poll().len(), 20);
}

#[test]
fn start_errors_name_the_reason() {
    let start = |config: DataplaneConfig| Dataplane::start(config).err().unwrap();
    let good = || PortConfig::new(port(0), "a", named_link("start-a", 1500));
    let mut none = DataplaneConfig::new("s", vec![good()]);
    none.workers.clear();
    assert!(matches!(start(none), StartError::NoWorkers));
    let mut many = DataplaneConfig::new("s", vec![good()]);
    many.workers = vec![WorkerConfig::default(); 65];
    assert!(matches!(
        start(many),
        StartError::TooManyWorkers { given: 65, max: 64 }
    ));
    let missing: PortSpec = AfPacketSpec::new("nothere").into();
    let mut bad = DataplaneConfig::new("s", vec![good(), PortConfig::new(port(1), "b", missing)]);
    bad.workers = vec![WorkerConfig::default(); 2];
    let error = start(bad).to_string();
    assert!(
        error.contains("port 1 (`b`)") && error.contains("nothere"),
        "{error}"
    );
    assert!(matches!(
        start(DataplaneConfig::new("s", vec![good(), good()])),
        StartError::Config(_)
    ));
    let mut pinned = DataplaneConfig::new("s", vec![good()]);
    pinned.workers[0].core = Some(1023);
    assert!(matches!(
        start(pinned),
        StartError::Pin {
            worker: 0,
            core: 1023,
            ..
        }
    ));
}

/// What is odd about a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// It panics when it sends a frame.
    Trap,
    /// Its link comes up as soon as it was first looked at.
    Late,
}

/// With both ends of its link.
#[derive(Clone, Debug)]
struct OddEnd([castnet_port::MemEnd; 2], Odd);

struct OddPort(BoxPort, OddEnd);

impl OddEnd {
    fn spec(odd: Odd) -> PortSpec {
        let ends = MemLink::pair(&MemLinkConfig::between("odd", "far"));
        ends.0.set_up(odd != Odd::Late);
        PortSpec::Custom(Arc::new(Self(ends.into(), odd)))
    }
}

impl Backend for OddEnd {
    fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        Ok(Box::new(OddPort(
            Box::new(self.0[0].open(pool, sides)),
            self.clone(),
        )))
    }
    fn text(&self) -> String {
        "odd".into()
    }
}

impl Port for OddPort {
    type Buf = PoolBuf;
    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        self.0.receive(batch);
    }
    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        assert_ne!(self.1.1, Odd::Trap, "the trap");
        self.0.send(batch);
    }
    fn info(&self) -> PortLink {
        let link = self.0.info();
        self.1.0[0].set_up(true);
        link
    }
    fn is_up(&self) -> bool {
        self.0.is_up()
    }
    fn stats(&self) -> PortStats {
        self.0.stats()
    }
    fn ready(&self) -> bool {
        self.0.ready()
    }
    fn attach(&mut self, sleeper: &mut Sleeper) -> std::io::Result<()> {
        self.0.attach(sleeper)
    }
}

#[test]
fn a_link_that_comes_up_while_the_switch_starts_is_up() {
    for workers in [1, 2] {
        let lab = Lab::with(3, workers, |config| {
            for port in &mut config.ports {
                port.spec = OddEnd::spec(Odd::Late);
            }
        });
        let start = Instant::now();
        while lab.dataplane.ports().unwrap().iter().any(|port| !port.link.up) {
            assert!(start.elapsed() < TIMEOUT, "{workers} workers");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_dead_worker_is_noticed_and_the_others_still_end() {
    let lab = Lab::with(2, 2, |config| {
        config.ports[1].spec = OddEnd::spec(Odd::Trap);
    });
    let mut h0 = Host::new(&lab.ends[0]);
    h0.send_one(plain(host_mac(0), MacAddr::BROADCAST, 1, 60));
    let start = std::time::Instant::now();
    while lab.dataplane.counters().is_ok() {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
    assert_eq!(
        lab.dataplane.install(&rule(1, &[0, 1])),
        Err(InstallError::Stopped(Stopped))
    );
    let ended = lab.dataplane.ended();
    assert_eq!(ended.recv_timeout(TIMEOUT), Ok(0));
    assert!(ended.is_empty(), "the other one works");
    assert_eq!(lab.dataplane.stop(), None);
    assert_eq!(ended.recv_timeout(TIMEOUT), Ok(1));
}

#[test]
fn a_pinned_busy_worker_reports_its_statistics() {
    let lab = Lab::with(2, 1, |config| {
        config.workers = vec![WorkerConfig {
            core: Some(0),
            idle: Idle::Busy,
        }]
    });
    let mut h = lab.hosts();
    h[0].send(
        &(0..100)
            .map(|i| plain(host_mac(0), host_mac(1), i, 60))
            .collect::<Vec<_>>(),
    );
    h[1].receive(100);
    let stats = lab.dataplane.runtime().unwrap()[0];
    assert_eq!(
        (stats.core, stats.counters.frames, stats.counters.sleeps),
        (Some(0), 100, 0)
    );
    assert_eq!(
        stats
            .batch_sizes
            .iter()
            .zip(0..)
            .map(|(n, size)| n * size)
            .sum::<u64>(),
        100
    );
    let batches: u64 = stats.batch_sizes.iter().sum();
    assert!(batches > 0 && stats.counters.frames >= batches && stats.idle <= stats.elapsed);
    assert!(
        stats.counters.polls > stats.counters.idle_polls && stats.pool.buffers_free == stats.pool.buffers
    );
}
