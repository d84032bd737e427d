//! What the operations mean, by examples that people can check, and another's f16 and bf16 as an oracle.

use crate::common::{Fill, scalar};
use castnet_reduce::{CallFlags, DataType, Kernel, Operation, reduce};
use proptest::prelude::*;

const WRAP: CallFlags = CallFlags::NONE;
const SATURATE: CallFlags = CallFlags::SATURATE;

/// `a op b` of single elements, by kernel and twin, which must agree.
fn one<const N: usize>(op: Operation, ty: DataType, flags: CallFlags, a: [u8; N], b: [u8; N]) -> [u8; N] {
    assert_eq!(N, ty.size());
    let (mut fast, mut slow) = (a, a);
    reduce(op, ty, flags, &mut fast, &b);
    scalar::reduce(op, ty, flags, &mut slow, &b);
    assert_eq!(fast, slow, "{op} of {ty}");
    fast
}

macro_rules! one {
    ($op:ident, $variant:ident, $ty:ty, $flags:expr, $a:expr, $b:expr) => {{
        let (a, b): ($ty, $ty) = ($a, $b);
        <$ty>::from_le_bytes(one(
            Operation::$op,
            DataType::$variant,
            $flags,
            a.to_le_bytes(),
            b.to_le_bytes(),
        ))
    }};
}

#[test]
fn integers_wrap_or_saturate() {
    assert_eq!(one!(Sum, I8, i8, WRAP, 127, 1), -128);
    assert_eq!(one!(Sum, I8, i8, SATURATE, 127, 1), 127);
    assert_eq!(one!(Sum, I8, i8, SATURATE, -128, -1), -128);
    assert_eq!(one!(Sum, U16, u16, WRAP, 65535, 2), 1);
    assert_eq!(one!(Sum, U16, u16, SATURATE, 65535, 2), 65535);
    assert_eq!(one!(Sum, I64, i64, WRAP, i64::MAX, 1), i64::MIN);
    assert_eq!(one!(Sum, U64, u64, SATURATE, u64::MAX, u64::MAX), u64::MAX);
    assert_eq!(one!(Prod, I32, i32, WRAP, i32::MIN, -1), i32::MIN);
    assert_eq!(one!(Prod, I32, i32, SATURATE, i32::MIN, -1), i32::MAX);
    assert_eq!(one!(Prod, I64, i64, SATURATE, i64::MAX, -2), i64::MIN);
    assert_eq!(one!(Prod, U64, u64, SATURATE, u64::MAX, u64::MAX), u64::MAX);
    assert_eq!(one!(Prod, U64, u64, WRAP, u64::MAX, u64::MAX), 1);
    assert_eq!(one!(Prod, U8, u8, WRAP, 16, 17), 16);
    assert_eq!(one!(Prod, U8, u8, SATURATE, 16, 17), 255);
}

#[test]
fn signed_and_unsigned_are_told_apart() {
    assert_eq!(
        (one!(Min, I8, i8, WRAP, -1, 1), one!(Min, U8, u8, WRAP, 255, 1)),
        (-1, 1)
    );
    assert_eq!(
        (
            one!(Max, I64, i64, WRAP, -1, 1),
            one!(Max, U64, u64, WRAP, u64::MAX, 1)
        ),
        (1, u64::MAX)
    );
}

#[test]
fn bits_and_truth_values() {
    assert_eq!(one!(BitAnd, U8, u8, WRAP, 0b1100, 0b1010), 0b1000);
    assert_eq!(one!(BitOr, I32, i32, WRAP, 0b1100, 0b1010), 0b1110);
    assert_eq!(one!(BitXor, U64, u64, WRAP, 0b1100, 0b1010), 0b0110);
    assert_eq!(one!(And, U16, u16, WRAP, 0x100, 2), 1);
    assert_eq!(one!(And, I64, i64, WRAP, -5, 0), 0);
    assert_eq!(one!(Or, I8, i8, WRAP, 0, -128), 1);
    assert_eq!(one!(Or, U32, u32, WRAP, 0, 0), 0);
    assert_eq!(one!(Xor, U32, u32, WRAP, 7, 9), 0);
    assert_eq!(one!(Xor, I16, i16, WRAP, 0, -9), 1);
}

#[test]
fn floats_follow_ieee_754_and_there_is_one_nan() {
    let nan = f32::from_bits(0x7FC0_0000);
    let odd_nans = [0x7F80_0001, 0xFFC0_0000, 0x7FFF_FFFF, 0xFF80_1234].map(f32::from_bits);
    for (a, b) in odd_nans
        .iter()
        .flat_map(|n| [(*n, 1.0), (1.0, *n), (*n, f32::INFINITY), (*n, nan)])
    {
        for r in [
            one!(Sum, F32, f32, WRAP, a, b),
            one!(Prod, F32, f32, WRAP, a, b),
            one!(Min, F32, f32, WRAP, a, b),
            one!(Max, F32, f32, WRAP, a, b),
        ] {
            assert_eq!(r.to_bits(), nan.to_bits());
        }
    }
    let (inf, max) = (f32::INFINITY, f32::MAX);
    assert_eq!(one!(Sum, F32, f32, WRAP, inf, -inf).to_bits(), nan.to_bits());
    assert_eq!(one!(Prod, F32, f32, WRAP, inf, 0.0).to_bits(), nan.to_bits());
    assert_eq!(one!(Sum, F32, f32, WRAP, max, max), inf);
    assert_eq!(one!(Sum, F32, f32, SATURATE, max, max), inf);
    assert_eq!(one!(Prod, F64, f64, WRAP, f64::MAX, -2.0), f64::NEG_INFINITY);
    // Subnormal numbers are kept.
    let tiny = f32::from_bits(1);
    assert_eq!(one!(Sum, F32, f32, WRAP, tiny, tiny).to_bits(), 2);
    // Ties go to the even one.
    assert_eq!(one!(Sum, F32, f32, WRAP, 16_777_216.0, 1.0), 16_777_216.0);
    assert_eq!(one!(Sum, F32, f32, WRAP, 16_777_218.0, 1.0), 16_777_220.0);
    // Zeros have an order.
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!(one!(Min, F64, f64, WRAP, a, b).to_bits(), (-0f64).to_bits());
        assert_eq!(one!(Max, F64, f64, WRAP, a, b).to_bits(), 0);
        assert_eq!(one!(Sum, F64, f64, WRAP, a, b).to_bits(), 0);
    }
}

