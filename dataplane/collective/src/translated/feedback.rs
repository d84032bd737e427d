//! ReceiveAck and SendAck: feedback from the receivers of a packet, and feedback to its senders.

use super::bridge::wire;
use super::contribution::SEARCHED_MAX;
use super::endpoint::Receiving;
use super::machine::{Translated, emit};
use super::{Effect, Effects, EndpointId, EndpointKind, EndpointSet};
use crate::calls::{Collective, Flow, Role};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};

/// Parts of collectives that one step confirms to senders: some tenths of a millisecond.
const STEP: usize = 4096;

/// The same while a frame is handled, with two more for each sender: a batch can have many such frames. Also the most senders of a frame.
pub(super) const AT_ONCE: usize = 64;

/// Collectives that an acknowledgement looks at to find whom it concerns.
const LOOKS: usize = 256;

/// 10 us.
const SHORTEST_WAIT: RnrTimer = RnrTimer::new(1);

impl<const W: usize> Translated<W> {
    pub(super) fn receive_ack(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        syndrome: Syndrome,
        out: &mut Effects<W>,
    ) {
        match syndrome {
            Syndrome::Nak(code) if code.is_fatal() => match self.is_outstanding(from, psn) {
                Some(false) => emit(out, Effect::Drop(DropReason::AckAhead)),
                Some(true) if !self.failed.contains(from) => {
                    self.failed.insert(from);
                    emit(out, Effect::MemberFailed { from, syndrome });
                }
                _ => {}
            },
            _ => match self.kind(from) {
                EndpointKind::Rank { .. } => self.host_feedback(now, from, psn, syndrome, out),
                EndpointKind::Switch => self.switch_feedback(now, from, psn, syndrome, out),
            },
        }
    }

    /// Whether an endpoint was sent a packet of this PSN. `None`: it has acknowledged it.
    fn is_outstanding(&self, from: EndpointId, psn: Psn) -> Option<bool> {
        let sending = &self.endpoint(from).sending;
        let (acked, sent) = (sending.acked, sending.sent);
        let g = match self.kind(from) {
            EndpointKind::Rank { rq_psn, .. } => {
                let ahead = u64::try_from(psn.diff(wire(rq_psn, sending.acked_d))).ok()?;
                self.calls.forward(from, Role::Receives, acked, ahead, sent)
            }
            EndpointKind::Switch => {
                let near = if self.is_augmented() { acked } else { self.base };
                Some(self.unfold(near, psn).filter(|g| *g >= acked)?)
            }
        };
        Some(g.is_some_and(|g| g < sent))
    }

    /// An ACK of `d` acknowledges all up to it, a NAK all before it.
    fn host_feedback(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        syndrome: Syndrome,
        out: &mut Effects<W>,
    ) {
        let EndpointKind::Rank { rq_psn, is_host, .. } = self.kind(from) else {
            return;
        };
        let sending = &self.endpoint(from).sending;
        let refused = syndrome != Syndrome::Ack;
        let ahead = psn.diff(wire(rq_psn, sending.acked_d)) + i32::from(!refused);
        if ahead < 0 || (ahead == 0 && !refused) {
            // A parent of another mode keeps this switch waiting, as a host.
            self.endpoint_mut(from).sending.moved |= ahead == 0 && self.is_parent(from);
            return;
        }
        let count = ahead as u64;
        let sent = self.calls.settle(from, Role::Receives, sending.sent);
        let to = self
            .calls
            .forward(from, Role::Receives, sending.acked, count, sent);
        let Some(to) = to.filter(|&to| to <= sent) else {
            return emit(out, Effect::Drop(DropReason::AckAhead));
        };
        if count > 0 {
            self.endpoint_mut(from).sending.acked_d += count;
            self.acknowledged(now, from, to);
        }
        if !refused {
            return;
        }
        if to == sent {
            // The host refuses a packet that was not sent to it.
            return;
        }
        if self.is_repairing() {
            let is_parent = self.is_parent(from);
            let is_rnr = matches!(syndrome, Syndrome::RnrNak(_));
            let sending = &mut self.endpoint_mut(from).sending;
            debug_assert_eq!(sending.acked, to);
            // A switch of another mode names one PSN for several gaps, or again once it takes the packet.
            if is_host && !is_rnr && core::mem::replace(&mut sending.nak_served, true) {
                return;
            }
            sending.go_back();
            sending.probing = false;
            // A parent of Mode-II acknowledges too late for that.
            if !is_parent {
                sending.pace();
            }
            if let Syndrome::RnrNak(timer) = syndrome {
                let until = now + timer.wait();
                sending.rnr_until = until;
                self.rnr_at = match self.rnr_waiting.is_empty() {
                    true => until,
                    false => self.rnr_at.min(until),
                };
                self.rnr_waiting.insert(from);
            }
            self.refresh(from);
        } else {
            self.refused_by(from, syndrome);
        }
    }

