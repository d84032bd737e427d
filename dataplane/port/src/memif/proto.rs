//! Messages of the control socket: memif version 2.0, as in VPP (`memif.h`) and DPDK (`net_memif`).
//!
//! A message is a packet of 128 bytes: a type of 16 bits, then the fields, packed, in the byte order of the machine. A
//! region comes with its memory file, and a ring with its event descriptor, as `SCM_RIGHTS`.

/// Bytes of a message.
pub(super) const MESSAGE: usize = 128;
/// The version of the protocol, and the only one: 2.0.
pub(super) const VERSION: u16 = 0x0200;
/// Starts each ring.
pub(super) const COOKIE: u32 = 0x03E3_1F20;
/// The largest ring, as a power of two.
pub(super) const LOG2_RING_MAX: u8 = 14;

const NAME: usize = 32;
const SECRET: usize = 24;
const REASON: usize = 96;

/// The mode of an interface that carries Ethernet frames. Others carry IP packets.
pub(super) const ETHERNET: u8 = 0;

/// A secret of up to 24 bytes that a client shows. `Debug` does not print it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret([u8; SECRET]);

impl Secret {
    /// Returns `None` if the text is longer than 24 bytes, is empty, or has a zero byte.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= SECRET && !text.contains('\0')).then(|| Self(text_field(text)))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0[0] != 0
    }

    /// The time does not depend on where the two differ.
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_set() { "set" } else { "none" })
    }
}

/// What a server can do. Limits are the largest index, not a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) versions: (u16, u16),
    pub(super) region_max: u16,
    pub(super) to_client_ring_max: u16,
    pub(super) to_server_ring_max: u16,
    pub(super) log2_ring_max: u8,
}

/// The interface that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Init {
    pub(super) version: u16,
    pub(super) id: u32,
    pub(super) mode: u8,
    pub(super) secret: Secret,
    pub(super) name: String,
}

/// A ring in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddRing {
    /// True for frames from the client to the server (S2M, C2S).
    pub(super) to_server: bool,
    pub(super) index: u16,
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) log2_size: u8,
    pub(super) private_header: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Ack,
    /// Server to client, first.
    Hello(Hello),
    /// Client to server.
    Init(Init),
    /// Client to server, with the memory file. `size` in bytes.
    AddRegion {
        index: u16,
        size: u64,
    },
    /// Client to server, with the event descriptor.
    AddRing(AddRing),
    /// Client to server: all regions and rings are there.
    Connect {
        name: String,
    },
    /// Server to client: the link is up.
    Connected {
        name: String,
    },
    /// Either, last.
    Disconnect {
        code: u32,
        reason: String,
    },
}

/// A message that is none of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("a message of {0} bytes instead of {MESSAGE}")]
    Length(usize),
    #[error("a message of the unknown type {0}")]
    Type(u16),
}

impl Message {
    /// The name in the protocol.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Ack => "ACK",
            Self::Hello(_) => "HELLO",
            Self::Init(_) => "INIT",
            Self::AddRegion { .. } => "ADD_REGION",
            Self::AddRing(_) => "ADD_RING",
            Self::Connect { .. } => "CONNECT",
            Self::Connected { .. } => "CONNECTED",
            Self::Disconnect { .. } => "DISCONNECT",
        }
    }

    pub(super) fn encode(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        let mut out = Writer {
            bytes: &mut bytes,
            at: 0,
        };
        match self {
            Self::Ack => out.put(1_u16.to_ne_bytes()),
            Self::Hello(hello) => {
                out.put(2_u16.to_ne_bytes());
                out.put(text_field::<NAME>(&hello.name));
                out.put(hello.versions.0.to_ne_bytes());
                out.put(hello.versions.1.to_ne_bytes());
                out.put(hello.region_max.to_ne_bytes());
                out.put(hello.to_client_ring_max.to_ne_bytes());
                out.put(hello.to_server_ring_max.to_ne_bytes());
                out.put([hello.log2_ring_max]);
            }
            Self::Init(init) => {
                out.put(3_u16.to_ne_bytes());
                out.put(init.version.to_ne_bytes());
                out.put(init.id.to_ne_bytes());
                out.put([init.mode]);
                out.put(init.secret.0);
                out.put(text_field::<NAME>(&init.name));
            }
            Self::AddRegion { index, size } => {
                out.put(4_u16.to_ne_bytes());
                out.put(index.to_ne_bytes());
                out.put(size.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                out.put(5_u16.to_ne_bytes());
                out.put(u16::from(ring.to_server).to_ne_bytes());
                out.put(ring.index.to_ne_bytes());
                out.put(ring.region.to_ne_bytes());
                out.put(ring.offset.to_ne_bytes());
                out.put([ring.log2_size]);
                out.put(ring.private_header.to_ne_bytes());
            }
            Self::Connect { name } => {
                out.put(6_u16.to_ne_bytes());
                out.put(text_field::<NAME>(name));
            }
            Self::Connected { name } => {
                out.put(7_u16.to_ne_bytes());
                out.put(text_field::<NAME>(name));
            }
            Self::Disconnect { code, reason } => {
                out.put(8_u16.to_ne_bytes());
                out.put(code.to_ne_bytes());
                out.put(text_field::<REASON>(reason));
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let whole: &[u8; MESSAGE] = bytes.try_into().map_err(|_| BadMessage::Length(bytes.len()))?;
        let mut from = Reader { bytes: whole, at: 0 };
        Ok(match from.u16() {
            1 => Self::Ack,
            2 => Self::Hello(Hello {
                name: from.text::<NAME>(),
                versions: (from.u16(), from.u16()),
                region_max: from.u16(),
                to_client_ring_max: from.u16(),
                to_server_ring_max: from.u16(),
                log2_ring_max: from.u8(),
            }),
            3 => Self::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: Secret(up_to_zero(from.take())),
                name: from.text::<NAME>(),
            }),
            4 => Self::AddRegion {
                index: from.u16(),
                size: u64::from_ne_bytes(from.take()),
            },
            5 => Self::AddRing(AddRing {
                to_server: from.u16() & 1 != 0,
                index: from.u16(),
                region: from.u16(),
                offset: from.u32(),
                log2_size: from.u8(),
                private_header: from.u16(),
            }),
            6 => Self::Connect {
                name: from.text::<NAME>(),
            },
            7 => Self::Connected {
                name: from.text::<NAME>(),
            },
            8 => Self::Disconnect {
                code: from.u32(),
                reason: from.text::<REASON>(),
            },
            other => return Err(BadMessage::Type(other)),
        })
    }
}

