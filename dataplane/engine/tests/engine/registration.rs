//! Registration packets of MRP: which ones control gets, and that all others are frames like any other or are counted.

use core::net::Ipv4Addr;

use castnet_engine::{Engine, EngineConfig, PortSet, RegistrationConfig, SourceGuard};
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::{Datagram, DropReason, Nanos};

use crate::common::*;

/// A switch with three ports that takes registrations at port 0.
fn registering() -> Engine {
    registering_at(&[0])
}

fn registering_at(ports: &[usize]) -> Engine {
    let registration = RegistrationConfig {
        udp_port: DEFAULT_PORT,
        ports: ports.iter().map(|n| port(*n)).collect::<PortSet>(),
        fabric: PortSet::default(),
        pool: vec!["10.200.0.0/16".parse().unwrap()],
    };
    Engine::new(EngineConfig {
        registration: Some(registration),
        ..config(3)
    })
    .unwrap()
}

fn packet(n: usize, to: [u8; 4], udp_port: u16) -> Vec<u8> {
    let datagram = Datagram {
        macs: (port_mac(n), peer_mac(n)),
        from: (host_ip(n), udp_port),
        to: (to.into(), udp_port),
        payload: &[7; 900],
    };
    datagram.to_frame()
}

const GROUP: [u8; 4] = [10, 200, 0, 1];

fn dropped(e: &Engine, n: usize, reason: DropReason) -> u64 {
    let mut snapshot = castnet_engine::CountersSnapshot::default();
    e.snapshot(&mut snapshot);
    snapshot.ports[n].1.drops[reason]
}

#[test]
fn control_gets_a_packet_as_it_is() {
    let mut e = registering();
    // Also when the address is that of a group already.
    for installed in [false, true] {
        if installed {
            let mut rule = star(2);
            rule.mcst_id = castnet_wire::McstId(GROUP.into());
            install(&mut e, &rule);
        }
        let frame = packet(0, GROUP, DEFAULT_PORT);
        assert_eq!(feed(&mut e, T0, 0, &frame), []);
        let taken = e.pop_registration().unwrap();
        assert_eq!((taken.port, &taken.frame[..]), (port(0), &frame[..]));
        assert_eq!(e.pop_registration(), None);
    }
    assert_conserved(&e);
}

/// Hosts 0 and 1 are known at their ports.
fn meet(e: &mut Engine) {
    feed(e, T0, 0, &arp_request(0, host_ip(1)));
    feed(e, T0, 1, &arp_request(1, host_ip(0)));
}

/// To host 1, by port `n`.
fn to_host(n: usize, source: Ipv4Addr, udp_port: u16) -> Vec<u8> {
    let datagram = Datagram {
        macs: (peer_mac(1), peer_mac(n)),
        from: (source, udp_port),
        to: (host_ip(1), udp_port),
        payload: &[7; 100],
    };
    datagram.to_frame()
}

/// Hosts believe the source address of MRP packets.
#[test]
fn a_packet_to_a_host_comes_in_where_arp_has_seen_its_source() {
    const MRP: u16 = DEFAULT_PORT;
    let (known, unknown, group) = (host_ip(0), host_ip(7), Ipv4Addr::from(GROUP));
    for (ingress, source, udp_port, tags, length, is_forged) in [
        (0, known, MRP, 0, 142, false),
        (2, known, MRP, 0, 142, true),
        (2, known, MRP, 1, 142, true),
        (2, known, MRP, 25, 142, true),
        // The head ends before the port.
        (2, known, MRP, 0, 36, true),
        (2, known, MRP + 1, 0, 142, false),
        (2, unknown, MRP, 0, 142, false),
        (0, group, MRP, 0, 142, true),
        (2, group, MRP + 1, 0, 142, false),
    ] {
        let mut e = registering();
        meet(&mut e);
        let mut frame = to_host(ingress, source, udp_port);
        frame.truncate(length);
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 0]);
        }
        let sent = feed(&mut e, T0, ingress, &frame);
        let ports: Vec<usize> = sent.iter().map(|(n, _)| *n).collect();
        let forged = dropped(&e, ingress, DropReason::NotMember);
        let expected = if is_forged { (vec![], 1) } else { (vec![1], 0) };
        assert_eq!(
            (ports, forged),
            expected,
            "{source} by port {ingress} to UDP port {udp_port}, {tags} tags, {length} bytes"
        );
        assert_conserved(&e);
    }
}

/// Packets of hosts behind other switches may take another path than ARP. The switches next to these hosts check them.
#[test]
fn a_port_to_a_switch_brings_packets_of_hosts_that_arp_has_seen_elsewhere() {
    let (none, uplink) = (PortSet::default(), PortSet::from_iter([port(2)]));
    for (fabric, core_ports, is_lldp, is_of_hosts, is_uplink) in [
        (none, none, false, false, false),
        (uplink, none, false, false, true),
        (none, uplink, false, false, true),
        (none, none, true, false, true),
        // The topology file has a host there.
        (none, none, true, true, false),
        (uplink, none, true, true, true),
    ] {
        let mut config = registering().config().clone();
        config.core_ports = core_ports;
        config.registration.as_mut().unwrap().fabric = fabric;
        let mut e = Engine::new(config).unwrap();
        if is_of_hosts {
            let mut tables = tables(1, [], &[], (0..3).map(port));
            tables.guards = [SourceGuard::new([(port(2), host_ip(2))], Vec::new())].into();
            e.set_tables(T0, tables.into());
        }
        meet(&mut e);
        if is_lldp {
            feed(&mut e, T0, 2, &crate::floods::lldp("p1", "s2", 120));
        }
        let sent = feed(&mut e, T0, 2, &to_host(2, host_ip(0), DEFAULT_PORT));
        assert_eq!(
            sent.len(),
            usize::from(is_uplink),
            "{fabric:?} {core_ports:?} {is_lldp} {is_of_hosts}"
        );
        // Between a switch and its host there is no other switch.
        assert_eq!(feed(&mut e, T0, 2, &to_host(2, GROUP.into(), DEFAULT_PORT)), []);
        assert_conserved(&e);
    }
}