    /// A host that keeps what is behind a gap has no use for all that follow a lost packet: it gets that one alone.
    pub(super) fn receive_request(&mut self, from: EndpointId, psn: Psn, out: &mut Effects<W>) {
        let EndpointKind::Rank {
            rq_psn,
            is_host: true,
            ..
        } = self.kind(from)
        else {
            return;
        };
        let sending = &self.endpoint(from).sending;
        let (acked, sent) = (sending.acked, sending.sent);
        let Ok(ahead) = u64::try_from(psn.diff(wire(rq_psn, sending.acked_d))) else {
            return;
        };
        let asked = self.calls.forward(from, Role::Receives, acked, ahead, sent);
        let Some(g) = asked.filter(|g| *g < sent) else {
            return emit(out, Effect::Drop(DropReason::AckAhead));
        };
        if !self.is_repairing() {
            return;
        }
        let sending = &mut self.endpoint_mut(from).sending;
        (sending.keeps, sending.probing, sending.pacing) = (true, false, false);
        self.refresh(from);
        if self.lacks(from, g) {
            self.emit_again(g, only(from), true, out);
        }
    }

    /// An ACK of `g` acknowledges all up to it. A NAK requests `g` and acknowledges nothing.
    fn switch_feedback(
        &mut self,
        now: Nanos,
        from: EndpointId,
        psn: Psn,
        syndrome: Syndrome,
        out: &mut Effects<W>,
    ) {
        let sending = &self.endpoint(from).sending;
        let (acked, sent) = (sending.acked, sending.sent);
        let near = if self.is_augmented() { acked } else { self.base };
        let Some(g) = self.unfold(near, psn) else {
            return;
        };
        if g < acked {
            return;
        }
        if syndrome == Syndrome::Ack {
            if g + 1 > self.calls.settle(from, Role::Receives, sent) {
                return emit(out, Effect::Drop(DropReason::AckAhead));
            }
            let to = self.acknowledged_below(from, g + 1);
            if to > acked {
                self.acknowledged(now, from, to);
            }
        } else if g >= sent {
            emit(out, Effect::Drop(DropReason::AckAhead));
        } else if !self.is_repairing() {
            if g == acked {
                self.refused_by(from, syndrome);
            }
        } else if self.lacks(from, g)
            && let Some(index) = self.calls.find(g)
        {
            let call = self.calls.get(index);
            if call.start == g {
                // Without it, the switch has refused all packets behind it.
                self.endpoint_mut(from).sending.next = g;
                self.refresh(from);
            } else if call.involves(from, Role::Receives, g) {
                self.emit_again(g, only(from), false, out);
            } else {
                // That switch sends this packet itself.
                emit(out, Effect::Drop(DropReason::AckAhead));
            }
        }
    }

    /// The position below which all is acknowledged, once a switch has acknowledged all below `target`. A result acknowledges a
    /// contribution to the parent, so further positions with a result count, too; in Mode-II it alone does.
    fn acknowledged_below(&self, from: EndpointId, target: u64) -> u64 {
        let is_parent = self.is_parent(from);
        let mut acked = self.endpoint(from).sending.acked;
        for call in self.calls.from(acked) {
            if acked >= self.limit {
                break;
            }
            while acked < call.end().min(self.limit) {
                let by_result =
                    is_parent && call.flow(acked) == Flow::UpDown && !(self.is_augmented() && acked < target);
                let upto = match by_result {
                    true if self.has_received_of(call, acked, from) => acked + 1,
                    true => acked,
                    false => call.part_end(acked).min(target),
                };
                if upto <= acked {
                    return acked;
                }
                acked = call.settle(from, Role::Receives, upto);
            }
        }
        acked
    }

