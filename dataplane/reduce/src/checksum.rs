//! The CRC of payloads, which every contribution and every result needs (contract C3). It uses carry-less multiplication of 64 bytes at
//! once if the processor has it.
//!
//! Like `simd`, the module isolates the unsafe use of vector instructions. The method is folding: a block that lies `d` bits before
//! another is congruent, modulo the generator, to the block times x^d at the position of the other (V. Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). Four blocks are folded in parallel, so that no
//! product waits for the one before it.
#![allow(unsafe_code)]

use core::fmt;
use crc32fast::Hasher;

const BLOCK: usize = 64;

/// The CRC-32 of Ethernet, which the ICRC uses, with the widest instructions of this processor.
///
/// Invariant: this processor has the instructions that the function was compiled for.
#[derive(Clone, Copy)]
pub struct Checksum(unsafe fn(u32, &[u8], &[u8]) -> u32);

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checksum")
    }
}

impl Checksum {
    /// Returns the fastest implementation on this processor.
    pub fn select() -> Self {
        #[cfg(target_arch = "x86_64")]
        if x86::is_there() {
            return Self(x86::folded);
        }
        Self::plain()
    }

    /// Returns the implementation for any processor, for comparison.
    pub fn plain() -> Self {
        Self(plain)
    }

    /// Returns the register after both pieces, starting with `register`. Both registers have the complemented form of a finished CRC,
    /// so a message starts with 0. The result does not depend on the cut; it is fastest if the cut is in the first 256 bytes.
    #[inline]
    pub fn update(&self, register: u32, first: &[u8], second: &[u8]) -> u32 {
        // SAFETY: by the invariant of `Checksum`, the processor has the instructions: each constructor has checked that. The functions
        // have no other requirements: they take slices and stay within them.
        unsafe { (self.0)(register, first, second) }
    }
}

