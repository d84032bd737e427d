//! What leaders cannot do: bounds at their largest, strangers, and packets of any kind in any order.

use std::net::Ipv4Addr;

use castnet_mrp::{Dropped, Limits, Received, Registrar, Switch, Upstream};
use castnet_topology::Topology;
use castnet_wire::mrp::{MEMBERS_MAX, REGIONS_MAX};
use castnet_wire::{
    MacAddr, McstId, MrpBody, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal, Nanos, Pmtu,
    Qpn,
};
use proptest::prelude::*;

use crate::net::{Around, Faults, MCST_ID, Net, Tables, member, port};

fn fabric() -> Topology {
    Topology::leaf_spine(2, 2, 3).expect("a fabric")
}

fn around<'a>(topology: &'a Topology, tables: &'a mut Tables) -> Around<'a> {
    Around {
        topology,
        name: "leaf0",
        tables,
        out: Vec::new(),
    }
}

fn received(at: u8, leader: Ipv4Addr, mcst_id: McstId, number: u32, body: MrpBody) -> Received {
    let packet = MrpPacket { number, body };
    Received {
        port: port(at),
        mac: MacAddr([2; 6]),
        from: leader,
        mcst_id,
        packet,
    }
}

const WHOLE: MrpPart = MrpPart {
    sequence: 0,
    total: 1,
    pmtu: Pmtu::B1024,
};

/// A registration in one packet: from the host `leader` to `receivers`.
fn registration(fabric: &Topology, leader: &str, receivers: &[&str]) -> (Ipv4Addr, MrpBody) {
    let source = member(fabric, leader, true);
    let receivers = receivers.iter().map(|r| member(fabric, r, false));
    let all = core::iter::once(source).chain(receivers).collect();
    (source.ip, MrpBody::Members(WHOLE, all))
}

fn mcst_id(n: u8) -> McstId {
    McstId([10, 200, 0, n].into())
}

fn reason(result: Result<(), Dropped>) -> Option<MrpReason> {
    match result {
        Err(Dropped::Refused(MrpRefusal { reason, .. })) => Some(reason),
        _ => None,
    }
}

#[test]
fn a_leader_has_a_limited_number_of_groups_and_gets_them_back() {
    let (fabric, mut tables) = (fabric(), Tables::default());
    let limits = Limits {
        groups_per_leader: 2,
        groups: 4,
        ..Limits::default()
    };
    let mut registrar = Registrar::new(limits);
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut register = |seconds, host: usize, n, number| {
        let (leader, body) = registration(&fabric, &hosts[host], &[&hosts[5]]);
        let mut around = around(&fabric, &mut tables);
        let now = Nanos::from_secs(seconds);
        registrar.handle_timeout(now, &mut around);
        registrar.handle(
            now,
            received(host as u8, leader, mcst_id(n), number, body),
            &mut around,
        )
    };
    assert_eq!([register(0, 0, 1, 1), register(0, 0, 2, 1)], [Ok(()), Ok(())]);
    assert_eq!(reason(register(0, 0, 3, 1)), Some(MrpReason::TooManyGroups));
    // Another leader has its own; but nobody takes over an address.
    assert_eq!(reason(register(0, 1, 1, 9)), Some(MrpReason::Taken));
    assert_eq!([register(0, 1, 3, 1), register(0, 1, 4, 1)], [Ok(()), Ok(())]);
    // The switch as a whole.
    assert_eq!(reason(register(0, 2, 5, 1)), Some(MrpReason::TooManyGroups));
    // Older numbers are over, and hosts speak only for themselves.
    assert_eq!(register(0, 0, 1, 0), Err(Dropped::Stale { number: 0 }));
    // Repetition keeps a group; the others expire.
    assert_eq!(register(40, 0, 1, 1), Ok(()));
    assert_eq!([register(61, 2, 5, 1), register(61, 0, 6, 1)], [Ok(()), Ok(())]);
    assert_eq!(reason(register(61, 0, 2, 1)), Some(MrpReason::TooManyGroups));
    assert_eq!(tables.groups.len(), 3);
}

