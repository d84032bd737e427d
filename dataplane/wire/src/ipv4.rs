//! IPv4 (RFC 791) and its header checksum, whole and by difference (RFC 1624).

use crate::error::{EmitError, Header, ParseError, chunk, put};
use core::net::Ipv4Addr;

/// Protocol number of UDP, in IPv4 and IPv6 alike.
pub const PROTOCOL_UDP: u8 = 17;
/// The flag "don't fragment" in [`Ipv4::flags_frag`].
pub const DONT_FRAGMENT: u16 = 0x4000;
/// The flag "more fragments" in [`Ipv4::flags_frag`].
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The bits of the fragment offset in [`Ipv4::flags_frag`].
pub const FRAGMENT_OFFSET: u16 = 0x1FFF;

/// The ECN bits in [`Ipv4::tos`]. Both set: congestion experienced, CE. One of them set: the sender understands it, ECT (RFC 3168).
pub const ECN: u8 = 3;

/// An IPv4 header. Parsing skips options; writing makes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipv4 {
    /// Type of service: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// Bytes of header and payload, without Ethernet padding.
    pub total_len: u16,
    /// Identification. The ICRC covers it.
    pub ident: u16,
    /// Three flags and the fragment offset in units of 8 bytes.
    pub flags_frag: u16,
    /// Hops left.
    pub ttl: u8,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Bytes without options.
    pub const LEN: usize = 20;

    /// The header of a UDP datagram with 64 hops, not to be fragmented, and zeros for the rest.
    pub const fn udp(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self {
            tos: 0,
            total_len: 0,
            ident: 0,
            flags_frag: DONT_FRAGMENT,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            src,
            dst,
        }
    }

    /// Reads the header at the start of `bytes`. Returns it with its length in bytes, options included: 20 to 60. The
    /// checksum is not checked, see [`checksum_is_right`].
    ///
    /// # Errors
    /// Too few bytes for the header, another version, or lengths that contradict each other.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let b: &[u8; Self::LEN] = chunk(bytes, Header::Ipv4)?;
        if b[0] >> 4 != 4 {
            return Err(ParseError::field(Header::Ipv4, "version", u32::from(b[0] >> 4)));
        }
        let length = usize::from(b[0] & 0xF) * 4;
        if length < Self::LEN {
            let value = u32::from(b[0] & 0xF);
            return Err(ParseError::field(Header::Ipv4, "header length", value));
        }
        if bytes.len() < length {
            return Err(ParseError::short(Header::Ipv4, length, bytes.len()));
        }
        let header = Self {
            tos: b[1],
            total_len: u16::from_be_bytes([b[2], b[3]]),
            ident: u16::from_be_bytes([b[4], b[5]]),
            flags_frag: u16::from_be_bytes([b[6], b[7]]),
            ttl: b[8],
            protocol: b[9],
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        };
        let said = usize::from(header.total_len);
        if said < length {
            return Err(ParseError::length(Header::Ipv4, "total length", said, length));
        }
        Ok((header, length))
    }

    /// Returns true if the packet is a fragment of a datagram.
    pub const fn is_fragment(&self) -> bool {
        self.flags_frag & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Returns the bytes of the header without options, with its checksum.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        (b[0], b[1]) = (crate::layout::VERSION_LENGTH, self.tos);
        b[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        b[4..6].copy_from_slice(&self.ident.to_be_bytes());
        b[6..8].copy_from_slice(&self.flags_frag.to_be_bytes());
        (b[8], b[9]) = (self.ttl, self.protocol);
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..20].copy_from_slice(&self.dst.octets());
        [b[10], b[11]] = checksum(&b).to_be_bytes();
        b
    }

    /// Writes the header with its checksum to the start of `out`. Returns its length in bytes.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, Header::Ipv4, &self.to_bytes())
    }
}

/// Folds a sum of 16-bit words into one word, with end-around carry.
#[inline(always)]
pub const fn fold(mut sum: u32) -> u16 {
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum as u16
}

/// The Internet checksum of `header`, whose checksum field is zero. An odd last byte is the upper half of a word.
pub fn checksum(header: &[u8]) -> u16 {
    let (pairs, rest) = header.as_chunks::<2>();
    let sum: u32 = pairs.iter().map(|&p| u32::from(u16::from_be_bytes(p))).sum();
    let last = rest.first().map_or(0, |&b| u32::from(b) << 8);
    !fold(sum + last)
}

