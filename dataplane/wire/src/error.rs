//! Errors of parsing and writing frames.

use crate::names;

names! {
    /// The parts of a frame that an error can name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Header {
        /// Ethernet: addresses and EtherType.
        Ethernet => "Ethernet",
        /// An 802.1Q or 802.1ad tag.
        Vlan => "802.1Q",
        /// ARP.
        Arp => "ARP",
        /// LLDP.
        Lldp => "LLDP",
        /// IPv4.
        Ipv4 => "IPv4",
        /// IPv6.
        Ipv6 => "IPv6",
        /// UDP.
        Udp => "UDP",
        /// Base transport header.
        Bth => "BTH",
        /// Datagram extended transport header.
        Deth => "DETH",
        /// RDMA extended transport header.
        Reth => "RETH",
        /// Atomic extended transport header.
        AtomicEth => "AtomicETH",
        /// ACK extended transport header.
        Aeth => "AETH",
        /// Original value in the answer to an atomic.
        AtomicAckEth => "AtomicAckETH",
        /// Immediate data.
        Imm => "ImmDt",
        /// Invalidate extended transport header.
        Ieth => "IETH",
        /// The sixteen reserved bytes of a CNP.
        Cnp => "CNP",
        /// Payload and pad.
        Payload => "payload",
        /// Invariant CRC.
        Icrc => "ICRC",
        /// The control message of a collective, a payload.
        Control => "control message",
        /// A packet of the MFT Registration Protocol, a payload.
        Mrp => "MRP",
    }
}

/// Why bytes could not be parsed as a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ParseError {
    /// The bytes end before the header does.
    #[error("{header} needs {need} bytes, {have} are there")]
    Short {
        header: Header,
        need: usize,
        have: usize,
    },
    /// A field has a value that is not allowed or not known.
    #[error("{header}: {field} {value:#x} is not allowed or not known")]
    Field {
        header: Header,
        field: &'static str,
        value: u32,
    },
    /// Two fields give different lengths for the same bytes.
    #[error("{header}: {field} says {said}, but there is room for {found}")]
    Length {
        header: Header,
        field: &'static str,
        said: usize,
        found: usize,
    },
    /// Fields contradict each other.
    #[error("{header}: {rule}")]
    Rule { header: Header, rule: &'static str },
}

impl ParseError {
    pub(crate) const fn short(header: Header, need: usize, have: usize) -> Self {
        Self::Short { header, need, have }
    }

    pub(crate) const fn field(header: Header, field: &'static str, value: u32) -> Self {
        Self::Field { header, field, value }
    }

    pub(crate) const fn length(header: Header, field: &'static str, said: usize, found: usize) -> Self {
        Self::Length {
            header,
            field,
            said,
            found,
        }
    }

    pub(crate) const fn rule(header: Header, rule: &'static str) -> Self {
        Self::Rule { header, rule }
    }

    /// The header with the error. A frame whose error lies above Ethernet can still be switched by its addresses.
    pub const fn header(&self) -> Header {
        match *self {
            Self::Short { header, .. }
            | Self::Field { header, .. }
            | Self::Length { header, .. }
            | Self::Rule { header, .. } => header,
        }
    }
}

/// Why a header or frame could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum EmitError {
    /// The buffer is too short.
    #[error("{header} needs {need} bytes, the buffer has {have}")]
    NoRoom {
        header: Header,
        need: usize,
        have: usize,
    },
    /// The opcode asks for a header that was not given.
    #[error("the opcode carries {header}, which was not given")]
    Missing { header: Header },
    /// Longer than the length field of its header allows, or a payload for an opcode without one.
    #[error("{header}: {have} bytes, at most {max}")]
    TooLong {
        header: Header,
        /// Its bytes.
        have: usize,
        max: usize,
    },
}

impl EmitError {
    pub(crate) const fn no_room(header: Header, need: usize, have: usize) -> Self {
        Self::NoRoom { header, need, have }
    }
}

/// Returns the first `N` bytes of `bytes`, or an error with `header`.
#[inline]
pub(crate) fn chunk<const N: usize>(bytes: &[u8], header: Header) -> Result<&[u8; N], ParseError> {
    bytes
        .first_chunk()
        .ok_or(ParseError::short(header, N, bytes.len()))
}

pub(crate) fn put<const N: usize>(
    out: &mut [u8],
    header: Header,
    bytes: &[u8; N],
) -> Result<usize, EmitError> {
    let full = EmitError::no_room(header, N, out.len());
    let room = out.first_chunk_mut::<N>().ok_or(full)?;
    *room = *bytes;
    Ok(N)
}

/// Defines `parse` and `emit` of a header of fixed length, with its `from_bytes` and `to_bytes`.
macro_rules! fixed_header {
    ($name:ident) => {
        impl $name {
            /// Reads the header from the start of `bytes`.
            ///
            /// # Errors
            /// Too few bytes, or a field that breaks the rules of the header.
            #[inline(always)]
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::error::ParseError> {
                $crate::error::chunk(bytes, $crate::error::Header::$name).and_then(Self::from_bytes)
            }

            /// Writes the header to the start of `out`; returns its length in bytes.
            ///
            /// # Errors
            /// `out` is too short.
            pub fn emit(&self, out: &mut [u8]) -> Result<usize, $crate::error::EmitError> {
                $crate::error::put(out, $crate::error::Header::$name, &self.to_bytes())
            }
        }
    };
}
pub(crate) use fixed_header;
