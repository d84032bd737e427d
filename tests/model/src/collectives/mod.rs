//! Collectives in the network (EPIC 4.3, 5.1, appendix H): Tree-3-2, one spine, two leaves, four ranks, three packets each.
//!
//! The switches are [`castnet_collective::Translated`], the code of the data plane; ranks, links and the oracle are of this
//! crate. In the place of payloads stand the sets of those who contributed, so that C1, each contribution exactly once, is
//! looked at on every packet that a rank takes. C2, the end, is asked of every state with nothing left to do.

pub mod host;
pub mod message;
pub mod nodes;
pub mod runs;

use castnet_collective::translated::{LossPolicy, StragglerPolicy};
use castnet_wire::{Call, CallFlags, Control, DataType, Operation, Primitive, Psn, Verdict};
use host::{Host, Part};
use message::Message;
use nodes::{LINKS, Nodes, Seen, Step, Switch};
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};

pub use message::Content;
pub use nodes::Spoil;
pub use runs::{EPIC_TABLE_8, FULL, REFLECT, REPAIR, Run, STRAGGLERS, spoiled};

/// Ranks.
pub const RANKS: usize = 4;

/// Bounds of one run. Faults may hit any message on any link, in either direction.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The data flow.
    pub primitive: Primitive,
    /// The receiving rank of a Reduce, the sending one of a Broadcast.
    pub root: u16,
    /// Data packets of each sender: one message.
    pub packets: u8,
    /// Who repairs losses.
    pub loss: LossPolicy,
    /// What keeps a rank that waits alive.
    pub straggler: StragglerPolicy,
    /// The rank that begins only when nothing is on the way any more, if any.
    pub late_rank: Option<u16>,
    /// The rank that calls for another operation, if any.
    pub dissenter: Option<u16>,
    /// Messages lost.
    pub losses: u8,
    /// Messages delivered twice.
    pub duplicates: u8,
    /// Messages that any number of later ones overtake: at most one.
    pub delays: u8,
    /// Ticks of switches and time-outs of ranks while messages are on the way.
    pub early: u8,
    /// Ticks of all switches when nothing is on the way any more.
    pub ticks: u8,
    /// Ticks, and rounds of time-outs, that are left when the late rank begins: what is lost later is repaired by them.
    pub kept: u8,
    /// Rounds of time-outs when nothing is on the way any more: in each, every rank that waits has one, in any order.
    pub time_outs: u8,
    /// A fault put in on purpose.
    pub spoil: Spoil,
}

impl Config {
    /// Nothing goes wrong.
    pub const fn calm(primitive: Primitive, root: u16, loss: LossPolicy) -> Self {
        Self {
            primitive,
            root,
            packets: 3,
            loss,
            straggler: StragglerPolicy::KeepAlive,
            late_rank: None,
            dissenter: None,
            losses: 0,
            duplicates: 0,
            delays: 0,
            early: 0,
            ticks: 2,
            kept: 0,
            time_outs: 3,
            spoil: Spoil::Nothing,
        }
    }

    fn call(&self, rank: u16) -> Call {
        let operation = match self.dissenter == Some(rank) {
            true => Operation::Max,
            false => Operation::Sum,
        };
        Call {
            primitive: self.primitive,
            root: self.root,
            operation,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: u64::from(self.packets) * 256,
            packets: self.packets.into(),
        }
    }

    fn control(&self, rank: u16) -> Control {
        Control {
            sequence: 0,
            rank,
            call: self.call(rank),
            verdict: Verdict::Agreed,
        }
    }

    fn part(&self, rank: u16) -> Part {
        let is_root = rank == self.root;
        let (sends, receives) = match self.primitive {
            Primitive::AllReduce => (true, true),
            Primitive::Reduce => (!is_root, is_root),
            Primitive::Broadcast => (is_root, !is_root),
        };
        let contributes = |&r: &u16| match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => r != self.root,
            Primitive::Broadcast => r == self.root,
        };
        let ranks = 0..RANKS as u16;
        // Every space wraps somewhere else.
        let before_the_wrap = |packets: u32| Psn::new(Psn::MODULUS - packets);
        Part {
            rank,
            sends: u8::from(sends) * self.packets,
            receives: u8::from(receives) * self.packets,
            content: ranks
                .filter(contributes)
                .fold(Content::NOBODY, |sum, r| sum.plus(Content::only(r))),
            sq_psn: before_the_wrap(1 + u32::from(rank)),
            rq_psn: before_the_wrap(4 - u32::from(rank)),
        }
    }
}

/// The model.
#[derive(Clone)]
pub struct Collective {
    config: Config,
    parts: [Part; RANKS],
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    switches: [Switch; nodes::SWITCHES],
    hosts: [Host; RANKS],
    links: [Vec<Message>; LINKS],
    /// A message that others overtake: its link, itself, and whether one has.
    late: Option<(usize, Message, bool)>,
    losses: u8,
    duplicates: u8,
    delays: u8,
    early: u8,
    ticks: u8,
    time_outs: u8,
    /// Ranks that have had their time-out in this round: a set of bits.
    timed_out: u8,
    broken: Option<Rule>,
    /// What the last step did: no part of a state's identity.
    seen: Seen,
}

