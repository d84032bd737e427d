//! Mode-I of collectives (EPIC 4.2): Tree-3-2, one spine, two leaves, four ranks, messages of one packet.
//!
//! The switches are [`castnet_collective::Terminated`], the code of the data plane. Their connections are reliable, as those of RC are: the
//! tests of `castnet-endpoint` and of the simulator have the losses. What is explored is every order in which messages arrive and are
//! acknowledged, with few buffers, which make their senders wait. Messages carry the set of their contributors instead of a payload.

use crate::collectives::{Content, RANKS};
use crate::report::{Outcome, Until, explore};
use castnet_collective::terminated::{Effect, Inbox, Message};
use castnet_collective::{
    CollectiveMode, EndpointConfig, EndpointId, EndpointKind, EndpointSet, LossPolicy, RankSet,
    StragglerPolicy, Terminated, TranslatedConfig,
};
use castnet_wire::{Call, CallFlags, Control, DataType, Nanos, Operation, Primitive, Psn, Verdict};
use stateright::{Model, Property};

const SWITCHES: usize = 3;
/// Edges 0 and 1: spine to leaf; edge 2 + r: leaf to rank `r`. Link 2e leads down, 2e + 1 up.
const LINKS: usize = 12;
/// Endpoint of a leaf towards the spine. Endpoints of the spine lead to the leaves, the first two of a leaf to its ranks.
const UP: usize = 2;

/// A deliberate fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    Nothing,
    /// A leaf takes each message twice.
    TakeTwice,
    /// A leaf posts a buffer while its message is still needed.
    PostEarly,
}

/// A named run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Name.
    pub name: &'static str,
    /// The data flow.
    pub primitive: Primitive,
    /// The receiving rank of a Reduce, the sending rank of a Broadcast.
    pub root: u16,
    /// Data messages of each sender.
    pub messages: u8,
    /// Collectives in a row.
    pub collectives: u8,
    /// Buffers of each endpoint, and slots of each pipe.
    pub buffers: u16,
    /// The rank that calls another operation in the last one, if any.
    pub dissenter: Option<u16>,
    /// A deliberate fault.
    pub fault: Fault,
}

const ALL_REDUCE: Run = Run {
    name: "AllReduce, terminated",
    primitive: Primitive::AllReduce,
    root: 0,
    messages: 1,
    collectives: 1,
    buffers: 2,
    dissenter: None,
    fault: Fault::Nothing,
};

/// The explorations of the tests.
pub const RUNS: &[Run] = &[
    ALL_REDUCE,
    Run {
        name: "Reduce, terminated",
        primitive: Primitive::Reduce,
        root: 1,
        messages: 2,
        ..ALL_REDUCE
    },
    Run {
        name: "Broadcast, terminated",
        primitive: Primitive::Broadcast,
        root: 2,
        messages: 2,
        ..ALL_REDUCE
    },
    Run {
        name: "Barriers, terminated: ranks disagree about the second",
        messages: 0,
        collectives: 2,
        dissenter: Some(2),
        ..ALL_REDUCE
    },
];

/// Explorations that are too large for the tests: the three messages of EPIC's table 8.
pub const RUNS_FULL: &[Run] = &[
    Run {
        name: "AllReduce, terminated: three messages",
        messages: 3,
        ..ALL_REDUCE
    },
    Run {
        name: "Broadcast, terminated: three messages",
        primitive: Primitive::Broadcast,
        root: 2,
        messages: 3,
        ..ALL_REDUCE
    },
];

impl Run {
    /// Explores all states of the run.
    pub fn explore(&self, threads: usize) -> Outcome {
        explore(self.name, *self, Until::All, threads)
    }

    /// An exploration that ends at the first violation.
    pub fn find(fault: Fault) -> Outcome {
        let run = Run {
            fault,
            messages: 2,
            ..ALL_REDUCE
        };
        explore(format!("{fault:?}"), run, Until::Fault, 1)
    }

    fn call(&self, rank: u16, collective: u8) -> Call {
        let differs = self.dissenter == Some(rank) && collective + 1 == self.collectives;
        Call {
            primitive: self.primitive,
            root: self.root,
            roots: 1,
            operation: if differs { Operation::Max } else { Operation::Sum },
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: u64::from(self.messages) * 64,
            packets: self.messages.into(),
        }
    }

    fn control(&self, rank: u16, collective: u8) -> Control {
        Control {
            sequence: collective.into(),
            rank,
            call: self.call(rank, collective),
            verdict: Verdict::Agreed,
        }
    }

