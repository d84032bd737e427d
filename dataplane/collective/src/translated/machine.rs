use super::congestion::Congestion;
use super::endpoint::Endpoint;
use super::pipe::{Pipe, Window};
use super::silence::Silence;
use super::slot::Slots;
use super::{
    CallId, CollectiveMode, Effect, Effects, EndpointConfig, EndpointId, EndpointKind, EndpointSet, Event,
    LossPolicy, PacketShape, StragglerPolicy, TranslatedConfig,
};
use crate::calls::{Calls, Flow};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use castnet_wire::{Call, DropReason, Nanos, Psn};
use core::hash::{Hash, Hasher};
use core::mem::take;

/// The context of one collective group at one switch: endpoints, routing, transmission and computation states, without payloads. Sets of
/// endpoints have `W` words, so there are at most `64 * W` endpoints.
///
/// Call [`handle`](Self::handle) for each frame, then [`poll_emit`](Self::poll_emit) until it returns false, and now and then
/// [`catch_up`](Self::catch_up) while [`is_behind`](Self::is_behind) returns true. Call
/// [`handle_timeout`](Self::handle_timeout) while [`poll_timeout`](Self::poll_timeout) is due, and after each call `poll_emit` until it
/// returns false. [`nexts`](Self::nexts) is the fast path of `handle`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Translated<const W: usize = 1> {
    pub(super) cold: SharedConfig<W>,
    pub(super) endpoints: Box<[Endpoint]>,
    pub(super) congestion: Box<[Congestion]>,
    pub(super) slots: Slots<W>,
    pub(super) calls: Calls,
    /// The lowest unfinished position. A finished one is complete, and acknowledged by all its receivers.
    pub(super) base: u64,
    /// By pipe; Mode-II uses one.
    pub(super) windows: [Window; 2],
    /// At the root in Mode-III, the next position to hand over to the broadcast pipe. Otherwise `u64::MAX`.
    pub(super) handed: u64,
    /// Positions from here on are not served: one past the control message on which ranks disagree.
    pub(super) limit: u64,
    /// Their next packet is ready.
    pub(super) pending: EndpointSet<W>,
    pub(super) ack_due: EndpointSet<W>,
    pub(super) nak_due: EndpointSet<W>,
    /// Are asked for their next packet alone, after what else is due.
    pub(super) request_due: EndpointSet<W>,
    /// Had a packet refused for lack of a free slot.
    pub(super) refused: EndpointSet<W>,
    /// Switches that wait for an ACK of more than could be acknowledged when they requested it.
    pub(super) withheld: EndpointSet<W>,
    /// Some of their packets can be confirmed.
    pub(super) unconfirmed: EndpointSet<W>,
    /// Some collectives can be removed.
    pub(super) is_retiring: bool,
    /// Reported for breaking a rule.
    pub(super) blamed: EndpointSet<W>,
    /// Had no receive posted.
    pub(super) rnr_waiting: EndpointSet<W>,
    /// When the first of them has waited long enough; zero without any.
    pub(super) rnr_at: Nanos,
    /// Endpoints whose failure was reported.
    pub(super) failed: EndpointSet<W>,
    /// While something is in flight.
    pub(super) tick_at: Nanos,
    /// Where a tick continues whose effects did not fit into one call.
    pub(super) tick_next: u16,
    pub(super) silence: Silence,
    pub(super) since: Nanos,
    pub(super) stall_at: Nanos,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cold<const W: usize> {
    pub(super) endpoints: Box<[EndpointConfig]>,
    pub(super) all: EndpointSet<W>,
    pub(super) children: EndpointSet<W>,
    pub(super) parent: Option<EndpointId>,
    pub(super) start_psn: Psn,
    pub(super) message_packets: u16,
    pub(super) pmtu: u16,
    pub(super) reproducible: bool,
    pub(super) mode: CollectiveMode,
    pub(super) loss: LossPolicy,
    pub(super) straggler: StragglerPolicy,
    pub(super) tick: Nanos,
    pub(super) stall_timeout: Nanos,
}

/// Shared between copies of the machine. Not hashed, because it is equal for all states of a model checker's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedConfig<const W: usize>(pub(super) Arc<Cold<W>>);

