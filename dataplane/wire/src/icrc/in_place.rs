//! The ICRC of an IPv4 packet in place, without a masked copy of its header.
//!
//! A masked copy would split the packet into short pieces, and a CRC is slow on short pieces. A CRC is linear: setting a masked bit
//! has the same effect as changing certain bits of the register before the packet. To find these bits, the CRC must run backwards
//! over zeros. That is the same as running it forwards over 2^32 - 1 - n zeros, because the generator is primitive and the powers
//! of x repeat after 2^32 - 1.

use super::START;
use super::shift::Shift;
use crc32fast::Hasher;

/// Bytes of IPv4, UDP and BTH up to the last that is masked.
pub const MASKED: usize = 33;

/// The operator that goes back over `bytes` bytes.
const fn before(bytes: usize) -> Shift {
    Shift::by_bytes(u32::MAX as usize - bytes)
}

// For the offsets of the words that have masked bytes. The first word needs none.
static BEFORE_8: Shift = before(8);
static BEFORE_24: Shift = before(24);
static BEFORE_32: Shift = before(32);

/// Returns the start register for an IPv4 packet without options that begins with `first`. From this register, the plain CRC over
/// the packet is its ICRC. The register has the complemented form of a finished CRC.
#[inline]
pub fn start_of(first: &[u8; MASKED]) -> u32 {
    // The bits that masking would set.
    let unset = |at: usize| !first[at];
    let tos = u32::from_le_bytes([0, unset(1), 0, 0]);
    let ttl_checksum = u32::from_le_bytes([unset(8), 0, unset(10), unset(11)]);
    let udp_checksum = u32::from_le_bytes([0, 0, unset(26), unset(27)]);
    let congestion = u32::from_le_bytes([unset(32), 0, 0, 0]);
    START ^ tos ^ BEFORE_8.apply(ttl_checksum) ^ BEFORE_24.apply(udp_checksum) ^ BEFORE_32.apply(congestion)
}

/// Computes the ICRC of an IPv4 packet in pieces. `first` has its first bytes, up to the last masked one.
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
            // The cut may also lie in the masked bytes.
            let early = [&packet[..at[0] % MASKED], &packet[at[0] % MASKED..]];
            prop_assert_eq!(super::super::full(&early), full_in_place(first, &segments));
        }
    }
}
