//! Algorithms of appendix K that CommLib does not use: Reduce and Broadcast along a ring, a barrier by way of rank 0.

use castnet_comm::machine::{ChannelId, Collective, Place, Task};
use castnet_sim::ChannelEnd;

use super::machine::{Algorithm, Messages};

/// Each piece of a message is forwarded when it has arrived. In a barrier each rank sends to rank 0, which answers.
#[derive(Default)]
pub(crate) struct Relay {
    rank: u16,
    size: u16,
    /// Pieces (or barrier messages) of the task to receive and to send.
    receives: u64,
    received: u64,
    sends: u64,
    sent: u64,
}

/// Channels to the previous and the next rank.
pub(crate) const BEFORE: ChannelId = ChannelId(0);
pub(crate) const AFTER: ChannelId = ChannelId(1);

impl Relay {
    pub(crate) fn new(rank: u16, size: u16) -> Self {
        Self {
            rank,
            size,
            ..Self::default()
        }
    }

    fn position(&self, task: &Task) -> u16 {
        let first = match task.collective {
            Collective::Broadcast { root } => root,
            // The chain starts behind the root and ends there.
            Collective::Reduce { root } => root + 1,
            _ => 0,
        };
        (self.rank + self.size - first % self.size) % self.size
    }
}

impl Algorithm for Relay {
    fn start(&mut self, task: Task, messages: &Messages) {
        let others = u64::from(self.size) - 1;
        let (receives, sends) = if task.collective == Collective::Barrier {
            if self.rank == 0 { (others, others) } else { (1, 1) }
        } else {
            let pieces = task.bytes().div_ceil(messages.shape.slot_bytes.into());
            let position = u64::from(self.position(&task));
            (
                if position > 0 { pieces } else { 0 },
                if position < others { pieces } else { 0 },
            )
        };
        *self = Self {
            receives,
            sends,
            ..Self::new(self.rank, self.size)
        };
    }

    fn advance(&mut self, task: Task, messages: &mut Messages) -> bool {
        let piece = u64::from(messages.shape.slot_bytes);
        let depth = u64::from(messages.shape.send_slots);
        let reduces = matches!(task.collective, Collective::Reduce { .. });
        let (first, last) = (self.receives == 0, self.sends == 0);
        while self.received < self.receives {
            let offset = self.received * piece;
            let to = if reduces && !last {
                Place::scratch(offset)
            } else {
                Place::output(offset)
            };
            if !messages.take(to, reduces.then_some(Place::input(offset))) {
                break;
            }
            self.received += 1;
        }
        let barrier = task.elements == 0;
        while self.sent < self.sends {
            // In a barrier, rank 0 answers when all messages have arrived; the others send at once. A piece is sent
            // when it has arrived, and if fewer than `depth` are not acknowledged.
            let ready = match (barrier, self.rank) {
                (true, 0) => self.received == self.receives,
                (true, _) => true,
                (false, _) => {
                    (first || self.sent < self.received) && self.sent - messages.acknowledged < depth
                }
            };
            if !ready {
                break;
            }
            let (index, offset) = (self.sent, self.sent * piece);
            self.sent += 1;
            if barrier {
                let channel = if self.rank == 0 { 2 + index as u16 } else { 2 };
                messages.send(ChannelId(channel), Place::input(0), 0);
            } else {
                let from = match (first, reduces) {
                    (true, _) => Place::input(offset),
                    (false, true) => Place::scratch(offset),
                    (false, false) => Place::output(offset),
                };
                messages.send(AFTER, from, (task.bytes() - offset).min(piece) as u32);
            }
        }
        self.received == self.receives && self.sent == self.sends
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
