//! Collectives in the network (EPIC 4.3, 4.4, 5.1, appendix H): Tree-3-2, one spine, two leaves, four ranks, three packets each.
//!
//! The switches are [`castnet_collective::Translated`], the code of the data plane. Ranks, links and the oracle
//! belong to this crate. Packets carry the set of their contributions instead of a payload. So C1, each contribution
//! exactly once, is checked on every packet that a rank receives. C2, the end, is checked in every final state.
//! Switches may have several modes. Those of Mode-I are [`castnet_collective::Terminated`]; the connections that end there belong to this
//! crate ([`connection`]), and lose packets as well. [`crate::terminated`] has the order of messages in a tree of Mode-I alone.

pub mod config;
pub mod connection;
pub mod fault;
pub mod host;
pub mod message;
pub mod messages;
pub mod nodes;
pub mod runs;
pub mod shared;

use crate::plain::Parts;
use castnet_collective::translated::CollectiveMode;
use castnet_wire::Primitive;
use host::{Host, Part};
use message::Message;
use nodes::{LINKS, Nodes, SWITCHES, Seen, Step};
use shared::{Reactions, SharedSwitch};
use stateright::{Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};

pub use config::{Config, Losable};
pub use fault::Fault;
pub use message::Content;
pub use runs::{
    ASKED, AUGMENTED, AUGMENTED_FULL, EPIC_TABLE_8, FULL, MIXED, REFLECT, REPAIR, Run, SHORT, STRAGGLERS,
    WITHOUT_TIMERS, short, with_fault, without_timers,
};

/// Number of ranks.
pub const RANKS: usize = 4;

/// The model of a run.
#[derive(Clone)]
pub struct Collective {
    config: Config,
    parts: [Part; RANKS],
    reactions: Reactions,
}

/// State of ranks, switches and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    switches: [SharedSwitch; SWITCHES],
    hosts: [Host; RANKS],
    links: [Vec<Message>; LINKS],
    /// The delayed message: its link, the message, and whether another one has overtaken it.
    late: Option<(usize, Message, bool)>,
    losses: u8,
    duplicates: u8,
    delays: u8,
    early: u8,
    ticks: u8,
    asks: u8,
    time_outs: u8,
    /// Bit set of the ranks that have had their time-out in this round.
    timed_out: u8,
    broken: Option<Rule>,
    /// Events of the last step. Not part of the state's identity.
    seen: Seen,
}

/// A rule that a step violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// C1: each contribution exactly once.
    ExactlyOnce,
    /// Nothing is acknowledged to a sender before its receivers have it. In Mode-III it may be; what no switch has is then lost, and the
    /// run does not end.
    NothingTooEarly,
    /// A gap causes one NAK (EPIC H.4): no link has the same NAK twice. It holds while no switch ticks early.
    OneNak,
    /// Messages are valid where they arrive, and not more than the model has capacity for.
    Sense,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            switches,
            hosts,
            links,
            late,
            broken,
            ..
        } = self;
        let budgets = [
            self.losses,
            self.duplicates,
            self.delays,
            self.early,
            self.ticks,
            self.asks,
            self.time_outs,
            self.timed_out,
        ];
        (switches, hosts, links, late, broken, budgets).hash(hasher);
    }
}

impl Parts for State {
    type Rule = Rule;

    fn broken(&self) -> Option<Rule> {
        self.broken
    }

    fn parts(&self, mut each: impl FnMut(DefaultHasher)) {
        let mut part = |state: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            state(&mut hasher);
            each(hasher);
        };
        for (index, switch) in self.switches.iter().enumerate() {
            part(&|hasher| (index, switch).hash(hasher));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            part(&|hasher| (SWITCHES + index, host).hash(hasher));
        }
    }
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
    /// The delayed message is delivered.
    DeliverLate(usize, Message),
    /// A switch ticks while messages are in flight.
    EarlyTick(usize),
    /// A rank times out while messages are in flight.
    EarlyTimeOut(usize),
    /// All switches tick.
    Tick,
    /// All switches ask.
    Ask,
    /// A rank times out.
    TimeOut(usize),
    /// The late rank starts.
    Begin,
}

