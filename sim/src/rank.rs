//! A rank of collectives on a host: a machine of CommLib whose actions are executed on the host's endpoint.

use std::collections::{BTreeMap, VecDeque};

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Task, TaskId, Waiting,
};
use castnet_endpoint::{
    Access, Completion, CompletionOp, Endpoint, LocalSlice, MemoryKey, RecvWr, SendOp, SendWr, Status,
};
use castnet_reduce::{Kernel, prefetch};
use castnet_wire::{Nanos, Qpn};

use crate::node::Work;
use crate::task_memory::{Memory, TaskMemory};

/// Bytes at the start of a message that are passed to the machine.
const HEAD: usize = 64;

/// A task of a rank, with its memory.
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
    memory: Option<Memory>,
    kernel: Kernel,
    output_bytes: u64,
    /// Sends from its memory that are not acknowledged.
    unacknowledged: u32,
    /// The result, before all sends from its memory are acknowledged.
    result: Option<Result<(), Failure>>,
}

impl RankTask {
    /// The output once the task has ended; empty if the task has no memory.
    pub fn output(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| m.output(self.output_bytes))
    }

    /// Ends a task that has its result, once all sends from its memory are acknowledged.
    fn end(&mut self, now: Nanos, endpoint: &mut Endpoint) -> Result<(), castnet_endpoint::MemoryError> {
        if let Some(result) = self.result
            && self.ended.is_none()
            && (self.unacknowledged == 0 || result.is_err())
        {
            self.ended = Some((now, result));
            return self.memory.as_mut().map_or(Ok(()), |m| m.end(endpoint));
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Channel {
    qpn: Qpn,
    sends: MemoryKey,
    receives: MemoryKey,
    /// By receive slot: the posted receive is for memory of a task instead.
    into_task: Vec<bool>,
    /// Sends from memory of tasks that are not acknowledged: number of the work request and task.
    from_tasks: VecDeque<(u64, TaskId)>,
}

/// One rank: machine, slots and tasks.
pub struct Rank {
    rank: u16,
    size: u16,
    machine: Box<dyn Machine + Send>,
    shape: ChannelShape,
    channels: Vec<Channel>,
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
        let mut channels = Vec::new();
        for &qpn in qpns {
            channels.push(Channel {
                qpn,
                sends: slots(shape.send_slots, Access::READ)?,
                receives: slots(shape.receive_slots, Access::LOCAL)?,
                into_task: vec![false; shape.receive_slots as usize],
                from_tasks: VecDeque::new(),
            });
        }
        let mut rank = Self {
            rank,
            size,
            machine,
            shape,
            channels,
            tasks: BTreeMap::new(),
            faults: Vec::new(),
        };
        rank.carry_out(Nanos::ZERO, endpoint);
        Ok(rank)
    }

    /// Prefetches what the next completion touches, in three steps. Each reads what the one before it has prefetched.
    pub(crate) fn prefetch(&self, step: usize) {
        match step {
            0 => prefetch(self),
            1 => {
                prefetch(&*self.machine);
                self.channels
                    .first()
                    .iter()
                    .for_each(|channel| prefetch(*channel));
            }
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
        self.machine.is_drained()
    }

    /// What its oldest task waits for.
    pub fn waiting_for(&self) -> Option<Waiting> {
        self.machine.waiting_for()
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
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        endpoint: &mut Endpoint,
        task: Task,
        input: Option<(Vec<u8>, TaskMemory)>,
    ) -> TaskId {
        let (own, scratch) = ((self.rank, self.size), self.machine.scratch_bytes(&task));
        let may_send = self.machine.may_send_from_tasks();
        let memory = input.and_then(|(input, kind)| {
            let kind = if may_send { kind } else { TaskMemory::Slots };
            let memory = Memory::new(&task, own, (input, scratch), kind, endpoint);
            memory.map_err(|fault| self.faults.push(fault.to_string())).ok()
        });
        let id = self.machine.start(task);
        self.tasks.insert(
            id,
            RankTask {
                task,
                started: now,
                delivered: None,
                posted: None,
                ended: None,
                memory,
                kernel: Kernel::select(task.operation, task.data_type, task.flags),
                output_bytes: task.output_bytes(self.rank, self.size),
                unacknowledged: 0,
                result: None,
            },
        );
        id
    }

    /// Handles a completion. [`Rank::carry_out`] executes the resulting actions.
    pub(crate) fn completed(&mut self, now: Nanos, endpoint: &mut Endpoint, completion: &Completion) {
        let Some(index) = self.channels.iter().position(|c| c.qpn == completion.qpn) else {
            return;
        };
        let channel = ChannelId(index as u16);
        match (completion.status, completion.op) {
            (Status::Flushed, _) => {}
            (Status::Success, CompletionOp::Send | CompletionOp::Write) => {
                let wr = completion.wr_id;
                self.sent_from_task(now, endpoint, index, wr);
                self.machine.handle(Event::Sent { channel, wr });
            }
            (Status::Success, CompletionOp::Recv | CompletionOp::RecvWriteImm) => {
                let slot = completion.wr_id as u32;
                let at = slot as usize * self.shape.slot_bytes as usize;
                let length = HEAD.min(completion.byte_len as usize);
                let memory = endpoint.memory(self.channels[index].receives);
                let head = memory.ok().and_then(|m| m.get(at..at + length));
                self.machine.handle(Event::Received {
                    channel,
                    slot,
                    length: completion.byte_len,
                    immediate: completion.imm,
                    head: head.unwrap_or_default(),
                });
            }
            (status, _) => self.machine.handle(Event::Failed { channel, status }),
        }
    }

    fn sent_from_task(&mut self, now: Nanos, endpoint: &mut Endpoint, channel: usize, wr: u64) {
        let sends = &mut self.channels[channel].from_tasks;
        while let Some((_, task)) = sends.pop_front_if(|(sent, _)| *sent <= wr) {
            if let Some(task) = self.tasks.get_mut(&task) {
                task.unacknowledged -= 1;
                let ended = task.end(now, endpoint);
                self.faults.extend(ended.err().map(|fault| fault.to_string()));
            }
        }
    }

    /// Executes the machine's actions. Returns true if there were any.
    pub(crate) fn carry_out(&mut self, now: Nanos, endpoint: &mut Endpoint) -> bool {
        let mut worked = false;
        while let Some(action) = self.machine.poll_action() {
            worked = true;
            self.try_execute(now, endpoint, action);
        }
        worked
    }

    /// As [`Rank::carry_out`], but sends are appended to `work`.
    pub(crate) fn carry_out_without_sends(
        &mut self,
        now: Nanos,
        endpoint: &mut Endpoint,
        work: &mut VecDeque<Work>,
    ) -> bool {
        let mut worked = false;
        while let Some(action) = self.machine.poll_action() {
            worked = true;
            match action {
                Action::Send { .. } => work.push_back(Work::Post(action)),
                _ => self.try_execute(now, endpoint, action),
            }
        }
        worked
    }

    /// Executes an action, and records a fault.
    pub(crate) fn try_execute(&mut self, now: Nanos, endpoint: &mut Endpoint, action: Action) {
        if let Err(fault) = self.execute(now, endpoint, action) {
            self.faults.push(format!("at {now}: {action:?}: {fault}"));
        }
    }

    fn execute(&mut self, now: Nanos, endpoint: &mut Endpoint, action: Action) -> Result<(), String> {
        let (slot_bytes, no_channel) = (self.shape.slot_bytes, "no channel");
        let at = |slot: u32| u64::from(slot) * u64::from(slot_bytes);
        let channel_of = |id: ChannelId| usize::from(id.0);
        match action {
            Action::Receive {
                channel,
                slot,
                target,
            } => {
                let channel = self.channels.get_mut(channel_of(channel)).ok_or(no_channel)?;
                let into_task = target.and_then(|target| {
                    let memory = self.tasks.get(&target.task)?.memory.as_ref()?;
                    memory.in_region(target.to, target.length)
                });
                channel.into_task[slot as usize] = into_task.is_some();
                let local = into_task.unwrap_or(LocalSlice {
                    key: channel.receives,
                    offset: at(slot),
                    length: slot_bytes,
                });
                let wr_id = slot.into();
                let posted = endpoint.post_recv(channel.qpn, RecvWr { wr_id, local });
                posted.map_err(|e| e.to_string())
            }
            Action::Send {
                channel,
                wr,
                slot,
                task,
                content,
                immediate,
            } => {
                let channel = self.channels.get_mut(channel_of(channel)).ok_or(no_channel)?;
                let of_slot = |length| LocalSlice {
                    key: channel.sends,
                    offset: at(slot),
                    length,
                };
                let local = match content {
                    Content::Control(bytes) => {
                        in_slot(endpoint, channel.sends, at(slot), bytes.len())?.copy_from_slice(&bytes);
                        of_slot(bytes.len() as u32)
                    }
                    Content::Data { length: 0, .. } => LocalSlice::EMPTY,
                    Content::Data { from, length } => {
                        let state = self.tasks.get_mut(&task);
                        let memory = state.and_then(|t| Some((t.memory.as_mut()?, &mut t.unacknowledged)));
                        if let Some((memory, unacknowledged)) = memory {
                            if let Some(local) = memory.in_region(from, length) {
                                *unacknowledged += 1;
                                channel.from_tasks.push_back((wr, task));
                                local
                            } else {
                                let bytes = memory
                                    .bytes(endpoint, from, length.into())
                                    .ok_or("bytes are out of range")?
                                    .to_vec();
                                in_slot(endpoint, channel.sends, at(slot), bytes.len())?
                                    .copy_from_slice(&bytes);
                                of_slot(length)
                            }
                        } else {
                            of_slot(length)
                        }
                    }
                };
                let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
                if let Some(task) = self.tasks.get_mut(&task) {
                    task.posted = Some(now);
                }
                let posted = endpoint.post_send(channel.qpn, SendWr::new(wr, op, local));
                posted.map_err(|e| e.to_string())
            }
            Action::Deliver {
                channel,
                slot,
                task,
                to,
                length,
                combine,
            } => {
                let channel = self.channels.get(channel_of(channel)).ok_or(no_channel)?;
                let Some(task) = self.tasks.get_mut(&task) else {
                    return Ok(());
                };
                task.delivered = Some(now);
                let Some(memory) = &mut task.memory else {
                    return Ok(());
                };
                if channel.into_task[slot as usize] {
                    return Ok(());
                }
                let mut message = in_slot(endpoint, channel.receives, at(slot), length as usize)?.to_vec();
                if let Some(with) = combine {
                    let own = memory.bytes(endpoint, with, length.into());
                    task.kernel
                        .apply(&mut message, own.ok_or("bytes to add are out of range")?);
                }
                let output = memory.bytes(endpoint, to, length.into());
                output.ok_or("output is out of range")?.copy_from_slice(&message);
                Ok(())
            }
            Action::Copy {
                task,
                from,
                to,
                length,
            } => {
                let memory = self.tasks.get_mut(&task).and_then(|t| t.memory.as_mut());
                let Some(memory) = memory else { return Ok(()) };
                let bytes = memory.bytes(endpoint, from, length);
                let bytes = bytes.ok_or("bytes are out of range")?.to_vec();
                let output = memory.bytes(endpoint, to, length);
                output.ok_or("output is out of range")?.copy_from_slice(&bytes);
                Ok(())
            }
            Action::Done { task, result } => {
                // A task may fail inside `start`, before it is recorded.
                let Some(task) = self.tasks.get_mut(&task) else {
                    return Ok(());
                };
                task.result = Some(result);
                task.end(now, endpoint).map_err(|e| e.to_string())
            }
        }
    }
}

fn in_slot(
    endpoint: &mut Endpoint,
    key: MemoryKey,
    offset: u64,
    length: usize,
) -> Result<&mut [u8], &'static str> {
    let from = offset as usize;
    let memory = endpoint.memory_mut(key).map_err(|_| "no such region")?;
    memory.get_mut(from..from + length).ok_or("outside the slots")
}
