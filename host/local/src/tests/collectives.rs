//! Every collective, type and operation, over any layout, against the slow twin.

use castnet_comm::machine::Collective;
use castnet_comm::{Collectives, DataType, Element, Operation, bf16, f16};
use castnet_reduce::CallFlags;
use proptest::prelude::*;

use super::fake::{self, Fake, slow};
use super::{job, options};
use crate::{Hierarchical, RankPath};

#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    operation: Operation,
    data_type: DataType,
    /// Of one rank's block for ReduceScatter and AllGather, otherwise of the whole.
    elements: usize,
    in_place: bool,
}

/// Small whole numbers, which all types hold exactly, as are their sums and products over eight ranks.
fn number(rank: usize, index: usize, operation: Operation) -> u8 {
    let mixed = (index as u64 * 8 + rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
    match operation {
        Operation::Prod => 1 + (mixed & 1) as u8,
        _ => mixed as u8,
    }
}

trait Of: Element {
    fn of(value: u8) -> Self;
}

macro_rules! of {
    ($($t:ty),*) => { $(impl Of for $t { fn of(value: u8) -> Self { value as Self } })* };
}
of!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl Of for f16 {
    fn of(value: u8) -> Self {
        Self::from_f32(value.into())
    }
}

impl Of for bf16 {
    fn of(value: u8) -> Self {
        Self::from_f32(value.into())
    }
}

/// Makes the call at this rank, and returns an error if its memory is not as the slow twin says.
fn check<T: Of>(ranks: &mut Hierarchical<Fake>, case: Case) -> Result<(), String> {
    let (own, size) = (usize::from(ranks.rank()), usize::from(ranks.size()));
    let Case {
        collective,
        operation,
        elements,
        in_place,
        ..
    } = case;
    let given = match collective {
        Collective::Barrier => 0,
        Collective::ReduceScatter => elements * size,
        _ => elements,
    };
    let input = |rank| -> Vec<T> { (0..given).map(|i| T::of(number(rank, i, operation))).collect() };
    let inputs: Vec<Vec<u8>> = (0..size)
        .map(|rank| bytemuck::cast_slice(&input(rank)).to_vec())
        .collect();
    let results = slow(collective, operation, T::DATA_TYPE, CallFlags::NONE, &inputs);
    let expected: Vec<T> = fake::elements(&results[own]);
    let (block, other) = (own * elements, T::of(99));
    let called = match (collective, in_place) {
        (Collective::Barrier, _) => ranks.barrier().map(|()| (vec![], vec![])),
        (Collective::Broadcast { root }, _) => {
            let mut data = input(own);
            ranks.broadcast(&mut data, root).map(|()| (data, expected))
        }
        (Collective::Reduce { root }, false) if usize::from(root) != own => ranks
            .reduce(&input(own), operation, root)
            .map(|()| (vec![], vec![])),
        (Collective::AllReduce, true) => {
            let mut data = input(own);
            ranks.allreduce(&mut data, operation).map(|()| (data, expected))
        }
        (Collective::Reduce { root }, true) => {
            let mut data = input(own);
            ranks
                .reduce(&mut data, operation, root)
                .map(|()| (data, expected))
        }
        (Collective::ReduceScatter, true) => {
            // The other blocks are unchanged.
            let (mut data, mut must) = (input(own), input(own));
            must[block..block + elements].copy_from_slice(&expected);
            ranks.reduce_scatter(&mut data, operation).map(|()| (data, must))
        }
        (Collective::AllGather, true) => {
            let mut data = vec![other; elements * size];
            data[block..block + elements].copy_from_slice(&input(own));
            ranks.allgather(&mut data).map(|()| (data, expected))
        }
        (collective, false) => {
            let (from, mut to) = (input(own), vec![other; expected.len()]);
            let called = match collective {
                Collective::AllReduce => ranks.allreduce((&from, &mut to), operation),
                Collective::Reduce { root } => ranks.reduce((&from, &mut to), operation, root),
                Collective::ReduceScatter => ranks.reduce_scatter((&from, &mut to), operation),
                _ => ranks.allgather((&from, &mut to)),
            };
            called.map(|()| (to, expected))
        }
    };
    let (got, must) = called.map_err(|error| format!("rank {own}, {case:?}: {error}"))?;
    if ranks.last_path() != RankPath::Hierarchical {
        return Err(format!("rank {own} was direct"));
    }
    match got.iter().zip(&must).position(|(got, must)| got != must) {
        None if got.len() == must.len() => Ok(()),
        at => Err(format!("rank {own}, {case:?}: wrong at {at:?}")),
    }
}

fn check_any(ranks: &mut Hierarchical<Fake>, case: Case) -> Result<(), String> {
    match case.data_type {
        DataType::F32 => check::<f32>(ranks, case),
        DataType::F16 => check::<f16>(ranks, case),
        DataType::Bf16 => check::<bf16>(ranks, case),
        DataType::F64 => check::<f64>(ranks, case),
        DataType::I8 => check::<i8>(ranks, case),
        DataType::I16 => check::<i16>(ranks, case),
        DataType::I32 => check::<i32>(ranks, case),
        DataType::I64 => check::<i64>(ranks, case),
        DataType::U8 => check::<u8>(ranks, case),
        DataType::U16 => check::<u16>(ranks, case),
        DataType::U32 => check::<u32>(ranks, case),
        DataType::U64 => check::<u64>(ranks, case),
    }
}

fn check_all(hosts: &[u8], piece: usize, cases: &[Case]) {
    let ends = job(
        hosts,
        |_| (),
        options(piece),
        |ranks| {
            let mut ranks = ranks.map_err(|error| error.to_string())?;
            cases.iter().try_for_each(|case| check_any(&mut ranks, *case))?;
            ranks.close().map_err(|error| error.to_string())
        },
    );
    let failed: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{hosts:?}: {}", failed.join("\n"));
}

/// At least one host has several ranks.
fn hosts() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0_u8..4, 1..8).prop_map(|mut hosts| {
        hosts.push(hosts[0]);
        let last = hosts.len() - 1;
        hosts.swap(last / 2, last);
        hosts
    })
}

