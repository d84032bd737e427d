//! The control message of a collective. A rank sends it before its data, to describe the call (EPIC 3.3).
//!
//! The message is the 64-byte payload of a SEND_ONLY_WITH_IMM whose immediate data is [`Control::IMMEDIATE`]. Switches
//! [merge](Control::merge) the messages of all ranks on the way up, and send the merged message down to all of them.
//! docs/control-message.md has the byte layout.

use crate::error::{Header, ParseError, chunk};
use core::fmt;
use core::str::FromStr;

/// A word that names no member of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {what}: one of {names}")]
pub struct UnknownName {
    /// What was looked for, with its article.
    pub what: &'static str,
    /// What there is.
    pub names: &'static str,
}

/// An enum whose members have a byte on the wire and a name: lower case, one word.
macro_rules! named {
    ($what:literal $(#[$doc:meta])* pub enum $name:ident {
        $($(#[$member_doc:meta])* $member:ident = $byte:literal => $text:literal,)*
    }) => {
        $crate::names! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[repr(u8)]
            pub enum $name { $($(#[$member_doc])* $member = $byte => $text,)* }
        }

        impl $name {
            /// Returns the member of a byte, or `None` if the byte has no meaning.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$member),)*
                    _ => None,
                }
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            /// Parses a name, in upper or lower case.
            fn from_str(text: &str) -> Result<Self, UnknownName> {
                let found = Self::ALL.iter().copied().find(|m| m.name().eq_ignore_ascii_case(text));
                let names = concat!($($text, " "),*);
                found.ok_or(UnknownName { what: $what, names: names.trim_ascii_end() })
            }
        }
    };
}

named! {
    "a primitive"
    /// A collective's data flow. The other primitives are made of these (EPIC, appendix A).
    pub enum Primitive {
        /// From all ranks to all ranks. Without data it is a barrier.
        AllReduce = 1 => "allreduce",
        /// From all ranks to one.
        Reduce = 2 => "reduce",
        /// From one rank to all others.
        Broadcast = 3 => "broadcast",
    }
}

named! {
    "an operation"
    /// The operation that reduces two elements to one. castnet-reduce defines each result bit by bit.
    pub enum Operation {
        /// Sum; also if nothing is reduced (Broadcast, barrier).
        Sum = 1 => "sum",
        /// The smaller.
        Min = 2 => "min",
        /// The larger.
        Max = 3 => "max",
        /// Product.
        Prod = 4 => "prod",
        /// Bitwise and.
        BitAnd = 5 => "bitand",
        /// Bitwise or.
        BitOr = 6 => "bitor",
        /// Bitwise exclusive or.
        BitXor = 7 => "bitxor",
        /// Logical and: 1 if both are not 0.
        And = 8 => "and",
        /// Logical or: 1 if at least one is not 0.
        Or = 9 => "or",
        /// Logical exclusive or: 1 if exactly one is not 0.
        Xor = 10 => "xor",
    }
}

impl Operation {
    /// Returns true if the operation is defined for `data_type`. Bitwise and logical operations are for integers only.
    pub const fn supports(self, data_type: DataType) -> bool {
        match self {
            Self::Sum | Self::Min | Self::Max | Self::Prod => true,
            Self::BitAnd | Self::BitOr | Self::BitXor | Self::And | Self::Or | Self::Xor => {
                !data_type.is_float()
            }
        }
    }
}

named! {
    "a data type"
    /// The type of an element, little endian in memory and on the wire.
    pub enum DataType {
        /// IEEE 754 single precision.
        F32 = 1 => "f32",
        /// IEEE 754 half precision.
        F16 = 2 => "f16",
        /// The upper half of a single precision number.
        Bf16 = 3 => "bf16",
        /// IEEE 754 double precision.
        F64 = 4 => "f64",
        /// Signed, 8 bits.
        I8 = 5 => "i8",
        /// Signed, 16 bits.
        I16 = 6 => "i16",
        /// Signed, 32 bits.
        I32 = 7 => "i32",
        /// Signed, 64 bits.
        I64 = 8 => "i64",
        /// Unsigned, 8 bits.
        U8 = 9 => "u8",
        /// Unsigned, 16 bits.
        U16 = 10 => "u16",
        /// Unsigned, 32 bits.
        U32 = 11 => "u32",
        /// Unsigned, 64 bits.
        U64 = 12 => "u64",
    }
}

impl DataType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Returns true if it is one of the floating point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }
}

/// Options of the arithmetic: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallFlags(pub u8);

impl CallFlags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Integer sums and products saturate instead of wrapping. Other operations and types do not change.
    pub const SATURATE: Self = Self(1);
    /// Contributions are reduced in rank order, so that the result is bit-identical for every order of arrival.
    pub const REPRODUCIBLE: Self = Self(2);
    const KNOWN: u8 = Self::SATURATE.0 | Self::REPRODUCIBLE.0;

    /// Returns true if all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The call of a rank. The calls of all ranks must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The data flow.
    pub primitive: Primitive,
    /// The receiving rank of a Reduce, the sending one of a Broadcast; 0 for AllReduce.
    pub root: u16,
    /// Number of roots, 1 to [`Call::ROOTS_MAX`]: ranks from `root` on, each with a block of data of its own. Several
    /// Broadcasts make an AllGather, several Reduces a ReduceScatter.
    pub roots: u16,
    /// The operation that reduces elements.
    pub operation: Operation,
    /// The type of an element.
    pub data_type: DataType,
    /// Options of the arithmetic.
    pub flags: CallFlags,
    /// Elements of a block.
    pub elements: u64,
    /// Data packets of a block; 0 for a barrier.
    pub packets: u32,
}

