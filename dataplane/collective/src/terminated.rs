//! Collectives over terminated connections (EPIC 4.2, Mode-I): a switch ends the RC connection of each neighbour, receives whole messages,
//! reduces them in the order of endpoints, and sends the results as messages of its own.
//!
//! A [`Terminated`] is the context of one group at one switch of its tree, above its connections: they lose, repeat and reorder nothing. So
//! the next message of an endpoint is known by its place, and contract C1 follows from that of RC. What is left is the flow of messages:
//! which are combined, who gets the result, and when a buffer is free. Messages are cut as ranks cut them (docs/control-message.md).
//!
//! Two pipes produce messages in order of positions: one for the parent, one for the children. The flow of a message at one switch, where
//! `e_r` is the endpoint with the root rank behind it:
//!
//! | | to the parent | to the children |
//! |---|---|---|
//! | control, AllReduce | all children | the parent; at the root of the tree, all children |
//! | Reduce, `e_r` is the parent | all children | |
//! | Reduce, `e_r` is a child | | all but `e_r`; only `e_r` gets it |
//! | Broadcast | `e_r`, if that is a child | `e_r`; it does not get it |
//!
//! An endpoint that is too fast finds no buffer: its connection makes it wait (RNR NAK). Data follows a control message on which all ranks
//! agree, so no rank gets data of another call than its own.

use alloc::boxed::Box;
use alloc::vec;

use crate::calls::{Calls, Flow, Role, roots};
use crate::translated::{
    CallId, CollectiveMode, CollectiveStatus, EndpointConfig, EndpointId, EndpointSet, EndpointStatus,
    TranslatedConfig, TranslatedStatus,
};
use castnet_wire::{Call, Control, Nanos, Psn, Verdict};

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A control message.
    Control(Control),
    /// So many bytes of data.
    Data(u32),
    /// Neither: a SEND with other immediate data, or a malformed control message.
    Invalid,
}

/// The received messages. Each endpoint has as many buffers as a pipe has slots ([`Terminated::slots`]), used in turn.
pub trait Inbox {
    /// The message in a buffer of an endpoint.
    fn message(&self, from: EndpointId, buffer: u16) -> Message;
}

/// An action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect<const W: usize = 1> {
    /// Reduce a received message into a slot, or copy it there if it is the first.
    Take {
        /// The slot.
        slot: u16,
        /// The endpoint of the message.
        from: EndpointId,
        /// The buffer of the message.
        buffer: u16,
        /// True for the first message, which overwrites the slot.
        first: bool,
        /// Its length.
        bytes: u32,
        /// The collective with the operation and the type: for [`Terminated::call`].
        kernel: CallId,
    },
    /// Send a slot as a message to each endpoint, and tell when an endpoint has acknowledged it: [`Terminated::acknowledged`].
    Send {
        /// The slot.
        slot: u16,
        /// The receivers: at least one.
        to: EndpointSet<W>,
        /// The length of the message.
        bytes: u32,
    },
    /// Write a control message to a slot, and send it as with [`Effect::Send`].
    SendControl {
        /// The slot.
        slot: u16,
        /// The receivers: at least one.
        to: EndpointSet<W>,
        /// The message.
        control: Control,
    },
    /// Post the buffer again: its message is not needed any more.
    Receive {
        /// The endpoint.
        from: EndpointId,
        /// Its buffer.
        buffer: u16,
    },
    /// The message breaks a rule: the call of its rank, or the order of messages. End the connection of the endpoint.
    Refused {
        /// The endpoint.
        from: EndpointId,
    },
    /// Report, once, that ranks have called different collectives: no later one is served.
    Conflict {
        /// The merged control message, with the two different calls.
        control: Control,
    },
    /// Report a stall: no message has been produced or acknowledged for the stall time-out.
    Stalled {
        /// The endpoints whose message is missing or, if none is, those that have not acknowledged.
        waiting_for: EndpointSet<W>,
        /// The lowest unfinished position.
        g: Psn,
        /// Time of the last progress.
        since: Nanos,
    },
}

