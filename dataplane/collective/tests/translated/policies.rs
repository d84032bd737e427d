//! Stragglers, receivers that are late, hosts of three retries, and ranks that disagree: each policy by name.

use crate::net::{Frame, Net, Node, Setting};
use crate::program::call;
use crate::tree::Tree;
use castnet_collective::{LossPolicy, StragglerPolicy};
use castnet_wire::Primitive::{AllReduce, Broadcast, Reduce};
use castnet_wire::{Call, DropReason, Nanos, Syndrome, Verdict};

fn trees() -> [Tree; 3] {
    [
        Tree::star(4),
        Tree::two_leaves(),
        // A chain of three switches, a rank at each, and one more at the end.
        Tree::new(&[None, Some(0), Some(1)], &[2, 0, 1, 2]),
    ]
}

fn mixed(packets: u32) -> Vec<Call> {
    vec![
        call(AllReduce, 0, packets),
        call(Broadcast, 1, packets),
        call(Reduce, 2, packets),
        call(AllReduce, 0, 0),
        call(Reduce, 0, packets),
        call(Broadcast, 3, packets),
    ]
}

/// QP time-outs of 67 ms and three retries: without help, a host is dead after a quarter of a second.
fn three_retries(tree: Tree, calls: Vec<Call>) -> Setting {
    let mut setting = Setting::new(tree, calls);
    setting.retries = 3;
    setting
}

/// No rank of the early ones repeats a byte.
#[test]
fn a_rank_that_comes_20_s_late_kills_nobody_under_keep_alive() {
    for tree in trees() {
        for loss in [LossPolicy::Repair, LossPolicy::Reflect] {
            for late in 0..4 {
                let mut setting = three_retries(tree.clone(), mixed(30));
                setting.loss = loss;
                setting.starts = [(late, Nanos::from_secs(20))].into();
                let mut net = Net::new(setting);
                net.finish();
                assert!(net.now > Nanos::from_secs(20));
                assert!(net.stalls > 0, "the operator is told");
                for host in net.hosts.iter().filter(|h| h.config.rank != late) {
                    assert_eq!(host.repeated, 0, "{loss:?} {late}");
                }
            }
        }
    }
}

#[test]
fn without_help_the_early_ranks_die() {
    for straggler in [StragglerPolicy::None, StragglerPolicy::Rnr] {
        let mut setting = three_retries(Tree::star(3), mixed(10)[..2].to_vec());
        setting.straggler = straggler;
        setting.starts = [(2, Nanos::from_secs(20))].into();
        let mut net = Net::new(setting);
        while net.step() && net.now < Nanos::from_secs(19) {}
        let dead = net.hosts[..2].iter().all(|h| h.dead);
        // An RNR wait stops the oracle's timer as little as rxe's, but each wait goes back, which it takes for progress in time.
        assert!(dead || straggler == StragglerPolicy::Rnr);
    }
}

#[test]
fn rnr_and_none_end_with_retries_for_ever() {
    for straggler in [StragglerPolicy::None, StragglerPolicy::Rnr] {
        let mut setting = Setting::new(Tree::two_leaves(), mixed(10));
        setting.straggler = straggler;
        setting.starts = [(2, Nanos::from_secs(5))].into();
        Net::new(setting).finish();
    }
}

/// A keep-alive also holds back repeats that are needed: sent whenever anything is unacknowledged, 3 % loss hangs all.
#[test]
fn keep_alive_does_not_hold_back_repeats_that_are_needed() {
    for tree in trees() {
        for seed in 0..10 {
            let mut setting = three_retries(tree.clone(), mixed(60));
            setting.seed = seed;
            setting.lost = 30;
            setting.starts = [(1, Nanos::from_secs(3))].into();
            setting.patience = Nanos::from_secs(30);
            Net::new(setting).finish();
        }
    }
}

/// A keep-alive goes to a host only whose oldest packet is in and waits for others. A host from which nothing comes is asked twice.
#[test]
fn no_keep_alive_to_a_host_whose_oldest_packet_was_lost() {
    let mut setting = Setting::new(Tree::star(3), vec![call(AllReduce, 0, 4)]);
    setting.starts = [(2, Nanos::from_secs(2))].into();
    let mut net = Net::new(setting);
    let mut lost = 0;
    // Rank 0's control message and all behind it are lost twice.
    net.filter = Some(Box::new(move |from, _, frame| {
        let hit = from == Node::Host(0) && !matches!(frame, Frame::Ack { .. }) && lost < 10;
        lost += u64::from(hit);
        hit
    }));
    while net.step() && net.now < Nanos::from_millis(60) {}
    // An ACK, a NAK and a request.
    assert_eq!(net.acks[&(Node::Switch(0), Node::Host(0))], 6);
    assert!(net.acks[&(Node::Switch(0), Node::Host(1))] > 0);
    net.finish();
    assert_eq!(net.hosts[0].repeated, 10);
}

