//! Frames of no group: learning, flooding, ageing, ARP, LLDP, routes.

use core::net::Ipv4Addr;
use std::sync::Arc;

use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{CountersSnapshot, Engine, EngineConfig, EventKind, Said};
use castnet_rules::{Route, RouteHop};
use castnet_wire::build::{emit_arp, emit_lldp};
use castnet_wire::{
    Arp, ArpOp, DropReason, Ethernet, Ipv4, Lldp, LldpId, MacAddr, Nanos, Opcode, Parsed, VlanTag, ipv4,
    parse_frame,
};

fn drops(engine: &Engine, reason: DropReason) -> u64 {
    let mut snapshot = CountersSnapshot::with_capacity(0, 0);
    engine.snapshot(&mut snapshot);
    snapshot.drops[reason]
}

fn to(sent: &[(usize, Vec<u8>)]) -> Vec<usize> {
    sent.iter().map(|(port, _)| *port).collect()
}

#[test]
fn unknown_is_flooded_known_is_switched_and_the_same_port_is_no_way() {
    let mut e = engine(4);
    let (a, b) = (peer_mac(0), peer_mac(1));
    let there = plain_frame(b, a, None, 60);
    let sent = feed(&mut e, T0, 0, &there);
    assert_eq!(to(&sent), [1, 2, 3]);
    assert!(sent.iter().all(|(_, frame)| *frame == there));
    assert_eq!(to(&feed(&mut e, T0, 1, &plain_frame(a, b, None, 60))), [0]);
    assert_eq!(to(&feed(&mut e, T0, 0, &there)), [1]);
    assert_eq!(feed(&mut e, T0, 1, &there), []);
    assert_eq!(drops(&e, DropReason::SamePort), 1);
    // The last frame moved `a` to port 1. In another VLAN nobody is known.
    assert_eq!(
        to(&feed(&mut e, T0, 2, &plain_frame(a, peer_mac(2), None, 60))),
        [1]
    );
    assert_eq!(
        to(&feed(&mut e, T0, 2, &plain_frame(a, peer_mac(2), Some(5), 60))),
        [0, 1, 3]
    );
    assert_eq!(
        to(&feed(
            &mut e,
            T0,
            2,
            &plain_frame(MacAddr::BROADCAST, peer_mac(2), None, 60)
        )),
        [0, 1, 3]
    );
    assert_conserved(&e);
}

#[test]
fn what_was_learned_ages_and_goes_with_its_port() {
    let mut e = engine(3);
    let (a, b) = (peer_mac(0), peer_mac(1));
    feed(&mut e, T0, 0, &plain_frame(b, a, None, 60));
    feed(&mut e, T0, 1, &plain_frame(a, b, None, 60));
    let late = T0 + Nanos::from_secs(300);
    assert_eq!(
        to(&feed(&mut e, late, 2, &plain_frame(a, peer_mac(2), None, 60))),
        [0, 1]
    );
    assert_eq!(e.fdb(late).count(), 1);
    let mut egress = PlainEgress::default();
    let mut rounds = 0;
    while let Some(at) = e.poll_timeout() {
        e.handle_timeout(at, &mut egress);
        rounds += 1;
        assert!(rounds < 10_000, "ageing ends when nothing is left");
    }
    assert_eq!(e.fdb(Nanos::ZERO).count(), 0);

    feed(&mut e, late, 0, &plain_frame(b, a, None, 60));
    e.set_tables(
        late,
        Arc::new(crate::common::tables(1, [], &[], [port(1), port(2)])),
    );
    assert_eq!(e.fdb(late).count(), 0);
    assert_eq!(
        to(&feed(&mut e, late, 2, &plain_frame(a, peer_mac(2), None, 60))),
        [1]
    );
    e.set_tables(late, Arc::new(crate::common::tables(2, [], &[], [port(2)])));
    assert_eq!(feed(&mut e, late, 2, &plain_frame(a, peer_mac(2), None, 60)), []);
    assert_eq!(drops(&e, DropReason::NoPort), 1);
    assert_conserved(&e);
}

