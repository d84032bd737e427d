//! Neighbours of a switch that takes registrations.

use std::net::Ipv4Addr;

use crate::common::*;
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_worker::engine::{PortSet, RegistrationConfig, Said};

/// A leader named made-up hosts at its port as receivers, and they displaced the hosts at other ports.
#[test]
fn members_of_groups_that_hosts_register_give_way_like_others() {
    let lab = Lab::with(3, 2, |config| {
        config.engine.neighbours_max = 8;
        config.engine.registration = Some(RegistrationConfig {
            udp_port: DEFAULT_PORT,
            ports: PortSet::default(),
            fabric: PortSet::default(),
            pool: vec!["10.200.0.0/24".parse().unwrap()],
        });
    });
    // The first group has an address of the pool, the second one has not.
    for (n, members) in [(1, [0, 1]), (257, [0, 2])] {
        lab.install(&rule(n, &members));
    }
    let mut h = lab.hosts();
    for (n, host) in h.iter_mut().enumerate() {
        host.send_one(arp_request(n, host_ip(9)));
    }
    lab.wait("all were taken in", |c| c.totals.received == 3);
    // Many others at the ports of both receivers.
    for at in [1, 2] {
        for n in 0..100 {
            let mut other = arp_request(at, host_ip(9));
            // Offsets of the Ethernet source and of the ARP sender.
            for field in [6, 22] {
                other[field..field + 6].copy_from_slice(&[2, 0xEE, 0, 0, at as u8, n]);
            }
            other[28..32].copy_from_slice(&[172, 16, at as u8, n]);
            h[at].send_one(other);
        }
        let all = 3 + 100 * at as u64;
        lab.wait("all were taken in", |c| c.totals.received == all);
    }
    let neighbours = lab.dataplane.neighbours().unwrap();
    let is_there = |host: Ipv4Addr| {
        let is_it = |said: &Said| matches!(said, Said::Arp { ip, .. } if *ip == host);
        neighbours.iter().any(|neighbour| is_it(&neighbour.said))
    };
    assert_eq!([0, 1, 2].map(|n| is_there(host_ip(n))), [true, false, true]);
}
