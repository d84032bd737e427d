//! A frame in DPDK's buffers.
//!
//! A frame has one of three shapes:
//! - *Whole*: one segment.
//! - *Shared*: three segments. A head of [`HEAD`] bytes and a tail of [`TAIL`] bytes are its own. Between them are
//!   bytes of a whole frame, which other frames read as well.
//! - *Borrowed*: two segments. A head of [`LENT_HEAD`] bytes is its own. The rest is that of a whole frame.
//!
//! While such frames exist, the whole frame permits writes only to the part of its head and tail that no other reads.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::{ptr, slice};

use castnet_dpdk_sys as sys;
use castnet_port::FrameBuf;

/// See [`FrameBuf::HEAD`].
pub(crate) const HEAD: usize = 128;
pub(crate) const TAIL: usize = 4;
/// A cache line.
pub(crate) const LENT_HEAD: usize = 64;
/// The lowest byte of a whole frame's `usr` word, set when the first other frame starts to read it: how it is lent. The
/// upper bits are the number of references already counted for replicas that are still to be created.
const LENT_WITHOUT_TAIL: u32 = 1;
const LENT_WITH_TAIL: u32 = 2;
const LENT: u32 = 0xFF;
const TO_COME: u32 = 1 << 8;

/// A frame in DPDK's buffers. Dropping it frees them.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

impl Mbuf {
    /// # Safety
    /// `raw` must be a frame of one of the three shapes with no other owner.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    #[inline]
    fn raw(&self) -> &sys::rte_mbuf {
        // SAFETY: this frame owns the buffer. Other threads change only `refcnt` of its header, which is atomic.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn is_whole(&self) -> bool {
        self.raw().nb_segs == 1
    }

    /// True if other frames share this whole frame's body. Other threads can only reduce their number.
    #[inline]
    fn is_lent(&self) -> bool {
        self.raw().refcnt.load(Ordering::Acquire) != 1
    }

    /// True if no other frame uses the last bytes.
    #[inline]
    fn owns_tail(&self) -> bool {
        match self.raw().nb_segs {
            1 => !self.is_lent() || !self.is_lent_with_tail(),
            2 => false,
            _ => true,
        }
    }

    #[inline]
    fn is_lent_with_tail(&self) -> bool {
        self.raw().usr.load(Ordering::Relaxed) & LENT == LENT_WITH_TAIL
    }

    /// True if other frames can borrow its bytes: whole and in its own buffer, so that its reference count covers them.
    #[inline]
    pub(crate) fn can_lend(&self) -> bool {
        self.is_whole() && self.raw().ol_flags & sys::NOT_ITS_OWN == 0
    }

    /// True if the frame can lend, or shares a body itself.
    #[inline]
    pub(crate) fn can_share(&self) -> bool {
        self.can_lend() || self.raw().nb_segs == 3
    }

    #[inline]
    fn first(&self) -> (*mut u8, usize) {
        bytes_of(self.raw())
    }

    /// The segment `hops` after the first.
    #[inline]
    fn later(&self, hops: usize) -> (*mut u8, usize) {
        debug_assert!(!self.is_whole());
        let mut at = self.0.as_ptr();
        for _ in 0..hops {
            // SAFETY: the frame has this many segments and owns them.
            at = unsafe { sys::cn_next(at) };
        }
        // SAFETY: as above.
        bytes_of(unsafe { &*at })
    }

    /// From the start of the frame to the end of its first buffer.
    fn capacity(&self) -> usize {
        let raw = self.raw();
        usize::from(raw.buf_len.saturating_sub(raw.data_off))
    }

    /// New bytes are undefined. Returns false if the buffer is too small, or the frame is not whole or is lent.
    #[inline]
    pub(crate) fn set_length(&mut self, length: usize) -> bool {
        if length > self.capacity() || !self.is_whole() || self.is_lent() {
            return false;
        }
        let Ok(short) = u16::try_from(length) else {
            return false;
        };
        // SAFETY: this frame owns the buffer and no other frame shares it.
        let raw = unsafe { self.0.as_mut() };
        raw.data_len = short;
        raw.pkt_len = u32::from(short);
        true
    }