#[test]
fn a_full_table_forgets_the_oldest_and_says_so_once() {
    let mut e = Engine::new(EngineConfig {
        fdb_capacity: 2,
        ..config(2)
    })
    .unwrap();
    for n in 0..10 {
        feed(
            &mut e,
            T0,
            0,
            &plain_frame(MacAddr::BROADCAST, peer_mac(n), None, 60),
        );
    }
    let events: Vec<EventKind> = core::iter::from_fn(|| e.pop_event()).map(|e| e.kind).collect();
    let full = EventKind::FdbFull {
        entries: 2,
        port: port(0),
    };
    assert_eq!(events, [full]);
    let mut kept: Vec<MacAddr> = e.fdb(T0).map(|entry| entry.mac).collect();
    kept.sort_unstable();
    assert_eq!(kept, [8, 9].map(peer_mac));
}

/// What is behind the Ethernet header concerns the hosts: three tags, and IPv4 headers as no switch reads them (Linux sends total length 0).
/// But hosts remove all tags, so a frame for a group or in its name is one with any number of them.
#[test]
fn frames_of_others_pass_whatever_is_in_them() {
    let mut e = star_switch(2);
    let tags = |n: usize| [0x81, 0, 0, 5].repeat(n);
    let frame = |tags: &[u8], ip: &[u8]| {
        let macs = [peer_mac(8).0, peer_mac(9).0].concat();
        [&macs[..], tags, &[8, 0][..], ip, &[0; 40][..]].concat()
    };
    let mut header = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2];
    let mut others = Vec::new();
    for count in [0, 1, 2, 3, 7] {
        others.push(frame(&tags(count), &header));
    }
    for (at, byte) in [(0, 0x05), (0, 0x4F), (0, 0x41), (3, 0), (2, 0xFF)] {
        let before = std::mem::replace(&mut header[at], byte);
        others.push(frame(&[], &header));
        header[at] = before;
    }
    others.push(frame(&[], &header[..9]));
    for other in others {
        let sent = feed(&mut e, T0, 0, &other);
        assert!(
            !sent.is_empty() && sent.iter().all(|(_, frame)| *frame == other),
            "{other:02x?}"
        );
    }
    let group = MCST.0;
    for at in [12, 16] {
        let mut header = header.clone();
        header[at..at + 4].copy_from_slice(&group.octets());
        assert_eq!(
            feed(&mut e, T0, 0, &frame(&tags(3), &header)),
            [],
            "for a group, or in its name"
        );
    }
    // For the switch itself, and one whose tags do not end.
    let mut own = frame(&tags(3), &header);
    own[..6].copy_from_slice(&port_mac(0).0);
    let endless = [&own[..12], &tags(40)[..]].concat();
    for frame in [own, endless] {
        assert_eq!(feed(&mut e, T0, 0, &frame), []);
    }
    assert_conserved(&e);
}

#[test]
fn frames_that_no_bridge_forwards_or_no_station_sends_are_dropped() {
    let mut e = engine(2);
    let pause = MacAddr([0x01, 0x80, 0xC2, 0, 0, 0x01]);
    assert_eq!(
        feed(&mut e, T0, 0, &plain_frame(pause, peer_mac(0), None, 60)),
        []
    );
    assert_eq!(
        feed(
            &mut e,
            T0,
            0,
            &plain_frame(peer_mac(1), MacAddr::BROADCAST, None, 60)
        ),
        []
    );
    assert_eq!(
        feed(&mut e, T0, 0, &plain_frame(port_mac(0), peer_mac(0), None, 60)),
        []
    );
    assert_eq!(feed(&mut e, T0, 0, &[1, 2, 3]), []);
    assert_eq!(feed(&mut e, T0, 0, &[]), []);
    assert_eq!(
        (drops(&e, DropReason::Reserved), drops(&e, DropReason::Malformed)),
        (2, 3)
    );
    // A port that the switch does not have.
    assert_eq!(
        feed(&mut e, T0, 9, &plain_frame(peer_mac(1), peer_mac(0), None, 60)),
        []
    );
    assert_conserved(&e);
}

