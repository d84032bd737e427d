//! One message into one machine: what the machine sends, whether the contract allows it, and which notable events
//! occurred.

use crate::fabric::{Fabric, PATHS, SLOTS_MAX, START, SWITCHES, path_id};
use crate::message::{Answer, Message};
use castnet_collective::translated::CNP_WINDOW;
use castnet_collective::{Effect, Effects, Event, Multicast, PathId, Resend, Signal};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};

/// A rule that a step violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An ACK was sent up before every path, or every receiver, had acknowledged it.
    M1,
    /// A NAK was sent up before every path, or every receiver, had everything before it.
    M2,
    /// A packet was sent to a path that had acknowledged it, or not to one that had not.
    M3,
    /// The source was sent a sequence NAK of a packet that the switch next to it had in its ring.
    Repair,
    /// A CNP was sent to the source, but another path is as congested, or was absorbed although none is.
    M4,
    /// Two packets have the same position in the group, or a host has accepted one out of order.
    M5,
    /// The MSN of an ACK or NAK is not the number of messages completed there.
    Msn,
    /// Valid feedback was dropped, a message is not expected where it arrived, or there are more messages than the
    /// model has capacity for.
    Sense,
}

/// A deliberate fault that the checker must find. The machine is unchanged: the fault changes its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    Nothing,
    /// Each NAK is forwarded at once.
    NakAtOnce,
    /// A NAK is sent only together with an aggregated ACK, as the paper literally says.
    NakOnlyWithAck,
    /// An ACK of any path is forwarded at once.
    AckOfAny,
    /// Retransmissions are sent on all paths.
    NoFilter,
    /// A retransmission that all paths have is absorbed, even if the source requests an ACK.
    NoAnswer,
    /// A switch that restarts assumes that all paths have acknowledged everything it had seen.
    JoinAsIfDone,
    /// A switch that evicts a path assumes that all others have acknowledged everything it had seen.
    EvictAsIfDone,
    /// A switch acknowledges what it keeps in its ring.
    AckOfKept,
    /// A packet from the ring is sent on all paths.
    ResendToAll,
    /// All CNPs are forwarded.
    AllCnps,
    /// Old CNPs count as much as new ones.
    NoAgeing,
    /// The packets of a member are sent at once, whoever is the source: the paper identifies it by the ingress path.
    TurnAtOnce,
    /// Hosts get the PSNs of the group.
    NoBridging,
    /// Requests and grants of any epoch are taken for new ones.
    AnyEpoch,
    /// A switch does not look for paths that are silent.
    NoTick,
    /// A switch requests what it lacks from the first source, also when another member is the source.
    RequestToFirst,
}

/// Notable events of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A NAK was held back because another path is slower.
    pub nak_held: bool,
    /// A held NAK was sent up, after the ACK that it waited for.
    pub nak_released: bool,
    /// A NAK was absorbed because the switch had already sent it.
    pub nak_repeated: bool,
    /// A packet was sent on some of the paths to receivers only.
    pub filtered: bool,
    /// A retransmission that all paths had was answered by the switch.
    pub answered: bool,
    /// A retransmission that all paths had was answered by a switch that is not next to the source.
    pub answered_below: bool,
    /// An RNR NAK was sent up while another path had a gap at the same PSN.
    pub rnr_merged: bool,
    /// A NAK that ends the connection was sent up again.
    pub fatal_repeated: bool,
    /// The source timed out.
    pub timed_out: bool,
    /// A CNP was absorbed.
    pub cnp_absorbed: bool,
    /// A CNP passed although another path had sent some.
    pub cnp_overtakes: bool,
    /// The source of a switch has changed.
    pub source_changed: bool,
    /// A switch reported that two members want to send.
    pub sources_compete: bool,
    /// A path was evicted, and another one lacked a packet.
    pub evicted: bool,
    /// A packet was sent from a ring.
    pub resent: bool,
    /// A packet was sent from a ring because a path was silent.
    pub resent_to_silent: bool,
    /// A switch asked the switch above for a packet.
    pub requested: bool,
    /// A switch kept a packet behind a gap, and did not send it.
    pub kept_behind_gap: bool,
    /// A packet was sent that is beyond the ring, or dropped because it is.
    pub beyond_ring: bool,
}

