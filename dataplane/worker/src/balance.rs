//! Pure decisions on the worker of each group, from the load of the workers and the work of their groups.
//!
//! The load of a worker is measured. The share of a group is estimated: the [`cost`]s of all groups and of the worker's
//! other frames are scaled to the time that the worker was busy.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_wire::{CounterSet, McstId, Nanos, counters};

/// Settings for moving groups between workers automatically.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Interval of the load measurement. A group moves only if its worker was overloaded in two consecutive ones.
    pub interval: Duration,
    /// The load, 0 to 1, from which on a worker is overloaded.
    pub threshold: f64,
}

impl Default for Balance {
    /// An interval of one second and a threshold of 0.9.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            threshold: 0.9,
        }
    }
}

/// Estimated costs in nanoseconds. Only their proportions matter.
mod cost {
    /// A frame from a port, or to or from another worker.
    pub(super) const HANDLED: f64 = 25.0;
    /// A frame that belongs to no group, in the engine.
    pub(super) const OTHER: f64 = 60.0;
    /// A data frame of a multicast group without its copies; and each copy.
    pub(super) const DATA: f64 = 45.0;
    pub(super) const COPY: f64 = 30.0;
    /// A feedback frame, in or out.
    pub(super) const FEEDBACK: f64 = 35.0;
    /// A packet of a collective, in or out, and each of its bytes, which is verified and added, or written.
    pub(super) const PACKET: f64 = 60.0;
    pub(super) const BYTE: f64 = 0.06;
}

counters! {
    /// Work of a group.
    pub(crate) struct GroupWork {
        /// Data frames received.
        data,
        /// Copies sent.
        copies,
        /// ACKs, NAKs and CNPs, in and out.
        feedback,
        /// Packets of collectives, in and out.
        packets,
        /// Bytes of these packets.
        bytes,
        /// All of the group's frames that were received.
        frames_in,
    }
}

impl GroupWork {
    fn cost(&self) -> f64 {
        self.data as f64 * cost::DATA
            + self.copies as f64 * cost::COPY
            + self.feedback as f64 * cost::FEEDBACK
            + self.packets as f64 * cost::PACKET
            + self.bytes as f64 * cost::BYTE
    }
}

/// Work of a worker since its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerWork {
    pub(crate) elapsed: Nanos,
    pub(crate) idle: Nanos,
    /// Received, handed over and taken over.
    pub(crate) handled: u64,
    /// By the engine.
    pub(crate) processed: u64,
    /// Empty if not requested.
    pub(crate) groups: BTreeMap<McstId, GroupWork>,
}

impl WorkerWork {
    /// The load since `before`, 0 to 1.
    pub(crate) fn busy_since(&self, before: &Self) -> f64 {
        let (elapsed, idle) = (self.elapsed.since(before.elapsed), self.idle.since(before.idle));
        if elapsed == Nanos::ZERO {
            0.0
        } else {
            1.0 - (idle.0 as f64 / elapsed.0 as f64).clamp(0.0, 1.0)
        }
    }

