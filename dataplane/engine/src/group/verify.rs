//! Verifies the ICRC of a frame in place: before its payload is added, because results get a new ICRC (contract C3), and before a packet is
//! kept, because it would be repeated without end.

use castnet_reduce::Checksum;
use castnet_wire::icrc;
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::{FrameBuf, RoceHeader};

/// Bytes of a frame, which may lie in two pieces.
pub(crate) type Pieces<'a> = (&'a [u8], &'a [u8]);

/// The `length` bytes at `at`, in place. `None` if they reach into the trailer, which holds the ICRC.
#[inline]
pub(crate) fn pieces(frame: &impl FrameBuf, at: usize, length: usize) -> Option<Pieces<'_>> {
    let (end, [head, body, _]) = (at + length, frame.segments());
    match head.get(at..end) {
        Some(all) => Some((all, &[])),
        None => Some((head.get(at..)?, body.get(..end - head.len())?)),
    }
}

/// The frame has no padding, and its IPv4 header at `l3` no options. `None` if it does not lie in head, body and trailer.
#[inline(always)]
pub(crate) fn is_sound_in_place(checksum: &Checksum, frame: &impl FrameBuf, l3: usize) -> Option<bool> {
    let (first, second) = pieces(frame, l3, (frame.length() - ICRC_LEN).checked_sub(l3)?)?;
    let register = icrc::start_of(first.first_chunk()?);
    Some(checksum.update(register, first, second) == u32::from_le_bytes(frame.trailer()))
}

#[inline]
pub(crate) fn is_sound(checksum: &Checksum, frame: &impl FrameBuf, header: &RoceHeader) -> bool {
    let in_place =
        (header.frame_len == frame.length()).then(|| is_sound_in_place(checksum, frame, header.l3));
    in_place
        .flatten()
        .unwrap_or_else(|| icrc::verify(frame, header.l3, header.frame_len))
}
