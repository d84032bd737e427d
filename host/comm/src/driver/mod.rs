//! Executes a machine's actions on an RNIC: registers slots, lends memory of tasks, posts work requests, copies bytes.

mod pending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use castnet_reduce::Kernel;
use castnet_rnic::{Access, LocalSlice, MemoryRegion, RecvWr, Rnic, RnicError, SendOp, SendWr, Status};
use castnet_wire::{Nanos, Qpn};

use crate::buffers::Memory;
use crate::machine::{
    Action, ChannelId, ChannelShape, Collective, Content, Event, Failure, Machine, Place, Space, Target,
    Task, TaskId,
};

use pending::{Lending, Pending};

/// Bytes at the start of a received message that are passed to the machine.
const HEAD: usize = 64;
/// Memory of shorter tasks is not lent to the RNIC: copies cost less than the wait for the last acknowledgement. Over memif
/// both took as long at 32 KiB.
const LENT_BYTES_MIN: u64 = 64 << 10;

struct Channel {
    qpn: Qpn,
    sends: MemoryRegion,
    receives: MemoryRegion,
    /// By receive slot: the posted receive is for memory of a task instead.
    into_task: Vec<bool>,
    /// Sends from memory of tasks that are not acknowledged: number of the work request and task.
    from_tasks: VecDeque<(u64, TaskId)>,
}

pub(crate) type TaskEnd = (Result<(), Failure>, Memory);

pub(crate) struct Driver {
    machine: Box<dyn Machine>,
    shape: ChannelShape,
    channels: Vec<Channel>,
    pending: BTreeMap<TaskId, Pending>,
    /// Copy of a received message that is being reduced.
    message: Vec<u8>,
    /// True once a queue pair has failed: no acknowledgement is expected any more.
    has_failed: bool,
}

