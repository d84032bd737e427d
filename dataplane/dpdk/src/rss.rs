//! The hash by which a device spreads frames over its receive queues (Toeplitz), and a key that makes it one of the
//! destination address: then all data of a group comes in by one queue, to one worker.

use std::net::Ipv4Addr;

/// Bytes of the key; drivers take as many of them as they have room for, 40 at least.
pub const KEY_LENGTH: usize = 52;

/// The key. Toeplitz hashes source address, destination address and, with ports, source and destination port; bit `i` of
/// that brings in 32 bits of the key from bit `i` on. The first 63 bits are zero here, so no bit of the source address
/// does anything, and what follows is such that all low bits of the hash, which choose the queue, depend on many bits of the
/// destination address.
///
/// Devices that can hash destinations alone are asked for that as well; for others, and where ports are hashed too,
/// frames of one group may still spread by the source's UDP port, and workers hand them over to the group's.
pub const fn destination_key() -> [u8; KEY_LENGTH] {
    let mut key = [0; KEY_LENGTH];
    // Bits of the golden ratio after the point, and zeros from bit 96 on: as good as any.
    let bits = 0x9E37_79B9_u32;
    let mut i = 0;
    while i < 32 {
        let at = 63 + i;
        if bits >> (31 - i) & 1 != 0 {
            key[at / 8] |= 0x80 >> (at % 8);
        }
        i += 1;
    }
    key
}

/// The hash of an IPv4 packet's addresses, as a device computes it.
pub fn toeplitz(key: &[u8; KEY_LENGTH], src: Ipv4Addr, dst: Ipv4Addr) -> u32 {
    let input = (u64::from(src.to_bits()) << 32) | u64::from(dst.to_bits());
    let mut hash = 0;
    for bit in (0..64).filter(|bit| input >> (63 - bit) & 1 != 0) {
        let window = (0..32).fold(0, |window, i| {
            let at = bit + i;
            window << 1 | u32::from(key[at / 8] >> (7 - at % 8) & 1)
        });
        hash ^= window;
    }
    hash
}