impl<const W: usize> Hash for SharedConfig<W> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<const W: usize> Translated<W> {
    /// The machine of a new group, with all its memory. Endpoints beyond [`EndpointSet::CAPACITY`] are ignored, as is an unknown parent.
    pub fn new(config: TranslatedConfig) -> Self {
        let mut endpoints = config.endpoints;
        endpoints.truncate(EndpointSet::<W>::CAPACITY);
        let all = EndpointSet::first(endpoints.len());
        let parent = config.parent.filter(|&p| all.contains(p));
        let states = vec![Endpoint::default(); endpoints.len()].into_boxed_slice();
        let is_augmented = config.mode == CollectiveMode::Augmented;
        Self {
            windows: Self::new_windows(endpoints.len()),
            handed: match parent {
                None if is_augmented => 0,
                _ => u64::MAX,
            },
            endpoints: states,
            congestion: vec![Congestion::default(); endpoints.len()].into_boxed_slice(),
            slots: Slots::new(config.slots, 1 + u16::from(is_augmented)),
            calls: Calls::new(config.collectives_max, all.len()),
            base: 0,
            limit: u64::MAX,
            pending: EndpointSet::EMPTY,
            ack_due: EndpointSet::EMPTY,
            nak_due: EndpointSet::EMPTY,
            request_due: EndpointSet::EMPTY,
            refused: EndpointSet::EMPTY,
            withheld: EndpointSet::EMPTY,
            unconfirmed: EndpointSet::EMPTY,
            is_retiring: false,
            blamed: EndpointSet::EMPTY,
            rnr_waiting: EndpointSet::EMPTY,
            rnr_at: Nanos::ZERO,
            failed: EndpointSet::EMPTY,
            tick_at: Nanos::ZERO,
            tick_next: 0,
            silence: Silence::default(),
            since: Nanos::ZERO,
            stall_at: Nanos::ZERO,
            cold: SharedConfig(Arc::new(Cold {
                endpoints: endpoints.into_boxed_slice(),
                all,
                children: parent.map_or(all, |p| all.without(p)),
                parent,
                start_psn: config.start_psn,
                message_packets: config.message_packets,
                pmtu: config.pmtu,
                reproducible: config.reproducible,
                loss: match config.mode {
                    CollectiveMode::Translated => config.loss,
                    _ => LossPolicy::Repair,
                },
                mode: config.mode,
                straggler: config.straggler,
                tick: config.tick,
                stall_timeout: config.stall_timeout,
            })),
        }
    }

    /// Copies the state of a machine of the same configuration to this new one. Does not allocate; takes time for each packet in flight.
    pub fn copy_state(&mut self, of: &Self) {
        for (pipe, g) in of.in_flight() {
            *self.slots.at_mut(pipe, g) = of.slots.at(pipe, g).clone();
        }
        self.calls.copy_state(&of.calls);
        self.endpoints.clone_from(&of.endpoints);
        self.congestion.clone_from(&of.congestion);
        *self = Self {
            cold: self.cold.clone(),
            endpoints: take(&mut self.endpoints),
            congestion: take(&mut self.congestion),
            slots: take(&mut self.slots),
            calls: take(&mut self.calls),
            ..*of
        };
    }

    /// The pipe and the position of each slot in use.
    fn in_flight(&self) -> impl Iterator<Item = (Pipe, u64)> {
        let seen = self.endpoints.iter().map(|e| e.receiving.seen).max();
        let pipes: &[Pipe] = match self.is_augmented() {
            true => &[Pipe::Aggregation, Pipe::Broadcast],
            false => &[Pipe::Aggregation],
        };
        pipes.iter().flat_map(move |&pipe| {
            let (start, end) = (self.psn_start(pipe), self.psn_start(pipe) + self.slots.ring());
            (start..seen.unwrap_or(0).clamp(start, end)).map(move |g| (pipe, g))
        })
    }

    /// The slots of all positions in flight.
    pub fn slots_in_flight(&self) -> impl Iterator<Item = u16> {
        self.in_flight().map(|(pipe, g)| self.slots.number(pipe, g))
    }