impl Collective {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        assert!(config.delays <= 1, "at most one late message");
        let parts = std::array::from_fn(|rank| config.part(rank as u16));
        Self {
            config,
            parts,
            reactions: Reactions::default(),
        }
    }

    fn is_done(&self, state: &State) -> bool {
        let mut hosts = state.hosts.iter().zip(&self.parts);
        let finished = state.switches.iter().all(|switch| !switch.get().is_active());
        hosts.all(|(host, part)| host.is_done(part)) && finished
    }

    fn is_network_empty(state: &State) -> bool {
        state.links.iter().all(Vec::is_empty) && state.late.is_none()
    }

    /// Returns a link towards a rank whose actions are the only ones to explore now. A rank reads and writes only its
    /// own state and its two links, so events there commute with all others. Its timer must not be able to expire in
    /// between. (A premature acknowledgement that this order hides shows up when the packet is lost instead.) The
    /// same holds for an ACK without information for its switch.
    fn priority_link(&self, state: &State) -> Option<usize> {
        if self.config.exhaustive {
            return None;
        }
        let stale = |&link: &usize| {
            let head = state.links[link].first();
            head.is_some_and(|head| {
                Nodes.is_stale((&state.switches, &self.reactions), link, head, self.config.fault)
            })
        };
        (0..RANKS)
            .map(|rank| Nodes.link_to_rank(rank))
            .find(|&link| !state.links[link].is_empty())
            .filter(|_| state.early == 0)
            .or_else(|| {
                (0..LINKS)
                    .filter(|&link| Nodes.rank_at(link).is_none())
                    .find(stale)
            })
    }

    /// Returns true if the oldest message of a link may be lost.
    fn is_losable(&self, state: &State, link: usize) -> bool {
        let is_packet = |message: &Message| !matches!(message, Message::Feedback { .. });
        let mut packets = state.links[link].iter().map(is_packet);
        match self.config.losable {
            Losable::All => true,
            Losable::Followed => packets.next() == Some(true) && packets.any(|is_packet| is_packet),
            Losable::Results => {
                Nodes.is_from_spine(link) && matches!(state.links[link].first(), Some(Message::Data { .. }))
            }
        }
    }

    fn link_actions(&self, state: &State, link: usize, actions: &mut Vec<Action>) {
        if let Some(&message) = state.links[link].first() {
            actions.push(Action::Deliver(link, message));
            if state.losses > 0 && self.is_losable(state, link) {
                actions.push(Action::Lose(link, message));
            }
            if state.duplicates > 0 {
                actions.push(Action::Duplicate(link, message));
            }
            if state.delays > 0 && state.links[link].len() > 1 {
                actions.push(Action::Delay(link, message));
            }
        }
        // If no message has overtaken it, it is only slow, as any message may be.
        if let Some((at, message, overtaken)) = state.late
            && at == link
            && (overtaken || state.links.iter().all(Vec::is_empty))
        {
            actions.push(Action::DeliverLate(link, message));
        }
    }

    fn send(&self, state: &mut State, rank: usize, packets: std::ops::Range<u8>) {
        let control = self.config.control(rank as u16);
        for index in packets {
            let message = Host::outgoing(&self.parts[rank], index, control);
            self.put(state, Nodes.link_from_rank(rank), message);
        }
    }

    fn put(&self, state: &mut State, link: usize, message: Message) {
        if let Message::Feedback { psn, syndrome } = message
            && let Some(rank) = Nodes.rank_at(link)
        {
            let all_below =
                psn.diff(self.parts[rank].sq_psn) + i32::from(syndrome == castnet_wire::Syndrome::Ack);
            if self.config.modes == [CollectiveMode::Translated; SWITCHES]
                && !self.have_all_received(state, rank, all_below)
            {
                state.broken = state.broken.or(Some(Rule::NothingTooEarly));
            }
        }
        let queue = &mut state.links[link];
        if message.is_nak() && queue.contains(&message) {
            state.broken = state.broken.or(Some(Rule::OneNak));
        }
        queue.push(message);
        if queue.len() > 64 {
            state.broken = Some(Rule::Sense);
        }
    }

    /// Returns true if all receivers have the packets of `rank` before index `count`.
    fn have_all_received(&self, state: &State, rank: usize, count: i32) -> bool {
        let has = |rank: usize| i32::from(state.hosts[rank].connection.expected) >= count;
        if count <= 1 {
            return count <= 0 || has(rank);
        }
        let root = usize::from(self.config.root);
        match self.config.primitive {
            Primitive::AllReduce => has(rank),
            Primitive::Reduce => has(root),
            Primitive::Broadcast => (0..RANKS).filter(|&r| r != root).all(has),
        }
    }

    fn arrive(&self, state: &mut State, link: usize, message: Message) {
        if let Some((at, _, overtaken)) = &mut state.late {
            *overtaken |= *at == link;
        }
        if let Some(rank) = Nodes.rank_at(link) {
            let reaction = state.hosts[rank].take(&self.parts[rank], &message);
            if reaction.wrong {
                state.broken = state.broken.or(Some(Rule::ExactlyOnce));
            }
            if reaction.invalid {
                state.broken = state.broken.or(Some(Rule::Sense));
            }
            if let Some(answer) = reaction.answer {
                self.put(state, Nodes.link_from_rank(rank), answer);
            }
            self.send(state, rank, reaction.retransmits);
            return;
        }
        let fault = self.config.fault;
        let step = Nodes.arrive((&mut state.switches, &self.reactions), link, &message, fault);
        self.apply_step(state, step);
    }

    fn apply_step(&self, state: &mut State, step: Step) {
        state.seen = step.seen;
        if step.refused {
            state.broken = state.broken.or(Some(Rule::Sense));
        }
        let is_sent =
            |(_, message): &(usize, Message)| self.config.fault != Fault::NoNak || !message.is_nak();
        for (link, message) in step.sent.into_iter().filter(is_sent) {
            self.put(state, link, message);
        }
    }

    fn tick(&self, state: &mut State, switch: usize) {
        let step = Nodes.tick(&mut state.switches, switch);
        self.apply_step(state, step);
    }

    fn time_out(&self, state: &mut State, rank: usize) {
        let retransmits = state.hosts[rank].go_back(&self.parts[rank]);
        state.seen.timed_out = true;
        self.send(state, rank, retransmits);
    }
}

