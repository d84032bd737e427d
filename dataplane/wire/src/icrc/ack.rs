//! The ICRC of an acknowledge packet. It is verified for each received one.
//!
//! A CRC is linear, so the CRC of these few words is the XOR of one table look-up for each word. The look-ups are independent of
//! one another, while each step of a usual CRC waits for the step before it.

use super::START;
use super::shift::Shift;
use crate::aeth::Aeth;
use crate::ipv4::{Ipv4, PROTOCOL_UDP};
use crate::layout::{PACKET_HEADERS, VERSION_LENGTH};
use crate::roce::ICRC_LEN;

/// Bytes of an acknowledge packet that its ICRC covers: IPv4 without options, UDP, BTH, AETH.
pub const ACK_LEN: usize = PACKET_HEADERS + Aeth::LEN;
const WORDS: usize = ACK_LEN / 4;

const fn operator(word: usize) -> Shift {
    Shift::by_bytes(ACK_LEN - 4 * word)
}

/// For each word, the operator for its own bytes and all that follow.
static AFTER: [Shift; WORDS] = {
    let mut after = [const { operator(0) }; WORDS];
    let mut i = 0;
    while i < WORDS {
        after[i] = operator(i);
        i += 1;
    }
    after
};

/// For each word, the bits that the ICRC takes for ones: TOS; TTL and checksum; UDP checksum; BTH byte 4.
const ONES: [u32; WORDS] = {
    let mut ones = [0; WORDS];
    ones[0] = u32::from_le_bytes([0, 0xFF, 0, 0]);
    ones[2] = u32::from_le_bytes([0xFF, 0, 0xFF, 0xFF]);
    ones[6] = u32::from_le_bytes([0, 0, 0xFF, 0xFF]);
    ones[8] = u32::from_le_bytes([0xFF, 0, 0, 0]);
    ones
};

/// Bytes of an acknowledge packet with its ICRC.
const PACKET: u8 = (ACK_LEN + ICRC_LEN) as u8;
/// The words that are equal in nearly all acknowledge packets, and their values: version and length; protocol; UDP length.
const SAME: [(usize, u32); 3] = [
    (0, u32::from_le_bytes([VERSION_LENGTH, 0xFF, 0, PACKET])),
    (2, u32::from_le_bytes([0xFF, PROTOCOL_UDP, 0xFF, 0xFF])),
    (6, u32::from_le_bytes([0, PACKET - Ipv4::LEN as u8, 0xFF, 0xFF])),
];
/// The ICRC of these words.
const SAME_ICRC: u32 = {
    let (mut icrc, mut i) = (!operator(0).apply(!START), 0);
    while i < SAME.len() {
        icrc ^= operator(SAME[i].0).apply(SAME[i].1);
        i += 1;
    }
    icrc
};

/// Computes the ICRC of an acknowledge packet over IPv4.
// Not inlined: the look-ups use all registers.
#[inline(never)]
pub fn of_ack(packet: &[u8; ACK_LEN]) -> u32 {
    let (words, _) = packet.as_chunks::<4>();
    let word = |i: usize| u32::from_le_bytes(words[i]) | ONES[i];
    let mut icrc = SAME_ICRC;
    if SAME.iter().any(|(i, same)| word(*i) != *same) {
        for (i, same) in SAME {
            icrc ^= AFTER[i].apply(word(i) ^ same);
        }
    }
    for i in [1, 3, 4, 5, 7, 8, 9, 10] {
        icrc ^= AFTER[i].apply(word(i));
    }
    icrc
}

/// An acknowledge packet with its ICRC, in words of eight bytes.
pub type AckWords = [u64; (ACK_LEN + 4) / 8];

/// The bits in which two packets must agree for [`follows`]: all that the ICRC covers but PSN and AETH.
const AGREE: AckWords = {
    let mut agree = [0; _];
    let mut i = 0;
    while i < agree.len() {
        agree[i] = match i {
            5 => 0,
            _ => !(ONES[2 * i] as u64 | (ONES[2 * i + 1] as u64) << 32),
        };
        i += 1;
    }
    agree[4] &= u32::MAX as u64;
    agree
};

/// True if the ICRC is right, by two word look-ups instead of eight: by comparison with `other`, whose ICRC is right.
/// `None` if the packets differ in more than PSN and AETH.
#[inline]
pub fn follows(other: &AckWords, packet: &AckWords) -> Option<bool> {
    let mut differ = *packet;
    let mut more = 0;
    for ((word, other), agree) in differ.iter_mut().zip(other).zip(AGREE) {
        *word ^= other;
        more |= *word & agree;
    }
    let [.., psn, last] = differ;
    let change = AFTER[9].apply((psn >> 32) as u32) ^ AFTER[10].apply(last as u32);
    (more == 0).then_some((last >> 32) as u32 == change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn follows_agrees_with_the_full_icrc(
            bytes: [u8; 32], more: [u8; 12], change: [u8; 12], at in 0..ACK_LEN, free in 0..2_u8, wrong in 0..2_u32,
        ) {
            let mut packet = [0; ACK_LEN + 4];
            packet[..32].copy_from_slice(&bytes);
            packet[32..44].copy_from_slice(&more);
            packet[0] = 0x45;
            let words = |packet: &mut [u8; ACK_LEN + 4], wrong: u32| {
                let icrc = super::super::full_by_copy(&[&packet[..ACK_LEN]]) ^ wrong;
                packet[ACK_LEN..].copy_from_slice(&icrc.to_le_bytes());
                core::array::from_fn(|i| u64::from_le_bytes(*packet.as_chunks::<8>().0.get(i).unwrap()))
            };
            let first: AckWords = words(&mut packet, 0);
            packet[36..44].iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
            let masked = [1, 8, 10, 11, 26, 27, 32];
            let at = if free == 0 { masked[at % masked.len()] } else { at };
            packet[at] ^= change[8];
            let covered = change[8] != 0 && !masked.contains(&at) && at < 36;
            let second: AckWords = words(&mut packet, wrong);
            prop_assert_eq!(follows(&first, &second), (!covered).then_some(wrong == 0));
        }

        #[test]
        fn of_ack_agrees_with_the_definition(bytes: [u8; 32], more: [u8; 12]) {
            let mut packet = [0; ACK_LEN];
            packet[..32].copy_from_slice(&bytes);
            packet[32..].copy_from_slice(&more);
            packet[0] = 0x45;
            prop_assert_eq!(of_ack(&packet), super::super::full_by_copy(&[&packet]));
            prop_assert_eq!(super::super::full(&[&packet]), of_ack(&packet));
        }
    }
}