impl Driver {
    /// Registers the slots of the machine's queue pairs. Takes ownership of the queue pairs, also if it fails.
    pub(crate) fn new(
        rnic: &mut dyn Rnic,
        machine: Box<dyn Machine>,
        qpns: Vec<Qpn>,
    ) -> Result<Self, RnicError> {
        let shape = machine.shape();
        let mut driver = Self {
            shape,
            channels: Vec::new(),
            pending: BTreeMap::new(),
            message: vec![0; shape.slot_bytes as usize],
            has_failed: false,
            machine,
        };
        let mut failed = None;
        for qpn in qpns {
            match driver.register(rnic, qpn) {
                Ok(channel) if failed.is_none() => driver.channels.push(channel),
                Ok(channel) => close(rnic, &channel),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            None => Ok(driver),
            Some(error) => {
                driver.close(rnic);
                Err(error)
            }
        }
    }

    fn register(&self, rnic: &mut dyn Rnic, qpn: Qpn) -> Result<Channel, RnicError> {
        let bytes = |slots: u32| slots as usize * self.shape.slot_bytes as usize;
        let sends = rnic.register_memory(bytes(self.shape.send_slots), Access::READ);
        let receives = rnic.register_memory(bytes(self.shape.receive_slots), Access::LOCAL);
        match (sends, receives) {
            (Ok(sends), Ok(receives)) => Ok(Channel {
                qpn,
                sends,
                receives,
                into_task: vec![false; self.shape.receive_slots as usize],
                from_tasks: VecDeque::with_capacity(self.shape.send_slots as usize),
            }),
            (Ok(one), Err(error)) | (Err(error), Ok(one)) => {
                rnic.destroy_qp(qpn)?;
                rnic.deregister_memory(one.key)?;
                Err(error)
            }
            (Err(error), Err(_)) => {
                rnic.destroy_qp(qpn)?;
                Err(error)
            }
        }
    }

    /// Closes the queue pairs, and takes the memory of all tasks back.
    pub(crate) fn close(&mut self, rnic: &mut dyn Rnic) {
        for pending in self.pending.values_mut() {
            pending.end_lending(rnic);
        }
        for channel in self.channels.drain(..) {
            close(rnic, &channel);
        }
    }

    pub(crate) fn qpns(&self) -> Vec<Qpn> {
        self.channels.iter().map(|c| c.qpn).collect()
    }

    pub(crate) fn machine(&self) -> &dyn Machine {
        &*self.machine
    }

    pub(crate) fn start(&mut self, task: Task, memory: Memory) -> TaskId {
        let scratch = self.machine.scratch_bytes(&task) as usize;
        let id = self.machine.start(task);
        // In place, the driver itself reads and writes memory of a ReduceScatter that it would lend.
        let is_split = task.collective == Collective::ReduceScatter
            && matches!(&memory, Memory::Lent(lent) if lent.input.is_none());
        let lending = Lending {
            is_allowed: self.machine.may_send_from_tasks() && task.bytes() >= LENT_BYTES_MIN && !is_split,
            ..Lending::default()
        };
        self.pending.insert(
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

    /// Whether no task runs, and no message waits to be sent or acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.values().all(Pending::is_done) && self.machine.is_drained()
    }

    pub(crate) fn is_done(&self, task: TaskId) -> bool {
        self.pending.get(&task).is_none_or(Pending::is_done)
    }

    /// Result and memory of a task; `None` while it runs.
    pub(crate) fn take(&mut self, task: TaskId) -> Option<TaskEnd> {
        let result = self.pending.get(&task).filter(|p| p.is_done())?.result?;
        let pending = self.pending.remove(&task)?;
        Some((result, pending.memory))
    }

    /// Whether it may access the memory of a task.
    pub(crate) fn has(&self, task: TaskId) -> bool {
        self.pending.contains_key(&task)
    }

    /// Forgets a task and its memory. Messages that still arrive for it are dropped, or fail the queue pair.
    pub(crate) fn abandon(&mut self, rnic: &mut dyn Rnic, task: TaskId) {
        if let Some(mut pending) = self.pending.remove(&task) {
            pending.end_lending(rnic);
        }
    }

    /// Polls the RNIC, handles completions and executes actions. Returns true if there was work to do.
    pub(crate) fn progress(&mut self, rnic: &mut dyn Rnic, now: Nanos) -> Result<bool, RnicError> {
        let polled = rnic.poll(now)?;
        let mut worked = false;
        for index in 0..self.channels.len() {
            let qpn = self.channels[index].qpn;
            let channel = ChannelId(index as u16);
            while let Some(completion) = rnic.poll_recv_completion(qpn) {
                worked = true;
                // A flushed receive follows an error that is reported with its own completion.
                if completion.status == Status::Flushed {
                    continue;
                }
                if completion.status != Status::Success {
                    self.failed(rnic, channel, completion.status);
                    continue;
                }
                let slot = completion.wr_id as u32;
                let mut head = [0; HEAD];
                let head = &mut head[..HEAD.min(completion.byte_len as usize)];
                if completion.imm.is_some() {
                    let offset = self.offset(slot);
                    rnic.read_memory(self.channels[index].receives.key, offset, head)?;
                }
                self.machine.handle(Event::Received {
                    channel,
                    slot,
                    length: completion.byte_len,
                    immediate: completion.imm,
                    head,
                });
            }
            while let Some(completion) = rnic.poll_send_completion(qpn) {
                worked = true;
                match completion.status {
                    Status::Success => {
                        let wr = completion.wr_id;
                        self.sent_from_task(rnic, index, wr);
                        self.machine.handle(Event::Sent { channel, wr });
                    }
                    status => self.failed(rnic, channel, status),
                }
            }
        }
        worked |= self.carry_out(rnic)?;
        Ok(polled || worked)
    }

    /// The sends of a channel up to `wr` are acknowledged.
    fn sent_from_task(&mut self, rnic: &mut dyn Rnic, channel: usize, wr: u64) {
        let sends = &mut self.channels[channel].from_tasks;
        while let Some((_, task)) = sends.pop_front_if(|(sent, _)| *sent <= wr) {
            let Some(pending) = self.pending.get_mut(&task) else {
                continue;
            };
            pending.unacknowledged -= 1;
            if pending.unacknowledged == 0 && pending.result.is_some() {
                pending.end_lending(rnic);
            }
        }
    }

    /// A queue pair has failed. Tasks that wait only for acknowledgements end with the result that they have.
    fn failed(&mut self, rnic: &mut dyn Rnic, channel: ChannelId, status: Status) {
        self.has_failed = true;
        for pending in self.pending.values_mut().filter(|p| p.result.is_some()) {
            pending.end_lending(rnic);
        }
        self.machine.handle(Event::Failed { channel, status });
    }

    /// Executes the machine's actions. Returns true if there were any.
    pub(crate) fn carry_out(&mut self, rnic: &mut dyn Rnic) -> Result<bool, RnicError> {
        let mut worked = false;
        while let Some(action) = self.machine.poll_action() {
            worked = true;
            match action {
                Action::Receive {
                    channel,
                    slot,
                    target,
                } => self.post_receive(rnic, channel, slot, target)?,
                Action::Send {
                    channel,
                    wr,
                    slot,
                    task,
                    content,
                    immediate,
                } => {
                    let local = self.local(rnic, (channel, wr, slot), task, content)?;
                    if let Some(queue_pair) = self.channels.get(usize::from(channel.0)) {
                        let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
                        rnic.post_send(queue_pair.qpn, SendWr::new(wr, op, local))?;
                    }
                }
                Action::Deliver {
                    channel,
                    slot,
                    task,
                    to,
                    length,
                    combine,
                } => self.deliver(rnic, (channel, slot), task, (to, length), combine)?,
                Action::Copy {
                    task,
                    from,
                    to,
                    length,
                } => self.copy(rnic, task, from, to, length)?,
                Action::Done { task, result } => {
                    if let Some(pending) = self.pending.get_mut(&task) {
                        pending.result = Some(result);
                        pending.scratch = Vec::new();
                        // What a failed task has sent and received has no meaning any more.
                        if pending.unacknowledged == 0 || result.is_err() || self.has_failed {
                            pending.end_lending(rnic);
                        }
                    }
                }
            }
        }
        Ok(worked)
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.shape.slot_bytes)
    }

    /// Posts a receive for a slot, or for the memory that its message belongs to.
    fn post_receive(
        &mut self,
        rnic: &mut dyn Rnic,
        channel: ChannelId,
        slot: u32,
        target: Option<Target>,
    ) -> Result<(), RnicError> {
        let offset = self.offset(slot);
        let Some(queue_pair) = self.channels.get_mut(usize::from(channel.0)) else {
            return Ok(());
        };
        let into_task = target.and_then(|Target { task, to, length }| {
            let (key, base) = self.pending.get_mut(&task)?.region(rnic, to.space)?;
            let offset = base + to.offset;
            Some(LocalSlice { key, offset, length })
        });
        queue_pair.into_task[slot as usize] = into_task.is_some();
        let local = into_task.unwrap_or(LocalSlice {
            key: queue_pair.receives.key,
            offset,
            length: self.shape.slot_bytes,
        });
        let wr_id = slot.into();
        rnic.post_recv(queue_pair.qpn, RecvWr { wr_id, local })
    }

    /// The bytes of a message to send: in the memory of its task, or copied to its slot.
    fn local(
        &mut self,
        rnic: &mut dyn Rnic,
        (channel, wr, slot): (ChannelId, u64, u32),
        task: TaskId,
        content: Content,
    ) -> Result<LocalSlice, RnicError> {
        let offset = self.offset(slot);
        let Some(queue_pair) = self.channels.get_mut(usize::from(channel.0)) else {
            return Ok(LocalSlice::EMPTY);
        };
        let key = queue_pair.sends.key;
        let length = match content {
            Content::Control(bytes) => {
                rnic.write_memory(key, offset, &bytes)?;
                bytes.len() as u32
            }
            Content::Data { length: 0, .. } => return Ok(LocalSlice::EMPTY),
            Content::Data { from, length } => {
                if let Some(pending) = self.pending.get_mut(&task)
                    && let Some((key, base)) = pending.region(rnic, from.space)
                {
                    pending.unacknowledged += 1;
                    queue_pair.from_tasks.push_back((wr, task));
                    let offset = base + from.offset;
                    return Ok(LocalSlice { key, offset, length });
                }
                match self.bytes(task, from, length.into()) {
                    Some(bytes) => rnic.write_memory(key, offset, bytes)?,
                    None => tracing::error!(?task, ?from, length, "bytes to send are out of range"),
                }
                length
            }
        };
        Ok(LocalSlice { key, offset, length })
    }

    fn bytes(&mut self, task: TaskId, place: Place, length: u64) -> Option<&[u8]> {
        let pending = self.pending.get_mut(&task)?;
        if place.space == Space::Scratch {
            return scratch(&mut pending.scratch, place, length).map(|b| &*b);
        }
        pending.memory.data().into_read(place, length)
    }

    /// Copies a message out of its slot, if it has not arrived in the memory of its task. The message of an abandoned task
    /// is dropped.
    fn deliver(
        &mut self,
        rnic: &mut dyn Rnic,
        (channel, slot): (ChannelId, u32),
        task: TaskId,
        (to, length): (Place, u32),
        combine: Option<Place>,
    ) -> Result<(), RnicError> {
        let Some(queue_pair) = self.channels.get(usize::from(channel.0)) else {
            return Ok(());
        };
        if queue_pair.into_task[slot as usize] {
            return Ok(());
        }
        let (key, offset) = (queue_pair.receives.key, self.offset(slot));
        let Some(with) = combine else {
            return match self.bytes_mut(task, to, length.into()) {
                Some(bytes) => rnic.read_memory(key, offset, bytes),
                None => Ok(()),
            };
        };
        if let Some(pending) = self.pending.get_mut(&task)
            && let Some((sum, own)) = pending.memory.data().into_both(to, with, length.into())
        {
            rnic.read_memory(key, offset, sum)?;
            pending.kernel.apply(sum, own);
            return Ok(());
        }
        let mut message = std::mem::take(&mut self.message);
        let part = &mut message[..length as usize];
        rnic.read_memory(key, offset, part)?;
        let kernel = self.pending.get(&task).map(|p| p.kernel);
        if let Some(own) = self.bytes(task, with, length.into())
            && let Some(kernel) = kernel
        {
            kernel.apply(part, own);
        }
        if let Some(bytes) = self.bytes_mut(task, to, length.into()) {
            bytes.copy_from_slice(part);
        }
        self.message = message;
        Ok(())
    }

    fn bytes_mut(&mut self, task: TaskId, place: Place, length: u64) -> Option<&mut [u8]> {
        let pending = self.pending.get_mut(&task)?;
        if place.space == Space::Scratch {
            return scratch(&mut pending.scratch, place, length);
        }
        pending.memory.data().into_write(place, length)
    }

    fn copy(
        &mut self,
        rnic: &mut dyn Rnic,
        task: TaskId,
        from: Place,
        to: Place,
        length: u64,
    ) -> Result<(), RnicError> {
        let Some(pending) = self.pending.get_mut(&task) else {
            return Ok(());
        };
        if let (Some(loan), Memory::Lent(memory)) = (pending.lending.rest, &mut pending.memory) {
            let bases = memory.bases();
            let is_same =
                memory.input.is_none() && bases.input as u64 + from.offset == bases.output as u64 + to.offset;
            if is_same {
                return Ok(());
            }
            if let Some(bytes) = memory.data().into_read(from, length) {
                return rnic.write_memory(loan.key, to.offset, bytes);
            }
        }
        let mut data = pending.memory.data();
        let copied = match (from.space, to.space) {
            (Space::Input, Space::Output) => data.copy_across(from.offset, to.offset, length),
            (Space::Scratch, Space::Output) => scratch(&mut pending.scratch, from, length)
                .zip(data.write(to, length))
                .map(|(from, to)| to.copy_from_slice(from))
                .is_some(),
            (_, Space::Scratch) => scratch(&mut pending.scratch, to, length)
                .zip(data.read(from, length))
                .map(|(to, from)| to.copy_from_slice(from))
                .is_some(),
            _ => false,
        };
        if !copied {
            tracing::error!(?task, ?from, ?to, length, "bytes to copy are out of range");
        }
        Ok(())
    }
}

fn close(rnic: &mut dyn Rnic, channel: &Channel) {
    let results = [
        rnic.destroy_qp(channel.qpn),
        rnic.deregister_memory(channel.sends.key),
        rnic.deregister_memory(channel.receives.key),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, qpn = %channel.qpn, "closing a channel");
    }
}

fn scratch(scratch: &mut [u8], place: Place, length: u64) -> Option<&mut [u8]> {
    let from = usize::try_from(place.offset).ok()?;
    scratch.get_mut(from..from.checked_add(usize::try_from(length).ok()?)?)
}
