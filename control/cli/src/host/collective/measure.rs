//! One size: warm-up, calls with the clock, a checked call, and what all ranks saw.

use std::time::Instant;

use castnet_comm::{CommError, Communicator, DataType, Operation, bf16, f16};
use castnet_console::exit::Failure;
use castnet_console::units;

use super::Which;
use super::failure::failure;
use super::numbers::{Number, contribution, reduced};
use super::table::{Row, path_name};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) which: Which,
    pub(super) operation: Operation,
    pub(super) root: u16,
    pub(super) data_type: DataType,
    pub(super) bytes: u64,
    pub(super) iters: u32,
    pub(super) warmup: u32,
    pub(super) verify: bool,
    pub(super) in_place: bool,
}

impl Measure {
    /// Measures; `call` hears of each call that is over.
    pub(super) fn run(
        &self,
        communicator: &mut Communicator,
        call: &mut dyn FnMut(),
    ) -> Result<Row, Trouble> {
        match self.data_type {
            DataType::F32 => self.typed::<f32>(communicator, call),
            DataType::F16 => self.typed::<f16>(communicator, call),
            DataType::Bf16 => self.typed::<bf16>(communicator, call),
            DataType::F64 => self.typed::<f64>(communicator, call),
            DataType::I8 => self.typed::<i8>(communicator, call),
            DataType::I16 => self.typed::<i16>(communicator, call),
            DataType::I32 => self.typed::<i32>(communicator, call),
            DataType::I64 => self.typed::<i64>(communicator, call),
            DataType::U8 => self.typed::<u8>(communicator, call),
            DataType::U16 => self.typed::<u16>(communicator, call),
            DataType::U32 => self.typed::<u32>(communicator, call),
            DataType::U64 => self.typed::<u64>(communicator, call),
        }
    }

    fn has_blocks(&self) -> bool {
        matches!(self.which, Which::ReduceScatter | Which::AllGather)
    }

    fn typed<T: Number>(
        &self,
        communicator: &mut Communicator,
        call: &mut dyn FnMut(),
    ) -> Result<Row, Trouble> {
        let size = usize::from(communicator.size());
        let blocks = if self.has_blocks() { size } else { 1 };
        let count = self.bytes as usize / size_of::<T>() / blocks;
        let mut memory = Memory::<T>::new(self, count, size)?;
        for _ in 0..self.warmup {
            memory.call(self, communicator)?;
            call();
        }
        // As the OSU benchmarks do: each call is timed alone, and all begin together.
        let mut seconds = 0.0;
        for _ in 0..self.iters {
            if self.which != Which::Barrier {
                communicator.barrier()?;
            }
            let start = Instant::now();
            memory.call(self, communicator)?;
            seconds += start.elapsed().as_secs_f64();
            call();
        }
        let mean = seconds / f64::from(self.iters);
        let wrong = if self.verify {
            memory.fill(self, communicator, count);
            memory.call(self, communicator)?;
            let mut wrong = [memory.wrong(self, communicator, count)];
            communicator.allreduce(&mut wrong, Operation::Sum)?;
            call();
            Some(wrong[0])
        } else {
            None
        };
        let mut over_ranks = |operation| -> Result<f64, CommError> {
            let mut value = [mean];
            communicator.allreduce(&mut value, operation)?;
            Ok(value[0])
        };
        let average = over_ranks(Operation::Sum)? / size as f64;
        let (min, max) = (over_ranks(Operation::Min)?, over_ranks(Operation::Max)?);
        let bytes = (count * size_of::<T>() * blocks) as u64;
        let rate = bytes as f64 / average / 1e9;
        let reduces = !matches!(self.which, Which::Broadcast | Which::Barrier | Which::AllGather);
        let rooted = matches!(self.which, Which::Reduce | Which::Broadcast);
        Ok(Row {
            collective: self.which.name(),
            bytes,
            count: count as u64,
            data_type: match self.which {
                Which::Barrier => "-".to_owned(),
                _ => self.data_type.to_string(),
            },
            op: if reduces {
                self.operation.to_string()
            } else {
                "-".to_owned()
            },
            root: rooted.then_some(self.root),
            in_place: self.in_place,
            ranks: communicator.size(),
            path: path_name(communicator.path()),
            iterations: self.iters,
            time_avg_us: average * 1e6,
            time_min_us: min * 1e6,
            time_max_us: max * 1e6,
            algbw_gb_s: rate,
            busbw_gb_s: rate * bus_factor(self.which, size),
            wrong,
        })
    }
}

/// Why a size could not be measured.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The collective failed.
    Call(CommError),
    /// The machine has no room for the buffers.
    Memory { bytes: u64 },
}

impl From<CommError> for Trouble {
    fn from(error: CommError) -> Self {
        Self::Call(error)
    }
}

impl Trouble {
    /// For the user.
    pub(super) fn told(self, job: &str) -> Failure {
        match self {
            Self::Call(error) => failure(error, job),
            Self::Memory { bytes } => {
                Failure::failed(format!("no memory for a buffer of {}", units::bytes(bytes)))
                    .next("ask for less: --bytes")
            }
        }
    }
}

/// What each link carries of each byte, as nccl-tests reckons it for a ring.
fn bus_factor(which: Which, size: usize) -> f64 {
    let n = size as f64;
    match which {
        Which::AllReduce => 2.0 * (n - 1.0) / n,
        Which::ReduceScatter | Which::AllGather => (n - 1.0) / n,
        Which::Reduce | Which::Broadcast | Which::Barrier => 1.0,
    }
}

