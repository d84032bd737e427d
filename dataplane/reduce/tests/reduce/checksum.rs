//! The CRC of payloads is the same with all instructions, however a payload is cut.

use castnet_reduce::Checksum;
use proptest::prelude::*;

/// What vectors hold.
const BLOCK: usize = 64;

fn whole(register: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(register);
    hasher.update(bytes);
    hasher.finalize()
}

/// Bit by bit: what a CRC is.
fn slow(register: u32, bytes: &[u8]) -> u32 {
    let mut crc = !register;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

proptest! {
    #[test]
    fn it_is_the_crc_however_it_is_cut(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..3 * BLOCK),
            proptest::collection::vec(any::<u8>(), 0..1200),
            proptest::collection::vec(any::<u8>(), 4096..4200),
        ],
        register: u32,
        cut: prop::sample::Index,
        round: bool,
    ) {
        let mut cut = cut.index(bytes.len() + 1);
        if round {
            cut = cut / BLOCK * BLOCK;
        }
        let expected = slow(register, &bytes);
        prop_assert_eq!(whole(register, &bytes), expected);
        for (first, second) in [bytes.split_at(cut), (&bytes[..], &[][..]), (&[][..], &bytes[..])] {
            prop_assert_eq!(Checksum::select().update(register, first, second), expected);
            prop_assert_eq!(Checksum::plain().update(register, first, second), expected);
        }
    }
}
