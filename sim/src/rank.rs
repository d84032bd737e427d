//! A rank of collectives on a host: a machine of CommLib whose actions are executed on the host's endpoint.

use std::collections::{BTreeMap, VecDeque};

use castnet_comm::executor::{Device, Executor};
use castnet_comm::machine::{Action, Content, Failure, Machine, Task, TaskId, Waiting};
use castnet_endpoint::{Access, Completion, CompletionOp, Endpoint, Lent, MemoryKey, RecvWr, SendWr};
use castnet_reduce::prefetch;
use castnet_wire::{Nanos, Qpn};

use crate::node::{Post, Work};
use crate::task_memory::TaskMemory;

/// A task of a rank.
#[derive(Clone, Debug)]
pub struct RankTask {
    /// The task.
    pub task: Task,
    /// Time at which it was started.
    pub started: Nanos,
    /// Time of the last message that was stored in its memory.
    pub delivered: Option<Nanos>,
    /// Time at which its last message was posted.
    pub posted: Option<Nanos>,
    /// Time and result of its end; `None` while it runs.
    pub ended: Option<(Nanos, Result<(), Failure>)>,
    output: Vec<u8>,
}

impl RankTask {
    /// The output once the task has ended; empty if the task has no memory.
    pub fn output(&self) -> &[u8] {
        &self.output
    }
}

/// The endpoint of a host as the device of an executor.
struct Nic<'a> {
    endpoint: &'a mut Endpoint,
    /// Where the send of a task, with so many bytes of data, waits for the processor.
    work: Option<(&'a mut VecDeque<Work>, TaskId, u32)>,
}

impl<'a> Nic<'a> {
    fn new(endpoint: &'a mut Endpoint) -> Self {
        Self { endpoint, work: None }
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Device for Nic<'_> {
    type Error = String;

    fn receive(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), String> {
        self.endpoint.post_recv(qpn, wr).map_err(text)
    }

    fn send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), String> {
        let Some((work, task, bytes)) = &mut self.work else {
            return self.endpoint.post_send(qpn, wr).map_err(text);
        };
        let (task, bytes) = (*task, *bytes);
        work.push_back(Work::Post(Post { task, qpn, wr, bytes }));
        Ok(())
    }

    fn read(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), String> {
        let region = self.endpoint.memory(key).map_err(text)?;
        if region.is_empty() {
            // Slots without memory.
            return Ok(());
        }
        let bytes = region
            .get(offset as usize..)
            .and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(bytes.ok_or("outside the region")?);
        Ok(())
    }

    fn write(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let region = self.endpoint.memory_mut(key).map_err(text)?;
        let rest = region.get_mut(offset as usize..);
        let to = rest.and_then(|rest| rest.get_mut(..bytes.len()));
        to.ok_or("outside the region")?.copy_from_slice(bytes);
        Ok(())
    }

    fn lend(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, String)> {
        let lent = self.endpoint.lend_memory(memory);
        lent.map_err(|(memory, error)| (memory, text(error)))
    }

    fn take_back(&mut self, key: MemoryKey) -> Result<Lent, String> {
        self.endpoint.end_lending(key).map_err(text)
    }

    fn out_of_range(&mut self, _: &Action) -> Result<(), String> {
        Err("bytes are out of range".to_owned())
    }
}

/// One rank: machine, slots and tasks.
pub struct Rank {
    rank: u16,
    size: u16,
    executor: Executor,
    tasks: BTreeMap<TaskId, RankTask>,
    faults: Vec<String>,
}

impl std::fmt::Debug for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rank")
            .field("rank", &self.rank)
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

impl Rank {
    /// The channels are the queue pairs `qpns`, in order, which need not be connected yet.
    pub(crate) fn new(
        rank: u16,
        size: u16,
        machine: Box<dyn Machine + Send>,
        qpns: &[Qpn],
        endpoint: &mut Endpoint,
        void_slots: bool,
    ) -> Result<Self, castnet_endpoint::MemoryError> {
        let shape = machine.shape();
        let mut slots = |slots: u32, access| {
            let bytes = u64::from(slots) * u64::from(shape.slot_bytes);
            match void_slots {
                true => endpoint.register_void(bytes, access),
                false => endpoint.register_memory(0, vec![0; bytes as usize], access),
            }
        };
        let mut executor = Executor::new(machine);
        for &qpn in qpns {
            let sends = slots(shape.send_slots, Access::READ)?;
            executor.add_channel(qpn, sends, slots(shape.receive_slots, Access::LOCAL)?);
        }
        let mut rank = Self {
            rank,
            size,
            executor,
            tasks: BTreeMap::new(),
            faults: Vec::new(),
        };
        rank.carry_out(Nanos::ZERO, endpoint, None);
        Ok(rank)
    }

