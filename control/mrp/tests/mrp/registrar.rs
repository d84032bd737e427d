//! A switch: how long it keeps registrations, and packets that are right but for one field.

use std::net::Ipv4Addr;

use castnet_mrp::{Dropped, Hop, Limits, Outgoing, Received, Registrar, Switch, Upstream};
use castnet_rules::{ENDPOINTS_MAX, GroupRule};
use castnet_topology::Topology;
use castnet_wire::mrp::MEMBERS_MAX;
use castnet_wire::{
    MacAddr, McstId, MrpBody, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal, Nanos, Pmtu,
    PortId, Qpn,
};

use crate::net::{Around, MCST_ID, Tables, member, port};

const WHOLE: MrpPart = MrpPart {
    sequence: 0,
    total: 1,
    pmtu: Pmtu::B1024,
};
const OTHER: McstId = McstId(Ipv4Addr::new(10, 200, 0, 2));

/// Leaf 0 of two leaves, with three hosts at the ports 0 to 2 and spines at the ports 3 and 4.
struct Leaf {
    fabric: Topology,
    tables: Tables,
    registrar: Registrar,
}

impl Leaf {
    fn new(limits: Limits) -> Self {
        Self {
            fabric: Topology::leaf_spine(2, 2, 3).expect("a fabric"),
            tables: Tables::default(),
            registrar: Registrar::new(limits),
        }
    }

    fn member(&self, n: usize, source: bool) -> MrpMember {
        let host = self.fabric.hosts().nth(n).expect("a host");
        member(&self.fabric, &host.name, source)
    }

    /// The result, and what is sent.
    fn handle(&mut self, now: Nanos, received: Received) -> (Result<(), Dropped>, Vec<Outgoing>) {
        let mut around = Around {
            topology: &self.fabric,
            name: "leaf0",
            tables: &mut self.tables,
            out: Vec::new(),
        };
        (self.registrar.handle(now, received, &mut around), around.out)
    }

    fn expire(&mut self, now: Nanos) {
        let mut around = Around {
            topology: &self.fabric,
            name: "leaf0",
            tables: &mut self.tables,
            out: Vec::new(),
        };
        self.registrar.handle_timeout(now, &mut around);
    }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 9, n])
}

fn received(at: (u8, MacAddr), from: Ipv4Addr, number: u32, body: MrpBody) -> Received {
    Received {
        port: port(at.0),
        mac: at.1,
        from,
        mcst_id: MCST_ID,
        packet: MrpPacket { number, body },
    }
}

/// What a repeated or newer registration is, by where the first one came from and where this one does.
#[test]
fn a_registration_comes_from_where_it_came_but_for_a_leaders_address_and_a_new_path() {
    let wrong = |n| Err(Dropped::WrongPort { port: port(n) });
    // The leader: host 0 at port 0, or host 3 behind the spines at ports 3 and 4.
    for (leader, first, then, same, newer) in [
        (0, (0, mac(1)), (0, mac(1)), Ok(()), Ok(())),
        (0, (0, mac(1)), (0, mac(2)), Ok(()), Ok(())),
        (0, (0, mac(1)), (3, mac(1)), wrong(3), wrong(3)),
        (3, (3, mac(1)), (3, mac(1)), Ok(()), Ok(())),
        (3, (3, mac(1)), (3, mac(2)), wrong(3), Ok(())),
        (3, (3, mac(1)), (4, mac(1)), wrong(4), Ok(())),
    ] {
        for (number, expected) in [(1, same), (2, newer)] {
            let mut leaf = Leaf::new(Limits::default());
            let (source, receiver) = (leaf.member(leader, true), leaf.member(1, false));
            let body = MrpBody::Members(WHOLE, vec![source, receiver]);
            let packet = |at, number| received(at, source.ip, number, body.clone());
            assert_eq!(leaf.handle(Nanos::ZERO, packet(first, 1)).0, Ok(()));
            let later = Nanos::from_millis(50);
            let (result, sent) = leaf.handle(later, packet(then, number));
            assert_eq!(
                result, expected,
                "leader {leader}, from {then:?}, number {number}"
            );
            assert_eq!(sent.len(), usize::from(result.is_ok()));
            // A withdrawal of the first one meets the same checks.
            let is_same = expected == Ok(()) && number == 2;
            let withdrawal = received(then, source.ip, 1, MrpBody::Withdraw);
            let (withdrawn, _) = leaf.handle(later, withdrawal);
            let stale = Err(Dropped::Stale { number: 1 });
            assert_eq!(withdrawn, if is_same { stale } else { same });
        }
    }
}