const CALL_LEN: usize = 20;

impl Call {
    /// Most data packets of one collective. PSNs can be compared only over less than half of their circle of 2^24.
    pub const PACKETS_MAX: u32 = (1 << 23) - 2;
    /// Most roots of one call.
    pub const ROOTS_MAX: u16 = 8;

    /// Packets of all blocks.
    pub const fn all_packets(&self) -> u64 {
        self.packets as u64 * self.roots as u64
    }

    /// Bytes of the elements of a block.
    pub const fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.data_type.size() as u64)
    }

    /// Returns true if the call has contributions that are reduced in rank order.
    pub const fn is_in_rank_order(&self) -> bool {
        self.flags.contains(CallFlags::REPRODUCIBLE)
            && self.packets > 0
            && !matches!(self.primitive, Primitive::Broadcast)
    }

    /// Checks that the fields of the call fit each other. [`Control::parse`] checks each call that it reads.
    ///
    /// # Errors
    /// The rule that the call breaks.
    pub fn check(&self) -> Result<(), ParseError> {
        const fn broken(rule: &'static str) -> Result<(), ParseError> {
            Err(ParseError::rule(Header::Control, rule))
        }
        if self.flags.0 & !CallFlags::KNOWN != 0 {
            return Err(unknown("flags", self.flags.0.into()));
        }
        if !self.operation.supports(self.data_type) {
            return broken("bitwise and logical operations are for integers only");
        }
        match self.primitive {
            Primitive::AllReduce if self.root != 0 => return broken("an allreduce has no root"),
            Primitive::Broadcast if self.operation != Operation::Sum => {
                return broken("a broadcast reduces nothing: its operation is sum");
            }
            Primitive::AllReduce if self.roots != 1 => return broken("an allreduce has one block"),
            _ => {}
        }
        if self.roots == 0 || self.roots > Self::ROOTS_MAX {
            return broken("a call has 1 to 8 roots");
        }
        if self.roots > 1 && self.packets == 0 {
            return broken("a call with several roots has data");
        }
        if self.root.checked_add(self.roots - 1).is_none() {
            return broken("the last root is no rank");
        }
        let Some(bytes) = self.elements.checked_mul(self.data_type.size() as u64) else {
            return broken("more elements than 64 bits can count the bytes of");
        };
        // All packets but the last are of the group's path MTU: 256 to 4096 bytes.
        let packets = u64::from(self.packets);
        if packets < bytes.div_ceil(4096) || packets > bytes.div_ceil(256) {
            return broken("elements and packets do not fit each other, whatever the path MTU");
        }
        if self.all_packets() > Self::PACKETS_MAX.into() {
            return broken("more packets than sequence numbers can tell apart");
        }
        Ok(())
    }

    fn from_bytes(b: &[u8; CALL_LEN]) -> Result<Self, ParseError> {
        let [p, o, t, f, r0, r1, m0, m1, p0, p1, p2, p3, elements @ ..] = *b;
        let call = Self {
            primitive: Primitive::from_byte(p).ok_or(unknown("primitive", p.into()))?,
            root: u16::from_be_bytes([r0, r1]),
            // On the wire: roots beyond the first.
            roots: u16::from_be_bytes([m0, m1]).saturating_add(1),
            operation: Operation::from_byte(o).ok_or(unknown("operation", o.into()))?,
            data_type: DataType::from_byte(t).ok_or(unknown("data type", t.into()))?,
            flags: CallFlags(f),
            elements: u64::from_be_bytes(elements),
            packets: u32::from_be_bytes([p0, p1, p2, p3]),
        };
        call.check()?;
        Ok(call)
    }

    fn to_bytes(self) -> [u8; CALL_LEN] {
        let mut b = [0; CALL_LEN];
        b[0] = self.primitive as u8;
        b[1] = self.operation as u8;
        b[2] = self.data_type as u8;
        b[3] = self.flags.0;
        b[4..6].copy_from_slice(&self.root.to_be_bytes());
        b[6..8].copy_from_slice(&self.roots.saturating_sub(1).to_be_bytes());
        b[8..12].copy_from_slice(&self.packets.to_be_bytes());
        b[12..].copy_from_slice(&self.elements.to_be_bytes());
        b
    }
}