    /// A result from the parent acknowledges contributions as far as there are results.
    pub(super) fn answered(&mut self, now: Nanos, parent: EndpointId) {
        let before = self.endpoint(parent).sending.acked;
        let acked = self.acknowledged_below(parent, before);
        if acked > before {
            if self.is_rank(parent) {
                let count = self.calls.count(parent, Role::Receives, before, acked);
                self.endpoint_mut(parent).sending.acked_d += count;
            }
            self.moved(parent, acked);
            if self.is_augmented() {
                self.advance(now);
            }
        }
    }

    fn moved(&mut self, from: EndpointId, acked: u64) {
        let is_probed = self.is_repairing() && self.is_rank(from) && !self.is_parent(from);
        let sending = &mut self.endpoint_mut(from).sending;
        sending.acked = acked;
        sending.moved = true;
        sending.refusal = None;
        sending.nak_served = false;
        // The answer to a probe acknowledges all that the host had, and the probe.
        if sending.probing && is_probed && acked < sending.next {
            sending.pace();
        }
        if (sending.probing && is_probed) || sending.next < acked {
            sending.go_back();
        }
        sending.probing = false;
        self.refresh(from);
    }

    fn acknowledged(&mut self, now: Nanos, from: EndpointId, acked: u64) {
        let before = self.endpoint(from).sending.acked;
        self.silence.heard(now);
        self.moved(from, acked);
        if self.is_augmented() {
            return self.advance(now);
        }
        let senders = self.confirm_senders(from, before, acked);
        self.advance(now);
        self.reflect(senders);
    }

    /// Confirms packets of the senders for which the acknowledgement of `from`, from `before` to `acked`, is decisive. It can be so for a whole
    /// window of each of them: what is too much at once is left for [`Translated::catch_up`]. Returns those of whom something was confirmed.
    fn confirm_senders(&mut self, from: EndpointId, before: u64, acked: u64) -> EndpointSet<W> {
        let (mut g, mut senders, mut looks) = (before, EndpointSet::EMPTY, LOOKS);
        for call in self.calls.from(before) {
            if g >= acked {
                break;
            }
            if looks == 0 {
                // Whom the rest concerns is found out when it is caught up with.
                senders = self.cold().all;
                break;
            }
            looks -= 1;
            while g < acked.min(call.end()) {
                senders = senders.or(self.decided_by(from, call.flow(g)));
                g = call.part_end(g);
            }
        }
        let at_once = match self.is_behind() {
            true => 0,
            false => AT_ONCE,
        };
        let mut work = AT_ONCE + 2 * self.endpoints.len().min(AT_ONCE);
        let now: EndpointSet<W> = senders.iter().take(at_once).collect();
        for sender in now {
            if self.confirm(sender, u64::MAX, &mut work) {
                senders.remove(sender);
            }
        }
        self.unconfirmed = self.unconfirmed.or(senders);
        debug_assert!(
            self.cold()
                .all
                .iter()
                .all(|sender| self.unconfirmed.contains(sender) || !self.can_confirm(sender)),
            "an acknowledgement concerns those whose packets it decides"
        );
        now
    }

    /// The senders of packets that `from` acknowledges or refuses: others than those have them from another sender.
    fn decided_by(&self, from: EndpointId, flow: Flow) -> EndpointSet<W> {
        match flow {
            Flow::UpDown => only(from).or(self.cold().parent.map_or(EndpointSet::EMPTY, only)),
            Flow::Gather(_) => self.cold().all,
            Flow::Scatter(root) => only(root),
        }
    }