/// One that answers for many addresses at its port leaves room for the leaders at others.
#[test]
fn a_port_has_a_limited_number_of_groups() {
    let (fabric, mut tables) = (fabric(), Tables::default());
    let limits = Limits {
        groups_per_port: 2,
        groups: 4,
        ..Limits::default()
    };
    let mut registrar = Registrar::new(limits);
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut handle = |seconds, host: usize, n, number, withdraws: bool| {
        let (leader, body) = registration(&fabric, &hosts[host], &[&hosts[5]]);
        let body = if withdraws { MrpBody::Withdraw } else { body };
        let mut around = around(&fabric, &mut tables);
        let now = Nanos::from_secs(seconds);
        registrar.handle_timeout(now, &mut around);
        registrar.handle(
            now,
            received(host as u8, leader, mcst_id(n), number, body),
            &mut around,
        )
    };
    assert_eq!(
        [handle(0, 0, 1, 1, false), handle(0, 0, 2, 1, false)],
        [Ok(()), Ok(())]
    );
    assert_eq!(reason(handle(0, 0, 3, 1, false)), Some(MrpReason::TooManyGroups));
    // Those that there are can be repeated and registered anew; one that was withdrawn takes its place for a while.
    assert_eq!(
        [
            handle(1, 0, 1, 1, false),
            handle(1, 0, 1, 2, false),
            handle(1, 0, 2, 1, true)
        ],
        [Ok(()); 3]
    );
    assert_eq!(reason(handle(2, 0, 3, 1, false)), Some(MrpReason::TooManyGroups));
    assert_eq!(handle(2, 1, 4, 1, false), Ok(()), "another port");
    assert_eq!(handle(12, 0, 3, 1, false), Ok(()));
}

/// An install costs all workers of the switch, and each newer number of a registration is one.
#[test]
fn a_port_has_a_limited_number_of_installs_in_a_time() {
    let (fabric, mut tables) = (fabric(), Tables::default());
    let mut registrar = Registrar::new(Limits::default());
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut register = |now, host: usize, number| {
        let (leader, body) = registration(&fabric, &hosts[host], &[&hosts[5]]);
        let packet = received(host as u8, leader, mcst_id(host as u8), number, body);
        registrar.handle(now, packet, &mut around(&fabric, &mut tables))
    };
    let too_often = Err(Dropped::TooOften { port: port(0) });
    for number in 1..=256 {
        assert_eq!(register(Nanos::ZERO, 0, number), Ok(()));
    }
    assert_eq!(
        [register(Nanos::ZERO, 0, 257), register(Nanos::ZERO, 0, 257)],
        [too_often; 2]
    );
    assert_eq!(register(Nanos::ZERO, 1, 1), Ok(()), "another port");
    // Its repetition is taken when there is time for it, once.
    let later = Nanos::from_millis(50);
    assert_eq!([register(later, 0, 257), register(later, 0, 257)], [Ok(()); 2]);
    assert_eq!(register(later, 0, 258), too_often);
}

/// Each member takes a next hop of the switch, which others need, too.
#[test]
fn a_port_has_a_limited_number_of_members() {
    let (fabric, mut tables) = (fabric(), Tables::default());
    let limits = Limits {
        members: 3,
        members_per_port: 4,
        ..Limits::default()
    };
    let mut registrar = Registrar::new(limits);
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut handle = |host: usize, n, withdraws: bool| {
        let (leader, body) = registration(&fabric, &hosts[host], &[&hosts[5]]);
        let body = if withdraws { MrpBody::Withdraw } else { body };
        let mut around = around(&fabric, &mut tables);
        registrar.handle(
            Nanos::ZERO,
            received(host as u8, leader, mcst_id(n), 1, body),
            &mut around,
        )
    };
    // With its leader, each has two.
    assert_eq!([handle(0, 1, false), handle(0, 2, false)], [Ok(()), Ok(())]);
    assert_eq!(reason(handle(0, 3, false)), Some(MrpReason::TooManyMembers));
    assert_eq!(handle(0, 2, false), Ok(()), "its own members count once");
    assert_eq!(handle(1, 4, false), Ok(()), "another port");
    assert_eq!([handle(0, 1, true), handle(0, 3, false)], [Ok(()), Ok(())]);
}