/// What can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// C1: each contribution exactly once.
    ExactlyOnce,
    /// Nothing is acknowledged to a sender that its receivers lack.
    NothingTooEarly,
    /// No message where it has no meaning, and no more than can be.
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
            self.time_outs,
            self.timed_out,
        ];
        (switches, hosts, links, late, broken, budgets).hash(hasher);
    }
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
    /// The late one arrives.
    DeliverLate(usize, Message),
    /// A switch's tick while messages are on the way.
    EarlyTick(usize),
    /// A rank's time-out while messages are on the way.
    EarlyTimeOut(usize),
    /// The tick of all switches.
    Tick,
    /// The time-out of a rank.
    TimeOut(usize),
    /// The late rank begins.
    Begin,
}

impl Collective {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        assert!(config.delays <= 1, "there is room for one late message");
        let parts = std::array::from_fn(|rank| config.part(rank as u16));
        Self { config, parts }
    }

    fn is_done(&self, state: &State) -> bool {
        let mut hosts = state.hosts.iter().zip(&self.parts);
        let finished = state.switches.iter().all(|switch| !switch.is_active());
        hosts.all(|(host, part)| host.is_done(part)) && finished
    }

    fn is_quiet(state: &State) -> bool {
        state.links.iter().all(Vec::is_empty) && state.late.is_none()
    }

    /// A link towards a rank whose actions are all that need be explored now: a rank reads and writes nothing but its own
    /// state and its two links, so that what happens there commutes with everything else. Only its timer must not be able
    /// to run out meanwhile. (What would be masked, an acknowledgement that comes before the receiver's own, shows when the
    /// packet is lost instead.) The same holds of an ACK that tells its switch nothing, now or later.
    fn link_that_goes_first(&self, state: &State) -> Option<usize> {
        let stale = |&link: &usize| {
            let head = state.links[link].first();
            head.is_some_and(|head| Nodes.is_stale(&state.switches, link, head))
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

    fn link_actions(&self, state: &State, link: usize, actions: &mut Vec<Action>) {
        if let Some(&message) = state.links[link].first() {
            actions.push(Action::Deliver(link, message));
            if state.losses > 0 {
                actions.push(Action::Lose(link, message));
            }
            if state.duplicates > 0 {
                actions.push(Action::Duplicate(link, message));
            }
            if state.delays > 0 && state.links[link].len() > 1 {
                actions.push(Action::Delay(link, message));
            }
        }
        // Where nothing has overtaken it yet, it is only slow, as any message can be.
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
            if !self.is_deserved(state, rank, all_below) {
                state.broken = state.broken.or(Some(Rule::NothingTooEarly));
            }
        }
        let queue = &mut state.links[link];
        queue.push(message);
        if queue.len() > 64 {
            state.broken = Some(Rule::Sense);
        }
    }

    /// Whether those who must have them have all packets of `rank` before the one of index `count`.
    fn is_deserved(&self, state: &State, rank: usize, count: i32) -> bool {
        let has = |rank: usize| i32::from(state.hosts[rank].expected) >= count;
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
            if reaction.nonsense {
                state.broken = state.broken.or(Some(Rule::Sense));
            }
            if let Some(answer) = reaction.answer {
                self.put(state, Nodes.link_from_rank(rank), answer);
            }
            self.send(state, rank, reaction.again);
            return;
        }
        let spoil = self.config.spoil;
        let step = Nodes.arrive(&mut state.switches, link, &message, spoil);
        self.stepped(state, step);
    }

    fn stepped(&self, state: &mut State, step: Step) {
        state.seen = step.seen;
        for (link, message) in step.sent {
            self.put(state, link, message);
        }
    }

    fn tick(&self, state: &mut State, switch: usize) {
        let step = Nodes.tick(&mut state.switches, switch);
        self.stepped(state, step);
    }

    fn time_out(&self, state: &mut State, rank: usize) {
        let again = state.hosts[rank].go_back(&self.parts[rank]);
        state.seen.timed_out = true;
        self.send(state, rank, again);
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
        if state.broken.is_some() || self.is_done(state) && Self::is_quiet(state) {
            return;
        }
        if let Some(link) = self.link_that_goes_first(state) {
            return self.link_actions(state, link, actions);
        }
        for link in 0..LINKS {
            self.link_actions(state, link, actions);
        }
        let waits = |rank: &usize| state.hosts[*rank].may_time_out(&self.parts[*rank]);
        if !Self::is_quiet(state) {
            if state.early > 0 {
                let ticking = (0..nodes::SWITCHES).filter(|&s| state.switches[s].is_active());
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
        if state.ticks > kept && state.switches.iter().any(Switch::is_active) {
            actions.push(Action::Tick);
        }
        if state.time_outs > kept {
            let has_not_yet = |rank: &usize| state.timed_out >> rank & 1 == 0;
            let mut due = (0..RANKS).filter(waits).filter(has_not_yet).peekable();
            if due.peek().is_some() {
                actions.extend(due.map(Action::TimeOut));
            } else if state.time_outs > kept + 1 {
                // Those that the round waited for have what they wanted by now: the next one begins.
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
                for switch in 0..nodes::SWITCHES {
                    self.tick(&mut state, switch);
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
                "nothing is acknowledged that its receivers lack",
                |_, s: &State| s.broken != Some(Rule::NothingTooEarly),
            ),
            Property::always("no message out of place", |_, s: &State| {
                s.broken != Some(Rule::Sense)
            }),
            Property::always("C2: no end but with the result", |model: &Self, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty() || s.broken.is_some() || model.is_done(s)
            }),
            Property::sometimes("all is done", |model: &Self, s: &State| model.is_done(s)),
        ]
    }
}
