//! Leaders, receivers and meetings one by one: limits of time and size, and packets that are right but for one field.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_mrp::{Leader, LeaderConfig, LeaderError, Meeting, Receiver, ReceiverError, Roll};
use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::{
    McstId, MrpBody, MrpCall, MrpGift, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal,
    Nanos, Pmtu, Qpn,
};

const MCST_ID: McstId = McstId(Ipv4Addr::new(10, 200, 0, 1));
const OTHER: McstId = McstId(Ipv4Addr::new(10, 200, 0, 2));
const LEADER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REPEAT: Nanos = Nanos::from_millis(200);
const REFRESH: Nanos = Nanos::from_secs(15);
const PATIENCE: Nanos = Nanos::from_secs(10);
const REFUSALS: Nanos = Nanos::from_secs(4);
const KEY: u32 = 11;
const NUMBER: u32 = 5;

fn ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0A01_0000 + n)
}

fn member(n: u32) -> MrpMember {
    MrpMember {
        ip: ip(n),
        qpn: Qpn::new(100 + n),
        source: false,
    }
}

fn packet(number: u32, body: MrpBody) -> MrpPacket {
    MrpPacket { number, body }
}

fn members(number: u32, members: &[MrpMember]) -> MrpPacket {
    let part = MrpPart {
        sequence: 0,
        total: 1,
        pmtu: Pmtu::B1024,
    };
    packet(number, MrpBody::Members(part, members.to_vec()))
}

fn call(mcst_id: McstId) -> (MrpBody, MrpCall) {
    let call = MrpCall {
        rank: 1,
        size: 2,
        reason: "no switch".to_owned(),
    };
    (MrpBody::Call(mcst_id, call.clone()), call)
}

fn receiver(key: u32) -> Receiver {
    Receiver::new(
        Nanos::ZERO,
        (MCST_ID, LEADER),
        (member(1), None),
        (REPEAT, PATIENCE),
    )
    .with_key(key)
}

fn leader(receivers: u32) -> Leader {
    let config = LeaderConfig {
        mcst_id: MCST_ID,
        number: NUMBER,
        pmtu: Pmtu::B1024,
        source: MrpMember {
            ip: LEADER,
            qpn: Qpn::new(5),
            source: true,
        },
        receivers: (1..=receivers).map(ip).collect(),
        repeat: REPEAT,
        refresh: REFRESH,
        patience: PATIENCE,
        refusals: REFUSALS,
    };
    Leader::new(Nanos::ZERO, config)
}

fn join(n: u32) -> MrpPacket {
    packet(KEY, MrpBody::Join(MCST_ID, member(n), None))
}

fn confirm(number: u32, n: u32) -> MrpPacket {
    packet(number, MrpBody::Confirm(MCST_ID, member(n)))
}

/// A packet to a leader, from the address that sends such a one.
fn to_leader(leader: &mut Leader, now: Nanos, packet: &MrpPacket) {
    let from = match &packet.body {
        MrpBody::Join(_, member, _) | MrpBody::Confirm(_, member) => member.ip,
        MrpBody::Refuse(mcst_id, _) => mcst_id.0,
        other => panic!("{other:?} to a leader"),
    };
    leader.handle(now, from, packet);
}

fn before(at: Nanos) -> Nanos {
    Nanos(at.0 - 1)
}

#[test]
fn a_receiver_is_called_by_its_key_in_its_group_alone() {
    let (right, expected) = call(MCST_ID);
    for (key, number, body) in [
        (KEY, KEY + 1, right.clone()),
        (KEY, 0, right.clone()),
        (KEY, KEY, call(OTHER).0),
        (0, 0, right.clone()),
        (0, KEY, right.clone()),
    ] {
        let mut receiver = receiver(key);
        assert_eq!(receiver.handle(LEADER, &packet(number, body)), None);
        let sent = receiver.handle_timeout(Nanos::ZERO).expect("it is not called");
        assert_eq!(sent, Some(packet(key, MrpBody::Join(MCST_ID, member(1), None))));
    }
    let mut receiver = receiver(KEY);
    assert_eq!(receiver.handle(LEADER, &packet(KEY, right)), None);
    let called = Err(ReceiverError::Called(expected));
    assert_eq!(receiver.handle_timeout(Nanos::ZERO), called);
}

