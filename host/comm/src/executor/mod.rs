//! The one executor of the actions of machines: it posts work requests, copies bytes, and holds the memory of tasks.
//!
//! What differs is a [`Device`]: any RNIC, or the endpoint of a simulated host. Hand each completion to
//! [`Executor::received`] or [`Executor::sent`], then execute the actions of [`Executor::poll_action`] until there are none.

mod pending;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use castnet_reduce::{Kernel, prefetch};
use castnet_rnic::{
    Completion, Lent, LocalSlice, MemoryKey, RecvWr, Rnic, RnicError, SendOp, SendWr, Status,
};
use castnet_wire::Qpn;

use crate::buffers::{LentBytes, Memory};
use crate::machine::{
    Action, ChannelId, ChannelShape, Collective, Content, Event, Failure, Machine, Place, Target, Task,
    TaskId,
};

use pending::{Lending, Pending};

/// Bytes at the start of a received message that are passed to the machine.
const HEAD: usize = 64;

/// What an executor does its work on.
pub trait Device {
    /// Why it cannot.
    type Error: fmt::Display;

    /// Posts a receive.
    fn receive(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), Self::Error>;

    /// Posts a send.
    fn send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), Self::Error>;

    /// Copies bytes of a region, starting at `offset`, into `out`.
    fn read(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), Self::Error>;

    /// Copies `bytes` into a region, starting at `offset`.
    fn write(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes lent memory a region, or returns it.
    fn lend(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, Self::Error)>;

    /// Removes a region of lent memory and returns the memory.
    fn take_back(&mut self, key: MemoryKey) -> Result<Lent, Self::Error>;

    /// An action names bytes that its task does not have: an error of the machine.
    fn out_of_range(&mut self, action: &Action) -> Result<(), Self::Error>;
}

impl<R: Rnic + ?Sized> Device for R {
    type Error = RnicError;

    fn receive(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
        self.post_recv(qpn, wr)
    }

    fn send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
        self.post_send(qpn, wr)
    }

    fn read(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
        self.read_memory(key, offset, out)
    }

    fn write(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
        self.write_memory(key, offset, bytes)
    }

    fn lend(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, RnicError)> {
        self.lend_memory(memory)
    }

    fn take_back(&mut self, key: MemoryKey) -> Result<Lent, RnicError> {
        self.end_lending(key)
    }

    fn out_of_range(&mut self, action: &Action) -> Result<(), RnicError> {
        tracing::error!(?action, "bytes of a task are out of range");
        Ok(())
    }
}

/// A queue pair, its slots, and what is posted.
pub(crate) struct Channel {
    pub(crate) qpn: Qpn,
    pub(crate) sends: MemoryKey,
    pub(crate) receives: MemoryKey,
    /// By receive slot: the posted receive is for memory of a task instead.
    into_task: Vec<bool>,
    /// Sends from memory of tasks that are not acknowledged: number of the work request and task.
    from_tasks: VecDeque<(u64, TaskId)>,
}

/// A machine, its channels, and the memory of its tasks.
pub struct Executor {
    pub(crate) machine: Box<dyn Machine + Send>,
    shape: ChannelShape,
    pub(crate) channels: Vec<Channel>,
    pub(crate) tasks: BTreeMap<TaskId, Pending>,
    /// Copy of a received message that is being reduced.
    message: Vec<u8>,
    /// True once a queue pair has failed: no acknowledgement is expected any more.
    has_failed: bool,
}

impl Executor {
    /// An executor without channels.
    pub fn new(machine: Box<dyn Machine + Send>) -> Self {
        Self {
            shape: machine.shape(),
            machine,
            channels: Vec::new(),
            tasks: BTreeMap::new(),
            message: Vec::new(),
            has_failed: false,
        }
    }

    /// Adds the next channel, with the regions of its slots, which are those of [`Machine::shape`].
    pub fn add_channel(&mut self, qpn: Qpn, sends: MemoryKey, receives: MemoryKey) {
        self.channels.push(Channel {
            qpn,
            sends,
            receives,
            into_task: vec![false; self.shape.receive_slots as usize],
            from_tasks: VecDeque::with_capacity(self.shape.send_slots as usize),
        });
    }

    /// The machine.
    pub fn machine(&self) -> &(dyn Machine + Send) {
        &*self.machine
    }

    /// The channel of a queue pair.
    pub fn channel_of(&self, qpn: Qpn) -> Option<ChannelId> {
        let index = self.channels.iter().position(|channel| channel.qpn == qpn)?;
        Some(ChannelId(index as u16))
    }

    /// Prefetches what the next completion touches.
    pub fn prefetch(&self) {
        prefetch(&*self.machine);
        self.channels.iter().take(1).for_each(prefetch);
    }

    /// Starts a task. If `lends`, its memory becomes regions of the device where the machine allows it. A task without memory is
    /// for measurements of time: sent bytes are meaningless, and received ones are ignored.
    pub fn start(&mut self, task: Task, memory: Option<LentBytes>, lends: bool) -> TaskId {
        self.begin(task, memory.map_or(Memory::None, Memory::Lent), lends)
    }

