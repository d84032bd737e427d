//! Rewrites a frame field by field: the slow twin of what the engine does. IPv4 and UDP checksums stay right; the caller updates the
//! ICRC. The fuzzer uses it, too.
#![allow(dead_code)]

use castnet_wire::ipv4::ChecksumDelta;
use castnet_wire::{Aeth, IpAddrs, Psn, Qpn, Reth, RoceHeader, layout};
use std::net::Ipv4Addr;
use std::ops::Range;

/// A RoCEv2 packet over IPv4 that is rewritten in place. The opcode and all lengths stay the same.
#[derive(Debug)]
pub(crate) struct RoceV4Mut<'a> {
    /// IPv4 without options, UDP and BTH.
    fixed: &'a mut [u8; layout::PACKET_HEADERS],
    reth: Option<&'a mut [u8; Reth::LEN]>,
    aeth: Option<&'a mut [u8; Aeth::LEN]>,
}

impl<'a> RoceV4Mut<'a> {
    /// Borrows the packet that `header` was parsed from, or a replica of it. `head` is the start of its frame. `None` for IPv6,
    /// and if `head` is too short.
    #[inline]
    pub(crate) fn new(head: &'a mut [u8], header: &RoceHeader) -> Option<Self> {
        let IpAddrs::V4 { .. } = header.ip else {
            return None;
        };
        let (fixed, ext) = head.get_mut(header.l3..)?.split_first_chunk_mut()?;
        // RETH and AETH directly follow the BTH in every opcode that has them.
        let (mut reth, mut aeth) = (None, None);
        if header.reth.is_some() {
            reth = Some(ext.first_chunk_mut()?);
        } else if header.aeth.is_some() {
            aeth = Some(ext.first_chunk_mut()?);
        }
        Some(Self { fixed, reth, aeth })
    }

    fn write<const N: usize>(&mut self, field: Range<usize>, bytes: [u8; N]) {
        if let Some(field) = self.fixed.get_mut(field) {
            field.copy_from_slice(&bytes);
        }
    }

    fn read<const N: usize>(&self, field: Range<usize>) -> [u8; N] {
        let bytes = self.fixed.get(field).and_then(|bytes| bytes.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    fn update_checksum(&mut self, change: ChecksumDelta) {
        let checksum = u16::from_be_bytes(self.read(layout::IPV4_CHECKSUM));
        self.write(layout::IPV4_CHECKSUM, change.apply(checksum).to_be_bytes());
    }

    fn set_address(&mut self, field: Range<usize>, address: Ipv4Addr) {
        let old = Ipv4Addr::from(self.read::<4>(field.clone()));
        self.update_checksum(ChecksumDelta::address(old, address));
        self.write(field, address.octets());
        self.clear_udp_checksum();
    }

    /// Writes both IP addresses. `change` is the change of the checksum: the sum of [`ChecksumDelta::address`] of both, a
    /// constant for a path. The UDP checksum, which covers all fields and is optional in RoCEv2, is cleared.
    #[inline]
    pub(crate) fn set_addresses(&mut self, src: Ipv4Addr, dst: Ipv4Addr, change: ChecksumDelta) {
        self.update_checksum(change);
        self.write(layout::SRC, src.octets());
        self.write(layout::DST, dst.octets());
        self.clear_udp_checksum();
    }

    /// Writes the source address and updates the checksum.
    pub(crate) fn set_src(&mut self, src: Ipv4Addr) {
        self.set_address(layout::SRC, src);
    }

    /// Writes the destination address and updates the checksum.
    pub(crate) fn set_dst(&mut self, dst: Ipv4Addr) {
        self.set_address(layout::DST, dst);
    }

    /// Writes the UDP source port.
    pub(crate) fn set_sport(&mut self, sport: u16) {
        self.write(layout::SPORT, sport.to_be_bytes());
        self.clear_udp_checksum();
    }

    /// Sets the UDP checksum to zero: no checksum. Every setter of a field that it covers calls this.
    #[inline]
    pub(crate) fn clear_udp_checksum(&mut self) {
        self.write(layout::UDP_CHECKSUM, [0; 2]);
    }

    /// Writes the destination QPN.
    #[inline]
    pub(crate) fn set_dest_qp(&mut self, qpn: Qpn) {
        self.write(layout::DEST_QP, qpn.to_bytes());
        self.clear_udp_checksum();
    }

    /// Writes the PSN.
    #[inline]
    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.write(layout::PSN, psn.to_bytes());
        self.clear_udp_checksum();
    }

    /// Writes the acknowledgement request; the reserved bits in the same byte stay.
    pub(crate) fn set_ack_request(&mut self, wanted: bool) {
        let byte = &mut self.fixed[layout::ACK_REQUEST];
        *byte = (*byte & 0x7F) | (u8::from(wanted) << 7);
        self.clear_udp_checksum();
    }

    /// Writes address and key of the RETH. Returns false, with nothing changed, if the packet has none.
    #[inline]
    pub(crate) fn set_memory(&mut self, va: u64, rkey: u32) -> bool {
        let Some(reth) = &mut self.reth else { return false };
        reth[..8].copy_from_slice(&va.to_be_bytes());
        reth[8..12].copy_from_slice(&rkey.to_be_bytes());
        self.clear_udp_checksum();
        true
    }

    /// Writes the AETH. Returns false, with nothing changed, if the packet has none.
    pub(crate) fn set_aeth(&mut self, aeth: Aeth) -> bool {
        let Some(bytes) = &mut self.aeth else { return false };
        **bytes = aeth.to_bytes();
        self.clear_udp_checksum();
        true
    }
}
