//! The operator that appends zero bytes to a CRC register, in three forms: multiplication, a table, and a cache of tables.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// CRC-32 of IEEE 802.3, reflected: bit 31 is the coefficient of x^0.
const POLY: u32 = 0xEDB8_8320;
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

/// The register `crc` after `bytes` further zero bytes, by one multiplication for each hexadecimal digit of the length
/// that is not 0. For lengths that occur once.
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

/// The operator for one length, as a table of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shift([[u32; 256]; 4]);

impl Shift {
    /// The operator for `bytes` bytes.
    pub const fn by_bytes(bytes: usize) -> Self {
        let mut factor = ONE;
        let mut left = bytes as u64;
        // A constant cannot read a static, so the powers are computed by squaring here.
        let mut base = ONE >> 8;
        while left != 0 {
            if left & 1 != 0 {
                factor = multiply(factor, base);
            }
            base = multiply(base, base);
            left >>= 1;
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

    /// Returns the register `crc` after the zero bytes: four look-ups.
    #[inline]
    pub const fn apply(&self, crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes();
        self.0[0][a as usize] ^ self.0[1][b as usize] ^ self.0[2][c as usize] ^ self.0[3][d as usize]
    }
}

/// A cache of `N` operators (4 KiB each), direct-mapped by length. All memory is reserved in `new`.
#[derive(Clone, Debug)]
pub struct ShiftCache<const N: usize> {
    slots: Vec<(usize, Box<Shift>)>,
    /// For each slot, the length of the last miss.
    missed: [usize; N],
}

impl<const N: usize> ShiftCache<N> {
    /// Returns a cache whose operators are all for length 0.
    pub fn new() -> Self {
        const { assert!(N > 0, "a cache needs a slot") };
        let identity = Box::new(Shift::by_factor(ONE));
        Self {
            slots: (0..N).map(|_| (0, identity.clone())).collect(),
            missed: [0; N],
        }
    }

    fn slot(bytes: usize) -> usize {
        // Path MTUs are powers of two. A plain remainder would map all of them to one slot.
        ((bytes as u32).wrapping_mul(0x9E37_79B1) >> 16) as usize % N
    }

    /// Returns the operator for `bytes` bytes. If it is not cached, builds it in place of another.
    #[inline]
    pub fn get(&mut self, bytes: usize) -> &Shift {
        let slot = &mut self.slots[Self::slot(bytes)];
        if slot.0 != bytes {
            *slot.1 = Shift::by_bytes(bytes);
            slot.0 = bytes;
        }
        &slot.1
    }

    /// Returns the operator for `bytes` bytes if it is cached, or builds it at the second consecutive miss. So frames of many
    /// different lengths do not make a switch build a table each time: for `None`, use [`shift`].
    #[inline]
    pub fn find(&mut self, bytes: usize) -> Option<&Shift> {
        let i = Self::slot(bytes);
        if self.slots[i].0 == bytes {
            Some(&self.slots[i].1)
        } else if self.missed[i] == bytes {
            Some(self.get(bytes))
        } else {
            self.missed[i] = bytes;
            None
        }
    }

    /// Returns the register `crc` after `bytes` zero bytes, with a cached operator or by [`shift`].
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