/// Count of the oracle, by switch and path: the number of packets that feedback has acknowledged.
pub type Acknowledged = [[u8; PATHS]; SWITCHES];

/// The switches, and the oracle's knowledge of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Switches {
    /// Machines of the data plane.
    pub machines: Vec<Multicast>,
    /// Count of the oracle.
    pub acknowledged: Acknowledged,
    /// By switch, one past the newest packet that it has seen.
    pub newest: [u8; SWITCHES],
    /// By switch, whether it has lost its state before.
    pub restarted: [bool; SWITCHES],
    /// By switch, whether the source has gone back since then.
    went_back: [bool; SWITCHES],
    /// By switch and path, the CNPs received, halved with each window.
    pub congestion: [[u8; PATHS]; SWITCHES],
    /// By switch, the window of its newest CNP.
    windows: [u8; SWITCHES],
    /// By switch, the newest epoch that it has sent.
    pub epochs: [u8; SWITCHES],
    /// By switch, whether its last path was evicted.
    evicted: [bool; SWITCHES],
    /// By switch, whether it has handled nothing since its rule was replaced: its timers have stopped.
    idle: [bool; SWITCHES],
    /// By switch that repairs, the packets that it has seen: bit `i` for packet `i`.
    received: [u8; SWITCHES],
    /// By switch and slot, the code of the kept packet; 0 if nobody needs it.
    pub rings: [[u8; SLOTS_MAX]; SWITCHES],
}

/// What all steps of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The switches and their links.
    pub fabric: &'a Fabric,
    /// A deliberate fault.
    pub fault: Fault,
    /// Number of packets of the source.
    pub packets: u8,
    /// Number of the present window of CNPs.
    pub window: u8,
    /// Bit `i`: packet `i` ends a message.
    pub message_ends: u8,
}

impl Setup<'_> {
    /// The time: it stands still within a window of CNPs.
    pub fn now(&self) -> Nanos {
        match self.fault {
            Fault::NoAgeing => Nanos::ZERO,
            _ => Nanos(CNP_WINDOW.0 * u64::from(self.window)),
        }
    }
}

/// Result of one message.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Messages sent, with their paths.
    pub sent: Vec<(usize, Message)>,
    /// The rule that the step violated.
    pub broken: Option<Rule>,
    /// Notable events.
    pub seen: Seen,
}

/// A message that arrives at a switch.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Index of the switch.
    pub index: usize,
    /// Index of the ingress path.
    pub path: usize,
    /// The message.
    pub message: Message,
}

impl Switches {
    /// The initial state.
    pub fn new(fabric: &Fabric) -> Self {
        Self {
            machines: (0..fabric.switches())
                .map(|index| fabric.machine(index, fabric.paths(index), Some(START)))
                .collect(),
            acknowledged: [[0; PATHS]; SWITCHES],
            newest: [0; SWITCHES],
            went_back: [false; SWITCHES],
            restarted: [false; SWITCHES],
            congestion: [[0; PATHS]; SWITCHES],
            windows: [0; SWITCHES],
            epochs: [0; SWITCHES],
            evicted: [false; SWITCHES],
            idle: [false; SWITCHES],
            received: [0; SWITCHES],
            rings: [[0; SLOTS_MAX]; SWITCHES],
        }
    }