/// What a pipe has read of the messages of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Cursor {
    /// Messages that the pipe has used or does not use.
    index: u64,
    /// The position of the next one.
    g: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Stream {
    /// Received messages.
    arrived: u64,
    /// By pipe.
    cursors: [Cursor; 2],
    /// Messages whose buffers are posted again.
    freed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pipe<const W: usize> {
    /// The position of the next message to produce.
    next: u64,
    /// Messages produced, and those of them that all receivers have acknowledged.
    produced: u64,
    released: u64,
    /// The next message has its slot; messages of `left` are not taken yet.
    begun: bool,
    left: EndpointSet<W>,
    /// By slot: its position, and the receivers that have not acknowledged it.
    slots: Box<[(u64, EndpointSet<W>)]>,
    /// Of the control message at `next`: merged so far.
    merged: Option<Control>,
}

/// The machine of one group at one switch. Call [`poll`](Self::poll) until it returns `None` after each other call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terminated<const W: usize = 1> {
    config: Config<W>,
    streams: Box<[Stream]>,
    pipes: [Pipe<W>; 2],
    calls: Calls,
    /// One past the control message on which ranks disagree.
    limit: u64,
    conflict: Option<Control>,
    conflict_due: bool,
    /// Endpoints with messages that may be skipped, or buffers that may be free.
    touched: EndpointSet<W>,
    /// Endpoints whose control message waits until a collective ends.
    blocked: EndpointSet<W>,
    /// Endpoints whose connection has ended.
    ended: EndpointSet<W>,
    /// Collectives may have ended. One look at all endpoints is enough for the ACKs of many.
    is_retiring: bool,
    since: Nanos,
    stall_at: Nanos,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Config<const W: usize> {
    endpoints: Box<[EndpointConfig]>,
    all: EndpointSet<W>,
    children: EndpointSet<W>,
    parent: Option<EndpointId>,
    start_psn: Psn,
    message_packets: u16,
    pmtu: u16,
    stall_timeout: Nanos,
}

enum Opened {
    Call,
    Wait,
    Refused,
}

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

impl<const W: usize> Terminated<W> {
    /// The machine of a new group. Slots of a pipe, and buffers of an endpoint, are `config.slots` in messages: at least two.
    pub fn new(config: TranslatedConfig) -> Self {
        let mut endpoints = config.endpoints;
        endpoints.truncate(EndpointSet::<W>::CAPACITY);
        let all = EndpointSet::first(endpoints.len());
        let parent = config.parent.filter(|&parent| all.contains(parent));
        let slots = usize::from(config.slots / config.message_packets.max(1)).max(2);
        let pipe = Pipe {
            slots: vec![(0, EndpointSet::EMPTY); slots].into_boxed_slice(),
            ..Pipe::default()
        };
        Self {
            streams: vec![Stream::default(); endpoints.len()].into_boxed_slice(),
            pipes: [pipe.clone(), pipe],
            calls: Calls::new(config.collectives_max, 0),
            limit: u64::MAX,
            conflict: None,
            conflict_due: false,
            touched: EndpointSet::EMPTY,
            blocked: EndpointSet::EMPTY,
            ended: EndpointSet::EMPTY,
            is_retiring: false,
            since: Nanos::ZERO,
            stall_at: Nanos::ZERO,
            config: Config {
                endpoints: endpoints.into_boxed_slice(),
                all,
                children: parent.map_or(all, |parent| all.without(parent)),
                parent,
                start_psn: config.start_psn,
                message_packets: config.message_packets,
                pmtu: config.pmtu,
                stall_timeout: config.stall_timeout,
            },
        }
    }

    /// Slots of each pipe. The slots of the second pipe, to the children, follow those of the first.
    pub fn slots(&self) -> u16 {
        self.pipes[0].slots.len() as u16
    }

    /// The next buffer of `from` is filled.
    pub fn arrived(&mut self, now: Nanos, from: EndpointId) {
        if let Some(stream) = self.streams.get_mut(from.index()) {
            stream.arrived += 1;
            self.touched.insert(from);
            if !self.is_active() {
                self.progress(now);
            }
        }
    }

    /// `to` has acknowledged the message in `slot`.
    pub fn acknowledged(&mut self, now: Nanos, to: EndpointId, slot: u16) {
        let slots = self.slots();
        let pipe = &mut self.pipes[usize::from(slot / slots).min(1)];
        let ring = u64::from(slots);
        pipe.slots[usize::from(slot % slots)].1.remove(to);
        while pipe.released < pipe.produced && pipe.slots[(pipe.released % ring) as usize].1.is_empty() {
            pipe.released += 1;
        }
        self.progress(now);
        self.is_retiring = true;
    }

    /// The connection of an endpoint has ended: nothing is received from it any more.
    pub fn end(&mut self, endpoint: EndpointId) {
        self.ended.insert(endpoint);
    }

    /// True if the connection of an endpoint has ended.
    pub fn has_ended(&self, endpoint: EndpointId) -> bool {
        self.ended.contains(endpoint)
    }

    /// Slots of both pipes whose messages are not acknowledged by all receivers.
    pub fn slots_used(&self) -> usize {
        self.pipes
            .iter()
            .map(|pipe| (pipe.produced - pipe.released) as usize)
            .sum()
    }

    /// The next action. `inbox` holds what has arrived.
    pub fn poll(&mut self, now: Nanos, inbox: &impl Inbox) -> Option<Effect<W>> {
        if core::mem::take(&mut self.is_retiring) {
            self.retire();
        }
        if core::mem::take(&mut self.conflict_due)
            && let Some(control) = self.conflict
        {
            return Some(Effect::Conflict { control });
        }
        loop {
            if let Some(effect) = self.clear(inbox) {
                return Some(effect);
            }
            let mut pipes = DIRECTIONS.into_iter();
            let produced = pipes.find_map(|direction| self.produce(now, direction, inbox));
            if produced.is_some() || self.touched.is_empty() {
                return produced;
            }
        }
    }

    /// Skips messages that a pipe does not use, and frees buffers.
    fn clear(&mut self, inbox: &impl Inbox) -> Option<Effect<W>> {
        while let Some(from) = self.touched.iter().next() {
            if !DIRECTIONS
                .into_iter()
                .all(|direction| self.settle(from, direction, inbox))
            {
                return Some(self.refuse(from));
            }
            let slots = u64::from(self.slots());
            let stream = &mut self.streams[from.index()];
            if stream.freed < stream.cursors[0].index.min(stream.cursors[1].index) {
                stream.freed += 1;
                let buffer = ((stream.freed - 1) % slots) as u16;
                return Some(Effect::Receive { from, buffer });
            }
            self.touched.remove(from);
        }
        None
    }

    /// Skips messages that a pipe does not use, and opens collectives. False if the next message is refused.
    fn settle(&mut self, from: EndpointId, direction: Direction, inbox: &impl Inbox) -> bool {
        if self.ended.contains(from) {
            return true;
        }
        loop {
            let Stream { arrived, cursors, .. } = self.streams[from.index()];
            let cursor = cursors[direction as usize];
            let g = self.calls.settle(from, Role::Sends, cursor.g);
            self.streams[from.index()].cursors[direction as usize].g = g;
            if cursor.index == arrived || g >= self.limit || g > self.heard() {
                return true;
            }
            let Some(index) = self.calls.find(g) else {
                match self.open(from, cursor.index, inbox) {
                    Opened::Call => continue,
                    Opened::Wait => return true,
                    Opened::Refused => return false,
                }
            };
            let call = self.calls.get(index);
            let (inputs, outputs) = self.ways(direction, call.flow(g));
            if inputs.contains(from) && !outputs.is_empty() {
                return true;
            }
            self.streams[from.index()].cursors[direction as usize] = Cursor {
                index: cursor.index + 1,
                g: call.message_end(g, self.config.message_packets),
            };
        }
    }

    /// The control message that is to be compared next. What an endpoint sends after its own is not read before: its call may differ.
    fn heard(&self) -> u64 {
        let next = self.pipes[self.compares() as usize].next;
        match self.calls.find(next).map(|index| self.calls.get(index)) {
            Some(call) if next > call.start => call.end(),
            _ => next,
        }
    }

    /// The pipe that compares the control messages of children.
    fn compares(&self) -> Direction {
        match self.config.parent {
            Some(_) => Direction::Up,
            None => Direction::Down,
        }
    }

    /// The first control message of a new collective.
    fn open(&mut self, from: EndpointId, index: u64, inbox: &impl Inbox) -> Opened {
        let Message::Control(control) = self.message(from, index, inbox) else {
            return Opened::Refused;
        };
        let sequence = self.calls.next_sequence();
        if self.is_parent(from) || !self.is_from(from, &control, sequence) {
            return Opened::Refused;
        }
        if self.calls.is_full() {
            self.blocked.insert(from);
            return Opened::Wait;
        }
        let Some(roots) = roots(&control.call, &self.config.endpoints) else {
            return Opened::Refused;
        };
        self.calls.push(&control, roots);
        Opened::Call
    }

    /// Whether a control message can be that of the endpoint for this collective.
    fn is_from(&self, from: EndpointId, control: &Control, sequence: u32) -> bool {
        let ranks = self.config.endpoints[from.index()].ranks.as_slice();
        // Switches with several ranks merge what they say.
        let may_conflict = ranks.len() > 1 || control.verdict == Verdict::Agreed;
        let is_theirs = ranks.binary_search(&control.rank).is_ok() && may_conflict;
        control.sequence == sequence && (self.is_parent(from) || is_theirs)
    }

    fn message(&self, from: EndpointId, index: u64, inbox: &impl Inbox) -> Message {
        inbox.message(from, (index % u64::from(self.slots())) as u16)
    }

    /// Who sends what a pipe combines, and who gets it; none: it does not carry such messages.
    fn ways(&self, direction: Direction, flow: Flow) -> (EndpointSet<W>, EndpointSet<W>) {
        let Config {
            all,
            children,
            parent,
            ..
        } = self.config;
        let up = parent.map_or(EndpointSet::EMPTY, EndpointSet::only);
        let (inputs, receivers) = match (flow, direction) {
            (Flow::UpDown, Direction::Down) if parent.is_some() => (up, children),
            (Flow::UpDown, _) => (children, all),
            (Flow::Gather(root), _) => (all.without(root), EndpointSet::only(root)),
            (Flow::Scatter(root), _) => (EndpointSet::only(root), all.without(root)),
        };
        let side = match direction {
            Direction::Up => up,
            Direction::Down => children,
        };
        (inputs, receivers.minus(all.minus(side)))
    }

    /// The next step of a pipe: takes the next message of those that it combines, or sends the result.
    fn produce(&mut self, now: Nanos, direction: Direction, inbox: &impl Inbox) -> Option<Effect<W>> {
        let at = direction as usize;
        let ring = u64::from(self.slots());
        loop {
            let g = self.pipes[at].next;
            if g >= self.limit {
                return None;
            }
            let index = self.calls.find(g)?;
            let call = self.calls.get(index);
            let (inputs, outputs) = self.ways(direction, call.flow(g));
            if outputs.is_empty() {
                self.pipes[at].next = call.part_end(g);
                self.retire();
                continue;
            }
            let (is_control, end) = (g == call.start, call.message_end(g, self.config.message_packets));
            let bytes = match is_control {
                true => Control::LEN as u32,
                false => call.message_bytes(g, self.config.pmtu, self.config.message_packets),
            };
            let pipe = &mut self.pipes[at];
            if !pipe.begun {
                if pipe.produced - pipe.released == ring {
                    return None;
                }
                (pipe.begun, pipe.left, pipe.merged) = (true, inputs, None);
            }
            let Pipe {
                produced,
                left,
                merged,
                ..
            } = *pipe;
            let slot = (at as u64 * ring + produced % ring) as u16;
            let Some(from) = left.iter().next() else {
                pipe.slots[(produced % ring) as usize] = (g, outputs);
                (pipe.next, pipe.produced, pipe.begun) = (end, produced + 1, false);
                self.progress(now);
                return Some(match merged {
                    Some(control) => {
                        self.agree(index, direction, &control);
                        self.touched = self.config.all.minus(self.ended);
                        Effect::SendControl {
                            slot,
                            to: outputs,
                            control,
                        }
                    }
                    None => Effect::Send {
                        slot,
                        to: outputs,
                        bytes,
                    },
                });
            };
            if !self.settle(from, direction, inbox) {
                return Some(self.refuse(from));
            }
            let stream = &self.streams[from.index()];
            let cursor = stream.cursors[at];
            if cursor.g != g || cursor.index == stream.arrived || self.ended.contains(from) {
                return None;
            }
            let merged = match self.message(from, cursor.index, inbox) {
                Message::Control(control)
                    if is_control && self.is_from(from, &control, self.calls.get(index).control.sequence) =>
                {
                    let mut all = merged.unwrap_or(control);
                    all.merge(&control);
                    Some(all)
                }
                Message::Data(found) if !is_control && found == bytes => None,
                _ => return Some(self.refuse(from)),
            };
            self.streams[from.index()].cursors[at] = Cursor {
                index: cursor.index + 1,
                g: end,
            };
            self.touched.insert(from);
            let pipe = &mut self.pipes[at];
            pipe.left.remove(from);
            pipe.merged = merged;
            if !is_control {
                let (first, buffer) = (left == inputs, (cursor.index % ring) as u16);
                return Some(Effect::Take {
                    slot,
                    from,
                    buffer,
                    first,
                    bytes,
                    kernel: CallId(index as u16),
                });
            }
        }
    }

    /// A merged control message is sent up, or a result down.
    fn agree(&mut self, index: usize, direction: Direction, control: &Control) {
        let call = self.calls.get_mut(index);
        call.control = *control;
        if control.verdict != Verdict::Agreed {
            self.limit = self.limit.min(call.start + 1);
            if direction == Direction::Down {
                (self.conflict, self.conflict_due) = (Some(*control), true);
            }
        }
    }

    fn refuse(&mut self, from: EndpointId) -> Effect<W> {
        self.ended.insert(from);
        Effect::Refused { from }
    }

    fn is_parent(&self, endpoint: EndpointId) -> bool {
        self.config.parent == Some(endpoint)
    }

    /// Removes collectives that both pipes have passed, all messages of which are acknowledged.
    fn retire(&mut self) {
        let base = self.base();
        if self
            .calls
            .find(base)
            .is_some_and(|index| self.calls.get(index) == self.calls.oldest())
        {
            return;
        }
        let mut least = base;
        for from in self.config.all.minus(self.ended) {
            for at in 0..2 {
                let cursor = &mut self.streams[from.index()].cursors[at];
                cursor.g = self.calls.settle(from, Role::Sends, cursor.g);
                least = least.min(cursor.g);
            }
        }
        self.calls.retire(least, self.limit);
        self.touched = self.touched.or(core::mem::take(&mut self.blocked));
    }

    /// The lowest unfinished position.
    fn base(&self) -> u64 {
        let oldest = |pipe: &Pipe<W>| match pipe.released < pipe.produced {
            true => pipe.slots[(pipe.released % pipe.slots.len() as u64) as usize].0,
            false => pipe.next,
        };
        self.pipes.iter().map(oldest).min().unwrap_or(0)
    }

    fn is_active(&self) -> bool {
        self.base() < self.calls.end().min(self.limit)
    }

    fn progress(&mut self, now: Nanos) {
        self.since = now;
        self.stall_at = now + self.config.stall_timeout;
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        (self.config.stall_timeout > Nanos::ZERO && self.is_active()).then_some(self.stall_at)
    }

    /// A stall to report, if one is due.
    pub fn handle_timeout(&mut self, now: Nanos) -> Option<Effect<W>> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.stall_at = now + self.config.stall_timeout;
        Some(Effect::Stalled {
            waiting_for: self.waiting_for(),
            g: self.wire_g(self.base()),
            since: self.since,
        })
    }

    /// The call of a collective in flight, from its first received control message.
    pub fn call(&self, id: CallId) -> &Call {
        &self.calls.get(usize::from(id.0)).call
    }

    fn wire_g(&self, g: u64) -> Psn {
        Psn::new((u64::from(self.config.start_psn.value()) + g) as u32)
    }

    fn waiting_for(&self) -> EndpointSet<W> {
        let lacks = |at: usize| {
            let left = self.pipes[at].left.iter();
            let here = |from: &EndpointId| {
                let stream = &self.streams[from.index()];
                stream.cursors[at].index < stream.arrived
            };
            left.filter(|from| !here(from)).collect::<EndpointSet<W>>()
        };
        let unacknowledged = |at: usize| {
            let pipe = &self.pipes[at];
            let oldest = pipe.slots[(pipe.released % pipe.slots.len() as u64) as usize].1;
            if pipe.released < pipe.produced {
                oldest
            } else {
                EndpointSet::EMPTY
            }
        };
        let sets = [lacks(0), unacknowledged(0), lacks(1), unacknowledged(1)];
        sets.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
    }

    /// The state, for display. Of a neighbour, `expected` is the position of its next message, and `unacknowledged` that of the oldest
    /// message that it has not acknowledged; packets and waits are those of its connection.
    pub fn status(&self) -> TranslatedStatus {
        let base = self.base();
        let endpoints = self.config.all.iter().map(|endpoint| {
            let at = usize::from(!self.is_parent(endpoint));
            let pipe = &self.pipes[at];
            let mut sent =
                (pipe.released..pipe.produced).map(|n| pipe.slots[(n % pipe.slots.len() as u64) as usize]);
            let oldest = sent.find(|(_, to)| to.contains(endpoint));
            let cursors = self.streams[endpoint.index()].cursors;
            let expected = self.wire_g(cursors[0].g.min(cursors[1].g));
            EndpointStatus {
                endpoint,
                kind: self.config.endpoints[endpoint.index()].kind,
                is_parent: self.is_parent(endpoint),
                expected,
                unconfirmed: expected,
                unacknowledged: self.wire_g(oldest.map_or(pipe.next, |(g, _)| g)),
                next: self.wire_g(pipe.next),
                packets: (0, 0),
                nak_sent: false,
                rnr_until: None,
            }
        });
        let collectives = self.calls.iter().map(|(sequence, c)| CollectiveStatus {
            sequence,
            g: self.wire_g(c.start),
            call: c.call,
        });
        TranslatedStatus {
            mode: CollectiveMode::Terminated,
            base: self.wire_g(base),
            next_collective: self.wire_g(self.calls.end()),
            next_sequence: self.calls.next_sequence(),
            finished: base,
            collectives: collectives.collect(),
            conflict: self.conflict,
            waiting_for: self.waiting_for().iter().collect(),
            since: self.is_active().then_some(self.since),
            endpoints: endpoints.collect(),
        }
    }

    /// Bytes of memory of the machine.
    pub fn footprint(&self) -> usize {
        let ranks = |e: &EndpointConfig| size_of_val(e.ranks.as_slice());
        size_of::<Self>()
            + size_of_val(&*self.config.endpoints)
            + self.config.endpoints.iter().map(ranks).sum::<usize>()
            + size_of_val(&*self.streams)
            + self
                .pipes
                .iter()
                .map(|pipe| size_of_val(&*pipe.slots))
                .sum::<usize>()
            + self.calls.bytes()
    }

    /// Copies the state of a machine of the same configuration. Does not allocate.
    pub fn copy_state(&mut self, of: &Self) {
        self.streams.clone_from(&of.streams);
        for (pipe, of) in self.pipes.iter_mut().zip(&of.pipes) {
            pipe.slots.clone_from(&of.slots);
            *pipe = Pipe {
                slots: core::mem::take(&mut pipe.slots),
                ..*of
            };
        }
        self.calls.copy_state(&of.calls);
        *self = Self {
            config: core::mem::take(&mut self.config),
            streams: core::mem::take(&mut self.streams),
            pipes: core::mem::take(&mut self.pipes),
            calls: core::mem::take(&mut self.calls),
            ..*of
        };
    }
}
