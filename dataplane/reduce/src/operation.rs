//! The operations on elements, without branches, so that the compiler vectorizes loops over them.

use crate::element::{Bf16, F16, NAN_BF16, NAN_F16, NAN_F32, NAN_F64};

pub(crate) trait Combine<T> {
    fn combine(a: T, b: T) -> T;
}

macro_rules! operations {
    ($($name:ident)*) => { $(pub(crate) struct $name;)* };
}
operations!(Sum Min Max Prod BitAnd BitOr BitXor And Or Xor SaturatingSum SaturatingProd);

/// Implements `Combine<type>` for an operation, from an expression.
macro_rules! combine {
    ($($op:ident of $ty:ty: |$a:ident, $b:ident| $result:expr;)*) => {
        $(impl Combine<$ty> for $op {
            #[inline(always)]
            fn combine($a: $ty, $b: $ty) -> $ty {
                $result
            }
        })*
    };
}

macro_rules! unsigned {
    ($($ty:ty)*) => { $(combine! {
        Sum of $ty: |a, b| a.wrapping_add(b);
        Prod of $ty: |a, b| a.wrapping_mul(b);
        And of $ty: |a, b| <$ty>::from((a != 0) & (b != 0));
        Or of $ty: |a, b| <$ty>::from((a | b) != 0);
        Xor of $ty: |a, b| <$ty>::from((a != 0) ^ (b != 0));
    })* };
}
unsigned!(u8 u16 u32 u64);

macro_rules! integers {
    ($($ty:ty)*) => { $(combine! {
        Min of $ty: |a, b| a.min(b);
        Max of $ty: |a, b| a.max(b);
        SaturatingSum of $ty: |a, b| a.saturating_add(b);
    })* };
}
integers!(u8 u16 u32 u64 i8 i16 i32 i64);

combine! {
    BitAnd of u8: |a, b| a & b;
    BitOr of u8: |a, b| a | b;
    BitXor of u8: |a, b| a ^ b;
    // There is no vector instruction that multiplies 64 bits to 128.
    SaturatingProd of u64: |a, b| a.saturating_mul(b);
    SaturatingProd of i64: |a, b| a.saturating_mul(b);
}

/// Uses twice the bits, so that a product always fits: a test for overflow would prevent vectorization.
macro_rules! saturating_prod {
    ($($ty:ty, $wide:ty;)*) => { $(combine! {
        SaturatingProd of $ty: |a, b| {
            let product = <$wide>::from(a) * <$wide>::from(b);
            product.clamp(<$wide>::from(<$ty>::MIN), <$wide>::from(<$ty>::MAX)) as $ty
        };
    })* };
}
saturating_prod! { u8, u16; u16, u32; u32, u64; i8, i16; i16, i32; i32, i64; }

macro_rules! floats {
    ($($ty:ty, $nan:expr;)*) => { $(combine! {
        Sum of $ty: |a, b| { let r = a + b; <$ty>::from_bits(if r.is_nan() { $nan } else { r.to_bits() }) };
        Prod of $ty: |a, b| { let r = a * b; <$ty>::from_bits(if r.is_nan() { $nan } else { r.to_bits() }) };
        // Each order of operands is one instruction. They differ only for zeros, where a bit decides, and for NaN.
        Min of $ty: |a, b| {
            let there = if a < b { a } else { b }.to_bits();
            let back = if b < a { b } else { a }.to_bits();
            <$ty>::from_bits(if a.is_nan() | b.is_nan() { $nan } else { there | back })
        };
        Max of $ty: |a, b| {
            let there = if a > b { a } else { b }.to_bits();
            let back = if b > a { b } else { a }.to_bits();
            <$ty>::from_bits(if a.is_nan() | b.is_nan() { $nan } else { there & back })
        };
    })* };
}
floats! { f32, NAN_F32; f64, NAN_F64; }

/// Maps a number to its rank in the order of all numbers, `-0` before `+0`. Applied twice, it returns the number.
#[inline(always)]
fn place(bits: u16) -> i16 {
    let bits = bits as i16;
    bits ^ ((bits >> 15) & 0x7FFF)
}

macro_rules! halves {
    ($($ty:ident, $infinity:literal, $nan:expr;)*) => { $(combine! {
        Sum of $ty: |a, b| $ty::narrow(<Sum as Combine<f32>>::combine(a.widen(), b.widen()));
        Prod of $ty: |a, b| $ty::narrow(<Prod as Combine<f32>>::combine(a.widen(), b.widen()));
        Min of $ty: |a, b| {
            let nan = ((a.0 & 0x7FFF) > $infinity) | ((b.0 & 0x7FFF) > $infinity);
            let least = place(place(a.0).min(place(b.0)) as u16) as u16;
            $ty(if nan { $nan } else { least })
        };
        Max of $ty: |a, b| {
            let nan = ((a.0 & 0x7FFF) > $infinity) | ((b.0 & 0x7FFF) > $infinity);
            let most = place(place(a.0).max(place(b.0)) as u16) as u16;
            $ty(if nan { $nan } else { most })
        };
    })* };
}
halves! { F16, 0x7C00, NAN_F16; Bf16, 0x7F80, NAN_BF16; }
