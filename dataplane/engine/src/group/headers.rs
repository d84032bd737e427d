//! The headers of a plain frame: no tag, no IP option, no fragment, no padding. Constant fields are compared in words of eight bytes.

use core::net::Ipv4Addr;

pub(crate) use castnet_wire::layout::PLAIN_FRAME as PLAIN;
use castnet_wire::layout::{UDP, VERSION_LENGTH, in_frame};
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Aeth, Ethernet, FrameBuf, Opcode, Psn, Qpn};

pub(crate) const L3: usize = Ethernet::LEN;
pub(crate) const OVERHEAD: u32 = (PLAIN + ICRC_LEN) as u32;
/// All headers and two bytes more, which every plain frame has.
const FIRST: usize = PLAIN + 2;
/// The total length of IPv4 has 16 bits.
const PAYLOAD_MAX: u32 = u16::MAX as u32 + L3 as u32 - OVERHEAD;
/// A frame with an AETH instead of payload.
const ACK_FRAME: u32 = OVERHEAD + Aeth::LEN as u32;

const fn set(opcodes: &[Opcode]) -> u64 {
    let (mut set, mut i) = (0, 0);
    while i < opcodes.len() {
        set |= 1 << opcodes[i] as u64;
        i += 1;
    }
    set
}

/// Opcodes whose payload directly follows the BTH.
const DATA: u64 = SEND | set(&[Opcode::WriteMiddle, Opcode::WriteLast]);
const SEND: u64 = set(&[
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::SendLast,
    Opcode::SendOnly,
]);

#[inline(always)]
const fn contains(set: u64, opcode: u8) -> bool {
    opcode < 64 && set >> opcode & 1 != 0
}

/// The first bytes of a frame. The fields have a meaning only if the frame is plain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// Bytes 8 to 55; zeros if the frame has less.
    words: [u64; 6],
    pub(crate) length: u32,
}