#[test]
fn a_host_speaks_only_for_itself() {
    let (fabric, mut tables) = (fabric(), Tables::default());
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let mut registrar = Registrar::new(Limits::default());
    let (leader, body) = registration(&fabric, &hosts[0], &[&hosts[4]]);
    let mut around = around(&fabric, &mut tables);
    let now = Nanos::ZERO;
    let packet = |at, from, body: &MrpBody| received(at, from, MCST_ID, 1, body.clone());
    // From the port of another host; then from its own port, but with another source.
    let stolen = registrar.handle(now, packet(1, leader, &body), &mut around);
    assert_eq!(stolen, Err(Dropped::WrongPort { port: port(1) }));
    let other = member(&fabric, &hosts[1], false).ip;
    assert_eq!(
        reason(registrar.handle(now, packet(1, other, &body), &mut around)),
        Some(MrpReason::Contradiction)
    );
    assert_eq!(
        registrar.handle(now, packet(0, leader, &body), &mut around),
        Ok(())
    );
    // The same registration by another port: a loop, or a forgery over another switch.
    let looped = registrar.handle(now, packet(3, leader, &body), &mut around);
    assert_eq!(looped, Err(Dropped::WrongPort { port: port(3) }));
    let withdrawn = registrar.handle(now, packet(3, leader, &MrpBody::Withdraw), &mut around);
    assert_eq!(withdrawn, Err(Dropped::WrongPort { port: port(3) }));
    let refusal = MrpBody::Refuse(MCST_ID, MrpRefusal::of(MrpReason::Refused));
    assert_eq!(
        registrar.handle(now, packet(1, other, &refusal), &mut around),
        Err(Dropped::NotExpected)
    );
    assert_eq!(registrar.groups().collect::<Vec<_>>(), [(MCST_ID, leader)]);
}

/// Only a switch gives the QPN of an uplink, and once.
#[test]
fn an_uplink_of_a_host_and_two_of_a_switch_are_refused() {
    let fabric = fabric();
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    // By port: of leaf 1's host over the spine, and of leaf 0's own host.
    for (at, leader, uplinks, good) in [(3, 4, 1, true), (3, 4, 2, false), (0, 0, 1, false)] {
        let (leader, MrpBody::Members(_, members)) = registration(&fabric, &hosts[leader], &[&hosts[1]])
        else {
            panic!("members");
        };
        let mut tables = Tables::default();
        let mut registrar = Registrar::new(Limits::default());
        let mut around = around(&fabric, &mut tables);
        let part = |sequence| MrpPart {
            sequence,
            total: 1 + uplinks,
            ..WHOLE
        };
        let packets = (1..=uplinks).map(|n| MrpBody::Uplink(part(n), Qpn::new(5)));
        let packets = core::iter::once(MrpBody::Members(part(0), members)).chain(packets);
        let results: Vec<_> = packets
            .map(|body| registrar.handle(Nanos::ZERO, received(at, leader, MCST_ID, 1, body), &mut around))
            .collect();
        let last = results.last().copied().expect("packets");
        let qpns: Vec<Qpn> = tables
            .groups
            .values()
            .flat_map(|(_, rule)| &rule.endpoints)
            .filter(|e| e.next_hop.host().is_none())
            .map(|e| e.next_hop.qpn())
            .collect();
        match good {
            true => assert_eq!((last, qpns), (Ok(()), vec![Qpn::new(5)])),
            false => assert_eq!((reason(last), qpns), (Some(MrpReason::Contradiction), vec![])),
        }
    }
}

#[test]
fn what_contradicts_itself_is_refused_by_the_name_of_the_member() {
    let fabric = fabric();
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let (leader, MrpBody::Members(_, members)) = registration(&fabric, &hosts[0], &[&hosts[4]]) else {
        panic!("members");
    };
    let stranger = MrpMember {
        ip: [192, 0, 2, 1].into(),
        qpn: Qpn::new(9),
        source: false,
    };
    let region = |ip| MrpMemory {
        ip,
        rkey: 1,
        va: 0,
        length: 1,
    };
    let [source, receiver] = [members[0], members[1]];
    let cases = [
        (
            vec![source, receiver, receiver],
            vec![region(receiver.ip)],
            MrpReason::Contradiction,
            receiver.ip,
        ),
        (
            vec![source],
            vec![region(receiver.ip)],
            MrpReason::Contradiction,
            receiver.ip,
        ),
        (
            vec![source, receiver],
            vec![region(source.ip)],
            MrpReason::Contradiction,
            source.ip,
        ),
        (
            vec![receiver],
            vec![region(receiver.ip)],
            MrpReason::Contradiction,
            leader,
        ),
        (
            vec![source, receiver, stranger],
            vec![region(receiver.ip)],
            MrpReason::NoRoute,
            stranger.ip,
        ),
    ];
    for (members, regions, reason, member) in cases {
        let mut tables = Tables::default();
        let mut registrar = Registrar::new(Limits::default());
        let mut around = around(&fabric, &mut tables);
        let part = |sequence| MrpPart {
            sequence,
            total: 2,
            ..WHOLE
        };
        let first = received(0, leader, MCST_ID, 1, MrpBody::Memory(part(1), regions));
        assert_eq!(registrar.handle(Nanos::ZERO, first, &mut around), Ok(()));
        let second = received(0, leader, MCST_ID, 1, MrpBody::Members(part(0), members));
        let refusal = MrpRefusal { reason, member };
        assert_eq!(
            registrar.handle(Nanos::ZERO, second, &mut around),
            Err(Dropped::Refused(refusal))
        );
        // The leader gets the reason, and the switch keeps nothing.
        let sent: Vec<_> = around
            .out
            .iter()
            .map(|out| (out.to, out.packet.body.clone()))
            .collect();
        assert_eq!(sent, [(leader, MrpBody::Refuse(MCST_ID, refusal))]);
        assert_eq!(registrar.poll_timeout(), None);
    }
}

