//! The Ethernet addresses of all groups' next hops, one entry each. Groups refer to them by a two-byte index.

use castnet_wire::MacAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHopsFull;

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    mac: MacAddr,
    users: u32,
}

/// At most `capacity` addresses, each with the count of its users.
#[derive(Clone, Debug)]
pub(crate) struct NextHops {
    indexes: Vec<Place>,
    free: Vec<u16>,
    index: HashMap<[u8; 6], u16, FixedState>,
    capacity: usize,
}

impl NextHops {
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.min(1 << 16);
        Self {
            indexes: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            // Twice the capacity: a table at most half full rehashes in place and does not grow.
            index: HashMap::with_capacity_and_hasher(2 * capacity, FixedState::with_seed(seed)),
            capacity,
        }
    }

    /// The address of an index; zeros if there is none.
    pub(crate) fn get(&self, index: u16) -> MacAddr {
        self.indexes
            .get(usize::from(index))
            .map(|p| p.mac)
            .unwrap_or_default()
    }

    /// Counts one more user. `None` if the capacity is used up.
    pub(crate) fn acquire(&mut self, mac: MacAddr) -> Option<u16> {
        if let Some(index) = self.index.get(&mac.0) {
            self.indexes[usize::from(*index)].users += 1;
            return Some(*index);
        }
        let new = Place { mac, users: 1 };
        let index = match self.free.pop() {
            Some(index) => {
                self.indexes[usize::from(index)] = new;
                index
            }
            None if self.indexes.len() < self.capacity => {
                self.indexes.push(new);
                (self.indexes.len() - 1) as u16
            }
            None => return None,
        };
        self.index.insert(mac.0, index);
        Some(index)
    }

    /// Counts one more user of each, and calls `put` with the indexes. Acquires none if one does not fit.
    pub(crate) fn acquire_all(
        &mut self,
        macs: impl Iterator<Item = MacAddr> + Clone,
        mut put: impl FnMut(usize, u16),
    ) -> Result<(), NextHopsFull> {
        for (i, mac) in macs.clone().enumerate() {
            let Some(index) = self.acquire(mac) else {
                for mac in macs.take(i) {
                    let taken = self.index.get(&mac.0).copied();
                    taken.into_iter().for_each(|index| self.release(index));
                }
                return Err(NextHopsFull);
            };
            put(i, index);
        }
        Ok(())
    }

    pub(crate) fn release(&mut self, index: u16) {
        let Some(entry) = self.indexes.get_mut(usize::from(index)).filter(|p| p.users > 0) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            self.index.remove(&entry.mac.0);
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn an_address_has_one_index_until_its_last_user_is_gone() {
        let mut hops = NextHops::new(2, 0);
        let a = hops.acquire(mac(1)).expect("place");
        assert_eq!(hops.acquire(mac(1)), Some(a));
        let b = hops.acquire(mac(2)).expect("place");
        assert_eq!(hops.acquire(mac(3)), None);
        assert_eq!((hops.get(a), hops.get(b)), (mac(1), mac(2)));
        hops.release(a);
        assert_eq!(hops.acquire(mac(3)), None);
        hops.release(a);
        hops.release(a);
        assert_eq!(hops.acquire(mac(3)), Some(a));
        assert_eq!((hops.get(a), hops.acquire(mac(4))), (mac(3), None));
    }
}
