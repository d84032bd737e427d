//! One size: warm-up, calls with the clock, a checked call, and what all ranks saw.

use std::time::Instant;

use castnet_comm::{CommError, Communicator, DataType, Operation, bf16, f16};
use serde::Serialize;

use super::Which;
use super::numbers::{Number, contribution, reduced};
use crate::output::{Page, Report};

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

/// What it came to.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    collective: &'static str,
    /// Bytes as nccl-tests counts: of all ranks' blocks together for reducescatter and allgather.
    bytes: u64,
    /// Elements of a block, or of the whole.
    count: u64,
    #[serde(rename = "type")]
    data_type: String,
    op: String,
    root: Option<u16>,
    in_place: bool,
    iterations: u32,
    /// Mean over calls and ranks, microseconds.
    time_avg_us: f64,
    /// The fastest rank's mean.
    time_min_us: f64,
    /// The slowest rank's mean.
    time_max_us: f64,
    /// Bytes over mean time, GB/s.
    algbw_gb_s: f64,
    /// The same times what each link carries of each byte: comparable with a link's rate.
    busbw_gb_s: f64,
    /// Elements that were not as they must, at all ranks; absent where nobody looked.
    pub(super) wrong: Option<u64>,
}

/// Columns: name and width.
const COLUMNS: [(&str, usize); 10] = [
    ("size", 12),
    ("count", 12),
    ("type", 6),
    ("op", 7),
    ("time us", 11),
    ("min us", 11),
    ("max us", 11),
    ("algbw GB/s", 11),
    ("busbw GB/s", 11),
    ("#wrong", 7),
];

fn line(cells: &[String], verifies: bool) -> String {
    let count = COLUMNS.len() - usize::from(!verifies);
    let mut line = String::new();
    for (cell, (_, width)) in cells.iter().zip(COLUMNS).take(count) {
        line.push_str(&format!("{cell:>width$}"));
    }
    line + "\n"
}

impl Row {
    /// The names of the columns.
    pub(super) fn heading(verifies: bool) -> String {
        line(&COLUMNS.map(|(name, _)| name.to_uppercase()), verifies)
    }

    /// The figures.
    pub(super) fn line(&self, verifies: bool) -> String {
        let time = |us: f64| format!("{us:.2}");
        let cells = [
            self.bytes.to_string(),
            self.count.to_string(),
            self.data_type.clone(),
            self.op.clone(),
            time(self.time_avg_us),
            time(self.time_min_us),
            time(self.time_max_us),
            format!("{:.4}", self.algbw_gb_s),
            format!("{:.4}", self.busbw_gb_s),
            self.wrong.map_or_else(|| "-".to_owned(), |w| w.to_string()),
        ];
        line(&cells, verifies)
    }
}

impl Report for Row {
    fn page(&self, page: &mut Page) {
        page.line(self.line(self.wrong.is_some()));
    }
}

impl Measure {
    pub(super) fn run(&self, communicator: &mut Communicator) -> Result<Row, CommError> {
        match self.data_type {
            DataType::F32 => self.typed::<f32>(communicator),
            DataType::F16 => self.typed::<f16>(communicator),
            DataType::Bf16 => self.typed::<bf16>(communicator),
            DataType::F64 => self.typed::<f64>(communicator),
            DataType::I8 => self.typed::<i8>(communicator),
            DataType::I16 => self.typed::<i16>(communicator),
            DataType::I32 => self.typed::<i32>(communicator),
            DataType::I64 => self.typed::<i64>(communicator),
            DataType::U8 => self.typed::<u8>(communicator),
            DataType::U16 => self.typed::<u16>(communicator),
            DataType::U32 => self.typed::<u32>(communicator),
            DataType::U64 => self.typed::<u64>(communicator),
        }
    }

    fn has_blocks(&self) -> bool {
        matches!(self.which, Which::ReduceScatter | Which::AllGather)
    }

    fn typed<T: Number>(&self, communicator: &mut Communicator) -> Result<Row, CommError> {
        let size = usize::from(communicator.size());
        let blocks = if self.has_blocks() { size } else { 1 };
        let count = self.bytes as usize / size_of::<T>() / blocks;
        let mut memory = Memory::<T>::new(self, count, size);
        for _ in 0..self.warmup {
            memory.call(self, communicator)?;
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
        }
        let mean = seconds / f64::from(self.iters);
        let wrong = if self.verify {
            memory.fill(self, communicator, count);
            memory.call(self, communicator)?;
            let mut wrong = [memory.wrong(self, communicator, count)];
            communicator.allreduce(&mut wrong, Operation::Sum)?;
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
            data_type: self.data_type.to_string(),
            op: if reduces {
                self.operation.to_string()
            } else {
                "-".to_owned()
            },
            root: rooted.then_some(self.root),
            in_place: self.in_place,
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
    fn new(measure: &Measure, count: usize, size: usize) -> Self {
        let (input, output) = match measure.which {
            Which::AllReduce | Which::Reduce => (count, count),
            Which::Broadcast => (count, 0),
            Which::Barrier => (0, 0),
            Which::ReduceScatter => (count * size, count),
            Which::AllGather => (count, count * size),
        };
        let zeros = |n: usize| vec![T::of(1); n];
        if measure.in_place {
            Self {
                from: zeros(input.max(output)),
                to: Vec::new(),
            }
        } else {
            Self {
                from: zeros(input),
                to: zeros(output),
            }
        }
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
    fn figures_stand_under_their_names() {
        let row = Row {
            collective: "allreduce",
            bytes: 4096,
            count: 1024,
            data_type: "f32".to_owned(),
            op: "sum".to_owned(),
            root: None,
            in_place: false,
            iterations: 20,
            time_avg_us: 51.234,
            time_min_us: 50.0,
            time_max_us: 53.0,
            algbw_gb_s: 0.08,
            busbw_gb_s: 0.12,
            wrong: Some(0),
        };
        let (heading, line) = (Row::heading(true), row.line(true));
        assert_eq!(heading.len(), line.len());
        assert!(line.contains("4096") && line.trim_end().ends_with('0'), "{line}");
        assert!(Row::heading(false).len() < heading.len());
        assert!((bus_factor(Which::AllReduce, 4) - 1.5).abs() < 1e-9);
    }
}
