//! Mode-III: what each hop acknowledges and repeats, and the pitfalls of EPIC 5.1 and H.4, each by name.

use crate::net::{Frame, Net, Node, Setting, endpoint};
use crate::program::call;
use crate::rules::{Bench, acks, config, drops, emitted};
use crate::tree::Tree;
use castnet_collective::translated::{CollectiveMode, Effect};
use castnet_collective::{EndpointSet, TranslatedConfig};
use castnet_wire::Primitive::{AllReduce, Broadcast, Reduce};
use castnet_wire::{DropReason, NakCode, Nanos, RnrTimer, Syndrome};

const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
/// What calls a rank back whose packets were refused.
const CALL_BACK: Syndrome = Syndrome::RnrNak(RnrTimer::new(1));

/// `ring`: the slots of each pipe.
fn augmented(ranks: u16, children: usize, parent: bool, ring: u16) -> TranslatedConfig {
    TranslatedConfig {
        mode: CollectiveMode::Augmented,
        slots: 2 * ring,
        ..config(ranks, children, parent)
    }
}

fn handed_over(effects: &[Effect]) -> Vec<(u16, u16)> {
    let pair = |e: &Effect| match *e {
        Effect::HandOver { from, to } => Some((from, to)),
        _ => None,
    };
    effects.iter().filter_map(pair).collect()
}

fn added(effects: &[Effect]) -> Vec<(u16, bool)> {
    let slot = |e: &Effect| match *e {
        Effect::Aggregate { slot, first, .. } => Some((slot, first)),
        _ => None,
    };
    effects.iter().filter_map(slot).collect()
}

#[test]
fn a_contribution_is_acknowledged_before_the_others_have_come() {
    let mut b = Bench::new(augmented(2, 0, false, 8));
    let control = b.control(0, 0, 0, call(AllReduce, 0, 4));
    assert_eq!(acks(&control), [(0, 1000, Syndrome::Ack)]);
    assert_eq!(acks(&b.data(0, 1, false)), []);
    assert_eq!(acks(&b.data(0, 2, true)), [(0, 1002, Syndrome::Ack)]);
    // It is repeated because the ACK was lost.
    assert_eq!(acks(&b.data(0, 2, true)), [(0, 1002, Syndrome::Ack)]);
    assert_eq!(b.machine.status().waiting_for, [endpoint(1)]);
}

/// EPIC 5.1, figure 6: the slots of a fast rank stay when a packet before them is completed.
#[test]
fn a_completed_packet_recycles_no_slot_of_a_faster_rank() {
    let mut b = Bench::new(augmented(2, 0, false, 8));
    let all = call(AllReduce, 0, 20);
    b.control(0, 0, 0, all);
    for index in 1..8 {
        assert_eq!(added(&b.data(0, index, false)), [(index as u16, true)]);
    }
    b.control(1, 0, 0, all);
    for index in 1..8 {
        let effects = b.data(1, index, false);
        assert_eq!(added(&effects), [(index as u16, false)]);
        assert_eq!(handed_over(&effects), [(index as u16, 8 + index as u16)]);
    }
}

/// EPIC H.4: the root may not copy a sum over a result that some rank still lacks.
#[test]
fn the_root_hands_over_only_into_a_free_slot() {
    let mut b = Bench::new(augmented(2, 0, false, 4));
    let all = call(AllReduce, 0, 20);
    for rank in 0..2 {
        b.control(rank, 0, 0, all);
        (1..4).for_each(|index| _ = b.data(rank, index, false));
    }
    // The broadcast pipe is full of results, and the aggregation pipe takes the next contributions.
    for index in 4..8 {
        assert_eq!(added(&b.data(0, index, false)), [(index as u16 % 4, true)]);
        let effects = b.data(1, index, false);
        assert_eq!(added(&effects), [(index as u16 % 4, false)]);
        assert_eq!((handed_over(&effects), emitted(&effects)), (vec![], vec![]));
    }
    assert_eq!(drops(&b.data(0, 8, false)), [DropReason::EarlyContribution]);
    assert_eq!(handed_over(&b.feedback(0, 1, Syndrome::Ack)), []);
    let effects = b.feedback(1, 1, Syndrome::Ack);
    assert_eq!(handed_over(&effects), [(0, 4), (1, 5)]);
    // A packet that ends a quarter of the ring requests an ACK.
    assert_eq!(emitted(&effects), [(4, vec![0, 1], true), (5, vec![0, 1], true)]);
}

