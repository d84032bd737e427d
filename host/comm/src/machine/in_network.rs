//! One rank's side of collectives in the network (EPIC 3.3.2, 4.2; appendix A), over one queue pair for the group.
//!
//! # On the wire
//!
//! Each call is a control message (SEND with immediate, 64 bytes), followed by its data as SENDs of at most
//! `message_packets` packets, pipelined. A rank receives the control result, which is the same at all ranks, and, if
//! the call has results for it, results in messages of the same lengths. Both directions are in order.
//!
//! # Flow control
//!
//! A call of n packets takes n + 1 numbers `g` of the group: one for its control message, the others for its packets.
//! A number is finished at a rank when its result has arrived. If the rank only sends that number, it is finished
//! when it is acknowledged; the switch acknowledges it only when every receiver has it. With `l` the lowest
//! unfinished number of a rank and W the window, the rank posts a message whose last number is `b` only if `b < l +
//! W`, and a control message only if `b + 1 < l + W`.
//!
//! A switch has slots for two windows (EPIC's 2MW) above the lowest `l` of all ranks. A rank that has the result of
//! an AllReduce up to `b` knows that all ranks have posted it. So the `l` of each rank is above `b - W`, and what
//! this rank posts itself is within the two windows. Data of a Broadcast proves less: the source has posted it, and
//! the other ranks have acknowledged everything a window before it. A receiver without a further limit could run
//! three windows ahead of another one. So each rank keeps a lower bound of every rank's `l`, from
//!
//! - a control result, number `g`: `g + 2 - W`;
//! - data up to `b` of an AllReduce or Reduce that was received or acknowledged, or of a Broadcast that was
//!   acknowledged: `b + 1 - W`;
//! - received data up to `b` of a Broadcast with control number `g`: `b + 1 - W` where that is above `g + 1`.
//!
//! It posts nothing that is two windows above the bound. The bound after a call always suffices for the next one:
//! with n at most W by its control result, with n above W by its data. For the first case control messages keep the
//! distance of one number. A window of 1 has no capacity for that; it is the only one that can exceed the slots of a
//! switch, which then drops, and the rank retransmits.
//!
//! These numbers are the same at all ranks only while all make the same calls: after a call that is longer at another
//! rank, the switch counts further than this rank. So a rank posts what follows a call without a control result only
//! up to half a window below the bound.
//!
//! # Several blocks
//!
//! The small blocks of an AllGather or ReduceScatter share a call, with one control message. The machine treats each block as a
//! call of its own, whose control message is that of the first. All packets of such a call fit into the window, so its control
//! result suffices for all of them, as for a call of n at most W.
//!
//! # The end of a task
//!
//! A task ends when all ranks agree on its calls, this rank has posted what it sends, and has received its results. Data that
//! only goes out (the source of a Broadcast, the contributors of a Reduce) may still wait for its acknowledgement: it is in
//! its slot, or the executor waits before it gives the task's memory back. If it is lost for good, the next task fails with
//! the cause. So a rank does not wait for the other ranks once more, which takes longer than a small call itself.
//!
//! # Receives
//!
//! A switch sends nothing of a call before the control messages of all ranks have reached it, and results in the order of
//! the calls. So all messages that can arrive belong to calls that this rank has made, and their order is known. The
//! machine posts a receive for each of them in this order, and names the place of its data. It has capacity for more
//! messages than the flow control allows in flight, so a message that arrives finds its receive.
//!
//! # What a repeat contains
//!
//! An AllReduce in place writes the result over the contribution of this rank. The result of a packet proves that every
//! switch has reduced the contribution to it: the switches drop the payload of a repeat (contract C1).

use std::collections::VecDeque;

use castnet_rnic::Status;
use castnet_wire::Pmtu;
use castnet_wire::control::{Control, Primitive, Verdict};

use super::task::{Cut, Task, WireCall, wire_calls};
use super::{Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Target, TaskId, Waiting};

/// Configuration of a group as one rank sees it; all fields but `rank` are the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InNetworkConfig {
    /// This rank.
    pub rank: u16,
    /// Number of ranks.
    pub size: u16,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Most packets in flight; at least 2.
    pub window_packets: u32,
    /// Packets of a full message, at most the window.
    pub message_packets: u32,
    /// Most calls in flight; at least 1. Switches track twice as many.
    pub calls_max: u32,
    /// Whether switches keep contributions and reduce them in rank order. Otherwise a task that requires it fails.
    pub reproducible: bool,
}

