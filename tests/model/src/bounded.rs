//! Hosts that behave like rxe, and a network with a bounded number of faults: safety in all states, delivery in the
//! end.

mod config;
mod properties;
pub mod sights;
mod state;
mod turns;

pub use config::{Config, Losable, Sight};
pub use state::State;

use self::state::Late;
use self::turns::Turns;
use crate::fabric::{End, FROM_SOURCE, Fabric, HOSTS, LINKS, RECEIVERS};
use crate::host::{Requester, Responder};
use crate::message::{Answer, Message, PACKETS_MAX, Queue};
use crate::switch::{Arrival, Outcome, Rule, Seen, Setup, Switches};
use stateright::{Model, Property};
use std::ops::Range;

/// Most messages that are delayed at the same time.
const LATE_MAX: usize = 2;
/// Ticks of the switches in the time-out of the source.
const TICKS: u8 = 64;

/// The model of a run.
#[derive(Clone)]
pub struct Bounded {
    config: Config,
    fabric: Fabric,
}

/// A possible next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The oldest message of a link is delivered.
    Deliver(usize, Message),
    /// It is delivered and stays on the link.
    Duplicate(usize, Message),
    /// It is lost.
    Lose(usize, Message),
    /// It is delayed.
    Delay(usize, Message),
    /// A delayed message is delivered.
    DeliverLate(usize, Message),
    /// The retransmission timer of the source expires.
    TimeOut,
    /// A timer of a member expires: of its retransmission, or of its wait after an RNR NAK.
    TimeOutOf(usize),
    /// Timers of a switch expire until it sends something.
    Tick(usize),
    /// Timers of all switches expire until one sends something.
    Ticks,
    /// A switch evicts its last path.
    Evict(usize),
    /// A receiver sends a CNP.
    Congest(usize),
    /// A window of CNPs ends.
    EndWindow,
    /// The wait after an RNR NAK ends.
    EndRnrWait,
}

