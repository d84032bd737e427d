//! Floods of made-up senders from one host: they displace only their own entries, and no other event is lost.

use core::net::Ipv4Addr;
use std::sync::Arc;

use crate::collective::job;
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, EngineConfig, EventKind, Members, Neighbour, Said};
use castnet_wire::build::{emit_arp, emit_lldp};
use castnet_wire::{
    Arp, Call, CallFlags, DataType, Lldp, LldpId, MacAddr, McstId, NakCode, Nanos, Primitive, Syndrome,
};

/// An unknown host.
fn stranger(n: u32) -> (MacAddr, Ipv4Addr) {
    let [_, a, b, c] = n.to_be_bytes();
    (MacAddr([2, 0xEE, 0, a, b, c]), Ipv4Addr::new(172, a, b, c))
}

fn seen_by_arp(engine: &mut Engine, now: Nanos, ingress: usize, (mac, ip): (MacAddr, Ipv4Addr)) {
    let mut frame = vec![0; 64];
    let arp = Arp::request(mac, ip, ip);
    let length = emit_arp(&mut frame, MacAddr::BROADCAST, &arp).unwrap();
    feed(engine, now, ingress, &frame[..length]);
}

fn events(engine: &mut Engine) -> Vec<EventKind> {
    core::iter::from_fn(|| engine.pop_event())
        .map(|e| e.kind)
        .collect()
}

fn neighbour_at(engine: &Engine, now: Nanos, ip: Ipv4Addr) -> Option<usize> {
    let is_it = |n: &Neighbour| matches!(n.said, Said::Arp { ip: his, .. } if his == ip);
    engine.neighbours(now).find(is_it).map(|n| n.port.index())
}

fn is_neighbour_event(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::NeighbourAppeared(_) | EventKind::NeighbourChanged(_) | EventKind::NeighbourGone(_)
    )
}

#[test]
fn made_up_arp_senders_displace_each_other_and_no_real_host() {
    let mut e = engine(4);
    // Ports 0 and 3 have a member each, who was seen once; the flood comes by port 3.
    let members = [(port(0), host_ip(0)), (port(3), host_ip(3))];
    let mut tables = crate::common::tables(1, [], &[], (0..4).map(port));
    tables.members = Members::from_iter(members);
    e.set_tables(T0, Arc::new(tables));
    for n in [0, 1, 3] {
        seen_by_arp(&mut e, T0, n, (peer_mac(n), host_ip(n)));
    }
    assert_eq!(events(&mut e).len(), 3);
    for n in 0..5000 {
        seen_by_arp(&mut e, T0, 3, stranger(n));
    }
    // A host that claims a member's address does not displace it either, however often.
    for n in 0..3 {
        let now = T0 + Nanos::from_secs(n);
        seen_by_arp(&mut e, now, 3, (stranger(1).0, host_ip(0)));
        assert_eq!(neighbour_at(&e, now, host_ip(0)), Some(0));
    }
    seen_by_arp(&mut e, T0, 2, (peer_mac(2), host_ip(2)));
    for n in 0..4 {
        assert_eq!(neighbour_at(&e, T0, host_ip(n)), Some(n));
    }
    assert_eq!(e.neighbours(T0).count(), 1024);
    // It is reported once, and by which port; each made-up one is not, but how many there were.
    let flooded = events(&mut e);
    let full = EventKind::NeighboursFull {
        entries: 1024,
        port: port(3),
    };
    assert_eq!(flooded.iter().filter(|kind| **kind == full).count(), 1);
    let changes = flooded.iter().filter(|kind| is_neighbour_event(kind)).count();
    assert!(changes <= 17, "{changes}");
    assert!(matches!(flooded.last(), Some(EventKind::NeighbourAppeared(n)) if n.port == port(2)));
    let due = e.poll_timeout().unwrap();
    assert!(due <= T0 + Nanos::from_secs(1));
    e.handle_timeout(due, &mut PlainEgress::default());
    let counted = events(&mut e);
    assert!(
        matches!(counted[..], [EventKind::NeighboursUnreported { port: at, changes }] if at == port(3) && changes > 8000),
        "{counted:?}"
    );
    assert_eq!(e.events_lost(), 0);
}

