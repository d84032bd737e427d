//! Collectives between hosts: ring, chain, binomial tree and dissemination, over a reliable connection to each peer. Each
//! message carries an immediate that identifies its call, so ranks that made different calls detect it.

use std::collections::VecDeque;

use castnet_rnic::Status;

use super::schedule::{Schedule, Step, peers, schedule};
use super::{
    Action, ChannelId, ChannelShape, Collective, Content, Event, Failure, Machine, Task, TaskId, Waiting,
};

/// The path of a Broadcast between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BroadcastAlgorithm {
    /// Along a chain if that takes less time with this number of messages, otherwise along a binomial tree.
    #[default]
    ByLength,
    /// Along a binomial tree: at most log2(size) hops, rounded up. The root sends as many times.
    BinomialTree,
    /// From each rank to the next one: `size - 1` hops. Each rank sends once.
    Chain,
    /// From the root to each rank: one hop. The root sends `size - 1` times, and needs a connection to each rank.
    Unicasts,
}

/// Configuration of the connections between ranks; all fields but `rank` are the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBasedConfig {
    /// This rank.
    pub rank: u16,
    /// Number of ranks.
    pub size: u16,
    /// Bytes of the longest message; at least 64, a multiple of 8.
    pub message_bytes: u32,
    /// Most messages in flight on each channel and direction; at least 1.
    pub depth: u32,
    /// The path of Broadcasts.
    pub broadcast: BroadcastAlgorithm,
    /// A longer message is sent when all earlier sends of this rank are acknowledged, in bytes. So messages to several peers
    /// do not share the link of this host. MPI's rendezvous protocol does the same.
    pub in_turn_above: u32,
}

impl HostBasedConfig {
    /// Rank `rank` of `size`, with messages of 32 KiB, eight in flight to each peer. Broadcasts use the binomial tree, and no
    /// message waits for its turn.
    pub const fn new(rank: u16, size: u16) -> Self {
        Self {
            rank,
            size,
            message_bytes: 32 << 10,
            depth: 8,
            broadcast: BroadcastAlgorithm::ByLength,
            in_turn_above: u32::MAX,
        }
    }

    /// The ranks that this rank needs a connection to, in order. Channel i of [`HostBased`] is to the i-th of them.
    pub fn peers(&self) -> Vec<u16> {
        match self.broadcast {
            BroadcastAlgorithm::Unicasts => (0..self.size).filter(|rank| *rank != self.rank).collect(),
            _ => peers(self.rank, self.size),
        }
    }
}

#[derive(Clone, Debug)]
struct Running {
    id: TaskId,
    /// Immediate of all its messages.
    immediate: u32,
    schedule: Schedule,
    /// How often each signal was given.
    signals: Vec<u32>,
    /// Receives not completed, and sends not acknowledged.
    receives_left: usize,
    sends_left: usize,
}

#[derive(Clone, Copy, Debug)]
struct StepRef {
    task: u64,
    step: usize,
}

/// A received message whose task may not have been started.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    slot: u32,
    length: u32,
    immediate: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    sends: VecDeque<StepRef>,
    receives: VecDeque<StepRef>,
    arrived: VecDeque<Arrived>,
    /// Sends that are not acknowledged: work request and task.
    outstanding: VecDeque<(u64, TaskId)>,
    wr_next: u64,
}

/// The machine of one rank over a queue pair to each peer.
#[derive(Clone, Debug)]
pub struct HostBased {
    config: HostBasedConfig,
    peers: Vec<u16>,
    channels: Vec<Channel>,
    tasks: u64,
    /// Running tasks, oldest first.
    running: VecDeque<Running>,
    has_failed: bool,
    actions: VecDeque<Action>,
}

