//! rxe-like hosts and a network with a bounded number of faults: safety on the way, delivery in the end.

use crate::fabric::{End, Fabric, LINKS, RECEIVERS, Topology};
use crate::host::{Requester, Responder};
use crate::message::{Answer, Message, PACKETS, Queue};
use crate::switch::{Arrival, Outcome, Rule, Seen, Spoil, Switches};
use stateright::{Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// Messages that can be late at the same time.
const LATE_MAX: usize = 2;

/// Bounds of one run. Faults may hit any message on any link, in either direction.
#[derive(Clone, Copy)]
pub struct Config {
    /// The switches.
    pub topology: Topology,
    /// Bit `i`: packet `i` asks for an ACK, and ends a message.
    pub ack_requests: u8,
    /// Messages lost.
    pub losses: u8,
    /// Which can be lost.
    pub losable: Losable,
    /// Messages delivered twice.
    pub duplicates: u8,
    /// Messages that any number of later ones overtake: at most two.
    pub delays: u8,
    /// Time-outs of the source while messages are on the way.
    pub early_time_outs: u8,
    /// Time-outs of the source when nothing is on the way any more. Delivery must not need more.
    pub time_outs: u8,
    /// By receiver, the packet that finds no receive posted when it first comes.
    pub not_ready: [Option<u8>; RECEIVERS],
    /// By receiver, the packet that ends its connection.
    pub refuses: [Option<u8>; RECEIVERS],
    /// A fault put in on purpose.
    pub spoil: Spoil,
    /// Explore all interleavings, even those that differ only in the order of what does not meet.
    pub exhaustive: bool,
    /// What the run must have seen.
    pub sights: &'static [Sight],
}

/// Which messages can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losable {
    /// Any.
    All,
    /// Packets that others follow. Their loss must be repaired without a time-out.
    Followed,
    /// All but what receivers say. A receiver whose connection has ended says so once; where that is lost on its first link, the
    /// source is left to run through its retries, as without a switch.
    NotFromReceivers,
}

/// A `sometimes` property of [`sights`].
pub type Sight = fn() -> Property<Bounded>;

impl Config {
    /// No fault of any kind, all packets asking.
    pub const fn calm(topology: Topology) -> Self {
        Self {
            topology,
            ack_requests: 0b111,
            losses: 0,
            losable: Losable::All,
            duplicates: 0,
            delays: 0,
            early_time_outs: 0,
            time_outs: 0,
            not_ready: [None; RECEIVERS],
            refuses: [None; RECEIVERS],
            spoil: Spoil::Nothing,
            exhaustive: false,
            sights: &[],
        }
    }
}

/// The model.
#[derive(Clone)]
pub struct Bounded {
    config: Config,
    fabric: Fabric,
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    switches: Switches,
    source: Requester,
    receivers: [Responder; RECEIVERS],
    links: [Queue; LINKS],
    /// Messages that others overtake, by link; sorted, so that what is the same looks the same.
    late: [Option<Late>; LATE_MAX],
    losses: u8,
    duplicates: u8,
    delays: u8,
    early_time_outs: u8,
    time_outs: u8,
    broken: Option<Rule>,
    /// What the last step did: no part of a state's identity.
    seen: Seen,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            switches,
            source,
            receivers,
            links,
            late,
            broken,
            ..
        } = self;
        let budgets = [
            self.losses,
            self.duplicates,
            self.delays,
            self.early_time_outs,
            self.time_outs,
        ];
        (switches, source, receivers, links, late, broken, budgets).hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Late {
    link: u8,
    message: Message,
    overtaken: bool,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The oldest message of a link arrives.
    Deliver(usize, Message),
    /// It arrives, and will once more.
    Duplicate(usize, Message),
    /// It is lost.
    Lose(usize, Message),
    /// It will be late.
    Delay(usize, Message),
    /// A late one arrives.
    DeliverLate(usize, Message),
    /// The source's retransmission timer runs out.
    TimeOut,
    /// The wait of an RNR NAK is over.
    ComeAgain,
}

impl State {
    /// Whether it ended as it should: all delivered and the source told, or a refusal told to the source.
    fn is_settled(&self) -> bool {
        let delivered = self.receivers.iter().all(|receiver| receiver.expected == PACKETS);
        delivered && self.source.is_done() || self.source.failed
    }

    /// What the way here broke.
    pub fn broken(&self) -> Option<Rule> {
        self.broken
    }

