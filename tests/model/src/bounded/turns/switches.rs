//! The switches of a run in which several members send.

use super::{Content, host_at, position};
use crate::bounded::{Bounded, State};
use crate::fabric::{End, path_id};
use crate::message::Message;
use crate::switch::{Fault, Rule, Seen, answer, psn, syndrome};
use castnet_collective::{Effect, Effects, Event, PathId, Resend, Signal};
use castnet_wire::{DropReason, NakCode, Psn, Syndrome};

impl Bounded {
    pub(super) fn switch(&self, state: &mut State, index: usize, path: usize, message: Message) {
        let (turns, id, now) = (state.turns, path_id(path), self.setup(state).now());
        let host = host_at(self.fabric.peer(End::Switch { index, path }));
        let machine = &mut state.switches.machines[index];
        let mut packet = None;
        let event = match message {
            Message::Data(at, ack_request) => {
                packet = host.map_or_else(|| turns.packet(at), |host| Some((host, at)));
                machine.handle_position(true, packet.is_some_and(|packet| self.ends_message(packet)));
                Event::Data {
                    from: id,
                    psn: machine.group_psn(id, psn(at)),
                    ack_request,
                }
            }
            Message::Feedback(answer, at) => {
                let msn = self.messages(&turns, host, message.acknowledges());
                let (psn, msn) = machine.group_feedback(id, psn(at), msn);
                Event::Feedback {
                    from: id,
                    psn,
                    msn,
                    syndrome: syndrome(answer),
                }
            }
            Message::Source(grant, next, epoch) => Event::Signal {
                from: id,
                signal: if grant { Signal::Grant } else { Signal::Request },
                psn: psn(next),
                epoch: match self.config.fault {
                    // As if each message was new.
                    Fault::AnyEpoch => epoch.max(state.switches.epochs[index]) + 1,
                    _ => epoch,
                }
                .into(),
            },
            Message::Resend(at) => Event::Signal {
                from: id,
                signal: Signal::Resend,
                psn: psn(at),
                epoch: 0,
            },
            Message::Cnp => Event::Cnp { from: id },
            Message::Bridged(..) => {
                state.broken = Some(Rule::Sense);
                return;
            }
        };
        let before = machine.source();
        let mut effects = Effects::new();
        machine.handle(now, event, &mut effects);
        let source = machine.source();
        self.note(state, index, event, before);
        if let (Event::Data { from, psn, .. }, Some(packet)) = (event, packet)
            && from == source
        {
            self.place(state, psn, packet);
        }
        state.seen = Seen {
            source_changed: before != source,
            ..Seen::default()
        };
        if let Event::Cnp { from } = event
            && from != before
        {
            self.check_cnp(state, index, from, &effects);
        }
        for effect in effects {
            self.carry_out_in_turns(state, index, (Some(event), packet), effect);
        }
        self.resend_in_turns(state, index);
    }

    /// What the oracle learns of a switch.
    fn note(&self, state: &mut State, index: usize, event: Event, before: PathId) {
        let source = state.switches.machines[index].source();
        let newest = &mut state.switches.newest[index];
        let acknowledged = &mut state.switches.acknowledged[index];
        match event {
            Event::Feedback {
                from, psn, syndrome, ..
            } if from != before => {
                let below = position(psn).map(|at| at + u8::from(syndrome == Syndrome::Ack));
                let at = position(psn).filter(|at| at < newest);
                if let (Some(_), Some(below)) = (at, below) {
                    let count = &mut acknowledged[from.index()];
                    *count = below.max(*count);
                }
            }
            _ => {}
        }
        if source != before {
            acknowledged[before.index()] = *newest;
            acknowledged[source.index()] = 0;
            // It receives nothing from now on.
            state.switches.congestion[index][source.index()] = 0;
        }
        if let Event::Data { from, psn, .. } = event
            && from == source
        {
            *newest = position(psn).map_or(*newest, |at| (at + 1).max(*newest));
        }
    }

    /// A packet has a position in the group: no other has it.
    fn place(&self, state: &mut State, psn: Psn, packet: Content) {
        match position(psn).and_then(|at| state.turns.order.get_mut(usize::from(at))) {
            Some(place) if place.is_none_or(|other| other == packet) => *place = Some(packet),
            _ => state.broken = Some(Rule::M5),
        }
    }

