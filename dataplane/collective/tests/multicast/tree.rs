//! Trees of machines of any depth in an unfair network: M1, M2 and M3 on the way, delivery in the end.

use crate::common::tree::{Chance, Shape, Tree};
use castnet_wire::Psn;
use proptest::prelude::*;

/// A switch with one to four things below it, three tiers at most.
fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop::collection::vec(Just(Shape::Host), 1..5).prop_map(Shape::Switch);
    let inner = leaf.prop_recursive(3, 12, 4, |below| {
        prop::collection::vec(prop_oneof![1 => Just(Shape::Host), 2 => below], 1..4).prop_map(Shape::Switch)
    });
    inner.boxed()
}

pub(crate) fn chance(restarts: bool) -> impl Strategy<Value = Chance> {
    prop_oneof![
        8 => Just(Chance::Send),
        // Mostly in order: a network that only shuffles never gets anywhere.
        20 => prop_oneof![4 => Just(0usize), 1 => 0usize..64].prop_map(|pick| Chance::Deliver { pick }),
        2 => (0usize..64).prop_map(|pick| Chance::Lose { pick }),
        2 => (0usize..64).prop_map(|pick| Chance::Duplicate { pick }),
        1 => Just(Chance::TimeOut),
        u32::from(restarts) => (0usize..8).prop_map(|pick| Chance::Restart { pick }),
    ]
}

/// A tree, the stream of its source, and what the network does.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    shape: Shape,
    start: Psn,
    total: i64,
    ack_every: i64,
    chances: Vec<Chance>,
}

pub(crate) fn case(chance: impl Strategy<Value = Chance>) -> impl Strategy<Value = Case> {
    let start = prop_oneof![Just(0u32), Psn::MODULUS - 30..Psn::MODULUS, any::<u32>()].prop_map(Psn::new);
    let chances = prop::collection::vec(chance, 0..500);
    (shape(), start, 1i64..40, 1i64..9, chances).prop_map(|(shape, start, total, ack_every, chances)| Case {
        shape,
        start,
        total,
        ack_every,
        chances,
    })
}

/// Hosts, and positions for which they are not ready.
pub(crate) fn not_ready() -> impl Strategy<Value = Vec<(usize, i64)>> {
    prop::collection::vec((0usize..16, 0i64..40), 0..3)
}

impl Case {
    /// Its switches repair with so many slots; 0 where the source repairs.
    pub(crate) fn tree(&self, slots: u16) -> Tree {
        Tree::repairing(&self.shape, self.start, self.total, self.ack_every, slots)
    }

    /// All of `tree` get everything, with few time-outs.
    pub(crate) fn delivers(self, tree: Tree, not_ready: Vec<(usize, i64)>) -> Result<(), TestCaseError> {
        let tree = run(tree, not_ready, self.chances)?;
        prop_assert!(
            tree.receivers
                .iter()
                .all(|receiver| receiver.expected == self.total)
        );
        // After the chaos one time-out goes back to the oldest loss; each RNR NAK can cost one more.
        prop_assert!(tree.time_outs <= 8, "{} time-outs", tree.time_outs);
        Ok(())
    }
}

fn run(mut tree: Tree, not_ready: Vec<(usize, i64)>, chances: Vec<Chance>) -> Result<Tree, TestCaseError> {
    let hosts = tree.receivers.len();
    for (host, at) in not_ready {
        tree.receivers[host % hosts].not_ready.insert(at);
    }
    for chance in chances {
        tree.step(chance).map_err(TestCaseError::fail)?;
    }
    tree.finish().map_err(TestCaseError::fail)?;
    Ok(tree)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn m1_m2_m3_hold_and_all_is_delivered(case in case(chance(false)), not_ready in not_ready()) {
        let tree = case.tree(0);
        case.delivers(tree, not_ready)?;
    }

    #[test]
    fn switches_may_restart_in_mid_stream(case in case(chance(true))) {
        let tree = case.tree(0);
        case.delivers(tree, Vec::new())?;
    }

    /// A receiver ends its connection with a NAK, which may be lost or repeated: the source gets no such NAK and no ACK of what the receiver
    /// lacks, and when the receiver is taken out at any time, all others get everything.
    #[test]
    fn a_receiver_that_refuses_ends_the_stream_for_nobody_else(
        case in case(prop_oneof![20 => chance(false), 1 => Just(Chance::Evict)]),
        slots in prop_oneof![Just(0u16), Just(128)],
        (host, at) in (0usize..16, 0i64..40),
    ) {
        let mut tree = case.tree(slots);
        let host = host % tree.receivers.len();
        tree.break_receiver(host, at);
        let tree = run(tree, Vec::new(), case.chances)?;
        for (other, receiver) in tree.receivers.iter().enumerate() {
            prop_assert_eq!(tree.evicted.contains(&other), receiver.broken);
            prop_assert_eq!(receiver.expected, if receiver.broken { at } else { case.total });
        }
    }
}

/// One loss on the way to one host of many: one NAK reaches the source, the packet is delivered without a time-out.
#[test]
fn one_loss_is_one_nak_and_no_time_out() {
    let leaf = || Shape::Switch(vec![Shape::Host; 3]);
    let shape = Shape::Switch(vec![Shape::Switch(vec![leaf(), leaf()]), Shape::Host]);
    // The n-th delivery is a loss, over all links and both directions.
    for lost in 0..200 {
        let mut tree = Tree::new(&shape, Psn::new(Psn::MODULUS - 4), 8, 1);
        for _ in 0..8 {
            tree.step(Chance::Send).expect("nothing delivered");
        }
        for _ in 0..lost {
            tree.step(Chance::Deliver { pick: 0 }).expect("contract");
        }
        tree.step(Chance::Lose { pick: 0 }).expect("nothing delivered");
        tree.finish().expect("contract");
        assert!(
            tree.is_done() && tree.naks_to_source <= 1 && tree.time_outs <= 1,
            "loss {lost}"
        );
    }
}