#[test]
fn ports_that_carry_less_are_left_out() {
    let mut infos = ports(3);
    infos[1].mtu = 1500;
    infos[2].flood = false;
    let mut e = Engine::new(EngineConfig {
        lldp_interval: None,
        ..EngineConfig::new("s1", infos)
    })
    .unwrap();
    assert_eq!(
        to(&feed(
            &mut e,
            T0,
            0,
            &plain_frame(peer_mac(1), peer_mac(0), None, 1514)
        )),
        [1]
    );
    assert_eq!(
        feed(&mut e, T0, 0, &plain_frame(peer_mac(1), peer_mac(0), None, 1515)),
        []
    );
    assert_eq!(
        to(&feed(
            &mut e,
            T0,
            0,
            &plain_frame(peer_mac(1), peer_mac(0), Some(3), 1518)
        )),
        [1]
    );
    feed(
        &mut e,
        T0,
        1,
        &plain_frame(MacAddr::BROADCAST, peer_mac(1), None, 60),
    );
    assert_eq!(
        feed(&mut e, T0, 0, &plain_frame(peer_mac(1), peer_mac(0), None, 1515)),
        []
    );
    assert_eq!(drops(&e, DropReason::TooLong), 2);
}

#[test]
fn arp_for_a_group_is_answered_with_the_address_of_the_port() {
    let mut e = engine(3);
    install(&mut e, &star(1));
    let elsewhere = Ipv4Addr::new(10, 9, 0, 2);
    e.set_tables(
        T0,
        Arc::new(crate::common::tables(
            1,
            [castnet_wire::McstId(elsewhere)],
            &[],
            (0..3).map(port),
        )),
    );
    for target in [MCST.0, elsewhere] {
        for n in 0..2 {
            let sent = feed(&mut e, T0, n, &arp_request(n, target));
            let [(out, frame)] = &sent[..] else {
                panic!("{sent:?}")
            };
            let (ethernet, at) = Ethernet::parse(frame).unwrap();
            assert_eq!((*out, ethernet.dst, ethernet.src), (n, peer_mac(n), port_mac(n)));
            let reply = Arp::parse(&frame[at..]).unwrap();
            assert_eq!(
                (reply.op, reply.sender_ip, reply.sender_mac),
                (ArpOp::Reply, target, port_mac(n))
            );
            assert_eq!((reply.target_ip, reply.target_mac), (host_ip(n), peer_mac(n)));
        }
    }
    // For a host it is flooded, and its answer goes back.
    assert_eq!(to(&feed(&mut e, T0, 0, &arp_request(0, host_ip(1)))), [1, 2]);
    let neighbours: Vec<Said> = e.neighbours(T0).map(|n| n.said).collect();
    assert_eq!(neighbours.len(), 2);
    assert!(neighbours.contains(&Said::Arp {
        ip: host_ip(0),
        mac: peer_mac(0)
    }));
    // No host may claim a group's address.
    let mut claim = vec![0; 64];
    let arp = Arp::request(peer_mac(2), MCST.0, host_ip(0));
    let n = emit_arp(&mut claim, MacAddr::BROADCAST, &arp).unwrap();
    assert_eq!(feed(&mut e, T0, 2, &claim[..n]), []);
    assert_eq!(drops(&e, DropReason::NotMember), 1);
    assert_conserved(&e);
}

