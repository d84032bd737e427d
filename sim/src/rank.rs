//! A rank of collectives on a host: a machine of CommLib whose actions are executed on the host's endpoint.

use std::collections::BTreeMap;

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Place, Space, Task, TaskId, Waiting,
};
use castnet_endpoint::{
    Access, Completion, CompletionOp, Endpoint, LocalSlice, MemoryKey, RecvWr, SendOp, SendWr, Status,
};
use castnet_reduce::Kernel;
use castnet_wire::{Nanos, Qpn};

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
    /// Time and result of its end; `None` while it runs.
    pub ended: Option<(Nanos, Result<(), Failure>)>,
    memory: Option<Memory>,
    kernel: Kernel,
}

#[derive(Clone, Debug)]
struct Memory {
    input: Vec<u8>,
    output: Vec<u8>,
    scratch: Vec<u8>,
}

impl RankTask {
    /// The output received so far; empty if the task has no memory.
    pub fn output(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &m.output)
    }
}

impl Memory {
    fn space(&mut self, space: Space) -> &mut Vec<u8> {
        match space {
            Space::Input => &mut self.input,
            Space::Output => &mut self.output,
            Space::Scratch => &mut self.scratch,
        }
    }

    fn bytes(&mut self, place: Place, length: u64) -> Option<&mut [u8]> {
        let from = place.offset as usize;
        self.space(place.space).get_mut(from..from + length as usize)
    }
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    qpn: Qpn,
    sends: MemoryKey,
    receives: MemoryKey,
}