#[test]
fn who_has_stopped_being_a_member_gives_way_like_others() {
    let mut e = engine(2);
    let tables = |generation, members: &[_]| {
        let mut tables = crate::common::tables(generation, [], &[], (0..2).map(port));
        tables.members = Members::from_iter(members.iter().copied());
        Arc::new(tables)
    };
    // Seen before it becomes a member: it is found to be one when it is its turn to give way.
    seen_by_arp(&mut e, T0, 1, (peer_mac(1), host_ip(1)));
    e.set_tables(T0, tables(1, &[(port(1), host_ip(1))]));
    (0..3000).for_each(|n| seen_by_arp(&mut e, T0, 1, stranger(n)));
    assert_eq!(neighbour_at(&e, T0, host_ip(1)), Some(1));
    e.set_tables(T0, tables(2, &[]));
    seen_by_arp(&mut e, T0, 1, (peer_mac(1), host_ip(1)));
    // Seen twice, so all that were seen once go before it.
    (0..3000).for_each(|n| seen_by_arp(&mut e, T0, 1, stranger(n)));
    assert_eq!(neighbour_at(&e, T0, host_ip(1)), Some(1));
    // Now they were seen twice as well, and it is the oldest.
    for n in 0..3000 {
        seen_by_arp(&mut e, T0, 1, stranger(n));
        seen_by_arp(&mut e, T0, 1, stranger(n));
    }
    assert_eq!(neighbour_at(&e, T0, host_ip(1)), None);
}

#[test]
fn ethernet_addresses_share_the_table_by_port_where_it_is_full() {
    let mut e = Engine::new(EngineConfig {
        fdb_capacity: 1000,
        ..config(64)
    })
    .unwrap();
    let station = |n: u32| stranger(n).0;
    let learn = |e: &mut Engine, at: usize, n: u32| {
        feed(e, T0, at, &plain_frame(MacAddr::BROADCAST, station(n), None, 60));
    };
    let known_at = |e: &Engine, at: usize| e.fdb(T0).filter(|entry| entry.port == port(at)).count();
    // An uplink may use the whole table.
    (0..1000).for_each(|n| learn(&mut e, 0, n));
    assert_eq!((known_at(&e, 0), events(&mut e).len()), (1000, 0));
    // A few stations at each other port get entries.
    (1..64).for_each(|at| (0..3).for_each(|n| learn(&mut e, at, 10_000 + 3 * at as u32 + n)));
    assert!((1..64).all(|at| known_at(&e, at) == 3));
    assert_eq!(known_at(&e, 0), 1000 - 63 * 3);
    let full = |entries| EventKind::FdbFull {
        entries,
        port: port(0),
    };
    let told: Vec<EventKind> = events(&mut e);
    assert_eq!(told.last(), Some(&full(1000)));
    assert_eq!(told.len(), 1);
    // A flood at another port shares the table with the uplink, and no other port loses entries.
    (100_000..110_000).for_each(|n| learn(&mut e, 5, n));
    assert!((1..64).filter(|at| *at != 5).all(|at| known_at(&e, at) == 3));
    let (uplink, flooding) = (known_at(&e, 0), known_at(&e, 5));
    assert_eq!(uplink + flooding + 62 * 3, 1000);
    assert!(uplink.abs_diff(flooding) <= 1, "{uplink} {flooding}");
    assert_eq!(events(&mut e), []);
}

pub(crate) fn lldp(port_name: &str, system: &str, ttl_secs: u16) -> Vec<u8> {
    let mut frame = vec![0; 512];
    let said = Lldp {
        chassis: LldpId::Text(system),
        port: LldpId::Text(port_name),
        ttl_secs,
        system_name: system,
    };
    let length = emit_lldp(&mut frame, peer_mac(1), &said).unwrap();
    frame.truncate(length);
    frame
}

