//! The event queue.

use std::collections::{BTreeMap, VecDeque};

use castnet_wire::Nanos;

/// Nanoseconds of a bucket, as a power of two.
const WIDTH: u32 = 4;
const BUCKETS: u64 = 4096;

/// When an event is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) at: Nanos,
    /// Among events of the same time.
    order: u64,
}

impl Key {
    /// Of an event that is created now. `source` orders events of the same time that are created at the same time.
    pub(crate) fn new(at: Nanos, now: Nanos, source: u8) -> Self {
        Self {
            at,
            order: now.0 << 8 | u64::from(source),
        }
    }
}

/// Events ordered by their keys; events with the same key keep their order of insertion.
///
/// A calendar queue: a ring of buckets for the next 65 us, in which most events are, the sorted events of the bucket that is being handled,
/// and a tree of all later events. So the cost of an event does not grow with the number of frames in flight.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// The number of the bucket whose events, and all earlier ones, are in `current`.
    bucket: u64,
    current: VecDeque<Entry<E>>,
    /// Events of `current` and of earlier buckets that were inserted while it was handled, sorted.
    fresh: VecDeque<Entry<E>>,
    ring: Box<[Vec<Entry<E>>]>,
    /// Buckets of the ring that have events, one bit each.
    filled: Box<[u64]>,
    in_ring: usize,
    later: BTreeMap<(Key, u64), E>,
    /// Number of the next event of `later`.
    number: u64,
    /// Buffers of empty buckets. A few serve the whole ring, and stay in the cache.
    spare: Vec<Vec<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    key: Key,
    event: E,
}

