//! Executes a machine's actions on an RNIC: registers slots, posts work requests, copies bytes of user memory.

use std::collections::BTreeMap;

use castnet_reduce::Kernel;
use castnet_rnic::{Access, LocalSlice, MemoryRegion, RecvWr, Rnic, RnicError, SendOp, SendWr, Status};
use castnet_wire::{Nanos, Qpn};

use crate::buffers::{Data, Memory};
use crate::machine::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Place, Space, Task, TaskId,
};

/// Bytes at the start of a received message that are passed to the machine.
const HEAD: usize = 64;

struct Channel {
    qpn: Qpn,
    sends: MemoryRegion,
    receives: MemoryRegion,
}

/// A task whose result has not been taken.
struct Pending {
    kernel: Kernel,
    memory: Memory,
    scratch: Vec<u8>,
    result: Option<Result<(), Failure>>,
}

pub(crate) type TaskEnd = (Result<(), Failure>, Memory);

/// Memory of the one task whose caller waits.
pub(crate) struct Borrowed<'a> {
    pub(crate) task: TaskId,
    pub(crate) data: Data<'a>,
}

pub(crate) struct Driver {
    machine: Box<dyn Machine>,
    shape: ChannelShape,
    channels: Vec<Channel>,
    pending: BTreeMap<TaskId, Pending>,
    /// Copy of a received message that is being reduced.
    message: Vec<u8>,
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
            (Ok(sends), Ok(receives)) => Ok(Channel { qpn, sends, receives }),
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

    pub(crate) fn close(&mut self, rnic: &mut dyn Rnic) {
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
        self.pending.insert(
            id,
            Pending {
                kernel: Kernel::select(task.operation, task.data_type, task.flags),
                memory,
                scratch: vec![0; scratch],
                result: None,
            },
        );
        id
    }

