//! Rings of descriptors in shared memory. The rules of [`crate::shared`] hold: fields are atomics, each read is a copy.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::shared::Region;

/// Bytes of a ring before its descriptors, and of a descriptor.
pub(super) const RING_HEADER: usize = 128;
pub(super) const DESCRIPTOR: usize = 16;
/// Alignment of a ring in its region, which the atomics need.
pub(super) const RING_ALIGN: usize = 4;
/// Offsets of the fields of a ring.
const COOKIE_AT: usize = 0;
const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;

/// In the flags of a ring: its consumer polls, and needs no event.
const MASK_INTERRUPT: u16 = 1;
/// In the flags of a descriptor: the frame goes on in the next one.
pub(super) const NEXT: u16 = 1;

/// A copy of the fields of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) flags: u16,
    pub(super) region: u16,
    pub(super) length: u32,
    pub(super) offset: u32,
}

/// A ring of descriptors in a region.
#[derive(Debug)]
pub(super) struct Ring {
    /// Keeps the mapping.
    _region: Rc<Region>,
    base: NonNull<u8>,
    /// A power of two of at most 2^14.
    size: u16,
}

impl Ring {
    /// Bytes of a ring.
    pub(super) const fn bytes(log2_size: u8) -> usize {
        RING_HEADER + (DESCRIPTOR << log2_size)
    }

    /// A ring of `1 << log2_size` descriptors. `None` if it is not whole inside the region, or not aligned.
    pub(super) fn new(region: &Rc<Region>, offset: usize, log2_size: u8) -> Option<Self> {
        if log2_size > super::proto::LOG2_RING_MAX || !offset.is_multiple_of(RING_ALIGN) {
            return None;
        }
        Some(Self {
            base: region.at(offset, Self::bytes(log2_size))?,
            _region: region.clone(),
            size: 1 << log2_size,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= RING_HEADER + DESCRIPTOR * usize::from(self.size));
        // SAFETY: the caller is in this type, and passes an offset inside the ring, which is inside the mapping; `self`
        // keeps the mapping. Ring and field are aligned to 4 bytes. All other accesses of this process to these bytes are
        // atomic as well, or, if the peer has said that a frame is where a ring is, copies by the same thread.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast().as_ptr()) }
    }

    #[inline]
    fn half(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset + 2 <= RING_HEADER + DESCRIPTOR * usize::from(self.size));
        // SAFETY: as in `word`, with 2 bytes.
        unsafe { AtomicU16::from_ptr(self.base.add(offset).cast().as_ptr()) }
    }

    pub(super) fn cookie(&self) -> u32 {
        self.word(COOKIE_AT).load(Ordering::Relaxed)
    }

    pub(super) fn set_cookie(&self, cookie: u32) {
        self.word(COOKIE_AT).store(cookie, Ordering::Relaxed);
    }

    /// What the peer has published before its last change of the head is visible.
    #[inline]
    pub(super) fn head(&self) -> u16 {
        self.half(HEAD_AT).load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn set_head(&self, head: u16) {
        self.half(HEAD_AT).store(head, Ordering::Release);
    }

    #[inline]
    pub(super) fn tail(&self) -> u16 {
        self.half(TAIL_AT).load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn set_tail(&self, tail: u16) {
        self.half(TAIL_AT).store(tail, Ordering::Release);
    }

    /// True if the consumer wants an event for what was published before. Contains the fence that pairs with
    /// [`Ring::ask_for_events`].
    #[inline]
    pub(super) fn wants_event(&self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.half(FLAGS_AT).load(Ordering::Relaxed) & MASK_INTERRUPT == 0
    }

    /// The consumer wants an event from now on. It must look at the ring once more before it sleeps: either it sees
    /// what was published before, or the producer sees this.
    pub(super) fn ask_for_events(&self) {
        self.half(FLAGS_AT).store(0, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// The consumer polls.
    pub(super) fn mask_events(&self) {
        self.half(FLAGS_AT).store(MASK_INTERRUPT, Ordering::Relaxed);
    }

    #[inline]
    fn descriptor_at(&self, slot: u16) -> usize {
        RING_HEADER + usize::from(slot & (self.size - 1)) * DESCRIPTOR
    }

    /// Reads each field once.
    #[inline]
    pub(super) fn descriptor(&self, slot: u16) -> Descriptor {
        let at = self.descriptor_at(slot);
        Descriptor {
            flags: self.half(at).load(Ordering::Relaxed),
            region: self.half(at + 2).load(Ordering::Relaxed),
            length: self.word(at + 4).load(Ordering::Relaxed),
            offset: self.word(at + 8).load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(super) fn set_descriptor(&self, slot: u16, descriptor: Descriptor) {
        let at = self.descriptor_at(slot);
        self.half(at).store(descriptor.flags, Ordering::Relaxed);
        self.half(at + 2).store(descriptor.region, Ordering::Relaxed);
        self.word(at + 4).store(descriptor.length, Ordering::Relaxed);
        self.word(at + 8).store(descriptor.offset, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_whole_inside_its_region() {
        let (region, _) = Region::create("test", 8192).unwrap();
        let region = Rc::new(region);
        assert!(Ring::new(&region, 8192 - Ring::bytes(3), 3).is_some());
        for (offset, log2) in [
            (8192 - Ring::bytes(3) + 4, 3),
            (2, 3),
            (0, 9),
            (0, 15),
            (0, 64),
            (usize::MAX - 3, 1),
        ] {
            assert!(Ring::new(&region, offset, log2).is_none(), "{offset}, {log2}");
        }
    }
}
