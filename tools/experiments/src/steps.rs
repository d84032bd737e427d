//! Rings in synchronous steps, as the tables of appendix K imply.

use castnet_comm::machine::{Action, ChannelShape, Collective, Event, Machine, Place, Task, TaskId, Waiting};

use crate::mail::Mail;
use crate::relay::AFTER;

/// To the previous and the next rank.
const CHANNELS: u16 = 2;

/// One rank. In each step it sends a block to the next rank and receives one from the previous rank. The next step
/// begins when both are complete, the send with its ACK. Runs one task at a time, without memory; only its time is
/// meaningful.
pub(crate) struct Steps {
    size: u16,
    tasks: u64,
    running: Option<Running>,
    mail: Mail,
}

/// All counts are of pieces since the task began.
struct Running {
    id: TaskId,
    block: u64,
    pieces: u64,
    /// Number of pieces at the end of the current step.
    target: u64,
    end: u64,
    sent: u64,
    acknowledged: u64,
    received: u64,
}

impl Steps {
    pub(crate) fn new(size: u16, piece: u32, depth: u32) -> Self {
        Self {
            size,
            tasks: 0,
            running: None,
            mail: Mail::new(CHANNELS, piece, depth),
        }
    }

    fn advance(&mut self) {
        while let Some(running) = &mut self.running
            && running.received < running.end
            && let Some((channel, slot, length)) = self.mail.take()
        {
            running.received += 1;
            self.mail.push(Action::Deliver {
                channel,
                slot,
                task: running.id,
                to: Place::scratch(0),
                length,
                combine: None,
            });
            self.mail.push(Action::Receive { channel, slot });
        }
        let depth = u64::from(self.mail.shape().send_slots);
        while let Some(running) = &mut self.running {
            if running.sent < running.target && running.sent - running.acknowledged < depth {
                let piece = u64::from(self.mail.shape().slot_bytes);
                let offset = running.sent % running.pieces * piece;
                let length = (running.block - offset).min(piece) as u32;
                running.sent += 1;
                let task = running.id;
                self.mail.send(AFTER, task, Place::scratch(0), length);
            } else if running.target == running.end
                && running.received == running.end
                && running.sent == running.end
            {
                // The ACK of the last step is not waited for.
                let task = running.id;
                self.mail.push(Action::Done { task, result: Ok(()) });
                self.running = None;
            } else if running.received >= running.target && running.acknowledged >= running.target {
                running.target += running.pieces;
            } else {
                return;
            }
        }
    }
}

impl Machine for Steps {
    fn shape(&self) -> ChannelShape {
        self.mail.shape()
    }

    fn channels(&self) -> u16 {
        self.mail.channels()
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        let size = u64::from(self.size);
        let (block, steps) = match task.collective {
            // The text of the paper has 2 (K - 1) steps.
            Collective::AllReduce => (task.bytes() / size, 2 * size - 1),
            Collective::Barrier => (0, 1),
            _ => (task.bytes(), size - 1),
        };
        let pieces = block.div_ceil(self.mail.shape().slot_bytes.into()).max(1);
        self.running = Some(Running {
            id,
            block,
            pieces,
            target: pieces,
            end: pieces * steps,
            sent: 0,
            acknowledged: 0,
            received: 0,
        });
        self.advance();
        id
    }

    fn scratch_bytes(&self, task: &Task) -> u64 {
        task.bytes()
    }

    fn handle(&mut self, event: Event<'_>) {
        self.mail
            .handle(event, &mut self.running, |r| r.id, |r| &mut r.acknowledged);
        self.advance();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.mail.pop()
    }

    fn is_drained(&self) -> bool {
        self.mail.is_drained()
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn waiting_for(&self) -> Option<Waiting> {
        self.running.as_ref().map(|_| Waiting::Peers(Vec::new()))
    }
}
