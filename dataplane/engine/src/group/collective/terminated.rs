//! A collective group over terminated connections (EPIC 4.2, Mode-I): RC connections that end at the switch, with the requester and the
//! responder of hosts ([`castnet_endpoint`]), and above them a machine that works with whole messages
//! ([`castnet_collective::Terminated`]), whose actions are carried out here on bytes.
//!
//! All messages lie in one region: the slots of both pipes, then the buffers of each endpoint. The connection of endpoint `n` is the QP
//! `FIRST_QPN + n`, a number that only the switch sees.

use castnet_collective::path::WORDS_MAX;
use castnet_collective::terminated::{Effect, Inbox, Message};
use castnet_collective::{CallId, EndpointId, EndpointSet, Terminated, TranslatedConfig};
use castnet_endpoint::{
    Access, Completion, CompletionOp, EndpointConfig, LocalSlice, MemoryKey, QpConfig, QueueLimits,
    ReactionConfig, RecvWr, SendOp, SendWr, Status,
};
use castnet_reduce::Checksum;
use castnet_rules::{Endpoint, GroupRule, TranslatedRule};
use castnet_wire::{
    BitRate, Control, Limit, MacAddr, McstId, NakCode, Nanos, PortId, Qpn, Syndrome, TokenBucket,
};

use super::context::{KernelCache, TICKS, kernel_key};
use super::explain;
use crate::egress::Egress;
use crate::group::install::rule_bytes;
use crate::group::lookup::LookupTable;
use crate::group::meter;
use crate::group::services::{FRAME, Scheduled, Services};
use crate::observe::counters::{CollectiveCounters, CongestionCounters, EndpointCounters, EndpointSnapshot};
use crate::observe::events::{Events, REPORTS};
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{LinkHeader, MACS};
use crate::output::cx::Cx;

mod frame;

use frame::count_sent;

/// Most frames sent in one call.
const EMISSIONS_MAX: usize = 32;
/// An action of the machine takes as long as so many bytes.
const EFFECT: usize = 1 << 10;
/// Bytes that are combined at once: whole elements of any type.
const PIECE: usize = 16 << 10;
const FIRST_QPN: u32 = 2;
/// Where congestion control starts: the rates of links are not known here. A slower one takes a few notifications more.
const LINK_RATE: BitRate = match BitRate::new(100_000_000_000) {
    Some(rate) => rate,
    None => unreachable!(),
};
/// A neighbour without a buffer tries again after 0.16 ms.
const RNR_TIMER: u8 = 8;

/// A compiled group of Mode-I, with all its memory.
#[derive(Debug)]
pub(crate) struct TerminatedContext {
    machine: Terminated<WORDS_MAX>,
    connections: castnet_endpoint::Endpoint,
    region: MemoryKey,
    room: Room,
    /// By endpoint and buffer.
    messages: Box<[Message]>,
    /// The control message in the frame that is handled, if it has immediate data.
    control: Message,
    senders: LookupTable,
    neighbours: Box<[Neighbour]>,
    mcst_id: McstId,
    /// By endpoint; empty without a rate limit.
    meters: Box<[Option<TokenBucket>]>,
    kernels: KernelCache,
    combining: Option<Combining>,
    checksum: Checksum,
    pub(super) counters: CollectiveCounters,
    congestion: CongestionCounters,
    per_endpoint: Box<[EndpointCounters]>,
    scheduled: Scheduled,
    stalls: Limit,
    /// The failure of a member was reported.
    failure_reported: bool,
    rule: GroupRule,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    port: PortId,
    next_hop: u16,
    /// VLAN tags and class of service, from its last frame.
    link: LinkHeader,
    /// Its data is ECN-capable. Data to it then is, too.
    ect: bool,
}

/// Where messages lie in the region.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes of a message.
    message: usize,
    /// Slots of a pipe, and buffers of an endpoint.
    ring: usize,
}

impl Room {
    fn slot(&self, slot: u16) -> usize {
        usize::from(slot) * self.message
    }

    /// The number of a buffer among all.
    fn buffer(&self, endpoint: EndpointId, buffer: u16) -> usize {
        endpoint.index() * self.ring + usize::from(buffer)
    }

