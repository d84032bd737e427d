//! Hosts that meet over links that lose, repeat and delay packets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_mrp::{Leader, LeaderConfig, Meeting, Receiver, ReceiverError, Roll};
use castnet_wire::{
    McstId, MrpBody, MrpCall, MrpGift, MrpMember, MrpPacket, MrpReason, MrpRefusal, Nanos, Pmtu, Qpn,
};
use proptest::prelude::*;

use crate::net::Faults;

const MCST_ID: McstId = McstId(Ipv4Addr::new(10, 200, 0, 1));
const LEADER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REPEAT: Nanos = Nanos::from_millis(200);

fn ip(rank: u16) -> Ipv4Addr {
    let [high, low] = rank.to_be_bytes();
    if rank == 0 {
        LEADER
    } else {
        Ipv4Addr::new(10, 1, high, low)
    }
}

fn key(rank: u16) -> u32 {
    0xBEEF_0000 + u32::from(rank)
}

fn roll(rank: u16, size: u16) -> Roll {
    match rank {
        0 => Roll::Leader((1..size).map(|rank| (ip(rank), key(rank))).collect()),
        rank => Roll::Receiver {
            leader: LEADER,
            key: key(rank),
            rank,
            size,
        },
    }
}

/// A simple generator: the order of its numbers is part of the test's seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most.max(1)
    }
}

/// Packets on their way: when, from whom and to whom.
struct Links {
    faults: Faults,
    random: Random,
    way: Vec<(Nanos, Ipv4Addr, Ipv4Addr, MrpPacket)>,
}

impl Links {
    fn send(&mut self, now: Nanos, from: Ipv4Addr, packets: Vec<(Ipv4Addr, MrpPacket)>) {
        for (to, packet) in packets {
            let packet = MrpPacket::parse(&packet.to_bytes()).expect("a packet");
            let times = 1 + usize::from(self.random.below(100) < self.faults.repeat);
            for _ in 0..times {
                if self.random.below(100) >= self.faults.loss {
                    let delay = Nanos::from_millis(self.random.below(self.faults.delay_ms + 1));
                    self.way.push((now + delay, from, to, packet.clone()));
                }
            }
        }
    }

    fn arrived(&mut self, now: Nanos) -> Vec<(Ipv4Addr, Ipv4Addr, MrpPacket)> {
        let (due, later) = std::mem::take(&mut self.way)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.way = later;
        let due: Vec<(Nanos, Ipv4Addr, Ipv4Addr, MrpPacket)> = due;
        due.into_iter()
            .map(|(_, from, to, packet)| (from, to, packet))
            .collect()
    }
}

fn gift(round: u8, rank: u16) -> Vec<u8> {
    (0..usize::from(rank) % 300)
        .map(|n| round ^ n as u8 ^ rank as u8)
        .collect()
}

/// Those that a rank asks for: the next ones, as in a tree.
fn wanted(rank: u16, size: u16) -> Vec<u16> {
    (0..10)
        .map(|n| 1 << n)
        .take_while(|distance| *distance < size)
        .map(|d| (rank + d) % size)
        .collect()
}

/// Four rounds of so many hosts: in even ones each asks for the gifts of some others, in odd ones all wait for all.
fn meet(size: u16, faults: Faults) {
    let mut links = Links {
        faults,
        random: Random(faults.seed),
        way: Vec::new(),
    };
    let mut now = Nanos::ZERO;
    let meeting = |rank| Meeting::new(now, MCST_ID, &roll(rank, size), "slow", REPEAT);
    let mut hosts: Vec<Meeting> = (0..size).map(meeting).collect();
    let ranks: BTreeMap<Ipv4Addr, usize> = (0..size).map(|rank| (ip(rank), rank.into())).collect();
    let mut rounds = vec![None::<u8>; size.into()];
    while rounds.iter().any(|round| *round != Some(4)) {
        assert!(now < Nanos::from_secs(120), "{rounds:?}");
        for (rank, host) in (0..size).zip(&mut hosts) {
            let round = rounds[usize::from(rank)];
            let wants = |round: u8| match round % 2 {
                1 => Vec::new(),
                _ => wanted(rank, size),
            };
            let next = match round {
                None => 0,
                Some(4) => continue,
                Some(round) => {
                    let Some(taken) = host.take() else { continue };
                    let expected: Vec<_> = wants(round).into_iter().map(|from| gift(round, from)).collect();
                    assert_eq!(taken, expected);
                    let has_come = |other: &Option<u8>| other.is_some_and(|other| other >= round);
                    assert!(
                        round % 2 == 0 || rounds.iter().all(has_come),
                        "{rank} did not wait"
                    );
                    round + 1
                }
            };
            rounds[usize::from(rank)] = Some(next);
            if next < 4 {
                let begun = host.begin(now, (next, rank), gift(next, rank), &wants(next));
                begun.expect("it fits");
            }
        }
        for (rank, host) in (0..size).zip(&mut hosts) {
            let due = host.handle_timeout(now);
            assert!(rank == 0 || due.iter().all(|(to, _)| *to == LEADER));
            links.send(now, ip(rank), due);
        }
        for (from, to, packet) in links.arrived(now) {
            let answers = hosts[ranks[&to]].handle(from, &packet);
            links.send(now, to, answers);
        }
        now += Nanos::from_millis(50);
    }
}

