//! The machine that runs the algorithms of this comparison, one task at a time.

use std::collections::VecDeque;

use castnet_comm::machine::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Place, Task, TaskId, Waiting,
};

pub(crate) trait Algorithm {
    fn start(&mut self, task: Task, messages: &Messages);

    /// Takes received messages of the task and sends what is possible. Returns true at the end of the task.
    fn advance(&mut self, task: Task, messages: &mut Messages) -> bool;
}

pub(crate) struct Rank<A> {
    algorithm: A,
    messages: Messages,
    tasks: u64,
    running: Option<Task>,
}

impl<A: Algorithm> Rank<A> {
    /// `channels` channels, each with `depth` slots of `piece` bytes per direction. All receives are posted.
    pub(crate) fn new(algorithm: A, channels: u16, piece: u32, depth: u32) -> Self {
        let slots = |channel| (0..depth).map(move |slot| receive(channel, slot));
        Self {
            algorithm,
            messages: Messages {
                task: TaskId(0),
                acknowledged: 0,
                shape: ChannelShape {
                    send_slots: depth,
                    receive_slots: depth,
                    slot_bytes: piece,
                },
                arrived: VecDeque::new(),
                outstanding: 0,
                wr_next: vec![0; usize::from(channels)],
                actions: (0..channels).map(ChannelId).flat_map(slots).collect(),
            },
            tasks: 0,
            running: None,
        }
    }

    fn advance(&mut self) {
        if let Some(task) = self.running
            && self.algorithm.advance(task, &mut self.messages)
        {
            self.end(Ok(()));
        }
    }

    fn end(&mut self, result: Result<(), Failure>) {
        self.running = None;
        let task = self.messages.task;
        self.messages.actions.push_back(Action::Done { task, result });
    }
}

fn receive(channel: ChannelId, slot: u32) -> Action {
    let target = None;
    Action::Receive {
        channel,
        slot,
        target,
    }
}

/// Messages of the running task, and the actions for the executor.
pub(crate) struct Messages {
    task: TaskId,
    /// Messages of the task that are acknowledged.
    pub(crate) acknowledged: u64,
    pub(crate) shape: ChannelShape,
    /// Channel, slot and length of received messages that no task has taken.
    arrived: VecDeque<(ChannelId, u32, u32)>,
    /// Messages sent and not acknowledged.
    outstanding: usize,
    /// Number of the next message, by channel.
    wr_next: Vec<u64>,
    actions: VecDeque<Action>,
}

impl Messages {
    pub(crate) fn send(&mut self, channel: ChannelId, from: Place, length: u32) {
        let next = &mut self.wr_next[usize::from(channel.0)];
        let wr = *next;
        *next += 1;
        self.outstanding += 1;
        self.actions.push_back(Action::Send {
            channel,
            wr,
            slot: (wr % u64::from(self.shape.send_slots)) as u32,
            task: self.task,
            content: Content::Data { from, length },
            immediate: None,
        });
    }

    /// Takes the oldest message, if there is one, and posts its slot again. An empty message is not delivered. Others
    /// are delivered to `to`, combined with what the second place has.
    pub(crate) fn take(&mut self, to: Place, combine: Option<Place>) -> bool {
        let Some((channel, slot, length)) = self.arrived.pop_front() else {
            return false;
        };
        if length > 0 {
            self.actions.push_back(Action::Deliver {
                channel,
                slot,
                task: self.task,
                to,
                length,
                combine,
            });
        }
        self.actions.push_back(receive(channel, slot));
        true
    }
}

impl<A: Algorithm> Machine for Rank<A> {
    fn shape(&self) -> ChannelShape {
        self.messages.shape
    }

    fn channels(&self) -> u16 {
        self.messages.wr_next.len() as u16
    }

    fn start(&mut self, task: Task) -> TaskId {
        self.messages.task = TaskId(self.tasks);
        self.messages.acknowledged = 0;
        self.tasks += 1;
        self.running = Some(task);
        self.algorithm.start(task, &self.messages);
        self.advance();
        self.messages.task
    }

    fn scratch_bytes(&self, task: &Task) -> u64 {
        task.bytes()
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Sent { .. } => {
                self.messages.outstanding -= 1;
                self.messages.acknowledged += 1;
            }
            Event::Received {
                channel,
                slot,
                length,
                ..
            } => self.messages.arrived.push_back((channel, slot, length)),
            Event::Failed { status, .. } if self.running.is_some() => self.end(Err(Failure::Channel {
                peer: None,
                lane: None,
                status,
            })),
            Event::Failed { .. } => {}
        }
        self.advance();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.messages.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        self.messages.outstanding == 0
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn waiting_for(&self) -> Option<Waiting> {
        self.running.map(|_| Waiting::Peers(Vec::new()))
    }
}
