//! What a task moves, how it is cut into calls, and by which algorithm a Broadcast goes.

use castnet_wire::control::{Call, CallFlags, DataType, Operation, Primitive};
use proptest::prelude::*;

use super::super::schedule::schedule;
use super::super::task::{CALL_PACKETS_MAX, Cut, wire_calls};
use super::super::{BroadcastAlgorithm, Collective, Task};

const ROOT: u16 = 2;
const SIZE: u16 = 4;

fn all() -> [Collective; 6] {
    [
        Collective::AllReduce,
        Collective::Reduce { root: ROOT },
        Collective::Broadcast { root: ROOT },
        Collective::Barrier,
        Collective::ReduceScatter,
        Collective::AllGather,
    ]
}

fn task(collective: Collective, elements: u64) -> Task {
    Task {
        collective,
        operation: Operation::Max,
        data_type: DataType::I32,
        flags: CallFlags::NONE,
        elements,
    }
}

/// EPIC, appendix A, in bytes of three elements: what the root and the others give and get.
#[test]
fn each_rank_gives_and_gets_what_the_collective_says() {
    let rows = [
        ([12, 12], [12, 12]),
        ([12, 12], [12, 0]),
        ([12, 0], [0, 12]),
        ([0, 0], [0, 0]),
        ([48, 48], [12, 12]),
        ([12, 12], [48, 48]),
    ];
    for (collective, (gives, gets)) in all().into_iter().zip(rows) {
        let elements = if collective == Collective::Barrier { 0 } else { 3 };
        let task = task(collective, elements);
        let ranks = [ROOT, ROOT + 1];
        assert_eq!(
            ranks.map(|rank| task.input_bytes(rank, SIZE)),
            gives,
            "{collective:?}"
        );
        assert_eq!(
            ranks.map(|rank| task.output_bytes(rank, SIZE)),
            gets,
            "{collective:?}"
        );
    }
}

#[test]
fn only_sums_of_something_are_computed_in_the_order_of_ranks() {
    for (collective, adds) in all().into_iter().zip([true, true, false, false, true, false]) {
        for (flags, elements) in [
            (CallFlags::REPRODUCIBLE, 1),
            (CallFlags::REPRODUCIBLE, 0),
            (CallFlags::NONE, 1),
        ] {
            let task = Task {
                flags,
                ..task(collective, elements)
            };
            let wanted = adds && flags == CallFlags::REPRODUCIBLE && elements == 1;
            assert_eq!(
                task.is_in_rank_order(),
                wanted,
                "{collective:?} {flags:?} {elements}"
            );
        }
    }
}

