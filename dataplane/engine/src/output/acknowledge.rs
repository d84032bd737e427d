//! Writes acknowledge packets and CNPs of groups of all kinds.

use core::net::Ipv4Addr;
use core::ops::Range;

pub(crate) use castnet_wire::ethernet::MACS_LEN as MACS;

use castnet_wire::ethernet::{ETHERTYPE_IPV4, set_macs};
use castnet_wire::icrc::Shift;
use castnet_wire::ipv4::ChecksumDelta;
use castnet_wire::layout::{self, PACKET_HEADERS};
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Aeth, Bth, FrameBuf, Ipv4, Opcode, PortId, Psn, Qpn, RoceHeader, Syndrome, Udp, icrc};

use crate::egress::Egress;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::cx::Cx;

/// Most bytes between the Ethernet addresses and the IP header: two tags and the EtherType.
pub(crate) const LINK_MAX: usize = 10;
const AETH: Range<usize> = PACKET_HEADERS..PACKET_HEADERS + Aeth::LEN;
/// IPv4, UDP, BTH, AETH, ICRC.
const ACK_LEN: usize = PACKET_HEADERS + Aeth::LEN + ICRC_LEN;
/// IPv4, UDP, BTH, 16 reserved bytes, ICRC.
const CNP_LEN: usize = PACKET_HEADERS + 16 + ICRC_LEN;

/// VLAN tags and class of service. Those of feedback are those of the data that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkHeader {
    bytes: [u8; LINK_MAX],
    length: usize,
    /// DSCP, with zeros for ECN.
    tos: u8,
}

impl LinkHeader {
    #[inline]
    pub(crate) fn of(frame: Option<&impl FrameBuf>, header: &RoceHeader) -> Self {
        let mut link = Self {
            tos: header.tos & 0xFC,
            ..Self::PLAIN
        };
        if header.l3 != MACS + 2 {
            let tags = frame
                .and_then(|f| f.head().get(MACS..header.l3))
                .filter(|t| t.len() <= LINK_MAX);
            if let Some(tags) = tags {
                link.length = tags.len();
                link.bytes[..tags.len()].copy_from_slice(tags);
            }
        }
        link
    }

    /// A header without tags, with the DSCP of `tos`.
    pub(crate) const fn plain(tos: u8) -> Self {
        Self {
            tos: tos & 0xFC,
            ..Self::PLAIN
        }
    }

    /// No tags, and class of service 0.
    pub(crate) const PLAIN: Self = {
        let [e0, e1] = ETHERTYPE_IPV4.to_be_bytes();
        Self {
            bytes: [e0, e1, 0, 0, 0, 0, 0, 0, 0, 0],
            length: 2,
            tos: 0,
        }
    };

    /// Faster than comparing all bytes.
    #[inline]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.tos == other.tos
            && self.length == other.length
            && (self.length == Self::PLAIN.length || self.bytes == other.bytes)
    }

    /// True without tags and with the class of service of `tos`.
    #[inline]
    pub(crate) fn is_plain(&self, tos: u8) -> bool {
        self.length == Self::PLAIN.length && self.tos == tos & 0xFC
    }

    pub(crate) fn tos(&self) -> u8 {
        self.tos
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Writes the tags and the EtherType. Without tags, this is a store of two bytes.
    #[inline]
    fn write(&self, frame: &mut [u8]) {
        if self.length == Self::PLAIN.length {
            if let Some([a, b]) = frame.get_mut(MACS..MACS + 2) {
                (*a, *b) = (self.bytes[0], self.bytes[1]);
            }
        } else if let Some(room) = frame.get_mut(MACS..MACS + self.length) {
            room.copy_from_slice(self.bytes());
        }
    }
}

/// The addresses of a group's feedback, constant for the life of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) qpn: Qpn,
    pub(crate) sport: u16,
}

impl Address {
    /// `length` is from IPv4 to ICRC.
    pub(crate) fn headers(&self, tos: u8, length: usize, bth: &Bth) -> [u8; PACKET_HEADERS] {
        let ip = Ipv4 {
            tos,
            total_len: length as u16,
            ..Ipv4::udp(self.src, self.dst)
        };
        let udp = Udp {
            sport: self.sport,
            dport: ROCE_PORT,
            length: length.saturating_sub(Ipv4::LEN) as u16,
            checksum: 0,
        };
        let mut bytes = [0; PACKET_HEADERS];
        bytes[..Ipv4::LEN].copy_from_slice(&ip.to_bytes());
        bytes[layout::UDP].copy_from_slice(&udp.to_bytes());
        bytes[layout::BTH].copy_from_slice(&bth.to_bytes());
        bytes
    }
}

// Operators for the last two words that the ICRC of an ACK covers.
static PSN_WORD: Shift = Shift::by_bytes(8);
static AETH_WORD: Shift = Shift::by_bytes(4);

/// An acknowledge packet. PSN, AETH and TOS are zeros, and the ICRC is that of these zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckTemplate {
    packet: [u8; ACK_LEN],
    icrc: u32,
}

