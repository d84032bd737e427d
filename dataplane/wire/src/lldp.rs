//! LLDP (IEEE 802.1AB): the TLVs that identify the neighbour at the other end of a cable.

use crate::error::{EmitError, Header, ParseError};
use crate::ids::MacAddr;
use core::fmt::{self, Write as _};
use core::str;

/// Destination of LLDP frames: the nearest bridge, which never forwards them.
pub const NEAREST_BRIDGE: MacAddr = MacAddr([0x01, 0x80, 0xC2, 0, 0, 0x0E]);

/// The identifier of a chassis or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LldpId<'a> {
    /// An Ethernet address.
    Mac(MacAddr),
    /// A text: an interface name, or another name that the sender has chosen.
    Text(&'a str),
    /// An identifier of another kind, or a text that is not UTF-8.
    Other {
        /// The subtype of the TLV.
        subtype: u8,
        /// The bytes behind the subtype.
        bytes: &'a [u8],
    },
}

/// Displays a text of an unknown sender safely: control characters and invisible characters are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    /// Writes each character in one piece.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\'' | '"' | '\\' => f.write_char(c),
            _ => c.escape_debug().fmt(f),
        })
    }
}

impl fmt::Display for LldpId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => mac.fmt(f),
            Self::Text(text) => Printable(text).fmt(f),
            Self::Other { subtype, bytes } => {
                write!(f, "{subtype}:")?;
                bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

/// An LLDP data unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lldp<'a> {
    /// The system that sends.
    pub chassis: LldpId<'a>,
    /// Its port.
    pub port: LldpId<'a>,
    /// Seconds for which the data unit is valid; 0 withdraws it.
    pub ttl_secs: u16,
    /// Name of the system; empty if it is missing or not UTF-8.
    pub system_name: &'a str,
}

const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const SYSTEM_NAME: u8 = 5;
/// Subtypes of an Ethernet address and of a name: (chassis), (port).
const MAC: [u8; 2] = [4, 3];
const NAME: [u8; 2] = [7, 5];
/// The most bytes of a text (802.1AB 8.5).
const TEXT_MAX: usize = 255;

const fn short(need: usize, have: usize) -> ParseError {
    ParseError::short(Header::Lldp, need, have)
}

/// Splits off the first TLV. Returns its kind, its value and the bytes behind it.
fn tlv(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), ParseError> {
    let (&[a, b], rest) = bytes.split_first_chunk().ok_or(short(2, bytes.len()))?;
    let length = usize::from(a & 1) << 8 | usize::from(b);
    let (value, rest) = rest.split_at_checked(length).ok_or(short(length, rest.len()))?;
    Ok((a >> 1, value, rest))
}

fn id(kind: u8, value: &[u8]) -> Result<LldpId<'_>, ParseError> {
    let which = usize::from(kind != CHASSIS);
    let Some((&subtype, bytes)) = value.split_first().filter(|(_, b)| !b.is_empty()) else {
        return Err(short(2, value.len()));
    };
    let other = LldpId::Other { subtype, bytes };
    if subtype == MAC[which] {
        return Ok(<[u8; 6]>::try_from(bytes).map_or(other, |mac| LldpId::Mac(MacAddr(mac))));
    }
    // Chassis: component 1, alias 2, port component 3, name 6, local 7. Port: alias 1, component 2, name 5, local 7.
    let is_text = if kind == CHASSIS {
        matches!(subtype, 1 | 2 | 3 | 6 | 7)
    } else {
        matches!(subtype, 1 | 2 | 5 | 7)
    };
    Ok(str::from_utf8(bytes)
        .ok()
        .filter(|_| is_text)
        .map_or(other, LldpId::Text))
}

fn mandatory(bytes: &[u8], wanted: u8) -> Result<(&[u8], &[u8]), ParseError> {
    let (kind, value, rest) = tlv(bytes)?;
    if kind == wanted {
        Ok((value, rest))
    } else {
        Err(ParseError::field(
            Header::Lldp,
            "order of TLVs, type",
            kind.into(),
        ))
    }
}

impl<'a> Lldp<'a> {
    /// Reads a data unit, from behind the Ethernet header. Chassis, port and time to live must come first, in this order. Further
    /// TLVs may be unknown or incomplete.
    ///
    /// # Errors
    /// One of the three is missing or too short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (chassis, rest) = mandatory(bytes, CHASSIS)?;
        let (port, rest) = mandatory(rest, PORT)?;
        let (ttl, mut rest) = mandatory(rest, TTL)?;
        let ttl = ttl.first_chunk().ok_or(short(2, ttl.len()))?;
        let mut lldp = Self {
            chassis: id(CHASSIS, chassis)?,
            port: id(PORT, port)?,
            ttl_secs: u16::from_be_bytes(*ttl),
            system_name: "",
        };
        while let Ok((kind, value, after)) = tlv(rest) {
            match kind {
                END => break,
                SYSTEM_NAME => lldp.system_name = str::from_utf8(value).unwrap_or_default(),
                _ => {}
            }
            rest = after;
        }
        Ok(lldp)
    }

    /// Writes the data unit to the start of `out` and returns its length. A text of more than 255 bytes is cut.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let mut writer = Writer { out, at: 0 };
        writer.id(CHASSIS, &self.chassis)?;
        writer.id(PORT, &self.port)?;
        writer.tlv(TTL, &[], &self.ttl_secs.to_be_bytes())?;
        if !self.system_name.is_empty() {
            writer.tlv(SYSTEM_NAME, &[], cut(self.system_name))?;
        }
        writer.tlv(END, &[], &[])?;
        Ok(writer.at)
    }
}

fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_MAX)]
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn tlv(&mut self, kind: u8, subtype: &[u8], value: &[u8]) -> Result<(), EmitError> {
        let length = subtype.len() + value.len();
        let (have, need) = (self.out.len() - self.at, 2 + length);
        let full = EmitError::no_room(Header::Lldp, need, have);
        let space = self.out.get_mut(self.at..self.at + need).ok_or(full)?;
        space[0] = kind << 1 | (length >> 8) as u8;
        space[1] = length as u8;
        space[2..2 + subtype.len()].copy_from_slice(subtype);
        space[2 + subtype.len()..].copy_from_slice(value);
        self.at += need;
        Ok(())
    }

    fn id(&mut self, kind: u8, id: &LldpId<'_>) -> Result<(), EmitError> {
        let which = usize::from(kind != CHASSIS);
        match *id {
            LldpId::Mac(mac) => self.tlv(kind, &[MAC[which]], &mac.0),
            LldpId::Text(text) => self.tlv(kind, &[NAME[which]], cut(text)),
            LldpId::Other { subtype, bytes } => {
                self.tlv(kind, &[subtype], &bytes[..bytes.len().min(TEXT_MAX)])
            }
        }
    }
}