/// Returns true if the checksum of the IPv4 header at the start of `bytes` is right; false also if there is no header.
#[inline]
pub fn checksum_is_right(bytes: &[u8]) -> bool {
    match bytes.first_chunk::<{ Ipv4::LEN }>() {
        // Nearly all headers have no options: five words. A sum with end-around carry does not depend on byte order.
        Some(header) if header[0] & 0xF == 5 => {
            let (words, _) = header.as_chunks::<4>();
            let sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
            let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
            let sum = (sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32);
            fold(sum as u32) == 0xFFFF
        }
        Some(header) => {
            let length = usize::from(header[0] & 0xF) * 4;
            length >= Ipv4::LEN && bytes.get(..length).is_some_and(|header| checksum(header) == 0)
        }
        None => false,
    }
}

/// The change of an IPv4 checksum when words of the header change. It is constant for a constant rewrite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChecksumDelta(u16);

impl ChecksumDelta {
    /// No change.
    pub const NONE: Self = Self(0);

    /// The difference when a word changes.
    pub const fn word(old: u16, new: u16) -> Self {
        Self(fold(!old as u32 + new as u32))
    }

    /// The difference when an address changes.
    pub const fn address(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        let (old, new) = (old.to_bits(), new.to_bits());
        Self::word((old >> 16) as u16, (new >> 16) as u16).and(Self::word(old as u16, new as u16))
    }

    /// The difference of both changes together.
    pub const fn and(self, other: Self) -> Self {
        Self(fold(self.0 as u32 + other.0 as u32))
    }

    /// Returns the checksum after the change, from the one before it. A wrong checksum stays wrong.
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(!checksum as u32 + self.0 as u32)
    }
}

/// Marks the IPv4 header at the start of `bytes` as congested (CE), if it is ECN-capable (ECT), and updates the checksum: a wrong one
/// stays wrong. False, with nothing changed, if it is not, is marked already, or there is no header. No ICRC covers the mark (IBA annex
/// A17).
pub fn mark_congestion(bytes: &mut [u8]) -> bool {
    let Some(b) = bytes.first_chunk_mut::<{ Ipv4::LEN }>() else {
        return false;
    };
    if !matches!(b[1] & ECN, 1 | 2) {
        return false;
    }
    let old = u16::from_be_bytes([b[0], b[1]]);
    b[1] |= ECN;
    [b[10], b[11]] = ChecksumDelta::word(old, u16::from_be_bytes([b[0], b[1]]))
        .apply(u16::from_be_bytes([b[10], b[11]]))
        .to_be_bytes();
    true
}

/// Decrements the TTL of the IPv4 header at the start of `bytes` and updates the checksum. Returns the new TTL; `None`, with
/// nothing changed, if the TTL is zero or there is no header.
pub fn decrement_ttl(bytes: &mut [u8]) -> Option<u8> {
    lower_ttl(bytes, u8::MAX)
}

/// Like [`decrement_ttl`], to `most` at most.
pub fn lower_ttl(bytes: &mut [u8], most: u8) -> Option<u8> {
    let b = bytes.first_chunk_mut::<{ Ipv4::LEN }>()?;
    let ttl = b[8].checked_sub(1)?.min(most);
    let old = u16::from_be_bytes([b[8], b[9]]);
    let new = u16::from_be_bytes([ttl, b[9]]);
    b[8] = ttl;
    [b[10], b[11]] = ChecksumDelta::word(old, new)
        .apply(u16::from_be_bytes([b[10], b[11]]))
        .to_be_bytes();
    Some(ttl)
}

/// Whether the addresses of a prefix are multicast addresses that routers forward: 224.0.1.0 to 239.255.255.255, without those of the local
/// link (RFC 5771).
pub const fn is_forwarded_multicast(first: Ipv4Addr, length: u8) -> bool {
    const FORWARDED: Ipv4Addr = Ipv4Addr::new(224, 0, 1, 0);
    length >= 4 && first.is_multicast() && first.to_bits() >= FORWARDED.to_bits()
}
