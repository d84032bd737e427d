//! Elements: their bytes, and the conversion of f16 and bf16 to f32.

/// Half precision: 1 bit sign, 5 exponent, 10 fraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16(pub(crate) u16);

/// The upper half of an f32: 1 bit sign, 8 exponent, 7 fraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16(pub(crate) u16);

// The canonical NaN of results.
pub(crate) const NAN_F32: u32 = 0x7FC0_0000;
pub(crate) const NAN_F64: u64 = 0x7FF8_0000_0000_0000;
pub(crate) const NAN_F16: u16 = 0x7E00;
pub(crate) const NAN_BF16: u16 = 0x7FC0;

pub(crate) trait Element: Copy {
    /// Replaces every element `a` of `acc` by `each(a, b)`, with the element `b` at the same index of `contribution`. The loop is plain,
    /// so that the compiler vectorizes it with the instruction set of the calling function.
    fn zip(acc: &mut [u8], contribution: &[u8], each: impl Fn(Self, Self) -> Self);
}

macro_rules! elements {
    ($($ty:ty, $size:literal, $from:expr, $to:expr;)*) => {
        $(impl Element for $ty {
            #[inline(always)]
            fn zip(acc: &mut [u8], contribution: &[u8], each: impl Fn(Self, Self) -> Self) {
                let (acc, _) = acc.as_chunks_mut::<$size>();
                let (contribution, _) = contribution.as_chunks::<$size>();
                for (a, b) in acc.iter_mut().zip(contribution) {
                    *a = $to(each($from(*a), $from(*b)));
                }
            }
        })*
    };
}

elements! {
    u8, 1, Self::from_le_bytes, Self::to_le_bytes;
    u16, 2, Self::from_le_bytes, Self::to_le_bytes;
    u32, 4, Self::from_le_bytes, Self::to_le_bytes;
    u64, 8, Self::from_le_bytes, Self::to_le_bytes;
    i8, 1, Self::from_le_bytes, Self::to_le_bytes;
    i16, 2, Self::from_le_bytes, Self::to_le_bytes;
    i32, 4, Self::from_le_bytes, Self::to_le_bytes;
    i64, 8, Self::from_le_bytes, Self::to_le_bytes;
    f32, 4, Self::from_le_bytes, Self::to_le_bytes;
    f64, 8, Self::from_le_bytes, Self::to_le_bytes;
    F16, 2, |b| F16(u16::from_le_bytes(b)), |e: F16| e.0.to_le_bytes();
    Bf16, 2, |b| Bf16(u16::from_le_bytes(b)), |e: Bf16| e.0.to_le_bytes();
}

impl F16 {
    /// Returns the number as f32. The conversion is exact.
    #[inline(always)]
    pub(crate) fn widen(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7FFF);
        // With the fraction at the position of f32, the number is too small by the difference of the biases, 2^112. A product
        // corrects that, for subnormal numbers too.
        let number = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
        let special = (magnitude << 13) | 0x7F80_0000;
        f32::from_bits(if magnitude < 0x7C00 { number } else { special } | sign)
    }

    /// Returns the nearest number; of two equally near ones, the even one. A NaN becomes the canonical NaN.
    #[inline(always)]
    pub(crate) fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let (sign, magnitude) = ((bits >> 16) as u16 & 0x8000, bits & 0x7FFF_FFFF);
        // From 2^-14 on: rebase the exponent, and round in integers; a carry goes on into the exponent, up to infinity.
        let rebased = magnitude.wrapping_sub(0x3800_0000);
        let normal = rebased.wrapping_add(0xFFF + ((rebased >> 13) & 1)) >> 13;
        // Below: 0.5 has the ulp that f16's subnormal numbers have, 2^-24, so the addition rounds.
        let subnormal = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0x3F00_0000);
        let finite = if magnitude < 0x3880_0000 {
            subnormal
        } else {
            normal
        };
        let infinite = if magnitude >= 0x4780_0000 { 0x7C00 } else { finite };
        let number = infinite as u16 | sign;
        Self(if magnitude > 0x7F80_0000 { NAN_F16 } else { number })
    }
}

impl Bf16 {
    /// Returns the number as f32. The conversion is exact.
    #[inline(always)]
    pub(crate) fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// The nearest, of two equally near the even one. Of NaNs only the one NaN is taken: others may become infinite.
    #[inline(always)]
    pub(crate) fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        Self((bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16)
    }
}
