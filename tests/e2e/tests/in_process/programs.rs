//! Programs of collectives drawn from a seed, over groups of drawn windows, policies and losses, in the network and between hosts.
//! `CASTNET_SEED` runs one seed again, `CASTNET_SOAK_RUNS` more of them.

use std::sync::Arc;

use crate::fabric::{Fabric, STAR, TWO_TIERS};
use castnet_comm::{
    CommConfig, CommError, Communicator, Fallback, LossPolicy, Operation, OwnedBuffers, Request,
};
use castnet_runner::{Comm, Pending, Runner};
use castnet_wire::Pmtu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One step of a program, the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    AllReduce,
    Reduce(u16),
    Broadcast(u16),
    ReduceScatter,
    AllGather,
    Barrier,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    step: Step,
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
        step: match random.random_range(0..6) {
            0 => Step::AllReduce,
            1 => Step::Reduce(random.random_range(0..size)),
            2 => Step::Broadcast(random.random_range(0..size)),
            3 => Step::ReduceScatter,
            4 => Step::AllGather,
            _ => Step::Barrier,
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

/// What a communicator of a thread and one of a runner have in common.
pub(crate) trait Collectives {
    type Running;

    fn ranks(&self) -> (u16, u16);
    fn barrier(&mut self);
    fn begin(&mut self, step: Step, operation: Operation, buffers: OwnedBuffers<i32>) -> Self::Running;
    fn end(&mut self, running: Self::Running) -> Result<Vec<i32>, CommError>;
}

macro_rules! collectives {
    ($comm:ty, $running:ty, $started:expr, $end:expr) => {
        impl Collectives for $comm {
            type Running = $running;

            fn ranks(&self) -> (u16, u16) {
                (self.rank(), self.size())
            }

            fn barrier(&mut self) {
                <$comm>::barrier(self).expect("barrier");
            }

            fn begin(&mut self, step: Step, operation: Operation, buffers: OwnedBuffers<i32>) -> $running {
                $started(match (step, buffers) {
                    (Step::Reduce(root), buffers) => self.ireduce(buffers, operation, root),
                    (Step::Broadcast(root), OwnedBuffers::InPlace(all)) => self.ibroadcast(all, root),
                    (Step::ReduceScatter, buffers) => self.ireduce_scatter(buffers, operation),
                    (Step::AllGather, buffers) => self.iallgather(buffers),
                    (_, buffers) => self.iallreduce(buffers, operation),
                })
            }

            fn end(&mut self, running: $running) -> Result<Vec<i32>, CommError> {
                $end(self, running)
            }
        }
    };
}

collectives!(
    Communicator,
    Request<i32>,
    |running: Result<_, CommError>| running.expect("started"),
    Communicator::wait
);
collectives!(
    Comm,
    Pending<i32>,
    |running| running,
    |_: &mut Comm, running: Pending<i32>| running.wait()
);

/// Starts a line, and gives what it must come to at this rank; `None` where nothing is promised.
pub(crate) fn start<C: Collectives>(
    comm: &mut C,
    number: usize,
    line: Line,
) -> (C::Running, Option<Vec<i32>>) {
    let ((rank, size), n) = (comm.ranks(), line.length);
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
    let (buffers, must) = match line.step {
        Step::AllReduce if line.in_place => (mine(n).into(), Some(all())),
        Step::AllReduce => ((mine(n), vec![7; n]).into(), Some(all())),
        Step::Reduce(root) => {
            let buffers = match line.in_place {
                true => mine(n).into(),
                false => (mine(n), vec![7; n]).into(),
            };
            (buffers, (rank == root).then(all))
        }
        Step::Broadcast(root) => {
            let buffer = if rank == root { mine(n) } else { vec![7; n] };
            let must = (0..n).map(|i| value(root, number, i)).collect();
            (buffer.into(), Some(must))
        }
        Step::ReduceScatter if line.in_place => {
            let blocks = mine(n * ranks);
            let mut must = blocks.clone();
            (0..n).for_each(|i| must[own + i] = reduced(own + i));
            (blocks.into(), Some(must))
        }
        Step::ReduceScatter => {
            let must = (0..n).map(|i| reduced(own + i)).collect();
            ((mine(n * ranks), vec![7; n]).into(), Some(must))
        }
        Step::AllGather => {
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
        Step::Barrier => {
            comm.barrier();
            (Vec::new().into(), Some(Vec::new()))
        }
    };
    (comm.begin(line.step, line.operation, buffers), must)
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

pub(crate) fn check<C: Collectives>(comm: &mut C, open: &mut Vec<Open<C::Running>>) {
    let (rank, _) = comm.ranks();
    for (number, line, request, must) in open.drain(..) {
        let got = comm
            .end(request)
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
