//! Members that send in turn and at once, what is lost meanwhile, and members that send out of turn or not at all.

use super::{Chance, MESSAGE, Net, Packet};
use crate::common::hosts::Source;
use crate::common::path;
use crate::common::tree::Shape;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, Signal};
use castnet_wire::{AnySource, DropReason, Nanos, Psn};
use proptest::prelude::*;

/// Two or more hosts or switches at the top, three tiers at most.
fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop::collection::vec(Just(Shape::Host), 1..4).prop_map(Shape::Switch);
    let below = leaf.prop_recursive(2, 8, 3, |below| {
        prop::collection::vec(prop_oneof![1 => Just(Shape::Host), 2 => below], 1..4).prop_map(Shape::Switch)
    });
    prop::collection::vec(prop_oneof![1 => Just(Shape::Host), 2 => below], 2..4).prop_map(Shape::Switch)
}

fn chance(begin: u32) -> impl Strategy<Value = Chance> {
    prop_oneof![
        10 => (0usize..16).prop_map(|pick| Chance::Send { pick }),
        20 => prop_oneof![4 => Just(0usize), 1 => 0usize..64].prop_map(|pick| Chance::Deliver { pick }),
        2 => (0usize..64).prop_map(|pick| Chance::Lose { pick }),
        2 => (0usize..64).prop_map(|pick| Chance::Duplicate { pick }),
        2 => (0usize..16).prop_map(|pick| Chance::TimeOut { pick }),
        begin => Just(Chance::Begin),
        // Without effect where switches do not repair.
        1 => (0usize..8).prop_map(|pick| Chance::Tick { pick }),
    ]
}

fn start() -> impl Strategy<Value = Psn> {
    prop_oneof![Just(0u32), Psn::MODULUS - 30..Psn::MODULUS, any::<u32>()].prop_map(Psn::new)
}

/// The slots of switches that repair, fewer and more than packets of the window, and whether hosts repeat one packet.
fn repair() -> impl Strategy<Value = Option<(u16, bool)>> {
    let slots = prop_oneof![Just(128u16), (1u32..5).prop_map(|bits| 1 << bits)];
    prop::option::of((slots, any::<bool>()))
}

fn net(
    shape: &Shape,
    start: (Psn, AnySource),
    ack_every: i64,
    turns: &[(usize, i64)],
    repair: Option<(u16, bool)>,
) -> Net {
    let net = Net::new(shape, start, ack_every, turns);
    match repair {
        Some((slots, selective)) => net.repairing(slots, selective),
        None => net,
    }
}

fn numbers() -> impl Strategy<Value = AnySource> {
    prop_oneof![Just(AnySource::Bridged), Just(AnySource::Synchronized)]
}