/// Equal in plain data of the same length from one sender to one group: constant fields but the opcode; source, destination, source port, QPN.
const ALIKE: [u64; 6] = [
    WORD_1.0,
    WORD_2.0,
    u64::from_le_bytes([0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
    WORD_4.0 | 0xFFFF_FFFF,
    WORD_5 | u64::from_le_bytes([0, 0, 0, 0, 0, 0, 0, 0xFF]),
    0xFFFF,
];

/// Mask and value of bytes 8 to 15: EtherType, version and length of the IP header. Further words follow.
const WORD_1: (u64, u64) = (
    u64::from_le_bytes([0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0]),
    u64::from_le_bytes([0, 0, 0, 0, 0x08, 0x00, VERSION_LENGTH, 0]),
);
/// Total length, "more fragments" and offset, protocol.
const WORD_2: (u64, u64) = (
    u64::from_le_bytes([0xFF, 0xFF, 0, 0, 0x3F, 0xFF, 0, 0xFF]),
    u64::from_le_bytes([0, 0, 0, 0, 0, 0, 0, 17]),
);
/// UDP destination port and length.
const WORD_4: (u64, u64) = {
    let [a, b] = ROCE_PORT.to_be_bytes();
    (
        u64::from_le_bytes([0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
        u64::from_le_bytes([0, 0, 0, 0, a, b, 0, 0]),
    )
};
/// Padding and transport version.
const WORD_5: u64 = u64::from_le_bytes([0, 0, 0, 0x3F, 0, 0, 0, 0]);

impl Headers {
    pub(crate) const NONE: Self = Self {
        words: [0; 6],
        length: OVERHEAD,
    };

    #[inline(always)]
    pub(crate) fn of(frame: &impl FrameBuf) -> Self {
        let Some(bytes) = frame.head().first_chunk::<FIRST>() else {
            return Self::NONE;
        };
        let (chunks, _) = bytes.as_chunks::<8>();
        Self {
            words: core::array::from_fn(|i| u64::from_le_bytes(chunks[1 + i])),
            length: frame.length() as u32,
        }
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        let [w1, w2, _, w4, w5, _] = self.words;
        // A longer length is cut here, and refused by `PAYLOAD_MAX` below.
        let total = u64::from((self.length as u16).wrapping_sub(L3 as u16).swap_bytes());
        let udp = u64::from(
            (self.length as u16)
                .wrapping_sub(in_frame(UDP).start as u16)
                .swap_bytes(),
        );
        let wrong = (w1 ^ WORD_1.1) & WORD_1.0
            | (w2 ^ WORD_2.1 ^ total) & WORD_2.0
            | (w4 ^ WORD_4.1 ^ udp << 48) & WORD_4.0
            | w5 & WORD_5;
        let payload = self.length.wrapping_sub(OVERHEAD);
        wrong == 0 && payload <= PAYLOAD_MAX && payload.is_multiple_of(4)
    }

    /// True for a plain SEND or WRITE whose payload directly follows the BTH.
    #[inline(always)]
    pub(crate) fn is_data(&self) -> bool {
        contains(DATA, self.opcode()) && self.is_plain()
    }

    /// True for a plain ACK, false for a NAK.
    #[inline(always)]
    pub(crate) fn is_ack(&self) -> bool {
        let [.., w6] = self.words;
        self.opcode() == Opcode::Ack as u8
            && self.length == ACK_FRAME
            && w6 >> 48 & 0xE0 == 0
            && self.is_plain()
    }

    /// True for plain data with the sender, group and length of `other`, which is plain data.
    #[inline(always)]
    pub(crate) fn is_data_like(&self, other: &Self) -> bool {
        let mut differ = u64::from(self.length ^ other.length);
        for ((word, other), alike) in self.words.iter().zip(&other.words).zip(ALIKE) {
            differ |= (word ^ other) & alike;
        }
        differ == 0 && contains(DATA, self.opcode())
    }

    #[inline(always)]
    fn opcode(&self) -> u8 {
        let [.., w5, _] = self.words;
        (w5 >> 16) as u8
    }

    #[inline(always)]
    pub(crate) fn may_be_data(&self) -> bool {
        contains(DATA, self.opcode())
    }

    /// True if the IP header's checksum is right. A sum with end-around carry is a sum modulo 2^16 - 1, which depends neither on the
    /// order of bytes nor on that of words (RFC 1071).
    #[inline(always)]
    pub(crate) fn is_sound(&self, frame: &impl FrameBuf) -> bool {
        let [w1, w2, w3, w4, ..] = self.words;
        let halves = |w: u64| (w & 0xFFFF_FFFF) + (w >> 32);
        let sum = (w1 >> 48) + halves(w2) + halves(w3) + (w4 & 0xFFFF);
        // The sum is not zero, because the version is not.
        frame.checksum_good() || sum.is_multiple_of(0xFFFF)
    }

    #[inline(always)]
    pub(crate) fn tos(&self) -> u8 {
        let [w1, ..] = self.words;
        (w1 >> 56) as u8
    }

    #[inline(always)]
    pub(crate) fn src(&self) -> Ipv4Addr {
        let [_, _, w3, ..] = self.words;
        Ipv4Addr::from(((w3 >> 16) as u32).to_le_bytes())
    }

    #[inline(always)]
    pub(crate) fn dst(&self) -> Ipv4Addr {
        let [_, _, w3, w4, ..] = self.words;
        Ipv4Addr::from(((w3 >> 48 | w4 << 16) as u32).to_le_bytes())
    }

    #[inline(always)]
    pub(crate) fn sport(&self) -> u16 {
        let [_, _, _, w4, ..] = self.words;
        ((w4 >> 16) as u16).swap_bytes()
    }

    #[inline(always)]
    pub(crate) fn qpn(&self) -> Qpn {
        let [.., w5, w6] = self.words;
        Qpn::new(((w5 >> 56 | w6 << 8) as u32).swap_bytes() >> 8)
    }

    #[inline(always)]
    pub(crate) fn psn(&self) -> Psn {
        let [.., w6] = self.words;
        Psn::new(((w6 >> 16) as u32).swap_bytes() & 0xFF_FFFF)
    }

    #[inline(always)]
    pub(crate) fn ack_request(&self) -> bool {
        let [.., w6] = self.words;
        w6 >> 16 & 0x80 != 0
    }

    #[inline(always)]
    pub(crate) fn checksum(&self) -> u16 {
        let [_, _, w3, ..] = self.words;
        (w3 as u16).swap_bytes()
    }

    #[inline(always)]
    pub(crate) fn payload(&self) -> u32 {
        self.length.wrapping_sub(OVERHEAD)
    }

    #[inline(always)]
    pub(crate) fn send(&self) -> Option<Opcode> {
        let opcode = self.opcode();
        contains(SEND, opcode)
            .then(|| Opcode::from_byte(opcode))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{Aeth, Bth, Syndrome};
    use castnet_wire::{
        Ethernet, ExtHeaders, Ipv4, MacAddr, Network, Parsed, VlanTag, emit_roce, ipv4, parse_frame,
    };
    use proptest::prelude::*;

    /// A SEND with all fields that may differ set to something.
    fn data() -> Vec<u8> {
        let network = Network::V4(Ipv4 {
            tos: 2,
            ident: 77,
            ..Ipv4::udp([10, 0, 0, 1].into(), [10, 9, 0, 1].into())
        });
        let ethernet = Ethernet {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            vlan: None,
            ethertype: 0x0800,
        };
        let bth = Bth::new(Opcode::SendOnly, Qpn::new(0x8001), Psn::new(5));
        let mut frame = vec![0; 256];
        let length = emit_roce(
            &mut frame,
            &ethernet,
            &network,
            49_152,
            &bth,
            &ExtHeaders::NONE,
            &[7; 8],
        );
        frame.truncate(length.expect("it fits"));
        frame
    }

    /// Each bit of the headers, turned: those of constant fields make a frame that is not plain, those of the sender and the group one that
    /// is not alike, and all others neither.
    #[test]
    fn each_bit_of_the_headers_is_compared_as_its_field_says() {
        let frame = data();
        let headers = Headers::of(&frame);
        assert!(headers.is_data() && headers.is_data_like(&headers));
        for bit in 0..8 * PLAIN {
            let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
            // "Do not fragment" and the bit above it may be set, and solicited events and migration, in front of padding and version.
            let is_constant = match byte {
                12..=14 | 16 | 17 | 21 | 23 | 36..=39 => true,
                20 => mask & 0x3F != 0,
                43 => mask & 0x3F != 0,
                _ => false,
            };
            // Source, destination, source port, QPN.
            let is_flow = matches!(byte, 26..=35 | 47..=49);
            let mut turned = frame.clone();
            turned[byte] ^= mask;
            let turned = Headers::of(&turned);
            assert_eq!(turned.is_plain(), !is_constant, "byte {byte}, mask {mask:#x}");
            if byte != 42 {
                let is_alike = !is_constant && !is_flow;
                assert_eq!(
                    turned.is_data_like(&headers),
                    is_alike,
                    "byte {byte}, mask {mask:#x}"
                );
            }
        }
        let longer = [&frame[..], &[0; 4]].concat();
        assert!(!Headers::of(&longer).is_data_like(&headers), "of another length");
    }

    /// All opcodes: what is data, and what a SEND.
    #[test]
    fn each_opcode_is_data_or_not() {
        let mut frame = data();
        let headers = Headers::of(&frame);
        for opcode in 0..=u8::MAX {
            frame[42] = opcode;
            let other = Headers::of(&frame);
            let is_data = matches!(opcode, 0..=2 | 4 | 7 | 8);
            assert_eq!(other.is_data(), is_data, "{opcode:#x}");
            assert_eq!(other.may_be_data(), is_data, "{opcode:#x}");
            assert_eq!(other.is_data_like(&headers), is_data, "{opcode:#x}");
            let send = matches!(opcode, 0..=2 | 4).then_some(opcode);
            assert_eq!(other.send().map(|opcode| opcode as u8), send, "{opcode:#x}");
            assert!(!other.is_ack(), "{opcode:#x}: no AETH");
        }
    }

    /// The longest frame whose total length IPv4 can say, one word less, and one more.
    #[test]
    fn a_length_that_ipv4_cannot_say_is_not_plain() {
        for (length, is_plain) in [(65_545, false), (65_546, true), (65_550, false), (131_082, false)] {
            let mut headers = Headers::of(&data());
            headers.length = length;
            let total = (length as u16).wrapping_sub(14).to_be_bytes();
            let udp = (length as u16).wrapping_sub(34).to_be_bytes();
            headers.words[1] = headers.words[1] & !0xFFFF | u64::from(u16::from_le_bytes(total));
            headers.words[3] = headers.words[3] << 16 >> 16 | u64::from(u16::from_le_bytes(udp)) << 48;
            assert_eq!(headers.is_plain(), is_plain, "{length}");
        }
    }

    proptest! {
        /// Headers of a frame that is taken for plain agree with the parser, also after bit flips, cuts and padding.
        #[test]
        fn plain_headers_agree_with_the_parser(
            opcode in prop::sample::select(vec![
                Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast, Opcode::SendOnly, Opcode::WriteMiddle,
                Opcode::WriteLast, Opcode::SendOnlyImm, Opcode::WriteOnly, Opcode::Ack, Opcode::Cnp,
            ]),
            words in 0..20_usize, (tos, ttl, ident, sport) in any::<(u8, u8, u16, u16)>(), psn: u32, qpn in 0..4_u32, ack_request: bool,
            tagged in prop::bool::weighted(0.1), turned in prop::option::of(0..8 * 62_usize), more in -2..3_i32,
        ) {
            let ethernet = Ethernet {
                dst: MacAddr([2; 6]), src: MacAddr([4; 6]), vlan: tagged.then(|| VlanTag::new(7)), ethertype: 0x0800,
            };
            let network = Network::V4(Ipv4 { tos, ttl, ident, ..Ipv4::udp([10, 0, 0, 1].into(), [10, 9, 0, 1].into()) });
            let bth = Bth { ack_request, ..Bth::new(opcode, Qpn::new(qpn), Psn::new(psn)) };
            let payload = vec![7; if matches!(opcode, Opcode::Ack | Opcode::Cnp) { 0 } else { 4 * words }];
            let aeth = (opcode == Opcode::Ack).then_some(Aeth { syndrome: Syndrome::Ack, msn: 3 });
            let imm = (opcode == Opcode::SendOnlyImm).then_some(5);
            let reth = (opcode == Opcode::WriteOnly).then_some(castnet_wire::Reth { va: 1, rkey: 2, dma_len: 3 });
            let ext = ExtHeaders { aeth, imm, reth, ..ExtHeaders::NONE };
            let mut frame = vec![0; 256];
            let length = emit_roce(&mut frame, &ethernet, &network, sport, &bth, &ext, &payload).unwrap_or(58);
            frame.truncate(length);
            if let Some(bit) = turned.filter(|bit| bit / 8 < length) {
                frame[bit / 8] ^= 1 << (bit % 8);
            } else {
                frame.resize(length.saturating_add_signed(more as isize), 0);
            }
            let headers = Headers::of(&frame);
            if headers.is_data() || headers.is_ack() {
                let Ok(Parsed::Roce(parsed)) = parse_frame(&frame, frame.len()) else {
                    panic!("a plain frame can be parsed");
                };
                let opcode = parsed.bth.opcode;
                prop_assert_eq!((parsed.l3, parsed.frame_len, parsed.bth.pad), (L3, frame.len(), 0));
                prop_assert_eq!(parsed.ip.v4(), Some((headers.src(), headers.dst())));
                prop_assert_eq!(parsed.sport, headers.sport());
                prop_assert_eq!((parsed.bth.dest_qp, parsed.bth.psn), (headers.qpn(), headers.psn()));
                prop_assert_eq!((parsed.tos, parsed.bth.ack_request), (headers.tos(), headers.ack_request()));
                prop_assert_eq!(headers.is_sound(&frame), ipv4::checksum_is_right(&frame[L3..]));
                prop_assert_eq!(headers.is_ack(), opcode == Opcode::Ack);
                if headers.is_data() {
                    prop_assert_eq!((parsed.payload_at, parsed.payload_len), (PLAIN, headers.payload() as usize));
                    prop_assert!(headers.is_data_like(&headers));
                    prop_assert!(headers.send().is_none_or(|send| send == opcode));
                } else {
                    prop_assert_eq!(parsed.aeth.map(|aeth| aeth.syndrome), Some(Syndrome::Ack));
                }
            } else if turned.is_none() && more == 0 && !tagged {
                prop_assert!(!contains(DATA, opcode as u8) && opcode != Opcode::Ack, "{opcode} is plain");
            }
        }
    }
}
