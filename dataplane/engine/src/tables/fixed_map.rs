//! A hash table of fixed size: open addressing with linear probing, at most half full. Removal shifts entries back.

use core::hash::BuildHasher;

use foldhash::fast::FixedState;

const FREE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    key: u64,
    value: V,
}

/// At most `capacity` entries. All memory is allocated at the start.
#[derive(Clone, Debug)]
pub(crate) struct FixedMap<V> {
    entries: Box<[Entry<V>]>,
    capacity: usize,
    len: usize,
    hash: FixedState,
}

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
        }
    }

    /// `of` has the same capacity and seed. Does not allocate.
    pub(crate) fn copy_from(&mut self, of: &Self) {
        self.entries.clone_from(&of.entries);
        self.len = of.len;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    #[inline]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        self.hash.hash_one(key) as usize & self.mask()
    }

    /// The index of `key`, or the free one that ends its probe sequence: at least half of the entries are free.
    #[inline]
    fn probe(&self, key: u64) -> Result<usize, usize> {
        self.probe_from(self.home(key), key)
    }

    #[inline]
    fn probe_from(&self, home: usize, key: u64) -> Result<usize, usize> {
        let mut at = home;
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

    /// Returns the index at which the search begins, for [`FixedMap::get_from`].
    #[inline]
    pub(crate) fn prefetch(&self, key: u64) -> usize {
        let home = self.home(key);
        if let Some(entry) = self.entries.get(home) {
            castnet_reduce::prefetch(entry);
        }
        home
    }

    /// `home` is the index that [`FixedMap::prefetch`] returned.
    #[inline]
    pub(crate) fn get_from(&self, home: usize, key: u64) -> Option<&V> {
        let at = self.probe_from(home & self.mask(), key).ok()?;
        Some(&self.entries[at].value)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.probe(key).ok().map(|at| &mut self.entries[at].value)
    }

    /// `key` must not be all ones. `Full` if it is new and the capacity is used up.
    pub(crate) fn insert(&mut self, key: u64, value: V) -> Result<(), Full> {
        match self.probe(key) {
            Ok(at) => self.entries[at].value = value,
            Err(_) if self.is_full() || key == FREE => return Err(Full),
            Err(at) => {
                self.entries[at] = Entry { key, value };
                self.len += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<V> {
        let at = self.probe(key).ok()?;
        let value = self.entries[at].value;
        self.remove_at(at);
        Some(value)
    }

    /// Shifts the entries after it back, so that every key stays reachable from its home.
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
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = 0u64..40;
        prop_oneof![
            4 => (key.clone(), any::<u32>()).prop_map(|(k, v)| Op::Insert(k, v)),
            2 => key.clone().prop_map(Op::Remove),
            2 => key.prop_map(Op::Get),
        ]
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_bounded_tree_map(
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
                }
                prop_assert_eq!(map.len(), model.len());
                let mut all: Vec<(u64, u32)> = map.iter().map(|(k, v)| (k, *v)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, model.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
            }
        }
    }
}