    /// Gives each switch and host in turn: all but what is on the way and what could still go wrong.
    pub fn parts(&self, mut each: impl FnMut(DefaultHasher)) {
        let mut part = |index: usize, state: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            index.hash(&mut hasher);
            state(&mut hasher);
            each(hasher);
        };
        part(0, &|hasher| self.source.hash(hasher));
        for (i, receiver) in self.receivers.iter().enumerate() {
            part(1 + i, &|hasher| receiver.hash(hasher));
        }
        let switches = self
            .switches
            .machines
            .iter()
            .zip(&self.switches.acknowledged)
            .enumerate();
        for (i, switch) in switches {
            part(1 + RECEIVERS + i, &|hasher| switch.hash(hasher));
        }
    }

    fn is_quiet(&self) -> bool {
        self.links.iter().all(|queue| queue.is_empty()) && self.late == [None; LATE_MAX]
    }
}

impl Bounded {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        assert!(
            usize::from(config.delays) <= LATE_MAX,
            "no room for so many late messages"
        );
        Self {
            fabric: Fabric::new(config.topology),
            config,
        }
    }

    /// A link whose actions are all that need be explored now.
    ///
    /// A host reads and writes nothing but its own state and its two links. So what happens on the link towards it commutes
    /// with everything else, and all that can happen there next can happen now: what others add comes behind the oldest
    /// message. Any run can therefore be told in an order in which the link's next action comes first, and no other order
    /// need be looked at. Only the source must not have a timer that could run out meanwhile. The same holds of stale
    /// feedback on any link: it changes nothing, now or later. `tests/reduction.rs` holds this equal to the exhaustive
    /// exploration.
    fn link_that_goes_first(&self, state: &State) -> Option<usize> {
        let goes_first = |link: &usize| {
            let Some(message) = state.links[*link].head() else {
                return false;
            };
            self.is_stale(state, *link, message)
                || match self.fabric.end(*link) {
                    End::Source => !state.source.waiting && state.early_time_outs == 0,
                    End::Receiver(_) => true,
                    End::Switch { .. } => false,
                }
        };
        (0..self.fabric.links())
            .find(goes_first)
            .filter(|_| !self.config.exhaustive)
    }

    /// Whether feedback tells nothing that its reader does not know, and never will again: counts only grow.
    fn is_stale(&self, state: &State, link: usize, message: Message) -> bool {
        let Message::Feedback(_, at) = message else {
            return false;
        };
        match self.fabric.end(link) {
            End::Source => at < state.source.unacked,
            End::Switch { index, path } => at < state.switches.acknowledged[index][path],
            End::Receiver(_) => false,
        }
    }

    /// What can happen on a link. Left out, unless all is to be explored, is what only spends a fault: the same without it
    /// can do all that follows, and more.
    fn link_actions(&self, state: &State, link: usize, actions: &mut Vec<Action>) {
        let all = self.config.exhaustive;
        if let Some(message) = state.links[link].head() {
            let stale = !all && self.is_stale(state, link, message);
            let unheard = match (self.fabric.end(link), message) {
                (End::Receiver(i), Message::Data(at)) => !all && state.receivers[i].ignores(at),
                _ => stale,
            };
            let repeatable = all || !matches!(message, Message::Feedback(Answer::Ack, _));
            actions.push(Action::Deliver(link, message));
            if state.losses > 0 && !unheard && self.is_losable(link, message) {
                actions.push(Action::Lose(link, message));
            }
            if state.duplicates > 0 && !unheard && repeatable {
                actions.push(Action::Duplicate(link, message));
            }
            if state.delays > 0 && !stale {
                actions.push(Action::Delay(link, message));
            }
        }
        // Where nothing has overtaken it yet, it is only slow, as any message can be.
        let empty = state.links.iter().all(|queue| queue.is_empty());
        let late = state.late.iter().flatten();
        let late = late.filter(|late| usize::from(late.link) == link && (late.overtaken || empty || all));
        actions.extend(late.map(|late| Action::DeliverLate(link, late.message)));
    }

    fn is_losable(&self, link: usize, message: Message) -> bool {
        match self.config.losable {
            Losable::All => true,
            Losable::Followed => matches!(message, Message::Data(at) if at + 1 < PACKETS),
            Losable::NotFromReceivers => !matches!(self.fabric.end(link ^ 1), End::Receiver(_)),
        }
    }

    fn send(&self, state: &mut State, packets: Range<u8>) {
        for at in packets {
            self.put(state, End::Source, Message::Data(at));
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
        match (self.fabric.end(link), message) {
            (End::Source, Message::Feedback(answer, at)) => {
                let again = state.source.answer(answer, at);
                self.send(state, again);
            }
            (End::Receiver(i), Message::Data(at)) => {
                if let Some(answer) = state.receivers[i].data(at, self.asks(at)) {
                    self.put(state, End::Receiver(i), answer);
                }
            }
            (End::Switch { index, path }, message) => {
                let asks = matches!(message, Message::Data(at) if self.asks(at));
                let arrival = Arrival {
                    index,
                    path,
                    message,
                    asks,
                    message_ends: self.config.ack_requests,
                };
                let Outcome { sent, broken, seen } =
                    state.switches.arrive(&self.fabric, self.config.spoil, arrival);
                state.broken = state.broken.or(broken);
                state.seen = seen;
                for (path, message) in sent {
                    let end = End::Switch { index, path };
                    if self.fabric.peer(end) == End::Source {
                        self.check_truth(state, message);
                    }
                    self.put(state, end, message);
                }
            }
            _ => state.broken = Some(Rule::Sense),
        }
    }

    /// M1 and M2 at the source, against what the receivers truly have.
    fn check_truth(&self, state: &mut State, message: Message) {
        if state
            .receivers
            .iter()
            .any(|receiver| receiver.expected < message.acknowledges())
        {
            let is_ack = matches!(message, Message::Feedback(Answer::Ack, _));
            state.broken = state.broken.or(Some(if is_ack { Rule::M1 } else { Rule::M2 }));
        }
    }

    fn asks(&self, at: u8) -> bool {
        self.config.ack_requests >> at & 1 != 0
    }
}

