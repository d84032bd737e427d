//! The ICRC of contributions, which nearly all have the header of the one before; and what follows from that alone.
//!
//! A CRC is linear: of the header of a packet that differs from an earlier one in identification, AckReq and PSN alone, the
//! register follows by table look-up. So only the payload is left to go through. And whatever else was found out about the
//! earlier one, where its header is sound and who sent it, holds for this one too.

use castnet_collective::translated::PacketShape;
use castnet_reduce::Checksum;
use castnet_wire::icrc::{self, Shift};
use castnet_wire::{FrameBuf, Opcode, Psn, RoceHeader};

use super::slots::{self, Pieces};
use crate::feedback::{Link, MACS};
use crate::words::words;

/// IPv4, UDP and BTH.
pub(super) const FIXED: usize = 40;
const WORDS: usize = FIXED / 8;
/// ECN's bits of the TOS; both set is "congestion experienced" (RFC 3168).
pub(super) const ECN: u8 = 3;
/// Headers that are remembered: FIRST, MIDDLE, LAST and ONLY have opcodes 0, 1, 2 and 4.
const KEPT: usize = 8;
/// Where the IPv4 header of a frame without tags is.
const UNTAGGED: usize = MACS + 2;

// Operators for a word of four bytes and what follows it up to the end of the BTH.
static IDENT: Shift = Shift::by_bytes(FIXED - 4);
static PSN: Shift = Shift::by_bytes(4);

