//! AETH: the ACK extended transport header, 4 bytes: syndrome, then the 24-bit message sequence number
//! (InfiniBand Architecture Specification, volume 1, 9.3.5).

use crate::error::{Header, ParseError, fixed_header};
use crate::time::Nanos;
use core::fmt;

/// The syndrome of an acknowledgement. Credit counts are not kept: an ACK is sent as 0x1F, "no end-to-end credits".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Syndrome {
    /// All packets up to and including the PSN have arrived.
    Ack,
    /// All packets before the PSN have arrived. The responder had no receive posted; the requester repeats after the time.
    RnrNak(RnrTimer),
    /// All packets before the PSN have arrived. The responder refused the PSN itself.
    Nak(NakCode),
}

/// Why a responder refused a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A gap: the responder expects this PSN next.
    PsnSequenceError = 0,
    /// Not allowed here, malformed, or unsupported. Ends the connection.
    InvalidRequest = 1,
    /// Key or bounds of the memory are wrong. Ends the connection.
    RemoteAccessError = 2,
    /// The responder itself failed. Ends the connection.
    RemoteOperationalError = 3,
}

impl NakCode {
    /// Returns true if the NAK ends the connection: all but the sequence error do.
    pub const fn is_fatal(self) -> bool {
        !matches!(self, Self::PsnSequenceError)
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationalError => "remote operational error",
        })
    }
}

/// The 5-bit code of an RNR NAK's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RnrTimer(u8);

/// Waits in units of 10 us, by code; code 0 is the longest (655.36 ms).
const WAITS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The timer of the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1F)
    }

    /// The code, below 32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long the requester waits.
    pub const fn wait(self) -> Nanos {
        Nanos::from_micros(WAITS[self.0 as usize] as u64 * 10)
    }
}

impl Syndrome {
    /// Returns the meaning of the byte, or `None` for a reserved value. Every credit count is an ACK.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0x00..=0x1F => Some(Self::Ack),
            0x20..=0x3F => Some(Self::RnrNak(RnrTimer::new(byte))),
            0x60 => Some(Self::Nak(NakCode::PsnSequenceError)),
            0x61 => Some(Self::Nak(NakCode::InvalidRequest)),
            0x62 => Some(Self::Nak(NakCode::RemoteAccessError)),
            0x63 => Some(Self::Nak(NakCode::RemoteOperationalError)),
            _ => None,
        }
    }

    /// Returns the byte on the wire. An ACK has the value for "no end-to-end credits".
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack => 0x1F,
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack => f.write_str("ACK"),
            Self::RnrNak(timer) => write!(f, "RNR NAK, wait {}", timer.wait()),
            Self::Nak(code) => write!(f, "NAK, {code}"),
        }
    }
}

/// An ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Aeth {
    /// ACK, NAK or RNR NAK.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

fixed_header!(Aeth);

impl Aeth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    ///
    /// # Errors
    /// A reserved syndrome.
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        match Syndrome::from_byte(b[0]) {
            Some(syndrome) => Ok(Self {
                syndrome,
                msn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
            }),
            None => Err(ParseError::field(Header::Aeth, "syndrome", b[0] as u32)),
        }
    }

    /// Returns the bytes of the header, with the low 24 bits of the MSN.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [_, m0, m1, m2] = self.msn.to_be_bytes();
        [self.syndrome.byte(), m0, m1, m2]
    }
}