impl InNetworkConfig {
    /// Default of `calls_max`.
    pub const CALLS_MAX: u32 = 8;

    /// Rank `rank` of `size`, with path MTU 1024, a window of 64 packets, messages of 16.
    pub const fn new(rank: u16, size: u16) -> Self {
        Self {
            rank,
            size,
            pmtu: Pmtu::B1024,
            window_packets: 64,
            message_packets: 16,
            calls_max: Self::CALLS_MAX,
            reproducible: false,
        }
    }

    fn clamped(self) -> Self {
        let window_packets = self.window_packets.max(1);
        Self {
            window_packets,
            message_packets: self.message_packets.clamp(1, window_packets),
            calls_max: self.calls_max.max(1),
            ..self
        }
    }
}

/// A call, or a block of one, that is running or waiting.
#[derive(Clone, Debug)]
struct Part {
    task: TaskId,
    is_last: bool,
    wire: WireCall,
    /// Number of the call, as in its control message.
    sequence: u64,
    /// The number `g` before its data: of the control message, or of the last packet of the block before.
    g: u64,
    control_sent: bool,
    control_received: bool,
    /// Data messages posted, acknowledged and received.
    sent: u64,
    acknowledged: u64,
    received: u64,
    /// Receives posted: for the control result, then for data.
    receives: u64,
}

impl Part {
    fn messages(&self, message_packets: u32) -> u64 {
        u64::from(self.wire.call.packets.div_ceil(message_packets))
    }

    /// Packets in the first `messages` messages.
    fn packets_in(&self, messages: u64, message_packets: u32) -> u64 {
        (messages * u64::from(message_packets)).min(self.wire.call.packets.into())
    }

    /// Control results that this rank receives.
    fn results(&self) -> u64 {
        u64::from(self.wire.block == 0)
    }

    /// Messages that this rank receives: the control result, then data.
    fn awaited(&self, message_packets: u32) -> u64 {
        match self.wire.receives {
            Some(_) => self.results() + self.messages(message_packets),
            None => self.results(),
        }
    }

    fn finished_messages(&self) -> u64 {
        if self.wire.receives.is_some() {
            self.received
        } else {
            self.acknowledged
        }
    }

    /// Whether all its numbers are finished at this rank.
    fn is_finished(&self, message_packets: u32) -> bool {
        self.control_received && self.finished_messages() == self.messages(message_packets)
    }

    /// Whether its task need not wait for it: all ranks agree, all data to send is in its slots, and all results are here.
    fn is_over(&self, message_packets: u32) -> bool {
        self.control_received
            && self.is_sent(message_packets)
            && (self.wire.receives.is_none() || self.is_finished(message_packets))
    }

    fn is_sent(&self, message_packets: u32) -> bool {
        let all = self.messages(message_packets);
        self.control_sent && (self.wire.sends.is_none() || self.sent == all)
    }
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    wr: u64,
    /// Number of its part.
    part: u64,
    is_data: bool,
}

/// The machine of one rank over one queue pair.
#[derive(Clone, Debug)]
pub struct InNetwork {
    config: InNetworkConfig,
    tasks: u64,
    /// Running and waiting parts, oldest first.
    parts: VecDeque<Part>,
    /// Number of the oldest part in `parts`.
    oldest: u64,
    /// Number of the next call.
    sequence: u64,
    /// So many of the first parts are over.
    over: usize,
    /// Index in `parts` of the part that sends next.
    sending: usize,
    /// Index in `parts` of the part whose receives are posted next.
    receiving: usize,
    /// Posted receives that are not filled, and the slot of the next one. Slots are used in order.
    receives: u32,
    slot_next: u32,
    /// The number `g` that follows all calls.
    g_next: u64,
    outstanding: VecDeque<Outstanding>,
    wr_next: u64,
    /// Lower bound of every rank's lowest unfinished number, plus one window.
    bound: u64,
    /// The failure of all later tasks.
    failed: Option<Failure>,
    actions: VecDeque<Action>,
}

const CHANNEL: ChannelId = ChannelId(0);