    /// Handles a frame. Clears `out`, and writes at least one effect.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Effects<W>) {
        out.clear();
        let (Event::Data { from, .. }
        | Event::Control { from, .. }
        | Event::Feedback { from, .. }
        | Event::Request { from, .. }
        | Event::Cnp { from }
        | Event::Marked { from }) = event;
        if from.index() >= self.endpoints.len() {
            return emit(out, Effect::Drop(DropReason::NotMember));
        }
        match event {
            Event::Data {
                psn,
                shape,
                ack_request,
                ..
            } => self.on_data(now, from, psn, (shape, ack_request), out),
            Event::Control {
                psn,
                control,
                ack_request,
                ..
            } => self.on_control(now, from, psn, &control, ack_request, out),
            Event::Feedback { psn, syndrome, .. } => self.receive_ack(now, from, psn, syndrome, out),
            Event::Request { psn, .. } => self.receive_request(from, psn, out),
            Event::Cnp { .. } => self.receive_cnp(now, from, out),
            Event::Marked { .. } => self.mark_seen(now, from, out),
        }
        self.conclude(now, out);
    }

    #[inline]
    fn conclude(&mut self, now: Nanos, out: &mut Effects<W>) {
        self.send_acks(out, 1);
        // The results of a reproducible group are made of all contributions when they are sent: only `poll_emit` sends them.
        if !self.cold().reproducible {
            // Each has one effect at most; a control message has none.
            for _ in 1..out.remaining_capacity() {
                if !self.hand_over(now, out) {
                    break;
                }
            }
            self.replicate_data(now, out);
        }
        if out.is_empty() {
            emit(out, Effect::Absorb);
        }
    }

    /// Writes pending effects: acknowledgements that did not fit before, and packets that waited for another one. Call it until it
    /// returns false. Clears `out`, and writes at most one effect, or two acknowledgements and a request to one endpoint. It writes none where it has
    /// handed over a control message that is not sent yet, or where a packet has come that was to be asked for.
    #[inline]
    pub fn poll_emit(&mut self, now: Nanos, out: &mut Effects<W>) -> bool {
        out.clear();
        if !self.has_more() {
            return false;
        }
        self.emit_one(now, out)
    }

    /// True if [`poll_emit`](Self::poll_emit) has a pending effect.
    #[inline]
    pub fn has_more(&self) -> bool {
        let due = self.answers_due().or(self.pending);
        !due.is_empty() || self.can_hand_over()
    }

    pub(super) fn answers_due(&self) -> EndpointSet<W> {
        self.ack_due.or(self.nak_due).or(self.request_due)
    }

    /// Endpoints that can be sent a packet: an emission looks at each.
    #[inline]
    pub fn ready_count(&self) -> usize {
        self.pending.len()
    }

    /// True if something was done.
    fn emit_one(&mut self, now: Nanos, out: &mut Effects<W>) -> bool {
        if let Some(endpoint) = self.answers_due().iter().next() {
            self.send_ack(endpoint, out);
            return true;
        }
        // A control message is handed over without an effect.
        let is_handed = self.hand_over(now, out);
        if out.is_empty() {
            self.replicate_data(now, out);
        }
        is_handed || !out.is_empty()
    }

    /// The call of a collective in flight, from its first received control message.
    #[inline]
    pub fn call(&self, id: CallId) -> &Call {
        &self.calls.get(usize::from(id.0)).call
    }

    /// The shape of the packet in a slot.
    #[inline]
    pub fn shape(&self, slot: u16) -> PacketShape {
        self.slots.numbered(slot).shape
    }

    /// The number of slots, of all pipes.
    pub fn slots(&self) -> u16 {
        self.slots.count()
    }

    /// Bytes of memory of the machine, without payloads.
    pub fn footprint(&self) -> usize {
        let cold = self.cold();
        let ranks: usize = cold
            .endpoints
            .iter()
            .map(|e| size_of_val(e.ranks.as_slice()))
            .sum();
        size_of::<Self>()
            + size_of::<Cold<W>>()
            + size_of_val(&*cold.endpoints)
            + ranks
            + size_of_val(&*self.endpoints)
            + size_of_val(&*self.congestion)
            + self.slots.bytes()
            + self.calls.bytes()
    }

    pub(super) fn cold(&self) -> &Cold<W> {
        &self.cold.0
    }

    pub(super) fn kind(&self, endpoint: EndpointId) -> EndpointKind {
        self.cold().endpoints[endpoint.index()].kind
    }

    pub(super) fn is_rank(&self, endpoint: EndpointId) -> bool {
        matches!(self.kind(endpoint), EndpointKind::Rank { .. })
    }

    pub(super) fn is_repairing(&self) -> bool {
        self.cold().loss == LossPolicy::Repair
    }

    /// True in Mode-III.
    #[inline]
    pub(super) fn is_augmented(&self) -> bool {
        self.cold().mode == CollectiveMode::Augmented
    }

    pub(super) fn is_parent(&self, endpoint: EndpointId) -> bool {
        self.cold().parent == Some(endpoint)
    }

    pub(super) fn endpoint(&self, id: EndpointId) -> &Endpoint {
        &self.endpoints[id.index()]
    }

    pub(super) fn endpoint_mut(&mut self, id: EndpointId) -> &mut Endpoint {
        &mut self.endpoints[id.index()]
    }

    /// The endpoints that contribute to a packet; for one that goes up and down, on the way up.
    pub(super) fn inputs(&self, flow: Flow) -> EndpointSet<W> {
        match flow {
            Flow::UpDown => self.cold().children,
            Flow::Gather(root) => self.cold().all.without(root),
            Flow::Scatter(root) => EndpointSet::only(root),
        }
    }

    pub(super) fn outputs(&self, flow: Flow) -> EndpointSet<W> {
        match flow {
            Flow::UpDown => self.cold().children,
            Flow::Gather(root) => EndpointSet::only(root),
            Flow::Scatter(root) => self.cold().all.without(root),
        }
    }

    /// Their acknowledgements decide about the ACK to `sender`.
    pub(super) fn deciders(&self, sender: EndpointId, flow: Flow) -> EndpointSet<W> {
        match flow {
            Flow::UpDown if !self.is_parent(sender) => EndpointSet::only(sender),
            flow => self.outputs(flow),
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.base < self.calls.end().min(self.limit)
    }

    /// A packet was finished, or the first one was started.
    pub(super) fn progress(&mut self, now: Nanos) {
        self.since = now;
        self.stall_at = now + self.cold().stall_timeout;
    }
}

#[inline]
pub(super) fn emit<const W: usize>(out: &mut Effects<W>, effect: Effect<W>) {
    let full = out.try_push(effect).is_err();
    debug_assert!(!full, "the caller has checked the capacity");
}
