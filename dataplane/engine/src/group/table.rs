//! The table of the engine's groups, indexed by what frames find them by.

use core::net::Ipv4Addr;

use castnet_reduce::prefetch;
use castnet_wire::McstId;

use crate::address::GroupKey;
use crate::group::context::Context;
use crate::group::install::InstallError;
use crate::tables::fixed_map::FixedMap;

/// No slot has this number.
pub(crate) const NO_GROUP: u32 = u32::MAX;

/// Set beside the slot that data of a static core finds, see [`GroupKey::From`].
pub(crate) const OF_CORE: u32 = 1 << 31;

fn key(address: Ipv4Addr) -> u64 {
    GroupKey::To(address).bits()
}

/// No group has this address.
const NONE: (GroupKey, u32) = (GroupKey::To(Ipv4Addr::UNSPECIFIED), NO_GROUP);

#[derive(Debug)]
pub(crate) struct Groups {
    /// By [`GroupKey`]: slots, those of data of a static core with [`OF_CORE`].
    index: FixedMap<u32>,
    /// The last look-up: the key, and what it found or [`NO_GROUP`].
    last: (GroupKey, u32),
    slots: Vec<Option<Context>>,
    free: Vec<u32>,
    groups_max: usize,
    memory_max: usize,
    memory_used: usize,
}

impl Groups {
    pub(crate) fn new(groups_max: usize, memory_max: usize, seed: u64) -> Self {
        Self {
            index: FixedMap::new(2 * groups_max, seed),
            last: NONE,
            slots: Vec::with_capacity(groups_max),
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

    /// The slot alone.
    #[inline]
    pub(crate) fn find_key(&self, key: GroupKey) -> Option<u32> {
        self.index.get(key.bits()).map(|slot| slot & !OF_CORE)
    }

    /// Caches the look-up: consecutive frames often belong to the same group. [`OF_CORE`] may be set.
    #[inline]
    pub(crate) fn find_next(&mut self, key: GroupKey) -> Option<u32> {
        if self.last.0 != key {
            self.last = (key, self.index.get(key.bits()).copied().unwrap_or(NO_GROUP));
        }
        Some(self.last.1).filter(|slot| *slot != NO_GROUP)
    }

    /// Returns the position of the index entry for [`Groups::find_from`].
    #[inline]
    pub(crate) fn prefetch_index(&self, key: GroupKey) -> usize {
        self.index.prefetch(key.bits())
    }

    /// `home` is the position that [`Groups::prefetch_index`] returned. [`OF_CORE`] may be set.
    #[inline]
    pub(crate) fn find_from(&self, home: usize, key: GroupKey) -> Option<u32> {
        self.index.get_from(home, key.bits()).copied()
    }

    #[inline]
    pub(crate) fn prefetch_slot(&self, slot: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            prefetch(slot);
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut Context> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn with(&mut self, slot: u32, what: impl FnOnce(&mut Context)) {
        if let Some(group) = self.at_mut(slot) {
            what(group);
        }
    }

    pub(crate) fn get(&self, mcst_id: McstId) -> Option<&Context> {
        self.slots.get(self.find(mcst_id.0)? as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&Context> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// Checks that a group of `need` bytes fits, beside the others or as the replacement of the one with this address.
    pub(crate) fn check_capacity(&self, mcst_id: McstId, need: usize) -> Result<(), InstallError> {
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

    /// The capacity has been checked. Returns the slot and the replaced group.
    pub(crate) fn insert(&mut self, group: Context) -> (u32, Option<Context>) {
        self.last = NONE;
        self.memory_used += group.memory_bytes();
        let (key, core) = (key(group.mcst_id().0), group.rule().core_source());
        if let Some(slot) = self.index.get(key).copied() {
            let old = self.slots.get_mut(slot as usize).and_then(|p| p.replace(group));
            self.memory_used -= old.as_ref().map_or(0, |g| g.memory_bytes());
            self.forget_core(slot, old.as_ref());
            self.note_core(slot, core);
            return (slot, old);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(group);
                slot
            }
            None => {
                self.slots.push(Some(group));
                (self.slots.len() - 1) as u32
            }
        };
        let _ = self.index.insert(key, slot);
        self.note_core(slot, core);
        (slot, None)
    }

    fn note_core(&mut self, slot: u32, source: Option<Ipv4Addr>) {
        if let Some(source) = source {
            let _ = self.index.insert(GroupKey::From(source).bits(), slot | OF_CORE);
        }
    }

    fn forget_core(&mut self, slot: u32, group: Option<&Context>) {
        let source = group.and_then(|group| group.rule().core_source());
        let key = source.map(|source| GroupKey::From(source).bits());
        if let Some(key) = key.filter(|key| self.index.get(*key) == Some(&(slot | OF_CORE))) {
            self.index.remove(key);
        }
    }

    pub(crate) fn remove(&mut self, mcst_id: McstId) -> Option<(u32, Context)> {
        self.last = NONE;
        let slot = self.index.remove(key(mcst_id.0))?;
        let group = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.memory_used -= group.memory_bytes();
        self.forget_core(slot, Some(&group));
        Some((slot, group))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Context> {
        self.slots.iter().flatten()
    }
}