fn bucket_of(key: Key) -> u64 {
    key.at.0 >> WIDTH
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            bucket: 0,
            current: VecDeque::new(),
            fresh: VecDeque::new(),
            ring: (0..BUCKETS).map(|_| Vec::new()).collect(),
            filled: vec![0; (BUCKETS / 64) as usize].into(),
            in_ring: 0,
            later: BTreeMap::new(),
            number: 0,
            spare: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, key: Key, event: E) {
        let entry = Entry { key, event };
        let bucket = bucket_of(key);
        if bucket <= self.bucket {
            // Nearly always the last one.
            let mut place = self.fresh.len();
            while place > 0 && self.fresh[place - 1].key > key {
                place -= 1;
            }
            self.fresh.insert(place, entry);
        } else if bucket - self.bucket < BUCKETS {
            self.put(bucket, entry);
        } else {
            self.later.insert((key, self.number), entry.event);
            self.number += 1;
        }
    }

    /// Puts an event in a bucket of the ring.
    fn put(&mut self, bucket: u64, entry: Entry<E>) {
        let index = (bucket % BUCKETS) as usize;
        let filled = &mut self.filled[index / 64];
        if *filled >> (index % 64) & 1 == 0 {
            *filled |= 1 << (index % 64);
            self.ring[index] = self.spare.pop().unwrap_or_default();
        }
        self.ring[index].push(entry);
        self.in_ring += 1;
    }

    fn later_bucket(&self) -> Option<u64> {
        self.later.first_key_value().map(|((key, _), _)| bucket_of(*key))
    }

    /// Moves on to the next bucket with events if the current one has none. Not beyond `limit`: later events may be inserted before them.
    fn advance(&mut self, limit: Nanos) {
        if !self.current.is_empty() || !self.fresh.is_empty() {
            return;
        }
        let bucket = self.next_in_ring().or(self.later_bucket());
        let Some(bucket) = bucket.filter(|bucket| *bucket <= limit.0 >> WIDTH) else {
            return;
        };
        self.bucket = bucket;
        let index = (bucket % BUCKETS) as usize;
        let mut entries = Vec::from(core::mem::take(&mut self.current));
        if self.filled[index / 64] >> (index % 64) & 1 != 0 {
            self.filled[index / 64] &= !(1 << (index % 64));
            self.spare.push(entries);
            entries = core::mem::take(&mut self.ring[index]);
            self.in_ring -= entries.len();
        }
        while let Some(bucket) = self.later_bucket()
            && bucket - self.bucket < BUCKETS
            && let Some(((key, _), event)) = self.later.pop_first()
        {
            let entry = Entry { key, event };
            match bucket == self.bucket {
                true => entries.push(entry),
                false => self.put(bucket, entry),
            }
        }
        entries.sort_by_key(|entry| entry.key);
        self.current = entries.into();
    }

    /// The first bucket of the ring that has events.
    fn next_in_ring(&self) -> Option<u64> {
        if self.in_ring == 0 {
            return None;
        }
        let mut bucket = self.bucket + 1;
        loop {
            let index = bucket % BUCKETS;
            let word = self.filled[(index / 64) as usize] >> (index % 64);
            if word != 0 {
                return Some(bucket + u64::from(word.trailing_zeros()));
            }
            bucket += 64 - index % 64;
        }
    }

    /// Whether the next event is one of `fresh`.
    fn is_fresh_next(&self) -> bool {
        match (self.current.front(), self.fresh.front()) {
            (Some(old), Some(new)) => new.key < old.key,
            (old, _) => old.is_none(),
        }
    }

    /// The key of the next event, if it is at `limit` or before.
    pub(crate) fn next(&mut self, limit: Nanos) -> Option<Key> {
        self.advance(limit);
        let next = match self.is_fresh_next() {
            true => self.fresh.front(),
            false => self.current.front(),
        };
        next.map(|entry| entry.key).filter(|key| key.at <= limit)
    }

    /// A time before which there is no event; `None` if there is no event. It is at most a bucket before the next one.
    pub(crate) fn earliest(&self) -> Option<Nanos> {
        let sorted = self.current.front().into_iter().chain(self.fresh.front());
        let first = sorted.map(|entry| entry.key.at).min();
        first.or_else(|| Some(Nanos(self.next_in_ring().or(self.later_bucket())? << WIDTH)))
    }

    pub(crate) fn pop(&mut self) -> Option<(Key, E)> {
        self.advance(Nanos(u64::MAX));
        let next = match self.is_fresh_next() {
            true => self.fresh.pop_front(),
            false => self.current.pop_front(),
        };
        next.map(|entry| (entry.key, entry.event))
    }

    /// An event that probably follows after `skipped` others; `None` if it is not in sight. For hints only.
    pub(crate) fn ahead(&self, skipped: usize) -> Option<&E> {
        let events = match self.is_fresh_next() {
            true => &self.fresh,
            false => &self.current,
        };
        events.get(skipped).map(|entry| &entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {

        /// Against a sorted set: times of the same bucket, of the ring and beyond it, while events are taken.
        #[test]
        fn events_are_stably_sorted(
            steps in prop::collection::vec((any::<bool>(), prop_oneof![0..8_u64, 0..30_000_u64, 0..1_000_000_000_u64], 0..3_u8), 0..200)
        ) {
            let mut queue = EventQueue::new();
            let mut sorted = std::collections::BTreeSet::new();
            let mut now = Nanos::ZERO;
            for (number, (is_push, after, source)) in steps.into_iter().enumerate() {
                if is_push {
                    let key = Key::new(now + Nanos(after), now, source);
                    queue.push(key, number);
                    sorted.insert((key, number));
                    continue;
                }
                let limit = now + Nanos(after);
                let first = sorted.first().map(|(key, _)| *key);
                prop_assert_eq!(queue.next(limit), first.filter(|key| key.at <= limit));
                prop_assert_eq!(
                    queue.earliest().map(|at| at.0 >> WIDTH),
                    first.map(|key| key.at.0 >> WIDTH)
                );
                let popped = queue.pop();
                prop_assert_eq!(popped, sorted.pop_first());
                now = popped.map_or(now, |(key, _)| key.at);
            }
            let rest: Vec<_> = core::iter::from_fn(|| queue.pop()).collect();
            prop_assert_eq!(rest, sorted.into_iter().collect::<Vec<_>>());
        }
    }
}
