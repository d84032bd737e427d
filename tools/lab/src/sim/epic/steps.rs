//! Rings in synchronous steps, as the tables of appendix K imply.

use castnet_comm::machine::{Collective, Place, Task};

use super::machine::{Algorithm, Messages};
use super::relay::AFTER;

/// In each step a rank sends a block to the next rank and receives one from the previous; both must be complete before
/// the next step, the send with its ACK. Only its time is meaningful. Counts are of pieces since the task began.
#[derive(Default)]
pub(crate) struct Steps {
    size: u64,
    block: u64,
    pieces: u64,
    /// Number of pieces at the end of the current step.
    target: u64,
    end: u64,
    sent: u64,
    received: u64,
}

impl Steps {
    pub(crate) fn new(size: u16) -> Self {
        Self {
            size: size.into(),
            ..Self::default()
        }
    }
}

impl Algorithm for Steps {
    fn start(&mut self, task: Task, messages: &Messages) {
        let size = self.size;
        let (block, steps) = match task.collective {
            // The text of the paper has 2 (K - 1) steps.
            Collective::AllReduce => (task.bytes() / size, 2 * size - 1),
            Collective::Barrier => (0, 1),
            _ => (task.bytes(), size - 1),
        };
        let pieces = block.div_ceil(messages.shape.slot_bytes.into()).max(1);
        *self = Self {
            size,
            block,
            pieces,
            target: pieces,
            end: pieces * steps,
            sent: 0,
            received: 0,
        };
    }

    fn advance(&mut self, _: Task, messages: &mut Messages) -> bool {
        while self.received < self.end && messages.take(Place::scratch(0), None) {
            self.received += 1;
        }
        let depth = u64::from(messages.shape.send_slots);
        loop {
            let acknowledged = messages.acknowledged;
            if self.sent < self.target && self.sent - acknowledged < depth {
                let piece = u64::from(messages.shape.slot_bytes);
                let offset = self.sent % self.pieces * piece;
                let length = (self.block - offset).min(piece) as u32;
                self.sent += 1;
                messages.send(AFTER, Place::scratch(0), length);
            } else if [self.target, self.received, self.sent] == [self.end; 3] {
                // The ACK of the last step is not waited for.
                return true;
            } else if self.received >= self.target && acknowledged >= self.target {
                self.target += self.pieces;
            } else {
                return false;
            }
        }
    }
}