/// What the ICRC leaves out, by words of eight bytes: TOS, of which the class of service must be the same all the same; TTL
/// and checksum; UDP checksum; BTH byte 4. And what comes by look-up: identification, AckReq and PSN.
const MASKS: [u64; WORDS] = [
    u64::from_le_bytes([0xFF, 0xFC, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF]),
    u64::from_le_bytes([0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
    u64::MAX,
    u64::from_le_bytes([0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
    u64::from_le_bytes([0, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]),
];

/// A header, with zeros for what may differ, and the register of its ICRC with those zeros.
#[derive(Clone, Copy, Debug)]
struct Kept {
    words: [u64; WORDS],
    register: u32,
    payload: u16,
    opcode: Opcode,
    /// Whether a frame with it has been taken for a contribution.
    taken: bool,
}

/// The headers of one endpoint's packets.
#[derive(Clone, Debug)]
pub(super) struct Headers([Kept; KEPT]);

/// A data packet whose header is known; its payload has not been looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) shape: PacketShape,
    pub(super) psn: Psn,
    pub(super) ack_request: bool,
    /// Where the payload begins in the frame.
    pub(super) payload_at: usize,
    register: u32,
}

impl Known {
    /// The payload, if the ICRC of the frame is right.
    #[inline(always)]
    pub(super) fn payload<'f>(&self, checksum: &Checksum, frame: &'f impl FrameBuf) -> Option<Pieces<'f>> {
        let (first, second) = slots::pieces(frame, self.payload_at, self.shape.payload.into())?;
        let right = checksum.update(self.register, first, second) == u32::from_le_bytes(frame.trailer());
        right.then_some((first, second))
    }
}

/// What identification, AckReq and PSN add to the register.
#[inline(always)]
fn change(words: &[u64; WORDS]) -> u32 {
    let psn = PSN.apply((words[4] >> 32) as u32);
    // Many senders leave it zero.
    match (words[0] >> 32) as u32 & 0xFFFF {
        0 => psn,
        ident => psn ^ IDENT.apply(ident),
    }
}

/// Whether the checksum of the IPv4 header in these words is right: the order of bytes and of words does not matter to a sum
/// with end-around carry.
#[inline(always)]
fn ip_checksum_is_right(words: &[u64; WORDS]) -> bool {
    let (low, carry) = words[0].overflowing_add(words[1]);
    let sum = (low & 0xFFFF_FFFF) + (low >> 32) + (words[2] & 0xFFFF_FFFF) + u64::from(carry);
    let sum = (sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (sum & 0xFFFF) + (sum >> 16) == 0xFFFF
}

impl Headers {
    pub(super) const fn new() -> Self {
        let none = Kept {
            words: [0; WORDS],
            register: 0,
            payload: 0,
            opcode: Opcode::SendFirst,
            taken: false,
        };
        Self([none; KEPT])
    }

    /// Whether the ICRC of a frame is right. `None` where the frame is not of the plain kind, and must be looked at in full.
    #[inline]
    pub(super) fn verify(
        &mut self,
        frame: &impl FrameBuf,
        header: &RoceHeader,
        checksum: &Checksum,
    ) -> Option<bool> {
        let plain = header.bth.pad == 0
            && header.payload_at == header.l3 + FIXED
            && header.frame_len == frame.length();
        let fixed: &[u8; FIXED] = frame.head().get(header.l3..).filter(|_| plain)?.first_chunk()?;
        let (first, second) = slots::pieces(frame, header.payload_at, header.payload_len)?;
        let register = self.register(fixed, header);
        Some(checksum.update(register, first, second) == u32::from_le_bytes(frame.trailer()))
    }

    #[inline]
    fn register(&mut self, fixed: &[u8; FIXED], header: &RoceHeader) -> u32 {
        let words = words(fixed);
        let kept = &mut self.0[usize::from(fixed[28]) % KEPT];
        if differs(&kept.words, &words) {
            // Neither of what the ICRC leaves out is looked at here, so it may be anything.
            let mut bytes = *fixed;
            bytes[4..6].fill(0);
            bytes[36..].fill(0);
            let mut masked = words;
            masked
                .iter_mut()
                .zip(MASKS)
                .for_each(|(word, mask)| *word &= mask);
            *kept = Kept {
                words: masked,
                register: icrc::full(&[&bytes]),
                payload: header.payload_len as u16,
                opcode: header.bth.opcode,
                taken: false,
            };
        }
        kept.register ^ change(&words)
    }

    /// A frame that [`Headers::verify`] found right was taken for data from this endpoint.
    pub(super) fn taken(&mut self, opcode: Opcode) {
        self.0[usize::from(opcode as u8) % KEPT].taken = true;
    }

    /// What a frame is of which nothing has been looked at yet, if it is like one that was taken: then all that was checked
    /// there need not be checked again, but for the checksum of its header, which this does, and its ICRC. `ect`: whether the
    /// last one may have been marked on its way. One that was is not known.
    #[inline(always)]
    pub(super) fn known(&self, link: &Link, ect: bool, frame: &impl FrameBuf) -> Option<Known> {
        let head = frame.head();
        let (ethernet, packet) = head.split_first_chunk::<UNTAGGED>()?;
        let fixed: &[u8; FIXED] = packet.first_chunk()?;
        let words = words(fixed);
        let kept = &self.0[usize::from(fixed[28]) % KEPT];
        let ecn = fixed[1] & ECN;
        let same = kept.taken
            && (ecn != 0) == ect
            && ecn != ECN
            && !differs(&kept.words, &words)
            && link.is_plain(fixed[1], [ethernet[MACS], ethernet[MACS + 1]])
            && frame.length() == UNTAGGED + usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if !same || !ip_checksum_is_right(&words) {
            return None;
        }
        Some(Known {
            shape: PacketShape {
                opcode: kept.opcode,
                payload: kept.payload,
                pad: 0,
            },
            psn: Psn::from_bytes([fixed[37], fixed[38], fixed[39]]),
            ack_request: fixed[36] & 0x80 != 0,
            payload_at: UNTAGGED + FIXED,
            register: kept.register ^ change(&words),
        })
    }
}

/// Whether two headers differ in what must be the same. Word by word: a call to compare so few bytes takes longer.
#[inline(always)]
fn differs(kept: &[u64; WORDS], words: &[u64; WORDS]) -> bool {
    let pairs = kept.iter().zip(words).zip(MASKS);
    pairs.fold(0, |d, ((kept, word), mask)| d | ((kept ^ word) & mask)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{Parsed, ipv4, parse_frame};
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
        #[test]
        fn it_sums_as_others_do(bytes: [u8; 20], right: bool, spoil: u8) {
            let mut fixed = [0; FIXED];
            fixed[..20].copy_from_slice(&bytes);
            fixed[0] = 0x45;
            if right {
                fixed[10..12].fill(0);
                let checksum = castnet_wire::ipv4::checksum(&fixed[..20]);
                fixed[10..12].copy_from_slice(&checksum.to_be_bytes());
                fixed[11] ^= spoil & 1;
            }
            prop_assert_eq!(ip_checksum_is_right(&words(&fixed)), ipv4::checksum_is_right(&fixed[..20]));
        }

        /// Whatever came before, it is what looking at the whole frame says; also of frames with a bit turned.
        #[test]
        fn it_says_what_the_whole_frame_says(
            packets in prop::collection::vec((any::<u8>(), 0usize..40, any::<[u8; 12]>(), prop::option::of(any::<prop::sample::Index>())), 1..20),
        ) {
            let (mut headers, checksum) = (Headers::new(), Checksum::select());
            for (opcode, words, noise, turned) in packets {
                let mut bytes = frame(opcode, &vec![noise[10]; 4 * words], &noise);
                if let Some(at) = turned {
                    let at = at.index(8 * (bytes.len() - 14));
                    bytes[14 + at / 8] ^= 1 << (at % 8);
                }
                let Ok(Parsed::Roce(header)) = parse_frame(&bytes, bytes.len()) else { continue };
                let right = icrc::verify(&bytes, header.l3, header.frame_len);
                let link = Link::of(Some(&bytes), &header);
                if let Some(known) = headers.known(&link, header.tos & ECN != 0, &bytes) {
                    prop_assert_eq!(known.payload(&checksum, &bytes).is_some(), right);
                    prop_assert!(ipv4::checksum_is_right(&bytes[header.l3..]));
                    let shape = PacketShape {
                        opcode: header.bth.opcode,
                        payload: header.payload_len as u16,
                        pad: header.bth.pad,
                    };
                    prop_assert_eq!(known.shape, shape);
                    prop_assert_eq!((known.psn, known.ack_request), (header.bth.psn, header.bth.ack_request));
                    prop_assert_eq!(known.payload_at, header.payload_at);
                }
                if let Some(said) = headers.verify(&bytes, &header, &checksum) {
                    prop_assert_eq!(said, right);
                    if said {
                        headers.taken(header.bth.opcode);
                    }
                }
            }
        }
    }
}
