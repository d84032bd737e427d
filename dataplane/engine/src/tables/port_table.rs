//! A bounded table of keys and the ports at which they were seen. If no entry is free, a new key displaces an entry of the port with
//! most entries: the oldest one seen only once, or else the oldest. So a flood of made-up addresses displaces its own entries, and the
//! few stations at other ports stay. Held entries are never displaced. The table never allocates after the start. A look-up touches
//! only the map; the lists change when a key is new, moves or is removed.

use castnet_wire::{Nanos, PortId};

use crate::tables::fixed_map::{FixedMap, Full};

/// Most entries that one sweep removes.
const PER_SWEEP: usize = 256;
/// Most held entries that one displacement finds.
const HELD_PER_DISPLACEMENT: usize = 16;

/// For each port, a list of entries seen once and one of entries seen again; then one of held and one of free entries.
const HELD: usize = 2 * PortId::COUNT;
const FREE: usize = HELD + 1;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    pub(crate) seen: Nanos,
    pub(crate) port: PortId,
    list: u8,
    node: u32,
}

impl<V> Entry<V> {
    /// True if the key was seen at its port more than once, or is held.
    pub(crate) fn is_seen_again(&self) -> bool {
        self.list % 2 == 1 || usize::from(self.list) == HELD
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    before: u32,
    after: u32,
}

/// Circular lists, oldest first. Behind the nodes of the entries there is one end node for each list.
#[derive(Clone, Debug)]
struct Lists {
    nodes: Box<[Node]>,
    ends: usize,
}

impl Lists {
    fn new(capacity: usize) -> Self {
        let alone = |n: usize| Node {
            key: 0,
            before: n as u32,
            after: n as u32,
        };
        let mut lists = Self {
            nodes: (0..=capacity + FREE).map(alone).collect(),
            ends: capacity,
        };
        (0..capacity as u32).for_each(|node| lists.put(node, FREE, 0));
        lists
    }

    fn after(&self, node: usize) -> Option<u32> {
        let after = self.nodes[node].after;
        ((after as usize) < self.ends).then_some(after)
    }

    fn oldest(&self, list: usize) -> Option<u32> {
        self.after(self.ends + list)
    }

    fn key(&self, node: u32) -> u64 {
        self.nodes[node as usize].key
    }

