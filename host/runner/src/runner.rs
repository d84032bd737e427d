//! The thread of a runner.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use castnet_comm::{
    Collectives, CommConfig, CommError, Communicator, Idle, Progress, Running, SharedRnic, Spinner,
};
use castnet_rnic::Rnic;
use castnet_wire::Nanos;

use crate::comm::Comm;
use crate::queue::{Call, CommId, Command, Joined, Queue, Reply};
use crate::ticket::Completer;

/// Longest sleep while a call runs: its group may be lost.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Longest sleep without a call. A frame or a command ends it.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// How often running calls are checked for lost groups and time-outs.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(2);

/// Why a runner does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// The RNIC cannot be opened.
    #[error("{0}")]
    Open(E),
    /// The thread cannot be started.
    #[error("cannot start the thread of the runner: {0}")]
    Thread(io::Error),
}

/// A thread that owns an RNIC and the communicators over it. Dropping it ends the thread: calls that run then fail with
/// [`CommError::Interrupted`].
#[derive(Debug)]
pub struct Runner {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Starts the thread, on which `open` opens the RNIC.
    ///
    /// # Errors
    /// The error of `open`, or the thread cannot be started.
    pub fn start<E: Send + 'static>(
        open: impl FnOnce() -> Result<Box<dyn Rnic>, E> + Send + 'static,
    ) -> Result<Self, StartError<E>> {
        let (opened, is_open) = sync_channel(1);
        let run = move || match open() {
            Ok(rnic) => {
                let queue = Arc::new(Queue::new(rnic.waker()));
                let _ = opened.send(Ok(queue.clone()));
                // On unwinding, too: communicators first, then the calls that wait for them.
                let _closing = Closing(queue.clone());
                Thread::new(rnic, queue).run();
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name("castnet-runner".into())
            .spawn(run)
            .map_err(StartError::Thread)?;
        // Without an answer, `open` has panicked.
        let opened = is_open
            .recv()
            .map_err(|_| StartError::Thread(io::Error::other("it has panicked")))?;
        let queue = opened.map_err(StartError::Open)?;
        let thread = Some(thread);
        Ok(Self { queue, thread })
    }

    /// Connects a rank with all others of its job, as [`Communicator::connect`]. Collectives of other jobs of this runner
    /// wait meanwhile.
    pub fn connect(&self, config: CommConfig) -> Result<Comm, CommError> {
        let (reply, answer) = sync_channel(1);
        self.queue.push(Command::Connect(Box::new(config), reply));
        let joined = answer.recv().map_err(|_| CommError::Interrupted)??;
        Ok(Comm::new(joined, self.queue.clone()))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.queue.push(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the runner has panicked");
        }
    }
}

struct Closing(Arc<Queue>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A call that runs.
struct Active {
    comm: CommId,
    running: Running,
    completer: Completer,
}

struct Entry {
    comm: Communicator,
    end: Option<End>,
}

/// What happens to a communicator when its calls have ended.
enum End {
    Close(Reply<()>),
    /// Its last handle is gone.
    Drop,
}

struct Thread {
    rnic: SharedRnic,
    queue: Arc<Queue>,
    /// Dropped before `active`: no communicator has the memory of a call when the call ends.
    comms: BTreeMap<CommId, Entry>,
    /// In the order in which they started.
    active: Vec<Active>,
    /// Of the call that starts, also while a panic unwinds.
    starting: Option<Completer>,
    next: u64,
    checked: Nanos,
}

impl Thread {
    fn new(rnic: Box<dyn Rnic>, queue: Arc<Queue>) -> Self {
        Self {
            rnic: SharedRnic::new(rnic),
            queue,
            comms: BTreeMap::new(),
            active: Vec::new(),
            starting: None,
            next: 0,
            checked: Nanos::ZERO,
        }
    }

    fn run(mut self) {
        let (mut spinner, mut commands) = (Spinner::new(Progress::Adaptive), Vec::new());
        loop {
            self.queue.take(&mut commands);
            let mut worked = !commands.is_empty();
            for command in commands.drain(..) {
                if !self.execute(command) {
                    return;
                }
            }
            worked |= self.progress();
            let now = self.rnic.now();
            if now.since(self.checked) >= CHECK_INTERVAL {
                self.checked = now;
                self.check();
            }
            if worked {
                spinner.worked();
                continue;
            }
            match spinner.idle(now) {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Yield => {
                    std::thread::yield_now();
                    spinner.yielded(now, self.rnic.now());
                }
                Idle::Sleep => self.sleep(),
            }
        }
    }

    fn sleep(&mut self) {
        let most = if self.active.is_empty() {
            IDLE_MAX
        } else {
            SLEEP_MAX
        };
        let queue = &self.queue;
        if let Err(error) = self.rnic.wait_unless(most, &|| queue.has_commands()) {
            tracing::error!(%error, "the runner cannot wait for its RNIC");
            std::thread::sleep(SLEEP_MAX);
        }
    }

    /// Returns false if the runner stops.
    fn execute(&mut self, command: Command) -> bool {
        match command {
            Command::Connect(config, reply) => {
                let comm = Communicator::connect(*config, Box::new(self.rnic.clone()));
                let job = self.next;
                let joined = comm.map(|comm| self.add(job, comm));
                let _ = reply.send(joined);
            }
            Command::Call(id, call, completer) => self.start(id, call, completer),
            Command::Split(id, colour, key, reply) => {
                let split = self.with(id, |comm| comm.split(colour, key));
                let joined = split.map(|comm| comm.map(|comm| self.add(id.0, comm)));
                let _ = reply.send(joined);
            }
            Command::Dup(id, reply) => {
                let dup = self.with(id, |comm| Ok(comm.dup()));
                let joined = dup.map(|comm| self.add(id.0, comm));
                let _ = reply.send(joined);
            }
            Command::Path(id, reply) => {
                let path = self.with(id, |comm| Ok(comm.path()));
                let _ = reply.send(path);
            }
            Command::Close(id, reply) => self.end(id, End::Close(reply)),
            Command::Drop(id) => self.end(id, End::Drop),
            Command::Stop => return false,
        }
        true
    }

    fn add(&mut self, job: u64, comm: Communicator) -> Joined {
        let id = (job, self.next);
        self.next += 1;
        let (rank, size) = (comm.rank(), comm.size());
        self.comms.insert(id, Entry { comm, end: None });
        Joined { id, rank, size }
    }

    fn with<R>(
        &mut self,
        id: CommId,
        call: impl FnOnce(&mut Communicator) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        match self.comms.get_mut(&id) {
            Some(Entry { comm, end: None }) => call(comm),
            _ => Err(CommError::Closed),
        }
    }

    fn start(&mut self, id: CommId, call: Call, completer: Completer) {
        let Call {
            collective,
            operation,
            data_type,
            memory,
        } = call;
        self.starting = Some(completer);
        let begun = self.with(id, |comm| comm.begin(collective, operation, data_type, memory));
        let Some(completer) = self.starting.take() else {
            return;
        };
        match begun {
            Ok(running) => self.active.push(Active {
                comm: id,
                running,
                completer,
            }),
            Err(error) => completer.end(Err(error)),
        }
    }

    fn end(&mut self, id: CommId, end: End) {
        match self.comms.get_mut(&id) {
            Some(entry) if entry.end.is_none() => {
                entry.end = Some(end);
                self.end_if_unused(id);
            }
            _ => {
                if let End::Close(reply) = end {
                    let _ = reply.send(Err(CommError::Closed));
                }
            }
        }
    }

    /// Ends a communicator that is to end, once no call of it runs.
    fn end_if_unused(&mut self, id: CommId) {
        let is_ending = self.comms.get(&id).is_some_and(|entry| entry.end.is_some());
        if !is_ending || self.active.iter().any(|call| call.comm == id) {
            return;
        }
        if let Some(Entry { comm, end }) = self.comms.remove(&id)
            && let Some(End::Close(reply)) = end
        {
            let _ = reply.send(comm.close());
        }
    }

    /// One iteration of the RNIC and of all jobs. Returns true if there was work.
    fn progress(&mut self) -> bool {
        let now = self.rnic.now();
        let mut worked = self.rnic.poll(now).unwrap_or_else(|error| {
            tracing::debug!(%error, "polling the RNIC");
            false
        });
        let (mut job, mut failed) = (None, None);
        for (&id, entry) in &mut self.comms {
            // One communicator of a job moves all of them.
            if job.replace(id.0) == Some(id.0) {
                continue;
            }
            match entry.comm.poll() {
                Ok(job_worked) => worked |= job_worked,
                Err(error) => failed = Some((id, error)),
            }
        }
        let mut at = 0;
        while let Some(call) = self.active.get_mut(at) {
            let comm = self.comms.get_mut(&call.comm);
            match comm.and_then(|entry| entry.comm.try_end(&call.running)) {
                Some(mut result) => {
                    worked = true;
                    if matches!(result, Err(CommError::Aborted))
                        && let Some((_, error)) = failed.take_if(|(id, _)| *id == call.comm)
                    {
                        result = Err(error);
                    }
                    self.finish(at, result);
                }
                None => at += 1,
            }
        }
        worked
    }

    /// Ends calls whose groups are lost, and calls that have lasted too long.
    fn check(&mut self) {
        let mut at = 0;
        while let Some(call) = self.active.get_mut(at) {
            let comm = self.comms.get_mut(&call.comm);
            match comm.map_or(Ok(()), |entry| entry.comm.check(&mut call.running)) {
                Ok(()) => at += 1,
                Err(error) => self.finish(at, Err(error)),
            }
        }
    }

    /// Ends the call at index `at`, whose memory no communicator has any more.
    fn finish(&mut self, at: usize, result: Result<(), CommError>) {
        let call = self.active.remove(at);
        call.completer.end(result);
        self.end_if_unused(call.comm);
    }
}
