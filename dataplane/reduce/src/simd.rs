//! Isolates the unsafe use of vector instructions: functions compiled for instruction sets that a processor may lack, and the proof
//! that they are called only if it has them.
//!
//! Nearly all functions are the plain loops of `element` and `operation`, compiled once for each [`Level`]. Only f16 conversions and
//! sums of f32 use intrinsics.
#![allow(unsafe_code)]

use crate::element::{Element, F16};
use crate::operation::{Combine, Prod, Sum};
use core::fmt;

/// An instruction set. Each one includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The instructions of every processor of the architecture: SSE2 on x86-64.
    Baseline,
    /// AVX2 and F16C: 32 bytes at once.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 64 bytes at once.
    Avx512,
}

impl Level {
    /// All levels, narrowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// Returns the widest level of this processor.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt)*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
            }
            let avx2 = has!("avx" "avx2" "f16c");
            if avx2 && has!("avx512f" "avx512bw" "avx512dq" "avx512vl") {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }

    /// Returns all levels of this processor, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::best();
        Self::ALL.into_iter().filter(move |level| *level <= best)
    }
}

/// Bytes of a block: a multiple of all element sizes and vector sizes.
const BLOCK: usize = 64;

/// Reduces a contribution in two pieces into a payload of the same length, in whole elements.
/// Invariant: this processor has the instructions that the function was compiled for.
#[derive(Clone, Copy)]
pub(crate) struct Run(unsafe fn(&mut [u8], &[u8], &[u8]));

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}

impl Run {
    pub(crate) const NOTHING: Self = Self(nothing);

    /// Returns the loop over elements `T` with the operation `O`. If the processor lacks `level`, its best level is used.
    pub(crate) fn pick<T: Element, O: Combine<T>>(level: Level) -> Self {
        match level.min(Level::best()) {
            Level::Baseline => Self(plain::<T, O>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self(x86::avx2::<T, O>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self(x86::avx512::<T, O>),
            #[cfg(not(target_arch = "x86_64"))]
            _ => Self(plain::<T, O>),
        }
    }

    /// Sums of f32. `level` as for [`Run::pick`].
    pub(crate) fn f32_sum(level: Level) -> Self {
        match level.min(Level::best()) {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self(x86::f32_sum_avx512),
            level => Self::pick::<f32, Sum>(level),
        }
    }

    /// Sums of f16. `level` as for [`Run::pick`].
    pub(crate) fn f16_sum(level: Level) -> Self {
        match level.min(Level::best()) {
            Level::Baseline => Self(plain::<F16, Sum>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self(x86::f16_sum_avx2),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self(x86::f16_sum_avx512),
            #[cfg(not(target_arch = "x86_64"))]
            _ => Self(plain::<F16, Sum>),
        }
    }

    /// Products of f16. `level` as for [`Run::pick`].
    pub(crate) fn f16_prod(level: Level) -> Self {
        match level.min(Level::best()) {
            Level::Baseline => Self(plain::<F16, Prod>),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self(x86::f16_prod_avx2),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self(x86::f16_prod_avx512),
            #[cfg(not(target_arch = "x86_64"))]
            _ => Self(plain::<F16, Prod>),
        }
    }

    #[inline]
    pub(crate) fn call(&self, acc: &mut [u8], first: &[u8], second: &[u8]) {
        // SAFETY: by the invariant of `Run`, the processor has the instructions: each constructor has checked that. The functions have
        // no other requirements: they take slices and stay within them.
        unsafe { (self.0)(acc, first, second) }
    }
}

fn nothing(_: &mut [u8], _: &[u8], _: &[u8]) {}

#[inline(never)]
fn plain<T: Element, O: Combine<T>>(acc: &mut [u8], first: &[u8], second: &[u8]) {
    in_blocks(acc, first, second, |acc, piece| T::zip(acc, piece, O::combine));
}

/// Calls `each` for the whole blocks of `first`, for the block that lies in both pieces, and for the rest of `second`, each with the
/// matching part of `acc`. So no element is split between two calls.
#[inline(always)]
fn in_blocks(acc: &mut [u8], first: &[u8], second: &[u8], each: impl Fn(&mut [u8], &[u8])) {
    let torn = if second.is_empty() { 0 } else { first.len() % BLOCK };
    let (whole, tail) = first.split_at(first.len() - torn);
    let mut both = [0; 2 * BLOCK];
    let (middle, rest) = if torn == 0 {
        (&[][..], second)
    } else {
        let (head, rest) = second.split_at(second.len().min(BLOCK - torn));
        if let (Some(before), Some(after)) = (first.last_chunk::<BLOCK>(), second.first_chunk::<BLOCK>()) {
            // Both copies have a constant length.
            both[..BLOCK].copy_from_slice(before);
            both[BLOCK..].copy_from_slice(after);
        } else {
            both[BLOCK - torn..BLOCK].copy_from_slice(tail);
            both[BLOCK..BLOCK + head.len()].copy_from_slice(head);
        }
        (&both[BLOCK - torn..BLOCK + head.len()], rest)
    };
    let mut left = acc;
    for piece in [whole, middle, rest] {
        let Some((now, later)) = left.split_at_mut_checked(piece.len()) else {
            return;
        };
        each(now, piece);
        left = later;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK, in_blocks, plain};
    use crate::checksum::x86::{Left, load};
    use crate::element::{Element, F16, NAN_F32};
    use crate::operation::{Combine, Prod, Sum};
    use core::arch::x86_64::*;

    #[target_feature(enable = "avx,avx2,f16c")]
    pub(super) fn avx2<T: Element, O: Combine<T>>(acc: &mut [u8], first: &[u8], second: &[u8]) {
        in_blocks(acc, first, second, |acc, piece| T::zip(acc, piece, O::combine));
    }

    #[target_feature(enable = "avx,avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn avx512<T: Element, O: Combine<T>>(acc: &mut [u8], first: &[u8], second: &[u8]) {
        in_blocks(acc, first, second, |acc, piece| T::zip(acc, piece, O::combine));
    }

    /// Sums of f32, block by block: the compiler's loop is slow for pieces as short as the first. The rest uses it.
    #[target_feature(enable = "avx,avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn f32_sum_avx512(acc: &mut [u8], first: &[u8], second: &[u8]) {
        let mut left = Left {
            now: first,
            later: second,
        };
        let sum = |block: &mut [u8; BLOCK], contribution: __m512i| {
            let sum = _mm512_add_ps(
                _mm512_castsi512_ps(load(block)),
                _mm512_castsi512_ps(contribution),
            );
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum, sum);
            let sum = _mm512_mask_blend_ps(is_nan, sum, _mm512_set1_ps(f32::from_bits(NAN_F32)));
            // SAFETY: the reference covers all bytes that are written, and the store needs no alignment.
            unsafe { _mm512_storeu_ps(block.as_mut_ptr().cast(), sum) };
        };
        let (blocks, rest) = acc.as_chunks_mut::<BLOCK>();
        // The elements up to the border of the pieces.
        let border = if second.is_empty() {
            0
        } else {
            first.len() / BLOCK + 1
        };
        let (near, far) = blocks.split_at_mut(border.min(blocks.len()));
        let (fours, few) = far.as_chunks_mut::<4>();
        for block in near {
            let Some(contribution) = left.next() else { return };
            sum(block, contribution);
        }
        for four in fours {
            let Some((from, later)) = left.now.split_first_chunk::<{ 4 * BLOCK }>() else {
                return;
            };
            let (from, _) = from.as_chunks();
            four.iter_mut()
                .zip(from)
                .for_each(|(block, from)| sum(block, load(from)));
            left.now = later;
        }
        for block in few {
            let Some(contribution) = left.next() else { return };
            sum(block, contribution);
        }
        if !rest.is_empty() {
            plain::<f32, Sum>(rest, left.now, left.later);
        }
    }

