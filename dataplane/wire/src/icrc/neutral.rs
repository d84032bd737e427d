//! Header rewriting that keeps the ICRC.
//!
//! The ICRC covers two fields that the last sender may choose freely: the IPv4 identification of a packet that must not be
//! fragmented (RFC 6864), and the UDP source port, which only spreads flows over equal paths (IBA annex A17). Together they have
//! 32 bits, as many as the ICRC, and their values map one to one to CRC values. So for every change of other fields up to the end
//! of the BTH there is exactly one change of these two fields that restores the ICRC.
//!
//! A replica that is rewritten in this way has the ICRC of its original, and can share all bytes behind the header with it.

use super::shift::Shift;
use crate::layout;

const BTH_END: usize = layout::BTH.end;

/// The changes (XOR) of identification and UDP source port, in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Neutral {
    /// Change of the IPv4 identification.
    pub ident: [u8; 2],
    /// Change of the UDP source port.
    pub sport: [u8; 2],
}

impl Neutral {
    /// Returns the changes that cancel a change of the register at the end of the BTH ([`super::HeaderDelta::at_bth`]).
    #[inline]
    pub fn of(register: u32) -> Self {
        let [a, b, c, d] = register.to_le_bytes().map(usize::from);
        let bits = INVERSE[0][a] ^ INVERSE[1][b] ^ INVERSE[2][c] ^ INVERSE[3][d];
        let [a, b, c, d] = bits.to_le_bytes();
        Self {
            ident: [a, b],
            sport: [c, d],
        }
    }
}

/// For each byte of the register and each of its values, the bits of identification and source port that produce it.
static INVERSE: [[u32; 256]; 4] = inverse();

/// The register at the end of the BTH of a packet that differs in these two fields by `bits`.
const fn forward(bits: u32) -> u32 {
    let ident = Shift::by_bytes(BTH_END - layout::IDENT.start);
    let sport = Shift::by_bytes(BTH_END - layout::SPORT.start);
    ident.apply(bits & 0xFFFF) ^ sport.apply(bits >> 16)
}

/// Inverts the linear map `forward`, by Gaussian elimination.
const fn inverse() -> [[u32; 256]; 4] {
    // Row i: the register bits of input bit i, and the input bits that produce them.
    let mut rows = [(0_u32, 0_u32); 32];
    let mut i = 0;
    while i < 32 {
        rows[i] = (forward(1 << i), 1 << i);
        i += 1;
    }
    let mut bit = 0;
    while bit < 32 {
        let mut pivot = bit;
        while rows[pivot].0 >> bit & 1 == 0 {
            // If the two fields could not produce every register, this would run out of bounds and fail to compile.
            pivot += 1;
        }
        let row = rows[pivot];
        rows[pivot] = rows[bit];
        rows[bit] = row;
        let mut i = 0;
        while i < 32 {
            if i != bit && rows[i].0 >> bit & 1 != 0 {
                rows[i] = (rows[i].0 ^ row.0, rows[i].1 ^ row.1);
            }
            i += 1;
        }
        bit += 1;
    }
    // Now row i has the inputs that produce register bit i alone.
    let mut table = [[0; 256]; 4];
    let mut value = 0;
    while value < 256 {
        let mut bit = 0;
        while bit < 32 {
            if value >> (bit % 8) & 1 != 0 {
                table[bit / 8][value] ^= rows[bit].1;
            }
            bit += 1;
        }
        value += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::{HeaderDelta, full};
    use crate::ids::Qpn;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_neutral_rewriting_keeps_the_icrc_of_any_packet(
            packet in vec(any::<u8>(), BTH_END..1200),
            src in any::<[u8; 4]>(),
            dst in any::<[u8; 4]>(),
            qpn in any::<[u8; 3]>(),
        ) {
            let mut packet = packet;
            packet[0] = 0x45;
            let address = |at: usize| std::net::Ipv4Addr::from(*packet[at..].first_chunk::<4>().unwrap());
            let old_qpn = Qpn::from_bytes(*packet[33..].first_chunk().unwrap());
            let delta = HeaderDelta::src(address(12), src.into())
                .and(HeaderDelta::dst(address(16), dst.into()))
                .and(HeaderDelta::dest_qp(old_qpn, Qpn::from_bytes(qpn)));
            let neutral = Neutral::of(delta.at_bth());
            let before = full(&[&packet]);
            packet[12..16].copy_from_slice(&src);
            packet[16..20].copy_from_slice(&dst);
            packet[33..36].copy_from_slice(&qpn);
            for (byte, change) in packet[4..6].iter_mut().zip(neutral.ident) {
                *byte ^= change;
            }
            for (byte, change) in packet[20..22].iter_mut().zip(neutral.sport) {
                *byte ^= change;
            }
            prop_assert_eq!(full(&[&packet]), before);
        }
    }

    #[test]
    fn zero_maps_to_zero_and_every_register_bit_has_an_inverse() {
        assert_eq!(Neutral::of(0), Neutral::default());
        for bit in 0..32 {
            let Neutral {
                ident: [a, b],
                sport: [c, d],
            } = Neutral::of(1 << bit);
            assert_eq!(forward(u32::from_le_bytes([a, b, c, d])), 1 << bit);
        }
    }
}
