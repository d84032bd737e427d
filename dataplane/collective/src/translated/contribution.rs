//! Handling of packets from an endpoint: contributions, control messages and results.

use super::bridge::{Location, wire};
use super::emission::Readiness;
use super::endpoint::Receiving;
use super::feedback::AT_ONCE;
use super::machine::{Translated, emit};
use super::pipe::Pipe;
use super::silence::Silence;
use super::slot::{Phase, Slots};
use super::{CallId, Effect, Effects, EndpointId, EndpointKind, EndpointSet, PacketShape, Refusal};
use crate::calls::{Flow, NO_SHAPE, Role, roots};
use crate::prefetch::Prefetch;
use castnet_wire::{Call, Control, DropReason, NakCode, Nanos, Primitive, Psn, Syndrome, Verdict};

/// Most positions that one frame looks at in search of the end of a gap.
pub(super) const SEARCHED_MAX: u32 = 64;

/// Contributions of one host, in order: see [`Translated::nexts`].
#[derive(Debug)]
pub struct Nexts<'a, const W: usize = 1> {
    now: Nanos,
    silence: &'a mut Silence,
    slots: &'a mut Slots<W>,
    receiving: &'a mut Receiving,
    only: EndpointSet<W>,
    children: EndpointSet<W>,
    repairing: bool,
    augmented: bool,
    sq_psn: Psn,
    end: u64,
    call: &'a Call,
}

impl<const W: usize> Nexts<'_, W> {
    /// The call of their collective, with the operation and the type.
    pub fn call(&self) -> &Call {
        self.call
    }

    /// Accepts the next packet, and returns the slot to reduce its payload into. For such a packet, [`Translated::handle`] returns only
    /// an [`Effect::Aggregate`] that is not the first. `None`, with nothing changed, for any other packet.
    #[inline(always)]
    pub fn take(&mut self, psn: Psn, shape: PacketShape, ack_request: bool) -> Option<u16> {
        let Receiving {
            expected: g,
            expected_u,
            ..
        } = *self.receiving;
        if psn != wire(self.sq_psn, expected_u) || g >= self.end {
            return None;
        }
        let number = self.slots.number(Pipe::Aggregation, g);
        let slot = self.slots.at_mut(Pipe::Aggregation, g);
        let contributed = slot.contributed.or(self.only);
        if slot.contributed.is_empty()
            // In Mode-III it is answered.
            || (ack_request && self.augmented)
            || contributed == slot.contributed
            || slot.shape != shape
            || self.children.minus(contributed).is_empty()
        {
            return None;
        }
        slot.contributed = contributed;
        slot.ack_request |= ack_request;
        self.silence.heard(self.now);
        self.receiving.seen = g + 1;
        self.receiving.expected = g + 1;
        self.receiving.expected_u = expected_u + 1;
        self.receiving.moved = true;
        self.receiving.nak_sent &= !self.repairing;
        Some(number)
    }
}

impl<const W: usize> Translated<W> {
    /// Prefetches what data of `from` touches first outside of the machine.
    #[inline]
    pub fn prefetch(&self, from: EndpointId, by: &impl Prefetch) {
        by.prefetch(self.cold());
        if let Some(endpoint) = self.endpoints.get(from.index()) {
            by.prefetch(&endpoint.receiving);
        }
    }

    /// Prefetches what data of `from` touches next; [`prefetch`](Self::prefetch) comes first. Returns the slot of the next packet.
    #[inline]
    pub fn prefetch_next(&self, from: EndpointId, by: &impl Prefetch) -> Option<u16> {
        by.prefetch(&self.cold().endpoints.get(from.index())?.kind);
        let g = self.endpoints.get(from.index())?.receiving.expected;
        let call = self.calls.oldest();
        by.prefetch(&call.start);
        by.prefetch(&call.call);
        by.prefetch(self.slots.at(Pipe::Aggregation, g));
        Some(self.slots.number(Pipe::Aggregation, g))
    }