    /// A switch loses its state, and later joins a stream in the middle.
    pub fn restart(&mut self, fabric: &Fabric, fault: Fault, index: usize) {
        let done = (fault == Fault::JoinAsIfDone).then(|| psn(self.newest[index]));
        self.machines[index] = fabric.machine(index, fabric.paths(index), done);
        self.acknowledged[index] = [0; PATHS];
        self.newest[index] = 0;
        (self.restarted[index], self.went_back[index]) = (true, false);
        self.received[index] = 0;
        self.rings[index] = [0; SLOTS_MAX];
    }

    /// The last path of a switch is taken out of the group: a new rule, which carries on the stream.
    pub fn evict(&mut self, setup: &Setup<'_>, index: usize) -> Seen {
        let fabric = setup.fabric;
        let (mut paths, old) = (fabric.paths(index), &self.machines[index]);
        paths -= 1;
        let lacks = |path: &usize| *path < paths && self.acknowledged[index][*path] < self.newest[index];
        let evicted = self.downs(setup, index).iter().any(lacks);
        let done = setup.fault == Fault::EvictAsIfDone;
        let machine = match done {
            true => fabric.machine(index, paths, Some(psn(self.newest[index]))),
            false => {
                let mut machine = fabric.machine(index, paths, Some(START));
                let kept = (0..paths).map(|path| (path_id(path), path_id(path)));
                machine.carry_on(old, kept);
                machine
            }
        };
        self.machines[index] = machine;
        self.acknowledged[index][paths] = 0;
        self.congestion[index][paths] = 0;
        self.evicted[index] = true;
        self.idle[index] = true;
        self.rings[index] = [0; SLOTS_MAX];
        Seen {
            evicted,
            ..Seen::default()
        }
    }

    /// Whether a receiver is behind a path that was evicted.
    pub fn is_evicted(&self, fabric: &Fabric, receiver: usize) -> bool {
        let mut switches = 0..fabric.switches();
        switches.any(|index| self.evicted[index] && fabric.is_behind_last(index, receiver))
    }