/// One rank: machine, slots and tasks.
pub struct Rank {
    rank: u16,
    size: u16,
    machine: Box<dyn Machine>,
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
        machine: Box<dyn Machine>,
        qpns: &[Qpn],
        endpoint: &mut Endpoint,
    ) -> Result<Self, castnet_endpoint::MemoryError> {
        let shape = machine.shape();
        let bytes = |slots: u32| vec![0; slots as usize * shape.slot_bytes as usize];
        let mut channels = Vec::new();
        for &qpn in qpns {
            channels.push(Channel {
                qpn,
                sends: endpoint.register_memory(0, bytes(shape.send_slots), Access::READ)?,
                receives: endpoint.register_memory(0, bytes(shape.receive_slots), Access::LOCAL)?,
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

    /// Starts a task. Without `input` it has no memory, for measurements of time: sent bytes are meaningless, received
    /// ones are ignored.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        endpoint: &mut Endpoint,
        task: Task,
        input: Option<Vec<u8>>,
    ) -> TaskId {
        let memory = input.map(|input| Memory {
            input,
            output: vec![0xEE; task.output_bytes(self.rank, self.size) as usize],
            scratch: vec![0xDD; self.machine.scratch_bytes(&task) as usize],
        });
        let id = self.machine.start(task);
        self.tasks.insert(
            id,
            RankTask {
                task,
                started: now,
                delivered: None,
                ended: None,
                memory,
                kernel: Kernel::select(task.operation, task.data_type, task.flags),
            },
        );
        self.carry_out(now, endpoint);
        id
    }

    /// Handles a completion. [`Rank::carry_out`] executes the resulting actions.
    pub(crate) fn completed(&mut self, endpoint: &Endpoint, completion: &Completion) {
        let Some(index) = self.channels.iter().position(|c| c.qpn == completion.qpn) else {
            return;
        };
        let channel = ChannelId(index as u16);
        match (completion.status, completion.op) {
            (Status::Flushed, _) => {}
            (Status::Success, CompletionOp::Send | CompletionOp::Write) => self.machine.handle(Event::Sent {
                channel,
                wr: completion.wr_id,
            }),
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

    /// Executes the machine's actions. Returns true if there were any.
    pub(crate) fn carry_out(&mut self, now: Nanos, endpoint: &mut Endpoint) -> bool {
        let mut worked = false;
        while let Some(action) = self.machine.poll_action() {
            worked = true;
            if let Err(fault) = self.execute(now, endpoint, action) {
                self.faults.push(format!("at {now}: {action:?}: {fault}"));
            }
        }
        worked
    }

    fn execute(&mut self, now: Nanos, endpoint: &mut Endpoint, action: Action) -> Result<(), String> {
        let at = |slot: u32| u64::from(slot) * u64::from(self.shape.slot_bytes);
        let channel = |id: ChannelId| self.channels.get(usize::from(id.0)).copied().ok_or("no channel");
        match action {
            Action::Receive { channel: id, slot } => {
                let Channel { qpn, receives, .. } = channel(id)?;
                let local = LocalSlice {
                    key: receives,
                    offset: at(slot),
                    length: self.shape.slot_bytes,
                };
                let wr_id = slot.into();
                let posted = endpoint.post_recv(qpn, RecvWr { wr_id, local });
                posted.map_err(|e| e.to_string())
            }
            Action::Send {
                channel: id,
                wr,
                slot,
                task,
                content,
                immediate,
            } => {
                let Channel { qpn, sends, .. } = channel(id)?;
                let length = match content {
                    Content::Control(bytes) => {
                        slot_bytes(endpoint, sends, at(slot), bytes.len())?.copy_from_slice(&bytes);
                        bytes.len() as u32
                    }
                    Content::Data { length: 0, .. } => 0,
                    Content::Data { from, length } => {
                        let memory = self.tasks.get_mut(&task).and_then(|t| t.memory.as_mut());
                        if let Some(memory) = memory {
                            let bytes = memory
                                .bytes(from, length.into())
                                .ok_or("bytes are out of range")?;
                            slot_bytes(endpoint, sends, at(slot), bytes.len())?.copy_from_slice(bytes);
                        }
                        length
                    }
                };
                let local = match length {
                    0 => LocalSlice::EMPTY,
                    length => LocalSlice {
                        key: sends,
                        offset: at(slot),
                        length,
                    },
                };
                let op = immediate.map_or(SendOp::Send, SendOp::SendImm);
                let posted = endpoint.post_send(qpn, SendWr::new(wr, op, local));
                posted.map_err(|e| e.to_string())
            }
            Action::Deliver {
                channel: id,
                slot,
                task,
                to,
                length,
                combine,
            } => {
                let Channel { receives, .. } = channel(id)?;
                let offset = at(slot);
                let Some(task) = self.tasks.get_mut(&task) else {
                    return Ok(());
                };
                task.delivered = Some(now);
                let Some(memory) = &mut task.memory else {
                    return Ok(());
                };
                let message = slot_bytes(endpoint, receives, offset, length as usize)?;
                if let Some(with) = combine {
                    let own = memory
                        .bytes(with, length.into())
                        .ok_or("bytes to add are out of range")?;
                    task.kernel.apply(message, own);
                }
                let output = memory.bytes(to, length.into()).ok_or("output is out of range")?;
                output.copy_from_slice(message);
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
                let bytes = memory
                    .bytes(from, length)
                    .ok_or("bytes are out of range")?
                    .to_vec();
                memory
                    .bytes(to, length)
                    .ok_or("output is out of range")?
                    .copy_from_slice(&bytes);
                Ok(())
            }
            Action::Done { task, result } => {
                // A task may fail inside `start`, before it is recorded.
                if let Some(task) = self.tasks.get_mut(&task) {
                    task.ended = Some((now, result));
                }
                Ok(())
            }
        }
    }
}

fn slot_bytes(
    endpoint: &mut Endpoint,
    key: MemoryKey,
    offset: u64,
    length: usize,
) -> Result<&mut [u8], &'static str> {
    let from = offset as usize;
    let memory = endpoint.memory_mut(key).map_err(|_| "no such region")?;
    memory.get_mut(from..from + length).ok_or("outside the slots")
}
