//! Bounds and descriptions of values, shared by files and messages.

use core::fmt::Display;

use castnet_toml_reader::Value;

use crate::fault::FaultKind;
use crate::group::ENDPOINTS_MAX;

/// Description of an IPv4 address in faults.
pub const IP_TEXT: &str = "an IPv4 address, such as \"10.0.0.1\"";
/// Description of a MAC address in faults.
pub const MAC_TEXT: &str = "an Ethernet address, such as \"02:00:00:00:00:01\"";
/// Description of a mode of collectives in faults.
pub(crate) const MODE_TEXT: &str = "a mode: \"translated\", \"augmented\" or \"terminated\"";
/// Description of an IPv4 prefix in faults.
pub const PREFIX_TEXT: &str = "an IPv4 prefix, such as \"10.0.1.0/24\"";

/// Description of a rate in faults.
pub const RATE_TEXT: &str = "a rate in bits per second, 1k to 1T, such as \"10G\" or \"400M\"";

/// Upper bound of an integer, and the fault text for larger ones.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    most: u64,
    over: &'static str,
}

impl Limit {
    /// Port number.
    pub const PORT: Self = Self::new(63, "is no port: 0 to 63");
    /// Index of an endpoint in its group.
    pub const ENDPOINT: Self = Self::new(ENDPOINTS_MAX as u64 - 1, "is no endpoint: 0 to 1023");
    /// QPN.
    pub const QPN: Self = Self::new(0xFF_FFFF, "is over the 24 bits of a QPN");
    /// PSN.
    pub const PSN: Self = Self::new(0xFF_FFFF, "is over the 24 bits of a PSN");
    /// Path MTU. Only five of the numbers below the bound are valid.
    pub const PMTU: Self = Self::new(4096, "is no path MTU: 256, 512, 1024, 2048 or 4096");
    /// Rank.
    pub const RANK: Self = Self::new(1023, "is no rank: 0 to 1023");
    /// Number of slots of a collective group.
    pub const SLOTS: Self = Self::new(
        32_768,
        "is more than a group can have: a power of two, 2 to 32768",
    );
    /// Integer of 16 bits.
    pub const U16: Self = Self::new(u16::MAX as u64, "is over 16 bits");
    pub(crate) const U32: Self = Self::new(u32::MAX as u64, "is over 32 bits");
    pub(crate) const U64: Self = Self::new(u64::MAX, "is over 64 bits");

    const fn new(most: u64, over: &'static str) -> Self {
        Self { most, over }
    }

    pub(crate) fn read<T: TryFrom<u64>>(&self, value: Value<'_>) -> Option<T> {
        value.number(0..=self.most, self.over)
    }

    /// The number if it is within the limit, else the fault. The fault has the number as `shown`.
    pub fn admit(&self, number: u64, shown: impl Display) -> Result<u64, FaultKind> {
        match number <= self.most {
            true => Ok(number),
            false => Err(self.fault(shown)),
        }
    }

    /// The fault of a number, which is written as `shown`.
    pub fn fault(&self, shown: impl Display) -> FaultKind {
        FaultKind::OutOfRange {
            value: shown.to_string(),
            why: self.over,
        }
    }
}