    /// Fills a new frame. Returns false if `parts` are too long.
    #[inline]
    pub(crate) fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|p| p.len()).sum();
        if !self.set_length(length) {
            return false;
        }
        let (mut to, _) = self.first();
        for part in parts {
            // SAFETY: the buffer has capacity for all parts, has no other owner, and does not contain the
            // parts, because it is not lent while it is borrowed mutably. DPDK's own copy routine is slower
            // in some of its builds.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        true
    }

    /// Returns false if `length` is too large.
    pub(crate) fn fill_zero(&mut self, length: usize) -> bool {
        if !self.set_length(length) {
            return false;
        }
        let (to, length) = self.first();
        // SAFETY: the bytes belong to this frame, which has no other owner.
        unsafe { ptr::write_bytes(to, 0, length) };
        true
    }

    /// Copies `original` into a new frame. Returns false if it is too long.
    #[inline]
    pub(crate) fn copy(&mut self, original: &Self) -> bool {
        if !original.is_whole() {
            return self.fill(&original.segments());
        }
        let (from, length) = original.first();
        if !self.set_length(length) {
            return false;
        }
        let (to, _) = self.first();
        // SAFETY: both slices have `length` bytes and belong to two frames. No thread writes a lent body.
        // Head and tail of `original` are written only through a `&mut` to it.
        unsafe { ptr::copy_nonoverlapping(from, to, length) };
        true
    }

    /// Makes three new, empty frames one that shares this frame's body. They are freed if there is no body to share.
    #[inline]
    pub(crate) fn share(&self, mut parts: [Self; 3]) -> Option<Self> {
        let length = self.length();
        let unfit = parts.iter().any(|p| p.is_lent() || p.capacity() < HEAD);
        if length <= HEAD + TAIL || unfit || !self.can_share() {
            return None;
        }
        if !self.is_lent() {
            self.raw().usr.store(LENT_WITHOUT_TAIL, Ordering::Relaxed);
        }
        let own = self.first().0;
        let (tail, _) = self.tail();
        for (part, (from, bytes)) in parts.iter_mut().step_by(2).zip([(own, HEAD), (tail, TAIL)]) {
            let to = part.first().0;
            // SAFETY: this frame is longer than head and tail together, and the new frame has capacity for either.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
        let [head, body, tail] = parts.map(|p| {
            let raw = p.0.as_ptr();
            std::mem::forget(p);
            raw
        });
        // SAFETY: all three are new, have one segment and no other owner. No reference of ours covers the
        // fields that change: `cn_share` counts atomically, and no `&` is held over the call.
        unsafe {
            sys::cn_share(head, body, tail, self.0.as_ptr(), HEAD as u16, TAIL as u16);
            Some(Self(NonNull::new_unchecked(head)))
        }
    }

    /// Counts this borrower and `to_come` further ones, or uses a reference that was counted before. Returns false and
    /// counts nothing if the body is lent without the tail.
    #[inline]
    fn count_borrower(&self, to_come: u16) -> bool {
        let (usr, refcnt) = (&self.raw().usr, &self.raw().refcnt);
        let promised = TO_COME * u32::from(to_come);
        if !self.is_lent() {
            usr.store(LENT_WITH_TAIL | promised, Ordering::Relaxed);
            // No other thread can change the count yet.
            refcnt.store(to_come + 2, Ordering::Relaxed);
            return true;
        }
        let note = usr.load(Ordering::Relaxed);
        if note & LENT != LENT_WITH_TAIL {
            return false;
        }
        if note >= TO_COME {
            usr.store(note - TO_COME, Ordering::Relaxed);
        } else {
            refcnt.fetch_add(to_come + 1, Ordering::Relaxed);
            usr.store(note + promised, Ordering::Relaxed);
        }
        true
    }

    /// Combines two new, empty frames into one that borrows everything of this frame but the head. Exactly `to_come`
    /// further borrowers must follow. `None` if there are no new frames or this frame [cannot lend](Self::can_lend).
    #[inline]
    pub(crate) fn lend(&self, fresh: Option<[Self; 2]>, to_come: u16) -> Option<Self> {
        if self.length() < HEAD + TAIL || !self.can_lend() || !self.count_borrower(to_come) {
            return None;
        }
        let fresh = fresh.filter(|[head, body]| {
            let fresh = |frame: &Self| frame.is_whole() && !frame.is_lent();
            fresh(head) && fresh(body) && head.capacity() >= LENT_HEAD
        });
        let Some([head, body]) = fresh else {
            // This borrower is not created. The whole frame itself counts as one.
            self.raw().refcnt.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        // SAFETY: this frame is longer than the head, and the new frame has capacity for it.
        unsafe { ptr::copy_nonoverlapping(self.first().0, head.first().0, LENT_HEAD) };
        let (front, rest) = (head.0, body.0);
        std::mem::forget((head, body));
        // SAFETY: both are new, have one segment and no other owner. This frame owns its buffer and has
        // counted them. As in `share`, no `&` is held to the fields that change.
        unsafe {
            sys::cn_lend(front.as_ptr(), rest.as_ptr(), self.0.as_ptr(), LENT_HEAD as u16);
        }
        Some(Self(front))
    }

    /// The frame must have at least [`TAIL`] bytes.
    #[inline]
    fn tail(&self) -> (*mut u8, usize) {
        let (start, length) = match self.raw().nb_segs {
            1 => self.first(),
            2 => self.later(1),
            _ => return self.later(2),
        };
        // SAFETY: the frame is at least that long.
        (
            unsafe { start.add(length.saturating_sub(TAIL)) },
            length.min(TAIL),
        )
    }

    /// The bytes at the front that only this frame uses.
    #[inline]
    fn private_head(&self) -> (*mut u8, usize) {
        let (start, length) = self.first();
        match self.is_whole() && self.is_lent() {
            true if self.is_lent_with_tail() => (start, length.min(LENT_HEAD)),
            true => (start, length.min(HEAD)),
            false => (start, length),
        }
    }

    /// A copy of all bytes, for tests and slow paths.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().concat()
    }

    /// 1 (whole), 2 (borrowed) or 3 (shared).
    pub fn segment_count(&self) -> usize {
        usize::from(self.raw().nb_segs)
    }
}

