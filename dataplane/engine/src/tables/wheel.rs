//! Coarse timers of the groups: a wheel of lists, one place per group, all memory taken at the start.
//!
//! A group has at most one entry, put in when its machine first wants to be woken. While frames move the machine's own
//! deadline on, the entry stays: when it comes up too early the group is asked again and put in anew. So a frame costs
//! a look at whether its group is in the wheel, and nothing else.

use castnet_wire::Nanos;

/// What one step of the wheel of multicast groups covers.
pub(crate) const TICK: Nanos = Nanos::from_millis(4);
/// And of collective groups: their timers keep connections alive and repair what was lost last. A tick of the machine is a
/// quarter of the hosts' time-out, which on a fast network is tens of microseconds.
pub(crate) const FINE_TICK: Nanos = Nanos::from_micros(4);

const SPOKES: usize = 512;
/// Words that hold one bit per spoke.
const WORDS: usize = SPOKES / 64;
const NONE: u32 = u32::MAX;
const IDLE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
    spoke: u16,
}

const UNLINKED: Link = Link {
    next: NONE,
    previous: NONE,
    spoke: IDLE,
};

/// The wheel. Places are numbered from 0.
#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    heads: Box<[u32; SPOKES]>,
    /// The spokes that are not empty: what comes up next is asked for in each round of a worker.
    busy: [u64; WORDS],
    links: Box<[Link]>,
    armed: usize,
    /// The last tick that was looked at.
    at: u64,
    /// What one step covers.
    tick: Nanos,
}

impl Wheel {
    pub(crate) fn new(places: usize, tick: Nanos) -> Self {
        Self {
            heads: Box::new([NONE; SPOKES]),
            busy: [0; WORDS],
            links: vec![UNLINKED; places].into_boxed_slice(),
            armed: 0,
            at: 0,
            tick,
        }
    }

    /// Whether `place` will come up.
    pub(crate) fn is_armed(&self, place: u32) -> bool {
        self.links.get(place as usize).is_some_and(|l| l.spoke != IDLE)
    }

    /// Asks for the memory that [`Wheel::is_armed`] looks at.
    #[inline]
    pub(crate) fn prefetch(&self, place: u32) {
        if let Some(link) = self.links.get(place as usize) {
            castnet_reduce::prefetch(link);
        }
    }

    /// Lets `place` come up at `deadline`, at most two ticks late, or earlier where that is far away.
    pub(crate) fn arm(&mut self, now: Nanos, place: u32, deadline: Nanos) {
        if self.is_armed(place) || place as usize >= self.links.len() {
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
        let next = core::mem::replace(&mut self.heads[spoke], place);
        if let Some(link) = self.links.get_mut(next as usize) {
            link.previous = place;
        }
        self.links[place as usize] = Link {
            next,
            previous: NONE,
            spoke: spoke as u16,
        };
        self.armed += 1;
    }

    /// Takes `place` out.
    pub(crate) fn disarm(&mut self, place: u32) {
        if !self.is_armed(place) {
            return;
        }
        let link = core::mem::replace(&mut self.links[place as usize], UNLINKED);
        match self.links.get_mut(link.previous as usize) {
            Some(previous) => previous.next = link.next,
            None => {
                let spoke = usize::from(link.spoke);
                self.heads[spoke] = link.next;
                if link.next == NONE {
                    self.busy[spoke / 64] &= !(1 << (spoke % 64));
                }
            }
        }
        if let Some(next) = self.links.get_mut(link.next as usize) {
            next.previous = link.previous;
        }
        self.armed -= 1;
    }

    /// Takes one place out that has come up by `now`. Call it until there is none.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u32> {
        let tick = now.0 / self.tick.0;
        match self.next().filter(|next| *next <= tick) {
            Some(next) => {
                self.at = next;
                let place = self.heads[next as usize % SPOKES];
                self.disarm(place);
                Some(place)
            }
            None => {
                self.at = self.at.max(tick);
                None
            }
        }
    }

    /// When the next place comes up.
    pub(crate) fn poll(&self) -> Option<Nanos> {
        self.next().map(|tick| Nanos(tick * self.tick.0))
    }

    /// The tick of the first spoke that is not empty, from `at` on once round.
    fn next(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let start = self.at as usize % SPOKES;
        let from = u64::MAX << (start % 64);
        (0..=WORDS).find_map(|i| {
            let word = (start / 64 + i) % WORDS;
            // The first word comes twice: what is at or after the start, and at last what is before it.
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
        Arm { place: u32, after_ms: u64 },
        Disarm { place: u32 },
        Wait { ms: u64 },
        ToNext,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0u32..8, 0u64..4000).prop_map(|(place, after_ms)| Op::Arm { place, after_ms }),
            1 => (0u32..8).prop_map(|place| Op::Disarm { place }),
            2 => (0u64..3000).prop_map(|ms| Op::Wait { ms }),
            2 => Just(Op::ToNext),
        ]
    }

    proptest! {
        /// Nothing comes up twice or late, what is near does not come up early, and poll tells of it in time.
        #[test]
        fn each_place_comes_up_once_and_in_time(ops in prop::collection::vec(op(), 1..200), start in 0u64..1 << 50) {
            let (mut wheel, mut model, mut now) = (Wheel::new(8, TICK), BTreeMap::new(), Nanos(start));
            for op in ops {
                match op {
                    Op::Arm { place, after_ms } => {
                        let deadline = now + Nanos::from_millis(after_ms);
                        wheel.arm(now, place, deadline);
                        // Beyond the wheel's reach it may come up early.
                        let earliest = if after_ms < 2000 { deadline } else { now };
                        model.entry(place).or_insert((earliest, deadline));
                    }
                    Op::Disarm { place } => {
                        wheel.disarm(place);
                        model.remove(&place);
                    }
                    Op::Wait { ms } => now += Nanos::from_millis(ms),
                    Op::ToNext => now = wheel.poll().unwrap_or(now).max(now),
                }
                let due_by_poll = wheel.poll().is_some_and(|at| at <= now);
                let mut popped = 0;
                while let Some(place) = wheel.pop(now) {
                    popped += 1;
                    let (earliest, _) = model.remove(&place).expect("armed");
                    prop_assert!(now >= earliest, "{place} came up early");
                }
                prop_assert_eq!(due_by_poll, popped > 0);
                for (place, (_, deadline)) in &model {
                    prop_assert!(wheel.is_armed(*place));
                    prop_assert!(now.since(*deadline) < TICK + TICK, "{place} is late");
                }
                prop_assert_eq!(wheel.poll().is_some(), !model.is_empty());
            }
        }
    }
}
