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
use crate::establish::EXCHANGE_GOODBYE;
use crate::machine::{Collective, Failure, Task, TaskId, Waiting};

/// How often a sleeping rank checks the state of its group.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// A rank that polls without sleeping checks the state of its group once in so many iterations.
const POLLS_PER_CHECK: u32 = 256;
/// How long a communicator that is dropped without being closed waits for acknowledgements.
const LINGER: Duration = Duration::from_millis(200);
/// How long to wait, after the controller reported a failed group, for the in-band report with the cause.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// A running non-blocking collective. The communicator keeps its memory until [`Communicator::wait`].
#[must_use = "a running collective must be waited for"]
#[derive(Debug)]
pub struct Request<T> {
    task: TaskId,
    collective: Collective,
    /// The value of `Communicator::attempts` when it was started.
    attempt: u64,
    _type: PhantomData<T>,
}

/// One rank of a job, connected with all others. All ranks call the same collectives in the same order, each from one
/// thread. Collectives progress only during a call: a blocking collective, [`Communicator::wait`],
/// [`Communicator::test`] or [`Communicator::progress`]. A hardware RNIC also moves posted work between calls.
pub struct Communicator {
    pub(crate) config: CommConfig,
    pub(crate) rnic: Box<dyn Rnic>,
    pub(crate) control: Option<Control>,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) driver: Option<Driver>,
    pub(crate) path: CommPath,
    pub(crate) generation: Option<u64>,
    /// Host name of each rank, where known.
    pub(crate) names: Vec<String>,
    /// How often [`Communicator::establish`] has run. A [`Request`] of an earlier attempt is void.
    pub(crate) attempts: u64,
    /// True if the next call must establish the group again.
    pub(crate) broken: bool,
    /// The group was created and failed before this rank saw it. The next call returns this error.
    pub(crate) pending_failure: Option<CommError>,
}

