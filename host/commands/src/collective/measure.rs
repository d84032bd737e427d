//! Measures one size: warm-up, timed calls and a checked call, and the figures over all ranks.

use std::time::{Duration, Instant};

use castnet_comm::machine::Collective;
use castnet_comm::{Buffers, CommError, DataType, Operation, bf16, f16};
use castnet_console::exit::Failure;
use castnet_console::units;

use super::caller::Caller;
use super::failure::failure;
use super::numbers::{Number, contribution, reduced};
use super::table::{Row, path_name};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// What is called.
    pub collective: Collective,
    /// How it adds up.
    pub operation: Operation,
    /// Type of an element.
    pub data_type: DataType,
    /// Bytes of the data, as in [`Row`].
    pub bytes: u64,
    /// Measured calls.
    pub calls: Calls,
    /// Calls before them.
    pub warmup: u32,
    /// Checks every element in one more call.
    pub verify: bool,
    /// Sums of integers saturate.
    pub saturate: bool,
    /// The result overwrites the contribution.
    pub in_place: bool,
}

/// Number of measured calls.
#[derive(Clone, Copy, Debug)]
pub enum Calls {
    /// So many.
    Exactly(u32),
    /// As many as take so long, at least 3 and at most 1000.
    Within(Duration),
}

impl Calls {
    const LEAST: f64 = 3.0;
    const MOST: f64 = 1000.0;

    /// The same number at all ranks, where a call takes `seconds` at this one.
    fn agree(self, seconds: f64, caller: &mut Caller) -> Result<u32, CommError> {
        let span = match self {
            Self::Exactly(calls) => return Ok(calls),
            Self::Within(span) => span.as_secs_f64(),
        };
        let mut slowest = [seconds];
        caller.allreduce(&mut slowest, Operation::Max)?;
        let calls = span / slowest[0].max(1e-9);
        Ok(calls.clamp(Self::LEAST, Self::MOST) as u32)
    }
}

impl Measure {
    /// Calls `call` after each call.
    ///
    /// # Errors
    /// A call failed, or there is no memory for the data.
    pub fn run(&self, caller: &mut Caller, call: &mut dyn FnMut()) -> Result<Row, Trouble> {
        match self.data_type {
            DataType::F32 => self.typed::<f32>(caller, call),
            DataType::F16 => self.typed::<f16>(caller, call),
            DataType::Bf16 => self.typed::<bf16>(caller, call),
            DataType::F64 => self.typed::<f64>(caller, call),
            DataType::I8 => self.typed::<i8>(caller, call),
            DataType::I16 => self.typed::<i16>(caller, call),
            DataType::I32 => self.typed::<i32>(caller, call),
            DataType::I64 => self.typed::<i64>(caller, call),
            DataType::U8 => self.typed::<u8>(caller, call),
            DataType::U16 => self.typed::<u16>(caller, call),
            DataType::U32 => self.typed::<u32>(caller, call),
            DataType::U64 => self.typed::<u64>(caller, call),
        }
    }

    fn typed<T: Number>(&self, caller: &mut Caller, call: &mut dyn FnMut()) -> Result<Row, Trouble> {
        let size = usize::from(caller.size());
        let blocks = match self.collective {
            Collective::ReduceScatter | Collective::AllGather => size,
            _ => 1,
        };
        let count = self.bytes as usize / size_of::<T>() / blocks;
        let mut memory = Memory::<T>::new(self, count, size)?;
        // As in the OSU benchmarks, each call is timed alone, and all ranks begin together.
        let mut timed = |memory: &mut Memory<T>, caller: &mut Caller| -> Result<f64, CommError> {
            if self.collective != Collective::Barrier {
                caller.barrier()?;
            }
            let start = Instant::now();
            memory.call(self, caller)?;
            call();
            Ok(start.elapsed().as_secs_f64())
        };
        let start = Instant::now();
        for _ in 0..self.warmup {
            timed(&mut memory, caller)?;
        }
        let warmup = start.elapsed().as_secs_f64() / f64::from(self.warmup.max(1));
        let iterations = self.calls.agree(warmup, caller)?;
        let mut times = (0..iterations)
            .map(|_| timed(&mut memory, caller))
            .collect::<Result<Vec<f64>, CommError>>()?;
        let ranks_path = caller.last_path().name();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let median = median(&mut times);
        let wrong = if self.verify {
            memory.fill(self, caller, count);
            memory.call(self, caller)?;
            let mut wrong = [memory.wrong(self, caller, count)];
            caller.allreduce(&mut wrong, Operation::Sum)?;
            Some(wrong[0])
        } else {
            None
        };
        let mut over_ranks = |value: f64, operation| -> Result<f64, CommError> {
            let mut value = [value];
            caller.allreduce(&mut value, operation)?;
            Ok(value[0])
        };
        let average = over_ranks(mean, Operation::Sum)? / size as f64;
        let (min, max) = (
            over_ranks(mean, Operation::Min)?,
            over_ranks(mean, Operation::Max)?,
        );
        let median = over_ranks(median, Operation::Sum)? / size as f64;
        let bytes = (count * size_of::<T>() * blocks) as u64;
        let rate = bytes as f64 / average / 1e9;
        let root = match self.collective {
            Collective::Reduce { root } | Collective::Broadcast { root } => Some(root),
            _ => None,
        };
        let op = match self.collective {
            Collective::Broadcast { .. } | Collective::Barrier | Collective::AllGather => "-".to_owned(),
            _ => self.operation.to_string(),
        };
        Ok(Row {
            collective: self.collective.name(),
            bytes,
            count: count as u64,
            data_type: match self.collective {
                Collective::Barrier => "-".to_owned(),
                _ => self.data_type.to_string(),
            },
            op,
            root,
            in_place: self.in_place,
            ranks: caller.size(),
            path: path_name(&caller.path()?),
            ranks_path,
            iterations,
            time_avg_us: average * 1e6,
            time_median_us: median * 1e6,
            time_min_us: min * 1e6,
            time_max_us: max * 1e6,
            algbw_gb_s: rate,
            busbw_gb_s: rate * bus_factor(self.collective, size),
            wrong,
        })
    }
}

