//! Which group should go to which worker: pure, from how busy the workers were and what their groups did.
//!
//! How busy a worker was is measured; how much of that a group took is reckoned. Each thing that a frame makes a worker do
//! has a [price](price) in nanoseconds, of which only the proportions matter: what all groups and the rest of the
//! worker's frames come to is stretched or shrunk to the time that the worker was busy.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_wire::{McstId, Nanos};

/// When groups are moved from worker to worker by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// How often the workers are looked at. Two looks in a row must find a worker overloaded before a group is moved.
    pub interval: Duration,
    /// The share of time, 0 to 1, from which on a busy worker is overloaded.
    pub threshold: f64,
}

impl Default for Balance {
    /// Every second; 0.9.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            threshold: 0.9,
        }
    }
}

/// What things cost on a worker, in nanoseconds: round figures, meant as proportions.
mod price {
    /// A frame from a port, or to another worker, or from there.
    pub(super) const HANDLED: f64 = 25.0;
    /// A frame of no group through the engine.
    pub(super) const OTHER: f64 = 60.0;
    /// A data frame of a multicast group, beside its copies; and each of these.
    pub(super) const DATA: f64 = 45.0;
    pub(super) const COPY: f64 = 30.0;
    /// A frame of feedback, in either direction.
    pub(super) const FEEDBACK: f64 = 35.0;
    /// A packet of a collective, in either direction, and each of its bytes: verified and added, or written.
    pub(super) const PACKET: f64 = 60.0;
    pub(super) const BYTE: f64 = 0.06;
}

/// What a group did, since some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupWork {
    /// Data frames in, and copies of them out.
    pub(crate) data: u64,
    pub(crate) copies: u64,
    /// ACKs, NAKs and CNPs, in and out.
    pub(crate) feedback: u64,
    /// Packets of collectives, in and out, and their bytes.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Of all these, frames that came in.
    pub(crate) frames_in: u64,
}

impl GroupWork {
    fn since(&self, before: &Self) -> Self {
        Self {
            data: self.data.saturating_sub(before.data),
            copies: self.copies.saturating_sub(before.copies),
            feedback: self.feedback.saturating_sub(before.feedback),
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
            frames_in: self.frames_in.saturating_sub(before.frames_in),
        }
    }

    fn price(&self) -> f64 {
        self.data as f64 * price::DATA
            + self.copies as f64 * price::COPY
            + self.feedback as f64 * price::FEEDBACK
            + self.packets as f64 * price::PACKET
            + self.bytes as f64 * price::BYTE
    }
}

/// What a worker did, since its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerWork {
    pub(crate) elapsed: Nanos,
    pub(crate) idle: Nanos,
    /// Frames that it received, handed over and took over.
    pub(crate) handled: u64,
    /// Frames that its engine got.
    pub(crate) processed: u64,
    /// Its groups; empty where they were not asked for.
    pub(crate) groups: BTreeMap<McstId, GroupWork>,
}

impl WorkerWork {
    /// The share of time since `before` that it was busy, 0 to 1.
    pub(crate) fn busy_since(&self, before: &Self) -> f64 {
        let (elapsed, idle) = (self.elapsed.since(before.elapsed), self.idle.since(before.idle));
        if elapsed == Nanos::ZERO {
            0.0
        } else {
            1.0 - (idle.0 as f64 / elapsed.0 as f64).clamp(0.0, 1.0)
        }
    }

    /// How it was loaded since `before`. Groups that it did not have then count as nothing yet.
    pub(crate) fn load_since(&self, before: &Self) -> WorkerLoad {
        let busy = self.busy_since(before);
        let work: Vec<(McstId, GroupWork)> = self
            .groups
            .iter()
            .filter_map(|(mcst_id, now)| Some((*mcst_id, now.since(before.groups.get(mcst_id)?))))
            .collect();
        let in_groups: u64 = work.iter().map(|(_, work)| work.frames_in).sum();
        let others = self
            .processed
            .saturating_sub(before.processed)
            .saturating_sub(in_groups);
        let handled = self.handled.saturating_sub(before.handled);
        let rest = others as f64 * price::OTHER + handled as f64 * price::HANDLED;
        let all = rest + work.iter().map(|(_, work)| work.price()).sum::<f64>();
        let share = |work: &GroupWork| {
            if all > 0.0 { busy * work.price() / all } else { 0.0 }
        };
        WorkerLoad {
            busy,
            groups: work
                .iter()
                .map(|(mcst_id, work)| (*mcst_id, share(work)))
                .collect(),
        }
    }
}