    /// The paths of a switch towards receivers.
    fn downs<'a>(&self, setup: &Setup<'a>, index: usize) -> &'a [usize] {
        let downs = setup.fabric.downs(index);
        &downs[..downs.len() - usize::from(self.evicted[index])]
    }

    /// Handles the arrival of a message.
    pub fn arrive(&mut self, setup: &Setup<'_>, arrival: Arrival) -> Outcome {
        let Arrival {
            index, path, message, ..
        } = arrival;
        // It is no path of the group any more.
        if path != setup.fabric.up(index) && !self.downs(setup, index).contains(&path) {
            return Outcome::default();
        }
        self.idle[index] = false;
        let ahead = self.note(setup, arrival);
        let is_nak = matches!(message, Message::Feedback(answer, _) if answer != Answer::Ack);
        let nak_sent_before = is_nak && self.machines[index].status().nak_sent;
        let Some(event) = event(setup, arrival) else {
            return Outcome {
                broken: Some(Rule::Sense),
                ..Outcome::default()
            };
        };
        let mut effects = Effects::new();
        // A switch tries the fast path first.
        let fast = match event {
            Event::Data {
                from,
                psn,
                ack_request,
            } => {
                let data = (psn, ack_request);
                from == path_id(setup.fabric.up(index)) && self.fast(setup, index, data, &mut effects)
            }
            _ => false,
        };
        let machine = &mut self.machines[index];
        if !fast {
            machine.handle(setup.now(), event, &mut effects);
        }
        apply_fault(setup, index, event, &mut effects);

        let mut outcome = Outcome::default();
        for effect in &effects {
            match *effect {
                // Only a switch that has lost its state receives feedback about data that it has not seen.
                Effect::Drop(DropReason::AckAhead) if ahead => {}
                Effect::Absorb => {}
                Effect::Cnp { to } if to == path_id(setup.fabric.up(index)) => {
                    outcome.sent.push((to.index(), message));
                }
                effect => self.carry_out(setup, index, Some(message), effect, &mut outcome),
            }
        }
        self.resend(setup, index, &mut outcome);
        match message {
            Message::Data(..) => see_data(index, &effects, &mut outcome),
            Message::Feedback(..) if is_nak => self.see_nak(index, path, nak_sent_before, &mut outcome),
            Message::Feedback(..) => {
                outcome.seen.nak_released = sends(&outcome, |answer| answer != Answer::Ack);
            }
            Message::Resend(_) | Message::Bridged(..) | Message::Source(..) => {}
            Message::Cnp => self.see_cnp(setup, index, path, &mut outcome),
        }
        outcome
    }

    /// The fast paths of data.
    fn fast(
        &mut self,
        setup: &Setup<'_>,
        index: usize,
        (psn, ack_request): (Psn, bool),
        out: &mut Effects,
    ) -> bool {
        let machine = &mut self.machines[index];
        if let Some(slot) = machine.next_kept(setup.now(), psn, ack_request) {
            out.push(Effect::Keep { psn, slot });
        } else if !machine.next_data(setup.now(), psn) {
            return false;
        }
        out.push(Effect::Replicate { psn });
        true
    }

    /// One tick of a switch that repairs.
    pub fn tick(&mut self, setup: &Setup<'_>, index: usize) -> Outcome {
        let mut outcome = Outcome::default();
        if setup.fault == Fault::NoTick || self.idle[index] {
            return outcome;
        }
        let mut effects = Effects::new();
        self.machines[index].handle_timeout(setup.now(), &mut effects);
        for effect in effects {
            self.carry_out(setup, index, None, effect, &mut outcome);
        }
        self.resend(setup, index, &mut outcome);
        outcome.seen.resent_to_silent = outcome.seen.resent;
        outcome
    }

    /// What the oracle learns from a message. Returns true for feedback about data that this switch has not seen.
    fn note(&mut self, setup: &Setup<'_>, arrival: Arrival) -> bool {
        let Arrival { index, path, message } = arrival;
        match message {
            Message::Data(at, _) => {
                self.went_back[index] |= self.restarted[index] && at < self.newest[index];
                self.newest[index] = self.newest[index].max(at + 1);
                if setup.fabric.slots() > 0 {
                    self.received[index] |= 1 << at;
                }
                false
            }
            Message::Feedback(_, at) if at >= self.newest[index] => {
                // A path that is ahead has all that has passed here.
                if self.went_back[index] {
                    self.acknowledged[index][path] = self.newest[index];
                }
                true
            }
            Message::Feedback(..) => {
                let count = &mut self.acknowledged[index][path];
                *count = message.acknowledges().max(*count);
                false
            }
            _ => false,
        }
    }

    /// M4, exactly: it is forwarded if no other path is as congested as its own.
    fn see_cnp(&mut self, setup: &Setup<'_>, index: usize, path: usize, outcome: &mut Outcome) {
        let (most, overtakes) = self.note_cnp(setup.window, index, path);
        if most == outcome.sent.is_empty() {
            outcome.broken = Some(Rule::M4);
        }
        (outcome.seen.cnp_absorbed, outcome.seen.cnp_overtakes) = (!most, overtakes);
    }

    /// Counts a CNP. Returns whether its path is now the most congested one, and whether others have sent some, too.
    pub fn note_cnp(&mut self, window: u8, index: usize, path: usize) -> (bool, bool) {
        let counts = &mut self.congestion[index];
        let old = std::mem::replace(&mut self.windows[index], window);
        counts.iter_mut().for_each(|count| *count >>= window - old);
        counts[path] += 1;
        let mut others = counts.iter().enumerate().filter(|(i, _)| *i != path);
        let most = others.all(|(_, count)| *count < counts[path]);
        (
            most,
            most && counts.iter().filter(|count| **count > 0).count() > 1,
        )
    }

    fn carry_out(
        &mut self,
        setup: &Setup<'_>,
        index: usize,
        message: Option<Message>,
        effect: Effect,
        outcome: &mut Outcome,
    ) {
        let (fabric, repairs) = (setup.fabric, setup.fabric.slots() > 0);
        match (effect, message) {
            (Effect::Keep { psn: kept, slot }, Some(data @ Message::Data(at, _)))
                if kept == psn(at) && usize::from(slot) < fabric.slots() =>
            {
                self.rings[index][usize::from(slot)] = data.code();
            }
            (Effect::Replicate { psn }, Some(data @ Message::Data(..))) => {
                let machine = &self.machines[index];
                let downs = self.downs(setup, index).iter().copied();
                let to = match setup.fault {
                    Fault::NoFilter => downs.collect(),
                    _ if repairs => downs.filter(|path| machine.takes(path_id(*path), psn)).collect(),
                    _ => machine.lacking(psn).map(PathId::index).collect::<Vec<_>>(),
                };
                self.replicate(setup, (index, data), &to, outcome);
            }
            (
                Effect::Acknowledge {
                    to,
                    psn,
                    msn,
                    syndrome,
                },
                _,
            ) if to == path_id(fabric.up(index)) => {
                self.acknowledge(setup, index, (psn, msn, answer(syndrome)), outcome);
            }
            (
                Effect::Signal {
                    to,
                    signal: Signal::Resend,
                    psn,
                    ..
                },
                _,
            ) if repairs => {
                outcome.seen.requested = true;
                match position(setup, psn) {
                    Some(at) => outcome.sent.push((to.index(), Message::Resend(at))),
                    None => outcome.broken = Some(Rule::Sense),
                }
            }
            (Effect::Drop(DropReason::EarlyContribution), Some(Message::Data(..))) if repairs => {}
            _ => outcome.broken = Some(Rule::Sense),
        }
    }

    /// M3: only to paths that have not acknowledged it. Without repair, also to all of them.
    fn replicate(
        &self,
        setup: &Setup<'_>,
        (index, data): (usize, Message),
        to: &[usize],
        outcome: &mut Outcome,
    ) {
        let downs = self.downs(setup, index).iter().copied();
        let wanted: Vec<usize> = downs.filter(|path| self.lacks(index, *path, data)).collect();
        let repairs = setup.fabric.slots() > 0 && to.iter().all(|path| wanted.contains(path));
        if to != wanted && !repairs {
            outcome.broken = Some(Rule::M3);
        }
        outcome.seen.filtered = to.len() < self.downs(setup, index).len();
        outcome.sent.extend(to.iter().map(|path| (*path, data)));
    }

    fn lacks(&self, index: usize, path: usize, data: Message) -> bool {
        matches!(data, Message::Data(at, _) if self.acknowledged[index][path] <= at)
    }

    /// Sends what the machine wants from its ring, and forgets what all paths have acknowledged.
    fn resend(&mut self, setup: &Setup<'_>, index: usize, outcome: &mut Outcome) {
        let downs = self.downs(setup, index);
        while let Some(resend) = self.machines[index].poll_resend() {
            let Resend {
                path,
                psn: wanted,
                slot,
                ack_request,
            } = resend;
            let kept = self.rings[index].get(usize::from(slot));
            let kept = kept
                .filter(|code| **code != 0)
                .map(|code| Message::from_code(*code));
            let Some(data @ Message::Data(at, asks)) = kept.filter(|_| downs.contains(&path.index())) else {
                outcome.broken = Some(Rule::Sense);
                return;
            };
            if psn(at) != wanted {
                outcome.broken = Some(Rule::Sense);
            }
            let to = match setup.fault {
                Fault::ResendToAll => downs,
                _ => &[path.index()],
            };
            if to.iter().any(|path| !self.lacks(index, *path, data)) {
                outcome.broken = Some(Rule::M3);
            }
            outcome.seen.resent = true;
            let copy = Message::Data(at, asks || ack_request);
            outcome.sent.extend(to.iter().map(|path| (*path, copy)));
        }
        for slot in 0..setup.fabric.slots() {
            let code = self.rings[index][slot];
            let needed = |path: &usize| self.lacks(index, *path, Message::from_code(code));
            if code != 0 && !downs.iter().any(needed) {
                self.rings[index][slot] = 0;
            }
        }
    }

    /// M1 and M2 at the switch: every path has acknowledged what is acknowledged upwards. Each receiver acknowledges
    /// only what it has, so the same follows for the tree.
    fn acknowledge(
        &self,
        setup: &Setup<'_>,
        index: usize,
        (psn, msn, answer): (Psn, u32, Answer),
        outcome: &mut Outcome,
    ) {
        // A switch that joined in mid-stream learns from a NAK of the first packet that everything before it has
        // arrived. That is nothing.
        if answer == Answer::Ack && psn == START.prev() && self.restarted[index] {
            return;
        }
        let Some(at) = position(setup, psn) else {
            outcome.broken = Some(Rule::Sense);
            return;
        };
        let message = Message::Feedback(answer, at);
        let below = message.acknowledges();
        let fresh = !self.restarted[index] && !self.evicted[index];
        let all_kept = setup.fabric.slots() >= usize::from(setup.packets) && fresh;
        if self
            .downs(setup, index)
            .iter()
            .any(|path| self.acknowledged[index][*path] < below)
        {
            outcome.broken = Some(if answer == Answer::Ack { Rule::M1 } else { Rule::M2 });
        } else if msn != completed(setup.message_ends, below)
            // If all paths are ahead, all have completed more.
            && !(self.went_back[index] && msn > completed(setup.message_ends, below))
        {
            outcome.broken = Some(Rule::Msn);
        } else if index == 0 && answer == Answer::Nak && all_kept && self.received[0] >> at & 1 != 0 {
            outcome.broken = Some(Rule::Repair);
        }
        outcome.sent.push((setup.fabric.up(index), message));
    }

    fn see_nak(&self, index: usize, path: usize, nak_sent_before: bool, outcome: &mut Outcome) {
        let naks = sends(outcome, |answer| answer != Answer::Ack);
        let rnr = sends(outcome, |answer| answer == Answer::Rnr);
        let after = self.machines[index].status();
        let pending = after
            .paths
            .iter()
            .any(|p| p.path == path_id(path) && p.refusal.is_some());
        let gap = Some(Syndrome::Nak(NakCode::PsnSequenceError));
        outcome.seen.nak_held = !naks && pending && !after.nak_sent;
        outcome.seen.nak_repeated = !naks && pending && nak_sent_before && after.nak_sent;
        let lowest = after.agg_ack_psn;
        outcome.seen.rnr_merged = rnr
            && after
                .paths
                .iter()
                .any(|p| p.refusal == gap && p.ack_psn == lowest);
    }
}