#[test]
fn a_receiver_confirms_its_own_record_and_corrects_that_of_an_earlier_queue_pair() {
    let mut receiver = receiver(KEY);
    let earlier = MrpMember {
        qpn: Qpn::new(3),
        ..member(1)
    };
    assert_eq!(receiver.handle(LEADER, &members(NUMBER, &[member(2)])), None);
    assert_eq!(
        receiver.handle(LEADER, &members(NUMBER, &[member(2), earlier])),
        Some(join(1))
    );
    assert!(!receiver.is_registered());
    assert_eq!(receiver.poll_timeout(), Some(Nanos::ZERO));
    assert_eq!(
        receiver.handle(LEADER, &members(NUMBER, &[member(1)])),
        Some(confirm(NUMBER, 1))
    );
    assert!(receiver.is_registered());
    assert_eq!(receiver.poll_timeout(), None);
    assert_eq!(receiver.handle_timeout(PATIENCE), Ok(None));
}

#[test]
fn only_the_newest_registration_can_be_withdrawn() {
    let mut receiver = receiver(0);
    let withdraw = |number| packet(number, MrpBody::Withdraw);
    receiver.handle(LEADER, &withdraw(NUMBER));
    for number in [NUMBER, NUMBER + 2, NUMBER + 1] {
        assert_eq!(
            receiver.handle(LEADER, &members(number, &[member(1)])),
            Some(confirm(number, 1))
        );
    }
    for number in [NUMBER, NUMBER + 1, NUMBER + 3] {
        receiver.handle(LEADER, &withdraw(number));
        assert_eq!(receiver.handle_timeout(Nanos::ZERO), Ok(None));
    }
    receiver.handle(LEADER, &withdraw(NUMBER + 2));
    assert_eq!(
        receiver.handle_timeout(Nanos::ZERO),
        Err(ReceiverError::Withdrawn)
    );
}

#[test]
fn a_receiver_joins_at_intervals_until_its_patience_is_over() {
    let mut receiver = receiver(KEY);
    for (now, sends) in [
        (Nanos::ZERO, true),
        (before(REPEAT), false),
        (REPEAT, true),
        (before(REPEAT + REPEAT), false),
        (before(PATIENCE), true),
    ] {
        let sent = receiver.handle_timeout(now).expect("in time");
        assert_eq!(sent, sends.then(|| join(1)), "at {now:?}");
        assert!(receiver.poll_timeout().is_some_and(|next| next > now));
    }
    let now = receiver.poll_timeout().expect("not registered");
    assert_eq!(now, before(PATIENCE) + REPEAT);
    let after = PATIENCE;
    assert_eq!(
        receiver.handle_timeout(now),
        Err(ReceiverError::NotRegistered { after })
    );
    let mut punctual = self::receiver(KEY);
    assert_eq!(
        punctual.handle_timeout(PATIENCE),
        Err(ReceiverError::NotRegistered { after })
    );
}

#[test]
fn a_call_may_follow_a_withdrawal_by_three_seconds() {
    let mut receiver = receiver(KEY);
    receiver.handle(LEADER, &members(NUMBER, &[member(1)]));
    receiver.handle(LEADER, &packet(NUMBER, MrpBody::Withdraw));
    let seconds = Nanos::from_secs;
    assert_eq!(receiver.handle_timeout(seconds(20)), Ok(None));
    assert_eq!(receiver.handle_timeout(before(seconds(23))), Ok(None));
    assert_eq!(
        receiver.handle_timeout(seconds(23)),
        Err(ReceiverError::Withdrawn)
    );
}

