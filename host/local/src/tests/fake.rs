//! A network in this process: a board on which ranks put their contributions. The last one computes all results.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use castnet_comm::machine::Collective;
use castnet_comm::{Buffers, Collectives, CommError, DataType, Element, Operation, OwnedBuffers};
use castnet_reduce::CallFlags;

use crate::Network;

/// Longest wait for a rank that does not come.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
struct Given {
    collective: Collective,
    operation: Operation,
    data_type: DataType,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Calls {
    given: BTreeMap<u64, Vec<Option<Given>>>,
    results: BTreeMap<(u64, usize), Vec<u8>>,
    parts: BTreeMap<u64, (Vec<Option<bool>>, Option<Board>)>,
    gone: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Board {
    size: usize,
    calls: Arc<(Mutex<Calls>, Condvar)>,
}

impl Board {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            calls: Arc::default(),
        }
    }
}

/// A rank of it.
#[derive(Debug)]
pub(super) struct Fake {
    board: Board,
    rank: usize,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Started<T>(u64, PhantomData<T>);

impl Drop for Fake {
    /// The others get an error, as when the lease of a rank ends.
    fn drop(&mut self) {
        let (calls, changed) = &*self.board.calls;
        calls.lock().expect("no panic").gone = true;
        changed.notify_all();
    }
}

fn gone() -> CommError {
    CommError::GroupFailed {
        reason: "a rank is gone".to_owned(),
    }
}

impl Fake {
    pub(super) fn new(board: Board, rank: usize) -> Self {
        Self { board, rank, next: 0 }
    }

    fn when<R>(&self, mut ready: impl FnMut(&mut Calls) -> Option<R>) -> Result<R, CommError> {
        let (calls, changed) = &*self.board.calls;
        let (mut calls, start) = (calls.lock().expect("no panic"), Instant::now());
        loop {
            if let Some(result) = ready(&mut calls) {
                return Ok(result);
            }
            if calls.gone || start.elapsed() > PATIENCE {
                return Err(gone());
            }
            (calls, _) = changed.wait_timeout(calls, PATIENCE).expect("no panic");
        }
    }

    fn give<T: Element>(&mut self, collective: Collective, operation: Operation, bytes: Vec<u8>) -> u64 {
        let number = self.next;
        self.next += 1;
        let (calls, changed) = &*self.board.calls;
        let mut calls = calls.lock().expect("no panic");
        let given = calls
            .given
            .entry(number)
            .or_insert_with(|| vec![None; self.board.size]);
        given[self.rank] = Some(Given {
            collective,
            operation,
            data_type: T::DATA_TYPE,
            bytes,
        });
        if let Some(all) = given.iter().cloned().collect::<Option<Vec<_>>>() {
            calls.given.remove(&number);
            for (rank, result) in results(&all).into_iter().enumerate() {
                calls.results.insert((number, rank), result);
            }
            changed.notify_all();
        }
        number
    }

    fn take(&self, number: u64) -> Result<Vec<u8>, CommError> {
        self.when(|calls| calls.results.remove(&(number, self.rank)))
    }
}

/// The output of each rank, computed at once from all inputs, in rank order.
pub(super) fn slow(
    collective: Collective,
    operation: Operation,
    data_type: DataType,
    flags: CallFlags,
    inputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let sum = || {
        let mut sum = inputs[0].clone();
        for input in &inputs[1..] {
            castnet_reduce::reduce(operation, data_type, flags, &mut sum, input);
        }
        sum
    };
    let at_root = |root: u16, result: Vec<u8>| {
        let mut all = inputs.to_vec();
        all[usize::from(root)] = result;
        all
    };
    match collective {
        Collective::AllReduce => vec![sum(); inputs.len()],
        Collective::Reduce { root } => at_root(root, sum()),
        Collective::Broadcast { root } => vec![inputs[usize::from(root)].clone(); inputs.len()],
        Collective::Barrier => vec![Vec::new(); inputs.len()],
        Collective::ReduceScatter => {
            let (sum, block) = (sum(), inputs[0].len() / inputs.len());
            (0..inputs.len())
                .map(|rank| sum[rank * block..][..block].to_vec())
                .collect()
        }
        Collective::AllGather => vec![inputs.concat(); inputs.len()],
    }
}

fn results(all: &[Given]) -> Vec<Vec<u8>> {
    let first = &all[0];
    for other in all {
        assert_eq!(
            (
                other.collective,
                other.operation,
                other.data_type,
                other.bytes.len()
            ),
            (
                first.collective,
                first.operation,
                first.data_type,
                first.bytes.len()
            )
        );
    }
    let inputs: Vec<_> = all.iter().map(|given| given.bytes.clone()).collect();
    slow(
        first.collective,
        first.operation,
        first.data_type,
        CallFlags::NONE,
        &inputs,
    )
}

/// The elements of bytes that may lie anywhere.
pub(super) fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
        .collect()
}

impl Collectives for Fake {
    type Request<T: Element> = Started<T>;

    fn rank(&self) -> u16 {
        self.rank as u16
    }

    fn size(&self) -> u16 {
        self.board.size as u16
    }

    fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        // Only what this crate calls itself.
        let Buffers::Apart(from, to) = buffers else {
            unreachable!("separate buffers")
        };
        let number = self.give::<T>(collective, operation, bytemuck::cast_slice(from).to_vec());
        bytemuck::cast_slice_mut(to).copy_from_slice(&self.take(number)?);
        Ok(())
    }

    fn icall<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Started<T>, CommError> {
        // Only what this crate and its tests start.
        let OwnedBuffers::InPlace(data) = buffers else {
            unreachable!("in place")
        };
        let number = self.give::<T>(collective, operation, bytemuck::cast_slice(&data).to_vec());
        Ok(Started(number, PhantomData))
    }

    fn wait<T: Element>(&mut self, pending: Started<T>) -> Result<Vec<T>, CommError> {
        let bytes = self.take(pending.0)?;
        Ok(elements(&bytes))
    }

    fn test<T: Element>(&mut self, pending: &Started<T>) -> Result<bool, CommError> {
        let calls = self.board.calls.0.lock().expect("no panic");
        match calls.results.contains_key(&(pending.0, self.rank)) {
            true => Ok(true),
            false if calls.gone => Err(gone()),
            false => Ok(false),
        }
    }
}

impl Network for Fake {
    fn part(&mut self, is_in: bool) -> Result<Option<Self>, CommError> {
        let number = self.next;
        self.next += 1;
        let (size, rank) = (self.board.size, self.rank);
        {
            let (calls, changed) = &*self.board.calls;
            let mut calls = calls.lock().expect("no panic");
            let (given, board) = calls
                .parts
                .entry(number)
                .or_insert_with(|| (vec![None; size], None));
            given[rank] = Some(is_in);
            if let Some(all) = given.iter().copied().collect::<Option<Vec<_>>>() {
                *board = Some(Board::new(all.iter().filter(|is_in| **is_in).count()));
                changed.notify_all();
            }
        }
        self.when(|calls| {
            let (given, board) = calls.parts.get(&number)?;
            let place = given[..rank].iter().filter(|is_in| **is_in == Some(true)).count();
            let board = board.clone()?;
            Some(is_in.then(|| Self::new(board, place)))
        })
    }

    fn poll(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    fn close(mut self) -> Result<(), CommError> {
        let number = self.give::<u8>(Collective::Barrier, Operation::Sum, Vec::new());
        self.take(number).map(drop)
    }
}
