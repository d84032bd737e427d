//! What the switch does about a rank that breaks a rule of its group, and about ranks that disagree, by hand.

use crate::net::endpoint;
use crate::program::call;
use crate::rules::{Bench, acks, config, drops, emitted, shape, u_start};
use castnet_collective::translated::{Effect, Event, Refusal};
use castnet_collective::{PacketShape, TranslatedConfig};
use castnet_wire::Primitive::{AllReduce, Broadcast, Reduce};
use castnet_wire::{Call, CallFlags, DropReason, NakCode, Opcode, Syndrome, Verdict};

/// The first to come does not make the rule: then all others were dropped, and named for being waited for.
#[test]
fn a_rank_that_cuts_otherwise_is_named_in_any_order_of_arrival() {
    let expected = PacketShape {
        opcode: Opcode::SendFirst,
        ..shape()
    };
    let odd = [
        PacketShape {
            payload: 252,
            ..expected
        },
        PacketShape {
            opcode: Opcode::SendOnly,
            ..expected
        },
    ];
    for (found, comes_first) in odd.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        let mut b = Bench::new(TranslatedConfig {
            pmtu: 256,
            ..config(2, 0, false)
        });
        b.agree(0, 0, call(AllReduce, 0, 2));
        let data = |from: usize, shape| Event::Data {
            from: endpoint(from),
            psn: u_start(from).add(1),
            shape,
            ack_request: true,
        };
        if !comes_first {
            assert_eq!(drops(&b.event(data(0, expected))), []);
        }
        let refused = b.event(data(1, found));
        let why = Refusal::Cut {
            packet: 0,
            found,
            expected,
        };
        let (from, sequence) = (endpoint(1), 0);
        assert_eq!(
            refused[..2],
            [
                Effect::Drop(DropReason::ContributionMismatch),
                Effect::Refused { from, sequence, why }
            ]
        );
        let ended = Syndrome::Nak(NakCode::InvalidRequest);
        assert_eq!(acks(&refused), [(1, 2001, ended)]);
        // Named once, however often it tries.
        assert_eq!(b.event(data(1, found)).len(), 2);
        if comes_first {
            assert_eq!(drops(&b.event(data(0, expected))), []);
        }
    }
}

/// A small one would bring the whole result to all receivers, as often as it comes.
#[test]
fn a_repeat_has_the_shape_of_the_first_one() {
    for (primitive, from) in [(AllReduce, 1), (Reduce, 1), (Broadcast, 0)] {
        let mut b = Bench::new(config(2, 0, false));
        b.agree(0, 0, call(primitive, 0, 2));
        (0..2).for_each(|rank| drop(b.data(rank, 1, true)));
        let small = Event::Data {
            from: endpoint(from),
            psn: u_start(from).add(1),
            shape: PacketShape::default(),
            ack_request: true,
        };
        assert_eq!(
            b.event(small),
            [Effect::Drop(DropReason::ContributionMismatch)],
            "{primitive:?}"
        );
        assert_eq!(emitted(&b.data(from, 1, true)).len(), 1, "{primitive:?}");
        // A finished one brings an ACK alone.
        (0..2).for_each(|rank| drop(b.feedback(rank, 1, Syndrome::Ack)));
        let acked = u_start(from).add(1).value();
        assert_eq!(acks(&b.event(small)), [(from, acked, Syndrome::Ack)]);
    }
}

/// It was accepted, and the sum was in the order of arrival.
#[test]
fn rank_order_is_refused_by_a_group_that_does_not_keep_it() {
    let flags = CallFlags::REPRODUCIBLE;
    let asks = |call: Call| Call { flags, ..call };
    for (asked, reproducible, is_refused) in [
        (asks(call(AllReduce, 0, 2)), false, true),
        (asks(call(Reduce, 1, 2)), false, true),
        (asks(call(AllReduce, 0, 2)), true, false),
        // Nothing is reduced: any order will do.
        (asks(call(Broadcast, 1, 2)), false, false),
        (asks(call(AllReduce, 0, 0)), false, false),
    ] {
        let mut b = Bench::new(TranslatedConfig {
            reproducible,
            ..config(2, 0, false)
        });
        b.agree(0, 0, call(AllReduce, 0, 0));
        let effects = b.control(0, 1, 1, asked);
        if !is_refused {
            assert_eq!(drops(&effects), [], "{asked}");
            continue;
        }
        let (from, why) = (endpoint(0), Refusal::NotReproducible);
        assert_eq!(
            effects[..2],
            [
                Effect::Drop(DropReason::NotReproducible),
                Effect::Refused {
                    from,
                    sequence: 1,
                    why
                }
            ]
        );
        assert_eq!(
            acks(&effects),
            [(0, 1001, Syndrome::Nak(NakCode::InvalidRequest))]
        );
        assert!(b.machine.status().collectives.is_empty());
    }
}

/// A NAK acknowledges all before it.
#[test]
fn who_is_refused_is_not_told_that_others_have_what_they_lack() {
    let mut b = Bench::new(config(2, 0, false));
    b.control(0, 0, 0, call(AllReduce, 0, 0));
    let asked = Call {
        flags: CallFlags::REPRODUCIBLE,
        ..call(AllReduce, 0, 2)
    };
    let effects = b.control(0, 1, 1, asked);
    assert_eq!(
        (drops(&effects), acks(&effects)),
        (vec![DropReason::NotReproducible], vec![])
    );
    b.control(1, 0, 0, call(AllReduce, 0, 0));
    b.feedback(0, 0, Syndrome::Ack);
    let ended = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(acks(&b.control(0, 1, 1, asked)), [(0, 1001, ended)]);
}

/// Told as soon as two differed, it named those two: another pair for each order of arrival.
#[test]
fn a_conflict_is_reported_once_and_alike_in_any_order_of_arrival() {
    let (one, other) = (call(AllReduce, 0, 3), call(AllReduce, 0, 4));
    for order in [[0, 2, 1], [0, 1, 2], [1, 2, 0], [2, 1, 0]] {
        let mut b = Bench::new(config(3, 0, false));
        let told = order.map(|rank| {
            let effects = b.control(rank, 0, 0, if rank == 2 { other } else { one });
            effects.into_iter().find_map(|e| match e {
                Effect::Conflict { control } => Some((control.rank, control.verdict)),
                _ => None,
            })
        });
        let verdict = Verdict::Conflict { rank: 2, call: other };
        assert_eq!(told, [None, None, Some((0, verdict))], "{order:?}");
    }
}
