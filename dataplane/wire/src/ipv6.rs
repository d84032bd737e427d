//! IPv6 (RFC 8200). Extension headers are not parsed: a datagram with extension headers is not taken for RoCEv2.

use crate::error::{Header, ParseError, fixed_header};
use crate::ipv4::{ECN, PROTOCOL_UDP};
use core::net::Ipv6Addr;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipv6 {
    /// Traffic class: DSCP and, in the low two bits, ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes that follow this header.
    pub payload_len: u16,
    /// Protocol number of the next header.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

fixed_header!(Ipv6);

fn address(bytes: &[u8]) -> Ipv6Addr {
    Ipv6Addr::from(*bytes.first_chunk::<16>().unwrap_or(&[0; 16]))
}

impl Ipv6 {
    /// Bytes of the header.
    pub const LEN: usize = 40;

    /// The header of a UDP datagram with 64 hops, and zeros for the rest.
    pub const fn udp(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self {
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
            next_header: PROTOCOL_UDP,
            hop_limit: 64,
            src,
            dst,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// Another version.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let first = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if first >> 28 != 6 {
            return Err(ParseError::field(Header::Ipv6, "version", first >> 28));
        }
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xF_FFFF,
            payload_len: u16::from_be_bytes([b[4], b[5]]),
            next_header: b[6],
            hop_limit: b[7],
            src: address(&b[8..24]),
            dst: address(&b[24..40]),
        })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xF_FFFF);
        b[..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        b
    }
}

/// Marks the IPv6 header at the start of `bytes` as congested (CE), if it is ECN-capable (ECT). False, with nothing changed, if it is not,
/// is marked already, or there is no header. Neither a checksum nor the ICRC covers the mark.
pub fn mark_congestion(bytes: &mut [u8]) -> bool {
    let Some(b) = bytes.first_chunk_mut::<{ Ipv6::LEN }>() else {
        return false;
    };
    // The traffic class is across the first two bytes; its ECN bits are the middle ones of the second.
    let marks = matches!(b[1] >> 4 & ECN, 1 | 2);
    if marks {
        b[1] |= ECN << 4;
    }
    marks
}
