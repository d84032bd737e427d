//! Rewriting headers where they stand. Checksums of IPv4 and UDP are kept right; the ICRC is the caller's, by
//! [`crate::icrc::HeaderDelta`].

use crate::aeth::Aeth;
use crate::bth::Bth;
use crate::ext::Reth;
use crate::ids::{MacAddr, Qpn};
use crate::ipv4::{ChecksumDelta, Ipv4};
use crate::psn::Psn;
use crate::roce::{IpAddrs, RoceHeader};
use crate::udp::Udp;
use core::net::Ipv4Addr;

/// Writes both Ethernet addresses. `false`, with nothing changed, where there is no room for them.
#[inline]
pub fn set_macs(head: &mut [u8], dst: MacAddr, src: MacAddr) -> bool {
    let Some(addresses) = head.first_chunk_mut::<12>() else {
        return false;
    };
    addresses[..6].copy_from_slice(&dst.0);
    addresses[6..].copy_from_slice(&src.0);
    true
}

/// IP, UDP and BTH of an IPv4 packet without options.
const FIXED: usize = Ipv4::LEN + Udp::LEN + Bth::LEN;

/// A RoCEv2 packet over IPv4, to be rewritten in place. The opcode and all lengths stay what they are.
#[derive(Debug)]
pub struct RoceV4Mut<'a> {
    fixed: &'a mut [u8; FIXED],
    reth: Option<&'a mut [u8; Reth::LEN]>,
    aeth: Option<&'a mut [u8; Aeth::LEN]>,
}

impl<'a> RoceV4Mut<'a> {
    /// The packet that `header` was parsed from, or a replica of it: `head` is the start of its frame. `None` for IPv6,
    /// and where `head` is too short.
    #[inline]
    pub fn new(head: &'a mut [u8], header: &RoceHeader) -> Option<Self> {
        let IpAddrs::V4 { .. } = header.ip else {
            return None;
        };
        let (fixed, ext) = head.get_mut(header.l3..)?.split_first_chunk_mut::<FIXED>()?;
        // RETH and AETH each follow the BTH at once in every opcode that has them.
        let (mut reth, mut aeth) = (None, None);
        if header.reth.is_some() {
            reth = Some(ext.first_chunk_mut()?);
        } else if header.aeth.is_some() {
            aeth = Some(ext.first_chunk_mut()?);
        }
        Some(Self { fixed, reth, aeth })
    }

    fn bytes<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        if let Some(field) = self.fixed.get_mut(at..at + N) {
            field.copy_from_slice(&bytes);
        }
    }

    fn mend(&mut self, change: ChecksumDelta) {
        let [.., a, b] = *self.fixed.first_chunk::<12>().unwrap_or(&[0; 12]);
        self.bytes(10, change.apply(u16::from_be_bytes([a, b])).to_be_bytes());
    }

    /// Writes both IP addresses. `change` is what that does to the checksum: the sum of [`ChecksumDelta::address`] of
    /// each, a constant for a leg. The UDP checksum, which covers everything and which RoCEv2 need not have, is taken
    /// away.
    #[inline]
    pub fn set_addresses(&mut self, src: Ipv4Addr, dst: Ipv4Addr, change: ChecksumDelta) {
        self.mend(change);
        self.bytes(12, src.octets());
        self.bytes(16, dst.octets());
        self.clear_udp_checksum();
    }

    /// Writes the source address and mends the checksum.
    pub fn set_src(&mut self, src: Ipv4Addr) {
        let [.., a, b, c, d] = *self.fixed.first_chunk::<16>().unwrap_or(&[0; 16]);
        self.mend(ChecksumDelta::address(Ipv4Addr::new(a, b, c, d), src));
        self.bytes(12, src.octets());
        self.clear_udp_checksum();
    }

    /// Writes the destination address and mends the checksum.
    pub fn set_dst(&mut self, dst: Ipv4Addr) {
        let [.., a, b, c, d] = *self.fixed.first_chunk::<20>().unwrap_or(&[0; 20]);
        self.mend(ChecksumDelta::address(Ipv4Addr::new(a, b, c, d), dst));
        self.bytes(16, dst.octets());
        self.clear_udp_checksum();
    }

    /// Writes the UDP source port.
    pub fn set_sport(&mut self, sport: u16) {
        self.bytes(Ipv4::LEN, sport.to_be_bytes());
        self.clear_udp_checksum();
    }

    /// Says that there is no UDP checksum. Every setter of a field that it covers does this.
    #[inline]
    pub fn clear_udp_checksum(&mut self) {
        self.bytes(Ipv4::LEN + 6, [0; 2]);
    }

    /// Writes the destination QPN.
    #[inline]
    pub fn set_dest_qp(&mut self, qpn: Qpn) {
        self.bytes(Ipv4::LEN + Udp::LEN + 5, qpn.to_bytes());
        self.clear_udp_checksum();
    }

    /// Writes the PSN.
    #[inline]
    pub fn set_psn(&mut self, psn: Psn) {
        self.bytes(Ipv4::LEN + Udp::LEN + 9, psn.to_bytes());
        self.clear_udp_checksum();
    }

    /// Writes the acknowledgement request; the reserved bits beside it stay.
    pub fn set_ack_request(&mut self, wanted: bool) {
        let byte = &mut self.fixed[Ipv4::LEN + Udp::LEN + 8];
        *byte = (*byte & 0x7F) | (u8::from(wanted) << 7);
        self.clear_udp_checksum();
    }

    /// Writes address and key of the RETH. `false`, with nothing changed, where the packet has none.
    #[inline]
    pub fn set_memory(&mut self, va: u64, rkey: u32) -> bool {
        let Some(reth) = &mut self.reth else { return false };
        reth[..8].copy_from_slice(&va.to_be_bytes());
        reth[8..12].copy_from_slice(&rkey.to_be_bytes());
        self.clear_udp_checksum();
        true
    }

    /// Writes the AETH. `false`, with nothing changed, where the packet has none.
    pub fn set_aeth(&mut self, aeth: Aeth) -> bool {
        let Some(bytes) = &mut self.aeth else { return false };
        **bytes = aeth.to_bytes();
        self.clear_udp_checksum();
        true
    }
}