fn see_data(index: usize, effects: &[Effect], outcome: &mut Outcome) {
    let keeps = |effect: &Effect| matches!(effect, Effect::Keep { .. });
    let sends_data = outcome
        .sent
        .iter()
        .any(|(_, message)| matches!(message, Message::Data(..)));
    outcome.seen.kept_behind_gap = effects.iter().any(keeps) && !sends_data;
    outcome.seen.beyond_ring = effects.contains(&Effect::Drop(DropReason::EarlyContribution));
    outcome.seen.answered = sends(outcome, |answer| answer == Answer::Ack);
    outcome.seen.answered_below = outcome.seen.answered && index > 0;
    outcome.seen.fatal_repeated = sends(outcome, |answer| answer == Answer::Fatal);
}

fn sends(outcome: &Outcome, wanted: fn(Answer) -> bool) -> bool {
    outcome
        .sent
        .iter()
        .any(|(_, message)| matches!(message, Message::Feedback(answer, _) if wanted(*answer)))
}

fn event(setup: &Setup<'_>, arrival: Arrival) -> Option<Event> {
    let from = path_id(arrival.path);
    Some(match arrival.message {
        Message::Bridged(..) | Message::Source(..) => return None,
        Message::Data(at, ack_request) => Event::Data {
            from,
            psn: psn(at),
            ack_request,
        },
        Message::Feedback(answer, at) => {
            let msn = completed(setup.message_ends, arrival.message.acknowledges());
            Event::Feedback {
                from,
                psn: psn(at),
                msn,
                syndrome: syndrome(answer),
            }
        }
        Message::Cnp => Event::Cnp { from },
        Message::Resend(at) => Event::Signal {
            from,
            signal: Signal::Resend,
            psn: psn(at),
            epoch: 0,
        },
    })
}

