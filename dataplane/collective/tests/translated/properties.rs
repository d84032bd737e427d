//! Random trees, programs, numbers and networks: what each collective must give, on each event (`check`), and that all ends.

use crate::net::{Net, Setting};
use crate::program::{call, control};
use crate::tree::Tree;
use castnet_collective::LossPolicy;
use castnet_collective::translated::{CollectiveMode, Refusal};
use castnet_wire::{Call, CallFlags, Nanos, Primitive, Psn};
use proptest::prelude::*;

/// Trees of one to four levels, a rank at each of the lowest switches.
fn trees() -> impl Strategy<Value = Tree> {
    (
        proptest::collection::vec(any::<u16>(), 0..6),
        proptest::collection::vec(any::<u16>(), 2..=12),
    )
        .prop_map(|(switches, ranks)| {
            let mut above = vec![None];
            let mut depth = vec![0];
            for pick in switches {
                let candidates: Vec<usize> = (0..above.len()).filter(|&s| depth[s] < 3).collect();
                let up = candidates[usize::from(pick) % candidates.len()];
                above.push(Some(up));
                depth.push(depth[up] + 1);
            }
            // Each switch with nobody below it gets a rank first; if there are too few ranks, switches go.
            let leaves = |above: &[Option<usize>]| -> Vec<usize> {
                (0..above.len()).filter(|s| !above.contains(&Some(*s))).collect()
            };
            while leaves(&above).len() > ranks.len() {
                above.pop();
            }
            let mut at: Vec<usize> = leaves(&above);
            let rest = ranks.len() - at.len();
            at.extend(ranks[..rest].iter().map(|pick| usize::from(*pick) % above.len()));
            // Ranks are in no order along the tree.
            for i in (1..at.len()).rev() {
                at.swap(i, usize::from(ranks[i]) % (i + 1));
            }
            // The root must have two endpoints; a chain above a single switch is no tree that a planner makes.
            let below_root =
                above.iter().filter(|a| **a == Some(0)).count() + at.iter().filter(|s| **s == 0).count();
            if below_root < 2 {
                Tree::star(at.len() as u16)
            } else {
                Tree::new(&above, &at)
            }
        })
}

fn calls(packets: u32) -> impl Strategy<Value = Vec<(u8, u16, u32)>> {
    let size = prop_oneof![1 => Just(0), 3 => 1u32..6, 3 => 1..=packets];
    proptest::collection::vec((0u8..5, any::<u16>(), size), 1..8)
}

fn program(picks: Vec<(u8, u16, u32)>, ranks: u16) -> Vec<Call> {
    let calls = picks.into_iter().map(|(pick, first, packets)| match pick {
        0 => call(Primitive::AllReduce, 0, packets),
        1 => call(Primitive::Reduce, first % ranks, packets),
        2 => call(Primitive::Broadcast, first % ranks, packets),
        _ => {
            let primitive = [Primitive::Reduce, Primitive::Broadcast][usize::from(pick % 2)];
            let root = first % ranks;
            let roots = (first >> 8).clamp(1, (ranks - root).min(Call::ROOTS_MAX));
            Call {
                roots,
                ..call(primitive, root, (packets / u32::from(roots)).max(1))
            }
        }
    });
    calls.collect()
}