    /// The first byte of the buffers.
    fn buffers(&self) -> usize {
        2 * self.ring * self.message
    }
}

/// What is left of a message that becomes part of the sum in a slot.
#[derive(Clone, Copy, Debug)]
struct Combining {
    kernel: CallId,
    /// It overwrites what the slot holds.
    first: bool,
    /// Where the rest of the sum begins, and the rest of the message.
    to: usize,
    at: usize,
    left: usize,
}

/// What has arrived, for the machine.
struct Received<'a> {
    room: Room,
    messages: &'a [Message],
}

impl Inbox for Received<'_> {
    fn message(&self, from: EndpointId, buffer: u16) -> Message {
        let message = self.messages.get(self.room.buffer(from, buffer));
        message.copied().unwrap_or(Message::Invalid)
    }
}

fn qpn(endpoint: EndpointId) -> Qpn {
    Qpn::new(FIRST_QPN + endpoint.index() as u32)
}

fn endpoint_of(qpn: Qpn) -> Option<EndpointId> {
    EndpointId::new(qpn.value().checked_sub(FIRST_QPN)? as usize)
}

/// The shortest time-out of a QP that is at least a tick of the group.
fn timeout(ack_timeout_us: u32) -> u8 {
    let tick = u64::from(ack_timeout_us) * 1_000 / TICKS;
    let codes = (1..31_u8).find(|&code| 4096 << code >= tick);
    codes.unwrap_or(31)
}

/// The connection to an endpoint: its PSNs are those of the rank or, between switches, start with that of the group.
fn connection(
    (endpoint, id): (&Endpoint, EndpointId),
    rule: &GroupRule,
    kind: &TranslatedRule,
    ring: usize,
) -> QpConfig {
    let hop = &endpoint.next_hop;
    let (sq_psn, rq_psn) = match hop.rank() {
        Some(rank) => (rank.rq_psn, rank.sq_psn),
        None => (kind.start_psn, kind.start_psn),
    };
    QpConfig {
        limits: QueueLimits {
            send: ring,
            receive: ring,
        },
        sq_psn,
        rq_psn,
        pmtu: rule.pmtu,
        timeout: timeout(kind.ack_timeout_us),
        min_rnr_timer: RNR_TIMER,
        probes: true,
        cnp_interval: Some(QpConfig::CNP_INTERVAL),
        reaction: Some(ReactionConfig::new(LINK_RATE)),
        ..QpConfig::new(qpn(id), hop.ip().unwrap_or(rule.mcst_id.0), hop.mac(), hop.qpn())
    }
}

fn ids(rule: &GroupRule) -> impl Iterator<Item = (&Endpoint, EndpointId)> {
    let ids = (0..).map_while(EndpointId::new);
    rule.endpoints.iter().zip(ids)
}

impl TerminatedContext {
    /// The rule is checked, its endpoints are in order. `payload`: with memory for messages.
    pub(super) fn new(
        config: TranslatedConfig,
        rule: GroupRule,
        kind: &TranslatedRule,
        payload: bool,
    ) -> Box<Self> {
        let machine = Terminated::new(config);
        let room = Room {
            message: usize::from(kind.message_packets) * rule.pmtu.bytes(),
            ring: machine.slots().into(),
        };
        let endpoints = rule.endpoints.len();
        let mut connections = castnet_endpoint::Endpoint::new(EndpointConfig {
            qps_max: endpoints,
            completions_max: usize::MAX,
            coalesce_acks: true,
            ack_before_nak: true,
            responses_max: 16,
            ..EndpointConfig::new(MacAddr::UNSPECIFIED, rule.mcst_id.0)
        });
        let bytes = room.buffers() + endpoints * room.ring * room.message;
        let region = match payload {
            // Not zeros: the kernel would map zeroed pages at the first access, while a frame is handled.
            true => connections.register_memory(0, vec![u8::MAX; bytes], Access::LOCAL),
            false => connections.register_void(bytes as u64, Access::LOCAL),
        };
        let mut group = Box::new(Self {
            connections,
            region: region.unwrap_or(MemoryKey::NONE),
            room,
            messages: vec![Message::Invalid; endpoints * room.ring].into_boxed_slice(),
            control: Message::Invalid,
            senders: LookupTable::of_all(&rule, Some(rule.mcst_id.0)),
            neighbours: rule.endpoints.iter().map(Neighbour::new).collect(),
            mcst_id: rule.mcst_id,
            meters: match rule.rate_limit {
                Some(_) => rule.endpoints.iter().map(|e| meter::of(&rule, e)).collect(),
                None => Box::default(),
            },
            kernels: KernelCache::default(),
            combining: None,
            checksum: Checksum::select(),
            counters: CollectiveCounters::default(),
            congestion: CongestionCounters::default(),
            per_endpoint: vec![EndpointCounters::default(); endpoints].into_boxed_slice(),
            scheduled: Scheduled::default(),
            stalls: REPORTS,
            failure_reported: false,
            machine,
            rule,
        });
        let configs: Vec<_> = ids(&group.rule)
            .map(|endpoint| connection(endpoint, &group.rule, kind, room.ring))
            .collect();
        for (config, id) in configs.into_iter().zip((0..).map_while(EndpointId::new)) {
            let created = group.connections.create_qp(config);
            debug_assert!(created.is_ok(), "the rule is checked: {created:?}");
            for buffer in 0..room.ring as u16 {
                group.receive(id, buffer);
            }
        }
        group
    }