#[test]
fn only_the_leader_of_the_newest_registration_withdraws_it() {
    let mut leaf = Leaf::new(Limits::default());
    let (source, receiver) = (leaf.member(0, true), leaf.member(3, false));
    let at = (0, mac(1));
    let withdraw = |from, number| received(at, from, number, MrpBody::Withdraw);
    assert_eq!(
        leaf.handle(Nanos::ZERO, withdraw(source.ip, 4)).0,
        Err(Dropped::NotExpected)
    );
    let body = MrpBody::Members(WHOLE, vec![source, receiver]);
    assert_eq!(
        leaf.handle(Nanos::ZERO, received(at, source.ip, 4, body)).0,
        Ok(())
    );
    for (from, number) in [(receiver.ip, 4), (source.ip, 3), (source.ip, 5)] {
        let (result, sent) = leaf.handle(Nanos::ZERO, withdraw(from, number));
        assert_eq!((result, sent.len()), (Err(Dropped::Stale { number }), 0));
    }
    assert_eq!(leaf.tables.groups.len(), 1);
    // It is passed on again, but not at once.
    for (ms, packets) in [(0, 1), (49, 0), (50, 1), (99, 0)] {
        let (result, sent) = leaf.handle(Nanos::from_millis(ms), withdraw(source.ip, 4));
        assert_eq!(result, Ok(()));
        assert_eq!(leaf.tables.groups.len(), 0);
        if packets == 0 {
            assert_eq!(sent, []);
            continue;
        }
        // One to the spine, as the leader's.
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].from, sent[0].to), (source.ip, MCST_ID.0));
        let packet = MrpPacket {
            number: 4,
            body: MrpBody::Withdraw,
        };
        assert_eq!(sent[0].packet, packet);
    }
}

#[test]
fn a_registration_lives_until_it_has_not_been_repeated_for_its_lifetime() {
    let lifetime = Nanos::from_secs(60);
    let mut leaf = Leaf::new(Limits::default());
    let (source, receiver) = (leaf.member(0, true), leaf.member(1, false));
    let body = MrpBody::Members(WHOLE, vec![source, receiver]);
    let packet = |number| received((0, mac(1)), source.ip, number, body.clone());
    let half = MrpBody::Members(MrpPart { total: 2, ..WHOLE }, vec![source]);
    for (now, number) in [(0, 1), (50, 1), (90, 2)] {
        let now = Nanos::from_secs(now);
        assert_eq!(leaf.handle(now, packet(number)).0, Ok(()));
        assert_eq!(leaf.registrar.poll_timeout(), Some(now + lifetime));
    }
    // A newer one of which packets are missing keeps the installed one as long.
    let now = Nanos::from_secs(100);
    let newer = received((0, mac(1)), source.ip, 3, half);
    assert_eq!(leaf.handle(now, newer).0, Ok(()));
    let end = now + lifetime;
    assert_eq!(leaf.registrar.poll_timeout(), Some(end));
    leaf.expire(Nanos(end.0 - 1));
    assert_eq!(leaf.tables.groups.len(), 1);
    assert_eq!(leaf.registrar.groups().count(), 1);
    leaf.expire(end);
    assert_eq!(leaf.tables.groups.len(), 0);
    assert_eq!(
        (leaf.registrar.groups().count(), leaf.registrar.poll_timeout()),
        (0, None)
    );
}

#[test]
fn a_withdrawn_registration_is_remembered_for_ten_seconds() {
    let mut leaf = Leaf::new(Limits::default());
    let (source, receiver) = (leaf.member(0, true), leaf.member(1, false));
    let body = MrpBody::Members(WHOLE, vec![source, receiver]);
    let packet = |body| received((0, mac(1)), source.ip, 1, body);
    let start = Nanos::from_secs(7);
    assert_eq!(leaf.handle(start, packet(body.clone())).0, Ok(()));
    assert_eq!(leaf.handle(start, packet(MrpBody::Withdraw)).0, Ok(()));
    let end = start + Nanos::from_secs(10);
    assert_eq!(leaf.registrar.poll_timeout(), Some(end));
    leaf.expire(Nanos(end.0 - 1));
    let stale = Err(Dropped::Stale { number: 1 });
    assert_eq!(leaf.handle(end, packet(body.clone())), (stale, vec![]));
    leaf.expire(end);
    assert_eq!(leaf.handle(end, packet(body)).0, Ok(()));
}