/// Of at least one time.
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Why a measurement ended.
#[derive(Debug)]
pub enum Trouble {
    /// A call failed.
    Call(CommError),
    /// The data does not fit into memory.
    Memory {
        /// Bytes of the buffer.
        bytes: u64,
    },
}

impl From<CommError> for Trouble {
    fn from(error: CommError) -> Self {
        Self::Call(error)
    }
}

impl Trouble {
    /// As a command reports it.
    pub fn failure(self, job: &str) -> Failure {
        match self {
            Self::Call(error) => failure(error, job),
            Self::Memory { bytes } => {
                Failure::failed(format!("no memory for a buffer of {}", units::bytes(bytes)))
                    .next("ask for less: --bytes")
            }
        }
    }
}

/// How often each byte crosses each link of a ring, as nccl-tests computes it.
fn bus_factor(collective: Collective, size: usize) -> f64 {
    let n = size as f64;
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::ReduceScatter | Collective::AllGather => (n - 1.0) / n,
        Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => 1.0,
    }
}

/// In place, only `from` is used.
struct Memory<T> {
    from: Vec<T>,
    to: Vec<T>,
}

impl<T: Number> Memory<T> {
    fn new(measure: &Measure, count: usize, size: usize) -> Result<Self, Trouble> {
        let (input, output) = match measure.collective {
            Collective::AllReduce | Collective::Reduce { .. } => (count, count),
            Collective::Broadcast { .. } => (count, 0),
            Collective::Barrier => (0, 0),
            Collective::ReduceScatter => (count * size, count),
            Collective::AllGather => (count, count * size),
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

    fn call(&mut self, measure: &Measure, caller: &mut Caller) -> Result<(), CommError> {
        let (from, to) = (&mut self.from, &mut self.to);
        let buffers = match measure.collective {
            Collective::Barrier => return caller.barrier(),
            Collective::Broadcast { .. } => Buffers::InPlace(from),
            _ if measure.in_place => Buffers::InPlace(from),
            _ => Buffers::Apart(from, to),
        };
        caller.call(measure.collective, measure.operation, buffers)
    }

    /// Sets this rank's contribution, and another value everywhere else.
    fn fill(&mut self, measure: &Measure, caller: &Caller, count: usize) {
        let (rank, size) = (caller.rank(), caller.size());
        let other = T::of(99);
        self.to.fill(other);
        let own = match measure.collective {
            Collective::Broadcast { root } if rank != root => {
                self.from.fill(other);
                return;
            }
            Collective::AllGather if measure.in_place => {
                let begin = usize::from(rank) * count;
                self.from.fill(other);
                &mut self.from[begin..begin + count]
            }
            _ => &mut self.from[..],
        };
        for (index, element) in own.iter_mut().enumerate() {
            *element = T::of(contribution(measure.operation, rank, size, index as u64));
        }
    }

    fn wrong(&self, measure: &Measure, caller: &Caller, count: usize) -> u64 {
        let (rank, size, op) = (caller.rank(), caller.size(), measure.operation);
        let own = usize::from(rank) * count;
        let has_two_buffers =
            !measure.in_place && !matches!(measure.collective, Collective::Broadcast { .. });
        let result = if has_two_buffers { &self.to } else { &self.from };
        let sum = |index: usize| reduced::<T>(op, size, index as u64, measure.saturate);
        let of = |rank, index: usize| T::of(contribution(op, rank, size, index as u64));
        let wrong = |result: &[T], expected: &dyn Fn(usize) -> T| {
            let elements = result.iter().enumerate();
            elements.filter(|&(index, got)| *got != expected(index)).count() as u64
        };
        match measure.collective {
            Collective::Barrier => 0,
            Collective::Reduce { root } if rank != root => 0,
            Collective::AllReduce | Collective::Reduce { .. } => wrong(result, &sum),
            Collective::Broadcast { root } => wrong(result, &|index| of(root, index)),
            Collective::ReduceScatter => {
                let block = if measure.in_place {
                    own..own + count
                } else {
                    0..count
                };
                wrong(&result[block], &|index| sum(own + index))
            }
            Collective::AllGather => wrong(result, &|index| of((index / count) as u16, index % count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_computed_as_for_a_ring() {
        assert!((bus_factor(Collective::AllReduce, 4) - 1.5).abs() < 1e-9);
        assert!((bus_factor(Collective::AllGather, 4) - 0.75).abs() < 1e-9);
        assert_eq!(bus_factor(Collective::Broadcast { root: 0 }, 4), 1.0);
    }

    #[test]
    fn buffers_that_fit_no_machine_are_an_error() {
        let measure = Measure {
            collective: Collective::AllReduce,
            operation: Operation::Sum,
            data_type: DataType::F32,
            bytes: u64::MAX / 2,
            calls: Calls::Exactly(1),
            warmup: 0,
            verify: false,
            saturate: false,
            in_place: true,
        };
        let trouble = Memory::<f32>::new(&measure, usize::MAX / 8, 4)
            .err()
            .expect("no room");
        let failure = trouble.failure("job");
        assert!(failure.code() == 1 && failure.next.is_some(), "{failure:?}");
    }
}
