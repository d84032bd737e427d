//! One operation on one type, chosen once.

use crate::element::{Bf16, F16};
use crate::operation as ops;
use crate::simd::{Level, Run};
use castnet_wire::{CallFlags, DataType, Operation};

/// How to reduce payloads of one collective: operation, type, flags and instruction set are decided.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    run: Run,
    /// All but the low bits of an element's size.
    whole: usize,
}

impl Kernel {
    /// With the widest instructions that this processor has.
    pub fn select(op: Operation, ty: DataType, flags: CallFlags) -> Self {
        Self::with(Level::best(), op, ty, flags)
    }

    /// With the instructions of `level`, to compare; where this processor lacks them, with the widest that it has.
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

    /// The same with a contribution that lies in two pieces, whose border may cut an element in two.
    #[inline]
    pub fn apply_pieces(&self, acc: &mut [u8], first: &[u8], second: &[u8]) {
        let length = acc.len().min(first.len() + second.len()) & self.whole;
        let first = &first[..first.len().min(length)];
        let second = &second[..length - first.len()];
        self.run.call(&mut acc[..length], first, second);
    }

    /// The first contribution is copied to `out`, then the others are reduced into it in their order. What `out` had is
    /// not read.
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

/// What holds for signed and unsigned integers alike is done on unsigned ones, and bits on bytes: less code, same result.
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
        // Converted by instructions of their own, which no compiler finds in plain code.
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