impl Bounded {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        assert!(usize::from(config.delays) <= LATE_MAX, "too many late messages");
        assert!(config.packets <= PACKETS_MAX, "too many packets");
        let fabric = Fabric::new(config.topology, config.slots);
        let switching = config.sends != [0; HOSTS];
        Self {
            fabric: if switching {
                fabric.with_switching()
            } else {
                fabric
            },
            config,
        }
    }

    fn is_switching(&self) -> bool {
        self.config.sends != [0; HOSTS]
    }

    /// Returns a link whose actions are the only ones to explore now.
    ///
    /// A host reads and writes only its own state and its two links. So events on the link towards it commute with
    /// all other events, and the next ones can happen now: messages that others add come behind the oldest. Each run
    /// therefore has an equivalent order in which the next action of that link comes first, and other orders need not
    /// be explored. The source must not have a timer that could expire in between. The same holds for stale feedback
    /// on any link: it changes nothing, now or later. `tests/reduction.rs` compares this with the exhaustive
    /// exploration.
    fn priority_link(&self, state: &State) -> Option<usize> {
        let has_priority = |link: &usize| {
            let Some(message) = state.links[*link].head() else {
                return false;
            };
            self.is_stale(state, *link, message)
                || match self.fabric.end(*link) {
                    End::Source | End::Receiver(_) if self.is_switching() => state.early_time_outs == 0,
                    End::Source => !state.source.waiting && state.early_time_outs == 0,
                    End::Receiver(_) => true,
                    End::Switch { .. } => false,
                }
        };
        (0..self.fabric.links())
            .find(has_priority)
            .filter(|_| !self.config.exhaustive)
    }

    /// Returns true if feedback has no information for its receiver. It never will: counts only increase.
    fn is_stale(&self, state: &State, link: usize, message: Message) -> bool {
        let Message::Feedback(_, at) = message else {
            return false;
        };
        match self.fabric.end(link) {
            _ if self.is_switching() => false,
            End::Source => at < state.source.unacked,
            End::Switch { index, path } => at < state.switches.acknowledged[index][path],
            End::Receiver(_) => false,
        }
    }

    /// Adds the possible actions on a link. Except in an exhaustive run, actions that only use up a fault are left
    /// out: the state without them allows everything that follows, and more.
    fn link_actions(&self, state: &State, link: usize, actions: &mut Vec<Action>) {
        let all = self.config.exhaustive;
        if let Some(message) = state.links[link].head() {
            let stale = !all && self.is_stale(state, link, message);
            let is_ignored = match (self.fabric.end(link), message) {
                (End::Receiver(i), Message::Data(at, _)) => !all && state.receivers[i].ignores(at),
                _ => stale,
            };
            let repeatable = all || !matches!(message, Message::Feedback(Answer::Ack, _));
            actions.push(Action::Deliver(link, message));
            if state.losses > 0 && !is_ignored && self.is_losable(link, message) {
                actions.push(Action::Lose(link, message));
            }
            if state.duplicates > 0 && !is_ignored && repeatable {
                actions.push(Action::Duplicate(link, message));
            }
            if state.delays > 0 && !stale {
                actions.push(Action::Delay(link, message));
            }
        }
        // If no message has overtaken it, it is only slow, as any message may be.
        let empty = state.links.iter().all(|queue| queue.is_empty());
        let late = state.late.iter().flatten();
        let late = late.filter(|late| usize::from(late.link) == link && (late.overtaken || empty || all));
        actions.extend(late.map(|late| Action::DeliverLate(link, late.message)));
    }

    fn is_losable(&self, link: usize, message: Message) -> bool {
        match self.config.losable {
            Losable::All => true,
            Losable::Followed => matches!(message, Message::Data(at, _) if at + 1 < self.config.packets),
            Losable::BehindFirst => link / 2 != FROM_SOURCE / 2,
            Losable::NotFromReceivers => !matches!(self.fabric.end(link ^ 1), End::Receiver(_)),
        }
    }

    fn send(&self, state: &mut State, packets: Range<u8>) {
        for at in packets {
            let asks = self.config.ack_requests >> at & 1 != 0;
            self.put(state, End::Source, Message::Data(at, asks));
        }
    }

    fn put(&self, state: &mut State, from: End, message: Message) {
        if !state.links[self.fabric.link_from(from)].push(message) {
            state.broken = Some(Rule::Sense);
        }
    }

    fn arrive(&self, state: &mut State, link: usize, message: Message) {
        for late in state.late.iter_mut().flatten() {
            late.overtaken |= usize::from(late.link) == link;
        }
        state.late.sort_unstable();
        if self.is_switching() {
            return self.arrive_in_turns(state, link, message);
        }
        match (self.fabric.end(link), message) {
            (End::Source, Message::Feedback(answer, at)) => {
                let before = state.source;
                let packets = state.source.answer(answer, at);
                if state.source != before {
                    state.elapsed = 0;
                }
                self.send(state, packets);
            }
            (End::Source, Message::Cnp) => state.cnps_at_source += 1,
            (End::Receiver(i), Message::Data(at, asks)) => {
                if let Some(answer) = state.receivers[i].data(at, asks) {
                    self.put(state, End::Receiver(i), answer);
                }
            }
            (End::Switch { index, path }, message) => {
                let arrival = Arrival { index, path, message };
                let outcome = state.switches.arrive(&self.setup(state), arrival);
                self.carry_out(state, index, outcome);
            }
            _ => state.broken = Some(Rule::Sense),
        }
    }

    /// Whether CNPs of the most congested receiver may be lost, counted twice, or forgotten.
    fn is_cnp_lost(&self) -> bool {
        let Config {
            losses,
            duplicates,
            windows,
            evicts,
            ..
        } = self.config;
        losses + duplicates + windows > 0 || evicts.is_some() || self.is_switching()
    }

    fn most_congested(&self) -> u8 {
        self.config.cnps.into_iter().max().unwrap_or(0)
    }

    /// Whether all receivers that were not evicted have everything below a position.
    fn all_have(&self, state: &State, below: u8) -> bool {
        let mut receivers = state.receivers.iter().enumerate();
        receivers
            .all(|(i, receiver)| receiver.expected >= below || state.switches.is_evicted(&self.fabric, i))
    }

    fn setup(&self, state: &State) -> Setup<'_> {
        Setup {
            fabric: &self.fabric,
            fault: self.config.fault,
            packets: self.config.packets,
            window: state.window,
            message_ends: self.config.ack_requests,
        }
    }

    fn carry_out(&self, state: &mut State, index: usize, outcome: Outcome) {
        state.broken = state.broken.or(outcome.broken);
        state.seen = outcome.seen;
        for (path, message) in outcome.sent {
            let end = End::Switch { index, path };
            if self.fabric.peer(end) == End::Source {
                self.check_truth(state, message);
            }
            self.put(state, end, message);
        }
    }

    /// Ticks of one switch until it sends something. Returns true if it does before the source may time out.
    fn tick(&self, state: &mut State, index: usize) -> bool {
        (0..TICKS).any(|_| self.tick_once(state, index))
    }

    /// Returns true if the switch sends something.
    fn tick_once(&self, state: &mut State, index: usize) -> bool {
        if self.is_switching() {
            return self.tick_in_turns(state, index);
        }
        let outcome = state.switches.tick(&self.setup(state), index);
        let sends = !outcome.sent.is_empty();
        self.carry_out(state, index, outcome);
        sends
    }

    /// Ticks of all switches until one sends something. Returns true if one does before the source times out.
    fn tick_all(&self, state: &mut State) -> bool {
        let left = TICKS - state.elapsed;
        self.config.slots > 0
            && (0..left).any(|_| {
                state.elapsed += 1;
                let (mut sends, mut resent_to_silent) = (false, false);
                for index in 0..self.fabric.switches() {
                    sends |= self.tick_once(state, index);
                    resent_to_silent |= state.seen.resent_to_silent;
                }
                state.seen = Seen {
                    resent_to_silent,
                    ..Seen::default()
                };
                sends
            })
    }

    /// Checks M1 and M2 at the source against the true state of the receivers.
    fn check_truth(&self, state: &mut State, message: Message) {
        if !self.all_have(state, message.acknowledges()) {
            let is_ack = matches!(message, Message::Feedback(Answer::Ack, _));
            state.broken = state.broken.or(Some(if is_ack { Rule::M1 } else { Rule::M2 }));
        }
    }
}

