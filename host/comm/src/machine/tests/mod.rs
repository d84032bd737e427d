//! Ranks as machines over simple networks in memory: a switch that reduces and returns results in order, and
//! connections between hosts. A seed determines the order of events.

mod between_hosts;
mod calls;
mod in_network;
mod rank;

use castnet_wire::control::{CallFlags, DataType, Operation};
use half::{bf16, f16};
use proptest::prelude::*;

use super::{Collective, Task};

/// A generator of choices: xorshift64*.
pub(super) struct Choices(u64);

impl Choices {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n.max(1)
    }
}

const TYPES: [DataType; 12] = [
    DataType::F32,
    DataType::F16,
    DataType::Bf16,
    DataType::F64,
    DataType::I8,
    DataType::I16,
    DataType::I32,
    DataType::I64,
    DataType::U8,
    DataType::U16,
    DataType::U32,
    DataType::U64,
];

const OPERATIONS: [Operation; 10] = [
    Operation::Sum,
    Operation::Min,
    Operation::Max,
    Operation::Prod,
    Operation::BitAnd,
    Operation::BitOr,
    Operation::BitXor,
    Operation::And,
    Operation::Or,
    Operation::Xor,
];

/// A small number as an element.
pub(super) fn encode(data_type: DataType, value: i64, out: &mut Vec<u8>) {
    match data_type {
        DataType::F32 => out.extend((value as f32).to_le_bytes()),
        DataType::F16 => out.extend(f16::from_f64(value as f64).to_le_bytes()),
        DataType::Bf16 => out.extend(bf16::from_f64(value as f64).to_le_bytes()),
        DataType::F64 => out.extend((value as f64).to_le_bytes()),
        integer => out.extend(&value.to_le_bytes()[..integer.size()]),
    }
}

/// The reduction of two small numbers.
pub(super) fn fold(operation: Operation, a: i64, b: i64) -> i64 {
    match operation {
        Operation::Sum => a.wrapping_add(b),
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::Prod => a.wrapping_mul(b),
        Operation::BitAnd => a & b,
        Operation::BitOr => a | b,
        Operation::BitXor => a ^ b,
        Operation::And => (a != 0 && b != 0).into(),
        Operation::Or => (a != 0 || b != 0).into(),
        Operation::Xor => ((a != 0) != (b != 0)).into(),
    }
}

/// The contribution of a rank as element `index` of task number `task`. It is small enough that every type holds all
/// sums and products of nine of them.
pub(super) fn contribution(operation: Operation, task: usize, rank: u16, index: u64) -> i64 {
    let mixed = (index + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(u64::from(rank) << 7)
        .wrapping_add(task as u64)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93)
        >> 40;
    if operation == Operation::Prod {
        1 + (mixed % 2) as i64
    } else {
        (mixed % 4) as i64
    }
}

fn elements(task: &Task, values: impl Iterator<Item = i64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.for_each(|v| encode(task.data_type, v, &mut bytes));
    bytes
}

/// A rank's input of task number `number`.
pub(super) fn input(task: &Task, number: usize, rank: u16, size: u16) -> Vec<u8> {
    let count = task.input_bytes(rank, size) / task.data_type.size() as u64;
    elements(
        task,
        (0..count).map(|i| contribution(task.operation, number, rank, i)),
    )
}

/// The expected output of a rank.
pub(super) fn expected(task: &Task, number: usize, rank: u16, size: u16) -> Vec<u8> {
    let op = task.operation;
    let reduced = |index: u64| {
        (1..size).fold(contribution(op, number, 0, index), |sum, r| {
            fold(op, sum, contribution(op, number, r, index))
        })
    };
    let n = task.elements;
    match task.collective {
        Collective::AllReduce => elements(task, (0..n).map(reduced)),
        Collective::Reduce { root } if root == rank => elements(task, (0..n).map(reduced)),
        Collective::Broadcast { root } if root != rank => {
            elements(task, (0..n).map(|i| contribution(op, number, root, i)))
        }
        Collective::ReduceScatter => elements(task, (0..n).map(|i| reduced(u64::from(rank) * n + i))),
        Collective::AllGather => {
            let all = (0..size).flat_map(|r| (0..n).map(move |i| contribution(op, number, r, i)));
            elements(task, all)
        }
        _ => Vec::new(),
    }
}

/// Any collective among `size` ranks, of up to `most` elements.
pub(super) fn any_task(size: u16, most: u64) -> impl Strategy<Value = Task> {
    let collective = prop_oneof![
        Just(Collective::AllReduce),
        (0..size).prop_map(|root| Collective::Reduce { root }),
        (0..size).prop_map(|root| Collective::Broadcast { root }),
        Just(Collective::Barrier),
        Just(Collective::ReduceScatter),
        Just(Collective::AllGather),
    ];
    let elements = prop_oneof![Just(0), 1..=most, Just(most)];
    (collective, 0..10_usize, 0..12_usize, elements).prop_map(|(collective, op, ty, elements)| {
        let data_type = TYPES[ty];
        let operation = match OPERATIONS[op] {
            op if op.supports(data_type) => op,
            _ => Operation::Sum,
        };
        match collective {
            Collective::Barrier => Task::BARRIER,
            collective => Task {
                collective,
                operation,
                data_type,
                flags: CallFlags::default(),
                elements,
            },
        }
    })
}