/// Of a group with a switch below, a refusal of that switch goes on to the leader. One wrong field, and it is nobody's.
#[test]
fn a_refusal_goes_on_if_it_comes_from_a_switch_that_got_the_registration() {
    let refusal = MrpRefusal {
        reason: MrpReason::NoCapacity,
        member: Ipv4Addr::new(1, 2, 3, 4),
    };
    for leader in [0, 3] {
        let mut leaf = Leaf::new(Limits::default());
        // A host here and one behind a spine.
        let (source, here, there) = (
            leaf.member(leader, true),
            leaf.member(1, false),
            leaf.member(4, false),
        );
        let at = (leader as u8, mac(1));
        let receivers = if leader == 0 {
            vec![source, here, there]
        } else {
            vec![source, here]
        };
        let body = MrpBody::Members(WHOLE, receivers);
        let (result, sent) = leaf.handle(Nanos::ZERO, received(at, source.ip, 4, body));
        assert_eq!(result, Ok(()));
        let below = sent.iter().find(|out| out.to == MCST_ID.0);
        let host = sent.iter().find(|out| out.to == here.ip).expect("the host here");
        let refuse = |out: &Outgoing, number, mcst_id| Received {
            port: out.port,
            mac: out.mac,
            from: MCST_ID.0,
            mcst_id,
            packet: MrpPacket {
                number,
                body: MrpBody::Refuse(mcst_id, refusal),
            },
        };
        let mut wrong = vec![refuse(host, 4, MCST_ID)];
        if let Some(below) = below {
            wrong.extend([
                refuse(below, 3, MCST_ID),
                refuse(below, 5, MCST_ID),
                refuse(below, 4, OTHER),
            ]);
            let right = || refuse(below, 4, MCST_ID);
            wrong.push(Received {
                mac: mac(9),
                ..right()
            });
            wrong.push(Received {
                port: port(9),
                ..right()
            });
            let (result, sent) = leaf.handle(Nanos::ZERO, right());
            let expected = Outgoing {
                port: port(0),
                mac: mac(1),
                from: MCST_ID.0,
                to: source.ip,
                packet: right().packet,
            };
            assert_eq!((result, sent), (Ok(()), vec![expected]));
        }
        for packet in wrong {
            assert_eq!(
                leaf.handle(Nanos::ZERO, packet),
                (Err(Dropped::NotExpected), vec![])
            );
        }
    }
}

/// A switch refuses upstream: a leader by its own address, a switch by that of the group.
#[test]
fn a_refusal_is_sent_to_where_the_registration_came_from() {
    for (leader, to_leader) in [(0, true), (3, false)] {
        let mut leaf = Leaf::new(Limits {
            members: 1,
            ..Limits::default()
        });
        let (source, receiver) = (leaf.member(leader, true), leaf.member(1, false));
        let body = MrpBody::Members(WHOLE, vec![source, receiver]);
        let at = (leader as u8, mac(1));
        let (_, sent) = leaf.handle(Nanos::ZERO, received(at, source.ip, 4, body));
        let refusal = MrpRefusal::of(MrpReason::TooManyMembers);
        let expected = Outgoing {
            port: port(at.0),
            mac: at.1,
            from: MCST_ID.0,
            to: if to_leader { source.ip } else { MCST_ID.0 },
            packet: MrpPacket {
                number: 4,
                body: MrpBody::Refuse(MCST_ID, refusal),
            },
        };
        assert_eq!(sent, [expected]);
    }
}

