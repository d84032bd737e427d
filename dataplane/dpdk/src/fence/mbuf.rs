//! A frame in DPDK's buffers.
//!
//! It has one of three shapes. *Whole*: one segment, as it was received, copied or made. *Shared*: three segments, a head of
//! [`HEAD`] bytes and a tail of [`TAIL`] bytes that are its own, and between them the bytes of a whole frame, which other
//! frames read as well. *Borrowed*: two segments, a head of its own of [`LENT_HEAD`] bytes, and all the rest of a whole frame, its
//! last bytes too. While such frames exist, the whole frame gives out only so much of its head and tail for writing as nobody
//! else reads.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::{ptr, slice};

use castnet_dpdk_sys as sys;
use castnet_port::FrameBuf;

/// Bytes of a private head; what [`FrameBuf::HEAD`] promises.
pub(crate) const HEAD: usize = 128;
/// Bytes of a private tail.
pub(crate) const TAIL: usize = 4;
/// Bytes of the private head of a frame that borrows the rest: a cache line.
pub(crate) const LENT_HEAD: usize = 64;
/// What a whole frame notes in its lowest byte when the first other one begins to read it; above that, how many are counted
/// already that are yet to come.
const LENT_WITHOUT_TAIL: u32 = 1;
const LENT_WITH_TAIL: u32 = 2;
const LENT: u32 = 0xFF;
const TO_COME: u32 = 1 << 8;

/// A frame in DPDK's buffers. Dropping it gives them back to their pools.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

impl Mbuf {
    /// # Safety
    /// `raw` is a frame of one of the three shapes, and nobody else's.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    #[inline]
    fn raw(&self) -> &sys::rte_mbuf {
        // SAFETY: it is ours, so it is there. Of its header only `refcnt` changes by others' doing, and that is atomic.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn is_whole(&self) -> bool {
        self.raw().nb_segs == 1
    }

    /// Whether other frames share this whole frame's body. They only ever become fewer by others' doing.
    #[inline]
    fn is_lent(&self) -> bool {
        self.raw().refcnt.load(Ordering::Acquire) != 1
    }

    /// Whether the last bytes are this frame's alone: see the three shapes.
    #[inline]
    fn owns_tail(&self) -> bool {
        match self.raw().nb_segs {
            1 => !self.is_lent() || !self.is_lent_with_tail(),
            2 => false,
            _ => true,
        }
    }

    /// How a frame is lent that is.
    #[inline]
    fn is_lent_with_tail(&self) -> bool {
        self.raw().usr.load(Ordering::Relaxed) & LENT == LENT_WITH_TAIL
    }

    /// Whether other frames can read its bytes: it must be whole, and they its own, so that its reference count tells of them.
    #[inline]
    pub(crate) fn can_lend(&self) -> bool {
        self.is_whole() && self.raw().ol_flags & sys::NOT_ITS_OWN == 0
    }

    /// Whether other frames can read all but its head and tail: as above, or as one that does so itself.
    #[inline]
    pub(crate) fn can_share(&self) -> bool {
        self.can_lend() || self.raw().nb_segs == 3
    }

    /// The first segment.
    #[inline]
    fn first(&self) -> (*mut u8, usize) {
        let raw = self.raw();
        // SAFETY: DPDK keeps `data_off` within the buffer.
        let start = unsafe { raw.buf_addr.add(usize::from(raw.data_off)) };
        (start, usize::from(raw.data_len))
    }

    /// A segment of a shared or borrowed frame that comes after the first.
    #[inline]
    fn later(&self, hops: usize) -> (*mut u8, usize) {
        debug_assert!(!self.is_whole());
        let mut at = self.0.as_ptr();
        for _ in 0..hops {
            // SAFETY: it has as many segments, and they are ours.
            at = unsafe { sys::cn_next(at) };
        }
        // SAFETY: as above, and DPDK keeps `data_off` within the buffer.
        unsafe {
            let raw = &*at;
            (
                raw.buf_addr.add(usize::from(raw.data_off)),
                usize::from(raw.data_len),
            )
        }
    }

    /// Bytes from the frame's first to the end of its first buffer.
    fn room(&self) -> usize {
        let raw = self.raw();
        usize::from(raw.buf_len.saturating_sub(raw.data_off))
    }

