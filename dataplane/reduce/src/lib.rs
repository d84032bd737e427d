//! The arithmetic of collectives: two payloads become one, element by element (EPIC 3.3 and appendix N).
//!
//! A switch takes a [`Kernel`] once per collective and applies it to each contribution; [`reduce`] does both for whoever
//! reduces once. Elements are little endian, and lie anywhere: no alignment is requested. Of two lengths the shorter
//! counts, and bytes at the end that are no whole element are left alone. Where the operation is not for the type
//! ([`Operation::supports`]), which no control message that parses can say, nothing is changed.
//!
//! [`Checksum`] is the CRC of payloads, which goes over the same bytes with the same instructions.
//!
//! # What comes out, to the last bit
//!
//! The same on every processor and with every instruction set: [`scalar`] says it slowly, and tests hold the rest to it.
//! Every operation is commutative. All but sum and prod of floats, and saturating ones of signed integers, are
//! associative too, so the order of arrival does not matter; for those [`reduce_all`] adds in a fixed order.
//!
//! - **Integers** wrap; with [`CallFlags::SATURATE`], sum and prod stop at the smallest and largest value of the type.
//! - **Logical** operations take any element that is not 0 for true, and give 1 or 0.
//! - **Floats** follow IEEE 754 with rounding to nearest, ties to even: overflow gives an infinity, subnormal numbers are
//!   kept, `inf - inf` and `0 * inf` are NaN. There are no flags and no traps.
//! - **f16 and bf16** are widened to f32, reduced there, and rounded once, each time. A sum or product of f16, and a
//!   sum of bf16, is thereby the exact one correctly rounded, since f32 has more than twice the digits and two.
//! - **NaN**: a result that is NaN is always the same, quiet, positive and without payload (`7FC00000` for f32), whatever
//!   payloads went in: so it does not tell who came first. This holds for sum, prod, min and max.
//! - **min and max** are IEEE 754-2019's minimum and maximum: NaN if one is NaN, and `-0 < +0`.

#![deny(unsafe_code)]

mod checksum;
mod element;
mod kernel;
mod operation;
mod prefetch;
pub mod scalar;
mod simd;

pub use castnet_wire::{CallFlags, DataType, Operation};
pub use checksum::Checksum;
pub use kernel::Kernel;
pub use prefetch::prefetch;
pub use simd::Level;

/// `acc[i] = acc[i] op contribution[i]` for whole elements.
pub fn reduce(op: Operation, ty: DataType, flags: CallFlags, acc: &mut [u8], contribution: &[u8]) {
    Kernel::select(op, ty, flags).apply(acc, contribution);
}

/// `out[i] = (contributions[0][i] op contributions[1][i]) op ...`: in the order given, so the same bit for bit whenever
/// they arrived. `out` is not read; if there are no contributions, it is not written either.
pub fn reduce_all(op: Operation, ty: DataType, flags: CallFlags, out: &mut [u8], contributions: &[&[u8]]) {
    Kernel::select(op, ty, flags).fold(out, contributions.iter().copied());
}
