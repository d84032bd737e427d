//! Timers of the groups: a timer wheel with one node per group slot, all allocated at the start.
//!
//! A group has at most one entry, armed when its machine first has a deadline. Frames may move that deadline, but not the entry: if it
//! expires too early, the group re-arms it. So a frame only checks that its group is armed.

use castnet_wire::Nanos;

/// Tick of the wheel of multicast groups.
pub(crate) const TICK: Nanos = Nanos::from_millis(4);
/// Tick of the wheel of collective groups: their machines tick at a quarter of the hosts' time-out, which may be tens of microseconds.
pub(crate) const FINE_TICK: Nanos = Nanos::from_micros(4);

const SPOKES: usize = 512;
/// Words that hold one bit per spoke.
const WORDS: usize = SPOKES / 64;
const NONE: u32 = u32::MAX;
const IDLE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    spoke: u16,
}

const UNLINKED: Node = Node {
    next: NONE,
    previous: NONE,
    spoke: IDLE,
};

#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    heads: Box<[u32; SPOKES]>,
    /// Spokes that are not empty. A worker polls the next deadline in each iteration.
    busy: [u64; WORDS],
    nodes: Box<[Node]>,
    armed: usize,
    at: u64,
    tick: Nanos,
}

impl Wheel {
    pub(crate) fn new(slots: usize, tick: Nanos) -> Self {
        Self {
            heads: Box::new([NONE; SPOKES]),
            busy: [0; WORDS],
            nodes: vec![UNLINKED; slots].into_boxed_slice(),
            armed: 0,
            at: 0,
            tick,
        }
    }

    pub(crate) fn prefetch_armed(&self) {
        castnet_reduce::prefetch(&self.armed);
    }

    pub(crate) fn is_armed(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|l| l.spoke != IDLE)
    }

    /// Prefetches what [`Wheel::is_armed`] reads.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        if let Some(node) = self.nodes.get(slot as usize) {
            castnet_reduce::prefetch(node);
        }
    }

    /// Expires at most two ticks late, or earlier if the deadline is beyond the reach of the wheel.
    pub(crate) fn arm(&mut self, now: Nanos, slot: u32, deadline: Nanos) {
        if self.is_armed(slot) || slot as usize >= self.nodes.len() {
            return;
        }
        if self.armed == 0 {
            self.at = now.0 / self.tick.0;
        }
        let due = deadline
            .0
            .div_ceil(self.tick.0)
            .clamp(self.at + 1, self.at + SPOKES as u64 - 1);
        let spoke = due as usize % SPOKES;
        self.busy[spoke / 64] |= 1 << (spoke % 64);
        let next = core::mem::replace(&mut self.heads[spoke], slot);
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.previous = slot;
        }
        self.nodes[slot as usize] = Node {
            next,
            previous: NONE,
            spoke: spoke as u16,
        };
        self.armed += 1;
    }

    pub(crate) fn disarm(&mut self, slot: u32) {
        if !self.is_armed(slot) {
            return;
        }
        let node = core::mem::replace(&mut self.nodes[slot as usize], UNLINKED);
        match self.nodes.get_mut(node.previous as usize) {
            Some(previous) => previous.next = node.next,
            None => {
                let spoke = usize::from(node.spoke);
                self.heads[spoke] = node.next;
                if node.next == NONE {
                    self.busy[spoke / 64] &= !(1 << (spoke % 64));
                }
            }
        }
        if let Some(next) = self.nodes.get_mut(node.next as usize) {
            next.previous = node.previous;
        }
        self.armed -= 1;
    }

    /// Removes and returns a slot whose timer has expired, until it returns `None`.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u32> {
        let tick = now.0 / self.tick.0;
        match self.next().filter(|next| *next <= tick) {
            Some(next) => {
                self.at = next;
                let slot = self.heads[next as usize % SPOKES];
                self.disarm(slot);
                Some(slot)
            }
            None => {
                self.at = self.at.max(tick);
                None
            }
        }
    }

    pub(crate) fn poll(&self) -> Option<Nanos> {
        self.next().map(|tick| Nanos(tick * self.tick.0))
    }

    /// The tick of the first spoke that is not empty, from `at` on.
    fn next(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let start = self.at as usize % SPOKES;
        let from = u64::MAX << (start % 64);
        (0..=WORDS).find_map(|i| {
            let word = (start / 64 + i) % WORDS;
            // The first word is read twice: its bits from the start on, and at the end those before the start.
            let bits = self.busy[word]
                & match i {
                    0 => from,
                    WORDS => !from,
                    _ => u64::MAX,
                };
            let spoke = word * 64 + bits.trailing_zeros() as usize;
            (bits != 0).then(|| self.at + ((spoke + SPOKES - start) % SPOKES) as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Arm { slot: u32, after_ms: u64 },
        Disarm { slot: u32 },
        Wait { ms: u64 },
        ToNext,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0u32..8, 0u64..4000).prop_map(|(slot, after_ms)| Op::Arm { slot, after_ms }),
            1 => (0u32..8).prop_map(|slot| Op::Disarm { slot }),
            2 => (0u64..3000).prop_map(|ms| Op::Wait { ms }),
            2 => Just(Op::ToNext),
        ]
    }

    proptest! {
        /// No timer expires twice or late, near ones do not expire early, and `poll` returns the deadline in time.
        #[test]
        fn each_timer_expires_once_and_in_time(ops in prop::collection::vec(op(), 1..200), start in 0u64..1 << 50) {
            let (mut wheel, mut model, mut now) = (Wheel::new(8, TICK), BTreeMap::new(), Nanos(start));
            for op in ops {
                match op {
                    Op::Arm { slot, after_ms } => {
                        let deadline = now + Nanos::from_millis(after_ms);
                        wheel.arm(now, slot, deadline);
                        // Beyond the reach of the wheel, a timer may expire early.
                        let earliest = if after_ms < 2000 { deadline } else { now };
                        model.entry(slot).or_insert((earliest, deadline));
                    }
                    Op::Disarm { slot } => {
                        wheel.disarm(slot);
                        model.remove(&slot);
                    }
                    Op::Wait { ms } => now += Nanos::from_millis(ms),
                    Op::ToNext => now = wheel.poll().unwrap_or(now).max(now),
                }
                let due_by_poll = wheel.poll().is_some_and(|at| at <= now);
                let mut popped = 0;
                while let Some(slot) = wheel.pop(now) {
                    popped += 1;
                    let (earliest, _) = model.remove(&slot).expect("armed");
                    prop_assert!(now >= earliest, "{slot} came up early");
                }
                prop_assert_eq!(due_by_poll, popped > 0);
                for (slot, (_, deadline)) in &model {
                    prop_assert!(wheel.is_armed(*slot));
                    prop_assert!(now.since(*deadline) < TICK + TICK, "{slot} is late");
                }
                prop_assert_eq!(wheel.poll().is_some(), !model.is_empty());
            }
        }
    }
}
