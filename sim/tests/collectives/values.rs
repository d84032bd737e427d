//! What ranks contribute, and what must come out: by plain arithmetic on small numbers, of which every type holds every
//! intermediate result exactly (or wraps it).

use castnet_comm::machine::{Collective, Task};
use castnet_wire::control::{DataType, Operation};
use half::{bf16, f16};

/// The number that a rank contributes at a place of a call.
fn value(task: &Task, call: usize, rank: u16, at: u64) -> i64 {
    // FNV-1a, so that neighbours differ.
    let words = [call as u64, rank.into(), at];
    let hash = words.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let small = (hash >> 32) as i64;
    match (task.operation, is_unsigned(task.data_type)) {
        (Operation::Prod, true) => 1 + small % 2,
        (Operation::Prod, false) => [-1, 1, 2][(small % 3) as usize],
        (_, true) => small % 8,
        (_, false) => small % 15 - 7,
    }
}

fn is_unsigned(data_type: DataType) -> bool {
    matches!(
        data_type,
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64
    )
}

fn encode(data_type: DataType, value: i64, out: &mut Vec<u8>) {
    match data_type {
        DataType::F32 => out.extend((value as f32).to_le_bytes()),
        DataType::F16 => out.extend(f16::from_f64(value as f64).to_le_bytes()),
        DataType::Bf16 => out.extend(bf16::from_f64(value as f64).to_le_bytes()),
        DataType::F64 => out.extend((value as f64).to_le_bytes()),
        integer => out.extend(&value.to_le_bytes()[..integer.size()]),
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

fn bytes(task: &Task, range: std::ops::Range<u64>, number: impl Fn(u64) -> i64) -> Vec<u8> {
    let mut out = Vec::new();
    for at in range {
        encode(task.data_type, number(at), &mut out);
    }
    out
}

/// What a rank puts in.
pub(crate) fn input(task: &Task, call: usize, rank: u16, size: u16) -> Vec<u8> {
    let elements = task.input_bytes(rank, size) / task.data_type.size() as u64;
    bytes(task, 0..elements, |at| value(task, call, rank, at))
}

/// What a rank must get.
pub(crate) fn output(task: &Task, call: usize, rank: u16, size: u16) -> Vec<u8> {
    let n = task.elements;
    let sum = |at| {
        let numbers = (0..size).map(|r| value(task, call, r, at));
        numbers.reduce(|a, b| fold(task.operation, a, b)).unwrap_or(0)
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