    pub(super) fn footprint(&self) -> usize {
        let bytes = self.connections.memory(self.region).unwrap_or_default().len();
        size_of::<Self>() - size_of::<Terminated<WORDS_MAX>>()
            + self.machine.footprint()
            + bytes
            + self.connections.footprint()
            + size_of_val(&*self.messages)
            + self.senders.bytes()
            + size_of_val(&*self.neighbours)
            + size_of_val(&*self.meters)
            + size_of_val(&*self.per_endpoint)
            + rule_bytes(&self.rule)
    }

    pub(super) fn copy_state(&mut self, of: &Self) {
        self.machine.copy_state(&of.machine);
        self.connections.copy_state(&of.connections);
        self.messages.copy_from_slice(&of.messages);
        for (neighbour, of) in self.neighbours.iter_mut().zip(&of.neighbours) {
            (neighbour.link, neighbour.ect) = (of.link, of.ect);
        }
        self.meters.clone_from_slice(&of.meters);
        self.combining = of.combining;
    }

    /// Posts a buffer.
    fn receive(&mut self, from: EndpointId, buffer: u16) {
        let at = self.room.buffers() + self.room.buffer(from, buffer) * self.room.message;
        let local = LocalSlice {
            key: self.region,
            offset: at as u64,
            length: self.room.message as u32,
        };
        let wr = RecvWr {
            wr_id: buffer.into(),
            local,
        };
        let posted = self.connections.post_recv(qpn(from), wr);
        debug_assert!(posted.is_ok(), "each buffer is posted once: {posted:?}");
    }

    fn send(&mut self, slot: u16, to: EndpointSet<WORDS_MAX>, op: SendOp, bytes: u32) {
        let local = LocalSlice {
            key: self.region,
            offset: self.room.slot(slot) as u64,
            length: bytes,
        };
        for endpoint in to {
            let posted = self
                .connections
                .post_send(qpn(endpoint), SendWr::new(slot.into(), op, local));
            debug_assert!(posted.is_ok(), "each slot is sent once: {posted:?}");
        }
    }

    /// Passes completions to the machine, and carries out its actions while work is left for this iteration. True if there may be more.
    fn work<O: Observer>(
        &mut self,
        now: Nanos,
        left: &mut usize,
        observer: &mut O,
        events: &mut Events,
    ) -> bool {
        loop {
            while let Some(completion) = self.connections.poll_completion() {
                self.complete(now, &completion, events);
            }
            let mut idle = true;
            loop {
                if !self.combine(left) || *left == 0 {
                    return true;
                }
                let received = Received {
                    room: self.room,
                    messages: &self.messages,
                };
                let Some(effect) = self.machine.poll(now, &received) else {
                    break;
                };
                idle = false;
                *left = left.saturating_sub(EFFECT);
                self.carry_out(now, &effect, observer, events);
            }
            if idle {
                return false;
            }
        }
    }