    /// The fast path of contributions: a host's next packets to slots that have contributions and stay incomplete. `None` if the next
    /// packet is another one, or if effects are pending.
    #[inline]
    pub fn nexts(&mut self, now: Nanos, from: EndpointId) -> Option<Nexts<'_, W>> {
        let EndpointKind::Rank { sq_psn, .. } = self.cold().endpoints.get(from.index())?.kind else {
            return None;
        };
        let (window_end, children) = (self.window_end(Pipe::Aggregation), self.cold().children);
        let Receiving {
            expected: g,
            seen,
            known,
            ..
        } = self.endpoints.get(from.index())?.receiving;
        let index = self.calls.find(g)?;
        let call = self.calls.get(index);
        // The last data packet ends the collective, and takes the slow path.
        let end = known.min(window_end).min(call.end() - 1);
        if g == call.start
            || seen > g
            || call.call.primitive != Primitive::AllReduce
            || !children.contains(from)
            || self.refused.contains(from)
            || self.has_more()
        {
            return None;
        }
        Some(Nexts {
            now,
            repairing: self.is_repairing(),
            augmented: self.is_augmented(),
            silence: &mut self.silence,
            receiving: &mut self.endpoints.get_mut(from.index())?.receiving,
            slots: &mut self.slots,
            only: EndpointSet::only(from),
            children,
            sq_psn,
            end,
            call: &call.call,
        })
    }

    pub(super) fn on_data(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        (shape, ack_request): (PacketShape, bool),
        out: &mut Effects<W>,
    ) {
        let Some(g) = self.admit(now, from, psn, ack_request, out) else {
            return;
        };
        let known = match self.kind(from) {
            EndpointKind::Rank { .. } => self.endpoint(from).receiving.known,
            EndpointKind::Switch => self.calls.end(),
        };
        let Some(index) = self.calls.find(g).filter(|_| g < known) else {
            return self.control_missing(from, out);
        };
        let call = self.calls.get(index);
        if g == call.start || !call.involves(from, Role::Sends, g) {
            return emit(out, Effect::Drop(DropReason::ContributionMismatch));
        }
        let (flow, part_end) = (call.flow(g), call.part_end(g));
        let pipe = self.pipe_in(flow, from);
        let is_old = g < self.psn_start(pipe);
        if is_old || self.slots.check_duplicate(pipe, g, from) {
            // It can bring a whole result to all receivers, so it must cost what the first one did.
            if !is_old && self.slots.at(pipe, g).shape != shape {
                return emit(out, Effect::Drop(DropReason::ContributionMismatch));
            }
            return self.on_repeat(from, g, ack_request, out);
        }
        let kernel = CallId(index as u16);
        let slot = self.slots.at(pipe, g);
        // The contribution in the slot has been checked against the rule.
        if slot.contributed.is_empty() || slot.shape != shape {
            let cold = self.cold();
            let expected = match cold.pmtu {
                0 if slot.contributed.is_empty() => shape,
                0 => slot.shape,
                pmtu => call.cut(g, pmtu, cold.message_packets),
            };
            if shape != expected {
                let why = Refusal::Cut {
                    packet: (g - call.start - 1) as u32,
                    found: shape,
                    expected,
                };
                return self.refuse(from, g, (call.control.sequence, why), out);
            }
        }
        let number = self.slots.number(pipe, g);
        if flow == Flow::UpDown && self.is_parent(from) {
            if !self.awaits_result(g) {
                return emit(out, Effect::Drop(DropReason::Stale));
            }
            self.slots.at_mut(pipe, g).shape = shape;
            emit(out, Effect::Store { slot: number });
            self.take_result(now, g, from);
        } else {
            self.slots.at_mut(pipe, g).shape = shape;
            let aggregated = self.slots.aggregate_data(pipe, g, from, self.inputs(flow));
            if matches!(flow, Flow::Scatter(_)) {
                emit(out, Effect::Store { slot: number });
            } else {
                let first = aggregated.first;
                emit(
                    out,
                    Effect::Aggregate {
                        slot: number,
                        from,
                        first,
                        kernel,
                    },
                );
                if aggregated.complete {
                    emit(out, Effect::Complete { slot: number, kernel });
                }
            }
            if aggregated.complete {
                self.complete(g, flow);
            }
        }
        self.silence.heard(now);
        self.record_received(from, (pipe, g), part_end, ack_request);
    }

    pub(super) fn on_control(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        control: &Control,
        ack_request: bool,
        out: &mut Effects<W>,
    ) {
        let Some(g) = self.admit(now, from, psn, ack_request, out) else {
            return;
        };
        if let Err(reason) = self.check_control(from, g, control) {
            return emit(out, Effect::Drop(reason));
        }
        if self.is_rank(from) && control.call.is_in_rank_order() && !self.cold().reproducible {
            return self.refuse(from, g, (control.sequence, Refusal::NotReproducible), out);
        }
        let index = match self.calls.find(g) {
            Some(index) => index,
            None if self.calls.is_full() => return self.refuse_early(now, from, g, out),
            None => match self.open(now, control) {
                Ok(index) => index,
                Err(reason) => return emit(out, Effect::Drop(reason)),
            },
        };
        let pipe = self.pipe_in(Flow::UpDown, from);
        if g < self.psn_start(pipe) || self.slots.check_duplicate(pipe, g, from) {
            return self.on_repeat(from, g, ack_request, out);
        }
        if self.is_parent(from) {
            if !self.awaits_result(g) {
                return emit(out, Effect::Drop(DropReason::Stale));
            }
            emit(out, Effect::Merged);
            self.calls.get_mut(index).control = *control;
            self.slots.at_mut(pipe, g).shape = NO_SHAPE;
            self.take_result(now, g, from);
        } else {
            emit(out, Effect::Merged);
            self.slots.at_mut(pipe, g).shape = NO_SHAPE;
            self.calls.get_mut(index).control.merge(control);
            let aggregated = self
                .slots
                .aggregate_data(pipe, g, from, self.inputs(Flow::UpDown));
            if aggregated.complete {
                self.complete(g, Flow::UpDown);
            }
        }
        if self.is_rank(from) {
            let end = self.calls.get(index).end();
            self.endpoint_mut(from).receiving.known = end;
        }
        let control = self.calls.get(index).control;
        if control.verdict != Verdict::Agreed {
            if self.limit > g + 1 {
                self.fail(g + 1);
            }
            // Before all control messages are received, the ranks of a conflict depend on the order of arrival.
            let is_final = match self.slots.at(pipe, g).phase {
                Phase::Filling => false,
                Phase::Partial => self.cold().parent.is_none(),
                Phase::Result => true,
            };
            if is_final {
                emit(out, Effect::Conflict { control });
            }
        }
        self.silence.heard(now);
        self.record_received(from, (pipe, g), g + 1, ack_request);
    }

    /// The position of a packet that can be handled. A finished one is acknowledged again; one too far ahead is refused.
    #[inline]
    fn admit(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        ack_request: bool,
        out: &mut Effects<W>,
    ) -> Option<u64> {
        match self.locate(from, psn) {
            Location::Done { newest } => {
                if ack_request || newest {
                    self.ack_due.insert(from);
                }
            }
            Location::Unknown if self.limit != u64::MAX => emit(out, Effect::Drop(DropReason::GroupFailed)),
            Location::Unknown => self.control_missing(from, out),
            Location::At(g) if g >= self.limit => emit(out, Effect::Drop(DropReason::GroupFailed)),
            Location::At(g) if g >= self.window_for(from, g) || self.is_behind_refused(from, g) => {
                self.refuse_early(now, from, g, out);
            }
            Location::At(g) => return Some(g),
        }
        None
    }

    fn check_control(&self, from: EndpointId, g: u64, control: &Control) -> Result<(), DropReason> {
        let sequence = match self.calls.find(g) {
            Some(index) if g == self.calls.get(index).start => self.calls.get(index).control.sequence,
            Some(_) => return Err(DropReason::ContributionMismatch),
            None if self.is_parent(from) => return Err(DropReason::Stale),
            None => self.calls.next_sequence(),
        };
        let ranks = &self.cold().endpoints[from.index()].ranks;
        // Switches with several ranks merge what they say.
        let agreed = control.verdict == Verdict::Agreed || ranks.as_slice().len() > 1;
        let member = match self.kind(from) {
            EndpointKind::Rank { rank, .. } if !self.is_parent(from) => agreed && control.rank == rank,
            _ => self.is_parent(from) || ranks.contains(control.rank),
        };
        if !member {
            Err(DropReason::NotMember)
        } else if control.sequence != sequence {
            Err(DropReason::ContributionMismatch)
        } else {
            Ok(())
        }
    }

    fn open(&mut self, now: Nanos, control: &Control) -> Result<usize, DropReason> {
        let roots = roots(&control.call, &self.cold().endpoints).ok_or(DropReason::Malformed)?;
        if !self.is_active() {
            self.progress(now);
            self.tick_at = now + self.cold().tick;
            self.silence.begin(now, self.cold.0.tick);
        }
        Ok(self.calls.push(control, roots))
    }

    /// Refuses a packet that breaks a rule of the group; a repetition would, too. A rank is reported, and its queue pair is ended once
    /// all packets before are acknowledged to it. A switch is not reported: it forwards the call on which its ranks agree, which may
    /// differ from the call known here.
    #[cold]
    fn refuse(&mut self, from: EndpointId, g: u64, (sequence, why): (u32, Refusal), out: &mut Effects<W>) {
        emit(
            out,
            Effect::Drop(match why {
                Refusal::NotReproducible => DropReason::NotReproducible,
                Refusal::Cut { .. } => DropReason::ContributionMismatch,
            }),
        );
        if !self.is_rank(from) {
            return;
        }
        if !self.blamed.contains(from) {
            self.blamed.insert(from);
            emit(out, Effect::Refused { from, sequence, why });
        }
        // A repetition brings the NAK where that takes more than this.
        let mut work = match self.is_augmented() {
            true => usize::MAX,
            false => AT_ONCE,
        };
        if !self.confirm(from, u64::MAX, &mut work) {
            self.unconfirmed.insert(from);
        }
        if self.endpoint(from).receiving.confirmed == g {
            self.acknowledge(from, Syndrome::Nak(NakCode::InvalidRequest), out);
        }
    }

    /// Ranks disagree: positions from `limit` on are not served.
    fn fail(&mut self, limit: u64) {
        self.limit = limit;
        self.refused = EndpointSet::EMPTY;
        for endpoint in self.cold().all {
            self.refresh(endpoint);
        }
    }

    fn complete(&mut self, g: u64, flow: Flow) {
        let (parent, is_augmented) = (self.cold().parent, self.is_augmented());
        let is_sum = flow == Flow::UpDown && (parent.is_some() || is_augmented);
        let pipe = match flow {
            Flow::Scatter(_) if is_augmented => Pipe::Broadcast,
            _ => Pipe::Aggregation,
        };
        self.slots.at_mut(pipe, g).phase = if is_sum { Phase::Partial } else { Phase::Result };
        match parent {
            Some(parent) if is_sum => self.ready(g, EndpointSet::only(parent)),
            // `hand_over` follows.
            None if is_sum => {}
            _ => self.ready(g, self.outputs(flow)),
        }
    }

    fn take_result(&mut self, now: Nanos, g: u64, parent: EndpointId) {
        let slot = self.slots.at_mut(self.pipe_in(Flow::UpDown, parent), g);
        slot.phase = Phase::Result;
        slot.contributed.insert(parent);
        self.answered(now, parent);
        self.ready(g, self.cold().children);
    }

    /// Marks those of `to` as pending for which `g` is next. `g` is in the window and ready for all of them.
    pub(super) fn ready(&mut self, g: u64, to: EndpointSet<W>) {
        for endpoint in to {
            let sending = &self.endpoint(endpoint).sending;
            if sending.next == g && !self.is_held(endpoint, g) && !self.rnr_waiting.contains(endpoint) {
                debug_assert_eq!(self.readiness(endpoint, g), Readiness::Ready);
                self.pending.insert(endpoint);
            }
        }
    }

    /// Moves the expected position past `g`, and requests missing packets before it. The endpoint sends all packets up to `part_end`.
    #[inline]
    fn record_received(
        &mut self,
        from: EndpointId,
        (pipe, g): (Pipe, u64),
        part_end: u64,
        ack_request: bool,
    ) {
        // For a result, the AckReq of the parent counts, too.
        self.slots.at_mut(pipe, g).ack_request |= ack_request;
        let is_rank = self.is_rank(from);
        let receiving = &self.endpoint(from).receiving;
        let (mut expected, mut count) = (receiving.expected, 0);
        if g == expected {
            let more = receiving.seen > g + 1;
            if receiving.nak_sent && !more && self.must_go_back(from) {
                // It was called back, and is here.
                self.refused.remove(from);
            }
            expected = g + 1;
            if expected == part_end {
                expected = self.calls.settle(from, Role::Sends, expected);
            }
            count = 1;
            if more {
                let (end, received) = self.received_from(from, expected);
                (expected, count) = (end, count + received);
            }
        }
        let repairing = self.is_repairing();
        let receiving = &mut self.endpoint_mut(from).receiving;
        let seen = receiving.seen;
        receiving.seen = seen.max(g + 1);
        if g > receiving.expected {
            receiving.missing_to.0 = receiving.missing_to.0.min(g);
        }
        if receiving.expected != expected {
            receiving.expected = expected;
            if is_rank {
                receiving.expected_u += count;
            }
            receiving.moved = true;
            if repairing {
                receiving.nak_sent = false;
            }
            if self.must_go_back(from) {
                self.call_back(from);
            }
            let receiving = &self.endpoint(from).receiving;
            let fills_gap = receiving.seen > g + 1;
            if self.is_augmented() && (ack_request || fills_gap) {
                self.acknowledge_received(from);
            }
            // In Mode-II a host that goes back repeats all unacknowledged packets on its own. Otherwise, each missing packet is requested.
            if is_rank && !self.is_augmented() {
                let receiving = &self.endpoint(from).receiving;
                let has_gap = receiving.expected < receiving.seen;
                if repairing && has_gap && self.requests_from(from) {
                    self.request_due.insert(from);
                }
                return;
            }
        }
        let receiving = &self.endpoint(from).receiving;
        if receiving.expected < receiving.seen {
            self.gap(from);
            if repairing && self.requests_from(from) {
                self.request_behind(from, g, seen);
            }
        }
    }

    /// Where the packets of `from` that have been received from `g` on end, and how many they are.
    pub(super) fn received_from(&self, from: EndpointId, mut g: u64) -> (u64, u64) {
        let mut count = 0;
        for call in self.calls.from(g) {
            while g < call.end() {
                if !self.has_received_of(call, g, from) {
                    return (g, count);
                }
                g = call.settle(from, Role::Sends, g + 1);
                count += 1;
            }
        }
        (g, count)
    }

    /// Something is missing before `g`, which has been received, up to `seen`.
    fn request_behind(&mut self, from: EndpointId, g: u64, seen: u64) {
        let receiving = &mut self.endpoint_mut(from).receiving;
        // A host answers requests in their order: what it was asked for before this packet is lost again.
        let is_lost_again = receiving.expected < g && g < seen && receiving.asked.0 > receiving.expected;
        receiving.again |= is_lost_again;
        if g > seen || is_lost_again {
            self.request_due.insert(from);
        }
    }

    fn gap(&mut self, from: EndpointId) {
        if self.is_repairing() && !self.endpoint(from).receiving.nak_sent {
            self.endpoint_mut(from).receiving.nak_sent = true;
            self.nak_due.insert(from);
            if self.requests_from(from) {
                self.request_due.insert(from);
            }
        }
    }

    fn control_missing(&mut self, from: EndpointId, out: &mut Effects<W>) {
        emit(out, Effect::Drop(DropReason::ControlMissing));
        self.gap(from);
    }

    /// Mode-III: true if a packet of the rank was refused, and it has not gone back to it yet.
    pub(super) fn must_go_back(&self, endpoint: EndpointId) -> bool {
        self.refused.contains(endpoint) && self.is_augmented() && self.is_rank(endpoint)
    }

    /// What comes behind a refused packet is refused, too: the rank repeats it. If it were stored, each packet before it would, when repeated,
    /// seem to have a gap behind it.
    fn is_behind_refused(&self, from: EndpointId, g: u64) -> bool {
        let receiving = &self.endpoint(from).receiving;
        self.must_go_back(from) && g > receiving.expected && g >= receiving.seen
    }

    fn refuse_early(&mut self, now: Nanos, from: EndpointId, g: u64, out: &mut Effects<W>) {
        emit(out, Effect::Drop(DropReason::EarlyContribution));
        if self.is_repairing() {
            self.refused.insert(from);
        }
        if self.must_go_back(from) {
            // Rate synchronization: the rank is faster than others (EPIC 4.4). The NAK follows when it finds room.
            self.mark_seen(now, from, out);
        } else if self.is_repairing() {
            let receiving = &mut self.endpoint_mut(from).receiving;
            receiving.seen = receiving.seen.max(g + 1);
        }
    }

    /// Requests what was refused, if there is room for it now. A rank of Mode-III stays refused until it has gone back.
    pub(super) fn call_back(&mut self, endpoint: EndpointId) {
        let receiving = &self.endpoint(endpoint).receiving;
        let goes_back = self.must_go_back(endpoint);
        // A gap before it is closed first.
        let is_told = receiving.nak_sent || receiving.expected < receiving.seen;
        if !(goes_back && is_told) && self.has_room_for(endpoint) {
            if !goes_back {
                self.refused.remove(endpoint);
            }
            self.nak_due.insert(endpoint);
            if !goes_back && self.requests_from(endpoint) {
                self.request_due.insert(endpoint);
            }
            self.endpoint_mut(endpoint).receiving.nak_sent = true;
        }
    }

    /// True if `g`, a repeated packet, is the first one behind the gap at `expected`, or if the search for that one ends now. A packet may be
    /// repeated at will, so the gap is searched once, and in steps.
    fn ends_gap(&mut self, from: EndpointId, g: u64) -> bool {
        let receiving = &self.endpoint(from).receiving;
        let (expected, begin) = (receiving.expected, receiving.expected.max(receiving.missing_to.0));
        let Some(index) = self.calls.find(begin) else {
            return false;
        };
        // A gap ends with its collective: the next control message has been received.
        let call = self.calls.get(index);
        let end = g.min(call.end());
        let (mut missing, mut left) = (begin, SEARCHED_MAX);
        let is_found = loop {
            if missing >= end || self.has_received_of(call, missing, from) {
                break true;
            }
            if left == 0 {
                break false;
            }
            left -= 1;
            missing = call.settle(from, Role::Sends, missing + 1);
        };
        self.endpoint_mut(from).receiving.missing_to.0 = missing;
        let goes_on = begin > expected && missing > begin;
        is_found && (missing >= g || goes_on)
    }

    fn on_repeat(&mut self, from: EndpointId, g: u64, ack_request: bool, out: &mut Effects<W>) {
        let repairing = self.is_repairing();
        let (is_rank, is_parent) = (self.is_rank(from), self.is_parent(from));
        let receiving = &mut self.endpoint_mut(from).receiving;
        if g < receiving.confirmed {
            if ack_request {
                self.ack_due.insert(from);
            }
            return;
        }
        if !repairing && g == receiving.confirmed {
            receiving.nak_sent = false;
        }
        let (expected, nak_sent) = (receiving.expected, receiving.nak_sent);
        let is_unconfirmed = g == receiving.confirmed;
        if repairing && is_rank && nak_sent && g > expected && self.ends_gap(from, g) {
            // The host has gone back, but the missing packet was lost again.
            self.nak_due.insert(from);
            if self.requests_from(from) {
                self.endpoint_mut(from).receiving.again = true;
                self.request_due.insert(from);
            }
        }
        if self.is_augmented() {
            // It is acknowledged, and the switch repeats what became of it. A requester that repeats from its oldest packet on knows of none
            // behind it, and the one with AckReq may be lost each time.
            if (ack_request || is_unconfirmed) && g < expected {
                self.acknowledge_received(from);
            }
            return;
        }
        if g < self.psn_start(Pipe::Aggregation) {
            // All have it: the ACK is a step behind.
            if ack_request {
                self.ack_due.insert(from);
            }
            return;
        }
        let Some(index) = self.calls.find(g) else { return };
        let flow = self.calls.get(index).flow(g);
        let to = match self.slots.at(Pipe::Aggregation, g).phase {
            Phase::Filling => return,
            // Every switch repeats its own contribution to its parent on its own timer.
            Phase::Partial if repairing && !is_rank => return,
            Phase::Partial => self.cold().parent.map_or(EndpointSet::EMPTY, EndpointSet::only),
            Phase::Result if flow == Flow::UpDown && !is_parent => EndpointSet::only(from),
            Phase::Result if repairing && !is_rank => return,
            // All contributors repeat their packets for the same result. One result for each would overload a slow or lossy link.
            Phase::Result
                if !repairing
                    && matches!(flow, Flow::Gather(_))
                    && self.inputs(flow).iter().next() != Some(from) =>
            {
                return;
            }
            Phase::Result => self.outputs(flow),
        };
        // With repair by the switch, a host that goes back only to fill a gap needs no answer.
        if repairing && is_rank && !ack_request {
            return;
        }
        self.slots.at_mut(Pipe::Aggregation, g).ack_request |= ack_request;
        // A host accepts none of this collective while it lacks packets of an earlier one, which it gets otherwise, and it would cost a walk over
        // all collectives in between to convert the position for each. A switch that repeats takes each packet.
        let start = self.calls.get(index).start;
        let is_next =
            |e: EndpointId| repairing && !self.is_rank(e) || self.endpoint(e).sending.acked >= start;
        let lacking = to.iter().filter(|&e| is_next(e) && self.lacks(e, g)).collect();
        self.emit_again(g, lacking, ack_request, out);
    }
}
