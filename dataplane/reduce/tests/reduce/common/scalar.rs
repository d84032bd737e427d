//! The slow twin: every operation on every type, one element at a time, directly from the definition. It shares only the names of
//! types with the fast code.

use castnet_reduce::{CallFlags, DataType, Operation};

/// The slow equivalent of `castnet_reduce::reduce`.
pub(crate) fn reduce(op: Operation, ty: DataType, flags: CallFlags, acc: &mut [u8], contribution: &[u8]) {
    if !op.supports(ty) {
        return;
    }
    let saturate = flags.contains(CallFlags::SATURATE);
    for (a, b) in acc
        .chunks_exact_mut(ty.size())
        .zip(contribution.chunks_exact(ty.size()))
    {
        let bits = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let result = element(op, ty, saturate, bits(a), bits(b));
        a.copy_from_slice(&result.to_le_bytes()[..ty.size()]);
    }
}

/// Returns `a op b`. All values are in the low bits.
fn element(op: Operation, ty: DataType, saturate: bool, a: u64, b: u64) -> u64 {
    let (low32, low16) = (|x: u64| f32::from_bits(x as u32), |x: u64| x as u16);
    match ty {
        DataType::F64 => match float(op, f64::from_bits(a), f64::from_bits(b)) {
            r if r.is_nan() => 0x7FF8_0000_0000_0000,
            r => r.to_bits(),
        },
        DataType::F32 => u64::from(single(op, low32(a), low32(b)).to_bits()),
        // f64 is wide enough for an exact result before the only rounding.
        DataType::F16 => u64::from(to_f16(float(op, from_f16(low16(a)), from_f16(low16(b))))),
        DataType::Bf16 => u64::from(to_bf16(single(op, low32(a << 16), low32(b << 16)))),
        DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64 => {
            let unused = 64 - 8 * ty.size() as u32;
            let value = |x: u64| i128::from((x << unused) as i64 >> unused);
            let range = (value(1 << (63 - unused)), value(u64::MAX >> (unused + 1)));
            integer(op, saturate, range, value(a), value(b))
        }
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64 => {
            let range = (0, i128::from(u64::MAX >> (64 - 8 * ty.size())));
            integer(op, saturate, range, i128::from(a), i128::from(b))
        }
    }
}

/// In 128 bits only the product of two large u64 overflows, and its value is then still far above the range of u64.
fn integer(op: Operation, saturate: bool, (min, max): (i128, i128), a: i128, b: i128) -> u64 {
    let bounded = |exact: i128| if saturate { exact.clamp(min, max) } else { exact };
    let truth = |x: bool| i128::from(x);
    let result = match op {
        Operation::Sum => bounded(a + b),
        Operation::Prod if saturate => a.saturating_mul(b).clamp(min, max),
        Operation::Prod => a.wrapping_mul(b),
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::BitAnd => a & b,
        Operation::BitOr => a | b,
        Operation::BitXor => a ^ b,
        Operation::And => truth(a != 0 && b != 0),
        Operation::Or => truth(a != 0 || b != 0),
        Operation::Xor => truth((a != 0) != (b != 0)),
    };
    // The low bits are the value modulo a power of two: it wraps.
    result as u64
}

fn float(op: Operation, a: f64, b: f64) -> f64 {
    let b_is_less = b < a || (a == b && b.is_sign_negative());
    match op {
        Operation::Sum => a + b,
        Operation::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Operation::Min => {
            if b_is_less {
                b
            } else {
                a
            }
        }
        // Equal values with different bits are +0 and -0.
        _ if a == b => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        _ => {
            if b_is_less {
                a
            } else {
                b
            }
        }
    }
}

fn single(op: Operation, a: f32, b: f32) -> f32 {
    let r = match op {
        Operation::Sum => a + b,
        Operation::Prod => a * b,
        // Exact in f64.
        _ => float(op, f64::from(a), f64::from(b)) as f32,
    };
    if r.is_nan() {
        f32::from_bits(0x7FC0_0000)
    } else {
        r
    }
}

/// The value of the bits of a half.
fn from_f16(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = f64::from(bits & 0x3FF) / 1024.0;
    match (bits >> 10) & 0x1F {
        0 => sign * fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        exponent => sign * (1.0 + fraction) * 2f64.powi(i32::from(exponent) - 15),
    }
}

/// The nearest half; of two equally near ones, the one whose last bit is 0. As in IEEE 754, infinity takes the position of
/// the next number beyond the largest exponent.
fn to_f16(x: f64) -> u16 {
    const INFINITY: u16 = 0x7C00;
    if x.is_nan() {
        return 0x7E00;
    }
    let value = |bits: u16| if bits == INFINITY { 65536.0 } else { from_f16(bits) };
    let magnitude = x.abs().min(65536.0);
    // The largest half that is not larger than the value.
    let (mut low, mut high) = (0, INFINITY + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(middle) <= magnitude {
            low = middle
        } else {
            high = middle
        }
    }
    nearest(
        low,
        magnitude - value(low),
        value(low + 1) - magnitude,
        low == INFINITY,
    ) | sign(x.is_sign_negative())
}

/// The nearest bf16, with the same rounding.
fn to_bf16(x: f32) -> u16 {
    const INFINITY: u16 = 0x7F80;
    if x.is_nan() {
        return 0x7FC0;
    }
    let value = |bits: u16| match bits {
        INFINITY => 2f64.powi(128),
        _ => f64::from(f32::from_bits(u32::from(bits) << 16)),
    };
    let magnitude = f64::from(x.abs()).min(value(INFINITY));
    let low = (x.abs().to_bits() >> 16) as u16;
    nearest(
        low,
        magnitude - value(low),
        value(low + 1) - magnitude,
        low == INFINITY,
    ) | sign(x.is_sign_negative())
}

/// Returns `low` or the number after it, whichever is nearer.
fn nearest(low: u16, to_low: f64, to_next: f64, is_last: bool) -> u16 {
    let up = to_next < to_low || (to_next == to_low && low % 2 == 1);
    if up && !is_last { low + 1 } else { low }
}

fn sign(negative: bool) -> u16 {
    if negative { 0x8000 } else { 0 }
}
