//! The extended transport headers between BTH and payload, but for AETH, which has a file of its own
//! (InfiniBand Architecture Specification, volume 1, 9.3). Immediate data and the key of IETH are plain words.

use crate::aeth::Aeth;
use crate::error::{ParseError, fixed_header};
use crate::ids::Qpn;

/// RETH: an address in the responder's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// Key of the memory region.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

fixed_header!(Reth);

impl Reth {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// Reads the header. Every value means something: there are no errors.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        Ok(Self {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            dma_len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
}

/// AtomicETH: an operation on eight bytes of the responder's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AtomicEth {
    /// Virtual address, a multiple of eight.
    pub va: u64,
    /// Key of the memory region.
    pub rkey: u32,
    /// The value to swap in, or to add.
    pub swap_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

fixed_header!(AtomicEth);

impl AtomicEth {
    /// Bytes of the header.
    pub const LEN: usize = 28;

    /// Reads the header. Every value means something: there are no errors.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        Ok(Self {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            swap_add: u64::from_be_bytes([b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19]]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
        })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// DETH: key and source of a datagram, which has no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// The queue pair that sent it.
    pub source_qp: Qpn,
}

fixed_header!(Deth);

impl Deth {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Reads the header. Every value means something: there are no errors.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        Ok(Self {
            qkey: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            source_qp: Qpn::from_bytes([b[5], b[6], b[7]]),
        })
    }

    /// Returns the bytes of the header. The reserved byte is zero.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [q0, q1, q2] = self.source_qp.to_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

/// The extended headers of a packet, as its opcode defines them. The reserved bytes of a CNP are zeros and not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtHeaders {
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Remote memory.
    pub reth: Option<Reth>,
    /// Atomic operation.
    pub atomic_eth: Option<AtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// The value before an atomic.
    pub atomic_ack: Option<u64>,
    /// Immediate data: the big-endian word on the wire.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub ieth: Option<u32>,
}

impl ExtHeaders {
    /// No headers.
    pub const NONE: Self = Self {
        deth: None,
        reth: None,
        atomic_eth: None,
        aeth: None,
        atomic_ack: None,
        imm: None,
        ieth: None,
    };
}