/// The calls of all ranks agree, their blocks are those of the task, and each byte of a block is in one call.
fn check(task: &Task, size: u16, cut: Cut) -> Result<(), TestCaseError> {
    let of = |rank| wire_calls(task, rank, size, cut).collect::<Vec<_>>();
    let calls = of(0);
    let (blocks, first) = match task.collective {
        Collective::ReduceScatter | Collective::AllGather => (size, 0),
        Collective::Reduce { root } | Collective::Broadcast { root } => (1, root),
        Collective::AllReduce | Collective::Barrier => (1, 0),
    };
    let mut done = vec![0; usize::from(first + blocks)];
    let all: Vec<_> = (0..size).map(of).collect();
    for (n, wire) in calls.iter().enumerate() {
        let call = wire.call;
        let root = call.root + wire.block;
        for (rank, theirs) in (0..).zip(&all) {
            let theirs = theirs[n];
            prop_assert_eq!(
                (theirs.call, theirs.block, theirs.bytes),
                (call, wire.block, wire.bytes)
            );
            let is_root = rank == root;
            let (sends, receives, adds) = match task.collective {
                Collective::Barrier => (false, false, false),
                Collective::AllReduce => (true, true, false),
                Collective::Reduce { .. } | Collective::ReduceScatter => (!is_root, is_root, is_root),
                Collective::Broadcast { .. } | Collective::AllGather => (is_root, !is_root, false),
            };
            let given = [theirs.sends, theirs.receives, theirs.adds].map(|place| place.is_some());
            prop_assert_eq!(given, [sends, receives, adds]);
        }
        prop_assert!(wire.block < call.roots && root < first + blocks);
        prop_assert!(call.roots <= cut.blocks_max.clamp(1, Call::ROOTS_MAX));
        prop_assert_eq!(call.elements * task.data_type.size() as u64, wire.bytes);
        prop_assert_eq!(u64::from(call.packets), wire.bytes.div_ceil(cut.pmtu));
        prop_assert!(u64::from(call.packets) <= CALL_PACKETS_MAX);
        // One control result lets all blocks of a call into the window.
        let packets = |roots: u16| u64::from(roots) * u64::from(call.packets);
        prop_assert!(call.roots == 1 || packets(call.roots) <= cut.window_packets);
        // As many as fit share a call, but for the last. Without data there is nothing to share.
        let is_full = call.packets == 0
            || packets(call.roots + 1) > cut.window_packets
            || call.roots == cut.blocks_max.clamp(1, Call::ROOTS_MAX)
            || call.root + call.roots == first + blocks;
        prop_assert!(is_full, "{call:?} {cut:?}");
        let summed = call.primitive != Primitive::Broadcast && task.bytes() > 0;
        prop_assert_eq!(
            call.operation,
            if summed { task.operation } else { Operation::Sum }
        );
        done[usize::from(root)] += wire.bytes;
    }
    let wanted: Vec<u64> = (0..first + blocks)
        .map(|n| if n < first { 0 } else { task.bytes() })
        .collect();
    prop_assert_eq!(done, wanted);
    prop_assert!(!calls.is_empty(), "ranks must agree on an empty call");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_calls_of_a_task_cover_it_once(
        pick in 0_usize..6, elements in 0_u64..4000, size in 3_u16..12,
        pmtu in prop::sample::select(vec![256_u64, 1024, 4096]), window_packets in 1_u64..70, blocks_max in 0_u16..40,
    ) {
        let collective = all()[pick];
        let elements = if collective == Collective::Barrier { 0 } else { elements };
        check(&task(collective, elements), size, Cut { pmtu, window_packets, blocks_max })?;
    }
}

/// The longest task of one call, and one element more.
#[test]
fn a_task_of_more_packets_than_a_call_has_takes_two() {
    let cut = Cut {
        pmtu: 256,
        window_packets: 64,
        blocks_max: 8,
    };
    let most = CALL_PACKETS_MAX * 256 / 4;
    for (elements, packets) in [
        (most - 1, vec![CALL_PACKETS_MAX]),
        (most, vec![CALL_PACKETS_MAX]),
        (most + 1, vec![CALL_PACKETS_MAX, 1]),
    ] {
        let task = task(Collective::AllReduce, elements);
        let calls = wire_calls(&task, 1, SIZE, cut);
        let is: Vec<_> = calls.map(|wire| u64::from(wire.call.packets)).collect();
        assert_eq!(is, packets, "{elements}");
        check(&task, SIZE, cut).unwrap();
    }
}

/// The first number of pieces for which the chain, `pieces + size - 2`, takes less time than the tree, whose root sends each piece to
/// log2(size) children.
#[test]
fn a_long_broadcast_goes_along_a_chain() {
    for (size, first) in [(3_u16, 2), (4, 3), (5, 2), (8, 4), (9, 3), (16, 5)] {
        for pieces in 1..8 {
            let task = Task {
                data_type: DataType::U8,
                ..task(Collective::Broadcast { root: 0 }, 256 * pieces)
            };
            let by = |algorithm| {
                (0..size)
                    .map(|rank| schedule(&task, rank, size, 256, algorithm))
                    .collect::<Vec<_>>()
            };
            let wanted = match pieces >= first {
                true => BroadcastAlgorithm::Chain,
                false => BroadcastAlgorithm::BinomialTree,
            };
            assert!(
                by(BroadcastAlgorithm::ByLength) == by(wanted),
                "{size} ranks, {pieces} pieces: {wanted:?}"
            );
        }
    }
}
