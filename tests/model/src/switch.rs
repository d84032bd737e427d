//! One message into one machine: what the machine sends, whether the contract allows it, and which notable events
//! occurred.

use crate::fabric::{Fabric, PATHS, START, SWITCHES, path_id};
use crate::message::{Answer, Message, PACKETS};
use castnet_collective::{Effect, Effects, Event, Multicast, PathId};
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
    /// Data only: whether it requests an ACK.
    pub requests_ack: bool,
    /// Bit `i`: packet `i` ends a message.
    pub message_ends: u8,
}

impl Switches {
    /// The initial state.
    pub fn new(fabric: &Fabric) -> Self {
        Self {
            machines: (0..fabric.switches())
                .map(|index| fabric.machine(index, Some(START)))
                .collect(),
            acknowledged: [[0; PATHS]; SWITCHES],
            newest: [0; SWITCHES],
            restarted: [false; SWITCHES],
        }
    }

    /// A switch loses its state, and later joins a stream in the middle.
    pub fn restart(&mut self, fabric: &Fabric, fault: Fault, index: usize) {
        let done = (fault == Fault::JoinAsIfDone).then(|| psn(self.newest[index]));
        self.machines[index] = fabric.machine(index, done);
        self.acknowledged[index] = [0; PATHS];
        self.newest[index] = 0;
        self.restarted[index] = true;
    }

    /// Handles the arrival of a message.
    pub fn arrive(&mut self, fabric: &Fabric, fault: Fault, arrival: Arrival) -> Outcome {
        let Arrival {
            index, path, message, ..
        } = arrival;
        let ahead = match message {
            Message::Data(at) => {
                self.newest[index] = self.newest[index].max(at + 1);
                false
            }
            Message::Feedback(_, at) => at >= self.newest[index],
        };
        if !ahead {
            let count = &mut self.acknowledged[index][path];
            *count = message.acknowledges().max(*count);
        }
        let is_nak = matches!(message, Message::Feedback(answer, _) if answer != Answer::Ack);
        let nak_sent_before = is_nak && self.machines[index].status().nak_sent;
        let event = event(arrival);
        let mut effects = Effects::new();
        let machine = &mut self.machines[index];
        // A switch tries the fast path first.
        match event {
            Event::Data { from, psn, .. }
                if from == path_id(fabric.up(index)) && machine.next_data(Nanos::ZERO, psn) =>
            {
                effects.push(Effect::Replicate { psn });
            }
            event => machine.handle(Nanos::ZERO, event, &mut effects),
        }
        apply_fault(fabric, fault, index, event, &mut effects);

        let mut outcome = Outcome::default();
        for effect in &effects {
            match *effect {
                Effect::Replicate { psn } => {
                    let to = match fault {
                        Fault::NoFilter => fabric.downs(index).to_vec(),
                        _ => self.machines[index].lacking(psn).map(PathId::index).collect(),
                    };
                    self.replicate(fabric, arrival, &to, &mut outcome);
                }
                Effect::Acknowledge {
                    psn, msn, syndrome, ..
                } => {
                    self.acknowledge(fabric, arrival, psn, msn, syndrome, &mut outcome);
                }
                // Only a switch that has lost its state receives feedback about data that it has not seen.
                Effect::Drop(DropReason::AckAhead) if ahead => {}
                Effect::Absorb if !ahead => {}
                _ => outcome.broken = Some(Rule::Sense),
            }
        }
        match message {
            Message::Data(_) => see_data(index, &mut outcome),
            Message::Feedback(..) if is_nak => self.see_nak(arrival, nak_sent_before, &mut outcome),
            Message::Feedback(..) => {
                outcome.seen.nak_released = sends(&outcome, |answer| answer != Answer::Ack);
            }
        }
        outcome
    }

