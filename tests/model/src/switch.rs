//! One message into one machine: what it sends, whether the contract allows it, and what was worth seeing.

use crate::fabric::{Fabric, PATHS, START, SWITCHES, path_id};
use crate::message::{Answer, Message, PACKETS};
use castnet_collective::{Effect, Effects, Event, Multicast, PathId};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};

/// What a step broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An ACK went up before every path, or every receiver, had acknowledged it.
    M1,
    /// A NAK went up before every path, or every receiver, had all before it.
    M2,
    /// A packet went to a path that had acknowledged it, or not to one that had not.
    M3,
    /// The MSN of an ACK or NAK is not the number of messages completed there.
    Msn,
    /// A drop of good feedback, a message that has no business there, or more of them than the model has room for.
    Sense,
}

/// A fault put in on purpose, to see that the checker finds it. The machine stays as it ships: its effects are spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// None.
    Nothing,
    /// Each NAK is passed on as it comes.
    NakAtOnce,
    /// A NAK is sent only together with an aggregated ACK, as the paper has it by the letter.
    NakOnlyWithAck,
    /// An ACK of any path goes on at once.
    AckOfAny,
    /// Retransmitted packets go to all.
    NoFilter,
    /// A retransmission that all have is absorbed, whether or not the source asks.
    NoAnswer,
    /// A switch that restarts takes all that it had seen as acknowledged by all.
    JoinAsIfDone,
}

/// What a step did that is worth having seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A NAK was kept back, since another path lags.
    pub nak_held: bool,
    /// A NAK that was kept back went up, after the ACK that it waited for.
    pub nak_released: bool,
    /// A NAK ended at a switch that had sent that NAK already.
    pub nak_repeated: bool,
    /// A packet went to some of the receivers' paths only.
    pub filtered: bool,
    /// A retransmission that all had was answered by the switch.
    pub answered: bool,
    /// The same, by a switch that is not next to the source.
    pub answered_below: bool,
    /// An RNR NAK went up where another path had a gap at the same PSN.
    pub rnr_merged: bool,
    /// A NAK that ends the connection went up again.
    pub fatal_repeated: bool,
    /// The source timed out.
    pub timed_out: bool,
}

/// The oracle's own count: by switch and path, how many packets the feedback from there has acknowledged.
pub type Acknowledged = [[u8; PATHS]; SWITCHES];

/// The switches and the oracle beside them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Switches {
    /// The machines that ship.
    pub machines: Vec<Multicast>,
    /// The oracle's own count.
    pub acknowledged: Acknowledged,
    /// By switch, one past the newest packet that it has seen.
    pub newest: [u8; SWITCHES],
    /// By switch, whether it has lost its state once.
    pub restarted: [bool; SWITCHES],
}

/// What came of one message.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What is sent by which path.
    pub sent: Vec<(usize, Message)>,
    /// What the step broke.
    pub broken: Option<Rule>,
    /// What the step did.
    pub seen: Seen,
}

/// A message on its way into a switch.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The switch.
    pub index: usize,
    /// The path that it comes by.
    pub path: usize,
    /// The message.
    pub message: Message,
    /// Of data: whether it asks for an ACK.
    pub asks: bool,
    /// Bit `i`: packet `i` ends a message.
    pub message_ends: u8,
}

impl Switches {
    /// Before the first packet.
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

    /// A switch loses its state, and joins a stream of which it knows nothing.
    pub fn restart(&mut self, fabric: &Fabric, spoil: Spoil, index: usize) {
        let done = (spoil == Spoil::JoinAsIfDone).then(|| psn(self.newest[index]));
        self.machines[index] = fabric.machine(index, done);
        self.acknowledged[index] = [0; PATHS];
        self.newest[index] = 0;
        self.restarted[index] = true;
    }

    /// Lets a message arrive.
    pub fn arrive(&mut self, fabric: &Fabric, spoil: Spoil, arrival: Arrival) -> Outcome {
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
        // As a switch does: by the fast path where that takes it.
        match event {
            Event::Data { from, psn, .. }
                if from == path_id(fabric.up(index)) && machine.next_data(Nanos::ZERO, psn) =>
            {
                effects.push(Effect::Replicate { psn });
            }
            event => machine.handle(Nanos::ZERO, event, &mut effects),
        }
        spoilt(fabric, spoil, index, event, &mut effects);

        let mut outcome = Outcome::default();
        for effect in &effects {
            match *effect {
                Effect::Replicate { psn } => {
                    let to = match spoil {
                        Spoil::NoFilter => fabric.downs(index).to_vec(),
                        _ => self.machines[index].lacking(psn).map(PathId::index).collect(),
                    };
                    self.replicate(fabric, arrival, &to, &mut outcome);
                }
                Effect::Acknowledge {
                    psn, msn, syndrome, ..
                } => {
                    self.acknowledge(fabric, arrival, psn, msn, syndrome, &mut outcome);
                }
                // Only a switch that has lost its state hears of data that it has not seen.
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

    /// M3, exactly: to all that have not acknowledged it, and to no one else.
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

    /// M1 and M2 at the switch: every path has acknowledged what is acknowledged upwards. As each receiver acknowledges
    /// only what it has, the same follows for the tree.
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
        // A switch that has joined the stream learns from NAKs of the first packet that all have what is before: nothing.
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
            ack_request: arrival.asks,
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

fn spoilt(fabric: &Fabric, spoil: Spoil, index: usize, event: Event, effects: &mut Effects) {
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
    match (spoil, event) {
        (
            Spoil::NakAtOnce,
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
            Spoil::AckOfAny,
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
        (Spoil::NakOnlyWithAck, Event::Feedback { .. }) if !effects.iter().any(is_ack) => effects.clear(),
        (Spoil::NoFilter, Event::Data { psn, .. }) => {
            *effects = [Effect::Replicate { psn }].into_iter().collect();
        }
        (Spoil::NoAnswer, Event::Data { .. }) => effects.retain(|effect| !is_ack(effect)),
        _ => {}
    }
}

/// Messages completed by whoever has all packets below a position.
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