/// An address that is claimed at another port stays, while the host that has it answers in its own VLAN, whatever that of the claim is.
#[test]
fn a_host_is_asked_before_its_address_moves() {
    let in_vlan = |mut frame: Vec<u8>, vlan: Option<u8>| {
        if let Some(vlan) = vlan {
            frame.splice(12..12, [0x81, 0, 0, vlan]);
        }
        frame
    };
    let arp = |dst, arp: Arp| {
        let mut frame = vec![0; 64];
        let n = emit_arp(&mut frame, dst, &arp).unwrap();
        frame.truncate(n);
        frame
    };
    for (own, claimed) in [(None, None), (None, Some(7)), (Some(5), None), (Some(5), Some(7))] {
        let mut e = engine(3);
        let at = |e: &Engine, now| {
            let mut all = e.neighbours(now);
            let place = all.find(|n| matches!(n.said, Said::Arp { ip, .. } if ip == host_ip(0)));
            place.map(|n| n.port)
        };
        let second = |n| T0 + Nanos::from_secs(n);
        feed(&mut e, T0, 0, &in_vlan(arp_request(0, host_ip(1)), own));
        let claim = arp(
            MacAddr::BROADCAST,
            Arp::request(peer_mac(2), host_ip(0), host_ip(1)),
        );
        let claim = in_vlan(claim, claimed);
        let expected = arp(
            peer_mac(0),
            Arp::request(port_mac(0), Ipv4Addr::UNSPECIFIED, host_ip(0)),
        );
        let expected = in_vlan(expected, own);
        // A claim that is believed is switched on. Hosts would believe the others, too.
        let asks = |e: &mut Engine, now| {
            let before = drops(e, DropReason::NotMember);
            let sent = feed(e, now, 2, &claim);
            let is_believed = at(e, now) == Some(port(2));
            assert_eq!(
                sent.iter().any(|(n, frame)| *n == 1 && *frame == claim),
                is_believed,
                "{sent:?}"
            );
            assert_eq!(drops(e, DropReason::NotMember), before + u64::from(!is_believed));
            sent.contains(&(0, expected.clone()))
        };
        for n in 1..3 {
            assert!(asks(&mut e, second(n)), "{own:?} {claimed:?}");
        }
        let reply = Arp::request(port_mac(0), Ipv4Addr::UNSPECIFIED, host_ip(0)).reply(peer_mac(0));
        let answer = in_vlan(arp(port_mac(0), reply), own);
        assert_eq!(feed(&mut e, second(2), 0, &answer), []);
        for n in 3..6 {
            assert!(asks(&mut e, second(n)));
            assert_eq!(at(&e, second(n)), Some(port(0)));
        }
        // Silent three times: it has moved.
        assert!(!asks(&mut e, second(6)));
        assert_eq!(at(&e, second(6)), Some(port(2)));
        assert_conserved(&e);
    }
}

/// RDMA traffic shows no address: a host that has not spoken ARP for long is asked before it is forgotten.
#[test]
fn a_quiet_host_is_asked_before_it_is_forgotten() {
    let mut e = engine(2);
    feed(&mut e, T0, 0, &arp_request(0, host_ip(1)));
    let mut asked = Vec::new();
    while let Some(due) = e.poll_timeout() {
        let mut egress = PlainEgress::default();
        e.handle_timeout(due, &mut egress);
        asked.extend(taken(egress).into_iter().map(|(n, frame)| (due, n, frame)));
    }
    assert_eq!(asked.len(), 3, "{asked:?}");
    for (due, n, frame) in asked {
        let (ethernet, l3) = Ethernet::parse(&frame).unwrap();
        assert_eq!((n, ethernet.dst), (0, peer_mac(0)));
        assert_eq!(Arp::parse(&frame[l3..]).unwrap().target_ip, host_ip(0));
        assert!(due >= T0 + Nanos::from_secs(225), "{due:?}");
    }
    assert_eq!(e.neighbours(T0 + Nanos::from_secs(300)).count(), 0);
}