/// The immediate that identifies a task: FNV-1a over the fields that must be equal at both sides.
fn immediate_of(id: TaskId, task: &Task) -> u32 {
    let (kind, root) = match task.collective {
        Collective::AllReduce => (0, 0),
        Collective::Reduce { root } => (1, root),
        Collective::Broadcast { root } => (2, root),
        Collective::Barrier => (3, 0),
        Collective::ReduceScatter => (4, 0),
        Collective::AllGather => (5, 0),
    };
    let bytes = [kind, task.operation as u8, task.data_type as u8, task.flags.0];
    let fields = id.0.to_be_bytes().into_iter().chain(task.elements.to_be_bytes());
    fields
        .chain(root.to_be_bytes())
        .chain(bytes)
        .fold(0x811c_9dc5, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
}

impl HostBased {
    /// A rank without tasks, with a connection to each of [`HostBasedConfig::peers`]. Values out of bounds are clamped.
    pub fn new(config: HostBasedConfig) -> Self {
        let config = HostBasedConfig {
            message_bytes: (config.message_bytes - config.message_bytes % 8).max(64),
            depth: config.depth.max(1),
            ..config
        };
        let peers = config.peers();
        let mut actions = VecDeque::new();
        for channel in 0..peers.len() as u16 {
            actions.extend((0..config.depth).map(|slot| Action::Receive {
                channel: ChannelId(channel),
                slot,
                target: None,
            }));
        }
        Self {
            channels: peers.iter().map(|_| Channel::default()).collect(),
            config,
            peers,
            tasks: 0,
            running: VecDeque::new(),
            has_failed: false,
            actions,
        }
    }

    fn channel_to(&self, rank: u16) -> usize {
        // Schedules contain only peers.
        self.peers.binary_search(&rank).unwrap_or_default()
    }

    fn at(&self, task: u64) -> Option<usize> {
        let first = self.running.front()?.id.0;
        let at = task.checked_sub(first)? as usize;
        (at < self.running.len()).then_some(at)
    }

    /// Posts what may be posted on all channels, the oldest send first, and ends finished tasks.
    fn advance(&mut self) {
        let next = |(at, channel): (usize, &Channel)| Some((*channel.sends.front()?, at));
        let mut waiting: Vec<(StepRef, usize)> = self.channels.iter().enumerate().filter_map(next).collect();
        waiting.sort_unstable_by_key(|(step, _)| (step.task, step.step));
        for (_, channel) in waiting {
            while self.post_one(channel) {}
        }
        while let Some(task) = self.running.front()
            && task.receives_left == 0
            && task.sends_left == 0
        {
            let id = task.id;
            self.actions
                .extend(task.schedule.last.map(|copy| copy.action(id)));
            self.actions.push_back(Action::Done {
                task: id,
                result: Ok(()),
            });
            self.running.pop_front();
        }
    }

    fn post_one(&mut self, channel: usize) -> bool {
        let Some(&next) = self.channels[channel].sends.front() else {
            return false;
        };
        if self.channels[channel].outstanding.len() >= self.config.depth as usize {
            return false;
        }
        let Some(task) = self.at(next.task).and_then(|at| self.running.get(at)) else {
            return false;
        };
        let Some(&Step::Send {
            from, length, after, ..
        }) = task.schedule.steps.get(next.step)
        else {
            return false;
        };
        if let Some((signal, times)) = after
            && task
                .signals
                .get(signal as usize)
                .is_none_or(|&times_given| times_given < times)
        {
            return false;
        }
        if length > self.config.in_turn_above && !self.has_turn(next) {
            return false;
        }
        let (id, immediate) = (task.id, task.immediate);
        let state = &mut self.channels[channel];
        state.sends.pop_front();
        let wr = state.wr_next;
        state.wr_next += 1;
        state.outstanding.push_back((wr, id));
        self.actions.push_back(Action::Send {
            channel: ChannelId(channel as u16),
            wr,
            slot: (wr % u64::from(self.config.depth)) as u32,
            task: id,
            content: Content::Data { from, length },
            immediate: Some(immediate),
        });
        true
    }

    /// Whether this send is the oldest one, and all that were posted are acknowledged.
    fn has_turn(&self, send: StepRef) -> bool {
        let order = |step: &StepRef| (step.task, step.step);
        self.channels.iter().all(|c| {
            c.outstanding.is_empty() && c.sends.front().is_none_or(|other| order(&send) <= order(other))
        })
    }

    fn sent(&mut self, channel: usize, wr: u64) {
        while let Some(&(first, task)) = self.channels.get(channel).and_then(|c| c.outstanding.front())
            && first <= wr
        {
            self.channels[channel].outstanding.pop_front();
            if let Some(at) = self.at(task.0) {
                self.running[at].sends_left -= 1;
            }
        }
    }

    /// Matches the received messages of a channel with the receives of started tasks.
    fn match_arrived(&mut self, channel: usize) {
        while let Some(state) = self.channels.get_mut(channel)
            && let (Some(&arrived), Some(&next)) = (state.arrived.front(), state.receives.front())
        {
            state.arrived.pop_front();
            state.receives.pop_front();
            let peer = self.peers[channel];
            let Some(at) = self.at(next.task) else { continue };
            let task = &mut self.running[at];
            let Some(Step::Receive {
                to,
                length,
                combine,
                signals,
                ..
            }) = task.schedule.steps.get(next.step).cloned()
            else {
                continue;
            };
            if arrived.immediate != Some(task.immediate) || arrived.length != length {
                let id = task.id;
                return self.fail(id, Failure::Mismatch { peer, task: id.0 });
            }
            for signal in signals {
                if let Some(times_given) = task.signals.get_mut(signal as usize) {
                    *times_given += 1;
                }
            }
            task.receives_left -= 1;
            let (id, id_channel) = (task.id, ChannelId(channel as u16));
            if length > 0 {
                self.actions.push_back(Action::Deliver {
                    channel: id_channel,
                    slot: arrived.slot,
                    task: id,
                    to,
                    length,
                    combine: combine.then_some(to),
                });
            }
            self.actions.push_back(Action::Receive {
                channel: id_channel,
                slot: arrived.slot,
                // A message may arrive before its task is started.
                target: None,
            });
        }
    }

    /// Ends all tasks. `culprit` fails with `failure`.
    fn fail(&mut self, culprit: TaskId, failure: Failure) {
        self.has_failed = true;
        for task in std::mem::take(&mut self.running) {
            // Tasks before the culprit fail alike: they are incomplete too.
            let failure = match task.id <= culprit {
                true => failure,
                false => Failure::Aborted,
            };
            self.actions.push_back(Action::failed(task.id, failure));
        }
        for channel in &mut self.channels {
            channel.sends.clear();
            channel.receives.clear();
            channel.outstanding.clear();
        }
    }

    fn channel_failed(&mut self, channel: usize, status: Status) {
        let peer = self.peers.get(channel).copied();
        let culprit = self.running.front().map_or(TaskId(self.tasks), |t| t.id);
        let lane = None;
        self.fail(culprit, Failure::Channel { peer, lane, status });
    }
}

impl Machine for HostBased {
    fn shape(&self) -> ChannelShape {
        ChannelShape {
            send_slots: self.config.depth,
            receive_slots: self.config.depth,
            slot_bytes: self.config.message_bytes,
        }
    }

    fn channels(&self) -> u16 {
        self.peers.len() as u16
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        if self.has_failed {
            self.actions.push_back(Action::failed(id, Failure::Aborted));
            return id;
        }
        let schedule = schedule(
            &task,
            self.config.rank,
            self.config.size,
            self.config.message_bytes,
            self.config.broadcast,
        );
        self.actions.extend(schedule.first.map(|copy| copy.action(id)));
        let (mut receives_left, mut sends_left) = (0, 0);
        for (index, step) in schedule.steps.iter().enumerate() {
            let step_ref = StepRef {
                task: id.0,
                step: index,
            };
            match *step {
                Step::Send { to, .. } => {
                    let channel = self.channel_to(to);
                    self.channels[channel].sends.push_back(step_ref);
                    sends_left += 1;
                }
                Step::Receive { from, .. } => {
                    let channel = self.channel_to(from);
                    self.channels[channel].receives.push_back(step_ref);
                    receives_left += 1;
                }
            }
        }
        self.running.push_back(Running {
            id,
            immediate: immediate_of(id, &task),
            signals: vec![0; schedule.signals as usize],
            schedule,
            receives_left,
            sends_left,
        });
        for channel in 0..self.channels.len() {
            self.match_arrived(channel);
        }
        self.advance();
        id
    }

    fn scratch_bytes(&self, task: &Task) -> u64 {
        match task.collective {
            Collective::ReduceScatter => task.bytes() * u64::from(self.config.size),
            Collective::Reduce { root } if root != self.config.rank => task.bytes(),
            _ => 0,
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Sent { channel, wr } => self.sent(channel.0.into(), wr),
            Event::Received {
                channel,
                slot,
                length,
                immediate,
                ..
            } => {
                let channel = usize::from(channel.0);
                if let Some(state) = self.channels.get_mut(channel) {
                    state.arrived.push_back(Arrived {
                        slot,
                        length,
                        immediate,
                    });
                    self.match_arrived(channel);
                }
            }
            Event::Failed { channel, status } => self.channel_failed(channel.0.into(), status),
        }
        self.advance();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        self.channels.iter().all(|c| c.outstanding.is_empty())
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn waiting_for(&self) -> Option<Waiting> {
        let task = self.running.front()?.id.0;
        let mut ranks: Vec<u16> = Vec::new();
        for (peer, channel) in self.peers.iter().zip(&self.channels) {
            let awaits = channel.receives.front().is_some_and(|r| r.task == task);
            let unacknowledged = channel.outstanding.front().is_some_and(|(_, id)| id.0 == task);
            if awaits || unacknowledged {
                ranks.push(*peer);
            }
        }
        Some(Waiting::Peers(ranks))
    }
}