#[test]
fn a_join_that_is_wrong_in_one_field_is_none() {
    let region = |n| MrpMemory {
        ip: ip(n),
        rkey: 1,
        va: 0,
        length: 1,
    };
    let source = MrpMember {
        source: true,
        ..member(1)
    };
    let cases = [
        (MrpBody::Join(OTHER, member(1), None), false),
        (MrpBody::Join(MCST_ID, member(2), None), false),
        (MrpBody::Join(MCST_ID, member(1), Some(region(2))), false),
        (MrpBody::Join(MCST_ID, source, None), false),
        (MrpBody::Join(MCST_ID, member(1), Some(region(1))), true),
        (MrpBody::Join(MCST_ID, member(1), None), true),
    ];
    for (body, fits) in cases {
        let mut leader = leader(1);
        to_leader(&mut leader, Nanos::ZERO, &packet(KEY, body.clone()));
        let sent = leader.handle_timeout(Nanos::ZERO).expect("in time");
        assert_eq!(!sent.is_empty(), fits, "{body:?}");
        assert_eq!(leader.roll().is_some(), fits, "{body:?}");
    }
}

#[test]
fn a_confirmation_that_is_wrong_in_one_field_is_none() {
    let earlier = MrpMember {
        qpn: Qpn::new(3),
        ..member(1)
    };
    for (packet, fits) in [
        (confirm(NUMBER - 1, 1), false),
        (confirm(NUMBER + 1, 1), false),
        (packet(NUMBER, MrpBody::Confirm(OTHER, member(1))), false),
        (packet(NUMBER, MrpBody::Confirm(MCST_ID, earlier)), false),
        (confirm(NUMBER, 2), false),
        (confirm(NUMBER, 1), true),
    ] {
        let mut leader = leader(1);
        to_leader(&mut leader, Nanos::ZERO, &join(1));
        leader.handle_timeout(Nanos::ZERO).expect("in time");
        to_leader(&mut leader, Nanos::ZERO, &packet);
        assert_eq!(leader.is_registered(), fits, "{packet:?}");
    }
}

#[test]
fn receivers_have_the_whole_patience_to_confirm_however_late_the_last_one_joined() {
    let mut leader = leader(2);
    assert_eq!(leader.handle_timeout(Nanos::ZERO), Ok(&[][..]));
    assert_eq!(leader.poll_timeout(), REPEAT);
    to_leader(&mut leader, Nanos::ZERO, &join(2));
    assert_eq!(leader.poll_timeout(), Nanos::ZERO);
    let joined = before(PATIENCE);
    assert_eq!(leader.handle_timeout(joined), Ok(&[][..]));
    to_leader(&mut leader, joined, &join(1));
    let sent = leader.handle_timeout(joined).expect("in time").to_vec();
    assert_eq!(sent.len(), 1);
    assert!(matches!(&sent[0].body, MrpBody::Members(_, all) if all.len() == 3));
    // The first one confirms when it is almost too late; at the end the other one is missing.
    to_leader(&mut leader, joined, &confirm(NUMBER, 1));
    assert!(
        leader
            .handle_timeout(before(joined + REPEAT))
            .is_ok_and(<[_]>::is_empty)
    );
    assert_eq!(leader.handle_timeout(before(joined + PATIENCE)), Ok(&sent[..]));
    to_leader(&mut leader, before(joined + PATIENCE), &confirm(NUMBER - 1, 2));
    let late = joined + PATIENCE + REPEAT;
    let missing = LeaderError::NotConfirmed {
        missing: vec![ip(2)],
        after: PATIENCE + REPEAT,
        refused: None,
    };
    assert_eq!(leader.handle_timeout(late), Err(missing));
    to_leader(&mut leader, late, &confirm(NUMBER, 2));
    assert!(leader.is_registered());
    assert_eq!(leader.handle_timeout(late), Ok(&sent[..]));
    assert_eq!(leader.poll_timeout(), late + REFRESH);
}

