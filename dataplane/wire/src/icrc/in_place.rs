//! The ICRC of an IPv4 packet where it lies, its masked fields not set to ones.
//!
//! A copy of the header to mask makes two short pieces out of one long one, and short pieces are what takes a CRC long.
//! But a CRC is linear: a bit that masking would set has the same effect as some bits of the register before the packet,
//! namely those that the bytes up to it turn into that bit. To run a CRC backwards over zeros is to run it forwards
//! until it has gone round: the powers of x come again after 2^32 - 1, as the generator is primitive.

use super::START;
use super::shift::Shift;
use crc32fast::Hasher;

/// Bytes of IPv4, UDP and BTH up to the last that is masked.
pub const MASKED: usize = 33;

/// The operator for as many bytes less.
const fn before(bytes: usize) -> Shift {
    Shift::by_bytes(u32::MAX as usize - bytes)
}

// By offset of the words that have masked bytes; the first word's needs none.
static BEFORE_8: Shift = before(8);
static BEFORE_24: Shift = before(24);
static BEFORE_32: Shift = before(32);

/// The register before an IPv4 packet without options that begins with `first`: from it on, the CRC over the packet as it
/// stands is its ICRC. In the complemented form that the CRC of a message has.
#[inline]
pub fn start_of(first: &[u8; MASKED]) -> u32 {
    // The bits that masking would set, byte by byte.
    let unset = |at: usize| !first[at];
    let tos = u32::from_le_bytes([0, unset(1), 0, 0]);
    let ttl_checksum = u32::from_le_bytes([unset(8), 0, unset(10), unset(11)]);
    let udp_checksum = u32::from_le_bytes([0, 0, unset(26), unset(27)]);
    let congestion = u32::from_le_bytes([unset(32), 0, 0, 0]);
    START ^ tos ^ BEFORE_8.apply(ttl_checksum) ^ BEFORE_24.apply(udp_checksum) ^ BEFORE_32.apply(congestion)
}

/// The ICRC of an IPv4 packet in pieces, of which `first` has its masked bytes.
#[inline]
pub(super) fn full_in_place(first: &[u8; MASKED], segments: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new_with_initial(start_of(first));
    for segment in segments {
        if !segment.is_empty() {
            hasher.update(segment);
        }
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_icrc_of_a_masked_copy(
            packet in vec(any::<u8>(), MASKED..1200),
            cuts in [any::<prop::sample::Index>(), any::<prop::sample::Index>()],
        ) {
            let mut packet = packet;
            packet[0] = 0x45;
            let mut at = cuts.map(|c| MASKED + c.index(packet.len() - MASKED + 1));
            at.sort_unstable();
            let segments = [&packet[..at[0]], &packet[at[0]..at[1]], &packet[at[1]..]];
            let first = packet.first_chunk().expect("long enough");
            prop_assert_eq!(full_in_place(first, &segments), super::super::full_by_copy(&segments));
            prop_assert_eq!(super::super::full(&segments), full_in_place(first, &segments));
            // However it is cut.
            let early = [&packet[..at[0] % MASKED], &packet[at[0] % MASKED..]];
            prop_assert_eq!(super::super::full(&early), full_in_place(first, &segments));
        }
    }
}
