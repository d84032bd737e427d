//! A rank in a test: a machine whose actions are executed on queues in memory.

use std::collections::VecDeque;
use std::convert::Infallible;

use castnet_rnic::{Lent, MemoryKey, RecvWr, SendOp, SendWr};
use castnet_wire::Qpn;

use super::super::{Action, ChannelShape, Failure, Machine, Task, TaskId};
use super::input;
use crate::buffers::LentBytes;
use crate::executor::{Device, Executor};

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct TaskState {
    pub(crate) task: Task,
    pub(crate) result: Option<Result<(), Failure>>,
    output: Vec<u8>,
}

/// One channel's slots and what was posted through it.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Posted receives.
    pub(crate) receives: VecDeque<u32>,
    /// What arrived in each slot.
    pub(crate) arrived: Vec<Vec<u8>>,
    /// Posted sends that have not been taken from the queue.
    pub(crate) sends: VecDeque<Message>,
    /// Send slots that are in use.
    pub(crate) in_use: VecDeque<(u64, u32)>,
    /// Bytes of the send slots.
    slots: Vec<u8>,
}

/// Wires and the bytes of a slot. The queue pair and both regions of a channel have its number.
struct Wires<'a>(&'a mut [Wire], usize);

impl Device for Wires<'_> {
    type Error = Infallible;

    fn receive(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), Infallible> {
        let (wire, slot) = (&mut self.0[qpn.value() as usize], wr.wr_id as u32);
        assert!(!wire.receives.contains(&slot), "slot {slot} is posted already");
        wire.receives.push_back(slot);
        Ok(())
    }

    fn send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), Infallible> {
        let (offset, length) = (wr.local.offset as usize, wr.local.length as usize);
        assert!(length <= self.1);
        let wire = &mut self.0[qpn.value() as usize];
        let immediate = match wr.op {
            SendOp::Send => None,
            SendOp::SendImm(immediate) => Some(immediate),
            SendOp::Write { .. } | SendOp::WriteImm { .. } => unreachable!("a message"),
        };
        wire.sends.push_back(Message {
            wr: wr.wr_id,
            bytes: wire.slots[offset..][..length].to_vec(),
            immediate,
        });
        Ok(())
    }

    fn read(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), Infallible> {
        let (wire, slot) = (&self.0[key.lkey() as usize], offset as usize / self.1);
        assert!(
            !wire.receives.contains(&(slot as u32)),
            "slot {slot} is the RNIC's"
        );
        // A message is delivered as a whole.
        out.copy_from_slice(&wire.arrived[slot]);
        Ok(())
    }

    fn write(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        let slots = &mut self.0[key.lkey() as usize].slots;
        slots[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn lend(&mut self, _: Lent) -> Result<MemoryKey, (Lent, Infallible)> {
        unreachable!("no memory is lent")
    }

    fn take_back(&mut self, _: MemoryKey) -> Result<Lent, Infallible> {
        unreachable!("no memory is lent")
    }

    fn out_of_range(&mut self, action: &Action) -> Result<(), Infallible> {
        panic!("{action:?} is out of range")
    }
}

pub(crate) struct Rank {
    pub(crate) number: u16,
    size: u16,
    pub(crate) executor: Executor,
    pub(crate) wires: Vec<Wire>,
    pub(crate) tasks: Vec<TaskState>,
    shape: ChannelShape,
}

impl Rank {
    pub(crate) fn new(number: u16, size: u16, machine: Box<dyn Machine + Send>) -> Self {
        let (shape, channels) = (machine.shape(), machine.channels());
        let mut executor = Executor::new(machine);
        for channel in 0..u32::from(channels) {
            let key = MemoryKey::new(channel);
            executor.add_channel(Qpn::new(channel), key, key);
        }
        let wires = (0..channels).map(|_| Wire {
            arrived: vec![Vec::new(); shape.receive_slots as usize],
            slots: vec![0; shape.send_slots as usize * shape.slot_bytes as usize],
            ..Wire::default()
        });
        let mut rank = Self {
            number,
            size,
            wires: wires.collect(),
            executor,
            tasks: Vec::new(),
            shape,
        };
        rank.carry_out();
        rank
    }

    pub(crate) fn start(&mut self, task: Task, in_place: bool) {
        let (rank, size) = (self.number, self.size);
        let own = input(&task, self.tasks.len(), rank, size);
        let out = task.output_bytes(rank, size) as usize;
        let memory = if in_place && out >= own.len() {
            let at = if out > own.len() {
                own.len() * usize::from(rank)
            } else {
                0
            };
            let mut all = vec![0xEE; out];
            // Receivers of a Broadcast have no input. The own block of an AllGather is at its index in the output.
            all[at..at + own.len()].copy_from_slice(&own);
            LentBytes::owned_in_place(all, if own.is_empty() { 0 } else { at }, 0)
        } else if in_place && out > 0 {
            LentBytes::owned_in_place(own, 0, out * usize::from(rank))
        } else {
            LentBytes::owned_apart(own, vec![0xEE; out])
        };
        let id = self.executor.start(task, Some(memory), false);
        assert_eq!(id, TaskId(self.tasks.len() as u64));
        // Its content is undefined.
        let pending = self.executor.tasks.get_mut(&id).expect("it is started");
        pending.scratch.fill(0xDD);
        self.tasks.push(TaskState {
            task,
            result: None,
            output: Vec::new(),
        });
        self.carry_out();
    }

    /// The output of a task that has ended.
    pub(crate) fn output(&self, task: usize) -> Vec<u8> {
        self.tasks[task].output.clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.tasks.iter().all(|t| t.result.is_some())
    }

    pub(crate) fn carry_out(&mut self) {
        while let Some(action) = self.executor.poll_action() {
            match action {
                Action::Send {
                    channel, wr, slot, ..
                } => {
                    let wire = &mut self.wires[usize::from(channel.0)];
                    assert!(slot < self.shape.send_slots);
                    assert!(
                        wire.in_use.iter().all(|u| u.1 != slot),
                        "send slot {slot} is in use"
                    );
                    wire.in_use.push_back((wr, slot));
                }
                Action::Done { task, .. } => {
                    let pending = self.executor.tasks.get(&task);
                    assert!(pending.is_some_and(|p| p.result.is_none()), "ended twice");
                }
                Action::Receive { .. } | Action::Deliver { .. } | Action::Copy { .. } => {}
            }
            let mut wires = Wires(&mut self.wires, self.shape.slot_bytes as usize);
            let Ok(()) = self.executor.execute(&mut wires, action);
        }
        while let Some((id, result, memory)) = self.executor.take_ended() {
            let state = &mut self.tasks[id.0 as usize];
            let length = state.task.output_bytes(self.number, self.size);
            state.result = Some(result);
            state.output = memory.expect("its memory").output(length).to_vec();
        }
    }
}
