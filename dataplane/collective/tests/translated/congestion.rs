//! The receivers of CNPs, and their rate.

use crate::net::endpoint;
use crate::program::call;
use crate::rules::{Bench, config};
use castnet_collective::EndpointSet;
use castnet_collective::translated::{CNP_INTERVAL, CNP_WINDOW, Effect, Event};
use castnet_wire::Primitive::{self, AllReduce, Broadcast, Reduce};
use castnet_wire::{Nanos, Syndrome};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn told(effects: &[Effect]) -> Vec<usize> {
    let to = effects.iter().map(|e| match e {
        Effect::Cnp { to } => *to,
        _ => EndpointSet::EMPTY,
    });
    to.flatten().map(|e| e.index()).collect()
}

/// Three ranks and two switches; `above`: the first of these is the parent. Data is in flight to all that get it.
fn bench(primitive: Primitive, root: u16, above: bool) -> Bench {
    let mut b = Bench::new(config(3, if above { 1 } else { 2 }, above));
    let call = call(primitive, root, 2);
    // The parent sends after all others.
    for from in (0..5).filter(|f| !above || *f != 3).chain(above.then_some(3)) {
        b.control(from, 0, 0, call);
    }
    for rank in 0..5 {
        b.feedback(rank, 0, Syndrome::Ack);
    }
    for from in (0..5).filter(|f| !above || *f != 3).chain(above.then_some(3)) {
        b.data(from, 1, true);
    }
    b
}

fn cnp(b: &mut Bench, from: usize) -> Vec<usize> {
    b.now += CNP_INTERVAL;
    let effects = b.event(Event::Cnp { from: endpoint(from) });
    told(&effects)
}

#[test]
fn no_cnp_is_sent_if_no_data_was_sent() {
    let mut b = Bench::new(config(3, 2, true));
    for from in 0..5 {
        assert_eq!(b.event(Event::Cnp { from: endpoint(from) }), [Effect::Absorb]);
    }
    for from in 5..8 {
        assert_eq!(told(&b.event(Event::Cnp { from: endpoint(from) })), []);
    }
}

/// All results wait for the host itself, so it alone need slow down.
#[test]
fn a_cnp_of_an_allreduce_goes_to_the_host_itself() {
    for above in [false, true] {
        let mut b = bench(AllReduce, 0, above);
        for host in 0..3 {
            assert_eq!(cnp(&mut b, host), [host]);
        }
        // Contributions to the parent come from all below.
        b.now += CNP_WINDOW;
        assert_eq!(cnp(&mut b, 3), if above { vec![0, 1, 2, 4] } else { vec![] });
        assert_eq!(cnp(&mut b, 4), []);
    }
}

#[test]
fn a_cnp_of_a_reduce_goes_to_all_senders_and_not_to_the_root() {
    for above in [false, true] {
        assert_eq!(cnp(&mut bench(Reduce, 1, above), 1), [0, 2, 3, 4]);
        // Behind the second switch.
        let root = if above { 60 } else { 61 };
        assert_eq!(cnp(&mut bench(Reduce, root, above), 4), [0, 1, 2, 3]);
    }
}

#[test]
fn a_cnp_of_a_broadcast_goes_only_to_the_source() {
    for above in [false, true] {
        let mut b = bench(Broadcast, 2, above);
        for from in [0, 1, 3, 4] {
            b.now += CNP_WINDOW;
            assert_eq!(cnp(&mut b, from), [2]);
        }
        let source = if above { 50 } else { 60 };
        assert_eq!(cnp(&mut bench(Broadcast, source, above), 0), [3]);
    }
}

/// Contract M4.
#[test]
fn a_window_passes_the_cnps_of_the_most_congested_receiver() {
    let mut b = bench(Broadcast, 2, false);
    b.now = CNP_WINDOW;
    let mut passed = 0;
    for from in [0, 1, 3, 0, 1, 3, 0, 0] {
        passed += cnp(&mut b, from).len();
    }
    assert_eq!(passed, 4);
    b.now += CNP_WINDOW;
    assert_eq!(cnp(&mut b, 1), [2], "a new window");
}

#[test]
fn a_mark_causes_a_cnp_to_its_sender() {
    let mut b = bench(AllReduce, 0, true);
    let mut marks = |after: u64| {
        b.now += Nanos(after);
        (0..5)
            .map(|from| told(&b.event(Event::Marked { from: endpoint(from) })))
            .collect::<Vec<_>>()
    };
    let each: Vec<_> = (0..5).map(|from| vec![from]).collect();
    assert_eq!(marks(0), each);
    assert_eq!(marks(CNP_INTERVAL.0 - 1), [[0; 0]; 5]);
    assert_eq!(marks(1), each);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For random events: CNPs go only to members, at most one per interval, and no more in a window than
    /// one receiver has sent or its own frames were marked.
    #[test]
    fn cnps_are_bounded(
        pick in 0usize..3, root in prop::sample::select(vec![0u16, 1, 2, 50, 60, 61]), above: bool,
        events in prop::collection::vec((0usize..7, any::<bool>(), 0u64..200_000), 1..300),
    ) {
        let mut b = bench([AllReduce, Reduce, Broadcast][pick], root, above);
        let mut last: BTreeMap<usize, Nanos> = BTreeMap::new();
        let (mut window, mut said, mut passed, mut marks) = (0, [0u32; 7], [0u32; 7], [0u32; 7]);
        for (from, is_cnp, after) in events {
            b.now += Nanos(after);
            if b.now.0 / CNP_WINDOW.0 != window {
                (window, said, passed, marks) = (b.now.0 / CNP_WINDOW.0, [0; 7], [0; 7], [0; 7]);
            }
            let from_id = endpoint(from);
            let effects = if is_cnp {
                said[from] += 1;
                b.event(Event::Cnp { from: from_id })
            } else {
                marks[from] += 1;
                b.event(Event::Marked { from: from_id })
            };
            for to in told(&effects) {
                prop_assert!(from < 5 && to < 5, "only members: {} told of {}", to, from);
                if let Some(before) = last.insert(to, b.now) {
                    prop_assert!(b.now >= before + CNP_INTERVAL);
                }
                passed[to] += 1;
                let most = said.iter().max().copied().unwrap_or_default();
                prop_assert!(passed[to] <= most + marks[to], "{:?} {:?} {:?}", said, passed, marks);
            }
        }
    }
}
