//! The ICRC change of the header fields that a switch rewrites, by table look-up.

use super::shift::Shift;
use crate::ids::Qpn;
use crate::psn::Psn;
use core::net::Ipv4Addr;

// A word of four bytes at a known distance from the end of its header needs one operator: that of its own four bytes
// and all that follow. Distances to the end of the BTH, in an IPv4 packet without options (IP 20, UDP 8, BTH 12).
static SRC: Shift = Shift::by_bytes(40 - 12);
static DST: Shift = Shift::by_bytes(40 - 16);
/// BTH byte 4 and destination QPN; seen from the end of the RETH also its key.
static QPN: Shift = Shift::by_bytes(8);
/// Acknowledgement request and PSN.
static PSN: Shift = Shift::by_bytes(4);
// Distances to the end of the RETH.
static RETH: Shift = Shift::by_bytes(16);
static VA_LOW: Shift = Shift::by_bytes(12);

/// How the ICRC of an IPv4 RoCEv2 packet changes when fields of its header do, whatever comes behind that header.
///
/// Build it from the changes ([`HeaderDelta::and`] joins them), then ask for the change of a packet's ICRC with the
/// operator for the bytes that follow:
///
/// ```
/// # use castnet_wire::{Qpn, icrc::{HeaderDelta, Shift}};
/// # let (old_ip, new_ip) = ([10, 0, 0, 9].into(), [10, 0, 0, 2].into());
/// # let icrc = 0x1234_5678;
/// let leg = HeaderDelta::dst(old_ip, new_ip).and(HeaderDelta::dest_qp(Qpn::VIRTUAL, Qpn::new(0x11)));
/// let after_bth = Shift::by_bytes(1024);   // kept by whoever sees that length again
/// let new_icrc = icrc ^ leg.change(&after_bth);
/// # assert_ne!(icrc, new_icrc);
/// ```
///
/// TOS, TTL and the checksums of IPv4 and UDP are not covered by the ICRC and need no part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderDelta {
    /// The register at the end of the BTH.
    bth: u32,
    /// What is added to it at the end of the RETH.
    reth: u32,
}

/// The difference of two words as the CRC takes it in: the first byte of the wire is the lowest.
const fn word(old: u32, new: u32) -> u32 {
    (old ^ new).swap_bytes()
}

impl HeaderDelta {
    /// Nothing changes.
    pub const NONE: Self = Self { bth: 0, reth: 0 };

    /// The source address changes.
    #[inline]
    pub fn src(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        Self {
            bth: SRC.apply(word(old.to_bits(), new.to_bits())),
            reth: 0,
        }
    }

    /// The destination address changes.
    #[inline]
    pub fn dst(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        Self {
            bth: DST.apply(word(old.to_bits(), new.to_bits())),
            reth: 0,
        }
    }

    /// The destination QPN changes.
    #[inline]
    pub fn dest_qp(old: Qpn, new: Qpn) -> Self {
        Self {
            bth: QPN.apply(word(old.value(), new.value())),
            reth: 0,
        }
    }

    /// The PSN changes.
    #[inline]
    pub fn psn(old: Psn, new: Psn) -> Self {
        Self {
            bth: PSN.apply(word(old.value(), new.value())),
            reth: 0,
        }
    }

    /// The acknowledgement request is set, or taken away: the change is the same.
    pub fn ack_request_flips() -> Self {
        Self {
            bth: PSN.apply(word(0, 0x8000_0000)),
            reth: 0,
        }
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

    /// The register at the end of the BTH: for [`crate::icrc::ShiftCache::apply`] and [`crate::icrc::shift`] over
    /// [`crate::RoceHeader::after_bth`] bytes. For a packet without RETH.
    #[inline]
    pub const fn at_bth(self) -> u32 {
        self.bth
    }

    /// The register at the end of the RETH: the same over [`crate::RoceHeader::after_reth`] bytes.
    #[inline]
    pub fn at_reth(self) -> u32 {
        RETH.apply(self.bth) ^ self.reth
    }

    /// What to add (XOR) to the ICRC of a packet without RETH. The operator is that for
    /// [`crate::RoceHeader::after_bth`] bytes.
    #[inline]
    pub const fn change(self, after_bth: &Shift) -> u32 {
        after_bth.apply(self.bth)
    }

    /// What to add (XOR) to the ICRC of a packet with RETH. The operator is that for
    /// [`crate::RoceHeader::after_reth`] bytes, so of one path MTU for the first packet of a message and those in its
    /// middle alike.
    #[inline]
    pub fn change_with_reth(self, after_reth: &Shift) -> u32 {
        after_reth.apply(self.at_reth())
    }
}