impl Communicator {
    /// Connects this rank with all others of its job over `rnic`. Waits until all have joined.
    ///
    /// # Errors
    /// A value is out of bounds; the controller cannot be reached or refuses; not all ranks join in time; with
    /// [`crate::Fallback::Forbidden`] the network cannot provide the group.
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
            pending_failure: None,
        };
        communicator.establish()?;
        Ok(communicator)
    }

    /// Number of this rank.
    pub fn rank(&self) -> u16 {
        self.config.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// The path that its collectives take, and the reason.
    pub fn path(&self) -> &CommPath {
        &self.path
    }

    /// The configuration that it was created with.
    pub fn config(&self) -> &CommConfig {
        &self.config
    }

    /// The RNIC, for its attributes.
    pub fn rnic(&self) -> &dyn Rnic {
        &*self.rnic
    }

    /// Reduces the elements of all ranks, index by index, to all ranks. All ranks pass the same number of elements.
    ///
    /// # Errors
    /// Any [`CommError`]. All ranks fail, possibly with different errors.
    pub fn allreduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.blocking(Collective::AllReduce, operation, buffers.into())
    }

    /// Reduces the elements of all ranks and returns the result at `root`. The other ranks may pass an input only.
    pub fn reduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
        root: u16,
    ) -> Result<(), CommError> {
        self.blocking(Collective::Reduce { root }, operation, buffers.into())
    }

    /// Copies the buffer of `root` to all ranks.
    pub fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: u16) -> Result<(), CommError> {
        self.blocking(
            Collective::Broadcast { root },
            Operation::Sum,
            Buffers::InPlace(buffer),
        )
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.blocking::<u8>(Collective::Barrier, Operation::Sum, Buffers::InPlace(&mut []))
    }

    /// Reduces the elements of all ranks and returns block i of the result at rank i. The input has one block for
    /// each rank. In place, the result replaces this rank's block and the other blocks are unchanged.
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        self.blocking(Collective::ReduceScatter, operation, buffers.into())
    }

    /// Collects the blocks of all ranks at every rank. The output has one block for each rank. In place, this rank's
    /// contribution is the block at its own index.
    pub fn allgather<'a, T: Element>(&mut self, buffers: impl Into<Buffers<'a, T>>) -> Result<(), CommError> {
        self.blocking(Collective::AllGather, Operation::Sum, buffers.into())
    }

    /// Non-blocking [`Communicator::allreduce`].
    pub fn iallreduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::AllReduce, operation, buffers.into())
    }

    /// Non-blocking [`Communicator::reduce`]. At all ranks but `root` the memory is returned unchanged.
    pub fn ireduce<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
        root: u16,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::Reduce { root }, operation, buffers.into())
    }

    /// Non-blocking [`Communicator::broadcast`].
    pub fn ibroadcast<T: Element>(&mut self, buffer: Vec<T>, root: u16) -> Result<Request<T>, CommError> {
        self.begin(
            Collective::Broadcast { root },
            Operation::Sum,
            OwnedBuffers::InPlace(buffer),
        )
    }

    /// Non-blocking [`Communicator::barrier`].
    pub fn ibarrier(&mut self) -> Result<Request<u8>, CommError> {
        self.begin(
            Collective::Barrier,
            Operation::Sum,
            OwnedBuffers::InPlace(Vec::new()),
        )
    }

    /// Non-blocking [`Communicator::reduce_scatter`].
    pub fn ireduce_scatter<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
        operation: Operation,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::ReduceScatter, operation, buffers.into())
    }

    /// Non-blocking [`Communicator::allgather`].
    pub fn iallgather<T: Element>(
        &mut self,
        buffers: impl Into<OwnedBuffers<T>>,
    ) -> Result<Request<T>, CommError> {
        self.begin(Collective::AllGather, Operation::Sum, buffers.into())
    }

    /// Waits until a non-blocking collective ends. Returns its output; in place, the whole buffer. The buffers are lost
    /// on an error.
    pub fn wait<T: Element>(&mut self, request: Request<T>) -> Result<Vec<T>, CommError> {
        if request.attempt != self.attempts {
            return Err(CommError::Aborted);
        }
        let owned = self.run(request.task, request.collective, None)?;
        let data = owned.and_then(|o| o.into_any().downcast::<OwnedData<T>>().ok());
        Ok(data.map(|d| d.buffers.into_output()).unwrap_or_default())
    }

    /// Progresses all collectives without waiting. Returns true if `request` has ended. Fails if the RNIC or group
    /// failed.
    pub fn test<T: Element>(&mut self, request: &Request<T>) -> Result<bool, CommError> {
        if request.attempt != self.attempts {
            return Ok(true);
        }
        self.progress()?;
        Ok(self.driver.as_ref().is_none_or(|d| d.is_done(request.task)))
    }

    /// Progresses all collectives without waiting. Returns true if there was work. Fails if the RNIC or group failed.
    pub fn progress(&mut self) -> Result<bool, CommError> {
        let worked = self.poll_driver(None)?;
        if !worked {
            self.check_group()?;
        }
        Ok(worked)
    }

    /// Waits until all ranks close, so that each receives its last messages, then leaves. If not all close in time or the
    /// RNIC fails, it leaves too, and returns the error.
    pub fn close(mut self) -> Result<(), CommError> {
        let result = self.wait_for_goodbyes();
        self.release();
        self.lease = None;
        if let Some(control) = &mut self.control {
            let in_network = matches!(self.path, CommPath::InNetwork { .. });
            let end = in_network.then(|| control.end(self.config.job.clone(), self.config.rank));
            let patience = self.config.timeouts.close;
            if let Some(Err(error)) = end.map(|answer| self.await_answer(answer, patience)) {
                tracing::debug!(%error, job = self.config.job, "leaving the group");
            }
            if let Some(control) = &mut self.control {
                control.leave();
            }
        }
        result
    }

    fn wait_for_goodbyes(&mut self) -> Result<(), CommError> {
        if self.broken || self.config.size == 1 || self.config.is_interrupted() {
            return Ok(());
        }
        let patience = self.config.timeouts.close;
        self.drain(patience)?;
        let answer = self.exchange(EXCHANGE_GOODBYE, Vec::new(), patience)?;
        self.await_answer(answer, patience)?;
        Ok(())
    }

    fn drain(&mut self, patience: Duration) -> Result<(), CommError> {
        let start = Instant::now();
        while let Some(driver) = &self.driver
            && !driver.machine().is_drained()
            && start.elapsed() < patience
        {
            if !self.poll_driver(None)? {
                self.rnic.wait(SLEEP_MAX.min(patience))?;
            }
        }
        Ok(())
    }

    /// Checks a call and lays out its memory. `output` is `None` where input and output share one buffer; the bases
    /// say where they begin in it.
    fn check_call(
        &self,
        collective: Collective,
        operation: Operation,
        data_type: DataType,
        (input, output): (usize, Option<usize>),
    ) -> Result<(Task, Bases), CommError> {
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
        let is_equal = output.is_none_or(|output| output == input);
        let in_place = (
            input.is_multiple_of(ranks),
            "one block for each rank",
            input / ranks,
        );
        let (fits, expected, elements) = match (collective, output) {
            (Collective::AllReduce, _) => (is_equal, "input and output of equal length", input),
            (Collective::Reduce { root }, _) if root == rank => {
                (is_equal, "input and output of equal length", input)
            }
            (Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier, _) => {
                (true, "", input)
            }
            (Collective::ReduceScatter | Collective::AllGather, None) => in_place,
            (Collective::ReduceScatter, Some(output)) => (
                output.checked_mul(ranks) == Some(input),
                "one input block for each rank, one output block",
                output,
            ),
            (Collective::AllGather, Some(output)) => (
                input.checked_mul(ranks) == Some(output),
                "one input block, one output block for each rank",
                input,
            ),
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
        let mut bases = Bases::default();
        match collective {
            Collective::ReduceScatter => bases.output = own,
            Collective::AllGather => bases.input = own,
            _ => {}
        }
        let task = Task {
            collective,
            operation: if reduces { operation } else { Operation::Sum },
            data_type,
            flags,
            elements: elements as u64,
        };
        Ok((task, bases))
    }

    /// Starts a task. Joins the group again first if it is broken.
    fn start(&mut self, task: Task, owned: Option<Box<dyn Owned>>) -> Result<TaskId, CommError> {
        if !self.broken {
            // Nothing checks the group between calls.
            self.check_group()?;
        }
        if self.broken && self.pending_failure.is_none() {
            self.establish()?;
        }
        if let Some(error) = self.pending_failure.take() {
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
        let (task, bases) = self.check_call(collective, operation, T::DATA_TYPE, buffers.lengths())?;
        let task = self.start(task, None)?;
        let data = Data::new(buffers, bases);
        let mut borrowed = Borrowed { task, data };
        self.run(task, collective, Some(&mut borrowed))?;
        Ok(())
    }

    fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Request<T>, CommError> {
        let (task, bases) = self.check_call(collective, operation, T::DATA_TYPE, buffers.lengths())?;
        let task = self.start(task, Some(Box::new(OwnedData { buffers, bases })))?;
        self.poll_driver(None)?;
        Ok(Request {
            task,
            collective,
            attempt: self.attempts,
            _type: PhantomData,
        })
    }

    /// One iteration of the driver. Returns true if there was work to do.
    fn poll_driver(&mut self, borrowed: Option<&mut Borrowed<'_>>) -> Result<bool, CommError> {
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

    fn check_group(&mut self) -> Result<(), CommError> {
        match self.lost_group() {
            Some(error) => {
                self.lease = None;
                self.give_up();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Fails all queue pairs. The next call establishes the group again.
    fn give_up(&mut self) {
        self.broken = true;
        let qpns = self.driver.as_ref().map(Driver::qpns).unwrap_or_default();
        for qpn in qpns {
            if let Err(error) = self.rnic.fail_qp(qpn) {
                tracing::debug!(%error, %qpn, "giving up a queue pair");
            }
        }
    }

    fn run(
        &mut self,
        task: TaskId,
        collective: Collective,
        mut borrowed: Option<&mut Borrowed<'_>>,
    ) -> Result<Option<Box<dyn Owned>>, CommError> {
        let start = Instant::now();
        let (mut polls, mut idle_since) = (0_u32, None);
        let mut lost: Option<(Instant, CommError)> = None;
        loop {
            let worked = self.poll_driver(borrowed.as_deref_mut())?;
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
            polls = polls.wrapping_add(1);
            if worked {
                idle_since = None;
                if !polls.is_multiple_of(POLLS_PER_CHECK) {
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
            if sleeps || polls.is_multiple_of(POLLS_PER_CHECK) {
                match lost {
                    None => lost = self.lost_group().map(|error| (Instant::now(), error)),
                    Some((at, error)) if at.elapsed() >= GRACE => {
                        self.lease = None;
                        self.abandon(task);
                        return Err(error);
                    }
                    Some(_) => {}
                }
                if self.config.is_interrupted() {
                    self.abandon(task);
                    return Err(CommError::Interrupted);
                }
                let after = start.elapsed();
                if after >= self.config.timeouts.collective {
                    return Err(self.timed_out(task, collective, after));
                }
                if sleeps {
                    let left = self.config.timeouts.collective - after;
                    self.rnic.wait(SLEEP_MAX.min(left))?;
                }
            } else if self.config.progress == Progress::Spin {
                std::hint::spin_loop();
            } else {
                // The rank that this one waits for may run on the same core.
                std::thread::yield_now();
            }
        }
    }

    /// Gives up, and forgets the task.
    fn abandon(&mut self, task: TaskId) {
        if let Some(driver) = &mut self.driver {
            driver.abandon(task);
        }
        self.give_up();
    }

    fn timed_out(&mut self, task: TaskId, collective: Collective, after: Duration) -> CommError {
        let waiting = self.driver.as_ref().and_then(|d| d.machine().waiting_for());
        let mut missing = self.missing_ranks();
        if let Some(Waiting::Peers(ranks)) = &waiting {
            missing = ranks.iter().map(|&r| self.name(r)).collect();
        }
        self.abandon(task);
        CommError::TimedOut {
            collective,
            after,
            what: waiting.map_or_else(|| "completion".to_owned(), |w| w.to_string()),
            missing,
        }
    }

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
            // Other ranks may wait for messages that are still unacknowledged.
            if let Err(error) = self.drain(LINGER) {
                tracing::debug!(%error, "draining");
            }
        }
        self.release();
    }
}