    /// Makes a whole frame `length` bytes long, of whatever was there. `false`, and nothing changed, where its buffer does
    /// not hold as many, or it is no whole frame of its own.
    #[inline]
    pub(crate) fn set_length(&mut self, length: usize) -> bool {
        if length > self.room() || !self.is_whole() || self.is_lent() {
            return false;
        }
        let Ok(short) = u16::try_from(length) else {
            return false;
        };
        // SAFETY: it is ours, and no other frame shares it.
        let raw = unsafe { self.0.as_mut() };
        raw.data_len = short;
        raw.pkt_len = u32::from(short);
        true
    }

    /// Makes a fresh frame one of these bytes. `false` where they are too many.
    #[inline]
    pub(crate) fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|p| p.len()).sum();
        if !self.set_length(length) {
            return false;
        }
        let (mut to, _) = self.first();
        for part in parts {
            // SAFETY: there is room for all parts together, nobody else has this memory, and they are not in it, since it is
            // not lent out while we hold it exclusively. DPDK's own copy routine is slower on some of its builds.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        true
    }

    /// Makes a fresh frame one of `length` zeros. `false` where they are too many.
    pub(crate) fn fill_zero(&mut self, length: usize) -> bool {
        if !self.set_length(length) {
            return false;
        }
        let (to, length) = self.first();
        // SAFETY: these bytes are the frame's, and nobody else has it.
        unsafe { ptr::write_bytes(to, 0, length) };
        true
    }

    /// Makes a fresh frame a copy of `original`. `false` where that is too long.
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
        // SAFETY: both are `length` bytes, of two frames. Nobody writes a lent body; head and tail of `original` are
        // written only through a `&mut` to it.
        unsafe { ptr::copy_nonoverlapping(from, to, length) };
        true
    }

    /// Makes three fresh, empty frames one that shares the body of this one. `None` where this one has none: then they are
    /// given back.
    #[inline]
    pub(crate) fn share(&self, mut parts: [Self; 3]) -> Option<Self> {
        let length = self.length();
        let unfit = parts.iter().any(|p| p.is_lent() || p.room() < HEAD);
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
            // SAFETY: this frame is longer than head and tail together, and the fresh one has room for either.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
        let [head, body, tail] = parts.map(|p| {
            let raw = p.0.as_ptr();
            std::mem::forget(p);
            raw
        });
        // SAFETY: all three are fresh, of one segment, and nobody else's. Their header's fields and this one's reference
        // count change under no reference of ours: `cn_share` counts atomically, and we hold no `&` over the call.
        unsafe {
            sys::cn_share(head, body, tail, self.0.as_ptr(), HEAD as u16, TAIL as u16);
            Some(Self(NonNull::new_unchecked(head)))
        }
    }

    /// Counts one more frame that borrows this one's bytes, and `to_come` more in the same go, or takes one of those. `false`,
    /// and nothing is counted, where its body alone is lent.
    #[inline]
    fn count_borrower(&self, to_come: u16) -> bool {
        let (usr, refcnt) = (&self.raw().usr, &self.raw().refcnt);
        let promised = TO_COME * u32::from(to_come);
        if !self.is_lent() {
            usr.store(LENT_WITH_TAIL | promised, Ordering::Relaxed);
            // Nobody else can count as yet.
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

    /// Makes two fresh, empty frames one that borrows all of this one but the head; `to_come` more will, as many and no fewer.
    /// `None` where there are none, or this one [cannot](Self::can_lend) lend that: then what there is is given back.
    #[inline]
    pub(crate) fn lend(&self, fresh: Option<[Self; 2]>, to_come: u16) -> Option<Self> {
        if self.length() < HEAD + TAIL || !self.can_lend() || !self.count_borrower(to_come) {
            return None;
        }
        let fresh = fresh.filter(|[head, body]| {
            let fresh = |frame: &Self| frame.is_whole() && !frame.is_lent();
            fresh(head) && fresh(body) && head.room() >= LENT_HEAD
        });
        let Some([head, body]) = fresh else {
            // This one will not come; the whole frame itself is one more.
            self.raw().refcnt.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        // SAFETY: this frame is longer than the head, and the fresh one has room for it.
        unsafe { ptr::copy_nonoverlapping(self.first().0, head.first().0, LENT_HEAD) };
        let (front, rest) = (head.0, body.0);
        std::mem::forget((head, body));
        // SAFETY: both are fresh, of one segment, and nobody else's; this one is in its own buffer and has counted them. As in
        // `share`, we hold no `&` to what changes.
        unsafe {
            sys::cn_lend(front.as_ptr(), rest.as_ptr(), self.0.as_ptr(), LENT_HEAD as u16);
        }
        Some(Self(front))
    }

    /// The last [`TAIL`] bytes, of a frame that has as many.
    #[inline]
    fn tail(&self) -> (*mut u8, usize) {
        let (start, length) = match self.raw().nb_segs {
            1 => self.first(),
            2 => self.later(1),
            _ => return self.later(2),
        };
        // SAFETY: the frame is as long as that, or longer.
        (
            unsafe { start.add(length.saturating_sub(TAIL)) },
            length.min(TAIL),
        )
    }

    /// Bytes at the front that are this frame's alone.
    #[inline]
    fn private(&self) -> (*mut u8, usize) {
        let (start, length) = self.first();
        match self.is_whole() && self.is_lent() {
            true if self.is_lent_with_tail() => (start, length.min(LENT_HEAD)),
            true => (start, length.min(HEAD)),
            // The first segment of others is their own.
            false => (start, length),
        }
    }

    /// All bytes, copied. For tests and slow paths.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().concat()
    }

    /// Segments of the frame: 1, or 3 where it shares its body, or 2 where it borrows all behind its head.
    pub fn segment_count(&self) -> usize {
        usize::from(self.raw().nb_segs)
    }
}

// SAFETY: nothing of a frame belongs to a thread. DPDK's pools take a buffer back from any, registered or not. What two
// threads can reach at a time is what is lent: by the whole frame in one, and by frames that read it in others.
// - Nobody writes it. While the reference count is above one, the whole frame gives out what no other frame reads, by its
//   note in `usr`, which only its own holder looks at; and once that one has seen a count of one (`is_lent`), it stays one,
//   since only who has the whole frame or a frame that reads it can make another, and of the latter there are none then.
//   What a frame makes of another's body that it reads itself never reads more than that.
// - The count is atomic (`RTE_MBUF_REFCNT_ATOMIC`, asserted in the shim); who gives a share up releases what it has read,
//   and `is_lent` acquires it before it gives out the bytes for writing. DPDK's own short cut at a count of one is a sole
//   holder's, and thus of one thread.
// - The last holder, whichever thread has it, gives the memory back.
unsafe impl Send for Mbuf {}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody's from here on.
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
        let (start, length) = self.private();
        // SAFETY: these bytes are the frame's, and written only through a `&mut` to it.
        unsafe { slice::from_raw_parts(start, length) }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let (start, length) = self.private();
        // SAFETY: these bytes are this frame's alone, and it is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    #[inline]
    fn trailer(&self) -> [u8; 4] {
        if self.length() < TAIL {
            return [0; 4];
        }
        let (start, _) = self.tail();
        // SAFETY: there are four bytes, and they are written only through a `&mut` to this frame.
        unsafe { start.cast::<[u8; TAIL]>().read_unaligned() }
    }

    #[inline]
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        if self.length() < TAIL || !self.owns_tail() {
            return;
        }
        let (start, _) = self.tail();
        // SAFETY: there are four bytes; they are this frame's alone, and it is borrowed exclusively.
        unsafe { start.cast::<[u8; TAIL]>().write_unaligned(bytes) }
    }

    #[inline]
    fn checksum_good(&self) -> bool {
        self.raw().ol_flags & sys::RX_IP_CKSUM_MASK == sys::RX_IP_CKSUM_GOOD
    }

    #[inline]
    fn segments(&self) -> [&[u8]; 3] {
        let slice = |(start, length): (*mut u8, usize)| {
            // SAFETY: the bytes are in a segment of the frame, which lives as long as `self` is borrowed. Those of a body are
            // written by nobody while it is shared, all others only through a `&mut` to this frame.
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
