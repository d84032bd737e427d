//! Host-based algorithms over connections in memory.

use proptest::prelude::*;

use super::super::{BroadcastAlgorithm, ChannelId, Event, Failure, HostBased, HostBasedConfig, Task};
use super::rank::Rank;
use super::{Choices, any_task, expected};

/// Runs the tasks at all ranks until nothing progresses.
fn run(ranks: &mut [Rank], config: HostBasedConfig, tasks: &[Vec<(Task, bool)>], seed: u64) {
    let peers = |rank, size| HostBasedConfig { rank, size, ..config }.peers();
    let mut choices = Choices::new(seed);
    let size = ranks.len() as u16;
    let mut idle = 0;
    while idle < 4000 {
        idle += 1;
        let at = choices.below(ranks.len());
        if ranks[at].tasks.len() < tasks[at].len() && choices.below(3) == 0 {
            let (task, in_place) = tasks[at][ranks[at].tasks.len()];
            ranks[at].start(task, in_place);
            idle = 0;
        }
        if ranks[at].wires.is_empty() {
            continue;
        }
        let channel = choices.below(ranks[at].wires.len());
        if choices.below(2) == 0 {
            // Acknowledges some of the delivered messages.
            let wire = &mut ranks[at].wires[channel];
            let delivered = wire.in_use.len() - wire.sends.len();
            if delivered > 0 {
                let many = 1 + choices.below(delivered);
                let (wr, _) = wire.in_use[many - 1];
                wire.in_use.drain(..many);
                let channel = ChannelId(channel as u16);
                ranks[at].executor.machine.handle(Event::Sent { channel, wr });
                ranks[at].carry_out();
                idle = 0;
            }
            continue;
        }
        let me = ranks[at].number;
        let peer = peers(me, size)[channel];
        let back = peers(peer, size).binary_search(&me).expect("both ways");
        let to = &mut ranks[usize::from(peer)].wires[back];
        if to.receives.is_empty() || ranks[at].wires[channel].sends.is_empty() {
            continue;
        }
        let message = ranks[at].wires[channel].sends.pop_front().expect("a message");
        let to = &mut ranks[usize::from(peer)];
        let slot = to.wires[back].receives.pop_front().expect("a receive");
        to.wires[back].arrived[slot as usize].clone_from(&message.bytes);
        to.executor.machine.handle(Event::Received {
            channel: ChannelId(back as u16),
            slot,
            length: message.bytes.len() as u32,
            immediate: message.immediate,
            head: &message.bytes[..message.bytes.len().min(64)],
        });
        to.carry_out();
        idle = 0;
    }
}

fn ranks(config: HostBasedConfig) -> Vec<Rank> {
    let machine = |rank| HostBased::new(HostBasedConfig { rank, ..config });
    (0..config.size)
        .map(|rank| Rank::new(rank, config.size, Box::new(machine(rank))))
        .collect()
}

fn short_messages(size: u16) -> HostBasedConfig {
    HostBasedConfig {
        message_bytes: 256,
        depth: 2,
        ..HostBasedConfig::new(0, size)
    }
}