impl InNetwork {
    /// A rank of a new group. Values out of bounds are clamped.
    pub fn new(config: InNetworkConfig) -> Self {
        let config = config.clamped();
        Self {
            bound: config.window_packets.into(),
            config,
            tasks: 0,
            parts: VecDeque::new(),
            oldest: 0,
            sequence: 0,
            over: 0,
            sending: 0,
            receiving: 0,
            receives: 0,
            slot_next: 0,
            g_next: 0,
            outstanding: VecDeque::new(),
            wr_next: 0,
            failed: None,
            actions: VecDeque::new(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &InNetworkConfig {
        &self.config
    }

    /// The lowest number `g` of the group that is not finished at this rank.
    pub fn lowest_unfinished(&self) -> u64 {
        let Some(part) = self.parts.front() else {
            return self.g_next;
        };
        if part.control_received {
            part.g + 1 + part.packets_in(part.finished_messages(), self.config.message_packets)
        } else {
            part.g
        }
    }

    pub(super) fn check(&self, task: &Task) -> Result<(), Failure> {
        if let Some(failure) = self.failed {
            Err(failure)
        } else if task.is_in_rank_order() && !self.config.reproducible {
            Err(Failure::NotReproducible)
        } else {
            Ok(())
        }
    }

    /// Ends finished calls and posts what the window allows.
    fn advance(&mut self) {
        let message_packets = self.config.message_packets;
        loop {
            while let Some(part) = self.parts.get(self.over)
                && part.is_over(message_packets)
            {
                if part.is_last {
                    let task = part.task;
                    self.actions.push_back(Action::Done { task, result: Ok(()) });
                }
                self.over += 1;
            }
            while self.over > 0
                && let Some(part) = self.parts.front()
                && part.is_finished(message_packets)
            {
                self.parts.pop_front();
                self.over -= 1;
                self.oldest += 1;
                self.sending = self.sending.saturating_sub(1);
                self.receiving = self.receiving.saturating_sub(1);
            }
            if !self.post_one() {
                return;
            }
        }
    }

    /// Posts receives for the next messages, in their order, as long as slots are free.
    fn post_receives(&mut self) {
        let slots = self.shape().receive_slots;
        while self.receives < slots
            && self.failed.is_none()
            && let Some(part) = self.parts.get_mut(self.receiving)
        {
            if part.receives == part.awaited(self.config.message_packets) {
                self.receiving += 1;
                continue;
            }
            // What is added to bytes of this rank passes through a slot.
            let index = part
                .receives
                .checked_sub(part.results())
                .filter(|_| part.wire.adds.is_none());
            let target = index.zip(part.wire.receives).map(|(index, to)| {
                let (offset, length) = message(part, index, &self.config);
                let (task, to) = (part.task, to.plus(offset));
                Target { task, to, length }
            });
            part.receives += 1;
            self.receives += 1;
            self.actions.push_back(Action::Receive {
                channel: CHANNEL,
                slot: self.slot_next,
                target,
            });
            self.slot_next = (self.slot_next + 1) % slots;
        }
    }

    /// Posts the next message if the window allows it. Returns true if it did.
    fn post_one(&mut self) -> bool {
        let config = self.config;
        while let Some(part) = self.parts.get(self.sending)
            && part.is_sent(config.message_packets)
        {
            self.sending += 1;
        }
        let window = u64::from(config.window_packets);
        let own = self.lowest_unfinished() + window;
        // Control results arrive in order: if the previous call has its result, all earlier ones have too.
        let before = self.sending.checked_sub(1).and_then(|at| self.parts.get(at));
        let is_agreed = before.is_none_or(|part| part.control_received);
        let bound = self.bound + if is_agreed { window } else { window / 2 };
        if self.outstanding.len() >= self.shape().send_slots as usize {
            return false;
        }
        let number = self.oldest + self.sending as u64;
        let in_flight = self.sending;
        let Some(part) = self.parts.get_mut(self.sending) else {
            return false;
        };
        let (content, immediate) = if !part.control_sent {
            let is_full = in_flight + usize::from(part.wire.call.roots) > config.calls_max as usize;
            if is_full || part.g + u64::from(window > 1) >= own || part.g >= bound {
                return false;
            }
            let control = Control {
                // The wire field has 32 bits and wraps.
                sequence: part.sequence as u32,
                rank: config.rank,
                call: part.wire.call,
                verdict: Verdict::Agreed,
            };
            let mut bytes = [0; Control::LEN];
            control.emit(&mut bytes);
            part.control_sent = true;
            (Content::Control(bytes), Some(Control::IMMEDIATE))
        } else if let Some(from) = part.wire.sends {
            // One above the last number of this message.
            let end = part.g + 1 + part.packets_in(part.sent + 1, config.message_packets);
            if end > own.min(bound) {
                return false;
            }
            let (offset, length) = message(part, part.sent, &config);
            part.sent += 1;
            let from = from.plus(offset);
            (Content::Data { from, length }, None)
        } else {
            return false;
        };
        let (task, is_data) = (part.task, immediate.is_none());
        let wr = self.wr_next;
        self.wr_next += 1;
        self.outstanding.push_back(Outstanding {
            wr,
            part: number,
            is_data,
        });
        self.actions.push_back(Action::Send {
            channel: CHANNEL,
            wr,
            // Slots are used and released in order.
            slot: (wr % u64::from(self.shape().send_slots)) as u32,
            task,
            content,
            immediate,
        });
        true
    }

    fn sent(&mut self, wr: u64) {
        while let Some(&send) = self.outstanding.front()
            && send.wr <= wr
        {
            self.outstanding.pop_front();
            if let Some(at) = send.part.checked_sub(self.oldest)
                && let Some(part) = self.parts.get_mut(at as usize)
                && send.is_data
            {
                part.acknowledged += 1;
                let end = part.g + 1 + part.packets_in(part.acknowledged, self.config.message_packets);
                self.bound = self.bound.max(end);
            }
        }
    }

    fn received(&mut self, slot: u32, length: u32, immediate: Option<u32>, head: &[u8]) {
        if self.failed.is_some() {
            // After the failed call nothing of earlier ones arrives, and its own data is not a result.
            return;
        }
        self.receives = self.receives.saturating_sub(1);
        let message_packets = self.config.message_packets;
        let next = self.parts.iter().position(|part| {
            let all = part.messages(message_packets);
            !part.control_received || part.wire.receives.is_some() && part.received < all
        });
        let invalid = |reason| Failure::Protocol { peer: None, reason };
        let Some(at) = next else {
            return self.fail(0, invalid("no message is expected"));
        };
        let part = &mut self.parts[at];
        let sequence = part.sequence;
        if !part.control_received {
            if immediate != Some(Control::IMMEDIATE) {
                return self.fail(at, invalid("data before the control result"));
            }
            let Ok(control) = Control::parse(head) else {
                return self.fail(at, invalid("a malformed control result"));
            };
            let conflict = |second| Failure::Conflict {
                sequence: sequence as u32,
                first: (control.rank, control.call),
                second,
            };
            if let Verdict::Conflict { rank, call } = control.verdict {
                return self.fail(at, conflict((rank, call)));
            }
            if control.sequence != sequence as u32 {
                return self.fail(at, invalid("the control result of another collective"));
            }
            let own = (self.config.rank, part.wire.call);
            if control.call != own.1 {
                return self.fail(at, conflict(own));
            }
            self.bound = self.bound.max(part.g + 2);
            let blocks = part.wire.call.roots.into();
            for part in self.parts.iter_mut().skip(at).take(blocks) {
                part.control_received = true;
            }
        } else {
            if immediate.is_some() {
                return self.fail(at, invalid("a control result within data"));
            }
            let (offset, expected) = message(part, part.received, &self.config);
            if length != expected {
                return self.fail(at, invalid("a result of wrong length"));
            }
            part.received += 1;
            let end = part.g + 1 + part.packets_in(part.received, message_packets);
            let raises_bound = part.wire.call.primitive != Primitive::Broadcast
                || end > part.g + 1 + u64::from(self.config.window_packets);
            if raises_bound {
                self.bound = self.bound.max(end);
            }
            if let Some(to) = part.wire.receives {
                self.actions.push_back(Action::Deliver {
                    channel: CHANNEL,
                    slot,
                    task: part.task,
                    to: to.plus(offset),
                    length,
                    combine: part.wire.adds.map(|p| p.plus(offset)),
                });
            }
        }
        self.post_receives();
    }

    /// Fails the task of the call at index `at` and all later tasks; of a task that has ended, all later ones. Earlier tasks
    /// continue.
    fn fail(&mut self, at: usize, failure: Failure) {
        let at = at.max(self.over);
        let culprit = self.parts.get(at).map(|p| p.task);
        let keep = self
            .parts
            .iter()
            .position(|p| Some(p.task) == culprit)
            .unwrap_or(self.over);
        self.failed = Some(if culprit.is_some() {
            Failure::Aborted
        } else {
            failure
        });
        let mut last = None;
        for part in self.parts.drain(keep..) {
            if last.replace(part.task) == Some(part.task) {
                continue;
            }
            let failure = match culprit == last {
                true => failure,
                false => Failure::Aborted,
            };
            self.actions.push_back(Action::failed(part.task, failure));
        }
        self.over = self.over.min(self.parts.len());
        self.sending = self.sending.min(self.parts.len());
        self.receiving = self.receiving.min(self.parts.len());
    }

    fn channel_failed(&mut self, status: Status) {
        let (peer, lane) = (None, None);
        self.fail(0, Failure::Channel { peer, lane, status });
        self.outstanding.clear();
    }
}

/// Offset and length, in bytes, of a data message of a call.
fn message(part: &Part, index: u64, config: &InNetworkConfig) -> (u64, u32) {
    let full = u64::from(config.message_packets) * config.pmtu.bytes() as u64;
    let offset = index * full;
    let length = part.wire.bytes.saturating_sub(offset).min(full);
    // At most 16384 packets of 4096 bytes.
    (offset, length as u32)
}

impl Machine for InNetwork {
    fn shape(&self) -> ChannelShape {
        let config = &self.config;
        let window = config.window_packets.div_ceil(config.message_packets);
        // Each call may have a control message and a message that is not full. The factor 2 lets a rank that is a
        // window ahead continue while results are read slowly or acknowledgements are in flight.
        let slots = 2 * (window + 2 * config.calls_max);
        ChannelShape {
            send_slots: slots,
            receive_slots: slots,
            slot_bytes: (config.message_packets * config.pmtu.bytes() as u32).max(Control::LEN as u32),
        }
    }

    fn channels(&self) -> u16 {
        1
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        if let Err(failure) = self.check(&task) {
            self.actions.push_back(Action::failed(id, failure));
            return id;
        }
        let (rank, size) = (self.config.rank, self.config.size);
        let own = task.bytes();
        if task.collective == super::Collective::AllGather {
            self.actions.push_back(Action::Copy {
                task: id,
                from: super::Place::input(0),
                to: super::Place::output(u64::from(rank) * own),
                length: own,
            });
        }
        let cut = Cut {
            pmtu: self.config.pmtu.bytes() as u64,
            window_packets: self.config.window_packets.into(),
            // So that there can be two calls in flight.
            blocks_max: u16::try_from(self.config.calls_max / 2).unwrap_or(u16::MAX),
        };
        let mut calls = wire_calls(&task, rank, size, cut).peekable();
        while let Some(wire) = calls.next() {
            let is_first = wire.block == 0;
            self.sequence += u64::from(is_first);
            self.g_next += u64::from(is_first);
            self.parts.push_back(Part {
                task: id,
                is_last: calls.peek().is_none(),
                sequence: self.sequence - 1,
                g: self.g_next - 1,
                control_sent: !is_first,
                control_received: false,
                sent: 0,
                acknowledged: 0,
                received: 0,
                receives: 0,
                wire,
            });
            self.g_next += u64::from(wire.call.packets);
        }
        self.post_receives();
        self.advance();
        id
    }

    fn scratch_bytes(&self, _: &Task) -> u64 {
        0
    }

    fn may_send_from_tasks(&self) -> bool {
        true
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Sent { wr, .. } => self.sent(wr),
            Event::Received {
                slot,
                length,
                immediate,
                head,
                ..
            } => self.received(slot, length, immediate, head),
            Event::Failed { status, .. } => self.channel_failed(status),
        }
        self.advance();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        self.outstanding.is_empty()
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn waiting_for(&self) -> Option<Waiting> {
        let at = if self.over < self.parts.len() {
            self.over
        } else {
            0
        };
        let part = self.parts.get(at)?;
        let sequence = part.sequence;
        let done = part.packets_in(part.finished_messages(), self.config.message_packets);
        let of = part.wire.call.packets.into();
        Some(if !part.control_received {
            Waiting::Calls { sequence }
        } else if part.wire.receives.is_some() {
            Waiting::Results {
                sequence,
                received: done,
                of,
            }
        } else {
            Waiting::Acknowledgements {
                sequence,
                acknowledged: done,
                of,
            }
        })
    }
}