    fn carry_out_in_turns(
        &self,
        state: &mut State,
        index: usize,
        (event, packet): (Option<Event>, Option<Content>),
        effect: Effect,
    ) {
        let repairs = self.fabric.slots() > 0;
        match (effect, event) {
            (Effect::Keep { psn, slot }, Some(Event::Data { ack_request, .. })) => match position(psn) {
                Some(at) if usize::from(slot) < self.fabric.slots() => {
                    state.switches.rings[index][usize::from(slot)] = Message::Data(at, ack_request).code();
                    if self.config.fault == Fault::AckOfKept {
                        let to = state.switches.machines[index].source();
                        let msn = self.messages(&state.turns, None, at + 1);
                        let syndrome = Syndrome::Ack;
                        let ack = Effect::Acknowledge {
                            to,
                            psn,
                            msn,
                            syndrome,
                        };
                        self.carry_out_in_turns(state, index, (event, packet), ack);
                    }
                }
                _ => state.broken = Some(Rule::Sense),
            },
            (Effect::Replicate { psn }, Some(Event::Data { ack_request, .. })) => {
                let machine = &state.switches.machines[index];
                let paths = || (0..self.fabric.paths(index)).map(path_id);
                let to: Vec<PathId> = paths().filter(|path| machine.takes(*path, psn)).collect();
                let lacking = paths().filter(|path| self.lacks_in_turns(state, index, *path, psn));
                // Without repair, to all of them.
                if !repairs && !lacking.eq(to.iter().copied()) {
                    state.broken = Some(Rule::M3);
                }
                for to in to {
                    self.send_copy(state, (index, to), psn, ack_request);
                }
            }
            (
                Effect::Acknowledge {
                    to,
                    psn,
                    msn,
                    syndrome,
                },
                _,
            ) => {
                let of_group = psn;
                let (psn, msn) = state.switches.machines[index].member_feedback(to, psn, msn);
                let Some(at) = position(psn) else {
                    state.broken = Some(Rule::Sense);
                    return;
                };
                let end = End::Switch {
                    index,
                    path: to.index(),
                };
                let message = Message::Feedback(answer(syndrome), at);
                let below = message.acknowledges();
                let completed = match host_at(self.fabric.peer(end)) {
                    Some(host) => (0..below).filter(|at| self.ends_message((host, *at))).count() as u32,
                    None => self.messages(&state.turns, None, below),
                };
                if msn != completed {
                    state.broken = Some(Rule::Msn);
                }
                if syndrome == Syndrome::Nak(NakCode::PsnSequenceError)
                    && self.is_kept(state, index, of_group)
                {
                    state.broken = Some(Rule::Repair);
                }
                self.put(state, end, message);
            }
            (
                Effect::Signal {
                    to,
                    signal,
                    psn,
                    epoch,
                },
                _,
            ) => {
                let to = match (signal, self.config.fault) {
                    (Signal::Resend, Fault::RequestToFirst) => self.fabric.up(index),
                    _ => to.index(),
                };
                let end = End::Switch { index, path: to };
                match (position(psn), u8::try_from(epoch)) {
                    (Some(at), _) if signal == Signal::Resend => {
                        state.seen.requested = true;
                        self.put(state, end, Message::Resend(at));
                    }
                    (Some(next), Ok(epoch)) if epoch < Message::EPOCHS => {
                        state.switches.epochs[index] = epoch.max(state.switches.epochs[index]);
                        self.put(state, end, Message::Source(signal == Signal::Grant, next, epoch));
                    }
                    _ => state.broken = Some(Rule::Sense),
                }
            }
            (Effect::Compete { .. }, _) => state.seen.sources_compete = true,
            (Effect::Cnp { to }, _) => {
                let path = to.index();
                self.put(state, End::Switch { index, path }, Message::Cnp);
            }
            (Effect::Drop(DropReason::EarlyContribution), Some(Event::Data { .. })) if repairs => {
                state.seen.beyond_ring = true;
            }
            (
                Effect::Drop(DropReason::NotSource),
                Some(Event::Data {
                    from,
                    ack_request,
                    psn,
                }),
            ) if self.config.fault == Fault::TurnAtOnce => {
                let Some(packet) = packet else { return };
                self.place(state, psn, packet);
                for to in (0..self.fabric.paths(index))
                    .map(path_id)
                    .filter(|to| *to != from)
                {
                    self.send_copy(state, (index, to), psn, ack_request);
                }
            }
            (Effect::Absorb | Effect::Drop(DropReason::NotSource | DropReason::FeedbackFromSource), _) => {}
            _ => state.broken = Some(Rule::Sense),
        }
    }