#[test]
fn arp_for_the_switch_itself_is_answered_in_its_vlan() {
    let own = Ipv4Addr::new(10, 0, 0, 254);
    let mut e = Engine::new(EngineConfig {
        addresses: vec![own],
        ..config(2)
    })
    .unwrap();
    let mut request = arp_request(0, own);
    request.splice(12..12, [0x81, 0, 0, 9]);
    let sent = feed(&mut e, T0, 0, &request);
    let (ethernet, at) = Ethernet::parse(&sent[0].1).unwrap();
    assert_eq!((sent[0].0, ethernet.vlan), (0, Some(VlanTag::new(9))));
    assert_eq!(Arp::parse(&sent[0].1[at..]).unwrap().sender_mac, port_mac(0));
    assert_eq!(e.totals().absorbed, 1);
}

#[test]
fn lldp_is_sent_by_every_port_and_what_comes_in_is_remembered_not_forwarded() {
    let config = EngineConfig {
        lldp_interval: Some(Nanos::from_secs(30)),
        ..config(2)
    };
    let mut e = Engine::new(config).unwrap();
    let mut egress = PlainEgress::default();
    assert_eq!(e.poll_timeout(), Some(Nanos::ZERO));
    e.handle_timeout(T0, &mut egress);
    assert_eq!(e.poll_timeout(), Some(T0 + Nanos::from_secs(30)));
    let sent = taken(egress);
    assert_eq!(to(&sent), [0, 1]);
    for (n, frame) in &sent {
        let (ethernet, at) = Ethernet::parse(frame).unwrap();
        assert_eq!(ethernet.src, port_mac(*n));
        let lldp = Lldp::parse(&frame[at..]).unwrap();
        assert_eq!(
            (lldp.chassis, lldp.port),
            (LldpId::Mac(port_mac(0)), LldpId::Text(&format!("p{n}")))
        );
        assert_eq!((lldp.system_name, lldp.ttl_secs), ("s1", 121));
    }
    let mut theirs = vec![0; 256];
    let lldp = Lldp {
        chassis: LldpId::Mac(peer_mac(1)),
        port: LldpId::Text("p7"),
        ttl_secs: 120,
        system_name: "s2",
    };
    let n = emit_lldp(&mut theirs, peer_mac(1), &lldp).unwrap();
    assert_eq!(feed(&mut e, T0, 1, &theirs[..n]), []);
    // A new neighbour gets an answer at once; a known one waits for the interval.
    assert_eq!(e.poll_timeout(), Some(T0));
    let mut egress = PlainEgress::default();
    e.handle_timeout(T0, &mut egress);
    assert_eq!(to(&taken(egress)), [0, 1]);
    assert_eq!(feed(&mut e, T0, 1, &theirs[..n]), []);
    assert!(e.poll_timeout() > Some(T0));
    let neighbour = e.neighbours(T0).next().unwrap();
    assert_eq!(neighbour.port, port(1));
    let Said::Lldp {
        chassis,
        remote_port,
        system,
        ttl,
        ..
    } = neighbour.said
    else {
        panic!()
    };
    assert_eq!(
        (chassis.as_str(), remote_port.as_str(), system.as_str()),
        ("02:aa:00:00:00:01", "p7", "s2")
    );
    assert_eq!(ttl, Nanos::from_secs(120));
    assert_conserved(&e);
}

