//! The communicator: what a program calls.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_rnic::Rnic;
use castnet_wire::control::{CallFlags, DataType, Operation};

use crate::buffers::{Bases, Buffers, Data, Owned, OwnedBuffers, OwnedData};
use crate::config::{CommConfig, CommPath, Progress};
use crate::control::{Control, Lease};
use crate::driver::{Borrowed, Driver};
use crate::element::Element;
use crate::error::CommError;
use crate::establish::GOODBYE;
use crate::machine::{Collective, Failure, Task, TaskId, Waiting};

/// A sleeping rank looks after its group this often.
const NAP: Duration = Duration::from_millis(20);
/// A rank that only polls looks after its group after so many turns.
const TURNS: u32 = 256;
/// How long a communicator that is dropped without being closed waits for the acknowledgements of what it sent.
const LINGER: Duration = Duration::from_millis(200);
/// A group that has failed may have told its ranks why in band: for so long that is waited for.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// A collective that runs on. Must be waited for: its memory stays with the communicator otherwise.
#[must_use = "a collective that runs on must be waited for"]
#[derive(Debug)]
pub struct Request<T> {
    task: TaskId,
    collective: Collective,
    /// Of which establishing.
    attempt: u64,
    _type: PhantomData<T>,
}

/// One rank of a job: its group of ranks, and collectives among them. All ranks call the same collectives in the same order.
///
/// Belongs to one thread. Collectives go on while it is in a call: a blocking one, [`Communicator::wait`],
/// [`Communicator::test`] or [`Communicator::progress`]. With a hardware RNIC, what is posted moves by itself.
pub struct Communicator {
    pub(crate) config: CommConfig,
    pub(crate) rnic: Box<dyn Rnic>,
    pub(crate) control: Option<Control>,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) driver: Option<Driver>,
    pub(crate) path: CommPath,
    pub(crate) generation: Option<u64>,
    /// The ranks' hosts, where known.
    pub(crate) names: Vec<String>,
    pub(crate) attempts: u64,
    /// The next call must establish the group again.
    pub(crate) broken: bool,
    /// The group came about, and failed before this rank saw it: the next call fails alike.
    pub(crate) stillborn: Option<CommError>,
}

/// What a call comes to: the task, and where in memory that is used in place its input and output are.
struct Shape {
    task: Task,
    bases: Bases,
}

impl Communicator {
    /// Connects this rank with all others of its job, over `rnic`; waits until all have come.
    ///
    /// # Errors
    /// A value out of its bounds; the controller cannot be reached or refuses; not all ranks come in time; with
    /// [`crate::Fallback::Forbidden`] the group cannot be had in the network.
    pub fn connect(config: CommConfig, rnic: Box<dyn Rnic>) -> Result<Self, CommError> {
        config.check()?;
        let mut communicator = Self {
            path: CommPath::HostBased {
                reason: "not connected".into(),
            },
            config,
            rnic,
            control: None,
            lease: None,
            driver: None,
            generation: None,
            names: Vec::new(),
            attempts: 0,
            broken: true,
            stillborn: None,
        };
        communicator.establish()?;
        Ok(communicator)
    }

    /// This rank.
    pub fn rank(&self) -> u16 {
        self.config.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// Which way its collectives take, and why.
    pub fn path(&self) -> &CommPath {
        &self.path
    }

    /// What it was made with.
    pub fn config(&self) -> &CommConfig {
        &self.config
    }

    /// The RNIC, for its attributes.
    pub fn rnic(&self) -> &dyn Rnic {
        &*self.rnic
    }

    /// Reduces all ranks' elements, one by one, and gives the result to all. Every rank has equally many.
    ///
    /// # Errors
    /// Any [`CommError`]; all ranks fail alike, though perhaps for other reasons.
    pub fn allreduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.blocking(Collective::AllReduce, operation, buffers.into())
    }