fn plain(register: u32, first: &[u8], second: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(register);
    hasher.update(first);
    if !second.is_empty() {
        hasher.update(second);
    }
    hasher.finalize()
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::BLOCK;
    use core::arch::x86_64::*;

    /// The generator, reflected: bit 31 is the coefficient of x^0.
    const POLY: u32 = 0xEDB8_8320;
    /// The generator with its x^32, reflected in 33 bits, and its inverse for Barrett's reduction: x^64 divided by it.
    const GENERATOR: i64 = (POLY as i64) << 1 | 1;
    const INVERSE: i64 = quotient();

    type Block = [u8; BLOCK];

    /// x^bits modulo the generator, reflected. A product of two reflected numbers is one bit short: hence the shift.
    const fn power(bits: u32) -> i64 {
        let (mut a, mut left) = (1u32 << 31, bits);
        while left > 0 {
            a = (a >> 1) ^ (POLY & (a & 1).wrapping_neg());
            left -= 1;
        }
        (a as i64) << 1
    }

    /// x^64 divided by the generator, reflected in 33 bits.
    const fn quotient() -> i64 {
        // Long division, with the usual order of bits: bit i is the coefficient of x^i.
        let divisor = 1u128 << 32 | POLY.reverse_bits() as u128;
        let (mut rest, mut quotient, mut i) = (1u128 << 64, 0u64, 33);
        while i > 0 {
            i -= 1;
            if rest >> (i + 32) & 1 != 0 {
                rest ^= divisor << i;
                quotient |= 1 << i;
            }
        }
        (quotient.reverse_bits() >> 31) as i64
    }

    /// The factors that move 128 bits by `bits`: for the first half and for the second.
    const fn keys(bits: u32) -> (i64, i64) {
        (power(bits + 32), power(bits - 32))
    }

    const BY_1: (i64, i64) = keys(512);
    const BY_2: (i64, i64) = keys(2 * 512);
    const BY_3: (i64, i64) = keys(3 * 512);
    const BY_4: (i64, i64) = keys(4 * 512);
    // Factors that move the first three quarters of a block to its last quarter.
    const QUARTERS: [(i64, i64); 3] = [keys(3 * 128), keys(2 * 128), keys(128)];
    const LAST: (i64, i64) = (power(96), power(64));

    pub(super) fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("vpclmulqdq")
            && std::arch::is_x86_feature_detected!("pclmulqdq")
            && std::arch::is_x86_feature_detected!("sse4.1")
    }

    pub(crate) struct Left<'a> {
        pub(crate) now: &'a [u8],
        pub(crate) later: &'a [u8],
    }

    impl Left<'_> {
        /// Returns the next block, which may lie in both pieces.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        pub(crate) fn next(&mut self) -> Option<__m512i> {
            if let Some((block, rest)) = self.now.split_first_chunk() {
                self.now = rest;
                return Some(load(block));
            }
            let have = self.now.len();
            let rest = self.later.get(BLOCK - have..)?;
            let block = match have {
                0 => load(self.later.first_chunk()?),
                _ => {
                    let low = (1 << have) - 1;
                    let (first, second) = (self.now.as_ptr(), self.later.as_ptr());
                    // SAFETY: only bytes within the pieces are read: `have` bytes of the first, and the others of the second, which
                    // begins at the byte `have` of the block. Masked bytes are not accessed.
                    unsafe {
                        _mm512_or_si512(
                            _mm512_maskz_loadu_epi8(low, first.cast()),
                            _mm512_maskz_loadu_epi8(!low, second.wrapping_sub(have).cast()),
                        )
                    }
                }
            };
            (self.now, self.later) = (rest, &[]);
            Some(block)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn load(block: &Block) -> __m512i {
        // SAFETY: the reference covers all bytes that are read, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn both((low, high): (i64, i64)) -> __m512i {
        _mm512_set_epi64(high, low, high, low, high, low, high, low)
    }

    /// Returns `onto` plus `block`, moved by the distance of `keys`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(block: __m512i, keys: __m512i, onto: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128(block, keys, 0x00);
        let high = _mm512_clmulepi64_epi128(block, keys, 0x11);
        _mm512_ternarylogic_epi64(low, high, onto, 0x96)
    }

    /// Returns the first bytes of a message, at most one block, behind zeros, combined with the register before them. Leading zeros do
    /// not change a CRC, so that only whole blocks follow.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn lead(register: u32, bytes: &[u8]) -> __m512i {
        let zeros = BLOCK - bytes.len().min(BLOCK);
        let start = bytes.as_ptr().wrapping_sub(zeros);
        // SAFETY: only the bytes of the block from `zeros` on are read, which are exactly those of `bytes`. Masked bytes are not
        // accessed.
        let block = unsafe { _mm512_maskz_loadu_epi8(u64::MAX.unbounded_shl(zeros as u32), start.cast()) };
        // The register has the complemented form of a finished CRC.
        let register = _mm512_maskz_set1_epi32(1_u16.unbounded_shl(zeros as u32 / 4), !register as i32);
        _mm512_xor_si512(block, register)
    }

    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
    pub(super) fn folded(register: u32, first: &[u8], second: &[u8]) -> u32 {
        let odd = match (first.len() + second.len()) % BLOCK {
            0 => BLOCK,
            odd => odd,
        };
        // RoCE packets consist of whole words of four bytes.
        let Some((odd, rest)) = first.split_at_checked(odd).filter(|_| odd % 4 == 0) else {
            return super::plain(register, first, second);
        };
        let mut left = Left {
            now: rest,
            later: second,
        };
        let mut x = lead(register, odd);
        if rest.len() + second.len() >= 3 * BLOCK
            && let (Some(mut v1), Some(mut v2), Some(mut v3)) = (left.next(), left.next(), left.next())
        {
            let by_4 = both(BY_4);
            while let Some((four, rest)) = left.now.split_first_chunk::<{ 4 * BLOCK }>() {
                if let [b0, b1, b2, b3] = four.as_chunks().0 {
                    x = fold(x, by_4, load(b0));
                    v1 = fold(v1, by_4, load(b1));
                    v2 = fold(v2, by_4, load(b2));
                    v3 = fold(v3, by_4, load(b3));
                }
                left.now = rest;
            }
            let far = fold(x, both(BY_3), fold(v1, both(BY_2), v3));
            x = fold(v2, both(BY_1), far);
        }
        while let Some(block) = left.next() {
            x = fold(x, both(BY_1), block);
        }
        finish(x)
    }

    /// Returns the CRC of the folded last block.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
    fn finish(x: __m512i) -> u32 {
        let [(l0, h0), (l1, h1), (l2, h2)] = QUARTERS;
        let keys = _mm512_set_epi64(0, 0, h2, l2, h1, l1, h0, l0);
        let last = _mm512_maskz_mov_epi64(0b1100_0000, x);
        let quarters = fold(x, keys, last);
        let halves = _mm256_xor_si256(
            _mm512_castsi512_si256(quarters),
            _mm512_extracti64x4_epi64::<1>(quarters),
        );
        let x = _mm_xor_si128(
            _mm256_castsi256_si128(halves),
            _mm256_extracti128_si256::<1>(halves),
        );
        // From 128 bits to 96, to 64.
        let keys = _mm_set_epi64x(LAST.1, LAST.0);
        let low_32 = _mm_set_epi64x(0, 0xFFFF_FFFF);
        let x = _mm_xor_si128(_mm_clmulepi64_si128(x, keys, 0x00), _mm_srli_si128::<8>(x));
        let x = _mm_xor_si128(
            _mm_clmulepi64_si128(_mm_and_si128(x, low_32), keys, 0x10),
            _mm_srli_si128::<4>(x),
        );
        // Barrett: the multiple of the generator that has the same lower half (which stands for the higher powers).
        let division = _mm_set_epi64x(INVERSE, GENERATOR);
        let times = _mm_clmulepi64_si128(_mm_and_si128(x, low_32), division, 0x10);
        let multiple = _mm_clmulepi64_si128(_mm_and_si128(times, low_32), division, 0x00);
        !(_mm_extract_epi32::<1>(_mm_xor_si128(x, multiple)) as u32)
    }

    #[cfg(test)]
    mod tests {
        /// The constants of the literature.
        #[test]
        fn the_constants_are_those_of_the_crc_of_ethernet() {
            assert_eq!((super::GENERATOR, super::INVERSE), (0x1_DB71_0641, 0x1_F701_1641));
            assert_eq!(super::keys(128), (0x1_7519_97D0, 0x0_CCAA_009E));
        }
    }
}