#[test]
fn neighbours_that_come_and_go_get_five_answers_at_once_and_then_one_a_second() {
    let mut e = Engine::new(EngineConfig {
        lldp_interval: Some(Nanos::from_secs(30)),
        ..config(2)
    })
    .unwrap();
    let mut egress = PlainEgress::default();
    e.handle_timeout(T0, &mut egress);
    let mut now = T0 + Nanos::from_millis(1);
    let end = now + Nanos::from_secs(10);
    egress.sent.clear();
    while now < end {
        feed_into(&mut e, now, 1, &lldp("p1", "s2", 120), &mut egress);
        feed_into(&mut e, now, 1, &lldp("p1", "s2", 0), &mut egress);
        if e.poll_timeout().is_some_and(|at| at <= now) {
            e.handle_timeout(now, &mut egress);
        }
        now += Nanos::from_millis(5);
    }
    let answers = egress.sent.iter().filter(|(at, _)| *at == port(1)).count();
    assert!((14..=16).contains(&answers), "{answers}");
    // A new neighbour at another port is answered within a second.
    feed_into(&mut e, now, 0, &lldp("p1", "s3", 120), &mut egress);
    egress.sent.clear();
    while let Some(due) = e.poll_timeout().filter(|due| *due <= now + Nanos::from_secs(1)) {
        e.handle_timeout(due, &mut egress);
    }
    assert_eq!(egress.sent.iter().filter(|(at, _)| *at == port(0)).count(), 1);
    // Of the 4,000 comings and goings few were reported, and the one at the other port was.
    let told = events(&mut e);
    let at = |n: usize| {
        told.iter()
            .filter(move |kind| matches!(kind, EventKind::NeighbourAppeared(who) if who.port == port(n)))
    };
    assert_eq!(at(0).count(), 1);
    assert!(at(1).count() < 60);
    assert_eq!(e.events_lost(), 0);
    assert_conserved(&e);
}

/// A rank at port 1 breaks a rule of each of 40 groups.
#[test]
fn refusals_of_many_groups_at_one_port_displace_no_failures() {
    let mut e = Engine::new(EngineConfig {
        events_max: 32,
        ..config(4)
    })
    .unwrap();
    install(&mut e, &star(3));
    feed(&mut e, T0, 0, &send(100, &[1; 64]));
    let jobs = [job(Primitive::AllReduce, DataType::F32, 0, 64, 2, 1)];
    let call = Call {
        flags: CallFlags::REPRODUCIBLE,
        ..jobs[0].call()
    };
    for n in 1..=40 {
        let mut rule = collective_star(2);
        rule.name = format!("job{n}");
        rule.mcst_id = McstId(Ipv4Addr::new(10, 9, 1, n));
        install_collective(&mut e, &rule);
        let mut rank = Rank::new(1, T0, &jobs);
        (rank.mcst_id, rank.packets[0]) = (rule.mcst_id, control(0, 1, call));
        feed(&mut e, T0, 1, &rank.frame(0));
    }
    // The first failure of a group may use the whole queue, the second one only half of it.
    let fatal = Syndrome::Nak(NakCode::RemoteOperationalError);
    for member in [2, 3] {
        feed(&mut e, T0, member, &ack(member, 100, 0, fatal));
    }
    let told = |e: &mut Engine| {
        let told = events(e);
        let failed: Vec<u16> = told
            .iter()
            .filter_map(|kind| match kind {
                EventKind::MemberFailed { endpoint, .. } => Some(*endpoint),
                _ => None,
            })
            .collect();
        (told.len() - failed.len(), failed)
    };
    assert_eq!(told(&mut e), (16, vec![2]));
    assert_eq!(e.events_lost(), 24 + 1);
    // A failure at the port of the refusals has a limit of its own.
    feed(&mut e, T0, 1, &ack(1, 100, 0, fatal));
    assert_eq!(told(&mut e), (0, vec![1]));
}

#[test]
fn what_lldp_says_is_kept_escaped() {
    let mut e = engine(2);
    let frame = lldp("eth0\x1b[2J", "a\u{9b}31m\n\u{202e}\"é\" \\", 120);
    let trace = e.trace(T0, port(1), &frame).to_string();
    feed(&mut e, T0, 1, &frame);
    let neighbour = e.neighbours(T0).next().unwrap();
    let Said::Lldp {
        chassis,
        remote_port,
        system,
        ..
    } = neighbour.said
    else {
        panic!("{neighbour:?}")
    };
    assert_eq!(remote_port.as_str(), r"eth0\u{1b}[2J");
    assert_eq!(system.as_str(), r#"a\u{9b}31m\n\u{202e}"é" \"#);
    assert_eq!(chassis, system);
    let shown = |text: &str| {
        text.chars()
            .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}')
    };
    assert!(shown(&trace), "{trace:?}");
    // A name is cut between characters, and no escape in two.
    feed(&mut e, T0, 0, &lldp("p", &"\u{1b}".repeat(40), 120));
    let long = e.neighbours(T0).next().unwrap().said;
    let Said::Lldp { system, .. } = long else {
        panic!("{long:?}")
    };
    assert_eq!(system.as_str(), r"\u{1b}".repeat(10));
}
