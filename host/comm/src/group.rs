//! A group of ranks and its connection: what communicators with the same members share.

use std::cell::{OnceCell, RefCell};
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_proto::transport::Call;
use castnet_rnic::Rnic;
use castnet_wire::control::{CallFlags, DataType, Operation};
use castnet_wire::spin::{Idle, Spinner};

use crate::buffers::{Bases, CallLayout, LentBytes, Memory, OwnedBuffers, OwnedData};
use crate::communicator::{Request, Running};
use crate::config::{CommConfig, CommPath};
use crate::control::{Control, Lease};
use crate::driver::Driver;
use crate::element::Element;
use crate::error::CommError;
use crate::establish::EXCHANGE_GOODBYE;
use crate::job::{Job, OWN_GROUP};
use crate::machine::{Collective, Failure, Task, TaskId, Waiting};
use crate::shared::SharedRnic;

/// How often a sleeping rank checks the state of its group.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// A rank that polls without sleeping checks the state of its group once in so many iterations.
const POLLS_PER_CHECK: u32 = 256;
/// How long a group that is left without a goodbye waits for acknowledgements.
const LINGER: Duration = Duration::from_millis(200);
/// How long a rank answers others that may have lost its last acknowledgements, if no controller tells when they are done.
const GOODBYE_LINGER: Duration = Duration::from_secs(1);
/// How long to wait, after the controller reported a failed group, for the in-band report with the cause.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

pub(crate) type GroupRef = Rc<RefCell<Group>>;

/// The connection of one rank with the other ranks of a group. It is made by [`Group::establish`], and again after a failure.
pub(crate) struct Group {
    /// With the name of the group as the name of the job, and the rank and size in this group.
    pub(crate) config: CommConfig,
    /// The same at all its ranks; [`OWN_GROUP`] for the group of the whole job. No two groups of a rank have the same.
    pub(crate) number: u64,
    /// The ranks of the job, in the order of the ranks of the group.
    pub(crate) members: Rc<[u16]>,
    pub(crate) rnic: SharedRnic,
    /// The other groups progress while this one waits.
    job: Weak<Job>,
    pub(crate) control: Rc<OnceCell<Control>>,
    /// The call that is the lease.
    pub(crate) holding: Option<Call<()>>,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) driver: Option<Driver>,
    pub(crate) path: CommPath,
    pub(crate) generation: Option<u64>,
    /// Host name of each rank, where known.
    pub(crate) names: Vec<String>,
    /// Differs for each time that [`Group::establish`] has run in this process; 0: never. A [`Request`] of an earlier attempt
    /// or of another group is void.
    pub(crate) attempt: u64,
    /// True if the next call must establish the group.
    pub(crate) broken: bool,
    /// The group was created and failed before this rank saw it. The next call returns this error.
    pub(crate) pending_failure: Option<CommError>,
    spinner: Spinner,
}

/// A name that is an address is taken for that of a group.
fn sub_name(job: &str, number: u64, lowest: u16) -> String {
    let name = format!("{job}.{number}.{lowest}");
    match name.parse::<Ipv4Addr>() {
        Ok(_) => format!("{job}.s{number}.{lowest}"),
        Err(_) => name,
    }
}

impl Group {
    /// The group of the whole job.
    pub(crate) fn own(job: Weak<Job>, config: CommConfig, members: Rc<[u16]>, rnic: SharedRnic) -> Self {
        Self {
            spinner: Spinner::new(config.progress),
            config,
            number: OWN_GROUP,
            members,
            rnic,
            job,
            control: Rc::default(),
            holding: None,
            lease: None,
            driver: None,
            path: CommPath::Unused,
            generation: None,
            names: Vec::new(),
            attempt: 0,
            broken: true,
            pending_failure: None,
        }
    }

    /// A group of some ranks of the job, which their first collective establishes. `config` has the name of the job.
    pub(crate) fn sub(&self, mut config: CommConfig, members: Rc<[u16]>, number: u64) -> Self {
        let lowest = members.iter().min().copied().unwrap_or_default();
        config.job = sub_name(&config.job, number, lowest);
        let mut group = Self::own(self.job.clone(), config, members, self.rnic.clone());
        (group.number, group.control) = (number, self.control.clone());
        group
    }

    /// Waits until a non-blocking collective ends. Returns its output; in place, the whole buffer. The buffers are lost
    /// on an error.
    pub(crate) fn wait<T: Element>(&mut self, request: Request<T>) -> Result<Vec<T>, CommError> {
        let mut running = request.running;
        running.start = Instant::now();
        let owned = match self.run(&mut running)? {
            Memory::Owned(owned) => owned.into_any().downcast::<OwnedData<T>>().ok(),
            Memory::Lent(_) | Memory::None => None,
        };
        Ok(owned.map(|d| d.buffers.into_output()).unwrap_or_default())
    }

