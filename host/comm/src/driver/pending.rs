//! A running task: its memory, and what the RNIC has of it.

use castnet_reduce::Kernel;
use castnet_rnic::{Lent, MemoryKey, Rnic};

use crate::buffers::Memory;
use crate::machine::{Failure, Space};

/// A task whose result has not been taken.
pub(super) struct Pending {
    pub(super) kernel: Kernel,
    pub(super) memory: Memory,
    pub(super) scratch: Vec<u8>,
    pub(super) result: Option<Result<(), Failure>>,
    pub(super) lending: Lending,
    /// Sends from its memory that are not acknowledged.
    pub(super) unacknowledged: u32,
}

/// What the RNIC has of a task's memory.
#[derive(Default)]
pub(super) struct Lending {
    /// True until the RNIC refuses: the memory is lent when it is first needed.
    pub(super) is_allowed: bool,
    pub(super) input: Option<Loan>,
    pub(super) rest: Option<Loan>,
}

/// Memory that the RNIC has.
#[derive(Clone, Copy)]
pub(super) struct Loan {
    pub(super) key: MemoryKey,
    address: usize,
    length: usize,
}

impl Loan {
    /// Lends memory. Leaves it in `memory` if the RNIC refuses it.
    fn new(rnic: &mut dyn Rnic, memory: &mut Lent) -> Option<Self> {
        let bytes = memory.bytes();
        let (address, length) = (bytes.as_ptr().addr(), bytes.len());
        match rnic.lend_memory(std::mem::take(memory)) {
            Ok(key) => Some(Self { key, address, length }),
            Err((back, error)) => {
                tracing::debug!(%error, length, "memory is not lent");
                *memory = check((address, length), back);
                None
            }
        }
    }

    /// Takes the memory back.
    fn end(self, rnic: &mut dyn Rnic) -> Lent {
        match rnic.end_lending(self.key) {
            Ok(back) => check((self.address, self.length), back),
            Err(error) => abort(&error.to_string()),
        }
    }
}

/// Checks that the RNIC has returned the memory that was lent to it.
fn check((address, length): (usize, usize), back: Lent) -> Lent {
    let bytes = back.bytes();
    if (bytes.as_ptr().addr(), bytes.len()) != (address, length) {
        abort("it has returned other memory");
    }
    back
}

/// The owner of lent memory is about to use it while the RNIC has it.
fn abort(reason: &str) -> ! {
    tracing::error!(reason, "the RNIC does not return lent memory");
    std::process::abort()
}

impl Pending {
    /// The region of the RNIC with a space of the task, and the offset of the space in it. Lends it when it is first
    /// needed.
    pub(super) fn region(&mut self, rnic: &mut dyn Rnic, space: Space) -> Option<(MemoryKey, u64)> {
        let Memory::Lent(memory) = &mut self.memory else {
            return None;
        };
        let bases = memory.bases();
        let mut input = memory.input.map(Lent::shared);
        let (loan, memory, base) = match (space, &mut input) {
            (Space::Scratch, _) => return None,
            (Space::Input, Some(input)) => (&mut self.lending.input, input, bases.input),
            (Space::Input, None) => (&mut self.lending.rest, &mut memory.rest, bases.input),
            (Space::Output, _) => (&mut self.lending.rest, &mut memory.rest, bases.output),
        };
        if loan.is_none() && self.lending.is_allowed {
            *loan = Loan::new(rnic, memory);
            self.lending.is_allowed = loan.is_some();
        }
        loan.map(|loan| (loan.key, base as u64))
    }

    /// Takes the memory back from the RNIC, which does not access it any more.
    pub(super) fn end_lending(&mut self, rnic: &mut dyn Rnic) {
        let Lending { input, rest, .. } = std::mem::take(&mut self.lending);
        if let Some(loan) = input {
            loan.end(rnic);
        }
        if let (Some(loan), Memory::Lent(memory)) = (rest, &mut self.memory) {
            memory.rest = loan.end(rnic);
        }
    }

    /// Whether its result can be taken: it has one, and its owner can have the memory.
    pub(super) fn is_done(&self) -> bool {
        self.result.is_some() && self.lending.input.is_none() && self.lending.rest.is_none()
    }
}