    pub(crate) fn begin(&mut self, task: Task, memory: Memory, lends: bool) -> TaskId {
        let scratch = match memory {
            Memory::None => 0,
            Memory::Lent(_) | Memory::Owned(_) => self.machine.scratch_bytes(&task) as usize,
        };
        let id = self.machine.start(task);
        // In place, the executor itself reads and writes memory of a ReduceScatter that it would lend.
        let is_split = task.collective == Collective::ReduceScatter
            && matches!(&memory, Memory::Lent(lent) if lent.input.is_none());
        let lending = Lending {
            is_allowed: lends && self.machine.may_send_from_tasks() && !is_split,
            ..Lending::default()
        };
        self.tasks.insert(
            id,
            Pending {
                kernel: Kernel::select(task.operation, task.data_type, task.flags),
                memory,
                scratch: vec![0; scratch],
                result: None,
                lending,
                unacknowledged: 0,
            },
        );
        id
    }

    /// Removes a task that has ended, the oldest first. Returns its result and its memory.
    pub fn take_ended(&mut self) -> Option<(TaskId, Result<(), Failure>, Option<LentBytes>)> {
        let id = self
            .tasks
            .iter()
            .find_map(|(id, task)| task.is_done().then_some(*id))?;
        let (result, memory) = self.take(id)?;
        let memory = match memory {
            Memory::Lent(lent) => Some(lent),
            Memory::Owned(_) | Memory::None => None,
        };
        Some((id, result, memory))
    }

    /// Result and memory of a task; `None` while it runs.
    pub(crate) fn take(&mut self, task: TaskId) -> Option<(Result<(), Failure>, Memory)> {
        let result = self
            .tasks
            .get(&task)
            .filter(|pending| pending.is_done())?
            .result?;
        let pending = self.tasks.remove(&task)?;
        Some((result, pending.memory))
    }