    /// Reduces all ranks' elements, and gives the result to `root`. The others may pass what they contribute alone.
    ///
    /// # Errors
    /// Any [`CommError`].
    pub fn reduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
        root: u16,
    ) -> Result<(), CommError> {
        self.blocking(Collective::Reduce { root }, operation, buffers.into())
    }

    /// Gives what `root` has to all.
    ///
    /// # Errors
    /// Any [`CommError`].
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: u16) -> Result<(), CommError> {
        self.blocking(
            Collective::Broadcast { root },
            Operation::Sum,
            Buffers::InPlace(buffer),
        )
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// Any [`CommError`].
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.blocking::<u8>(Collective::Barrier, Operation::Sum, Buffers::InPlace(&mut []))
    }

    /// Reduces all ranks' elements and gives rank i the i-th block of the result. The input has as many blocks as there are ranks; in
    /// place, the result is where this rank's block was, and the other blocks stay as they are.
    ///
    /// # Errors
    /// Any [`CommError`].
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.blocking(Collective::ReduceScatter, operation, buffers.into())
    }

    /// Gives all ranks' blocks to all. The output has as many blocks as there are ranks; in place, this rank's contribution is where
    /// its block is.
    ///
    /// # Errors
    /// Any [`CommError`].
    pub fn allgather<'a, T: Element>(&mut self, buffers: impl Into<Buffers<'a, T>>) -> Result<(), CommError> {
        self.blocking(Collective::AllGather, Operation::Sum, buffers.into())
    }

    /// [`Communicator::allreduce`] that runs on.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn iallreduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::AllReduce, operation, buffers.into())
    }

    /// [`Communicator::reduce`] that runs on. At all ranks but `root` the result is as the memory was.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn ireduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
        root: u16,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::Reduce { root }, operation, buffers.into())
    }

    /// [`Communicator::broadcast`] that runs on.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn ibroadcast<T: Element>(&mut self, buffer: Vec<T>, root: u16) -> Result<Request<T>, CommError> {
        self.begin(
            Collective::Broadcast { root },
            Operation::Sum,
            OwnedBuffers::InPlace(buffer),
        )
    }

    /// [`Communicator::barrier`] that runs on.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn ibarrier(&mut self) -> Result<Request<u8>, CommError> {
        self.begin(
            Collective::Barrier,
            Operation::Sum,
            OwnedBuffers::InPlace(Vec::new()),
        )
    }

    /// [`Communicator::reduce_scatter`] that runs on.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn ireduce_scatter<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::ReduceScatter, operation, buffers.into())
    }

    /// [`Communicator::allgather`] that runs on.
    ///
    /// # Errors
    /// Those that are known at once.
    pub fn iallgather<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::AllGather, Operation::Sum, buffers.into())
    }

    /// Waits for the end of a collective, and gives its result: the output, or, in place, all of the memory.
    ///
    /// # Errors
    /// Any [`CommError`]; the memory is lost then.
    pub fn wait<T: Element>(&mut self, request: Request<T>) -> Result<Vec<T>, CommError> {
        if request.attempt != self.attempts {
            return Err(CommError::Aborted);
        }
        let owned = self.run(request.task, request.collective, None)?;
        let data = owned.and_then(|o| o.into_any().downcast::<OwnedData<T>>().ok());
        Ok(data.map(|d| d.buffers.into_output()).unwrap_or_default())
    }

    /// Whether a collective has ended; lets all go on a bit. Never waits.
    ///
    /// # Errors
    /// The RNIC or the group has failed.
    pub fn test<T: Element>(&mut self, request: &Request<T>) -> Result<bool, CommError> {
        if request.attempt != self.attempts {
            return Ok(true);
        }
        self.progress()?;
        Ok(self.driver.as_ref().is_none_or(|d| d.is_done(request.task)))
    }

    /// Lets all collectives go on a bit; whether there was anything to do. Never waits.
    ///
    /// # Errors
    /// The RNIC or the group has failed.
    pub fn progress(&mut self) -> Result<bool, CommError> {
        let worked = self.turn(None)?;
        if !worked {
            self.look_after_group()?;
        }
        Ok(worked)
    }

    /// Waits until all ranks close, so that nobody misses an answer; then leaves. The group is destroyed.
    ///
    /// # Errors
    /// Not all ranks close in time, or the RNIC failed. It is left all the same.
    pub fn close(mut self) -> Result<(), CommError> {
        let result = self.goodbye();
        self.tear_down();
        self.lease = None;
        if let Some(control) = &self.control {
            control.leave();
            if self.config.rank == 0 && matches!(self.path, CommPath::InNetwork { .. }) {
                let answer = control.destroy(self.config.job.clone());
                let patience = self.config.timeouts.close;
                if let Err(error) = self.await_answer(&answer, patience) {
                    tracing::debug!(%error, job = self.config.job, "destroying the group");
                }
            }
        }
        result
    }

    fn goodbye(&mut self) -> Result<(), CommError> {
        if self.broken || self.config.size == 1 || self.config.is_interrupted() {
            return Ok(());
        }
        let patience = self.config.timeouts.close;
        self.drain(patience)?;
        let answer = self.exchange(GOODBYE, Vec::new(), patience)?;
        self.await_answer(&answer, patience)?;
        Ok(())
    }

    /// Waits until all that was sent is acknowledged, or `patience` is over.
    fn drain(&mut self, patience: Duration) -> Result<(), CommError> {
        let start = Instant::now();
        while let Some(driver) = &self.driver
            && !driver.machine().is_drained()
            && start.elapsed() < patience
        {
            if !self.turn(None)? {
                self.rnic.wait(NAP.min(patience))?;
            }
        }
        Ok(())
    }

    /// Checks a call, and lays its memory out. `output` is `None` where input and output are one memory.
    fn shape(
        &self,
        collective: Collective,
        operation: Operation,
        data_type: DataType,
        (input, output): (usize, Option<usize>),
    ) -> Result<Shape, CommError> {
        let (rank, size) = (self.config.rank, self.config.size);
        if let Collective::Reduce { root } | Collective::Broadcast { root } = collective
            && root >= size
        {
            return Err(CommError::NoSuchRank { rank: root, size });
        }
        let reduces = !matches!(
            collective,
            Collective::Broadcast { .. } | Collective::Barrier | Collective::AllGather
        );
        if reduces && !operation.supports(data_type) {
            return Err(CommError::Unsupported { operation, data_type });
        }
        let ranks = usize::from(size);
        let (fits, expected, elements) = match collective {
            Collective::AllReduce => (output.is_none_or(|o| o == input), "as many out as in", input),
            Collective::Reduce { root } if root == rank => {
                (output.is_none_or(|o| o == input), "as many out as in", input)
            }
            Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => {
                (true, "", input)
            }
            Collective::ReduceScatter => match output {
                Some(output) => (
                    output.checked_mul(ranks) == Some(input),
                    "a block for each rank in, one out",
                    output,
                ),
                None => (
                    input.is_multiple_of(ranks),
                    "a block for each rank",
                    input / ranks,
                ),
            },
            Collective::AllGather => match output {
                Some(output) => (
                    input.checked_mul(ranks) == Some(output),
                    "one block in, one for each rank out",
                    input,
                ),
                None => (
                    input.is_multiple_of(ranks),
                    "a block for each rank",
                    input / ranks,
                ),
            },
        };
        if !fits {
            return Err(CommError::Lengths {
                collective,
                input,
                output: output.unwrap_or(input),
                expected,
            });
        }
        let mut flags = CallFlags::default();
        if self.config.reproducible && reduces {
            flags.0 |= CallFlags::REPRODUCIBLE.0;
        }
        if self.config.saturate && reduces && !data_type.is_float() {
            flags.0 |= CallFlags::SATURATE.0;
        }
        let own = usize::from(rank) * elements * data_type.size();
        let bases = match collective {
            Collective::ReduceScatter => Bases {
                input: 0,
                output: own,
            },
            Collective::AllGather => Bases {
                input: own,
                output: 0,
            },
            _ => Bases::default(),
        };
        Ok(Shape {
            task: Task {
                collective,
                operation: if reduces { operation } else { Operation::Sum },
                data_type,
                flags,
                elements: elements as u64,
            },
            bases,
        })
    }

    /// Starts a task, in a group that is joined again where it must be.
    fn start(&mut self, task: Task, owned: Option<Box<dyn Owned>>) -> Result<TaskId, CommError> {
        if !self.broken {
            // Between calls nobody looks.
            self.look_after_group()?;
        }
        if self.broken && self.stillborn.is_none() {
            self.establish()?;
        }
        if let Some(error) = self.stillborn.take() {
            return Err(error);
        }
        match &mut self.driver {
            Some(driver) => Ok(driver.start(task, owned)),
            None => Err(CommError::Aborted),
        }
    }

    fn blocking<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        let shape = self.shape(collective, operation, T::DATA_TYPE, buffers.lengths())?;
        let task = self.start(shape.task, None)?;
        let mut borrowed = Borrowed {
            task,
            data: Data::new(buffers, shape.bases),
        };
        self.run(task, collective, Some(&mut borrowed))?;
        Ok(())
    }

    fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Request<T>, CommError> {
        let shape = self.shape(collective, operation, T::DATA_TYPE, buffers.lengths())?;
        let owned = OwnedData {
            buffers,
            bases: shape.bases,
        };
        let task = self.start(shape.task, Some(Box::new(owned)))?;
        self.turn(None)?;
        Ok(Request {
            task,
            collective,
            attempt: self.attempts,
            _type: PhantomData,
        })
    }

    /// One turn of the driver.
    fn turn(&mut self, borrowed: Option<&mut Borrowed<'_>>) -> Result<bool, CommError> {
        let Some(driver) = &mut self.driver else {
            return Ok(false);
        };
        let now = self.rnic.now();
        match driver.progress(&mut *self.rnic, now, borrowed) {
            Ok(worked) => Ok(worked),
            Err(error) => {
                self.broken = true;
                Err(error.into())
            }
        }
    }

    /// Fails where the group has.
    fn look_after_group(&mut self) -> Result<(), CommError> {
        match self.lost_group() {
            Some(error) => {
                self.lease = None;
                self.give_up();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Ends all traffic; the next call establishes the group again.
    fn give_up(&mut self) {
        self.broken = true;
        let qpns = self.driver.as_ref().map(Driver::qpns).unwrap_or_default();
        for qpn in qpns {
            if let Err(error) = self.rnic.fail_qp(qpn) {
                tracing::debug!(%error, %qpn, "giving up a queue pair");
            }
        }
    }

    /// Waits for a task's end.
    fn run(
        &mut self,
        task: TaskId,
        collective: Collective,
        mut borrowed: Option<&mut Borrowed<'_>>,
    ) -> Result<Option<Box<dyn Owned>>, CommError> {
        let start = Instant::now();
        let (mut turns, mut idle_since) = (0_u32, None);
        let mut lost: Option<(Instant, CommError)> = None;
        loop {
            let worked = self.turn(borrowed.as_deref_mut())?;
            let Some(driver) = &mut self.driver else {
                return Err(CommError::Aborted);
            };
            if let Some((result, owned)) = driver.take(task) {
                return match result {
                    Ok(()) => Ok(owned),
                    Err(failure) => {
                        self.broken = true;
                        Err(self.explain(failure))
                    }
                };
            }
            if self.broken {
                driver.abandon(task);
                return Err(CommError::Aborted);
            }
            turns = turns.wrapping_add(1);
            if worked {
                idle_since = None;
                if !turns.is_multiple_of(TURNS) {
                    continue;
                }
            }
            let sleeps = match self.config.progress {
                Progress::Spin => false,
                Progress::Sleep => !worked,
                Progress::SpinThenSleep(spin) => {
                    !worked && idle_since.get_or_insert_with(Instant::now).elapsed() >= spin
                }
            };
            if sleeps || turns.is_multiple_of(TURNS) {
                match lost {
                    None => lost = self.lost_group().map(|error| (Instant::now(), error)),
                    Some((at, error)) if at.elapsed() >= GRACE => {
                        self.lease = None;
                        self.abandon(task);
                        self.give_up();
                        return Err(error);
                    }
                    Some(_) => {}
                }
                if self.config.is_interrupted() {
                    self.abandon(task);
                    self.give_up();
                    return Err(CommError::Interrupted);
                }
                let after = start.elapsed();
                if after >= self.config.timeouts.collective {
                    return Err(self.timed_out(task, collective, after));
                }
                if sleeps {
                    let left = self.config.timeouts.collective - after;
                    self.rnic.wait(NAP.min(left))?;
                }
            } else if self.config.progress == Progress::Spin {
                std::hint::spin_loop();
            } else {
                // Whom this rank waits for may want this very core.
                std::thread::yield_now();
            }
        }
    }

    /// Forgets a task whose caller does not wait any more.
    fn abandon(&mut self, task: TaskId) {
        if let Some(driver) = &mut self.driver {
            driver.abandon(task);
        }
    }

    fn timed_out(&mut self, task: TaskId, collective: Collective, after: Duration) -> CommError {
        let waiting = self.driver.as_ref().and_then(|d| d.machine().waiting_for());
        let mut missing = self.waited_for();
        if let Some(Waiting::Peers(ranks)) = &waiting {
            missing = ranks.iter().map(|&r| self.name(r)).collect();
        }
        self.abandon(task);
        self.give_up();
        CommError::TimedOut {
            collective,
            after,
            what: waiting.map_or_else(|| "its end".to_owned(), |w| w.to_string()),
            missing,
        }
    }

    /// Reproducible sums were asked for, and the group does not give them.
    pub(crate) fn not_reproducible(&self) -> CommError {
        CommError::NotReproducible {
            group: self.config.job.clone(),
        }
    }

    fn explain(&self, failure: Failure) -> CommError {
        match failure {
            Failure::Conflict {
                sequence,
                first,
                second,
            } => CommError::Conflict {
                sequence,
                first: Box::new((self.name(first.0), first.1)),
                second: Box::new((self.name(second.0), second.1)),
            },
            Failure::Mismatch { peer, task } => CommError::Mismatch {
                rank: self.name(peer),
                task,
            },
            Failure::NotReproducible => self.not_reproducible(),
            Failure::Aborted => CommError::Aborted,
            Failure::Channel { peer, lane, status } => CommError::QueuePair {
                peer: peer.map(|p| self.name(p)),
                lane,
                status,
            },
            failure @ Failure::Protocol { .. } => CommError::Protocol { failure },
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.driver.is_some() && !self.broken {
            // What others wait for should have come to them.
            if let Err(error) = self.drain(LINGER) {
                tracing::debug!(%error, "draining");
            }
        }
        self.tear_down();
    }
}
