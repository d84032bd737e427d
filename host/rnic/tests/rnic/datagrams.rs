//! UDP datagrams of software RNICs, over memory links.

use crate::common::*;
use castnet_port::{Batch, Faults, MemLink, MemLinkConfig, Pool, PoolConfig, Port, Sides};
use castnet_rnic::{Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::{Datagram, MacAddr, Nanos};
use std::net::{Ipv4Addr, SocketAddrV4};

const PORT: u16 = 4793;

fn to(ip: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(ip, PORT)
}

#[test]
fn they_wait_for_the_next_hop_and_reach_every_user_of_their_port() {
    let mut net = Net::quiet();
    let sender = net.rnics[0].datagrams(PORT).expect("a port");
    let receivers = [PORT, PORT, 9].map(|port| net.rnics[1].datagrams(port).expect("a port"));
    let sent: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8; n * 7]).collect();
    for payload in &sent {
        sender.send(to(IPS[1]), payload);
    }
    // They leave also if their user has gone.
    drop(sender);
    net.iterate(20);
    for receiver in &receivers[..2] {
        for payload in &sent {
            assert_eq!(
                receiver.receive(NO_WAIT),
                Some((IPS[0], payload.clone().into_boxed_slice()))
            );
        }
    }
    assert!(
        receivers
            .iter()
            .all(|receiver| receiver.receive(NO_WAIT).is_none())
    );
    assert_eq!(
        net.rnics[1].stats().frames_in,
        0,
        "they are nothing for the endpoint"
    );
}

/// Connections on the same link lose nothing by it, and a host that does not answer keeps no others from theirs.
#[test]
fn a_host_that_does_not_answer_delays_no_others() {
    let mut net = Net::new(1500, Faults::NONE, 0);
    let sender = net.rnics[0].datagrams(PORT).expect("a port");
    let receiver = net.rnics[1].datagrams(PORT).expect("a port");
    for n in 0..100 {
        sender.send(to([10, 0, 0, 77].into()), &[n]);
        sender.send(to(IPS[1]), &[n]);
    }
    net.iterate(20);
    let received: Vec<u8> = std::iter::from_fn(|| receiver.receive(NO_WAIT))
        .map(|(_, payload)| payload[0])
        .collect();
    assert_eq!(received, (0..100).collect::<Vec<u8>>());
    // Those that nobody takes are dropped once ARP has given up, and make room.
    for _ in 0..20 {
        net.now += Nanos::from_millis(250);
        net.iterate(2);
    }
    (0..250).for_each(|n| sender.send(to(IPS[1]), &[n]));
    net.iterate(20);
    assert_eq!(std::iter::from_fn(|| receiver.receive(NO_WAIT)).count(), 250);
}

#[test]
fn what_is_damaged_or_for_others_is_dropped() {
    let pool = Pool::new(PoolConfig::default());
    let (a, b) = MemLink::pair(&MemLinkConfig::default());
    let mut rnic = SoftRnic::new(
        a.open(&pool, Sides::Both),
        pool.clone(),
        SoftRnicConfig::new(IPS[0]),
    )
    .unwrap();
    let mut wire = b.open(&pool, Sides::Both);
    let user = rnic.datagrams(PORT).expect("a port");
    let mac = rnic.attributes().mac;
    let frame = |mac, ip, port| {
        let datagram = Datagram {
            macs: (mac, MacAddr([2, 0, 0, 0, 9, 9])),
            from: (IPS[1], PORT),
            to: (ip, port),
            payload: b"registration",
        };
        datagram.to_frame()
    };
    let right = frame(mac, IPS[0], PORT);
    let mut bad: Vec<Vec<u8>> = (14 * 8..right.len() * 8)
        .map(|bit| {
            let mut frame = right.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            frame
        })
        .collect();
    bad.extend([
        frame(mac, IPS[1], PORT),
        frame(mac, IPS[0], PORT + 1),
        frame(MacAddr([2; 6]), IPS[0], PORT),
    ]);
    bad.extend((0..right.len()).map(|length| right[..length].to_vec()));
    for frame in &bad {
        wire.send(&mut Batch::from_iter(pool.copy_from(frame)));
        rnic.poll(Nanos(1)).unwrap();
        assert_eq!(user.receive(NO_WAIT), None, "{frame:02x?}");
    }
    wire.send(&mut Batch::from_iter(pool.copy_from(&right)));
    rnic.poll(Nanos(1)).unwrap();
    let expected: Box<[u8]> = Box::from(&b"registration"[..]);
    assert_eq!(user.receive(NO_WAIT), Some((IPS[1], expected)));
}