fn apply_fault(setup: &Setup<'_>, index: usize, event: Event, effects: &mut Effects) {
    let to = path_id(setup.fabric.up(index));
    let is_ack = |effect: &Effect| {
        matches!(
            effect,
            Effect::Acknowledge {
                syndrome: Syndrome::Ack,
                ..
            }
        )
    };
    match (setup.fault, event) {
        (
            Fault::NakAtOnce,
            Event::Feedback {
                psn, msn, syndrome, ..
            },
        ) if syndrome != Syndrome::Ack => {
            *effects = [Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            }]
            .into_iter()
            .collect();
        }
        (
            Fault::AckOfAny,
            Event::Feedback {
                psn,
                msn,
                syndrome: Syndrome::Ack,
                ..
            },
        ) => {
            *effects = [Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome: Syndrome::Ack,
            }]
            .into_iter()
            .collect();
        }
        (Fault::NakOnlyWithAck, Event::Feedback { .. }) if !effects.iter().any(is_ack) => effects.clear(),
        (Fault::NoFilter, Event::Data { psn, .. }) => {
            *effects = [Effect::Replicate { psn }].into_iter().collect();
        }
        (Fault::AllCnps, Event::Cnp { .. }) => *effects = [Effect::Cnp { to }].into_iter().collect(),
        (Fault::NoAnswer, Event::Data { .. }) => effects.retain(|effect| !is_ack(effect)),
        (Fault::AckOfKept, Event::Data { psn, .. })
            if matches!(effects.first(), Some(Effect::Keep { .. })) =>
        {
            let at = position(setup, psn).unwrap_or(0);
            effects.push(Effect::Acknowledge {
                to,
                psn,
                msn: completed(setup.message_ends, at + 1),
                syndrome: Syndrome::Ack,
            });
        }
        _ => {}
    }
}