#[test]
fn members_and_memory_are_counted_over_all_packets() {
    let region = |ip| MrpMemory {
        ip,
        rkey: 1,
        va: 0,
        length: 1,
    };
    let part = |sequence| MrpPart {
        sequence,
        total: 3,
        ..WHOLE
    };
    // Three members, or two regions of theirs.
    for (limit, fits) in [(3, true), (2, false)] {
        let mut leaf = Leaf::new(Limits {
            members: limit,
            ..Limits::default()
        });
        let (source, one, two) = (leaf.member(0, true), leaf.member(1, false), leaf.member(2, false));
        let bodies = [
            MrpBody::Memory(part(2), vec![region(one.ip), region(two.ip)]),
            MrpBody::Members(part(0), vec![source, one]),
            MrpBody::Members(part(1), vec![two]),
        ];
        let results = bodies.map(|body| {
            let packet = received((0, mac(1)), source.ip, 1, body);
            leaf.handle(Nanos::ZERO, packet).0
        });
        let refusal = MrpRefusal::of(MrpReason::TooManyMembers);
        let last = if fits {
            Ok(())
        } else {
            Err(Dropped::Refused(refusal))
        };
        assert_eq!(results, [Ok(()), Ok(()), last]);
        assert_eq!(leaf.tables.groups.len(), usize::from(fits));
    }
}

#[test]
fn the_packets_of_a_registration_agree_on_their_number_and_the_path_mtu() {
    let parts = [
        (MrpPart { total: 2, ..WHOLE }, true),
        (MrpPart { total: 3, ..WHOLE }, false),
        (
            MrpPart {
                total: 2,
                pmtu: Pmtu::B512,
                ..WHOLE
            },
            false,
        ),
    ];
    for (part, agrees) in parts {
        let mut leaf = Leaf::new(Limits::default());
        let (source, receiver) = (leaf.member(0, true), leaf.member(1, false));
        let first = MrpBody::Members(MrpPart { total: 2, ..WHOLE }, vec![source]);
        let second = MrpBody::Members(MrpPart { sequence: 1, ..part }, vec![receiver]);
        let packet = |body| received((0, mac(1)), source.ip, 1, body);
        assert_eq!(leaf.handle(Nanos::ZERO, packet(first)).0, Ok(()));
        let refusal = MrpRefusal::of(MrpReason::Contradiction);
        let expected = if agrees {
            Ok(())
        } else {
            Err(Dropped::Refused(refusal))
        };
        assert_eq!(leaf.handle(Nanos::ZERO, packet(second)).0, expected);
    }
}

/// A switch with all hosts of 10/8 at its ports.
#[derive(Default)]
struct Flat {
    rules: usize,
}

impl Switch for Flat {
    fn hops(&mut self, ip: Ipv4Addr) -> Vec<Hop> {
        let [.., high, low] = ip.octets();
        vec![Hop {
            port: port(low % 64),
            mac: MacAddr([2, 0, 0, 0, high, low]),
            switch: None,
        }]
    }
    fn upstream(&mut self, _: Ipv4Addr, _: (PortId, MacAddr)) -> Option<Upstream> {
        Some(Upstream::Leader)
    }
    fn groups_at(&mut self, _: PortId, _: McstId) -> usize {
        0
    }
    fn install(&mut self, _: Ipv4Addr, rule: &GroupRule) -> Result<(), MrpRefusal> {
        assert!(rule.endpoints.len() <= ENDPOINTS_MAX);
        self.rules += 1;
        Ok(())
    }
    fn remove(&mut self, _: Ipv4Addr, _: McstId) {}
    fn send(&mut self, _: &Outgoing) {}
}

#[test]
fn a_group_has_1024_next_hops_at_most_on_a_switch() {
    for (members, fits) in [(1024, true), (1025, false), (1026, false)] {
        let member = |n: u32| MrpMember {
            ip: Ipv4Addr::from(0x0A00_0001 + n),
            qpn: Qpn::new(2 + n),
            source: n == 0,
        };
        let all: Vec<MrpMember> = (0..members).map(member).collect();
        let mut registrar = Registrar::new(Limits {
            members: 2000,
            ..Limits::default()
        });
        let mut switch = Flat::default();
        let chunks = all.chunks(MEMBERS_MAX);
        let total = chunks.len() as u8;
        let mut last = Ok(());
        for (sequence, some) in (0..).zip(chunks) {
            let part = MrpPart {
                sequence,
                total,
                ..WHOLE
            };
            let body = MrpBody::Members(part, some.to_vec());
            let packet = received((1, mac(1)), all[0].ip, 1, body);
            last = registrar.handle(Nanos::ZERO, packet, &mut switch);
        }
        let refusal = MrpRefusal::of(MrpReason::TooManyMembers);
        assert_eq!(
            last,
            if fits {
                Ok(())
            } else {
                Err(Dropped::Refused(refusal))
            }
        );
        assert_eq!(switch.rules, usize::from(fits));
    }
}