    /// Progresses all collectives without waiting. Returns true if `request` has ended. Fails if the RNIC or group
    /// failed.
    pub(crate) fn test<T: Element>(&mut self, request: &Request<T>) -> Result<bool, CommError> {
        if request.running.attempt != self.attempt {
            return Ok(true);
        }
        self.progress()?;
        let driver = self.driver.as_ref();
        Ok(driver.is_none_or(|d| d.is_done(request.running.task)))
    }

    /// Progresses all collectives without waiting. Returns true if there was work. Fails if the RNIC or group failed.
    pub(crate) fn progress(&mut self) -> Result<bool, CommError> {
        let worked = self.poll_driver()?;
        if !worked {
            self.check_group()?;
        }
        Ok(worked)
    }

    /// Waits until all ranks close, so that each receives its last messages, then leaves.
    pub(crate) fn close(&mut self) -> Result<(), CommError> {
        let result = self.wait_for_goodbyes();
        self.leave();
        result
    }

    /// Leaves without waiting for the other ranks.
    pub(crate) fn leave(&mut self) {
        if !self.broken
            && let Err(error) = self.drain(LINGER)
        {
            tracing::debug!(%error, group = self.config.job, "draining");
        }
        self.release();
        let lease = self.lease.take();
        if let (CommPath::InNetwork { .. }, Some(control)) = (&self.path, self.control.get()) {
            let end = control.end(self.config.job.clone(), self.config.rank, lease.as_deref());
            if let Err(error) = self.await_answer(end, self.config.timeouts.close) {
                tracing::debug!(%error, group = self.config.job, "leaving the group");
            }
        }
        self.holding = None;
        self.path = CommPath::Unused;
    }

    /// Whether a new communicator of the same members can use it.
    pub(crate) fn is_reusable(&self) -> bool {
        self.attempt == 0 || !self.broken && self.lease.as_ref().is_none_or(|lease| lease.is_whole())
    }

    fn wait_for_goodbyes(&mut self) -> Result<(), CommError> {
        if self.broken || self.config.size == 1 || self.config.is_interrupted() {
            return Ok(());
        }
        let patience = self.config.timeouts.close;
        self.drain(patience)?;
        if self.config.rendezvous.is_some() {
            // The others may repeat what this rank has acknowledged, and there is no controller that tells when they are done.
            let start = Instant::now();
            while start.elapsed() < patience.min(GOODBYE_LINGER) {
                self.rnic.poll_or_wait(SLEEP_MAX)?;
            }
            return Ok(());
        }
        self.exchange(EXCHANGE_GOODBYE, (Vec::new(), &[]), patience)
            .map(drop)
    }

