//! Numbers for checks: the contribution of each rank, and the expected result. They are small, so that all types hold them exactly.

use castnet_comm::{Element, Operation, bf16, f16};

pub(super) trait Number: Element {
    /// An integer type takes the lowest bits.
    fn of(value: i64) -> Self;

    /// The range of an integer type below 64 bits.
    const RANGE: Option<(i64, i64)>;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            impl Number for $t {
                fn of(value: i64) -> Self {
                    value as Self
                }
                const RANGE: Option<(i64, i64)> = if size_of::<$t>() < 8 {
                    Some((<$t>::MIN as i64, <$t>::MAX as i64))
                } else {
                    None
                };
            }
        )*
    };
}

macro_rules! floats {
    ($($t:ty => $of:expr),*) => {
        $(
            impl Number for $t {
                fn of(value: i64) -> Self {
                    $of(value)
                }
                const RANGE: Option<(i64, i64)> = None;
            }
        )*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats! {
    f32 => |v| v as f32, f64 => |v| v as f64, f16 => |v| f16::from_f64(v as f64), bf16 => |v| bf16::from_f64(v as f64)
}

/// Element `index` of `rank`.
pub(super) fn contribution(operation: Operation, rank: u16, size: u16, index: u64) -> i64 {
    let mixed = index
        .wrapping_add(u64::from(rank) << 20)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        >> 61;
    if operation == Operation::Prod {
        // Two ranks contribute 2, the others 1: any product is exact.
        let ranks = u64::from(size.max(1));
        let doubles = [index % ranks, (index + 1) % ranks].contains(&u64::from(rank));
        1 + i64::from(doubles)
    } else if size <= 32 {
        // At most 7 each: sums fit 8 bits of mantissa.
        mixed as i64
    } else {
        (mixed % 2) as i64
    }
}

fn fold(operation: Operation, a: i64, b: i64) -> i64 {
    match operation {
        Operation::Sum => a + b,
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::Prod => a * b,
        Operation::BitAnd => a & b,
        Operation::BitOr => a | b,
        Operation::BitXor => a ^ b,
        Operation::And => (a != 0 && b != 0).into(),
        Operation::Or => (a != 0 || b != 0).into(),
        Operation::Xor => ((a != 0) != (b != 0)).into(),
    }
}

pub(super) fn reduced<T: Number>(operation: Operation, size: u16, index: u64, saturates: bool) -> T {
    let first = contribution(operation, 0, size, index);
    let all = (1..size).fold(first, |sum, rank| {
        let sum = fold(operation, sum, contribution(operation, rank, size, index));
        match T::RANGE {
            Some((min, max)) if saturates && operation == Operation::Sum => sum.clamp(min, max),
            _ => sum,
        }
    });
    T::of(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_exact_in_the_smallest_types() {
        for size in [2, 4, 32, 33, 250] {
            for index in 0..500 {
                for operation in [Operation::Sum, Operation::Prod] {
                    let exact: f64 = reduced(operation, size, index, false);
                    let small: bf16 = reduced(operation, size, index, false);
                    assert!(exact <= 256.0 && f64::from(small) == exact, "{size} {index}");
                }
            }
        }
    }

    /// Contributions are spread evenly, so that sums of few ranks stay near their mean: only many ranks leave a byte's range.
    #[test]
    fn sums_beyond_a_bytes_range_are_clamped_where_they_saturate() {
        let mut beyond = 0;
        for size in [2, 32, 33, 250, 300] {
            for index in 0..500 {
                let exact: i64 = reduced(Operation::Sum, size, index, false);
                let clamped: i8 = reduced(Operation::Sum, size, index, true);
                assert_eq!(i64::from(clamped), exact.min(127), "{size} {index}");
                beyond += u32::from(exact > 127);
            }
        }
        assert!(beyond > 0, "no sum was large enough to be clamped");
    }
}
