//! Mode-I on whole trees: machines between ranks, over connections that lose, repeat and reorder nothing, but deliver when they like, and
//! make a sender wait while no buffer is posted. Payloads are sets of the ranks that have contributed.

mod net;
#[path = "../translated/program.rs"]
#[allow(dead_code)]
mod program;
#[path = "../translated/tree.rs"]
#[allow(dead_code)]
mod tree;

use castnet_collective::terminated::{Effect, Inbox, Message};
use castnet_collective::{EndpointId, Terminated};
use castnet_wire::{Call, Nanos, Primitive, Verdict};
use net::{Net, config};
use program::{call, control};
use proptest::prelude::*;
use tree::Tree;

fn any_tree() -> impl Strategy<Value = Tree> {
    let above = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let at = prop::collection::vec(any::<prop::sample::Index>(), 2..9);
    (above, at).prop_filter_map("each switch has at least two endpoints", |(above, at)| {
        let parents: Vec<_> = (1..).zip(above).map(|(s, pick)| Some(pick.index(s))).collect();
        let above = [vec![None], parents].concat();
        let at: Vec<_> = at.iter().map(|pick| pick.index(above.len())).collect();
        let tree = Tree::new(&above, &at);
        tree.endpoints.iter().all(|e| e.len() > 1).then_some(tree)
    })
}

fn any_call(ranks: u16) -> impl Strategy<Value = Call> {
    let primitive = prop::sample::select(vec![
        Primitive::AllReduce,
        Primitive::Reduce,
        Primitive::Broadcast,
    ]);
    let packets = prop_oneof![Just(0_u32), 1_u32..20];
    (primitive, 0..ranks, packets, 1_u16..4).prop_map(move |(primitive, root, packets, roots)| {
        let has_root = primitive != Primitive::AllReduce;
        let root = if has_root { root } else { 0 };
        let many = has_root && packets > 0;
        let roots = if many { roots.min(ranks - root) } else { 1 };
        Call {
            roots,
            ..call(primitive, root, packets)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// C1 and C2: every rank gets every result, with each contribution once, whatever is slow.
    #[test]
    fn every_rank_gets_every_result(
        (tree, calls) in any_tree().prop_flat_map(|tree| {
            let calls = prop::collection::vec(any_call(tree.ranks), 1..8);
            (Just(tree), calls)
        }),
        message_packets in 1_u16..5, messages in 2_u16..5, collectives in 2_u16..9, seed: u64,
    ) {
        let mut net = Net::new(tree, message_packets, messages, collectives, seed);
        let programs = vec![calls; net.ranks()];
        prop_assert_eq!(net.run(&programs), Ok(()));
    }

    /// C2: if one rank calls something else, each rank gets the conflict, and nothing after it.
    #[test]
    fn a_conflict_reaches_every_rank(
        (tree, calls, other) in any_tree().prop_flat_map(|tree| {
            let calls = prop::collection::vec(any_call(tree.ranks), 1..5);
            let other = any_call(tree.ranks);
            (Just(tree), calls, other)
        }),
        who: prop::sample::Index, message_packets in 1_u16..5, seed: u64,
    ) {
        let mut net = Net::new(tree, message_packets, 3, 4, seed);
        let mut programs = vec![calls.clone(); net.ranks()];
        let who = who.index(net.ranks());
        let last = calls.len() - 1;
        prop_assume!(calls[last] != other);
        programs[who][last] = other;
        prop_assert_eq!(net.run(&programs), Ok(()));
        prop_assert!(net.conflicts.iter().all(|count| *count == 1), "{:?}", net.conflicts);
    }
}

struct Given(Message);

impl Inbox for Given {
    fn message(&self, _: EndpointId, _: u16) -> Message {
        self.0
    }
}

/// What an endpoint may not send ends its connection, and is taken by nobody.
#[test]
fn a_message_out_of_order_is_refused() {
    let barrier = call(Primitive::AllReduce, 0, 0);
    let conflicting = castnet_wire::Control {
        verdict: Verdict::Conflict {
            rank: 1,
            call: call(Primitive::AllReduce, 0, 1),
        },
        ..control(0, 0, barrier)
    };
    for message in [
        Message::Invalid,
        Message::Data(64),
        Message::Control(control(1, 0, barrier)),
        Message::Control(control(0, 1, barrier)),
        Message::Control(conflicting),
        Message::Control(control(0, 0, call(Primitive::Broadcast, 7, 1))),
    ] {
        let mut machine = Terminated::<1>::new(config(&Tree::star(2), 0, 1, 2, 2));
        let from = EndpointId::new(0).unwrap();
        machine.arrived(Nanos::ZERO, from);
        let effect = machine.poll(Nanos::ZERO, &Given(message));
        assert_eq!(effect, Some(Effect::Refused { from }), "{message:?}");
        assert_eq!(machine.poll(Nanos::ZERO, &Given(message)), None);
        assert!(machine.has_ended(from));
    }
}

/// A stall is reported once in each time-out, with the ranks whose message is missing.
#[test]
fn a_stall_names_who_is_missing() {
    let mut machine = Terminated::<1>::new(config(&Tree::star(3), 0, 1, 2, 2));
    let given = Given(Message::Control(control(0, 0, call(Primitive::AllReduce, 0, 0))));
    machine.arrived(Nanos(5), EndpointId::new(0).unwrap());
    while machine.poll(Nanos(5), &given).is_some() {}
    let due = machine.poll_timeout().unwrap();
    assert_eq!(machine.handle_timeout(Nanos(due.0 - 1)), None);
    let Some(Effect::Stalled {
        waiting_for, since, ..
    }) = machine.handle_timeout(due)
    else {
        panic!("no stall");
    };
    let missing: Vec<_> = waiting_for.iter().map(EndpointId::index).collect();
    assert_eq!((missing, since), (vec![1, 2], Nanos(5)));
    assert_eq!(machine.handle_timeout(due), None);
}