/// With losses that are repaired from the switch, QPs of three retries survive 3 %.
#[test]
fn three_retries_survive_three_percent_under_repair() {
    for tree in trees() {
        for seed in 0..10 {
            let mut setting = three_retries(tree.clone(), mixed(200));
            setting.seed = seed;
            setting.window = 128;
            setting.message_packets = 32;
            setting.slots = 256;
            setting.lost = 30;
            Net::new(setting).finish();
        }
    }
}

#[test]
fn receives_that_are_posted_late_are_waited_for() {
    for tree in trees() {
        for loss in [LossPolicy::Repair, LossPolicy::Reflect] {
            for late in 0..4 {
                let mut setting = Setting::new(tree.clone(), mixed(12));
                setting.loss = loss;
                setting.receives = [(late, Nanos::from_secs(1))].into();
                let mut net = Net::new(setting);
                net.finish();
                assert!(
                    net.now > Nanos::from_secs(1) && net.now < Nanos::from_secs(4),
                    "{}",
                    net.now
                );
            }
        }
    }
}

/// The switch waits for the receiver: the senders repeat nothing, and survive with three retries.
#[test]
fn a_receiver_that_is_not_ready_costs_the_senders_nothing_under_repair() {
    for tree in trees() {
        for calls in [vec![call(Broadcast, 0, 20)], vec![call(Reduce, 3, 20)]] {
            let mut setting = three_retries(tree.clone(), calls);
            setting.receives = [(3, Nanos::from_secs(2))].into();
            let mut net = Net::new(setting);
            net.finish();
            assert!(net.hosts.iter().all(|h| h.repeated == 0));
        }
    }
}

#[test]
fn ranks_that_disagree_get_the_two_calls() {
    let agreed = vec![call(AllReduce, 0, 5), call(AllReduce, 0, 40), call(Reduce, 1, 10)];
    let others = [
        call(AllReduce, 0, 41),
        call(Broadcast, 0, 40),
        call(Reduce, 3, 40),
        call(AllReduce, 0, 0),
        Call {
            operation: castnet_wire::Operation::Max,
            ..call(AllReduce, 0, 40)
        },
    ];
    for tree in trees() {
        for other in others {
            for odd in 0..4u16 {
                for lost in [0, 50] {
                    let mut setting = Setting::new(tree.clone(), agreed.clone());
                    setting.odd = [(odd, vec![agreed[0], other, agreed[2]])].into();
                    setting.lost = lost;
                    // The host that is told ends its connection; what it had in flight is of no interest any more.
                    setting.patience = Nanos::from_secs(60);
                    let mut net = Net::new(setting);
                    while net.hosts.iter().any(|h| h.failed.is_none()) && net.now < Nanos::from_secs(50) {
                        assert!(net.step(), "{}", net.story());
                    }
                    for host in &net.hosts {
                        let control = host.failed.unwrap_or_else(|| panic!("{odd}: {}", net.story()));
                        let Verdict::Conflict { rank, call } = control.verdict else {
                            panic!("{control:?}")
                        };
                        let said = |rank: u16| if rank == odd { other } else { agreed[1] };
                        assert_eq!((control.sequence, control.rank), (1, 0));
                        assert_eq!((control.call, call), (said(0), said(rank)));
                        assert_ne!(control.call, call);
                        // What came before has ended well, and nothing of it or after it has come.
                        assert!(host.received.len() == 7 || host.received.len() == 2 + 5);
                    }
                    assert!(net.conflicts.iter().any(|(switch, _)| *switch == 0));
                    assert!(net.switches.iter().all(|s| s.machine.status().conflict.is_some()));
                }
            }
        }
    }
}

#[test]
fn after_a_conflict_data_is_dropped_and_counted() {
    let mut setting = Setting::new(Tree::star(3), vec![call(AllReduce, 0, 10)]);
    setting.odd = [(2, vec![call(AllReduce, 0, 11)])].into();
    let mut net = Net::new(setting);
    while net.step() && net.now < Nanos::from_secs(3) {}
    assert!(net.drops[&DropReason::GroupFailed] >= 20, "{:?}", net.drops);
    assert_eq!(
        net.switches[0].machine.poll_timeout(),
        None,
        "nothing to wait for any more"
    );
}