#[test]
fn who_has_not_joined_in_time_is_named() {
    for (now, is_late) in [(before(PATIENCE), false), (PATIENCE, true)] {
        let mut leader = leader(3);
        to_leader(&mut leader, Nanos::ZERO, &join(2));
        let error = LeaderError::NotJoined {
            missing: vec![ip(1), ip(3)],
            after: PATIENCE,
        };
        let expected = if is_late { Err(error) } else { Ok(&[][..]) };
        assert_eq!(leader.handle_timeout(now), expected);
    }
    let mut leader = leader(9);
    let shown = |leader: &mut Leader| {
        let error = leader.handle_timeout(Nanos::MAX).expect_err("too late");
        error.to_string()
    };
    let all = "10.1.0.1, 10.1.0.2, 10.1.0.3, 10.1.0.4, 10.1.0.5, 10.1.0.6, 10.1.0.7, 10.1.0.8";
    assert_eq!(
        shown(&mut leader),
        format!("no connection from {all} and 1 more within 10000 ms")
    );
    to_leader(&mut leader, Nanos::ZERO, &join(9));
    assert_eq!(
        shown(&mut leader),
        format!("no connection from {all} within 10000 ms")
    );
}

#[test]
fn a_registered_receiver_does_not_change_its_connection() {
    let changed = MrpMember {
        qpn: Qpn::new(3),
        ..member(1)
    };
    let changed = packet(KEY, MrpBody::Join(MCST_ID, changed, None));
    for is_registered in [false, true] {
        let mut leader = leader(1);
        to_leader(&mut leader, Nanos::ZERO, &join(1));
        let first = leader.handle_timeout(Nanos::ZERO).expect("in time").to_vec();
        assert_eq!(first[0].number, NUMBER);
        if is_registered {
            to_leader(&mut leader, Nanos::ZERO, &confirm(NUMBER, 1));
        }
        // The same again changes nothing in either case.
        to_leader(&mut leader, Nanos(1), &join(1));
        assert_eq!(leader.handle_timeout(REPEAT), Ok(&first[..]));
        to_leader(&mut leader, Nanos(2), &changed);
        assert_eq!(leader.is_registered(), is_registered);
        let number = NUMBER + u32::from(!is_registered);
        assert_eq!(leader.withdraw(), packet(number, MrpBody::Withdraw));
    }
}

#[test]
fn a_changed_connection_makes_a_new_registration_that_all_confirm_again() {
    let mut leader = leader(2);
    to_leader(&mut leader, Nanos::ZERO, &join(1));
    to_leader(&mut leader, Nanos::ZERO, &join(2));
    leader.handle_timeout(Nanos::ZERO).expect("in time");
    to_leader(&mut leader, Nanos(1), &confirm(NUMBER, 1));
    let changed = MrpMember {
        qpn: Qpn::new(3),
        ..member(2)
    };
    to_leader(
        &mut leader,
        Nanos(2),
        &packet(KEY, MrpBody::Join(MCST_ID, changed, None)),
    );
    assert_eq!(leader.poll_timeout(), Nanos(2));
    let sent = leader.handle_timeout(Nanos(2)).expect("in time");
    assert_eq!(sent[0].number, NUMBER + 1);
    assert!(matches!(&sent[0].body, MrpBody::Members(_, all) if all[1..] == [member(1), changed]));
    to_leader(
        &mut leader,
        Nanos(3),
        &packet(NUMBER + 1, MrpBody::Confirm(MCST_ID, changed)),
    );
    assert!(
        !leader.is_registered(),
        "the other one has confirmed an earlier registration"
    );
    to_leader(&mut leader, Nanos(3), &confirm(NUMBER + 1, 1));
    assert!(leader.is_registered());
}

#[test]
fn a_refusal_counts_from_the_first_one_of_this_registration() {
    let refusal = MrpRefusal {
        reason: MrpReason::NoCapacity,
        member: ip(1),
    };
    let refuse = |number, mcst_id| packet(number, MrpBody::Refuse(mcst_id, refusal));
    for (packet, counts) in [
        (refuse(NUMBER - 1, MCST_ID), false),
        (refuse(NUMBER, OTHER), false),
        (refuse(NUMBER, MCST_ID), true),
    ] {
        let mut leader = leader(1);
        to_leader(&mut leader, Nanos::ZERO, &join(1));
        leader.handle_timeout(Nanos::ZERO).expect("in time");
        to_leader(&mut leader, Nanos(7), &packet);
        to_leader(&mut leader, Nanos(9), &packet);
        let end = Nanos(7) + REFUSALS;
        assert!(leader.handle_timeout(before(end)).is_ok());
        let result = leader.handle_timeout(end + REPEAT).map(<[_]>::len);
        let error = LeaderError::NotConfirmed {
            missing: vec![ip(1)],
            after: end + REPEAT,
            refused: Some(refusal),
        };
        assert_eq!(result, if counts { Err(error) } else { Ok(1) });
    }
}

