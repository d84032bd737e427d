//! What is to be compared: all calls, and bytes full of special values.
#![allow(dead_code)]

pub(crate) mod scalar;

use castnet_reduce::{CallFlags, DataType, Operation};

pub(crate) type Call = (Operation, DataType, CallFlags);

/// All operations on all types, with both overflows; also those that make no sense.
pub(crate) fn all() -> impl Iterator<Item = Call> {
    let flags = [CallFlags::NONE, CallFlags::SATURATE];
    Operation::ALL.iter().flat_map(move |op| {
        DataType::ALL
            .iter()
            .flat_map(move |ty| flags.map(|flags| (*op, *ty, flags)))
    })
}

/// Those that make sense.
pub(crate) fn calls() -> impl Iterator<Item = Call> {
    all().filter(|(op, ty, _)| op.supports(*ty))
}

pub(crate) fn name((op, ty, flags): Call) -> String {
    let saturate = if flags.contains(CallFlags::SATURATE) {
        ", saturating"
    } else {
        ""
    };
    format!("{op} of {ty}{saturate}")
}

/// Returns true if the order of more than two contributions does not matter.
pub(crate) fn is_associative((op, ty, flags): Call) -> bool {
    let signed = matches!(ty, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64);
    let arithmetic = matches!(op, Operation::Sum | Operation::Prod);
    let saturating = signed && flags.contains(CallFlags::SATURATE);
    !(arithmetic && (ty.is_float() || saturating))
}

/// Values at which arithmetic changes, in the low bits.
pub(crate) fn specials(ty: DataType) -> Vec<u64> {
    let bits = 8 * ty.size() as u32;
    let top = 1 << (bits - 1);
    let fraction = match ty {
        DataType::F32 => 23,
        DataType::F64 => 52,
        DataType::F16 => 10,
        DataType::Bf16 => 7,
        _ => 0,
    };
    let mut values = match fraction {
        0 => vec![
            0,
            1,
            2,
            3,
            top - 1,
            top,
            top + 1,
            (top - 1) * 2,
            (top - 1) * 2 + 1,
            top / 2,
            0x10,
        ],
        _ => {
            let infinity = (top - 1) >> fraction << fraction;
            let one = (infinity / 2) >> fraction << fraction;
            vec![
                0,
                1,                   // the smallest
                (1 << fraction) - 1, // the largest subnormal
                1 << fraction,       // the smallest normal
                one,
                one + 1,
                infinity - 1, // the largest
                infinity - 2,
                infinity,
                infinity + 1,                         // a signalling NaN
                infinity + (1 << (fraction - 1)),     // the quiet one
                infinity + (1 << (fraction - 1)) + 5, // with a payload
                top - 1,
            ]
        }
    };
    if fraction != 0 {
        values.extend(values.clone().iter().map(|v| v | top));
    }
    values
}

/// Bytes at random, by a seed.
pub(crate) struct Fill(u64);

impl Fill {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Elements: some special, some close to each other in size so that sums round, some of any bits.
    pub(crate) fn elements(&mut self, ty: DataType, out: &mut [u8]) {
        let specials = specials(ty);
        let near = specials[4];
        for chunk in out.chunks_mut(ty.size()) {
            let random = self.next();
            let value = match random % 4 {
                0 => specials[(random >> 2) as usize % specials.len()],
                1 => near ^ (random >> 8 >> (64 - 4 * ty.size() as u32)),
                _ => self.next(),
            };
            chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
        }
    }
}
