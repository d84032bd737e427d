//! A kernel: one operation on one type, selected once.

use crate::element::{Bf16, F16};
use crate::operation as ops;
use crate::simd::{Level, Run};
use castnet_wire::{CallFlags, DataType, Operation};

/// Reduces the payloads of one collective, with a fixed operation, type, flags and instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    run: Run,
    /// Mask that rounds a length down to whole elements.
    whole: usize,
}

impl Kernel {
    /// Selects the kernel with the widest instructions of this processor.
    pub fn select(op: Operation, ty: DataType, flags: CallFlags) -> Self {
        Self::with(Level::best(), op, ty, flags)
    }

    /// Selects the kernel with the instructions of `level`, for comparison; if the processor lacks them, with the widest that it has.
    pub fn with(level: Level, op: Operation, ty: DataType, flags: CallFlags) -> Self {
        let level = level.min(Level::best());
        Self {
            run: choose(level, op, ty, flags.contains(CallFlags::SATURATE)),
            whole: !(ty.size() - 1),
        }
    }

    /// `acc[i] = acc[i] op contribution[i]` for the whole elements of the shorter of the two.
    #[inline]
    pub fn apply(&self, acc: &mut [u8], contribution: &[u8]) {
        self.apply_pieces(acc, contribution, &[]);
    }

    /// Applies a contribution that lies in two pieces. An element may be split between them.
    #[inline]
    pub fn apply_pieces(&self, acc: &mut [u8], first: &[u8], second: &[u8]) {
        let length = acc.len().min(first.len() + second.len()) & self.whole;
        let first = &first[..first.len().min(length)];
        let second = &second[..length - first.len()];
        self.run.call(&mut acc[..length], first, second);
    }

    /// Copies the first contribution to `out` and reduces the others into it in order. `out` is not read, and not written
    /// without contributions.
    pub fn fold<'a>(&self, out: &mut [u8], contributions: impl IntoIterator<Item = &'a [u8]>) {
        let mut contributions = contributions.into_iter();
        let Some(first) = contributions.next() else {
            return;
        };
        let length = out.len().min(first.len()) & self.whole;
        out[..length].copy_from_slice(&first[..length]);
        for contribution in contributions {
            self.apply(out, contribution);
        }
    }
}

/// Operations that are equal for signed and unsigned integers use unsigned ones, and bitwise operations use bytes: less code, same result.
fn choose(level: Level, op: Operation, ty: DataType, saturate: bool) -> Run {
    use Operation as O;
    macro_rules! integers {
        ($signed_or_not:ty, $unsigned:ty) => {
            match op {
                O::Sum if saturate => Run::pick::<$signed_or_not, ops::SaturatingSum>(level),
                O::Prod if saturate => Run::pick::<$signed_or_not, ops::SaturatingProd>(level),
                O::Min => Run::pick::<$signed_or_not, ops::Min>(level),
                O::Max => Run::pick::<$signed_or_not, ops::Max>(level),
                O::Sum => Run::pick::<$unsigned, ops::Sum>(level),
                O::Prod => Run::pick::<$unsigned, ops::Prod>(level),
                O::And => Run::pick::<$unsigned, ops::And>(level),
                O::Or => Run::pick::<$unsigned, ops::Or>(level),
                O::Xor => Run::pick::<$unsigned, ops::Xor>(level),
                O::BitAnd => Run::pick::<u8, ops::BitAnd>(level),
                O::BitOr => Run::pick::<u8, ops::BitOr>(level),
                O::BitXor => Run::pick::<u8, ops::BitXor>(level),
            }
        };
    }
    macro_rules! floats {
        ($float:ty, $sum:expr, $prod:expr) => {
            match op {
                O::Sum => $sum,
                O::Prod => $prod,
                O::Min => Run::pick::<$float, ops::Min>(level),
                O::Max => Run::pick::<$float, ops::Max>(level),
                O::BitAnd | O::BitOr | O::BitXor | O::And | O::Or | O::Xor => Run::NOTHING,
            }
        };
        ($float:ty) => {
            floats!(
                $float,
                Run::pick::<$float, ops::Sum>(level),
                Run::pick::<$float, ops::Prod>(level)
            )
        };
    }
    match ty {
        DataType::F32 => floats!(f32, Run::f32_sum(level), Run::pick::<f32, ops::Prod>(level)),
        DataType::F64 => floats!(f64),
        DataType::Bf16 => floats!(Bf16),
        // These types use special conversion instructions that the compiler does not emit for plain code.
        DataType::F16 => floats!(F16, Run::f16_sum(level), Run::f16_prod(level)),
        DataType::I8 => integers!(i8, u8),
        DataType::I16 => integers!(i16, u16),
        DataType::I32 => integers!(i32, u32),
        DataType::I64 => integers!(i64, u64),
        DataType::U8 => integers!(u8, u8),
        DataType::U16 => integers!(u16, u16),
        DataType::U32 => integers!(u32, u32),
        DataType::U64 => integers!(u64, u64),
    }
}
