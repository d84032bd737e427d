//! The format of messages.

use std::fmt;

use castnet_endpoint::OutOfRange;
use sha2::{Digest as _, Sha256};

use super::error::StreamError;

/// The minimum message size: it must hold a begin with the longest name.
pub(super) const MESSAGE_MIN: u64 = 1024;
/// The maximum message size. A larger message would take too long for the QP's timeout.
pub(super) const MESSAGE_MAX: u64 = 16 << 20;
const NAME_MAX: usize = 512;

pub(crate) const LANES_MAX: u64 = 16;

const MAGIC: [u8; 4] = *b"CNST";
const VERSION: u8 = 1;
/// Code for an unknown length.
const UNKNOWN: u64 = u64::MAX;
/// Bytes of a begin message before the name.
const BEGIN: usize = 18;

/// Header of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamHeader {
    /// Name, for example of a file. At most 512 bytes.
    pub name: String,
    /// Length in bytes, if known.
    pub length: Option<u64>,
}

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Result of a complete stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSummary {
    /// Name of the stream.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes.
    pub digest: Digest,
}

/// A stream that has begun, and the bytes of it so far.
#[derive(Clone, Debug)]
pub struct OpenStream {
    pub(super) header: StreamHeader,
    pub(super) bytes: u64,
    hasher: Sha256,
}

impl OpenStream {
    /// Without bytes.
    pub fn new(header: StreamHeader) -> Self {
        Self {
            header,
            bytes: 0,
            hasher: Sha256::new(),
        }
    }

    /// Its header.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Number of its bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds its next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    /// Returns an error if `found` bytes, or exactly `found` bytes at the end, contradict the declared length.
    pub(super) fn check_length(&self, found: u64, is_end: bool) -> Result<(), StreamError> {
        match self.header.length {
            Some(declared) if found > declared || is_end && found < declared => Err(StreamError::Length {
                name: self.header.name.clone(),
                declared,
                found,
                is_end,
            }),
            _ => Ok(()),
        }
    }

    /// Of its bytes so far.
    pub fn summary(&self) -> StreamSummary {
        StreamSummary {
            name: self.header.name.clone(),
            bytes: self.bytes,
            digest: Digest(self.hasher.clone().finalize().into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Begin = 0,
    Data = 1,
    End = 2,
    Turn = 3,
}

pub(super) fn immediate(kind: MessageKind, number: u64) -> u32 {
    (kind as u32) << 30 | (number as u32 & 0x3FFF_FFFF)
}

/// Decodes kind and number (modulo 2^30) from an immediate.
pub(super) fn read_immediate(imm: u32) -> (MessageKind, u32) {
    let kind = match imm >> 30 {
        0 => MessageKind::Begin,
        1 => MessageKind::Data,
        2 => MessageKind::End,
        _ => MessageKind::Turn,
    };
    (kind, imm & 0x3FFF_FFFF)
}

/// The payload of a begin message.
pub(super) fn begin(header: &StreamHeader) -> Result<Vec<u8>, OutOfRange> {
    let name = header.name.as_bytes();
    OutOfRange::check("name's length", name.len() as u64, 0, NAME_MAX as u64)?;
    let length = name.len() as u16;
    let mut bytes = Vec::with_capacity(BEGIN + name.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
    bytes.extend_from_slice(&header.length.unwrap_or(UNKNOWN).to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(name);
    Ok(bytes)
}

pub(super) fn read_begin(bytes: &[u8]) -> Result<StreamHeader, &'static str> {
    let (fixed, name) = bytes
        .split_first_chunk::<BEGIN>()
        .ok_or("its begin is too short")?;
    if !fixed.starts_with(&MAGIC) {
        return Err("its begin has no magic");
    }
    if fixed[4] != VERSION {
        return Err("its version is not known");
    }
    let [.., l0, l1, l2, l3, l4, l5, l6, l7, n0, n1] = *fixed;
    let length = u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    if name.len() != usize::from(u16::from_be_bytes([n0, n1])) || name.len() > NAME_MAX {
        return Err("its name's length is wrong");
    }
    let name = std::str::from_utf8(name)
        .map_err(|_| "its name is not UTF-8")?
        .to_owned();
    Ok(StreamHeader {
        name,
        length: (length != UNKNOWN).then_some(length),
    })
}

pub(super) fn end(bytes: u64, digest: Digest) -> [u8; 40] {
    let mut out = [0; 40];
    out[..8].copy_from_slice(&bytes.to_be_bytes());
    out[8..].copy_from_slice(&digest.0);
    out
}

pub(super) fn read_end(bytes: &[u8]) -> Option<(u64, Digest)> {
    let (length, digest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*length), Digest(digest.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_are_too_long_are_refused() {
        let header = |n| StreamHeader {
            name: "x".repeat(n),
            length: None,
        };
        assert!(begin(&header(513)).is_err());
        let longest = begin(&header(512)).map(|b| b.len() as u64);
        assert!(longest.is_ok_and(|n| n <= MESSAGE_MIN));
    }

    proptest! {
        #[test]
        fn messages_round_trip(name in "\\PC{0,80}", length in any::<Option<u32>>(), number in any::<u64>()) {
            let header = StreamHeader { name, length: length.map(u64::from) };
            let bytes = begin(&header).unwrap();
            prop_assert_eq!(read_begin(&bytes), Ok(header));
            let kind = MessageKind::End;
            prop_assert_eq!(read_immediate(immediate(kind, number)), (kind, number as u32 & 0x3FFF_FFFF));
            let digest = Digest([7; 32]);
            prop_assert_eq!(read_end(&end(number, digest)), Some((number, digest)));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = read_begin(&bytes);
            let _ = read_end(&bytes);
        }
    }
}
