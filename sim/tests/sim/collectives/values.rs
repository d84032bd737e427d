//! Inputs of ranks, and expected outputs by plain arithmetic. Floating-point numbers are small, so that every type
//! represents every intermediate result exactly. Integers are small in half of the calls. In the others they use the
//! whole range of their type, so that sums wrap or saturate.

use castnet_comm::machine::{Collective, Task};
use castnet_wire::control::{CallFlags, DataType, Operation};
use half::{bf16, f16};

/// FNV-1a: adjacent inputs give different values.
fn hash(words: [u64; 3]) -> u64 {
    words.iter().fold(0xCBF2_9CE4_8422_2325, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Returns true if the numbers of a call use the whole range of their type. This requires that the order of ranks
/// does not affect the result. It would for signed sums that saturate, which are not associative.
fn is_wide(task: &Task, call: usize) -> bool {
    let saturates = task.flags.0 & CallFlags::SATURATE.0 != 0;
    let can_be = match task.operation {
        Operation::Sum => !saturates || is_unsigned(task.data_type),
        Operation::Min | Operation::Max => true,
        Operation::BitAnd | Operation::BitOr | Operation::BitXor => true,
        Operation::Prod | Operation::And | Operation::Or | Operation::Xor => false,
    };
    can_be && !task.data_type.is_float() && hash([call as u64, task.elements, 77]) >> 40 & 1 == 1
}

/// The contribution of a rank at index `at` of a call.
fn value(task: &Task, call: usize, rank: u16, at: u64) -> i128 {
    let hash = hash([call as u64, rank.into(), at]);
    if is_wide(task, call) {
        // Mixes in the high half, because adjacent inputs have similar low bytes.
        let wide = hash ^ hash.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bits = 8 * task.data_type.size() as u32;
        return match is_unsigned(task.data_type) {
            true => (wide >> (64 - bits)).into(),
            false => ((wide as i64) >> (64 - bits)).into(),
        };
    }
    let small = i128::from(hash >> 32);
    match (task.operation, is_unsigned(task.data_type)) {
        (Operation::Prod, true) => 1 + small % 2,
        (Operation::Prod, false) => [-1, 1, 2][(small % 3) as usize],
        (_, true) => small % 8,
        // The sum of twenty of them fits an i8.
        (_, false) => small % 13 - 6,
    }
}

fn is_unsigned(data_type: DataType) -> bool {
    matches!(
        data_type,
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64
    )
}

fn encode(data_type: DataType, value: i128, out: &mut Vec<u8>) {
    match data_type {
        DataType::F32 => out.extend((value as f32).to_le_bytes()),
        DataType::F16 => out.extend(f16::from_f64(value as f64).to_le_bytes()),
        DataType::Bf16 => out.extend(bf16::from_f64(value as f64).to_le_bytes()),
        DataType::F64 => out.extend((value as f64).to_le_bytes()),
        integer => out.extend(&value.to_le_bytes()[..integer.size()]),
    }
}

fn fold(operation: Operation, a: i128, b: i128) -> i128 {
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

fn bytes(task: &Task, range: std::ops::Range<u64>, number: impl Fn(u64) -> i128) -> Vec<u8> {
    let mut out = Vec::new();
    for at in range {
        encode(task.data_type, number(at), &mut out);
    }
    out
}

pub(crate) fn input(task: &Task, call: usize, rank: u16, size: u16) -> Vec<u8> {
    let elements = task.input_bytes(rank, size) / task.data_type.size() as u64;
    bytes(task, 0..elements, |at| value(task, call, rank, at))
}

pub(crate) fn output(task: &Task, call: usize, rank: u16, size: u16) -> Vec<u8> {
    let n = task.elements;
    let saturates = task.flags.0 & CallFlags::SATURATE.0 != 0 && is_wide(task, call);
    let highest = (1i128 << (8 * task.data_type.size())) - 1;
    let sum = |at| {
        let numbers = (0..size).map(|r| value(task, call, r, at));
        let sum = numbers.reduce(|a, b| fold(task.operation, a, b)).unwrap_or(0);
        if saturates { sum.min(highest) } else { sum }
    };
    match task.collective {
        Collective::AllReduce => bytes(task, 0..n, sum),
        Collective::Reduce { root } if root == rank => bytes(task, 0..n, sum),
        Collective::Broadcast { root } if root != rank => bytes(task, 0..n, |at| value(task, call, root, at)),
        Collective::ReduceScatter => bytes(task, u64::from(rank) * n..u64::from(rank + 1) * n, sum),
        Collective::AllGather => (0..size)
            .flat_map(|r| bytes(task, 0..n, |at| value(task, call, r, at)))
            .collect(),
        Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => Vec::new(),
    }
}