    /// Groups that are not in `before` are left out.
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
        let rest = others as f64 * cost::OTHER + handled as f64 * cost::HANDLED;
        let all = rest + work.iter().map(|(_, work)| work.cost()).sum::<f64>();
        let share = |work: &GroupWork| {
            if all > 0.0 { busy * work.cost() / all } else { 0.0 }
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

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerLoad {
    /// The share of time that the worker is busy, 0 to 1.
    pub(crate) busy: f64,
    /// The part of `busy` that each group takes.
    pub(crate) groups: Vec<(McstId, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Advice {
    /// No worker is overloaded, or no move helps.
    Nothing,
    /// Move this group.
    Move { mcst_id: McstId, from: usize, to: usize },
    /// A worker is overloaded mainly by this group, and no other worker could carry it.
    Hot {
        mcst_id: McstId,
        worker: usize,
        share: f64,
    },
}

/// Upper bound of a group's cost at a worker that takes its frames over, relative to that at the receiving worker.
const HAND_OVER_FACTOR: f64 = 1.1;
/// The minimum decrease of the larger of both loads that justifies a move.
const GAIN_MIN: f64 = 0.02;
/// The share of an overloaded worker's load from which on a group is reported as hot.
const HOT_SHARE: f64 = 0.5;

/// Recommends one move, or none: from an overloaded worker, the most loaded first, to the least loaded worker, if
/// afterwards both have less load than the first has now, and the second is not overloaded. Each move therefore reduces
/// the largest load that it changes, so moves end and never reverse.
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
            let (here, there) = (busy - share, workers[to].busy + HAND_OVER_FACTOR * share);
            (there < threshold && here.max(there) < busy - GAIN_MIN).then_some(here.max(there))
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
        if let Some((mcst_id, share)) = largest.copied().filter(|(_, share)| *share >= HOT_SHARE * busy) {
            return Advice::Hot {
                mcst_id,
                worker,
                share,
            };
        }
    }
    Advice::Nothing
}

/// The last measured load of a worker, with an estimate for each group added since. The unit is a twentieth, so that
/// small differences of load do not outweigh the number of groups.
pub(crate) fn expected_load(busy: f64, since: usize, groups: usize) -> u32 {
    /// Assumed for a group that is not measured.
    const GROUP_MIN: f64 = 0.05;
    let known = groups.saturating_sub(since);
    let each = if known == 0 {
        GROUP_MIN
    } else {
        (busy / known as f64).max(GROUP_MIN)
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
    fn one_of_two_hot_groups_moves() {
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
    fn a_group_that_causes_the_load_alone_stays_and_is_reported() {
        let hot = [load(1.0, &[(1, 0.97)]), load(0.1, &[])];
        let reported = Advice::Hot {
            mcst_id: mcst(1),
            worker: 0,
            share: 0.97,
        };
        assert_eq!(advise(&hot, THRESHOLD), reported);
        // The other group on the same worker moves.
        let both = [load(1.0, &[(1, 0.8), (2, 0.15)]), load(0.1, &[])];
        assert!(
            matches!(advise(&both, THRESHOLD), Advice::Move { mcst_id: m, to: 1, .. } if m == mcst(1) || m == mcst(2))
        );
        // No worker has capacity, and no single group causes the load.
        let full = [load(0.95, &[(1, 0.3), (2, 0.3)]), load(0.93, &[])];
        assert_eq!(advise(&full, THRESHOLD), Advice::Nothing);
        assert_eq!(advise(&[load(0.95, &[(1, 0.3)])], THRESHOLD), Advice::Nothing);
        assert_eq!(advise(&[], THRESHOLD), Advice::Nothing);
    }

    #[test]
    fn shares_sum_to_at_most_the_busy_time() {
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
        // A worker without new work has no load, and there is no division by zero.
        let still = now.load_since(&now);
        assert!(still.busy == 0.0 && still.groups.iter().all(|(_, share)| *share == 0.0));
    }

    #[test]
    fn expected_load_orders_workers() {
        assert!(expected_load(0.6, 0, 3) > expected_load(0.1, 0, 10));
        assert_eq!(expected_load(0.0, 0, 0), expected_load(0.04, 0, 7));
        assert!(expected_load(0.2, 2, 2) > expected_load(0.2, 0, 2));
    }

    /// Workers whose groups keep their load wherever they are.
    fn any_workers() -> impl Strategy<Value = Vec<(f64, Vec<f64>)>> {
        let worker = (0.0..0.3, prop::collection::vec(0.0..0.6, 0..6));
        prop::collection::vec(worker, 1..6)
    }

    proptest! {
        /// Under constant load, each move reduces the load of an overloaded worker, overloads no other worker
        /// and reduces the largest load that it changes. The number of moves is small.
        #[test]
        fn moves_reduce_load_and_end(workers in any_workers(), extra in 1.0..1.1) {
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
                prop_assert!(moves <= 100, "moves do not end");
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
