//! The ICRC, the invariant CRC at the end of every RoCEv2 packet: computed in full, or by difference.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, then all bytes from the IP header to the pad. Fields that a router may
//! change count as ones (InfiniBand Architecture Specification, volume 1, 7.8.1 and annex A17.3.3). On the wire the least
//! significant byte comes first.
//!
//! A CRC is linear, so the payload need not be read again if only the header changes:
//! `new = old ^ shift(crc(old header ^ new header), bytes that follow)`. [`delta`] is that inner CRC and [`Shift`] the outer
//! operator. [`HeaderDelta`] computes both by table look-up, for the fields that a switch rewrites. A packet that is received with
//! a wrong ICRC is sent with a wrong one.

mod ack;
mod header;
mod in_place;
mod neutral;
mod shift;

use in_place::full_in_place;

pub use ack::{ACK_LEN, AckWords, follows, of_ack};
pub use header::HeaderDelta;
pub use in_place::{MASKED, start_of};
pub use neutral::Neutral;
pub use shift::{Shift, ShiftCache, shift};

use crate::frame::FrameBuf;
use crate::ipv6::Ipv6;
use crate::roce::ICRC_LEN;
use crate::udp::Udp;
use crc32fast::Hasher;

/// The state after the eight bytes of ones, in crc32fast's complemented form.
const START: u32 = !0xDEBB_20E3;
/// Bytes up to the last masked one: IPv6, UDP, and five of BTH.
const MASKED_MAX: usize = Ipv6::LEN + Udp::LEN + 5;

/// Sets the bytes that the ICRC does not cover to ones. `head` begins with the IP header.
fn mask(head: &mut [u8]) {
    let v6 = head.first().is_some_and(|b| b >> 4 == 6);
    // IPv4: TOS, TTL, checksum; UDP checksum; BTH byte 4. IPv6: traffic class and flow label, hop limit; the same.
    let offsets: &[usize] = if v6 {
        &[1, 2, 3, 7, 46, 47, 52]
    } else {
        &[1, 8, 10, 11, 26, 27, 32]
    };
    for &at in offsets {
        if let Some(byte) = head.get_mut(at) {
            *byte = 0xFF;
        }
    }
    if v6 && let Some(byte) = head.first_mut() {
        *byte |= 0x0F;
    }
}

/// Computes the ICRC of a packet in pieces. Together they run from the first byte of the IP header to the last byte of the pad.
/// Store the result with [`u32::to_le_bytes`]. An IPv4 header must have no options.
pub fn full(segments: &[&[u8]]) -> u32 {
    match segments {
        [ack] | [ack, [], []] if ack.len() == ACK_LEN && ack[0] >> 4 == 4 => match ack.first_chunk() {
            Some(ack) => of_ack(ack),
            None => full_by_copy(segments),
        },
        [first, ..] => match first.first_chunk() {
            Some(masked) if masked[0] >> 4 != 6 => full_in_place(masked, segments),
            _ => full_by_copy(segments),
        },
        [] => full_by_copy(segments),
    }
}

/// Computes the ICRC of any packet by its definition: over a masked copy of the header.
fn full_by_copy(segments: &[&[u8]]) -> u32 {
    let mut head = [0; MASKED_MAX];
    let mut filled = 0;
    let mut hasher = Hasher::new_with_initial(START);
    for segment in segments {
        let mut rest = *segment;
        if filled < MASKED_MAX {
            let (first, after) = rest.split_at(rest.len().min(MASKED_MAX - filled));
            head[filled..filled + first.len()].copy_from_slice(first);
            filled += first.len();
            rest = after;
            if filled < MASKED_MAX {
                continue;
            }
            mask(&mut head);
            hasher.update(&head);
        }
        if !rest.is_empty() {
            hasher.update(rest);
        }
    }
    if filled < MASKED_MAX {
        mask(&mut head[..filled]);
        hasher.update(&head[..filled]);
    }
    hasher.finalize()
}

