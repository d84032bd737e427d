//! Runs in which several members send, in turn or at once (Cepheus III.E, contract M5).
//!
//! Messages between a host and its switch have the PSNs of the host, those between switches the PSNs of the group. The oracle
//! knows which packet has which position in the group, and what each host has accepted.

mod switches;

use super::{Action, Bounded, State};
use crate::fabric::{End, HOSTS, START};
use crate::host::{Requester, Responder};
use crate::message::{Answer, Message, PACKETS_MAX};
use crate::switch::Rule;
use castnet_wire::Psn;
use std::hash::{Hash, Hasher};

/// RNR waits in the time-out of a source.
const RNR_WAITS: u8 = 3;

/// A packet: its sender, and its position among those of this host.
type Content = (usize, u8);

/// The members that send, and what the oracle knows of their packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    /// The requesters of all hosts.
    requesters: [Requester; HOSTS],
    /// The responder of the first source.
    first: Responder,
    /// By position in the group, the packet that has it.
    order: [Option<Content>; PACKETS_MAX as usize],
    /// By host, one past the position of the newest packet that it has accepted.
    got: [u8; HOSTS],
    /// RNR waits since a source has made progress.
    waits: u8,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            requesters: [Requester::new(0, PACKETS_MAX); HOSTS],
            first: Responder::new(None, None),
            order: [None; PACKETS_MAX as usize],
            got: [0; HOSTS],
            waits: 0,
        }
    }

    /// True if a member has sent: in no run where only the first host sends.
    pub(super) fn have_begun(&self) -> bool {
        self.requesters.iter().any(Requester::has_sent)
    }

    /// The members whose timers run.
    pub(super) fn timers(&self) -> impl Iterator<Item = usize> {
        let runs = |requester: Requester| requester.may_time_out() || requester.waiting;
        let requesters = self.requesters.into_iter().enumerate();
        requesters
            .filter(move |(_, requester)| runs(*requester))
            .map(|(host, _)| host)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.requesters.iter().any(|requester| requester.waiting)
    }

    /// The state of one host.
    pub(super) fn hash_host(&self, host: usize, mut hasher: &mut impl Hasher) {
        (self.requesters[host], self.got[host]).hash(&mut hasher);
        if host == 0 {
            self.first.hash(&mut hasher);
        }
    }

    fn packet(&self, at: u8) -> Option<Content> {
        self.order.get(usize::from(at)).copied().flatten()
    }

    /// The position of the next packet that a host must accept: its own packets are not sent to it.
    fn next(&self, host: usize) -> u8 {
        let own = |at: &u8| self.packet(*at).is_some_and(|(sender, _)| sender == host);
        let first = self.got[host];
        first + (first..PACKETS_MAX).take_while(own).count() as u8
    }
}

fn end_of(host: usize) -> End {
    host.checked_sub(1).map_or(End::Source, End::Receiver)
}

fn host_at(end: End) -> Option<usize> {
    match end {
        End::Source => Some(0),
        End::Receiver(i) => Some(i + 1),
        End::Switch { .. } => None,
    }
}

fn position(psn: Psn) -> Option<u8> {
    u8::try_from(psn.diff(START)).ok().filter(|at| *at <= PACKETS_MAX)
}

impl Bounded {
    /// Packets of all members.
    fn total(&self) -> u8 {
        self.config.sends.iter().sum()
    }

    fn ends_message(&self, (sender, at): Content) -> bool {
        self.config.ack_requests >> at & 1 != 0 || at + 1 == self.config.sends[sender]
    }

    /// Messages that are complete with the first `below` packets of those that `host` receives; of all, if it is `None`.
    fn messages(&self, turns: &Turns, host: Option<usize>, below: u8) -> u32 {
        let packets = turns.order.iter().map_while(|packet| *packet);
        let received = packets.filter(|(sender, _)| Some(*sender) != host);
        let first = received.take(below.into());
        first.filter(|packet| self.ends_message(*packet)).count() as u32
    }

    pub(super) fn turns_are_over(&self, state: &State) -> bool {
        let turns = &state.turns;
        (0..HOSTS).all(|host| {
            let sent = self.config.sends[host] == 0 || turns.requesters[host].has_sent();
            sent && turns.requesters[host].is_done() && turns.next(host) == self.total()
        })
    }

    /// Members begin to send: in turn, when they have everything of those before them.
    pub(super) fn begin_turns(&self, state: &mut State) {
        for host in 0..HOSTS {
            let before: u8 = self.config.sends[..host].iter().sum();
            let requester = &mut state.turns.requesters[host];
            let due = self.config.at_once || state.turns.got[host] == before;
            if due && self.config.sends[host] > 0 && !requester.has_sent() {
                *requester = Requester::new(self.config.sends[host], PACKETS_MAX);
                let packets = requester.send();
                self.send_of(state, host, packets);
            }
        }
    }