/// 67 members and no memory fit into a packet; 255 packets are the most.
#[test]
fn a_leader_sends_255_packets_at_most() {
    let most = 255 * castnet_wire::mrp::MEMBERS_MAX as u32 - 1;
    for (receivers, packets) in [(most, 255), (most + 1, 256)] {
        let mut leader = leader(receivers);
        for n in 1..=receivers {
            to_leader(&mut leader, Nanos::ZERO, &join(n));
        }
        let result = leader.handle_timeout(Nanos::ZERO).map(<[_]>::len);
        let members = receivers as usize + 1;
        let error = LeaderError::TooManyMembers { members, packets };
        assert_eq!(result, if packets == 255 { Ok(255) } else { Err(error) });
    }
}

/// A packet that would change something, from each address.
#[test]
fn a_leader_believes_only_the_address_that_may_send_a_packet() {
    let refusal = MrpRefusal::of(MrpReason::NoCapacity);
    let changed = MrpMember {
        qpn: Qpn::new(3),
        ..member(1)
    };
    for (sent, right) in [
        (packet(KEY, MrpBody::Join(MCST_ID, changed, None)), ip(1)),
        (confirm(NUMBER, 1), ip(1)),
        (packet(NUMBER, MrpBody::Refuse(MCST_ID, refusal)), MCST_ID.0),
    ] {
        for from in [ip(1), ip(2), ip(9), LEADER, MCST_ID.0, OTHER.0] {
            let mut leader = leader(2);
            to_leader(&mut leader, Nanos::ZERO, &join(1));
            to_leader(&mut leader, Nanos::ZERO, &join(2));
            leader.handle_timeout(Nanos::ZERO).expect("in time");
            let before = format!("{leader:?}");
            leader.handle(Nanos(7), from, &sent);
            let is_believed = format!("{leader:?}") != before;
            assert_eq!(is_believed, from == right, "{sent:?} from {from}");
        }
    }
}

#[test]
fn a_receiver_believes_only_its_leader() {
    let earlier = MrpMember {
        qpn: Qpn::new(3),
        ..member(1)
    };
    for sent in [
        members(NUMBER, &[member(1)]),
        members(NUMBER, &[earlier]),
        packet(NUMBER, MrpBody::Withdraw),
        packet(KEY, call(MCST_ID).0),
    ] {
        for from in [ip(1), ip(2), MCST_ID.0, LEADER] {
            let mut receiver = receiver(KEY);
            receiver.handle(LEADER, &members(NUMBER, &[member(1)]));
            let before = format!("{receiver:?}");
            let answer = receiver.handle(from, &sent);
            let is_believed = answer.is_some() || format!("{receiver:?}") != before;
            assert_eq!(is_believed, from == LEADER, "{sent:?} from {from}");
        }
    }
}

/// A receiver that was started again has another queue pair.
#[test]
fn the_first_key_of_a_connection_stays() {
    let mut leader = leader(1);
    let first = member(1).qpn;
    let second = Qpn::new(3);
    for (key, qpn, expected) in [
        (KEY, first, KEY),
        (KEY + 1, first, KEY),
        (0, first, KEY),
        (KEY + 2, second, KEY + 2),
        (KEY, second, KEY + 2),
    ] {
        let own = MrpMember { qpn, ..member(1) };
        to_leader(
            &mut leader,
            Nanos::ZERO,
            &packet(key, MrpBody::Join(MCST_ID, own, None)),
        );
        let expected = Roll::Leader(BTreeMap::from([(ip(1), expected)]));
        assert_eq!(leader.roll(), Some(expected), "{key} of {qpn:?}");
    }
}