    /// Handles the completion of a receive.
    ///
    /// # Errors
    /// Those of the device, here and below.
    pub fn received<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        channel: ChannelId,
        completion: &Completion,
    ) -> Result<(), D::Error> {
        match completion.status {
            Status::Success => {}
            // It follows an error that is reported with its own completion.
            Status::Flushed => return Ok(()),
            status => {
                self.failed(device, channel, status);
                return Ok(());
            }
        }
        let slot = completion.wr_id as u32;
        let mut head = [0; HEAD];
        let head = &mut head[..HEAD.min(completion.byte_len as usize)];
        if completion.imm.is_some()
            && let Some(queue_pair) = self.channels.get(usize::from(channel.0))
        {
            device.read(queue_pair.receives, self.offset(slot), head)?;
        }
        self.machine.handle(Event::Received {
            channel,
            slot,
            length: completion.byte_len,
            immediate: completion.imm,
            head,
        });
        Ok(())
    }

    /// Handles the completion of a send.
    pub fn sent<D: Device + ?Sized>(&mut self, device: &mut D, channel: ChannelId, completion: &Completion) {
        if completion.status != Status::Success {
            return self.failed(device, channel, completion.status);
        }
        let wr = completion.wr_id;
        if let Some(queue_pair) = self.channels.get_mut(usize::from(channel.0)) {
            while let Some((_, task)) = queue_pair.from_tasks.pop_front_if(|(sent, _)| *sent <= wr) {
                let Some(pending) = self.tasks.get_mut(&task) else {
                    continue;
                };
                pending.unacknowledged -= 1;
                if pending.unacknowledged == 0 && pending.result.is_some() {
                    pending.end_lending(device);
                }
            }
        }
        self.machine.handle(Event::Sent { channel, wr });
    }

    /// A queue pair has failed. Tasks that wait only for acknowledgements end with the result that they have.
    fn failed<D: Device + ?Sized>(&mut self, device: &mut D, channel: ChannelId, status: Status) {
        self.has_failed = true;
        for pending in self.tasks.values_mut().filter(|p| p.result.is_some()) {
            pending.end_lending(device);
        }
        self.machine.handle(Event::Failed { channel, status });
    }

    /// The next action for [`Executor::execute`].
    pub fn poll_action(&mut self) -> Option<Action> {
        self.machine.poll_action()
    }

    /// Executes an action.
    pub fn execute<D: Device + ?Sized>(&mut self, device: &mut D, action: Action) -> Result<(), D::Error> {
        let is_in_range = match action {
            Action::Receive {
                channel,
                slot,
                target,
            } => {
                self.post_receive(device, channel, slot, target)?;
                true
            }
            Action::Send {
                channel,
                wr,
                slot,
                task,
                content,
                immediate,
            } => self.post_send(device, (channel, wr, slot), task, content, immediate)?,
            Action::Deliver {
                channel,
                slot,
                task,
                to,
                length,
                combine,
            } => self.deliver(device, (channel, slot), task, (to, length), combine)?,
            Action::Copy {
                task,
                from,
                to,
                length,
            } => match self.tasks.get_mut(&task) {
                Some(pending) => pending.copy(device, from, to, length)?,
                None => true,
            },
            Action::Done { task, result } => {
                if let Some(pending) = self.tasks.get_mut(&task) {
                    pending.result = Some(result);
                    pending.scratch = Vec::new();
                    // What a failed task has sent and received has no meaning any more.
                    if pending.unacknowledged == 0 || result.is_err() || self.has_failed {
                        pending.end_lending(device);
                    }
                }
                true
            }
        };
        match is_in_range {
            true => Ok(()),
            false => device.out_of_range(&action),
        }
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.shape.slot_bytes)
    }

    /// Posts a receive for a slot, or for the memory that its message belongs to.
    fn post_receive<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        channel: ChannelId,
        slot: u32,
        target: Option<Target>,
    ) -> Result<(), D::Error> {
        let offset = self.offset(slot);
        let Some(queue_pair) = self.channels.get_mut(usize::from(channel.0)) else {
            return Ok(());
        };
        let into_task = target.and_then(|Target { task, to, length }| {
            let (key, base) = self.tasks.get_mut(&task)?.region(device, to.space)?;
            let offset = base + to.offset;
            Some(LocalSlice { key, offset, length })
        });
        queue_pair.into_task[slot as usize] = into_task.is_some();
        let local = into_task.unwrap_or(LocalSlice {
            key: queue_pair.receives,
            offset,
            length: self.shape.slot_bytes,
        });
        let wr_id = slot.into();
        device.receive(queue_pair.qpn, RecvWr { wr_id, local })
    }

    /// Posts a message from the memory of its task, or from its slot, into which it is copied. Returns false if its bytes are
    /// out of range.
    fn post_send<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        (channel, wr, slot): (ChannelId, u64, u32),
        task: TaskId,
        content: Content,
        immediate: Option<u32>,
    ) -> Result<bool, D::Error> {
        let offset = self.offset(slot);
        let Some(queue_pair) = self.channels.get_mut(usize::from(channel.0)) else {
            return Ok(true);
        };
        let key = queue_pair.sends;
        let (local, is_in_range) = match (content, self.tasks.get_mut(&task)) {
            (Content::Control(bytes), _) => {
                device.write(key, offset, &bytes)?;
                let length = bytes.len() as u32;
                (LocalSlice { key, offset, length }, true)
            }
            (Content::Data { length: 0, .. }, _) => (LocalSlice::EMPTY, true),
            // Whoever has abandoned a task ends its queue pairs, too.
            (Content::Data { length, .. }, None) => (LocalSlice { key, offset, length }, true),
            (Content::Data { from, length }, Some(pending)) => {
                if let Some((key, base)) = pending.region(device, from.space) {
                    pending.unacknowledged += 1;
                    queue_pair.from_tasks.push_back((wr, task));
                    let offset = base + from.offset;
                    (LocalSlice { key, offset, length }, true)
                } else {
                    let is_in_range = match pending.bytes(from, length.into()) {
                        Some(bytes) => device.write(key, offset, bytes).map(|()| true)?,
                        None => pending.is_without_memory(),
                    };
                    (LocalSlice { key, offset, length }, is_in_range)
                }
            }
        };
        let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
        device.send(queue_pair.qpn, SendWr::new(wr, op, local))?;
        Ok(is_in_range)
    }

    /// Copies a message out of its slot, if it has not arrived in the memory of its task. The message of an abandoned task
    /// is dropped. Returns false if its bytes are out of range.
    fn deliver<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        (channel, slot): (ChannelId, u32),
        task: TaskId,
        (to, length): (Place, u32),
        combine: Option<Place>,
    ) -> Result<bool, D::Error> {
        let offset = self.offset(slot);
        let (Some(queue_pair), Some(pending)) = (
            self.channels.get(usize::from(channel.0)),
            self.tasks.get_mut(&task),
        ) else {
            return Ok(true);
        };
        if queue_pair.into_task[slot as usize] || pending.is_without_memory() {
            return Ok(true);
        }
        let (key, kernel) = (queue_pair.receives, pending.kernel);
        let Some(with) = combine else {
            let Some(bytes) = pending.bytes_mut(to, length.into()) else {
                return Ok(false);
            };
            return device.read(key, offset, bytes).map(|()| true);
        };
        if let Some((sum, own)) = pending.memory.data().into_both(to, with, length.into()) {
            device.read(key, offset, sum)?;
            kernel.apply(sum, own);
            return Ok(true);
        }
        self.message.resize(length as usize, 0);
        device.read(key, offset, &mut self.message)?;
        let Some(own) = pending.bytes(with, length.into()) else {
            return Ok(false);
        };
        kernel.apply(&mut self.message, own);
        let bytes = pending.bytes_mut(to, length.into());
        Ok(bytes.map(|bytes| bytes.copy_from_slice(&self.message)).is_some())
    }
}