/// The text, cut at a character so that it fits, and zeros. A full field needs no zero at its end.
fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let end = text.floor_char_boundary(N);
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
    field
}

/// Clears what is behind the first zero byte.
fn up_to_zero<const N: usize>(mut field: [u8; N]) -> [u8; N] {
    let end = field.iter().position(|b| *b == 0).unwrap_or(N);
    field[end..].fill(0);
    field
}

struct Writer<'a> {
    bytes: &'a mut [u8; MESSAGE],
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&field);
        self.at += N;
    }
}

/// Fields are shorter than a message, so reading them never ends beyond it.
struct Reader<'a> {
    bytes: &'a [u8; MESSAGE],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// A text of another program: control characters, which could change a terminal, become `?`.
    fn text<const N: usize>(&mut self) -> String {
        let field = up_to_zero(self.take::<N>());
        let end = field.iter().position(|b| *b == 0).unwrap_or(N);
        let clean = |c: char| if c.is_control() { '?' } else { c };
        String::from_utf8_lossy(&field[..end])
            .chars()
            .map(clean)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let name = || "a name".to_owned();
        vec![
            Message::Ack,
            Message::Hello(Hello {
                name: name(),
                versions: (VERSION, VERSION + 1),
                region_max: 15,
                to_client_ring_max: 1,
                to_server_ring_max: 2,
                log2_ring_max: LOG2_RING_MAX,
            }),
            Message::Init(Init {
                version: VERSION,
                id: 7,
                mode: ETHERNET,
                secret: Secret::new("exactly-24-bytes-of-text").unwrap(),
                name: name(),
            }),
            Message::AddRegion {
                index: 3,
                size: 1 << 40,
            },
            Message::AddRing(AddRing {
                to_server: true,
                index: 1,
                region: 2,
                offset: 3,
                log2_size: 4,
                private_header: 5,
            }),
            Message::Connect { name: name() },
            Message::Connected { name: name() },
            Message::Disconnect {
                code: 9,
                reason: "r".repeat(REASON),
            },
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    /// Offsets of the fields, as other implementations have them.
    #[test]
    fn fields_are_where_others_expect_them() {
        let encoded: Vec<_> = messages().iter().map(Message::encode).collect();
        let [_, hello, init, region, ring, connect, _, disconnect] = &encoded[..] else {
            panic!()
        };
        assert_eq!(
            (hello[2..8].as_ref(), hello[34..38].as_ref()),
            (b"a name".as_ref(), [0, 2, 1, 2].as_ref())
        );
        assert_eq!(hello[38..46], [15, 0, 1, 0, 2, 0, 14, 0]);
        assert_eq!(
            (init[..9].as_ref(), &init[9..33]),
            (
                [3, 0, 0, 2, 7, 0, 0, 0, 0].as_ref(),
                b"exactly-24-bytes-of-text".as_ref()
            )
        );
        assert_eq!(init[33..39], *b"a name");
        assert_eq!(region[..12], [4, 0, 3, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(ring[..15], [5, 0, 1, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 5, 0]);
        assert_eq!(connect[2..8], *b"a name");
        assert_eq!((disconnect[2], disconnect[6], disconnect[101]), (9, b'r', b'r'));
    }

    #[test]
    fn secrets_are_compared_as_texts_and_not_printed() {
        let secret = Secret::new("one").unwrap();
        assert!(
            secret.matches(&Secret::new("one").unwrap()) && !secret.matches(&Secret::new("onE").unwrap())
        );
        assert!(!secret.matches(&Secret::default()) && !Secret::default().is_set());
        assert_eq!(format!("{secret:?}"), "set");
        assert_eq!(
            [Secret::new(""), Secret::new(&"x".repeat(25)), Secret::new("a\0b")],
            [None; 3]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..12) {
            let mut bytes = bytes;
            if let Some(first) = bytes.get_mut(..2) {
                first.copy_from_slice(&[kind, 0]);
            }
            match Message::decode(&bytes) {
                Ok(message) => prop_assert!(Message::decode(&message.encode()).is_ok()),
                Err(BadMessage::Length(length)) => prop_assert!(length == bytes.len() && length != MESSAGE),
                Err(BadMessage::Type(other)) => prop_assert!(!(1..=8).contains(&other)),
            }
        }
    }
}
