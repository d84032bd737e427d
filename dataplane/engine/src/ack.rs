//! The short way of nearly all feedback: an ACK that differs from the member's last one in nothing but what ACKs differ in.
//!
//! Feedback changes state, so its whole ICRC is verified before. But that of an earlier ACK was, and the CRC is linear: from
//! the bytes that differ follows how the ICRC must. Whatever differs otherwise takes the long way, and is known from then on.

use castnet_collective::{Effect, Event, PathId};
use castnet_wire::icrc::Shift;
use castnet_wire::{Aeth, FrameBuf, PortId, Psn, Syndrome, ipv4, parse_frame};

use crate::context::Context;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::feedback::{self, ACK_LEN, Feedback, Link};
use crate::multicast::{self, Tools};
use crate::pipeline::Cx;
use crate::trace::{Observer, Verdict};
use crate::words::words;

/// Members whose last ACK is kept: 80 bytes each.
const MEMBERS: usize = 1024;
const L3: usize = 14;

/// Bits of a packet in which two ACKs of a member must agree, word by word: all but TOS, identification, TTL, IPv4
/// checksum, UDP source port and checksum, PSN, AETH and ICRC.
const SAME: [u64; ACK_LEN / 8] = {
    let mut bytes = [0xFF_u8; ACK_LEN];
    let free = [
        1, 4, 5, 8, 10, 11, 20, 21, 26, 27, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    ];
    let mut i = 0;
    while i < free.len() {
        bytes[free[i]] = 0;
        i += 1;
    }
    words(&bytes)
};

// Operators for a word of the packet and what of it the ICRC covers behind that.
static IDENT_WORD: Shift = Shift::by_bytes(ACK_LEN - 4 - 4);
static SPORT_WORD: Shift = Shift::by_bytes(ACK_LEN - 4 - 20);
static PSN_WORD: Shift = Shift::by_bytes(ACK_LEN - 4 - 36);
static AETH_WORD: Shift = Shift::by_bytes(ACK_LEN - 4 - 40);

/// A member's last ACK; its ICRC was right.
#[derive(Clone, Copy, Debug)]
struct Known {
    packet: [u64; ACK_LEN / 8],
    ingress: PortId,
    path: PathId,
    stamp: u32,
    place: u32,
}

impl Known {
    /// Whether a packet is an ACK of the same member, with the right ICRC.
    #[inline(always)]
    fn vouches_for(&self, packet: &[u64; ACK_LEN / 8]) -> bool {
        let mut differ = [0; ACK_LEN / 8];
        let mut wrong = 0;
        for ((d, (a, b)), same) in differ.iter_mut().zip(self.packet.iter().zip(packet)).zip(SAME) {
            *d = a ^ b;
            wrong |= *d & same;
        }
        if wrong != 0 {
            return false;
        }
        let [first, _, third, _, psn, last] = differ;
        let mut change = PSN_WORD.apply((psn >> 32) as u32) ^ AETH_WORD.apply(last as u32);
        let (ident, sport) = ((first >> 32) as u32 & 0xFFFF, (third >> 32) as u32 & 0xFFFF);
        if ident | sport != 0 {
            change ^= IDENT_WORD.apply(ident) ^ SPORT_WORD.apply(sport);
        }
        (last >> 32) as u32 == change
    }
}

/// The ACKs that came last, by member.
#[derive(Clone, Debug)]
pub(crate) struct Acks {
    known: Box<[Known]>,
    /// What was learned before groups changed is worth nothing.
    stamp: u32,
}

#[inline(always)]
fn slot(packet: &[u64; ACK_LEN / 8]) -> usize {
    // Source and destination address.
    let addresses = packet[1] >> 32 | packet[2] << 32;
    (addresses.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMBERS.trailing_zeros())) as usize
}

impl Acks {
    pub(crate) fn new() -> Self {
        let none = Known {
            packet: [0; ACK_LEN / 8],
            ingress: PortId::default(),
            path: PathId::default(),
            stamp: 0,
            place: 0,
        };
        Self {
            known: vec![none; MEMBERS].into_boxed_slice(),
            stamp: 1,
        }
    }

