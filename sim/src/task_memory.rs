//! How the memory of a rank's task is used.

use castnet_comm::LentBytes;
use castnet_comm::machine::{Collective, Task};

/// How messages get into and out of the memory of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskMemory {
    /// They are copied to and from slots. Input and output are apart.
    #[default]
    Slots,
    /// They are sent from it and received into it, where the machine allows that. Input and output are apart.
    Regions,
    /// As [`TaskMemory::Regions`]. The output replaces the input where the collective allows it.
    InPlace,
}

impl TaskMemory {
    /// The memory of a task of `rank` of `size` with this contribution.
    pub(crate) fn bytes(self, task: &Task, (rank, size): (u16, u16), input: Vec<u8>) -> LentBytes {
        let (given, taken) = (input.len(), task.output_bytes(rank, size) as usize);
        if self != Self::InPlace || given == 0 || taken == 0 {
            return LentBytes::owned_apart(input, vec![0xEE; taken]);
        }
        let (at, output) = match task.collective {
            Collective::AllGather => (usize::from(rank) * given, 0),
            Collective::ReduceScatter => (0, usize::from(rank) * taken),
            _ => (0, 0),
        };
        let mut all = vec![0xEE; given.max(taken)];
        all[at..at + given].copy_from_slice(&input);
        LentBytes::owned_in_place(all, at, output)
    }
}