#[test]
fn halves_round_once() {
    let f16 = |x: f32| half::f16::from_f32(x).to_bits();
    // 65504 is the largest f16, 65520 the first number that rounds to infinity.
    assert_eq!(one!(Sum, F16, u16, WRAP, f16(65504.0), f16(15.0)), f16(65504.0));
    assert_eq!(one!(Sum, F16, u16, WRAP, f16(65504.0), f16(16.0)), 0x7C00);
    assert_eq!(one!(Sum, F16, u16, WRAP, f16(2048.0), f16(1.0)), f16(2048.0));
    assert_eq!(one!(Sum, F16, u16, WRAP, f16(2050.0), f16(1.0)), f16(2052.0));
    // The smallest, with itself and by a half.
    assert_eq!(one!(Sum, F16, u16, WRAP, 1, 1), 2);
    assert_eq!(one!(Prod, F16, u16, WRAP, 1, f16(0.5)), 0);
    assert_eq!(one!(Prod, F16, u16, WRAP, 3, f16(0.5)), 2);
    let bf16 = |x: f32| half::bf16::from_f32(x).to_bits();
    assert_eq!(one!(Sum, Bf16, u16, WRAP, bf16(256.0), bf16(1.0)), bf16(256.0));
    assert_eq!(one!(Sum, Bf16, u16, WRAP, bf16(258.0), bf16(1.0)), bf16(260.0));
    assert_eq!(one!(Sum, Bf16, u16, WRAP, 0x7F7F, 0x7F7F), 0x7F80);
}

#[test]
fn in_a_fixed_order_the_result_is_one() {
    let contributions = [1e8f32, 1.0, -1e8, 1.0].map(f32::to_le_bytes);
    let slices: Vec<&[u8]> = contributions.iter().map(|c| c.as_slice()).collect();
    let mut out = [0xFF; 4];
    let sum = Kernel::select(Operation::Sum, DataType::F32, CallFlags::REPRODUCIBLE);
    sum.fold(&mut out, slices.iter().copied());
    assert_eq!(f32::from_le_bytes(out), 1.0);
    let other = [slices[0], slices[2], slices[1], slices[3]];
    sum.fold(&mut out, other);
    assert_eq!(f32::from_le_bytes(out), 2.0, "another order, another sum");
    Kernel::select(Operation::Sum, DataType::F32, WRAP).fold(&mut out, []);
    assert_eq!(f32::from_le_bytes(out), 2.0, "of nothing, nothing is written");
    Kernel::select(Operation::Prod, DataType::F32, WRAP).fold(&mut out, [slices[0]]);
    assert_eq!(f32::from_le_bytes(out), 1e8, "of one, it is that");
}

/// Of a NaN's bits nothing is compared: theirs keep payloads.
fn same_half(ours: u16, theirs: u16, infinity: u16, nan: u16) -> bool {
    if theirs & 0x7FFF > infinity {
        ours == nan
    } else {
        ours == theirs
    }
}

#[test]
fn halves_are_those_of_another() {
    for bits in 0..=u16::MAX {
        // Negative zero changes nothing, so this only widens and narrows.
        let f16 = one!(Sum, F16, u16, WRAP, bits, 0x8000);
        assert!(same_half(f16, bits, 0x7C00, 0x7E00), "{bits:#x}: {f16:#x}");
        let bf16 = one!(Sum, Bf16, u16, WRAP, bits, 0x8000);
        assert!(same_half(bf16, bits, 0x7F80, 0x7FC0), "{bits:#x}: {bf16:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn sums_and_products_of_halves_are_those_of_another(seed in any::<u64>()) {
        let mut fill = Fill::new(seed);
        for (ty, infinity, nan) in [(DataType::F16, 0x7C00, 0x7E00), (DataType::Bf16, 0x7F80, 0x7FC0)] {
            let [mut a, mut b] = [[0; 1024]; 2];
            fill.elements(ty, &mut a);
            fill.elements(ty, &mut b);
            for op in [Operation::Sum, Operation::Prod] {
                let theirs = |a: u16, b: u16| {
                    let both = |a: f32, b: f32| if op == Operation::Sum { a + b } else { a * b };
                    if ty == DataType::F16 {
                        let [a, b] = [a, b].map(|x| half::f16::from_bits(x).to_f32());
                        half::f16::from_f32(both(a, b)).to_bits()
                    } else {
                        let [a, b] = [a, b].map(|x| half::bf16::from_bits(x).to_f32());
                        half::bf16::from_f32(both(a, b)).to_bits()
                    }
                };
                let mut ours = a;
                reduce(op, ty, WRAP, &mut ours, &b);
                let half = |bytes: &[u8], i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
                for i in 0..512 {
                    let (x, y) = (half(&a, i), half(&b, i));
                    let (got, wanted) = (half(&ours, i), theirs(x, y));
                    prop_assert!(same_half(got, wanted, infinity, nan), "{} of {}: {:x} {:x}: {:x} {:x}", op, ty, x, y, got, wanted);
                }
            }
        }
    }
}
