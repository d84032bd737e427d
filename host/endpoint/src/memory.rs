//! Memory regions: bytes with a virtual address, a key and access rights.

use alloc::vec::Vec;
use core::fmt;

use crate::error::{MemoryError, PostError};
use crate::lent::Lent;
use crate::work::LocalSlice;

/// The key of a memory region, used as lkey and rkey, as in rxe. The low byte changes each time a slot is reused, so a
/// stale key matches no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKey(u32);

impl MemoryKey {
    /// A key that matches no region.
    pub const NONE: Self = Self(0);

    /// The key with this value.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The key for local work requests.
    pub const fn lkey(self) -> u32 {
        self.0
    }

    /// The key for remote WRITEs.
    pub const fn rkey(self) -> u32 {
        self.0
    }
}

impl fmt::Display for MemoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Access rights of a region. Local reads are always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Receives may write to the region.
    pub local_write: bool,
    /// Remote WRITEs may write to the region.
    pub remote_write: bool,
    /// A SEND with invalidate may revoke remote writes.
    pub remote_invalidate: bool,
}

impl Access {
    /// For sends.
    pub const READ: Self = Self {
        local_write: false,
        remote_write: false,
        remote_invalidate: false,
    };
    /// For sends and receives.
    pub const LOCAL: Self = Self {
        local_write: true,
        ..Self::READ
    };
    /// For sends, receives and remote WRITEs.
    pub const REMOTE_WRITE: Self = Self {
        remote_write: true,
        ..Self::LOCAL
    };
}

#[derive(Debug)]
enum Bytes {
    Owned(Vec<u8>),
    Lent(Lent),
    /// So many bytes that are not stored.
    Void(u64),
}

/// The payload of a packet from a void region.
static ZEROS: [u8; 4096] = [0; 4096];

impl Bytes {
    /// Empty for a void region.
    fn get(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Lent(lent) => lent.bytes(),
            Self::Void(_) => &[],
        }
    }

    /// `None` if they are lent for sends only.
    fn get_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Owned(bytes) => Some(bytes),
            Self::Lent(lent) => lent.bytes_mut(),
            Self::Void(_) => Some(&mut []),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Void(length) => *length,
            stored => stored.get().len() as u64,
        }
    }
}

#[derive(Debug)]
struct Region {
    va: u64,
    bytes: Bytes,
    access: Access,
}

/// A slot outlives its region so that keys differ between its uses.
#[derive(Debug)]
struct Slot {
    variant: u8,
    region: Option<Region>,
}

