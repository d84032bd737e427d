//! Algorithms that appendix K compares with and CommLib does not use: Reduce and Broadcast along a ring, a barrier by
//! way of rank 0.

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Collective, Event, Machine, Place, Task, TaskId, Waiting,
};
use castnet_sim::ChannelEnd;

use crate::mail::Mail;

/// One rank. A message passes from rank to rank; each piece is forwarded when it has arrived. In a barrier each rank
/// sends to rank 0, which answers. Runs one task at a time.
pub(crate) struct Relay {
    rank: u16,
    size: u16,
    tasks: u64,
    running: Option<Running>,
    mail: Mail,
}

struct Running {
    id: TaskId,
    task: Task,
    /// Remaining pieces (or barrier messages) to receive and to send.
    receives: u64,
    received: u64,
    sends: u64,
    sent: u64,
    acknowledged: u64,
}

/// Channels to the previous and the next rank.
pub(crate) const BEFORE: ChannelId = ChannelId(0);
pub(crate) const AFTER: ChannelId = ChannelId(1);

impl Relay {
    pub(crate) fn new(rank: u16, size: u16, piece: u32, depth: u32) -> Self {
        let channels = channel_ends(rank, size).len() as u16;
        Self {
            rank,
            size,
            tasks: 0,
            running: None,
            mail: Mail::new(channels, piece, depth),
        }
    }

    /// Distance of this rank from the start of the chain.
    fn position(&self, task: &Task) -> u16 {
        let first = match task.collective {
            Collective::Broadcast { root } => root,
            // The chain starts behind the root and ends there.
            Collective::Reduce { root } => root + 1,
            _ => 0,
        };
        (self.rank + self.size - first % self.size) % self.size
    }

    fn advance(&mut self) {
        self.take_arrived();
        let depth = u64::from(self.mail.shape().send_slots);
        let barrier = self.running.as_ref().is_some_and(|r| r.task.elements == 0);
        while let Some(running) = &mut self.running {
            // In a barrier, rank 0 answers when all messages have arrived; the others send at once. A piece is sent
            // when it has arrived.
            let ready = match (barrier, self.rank, running.receives) {
                (true, 0, all) => running.received == all,
                (true, ..) | (false, _, 0) => true,
                (false, ..) => running.sent < running.received,
            };
            let depth = if barrier { u64::MAX } else { depth };
            if running.sent == running.sends || !ready || running.sent - running.acknowledged >= depth {
                break;
            }
            let (id, index, first) = (running.id, running.sent, running.receives == 0);
            running.sent += 1;
            let task = running.task;
            if barrier {
                let channel = if self.rank == 0 { 2 + index as u16 } else { 2 };
                self.mail.send(ChannelId(channel), id, Place::input(0), 0);
            } else {
                let (offset, length) = self.piece(&task, index);
                let reduces = matches!(task.collective, Collective::Reduce { .. });
                let from = match (first, reduces) {
                    (true, _) => Place::input(offset),
                    (false, true) => Place::scratch(offset),
                    (false, false) => Place::output(offset),
                };
                self.mail.send(AFTER, id, from, length);
            }
        }
        if let Some(running) = &self.running
            && running.received == running.receives
            && running.sent == running.sends
        {
            self.mail.push(Action::Done {
                task: running.id,
                result: Ok(()),
            });
            self.running = None;
        }
    }

    fn piece(&self, task: &Task, index: u64) -> (u64, u32) {
        let piece = u64::from(self.mail.shape().slot_bytes);
        let offset = index * piece;
        (offset, (task.bytes() - offset).min(piece) as u32)
    }

    /// Assigns received messages to the task.
    fn take_arrived(&mut self) {
        while let Some(running) = &mut self.running
            && running.received < running.receives
            && let Some((channel, slot, length)) = self.mail.take()
        {
            let (id, task, index) = (running.id, running.task, running.received);
            let last = running.sends == 0;
            running.received += 1;
            if length > 0 {
                let (offset, _) = self.piece(&task, index);
                let reduces = matches!(task.collective, Collective::Reduce { .. });
                self.mail.push(Action::Deliver {
                    channel,
                    slot,
                    task: id,
                    to: if reduces && !last {
                        Place::scratch(offset)
                    } else {
                        Place::output(offset)
                    },
                    length,
                    combine: reduces.then_some(Place::input(offset)),
                });
            }
            self.mail.push(Action::Receive { channel, slot });
        }
    }
}

/// Remote ends of a rank's channels: previous rank, next rank, and between rank 0 and each other rank.
pub(crate) fn channel_ends(rank: u16, size: u16) -> Vec<ChannelEnd> {
    let mut ends = vec![
        ChannelEnd {
            peer: (rank + size - 1) % size,
            channel: AFTER.0,
        },
        ChannelEnd {
            peer: (rank + 1) % size,
            channel: BEFORE.0,
        },
    ];
    match rank {
        0 => ends.extend((1..size).map(|peer| ChannelEnd { peer, channel: 2 })),
        _ => ends.push(ChannelEnd {
            peer: 0,
            channel: 1 + rank,
        }),
    }
    ends
}

impl Machine for Relay {
    fn shape(&self) -> ChannelShape {
        self.mail.shape()
    }

    fn channels(&self) -> u16 {
        self.mail.channels()
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        let others = u64::from(self.size) - 1;
        let (receives, sends) = if task.collective == Collective::Barrier {
            if self.rank == 0 { (others, others) } else { (1, 1) }
        } else {
            let pieces = task.bytes().div_ceil(self.mail.shape().slot_bytes.into());
            let position = u64::from(self.position(&task));
            (
                if position > 0 { pieces } else { 0 },
                if position < others { pieces } else { 0 },
            )
        };
        self.running = Some(Running {
            id,
            task,
            receives,
            received: 0,
            sends,
            sent: 0,
            acknowledged: 0,
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
