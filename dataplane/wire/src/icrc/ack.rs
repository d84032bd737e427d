//! The ICRC of an acknowledge packet, which is verified whenever one comes in.
//!
//! To mask a copy of so few bytes takes longer than their CRC. So the CRC runs over the packet as it stands, and what the
//! masked bits add comes on top, by table look-up: a CRC is linear.

use super::START;
use super::shift::Shift;
use crc32fast::Hasher;

/// IPv4 without options, UDP, BTH, AETH.
pub(super) const ACK_LEN: usize = 20 + 8 + 12 + 4;

// Operators for a word and so many bytes more, at the words that have masked bytes.
static AFTER_44: Shift = Shift::by_bytes(ACK_LEN);
static AFTER_36: Shift = Shift::by_bytes(ACK_LEN - 8);
static AFTER_20: Shift = Shift::by_bytes(ACK_LEN - 24);
static AFTER_12: Shift = Shift::by_bytes(ACK_LEN - 32);

/// What the ICRC leaves out: TOS; TTL and checksum; UDP checksum; BTH byte 4.
const TOS: u32 = u32::from_le_bytes([0, 0xFF, 0, 0]);
const TTL_CHECKSUM: u32 = u32::from_le_bytes([0xFF, 0, 0xFF, 0xFF]);
const UDP_CHECKSUM: u32 = u32::from_le_bytes([0, 0, 0xFF, 0xFF]);
const CONGESTION: u32 = u32::from_le_bytes([0xFF, 0, 0, 0]);

/// The ICRC of an IPv4 packet of that length.
#[inline]
pub(super) fn full_ack(packet: &[u8; ACK_LEN]) -> u32 {
    let (words, _) = packet.as_chunks::<4>();
    // The bits that masking would set.
    let unset = |i: usize, mask: u32| words.get(i).map_or(0, |word| !u32::from_le_bytes(*word) & mask);
    let masks = AFTER_44.apply(unset(0, TOS))
        ^ AFTER_36.apply(unset(2, TTL_CHECKSUM))
        ^ AFTER_20.apply(unset(6, UDP_CHECKSUM))
        ^ AFTER_12.apply(unset(8, CONGESTION));
    let mut hasher = Hasher::new_with_initial(START);
    hasher.update(packet);
    hasher.finalize() ^ masks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_icrc_of_any_other_packet(bytes: [u8; 32], more: [u8; 12]) {
            let mut packet = [0; ACK_LEN];
            packet[..32].copy_from_slice(&bytes);
            packet[32..].copy_from_slice(&more);
            packet[0] = 0x45;
            prop_assert_eq!(full_ack(&packet), super::super::full_by_copy(&[&packet]));
            prop_assert_eq!(super::super::full(&[&packet]), full_ack(&packet));
        }
    }
}