/// A rank's buffers; in place, only the first one is used.
struct Memory<T> {
    from: Vec<T>,
    to: Vec<T>,
}

impl<T: Number> Memory<T> {
    fn new(measure: &Measure, count: usize, size: usize) -> Result<Self, Trouble> {
        let (input, output) = match measure.which {
            Which::AllReduce | Which::Reduce => (count, count),
            Which::Broadcast => (count, 0),
            Which::Barrier => (0, 0),
            Which::ReduceScatter => (count * size, count),
            Which::AllGather => (count, count * size),
        };
        let ones = |n: usize| -> Result<Vec<T>, Trouble> {
            let mut memory = Vec::new();
            memory.try_reserve_exact(n).map_err(|_| Trouble::Memory {
                bytes: n.saturating_mul(size_of::<T>()) as u64,
            })?;
            memory.resize(n, T::of(1));
            Ok(memory)
        };
        let (from, to) = match measure.in_place {
            true => (input.max(output), 0),
            false => (input, output),
        };
        Ok(Self {
            from: ones(from)?,
            to: ones(to)?,
        })
    }

    fn call(&mut self, measure: &Measure, communicator: &mut Communicator) -> Result<(), CommError> {
        let (op, root) = (measure.operation, measure.root);
        let (from, to) = (&mut self.from, &mut self.to);
        match (measure.which, measure.in_place) {
            (Which::AllReduce, true) => communicator.allreduce(from, op),
            (Which::AllReduce, false) => communicator.allreduce((&*from, to), op),
            (Which::Reduce, true) => communicator.reduce(from, op, root),
            (Which::Reduce, false) => communicator.reduce((&*from, to), op, root),
            (Which::Broadcast, _) => communicator.broadcast(from, root),
            (Which::Barrier, _) => communicator.barrier(),
            (Which::ReduceScatter, true) => communicator.reduce_scatter(from, op),
            (Which::ReduceScatter, false) => communicator.reduce_scatter((&*from, to), op),
            (Which::AllGather, true) => communicator.allgather(from),
            (Which::AllGather, false) => communicator.allgather((&*from, to)),
        }
    }

    /// Puts this rank's contribution where it must be, and something else everywhere else.
    fn fill(&mut self, measure: &Measure, communicator: &Communicator, count: usize) {
        let (rank, size) = (communicator.rank(), communicator.size());
        let other = T::of(99);
        self.to.fill(other);
        let value = |index: usize| T::of(contribution(measure.operation, rank, size, index as u64));
        match measure.which {
            Which::Broadcast if rank != measure.root => self.from.fill(other),
            Which::AllGather if measure.in_place => {
                self.from.fill(other);
                let own = usize::from(rank) * count;
                for (index, element) in self.from[own..own + count].iter_mut().enumerate() {
                    *element = value(index);
                }
            }
            _ => {
                for (index, element) in self.from.iter_mut().enumerate() {
                    *element = value(index);
                }
            }
        }
    }

    /// Elements of the result that are not as they must.
    fn wrong(&self, measure: &Measure, communicator: &Communicator, count: usize) -> u64 {
        let (rank, size, op) = (communicator.rank(), communicator.size(), measure.operation);
        let saturates = communicator.config().saturate;
        let own = usize::from(rank) * count;
        let result = if measure.in_place || measure.which == Which::Broadcast {
            &self.from
        } else {
            &self.to
        };
        let all = |index: usize| reduced::<T>(op, size, index as u64, saturates);
        let of = |rank, index: usize| T::of(contribution(op, rank, size, index as u64));
        let differs = |(got, must): (&T, T)| *got != must;
        let wrong = match measure.which {
            Which::Barrier => 0,
            Which::Reduce if rank != measure.root => 0,
            Which::AllReduce | Which::Reduce => result
                .iter()
                .zip((0..count).map(all))
                .filter(|&p| differs(p))
                .count(),
            Which::Broadcast => {
                let must = (0..count).map(|i| of(measure.root, i));
                result.iter().zip(must).filter(|&p| differs(p)).count()
            }
            Which::ReduceScatter => {
                let block = if measure.in_place {
                    &result[own..own + count]
                } else {
                    &result[..]
                };
                let must = (own..own + count).map(all);
                block.iter().zip(must).filter(|&p| differs(p)).count()
            }
            Which::AllGather => {
                let must = (0..size).flat_map(|r| (0..count).map(move |i| of(r, i)));
                result.iter().zip(must).filter(|&p| differs(p)).count()
            }
        };
        wrong as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_reckoned_as_for_a_ring() {
        assert!((bus_factor(Which::AllReduce, 4) - 1.5).abs() < 1e-9);
        assert!((bus_factor(Which::AllGather, 4) - 0.75).abs() < 1e-9);
        assert_eq!(bus_factor(Which::Broadcast, 4), 1.0);
    }

    #[test]
    fn buffers_that_fit_no_machine_are_an_error() {
        let measure = Measure {
            which: Which::AllReduce,
            operation: Operation::Sum,
            root: 0,
            data_type: DataType::F32,
            bytes: u64::MAX / 2,
            iters: 1,
            warmup: 0,
            verify: false,
            in_place: true,
        };
        let trouble = Memory::<f32>::new(&measure, usize::MAX / 8, 4)
            .err()
            .expect("no room");
        let failure = trouble.told("job");
        assert!(failure.code() == 1 && failure.next.is_some(), "{failure:?}");
    }
}