/// A neighbour that had known the switch answered up to half a minute after its restart: it was without links to switches for so long.
#[test]
fn a_switch_that_was_started_again_hears_its_neighbours_at_once() {
    let started = |system: &str| {
        let config = EngineConfig {
            lldp_interval: Some(Nanos::from_secs(30)),
            switch: system.into(),
            ..config(1)
        };
        Engine::new(config).unwrap()
    };
    let (mut a, mut b) = (started("a"), started("b"));
    /// Returns the number of frames until nobody has more to say.
    fn talk(a: &mut Engine, b: &mut Engine, now: Nanos) -> usize {
        let mut sent = 0;
        for iteration in 0..16 {
            let (from, to) = match iteration % 2 {
                0 => (&mut *a, &mut *b),
                _ => (&mut *b, &mut *a),
            };
            let mut egress = PlainEgress::default();
            if from.poll_timeout().is_some_and(|at| at <= now) {
                from.handle_timeout(now, &mut egress);
            }
            for (_, frame) in taken(egress) {
                feed(to, now, 0, &frame);
                sent += 1;
            }
        }
        sent
    }
    assert!((2..6).contains(&talk(&mut a, &mut b, T0)));
    let now = T0 + Nanos::from_secs(7);
    assert_eq!(talk(&mut a, &mut b, now), 0);
    let mut a = started("a");
    assert!((2..6).contains(&talk(&mut a, &mut b, now)));
    assert_eq!(a.neighbours(now).count(), 1);
    assert_eq!(talk(&mut a, &mut b, now), 0, "nothing is new any more");
}

fn routed(e: &mut Engine, frame: &DataFrame) -> Vec<(usize, Vec<u8>)> {
    feed(e, T0, 0, &frame.bytes())
}

#[test]
fn a_route_leads_on_with_one_hop_less_and_a_right_checksum() {
    let mut e = engine(4);
    let hop = |n: usize| RouteHop {
        port: port(n),
        mac: peer_mac(n),
    };
    let routes = [
        Route {
            prefix: "10.1.0.0/16".parse().unwrap(),
            next_hops: vec![hop(1), hop(2)],
            replicate: false,
            copy_to: Vec::new(),
        },
        Route {
            prefix: "10.1.2.0/24".parse().unwrap(),
            next_hops: vec![hop(3)],
            replicate: false,
            copy_to: Vec::new(),
        },
    ];
    e.set_tables(
        T0,
        Arc::new(crate::common::tables(1, [], &routes, (0..4).map(port))),
    );
    let mut frame = DataFrame::new(Opcode::SendOnly, 1, &[7; 64]);
    frame.dst = Ipv4Addr::new(10, 1, 2, 3);
    let sent = routed(&mut e, &frame);
    let [(3, copy)] = &sent[..] else {
        panic!("{sent:?}")
    };
    let (ethernet, l3) = Ethernet::parse(copy).unwrap();
    assert_eq!((ethernet.dst, ethernet.src), (peer_mac(3), port_mac(3)));
    let (ip, _) = Ipv4::parse(&copy[l3..]).unwrap();
    assert_eq!(ip.ttl, 63);
    assert!(ipv4::checksum_is_right(&copy[l3..]) && is_sound(copy));

    frame.dst = Ipv4Addr::new(10, 1, 3, 3);
    let mut ways = [0; 4];
    for sport in 0xC000..0xC040 {
        frame.sport = sport;
        let first = routed(&mut e, &frame);
        assert_eq!(to(&first), to(&routed(&mut e, &frame)), "a flow keeps its way");
        ways[first[0].0] += 1;
    }
    assert!(ways[1] > 10 && ways[2] > 10, "{ways:?}");
    e.set_tables(
        T0,
        Arc::new(crate::common::tables(2, [], &routes, [port(0), port(2)])),
    );
    assert_eq!(to(&routed(&mut e, &frame)), [2]);
    e.set_tables(T0, Arc::new(crate::common::tables(3, [], &routes, [port(0)])));
    assert_eq!(routed(&mut e, &frame), []);
    frame.ttl = 1;
    e.set_tables(
        T0,
        Arc::new(crate::common::tables(4, [], &routes, (0..4).map(port))),
    );
    assert_eq!(routed(&mut e, &frame), []);
    frame.dst = Ipv4Addr::new(10, 2, 0, 1);
    assert_eq!(routed(&mut e, &frame), []);
    let mut bad = DataFrame {
        dst: Ipv4Addr::new(10, 1, 2, 3),
        ttl: 9,
        ..frame.clone()
    }
    .bytes();
    bad[14 + 10] ^= 0x10;
    assert_eq!(feed(&mut e, T0, 0, &bad), []);
    for reason in [
        DropReason::PortDown,
        DropReason::TtlExpired,
        DropReason::NoRoute,
        DropReason::BadIpChecksum,
    ] {
        assert_eq!(drops(&e, reason), 1, "{reason}");
    }
    // To another Ethernet address it is switched, whatever its IP address.
    frame.ethernet.dst = peer_mac(2);
    assert_eq!(to(&routed(&mut e, &frame)), [1, 2, 3]);
    assert_conserved(&e);
}