/// What an ordinary switch floods to this one is for another switch.
#[test]
fn a_packet_to_another_ethernet_address_is_switched() {
    let mut e = registering();
    // Wherever ARP has seen its source: the other switch checks it.
    feed(&mut e, T0, 1, &arp_request(0, host_ip(1)));
    let mut frame = packet(0, GROUP, DEFAULT_PORT);
    frame[..6].copy_from_slice(&peer_mac(2).0);
    let ports: Vec<usize> = feed(&mut e, T0, 0, &frame)
        .iter()
        .map(|(port, _)| *port)
        .collect();
    assert_eq!((ports, e.pop_registration()), (vec![1, 2], None));
    assert_conserved(&e);
}

#[test]
fn what_may_not_come_in_is_counted_by_its_reason() {
    let mut e = registering();
    let good = packet(1, GROUP, DEFAULT_PORT);
    feed(&mut e, T0, 1, &good);
    assert_eq!(dropped(&e, 1, DropReason::RegistrationRefused), 1);
    let mut changed = packet(0, GROUP, DEFAULT_PORT);
    changed[100] ^= 1;
    let mut tagged = packet(0, GROUP, DEFAULT_PORT);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    for frame in [changed, tagged, packet(0, GROUP, DEFAULT_PORT)[..200].to_vec()] {
        feed(&mut e, T0, 0, &frame);
    }
    assert_eq!(dropped(&e, 0, DropReason::Malformed), 3);
    assert_eq!(e.pop_registration(), None);
    assert_conserved(&e);
}

#[test]
fn other_addresses_ports_and_switches_see_frames_like_any_other() {
    let other = [10, 201, 0, 1];
    let mut off = engine(3);
    for (e, frame) in [
        (&mut registering(), packet(0, other, DEFAULT_PORT)),
        (&mut registering(), packet(0, GROUP, DEFAULT_PORT + 1)),
        (&mut off, packet(0, GROUP, DEFAULT_PORT)),
    ] {
        feed(e, T0, 0, &frame);
        assert_eq!(
            (e.pop_registration(), dropped(e, 0, DropReason::NoRoute)),
            (None, 1)
        );
    }
    assert_eq!(feed(&mut off, T0, 0, &arp_request(0, GROUP.into())).len(), 2);
}

#[test]
fn arp_is_answered_where_a_group_may_be_registered() {
    let mut e = registering();
    let answer = feed(&mut e, T0, 0, &arp_request(0, GROUP.into()));
    assert_eq!(
        (answer.len(), answer[0].0, &answer[0].1[6..12]),
        (1, 0, &port_mac(0).0[..])
    );
    // Elsewhere the address is one like any other.
    assert_eq!(feed(&mut e, T0, 1, &arp_request(1, GROUP.into())).len(), 2);
    assert_eq!(
        feed(&mut e, T0, 0, &arp_request(0, [10, 201, 0, 1].into())).len(),
        2
    );
    assert_conserved(&e);
}

#[test]
fn a_flood_is_bounded_by_the_queue_and_by_the_rate_of_its_port() {
    let mut e = registering();
    let frame = packet(0, GROUP, DEFAULT_PORT);
    let mut taken = 0;
    let count = |e: &mut Engine| std::iter::from_fn(|| e.pop_registration()).count() as u64;
    (0..100).for_each(|_| drop(feed(&mut e, T0, 0, &frame)));
    taken += count(&mut e);
    assert_eq!((taken, dropped(&e, 0, DropReason::RegistrationRefused)), (64, 36));
    for _ in 0..1000 {
        feed(&mut e, T0, 0, &frame);
        taken += count(&mut e);
    }
    // What the queue has refused counts for the rate, too.
    assert_eq!(taken, 256 - 36);
    feed(&mut e, T0 + Nanos::from_millis(1), 0, &frame);
    assert_eq!(count(&mut e), 1);
    assert_conserved(&e);
}

/// Control is behind, one port floods, and each of the others finds room.
#[test]
fn a_port_that_floods_leaves_room_for_the_others() {
    let mut e = registering_at(&[0, 1, 2]);
    let mut send = |n: usize, times: usize| {
        let frame = packet(n, GROUP, DEFAULT_PORT);
        (0..times).for_each(|_| drop(feed(&mut e, T0, n, &frame)));
    };
    send(0, 100);
    send(1, 100);
    send(2, 1);
    let taken: Vec<usize> = std::iter::from_fn(|| e.pop_registration())
        .map(|packet| packet.port.index())
        .collect();
    let of = |n| taken.iter().filter(|port| **port == n).count();
    assert_eq!((of(0), of(1), of(2)), (64, 32, 1));
    assert_conserved(&e);
}
