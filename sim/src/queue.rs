//! The event queue.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use castnet_wire::Nanos;

/// Events ordered by time; events of the same time keep their order of insertion.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    count: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Nanos, event: E) {
        let number = self.count;
        self.count += 1;
        self.heap.push(Reverse(Entry { at, number, event }));
    }

    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.0.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn events_are_stably_sorted_by_time(times in proptest::collection::vec(0u64..8, 0..40)) {
            let mut queue = EventQueue::new();
            for (i, at) in times.iter().enumerate() {
                queue.push(Nanos(*at), i);
            }
            let mut sorted: Vec<(Nanos, usize)> = times.iter().enumerate().map(|(i, at)| (Nanos(*at), i)).collect();
            sorted.sort();
            let popped: Vec<(Nanos, usize)> = core::iter::from_fn(|| queue.pop()).collect();
            proptest::prop_assert_eq!(popped, sorted);
        }
    }
}