#[inline]
fn bytes_of(segment: &sys::rte_mbuf) -> (*mut u8, usize) {
    // SAFETY: DPDK keeps `data_off` within the buffer.
    let start = unsafe { segment.buf_addr.add(usize::from(segment.data_off)) };
    (start, usize::from(segment.data_len))
}

// SAFETY: a frame is not bound to a thread, and any thread may free a buffer. Only lent bytes can be reached
// by two threads: through the whole frame in one thread and through its readers in others.
// - No thread writes lent bytes. While the reference count is above one, the whole frame permits writes only to bytes
//   that no other frame reads, according to its `usr` word, which only its owner accesses. Once the owner has seen a
//   count of one (`is_lent`), it stays one: only the owner of the whole frame or of a reader can create another reader,
//   and no reader exists then. A reader made from a reader covers no more bytes than it.
// - The count is atomic (`RTE_MBUF_REFCNT_ATOMIC`, asserted in the shim). A reader that is dropped releases
//   its reads, and `is_lent` acquires them before it permits writes. DPDK's shortcut at a count of one is
//   taken only by a sole owner, and so by one thread.
// - The last owner frees the memory, in any thread.
unsafe impl Send for Mbuf {}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this frame owns the buffers, which are not used afterwards.
        unsafe { sys::cn_free(self.0.as_ptr()) }
    }
}

impl FrameBuf for Mbuf {
    const HEAD: usize = HEAD;

    #[inline]
    fn length(&self) -> usize {
        self.raw().pkt_len as usize
    }

    #[inline]
    fn head(&self) -> &[u8] {
        let (start, length) = self.private_head();
        // SAFETY: the bytes belong to this frame and are written only through a `&mut` to it.
        unsafe { slice::from_raw_parts(start, length) }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let (start, length) = self.private_head();
        // SAFETY: only this frame uses these bytes, and it is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    #[inline]
    fn trailer(&self) -> [u8; 4] {
        if self.length() < TAIL {
            return [0; 4];
        }
        let (start, _) = self.tail();
        // SAFETY: there are four bytes, which are written only through a `&mut` to this frame.
        unsafe { start.cast::<[u8; TAIL]>().read_unaligned() }
    }

    #[inline]
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        if self.length() < TAIL || !self.owns_tail() {
            return;
        }
        let (start, _) = self.tail();
        // SAFETY: there are four bytes, which only this frame uses, and it is borrowed exclusively.
        unsafe { start.cast::<[u8; TAIL]>().write_unaligned(bytes) }
    }

    #[inline]
    fn checksum_good(&self) -> bool {
        self.raw().ol_flags & sys::RX_IP_CKSUM_MASK == sys::RX_IP_CKSUM_GOOD
    }

    #[inline]
    fn segments(&self) -> [&[u8]; 3] {
        let slice = |(start, length): (*mut u8, usize)| {
            // SAFETY: the bytes are in a segment of the frame, which exists while `self` is borrowed. No thread writes
            // the bytes of a body while it is shared. All others are written only through a `&mut` to this frame.
            unsafe { slice::from_raw_parts(start, length) }
        };
        if !self.is_whole() {
            let last = match self.raw().nb_segs {
                2 => &[],
                _ => slice(self.later(2)),
            };
            return [slice(self.first()), slice(self.later(1)), last];
        }
        let whole = slice(self.first());
        if !self.is_lent() {
            return [whole, &[], &[]];
        }
        let (head, rest) = whole.split_at(HEAD.min(whole.len()));
        let (body, tail) = rest.split_at(rest.len().saturating_sub(TAIL));
        [head, body, tail]
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("length", &self.length())
            .field("segments", &self.raw().nb_segs)
            .finish_non_exhaustive()
    }
}
