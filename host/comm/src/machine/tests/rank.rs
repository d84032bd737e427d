//! A rank in a test: a machine with the memory that a driver would provide.

use std::collections::VecDeque;

use super::super::{Action, ChannelShape, Content, Failure, Machine, Space, Task, TaskId};
use super::input;
use crate::buffers::{Bases, Data};
use castnet_reduce::Kernel;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u32>,
}

#[derive(Debug)]
enum Memory {
    Apart(Vec<u8>, Vec<u8>),
    InPlace(Vec<u8>, Bases),
}

impl Memory {
    fn data(&mut self) -> Data<'_> {
        match self {
            Self::Apart(input, output) => Data::Apart(input, output),
            Self::InPlace(all, bases) => Data::InPlace(all, *bases),
        }
    }
}

#[derive(Debug)]
pub(crate) struct TaskState {
    pub(crate) task: Task,
    memory: Memory,
    scratch: Vec<u8>,
    pub(crate) result: Option<Result<(), Failure>>,
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
}

pub(crate) struct Rank {
    pub(crate) number: u16,
    size: u16,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) tasks: Vec<TaskState>,
    shape: ChannelShape,
}

impl Rank {
    pub(crate) fn new(number: u16, size: u16, machine: Box<dyn Machine>) -> Self {
        let shape = machine.shape();
        let wires = (0..machine.channels()).map(|_| Wire {
            arrived: vec![Vec::new(); shape.receive_slots as usize],
            ..Wire::default()
        });
        let mut rank = Self {
            number,
            size,
            wires: wires.collect(),
            machine,
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
            let input = if own.is_empty() { 0 } else { at };
            Memory::InPlace(all, Bases { input, output: 0 })
        } else if in_place && out > 0 {
            let output = out * usize::from(rank);
            Memory::InPlace(own, Bases { input: 0, output })
        } else {
            Memory::Apart(own, vec![0xEE; out])
        };
        self.tasks.push(TaskState {
            task,
            memory,
            scratch: vec![0xDD; self.machine.scratch_bytes(&task) as usize],
            result: None,
        });
        let id = self.machine.start(task);
        assert_eq!(id, TaskId(self.tasks.len() as u64 - 1));
        self.carry_out();
    }

    pub(crate) fn output(&mut self, task: usize) -> Vec<u8> {
        let state = &mut self.tasks[task];
        let length = state.task.output_bytes(self.number, self.size);
        let mut data = state.memory.data();
        data.read(super::super::Place::output(0), length)
            .expect("an output")
            .to_vec()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.tasks.iter().all(|t| t.result.is_some())
    }

    pub(crate) fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Receive { channel, slot, .. } => {
                    let wire = &mut self.wires[usize::from(channel.0)];
                    assert!(!wire.receives.contains(&slot), "slot {slot} is posted already");
                    wire.receives.push_back(slot);
                }
                Action::Send {
                    channel,
                    wr,
                    slot,
                    task,
                    content,
                    immediate,
                } => {
                    let bytes = match content {
                        Content::Control(bytes) => bytes.to_vec(),
                        Content::Data { from, length } => {
                            let state = &mut self.tasks[task.0 as usize];
                            let length = u64::from(length);
                            if from.space == Space::Scratch {
                                state.scratch[from.offset as usize..][..length as usize].to_vec()
                            } else {
                                let mut data = state.memory.data();
                                data.read(from, length).expect("bytes to send").to_vec()
                            }
                        }
                    };
                    assert!(bytes.len() <= self.shape.slot_bytes as usize);
                    let wire = &mut self.wires[usize::from(channel.0)];
                    assert!(slot < self.shape.send_slots);
                    assert!(
                        wire.in_use.iter().all(|u| u.1 != slot),
                        "send slot {slot} is in use"
                    );
                    wire.in_use.push_back((wr, slot));
                    wire.sends.push_back(Message { wr, bytes, immediate });
                }
                Action::Deliver {
                    channel,
                    slot,
                    task,
                    to,
                    length,
                    combine,
                } => {
                    let wire = &self.wires[usize::from(channel.0)];
                    assert!(!wire.receives.contains(&slot), "slot {slot} is the RNIC's");
                    let mut bytes = wire.arrived[slot as usize].clone();
                    assert_eq!(bytes.len(), length as usize);
                    let state = &mut self.tasks[task.0 as usize];
                    let kernel = Kernel::select(state.task.operation, state.task.data_type, state.task.flags);
                    let mut data = state.memory.data();
                    if let Some(with) = combine {
                        let own = if with.space == Space::Scratch {
                            state.scratch[with.offset as usize..][..bytes.len()].to_vec()
                        } else {
                            data.read(with, length.into()).expect("bytes to add").to_vec()
                        };
                        kernel.apply(&mut bytes, &own);
                    }
                    if to.space == Space::Scratch {
                        state.scratch[to.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    } else {
                        data.write(to, length.into())
                            .expect("room")
                            .copy_from_slice(&bytes);
                    }
                }
                Action::Copy {
                    task,
                    from,
                    to,
                    length,
                } => {
                    let state = &mut self.tasks[task.0 as usize];
                    let mut data = state.memory.data();
                    let bytes = if from.space == Space::Scratch {
                        state.scratch[from.offset as usize..][..length as usize].to_vec()
                    } else {
                        data.read(from, length).expect("bytes to copy").to_vec()
                    };
                    if to.space == Space::Scratch {
                        state.scratch[to.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    } else {
                        data.write(to, length).expect("room").copy_from_slice(&bytes);
                    }
                }
                Action::Done { task, result } => {
                    let state = &mut self.tasks[task.0 as usize];
                    assert_eq!(state.result, None, "ended twice");
                    state.result = Some(result);
                }
            }
        }
    }
}
