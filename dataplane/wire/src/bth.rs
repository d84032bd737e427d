//! BTH: the base transport header, 12 bytes, of every RoCE packet
//! (InfiniBand Architecture Specification, volume 1, 9.2; FECN and BECN: annex A17).

use crate::error::{Header, ParseError, fixed_header};
use crate::ids::Qpn;
use crate::opcode::Opcode;
use crate::psn::Psn;

/// The partition key without partitions: full member of the default partition.
pub const PKEY_DEFAULT: u16 = 0xFFFF;

/// A base transport header. Reserved bits are not kept; a transport version other than 0 is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Packet type.
    pub opcode: Opcode,
    /// True if the responder shall raise a solicited event.
    pub solicited: bool,
    /// Migration state.
    pub mig_req: bool,
    /// Zero bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion mark. The ICRC masks it.
    pub fecn: bool,
    /// Backward congestion mark: set in a CNP. The ICRC masks it.
    pub becn: bool,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// True if the requester wants an acknowledgement.
    pub ack_request: bool,
    /// Sequence number. An acknowledgement has a number of the requester's space.
    pub psn: Psn,
}

fixed_header!(Bth);

impl Bth {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// A header with the default partition key, and no bit set.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            pkey: PKEY_DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// An opcode that this crate does not know, or a transport version other than 0.
    // Always inlined: otherwise the result is stored to memory byte by byte, and wider loads of it wait for those stores.
    #[inline(always)]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let Some(opcode) = Opcode::from_byte(b[0]) else {
            return Err(ParseError::field(Header::Bth, "opcode", b[0].into()));
        };
        if b[1] & 0x0F != 0 {
            let value = u32::from(b[1] & 0x0F);
            return Err(ParseError::field(Header::Bth, "transport version", value));
        }
        Ok(Self {
            opcode,
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: Qpn::from_bytes([b[5], b[6], b[7]]),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::from_bytes([b[9], b[10], b[11]]),
        })
    }

    /// Returns the bytes of the header, reserved bits zero.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let flags = (self.solicited as u8) << 7 | (self.mig_req as u8) << 6 | (self.pad & 3) << 4;
        let [k0, k1] = self.pkey.to_be_bytes();
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        let [q0, q1, q2] = self.dest_qp.to_bytes();
        let [p0, p1, p2] = self.psn.to_bytes();
        let ack = (self.ack_request as u8) << 7;
        [
            self.opcode as u8,
            flags,
            k0,
            k1,
            congestion,
            q0,
            q1,
            q2,
            ack,
            p0,
            p1,
            p2,
        ]
    }
}

/// True if both keys name the same valid partition, and at least one is a full member (bit 15) (IBA volume 1, 10.9.3).
pub const fn pkey_matches(a: u16, b: u16) -> bool {
    a & 0x7FFF == b & 0x7FFF && a & 0x7FFF != 0 && (a | b) & 0x8000 != 0
}