    /// Whether a path has not acknowledged a packet, and must have it.
    fn lacks_in_turns(&self, state: &State, index: usize, path: PathId, psn: Psn) -> bool {
        let source = state.switches.machines[index].source();
        path != source && Some(state.switches.acknowledged[index][path.index()]) <= position(psn)
    }

    /// Whether the ring of a switch, which all packets fit into, has a packet.
    fn is_kept(&self, state: &State, index: usize, psn: Psn) -> bool {
        let codes = state.switches.rings[index].into_iter().filter(|code| *code != 0);
        let kept =
            |code| matches!(Message::from_code(code), Message::Data(at, _) if Some(at) == position(psn));
        self.fabric.slots() >= self.total().into() && codes.into_iter().any(kept)
    }

    /// Sends what a machine wants from its ring, and forgets what all paths have acknowledged.
    fn resend_in_turns(&self, state: &mut State, index: usize) -> bool {
        let mut sends = false;
        while let Some(resend) = state.switches.machines[index].poll_resend() {
            let Resend {
                path,
                psn,
                slot,
                ack_request,
            } = resend;
            let code = state.switches.rings[index].get(usize::from(slot));
            let kept = code
                .filter(|code| **code != 0)
                .map(|code| Message::from_code(*code));
            let Some(Message::Data(at, asks)) =
                kept.filter(|_| path != state.switches.machines[index].source())
            else {
                state.broken = Some(Rule::Sense);
                return sends;
            };
            if position(psn) != Some(at) {
                state.broken = Some(Rule::Sense);
            }
            let paths = (0..self.fabric.paths(index)).map(path_id);
            let all = self.config.fault == Fault::ResendToAll;
            let source = state.switches.machines[index].source();
            for to in paths.filter(|to| *to == path || all && *to != source) {
                self.send_copy(state, (index, to), psn, asks || ack_request);
            }
            (state.seen.resent, sends) = (true, true);
        }
        for slot in 0..self.fabric.slots() {
            let code = state.switches.rings[index][slot];
            if code != 0
                && let Message::Data(at, _) = Message::from_code(code)
            {
                let mut paths = (0..self.fabric.paths(index)).map(path_id);
                if !paths.any(|path| self.lacks_in_turns(state, index, path, psn(at))) {
                    state.switches.rings[index][slot] = 0;
                }
            }
        }
        sends
    }

    /// One tick of a switch. Returns true if it sends something.
    pub(in crate::bounded) fn tick_in_turns(&self, state: &mut State, index: usize) -> bool {
        if self.config.fault == Fault::NoTick {
            return false;
        }
        let mut effects = Effects::new();
        let now = self.setup(state).now();
        state.switches.machines[index].handle_timeout(now, &mut effects);
        let mut sends = !effects.is_empty();
        for effect in effects {
            self.carry_out_in_turns(state, index, (None, None), effect);
        }
        if self.resend_in_turns(state, index) {
            (state.seen.resent_to_silent, sends) = (true, true);
        }
        sends
    }

    /// M4, as with one source.
    fn check_cnp(&self, state: &mut State, index: usize, from: PathId, effects: &Effects) {
        let (most, overtakes) = state.switches.note_cnp(state.window, index, from.index());
        let passes = matches!(effects.as_slice(), [Effect::Cnp { .. }]);
        if most != passes {
            state.broken = Some(Rule::M4);
        }
        (state.seen.cnp_absorbed, state.seen.cnp_overtakes) = (!most, overtakes);
    }

    fn send_copy(&self, state: &mut State, (index, to): (usize, PathId), psn: Psn, asks: bool) {
        if !self.lacks_in_turns(state, index, to, psn) && self.config.fault != Fault::TurnAtOnce {
            state.broken = Some(Rule::M3);
        }
        let end = End::Switch {
            index,
            path: to.index(),
        };
        let own = match self.config.fault {
            Fault::NoBridging => psn,
            _ => state.switches.machines[index].member_psn(to, psn),
        };
        match (position(psn), position(own), host_at(self.fabric.peer(end))) {
            (Some(at), Some(own), Some(_)) => self.put(state, end, Message::Bridged(own, at, asks)),
            (Some(at), _, None) => self.put(state, end, Message::Data(at, asks)),
            _ => state.broken = Some(Rule::Sense),
        }
    }
}