    /// Moves a node to the young end of `list`.
    fn put(&mut self, node: u32, list: usize, key: u64) {
        let Node { before, after, .. } = self.nodes[node as usize];
        self.nodes[before as usize].after = after;
        self.nodes[after as usize].before = before;
        let end = self.ends + list;
        let youngest = self.nodes[end].before;
        self.nodes[node as usize] = Node {
            key,
            before: youngest,
            after: end as u32,
        };
        self.nodes[youngest as usize].after = node;
        self.nodes[end].before = node;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PortTable<V> {
    map: FixedMap<Entry<V>>,
    lists: Lists,
    /// For each port, its entries that are not held.
    counts: [u32; PortId::COUNT],
    pub(crate) ageing: Nanos,
}

impl<V: Copy + Default> PortTable<V> {
    /// An entry expires `ageing` after it was last seen.
    pub(crate) fn new(capacity: usize, ageing: Nanos, seed: u64) -> Self {
        Self {
            map: FixedMap::new(capacity, seed),
            lists: Lists::new(capacity),
            counts: [0; PortId::COUNT],
            ageing,
        }
    }

    /// `of` has the same configuration. Does not allocate.
    pub(crate) fn copy_from(&mut self, of: &Self) {
        self.map.copy_from(&of.map);
        self.lists.nodes.clone_from(&of.lists.nodes);
        self.counts = of.counts;
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.map.is_full()
    }

    /// The entry of `key`, if it was seen within the ageing time.
    #[inline]
    pub(crate) fn get(&self, now: Nanos, key: u64) -> Option<&Entry<V>> {
        self.map
            .get(key)
            .filter(|entry| now.since(entry.seen) < self.ageing)
    }

    /// The entry of `key`, old or not. Its place in the table is not to be changed.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Entry<V>> {
        self.map.get_mut(key)
    }

    /// Records that `key`, never all ones, was seen at `port`. Returns the displaced entry, for which `is_held` is false.
    pub(crate) fn see(
        &mut self,
        now: Nanos,
        key: u64,
        value: V,
        port: PortId,
        is_held: impl Fn(u64, PortId) -> bool,
    ) -> Result<Option<(u64, Entry<V>)>, Full> {
        let again = self.get(now, key).is_some_and(|entry| entry.port == port);
        let known = self.map.get(key).copied();
        let displaced = match known {
            None if self.map.is_full() => Some(self.displace(port, &is_held).ok_or(Full)?),
            _ => None,
        };
        let node = known
            .map(|entry| entry.node)
            .or(self.lists.oldest(FREE))
            .ok_or(Full)?;
        let list = match is_held(key, port) {
            true => HELD,
            false => 2 * port.index() + usize::from(again),
        };
        let entry = Entry {
            value,
            seen: now,
            port,
            list: list as u8,
            node,
        };
        self.map.insert(key, entry)?;
        known.iter().for_each(|before| self.count(before, -1));
        self.count(&entry, 1);
        self.lists.put(node, list, key);
        Ok(displaced)
    }

    fn count(&mut self, entry: &Entry<V>, change: i32) {
        if usize::from(entry.list) != HELD {
            let count = &mut self.counts[entry.port.index()];
            *count = count.wrapping_add_signed(change);
        }
    }

    /// Displaces an entry, to free one for `port`.
    fn displace(&mut self, port: PortId, is_held: impl Fn(u64, PortId) -> bool) -> Option<(u64, Entry<V>)> {
        for _ in 0..HELD_PER_DISPLACEMENT {
            let from = self.victim(port);
            let once = 2 * from.index();
            let node = self.lists.oldest(once).or(self.lists.oldest(once + 1))?;
            let key = self.lists.key(node);
            if !is_held(key, from) {
                return self.remove(key).map(|entry| (key, entry));
            }
            // It has become held since it was last seen.
            if let Some(entry) = self.map.get_mut(key) {
                entry.list = HELD as u8;
            }
            self.counts[from.index()] -= 1;
            self.lists.put(node, HELD, key);
        }
        None
    }

    /// The port with most entries, if `port` has none, or fewer even with one more; otherwise `port`.
    fn victim(&self, port: PortId) -> PortId {
        let (mut most, own) = (port, self.counts[port.index()]);
        let mut count = if own == 0 { 0 } else { own + 1 };
        for (n, other) in self.counts.iter().enumerate() {
            if *other > count {
                (most, count) = (PortId::new(n as u8).unwrap_or(port), *other);
            }
        }
        most
    }

    fn remove(&mut self, key: u64) -> Option<Entry<V>> {
        let entry = self.map.remove(key)?;
        self.count(&entry, -1);
        self.lists.put(entry.node, FREE, 0);
        Some(entry)
    }

    /// Removes a bounded number of entries not seen within the ageing time.
    pub(crate) fn age(&mut self, now: Nanos, mut gone: impl FnMut(u64, &Entry<V>)) {
        let mut left = PER_SWEEP;
        for list in 0..=HELD {
            while let Some(key) = self.lists.oldest(list).map(|node| self.lists.key(node))
                && left > 0
                && self.get(now, key).is_none()
                && let Some(entry) = self.remove(key)
            {
                gone(key, &entry);
                left -= 1;
            }
        }
    }

    /// The whole table can be swept within a quarter of the ageing time.
    pub(crate) fn sweep_interval(&self) -> Nanos {
        let sweeps = self.lists.ends.div_ceil(PER_SWEEP).max(1) as u64;
        Nanos((self.ageing.0 / (4 * sweeps)).clamp(1_000_000, 1_000_000_000))
    }

    /// Removes the entries of the ports for which `is_gone` returns true.
    pub(crate) fn flush(&mut self, is_gone: impl Fn(PortId) -> bool, mut gone: impl FnMut(u64, &Entry<V>)) {
        for list in 0..=HELD {
            let mut next = self.lists.oldest(list);
            while let Some(node) = next {
                next = self.lists.after(node as usize);
                let key = self.lists.key(node);
                if self.map.get(key).is_some_and(|entry| is_gone(entry.port))
                    && let Some(entry) = self.remove(key)
                {
                    gone(key, &entry);
                }
            }
        }
    }

    /// Entries that were last seen so long ago, some of those that are held, and some of each port, the oldest first.
    pub(crate) fn oldest(
        &self,
        now: Nanos,
        since: Nanos,
    ) -> impl Iterator<Item = impl Iterator<Item = (u64, &Entry<V>)>> {
        let of_list = move |list: usize| {
            let next = move |node: &u32| self.lists.after(*node as usize);
            let nodes = std::iter::successors(self.lists.oldest(list), next);
            let entries = nodes.filter_map(move |node| {
                let key = self.lists.key(node);
                Some((key, self.map.get(key)?))
            });
            let old = entries.take_while(move |(_, entry)| now.since(entry.seen) >= since);
            old.take(PER_SWEEP)
        };
        (0..=HELD).rev().map(of_list)
    }

    /// The entries known at `now`, in no particular order.
    pub(crate) fn iter(&self, now: Nanos) -> impl Iterator<Item = (u64, &Entry<V>)> {
        self.map
            .iter()
            .filter(move |(_, entry)| now.since(entry.seen) < self.ageing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGEING: Nanos = Nanos(1000);

    fn port(n: u8) -> PortId {
        PortId::new(n).unwrap_or_default()
    }

    #[derive(Clone, Debug)]
    enum Op {
        See { key: u64, port: u8 },
        Wait(u64),
        Age,
        Flush { port: u8 },
        Hold { below: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            12 => (0u64..40, 0u8..5).prop_map(|(key, port)| Op::See { key, port }),
            2 => (0u64..400).prop_map(Op::Wait),
            1 => Just(Op::Age),
            1 => (0u8..5).prop_map(|port| Op::Flush { port }),
            1 => (0u64..6).prop_map(|below| Op::Hold { below }),
        ]
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Model {
        key: u64,
        port: u8,
        seen: Nanos,
        again: bool,
        held: bool,
    }

    /// The model: all entries in the order in which they were last seen.
    fn see(
        all: &mut Vec<Model>,
        capacity: usize,
        now: Nanos,
        (key, port): (u64, u8),
        held: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, ()> {
        let mut displaced = None;
        let known = all.iter().position(|m| m.key == key).map(|at| all.remove(at));
        if known.is_none() && all.len() == capacity {
            // Held entries are detected when an entry to displace is searched.
            displaced = loop {
                let count = |of: u8| all.iter().filter(|m| m.port == of && !m.held).count();
                let own = if count(port) == 0 { 0 } else { count(port) + 1 };
                let most = (0..5).map(count).max().unwrap_or(0);
                let from = match most > own {
                    true => (0..5).find(|p| count(*p) == most).unwrap_or(port),
                    false => port,
                };
                let oldest = |again| {
                    all.iter()
                        .position(|m| m.port == from && m.again == again && !m.held)
                };
                let at = oldest(false).or_else(|| oldest(true)).ok_or(())?;
                if !held(all[at].key) {
                    break Some(all.remove(at).key);
                }
                let mut entry = all.remove(at);
                entry.held = true;
                all.push(entry);
            };
        }
        let again = known.is_some_and(|m| m.port == port && now.since(m.seen) < AGEING);
        let held = held(key);
        all.push(Model {
            key,
            port,
            seen: now,
            again,
            held,
        });
        Ok(displaced)
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_list(
            ops in prop::collection::vec(op(), 1..400), capacity in 0usize..24, seed: u64,
        ) {
            let (mut table, mut all) = (PortTable::new(capacity, AGEING, seed), Vec::new());
            let (mut now, mut below) = (Nanos(1_000_000), 0);
            for op in ops {
                match op {
                    Op::See { key, port: p } => {
                        let held = |key: u64| key < below;
                        let displaced = table.see(now, key, (), port(p), |key, _| held(key));
                        let expected = see(&mut all, capacity, now, (key, p), held);
                        prop_assert_eq!(displaced.map(|d| d.map(|(key, _)| key)).map_err(drop), expected);
                    }
                    Op::Wait(nanos) => now += Nanos(nanos),
                    Op::Age => {
                        table.age(now, |_, _| {});
                        all.retain(|m| now.since(m.seen) < AGEING || table.map.get(m.key).is_some());
                        // An entry that was found to be held late may lie behind entries that were seen later.
                        prop_assert!(all.iter().all(|m| m.held || now.since(m.seen) < AGEING));
                    }
                    Op::Flush { port: p } => {
                        table.flush(|q| q == port(p), |_, _| {});
                        all.retain(|m| m.port != p);
                    }
                    Op::Hold { below: b } => below = b,
                }
                prop_assert_eq!(table.len(), all.len());
                for m in &all {
                    let entry = table.map.get(m.key).copied().unwrap_or_default();
                    prop_assert_eq!((entry.port, entry.seen), (port(m.port), m.seen));
                    prop_assert_eq!(entry.is_seen_again(), m.again || m.held);
                    let live = now.since(m.seen) < AGEING;
                    prop_assert_eq!(table.get(now, m.key).is_some(), live);
                }
            }
        }
    }

    #[test]
    fn a_flood_displaces_its_own_entries_and_not_those_of_other_ports() {
        let mut table = PortTable::new(100, AGEING, 1);
        let mut see = |key, at| {
            table
                .see(Nanos(1), key, (), port(at), |_, _| false)
                .expect("room")
        };
        // Ten stations at port 0, all seen twice; five at port 1, one of them seen twice.
        (0..10).chain(0..10).for_each(|key| _ = see(key, 0));
        (10..15).chain(10..11).for_each(|key| _ = see(key, 1));
        for key in 1000..50_000 {
            see(key, 1);
        }
        // One more station appears during the flood.
        see(15, 2);
        let kept = |key| table.get(Nanos(1), key).is_some();
        assert!((0..11).all(kept) && (11..15).all(|key| !kept(key)) && kept(15));
        assert_eq!(table.len(), 100);
    }
}
