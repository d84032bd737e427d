//! The fence round vector instructions: functions compiled for instruction sets that a processor may lack, and the
//! proof that they are called only where it has them.
//!
//! Nearly all of it are the plain loops of `element` and `operation`, compiled once for each [`Level`]. Only f16's
//! conversions are written with intrinsics.
#![allow(unsafe_code)]

use crate::element::{Element, F16};
use crate::operation::{Combine, Prod, Sum};
use core::fmt;

/// A set of instructions. Each has those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every processor of the architecture has: SSE2 on x86-64.
    Baseline,
    /// AVX2 and F16C: 32 bytes at once.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 64 bytes at once.
    Avx512,
}

impl Level {
    /// All, narrowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// The widest of this processor.
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

    /// Those of this processor, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::best();
        Self::ALL.into_iter().filter(move |level| *level <= best)
    }
}

/// A function that reduces whole elements of two slices of one length.
///
/// Invariant: this processor has the instructions that the function was compiled for.
#[derive(Clone, Copy)]
pub(crate) struct Run(unsafe fn(&mut [u8], &[u8]));

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}

impl Run {
    /// Changes nothing.
    pub(crate) const NOTHING: Self = Self(nothing);

    /// The loop over elements `T` with the operation `O`. A level that this processor lacks is taken for its best.
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
    pub(crate) fn call(&self, acc: &mut [u8], contribution: &[u8]) {
        // SAFETY: by the invariant of `Run`: each constructor asked the processor first. Nothing else is asked of who
        // calls these functions: they take slices, and hold themselves to them.
        unsafe { (self.0)(acc, contribution) }
    }
}

fn nothing(_: &mut [u8], _: &[u8]) {}

fn plain<T: Element, O: Combine<T>>(acc: &mut [u8], contribution: &[u8]) {
    T::zip(acc, contribution, O::combine);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::plain;
    use crate::element::{Element, F16, NAN_F32};
    use crate::operation::{Combine, Prod, Sum};
    use core::arch::x86_64::*;

    #[target_feature(enable = "avx,avx2,f16c")]
    pub(super) fn avx2<T: Element, O: Combine<T>>(acc: &mut [u8], contribution: &[u8]) {
        T::zip(acc, contribution, O::combine);
    }

    #[target_feature(enable = "avx,avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn avx512<T: Element, O: Combine<T>>(acc: &mut [u8], contribution: &[u8]) {
        T::zip(acc, contribution, O::combine);
    }

    /// A function for f16 in f32: widen, one instruction, NaN to the one NaN, narrow; what is left at the end plainly.
    macro_rules! f16 {
        ($name:ident, $op:ident, $features:literal, $bytes:literal, $half:ty,
            $load:ident, $store:ident, $widen:ident, $narrow:ident, $instruction:ident, |$r:ident| $nan:expr) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(acc: &mut [u8], contribution: &[u8]) {
                let (acc, acc_rest) = acc.as_chunks_mut::<$bytes>();
                let (contribution, rest) = contribution.as_chunks::<$bytes>();
                for (a, b) in acc.iter_mut().zip(contribution) {
                    let a_at = a.as_mut_ptr().cast::<$half>();
                    // SAFETY: both are references to as many bytes as are read, and reading asks for no alignment.
                    let (wide_a, wide_b) = unsafe { ($load(a_at), $load(b.as_ptr().cast())) };
                    let $r = $instruction($widen(wide_a), $widen(wide_b));
                    let narrow = $narrow::<_MM_FROUND_TO_NEAREST_INT>($nan);
                    // SAFETY: a reference to as many bytes as are written, and writing asks for no alignment.
                    unsafe { $store(a_at, narrow) };
                }
                plain::<F16, $op>(acc_rest, rest);
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
