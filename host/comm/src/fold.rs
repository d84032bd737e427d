//! Reduction at a host: of a Reduce's root, and of algorithms between hosts. The plain way, element by element.

use castnet_wire::control::{CallFlags, DataType, Operation};
use half::{bf16, f16};

/// An operation on a type, chosen once per collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    operation: Operation,
    data_type: DataType,
    saturates: bool,
}

macro_rules! each {
    ($t:ty, $acc:expr, $other:expr, $f:expr) => {{
        const SIZE: usize = size_of::<$t>();
        for (a, b) in $acc.chunks_exact_mut(SIZE).zip($other.chunks_exact(SIZE)) {
            let x: $t = bytemuck::pod_read_unaligned(a);
            let y: $t = bytemuck::pod_read_unaligned(b);
            let f: fn($t, $t) -> $t = $f;
            a.copy_from_slice(bytemuck::bytes_of(&f(x, y)));
        }
    }};
}

macro_rules! float {
    ($t:ty, $op:expr, $acc:expr, $other:expr) => {
        match $op {
            Operation::Min => each!($t, $acc, $other, |x, y| if y < x || y.is_nan() { y } else { x }),
            Operation::Max => each!($t, $acc, $other, |x, y| if y > x || y.is_nan() { y } else { x }),
            Operation::Prod => each!($t, $acc, $other, |x, y| x * y),
            _ => each!($t, $acc, $other, |x, y| x + y),
        }
    };
}

macro_rules! integer {
    ($t:ty, $op:expr, $saturates:expr, $acc:expr, $other:expr) => {
        match $op {
            Operation::Sum if $saturates => each!($t, $acc, $other, <$t>::saturating_add),
            Operation::Sum => each!($t, $acc, $other, <$t>::wrapping_add),
            Operation::Min => each!($t, $acc, $other, |x, y| x.min(y)),
            Operation::Max => each!($t, $acc, $other, |x, y| x.max(y)),
            Operation::Prod => each!($t, $acc, $other, <$t>::wrapping_mul),
            Operation::BitAnd => each!($t, $acc, $other, |x, y| x & y),
            Operation::BitOr => each!($t, $acc, $other, |x, y| x | y),
            Operation::BitXor => each!($t, $acc, $other, |x, y| x ^ y),
            Operation::And => each!($t, $acc, $other, |x, y| (x != 0 && y != 0).into()),
            Operation::Or => each!($t, $acc, $other, |x, y| (x != 0 || y != 0).into()),
            Operation::Xor => each!($t, $acc, $other, |x, y| ((x != 0) != (y != 0)).into()),
        }
    };
}

impl Kernel {
    pub(crate) const fn select(operation: Operation, data_type: DataType, flags: CallFlags) -> Self {
        Self {
            operation,
            data_type,
            saturates: flags.0 & CallFlags::SATURATE.0 != 0,
        }
    }

    /// acc\[i\] = acc\[i\] op other\[i\].
    pub(crate) fn apply(&self, acc: &mut [u8], other: &[u8]) {
        let (op, sat) = (self.operation, self.saturates);
        match self.data_type {
            DataType::F32 => float!(f32, op, acc, other),
            DataType::F64 => float!(f64, op, acc, other),
            DataType::F16 => float!(f16, op, acc, other),
            DataType::Bf16 => float!(bf16, op, acc, other),
            DataType::I8 => integer!(i8, op, sat, acc, other),
            DataType::I16 => integer!(i16, op, sat, acc, other),
            DataType::I32 => integer!(i32, op, sat, acc, other),
            DataType::I64 => integer!(i64, op, sat, acc, other),
            DataType::U8 => integer!(u8, op, sat, acc, other),
            DataType::U16 => integer!(u16, op, sat, acc, other),
            DataType::U32 => integer!(u32, op, sat, acc, other),
            DataType::U64 => integer!(u64, op, sat, acc, other),
        }
    }
}
