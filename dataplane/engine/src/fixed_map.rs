//! A hash table that never grows: open addressing with linear probing, at most half full, entries shifted back on
//! removal. Keys are 64-bit numbers that are never all ones. A sweep visits a bounded piece of it per call.

use core::hash::BuildHasher;

use foldhash::fast::FixedState;

const FREE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    key: u64,
    value: V,
}

/// A map of at most `capacity` entries; all its memory is taken at the start.
#[derive(Clone, Debug)]
pub(crate) struct FixedMap<V> {
    entries: Box<[Entry<V>]>,
    capacity: usize,
    len: usize,
    hash: FixedState,
    sweep_at: usize,
}

/// The table has no place left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<V: Copy + Default> FixedMap<V> {
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let slots = (capacity.max(1) * 2).next_power_of_two();
        let free = Entry {
            key: FREE,
            value: V::default(),
        };
        Self {
            entries: vec![free; slots].into_boxed_slice(),
            capacity,
            len: 0,
            hash: FixedState::with_seed(seed),
            sweep_at: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        self.hash.hash_one(key) as usize & self.mask()
    }

    /// Where `key` is, or the free place that ends its probe sequence. Ends because half of the places are free.
    #[inline]
    fn probe(&self, key: u64) -> Result<usize, usize> {
        let mut at = self.home(key);
        loop {
            match self.entries[at].key {
                k if k == key => return Ok(at),
                FREE => return Err(at),
                _ => at = (at + 1) & self.mask(),
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&V> {
        self.probe(key).ok().map(|at| &self.entries[at].value)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.probe(key).ok().map(|at| &mut self.entries[at].value)
    }

    /// Sets the value of `key`, which must not be all ones. `Full` where it is new and there is no place.
    pub(crate) fn insert(&mut self, key: u64, value: V) -> Result<(), Full> {
        match self.probe(key) {
            Ok(at) => self.entries[at].value = value,
            Err(_) if self.len >= self.capacity || key == FREE => return Err(Full),
            Err(at) => {
                self.entries[at] = Entry { key, value };
                self.len += 1;
            }
        }
        Ok(())
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: u64) -> Option<V> {
        let at = self.probe(key).ok()?;
        let value = self.entries[at].value;
        self.remove_at(at);
        Some(value)
    }

    /// Frees a place and shifts those after it back, so that every key stays reachable from its home.
    fn remove_at(&mut self, at: usize) {
        let mask = self.mask();
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while self.entries[next].key != FREE {
            let home = self.home(self.entries[next].key);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.entries[hole] = self.entries[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[hole].key = FREE;
        self.len -= 1;
    }

    /// Looks at `places` further places, wrapping round, and removes the entries that `keep` refuses. Each pass over the
    /// whole table visits every entry that stayed in it at least once.
    pub(crate) fn sweep(&mut self, places: usize, mut keep: impl FnMut(u64, &V) -> bool) {
        for _ in 0..places.min(self.entries.len()) {
            let entry = self.entries[self.sweep_at];
            if entry.key != FREE && !keep(entry.key, &entry.value) {
                // Another may have been shifted here: look at this place again next.
                self.remove_at(self.sweep_at);
            } else {
                self.sweep_at = (self.sweep_at + 1) & self.mask();
            }
        }
    }

    /// How many calls of [`FixedMap::sweep`] with `places` make a whole pass.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    /// Removes all entries that `keep` refuses, in one go.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64, &V) -> bool) {
        // A removal may shift an entry from the end of the table over its start: two passes see all.
        for _ in 0..2 {
            let mut at = 0;
            while at < self.entries.len() {
                let entry = self.entries[at];
                if entry.key != FREE && !keep(entry.key, &entry.value) {
                    self.remove_at(at);
                } else {
                    at += 1;
                }
            }
        }
    }

    /// All entries, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.entries
            .iter()
            .filter(|e| e.key != FREE)
            .map(|e| (e.key, &e.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u32),
        Remove(u64),
        Get(u64),
        RetainBelow(u32),
        SweepBelow(usize, u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = 0u64..40;
        prop_oneof![
            4 => (key.clone(), any::<u32>()).prop_map(|(k, v)| Op::Insert(k, v)),
            2 => key.clone().prop_map(Op::Remove),
            2 => key.prop_map(Op::Get),
            1 => any::<u32>().prop_map(Op::RetainBelow),
            1 => (0usize..80, any::<u32>()).prop_map(|(n, v)| Op::SweepBelow(n, v)),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_tree_map_of_bounded_size_does(
            ops in prop::collection::vec(op(), 1..400), capacity in 1usize..24, seed: u64,
        ) {
            let (mut map, mut model) = (FixedMap::new(capacity, seed), BTreeMap::new());
            for op in ops {
                match op {
                    Op::Insert(k, v) => {
                        let fits = model.contains_key(&k) || model.len() < capacity;
                        prop_assert_eq!(map.insert(k, v).is_ok(), fits);
                        if fits {
                            model.insert(k, v);
                        }
                    }
                    Op::Remove(k) => prop_assert_eq!(map.remove(k), model.remove(&k)),
                    Op::Get(k) => prop_assert_eq!(map.get(k), model.get(&k)),
                    Op::RetainBelow(limit) => {
                        map.retain(|_, v| *v < limit);
                        model.retain(|_, v| *v < limit);
                    }
                    Op::SweepBelow(places, limit) => {
                        let before = map.len();
                        map.sweep(places, |_, v| *v < limit);
                        prop_assert!(before - map.len() <= places);
                        model.retain(|k, v| map.get(*k).is_some() || *v < limit);
                    }
                }
                prop_assert_eq!(map.len(), model.len());
                let mut all: Vec<(u64, u32)> = map.iter().map(|(k, v)| (k, *v)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, model.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
            }
        }
    }
}
