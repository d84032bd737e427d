//! The ICRC of an acknowledge packet, which is verified whenever one comes in: too short for what makes a CRC fast over
//! payloads, so by table look-up, a word at a time, from the packet where it stands.

use super::START;
use super::header::{AFTER_4, AFTER_8, AFTER_12, AFTER_16};

/// IPv4 without options, UDP, BTH, AETH.
pub(super) const ACK_LEN: usize = 20 + 8 + 12 + 4;

/// By word, what the ICRC leaves out: TOS; TTL and checksum; UDP checksum; BTH byte 4.
const MASK: [u32; ACK_LEN / 4] = [
    u32::from_le_bytes([0, 0xFF, 0, 0]),
    0,
    u32::from_le_bytes([0xFF, 0, 0xFF, 0xFF]),
    0,
    0,
    0,
    u32::from_le_bytes([0, 0, 0xFF, 0xFF]),
    0,
    u32::from_le_bytes([0xFF, 0, 0, 0]),
    0,
    0,
];

/// The ICRC of an IPv4 packet of that length.
#[inline]
pub(super) fn full_ack(packet: &[u8; ACK_LEN]) -> u32 {
    let word = |i: usize| match packet.as_chunks::<4>().0.get(i) {
        Some(bytes) => u32::from_le_bytes(*bytes) | MASK[i],
        None => 0,
    };
    let start = !START;
    let first = AFTER_12.apply(start ^ word(0)) ^ AFTER_8.apply(word(1)) ^ AFTER_4.apply(word(2));
    let four = |register: u32, at: usize| {
        AFTER_16.apply(register ^ word(at))
            ^ AFTER_12.apply(word(at + 1))
            ^ AFTER_8.apply(word(at + 2))
            ^ AFTER_4.apply(word(at + 3))
    };
    !four(four(first, 3), 7)
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
            prop_assert_eq!(full_ack(&packet), super::super::full_in_pieces(&[&packet]));
            prop_assert_eq!(super::super::full(&[&packet]), full_ack(&packet));
        }
    }
}