    /// Up to where packets of `sender` from `g` on can be confirmed, within one part of the collective, and the work to find that out.
    fn decided(&self, call: &Collective, sender: EndpointId, g: u64) -> (u64, usize) {
        let flow = call.flow(g);
        let (decided, work) = if !self.is_augmented() {
            let deciders = self.deciders(sender, flow);
            let all = matches!(flow, Flow::Scatter(_)) || (flow == Flow::UpDown && self.is_parent(sender));
            let acked = deciders.iter().map(|e| self.endpoint(e).sending.acked).min();
            (
                acked.unwrap_or(u64::MAX),
                if all { 1 + self.endpoints.len() / 8 } else { 1 },
            )
        } else if self.is_rank(sender) {
            (u64::MAX, 1)
        } else {
            // An ACK lets a switch send further packets, for which there must be slots.
            (self.psn_start(self.pipe_in(flow, sender)) + self.hop_window(), 1)
        };
        (decided.min(call.part_end(g)), work)
    }

    fn can_confirm(&self, sender: EndpointId) -> bool {
        let receiving = &self.endpoint(sender).receiving;
        let g = receiving.confirmed;
        let call = self.calls.find(g).map(|index| self.calls.get(index));
        g < receiving.expected.min(self.limit) && call.is_some_and(|call| self.decided(call, sender, g).0 > g)
    }

