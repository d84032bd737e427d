//! The arithmetic of collectives: it reduces two payloads to one, element by element (EPIC 3.3 and appendix N).
//!
//! Main types: [`Kernel`] is the operation on a data type, compiled for the instruction set of the processor. A switch selects it once
//! per collective and applies it to each contribution. [`reduce`] does both in one call. [`Checksum`] is the CRC of payloads, with the
//! same instruction sets.
//!
//! Elements are little endian and need no alignment. If two lengths differ, the shorter one counts. Incomplete elements at the end do
//! not change. If the operation is not defined for the type ([`Operation::supports`]), nothing changes; no valid control message has
//! such a call.
//!
//! ```
//! use castnet_reduce::{CallFlags, DataType, Operation, reduce};
//!
//! let mut sum = 1.5_f32.to_le_bytes();
//! reduce(Operation::Sum, DataType::F32, CallFlags::NONE, &mut sum, &2.0_f32.to_le_bytes());
//! assert_eq!(sum, 3.5_f32.to_le_bytes());
//! ```
//!
//! # Results, bit by bit
//!
//! Results are identical on every processor and with every instruction set. A plain twin in the tests defines them, and
//! all kernels are compared with it. Every operation is commutative. All but sum and prod of floats, and saturating ones of signed integers, are also
//! associative, so the order of arrival does not matter. For the others, [`Kernel::fold`] reduces in a fixed order.
//!
//! - **Integers** wrap; with [`CallFlags::SATURATE`], sum and prod stop at the smallest and largest value of the type.
//! - **Logical** operations treat every element that is not 0 as true. The result is 1 or 0.
//! - **Floats** follow IEEE 754 with rounding to nearest, ties to even: overflow gives an infinity, subnormal numbers are
//!   kept, `inf - inf` and `0 * inf` are NaN. There are no flags and no traps.
//! - **f16 and bf16** are widened to f32, reduced, and rounded once per operation. A sum or product of f16 and a sum of bf16 are
//!   correctly rounded exact results, because f32 has more than twice as many digits plus two.
//! - **NaN**: a NaN result is always the same quiet, positive NaN without payload (`7FC00000` for f32), for all NaN operands. So it does
//!   not depend on the order. This holds for sum, prod, min and max.
//! - **min and max** are IEEE 754-2019's minimum and maximum: NaN if one is NaN, and `-0 < +0`.

#![deny(unsafe_code)]

mod checksum;
mod element;
mod kernel;
mod operation;
mod prefetch;
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