/// A static replicate rule (PEEL 3.2): each hop but that of the ingress port gets the packet, with its own Ethernet addresses and one hop
/// less. Compared with copies that are made one by one.
#[test]
fn a_route_that_replicates_leads_to_all_its_hops() {
    let mut e = engine(4);
    let hop = |n: usize, mac: u8| RouteHop {
        port: port(n),
        mac: MacAddr([2, 0, 0, 0, n as u8, mac]),
    };
    let rule = |prefix: &str, next_hops: Vec<RouteHop>| Route {
        prefix: prefix.parse().unwrap(),
        next_hops,
        replicate: true,
        copy_to: Vec::new(),
    };
    let all = vec![hop(0, 1), hop(1, 1), hop(1, 2), hop(3, 1)];
    let routes = [
        rule("239.1.0.0/16", all.clone()),
        rule("239.1.7.0/24", vec![hop(0, 1)]),
        Route {
            replicate: false,
            ..rule("239.0.0.0/8", vec![hop(2, 1)])
        },
    ];
    let tables = |generation, up: &[usize], mtu| {
        let up = up.iter().map(|n| port(*n));
        let mut tables = crate::common::tables(generation, [], &routes, up);
        tables.mtus = vec![(port(3), mtu)];
        Arc::new(tables)
    };
    e.set_tables(T0, tables(1, &[0, 1, 2, 3], 1500));
    // Copies do not go round for long.
    for (length, ttl, left) in [
        (0, 255, 16),
        (64, 18, 16),
        (64, 17, 16),
        (1024, 16, 15),
        (1024, 2, 1),
    ] {
        let mut frame = DataFrame::new(Opcode::SendOnly, 1, &vec![7; length]);
        (frame.dst, frame.ttl) = (Ipv4Addr::new(239, 1, 2, 3), ttl);
        let sent = routed(&mut e, &frame);
        let expected: Vec<_> = all[1..]
            .iter()
            .map(|hop| {
                let copy = DataFrame {
                    ttl: left,
                    ..frame.clone()
                };
                let mut bytes = copy.bytes();
                bytes[..6].copy_from_slice(&hop.mac.0);
                bytes[6..12].copy_from_slice(&port_mac(hop.port.index()).0);
                (hop.port.index(), bytes)
            })
            .collect();
        assert_eq!(sent, expected, "{length}");
    }
    let mut frame = DataFrame::new(Opcode::SendOnly, 1, &[7; 1024]);
    frame.dst = Ipv4Addr::new(239, 1, 2, 3);
    // A hop whose port is down, or too narrow, holds up no other.
    e.set_tables(T0, tables(2, &[0, 1, 3], 576));
    assert_eq!(to(&routed(&mut e, &frame)), [1, 1]);
    e.set_tables(T0, tables(3, &[0, 3], 1500));
    assert_eq!(to(&routed(&mut e, &frame)), [3]);
    e.set_tables(T0, tables(4, &[0], 1500));
    assert_eq!(routed(&mut e, &frame), []);
    e.set_tables(T0, tables(5, &[0, 3], 576));
    assert_eq!(routed(&mut e, &frame), []);
    e.set_tables(T0, tables(6, &[0, 1, 2, 3], 1500));
    frame.ttl = 1;
    assert_eq!(routed(&mut e, &frame), []);
    frame.ttl = 64;
    frame.dst = Ipv4Addr::new(239, 1, 7, 1);
    assert_eq!(routed(&mut e, &frame), []);
    for reason in [
        DropReason::PortDown,
        DropReason::TooLong,
        DropReason::TtlExpired,
        DropReason::SamePort,
    ] {
        assert_eq!(drops(&e, reason), 1, "{reason}");
    }
    // The longest prefix wins, whether it replicates or not.
    frame.dst = Ipv4Addr::new(239, 2, 7, 1);
    assert_eq!(to(&routed(&mut e, &frame)), [2]);
    assert_conserved(&e);
}