    /// M3, exactly: to all paths that have not acknowledged it, and to no others.
    fn replicate(&self, fabric: &Fabric, arrival: Arrival, to: &[usize], outcome: &mut Outcome) {
        let Arrival {
            index,
            message: Message::Data(at),
            ..
        } = arrival
        else {
            outcome.broken = Some(Rule::Sense);
            return;
        };
        let downs = fabric.downs(index).iter().copied();
        let wanted: Vec<usize> = downs
            .filter(|path| self.acknowledged[index][*path] <= at)
            .collect();
        if to != wanted {
            outcome.broken = Some(Rule::M3);
        }
        outcome.seen.filtered = to.len() < fabric.downs(index).len();
        outcome
            .sent
            .extend(to.iter().map(|path| (*path, Message::Data(at))));
    }

    /// M1 and M2 at the switch: every path has acknowledged what is acknowledged upwards. Each receiver acknowledges
    /// only what it has, so the same follows for the tree.
    fn acknowledge(
        &self,
        fabric: &Fabric,
        arrival: Arrival,
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
        outcome: &mut Outcome,
    ) {
        let answer = answer(syndrome);
        // A switch that joined in mid-stream learns from a NAK of the first packet that everything before it has
        // arrived. That is nothing.
        if answer == Answer::Ack && psn == START.prev() && self.restarted[arrival.index] {
            return;
        }
        let Some(at) = u8::try_from(psn.diff(START)).ok().filter(|at| *at < PACKETS) else {
            outcome.broken = Some(Rule::Sense);
            return;
        };
        let message = Message::Feedback(answer, at);
        let below = message.acknowledges();
        let index = arrival.index;
        if fabric
            .downs(index)
            .iter()
            .any(|path| self.acknowledged[index][*path] < below)
        {
            outcome.broken = Some(if answer == Answer::Ack { Rule::M1 } else { Rule::M2 });
        } else if msn != completed(arrival.message_ends, below) {
            outcome.broken = Some(Rule::Msn);
        }
        outcome.sent.push((fabric.up(index), message));
    }

    fn see_nak(&self, arrival: Arrival, nak_sent_before: bool, outcome: &mut Outcome) {
        let Arrival { index, path, .. } = arrival;
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

fn see_data(index: usize, outcome: &mut Outcome) {
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

fn event(arrival: Arrival) -> Event {
    let from = path_id(arrival.path);
    match arrival.message {
        Message::Data(at) => Event::Data {
            from,
            psn: psn(at),
            ack_request: arrival.requests_ack,
        },
        Message::Feedback(answer, at) => {
            let msn = completed(arrival.message_ends, arrival.message.acknowledges());
            Event::Feedback {
                from,
                psn: psn(at),
                msn,
                syndrome: syndrome(answer),
            }
        }
    }
}

fn apply_fault(fabric: &Fabric, fault: Fault, index: usize, event: Event, effects: &mut Effects) {
    let to = path_id(fabric.up(index));
    let is_ack = |effect: &Effect| {
        matches!(
            effect,
            Effect::Acknowledge {
                syndrome: Syndrome::Ack,
                ..
            }
        )
    };
    match (fault, event) {
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
        (Fault::NoAnswer, Event::Data { .. }) => effects.retain(|effect| !is_ack(effect)),
        _ => {}
    }
}

/// Number of messages completed by a receiver that has all packets below a position.
fn completed(message_ends: u8, below: u8) -> u32 {
    (message_ends & ((1 << below) - 1)).count_ones()
}

fn psn(at: u8) -> Psn {
    START.add(i32::from(at))
}

fn syndrome(answer: Answer) -> Syndrome {
    match answer {
        Answer::Ack => Syndrome::Ack,
        Answer::Nak => Syndrome::Nak(NakCode::PsnSequenceError),
        Answer::Rnr => Syndrome::RnrNak(RnrTimer::new(12)),
        Answer::Fatal => Syndrome::Nak(NakCode::RemoteAccessError),
    }
}

fn answer(syndrome: Syndrome) -> Answer {
    match syndrome {
        Syndrome::Ack => Answer::Ack,
        Syndrome::Nak(NakCode::PsnSequenceError) => Answer::Nak,
        Syndrome::RnrNak(_) => Answer::Rnr,
        Syndrome::Nak(_) => Answer::Fatal,
    }
}