    /// Prefetches what the next completion touches, in three steps. Each reads what the one before it has prefetched.
    pub(crate) fn prefetch(&self, step: usize) {
        match step {
            0 => prefetch(self),
            1 => self.executor.prefetch(),
            _ => {}
        }
    }

    /// Number of the rank.
    pub fn number(&self) -> u16 {
        self.rank
    }

    /// A task.
    pub fn task(&self, task: TaskId) -> Option<&RankTask> {
        self.tasks.get(&task)
    }

    /// All its tasks, in the order of their calls.
    pub fn tasks(&self) -> impl Iterator<Item = &RankTask> {
        self.tasks.values()
    }

    /// Returns true if all started tasks have ended.
    pub fn is_done(&self) -> bool {
        self.tasks.values().all(|t| t.ended.is_some())
    }

    /// Returns true if everything sent is acknowledged.
    pub fn is_drained(&self) -> bool {
        self.executor.machine().is_drained()
    }

    /// What its oldest task waits for.
    pub fn waiting_for(&self) -> Option<Waiting> {
        self.executor.machine().waiting_for()
    }

    /// Errors of the endpoint or of task memory; empty if the machine works correctly.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Forgets ended tasks.
    pub fn forget(&mut self) {
        self.tasks.retain(|_, t| t.ended.is_none());
    }

    /// Starts a task; [`Rank::carry_out`] executes the resulting actions. Without `input` it has no memory, for measurements
    /// of time: sent bytes are meaningless, received ones are ignored.
    pub(crate) fn start(&mut self, now: Nanos, task: Task, input: Option<(Vec<u8>, TaskMemory)>) -> TaskId {
        let own = (self.rank, self.size);
        let lends = input.as_ref().is_some_and(|(_, kind)| *kind != TaskMemory::Slots);
        let memory = input.map(|(input, kind)| kind.bytes(&task, own, input));
        let id = self.executor.start(task, memory, lends);
        self.tasks.insert(
            id,
            RankTask {
                task,
                started: now,
                delivered: None,
                posted: None,
                ended: None,
                output: Vec::new(),
            },
        );
        id
    }

    /// Handles a completion. [`Rank::carry_out`] executes the resulting actions.
    pub(crate) fn completed(&mut self, now: Nanos, endpoint: &mut Endpoint, completion: &Completion) {
        let Some(channel) = self.executor.channel_of(completion.qpn) else {
            return;
        };
        match completion.op {
            CompletionOp::Send | CompletionOp::Write => {
                self.executor.sent(&mut Nic::new(endpoint), channel, completion);
            }
            CompletionOp::Recv | CompletionOp::RecvWriteImm => {
                let handled = self
                    .executor
                    .received(&mut Nic::new(endpoint), channel, completion);
                self.faults.extend(handled.err());
            }
        }
        self.end(now);
    }

    /// Records the tasks that have ended.
    fn end(&mut self, now: Nanos) {
        while let Some((id, result, memory)) = self.executor.take_ended() {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.ended = Some((now, result));
                let length = task.task.output_bytes(self.rank, self.size);
                task.output = memory.map_or_else(Vec::new, |mut memory| memory.output(length).to_vec());
            }
        }
    }

    /// Executes the machine's actions. Returns true if there were any. With `work`, what is to be sent is appended to it, for
    /// [`Rank::post`].
    pub(crate) fn carry_out(
        &mut self,
        now: Nanos,
        endpoint: &mut Endpoint,
        mut work: Option<&mut VecDeque<Work>>,
    ) -> bool {
        let mut worked = false;
        while let Some(action) = self.executor.poll_action() {
            worked = true;
            let mut nic = Nic::new(endpoint);
            match (action, &mut work) {
                (Action::Send { task, content, .. }, Some(work)) => {
                    let bytes = match content {
                        Content::Data { length, .. } => length,
                        Content::Control(_) => 0,
                    };
                    nic.work = Some((&mut **work, task, bytes));
                }
                (Action::Send { task, .. }, None) => self.posts(now, task),
                (Action::Deliver { task, .. }, _) => {
                    if let Some(task) = self.tasks.get_mut(&task) {
                        task.delivered = Some(now);
                    }
                }
                _ => {}
            }
            if let Err(fault) = self.executor.execute(&mut nic, action) {
                self.faults.push(format!("at {now}: {action:?}: {fault}"));
            }
        }
        self.end(now);
        worked
    }

    /// Posts a send that has waited.
    pub(crate) fn post(&mut self, now: Nanos, endpoint: &mut Endpoint, post: Post) {
        self.posts(now, post.task);
        if let Err(fault) = endpoint.post_send(post.qpn, post.wr) {
            self.faults.push(format!("at {now}: {post:?}: {fault}"));
        }
    }

    fn posts(&mut self, now: Nanos, task: TaskId) {
        if let Some(task) = self.tasks.get_mut(&task) {
            task.posted = Some(now);
        }
    }
}