/// EPIC H.4: one NAK for a gap. It names the gap, and an ACK goes before it.
#[test]
fn a_gap_gets_one_nak() {
    let mut b = Bench::new(augmented(2, 0, false, 16));
    b.control(0, 0, 0, call(AllReduce, 0, 20));
    b.data(0, 1, false);
    assert_eq!(
        acks(&b.data(0, 3, false)),
        [(0, 1001, Syndrome::Ack), (0, 1002, NAK)]
    );
    assert_eq!(acks(&b.data(0, 4, true)), []);
    // When it is filled, all is acknowledged, so that the rank repeats no more.
    assert_eq!(acks(&b.data(0, 2, false)), [(0, 1004, Syndrome::Ack)]);
}

/// EPIC 4.4, rate synchronization: a rank that is too fast gets a CNP at once, and a NAK when it finds room. Until then it is kept alive.
#[test]
fn a_rank_that_is_too_fast_gets_a_cnp_and_later_an_rnr_nak() {
    let mut b = Bench::new(augmented(2, 0, false, 8));
    let all = call(AllReduce, 0, 20);
    b.control(0, 0, 0, all);
    (1..8).for_each(|index| _ = b.data(0, index, index == 7));
    let effects = b.data(0, 8, true);
    assert_eq!(drops(&effects), [DropReason::EarlyContribution]);
    assert!(effects.contains(&Effect::Cnp {
        to: EndpointSet::only(endpoint(0))
    }));
    assert_eq!(acks(&effects), []);
    // One CNP in 50 us.
    assert!(!b.data(0, 9, true).iter().any(|e| matches!(e, Effect::Cnp { .. })));
    assert_eq!(acks(&b.tick()), [(0, 1007, Syndrome::Ack)]);
    b.control(1, 0, 0, all);
    for index in 1..8 {
        let news = acks(&b.data(1, index, false));
        // With half of the ring free.
        let nak = vec![(0, 1007, Syndrome::Ack), (0, 1008, CALL_BACK)];
        assert_eq!(news, if index == 3 { nak } else { vec![] }, "{index}");
    }
    assert_eq!(acks(&b.tick()), []);
    // What was on its way when the rank was called back is refused: it comes again.
    assert_eq!(drops(&b.data(0, 11, true)), [DropReason::EarlyContribution]);
    // The rank repeats all from there on, and nothing of it seems to have a gap behind it.
    for index in 8..12 {
        let effects = b.data(0, index, index == 11);
        assert_eq!(added(&effects), [((index % 8) as u16, true)], "{index}");
        let ack = vec![(0, 1011, Syndrome::Ack)];
        assert_eq!(acks(&effects), if index == 11 { ack } else { vec![] }, "{index}");
    }
}

/// A gap before a refused packet is closed first: an RNIC that repeats single packets gets a NAK for one, and then all from the refused one on.
#[test]
fn a_gap_is_closed_before_a_rank_is_called_back() {
    let mut b = Bench::new(augmented(2, 0, false, 8));
    let all = call(AllReduce, 0, 20);
    b.control(0, 0, 0, all);
    b.control(1, 0, 0, all);
    b.data(0, 1, false);
    assert_eq!(
        acks(&b.data(0, 3, false)),
        [(0, 1001, Syndrome::Ack), (0, 1002, NAK)]
    );
    (4..10).for_each(|index| _ = b.data(0, index, false));
    for index in 1..8 {
        assert_eq!(acks(&b.data(1, index, false)), [], "{index}");
    }
    // All before the refused packet is there, and half of the ring is free.
    let news = acks(&b.data(0, 2, false));
    assert_eq!(news.first(), Some(&(0, 1008, Syndrome::Ack)));
    assert_eq!(news.last(), Some(&(0, 1009, CALL_BACK)), "{news:?}");
}

/// A switch repeats its contribution to its parent from the oldest that is not acknowledged, without its ranks.
#[test]
fn a_switch_repeats_what_its_parent_has_not_acknowledged() {
    let mut b = Bench::new(augmented(1, 0, true, 16));
    b.control(0, 0, 0, call(AllReduce, 0, 20));
    (1..6).for_each(|index| _ = b.data(0, index, false));
    // The ACK of the parent, not its result, frees the slots.
    assert_eq!(b.feedback(1, 2, Syndrome::Ack), [Effect::Absorb]);
    b.tick();
    assert_eq!(emitted(&b.tick()), [(3, vec![1], true), (5, vec![1], true)]);
    // The parent requests one packet.
    assert_eq!(emitted(&b.feedback(1, 4, NAK)), [(4, vec![1], false)]);
    // A result acknowledges, too.
    let effects = b.control(1, 0, 0, call(AllReduce, 0, 20));
    assert_eq!(emitted(&effects), [(0, vec![0], true)]);
}