fn turns() -> impl Strategy<Value = Vec<(usize, i64)>> {
    prop::collection::vec((0usize..16, 1i64..5), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Each host sends when it has received everything of those before it, while other hosts and all switches may lack some of it.
    #[test]
    fn hosts_send_in_turn(
        shape in shape(), start in start(), numbers in numbers(), ack_every in 1i64..9, turns in turns(),
        repair in repair(), chances in prop::collection::vec(chance(0), 0..600),
    ) {
        // Only switches that bridge repair.
        let repair = repair.filter(|_| numbers == AnySource::Bridged);
        let mut net = net(&shape, (start, numbers), ack_every, &turns, repair);
        for chance in chances {
            net.begin_in_order();
            net.step(chance).map_err(TestCaseError::fail)?;
        }
        net.finish(true).map_err(TestCaseError::fail)?;
        // After the chaos a time-out repairs what was lost. Later turns may need one each, for a request that an older duplicate hides, or
        // because the old source could not receive yet.
        prop_assert!(net.time_outs <= 8 + 2 * turns.len(), "{} time-outs", net.time_outs);
    }

    /// Hosts send at any time, at once: all is delivered to all in one order, message by message.
    #[test]
    fn hosts_send_at_once(
        shape in shape(), start in start(), ack_every in 1i64..9, turns in turns(), repair in repair(),
        chances in prop::collection::vec(chance(2), 0..600),
    ) {
        let mut net = net(&shape, (start, AnySource::Bridged), ack_every, &turns, repair);
        for chance in chances {
            net.step(chance).map_err(TestCaseError::fail)?;
        }
        net.finish(false).map_err(TestCaseError::fail)?;
    }
}

fn two_tiers() -> Shape {
    Shape::Switch(vec![
        Shape::Switch(vec![Shape::Host; 2]),
        Shape::Switch(vec![Shape::Host; 2]),
    ])
}

/// In a network without losses no host waits for a time-out, and no conflict is reported.
#[test]
fn turns_need_no_time_out_and_are_no_conflict() {
    for shape in [Shape::Switch(vec![Shape::Host; 4]), two_tiers()] {
        let turns: Vec<_> = (0..40).map(|turn| (turn * 7 % 5 % 4, 2)).collect();
        let start = (Psn::new(Psn::MODULUS - 50), AnySource::Bridged);
        let mut net = Net::new(&shape, start, 3, &turns);
        net.finish(true).expect("contract");
        assert_eq!((net.time_outs, net.conflicts), (0, 0));
    }
}

/// Two hosts send at once: the conflict is reported, at one of them.
#[test]
fn a_conflict_is_reported() {
    for shape in [Shape::Switch(vec![Shape::Host; 4]), two_tiers()] {
        let mut net = Net::new(&shape, (Psn::new(0), AnySource::Bridged), 3, &[(0, 20), (2, 20)]);
        net.begin();
        (0..6).for_each(|_| net.send(0));
        net.begin();
        (0..6).for_each(|_| net.send(2));
        net.finish(false).expect("contract");
        assert!(net.conflicts >= 1, "{}", net.conflicts);
    }
}

/// With the numbers of the group, a host that sends while another one does is never acknowledged, also when its PSN comes: its packets cannot
/// be told from those of its next turn. The source loses nothing, and the conflict is reported.
#[test]
fn a_host_that_sends_out_of_turn_with_the_numbers_of_the_group_harms_nobody() {
    for shape in [Shape::Switch(vec![Shape::Host; 4]), two_tiers()] {
        let start = (Psn::new(0), AnySource::Synchronized);
        let mut net = Net::new(&shape, start, 3, &[(0, 4), (2, 6), (3, 2)]);
        net.begin();
        (0..6).for_each(|_| net.send(0));
        net.begin();
        (0..4).for_each(|_| net.send(2));
        for step in 0..4_000 {
            // The next one in order begins.
            if step == 2_000 {
                net.begin();
            }
            if net.in_flight.is_empty() {
                (0..4).for_each(|host| net.send(host));
                net.hosts.iter_mut().for_each(|host| host.rests = false);
            }
            if net.in_flight.is_empty() {
                net.hosts.iter_mut().for_each(|host| host.source.time_out());
                continue;
            }
            let (peer, packet) = net.in_flight.remove(0);
            net.deliver(peer, packet).expect("contract");
        }
        let acknowledged: Vec<_> = net.hosts.iter().map(|host| host.source.unacked).collect();
        assert_eq!(acknowledged, [4 * MESSAGE, 0, 0, 2 * MESSAGE]);
        for (host, from_0, from_3) in [(0, 0, 6), (1, 12, 6), (2, 12, 6), (3, 12, 0)] {
            let of = [0, 2, 3].map(|sender| net.received(host, sender));
            assert_eq!(of, [from_0, 0, from_3], "host {host}");
        }
        assert!(net.conflicts >= 1, "{}", net.conflicts);
    }
}

/// A host that has requested to send gives up before it may. The others go on after a time-out of the switch next to it.
#[test]
fn a_host_that_requests_to_send_and_does_not_holds_up_nobody() {
    for numbers in [AnySource::Bridged, AnySource::Synchronized] {
        for shape in [Shape::Switch(vec![Shape::Host; 4]), two_tiers()] {
            let turns = [(0, 2), (2, 1), (3, 2), (1, 1)];
            let mut net = Net::new(&shape, (Psn::new(0), numbers), 3, &turns);
            // Host 0 sends one message, and its ACK is late. Host 2 has received it.
            net.begin();
            (0..3).for_each(|_| net.send(0));
            while !net.hosts[1..].iter().all(|host| host.receiver.expected == 3) {
                let data = net
                    .in_flight
                    .iter()
                    .position(|(_, p)| matches!(p, Packet::Data { .. }));
                let (peer, packet) = net.in_flight.remove(data.expect("data"));
                net.deliver(peer, packet).expect("contract");
            }
            net.hosts[0].source.total = 3;
            net.begin();
            net.send(2);
            net.in_flight.rotate_right(1);
            let (peer, packet) = net.in_flight.remove(0);
            net.deliver(peer, packet).expect("contract");
            // It gives up, and resets its requester.
            net.hosts[2].source = Source::new(0);
            net.hosts[2].holds = false;
            net.finish(true).expect("contract");
            assert_eq!((net.received(0, 3), net.received(2, 1)), (2 * MESSAGE, MESSAGE));
            assert!(net.now > Nanos::ZERO, "no timer was needed");
        }
    }
}

/// Any single packet may be lost, of data, feedback, requests and grants.
#[test]
fn one_loss_while_the_source_changes_costs_one_time_out_at_most() {
    for lost in 0..300 {
        let start = (Psn::new(5), AnySource::Bridged);
        let mut net = Net::new(&two_tiers(), start, 1, &[(0, 1), (2, 1), (1, 1), (3, 1)]);
        for _ in 0..lost {
            net.begin_in_order();
            (0..4).for_each(|host| net.send(host));
            net.step(Chance::Deliver { pick: 0 }).expect("contract");
        }
        net.step(Chance::Lose { pick: 0 }).expect("nothing delivered");
        net.finish(true).expect("contract");
        assert!(net.time_outs <= 1, "loss {lost}: {} time-outs", net.time_outs);
    }
}

/// What is lost on the way to a receiver, or of its feedback, the switches repair in each turn: no host times out.
#[test]
fn one_loss_behind_the_first_switch_costs_no_time_out_if_switches_repair() {
    let turns = [(0, 2), (2, 2), (1, 1), (3, 1)];
    let mut resent = 0;
    for lost in 0..300 {
        let mut net =
            Net::new(&two_tiers(), (Psn::new(5), AnySource::Bridged), 1, &turns).repairing(128, false);
        for _ in 0..lost {
            net.begin_in_order();
            (0..4).for_each(|host| net.send(host));
            net.step(Chance::Deliver { pick: 0 }).expect("contract");
        }
        let first = net.in_flight.first();
        let repaired = first.is_none_or(|(peer, packet)| net.is_repaired(*peer, *packet));
        net.step(Chance::Lose { pick: 0 }).expect("nothing delivered");
        net.finish(true).expect("contract");
        assert!(
            net.time_outs <= usize::from(!repaired),
            "loss {lost}: {}",
            net.time_outs
        );
        resent += net.resent;
    }
    assert!(resent > 100, "{resent}");
}

/// A grant that is late, after the neighbour's request has stood for it, must not make a second source.
#[test]
fn a_late_grant_of_an_older_epoch_has_no_effect() {
    let config = MulticastConfig {
        paths: 3,
        source: path(0),
        start_psn: Some(Psn::new(0)),
        stall_timeout: Nanos::ZERO,
    };
    let mut machine = Multicast::new(config).with_switching(AnySource::Bridged, [path(1), path(2)]);
    let mut out = Effects::new();
    let mut handle = |event| {
        machine.handle(Nanos::ZERO, event, &mut out);
        (out.first().copied(), machine.source())
    };
    let signal = |signal, epoch| Event::Signal {
        from: path(0),
        signal,
        psn: Psn::new(0),
        epoch,
    };
    let send = |signal, epoch| Effect::Signal {
        to: path(0),
        signal,
        psn: Psn::new(0),
        epoch,
    };
    // The neighbour has granted, and wants to send again. Nobody here wants to.
    assert_eq!(
        handle(signal(Signal::Request, 1)),
        (Some(send(Signal::Grant, 2)), path(0))
    );
    let data = Event::Data {
        from: path(1),
        psn: Psn::new(0),
        ack_request: true,
    };
    assert_eq!(handle(data).1, path(0));
    let late = Some(Effect::Drop(DropReason::NotSource));
    assert_eq!(handle(signal(Signal::Grant, 1)), (late, path(0)));
    assert_eq!(handle(signal(Signal::Grant, 3)).1, path(1));
}

/// Hosts never send requests or grants, and a group with one source knows none.
#[test]
fn signals_of_hosts_and_in_other_groups_are_dropped() {
    let config = MulticastConfig {
        paths: 3,
        source: path(0),
        start_psn: Some(Psn::new(0)),
        stall_timeout: Nanos::ZERO,
    };
    let other = Multicast::new(config.clone());
    let switching = Multicast::new(config).with_switching(AnySource::Bridged, [path(1), path(2)]);
    for (machine, from) in [(&other, 0), (&other, 1), (&switching, 1), (&switching, 9)] {
        for signal in [Signal::Request, Signal::Grant] {
            let (mut machine, mut out) = (machine.clone(), Effects::new());
            let before = machine.clone();
            let event = Event::Signal {
                from: path(from),
                signal,
                psn: Psn::new(0),
                epoch: 1,
            };
            machine.handle(Nanos::ZERO, event, &mut out);
            assert_eq!(out.as_slice(), [Effect::Drop(DropReason::NotSource)]);
            assert_eq!(machine, before);
        }
    }
}