#[test]
fn rdma_between_hosts_that_is_no_groups_is_switched_untouched_even_where_it_is_odd() {
    let mut e = star_switch(1);
    let mut frame = DataFrame::new(Opcode::ReadRequest, 1, &[]);
    (frame.dst, frame.dest_qp, frame.ethernet.dst) = (host_ip(1), host_qpn(1), peer_mac(1));
    frame.ext.reth = Some(castnet_wire::Reth {
        va: 1,
        rkey: 2,
        dma_len: 3,
    });
    let mut bytes = frame.bytes();
    assert_eq!(feed(&mut e, T0, 0, &bytes)[0].1, bytes);
    bytes[14 + 28] = 0xEE;
    assert!(parse_frame(&bytes, bytes.len()).is_err());
    assert_eq!(feed(&mut e, T0, 0, &bytes)[0].1, bytes);
    assert!(!matches!(parse_frame(&bytes, bytes.len()), Ok(Parsed::Roce(_))));
    assert_eq!(e.totals().dropped, 0);
    assert_conserved(&e);
}

/// A group's rule in a programmable core (PEEL 3.3): the packet goes to other addresses, by their routes. Compared with packets that had these
/// addresses from the first.
#[test]
fn a_route_that_copies_leads_to_the_routes_of_other_addresses() {
    let mut e = engine(5);
    let hops = |ports: &[usize]| {
        let hop = |n: &usize| RouteHop {
            port: port(*n),
            mac: peer_mac(*n),
        };
        ports.iter().map(hop).collect()
    };
    let route = |prefix: &str, ports: &[usize], replicate, copy_to: &[Ipv4Addr]| Route {
        prefix: prefix.parse().unwrap(),
        next_hops: hops(ports),
        replicate,
        copy_to: copy_to.into(),
    };
    let (group, pod, edge) = (
        Ipv4Addr::new(239, 200, 0, 7),
        Ipv4Addr::new(239, 1, 0, 4),
        Ipv4Addr::new(10, 9, 0, 1),
    );
    let nowhere = Ipv4Addr::new(10, 77, 0, 1);
    let routes = [
        route("239.1.0.0/24", &[0, 1, 2], true, &[]),
        route("10.9.0.0/16", &[4], false, &[]),
        route("239.200.0.7/32", &[], false, &[nowhere, pod, edge]),
        route("239.200.0.8/32", &[], false, &[group, edge]),
    ];
    e.set_tables(T0, tables(1, [], &routes, (0..5).map(port)).into());
    for length in [0, 64, 1024] {
        let mut frame = DataFrame::new(Opcode::SendOnly, 1, &vec![7; length]);
        let mut expected = Vec::new();
        for dst in [pod, edge] {
            frame.dst = dst;
            expected.extend(routed(&mut e, &frame));
        }
        assert_eq!(to(&expected), [1, 2, 4], "port 0 is the one that it came in by");
        frame.dst = group;
        let before = e.totals();
        assert_eq!(routed(&mut e, &frame), expected, "{length}");
        let after = e.totals();
        assert_eq!(
            (
                after.copies - before.copies,
                after.copies_lost - before.copies_lost
            ),
            (2, 1),
            "the one without route is lost"
        );
        // Copies are not copied again.
        frame.dst = [239, 200, 0, 8].into();
        assert_eq!(to(&routed(&mut e, &frame)), [4]);
    }
    assert_conserved(&e);
}