/// How a worker is loaded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerLoad {
    /// The share of time that it is busy, 0 to 1.
    pub(crate) busy: f64,
    /// What of that its groups take.
    pub(crate) groups: Vec<(McstId, f64)>,
}

/// What should be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Advice {
    /// All is well, or nothing would make it better.
    Nothing,
    /// Move a group.
    Move { mcst_id: McstId, from: usize, to: usize },
    /// A worker is overloaded, for the most part by this group alone: no other worker could carry it.
    Hot {
        mcst_id: McstId,
        worker: usize,
        share: f64,
    },
}

/// What a group takes of a worker to which its frames must first be handed over, at most, beside what it takes of the one
/// whose ports they come in by.
const ELSEWHERE: f64 = 1.1;
/// What a move must make the overloaded worker and its new one better by.
const WORTH_IT: f64 = 0.02;
/// The part of an overloaded worker's load from which on a group is what makes it.
const HOT: f64 = 0.5;

/// One move, or none. It takes a group off an overloaded worker, the busiest where there are several, to the one least
/// busy, and only where both are less busy afterwards than the first is now and the second is not overloaded. So of the loads, the
/// largest first, each move makes the first that changes smaller: moves come to an end, and never go back.
pub(crate) fn advise(workers: &[WorkerLoad], threshold: f64) -> Advice {
    let mut overloaded: Vec<usize> = (0..workers.len())
        .filter(|w| workers[*w].busy >= threshold)
        .collect();
    overloaded.sort_by(|a, b| workers[*b].busy.total_cmp(&workers[*a].busy));
    let Some(to) = (0..workers.len()).min_by(|a, b| workers[*a].busy.total_cmp(&workers[*b].busy)) else {
        return Advice::Nothing;
    };
    for from in overloaded.iter().copied().filter(|from| *from != to) {
        let WorkerLoad { busy, groups } = &workers[from];
        let after = |share: f64| {
            let (here, there) = (busy - share, workers[to].busy + ELSEWHERE * share);
            (there < threshold && here.max(there) < busy - WORTH_IT).then_some(here.max(there))
        };
        let best = groups
            .iter()
            .filter_map(|(mcst_id, share)| Some((*mcst_id, after(*share)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((mcst_id, _)) = best {
            return Advice::Move { mcst_id, from, to };
        }
    }
    for worker in overloaded {
        let WorkerLoad { busy, groups } = &workers[worker];
        let largest = groups.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((mcst_id, share)) = largest.copied().filter(|(_, share)| *share >= HOT * busy) {
            return Advice::Hot {
                mcst_id,
                worker,
                share,
            };
        }
    }
    Advice::Nothing
}

/// What each worker is expected to be busy with one group more, for choosing where a new one goes: its load when last
/// looked at, and a guess for each group that it got since. In twentieths, so that small differences do not outweigh how
/// many groups there are.
pub(crate) fn expected(busy: f64, since: usize, groups: usize) -> u32 {
    /// What a group takes of which nothing is known, at least.
    const GUESS: f64 = 0.05;
    let known = groups.saturating_sub(since);
    let each = if known == 0 {
        GUESS
    } else {
        (busy / known as f64).max(GUESS)
    };
    ((busy + since as f64 * each) * 20.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const THRESHOLD: f64 = 0.9;

    fn mcst(n: usize) -> McstId {
        McstId(Ipv4Addr::new(10, 200, 0, n as u8))
    }

    fn load(busy: f64, groups: &[(usize, f64)]) -> WorkerLoad {
        WorkerLoad {
            busy,
            groups: groups.iter().map(|(n, share)| (mcst(*n), *share)).collect(),
        }
    }

    #[test]
    fn two_hot_groups_on_one_worker_part() {
        let workers = [load(0.98, &[(1, 0.48), (2, 0.45)]), load(0.02, &[])];
        let moved = Advice::Move {
            mcst_id: mcst(2),
            from: 0,
            to: 1,
        };
        assert_eq!(advise(&workers, THRESHOLD), moved);
        assert_eq!(
            advise(&[load(0.5, &[(1, 0.48)]), load(0.55, &[(2, 0.5)])], THRESHOLD),
            Advice::Nothing
        );
    }

    #[test]
    fn a_group_that_alone_makes_the_load_stays_and_is_told_of() {
        let hot = [load(1.0, &[(1, 0.97)]), load(0.1, &[])];
        let told = Advice::Hot {
            mcst_id: mcst(1),
            worker: 0,
            share: 0.97,
        };
        assert_eq!(advise(&hot, THRESHOLD), told);
        // What runs beside it goes.
        let both = [load(1.0, &[(1, 0.8), (2, 0.15)]), load(0.1, &[])];
        assert!(
            matches!(advise(&both, THRESHOLD), Advice::Move { mcst_id: m, to: 1, .. } if m == mcst(1) || m == mcst(2))
        );
        // Nowhere to go, and nobody in particular to blame.
        let full = [load(0.95, &[(1, 0.3), (2, 0.3)]), load(0.93, &[])];
        assert_eq!(advise(&full, THRESHOLD), Advice::Nothing);
        assert_eq!(advise(&[load(0.95, &[(1, 0.3)])], THRESHOLD), Advice::Nothing);
        assert_eq!(advise(&[], THRESHOLD), Advice::Nothing);
    }

    #[test]
    fn shares_are_of_the_time_that_the_worker_was_busy() {
        let before = WorkerWork {
            groups: [(mcst(1), GroupWork::default()), (mcst(2), GroupWork::default())].into(),
            ..WorkerWork::default()
        };
        let work = |data| GroupWork {
            data,
            copies: 4 * data,
            feedback: 2 * data,
            frames_in: 2 * data,
            ..GroupWork::default()
        };
        let now = WorkerWork {
            elapsed: Nanos::from_secs(1),
            idle: Nanos::from_millis(200),
            handled: 4000,
            processed: 4000,
            groups: [(mcst(1), work(500)), (mcst(2), work(1500)), (mcst(3), work(9))].into(),
        };
        let load = now.load_since(&before);
        assert!((load.busy - 0.8).abs() < 1e-9);
        let [(_, first), (_, second)] = load.groups[..] else {
            panic!("the third is new: {load:?}")
        };
        assert!((second / first - 3.0).abs() < 1e-9 && first + second < 0.8 && first + second > 0.4);
        // What stands still takes nothing, and nothing is divided by nothing.
        let still = now.load_since(&now);
        assert!(still.busy == 0.0 && still.groups.iter().all(|(_, share)| *share == 0.0));
    }

    #[test]
    fn a_new_group_goes_where_there_is_time() {
        assert!(expected(0.6, 0, 3) > expected(0.1, 0, 10));
        assert_eq!(expected(0.0, 0, 0), expected(0.04, 0, 7));
        assert!(expected(0.2, 2, 2) > expected(0.2, 0, 2));
    }

    /// Loads of workers whose groups keep theirs, whoever has them.
    fn any_workers() -> impl Strategy<Value = Vec<(f64, Vec<f64>)>> {
        let worker = (0.0..0.3, prop::collection::vec(0.0..0.6, 0..6));
        prop::collection::vec(worker, 1..6)
    }

    proptest! {
        /// Under constant load: each move takes load off an overloaded worker and overloads none, of the loads the largest
        /// that changes becomes smaller, and there are few moves before there are none.
        #[test]
        fn moves_help_and_come_to_an_end(workers in any_workers(), extra in 1.0..1.1) {
            let mut next = 0;
            let mut loads: Vec<WorkerLoad> = workers
                .iter()
                .map(|(own, shares)| {
                    let scale = (1.0 - own).min(shares.iter().sum()) / shares.iter().sum::<f64>().max(1e-9);
                    let groups: Vec<_> = shares.iter().map(|s| { next += 1; (mcst(next), s * scale) }).collect();
                    WorkerLoad { busy: own + groups.iter().map(|g| g.1).sum::<f64>(), groups }
                })
                .collect();
            let sorted = |loads: &[WorkerLoad]| {
                let mut busy: Vec<f64> = loads.iter().map(|l| l.busy).collect();
                busy.sort_by(|a, b| b.total_cmp(a));
                busy
            };
            let mut moves = 0;
            while let Advice::Move { mcst_id, from, to } = advise(&loads, THRESHOLD) {
                moves += 1;
                prop_assert!(moves <= 100, "it never ends");
                let (before, was) = (sorted(&loads), loads[from].busy);
                prop_assert!(was >= THRESHOLD);
                let at = loads[from].groups.iter().position(|g| g.0 == mcst_id).unwrap();
                let (_, share) = loads[from].groups.remove(at);
                loads[from].busy -= share;
                loads[to].busy += share * extra;
                loads[to].groups.push((mcst_id, share * extra));
                prop_assert!(loads[to].busy < THRESHOLD);
                prop_assert!(loads[from].busy.max(loads[to].busy) < was);
                prop_assert!(sorted(&loads) < before, "{:?} after {before:?}", sorted(&loads));
            }
        }
    }
}
