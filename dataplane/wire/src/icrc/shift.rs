//! The operator "so many bytes of zeros follow", in three forms: by multiplication, by table, and a cache of tables.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// CRC-32 of IEEE 802.3, reflected: bit 31 is the coefficient of x^0.
const POLY: u32 = 0xEDB8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLY & (a & 1).wrapping_neg())
}

/// The product of two polynomials modulo the generator.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & ((a >> bit) & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

/// `POWERS[k][d]` is x^(8 d 16^k): one factor for each hexadecimal digit of a length.
static POWERS: [[u32; 16]; 16] = powers();

const fn powers() -> [[u32; 16]; 16] {
    let mut table = [[ONE; 16]; 16];
    let mut base = ONE >> 8; // x^8: one byte
    let mut k = 0;
    while k < 16 {
        let mut d = 1;
        while d < 16 {
            table[k][d] = multiply(table[k][d - 1], base);
            d += 1;
        }
        base = multiply(table[k][15], base);
        k += 1;
    }
    table
}

/// The register `crc` after `bytes` zeros more: no table, one multiplication for each hexadecimal digit of the length
/// that is not 0. For lengths that come once.
pub fn shift(crc: u32, bytes: usize) -> u32 {
    let mut out = crc;
    let mut left = bytes as u64;
    for row in &POWERS {
        let digit = (left & 15) as usize;
        if digit != 0 {
            out = multiply(out, row[digit]);
        }
        left >>= 4;
    }
    out
}

/// The same for one length, as a table of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shift([[u32; 256]; 4]);

impl Shift {
    /// The operator for `bytes` bytes.
    pub const fn by_bytes(bytes: usize) -> Self {
        let mut factor = ONE;
        let (mut left, mut k) = (bytes as u64, 0);
        // A constant cannot read a static, so the powers come from squaring here.
        let mut base = ONE >> 8;
        while left != 0 && k < 64 {
            if left & 1 != 0 {
                factor = multiply(factor, base);
            }
            base = multiply(base, base);
            left >>= 1;
            k += 1;
        }
        Self::by_factor(factor)
    }

    const fn by_factor(factor: u32) -> Self {
        let mut table = [[0; 256]; 4];
        let mut value = factor;
        let mut bit = 32;
        while bit > 0 {
            bit -= 1;
            table[bit / 8][1 << (bit % 8)] = value;
            value = times_x(value);
        }
        let mut byte = 0;
        while byte < 4 {
            let mut i = 1;
            while i < 256 {
                table[byte][i] = table[byte][i & (i - 1)] ^ table[byte][i & i.wrapping_neg()];
                i += 1;
            }
            byte += 1;
        }
        Self(table)
    }

    /// The register `crc` after the zeros: four look-ups.
    #[inline]
    pub const fn apply(&self, crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes();
        self.0[0][a as usize] ^ self.0[1][b as usize] ^ self.0[2][c as usize] ^ self.0[3][d as usize]
    }
}

/// A cache of `N` operators, direct-mapped by length: a switch sees few lengths often. All memory is reserved in `new`
/// (4 KiB each).
#[derive(Clone, Debug)]
pub struct ShiftCache<const N: usize> {
    slots: Vec<(usize, Box<Shift>)>,
    /// By slot, the length that was asked for last without being in it.
    asked: [usize; N],
}

impl<const N: usize> ShiftCache<N> {
    /// A cache of operators, all for length 0 as yet.
    pub fn new() -> Self {
        const { assert!(N > 0, "a cache needs a slot") };
        let identity = Box::new(Shift::by_factor(ONE));
        Self {
            slots: (0..N).map(|_| (0, identity.clone())).collect(),
            asked: [0; N],
        }
    }

    fn slot(bytes: usize) -> usize {
        // Path MTUs are powers of two: a plain remainder would put them all into one slot.
        ((bytes as u32).wrapping_mul(0x9E37_79B1) >> 16) as usize % N
    }

    /// The operator for `bytes` bytes; builds it where it is not there, in place of another.
    #[inline]
    pub fn get(&mut self, bytes: usize) -> &Shift {
        let slot = &mut self.slots[Self::slot(bytes)];
        if slot.0 != bytes {
            *slot.1 = Shift::by_bytes(bytes);
            slot.0 = bytes;
        }
        &slot.1
    }

    /// The operator for `bytes` bytes where it is there, or is missed the second time running and built. So frames of ever
    /// new lengths cannot make a switch build tables all day: for `None`, [`shift`] does without.
    #[inline]
    pub fn find(&mut self, bytes: usize) -> Option<&Shift> {
        let i = Self::slot(bytes);
        if self.slots[i].0 == bytes {
            Some(&self.slots[i].1)
        } else if self.asked[i] == bytes {
            Some(self.get(bytes))
        } else {
            self.asked[i] = bytes;
            None
        }
    }

    /// The register `crc` after `bytes` zeros, by [`ShiftCache::find`] or without.
    #[inline]
    pub fn apply(&mut self, crc: u32, bytes: usize) -> u32 {
        match self.find(bytes) {
            Some(operator) => operator.apply(crc),
            None => shift(crc, bytes),
        }
    }
}

impl<const N: usize> Default for ShiftCache<N> {
    fn default() -> Self {
        Self::new()
    }
}