    fn drain(&mut self, patience: Duration) -> Result<(), CommError> {
        let start = Instant::now();
        while !(self.is_drained() && self.job.upgrade().is_none_or(|job| job.is_drained()))
            && start.elapsed() < patience
        {
            if !self.poll_driver()? {
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
        lengths: (usize, Option<usize>),
    ) -> Result<(Task, Bases), CommError> {
        let (rank, size) = (self.config.rank, self.config.size);
        let CallLayout {
            elements,
            input,
            output,
            reduces,
        } = CallLayout::new(collective, operation, data_type, lengths, rank, size)?;
        let mut flags = CallFlags::default();
        if self.config.reproducible && reduces {
            flags.0 |= CallFlags::REPRODUCIBLE.0;
        }
        if self.config.saturate && reduces && !data_type.is_float() {
            flags.0 |= CallFlags::SATURATE.0;
        }
        let bases = Bases { input, output };
        if collective == Collective::Barrier {
            return Ok((Task::BARRIER, bases));
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
    fn start(&mut self, collective: Collective, task: Task, memory: Memory) -> Result<Running, CommError> {
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
        let driver = self.driver.as_mut().ok_or(CommError::Aborted)?;
        Ok(Running {
            task: driver.start(task, memory),
            collective,
            attempt: self.attempt,
            start: Instant::now(),
            lost: None,
        })
    }

    pub(crate) fn begin<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: OwnedBuffers<T>,
    ) -> Result<Request<T>, CommError> {
        let (task, bases) = self.check_call(collective, operation, T::DATA_TYPE, buffers.lengths())?;
        let memory = Memory::Owned(Box::new(OwnedData { buffers, bases }));
        let running = self.begin_task(collective, task, memory)?;
        Ok(Request {
            running,
            _type: PhantomData,
        })
    }

    pub(crate) fn begin_lent(
        &mut self,
        collective: Collective,
        operation: Operation,
        data_type: DataType,
        mut bytes: LentBytes,
    ) -> Result<Running, CommError> {
        let lengths = bytes.lengths(data_type.size());
        let (task, bases) = self.check_call(collective, operation, data_type, lengths)?;
        bytes.bases = bases;
        self.begin_task(collective, task, Memory::Lent(bytes))
    }

    fn begin_task(
        &mut self,
        collective: Collective,
        task: Task,
        memory: Memory,
    ) -> Result<Running, CommError> {
        let running = self.start(collective, task, memory)?;
        match self.poll_driver() {
            Ok(_) => Ok(running),
            Err(error) => {
                self.abandon(running.task);
                Err(error)
            }
        }
    }

    /// One iteration of the drivers of all groups of the job. Returns true if there was work to do.
    pub(crate) fn poll_driver(&mut self) -> Result<bool, CommError> {
        let others_worked = self.progress_others();
        let worked = self.progress_own()?;
        Ok(worked || others_worked)
    }

    /// One iteration of the drivers of the other groups.
    pub(crate) fn progress_others(&self) -> bool {
        self.job.upgrade().is_some_and(|job| job.progress())
    }

    fn progress_own(&mut self) -> Result<bool, CommError> {
        let Some(driver) = &mut self.driver else {
            return Ok(false);
        };
        let now = self.rnic.now();
        match driver.progress(&mut self.rnic, now) {
            Ok(worked) => Ok(worked),
            Err(error) => {
                self.broken = true;
                Err(error.into())
            }
        }
    }

    /// One iteration of the driver while another group waits, if there is anything to do. An error is returned by the next
    /// call of this group.
    pub(crate) fn progress_aside(&mut self) -> bool {
        if self.broken || self.is_idle() {
            return false;
        }
        match self.progress_own() {
            Ok(worked) => worked,
            Err(error) => {
                self.pending_failure = Some(error);
                false
            }
        }
    }

    /// Whether no collective runs, and no message waits for others.
    fn is_idle(&self) -> bool {
        self.driver.as_ref().is_none_or(Driver::is_idle)
    }

    /// Whether all its messages are acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.driver
            .as_ref()
            .is_none_or(|driver| driver.machine().is_drained())
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

    /// Waits until a task has ended. Returns its memory.
    pub(crate) fn run(&mut self, running: &mut Running) -> Result<Memory, CommError> {
        let mut polls = 0_u32;
        loop {
            let polled = self.poll_driver();
            let worked = polled.inspect_err(|_| self.abandon(running.task))?;
            if let Some(end) = self.take_end(running) {
                return end;
            }
            polls = polls.wrapping_add(1);
            let idle = match worked {
                true => {
                    self.spinner.worked();
                    None
                }
                false => Some(self.spinner.idle(self.rnic.now())),
            };
            if idle == Some(Idle::Sleep) || polls.is_multiple_of(POLLS_PER_CHECK) {
                self.check_task(running)?;
            }
            match idle {
                None => {}
                Some(Idle::Spin) => std::hint::spin_loop(),
                Some(Idle::Yield) => {
                    // The rank that this one waits for may run on the same core.
                    let before = self.rnic.now();
                    std::thread::yield_now();
                    self.spinner.yielded(before, self.rnic.now());
                }
                Some(Idle::Sleep) => self.rnic.wait(SLEEP_MAX.min(self.config.timeouts.collective))?,
            }
        }
    }

    /// The result and the memory of a task that has ended. After that nothing accesses its memory.
    pub(crate) fn take_end(&mut self, running: &Running) -> Option<Result<Memory, CommError>> {
        if running.attempt != self.attempt {
            return Some(Err(CommError::Aborted));
        }
        let Some(driver) = &mut self.driver else {
            return Some(Err(CommError::Aborted));
        };
        let Some((result, memory)) = driver.take(running.task) else {
            return self.broken.then(|| {
                self.abandon(running.task);
                Err(self.pending_failure.take().unwrap_or(CommError::Aborted))
            });
        };
        Some(result.map(|()| memory).map_err(|failure| {
            self.broken = true;
            self.explain(failure)
        }))
    }

    /// Fails a task whose group is lost, which is interrupted, or which has lasted too long. To be called every few
    /// milliseconds.
    pub(crate) fn check_task(&mut self, running: &mut Running) -> Result<(), CommError> {
        match running.lost.take() {
            None => running.lost = self.lost_group().map(|error| (Instant::now(), error)),
            Some((at, error)) if at.elapsed() >= GRACE => {
                self.lease = None;
                self.abandon(running.task);
                return Err(error);
            }
            lost => running.lost = lost,
        }
        if self.config.is_interrupted() {
            self.abandon(running.task);
            return Err(CommError::Interrupted);
        }
        let after = running.start.elapsed();
        if after >= self.config.timeouts.collective {
            return Err(self.timed_out(running.task, running.collective, after));
        }
        Ok(())
    }

    /// Gives up, and forgets the task.
    pub(crate) fn abandon(&mut self, task: TaskId) {
        if let Some(driver) = &mut self.driver {
            driver.abandon(&mut self.rnic, task);
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
            what: waiting.map_or_else(|| "the last acknowledgements".to_owned(), |w| w.to_string()),
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

impl Drop for Group {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a step of a batch system, whose name has a number.
    #[test]
    fn no_name_of_a_group_is_an_address() {
        assert_eq!(sub_name("train", 2, 4), "train.2.4");
        assert_eq!(sub_name("42.0", 1, 3), "42.0.s1.3");
        assert_eq!(sub_name("4242.0", 1, 3), "4242.0.1.3");
    }
}
