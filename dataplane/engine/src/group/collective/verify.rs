//! The ICRC of what a group takes in: whatever is added leaves under a fresh one, so each frame's is verified first (contract
//! C3). The CRC runs over headers and payload as they lie in the frame, in one go.

use castnet_reduce::Checksum;
use castnet_wire::icrc;
use castnet_wire::{FrameBuf, RoceHeader};

use super::slots;

/// IPv4, UDP and BTH.
pub(super) const FIXED: usize = 40;
/// ECN's bits of the TOS; both set is "congestion experienced" (RFC 3168).
pub(super) const ECN: u8 = 3;
/// Bytes of the ICRC.
const ICRC: usize = 4;

/// Whether the ICRC of a frame is right that nothing follows, and whose IPv4 header, at `l3`, has no options. `None` where it lies
/// in other pieces than frames do.
#[inline(always)]
pub(super) fn ends_right(checksum: &Checksum, frame: &impl FrameBuf, l3: usize) -> Option<bool> {
    let (first, second) = slots::pieces(frame, l3, (frame.length() - ICRC).checked_sub(l3)?)?;
    let register = icrc::start_of(first.first_chunk()?);
    Some(checksum.update(register, first, second) == u32::from_le_bytes(frame.trailer()))
}

/// Whether the ICRC of a frame is right.
#[inline]
pub(super) fn is_sound(checksum: &Checksum, frame: &impl FrameBuf, header: &RoceHeader) -> bool {
    let whole = (header.frame_len == frame.length()).then(|| ends_right(checksum, frame, header.l3));
    whole
        .flatten()
        .unwrap_or_else(|| icrc::verify(frame, header.l3, header.frame_len))
}
