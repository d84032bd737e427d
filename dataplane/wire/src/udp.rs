//! UDP (RFC 768), as far as RoCEv2 needs it.

use crate::error::{Header, ParseError, fixed_header};
use crate::ids::Qpn;

/// The destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Udp {
    /// Source port. RoCEv2 uses it as entropy for equal-cost paths, not as an address.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum; 0 if the sender made none. The ICRC masks it.
    pub checksum: u16,
}

fixed_header!(Udp);

impl Udp {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Reads the header. The checksum is not checked.
    ///
    /// # Errors
    /// A length below that of the header.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let udp = Self {
            sport: u16::from_be_bytes([b[0], b[1]]),
            dport: u16::from_be_bytes([b[2], b[3]]),
            length: u16::from_be_bytes([b[4], b[5]]),
            checksum: u16::from_be_bytes([b[6], b[7]]),
        };
        let said = usize::from(udp.length);
        if said < Self::LEN {
            return Err(ParseError::length(Header::Udp, "length", said, Self::LEN));
        }
        Ok(udp)
    }

    /// Returns the bytes of the header, checksum as given.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [s0, s1] = self.sport.to_be_bytes();
        let [d0, d1] = self.dport.to_be_bytes();
        let [l0, l1] = self.length.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}

/// Returns the source port of a queue pair, 0xC000 to 0xFFFF, as Linux chooses it: from the flow label if there is one, from
/// both QPNs otherwise. The port is constant for the life of the queue pair, so that its packets keep to one path.
pub const fn entropy_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = match flow_label & 0xF_FFFF {
        0 => {
            let mut v = local.value() as u64 * remote.value() as u64;
            v ^= v >> 20;
            v ^= v >> 40;
            (v & 0xF_FFFF) as u32
        }
        label => label,
    };
    0xC000 | ((label & 0x3FFF) ^ ((label & 0xF_C000) >> 14)) as u16
}