/// Reflection: the sender repeats the packet, the result is sent again, and no other host is affected.
#[test]
fn reflection_goes_to_the_host_that_lost_the_result() {
    let mut setting = Setting::new(Tree::star(3), vec![call(AllReduce, 0, 20)]);
    setting.loss = LossPolicy::Reflect;
    let mut net = Net::new(setting);
    let mut data = 0;
    net.filter = Some(Box::new(move |_, to, frame| {
        let counted = to == Node::Host(1) && matches!(frame, Frame::Data { .. });
        data += u64::from(counted);
        counted && data == 5
    }));
    net.finish();
    let repeated: Vec<_> = net.hosts.iter().map(|h| h.repeated).collect();
    assert!(
        repeated[1] > 0 && repeated[0] == 0 && repeated[2] == 0,
        "{repeated:?}"
    );
    assert_eq!(net.hosts[1].naks, 1);
}

/// Repair: the same loss, and no host repeats anything.
#[test]
fn repair_touches_no_sender() {
    for tree in trees() {
        for calls in [
            vec![call(AllReduce, 0, 20)],
            vec![call(Broadcast, 0, 20)],
            vec![call(Reduce, 1, 20)],
        ] {
            let mut net = Net::new(Setting::new(tree.clone(), calls));
            let mut data = 0;
            net.filter = Some(Box::new(move |_, to, frame| {
                let counted = to == Node::Host(1) && matches!(frame, Frame::Data { .. });
                data += u64::from(counted);
                counted && data == 5
            }));
            net.finish();
            assert!(net.hosts.iter().all(|h| h.repeated == 0 && h.naks == 0));
            assert!(net.now < Nanos::from_millis(500));
        }
    }
}

/// The source of a Broadcast gets a NAK only after all receivers have everything before it (M2); `check` verifies each.
#[test]
fn reflected_naks_of_a_broadcast_are_gathered() {
    for tree in trees() {
        let mut setting = Setting::new(tree, vec![call(Broadcast, 0, 24)]);
        setting.loss = LossPolicy::Reflect;
        let mut net = Net::new(setting);
        let mut counts = [0; 4];
        // Three receivers lose three different packets, the lowest last.
        net.filter = Some(Box::new(move |_, to, frame| match (to, frame) {
            (Node::Host(h), Frame::Data { .. }) => {
                counts[h] += 1;
                counts[h] == 20 - 4 * h
            }
            _ => false,
        }));
        net.finish();
        assert!(net.hosts[0].naks >= 1);
        assert!(net.hosts[1..].iter().all(|h| h.naks == 0));
    }
}

/// Feedback without progress counts against the retries of a host, so it gets few NAKs.
#[test]
fn naks_are_one_per_gap() {
    let mut setting = Setting::new(Tree::star(2), vec![call(AllReduce, 0, 60)]);
    setting.message_packets = 60;
    let mut net = Net::new(setting);
    let mut data = 0;
    net.filter = Some(Box::new(move |from, _, frame| {
        let counted = from == Node::Host(0) && matches!(frame, Frame::Data { .. });
        data += u64::from(counted);
        counted && data == 5
    }));
    net.finish();
    assert_eq!((net.hosts[0].naks, net.hosts[1].naks), (1, 0));
}

/// Six losses one after the other in one message: an ACK goes before each NAK, or the requester ignores it.
#[test]
fn successive_losses_in_one_message_are_repaired_at_once() {
    let mut setting = Setting::new(Tree::star(2), vec![call(AllReduce, 0, 60)]);
    setting.message_packets = 60;
    let mut net = Net::new(setting);
    let mut seen = std::collections::BTreeSet::new();
    net.filter = Some(Box::new(move |from, _, frame| match frame {
        Frame::Data { payload, .. } if from == Node::Switch(0) => {
            payload.index % 10 == 3 && seen.insert(payload.index)
        }
        _ => false,
    }));
    while net.hosts.iter().any(|h| !h.is_done()) {
        assert!(net.step());
    }
    assert!(net.now < Nanos::from_millis(10), "{}", net.now);
    net.finish();
    assert!(net.hosts.iter().all(|h| h.repeated == 0));
}

#[test]
fn nobody_is_told_of_an_end_that_is_none() {
    // A host's fatal NAK of a packet that it was not sent is dropped, and changes nothing.
    let setting = Setting::new(Tree::star(2), vec![call(AllReduce, 0, 3)]);
    let net = Net::new(setting);
    let machine = &net.switches[0].machine;
    let mut copy = machine.clone();
    let mut effects = castnet_collective::translated::Effects::new();
    let syndrome = Syndrome::Nak(castnet_wire::NakCode::RemoteAccessError);
    let from = crate::net::endpoint(1);
    let event = castnet_collective::translated::Event::Feedback {
        from,
        psn: castnet_wire::Psn::new(7),
        msn: 0,
        syndrome,
    };
    copy.handle(Nanos::ZERO, event, &mut effects);
    assert_eq!(
        effects.as_slice(),
        [castnet_collective::translated::Effect::Drop(
            castnet_wire::DropReason::AckAhead
        )]
    );
    assert_eq!(&copy, machine);
}