fn any_broadcast() -> impl Strategy<Value = BroadcastAlgorithm> {
    prop_oneof![
        Just(BroadcastAlgorithm::ByLength),
        Just(BroadcastAlgorithm::BinomialTree),
        Just(BroadcastAlgorithm::Chain),
        Just(BroadcastAlgorithm::Unicasts),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn every_collective_returns_the_expected_output(
        (size, tasks, places) in (1_u16..10).prop_flat_map(|size| (
            Just(size),
            prop::collection::vec(any_task(size, 400), 1..5),
            prop::collection::vec(any::<bool>(), 5),
        )),
        depth in 1_u32..5,
        message in 64_u32..700,
        broadcast in any_broadcast(),
        in_turn_above in prop_oneof![Just(u32::MAX), 0_u32..700],
        seed: u64,
    ) {
        let config = HostBasedConfig {
            message_bytes: message,
            depth,
            broadcast,
            in_turn_above,
            ..HostBasedConfig::new(0, size)
        };
        let mut all = ranks(config);
        let program: Vec<_> = tasks.iter().copied().zip(places.iter().copied()).collect();
        run(&mut all, config, &vec![program; size.into()], seed);
        for rank in &all {
            prop_assert!(rank.is_done(), "rank {} waits for {:?}", rank.number, rank.executor.machine.waiting_for());
            prop_assert!(rank.executor.machine.is_drained());
            for (number, task) in tasks.iter().enumerate() {
                prop_assert_eq!(rank.tasks[number].result, Some(Ok(())));
                let must = expected(task, number, rank.number, size);
                prop_assert_eq!(rank.output(number), must, "rank {} task {:?}", rank.number, task);
            }
        }
    }
}

#[test]
fn ranks_that_disagree_detect_it() {
    let mut all = ranks(short_messages(4));
    let task = |elements| {
        let task = Task {
            collective: super::super::Collective::AllReduce,
            elements,
            ..Task::BARRIER
        };
        vec![(task, false), (Task::BARRIER, false)]
    };
    run(
        &mut all,
        short_messages(4),
        &[task(100), task(100), task(101), task(100)],
        7,
    );
    // The neighbours of the odd rank detect it. The others wait until their time-outs.
    let seen = |rank: &Rank| matches!(rank.tasks[0].result, Some(Err(Failure::Mismatch { .. })));
    assert!(seen(&all[3]) && all[3].tasks[1].result == Some(Err(Failure::Aborted)));
    assert!(seen(&all[2]));
}

#[test]
fn a_failed_connection_ends_all_tasks() {
    let mut all = ranks(short_messages(3));
    all[0].start(Task::BARRIER, false);
    all[0].executor.machine.handle(Event::Failed {
        channel: ChannelId(0),
        status: castnet_rnic::Status::RetryExceeded,
    });
    all[0].carry_out();
    all[0].start(Task::BARRIER, false);
    let results: Vec<_> = all[0].tasks.iter().map(|t| t.result).collect();
    let status = castnet_rnic::Status::RetryExceeded;
    assert_eq!(
        results,
        [
            Some(Err(Failure::Channel {
                peer: Some(1),
                lane: None,
                status
            })),
            Some(Err(Failure::Aborted))
        ]
    );
}

/// All pieces of one rank go to one peer after the other: never are two of its messages on the way.
#[test]
fn messages_that_wait_for_their_turn_do_not_share_a_link() {
    let task = Task {
        collective: super::super::Collective::Broadcast { root: 0 },
        elements: 600,
        ..Task::BARRIER
    };
    for (in_turn_above, on_the_way) in [(255, 1), (256, 4)] {
        let mut all = ranks(HostBasedConfig {
            in_turn_above,
            broadcast: BroadcastAlgorithm::BinomialTree,
            ..short_messages(4)
        });
        all[0].start(task, false);
        let sends: usize = all[0].wires.iter().map(|wire| wire.sends.len()).sum();
        assert_eq!(
            sends, on_the_way,
            "of messages of 256 bytes, {in_turn_above} without turns"
        );
    }
}

/// The root of a chain sends to one rank, the root of the binomial tree of eight ranks to three.
#[test]
fn a_long_broadcast_is_a_chain_and_a_short_one_a_tree() {
    let children = |size, elements| {
        let mut all = ranks(HostBasedConfig {
            message_bytes: 64,
            ..short_messages(size)
        });
        let task = Task {
            collective: super::super::Collective::Broadcast { root: 0 },
            elements,
            ..Task::BARRIER
        };
        all[0].start(task, true);
        all[0].wires.iter().filter(|wire| !wire.sends.is_empty()).count()
    };
    assert_eq!((children(8, 1), children(8, 10_000)), (3, 1));
    assert_eq!((children(2, 1), children(2, 10_000)), (1, 1));
    assert_eq!((children(3, 1), children(3, 10_000)), (2, 1));
}