impl AckTemplate {
    pub(crate) fn new(to: &Address) -> Self {
        Self::of(to, Opcode::Ack)
    }

    /// The template of another opcode with the headers of an ACK.
    pub(crate) fn of(to: &Address, opcode: Opcode) -> Self {
        let mut packet = [0; ACK_LEN];
        let bth = Bth::new(opcode, to.qpn, Psn::new(0));
        packet[..PACKET_HEADERS].copy_from_slice(&to.headers(0, ACK_LEN, &bth));
        Self {
            packet,
            icrc: icrc::full(&[&packet[..ACK_LEN - ICRC_LEN]]),
        }
    }

    /// The ICRC follows by difference from zeros; it does not cover the TOS.
    #[inline]
    fn write(&self, out: &mut [u8; ACK_LEN], tos: u8, psn: Psn, aeth: Aeth) {
        *out = self.packet;
        if tos != 0 {
            let checksum = &mut out[layout::IPV4_CHECKSUM];
            let before = u16::from_be_bytes([checksum[0], checksum[1]]);
            let change = ChecksumDelta::word(0, u16::from(tos));
            checksum.copy_from_slice(&change.apply(before).to_be_bytes());
            out[layout::TOS] = tos;
        }
        let (psn, aeth) = (psn.to_bytes(), aeth.to_bytes());
        out[layout::PSN].copy_from_slice(&psn);
        out[AETH].copy_from_slice(&aeth);
        let icrc = self.icrc
            ^ PSN_WORD.apply(u32::from_le_bytes([0, psn[0], psn[1], psn[2]]))
            ^ AETH_WORD.apply(u32::from_le_bytes(aeth));
        out[AETH.end..].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// A feedback frame to a next hop: an acknowledge packet or, without PSN and AETH, a CNP. It is written to `reuse`, which has
/// caused it, if the lengths are equal. Counts a loss and returns `None` without buffer or if the port is down.
#[inline]
pub(crate) fn feedback<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    (port, next_hop): (PortId, u16),
    link: &LinkHeader,
    (template, address): (&AckTemplate, &Address),
    ack: Option<(Psn, Aeth)>,
    reuse: Option<E::Buf>,
) -> Option<E::Buf> {
    let l3 = MACS + link.bytes().len();
    let length = l3 + if ack.is_some() { ACK_LEN } else { CNP_LEN };
    let reuse = reuse.filter(|f| f.length() == length && f.head().len() >= length);
    let frame = match output.ports.up.contains(port) {
        true => reuse.or_else(|| cx.egress.allocate(port, length)),
        false => None,
    };
    let Some(mut frame) = frame else {
        output.counters.totals.copies_lost += 1;
        cx.observer
            .step(|| Step::new(Stage::Feedback, "not sent", "no buffer, or the port is down"));
        return None;
    };
    let head = frame.head_mut();
    set_macs(head, output.next_hops.get(next_hop), output.ports.mac(port));
    link.write(head);
    let packet = head.get_mut(l3..).unwrap_or_default();
    if let (Some((psn, aeth)), Some(packet)) = (ack, packet.first_chunk_mut()) {
        template.write(packet, link.tos(), psn, aeth);
    } else if let Some(packet) = packet.first_chunk_mut() {
        write_cnp(packet, address, link.tos());
    }
    output.counters.totals.originated += 1;
    Some(frame)
}

/// Sends a message with the headers of an ACK: a PSN, and a number in the MSN field of its AETH. Returns false, and counts a loss, without
/// buffer or if the port is down. `explain` returns whom it is for, and why.
#[cold]
pub(crate) fn send_message<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    hop: (PortId, u16),
    link: &LinkHeader,
    to: &Address,
    (opcode, psn, number): (Opcode, Psn, u32),
    explain: impl FnOnce() -> (String, String),
) -> bool {
    let aeth = Aeth {
        syndrome: Syndrome::Ack,
        msn: number,
    };
    let addresses = (&AckTemplate::of(to, opcode), to);
    let Some(frame) = feedback(cx, output, hop, link, addresses, Some((psn, aeth)), None) else {
        return false;
    };
    cx.observer.step(|| {
        let (whom, why) = explain();
        Step::new(Stage::Feedback, format!("{opcode} for {whom}"), why)
    });
    cx.send(&mut output.counters, hop.0, frame);
    true
}

#[cold]
fn write_cnp(out: &mut [u8; CNP_LEN], to: &Address, tos: u8) {
    let bth = Bth {
        becn: true,
        ..Bth::new(Opcode::Cnp, to.qpn, Psn::new(0))
    };
    *out = [0; CNP_LEN];
    out[..PACKET_HEADERS].copy_from_slice(&to.headers(tos, CNP_LEN, &bth));
    let icrc = icrc::full(&[&out[..CNP_LEN - ICRC_LEN]]);
    out[CNP_LEN - ICRC_LEN..].copy_from_slice(&icrc.to_le_bytes());
}