/// A switch that knows all addresses of 10/8 behind one port, where so many switches are.
struct Wide {
    switches: u8,
    inner: Vec<castnet_mrp::Outgoing>,
    rules: usize,
}

impl Switch for Wide {
    fn hops(&mut self, ip: Ipv4Addr) -> Vec<castnet_mrp::Hop> {
        let leader = ip.octets()[1] == 255;
        let n = ip.octets()[3] % self.switches;
        let switch = (!leader).then(|| format!("spine{n}"));
        vec![castnet_mrp::Hop {
            port: port(u8::from(!leader)),
            mac: MacAddr([2, 2, 2, 2, 2, n]),
            switch,
        }]
    }
    fn upstream(&mut self, _: Ipv4Addr, from: (castnet_wire::PortId, MacAddr)) -> Option<Upstream> {
        (from.0 == port(0)).then_some(Upstream::Leader)
    }
    fn groups_at(&mut self, _: castnet_wire::PortId, _: McstId) -> usize {
        0
    }
    fn install(&mut self, _: Ipv4Addr, _: &castnet_rules::GroupRule) -> Result<(), MrpRefusal> {
        self.rules += 1;
        Ok(())
    }
    fn remove(&mut self, _: Ipv4Addr, _: McstId) {}
    fn send(&mut self, packet: &castnet_mrp::Outgoing) {
        self.inner.push(packet.clone());
    }
}

