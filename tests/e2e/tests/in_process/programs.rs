//! Programs of collectives drawn from a seed, over groups of drawn windows, policies and losses, in the network and between hosts.
//! `CASTNET_SEED` runs one seed again, `CASTNET_SOAK_RUNS` more of them.

use std::sync::Arc;

use crate::fabric::{Fabric, STAR, TWO_TIERS};
use castnet_comm::machine::Collective;
use castnet_comm::{Collectives, CommConfig, Communicator, Fallback, LossPolicy, Operation, OwnedBuffers};
use castnet_runner::Runner;
use castnet_wire::Pmtu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One step of a program, the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    collective: Collective,
    operation: Operation,
    length: usize,
    in_place: bool,
    pub(crate) blocking: bool,
}

/// A line for a communicator of `size` ranks.
pub(crate) fn line(random: &mut ChaCha8Rng, size: u16) -> Line {
    let operations = [
        Operation::Sum,
        Operation::Min,
        Operation::Max,
        Operation::BitXor,
        Operation::BitOr,
    ];
    Line {
        collective: match random.random_range(0..6) {
            0 => Collective::AllReduce,
            1 => Collective::Reduce {
                root: random.random_range(0..size),
            },
            2 => Collective::Broadcast {
                root: random.random_range(0..size),
            },
            3 => Collective::ReduceScatter,
            4 => Collective::AllGather,
            _ => Collective::Barrier,
        },
        operation: operations[random.random_range(0..operations.len())],
        length: match random.random_range(0..4) {
            0 => random.random_range(0..4),
            1 => 256,
            2 => random.random_range(0..2000),
            _ => random.random_range(2000..12_000),
        },
        in_place: random.random(),
        blocking: random.random(),
    }
}

/// Drawn from rank, place in the program and index.
fn value(rank: u16, line: usize, index: usize) -> i32 {
    (index as u32)
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(u32::from(rank) << 16)
        .wrapping_add(line as u32)
        .wrapping_mul(0x85EB_CA6B) as i32
}

fn fold(operation: Operation, a: i32, b: i32) -> i32 {
    match operation {
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::BitXor => a ^ b,
        Operation::BitOr => a | b,
        _ => a.wrapping_add(b),
    }
}

/// Starts a line, and gives what it must come to at this rank; `None` where nothing is promised.
pub(crate) fn start<C: Collectives>(
    comm: &mut C,
    number: usize,
    line: Line,
) -> (C::Request<i32>, Option<Vec<i32>>) {
    let (rank, size, n) = (comm.rank(), comm.size(), line.length);
    let ranks = usize::from(size);
    let own = usize::from(rank) * n;
    let mine = |length: usize| (0..length).map(|i| value(rank, number, i)).collect::<Vec<_>>();
    let reduced = |index: usize| {
        let values = (0..size).map(|r| value(r, number, index));
        values
            .reduce(|a, b| fold(line.operation, a, b))
            .unwrap_or_default()
    };
    let all = || (0..n).map(reduced).collect::<Vec<_>>();
    let (buffers, must): (OwnedBuffers<i32>, _) = match line.collective {
        Collective::AllReduce if line.in_place => (mine(n).into(), Some(all())),
        Collective::AllReduce => ((mine(n), vec![7; n]).into(), Some(all())),
        Collective::Reduce { root } => {
            let buffers = match line.in_place {
                true => mine(n).into(),
                false => (mine(n), vec![7; n]).into(),
            };
            (buffers, (rank == root).then(all))
        }
        Collective::Broadcast { root } => {
            let buffer = if rank == root { mine(n) } else { vec![7; n] };
            let must = (0..n).map(|i| value(root, number, i)).collect();
            (buffer.into(), Some(must))
        }
        Collective::ReduceScatter if line.in_place => {
            let blocks = mine(n * ranks);
            let mut must = blocks.clone();
            (0..n).for_each(|i| must[own + i] = reduced(own + i));
            (blocks.into(), Some(must))
        }
        Collective::ReduceScatter => {
            let must = (0..n).map(|i| reduced(own + i)).collect();
            ((mine(n * ranks), vec![7; n]).into(), Some(must))
        }
        Collective::AllGather => {
            let must = (0..size).flat_map(|r| (0..n).map(move |i| value(r, number, i)));
            let buffers = if line.in_place {
                let mut blocks = vec![7; n * ranks];
                blocks[own..own + n].copy_from_slice(&mine(n));
                blocks.into()
            } else {
                (mine(n), vec![7; n * ranks]).into()
            };
            (buffers, Some(must.collect()))
        }
        Collective::Barrier => (Vec::new().into(), Some(Vec::new())),
    };
    let started = comm.icall(line.collective, line.operation, buffers);
    (started.expect("started"), must)
}

