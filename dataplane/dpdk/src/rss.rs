//! A key that makes the Toeplitz hash of a device a hash of the destination address. All data frames of a group then
//! arrive at one queue and one worker.

/// In bytes. Drivers use the part that they support, at least 40.
pub const KEY_LENGTH: usize = 52;

/// Toeplitz hashes the source address, the destination address and, if enabled, the ports. Bit `i` of this input
/// selects 32 bits of the key starting at bit `i`. The first 63 bits of the key are zero, so the source address has no
/// effect. The others let each low bit of the hash, which select the queue, depend on many bits of the destination.
///
/// Devices that can hash the destination alone are configured for that as well. If a device hashes ports, frames of one
/// group may be spread by the source's UDP port. Workers then hand them over.
pub const fn destination_key() -> [u8; KEY_LENGTH] {
    let mut key = [0; KEY_LENGTH];
    // The fractional bits of the golden ratio, and zeros from bit 96 on. Any mixed bits would do.
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
