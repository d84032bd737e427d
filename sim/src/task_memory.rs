//! Memory of a rank's task: beside the endpoint, or in regions of it.

use castnet_comm::machine::{Collective, Place, Space, Task};
use castnet_endpoint::{Access, Endpoint, LocalSlice, MemoryKey};

/// How messages get into and out of the memory of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskMemory {
    /// They are copied to and from slots. Input and output are apart.
    #[default]
    Slots,
    /// They are sent from it and received into it. Input and output are apart.
    Regions,
    /// They are sent from it and received into it. The output replaces the input where the collective allows it.
    InPlace,
}

/// Input, output and scratch memory. In place, the output holds both, and the input is empty.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    spaces: [Vec<u8>; 3],
    /// First byte of the input and the output in memory that is used in place.
    bases: Option<[usize; 2]>,
    /// The regions of input and output, while the task runs.
    keys: Option<[MemoryKey; 2]>,
}

impl Memory {
    pub(crate) fn new(
        task: &Task,
        (rank, size): (u16, u16),
        (input, scratch): (Vec<u8>, u64),
        kind: TaskMemory,
        endpoint: &mut Endpoint,
    ) -> Result<Self, castnet_endpoint::MemoryError> {
        let (given, taken) = (input.len(), task.output_bytes(rank, size) as usize);
        let scratch = vec![0xDD; scratch as usize];
        let bases = match task.collective {
            _ if kind != TaskMemory::InPlace || given == 0 || taken == 0 => None,
            Collective::AllGather => Some([usize::from(rank) * given, 0]),
            Collective::ReduceScatter => Some([0, usize::from(rank) * taken]),
            _ => Some([0, 0]),
        };
        let mut memory = Self {
            spaces: [input, vec![0xEE; taken], scratch],
            bases,
            keys: None,
        };
        if let Some([at, _]) = bases {
            let input = std::mem::take(&mut memory.spaces[0]);
            memory.spaces[1].resize(given.max(taken), 0xEE);
            memory.spaces[1][at..at + given].copy_from_slice(&input);
        }
        if kind != TaskMemory::Slots {
            let [input, output, _] = &mut memory.spaces;
            let mut register = |bytes| endpoint.register_memory(0, std::mem::take(bytes), Access::LOCAL);
            memory.keys = Some([register(input)?, register(output)?]);
        }
        Ok(memory)
    }

    /// Ends the use of the endpoint's regions.
    pub(crate) fn end(&mut self, endpoint: &mut Endpoint) -> Result<(), castnet_endpoint::MemoryError> {
        for (key, space) in self.keys.take().into_iter().flatten().zip(&mut self.spaces) {
            *space = endpoint.deregister_memory(key)?;
        }
        Ok(())
    }

    /// The output of a task of so many bytes that has ended.
    pub(crate) fn output(&self, length: u64) -> &[u8] {
        let at = self.bases.map_or(0, |[_, output]| output);
        self.spaces[1].get(at..at + length as usize).unwrap_or_default()
    }

    /// Index in `spaces`, and offset there.
    fn locate(&self, place: Place) -> (usize, usize) {
        let offset = place.offset as usize;
        match (place.space, self.bases) {
            (Space::Input, None) => (0, offset),
            (Space::Input, Some([base, _])) | (Space::Output, Some([_, base])) => (1, base + offset),
            (Space::Output, None) => (1, offset),
            (Space::Scratch, _) => (2, offset),
        }
    }

    /// The bytes as a work request names them; `None` if they are not in a region.
    pub(crate) fn in_region(&self, place: Place, length: u32) -> Option<LocalSlice> {
        let (space, offset) = self.locate(place);
        let key = *self.keys.as_ref()?.get(space)?;
        let offset = offset as u64;
        Some(LocalSlice { key, offset, length })
    }

    pub(crate) fn bytes<'a>(
        &'a mut self,
        endpoint: &'a mut Endpoint,
        place: Place,
        length: u64,
    ) -> Option<&'a mut [u8]> {
        let (space, offset) = self.locate(place);
        let all = match self.keys.as_ref().and_then(|keys| keys.get(space)) {
            Some(&key) => endpoint.memory_mut(key).ok()?,
            None => &mut self.spaces[space],
        };
        all.get_mut(offset..offset + length as usize)
    }
}