impl fmt::Display for Call {
    /// Writes, for example, `allreduce of 1024 f32 by sum in 4 packets`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, last) = match self.roots {
            0 | 1 => ("", None),
            n => ("s", Some(u32::from(self.root) + u32::from(n) - 1)),
        };
        match self.primitive {
            Primitive::AllReduce if self.packets == 0 => f.write_str("barrier")?,
            Primitive::AllReduce => f.write_str("allreduce")?,
            Primitive::Reduce => write!(f, "reduce to rank{s} {}", self.root)?,
            Primitive::Broadcast => write!(f, "broadcast from rank{s} {}", self.root)?,
        }
        if let Some(last) = last {
            write!(f, " to {last}, each")?;
        }
        if self.packets != 0 || self.primitive != Primitive::AllReduce {
            write!(f, " of {} {}", self.elements, self.data_type)?;
            if self.primitive != Primitive::Broadcast {
                write!(f, " by {}", self.operation)?;
            }
            let s = if self.packets == 1 { "" } else { "s" };
            write!(f, " in {} packet{s}", self.packets)?;
        }
        for (flag, name) in [
            (CallFlags::SATURATE, "saturating"),
            (CallFlags::REPRODUCIBLE, "reproducible"),
        ] {
            if self.flags.contains(flag) {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

/// The result of comparing the calls of all ranks that a control message covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// All calls are equal.
    Agreed,
    /// At least one call differs.
    Conflict {
        /// The lowest rank whose call differs from the call in the message.
        rank: u16,
        /// The call of that rank.
        call: Call,
    },
}

/// A control message of one rank, or the merged message of all ranks in a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// The number of the collective within its group; it wraps.
    pub sequence: u32,
    /// The rank of `call`; after merging, the lowest rank.
    pub rank: u16,
    /// The call of that rank.
    pub call: Call,
    /// The result of the comparison with the other ranks.
    pub verdict: Verdict,
}

impl Control {
    /// Bytes of the message: the whole payload of its packet.
    pub const LEN: usize = 64;
    /// Version of the layout.
    pub const VERSION: u8 = 1;
    /// The immediate data of its packet, and the first four bytes of the message: `CNC` and [`Control::VERSION`].
    pub const IMMEDIATE: u32 = u32::from_be_bytes([b'C', b'N', b'C', Self::VERSION]);

