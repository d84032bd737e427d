//! What appendix K compares with and CommLib does not use: Reduce and Broadcast along a ring, a barrier by way of rank 0.

use std::collections::VecDeque;

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Collective, Content, Event, Failure, Machine, Place, Task, TaskId,
    Waiting,
};
use castnet_sim::Wire;

/// Ranks in a ring. A message goes from rank to rank, a piece as soon as it has come in; or, for a barrier, each rank tells rank
/// 0, which answers. One task at a time.
pub(crate) struct Relay {
    rank: u16,
    size: u16,
    shape: ChannelShape,
    tasks: u64,
    running: Option<Running>,
    /// Receives are the endpoint's, by channel: how many messages have come that no task has asked for yet.
    early: VecDeque<(ChannelId, u32, u32)>,
    outstanding: usize,
    wr_next: Vec<u64>,
    actions: VecDeque<Action>,
}

struct Running {
    id: TaskId,
    task: Task,
    /// Pieces, or tellings, that are to come and to go.
    receives: u64,
    received: u64,
    sends: u64,
    sent: u64,
    acknowledged: u64,
}

/// Towards the rank before, and towards the rank after.
pub(crate) const BEFORE: ChannelId = ChannelId(0);
pub(crate) const AFTER: ChannelId = ChannelId(1);

impl Relay {
    pub(crate) fn new(rank: u16, size: u16, piece: u32, depth: u32) -> Self {
        let channels = wires(rank, size).len() as u16;
        let shape = ChannelShape {
            send_slots: depth,
            receive_slots: depth,
            slot_bytes: piece,
        };
        let receives = (0..channels).flat_map(|c| {
            (0..depth).map(move |slot| Action::Receive {
                channel: ChannelId(c),
                slot,
            })
        });
        Self {
            rank,
            size,
            shape,
            tasks: 0,
            running: None,
            early: VecDeque::new(),
            outstanding: 0,
            wr_next: vec![0; usize::from(channels)],
            actions: receives.collect(),
        }
    }

    /// This rank's place behind the one where the chain begins.
    fn place(&self, task: &Task) -> u16 {
        let first = match task.collective {
            Collective::Broadcast { root } => root,
            // Begins behind the root, and ends there.
            Collective::Reduce { root } => root + 1,
            _ => 0,
        };
        (self.rank + self.size - first % self.size) % self.size
    }

    fn send(&mut self, channel: ChannelId, task: TaskId, from: Place, length: u32) {
        let wr = self.wr_next[usize::from(channel.0)];
        self.wr_next[usize::from(channel.0)] += 1;
        self.outstanding += 1;
        self.actions.push_back(Action::Send {
            channel,
            wr,
            slot: (wr % u64::from(self.shape.send_slots)) as u32,
            task,
            content: Content::Data { from, length },
            immediate: None,
        });
    }

    fn advance(&mut self) {
        self.take_in();
        let depth = u64::from(self.shape.send_slots);
        let barrier = self.running.as_ref().is_some_and(|r| r.task.elements == 0);
        while let Some(running) = &mut self.running {
            // Rank 0 answers when all have come; others tell it at once; pieces go when they are here.
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
                self.send(ChannelId(channel), id, Place::input(0), 0);
            } else {
                let (offset, length) = self.piece(&task, index);
                let reduces = matches!(task.collective, Collective::Reduce { .. });
                let from = match (first, reduces) {
                    (true, _) => Place::input(offset),
                    (false, true) => Place::scratch(offset),
                    (false, false) => Place::output(offset),
                };
                self.send(AFTER, id, from, length);
            }
        }
        if let Some(running) = &self.running
            && running.received == running.receives
            && running.sent == running.sends
        {
            self.actions.push_back(Action::Done {
                task: running.id,
                result: Ok(()),
            });
            self.running = None;
        }
    }

    fn piece(&self, task: &Task, index: u64) -> (u64, u32) {
        let piece = u64::from(self.shape.slot_bytes);
        let offset = index * piece;
        (offset, (task.bytes() - offset).min(piece) as u32)
    }

    /// Gives the task what has come.
    fn take_in(&mut self) {
        while let Some(running) = &mut self.running
            && running.received < running.receives
            && let Some((channel, slot, length)) = self.early.pop_front()
        {
            let (id, task, index) = (running.id, running.task, running.received);
            let last = running.sends == 0;
            running.received += 1;
            if length > 0 {
                let (offset, _) = self.piece(&task, index);
                let reduces = matches!(task.collective, Collective::Reduce { .. });
                self.actions.push_back(Action::Deliver {
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
            self.actions.push_back(Action::Receive { channel, slot });
        }
    }
}

/// Where the channels of a rank lead: before, after, and between rank 0 and each other.
pub(crate) fn wires(rank: u16, size: u16) -> Vec<Wire> {
    let mut wires = vec![
        Wire {
            peer: (rank + size - 1) % size,
            channel: AFTER.0,
        },
        Wire {
            peer: (rank + 1) % size,
            channel: BEFORE.0,
        },
    ];
    match rank {
        0 => wires.extend((1..size).map(|peer| Wire { peer, channel: 2 })),
        _ => wires.push(Wire {
            peer: 0,
            channel: 1 + rank,
        }),
    }
    wires
}

impl Machine for Relay {
    fn shape(&self) -> ChannelShape {
        self.shape
    }

    fn channels(&self) -> u16 {
        self.wr_next.len() as u16
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        let others = u64::from(self.size) - 1;
        let (receives, sends) = if task.collective == Collective::Barrier {
            if self.rank == 0 { (others, others) } else { (1, 1) }
        } else {
            let pieces = task.bytes().div_ceil(self.shape.slot_bytes.into());
            let place = u64::from(self.place(&task));
            (
                if place > 0 { pieces } else { 0 },
                if place < others { pieces } else { 0 },
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