    /// Groups have changed: all members are to be known again.
    pub(crate) fn forget(&mut self) {
        match self.stamp.checked_add(1) {
            Some(next) => self.stamp = next,
            None => *self = Self::new(),
        }
    }

    /// An ACK with a right ICRC has come the long way.
    pub(crate) fn learn(&mut self, frame: &impl FrameBuf, ingress: PortId, path: PathId, place: u32) {
        let Some(packet) = plain(frame) else { return };
        if let Some(known) = self.known.get_mut(slot(&packet)) {
            *known = Known {
                packet,
                ingress,
                path,
                stamp: self.stamp,
                place,
            };
        }
    }
}

/// The packet of a frame that is as long as an ACK without anything optional.
#[inline(always)]
fn plain(frame: &impl FrameBuf) -> Option<[u64; ACK_LEN / 8]> {
    let bytes = frame.head().first_chunk::<{ L3 + ACK_LEN }>()?;
    let ipv4 = bytes[12..14] == [8, 0] && frame.length() == bytes.len();
    let packet = bytes.last_chunk::<ACK_LEN>().filter(|_| ipv4)?;
    Some(words(packet))
}

impl Engine {
    /// The short way, for a frame that nobody watches. Hands back what has to take the long one; nothing has changed then.
    #[inline(always)]
    pub(crate) fn ack_again<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        frame: E::Buf,
    ) -> Option<E::Buf> {
        let Some(packet) = plain(&frame) else {
            return Some(frame);
        };
        let Some(known) = self.acks.known.get(slot(&packet)).copied() else {
            return Some(frame);
        };
        let psn = Psn::new(((packet[4] >> 32) as u32).swap_bytes() & 0xFF_FFFF);
        let aeth = Aeth::from_bytes(&(packet[5] as u32).to_le_bytes());
        let Ok(Aeth {
            syndrome: Syndrome::Ack,
            msn,
        }) = aeth
        else {
            return Some(frame);
        };
        let header = frame.head().get(L3..).unwrap_or_default();
        let right = known.stamp == self.acks.stamp
            && known.ingress == cx.ingress
            && known.vouches_for(&packet)
            && (frame.checksum_good() || ipv4::checksum_is_right(header));
        if !right {
            return Some(frame);
        }
        let Some(Context::Multicast(group)) = self.groups.at_mut(known.place) else {
            return Some(frame);
        };
        let event = Event::Feedback {
            from: known.path,
            psn,
            msn,
            syndrome: Syndrome::Ack,
        };
        multicast::note_arrival(group, known.path, &event, frame.length());
        group.hot.machine.handle(cx.now, event, &mut self.effects);
        let mut tools = Tools {
            ports: &self.ports,
            next_hops: &self.next_hops,
            shifts: &mut self.shifts,
            counters: &mut self.counters,
        };
        let verdict = match self.effects.as_slice() {
            [Effect::Absorb] => Verdict::Absorbed,
            [
                Effect::Acknowledge {
                    to,
                    psn,
                    msn,
                    syndrome,
                },
            ] => {
                let link = Link::plain((packet[0] >> 8) as u8);
                let wanted = Feedback::Acknowledge {
                    to: *to,
                    psn: *psn,
                    msn: *msn,
                    syndrome: *syndrome,
                };
                feedback::send(cx, &mut tools, group, &link, wanted, Some(frame));
                Verdict::Absorbed
            }
            effects => match parse_frame(frame.head(), frame.length()) {
                Ok(castnet_wire::Parsed::Roce(header)) => {
                    multicast::carry_out(cx, &mut tools, group, &header, effects, frame)
                }
                // It is an ACK: an earlier one with the same headers was parsed.
                _ => Verdict::Absorbed,
            },
        };
        multicast::arm(&mut self.wheel, cx.now, known.place, &group.hot.machine);
        self.account(cx.ingress, verdict);
        None
    }
}
