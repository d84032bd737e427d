//! The Ethernet addresses of all groups' next hops, each once: a leg names its own by two bytes.

use castnet_wire::MacAddr;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// There is no place for another address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHopsFull;

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    mac: MacAddr,
    users: u32,
}

/// The table: at most `capacity` addresses, counted by how many legs use them.
#[derive(Clone, Debug)]
pub(crate) struct NextHops {
    places: Vec<Place>,
    free: Vec<u16>,
    index: HashMap<[u8; 6], u16, FixedState>,
    capacity: usize,
}

impl NextHops {
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let capacity = capacity.min(1 << 16);
        Self {
            places: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            // Twice the room: a table that is never half full cleans itself up in place.
            index: HashMap::with_capacity_and_hasher(2 * capacity, FixedState::with_seed(seed)),
            capacity,
        }
    }

    /// The address of a place; zeros where there is none.
    pub(crate) fn get(&self, place: u16) -> MacAddr {
        self.places
            .get(usize::from(place))
            .map(|p| p.mac)
            .unwrap_or_default()
    }

    /// Counts one more user of `mac`. `None` where there is no place for another address.
    pub(crate) fn acquire(&mut self, mac: MacAddr) -> Option<u16> {
        if let Some(place) = self.index.get(&mac.0) {
            self.places[usize::from(*place)].users += 1;
            return Some(*place);
        }
        let new = Place { mac, users: 1 };
        let place = match self.free.pop() {
            Some(place) => {
                self.places[usize::from(place)] = new;
                place
            }
            None if self.places.len() < self.capacity => {
                self.places.push(new);
                (self.places.len() - 1) as u16
            }
            None => return None,
        };
        self.index.insert(mac.0, place);
        Some(place)
    }

    /// Counts one more user of each of `macs`, and hands their places to `put`; takes none where one does not fit.
    pub(crate) fn acquire_all(
        &mut self,
        macs: impl Iterator<Item = MacAddr> + Clone,
        mut put: impl FnMut(usize, u16),
    ) -> Result<(), NextHopsFull> {
        for (i, mac) in macs.clone().enumerate() {
            let Some(place) = self.acquire(mac) else {
                for mac in macs.take(i) {
                    let taken = self.index.get(&mac.0).copied();
                    taken.into_iter().for_each(|place| self.release(place));
                }
                return Err(NextHopsFull);
            };
            put(i, place);
        }
        Ok(())
    }

    /// Counts one user less.
    pub(crate) fn release(&mut self, place: u16) {
        let Some(entry) = self.places.get_mut(usize::from(place)).filter(|p| p.users > 0) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            self.index.remove(&entry.mac.0);
            self.free.push(place);
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
    fn an_address_has_one_place_until_its_last_user_is_gone() {
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