    /// Confirms packets of `sender` below `end`: in Mode-II as far as its deciders have acknowledged them, and an ACK becomes due on progress;
    /// in Mode-III as far as they have been received. Each part of a collective takes from `work`. False if there may be more when that is
    /// used up.
    pub(super) fn confirm(&mut self, sender: EndpointId, end: u64, work: &mut usize) -> bool {
        let (is_rank, is_parent) = (self.is_rank(sender), self.is_parent(sender));
        let Receiving {
            expected,
            confirmed: before,
            mut confirmed_u,
            mut messages,
            ..
        } = self.endpoint(sender).receiving;
        let bound = expected.min(self.limit).min(end);
        let (mut g, mut news, mut is_all) = (before, false, true);
        'all: for call in self.calls.from(before) {
            if g >= bound {
                break;
            }
            while g < bound.min(call.end()) {
                if *work == 0 {
                    is_all = false;
                    break 'all;
                }
                let (decided, spent) = self.decided(call, sender, g);
                *work = work.saturating_sub(spent);
                let upto = decided.min(bound);
                if upto <= g {
                    break 'all;
                }
                // A switch below needs no ACK: the result acknowledges its contribution.
                news |= is_rank || is_parent || call.flow(g) != Flow::UpDown;
                if is_rank {
                    confirmed_u += upto - g;
                    messages += call.messages(g, upto, self.cold().message_packets);
                }
                g = call.settle(sender, Role::Sends, upto);
            }
        }
        if g > before {
            let (is_repairing, is_augmented) = (self.is_repairing(), self.is_augmented());
            let receiving = &mut self.endpoint_mut(sender).receiving;
            (receiving.confirmed, receiving.confirmed_u) = (g, confirmed_u);
            receiving.messages = messages & 0xFF_FFFF;
            receiving.nak_sent &= is_repairing;
            if news && !is_augmented {
                self.ack_due.insert(sender);
            }
        }
        is_all
    }

    /// Mode-III: confirms what has been received. It is done before an ACK, not for each packet.
    pub(super) fn confirm_received(&mut self, sender: EndpointId) {
        if self.is_augmented() {
            self.confirm_all(sender, u64::MAX);
        }
    }

    /// Confirms all packets of one sender below `end` that can be confirmed.
    pub(super) fn confirm_all(&mut self, sender: EndpointId, end: u64) {
        let mut work = usize::MAX;
        self.confirm(sender, end, &mut work);
    }

    /// Removes collectives of which nothing is needed any more. No position of a removed one can be converted, so all is confirmed before.
    pub(super) fn retire(&mut self, work: &mut usize) {
        self.is_retiring = !self.unconfirmed.is_empty();
        if self.is_augmented() {
            while let Some(end) = self
                .calls
                .oldest_end()
                .filter(|end| *end <= self.base && *end < self.limit)
            {
                if *work == 0 {
                    self.is_retiring = true;
                    return;
                }
                *work = work.saturating_sub(self.endpoints.len());
                for endpoint in self.cold().all {
                    self.confirm_all(endpoint, end);
                }
                self.calls.retire(end, self.limit);
            }
        } else {
            let confirmed = |sender| self.endpoint(sender).receiving.confirmed;
            let needed = self.unconfirmed.iter().map(confirmed).min();
            let end = needed.map_or(self.base, |needed| needed.min(self.base));
            self.calls.retire(end, self.limit);
        }
    }

    /// Whether there is something to [catch up](Self::catch_up) with.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_retiring || !self.unconfirmed.is_empty()
    }

    /// Work that was too much for the frame that has caused it: some tenths of a millisecond. Call it, and then
    /// [`poll_emit`](Self::poll_emit) until that returns false, until it returns false. Between steps, frames can be handled.
    pub fn catch_up(&mut self) -> bool {
        if !self.is_behind() {
            return false;
        }
        // A share for each, so that none waits for others.
        let senders = self.unconfirmed;
        let share = STEP / senders.iter().count().max(1);
        for sender in senders {
            let mut work = share.max(1);
            if self.confirm(sender, u64::MAX, &mut work) {
                self.unconfirmed.remove(sender);
            }
        }
        let mut work = STEP;
        self.retire(&mut work);
        for endpoint in self.refused {
            self.call_back(endpoint);
        }
        self.reflect(senders);
        true
    }

    /// Mode-III: the ACK of what has been received is due. A switch may get the rest later.
    pub(super) fn acknowledge_received(&mut self, sender: EndpointId) {
        self.confirm_received(sender);
        self.ack_due.insert(sender);
        let receiving = &self.endpoint(sender).receiving;
        if receiving.confirmed < receiving.expected && !self.is_rank(sender) {
            self.withheld.insert(sender);
        }
    }

    /// Mode-III: acknowledges what could not be acknowledged before the windows moved, at most once for each quarter of the ring.
    pub(super) fn confirm_withheld(&mut self) {
        let quarter = (self.hop_window() / 2).max(1);
        for sender in self.withheld {
            let before = self.endpoint(sender).receiving.confirmed;
            self.confirm_received(sender);
            let receiving = &self.endpoint(sender).receiving;
            let all = receiving.confirmed >= receiving.expected;
            if all || before / quarter != receiving.confirmed / quarter {
                self.ack_due.insert(sender);
            }
            if all {
                self.withheld.remove(sender);
            }
        }
    }

    /// The strongest refusal of the packet after the last confirmed one. All deciders have everything before it (M2).
    fn refusal(&self, sender: EndpointId) -> Option<Syndrome> {
        let receiving = &self.endpoint(sender).receiving;
        let g = receiving.confirmed;
        if g >= receiving.expected {
            return None;
        }
        let flow = self.calls.get(self.calls.find(g)?).flow(g);
        if flow == Flow::UpDown && self.is_parent(sender) {
            return None;
        }
        self.deciders(sender, flow)
            .iter()
            .map(|e| &self.endpoint(e).sending)
            .filter(|s| s.acked == g)
            .filter_map(|s| s.refusal)
            .max_by_key(|s| match s {
                Syndrome::RnrNak(timer) => timer.wait(),
                _ => Nanos::ZERO,
            })
    }

    /// `from` refuses the packet after the last one that it has acknowledged.
    fn refused_by(&mut self, from: EndpointId, syndrome: Syndrome) {
        let sending = &mut self.endpoint_mut(from).sending;
        sending.refusal = Some(syndrome);
        let g = sending.acked;
        if let Some(index) = self.calls.find(g) {
            let flow = self.calls.get(index).flow(g);
            self.reflect(self.decided_by(from, flow));
        }
    }

    /// Reflects refusals, once, to those of the senders that can repeat the refused packet.
    fn reflect(&mut self, senders: EndpointSet<W>) {
        if self.is_repairing() {
            return;
        }
        for sender in senders {
            if !self.endpoint(sender).receiving.nak_sent && self.refusal(sender).is_some() {
                self.endpoint_mut(sender).receiving.nak_sent = true;
                self.nak_due.insert(sender);
            }
        }
    }

    /// SendAck: the ACK and the NAK that are due. A host gets an ACK before a NAK, because a NAK alone is no progress.
    pub(super) fn send_ack(&mut self, to: EndpointId, out: &mut Effects<W>) {
        let nak = self.nak_due.contains(to);
        let ack = self.ack_due.contains(to) || (nak && self.is_rank(to));
        self.ack_due.remove(to);
        self.nak_due.remove(to);
        let request = self.request_due.contains(to);
        self.request_due.remove(to);
        self.confirm_received(to);
        let receiving = &self.endpoint(to).receiving;
        if ack && (self.is_rank(to) || receiving.confirmed > 0) {
            self.acknowledge(to, Syndrome::Ack, out);
        }
        if nak {
            let syndrome = match self.is_repairing() {
                // Every RNIC answers it by all packets from there on, one that repeats single packets after a loss as well.
                true if self.is_called_back(to) => Some(Syndrome::RnrNak(SHORTEST_WAIT)),
                true if self.is_rank(to) && self.silence.is_long() => Some(Syndrome::RnrNak(SHORTEST_WAIT)),
                true => Some(Syndrome::Nak(NakCode::PsnSequenceError)),
                false => self.refusal(to),
            };
            if let Some(syndrome) = syndrome {
                self.acknowledge(to, syndrome, out);
            }
        }
        if request && let Some(psn) = self.next_request(to) {
            emit(out, Effect::Request { to, psn });
        }
    }

    /// The next packet to ask a rank for, as `u`: the expected one, then each that is missing before the newest one, once.
    fn next_request(&mut self, from: EndpointId) -> Option<Psn> {
        let again = core::mem::take(&mut self.endpoint_mut(from).receiving.again);
        let Receiving {
            expected,
            expected_u,
            seen,
            asked,
            ..
        } = self.endpoint(from).receiving;
        let again = again && asked.0 > expected;
        // What has no slot yet would be refused, and a rank may leave as many gaps as it likes.
        let end = self
            .window_for(from, expected)
            .min(expected + u64::from(SEARCHED_MAX))
            .min(seen);
        let g = match again {
            true => expected,
            false => self.received_from(from, asked.0.max(expected)).0,
        };
        if g != expected && g >= end {
            return None;
        }
        if expected < end {
            let next = match again {
                true => asked.0,
                false => {
                    let behind = self.calls.settle(from, Role::Sends, g + 1);
                    self.received_from(from, behind).0
                }
            };
            self.endpoint_mut(from).receiving.asked.0 = next;
            if next < end {
                self.request_due.insert(from);
            }
        }
        let ahead = self.calls.count(from, Role::Sends, expected, g);
        Some(self.wire_u(from, expected_u + ahead))
    }

    /// True if the NAK to an endpoint is for what was refused, and not for a gap.
    fn is_called_back(&self, to: EndpointId) -> bool {
        let receiving = &self.endpoint(to).receiving;
        self.must_go_back(to) && receiving.expected >= receiving.seen
    }

    /// An ACK of the last confirmed packet of `to`, or a NAK of the next one.
    pub(super) fn acknowledge(&self, to: EndpointId, syndrome: Syndrome, out: &mut Effects<W>) {
        let receiving = &self.endpoint(to).receiving;
        let is_rank = self.is_rank(to);
        let unconfirmed = match is_rank {
            true => receiving.confirmed_u,
            false if syndrome != Syndrome::Ack && self.is_repairing() => receiving.expected,
            false => receiving.confirmed,
        };
        let psn = self.wire_u(to, unconfirmed);
        emit(
            out,
            Effect::Acknowledge {
                to,
                psn: if syndrome == Syndrome::Ack {
                    psn.prev()
                } else {
                    psn
                },
                msn: receiving.messages,
                syndrome,
            },
        );
    }

    /// SendAck for all endpoints, while `out` has more free capacity than `reserve`.
    pub(super) fn send_acks(&mut self, out: &mut Effects<W>, reserve: usize) {
        for endpoint in self.answers_due() {
            if out.remaining_capacity() < reserve + 3 {
                return;
            }
            self.send_ack(endpoint, out);
        }
    }
}

fn only<const W: usize>(endpoint: EndpointId) -> super::EndpointSet<W> {
    super::EndpointSet::only(endpoint)
}