/// Computes the ICRC of a frame. `l3` is the offset of its IP header, `frame_len` the offset of its end without Ethernet padding,
/// both as in [`crate::RoceHeader`].
pub fn of_frame(frame: &impl FrameBuf, l3: usize, frame_len: usize) -> u32 {
    let end = frame_len.saturating_sub(ICRC_LEN);
    let mut at = 0;
    full(&frame.segments().map(|segment| {
        let from = l3.clamp(at, at + segment.len()) - at;
        let to = end.clamp(at + from, at + segment.len()) - at;
        at += segment.len();
        segment.get(from..to).unwrap_or_default()
    }))
}

/// Reads the ICRC in a frame. `None` if the frame is shorter than `frame_len`.
#[inline]
pub fn read(frame: &impl FrameBuf, frame_len: usize) -> Option<u32> {
    let from = frame_len.checked_sub(ICRC_LEN)?;
    if frame_len == frame.length() {
        return Some(u32::from_le_bytes(frame.trailer()));
    }
    if let Some(bytes) = frame.head().get(from..).and_then(|b| b.first_chunk()) {
        return Some(u32::from_le_bytes(*bytes));
    }
    // The ICRC lies behind a long payload, with Ethernet padding after it. No sender does this, so it may be slow.
    let mut bytes = [0; ICRC_LEN];
    let (mut at, mut found) = (0, 0);
    for segment in frame.segments() {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            let wanted = (from + offset).checked_sub(at).and_then(|i| segment.get(i));
            if let Some(b) = wanted {
                *byte = *b;
                found += 1;
            }
        }
        at += segment.len();
    }
    (found == ICRC_LEN).then_some(u32::from_le_bytes(bytes))
}

/// Stores `icrc` in a frame. False, with nothing changed, if the ICRC lies in the part that replicas share: in a frame
/// that is longer than its head and has Ethernet padding.
#[inline]
pub fn write(frame: &mut impl FrameBuf, frame_len: usize, icrc: u32) -> bool {
    let Some(from) = frame_len.checked_sub(ICRC_LEN) else {
        return false;
    };
    if frame_len == frame.length() {
        frame.set_trailer(icrc.to_le_bytes());
        return true;
    }
    match frame.head_mut().get_mut(from..frame_len) {
        Some(bytes) => {
            bytes.copy_from_slice(&icrc.to_le_bytes());
            true
        }
        None => false,
    }
}

/// Returns true if the ICRC in a frame is right. The arguments are those of [`of_frame`].
pub fn verify(frame: &impl FrameBuf, l3: usize, frame_len: usize) -> bool {
    // Short frames, including all feedback, are in one piece.
    if frame.head().len() >= frame_len {
        return verify_bytes(frame.head(), l3, frame_len);
    }
    read(frame, frame_len) == Some(of_frame(frame, l3, frame_len))
}

/// [`verify`] for a frame in one piece.
#[inline]
pub fn verify_bytes(frame: &[u8], l3: usize, frame_len: usize) -> bool {
    let Some((packet, rest)) = frame
        .get(l3..frame_len)
        .and_then(|p| p.split_last_chunk::<ICRC_LEN>())
    else {
        return false;
    };
    u32::from_le_bytes(*rest) == full(&[packet])
}

/// Computes the CRC of `old ^ new`, byte by byte, with start value zero and without complement. It is linear, and zero if both are
/// equal. Pass only fields that the ICRC covers. If one slice is longer, its rest is ignored.
pub fn delta(old: &[u8], new: &[u8]) -> u32 {
    // crc32fast keeps the complement of the register, so all ones is a register of zeros.
    let mut hasher = Hasher::new_with_initial(!0);
    for (old, new) in old.chunks(64).zip(new.chunks(64)) {
        let mut difference = [0; 64];
        let mut n = 0;
        for ((d, o), w) in difference.iter_mut().zip(old).zip(new) {
            *d = o ^ w;
            n += 1;
        }
        hasher.update(&difference[..n]);
    }
    !hasher.finalize()
}