/// Between switches, half of a ring may be unacknowledged; an ACK is sent when the next packets have slots.
#[test]
fn an_ack_between_switches_promises_slots() {
    let mut leaf = Bench::new(augmented(1, 0, true, 8));
    let all = call(AllReduce, 0, 20);
    let mut sent = emitted(&leaf.control(0, 0, 0, all)).len();
    sent += (1..8)
        .map(|i| emitted(&leaf.data(0, i, false)).len())
        .sum::<usize>();
    assert_eq!(sent, 4);
    assert_eq!(emitted(&leaf.feedback(1, 1, Syndrome::Ack)).len(), 2);

    let mut root = Bench::new(augmented(0, 2, false, 8));
    let mut answers = acks(&root.control(0, 0, 0, all));
    (1..8).for_each(|index| answers.extend(acks(&root.data(0, index, true))));
    assert_eq!(answers.last(), Some(&(0, 2 + 3, Syndrome::Ack)));
    let control = root.control(1, 0, 0, all);
    assert_eq!(acks(&control)[..1], [(1, 2, Syndrome::Ack)]);
    let later: Vec<_> = (1..5)
        .flat_map(|index| acks(&root.data(1, index, false)))
        .collect();
    // A quarter of the ring at a time.
    let to_first: Vec<_> = later.into_iter().filter(|(to, ..)| *to == 0).collect();
    assert_eq!(to_first, [(0, 2 + 5, Syndrome::Ack), (0, 2 + 7, Syndrome::Ack)]);
}

#[test]
fn a_result_that_comes_before_the_contribution_is_stale() {
    let mut b = Bench::new(augmented(2, 0, true, 8));
    b.control(0, 0, 0, call(AllReduce, 0, 4));
    assert_eq!(
        drops(&b.control(2, 0, 0, call(AllReduce, 0, 4))),
        [DropReason::Stale]
    );
}

fn setting(tree: Tree, calls: Vec<castnet_wire::Call>) -> Setting {
    Setting {
        mode: CollectiveMode::Augmented,
        ..Setting::new(tree, calls)
    }
}

/// No rank waits with a running timer, so none needs to be kept alive, and none repeats a byte.
#[test]
fn early_ranks_need_no_keep_alive() {
    for tree in [Tree::star(4), Tree::two_leaves()] {
        let mut setting = setting(tree, vec![call(AllReduce, 0, 60), call(Reduce, 1, 20)]);
        setting.retries = 1;
        setting.starts = [(2, Nanos::from_secs(20))].into();
        let mut net = Net::new(setting);
        while net.now < Nanos::from_secs(19) && net.step() {}
        assert!(net.hosts.iter().all(|h| h.repeated == 0 && h.acked == h.sent));
        // The acknowledgements of what was sent, and two questions to the late one.
        let to_hosts = net.acks.iter().filter(|((_, to), _)| matches!(to, Node::Host(_)));
        assert!(to_hosts.clone().count() == 4 && to_hosts.clone().all(|(_, count)| *count <= 10));
        net.finish();
    }
}

/// A loss is repaired on the link where it happens.
#[test]
fn a_loss_concerns_one_hop() {
    let calls = [
        call(AllReduce, 0, 60),
        call(Reduce, 1, 60),
        call(Broadcast, 3, 60),
    ];
    for (call, above) in calls.into_iter().flat_map(|call| [(call, 1), (call, 2)]) {
        let mut net = Net::new(setting(Tree::two_leaves(), vec![call]));
        let mut data = 0;
        // Between the leaf of ranks 0 and 1, or of ranks 2 and 3, and the spine; in both directions.
        net.filter = Some(Box::new(move |from, to, frame| {
            let link = [from, to].contains(&Node::Switch(0)) && [from, to].contains(&Node::Switch(above));
            let counted = link && matches!(frame, Frame::Data { .. });
            data += u64::from(counted);
            counted && data % 20 == 7
        }));
        net.finish();
        assert!(net.hosts.iter().all(|h| h.repeated == 0 && h.naks == 0));
        assert!(net.now < Nanos::from_millis(200), "{}", net.now);
    }
}

/// The windows of ranks never exceed the ring if it is as long, so nothing is refused in collectives that all must join.
#[test]
fn nothing_is_refused_in_allreduces_with_a_ring_of_a_window() {
    for tree in [Tree::star(4), Tree::two_leaves()] {
        let mut setting = setting(
            tree,
            vec![
                call(AllReduce, 0, 200),
                call(AllReduce, 0, 0),
                call(AllReduce, 0, 90),
            ],
        );
        setting.window = 32;
        setting.slots = 64;
        setting.starts = [(1, Nanos::from_millis(2))].into();
        let mut net = Net::new(setting);
        net.finish();
        assert!(net.drops.is_empty(), "{:?}", net.drops);
        // The late one is asked whether something of it was lost.
        assert!(
            net.hosts
                .iter()
                .all(|h| h.repeated == 0 && (h.naks == 0 || h.config.rank == 1))
        );
    }
}
