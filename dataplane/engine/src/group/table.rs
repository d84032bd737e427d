//! The groups of this engine, found by their McstID.

use core::net::Ipv4Addr;

use castnet_reduce::prefetch;
use castnet_wire::McstId;

use crate::group::context::Context;
use crate::group::install::InstallError;
use crate::tables::fixed_map::FixedMap;

/// No group: no slot of the table of groups has that number.
pub(crate) const NO_GROUP: u32 = u32::MAX;

fn key(address: Ipv4Addr) -> u64 {
    u32::from(address).into()
}

/// No key.
const NONE: (u64, u32) = (u64::MAX, 0);

/// The table. A group keeps its place, a small number, while it is installed.
#[derive(Debug)]
pub(crate) struct Groups {
    index: FixedMap<u32>,
    /// The key that was looked for last, and its slot or [`NO_GROUP`]. No address has all bits set in its upper half, so that stands for none.
    last: (u64, u32),
    places: Vec<Option<Context>>,
    free: Vec<u32>,
    groups_max: usize,
    memory_max: usize,
    memory_used: usize,
}

impl Groups {
    pub(crate) fn new(groups_max: usize, memory_max: usize, seed: u64) -> Self {
        Self {
            index: FixedMap::new(groups_max, seed),
            last: NONE,
            places: Vec::with_capacity(groups_max),
            free: Vec::with_capacity(groups_max),
            groups_max,
            memory_max,
            memory_used: 0,
        }
    }

    #[inline]
    pub(crate) fn find(&self, address: Ipv4Addr) -> Option<u32> {
        self.index.get(key(address)).copied()
    }

    /// The same for frames, which often come several of one group after the other.
    #[inline]
    pub(crate) fn find_next(&mut self, address: Ipv4Addr) -> Option<u32> {
        let key = key(address);
        if self.last.0 != key {
            self.last = (key, self.index.get(key).copied().unwrap_or(NO_GROUP));
        }
        Some(self.last.1).filter(|slot| *slot != NO_GROUP)
    }

    /// Asks for the memory where the index has `address`, and returns where that is.
    #[inline]
    pub(crate) fn prefetch_index(&self, address: Ipv4Addr) -> usize {
        self.index.prefetch(key(address))
    }

    /// As [`Groups::find`], from what [`Groups::prefetch_index`] returned.
    #[inline]
    pub(crate) fn find_from(&self, home: usize, address: Ipv4Addr) -> Option<u32> {
        self.index.get_from(home, key(address)).copied()
    }

    /// Asks for the memory of a slot.
    #[inline]
    pub(crate) fn prefetch_slot(&self, slot: u32) {
        if let Some(slot) = self.places.get(slot as usize) {
            prefetch(slot);
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: u32) -> Option<&mut Context> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// Calls `what` with the group in a slot, where there is one.
    #[inline]
    pub(crate) fn with(&mut self, slot: u32, what: impl FnOnce(&mut Context)) {
        if let Some(group) = self.at_mut(slot) {
            what(group);
        }
    }

    pub(crate) fn get(&self, mcst_id: McstId) -> Option<&Context> {
        self.places.get(self.find(mcst_id.0)? as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&Context> {
        self.places.get(place as usize)?.as_ref()
    }

    /// How many places were ever used.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// Whether `group` fits, beside the others or in place of the one of the same address.
    pub(crate) fn room_for(&self, group: &Context) -> Result<(), InstallError> {
        self.room(group.mcst_id(), group.memory_bytes())
    }

    /// The same for a group of this address that takes so many bytes.
    pub(crate) fn room(&self, mcst_id: McstId, need: usize) -> Result<(), InstallError> {
        let replaced = self.get(mcst_id);
        if replaced.is_none() && self.len() >= self.groups_max {
            return Err(InstallError::GroupsFull { max: self.groups_max });
        }
        let max = self.memory_max;
        let left = (max + replaced.map_or(0, Context::memory_bytes)).saturating_sub(self.memory_used);
        if need > left {
            return Err(InstallError::NoMemory { need, left, max });
        }
        Ok(())
    }

    /// Puts `group` in, for which there must be room; returns its place and the one that it takes the place of.
    pub(crate) fn insert(&mut self, group: Context) -> (u32, Option<Context>) {
        self.last = NONE;
        self.memory_used += group.memory_bytes();
        let key = key(group.mcst_id().0);
        if let Some(place) = self.index.get(key).copied() {
            let old = self.places.get_mut(place as usize).and_then(|p| p.replace(group));
            self.memory_used -= old.as_ref().map_or(0, |g| g.memory_bytes());
            return (place, old);
        }
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(group);
                place
            }
            None => {
                self.places.push(Some(group));
                (self.places.len() - 1) as u32
            }
        };
        // There is room: asked for before.
        let _ = self.index.insert(key, place);
        (place, None)
    }

    /// Takes a group out; returns it and the place that it had.
    pub(crate) fn remove(&mut self, mcst_id: McstId) -> Option<(u32, Context)> {
        self.last = NONE;
        let place = self.index.remove(key(mcst_id.0))?;
        let group = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.memory_used -= group.memory_bytes();
        Some((place, group))
    }

    /// All groups in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Context> {
        self.places.iter().flatten()
    }
}
