//! The control message of a collective: what a rank says it is about to do, before its data (EPIC 3.3.2).

/// A collective's data flow. The other primitives are made of these (EPIC, appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Primitive {
    /// From all ranks to all ranks.
    AllReduce = 1,
    /// From all ranks to one.
    Reduce = 2,
    /// From one rank to all others.
    Broadcast = 3,
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Sum; also where nothing is reduced (Broadcast, barrier).
    Sum = 1,
    /// The smaller.
    Min = 2,
    /// The larger.
    Max = 3,
    /// Product.
    Prod = 4,
    /// Bitwise and.
    BitAnd = 5,
    /// Bitwise or.
    BitOr = 6,
    /// Bitwise exclusive or.
    BitXor = 7,
    /// Logical and: 1 where both are not 0.
    And = 8,
    /// Logical or: 1 where one is not 0.
    Or = 9,
    /// Logical exclusive or: 1 where just one is not 0.
    Xor = 10,
}

/// The type of an element, little endian in memory and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DataType {
    /// IEEE 754 single precision.
    F32 = 1,
    /// IEEE 754 half precision.
    F16 = 2,
    /// The upper half of a single precision number.
    Bf16 = 3,
    /// IEEE 754 double precision.
    F64 = 4,
    /// Signed, 8 bits.
    I8 = 5,
    /// Signed, 16 bits.
    I16 = 6,
    /// Signed, 32 bits.
    I32 = 7,
    /// Signed, 64 bits.
    I64 = 8,
    /// Unsigned, 8 bits.
    U8 = 9,
    /// Unsigned, 16 bits.
    U16 = 10,
    /// Unsigned, 32 bits.
    U32 = 11,
    /// Unsigned, 64 bits.
    U64 = 12,
}

/// How the arithmetic is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallFlags(pub u8);

impl CallFlags {
    /// Integer sums stop at the ends of their range instead of wrapping.
    pub const SATURATE: Self = Self(1);
    /// Contributions are added in rank order, so that a result is the same bit for bit whatever their order of arrival.
    pub const REPRODUCIBLE: Self = Self(2);
}

/// What a rank calls: all ranks must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The data flow.
    pub primitive: Primitive,
    /// The receiving rank of a Reduce, the sending one of a Broadcast; 0 for AllReduce.
    pub root: u16,
    /// How elements are reduced.
    pub operation: Operation,
    /// The type of an element.
    pub data_type: DataType,
    /// How the arithmetic is to be done.
    pub flags: CallFlags,
    /// Elements of the whole collective.
    pub elements: u64,
    /// Data packets of each sender; 0 for a barrier.
    pub packets: u32,
}

/// Whether the ranks that a control message stands for agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// All said the same.
    Agreed,
    /// They did not.
    Conflict {
        /// Another rank than the one that the message names.
        rank: u16,
        /// What it said.
        call: Call,
    },
}

/// A control message: of one rank, or of all ranks of a part of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// The number of the collective within its group.
    pub sequence: u32,
    /// Who says `call`: after merging, the lowest rank.
    pub rank: u16,
    /// What it says.
    pub call: Call,
    /// Whether others agree.
    pub verdict: Verdict,
}

impl Control {
    /// Takes in what other ranks say of the same collective. Of several conflicts one is kept.
    pub fn merge(&mut self, other: &Self) {
        let (low, high) = if other.rank < self.rank {
            (*other, *self)
        } else {
            (*self, *other)
        };
        let differs = |verdict| match verdict {
            Verdict::Conflict { call, .. } => call != low.call,
            Verdict::Agreed => false,
        };
        let verdict = if differs(low.verdict) {
            low.verdict
        } else if high.call != low.call {
            Verdict::Conflict {
                rank: high.rank,
                call: high.call,
            }
        } else {
            high.verdict
        };
        *self = Self { verdict, ..low };
    }
}
