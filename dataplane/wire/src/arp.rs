//! ARP for IPv4 over Ethernet (RFC 826).

use crate::error::{Header, ParseError, fixed_header};
use crate::ids::MacAddr;
use core::net::Ipv4Addr;
use core::ops::Range;

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum ArpOp {
    /// Requests the Ethernet address of the target address.
    Request = 1,
    /// Gives the Ethernet address of the sender.
    Reply = 2,
}

/// An ARP packet. A gratuitous one has its own address as the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arp {
    /// Request or reply.
    pub op: ArpOp,
    /// Ethernet address of the sender.
    pub sender_mac: MacAddr,
    /// IP address of the sender.
    pub sender_ip: Ipv4Addr,
    /// Requested Ethernet address: zeros in a request.
    pub target_mac: MacAddr,
    /// Requested IP address.
    pub target_ip: Ipv4Addr,
}

fixed_header!(Arp);

/// Ethernet, IPv4, address lengths 6 and 4.
const PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Arp {
    /// Bytes of a packet, without the Ethernet header.
    pub const LEN: usize = 28;
    /// Range of the sender's IP address.
    pub const SENDER_IP: Range<usize> = 14..18;
    /// Range of the target's IP address.
    pub const TARGET_IP: Range<usize> = 24..28;

    /// Returns a request for the Ethernet address of `target_ip`.
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        Self {
            op: ArpOp::Request,
            sender_mac,
            sender_ip,
            target_mac: MacAddr([0; 6]),
            target_ip,
        }
    }

    /// Returns the reply to this request: its target address is at `mac`.
    pub const fn reply(&self, mac: MacAddr) -> Self {
        Self {
            op: ArpOp::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// Not Ethernet and IPv4, or neither request nor reply.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let [kind @ .., _, _] = b.first_chunk::<8>().unwrap_or(&[0; 8]);
        if *kind != PREFIX {
            let value = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
            return Err(ParseError::field(Header::Arp, "address types", value));
        }
        let op = match u16::from_be_bytes([b[6], b[7]]) {
            1 => ArpOp::Request,
            2 => ArpOp::Reply,
            other => return Err(ParseError::field(Header::Arp, "operation", other.into())),
        };
        Ok(Self {
            op,
            sender_mac: MacAddr([b[8], b[9], b[10], b[11], b[12], b[13]]),
            sender_ip: Ipv4Addr::new(b[14], b[15], b[16], b[17]),
            target_mac: MacAddr([b[18], b[19], b[20], b[21], b[22], b[23]]),
            target_ip: Ipv4Addr::new(b[24], b[25], b[26], b[27]),
        })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..6].copy_from_slice(&PREFIX);
        b[6..8].copy_from_slice(&(self.op as u16).to_be_bytes());
        b[8..14].copy_from_slice(&self.sender_mac.0);
        b[Self::SENDER_IP].copy_from_slice(&self.sender_ip.octets());
        b[18..24].copy_from_slice(&self.target_mac.0);
        b[Self::TARGET_IP].copy_from_slice(&self.target_ip.octets());
        b
    }
}
