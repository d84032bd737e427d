//! Whole UDP datagrams over IPv4 with the UDP checksum (RFC 768): what protects packets that have no ICRC, such as MRP.

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use crate::error::{Header, ParseError};
use crate::ethernet::{ETHERTYPE_IPV4, Ethernet};
use crate::ids::MacAddr;
use crate::ipv4::{self, Ipv4, PROTOCOL_UDP, checksum_is_right, fold};
use crate::udp::Udp;

/// Most payload bytes in an IP packet of 1500 bytes.
pub const PAYLOAD_MAX: usize = 1500 - Ipv4::LEN - Udp::LEN;

/// A UDP datagram over IPv4, without IP options when written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Destination and source Ethernet addresses.
    pub macs: (MacAddr, MacAddr),
    /// Source address and port.
    pub from: (Ipv4Addr, u16),
    /// Destination address and port.
    pub to: (Ipv4Addr, u16),
    /// At most [`PAYLOAD_MAX`] bytes when written.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads a frame. Bytes behind the IP packet are ignored.
    ///
    /// # Errors
    /// The frame is no whole UDP datagram over IPv4, or one of its two checksums is wrong or missing.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let (ethernet, l3) = Ethernet::parse(frame)?;
        if ethernet.ethertype != ETHERTYPE_IPV4 {
            let kind = u32::from(ethernet.ethertype);
            return Err(ParseError::field(Header::Ethernet, "EtherType", kind));
        }
        let packet = frame.get(l3..).unwrap_or_default();
        let (ip, header) = Ipv4::parse(packet)?;
        let total = usize::from(ip.total_len);
        if ip.protocol != PROTOCOL_UDP || ip.is_fragment() {
            return Err(ParseError::rule(Header::Ipv4, "no whole UDP datagram"));
        }
        if !checksum_is_right(packet) {
            return Err(ParseError::rule(Header::Ipv4, "wrong checksum"));
        }
        let datagram = packet.get(header..total).ok_or(ParseError::length(
            Header::Ipv4,
            "total length",
            total,
            packet.len(),
        ))?;
        let udp = Udp::parse(datagram)?;
        let length = usize::from(udp.length);
        if length != datagram.len() {
            let found = datagram.len();
            return Err(ParseError::length(Header::Udp, "length", length, found));
        }
        if udp.checksum == 0 || sum(ip.src, ip.dst, datagram) != 0 {
            return Err(ParseError::rule(Header::Udp, "wrong or no checksum"));
        }
        Ok(Self {
            macs: (ethernet.dst, ethernet.src),
            from: (ip.src, udp.sport),
            to: (ip.dst, udp.dport),
            payload: &datagram[Udp::LEN..],
        })
    }

    /// The frame with both checksums, not padded. A payload over [`PAYLOAD_MAX`] is cut.
    pub fn to_frame(&self) -> Vec<u8> {
        let payload = self.payload.get(..PAYLOAD_MAX).unwrap_or(self.payload);
        let length = (Udp::LEN + payload.len()) as u16;
        let ethernet = Ethernet {
            dst: self.macs.0,
            src: self.macs.1,
            vlan: None,
            ethertype: ETHERTYPE_IPV4,
        };
        let ip = Ipv4 {
            total_len: Ipv4::LEN as u16 + length,
            ..Ipv4::udp(self.from.0, self.to.0)
        };
        let udp = Udp {
            sport: self.from.1,
            dport: self.to.1,
            length,
            checksum: 0,
        };
        let mut frame = alloc::vec![0; Ethernet::LEN];
        // The buffer has the length of the header.
        let _ = ethernet.emit(&mut frame);
        frame.extend(ip.to_bytes());
        let at = frame.len();
        frame.extend(udp.to_bytes());
        frame.extend(payload);
        // A computed checksum of zero is sent as all ones: zero means none.
        let checksum = match sum(ip.src, ip.dst, &frame[at..]) {
            0 => u16::MAX,
            checksum => checksum,
        };
        frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
        frame
    }
}

/// The checksum over pseudo header and datagram; 0 if the datagram has the right one in it.
fn sum(src: Ipv4Addr, dst: Ipv4Addr, datagram: &[u8]) -> u16 {
    let length = datagram.len() as u16;
    let words = [src, dst].map(|ip| !ipv4::checksum(&ip.octets()));
    let pseudo = words.into_iter().chain([u16::from(PROTOCOL_UDP), length]);
    let total: u32 = pseudo.map(u32::from).sum();
    !fold(total + u32::from(!ipv4::checksum(datagram)))
}
