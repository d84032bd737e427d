//! Rewriting that leaves the ICRC as it is.
//!
//! Two fields of a RoCEv2 packet over IPv4 are covered by the ICRC and free to choose, for whoever sends it on its last
//! hop: the identification of a packet that is not to be fragmented (RFC 6864) and the UDP source port, which only spreads
//! flows over equal paths (IBA annex A17). They are 32 bits, as many as the ICRC has, and the CRC of all their values are
//! all values: so whatever else changes up to the end of the BTH, there is one change of these two that takes it back.
//!
//! A replica rewritten so has the ICRC of its original, and may share with it all that comes behind the header.

use super::shift::Shift;

/// Offsets, in an IPv4 packet without options, and of the end of the BTH.
const IDENT: usize = 4;
const SPORT: usize = 20;
const BTH_END: usize = 40;

/// What to change in a packet's identification and UDP source port (XOR, as they stand on the wire).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Neutral {
    /// Of the IPv4 identification.
    pub ident: [u8; 2],
    /// Of the UDP source port.
    pub sport: [u8; 2],
}

impl Neutral {
    /// Takes back a change of the register at the end of the BTH, as [`super::HeaderDelta::at_bth`] gives it.
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

/// By byte of the register and its value, which bits of identification and source port make it.
static INVERSE: [[u32; 256]; 4] = inverse();

/// The register at the end of the BTH of a packet that differs in these two fields by `bits`.
const fn forward(bits: u32) -> u32 {
    let ident = Shift::by_bytes(BTH_END - IDENT);
    let sport = Shift::by_bytes(BTH_END - SPORT);
    ident.apply(bits & 0xFFFF) ^ sport.apply(bits >> 16)
}

/// Turns the linear map `forward` round, by elimination.
const fn inverse() -> [[u32; 256]; 4] {
    // Row i: the register bits of input bit i, and which input bits make that up.
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
            // Out of bounds, and so no constant at all, were there a register that the two fields cannot make.
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
    // Now row i says which inputs make register bit i alone.
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
    fn nothing_is_taken_back_by_nothing_and_every_register_by_something_else() {
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
