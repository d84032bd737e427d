//! Reads fields of a received frame at fixed offsets: without tags, over IPv4 without options.

use castnet_wire::ethernet::{ETHERTYPE_AT, ETHERTYPE_IPV4};
use castnet_wire::ipv4::PROTOCOL_UDP;
use castnet_wire::layout;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Aeth, Ethernet, FrameBuf, Opcode, Psn, Qpn, Syndrome, icrc};

pub(crate) const L3: usize = Ethernet::LEN;
/// Offset of the last word of the BTH: acknowledgement request and PSN.
pub(crate) const PSN_AT: usize = L3 + layout::ACK_REQUEST;
/// Offset of the bytes behind the BTH: payload, or an extended header.
pub(crate) const AFTER_BTH: usize = layout::PLAIN_FRAME;

/// Fields of a RoCEv2 frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) src: u32,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) opcode: u8,
    /// The two words behind the BTH.
    pub(crate) words: [u32; 2],
}

impl Seen {
    pub(crate) fn read(head: &[u8]) -> Option<Self> {
        let head: &[u8; AFTER_BTH + 8] = head.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // IPv4 without options; UDP; RoCEv2's port.
        let [e0, e1] = ETHERTYPE_IPV4.to_be_bytes();
        if head[ETHERTYPE_AT..=L3] != [e0, e1, layout::VERSION_LENGTH]
            || head[L3 + layout::PROTOCOL] != PROTOCOL_UDP
            || word(L3 + layout::SPORT.start) as u16 != ROCE_PORT
        {
            return None;
        }
        Some(Self {
            src: word(L3 + layout::SRC.start),
            qpn: Qpn::new(word(PSN_AT - 4)),
            psn: Psn::new(word(PSN_AT)),
            ack_request: head[PSN_AT] & 0x80 != 0,
            opcode: head[L3 + layout::OPCODE],
            words: [word(AFTER_BTH), word(AFTER_BTH + 4)],
        })
    }

    pub(crate) fn is(&self, opcode: Opcode) -> bool {
        self.opcode == opcode.byte()
    }

    pub(crate) fn syndrome(&self) -> Option<Syndrome> {
        Aeth::from_bytes(&self.words[0].to_be_bytes())
            .ok()
            .map(|aeth| aeth.syndrome)
    }
}

/// Returns true if the ICRC is right. Ethernet padding of short frames is excluded.
pub(crate) fn icrc_is_right(frame: &impl FrameBuf) -> bool {
    let Some([hi, lo]) = frame
        .head()
        .get(layout::in_frame(layout::TOTAL_LENGTH))
        .and_then(|b| b.first_chunk())
        .copied()
    else {
        return false;
    };
    let total = L3 + usize::from(u16::from_be_bytes([hi, lo]));
    total <= frame.length() && icrc::verify(frame, L3, total)
}

/// A read-only frame in one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOnlyFrame<'a>(pub(crate) &'a [u8]);

impl FrameBuf for ReadOnlyFrame<'_> {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn head(&self) -> &[u8] {
        self.0
    }

    fn head_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    fn trailer(&self) -> [u8; 4] {
        self.0.last_chunk().copied().unwrap_or_default()
    }

    fn set_trailer(&mut self, _: [u8; 4]) {}

    fn segments(&self) -> [&[u8]; 3] {
        [self.0, &[], &[]]
    }
}