/// As many as a job may have ranks.
#[test]
fn a_thousand_hosts_meet() {
    let (seed, loss, repeat, delay_ms) = (5, 5, 5, 100);
    meet(
        1024,
        Faults {
            seed,
            loss,
            repeat,
            delay_ms,
            ..Faults::default()
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_host_gets_what_it_asks_for_round_by_round(
        size in 2_u16..40, seed in any::<u64>(), loss in 0_u64..40, repeat in 0_u64..40, delay_ms in 0_u64..500,
    ) {
        meet(size, Faults { seed, loss, repeat, delay_ms, ..Faults::default() });
    }

    /// Who does not know the key of a host neither calls it, nor gives or takes in its name.
    #[test]
    fn another_key_has_no_effect(wrong in any::<u32>(), rank in 1_u16..4) {
        prop_assume!(wrong != key(rank));
        let mut leader = Meeting::new(Nanos::ZERO, MCST_ID, &roll(0, 4), "slow", REPEAT);
        leader.begin(Nanos::ZERO, (0, 0), vec![9], &[rank]).expect("it fits");
        let bytes = vec![1];
        let give = MrpBody::Give(MCST_ID, MrpGift { round: 0, rank, bytes }, vec![0]);
        prop_assert_eq!(leader.handle(ip(rank), &MrpPacket { number: wrong, body: give.clone() }), vec![]);
        prop_assert_eq!(leader.take(), None);
        let answers = leader.handle(ip(rank), &MrpPacket { number: key(rank), body: give });
        prop_assert_eq!(answers.len(), 1);
        prop_assert_eq!(leader.take(), Some(vec![vec![1]]));

        let mut host = Meeting::new(Nanos::ZERO, MCST_ID, &roll(rank, 4), "", REPEAT);
        host.begin(Nanos::ZERO, (0, rank), vec![1], &[0]).expect("it fits");
        let (_, MrpPacket { body: take, .. }) = &answers[0];
        host.handle(LEADER, &MrpPacket { number: wrong, body: take.clone() });
        prop_assert_eq!(host.take(), None);
        host.handle(LEADER, &MrpPacket { number: key(rank), body: take.clone() });
        prop_assert_eq!(host.take(), Some(vec![vec![9]]));
    }
}

fn member(ip: Ipv4Addr, qpn: u32) -> MrpMember {
    MrpMember {
        ip,
        qpn: Qpn::new(qpn),
        source: false,
    }
}

fn receiver(rank: u16, key: u32) -> Receiver {
    let times = (REPEAT, Nanos::from_secs(60));
    let own = (member(ip(rank), 7), None);
    Receiver::new(Nanos::ZERO, (MCST_ID, LEADER), own, times).with_key(key)
}

/// A leader of the first two receivers.
fn leader(patience: Nanos, refusals: Nanos) -> Leader {
    let config = LeaderConfig {
        mcst_id: MCST_ID,
        number: 1,
        pmtu: Pmtu::B1024,
        source: MrpMember {
            source: true,
            ..member(LEADER, 5)
        },
        receivers: [ip(1), ip(2)].into(),
        repeat: REPEAT,
        refresh: Nanos::from_secs(15),
        patience,
        refusals,
    };
    Leader::new(Nanos::ZERO, config)
}

/// A leader whose registration fails knows the keys of all that have joined it. With them it calls them.
#[test]
fn a_leader_calls_the_receivers_that_have_joined_it() {
    let mut leader = leader(Nanos::from_secs(1), Nanos::from_secs(1));
    let mut receivers = [receiver(1, 11), receiver(2, 12)];
    for (rank, receiver) in (1..).zip(&mut receivers) {
        assert_eq!(leader.roll(), None, "not all have joined");
        let join = receiver
            .handle_timeout(Nanos::ZERO)
            .expect("in time")
            .expect("a join");
        leader.handle(Nanos::ZERO, ip(rank), &join);
    }
    let keys = BTreeMap::from([(ip(1), 11), (ip(2), 12)]);
    let roll = leader.roll().expect("all have joined");
    assert_eq!(roll, Roll::Leader(keys));
    let calls = Meeting::new(Nanos::ZERO, MCST_ID, &roll, "no switch", REPEAT).handle_timeout(Nanos::ZERO);
    assert_eq!(calls.len(), 2);
    for ((rank, (to, call)), receiver) in (1..).zip(calls).zip(&mut receivers) {
        assert_eq!((to, receiver.handle(LEADER, &call)), (ip(rank), None));
        let (size, reason) = (3, "no switch".to_owned());
        let called = ReceiverError::Called(MrpCall { rank, size, reason });
        assert_eq!(receiver.handle_timeout(Nanos::ZERO), Err(called));
    }
    // One that is started again and takes no calls is not called, and keeps the others from it.
    let join = MrpPacket {
        number: 0,
        body: MrpBody::Join(MCST_ID, member(ip(2), 8), None),
    };
    leader.handle(Nanos::ZERO, ip(2), &join);
    assert_eq!(leader.roll(), None);
}

/// Refusals end it earlier than silence, but not while receivers still confirm.
#[test]
fn a_registration_that_is_refused_for_long_fails() {
    let seconds = Nanos::from_secs;
    let refusal = MrpRefusal {
        reason: MrpReason::NoCapacity,
        member: ip(2),
    };
    let refuse = MrpPacket {
        number: 1,
        body: MrpBody::Refuse(MCST_ID, refusal),
    };
    let mut leader = leader(seconds(60), seconds(5));
    for rank in [1, 2] {
        let join = receiver(rank, 9)
            .handle_timeout(Nanos::ZERO)
            .expect("in time")
            .expect("a join");
        leader.handle(Nanos::ZERO, ip(rank), &join);
    }
    assert!(
        leader
            .handle_timeout(Nanos::ZERO)
            .is_ok_and(|packets| !packets.is_empty())
    );
    leader.handle(seconds(1), MCST_ID.0, &refuse);
    let confirm = MrpBody::Confirm(MCST_ID, member(ip(1), 7));
    leader.handle(
        seconds(2),
        ip(1),
        &MrpPacket {
            number: 1,
            body: confirm,
        },
    );
    assert!(
        leader.handle_timeout(seconds(6)).is_ok(),
        "one has confirmed since"
    );
    leader.handle(seconds(7), MCST_ID.0, &refuse);
    assert!(leader.handle_timeout(seconds(11)).is_ok());
    let error = leader
        .handle_timeout(seconds(12))
        .expect_err("refused for 5 s")
        .to_string();
    let said = "no confirmation from 10.1.0.2 within 12000 ms; a switch says: the switch has no capacity for the group (10.1.0.2)";
    assert_eq!(error, said);
}

/// A call may come after the withdrawal of the group.
#[test]
fn a_receiver_whose_group_is_withdrawn_waits_for_a_call() {
    let part = castnet_wire::MrpPart {
        sequence: 0,
        total: 1,
        pmtu: Pmtu::B1024,
    };
    let packet = |body| MrpPacket { number: 4, body };
    for key in [0, 11] {
        let mut receiver = receiver(1, key);
        receiver.handle(LEADER, &packet(MrpBody::Members(part, vec![member(ip(1), 7)])));
        assert!(receiver.is_registered());
        receiver.handle(LEADER, &packet(MrpBody::Withdraw));
        let seconds = |n| Nanos::from_secs(n);
        let ends = |receiver: &mut Receiver, at| {
            receiver.handle_timeout(seconds(at)) == Err(ReceiverError::Withdrawn)
        };
        assert_eq!(ends(&mut receiver, 1), key == 0);
        assert!(ends(&mut receiver, 4));
    }
}