    /// Combines a message with its slot in pieces, while `bytes` are left. False if more of it is left.
    fn combine(&mut self, bytes: &mut usize) -> bool {
        let Some(Combining {
            kernel,
            first,
            mut to,
            mut at,
            mut left,
        }) = self.combining.take()
        else {
            return true;
        };
        let apply = self.kernels.select(kernel_key(self.machine.call(kernel)));
        let all = self.connections.memory_mut(self.region).unwrap_or_default();
        let Some((slots, buffers)) = all.split_at_mut_checked(self.room.buffers()) else {
            return true;
        };
        while left > 0 && *bytes > 0 {
            let piece = left.min(PIECE);
            let (Some(sum), Some(message)) = (slots.get_mut(to..to + piece), buffers.get(at..at + piece))
            else {
                debug_assert!(false, "a message has at most the length of a buffer");
                return true;
            };
            match first {
                true => sum.copy_from_slice(message),
                false => apply.apply(sum, message),
            }
            (to, at, left) = (to + piece, at + piece, left - piece);
            *bytes = bytes.saturating_sub(piece);
        }
        self.combining = (left > 0).then_some(Combining {
            kernel,
            first,
            to,
            at,
            left,
        });
        left == 0
    }

    fn complete(&mut self, now: Nanos, completion: &Completion, events: &mut Events) {
        let Some(endpoint) = endpoint_of(completion.qpn) else {
            return;
        };
        match (completion.status, completion.op) {
            (Status::Success, CompletionOp::Recv | CompletionOp::RecvWriteImm) => {
                let at = self.room.buffer(endpoint, completion.wr_id as u16);
                if let Some(message) = self.messages.get_mut(at) {
                    *message = match completion.imm {
                        None => Message::Data(completion.byte_len),
                        Some(_) => self.control,
                    };
                }
                self.machine.arrived(now, endpoint);
            }
            (Status::Success, CompletionOp::Send | CompletionOp::Write) => {
                self.machine.acknowledged(now, endpoint, completion.wr_id as u16);
            }
            (_, _) if self.machine.has_ended(endpoint) => {}
            // Also flushed: a packet out of sequence ends a connection without a status of its own.
            (_, _) => {
                self.machine.end(endpoint);
                self.report_ended(now, endpoint, events);
            }
        }
    }

    /// The machine has ended a connection.
    fn report_ended(&mut self, now: Nanos, endpoint: EndpointId, events: &mut Events) {
        let is_first = !core::mem::replace(&mut self.failure_reported, true);
        let syndrome = Syndrome::Nak(NakCode::InvalidRequest).byte();
        events.failure(now, &self.rule, endpoint.index(), syndrome, is_first);
    }

    fn carry_out<O: Observer>(
        &mut self,
        now: Nanos,
        effect: &Effect<WORDS_MAX>,
        observer: &mut O,
        events: &mut Events,
    ) {
        observer.step(|| {
            Step::new(
                Stage::Machine,
                explain::message(&self.rule, effect),
                "whole messages",
            )
        });
        match *effect {
            Effect::Take {
                slot,
                from,
                buffer,
                first,
                bytes,
                kernel,
            } => {
                self.combining = Some(Combining {
                    kernel,
                    first,
                    to: self.room.slot(slot),
                    at: self.room.buffer(from, buffer) * self.room.message,
                    left: bytes as usize,
                });
            }
            Effect::Send { slot, to, bytes } => self.send(slot, to, SendOp::Send, bytes),
            Effect::SendControl { slot, to, control } => {
                let at = self.room.slot(slot);
                let all = self.connections.memory_mut(self.region).unwrap_or_default();
                if let Some(bytes) = all.get_mut(at..).and_then(|all| all.first_chunk_mut()) {
                    control.emit(bytes);
                }
                self.send(slot, to, SendOp::SendImm(Control::IMMEDIATE), Control::LEN as u32);
            }
            Effect::Receive { from, buffer } => self.receive(from, buffer),
            Effect::Refused { from } => {
                self.counters.dropped += 1;
                let refused = self.connections.refuse_qp(qpn(from));
                debug_assert!(refused.is_ok(), "each endpoint has a QP");
                self.report_ended(now, from, events);
            }
            Effect::Conflict { control } => {
                self.counters.conflicts += 1;
                events.conflict(now, &self.rule, control);
            }
            Effect::Stalled {
                waiting_for,
                g,
                since,
            } => {
                self.counters.stalls += 1;
                if self.stalls.allows(now) {
                    events.stall(now, &self.rule, waiting_for, (g, since));
                }
            }
        }
    }