    /// Reads the header from the start of `bytes`.
    ///
    /// # Errors
    /// Too few bytes; another magic or version; a byte without meaning; reserved bytes that are not zero; a call that breaks a
    /// rule ([`Call::check`]); a conflict of two equal calls.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = chunk(bytes, Header::Control)?;
        let magic = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if magic != Self::IMMEDIATE {
            return Err(if magic >> 8 == Self::IMMEDIATE >> 8 {
                unknown("version", b[3].into())
            } else {
                unknown("magic", magic)
            });
        }
        let field = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let call = |at: usize| {
            let mut bytes = [0; CALL_LEN];
            bytes.copy_from_slice(&b[at..at + CALL_LEN]);
            bytes
        };
        let zero = |from: usize, to: usize| {
            let found = b[from..to].iter().find(|byte| **byte != 0);
            found.map_or(Ok(()), |byte| Err(unknown("reserved byte", (*byte).into())))
        };
        zero(11, 12)?;
        let mut control = Self {
            sequence: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            rank: field(8),
            call: Call::from_bytes(&call(12))?,
            verdict: Verdict::Agreed,
        };
        match b[10] {
            0 => zero(32, Self::LEN)?,
            1 => {
                let (rank, other) = (field(32), Call::from_bytes(&call(36))?);
                zero(34, 36)?;
                zero(56, Self::LEN)?;
                if other == control.call || (rank, other) < (control.rank, control.call) {
                    let rule = "a conflict names two different calls, the lower rank's first";
                    return Err(ParseError::rule(Header::Control, rule));
                }
                control.verdict = Verdict::Conflict { rank, call: other };
            }
            verdict => return Err(unknown("verdict", verdict.into())),
        }
        Ok(control)
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        out[..4].copy_from_slice(&Self::IMMEDIATE.to_be_bytes());
        out[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        out[8..10].copy_from_slice(&self.rank.to_be_bytes());
        out[12..32].copy_from_slice(&self.call.to_bytes());
        if let Verdict::Conflict { rank, call } = self.verdict {
            out[10] = 1;
            out[32..34].copy_from_slice(&rank.to_be_bytes());
            out[36..56].copy_from_slice(&call.to_bytes());
        }
    }

    /// Merges the message of other ranks for the same collective.
    ///
    /// The result depends only on the set of messages, not on order, grouping or repetition. It has the call of the lowest rank
    /// and, if a call differs, the lowest rank with a different call. If one rank has sent two calls, the call that sorts first
    /// counts as the lower one. Messages of two sequences must not be merged; the lower sequence would stay.
    pub fn merge(&mut self, other: &Self) {
        let said = |c: &Self| (c.rank, c.call);
        let (low, high) = if said(other) < said(self) {
            (*other, *self)
        } else {
            (*self, *other)
        };
        let conflict = |c: &Self| match c.verdict {
            Verdict::Conflict { rank, call } if call != low.call => Some((rank, call)),
            _ => None,
        };
        let first = (high.call != low.call).then(|| said(&high));
        let found = [first, conflict(&low), conflict(&high)]
            .into_iter()
            .flatten()
            .min();
        *self = Self {
            sequence: low.sequence.min(high.sequence),
            verdict: found.map_or(Verdict::Agreed, |(rank, call)| Verdict::Conflict { rank, call }),
            ..low
        };
    }
}

impl fmt::Display for Control {
    /// Writes, for example, `collective 7, rank 0: allreduce of 256 f32 by sum in 1 packet`, and if there is a conflict
    /// ` CONFLICT rank 3: ` with the call of that rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "collective {}, rank {}: {}",
            self.sequence, self.rank, self.call
        )?;
        if let Verdict::Conflict { rank, call } = self.verdict {
            write!(f, " CONFLICT rank {rank}: {call}")?;
        }
        Ok(())
    }
}

const fn unknown(field: &'static str, value: u32) -> ParseError {
    ParseError::field(Header::Control, field, value)
}
