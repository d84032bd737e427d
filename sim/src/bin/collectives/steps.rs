//! Rings as appendix K's tables tell of them: in steps.

use std::collections::VecDeque;

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Collective, Content, Event, Failure, Machine, Place, Task, TaskId,
    Waiting,
};

use crate::relay::{AFTER, BEFORE};

/// One rank. In each step it sends a block to the rank after it and gets one from the rank before it; the next step begins when
/// both are done, the sending with its ACK. One task at a time, without memory: only its time means something.
pub(crate) struct Steps {
    size: u16,
    shape: ChannelShape,
    tasks: u64,
    running: Option<Running>,
    /// Slots that have come and no task has asked for yet.
    early: VecDeque<(ChannelId, u32, u32)>,
    outstanding: usize,
    wr_next: u64,
    actions: VecDeque<Action>,
}

/// All counts are of pieces since the task began.
struct Running {
    id: TaskId,
    block: u64,
    pieces: u64,
    /// The end of the step under way.
    target: u64,
    end: u64,
    sent: u64,
    acknowledged: u64,
    received: u64,
}

impl Steps {
    pub(crate) fn new(size: u16, piece: u32, depth: u32) -> Self {
        let channels = [BEFORE, AFTER].into_iter();
        let receives =
            channels.flat_map(|channel| (0..depth).map(move |slot| Action::Receive { channel, slot }));
        Self {
            size,
            shape: ChannelShape {
                send_slots: depth,
                receive_slots: depth,
                slot_bytes: piece,
            },
            tasks: 0,
            running: None,
            early: VecDeque::new(),
            outstanding: 0,
            wr_next: 0,
            actions: receives.collect(),
        }
    }

    fn advance(&mut self) {
        while let Some(running) = &mut self.running
            && running.received < running.end
            && let Some((channel, slot, length)) = self.early.pop_front()
        {
            running.received += 1;
            self.actions.push_back(Action::Deliver {
                channel,
                slot,
                task: running.id,
                to: Place::scratch(0),
                length,
                combine: None,
            });
            self.actions.push_back(Action::Receive { channel, slot });
        }
        let depth = u64::from(self.shape.send_slots);
        while let Some(running) = &mut self.running {
            if running.sent < running.target && running.sent - running.acknowledged < depth {
                let piece = u64::from(self.shape.slot_bytes);
                let offset = running.sent % running.pieces * piece;
                let length = (running.block - offset).min(piece) as u32;
                running.sent += 1;
                let wr = self.wr_next;
                self.wr_next += 1;
                self.outstanding += 1;
                self.actions.push_back(Action::Send {
                    channel: AFTER,
                    wr,
                    slot: (wr % depth) as u32,
                    task: running.id,
                    content: Content::Data {
                        from: Place::scratch(0),
                        length,
                    },
                    immediate: None,
                });
            } else if running.target == running.end
                && running.received == running.end
                && running.sent == running.end
            {
                // Nobody waits for the last step's ACK.
                let task = running.id;
                self.actions.push_back(Action::Done { task, result: Ok(()) });
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
        self.shape
    }

    fn channels(&self) -> u16 {
        2
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        let size = u64::from(self.size);
        let (block, steps) = match task.collective {
            // Not 2 (K - 1), as the paper says in words.
            Collective::AllReduce => (task.bytes() / size, 2 * size - 1),
            Collective::Barrier => (0, 1),
            _ => (task.bytes(), size - 1),
        };
        let pieces = block.div_ceil(self.shape.slot_bytes.into()).max(1);
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
        match event {
            Event::Sent { .. } => {
                self.outstanding -= 1;
                if let Some(running) = &mut self.running {
                    running.acknowledged += 1;
                }
            }
            Event::Received {
                channel,
                slot,
                length,
                ..
            } => self.early.push_back((channel, slot, length)),
            Event::Failed { status, .. } => {
                if let Some(running) = self.running.take() {
                    self.actions.push_back(Action::Done {
                        task: running.id,
                        result: Err(Failure::Channel { peer: None, status }),
                    });
                }
            }
        }
        self.advance();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        self.outstanding == 0
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn waiting_for(&self) -> Option<Waiting> {
        self.running.as_ref().map(|_| Waiting::Peers(Vec::new()))
    }
}