impl Model for Bounded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let mut state = State {
            switches: Switches::new(&self.fabric),
            source: Requester::default(),
            receivers: std::array::from_fn(|i| Responder::new(config.not_ready[i], config.refuses[i])),
            links: [Queue::default(); LINKS],
            late: [None; LATE_MAX],
            losses: config.losses,
            duplicates: config.duplicates,
            delays: config.delays,
            early_time_outs: config.early_time_outs,
            time_outs: config.time_outs,
            broken: None,
            seen: Seen::default(),
        };
        self.send(&mut state, 0..PACKETS);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if let Some(link) = self.link_that_goes_first(state) {
            return self.link_actions(state, link, actions);
        }
        for link in 0..self.fabric.links() {
            self.link_actions(state, link, actions);
        }
        let time_outs = if state.is_quiet() {
            state.time_outs
        } else {
            state.early_time_outs
        };
        if state.source.may_time_out() && time_outs > 0 {
            actions.push(Action::TimeOut);
        }
        if state.source.waiting {
            actions.push(Action::ComeAgain);
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
            Action::TimeOut => {
                let quiet = before.is_quiet();
                *(if quiet {
                    &mut state.time_outs
                } else {
                    &mut state.early_time_outs
                }) -= 1;
                state.seen.timed_out = true;
                let again = state.source.go_back();
                self.send(&mut state, again);
            }
            Action::ComeAgain => {
                let again = state.source.go_back();
                self.send(&mut state, again);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("M1: ACK(p) only after all have acknowledged p", |_, s: &State| {
                s.broken != Some(Rule::M1)
            }),
            Property::always("M2: NAK(e) only after all have all below e", |_, s: &State| {
                s.broken != Some(Rule::M2)
            }),
            Property::always(
                "M3: a packet goes exactly to those that lack it",
                |_, s: &State| s.broken != Some(Rule::M3),
            ),
            Property::always("the MSN is that of the slowest", |_, s: &State| {
                s.broken != Some(Rule::Msn)
            }),
            Property::always("no message out of place", |_, s: &State| {
                s.broken != Some(Rule::Sense)
            }),
            // The checker's `eventually` is blind on cycles, and at joins to what differs before them. There are no
            // cycles (`tests/reduction.rs` looks for them), and what is settled stays so. And the same is asked once
            // more of the states with nothing left to do.
            Property::eventually("all is delivered and the source knows", |_, s: &State| {
                s.is_settled()
            }),
            Property::always("no end but with all delivered", |model: &Self, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty() || s.broken.is_some() || s.is_settled()
            }),
        ];
        properties.extend(self.config.sights.iter().map(|sight| sight()));
        properties
    }
}

/// What a run can be asked to have seen.
pub mod sights {
    use super::{Bounded, Property, State};

    macro_rules! sights {
        ($($name:ident = $text:literal;)*) => {
            $(#[doc = $text] pub fn $name() -> Property<Bounded> {
                Property::sometimes($text, |_, s: &State| s.seen.$name)
            })*
        };
    }

    sights! {
        nak_held = "a NAK waits for a path that lags";
        nak_released = "a NAK goes up once the last path has all before it";
        nak_repeated = "a second NAK of the same gap ends at the switch";
        filtered = "a retransmission goes only where it is needed";
        answered = "a retransmission that all have is answered by the switch";
        answered_below = "a retransmission that all have is answered by a switch below the first";
        rnr_merged = "an RNR NAK takes a gap of another path with it";
        fatal_repeated = "a NAK that ends the connection is repeated";
        timed_out = "the source times out";
    }
}