    /// All messages of a rank in one direction.
    fn letters(&self, rank: u16, sent: bool) -> Vec<Letter> {
        let is_root = rank == self.root;
        let takes_part = match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => is_root != sent,
            Primitive::Broadcast => is_root == sent,
        };
        let sends = |other: &u16| match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => *other != self.root,
            Primitive::Broadcast => *other == self.root,
        };
        let ranks = 0..RANKS as u16;
        let result = ranks
            .clone()
            .filter(sends)
            .fold(Content::NONE, |sum, rank| sum.plus(Content::only(rank, 0)));
        let mut letters = Vec::new();
        for collective in 0..self.collectives {
            let mut control = self.control(if sent { rank } else { 0 }, collective);
            if !sent {
                ranks
                    .clone()
                    .for_each(|rank| control.merge(&self.control(rank, collective)));
            }
            letters.push(Letter {
                message: Message::Control(control),
                content: Content::NONE,
            });
            let content = if sent { Content::only(rank, 0) } else { result };
            let count = if takes_part { self.messages } else { 0 };
            letters.extend((0..count).map(|index| Letter {
                message: Message::Data(256),
                content: content.to_packet(index),
            }));
        }
        letters
    }
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Letter {
    message: Message,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Switch {
    machine: Terminated,
    slots: Vec<Option<Letter>>,
    /// By endpoint: the buffers, the next one to fill, and how many are posted.
    buffers: Vec<Vec<Option<Letter>>>,
    next: Vec<u8>,
    posted: Vec<u8>,
}

struct Received<'a>(&'a [Vec<Option<Letter>>]);

impl Inbox for Received<'_> {
    fn message(&self, from: EndpointId, buffer: u16) -> Message {
        self.0[from.index()][usize::from(buffer)].map_or(Message::Invalid, |letter| letter.message)
    }
}

/// A direction of a connection: what is on its way, with its slot, and what of it is delivered and not acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Link {
    letters: Vec<(u16, Letter)>,
    unacknowledged: Vec<u16>,
}

/// A state of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    switches: [Switch; SWITCHES],
    links: [Link; LINKS],
    /// Messages that each rank has received.
    got: [u8; RANKS],
    broken: bool,
}

/// An event on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The oldest message arrives.
    Deliver(usize),
    /// The oldest delivered message is acknowledged.
    Acknowledge(usize),
}

fn config(run: &Run, index: usize) -> TranslatedConfig {
    let leaf = |l: u16| (2 * l..2 * l + 2).collect::<RankSet>();
    let rank = |rank: u16| EndpointConfig {
        kind: EndpointKind::Rank {
            rank,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            is_host: true,
        },
        ranks: RankSet::only(rank),
    };
    let switch = |ranks| EndpointConfig {
        kind: EndpointKind::Switch,
        ranks,
    };
    let first = 2 * index.saturating_sub(1) as u16;
    TranslatedConfig {
        endpoints: match index {
            0 => vec![switch(leaf(0)), switch(leaf(1))],
            _ => vec![rank(first), rank(first + 1), switch(leaf(2 - index as u16))],
        },
        parent: EndpointId::new(UP).filter(|_| index > 0),
        start_psn: Psn::new(0),
        slots: run.buffers,
        message_packets: 1,
        pmtu: 256,
        reproducible: false,
        collectives_max: 2,
        mode: CollectiveMode::Terminated,
        loss: LossPolicy::Repair,
        straggler: StragglerPolicy::KeepAlive,
        tick: Nanos::ZERO,
        stall_timeout: Nanos::ZERO,
    }
}

/// The switch and endpoint that a link leads to; `None` for a rank.
fn end(link: usize) -> Option<(usize, usize)> {
    match (link / 2, link % 2) {
        (edge @ 0..2, 0) => Some((1 + edge, UP)),
        (edge @ 0..2, _) => Some((0, edge)),
        (_, 0) => None,
        (edge, _) => Some((1 + (edge - 2) / 2, (edge - 2) % 2)),
    }
}

/// The outgoing link of an endpoint.
fn away(switch: usize, endpoint: usize) -> usize {
    match switch {
        0 => 2 * endpoint,
        leaf if endpoint == UP => 2 * (leaf - 1) + 1,
        leaf => 2 * (2 + 2 * (leaf - 1) + endpoint),
    }
}

impl Run {
    fn arrive(&self, state: &mut State, link: usize, letter: Letter) {
        let Some((index, endpoint)) = end(link) else {
            let rank = link / 2 - 2;
            let expected = self.letters(rank as u16, false);
            state.broken |= expected.get(usize::from(state.got[rank])) != Some(&letter);
            state.got[rank] += 1;
            return;
        };
        let switch = &mut state.switches[index];
        let at = usize::from(switch.next[endpoint]);
        switch.next[endpoint] = ((at + 1) % switch.buffers[endpoint].len()) as u8;
        switch.posted[endpoint] -= 1;
        state.broken |= switch.buffers[endpoint][at].is_some();
        switch.buffers[endpoint][at] = Some(letter);
        if let Some(from) = EndpointId::new(endpoint) {
            switch.machine.arrived(Nanos::ZERO, from);
        }
        if self.fault == Fault::PostEarly && index > 0 {
            switch.posted[endpoint] += 1;
        }
        self.work(state, index);
    }