#[derive(Debug)]
pub(crate) struct Memory {
    slots: Vec<Slot>,
    free: Vec<usize>,
    max: usize,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Self {
        // A key contains 24 bits of slot index. The keys of slot 0 start at 0x100, because 0 matches no region.
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            max: max.min(0xFF_FFFF),
        }
    }

    pub(crate) fn register(
        &mut self,
        va: u64,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<MemoryKey, MemoryError> {
        if va.checked_add(bytes.len() as u64).is_none() {
            return Err(MemoryError::Wraps {
                va,
                length: bytes.len(),
            });
        }
        let at = self.free_slot()?;
        let bytes = Bytes::Owned(bytes);
        Ok(self.fill(at, Region { va, bytes, access }))
    }

    /// A region for local access, without allocation once as many regions have existed at once. Returns the memory if
    /// there are too many.
    pub(crate) fn lend(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, MemoryError)> {
        let at = match self.free_slot() {
            Ok(at) => at,
            Err(error) => return Err((memory, error)),
        };
        let access = if memory.is_exclusive() {
            Access::LOCAL
        } else {
            Access::READ
        };
        let bytes = Bytes::Lent(memory);
        Ok(self.fill(at, Region { va: 0, bytes, access }))
    }

    pub(crate) fn register_void(&mut self, length: u64, access: Access) -> Result<MemoryKey, MemoryError> {
        let at = self.free_slot()?;
        let bytes = Bytes::Void(length);
        Ok(self.fill(at, Region { va: 0, bytes, access }))
    }

    /// Index of a slot without region, which is not in `free` any more.
    fn free_slot(&mut self) -> Result<usize, MemoryError> {
        match self.free.pop() {
            Some(at) => Ok(at),
            None if self.slots.len() < self.max => {
                self.slots.push(Slot {
                    variant: 0,
                    region: None,
                });
                Ok(self.slots.len() - 1)
            }
            None => Err(MemoryError::TooMany { max: self.max }),
        }
    }

    fn fill(&mut self, at: usize, region: Region) -> MemoryKey {
        let slot = &mut self.slots[at];
        slot.variant = slot.variant.wrapping_add(1);
        slot.region = Some(region);
        MemoryKey((at as u32 + 1) << 8 | slot.variant as u32)
    }

    pub(crate) fn deregister(&mut self, key: MemoryKey) -> Result<Vec<u8>, MemoryError> {
        match self.remove(key, |bytes| matches!(bytes, Bytes::Owned(_)))? {
            Bytes::Owned(bytes) => Ok(bytes),
            Bytes::Lent(_) | Bytes::Void(_) => Err(MemoryError::UnknownKey { key }),
        }
    }

    pub(crate) fn end_lending(&mut self, key: MemoryKey) -> Result<Lent, MemoryError> {
        match self.remove(key, |bytes| matches!(bytes, Bytes::Lent(_)))? {
            Bytes::Lent(lent) => Ok(lent),
            Bytes::Owned(_) | Bytes::Void(_) => Err(MemoryError::UnknownKey { key }),
        }
    }

    /// Removes a region if `is_meant` returns true for its bytes.
    fn remove(
        &mut self,
        key: MemoryKey,
        is_meant: impl FnOnce(&Bytes) -> bool,
    ) -> Result<Bytes, MemoryError> {
        let unknown = MemoryError::UnknownKey { key };
        let at = Self::slot_of(key).ok_or(unknown)?;
        let slot = self.slots.get_mut(at).filter(|s| s.variant == key.0 as u8);
        let region = slot.and_then(|s| s.region.take_if(|region| is_meant(&region.bytes)));
        let region = region.ok_or(unknown)?;
        self.free.push(at);
        Ok(region.bytes)
    }

    fn slot_of(key: MemoryKey) -> Option<usize> {
        (key.0 >> 8).checked_sub(1).map(|at| at as usize)
    }

    fn region(&self, key: MemoryKey) -> Option<&Region> {
        let slot = self.slots.get(Self::slot_of(key)?)?;
        slot.region.as_ref().filter(|_| slot.variant == key.0 as u8)
    }

    fn region_mut(&mut self, key: MemoryKey) -> Option<&mut Region> {
        let slot = self.slots.get_mut(Self::slot_of(key)?)?;
        slot.region.as_mut().filter(|_| slot.variant == key.0 as u8)
    }

    pub(crate) fn bytes(&self, key: MemoryKey) -> Option<&[u8]> {
        self.region(key).map(|r| r.bytes.get())
    }

    pub(crate) fn bytes_mut(&mut self, key: MemoryKey) -> Result<&mut [u8], MemoryError> {
        let region = self.region_mut(key).ok_or(MemoryError::UnknownKey { key })?;
        region.bytes.get_mut().ok_or(MemoryError::ReadOnly { key })
    }

    /// `write` is true for the buffer of a receive.
    pub(crate) fn check_local(&self, slice: LocalSlice, write: bool) -> Result<(), PostError> {
        if slice.length == 0 {
            return Ok(());
        }
        let key = slice.key;
        let region = self.region(key).ok_or(PostError::UnknownKey { key })?;
        slice.check_inside(region.bytes.len())?;
        if write && !region.access.local_write {
            return Err(PostError::NotWritable { key });
        }
        Ok(())
    }

    pub(crate) fn read(&self, key: MemoryKey, offset: u64, length: usize) -> Option<&[u8]> {
        if length == 0 {
            return Some(&[]);
        }
        let from = usize::try_from(offset).ok()?;
        match &self.region(key)?.bytes {
            Bytes::Void(bytes) if offset.checked_add(length as u64)? > *bytes => None,
            Bytes::Void(_) => ZEROS.get(..length),
            stored => stored.get().get(from..from.checked_add(length)?),
        }
    }

    /// `None` if the region does not exist, is too short, or is lent for sends only.
    pub(crate) fn write(&mut self, key: MemoryKey, offset: u64, data: &[u8]) -> Option<()> {
        if data.is_empty() {
            return Some(());
        }
        let from = usize::try_from(offset).ok()?;
        let bytes = &mut self.region_mut(key)?.bytes;
        if let Bytes::Void(length) = bytes {
            return (offset.checked_add(data.len() as u64)? <= *length).then_some(());
        }
        let target = bytes.get_mut()?.get_mut(from..from.checked_add(data.len())?)?;
        target.copy_from_slice(data);
        Some(())
    }

    /// For a remote WRITE of `length` bytes at `va`, if the region allows it.
    pub(crate) fn check_remote(&self, rkey: u32, va: u64, length: u32) -> Option<(MemoryKey, u64)> {
        let key = MemoryKey(rkey);
        let region = self.region(key).filter(|r| r.access.remote_write)?;
        let offset = va.checked_sub(region.va)?;
        let end = offset.checked_add(length as u64)?;
        (end <= region.bytes.len()).then_some((key, offset))
    }

    pub(crate) fn may_invalidate(&self, rkey: u32) -> bool {
        self.region(MemoryKey(rkey))
            .is_some_and(|r| r.access.remote_invalidate)
    }

    /// The owner keeps its access.
    pub(crate) fn invalidate(&mut self, rkey: u32) {
        if let Some(region) = self.region_mut(MemoryKey(rkey)) {
            region.access.remote_write = false;
            region.access.remote_invalidate = false;
        }
    }
}
