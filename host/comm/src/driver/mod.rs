//! Moves a machine on an RNIC: registers slots, polls completions, and has the actions executed.

#[cfg(test)]
mod tests;

use castnet_rnic::{Access, Rnic, RnicError};
use castnet_wire::{Nanos, Qpn};

use crate::buffers::Memory;
use crate::executor::{Channel, Executor};
use crate::machine::{ChannelId, Failure, Machine, Task, TaskId};

/// Memory of shorter tasks is not lent to the RNIC: copies cost less than the wait for the last acknowledgement. Over memif
/// both took as long at 32 KiB.
const LENT_BYTES_MIN: u64 = 64 << 10;

pub(crate) type TaskEnd = (Result<(), Failure>, Memory);

pub(crate) struct Driver {
    executor: Executor,
}

impl Driver {
    /// Registers the slots of the machine's queue pairs. Takes ownership of the queue pairs, also if it fails.
    pub(crate) fn new(
        rnic: &mut dyn Rnic,
        machine: Box<dyn Machine + Send>,
        qpns: Vec<Qpn>,
    ) -> Result<Self, RnicError> {
        let mut driver = Self {
            executor: Executor::new(machine),
        };
        let mut failed = None;
        for qpn in qpns {
            if let Err(error) = driver.register(rnic, qpn) {
                failed.get_or_insert(error);
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

    fn register(&mut self, rnic: &mut dyn Rnic, qpn: Qpn) -> Result<(), RnicError> {
        let shape = self.machine().shape();
        let bytes = |slots: u32| slots as usize * shape.slot_bytes as usize;
        let sends = rnic.register_memory(bytes(shape.send_slots), Access::READ);
        let receives = rnic.register_memory(bytes(shape.receive_slots), Access::LOCAL);
        match (sends, receives) {
            (Ok(sends), Ok(receives)) => {
                self.executor.add_channel(qpn, sends.key, receives.key);
                Ok(())
            }
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
        for task in self.executor.tasks.values_mut() {
            task.end_lending(rnic);
        }
        for channel in self.executor.channels.drain(..) {
            close(rnic, &channel);
        }
    }

    pub(crate) fn qpns(&self) -> Vec<Qpn> {
        self.executor.channels.iter().map(|c| c.qpn).collect()
    }

    pub(crate) fn machine(&self) -> &dyn Machine {
        self.executor.machine()
    }

    pub(crate) fn start(&mut self, task: Task, memory: Memory) -> TaskId {
        let lends = task.bytes() >= LENT_BYTES_MIN;
        self.executor.begin(task, memory, lends)
    }

    /// Whether no task runs, and no message waits to be sent or acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.executor.tasks.values().all(|task| task.is_done()) && self.machine().is_drained()
    }

    pub(crate) fn is_done(&self, task: TaskId) -> bool {
        self.executor.tasks.get(&task).is_none_or(|task| task.is_done())
    }

    /// Result and memory of a task; `None` while it runs.
    pub(crate) fn take(&mut self, task: TaskId) -> Option<TaskEnd> {
        self.executor.take(task)
    }

    /// Whether it may access the memory of a task.
    pub(crate) fn has(&self, task: TaskId) -> bool {
        self.executor.tasks.contains_key(&task)
    }

    /// Forgets a task and its memory. Messages that still arrive for it are dropped, or fail the queue pair.
    pub(crate) fn abandon(&mut self, rnic: &mut dyn Rnic, task: TaskId) {
        if let Some(mut task) = self.executor.tasks.remove(&task) {
            task.end_lending(rnic);
        }
    }

    /// Polls the RNIC, handles completions and executes actions. Returns true if there was work to do.
    pub(crate) fn progress(&mut self, rnic: &mut dyn Rnic, now: Nanos) -> Result<bool, RnicError> {
        let polled = rnic.poll(now)?;
        let mut worked = false;
        for index in 0..self.executor.channels.len() {
            let qpn = self.executor.channels[index].qpn;
            let channel = ChannelId(index as u16);
            while let Some(completion) = rnic.poll_recv_completion(qpn) {
                worked = true;
                self.executor.received(rnic, channel, &completion)?;
            }
            while let Some(completion) = rnic.poll_send_completion(qpn) {
                worked = true;
                self.executor.sent(rnic, channel, &completion);
            }
        }
        worked |= self.carry_out(rnic)?;
        Ok(polled || worked)
    }

    /// Executes the machine's actions. Returns true if there were any.
    pub(crate) fn carry_out(&mut self, rnic: &mut dyn Rnic) -> Result<bool, RnicError> {
        let mut worked = false;
        while let Some(action) = self.executor.poll_action() {
            worked = true;
            self.executor.execute(rnic, action)?;
        }
        Ok(worked)
    }
}

fn close(rnic: &mut dyn Rnic, channel: &Channel) {
    let results = [
        rnic.destroy_qp(channel.qpn),
        rnic.deregister_memory(channel.sends),
        rnic.deregister_memory(channel.receives),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, qpn = %channel.qpn, "closing a channel");
    }
}