/// Number of messages completed by a receiver that has all packets below a position.
fn completed(message_ends: u8, below: u8) -> u32 {
    (message_ends & ((1 << below) - 1)).count_ones()
}

pub(crate) fn psn(at: u8) -> Psn {
    START.add(i32::from(at))
}

/// The position of a PSN that the source sends.
fn position(setup: &Setup<'_>, psn: Psn) -> Option<u8> {
    let at = u8::try_from(psn.diff(START)).ok();
    at.filter(|at| *at < setup.packets)
}

pub(crate) fn syndrome(answer: Answer) -> Syndrome {
    match answer {
        Answer::Ack => Syndrome::Ack,
        Answer::Nak => Syndrome::Nak(NakCode::PsnSequenceError),
        Answer::Rnr => Syndrome::RnrNak(RnrTimer::new(12)),
        Answer::Fatal => Syndrome::Nak(NakCode::RemoteAccessError),
    }
}

pub(crate) fn answer(syndrome: Syndrome) -> Answer {
    match syndrome {
        Syndrome::Ack => Answer::Ack,
        Syndrome::Nak(NakCode::PsnSequenceError) => Answer::Nak,
        Syndrome::RnrNak(_) => Answer::Rnr,
        Syndrome::Nak(_) => Answer::Fatal,
    }
}
