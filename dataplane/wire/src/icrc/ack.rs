//! The ICRC of an acknowledge packet, which is verified whenever one comes in.
//!
//! A CRC is linear: that of so few words is the sum of what each word adds by itself, by table look-up. No look-up waits for
//! another one, as the steps of a CRC do.

use super::START;
use super::shift::Shift;

/// Bytes of an acknowledge packet that its ICRC covers: IPv4 without options, UDP, BTH, AETH.
pub const ACK_LEN: usize = 20 + 8 + 12 + 4;
const WORDS: usize = ACK_LEN / 4;

const fn operator(word: usize) -> Shift {
    Shift::by_bytes(ACK_LEN - 4 * word)
}

/// By word, the operator for its own bytes and all that follow.
static AFTER: [Shift; WORDS] = {
    let mut after = [const { operator(0) }; WORDS];
    let mut i = 0;
    while i < WORDS {
        after[i] = operator(i);
        i += 1;
    }
    after
};

/// By word, what the ICRC takes for ones: TOS; TTL and checksum; UDP checksum; BTH byte 4.
const ONES: [u32; WORDS] = {
    let mut ones = [0; WORDS];
    ones[0] = u32::from_le_bytes([0, 0xFF, 0, 0]);
    ones[2] = u32::from_le_bytes([0xFF, 0, 0xFF, 0xFF]);
    ones[6] = u32::from_le_bytes([0, 0, 0xFF, 0xFF]);
    ones[8] = u32::from_le_bytes([0xFF, 0, 0, 0]);
    ones
};

/// The words that are the same in nearly all of them, and what these add: version and length; protocol; UDP length.
const SAME: [(usize, u32); 3] = [
    (0, u32::from_le_bytes([0x45, 0xFF, 0, ACK_LEN as u8 + 4])),
    (2, u32::from_le_bytes([0xFF, 17, 0xFF, 0xFF])),
    (6, u32::from_le_bytes([0, ACK_LEN as u8 + 4 - 20, 0xFF, 0xFF])),
];
const SAME_ICRC: u32 = {
    let (mut icrc, mut i) = (!operator(0).apply(!START), 0);
    while i < SAME.len() {
        icrc ^= operator(SAME[i].0).apply(SAME[i].1);
        i += 1;
    }
    icrc
};

/// The ICRC of an acknowledge packet over IPv4.
// Apart: its look-ups take all registers.
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

/// The bits in which [`follows`] has two packets agree: all that the ICRC covers but PSN and AETH.
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

/// Whether the ICRC of an acknowledge packet is right, by that of another one, which was: `None` where the two differ in more
/// than most do that come from one sender. Two look-ups of a word instead of eight.
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
        fn by_another_packet_it_is_what_it_is_by_itself(
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
            let place = if free == 0 { masked[at % masked.len()] } else { at };
            packet[place] ^= change[8];
            let covered = change[8] != 0 && !masked.contains(&place) && place < 36;
            let second: AckWords = words(&mut packet, wrong);
            prop_assert_eq!(follows(&first, &second), (!covered).then_some(wrong == 0));
        }

        #[test]
        fn it_is_the_icrc_of_any_other_packet(bytes: [u8; 32], more: [u8; 12]) {
            let mut packet = [0; ACK_LEN];
            packet[..32].copy_from_slice(&bytes);
            packet[32..].copy_from_slice(&more);
            packet[0] = 0x45;
            prop_assert_eq!(of_ack(&packet), super::super::full_by_copy(&[&packet]));
            prop_assert_eq!(super::super::full(&[&packet]), of_ack(&packet));
        }
    }
}
