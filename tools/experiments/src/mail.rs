//! Message queues shared by the machines of this comparison, for one task at a time.

use std::collections::VecDeque;

use castnet_comm::machine::{Action, ChannelId, ChannelShape, Content, Event, Failure, Place, TaskId};

/// Received and sent messages, and the actions for the driver.
pub(crate) struct Mail {
    shape: ChannelShape,
    /// Channel, slot and length of received messages that no task has taken.
    arrived: VecDeque<(ChannelId, u32, u32)>,
    /// Messages sent and not acknowledged.
    outstanding: usize,
    /// Number of the next message, by channel.
    wr_next: Vec<u64>,
    actions: VecDeque<Action>,
}

impl Mail {
    /// `channels` channels, each with `depth` slots of `piece` bytes per direction. All receives are posted.
    pub(crate) fn new(channels: u16, piece: u32, depth: u32) -> Self {
        let slots = |channel| (0..depth).map(move |slot| Action::Receive { channel, slot });
        Self {
            shape: ChannelShape {
                send_slots: depth,
                receive_slots: depth,
                slot_bytes: piece,
            },
            arrived: VecDeque::new(),
            outstanding: 0,
            wr_next: vec![0; usize::from(channels)],
            actions: (0..channels).map(ChannelId).flat_map(slots).collect(),
        }
    }

    pub(crate) fn shape(&self) -> ChannelShape {
        self.shape
    }

    pub(crate) fn channels(&self) -> u16 {
        self.wr_next.len() as u16
    }

    pub(crate) fn send(&mut self, channel: ChannelId, task: TaskId, from: Place, length: u32) {
        let next = &mut self.wr_next[usize::from(channel.0)];
        let wr = *next;
        *next += 1;
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

    /// The oldest message that no task has taken.
    pub(crate) fn take(&mut self) -> Option<(ChannelId, u32, u32)> {
        self.arrived.pop_front()
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.outstanding == 0
    }

    /// Handles an event. The running task counts its acknowledgements, and ends if a channel fails.
    pub(crate) fn handle<R>(
        &mut self,
        event: Event<'_>,
        running: &mut Option<R>,
        id: fn(&R) -> TaskId,
        acknowledged: fn(&mut R) -> &mut u64,
    ) {
        match event {
            Event::Sent { .. } => {
                self.outstanding -= 1;
                if let Some(running) = running {
                    *acknowledged(running) += 1;
                }
            }
            Event::Received {
                channel,
                slot,
                length,
                ..
            } => self.arrived.push_back((channel, slot, length)),
            Event::Failed { status, .. } => {
                if let Some(running) = running.take() {
                    self.push(Action::Done {
                        task: id(&running),
                        result: Err(Failure::Channel {
                            peer: None,
                            lane: None,
                            status,
                        }),
                    });
                }
            }
        }
    }
}