fn meeting_of(receivers: u32) -> Meeting {
    let roll = Roll::Leader((1..=receivers).map(|n| (ip(n), KEY + n)).collect());
    assert_eq!((roll.rank(), roll.size()), (0, receivers as usize + 1));
    Meeting::new(Nanos::ZERO, MCST_ID, &roll, "no switch", REPEAT)
}

fn give(mcst_id: McstId, round: u8, rank: u16, bytes: Vec<u8>, wanted: Vec<u16>) -> MrpBody {
    MrpBody::Give(mcst_id, MrpGift { round, rank, bytes }, wanted)
}

fn guest() -> Meeting {
    let roll = Roll::Receiver {
        leader: LEADER,
        key: KEY,
        rank: 1,
        size: 3,
    };
    assert_eq!((roll.rank(), roll.size()), (1, 3));
    Meeting::new(Nanos::ZERO, MCST_ID, &roll, "", REPEAT)
}

#[test]
fn a_gift_has_1024_bytes_at_most_and_128_others_are_asked_at_most() {
    for (bytes, wanted, fits) in [
        (1024, 128, true),
        (1025, 1, false),
        (1, 129, false),
        (1025, 129, false),
    ] {
        let mut guest = guest();
        let begun = guest.begin(Nanos::ZERO, (0, 1), vec![0; bytes], &vec![0; wanted]);
        let error = begun.map_err(|error| error.to_string());
        let text = format!("a host gives {bytes} bytes and asks {wanted} others: 1024 and 128 at most");
        assert_eq!(error, if fits { Ok(()) } else { Err(text) });
        assert_eq!(guest.handle_timeout(Nanos::ZERO).len(), usize::from(fits));
    }
}

#[test]
fn a_leader_calls_at_intervals_those_that_have_not_answered() {
    let mut leader = meeting_of(2);
    let called = |leader: &mut Meeting, now| -> Vec<Ipv4Addr> {
        let calls = leader.handle_timeout(now);
        calls.into_iter().map(|(to, _)| to).collect()
    };
    assert_eq!(called(&mut leader, Nanos::ZERO), [ip(1), ip(2)]);
    assert!(called(&mut leader, before(REPEAT)).is_empty());
    // Who is none of them, of another group, or has another key or address does not answer.
    for (from, number, body) in [
        (LEADER, KEY, give(MCST_ID, 0, 0, vec![], vec![])),
        (ip(3), KEY + 3, give(MCST_ID, 0, 3, vec![], vec![])),
        (ip(1), KEY + 1, give(OTHER, 0, 1, vec![], vec![])),
        (ip(1), KEY + 2, give(MCST_ID, 0, 1, vec![], vec![])),
        (ip(2), KEY + 1, give(MCST_ID, 0, 1, vec![], vec![])),
    ] {
        assert_eq!(leader.handle(from, &packet(number, body)), []);
    }
    assert_eq!(called(&mut leader, REPEAT), [ip(1), ip(2)]);
    leader.handle(ip(1), &packet(KEY + 1, give(MCST_ID, 0, 1, vec![], vec![])));
    assert_eq!(called(&mut leader, REPEAT + REPEAT), [ip(2)]);
    assert_eq!(leader.missing(), [2]);
}

