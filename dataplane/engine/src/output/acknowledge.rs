//! Acknowledge packets and CNPs as bytes, whichever group says them.

use core::net::Ipv4Addr;

use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::icrc::Shift;
use castnet_wire::ipv4::{ChecksumDelta, DONT_FRAGMENT, PROTOCOL_UDP};
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{Aeth, Bth, FrameBuf, Ipv4, Opcode, Psn, Qpn, RoceHeader, Udp, icrc};

/// Bytes of tags and EtherType between the Ethernet addresses and the IP header: two tags at most.
pub(crate) const LINK_MAX: usize = 10;
pub(crate) const MACS: usize = 12;
/// IPv4, UDP, BTH, AETH, ICRC.
pub(crate) const ACK_LEN: usize = 20 + 8 + 12 + 4 + 4;
/// IPv4, UDP, BTH, 16 reserved bytes, ICRC.
pub(crate) const CNP_LEN: usize = 20 + 8 + 12 + 16 + 4;

/// What the frame that causes feedback hands down to it: its VLAN tags, and its class of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    bytes: [u8; LINK_MAX],
    length: usize,
    /// DSCP; ECN zeroed.
    tos: u8,
}

impl Link {
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

    /// No tags; `tos` as it came.
    pub(crate) const fn plain(tos: u8) -> Self {
        Self {
            tos: tos & 0xFC,
            ..Self::PLAIN
        }
    }

    /// No tags, and no class of service.
    pub(crate) const PLAIN: Self = {
        let [e0, e1] = ETHERTYPE_IPV4.to_be_bytes();
        Self {
            bytes: [e0, e1, 0, 0, 0, 0, 0, 0, 0, 0],
            length: 2,
            tos: 0,
        }
    };

    /// Whether both are the same: quicker than to compare all bytes of both.
    #[inline]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.tos == other.tos
            && self.length == other.length
            && (self.length == Self::PLAIN.length || self.bytes == other.bytes)
    }

    /// Whether it has no tags, and this class of service.
    #[inline]
    pub(crate) fn is_plain(&self, tos: u8) -> bool {
        self.length == Self::PLAIN.length && self.tos == tos & 0xFC
    }

    pub(crate) fn tos(&self) -> u8 {
        self.tos
    }

    /// What stands between the Ethernet addresses and the IP header.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Where a group's feedback goes: the same for all of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) qpn: Qpn,
    pub(crate) sport: u16,
}

impl Address {
    pub(crate) fn ip(&self, tos: u8, packet_len: usize) -> Ipv4 {
        Ipv4 {
            tos,
            total_len: packet_len as u16,
            ident: 0,
            flags_frag: DONT_FRAGMENT,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            src: self.src,
            dst: self.dst,
        }
    }

    pub(crate) fn udp(&self, packet_len: usize) -> Udp {
        Udp {
            sport: self.sport,
            dport: ROCE_PORT,
            length: packet_len as u16 - 20,
            checksum: 0,
        }
    }
}

// Operators for a word and so many bytes more: the last two words that an ACK's ICRC covers.
static PSN_WORD: Shift = Shift::by_bytes(8);
static AETH_WORD: Shift = Shift::by_bytes(4);

/// An acknowledge packet with all that never changes filled in: PSN, AETH and TOS are zeros, and the ICRC is for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckTemplate {
    packet: [u8; ACK_LEN],
    icrc: u32,
}

impl AckTemplate {
    pub(crate) fn new(to: &Address) -> Self {
        let mut packet = [0; ACK_LEN];
        packet[..20].copy_from_slice(&to.ip(0, ACK_LEN).to_bytes());
        packet[20..28].copy_from_slice(&to.udp(ACK_LEN).to_bytes());
        packet[28..40].copy_from_slice(&Bth::new(Opcode::Ack, to.qpn, Psn::new(0)).to_bytes());
        Self {
            packet,
            icrc: icrc::full(&[&packet[..ACK_LEN - 4]]),
        }
    }

    /// Writes the packet with what does change. The ICRC follows by difference from zeros; it does not cover the TOS.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8; ACK_LEN], tos: u8, psn: Psn, aeth: Aeth) {
        *out = self.packet;
        if tos != 0 {
            let checksum = u16::from_be_bytes([out[10], out[11]]);
            let change = ChecksumDelta::word(0x4500, 0x4500 | u16::from(tos));
            out[1] = tos;
            out[10..12].copy_from_slice(&change.apply(checksum).to_be_bytes());
        }
        let (psn, aeth) = (psn.to_bytes(), aeth.to_bytes());
        out[37..40].copy_from_slice(&psn);
        out[40..44].copy_from_slice(&aeth);
        let icrc = self.icrc
            ^ PSN_WORD.apply(u32::from_le_bytes([0, psn[0], psn[1], psn[2]]))
            ^ AETH_WORD.apply(u32::from_le_bytes(aeth));
        out[44..].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// A CNP, written in full: there are few.
pub(crate) fn write_cnp(out: &mut [u8; CNP_LEN], to: &Address, tos: u8) {
    let bth = Bth {
        becn: true,
        ..Bth::new(Opcode::Cnp, to.qpn, Psn::new(0))
    };
    *out = [0; CNP_LEN];
    out[..20].copy_from_slice(&to.ip(tos, CNP_LEN).to_bytes());
    out[20..28].copy_from_slice(&to.udp(CNP_LEN).to_bytes());
    out[28..40].copy_from_slice(&bth.to_bytes());
    let icrc = icrc::full(&[&out[..CNP_LEN - 4]]);
    out[CNP_LEN - 4..].copy_from_slice(&icrc.to_le_bytes());
}
