//! Packet sequence numbers: 24 bits that wrap (InfiniBand Architecture Specification, volume 1, 9.7.2).

use core::cmp::Ordering;
use core::fmt;

/// A 24-bit packet sequence number. There is no total order: `a` is newer than `b` if `a - b` modulo 2^24 is in `1..2^23`.
/// A difference of exactly 2^23 counts as older, as in Linux rxe.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// One past the largest value.
    pub const MODULUS: u32 = 1 << 24;

    /// The number `value` modulo 2^24.
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::MODULUS - 1))
    }

    /// The value, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns `self - other` on the circle, in `-2^23..2^23`. It is positive if `self` is newer.
    pub const fn diff(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Returns the number `steps` further on the circle. Negative steps go back.
    pub const fn add(self, steps: i32) -> Self {
        Self::new(self.0.wrapping_add(steps as u32))
    }

    /// The next number.
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The number before.
    pub const fn prev(self) -> Self {
        self.add(-1)
    }

    /// Returns true if `self` is newer than `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.diff(other) > 0
    }

    /// Returns true if `self` is older than `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// Compares two numbers by [`Psn::diff`]. It is no `Ord`, because it is not transitive over the whole circle.
    pub const fn compare(self, other: Self) -> Ordering {
        match self.diff(other) {
            0 => Ordering::Equal,
            d if d < 0 => Ordering::Less,
            _ => Ordering::Greater,
        }
    }

    /// The three bytes on the wire, big endian. Compact tables store this form.
    pub const fn to_bytes(self) -> [u8; 3] {
        let b = self.0.to_be_bytes();
        [b[1], b[2], b[3]]
    }

    /// From the three bytes of the wire.
    pub const fn from_bytes(b: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_the_circle_apart_counts_as_older_both_ways() {
        let (a, b) = (Psn::new(0), Psn::new(1 << 23));
        assert!(a.is_before(b) && b.is_before(a));
    }

    proptest! {
        #[test]
        fn steps_and_differences_agree(start in 0u32..1 << 24, steps in -(1i32 << 23)..1 << 23) {
            let a = Psn::new(start);
            let b = a.add(steps);
            prop_assert_eq!(b.diff(a), steps);
            prop_assert_eq!(b.is_after(a), steps > 0);
            prop_assert_eq!(Psn::from_bytes(b.to_bytes()), b);
        }
    }
}