#[test]
fn a_round_of_all_ends_with_the_last_gift() {
    let mut leader = meeting_of(2);
    let mut guest = guest();
    guest.begin(Nanos::ZERO, (4, 1), vec![1], &[]).expect("it fits");
    let asks = guest.handle_timeout(Nanos::ZERO);
    assert_eq!(
        asks,
        [(LEADER, packet(KEY, give(MCST_ID, 4, 1, vec![1], vec![])))]
    );
    assert_eq!(guest.handle_timeout(before(REPEAT)), []);
    let ask = packet(KEY + 1, asks[0].1.body.clone());
    // Its own gift and those of all receivers are needed, in this round.
    leader.handle(ip(2), &packet(KEY + 2, give(MCST_ID, 3, 2, vec![2], vec![])));
    assert_eq!((leader.handle(ip(1), &ask), leader.take()), (vec![], None));
    leader.handle(ip(2), &packet(KEY + 2, give(MCST_ID, 4, 2, vec![2], vec![])));
    assert_eq!((leader.handle(ip(1), &ask), leader.take()), (vec![], None));
    leader.begin(Nanos::ZERO, (4, 0), vec![0], &[]).expect("it fits");
    assert_eq!(leader.take(), Some(vec![]));
    let answers = leader.handle(ip(1), &ask);
    let whole = MrpGift {
        round: 4,
        rank: 0,
        bytes: vec![],
    };
    let answer = packet(KEY + 1, MrpBody::Take(MCST_ID, vec![whole.clone()]));
    assert_eq!(answers, [(ip(1), answer)]);
    // Forged twins of the answer, and an answer of another round.
    let gifts = |round| {
        let whole = whole.clone();
        vec![MrpGift { round, ..whole }]
    };
    for (from, number, mcst_id, round) in [
        (LEADER, KEY + 1, MCST_ID, 4),
        (LEADER, KEY, OTHER, 4),
        (LEADER, KEY, MCST_ID, 3),
        (ip(2), KEY, MCST_ID, 4),
    ] {
        guest.handle(from, &packet(number, MrpBody::Take(mcst_id, gifts(round))));
        assert_eq!(guest.take(), None);
    }
    assert_eq!(guest.handle_timeout(REPEAT), asks);
    guest.handle(LEADER, &packet(KEY, MrpBody::Take(MCST_ID, gifts(4))));
    assert_eq!(guest.take(), Some(vec![]));
    assert_eq!(guest.handle_timeout(REPEAT + REPEAT), []);
}

#[test]
fn gifts_come_in_the_order_in_which_they_were_asked_for() {
    let mut guest = guest();
    guest
        .begin(Nanos::ZERO, (0, 1), vec![], &[2, 0])
        .expect("it fits");
    let gift = |rank, byte| MrpGift {
        round: 0,
        rank,
        bytes: vec![byte],
    };
    assert_eq!(guest.missing(), [2, 0]);
    guest.handle(
        LEADER,
        &packet(KEY, MrpBody::Take(MCST_ID, vec![gift(0, 10), gift(1, 11)])),
    );
    assert_eq!((guest.missing(), guest.take()), (vec![2], None));
    guest.handle(LEADER, &packet(KEY, MrpBody::Take(MCST_ID, vec![gift(2, 12)])));
    assert_eq!(
        (guest.missing(), guest.take()),
        (vec![], Some(vec![vec![12], vec![10]]))
    );
}

/// Each packet of an answer has as many gifts as fit into a datagram, to the byte.
#[test]
fn an_answer_is_packed_into_as_few_packets_as_fit() {
    for last in 0..1024 {
        let mut leader = meeting_of(9);
        for rank in 1..=9 {
            let bytes = vec![0; if rank == 2 { last } else { 200 }];
            let given = packet(KEY + u32::from(rank), give(MCST_ID, 0, rank, bytes, vec![]));
            leader.handle(ip(u32::from(rank)), &given);
        }
        let wanted = (1..=9).collect();
        let answers = leader.handle(ip(1), &packet(KEY + 1, give(MCST_ID, 0, 1, vec![], wanted)));
        let mut ranks = Vec::new();
        for (n, (_, answer)) in answers.iter().enumerate() {
            let length = answer.to_bytes().len();
            assert!(length <= PAYLOAD_MAX);
            let MrpBody::Take(_, gifts) = &answer.body else {
                panic!("gifts");
            };
            if n > 0 {
                let before = answers[n - 1].1.to_bytes().len();
                assert!(before + 4 + gifts[0].bytes.len() > PAYLOAD_MAX, "it had room");
            }
            ranks.extend(gifts.iter().map(|gift| gift.rank));
        }
        assert_eq!(ranks, (1..=9).collect::<Vec<_>>());
    }
}