/// The largest registration: 255 packets in reverse order, with memory for as many members as then fit.
#[test]
fn the_largest_registration_is_served_and_one_member_more_is_refused() {
    let leader: Ipv4Addr = [10, 255, 0, 1].into();
    let regions = 190 * REGIONS_MAX as u32;
    let ip = |n: u32| Ipv4Addr::from(0x0A00_0000 + n);
    let receiver = |n| MrpMember {
        ip: ip(n),
        qpn: Qpn::new(n + 2),
        source: false,
    };
    let receivers: Vec<MrpMember> = (0..65 * MEMBERS_MAX as u32 - 1).map(receiver).collect();
    let source = MrpMember {
        ip: leader,
        qpn: Qpn::new(2),
        source: true,
    };
    let all: Vec<MrpMember> = core::iter::once(source)
        .chain(receivers.iter().copied())
        .collect();
    let memory: Vec<MrpMemory> = (0..regions)
        .map(|n| MrpMemory {
            ip: ip(n),
            rkey: n,
            va: 0,
            length: 1,
        })
        .collect();
    let part = |sequence| MrpPart {
        sequence,
        total: 255,
        ..WHOLE
    };
    let members = (0..)
        .zip(all.chunks(MEMBERS_MAX))
        .map(|(n, all)| MrpBody::Members(part(n), all.to_vec()));
    let regions = (65..=254)
        .zip(memory.chunks(REGIONS_MAX))
        .map(|(n, all)| MrpBody::Memory(part(n), all.to_vec()));
    let bodies: Vec<MrpBody> = members.chain(regions).collect();
    assert_eq!(bodies.len(), 255);
    // To each of two switches behind one port a packet more would have to go.
    for (members, switches, fits) in [
        (all.len(), 1, true),
        (all.len() - 1, 1, false),
        (all.len(), 2, false),
    ] {
        let mut registrar = Registrar::new(Limits {
            members,
            ..Limits::default()
        });
        let mut wide = Wide {
            switches,
            inner: Vec::new(),
            rules: 0,
        };
        let mut refused = 0;
        for body in bodies.iter().rev() {
            let packet = received(0, leader, MCST_ID, 1, body.clone());
            let packet = Received {
                packet: MrpPacket::parse(&packet.packet.to_bytes()).expect("a packet"),
                ..packet
            };
            refused += usize::from(reason(registrar.handle(Nanos::ZERO, packet, &mut wide)).is_some());
        }
        assert_eq!((wide.rules, refused), (usize::from(fits), usize::from(!fits)));
        if fits {
            // All packets go on, without the source; a repeated one causes one, but not at once.
            assert_eq!(wide.inner.len(), 255);
            let sent: usize = wide
                .inner
                .iter()
                .map(|out| match &out.packet.body {
                    MrpBody::Members(_, all) => all.len(),
                    _ => 0,
                })
                .sum();
            assert_eq!(sent, receivers.len());
            for (ms, sent) in [(0, 255), (49, 255), (50, 256), (99, 256)] {
                let again = received(0, leader, MCST_ID, 1, bodies[200].clone());
                assert_eq!(registrar.handle(Nanos::from_millis(ms), again, &mut wide), Ok(()));
                assert_eq!(wide.inner.len(), sent, "{ms}");
            }
            assert_eq!(wide.inner[255].packet.body, bodies[200]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Packets of any kind, from any port, in any order: nothing panics, a group is installed once, and all is bounded.
    #[test]
    fn any_packets_in_any_order_keep_the_bounds(
        steps in proptest::collection::vec((0..5_u8, 0..4_u8, 0..6_usize, 0..3_u32, 0..10_u8, 0..40_u64), 1..120),
    ) {
        let (fabric, mut tables) = (fabric(), Tables::default());
        let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
        let limits = Limits { groups_per_leader: 1, groups: 2, members: 4, ..Limits::default() };
        let mut registrar = Registrar::new(limits);
        let mut now = Nanos::ZERO;
        for (at, n, host, number, kind, seconds) in steps {
            now += Nanos::from_secs(seconds);
            let own = member(&fabric, &hosts[host], kind % 2 == 0);
            let other = member(&fabric, &hosts[(host + 3) % 6], false);
            let part = MrpPart { sequence: kind % 2, total: 1 + kind % 3, pmtu: Pmtu::B1024 };
            let region = MrpMemory { ip: other.ip, rkey: 1, va: 0, length: 1 };
            let body = match kind {
                0..=3 if part.sequence < part.total => MrpBody::Members(part, vec![own, other]),
                4 if part.sequence < part.total => MrpBody::Memory(part, vec![region]),
                5 => MrpBody::Withdraw,
                6 => MrpBody::Refuse(mcst_id(n), MrpRefusal::of(MrpReason::Refused)),
                7 => MrpBody::Join(mcst_id(n), own, None),
                8 if part.sequence < part.total => MrpBody::Uplink(part, own.qpn),
                _ => MrpBody::Confirm(mcst_id(n), own),
            };
            let mut around = around(&fabric, &mut tables);
            let _ = registrar.handle(now, received(at, own.ip, mcst_id(n), number, body), &mut around);
            prop_assert!(around.out.len() <= 8);
            if registrar.poll_timeout().is_some_and(|due| due <= now) {
                registrar.handle_timeout(now, &mut around);
            }
            let installed: Vec<McstId> = tables.groups.keys().copied().collect();
            prop_assert_eq!(registrar.groups().map(|(id, _)| id).collect::<Vec<_>>(), installed);
            prop_assert!(tables.groups.len() <= limits.groups);
        }
    }
}

/// A group of 600 hosts over three tiers, on links that lose: four packets from the leader, fewer further down.
#[test]
fn a_group_of_many_packets_is_registered_over_links_that_lose() {
    let fabric = Topology::leaf_spine(12, 4, 50).expect("a fabric");
    let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
    let faults = Faults {
        seed: 3,
        loss: 5,
        repeat: 5,
        change: 1,
        delay_ms: 20,
    };
    let mut net = Net::new(fabric, &hosts, 1, faults);
    while !net.leader.is_registered() {
        net.run(Nanos::from_millis(100), true).expect("a registration");
    }
    assert_eq!(net.rules().len(), 13);
    assert!(net.dropped > 0);
}