    /// Sends frames of the connections while work is left for this iteration, but at least one: a long sum must not delay
    /// acknowledgements. True if there may be more.
    fn transmit<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        output: &mut Output,
        work: &mut usize,
        frame: &mut [u8],
    ) -> bool {
        for sent in 0..EMISSIONS_MAX {
            if sent > 0 && *work == 0 {
                return true;
            }
            let Some((qpn, length)) = self.connections.poll_transmit_of(cx.now, frame) else {
                return false;
            };
            *work = work.saturating_sub(FRAME);
            let Some(endpoint) = endpoint_of(qpn) else {
                continue;
            };
            self.transmit_one(cx, output, endpoint, frame.get(..length).unwrap_or_default());
        }
        true
    }

    fn transmit_one<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        output: &mut Output,
        endpoint: EndpointId,
        bytes: &[u8],
    ) {
        let (Some(neighbour), Some(counters), Some(packet)) = (
            self.neighbours.get(endpoint.index()),
            self.per_endpoint.get_mut(endpoint.index()),
            bytes.get(MACS + 2..),
        ) else {
            return output
                .counters
                .invariant_violated("a frame is for one of the endpoints");
        };
        let (port, all) = (neighbour.port, &mut self.counters);
        let mut addresses = [0; MACS];
        let (dst, src) = (output.next_hops.get(neighbour.next_hop), output.ports.mac(port));
        castnet_wire::ethernet::set_macs(&mut addresses, dst, src);
        let frame = match output.ports.up.contains(port) {
            true => cx
                .egress
                .gather(port, &[&addresses, neighbour.link.bytes(), packet]),
            false => None,
        };
        let Some(frame) = frame else {
            all.lost += 1;
            counters.lost += 1;
            output.counters.totals.copies_lost += 1;
            return cx
                .observer
                .step(|| Step::new(Stage::Translate, "not sent", "no buffer, or the port is down"));
        };
        count_sent(bytes, all, counters, &mut self.congestion);
        output.counters.totals.originated += 1;
        cx.observer.step(|| {
            let who = explain::name(&self.rule, endpoint);
            Step::new(
                Stage::Translate,
                format!("a frame for {who}"),
                format!("by port {port}"),
            )
        });
        cx.send(&mut output.counters, port, frame);
    }

    fn finish<E: Egress, O: Observer>(&mut self, services: &mut Services, cx: &mut Cx<'_, E, O>, slot: u32) {
        let Services {
            output,
            events,
            scratch,
            work,
            ..
        } = services;
        let unfinished = self.work(cx.now, work, cx.observer, events);
        let more = self.transmit(cx, output, work, &mut scratch.room[..]);
        self.schedule(services, cx.now, slot, more || unfinished);
    }

    fn schedule(&mut self, services: &mut Services, now: Nanos, slot: u32, more: bool) {
        let timers = [
            self.connections.poll_timeout().map(|(at, _)| at),
            self.machine.poll_timeout(),
        ];
        let due = timers.into_iter().flatten().min();
        let timers = &mut services.timers;
        timers.schedule((now, slot), &mut self.scheduled, due, more);
    }

    fn endpoints(&self) -> impl Iterator<Item = EndpointSnapshot> {
        let endpoints = self.rule.endpoints.iter().zip(&self.per_endpoint);
        endpoints.map(|(endpoint, counters)| EndpointSnapshot {
            port: endpoint.port,
            counters: *counters,
        })
    }
}

impl Neighbour {
    fn new(endpoint: &Endpoint) -> Self {
        Self {
            port: endpoint.port,
            next_hop: 0,
            link: LinkHeader::PLAIN,
            ect: false,
        }
    }
}
