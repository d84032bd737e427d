//! What numbers and texts can be, and what is said of others: the same for files and messages.

use core::fmt::Display;

use crate::fault::FaultKind;

/// What an IPv4 address is called where there is something else.
pub const IP_TEXT: &str = "an IPv4 address, such as \"10.0.0.1\"";
/// The same of an Ethernet address.
pub const MAC_TEXT: &str = "an Ethernet address, such as \"02:00:00:00:00:01\"";
/// The same of an IPv4 prefix.
pub const PREFIX_TEXT: &str = "an IPv4 prefix, such as \"10.0.1.0/24\"";

/// An integer's upper bound, and what to say beyond it.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    most: u64,
    over: &'static str,
}

impl Limit {
    /// A port's number.
    pub const PORT: Self = Self::new(63, "is no port: 0 to 63");
    /// An endpoint's index in its group.
    pub const ENDPOINT: Self = Self::new(63, "is no endpoint: 0 to 63");
    /// A QPN.
    pub const QPN: Self = Self::new(0xFF_FFFF, "is over the 24 bits of a QPN");
    /// A PSN.
    pub const PSN: Self = Self::new(0xFF_FFFF, "is over the 24 bits of a PSN");
    /// A path MTU; of the numbers up to it, five are one.
    pub const PMTU: Self = Self::new(4096, "is no path MTU: 256, 512, 1024, 2048 or 4096");
    /// A rank.
    pub const RANK: Self = Self::new(1023, "is no rank: 0 to 1023");
    /// Slots of a collective group.
    pub const SLOTS: Self = Self::new(
        32_768,
        "is more than a group can have: a power of two, 2 to 32768",
    );
    /// 16 bits.
    pub const U16: Self = Self::new(u16::MAX as u64, "is over 16 bits");
    pub(crate) const U32: Self = Self::new(u32::MAX as u64, "is over 32 bits");
    pub(crate) const U64: Self = Self::new(u64::MAX, "is over 64 bits");

    const fn new(most: u64, over: &'static str) -> Self {
        Self { most, over }
    }

    /// The number, or the fault of one that is beyond the limit and was written as `shown`.
    pub fn admit(&self, number: u64, shown: impl Display) -> Result<u64, FaultKind> {
        match number <= self.most {
            true => Ok(number),
            false => Err(self.fault(shown)),
        }
    }

    /// The fault of a number that was written as `shown`.
    pub fn fault(&self, shown: impl Display) -> FaultKind {
        FaultKind::OutOfRange {
            value: shown.to_string(),
            why: self.over,
        }
    }
}