fn run(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (plan, size) = if random.random() {
        (STAR, 3_u16)
    } else {
        (TWO_TIERS, 5)
    };
    let lines = random.random_range(3..14);
    let lines: Arc<Vec<_>> = Arc::new((0..lines).map(|_| line(&mut random, size)).collect());
    let pmtu = [Pmtu::B256, Pmtu::B1024, Pmtu::B4096][random.random_range(0..3)];
    let window = random.random_range(2..100);
    let message = random.random_range(1..=window);
    let loss = [0.0, 0.005, 0.02][random.random_range(0..3)];
    let policy = if random.random() {
        LossPolicy::Repair
    } else {
        LossPolicy::Reflect
    };
    let (reproducible, hosts_only) = (random.random(), random.random_range(0..4) == 0);
    let in_runner: bool = random.random();
    println!(
        "seed {seed}: {size} ranks, {pmtu:?}, window {window}, messages of {message}, loss {loss}, {policy:?}, reproducible {reproducible}, between hosts {hosts_only}, in a runner {in_runner}"
    );
    let fabric = Fabric::start(plan, seed);
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            let host = fabric.hosts[usize::from(rank)].clone();
            let mut config = CommConfig::new(fabric.controller(), "program", rank, size, host.name.clone());
            config.pmtu = pmtu;
            config.window_packets = window;
            config.message_packets = message;
            config.loss = policy;
            config.reproducible = reproducible;
            config.qp_timeout = 14;
            config.fallback = if hosts_only {
                Fallback::Only
            } else {
                Fallback::Forbidden
            };
            let lines = lines.clone();
            std::thread::spawn(move || {
                if in_runner {
                    let runner = Runner::start::<()>(move || Ok(host.rnic())).expect("a runner");
                    let mut comm = runner.connect(config).expect("connected");
                    follow(&mut comm, &lines);
                    comm.close().expect("closed");
                } else {
                    let mut comm = Communicator::connect(config, host.rnic()).expect("connected");
                    follow(&mut comm, &lines);
                    comm.close().expect("closed");
                }
            })
        })
        .collect();
    fabric.lose(loss);
    let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
    assert!(ended.iter().all(Result::is_ok), "seed {seed}: {lines:?}");
    fabric.stop();
}

fn follow<C: Collectives>(comm: &mut C, lines: &[Line]) {
    let mut open = Vec::new();
    for (number, &line) in lines.iter().enumerate() {
        let (running, must) = start(comm, number, line);
        open.push((number, line, running, must));
        if line.blocking {
            check(comm, &mut open);
        }
    }
    check(comm, &mut open);
}

pub(crate) type Open<R> = (usize, Line, R, Option<Vec<i32>>);

pub(crate) fn check<C: Collectives>(comm: &mut C, open: &mut Vec<Open<C::Request<i32>>>) {
    let rank = comm.rank();
    for (number, line, request, must) in open.drain(..) {
        let got = comm
            .wait::<i32>(request)
            .unwrap_or_else(|e| panic!("rank {rank}, {number}: {line:?}: {e}"));
        if let Some(must) = must {
            assert!(got == must, "rank {rank}, {number}: {line:?} is wrong");
        }
    }
}

/// Runs the seed of the environment, or so many.
pub(crate) fn seeds(usual: u64, run: impl Fn(u64)) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match variable("CASTNET_SEED") {
        Some(seed) => run(seed),
        None => (0..variable("CASTNET_SOAK_RUNS").unwrap_or(usual)).for_each(run),
    }
}

#[test]
fn drawn_programs_give_what_they_must() {
    seeds(20, run);
}
