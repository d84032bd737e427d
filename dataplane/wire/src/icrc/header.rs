//! The change of the ICRC when a switch rewrites header fields, by table look-up.

use super::shift::Shift;
use crate::ext::Reth;
use crate::ids::Qpn;
use crate::layout;
use crate::psn::Psn;
use core::net::Ipv4Addr;

// Each word of four bytes needs one operator: for its own four bytes and all that follow in the header. These are distances to
// the end of the BTH, in an IPv4 packet without options.
static SRC: Shift = Shift::by_bytes(layout::BTH.end - layout::SRC.start);
static DST: Shift = Shift::by_bytes(layout::BTH.end - layout::DST.start);
/// BTH byte 4 and destination QPN. The key of the RETH has the same distance to the end of the RETH.
static QPN: Shift = Shift::by_bytes(8);
/// Acknowledgement request and PSN.
static PSN: Shift = Shift::by_bytes(layout::BTH.end - layout::ACK_REQUEST);
// Distances to the end of the RETH.
static RETH: Shift = Shift::by_bytes(Reth::LEN);
static VA_LOW: Shift = Shift::by_bytes(Reth::LEN - 4);

/// The change of the ICRC of an IPv4 RoCEv2 packet when fields of its header change, for any bytes behind that header.
///
/// [`HeaderDelta::and`] joins changes. The change of a packet's ICRC follows with the operator for the bytes behind the header:
///
/// ```
/// # use castnet_wire::{Qpn, icrc::{HeaderDelta, Shift}};
/// # let (old_ip, new_ip) = ([10, 0, 0, 9].into(), [10, 0, 0, 2].into());
/// # let icrc = 0x1234_5678;
/// let path = HeaderDelta::dst(old_ip, new_ip).and(HeaderDelta::dest_qp(Qpn::VIRTUAL, Qpn::new(0x11)));
/// let after_bth = Shift::by_bytes(1024); // keep it for further packets of that length
/// let new_icrc = icrc ^ after_bth.apply(path.at_bth());
/// # assert_ne!(icrc, new_icrc);
/// ```
///
/// The ICRC does not cover TOS, TTL and the checksums of IPv4 and UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderDelta {
    /// The register at the end of the BTH.
    bth: u32,
    /// The XOR with the register at the end of the RETH.
    reth: u32,
}

/// The difference of two words in the byte order of the CRC: the first byte on the wire is the lowest.
const fn word(old: u32, new: u32) -> u32 {
    (old ^ new).swap_bytes()
}

impl HeaderDelta {
    /// No change.
    pub const NONE: Self = Self { bth: 0, reth: 0 };

    const fn in_bth(bth: u32) -> Self {
        Self { bth, reth: 0 }
    }

    /// The source address changes.
    #[inline]
    pub fn src(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        Self::in_bth(SRC.apply(word(old.to_bits(), new.to_bits())))
    }

    /// The destination address changes.
    #[inline]
    pub fn dst(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        Self::in_bth(DST.apply(word(old.to_bits(), new.to_bits())))
    }

    /// The destination QPN changes.
    #[inline]
    pub fn dest_qp(old: Qpn, new: Qpn) -> Self {
        Self::in_bth(QPN.apply(word(old.value(), new.value())))
    }

    /// The PSN changes.
    #[inline]
    pub fn psn(old: Psn, new: Psn) -> Self {
        Self::in_bth(PSN.apply(word(old.value(), new.value())))
    }

    /// The acknowledgement request is set or cleared: the change is the same.
    pub fn ack_request_flips() -> Self {
        Self::in_bth(PSN.apply(word(0, 0x8000_0000)))
    }

    /// The virtual address of the RETH changes.
    #[inline]
    pub fn va(old: u64, new: u64) -> Self {
        let high = RETH.apply(word((old >> 32) as u32, (new >> 32) as u32));
        Self {
            bth: 0,
            reth: high ^ VA_LOW.apply(word(old as u32, new as u32)),
        }
    }

    /// The key of the RETH changes.
    #[inline]
    pub fn rkey(old: u32, new: u32) -> Self {
        Self {
            bth: 0,
            reth: QPN.apply(word(old, new)),
        }
    }

    /// Both changes.
    #[inline]
    pub const fn and(self, other: Self) -> Self {
        Self {
            bth: self.bth ^ other.bth,
            reth: self.reth ^ other.reth,
        }
    }

    /// The register at the end of the BTH. For a packet without RETH, it is shifted over [`crate::RoceHeader::after_bth`] bytes:
    /// the result is the XOR with its ICRC.
    #[inline]
    pub const fn at_bth(self) -> u32 {
        self.bth
    }

    /// The register at the end of the RETH, to be shifted over [`crate::RoceHeader::after_reth`] bytes: one path MTU, for the first
    /// packet of a message as for those in its middle.
    #[inline]
    pub fn at_reth(self) -> u32 {
        RETH.apply(self.bth) ^ self.reth
    }
}