impl Model for Collective {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.config;
        let mut state = State {
            switches: Nodes.switches(config, &self.parts),
            hosts: [Host::default(); RANKS],
            links: std::array::from_fn(|_| Vec::new()),
            late: None,
            losses: config.losses,
            duplicates: config.duplicates,
            delays: config.delays,
            early: config.early,
            ticks: config.ticks,
            asks: config.asks,
            time_outs: config.time_outs,
            timed_out: 0,
            broken: None,
            seen: Seen::default(),
        };
        for rank in 0..RANKS {
            if config.late_rank != Some(rank as u16) {
                state.hosts[rank].started = true;
                self.send(&mut state, rank, 0..self.parts[rank].packets_out());
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || self.is_done(state) && Self::is_network_empty(state) {
            return;
        }
        if let Some(link) = self.priority_link(state) {
            return self.link_actions(state, link, actions);
        }
        for link in 0..LINKS {
            self.link_actions(state, link, actions);
        }
        let waits = |rank: &usize| state.hosts[*rank].may_time_out(&self.parts[*rank]);
        if !Self::is_network_empty(state) {
            if state.early > 0 {
                let ticking = (0..SWITCHES).filter(|&s| state.switches[s].get().is_active());
                actions.extend(ticking.map(Action::EarlyTick));
                actions.extend((0..RANKS).filter(waits).map(Action::EarlyTimeOut));
            }
            return;
        }
        let all_have_begun = state.hosts.iter().all(|host| host.started);
        if !all_have_begun {
            actions.push(Action::Begin);
        }
        let kept = match all_have_begun {
            true => 0,
            false => self.config.kept,
        };
        let is_active = state.switches.iter().any(|switch| switch.get().is_active());
        if state.ticks > kept && is_active {
            actions.push(Action::Tick);
        }
        if state.asks > 0 && is_active {
            actions.push(Action::Ask);
        }
        if state.time_outs > kept {
            let has_not_yet = |rank: &usize| state.timed_out >> rank & 1 == 0;
            let mut due = (0..RANKS).filter(waits).filter(has_not_yet).peekable();
            if due.peek().is_some() {
                actions.extend(due.map(Action::TimeOut));
            } else if state.time_outs > kept + 1 {
                // All ranks of the round are finished: the next round begins.
                actions.extend((0..RANKS).filter(waits).map(Action::TimeOut));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        state.seen = Seen::default();
        match action {
            Action::Deliver(link, message) => {
                state.links[link].remove(0);
                self.arrive(&mut state, link, message);
            }
            Action::Duplicate(link, message) => {
                state.duplicates -= 1;
                self.arrive(&mut state, link, message);
            }
            Action::Lose(link, _) => {
                state.losses -= 1;
                state.links[link].remove(0);
            }
            Action::Delay(link, message) => {
                state.delays -= 1;
                state.links[link].remove(0);
                state.late = Some((link, message, false));
            }
            Action::DeliverLate(link, message) => {
                state.late = None;
                self.arrive(&mut state, link, message);
            }
            Action::EarlyTick(switch) => {
                state.early -= 1;
                self.tick(&mut state, switch);
            }
            Action::EarlyTimeOut(rank) => {
                state.early -= 1;
                self.time_out(&mut state, rank);
            }
            Action::Tick => {
                state.ticks -= 1;
                for switch in 0..SWITCHES {
                    self.tick(&mut state, switch);
                }
            }
            Action::Ask => {
                state.asks -= 1;
                for switch in 0..SWITCHES {
                    let step = Nodes.ask(&mut state.switches, switch);
                    self.apply_step(&mut state, step);
                }
            }
            Action::TimeOut(rank) => {
                self.time_out(&mut state, rank);
                if state.timed_out >> rank & 1 == 1 {
                    state.timed_out = 0;
                    state.time_outs -= 1;
                }
                state.timed_out |= 1 << rank;
                let left = |&rank: &usize| {
                    before.hosts[rank].may_time_out(&self.parts[rank]) && state.timed_out >> rank & 1 == 0
                };
                if !(0..RANKS).any(|rank| left(&rank)) {
                    state.timed_out = 0;
                    state.time_outs -= 1;
                }
            }
            Action::Begin => {
                let rank = usize::from(self.config.late_rank?);
                state.hosts[rank].started = true;
                self.send(&mut state, rank, 0..self.parts[rank].packets_out());
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("C1: each contribution exactly once", |_, s: &State| {
                s.broken != Some(Rule::ExactlyOnce)
            }),
            Property::always(
                "nothing is acknowledged before its receivers have it",
                |_, s: &State| s.broken != Some(Rule::NothingTooEarly),
            ),
            Property::always("a gap causes one NAK", |_, s: &State| {
                s.broken != Some(Rule::OneNak)
            }),
            Property::always("every message is expected where it arrives", |_, s: &State| {
                s.broken != Some(Rule::Sense)
            }),
            Property::always(
                "C2: every final state has the result",
                |model: &Self, s: &State| {
                    let mut actions = Vec::new();
                    model.actions(s, &mut actions);
                    !actions.is_empty() || s.broken.is_some() || model.is_done(s)
                },
            ),
            Property::sometimes("all is done", |model: &Self, s: &State| model.is_done(s)),
        ]
    }
}