    /// Whether no task runs, and no message waits to be sent or acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.values().all(|task| task.result.is_some()) && self.machine.is_drained()
    }

    pub(crate) fn is_done(&self, task: TaskId) -> bool {
        self.pending.get(&task).is_none_or(|p| p.result.is_some())
    }

    /// Result and memory of a task; `None` while it runs.
    pub(crate) fn take(&mut self, task: TaskId) -> Option<TaskEnd> {
        let result = self.pending.get(&task)?.result?;
        let pending = self.pending.remove(&task)?;
        Some((result, pending.memory))
    }

    /// Forgets a task and its memory. Messages that still arrive for it are dropped.
    pub(crate) fn abandon(&mut self, task: TaskId) {
        self.pending.remove(&task);
    }

    /// Polls the RNIC, handles completions and executes actions. Returns true if there was work to do.
    pub(crate) fn progress(
        &mut self,
        rnic: &mut dyn Rnic,
        now: Nanos,
        borrowed: Option<&mut Borrowed<'_>>,
    ) -> Result<bool, RnicError> {
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
                    let status = completion.status;
                    self.machine.handle(Event::Failed { channel, status });
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
                let event = match completion.status {
                    Status::Success => Event::Sent {
                        channel,
                        wr: completion.wr_id,
                    },
                    status => Event::Failed { channel, status },
                };
                self.machine.handle(event);
            }
        }
        worked |= self.carry_out(rnic, borrowed)?;
        Ok(polled || worked)
    }

    /// Executes the machine's actions. Returns true if there were any.
    pub(crate) fn carry_out(
        &mut self,
        rnic: &mut dyn Rnic,
        mut borrowed: Option<&mut Borrowed<'_>>,
    ) -> Result<bool, RnicError> {
        let mut worked = false;
        while let Some(action) = self.machine.poll_action() {
            worked = true;
            match action {
                Action::Receive { channel, slot } => self.post_receive(rnic, channel, slot)?,
                Action::Send {
                    channel,
                    wr,
                    slot,
                    task,
                    content,
                    immediate,
                } => {
                    let offset = self.offset(slot);
                    let Some(queue_pair) = self.channels.get(usize::from(channel.0)) else {
                        continue;
                    };
                    let (qpn, key) = (queue_pair.qpn, queue_pair.sends.key);
                    let length = match content {
                        Content::Control(bytes) => {
                            rnic.write_memory(key, offset, &bytes)?;
                            bytes.len() as u32
                        }
                        Content::Data { length: 0, .. } => 0,
                        Content::Data { from, length } => {
                            let bytes = self.bytes(task, borrowed.as_deref_mut(), from, length.into());
                            match bytes {
                                Some(bytes) => rnic.write_memory(key, offset, bytes)?,
                                None => {
                                    tracing::error!(?task, ?from, length, "bytes to send are out of range")
                                }
                            }
                            length
                        }
                    };
                    let local = if length == 0 {
                        LocalSlice::EMPTY
                    } else {
                        LocalSlice { key, offset, length }
                    };
                    let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
                    rnic.post_send(qpn, SendWr::new(wr, op, local))?;
                }
                Action::Deliver {
                    channel,
                    slot,
                    task,
                    to,
                    length,
                    combine,
                } => self.deliver(
                    rnic,
                    (channel, slot),
                    task,
                    (to, length),
                    combine,
                    borrowed.as_deref_mut(),
                )?,
                Action::Copy {
                    task,
                    from,
                    to,
                    length,
                } => self.copy(task, borrowed.as_deref_mut(), from, to, length),
                Action::Done { task, result } => {
                    if let Some(pending) = self.pending.get_mut(&task) {
                        pending.result = Some(result);
                        pending.scratch = Vec::new();
                    }
                }
            }
        }
        Ok(worked)
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.shape.slot_bytes)
    }

    fn post_receive(&self, rnic: &mut dyn Rnic, channel: ChannelId, slot: u32) -> Result<(), RnicError> {
        let Some(queue_pair) = self.channels.get(usize::from(channel.0)) else {
            return Ok(());
        };
        let local = LocalSlice {
            key: queue_pair.receives.key,
            offset: self.offset(slot),
            length: self.shape.slot_bytes,
        };
        let wr_id = slot.into();
        rnic.post_recv(queue_pair.qpn, RecvWr { wr_id, local })
    }

    fn bytes<'b>(
        &'b mut self,
        task: TaskId,
        borrowed: Option<&'b mut Borrowed<'_>>,
        place: Place,
        length: u64,
    ) -> Option<&'b [u8]> {
        let pending = self.pending.get_mut(&task)?;
        if place.space == Space::Scratch {
            return scratch(&mut pending.scratch, place, length).map(|b| &*b);
        }
        view(&mut pending.memory, borrowed, task)?.into_read(place, length)
    }

    /// Copies a message out of its slot. The message of an abandoned task is dropped.
    fn deliver(
        &mut self,
        rnic: &mut dyn Rnic,
        (channel, slot): (ChannelId, u32),
        task: TaskId,
        (to, length): (Place, u32),
        combine: Option<Place>,
        mut borrowed: Option<&mut Borrowed<'_>>,
    ) -> Result<(), RnicError> {
        let Some(queue_pair) = self.channels.get(usize::from(channel.0)) else {
            return Ok(());
        };
        let (key, offset) = (queue_pair.receives.key, self.offset(slot));
        let Some(with) = combine else {
            return match self.bytes_mut(task, borrowed, to, length.into()) {
                Some(bytes) => rnic.read_memory(key, offset, bytes),
                None => Ok(()),
            };
        };
        let mut message = std::mem::take(&mut self.message);
        let part = &mut message[..length as usize];
        rnic.read_memory(key, offset, part)?;
        let kernel = self.pending.get(&task).map(|p| p.kernel);
        if let Some(own) = self.bytes(task, borrowed.as_deref_mut(), with, length.into())
            && let Some(kernel) = kernel
        {
            kernel.apply(part, own);
        }
        if let Some(bytes) = self.bytes_mut(task, borrowed, to, length.into()) {
            bytes.copy_from_slice(part);
        }
        self.message = message;
        Ok(())
    }

    fn bytes_mut<'b>(
        &'b mut self,
        task: TaskId,
        borrowed: Option<&'b mut Borrowed<'_>>,
        place: Place,
        length: u64,
    ) -> Option<&'b mut [u8]> {
        let pending = self.pending.get_mut(&task)?;
        if place.space == Space::Scratch {
            return scratch(&mut pending.scratch, place, length);
        }
        view(&mut pending.memory, borrowed, task)?.into_write(place, length)
    }

    fn copy(
        &mut self,
        task: TaskId,
        borrowed: Option<&mut Borrowed<'_>>,
        from: Place,
        to: Place,
        length: u64,
    ) {
        let Some(pending) = self.pending.get_mut(&task) else {
            return;
        };
        let Some(mut data) = view(&mut pending.memory, borrowed, task) else {
            return;
        };
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

/// Input and output of a task: lent by its caller, or its own.
fn view<'b>(own: &'b mut Memory, borrowed: Option<&'b mut Borrowed<'_>>, task: TaskId) -> Option<Data<'b>> {
    match borrowed.filter(|b| b.task == task) {
        Some(borrowed) => Some(borrowed.data.reborrow()),
        None => match own {
            Memory::Caller => None,
            Memory::Lent(data) => Some(data.reborrow()),
            Memory::Owned(own) => Some(own.data()),
        },
    }
}

fn scratch(scratch: &mut [u8], place: Place, length: u64) -> Option<&mut [u8]> {
    let from = usize::try_from(place.offset).ok()?;
    scratch.get_mut(from..from.checked_add(usize::try_from(length).ok()?)?)
}
