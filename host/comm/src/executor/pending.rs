//! A running task: its memory, and what the device has of it.

use castnet_reduce::Kernel;
use castnet_rnic::{Lent, MemoryKey};

use super::Device;
use crate::buffers::{Input, Memory};
use crate::machine::{Failure, Place, Space};

/// A task whose result has not been taken.
pub(crate) struct Pending {
    pub(crate) kernel: Kernel,
    pub(crate) memory: Memory,
    pub(crate) scratch: Vec<u8>,
    pub(crate) result: Option<Result<(), Failure>>,
    pub(crate) lending: Lending,
    /// Sends from its memory that are not acknowledged.
    pub(crate) unacknowledged: u32,
}

/// What the device has of a task's memory.
#[derive(Default)]
pub(crate) struct Lending {
    /// True until the device refuses: the memory is lent when it is first needed.
    pub(crate) is_allowed: bool,
    pub(crate) input: Option<Loan>,
    pub(crate) rest: Option<Loan>,
}

/// Memory that the device has.
#[derive(Clone, Copy)]
pub(crate) struct Loan {
    pub(crate) key: MemoryKey,
    address: usize,
    length: usize,
}

impl Loan {
    /// Lends memory. Leaves it in `memory` if the device refuses it.
    fn new<D: Device + ?Sized>(device: &mut D, memory: &mut Lent) -> Option<Self> {
        let bytes = memory.bytes();
        let (address, length) = (bytes.as_ptr().addr(), bytes.len());
        match device.lend(std::mem::take(memory)) {
            Ok(key) => Some(Self { key, address, length }),
            Err((back, error)) => {
                tracing::debug!(%error, length, "memory is not lent");
                *memory = check((address, length), back);
                None
            }
        }
    }

    /// Takes the memory back.
    fn end<D: Device + ?Sized>(self, device: &mut D) -> Lent {
        match device.take_back(self.key) {
            Ok(back) => check((self.address, self.length), back),
            Err(error) => abort(&error.to_string()),
        }
    }
}

/// Checks that the device has returned the memory that was lent to it.
fn check((address, length): (usize, usize), back: Lent) -> Lent {
    let bytes = back.bytes();
    if (bytes.as_ptr().addr(), bytes.len()) != (address, length) {
        abort("it has returned other memory");
    }
    back
}

/// The owner of lent memory is about to use it while the device has it.
fn abort(reason: &str) -> ! {
    tracing::error!(reason, "the device does not return lent memory");
    std::process::abort()
}

impl Pending {
    /// The region of the device with a space of the task, and the offset of the space in it. Lends it when it is first
    /// needed.
    pub(crate) fn region<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        space: Space,
    ) -> Option<(MemoryKey, u64)> {
        let Memory::Lent(memory) = &mut self.memory else {
            return None;
        };
        let bases = memory.bases();
        let mut input = memory.input.as_ref().map(Input::lend);
        let (loan, memory, base) = match (space, &mut input) {
            (Space::Scratch, _) => return None,
            (Space::Input, Some(input)) => (&mut self.lending.input, input, bases.input),
            (Space::Input, None) => (&mut self.lending.rest, &mut memory.rest, bases.input),
            (Space::Output, _) => (&mut self.lending.rest, &mut memory.rest, bases.output),
        };
        if loan.is_none() && self.lending.is_allowed {
            *loan = Loan::new(device, memory);
            self.lending.is_allowed = loan.is_some();
        }
        loan.map(|loan| (loan.key, base as u64))
    }

    /// Takes the memory back from the device, which does not access it any more.
    pub(crate) fn end_lending<D: Device + ?Sized>(&mut self, device: &mut D) {
        let Lending { input, rest, .. } = std::mem::take(&mut self.lending);
        if let Some(loan) = input {
            loan.end(device);
        }
        if let (Some(loan), Memory::Lent(memory)) = (rest, &mut self.memory) {
            memory.rest = loan.end(device);
        }
    }

    /// Whether its result can be taken: it has one, and its owner can have the memory.
    pub(crate) fn is_done(&self) -> bool {
        self.result.is_some() && self.lending.input.is_none() && self.lending.rest.is_none()
    }

    /// Whether only its time matters.
    pub(crate) fn is_without_memory(&self) -> bool {
        matches!(self.memory, Memory::None)
    }

    /// Bytes of the task; `None` where they are out of range, or the device has them.
    pub(crate) fn bytes(&mut self, place: Place, length: u64) -> Option<&[u8]> {
        match place.space {
            Space::Scratch => scratch(&mut self.scratch, place, length).map(|bytes| &*bytes),
            Space::Input | Space::Output => self.memory.data().into_read(place, length),
        }
    }

    /// As [`Pending::bytes`], to write to them.
    pub(crate) fn bytes_mut(&mut self, place: Place, length: u64) -> Option<&mut [u8]> {
        match place.space {
            Space::Scratch => scratch(&mut self.scratch, place, length),
            Space::Input | Space::Output => self.memory.data().into_write(place, length),
        }
    }

    /// Copies inside the task. Returns false if the bytes are out of range.
    pub(crate) fn copy<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        from: Place,
        to: Place,
        length: u64,
    ) -> Result<bool, D::Error> {
        if self.is_without_memory() {
            return Ok(true);
        }
        if let (Some(loan), Memory::Lent(memory)) = (self.lending.rest, &mut self.memory) {
            let bases = memory.bases();
            let is_same =
                memory.input.is_none() && bases.input as u64 + from.offset == bases.output as u64 + to.offset;
            if is_same {
                return Ok(true);
            }
            if let Some(bytes) = memory.data().into_read(from, length) {
                return device.write(loan.key, to.offset, bytes).map(|()| true);
            }
        }
        let data = self.memory.data();
        let copied = match (from.space, to.space) {
            (Space::Input, Space::Output) => data.copy_across(from.offset, to.offset, length),
            (Space::Scratch, Space::Output) => scratch(&mut self.scratch, from, length)
                .zip(data.into_write(to, length))
                .map(|(from, to)| to.copy_from_slice(from))
                .is_some(),
            (_, Space::Scratch) => scratch(&mut self.scratch, to, length)
                .zip(data.into_read(from, length))
                .map(|(to, from)| to.copy_from_slice(from))
                .is_some(),
            _ => false,
        };
        Ok(copied)
    }
}

fn scratch(scratch: &mut [u8], place: Place, length: u64) -> Option<&mut [u8]> {
    let from = usize::try_from(place.offset).ok()?;
    scratch.get_mut(from..from.checked_add(usize::try_from(length).ok()?)?)
}
