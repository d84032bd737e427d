//! The ICRC of contributions, which nearly all have the header of the one before.
//!
//! A CRC is linear: of the header of a packet that differs from an earlier one in identification, AckReq and PSN alone, the
//! register follows by table look-up. So only the payload is left to go through.

use castnet_wire::icrc::{self, Shift};
use castnet_wire::{FrameBuf, RoceHeader};
use crc32fast::Hasher;

/// IPv4, UDP and BTH.
const FIXED: usize = 40;
const WORDS: usize = FIXED / 4;
/// Headers that are remembered: FIRST, MIDDLE, LAST and ONLY have opcodes 0, 1, 2 and 4.
const KEPT: usize = 8;

// Operators for a word and what follows it up to the end of the BTH.
static IDENT: Shift = Shift::by_bytes(FIXED - 4);
static PSN: Shift = Shift::by_bytes(4);
/// The words of identification, and of AckReq and PSN.
const IDENT_AT: usize = 1;
const PSN_AT: usize = 9;

/// What the ICRC leaves out, by word: TOS; TTL and checksum; UDP checksum; BTH byte 4.
const MASKS: [(usize, u32); 4] = [
    (0, u32::from_le_bytes([0, 0xFF, 0, 0])),
    (2, u32::from_le_bytes([0xFF, 0, 0xFF, 0xFF])),
    (6, u32::from_le_bytes([0, 0, 0xFF, 0xFF])),
    (8, u32::from_le_bytes([0xFF, 0, 0, 0])),
];

/// A header as the ICRC sees it, with zeros for what comes by look-up, and its register.
#[derive(Clone, Copy, Debug)]
struct Kept {
    words: [u32; WORDS],
    register: u32,
}

/// The headers of one endpoint's packets.
#[derive(Clone, Debug)]
pub(super) struct Headers([Kept; KEPT]);

impl Headers {
    pub(super) const fn new() -> Self {
        let none = Kept {
            words: [0; WORDS],
            register: 0,
        };
        Self([none; KEPT])
    }

    /// Whether the ICRC of a frame is right; `payload` is all of its payload, in one piece. `None` where the frame is not of
    /// the plain kind, and must be looked at in full.
    #[inline]
    pub(super) fn verify(
        &mut self,
        frame: &impl FrameBuf,
        header: &RoceHeader,
        payload: &[u8],
    ) -> Option<bool> {
        let plain = header.bth.pad == 0
            && header.payload_at == header.l3 + FIXED
            && payload.len() == header.payload_len
            && header.frame_len == frame.length();
        let fixed: &[u8; FIXED] = frame.head().get(header.l3..).filter(|_| plain)?.first_chunk()?;
        let mut hasher = Hasher::new_with_initial(self.register(fixed));
        hasher.update(payload);
        Some(hasher.finalize() == u32::from_le_bytes(frame.trailer()))
    }

    #[inline]
    fn register(&mut self, fixed: &[u8; FIXED]) -> u32 {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(fixed.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        for (at, mask) in MASKS {
            words[at] |= mask;
        }
        let change = IDENT.apply(words[IDENT_AT]) ^ PSN.apply(words[PSN_AT]);
        (words[IDENT_AT], words[PSN_AT]) = (0, 0);
        let kept = &mut self.0[usize::from(fixed[28]) % KEPT];
        // Word by word: a call to compare so few bytes takes longer.
        let differ = kept.words.iter().zip(words).fold(0, |d, (a, b)| d | (a ^ b));
        if differ != 0 {
            let mut bytes = [0; FIXED];
            for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *bytes = word.to_le_bytes();
            }
            *kept = Kept {
                words,
                register: icrc::full(&[&bytes]),
            };
        }
        kept.register ^ change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{Parsed, parse_frame};
    use proptest::prelude::*;

    fn frame(opcode: u8, payload: &[u8], noise: &[u8; 12]) -> Vec<u8> {
        use castnet_wire::{Bth, Ethernet, ExtHeaders, MacAddr, Network, Opcode, Psn, Qpn, emit_roce};
        let ethernet = Ethernet {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            vlan: None,
            ethertype: 0x0800,
        };
        let network = Network::V4 {
            src: [10, 0, 0, noise[0] & 1].into(),
            dst: [10, 0, 0, 9].into(),
            tos: noise[1],
            ttl: noise[2],
            ident: u16::from_be_bytes([noise[3], noise[4]]),
        };
        let opcode = [
            Opcode::SendFirst,
            Opcode::SendMiddle,
            Opcode::SendLast,
            Opcode::SendOnly,
        ][usize::from(opcode % 4)];
        let bth = Bth {
            ack_request: noise[5] & 1 != 0,
            fecn: noise[5] & 2 != 0,
            ..Bth::new(
                opcode,
                Qpn::VIRTUAL,
                Psn::new(u32::from_le_bytes([noise[6], noise[7], noise[8], 0])),
            )
        };
        let mut out = vec![0; payload.len() + 100];
        let n = emit_roce(
            &mut out,
            &ethernet,
            &network,
            0xC000 | u16::from(noise[9] & 1),
            &bth,
            &ExtHeaders::NONE,
            payload,
        )
        .unwrap();
        out.truncate(n);
        out
    }

    proptest! {
        /// Whatever came before, it is what looking at the whole frame says; also of frames with a bit turned.
        #[test]
        fn it_says_what_the_whole_frame_says(
            packets in prop::collection::vec((any::<u8>(), 0usize..40, any::<[u8; 12]>(), prop::option::of(any::<prop::sample::Index>())), 1..20),
        ) {
            let mut headers = Headers::new();
            for (opcode, words, noise, turned) in packets {
                let mut bytes = frame(opcode, &vec![noise[10]; 4 * words], &noise);
                if let Some(at) = turned {
                    let at = at.index(8 * (bytes.len() - 14));
                    bytes[14 + at / 8] ^= 1 << (at % 8);
                }
                let Ok(Parsed::Roce(header)) = parse_frame(&bytes, bytes.len()) else { continue };
                let payload = &bytes[header.payload_at..header.payload_at + header.payload_len];
                if let Some(said) = headers.verify(&bytes, &header, payload) {
                    prop_assert_eq!(said, icrc::verify(&bytes, header.l3, header.frame_len));
                }
            }
        }
    }
}
