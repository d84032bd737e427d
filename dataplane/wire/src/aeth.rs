//! AETH: the ACK extended transport header, 4 bytes: syndrome, then the 24-bit message sequence number
//! (InfiniBand Architecture Specification, volume 1, 9.3.5).

use crate::time::Nanos;

/// What an acknowledgement says. Credit counts are not kept: an ACK goes out as 0x1F, "no end-to-end credits".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Syndrome {
    /// All up to and with the PSN of the packet has arrived.
    Ack,
    /// All before the PSN has arrived; the responder had no receive posted for it: come again after the time.
    RnrNak(RnrTimer),
    /// All before the PSN has arrived; the PSN itself was not taken.
    Nak(NakCode),
}

/// Why a responder refused a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A gap: the PSN named is expected next.
    PsnSequenceError = 0,
    /// Not allowed here, malformed, or unsupported. Ends the connection.
    InvalidRequest = 1,
    /// Key or bounds of the memory are wrong. Ends the connection.
    RemoteAccessError = 2,
    /// The responder itself failed. Ends the connection.
    RemoteOperationalError = 3,
}

impl NakCode {
    /// Whether it ends the connection: all but the sequence error.
    pub const fn is_fatal(self) -> bool {
        !matches!(self, Self::PsnSequenceError)
    }
}

/// The 5-bit code of an RNR NAK's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RnrTimer(u8);

/// Waits in units of 10 us, by code; code 0 is the longest (655.36 ms).
const WAITS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
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