fn case() -> impl Strategy<Value = (usize, usize, Operation, DataType, usize, bool)> {
    let elements = prop_oneof![Just(0), Just(1), 2_usize..300, 1000_usize..9000];
    let (operation, data_type) = (
        prop::sample::select(Operation::ALL.to_vec()),
        prop::sample::select(DataType::ALL.to_vec()),
    );
    (
        0_usize..6,
        0_usize..8,
        operation,
        data_type,
        elements,
        any::<bool>(),
    )
}

fn collective(kind: usize, root: usize, size: usize) -> Collective {
    let root = (root % size) as u16;
    [
        Collective::AllReduce,
        Collective::Reduce { root },
        Collective::Broadcast { root },
        Collective::Barrier,
        Collective::ReduceScatter,
        Collective::AllGather,
    ][kind]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn results_are_those_of_a_plain_communicator(hosts in hosts(), calls in prop::collection::vec(case(), 1..12)) {
        let case = |(kind, root, operation, data_type, elements, in_place): (_, _, Operation, _, _, _)| Case {
            collective: collective(kind, root, hosts.len()),
            operation: if operation.supports(data_type) { operation } else { Operation::Max },
            data_type,
            elements,
            in_place,
        };
        let cases: Vec<_> = calls.into_iter().map(case).collect();
        check_all(&hosts, 4 << 10, &cases);
    }
}

/// Each type with each of its operations, on three hosts of 3, 1 and 2 ranks.
#[test]
fn every_type_and_operation() {
    let mut cases = Vec::new();
    for data_type in DataType::ALL.iter().copied() {
        for operation in Operation::ALL.iter().copied().filter(|op| op.supports(data_type)) {
            let collective = Collective::AllReduce;
            cases.push(Case {
                collective,
                operation,
                data_type,
                elements: 5000,
                in_place: true,
            });
        }
    }
    check_all(&[0, 1, 0, 2, 2, 0], 4 << 10, &cases);
}

#[test]
fn sizes_of_several_mib() {
    let cases: Vec<_> = (0..6)
        .flat_map(|kind| {
            [(500_001, DataType::F32), (3_000_017, DataType::U8)].map(|(elements, data_type)| Case {
                collective: collective(kind, 2, 4),
                operation: Operation::Sum,
                data_type,
                elements: if kind >= 4 { elements / 4 } else { elements },
                in_place: false,
            })
        })
        .collect();
    check_all(&[0, 1, 1, 0], 256 << 10, &cases);
}