impl Model for Bounded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let mut state = State {
            switches: Switches::new(&self.fabric),
            source: Requester::new(config.packets, config.window),
            turns: Turns::new(),
            receivers: std::array::from_fn(|i| Responder::new(config.not_ready[i], config.refuses[i])),
            links: [Queue::default(); LINKS],
            late: [None; LATE_MAX],
            losses: config.losses,
            duplicates: config.duplicates,
            delays: config.delays,
            early_time_outs: config.early_time_outs,
            time_outs: config.time_outs,
            early_ticks: config.early_ticks,
            cnps: config.cnps,
            cnps_at_source: 0,
            window: 0,
            evicts: config.evicts,
            elapsed: 0,
            broken: None,
            seen: Seen::default(),
        };
        if self.is_switching() {
            self.begin_turns(&mut state);
        } else {
            let packets = state.source.send();
            self.send(&mut state, packets);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if let Some(link) = self.priority_link(state) {
            return self.link_actions(state, link, actions);
        }
        for link in 0..self.fabric.links() {
            self.link_actions(state, link, actions);
        }
        let quiet = state.is_network_empty();
        let congested = (0..RECEIVERS).filter(|i| state.cnps[*i] > 0);
        actions.extend(congested.map(Action::Congest));
        if state.window < self.config.windows {
            actions.push(Action::EndWindow);
        }
        if !quiet && state.early_ticks > 0 {
            actions.extend((0..self.fabric.switches()).map(Action::Tick));
        }
        if self.is_switching() {
            return self.timers_in_turns(state, quiet, actions);
        }
        let time_outs = if quiet {
            state.time_outs
        } else {
            state.early_time_outs
        };
        if quiet && state.source.may_time_out() && self.tick_all(&mut state.clone()) {
            actions.push(Action::Ticks);
        } else if state.source.may_time_out() && time_outs > 0 {
            actions.push(Action::TimeOut);
        }
        if !state.source.is_done() && !state.source.failed {
            actions.extend(state.evicts.map(Action::Evict));
        }
        if state.source.waiting {
            actions.push(Action::EndRnrWait);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        state.seen = Seen::default();
        match action {
            Action::Deliver(link, message) => {
                state.links[link].pop();
                self.arrive(&mut state, link, message);
            }
            Action::Duplicate(link, message) => {
                state.duplicates -= 1;
                self.arrive(&mut state, link, message);
            }
            Action::Lose(link, _) => {
                state.losses -= 1;
                state.links[link].pop();
            }
            Action::Delay(link, message) => {
                state.delays -= 1;
                state.links[link].pop();
                let free = state.late.iter_mut().find(|late| late.is_none())?;
                *free = Some(Late {
                    link: link as u8,
                    message,
                    overtaken: self.config.exhaustive,
                });
                state.late.sort_unstable();
            }
            Action::DeliverLate(link, message) => {
                let is_it = |late: &Option<Late>| {
                    late.is_some_and(|late| usize::from(late.link) == link && late.message == message)
                };
                *state.late.iter_mut().rev().find(|late| is_it(late))? = None;
                self.arrive(&mut state, link, message);
            }
            Action::TimeOutOf(host) => {
                state.early_time_outs -= 1;
                self.time_out_of(&mut state, host);
            }
            Action::TimeOut if self.is_switching() => {
                state.time_outs -= 1;
                state.seen.timed_out = true;
                self.time_out_all(&mut state);
            }
            Action::EndRnrWait if self.is_switching() => self.end_waits(&mut state),
            Action::TimeOut => {
                let quiet = before.is_network_empty();
                *(if quiet {
                    &mut state.time_outs
                } else {
                    &mut state.early_time_outs
                }) -= 1;
                if quiet {
                    self.tick_all(&mut state);
                }
                state.elapsed = 0;
                state.seen.timed_out = true;
                let packets = state.source.go_back();
                self.send(&mut state, packets);
            }
            Action::Tick(index) => {
                state.early_ticks -= 1;
                if !self.tick(&mut state, index) {
                    return None;
                }
            }
            Action::Congest(i) => {
                state.cnps[i] -= 1;
                self.put(&mut state, End::Receiver(i), Message::Cnp);
            }
            Action::EndWindow => state.window += 1,
            Action::Evict(index) => {
                state.evicts = None;
                state.seen = state.switches.evict(&self.setup(before), index);
            }
            Action::Ticks => {
                self.tick_all(&mut state);
            }
            Action::EndRnrWait => {
                state.elapsed = 0;
                let packets = state.source.go_back();
                self.send(&mut state, packets);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = properties::all();
        all.extend(self.config.sights.iter().map(|sight| sight()));
        all
    }
}