    fn work(&self, state: &mut State, index: usize) {
        loop {
            let switch = &mut state.switches[index];
            let received = Received(&switch.buffers);
            let Some(effect) = switch.machine.poll(Nanos::ZERO, &received) else {
                return;
            };
            match effect {
                Effect::Take {
                    slot,
                    from,
                    buffer,
                    first,
                    ..
                } => {
                    let letter = switch.buffers[from.index()][usize::from(buffer)];
                    let times = 1 + usize::from(self.fault == Fault::TakeTwice && index > 0);
                    let sum = &mut switch.slots[usize::from(slot)];
                    for time in 0..times {
                        match (sum.as_mut(), letter) {
                            (Some(sum), Some(letter)) if !first || time > 0 => {
                                sum.content = sum.content.plus(letter.content);
                            }
                            _ => *sum = letter,
                        }
                    }
                }
                Effect::Send { slot, to, .. } => {
                    let letter = switch.slots[usize::from(slot)];
                    state.broken |= letter.is_none();
                    if let Some(letter) = letter {
                        send(state, index, to, slot, letter);
                    }
                }
                Effect::SendControl { slot, to, control } => {
                    let letter = Letter {
                        message: Message::Control(control),
                        content: Content::NONE,
                    };
                    send(state, index, to, slot, letter);
                }
                Effect::Receive { from, buffer } => {
                    switch.buffers[from.index()][usize::from(buffer)] = None;
                    if self.fault != Fault::PostEarly || index == 0 {
                        switch.posted[from.index()] += 1;
                    }
                }
                Effect::Conflict { .. } => {}
                Effect::Refused { .. } | Effect::Stalled { .. } => state.broken = true,
            }
        }
    }

    fn is_done(&self, state: &State) -> bool {
        (0..RANKS).all(|rank| usize::from(state.got[rank]) == self.letters(rank as u16, false).len())
    }
}

fn send(state: &mut State, index: usize, to: EndpointSet, slot: u16, letter: Letter) {
    for endpoint in to {
        state.links[away(index, endpoint.index())]
            .letters
            .push((slot, letter));
    }
}

impl Model for Run {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            switches: std::array::from_fn(|index| {
                let config = config(self, index);
                let endpoints = config.endpoints.len();
                let machine = Terminated::new(config);
                let ring = usize::from(machine.slots());
                Switch {
                    machine,
                    slots: vec![None; 2 * ring],
                    buffers: vec![vec![None; ring]; endpoints],
                    next: vec![0; endpoints],
                    posted: vec![ring as u8; endpoints],
                }
            }),
            links: std::array::from_fn(|_| Link::default()),
            got: [0; RANKS],
            broken: false,
        };
        for rank in 0..RANKS {
            let letters = self.letters(rank as u16, true).into_iter();
            state.links[2 * (2 + rank) + 1].letters = letters.map(|letter| (0, letter)).collect();
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken {
            return;
        }
        for (link, of) in state.links.iter().enumerate() {
            let is_posted =
                end(link).is_none_or(|(switch, endpoint)| state.switches[switch].posted[endpoint] > 0);
            if !of.letters.is_empty() && is_posted {
                // What arrives at a rank concerns only this rank: no other order matters.
                if end(link).is_none() {
                    *actions = vec![Action::Deliver(link)];
                    return;
                }
                actions.push(Action::Deliver(link));
            }
            if !of.unacknowledged.is_empty() {
                actions.push(Action::Acknowledge(link));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Deliver(link) => {
                let (slot, letter) = state.links[link].letters.remove(0);
                // A rank's own messages need no acknowledgement here.
                let is_of_rank = link >= 4 && link % 2 == 1;
                if !is_of_rank {
                    state.links[link].unacknowledged.push(slot);
                }
                self.arrive(&mut state, link, letter);
            }
            Action::Acknowledge(link) => {
                let slot = state.links[link].unacknowledged.remove(0);
                // The end of a link in the other direction is where it comes from.
                if let Some((index, endpoint)) = end(link ^ 1)
                    && let Some(to) = EndpointId::new(endpoint)
                {
                    state.switches[index].machine.acknowledged(Nanos::ZERO, to, slot);
                    self.work(&mut state, index);
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("C1: each message as it must be, in order", |_, s: &State| {
                !s.broken
            }),
            Property::always(
                "C2: every final state has the results",
                |model: &Self, s: &State| {
                    let mut actions = Vec::new();
                    model.actions(s, &mut actions);
                    !actions.is_empty() || s.broken || model.is_done(s)
                },
            ),
            Property::sometimes("all is done", |model: &Self, s: &State| model.is_done(s)),
        ]
    }
}