fn settings(packets: u32, lost: impl Strategy<Value = u64>) -> impl Strategy<Value = Setting> {
    (
        (any::<u64>(), trees(), calls(packets), lost),
        (1u16..=24, 1u64..4, 2u8..12, any::<u32>()),
        (0u64..40, 0u64..60, 0u8..3, any::<bool>()),
    )
        .prop_map(
            |((seed, tree, picks, lost), (m, windows, collectives, start), (doubled, late, policy, soft))| {
                let calls = program(picks, tree.ranks);
                let mut setting = Setting::new(tree, calls);
                (setting.seed, setting.soft) = (seed, soft);
                setting.message_packets = m;
                setting.window = u64::from(m) * windows + 1;
                setting.slots = (setting.window as u16 * 2).next_power_of_two();
                setting.collectives = (u16::from(collectives) * 2 + 2).next_power_of_two();
                setting.start_psn = Psn::new(if start & 1 == 0 {
                    start
                } else {
                    0u32.wrapping_sub(start % 200)
                });
                setting.lost = lost;
                (setting.doubled, setting.late) = (doubled, late);
                match policy {
                    0 => {}
                    1 => setting.loss = LossPolicy::Reflect,
                    _ => {
                        setting.mode = CollectiveMode::Augmented;
                        // Both pipes together: half of the slots of Mode-II.
                        setting.slots = (setting.slots / 2).max(4);
                    }
                }
                setting
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn all_end_with_each_contribution_once_without_loss(mut setting in settings(120, Just(0))) {
        (setting.doubled, setting.late) = (0, 0);
        setting.mode = CollectiveMode::Translated;
        // Hosts acknowledge at the ends of messages, so this switch is one message behind what they have finished.
        setting.slots = (2 * (setting.window as u16 + setting.message_packets)).next_power_of_two();
        let mut net = Net::new(setting);
        net.finish();
        prop_assert!(net.drops.is_empty(), "{:?}", net.drops);
        for host in &net.hosts {
            prop_assert_eq!((host.repeated, host.naks), (0, 0));
        }
        // Nothing waited for a timer.
        prop_assert!(net.now < Nanos::from_secs(2));
    }

    #[test]
    fn all_end_with_each_contribution_once_whatever_is_lost_doubled_or_late(
        mut setting in settings(60, 0u64..=100),
        straggler in proptest::option::of((0u16..12, 0u64..2000)),
    ) {
        setting.starts = straggler.map(|(rank, at)| (rank, Nanos::from_millis(at))).into_iter().collect();
        Net::new(setting).finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// A rank that breaks a rule of the group is named, and no other; its queue pair ends, and no other does.
    #[test]
    fn who_breaks_a_rule_is_named(
        mut setting in settings(60, 0u64..=100), odd in 0u16..12, cut in proptest::option::of(1u16..=24),
    ) {
        let odd = odd % setting.tree.ranks;
        // One that it surely breaks.
        setting.calls.push(call(Primitive::AllReduce, 0, u32::from(setting.message_packets) + 1));
        let (m, last) = (setting.message_packets, setting.calls.len() - 1);
        match cut {
            Some(cut) if cut != m => {
                let cut = cut.min(setting.window as u16 - 1);
                prop_assume!(cut != m);
                setting.odd_cuts = [(odd, cut)].into();
            }
            _ => {
                let mut calls = setting.calls.clone();
                calls[last].flags = CallFlags::REPRODUCIBLE;
                setting.odd = [(odd, calls)].into();
            }
        }
        let mut net = Net::new(setting);
        while !net.hosts[usize::from(odd)].dead && net.now < Nanos::from_secs(250) && net.step() {}
        prop_assert!(net.hosts[usize::from(odd)].dead, "{}", net.story());
        prop_assert_eq!(net.hosts.iter().filter(|h| h.dead).count(), 1);
        let cuts = !net.setting.odd_cuts.is_empty();
        let [(rank, why)] = net.refused[..] else {
            panic!("{:?}", net.refused);
        };
        prop_assert_eq!((rank, matches!(why, Refusal::Cut { .. })), (odd, cuts));
    }

    /// All switches name the same two ranks, in whatever order they came and whatever was lost on the way.
    #[test]
    fn who_disagrees_is_told_alike_everywhere(
        mut setting in settings(30, 0u64..=50),
        others in proptest::collection::btree_map(0u16..12, 1u32..4, 1..4),
        starts in proptest::collection::btree_map(0u16..12, 0u64..50, 0..6),
    ) {
        let ranks = setting.tree.ranks;
        setting.calls.push(call(Primitive::AllReduce, 0, 5));
        let last = setting.calls.len() - 1;
        for (rank, more) in others {
            let mut calls = setting.calls.clone();
            calls[last] = call(Primitive::AllReduce, 0, 5 + more);
            setting.odd.insert(rank % ranks, calls);
        }
        prop_assume!((0..ranks).any(|rank| setting.odd.get(&rank) != setting.odd.get(&0)));
        setting.starts = starts.into_iter().map(|(rank, at)| (rank, Nanos::from_millis(at))).collect();
        let said = |rank: u16| {
            control(last, rank, setting.odd.get(&rank).unwrap_or(&setting.calls)[last])
        };
        let mut expected = said(0);
        (1..ranks).for_each(|rank| expected.merge(&said(rank)));
        let switches = setting.tree.parent.len();
        let mut net = Net::new(setting);
        while net.conflicts.len() < switches && net.now < Nanos::from_secs(250) && net.step() {}
        net.conflicts.sort_by_key(|c| c.0);
        let everywhere: Vec<_> = (0..switches).map(|switch| (switch, expected)).collect();
        prop_assert_eq!(net.conflicts, everywhere);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn long_ones_too(mut setting in settings(300, 0u64..=20)) {
        setting.message_packets = 33;
        setting.window = 132;
        setting.slots = 512;
        Net::new(setting).finish();
    }
}