    fn send_of(&self, state: &mut State, host: usize, packets: std::ops::Range<u8>) {
        for at in packets {
            self.put(
                state,
                end_of(host),
                Message::Data(at, self.ends_message((host, at))),
            );
        }
    }

    /// Timers of all members that wait for an answer expire.
    pub(super) fn time_out_all(&self, state: &mut State) {
        (state.elapsed, state.turns.waits) = (0, 0);
        let turns = state.turns;
        for host in turns.timers() {
            self.time_out_of(state, host);
        }
    }

    pub(super) fn time_out_of(&self, state: &mut State, host: usize) {
        let packets = state.turns.requesters[host].go_back();
        self.send_of(state, host, packets);
    }

    /// Adds the actions of timers. Nothing happens between a tick at which no switch sends and a time-out.
    pub(super) fn timers_in_turns(&self, state: &State, quiet: bool, actions: &mut Vec<Action>) {
        if !quiet {
            if state.early_time_outs > 0 {
                actions.extend(state.turns.timers().map(Action::TimeOutOf));
            }
            return;
        }
        let runs = state.turns.timers().next().is_some();
        let (waits, ticks) = (self.waits_end(state), runs && self.tick_all(&mut state.clone()));
        if waits {
            actions.push(Action::EndRnrWait);
        }
        if ticks {
            actions.push(Action::Ticks);
        }
        if !waits && !ticks && runs && state.time_outs > 0 {
            actions.push(Action::TimeOut);
        }
    }

    /// True if the RNR waits of members end before a source times out.
    pub(super) fn waits_end(&self, state: &State) -> bool {
        state.turns.is_waiting() && state.turns.waits < RNR_WAITS
    }

    pub(super) fn end_waits(&self, state: &mut State) {
        state.turns.waits += 1;
        for host in 0..HOSTS {
            if state.turns.requesters[host].waiting {
                self.time_out_of(state, host);
            }
        }
    }

    pub(super) fn arrive_in_turns(&self, state: &mut State, link: usize, message: Message) {
        let end = self.fabric.end(link);
        match (end, host_at(end), message) {
            (_, Some(host), Message::Feedback(answer, at)) => {
                self.check_believed(state, host, message);
                let requester = &mut state.turns.requesters[host];
                let before = requester.unacked;
                let packets = requester.answer(answer, at);
                if requester.unacked != before {
                    (state.elapsed, state.turns.waits) = (0, 0);
                }
                self.send_of(state, host, packets);
            }
            (_, Some(host), Message::Bridged(at, of_group, asks)) => {
                let responder = match host {
                    0 => &mut state.turns.first,
                    _ => &mut state.receivers[host - 1],
                };
                let before = responder.expected;
                let reply = responder.data(at, asks);
                if responder.expected != before {
                    self.accept(state, host, of_group);
                }
                if let Some(reply) = reply {
                    self.put(state, end, reply);
                }
                self.begin_turns(state);
            }
            (_, Some(_), Message::Cnp) => state.cnps_at_source += 1,
            (End::Switch { index, path }, _, message) => self.switch(state, index, path, message),
            _ => state.broken = Some(Rule::Sense),
        }
    }

    /// M5: a host accepts the packets of the others, each once, in the order of the group, and whole messages.
    fn accept(&self, state: &mut State, host: usize, at: u8) {
        let turns = &mut state.turns;
        let follows = match (
            at.checked_sub(1).map(|before| turns.packet(before)),
            turns.packet(at),
        ) {
            (None, Some((_, 0))) => true,
            (Some(Some(before)), Some(packet)) => match self.ends_message(before) {
                true => packet.1 == 0 || self.ends_message((packet.0, packet.1 - 1)),
                false => packet == (before.0, before.1 + 1),
            },
            _ => false,
        };
        if !follows || turns.next(host) != at {
            state.broken = Some(Rule::M5);
        }
        turns.got[host] = at + 1;
    }

    /// M1 and M2 at a member, against the truth.
    fn check_believed(&self, state: &mut State, host: usize, message: Message) {
        let turns = &state.turns;
        let delivered = |at: u8| {
            let position = turns.order.iter().position(|packet| *packet == Some((host, at)));
            position.is_some_and(|position| {
                (0..HOSTS).all(|other| other == host || usize::from(turns.got[other]) > position)
            })
        };
        if !(0..message.acknowledges()).all(delivered) {
            let is_ack = matches!(message, Message::Feedback(Answer::Ack, _));
            state.broken = Some(if is_ack { Rule::M1 } else { Rule::M2 });
        }
    }
}