    /// Defines a function for f16: widen to f32, one instruction, canonical NaN, narrow. The rest uses the plain loop.
    macro_rules! f16 {
        ($name:ident, $op:ident, $features:literal, $bytes:literal, $half:ty,
            $load:ident, $store:ident, $widen:ident, $narrow:ident, $instruction:ident, |$r:ident| $nan:expr) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(acc: &mut [u8], first: &[u8], second: &[u8]) {
                in_blocks(acc, first, second, |acc, piece| {
                    let (acc, acc_rest) = acc.as_chunks_mut::<$bytes>();
                    let (piece, rest) = piece.as_chunks::<$bytes>();
                    for (a, b) in acc.iter_mut().zip(piece) {
                        let a_at = a.as_mut_ptr().cast::<$half>();
                        // SAFETY: both references cover all bytes that are read, and the loads need no alignment.
                        let (wide_a, wide_b) = unsafe { ($load(a_at), $load(b.as_ptr().cast())) };
                        let $r = $instruction($widen(wide_a), $widen(wide_b));
                        let narrow = $narrow::<_MM_FROUND_TO_NEAREST_INT>($nan);
                        // SAFETY: the reference covers all bytes that are written, and the store needs no alignment.
                        unsafe { $store(a_at, narrow) };
                    }
                    F16::zip(acc_rest, rest, $op::combine);
                });
            }
        };
    }

    macro_rules! f16_avx2 {
        ($name:ident, $op:ident, $instruction:ident) => {
            f16!(
                $name,
                $op,
                "avx,avx2,f16c",
                16,
                __m128i,
                _mm_loadu_si128,
                _mm_storeu_si128,
                _mm256_cvtph_ps,
                _mm256_cvtps_ph,
                $instruction,
                |r| {
                    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(r, r);
                    _mm256_blendv_ps(r, _mm256_set1_ps(f32::from_bits(NAN_F32)), is_nan)
                }
            );
        };
    }
    f16_avx2!(f16_sum_avx2, Sum, _mm256_add_ps);
    f16_avx2!(f16_prod_avx2, Prod, _mm256_mul_ps);

    macro_rules! f16_avx512 {
        ($name:ident, $op:ident, $instruction:ident) => {
            f16!(
                $name,
                $op,
                "avx,avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl",
                32,
                __m256i,
                _mm256_loadu_si256,
                _mm256_storeu_si256,
                _mm512_cvtph_ps,
                _mm512_cvtps_ph,
                $instruction,
                |r| {
                    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(r, r);
                    _mm512_mask_blend_ps(is_nan, r, _mm512_set1_ps(f32::from_bits(NAN_F32)))
                }
            );
        };
    }
    f16_avx512!(f16_sum_avx512, Sum, _mm512_add_ps);
    f16_avx512!(f16_prod_avx512, Prod, _mm512_mul_ps);
}
