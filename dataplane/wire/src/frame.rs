//! The trait of a frame in a buffer: an mbuf, a ring slot or a pool buffer.

use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// Frames that are received, processed and sent together.
pub const BATCH: usize = 32;

/// Up to [`BATCH`] frames.
pub type Batch<B> = ArrayVec<B, BATCH>;

/// A frame in a buffer, in wire order: a private head with all headers, of at least `min(length, HEAD)` bytes; a body that
/// replicas may share; a private trailer of four bytes, because a RoCEv2 frame ends in its ICRC.
pub trait FrameBuf {
    /// The least bytes of head: Ethernet, two VLAN tags, IPv6, UDP, BTH and the longest extended headers fit. The head is shorter
    /// only if the frame is, or if a replica borrows the bytes behind its rewritten headers (64 bytes then).
    const HEAD: usize = 128;

    /// Bytes from the destination MAC address to the ICRC or the end of the payload; no FCS.
    fn length(&self) -> usize;

    /// The contiguous bytes from the start of the frame, up to the whole frame.
    fn head(&self) -> &[u8];

    /// The head, for rewriting. No other frame shares it.
    fn head_mut(&mut self) -> &mut [u8];

    /// The last four bytes; zeros if the frame has fewer than four.
    fn trailer(&self) -> [u8; 4];

    /// Writes the last four bytes. Does nothing if the frame has fewer than four, or if other frames share them.
    fn set_trailer(&mut self, bytes: [u8; 4]);

    /// Head, body and trailer in wire order, without overlap; any may be empty.
    fn segments(&self) -> [&[u8]; 3];

    /// True if a device has verified the IPv4 header checksum on receipt; false: unknown, it must be computed.
    #[inline]
    fn checksum_good(&self) -> bool {
        false
    }

    /// Copies the frame into `out`, as many bytes as fit. Returns the number of bytes written.
    fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        for segment in self.segments() {
            let n = segment.len().min(out.len() - at);
            out[at..at + n].copy_from_slice(&segment[..n]);
            at += n;
        }
        at
    }
}

/// A frame in one piece: all of it is head. For hosts and tests.
impl FrameBuf for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }

    fn head(&self) -> &[u8] {
        self
    }

    fn head_mut(&mut self) -> &mut [u8] {
        self
    }

    fn trailer(&self) -> [u8; 4] {
        self.last_chunk().copied().unwrap_or_default()
    }

    fn set_trailer(&mut self, bytes: [u8; 4]) {
        if let Some(last) = self.last_chunk_mut() {
            *last = bytes;
        }
    }

    fn segments(&self) -> [&[u8]; 3] {
        [self, &[], &[]]
    }
}
