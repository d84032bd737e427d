//! Types for numbers and addresses that must not be confused.

use core::fmt;
use core::net::{AddrParseError, Ipv4Addr};
use core::str::FromStr;

/// A 24-bit queue pair number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The QPN of every virtual remote. The QP of a group member is connected to it (Cepheus III.A).
    pub const VIRTUAL: Self = Self(1);

    /// The number `value` modulo 2^24.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xFF_FFFF)
    }

    /// The value, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The three bytes of the wire.
    pub const fn to_bytes(self) -> [u8; 3] {
        let b = self.0.to_be_bytes();
        [b[1], b[2], b[3]]
    }

    /// From the three bytes of the wire.
    pub const fn from_bytes(b: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A port of a switch: 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u8);

impl PortId {
    /// Ports per switch.
    pub const COUNT: usize = 64;

    /// The port `index`, or `None` from [`PortId::COUNT`] on.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < Self::COUNT {
            Some(Self(index))
        } else {
            None
        }
    }

    /// Its number, below [`PortId::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The address of a group: the 32-bit McstID of Cepheus III.A. The QP of each member has it as its remote IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct McstId(pub Ipv4Addr);

impl fmt::Display for McstId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for McstId {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse().map(Self)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: Self = Self([0xFF; 6]);
    /// All zeros, which no station has: a sentinel for an unknown address.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Returns true if the group bit is set (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // One text and not eleven: a controller writes millions of them.
        let mut text = [b':'; 17];
        for (at, byte) in self.0.iter().enumerate() {
            text[3 * at] = DIGITS[usize::from(byte >> 4)];
            text[3 * at + 1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(core::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// A text that is not an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address: six hexadecimal bytes with colons, such as 02:00:00:00:00:01")]
pub struct BadMacAddr;

impl FromStr for MacAddr {
    type Err = BadMacAddr;

    fn from_str(text: &str) -> Result<Self, BadMacAddr> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(BadMacAddr)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| BadMacAddr)?;
        }
        if parts.next().is_some() {
            Err(BadMacAddr)
        } else {
            Ok(Self(bytes))
        }
    }
}

/// A RoCE path MTU: the payload bytes of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pmtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: the largest that fits a 1500-byte network MTU.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Pmtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The payload bytes of a full packet.
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// The path MTU of `bytes`, if it is one of the five.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.bytes() == bytes as usize)
    }

    /// PSNs that a message of `length` bytes takes: at least one.
    pub const fn packets(self, length: u64) -> u64 {
        let n = length.div_ceil(self.bytes() as u64);
        if n == 0 { 1 } else { n }
    }
}

impl fmt::Display for Pmtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A text that is not a path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no RoCE path MTU: 256, 512, 1024, 2048 or 4096")]
pub struct BadPmtu;

impl FromStr for Pmtu {
    type Err = BadPmtu;

    fn from_str(text: &str) -> Result<Self, BadPmtu> {
        text.parse().ok().and_then(Self::from_bytes).ok_or(BadPmtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn mac_text_goes_there_and_back() {
        let mac = MacAddr([0x02, 0, 0xab, 0, 0, 0x1f]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "02:00:00:00:00:0g",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(BadMacAddr), "{bad}");
        }
    }

    #[test]
    fn pmtu_counts_packets_as_rc_does() {
        assert_eq!(Pmtu::ALL.map(Pmtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(
            (
                Pmtu::B1024.packets(0),
                Pmtu::B1024.packets(1024),
                Pmtu::B1024.packets(1025)
            ),
            (1, 1, 2)
        );
        assert_eq!(
            ("4096".parse::<Pmtu>(), "1500".parse::<Pmtu>()),
            (Ok(Pmtu::B4096), Err(BadPmtu))
        );
    }
}
