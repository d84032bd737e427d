//! A network that keeps every message: safety under any losses, repetitions, delays, reorderings and retransmissions.
//!
//! A message that was sent may arrive at any time, any number of times, or never. So the state of hosts need not be
//! stored. The source may send any packet at any time, with or without an ACK request. A receiver that got all
//! packets up to a position could have sent an ACK of each of them, and a refusal of each of them and of the next; so
//! each of these may arrive now. This allows more than hosts can do, including everything that rxe does.

use crate::fabric::{End, Fabric, PATHS, SWITCHES, Topology};
use crate::message::{Answer, Message, MessageSet};
use crate::switch::{Arrival, Fault, Outcome, Rule, Setup, Switches};
use stateright::{Model, Property};

/// Unlimited restarts.
pub const ANY: u8 = u8::MAX;
/// Ticks until a switch has repeated everything that it repeats for a silent path.
const TICKS_MAX: usize = 16;

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The switches.
    pub topology: Topology,
    /// Number of packets.
    pub packets: u8,
    /// Slots of the ring of each switch; 0 where the source repairs.
    pub slots: u16,
    /// How often switches that repair may send because of a tick.
    pub ticks: u8,
    /// How often switches may lose their state, at any time; [`ANY`] for no limit.
    pub restarts: u8,
    /// Kinds of refusals that receivers use.
    pub refusals: &'static [Answer],
    /// A deliberate fault.
    pub fault: Fault,
}

/// The model of a run.
#[derive(Clone)]
pub struct Hostile {
    config: Config,
    fabric: Fabric,
}

/// State of the switches, and the messages sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    switches: Switches,
    /// By switch and path, the packets that it has sent there: bit `i` for packet `i`.
    down: [[u8; PATHS]; SWITCHES],
    /// By switch, the feedback and the requests that it has sent up.
    up: [MessageSet; SWITCHES],
    restarts: u8,
    ticks: u8,
    broken: Option<Rule>,
}

/// A possible next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A message arrives at a switch.
    Arrive {
        /// Index of the switch.
        index: usize,
        /// Index of the path.
        path: usize,
        /// The message.
        message: Message,
    },
    /// Timers of a switch expire until it sends something.
    Tick {
        /// Index of the switch.
        index: usize,
    },
    /// A switch loses its state.
    Restart {
        /// Index of the switch.
        index: usize,
    },
}

impl Hostile {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        Self {
            fabric: Fabric::new(config.topology, config.slots),
            config,
        }
    }

    /// Packets that may arrive at a switch from above.
    fn above(&self, state: &State, index: usize) -> u8 {
        match self.fabric.peer(End::Switch {
            index,
            path: self.fabric.up(index),
        }) {
            End::Switch { index, path } => state.down[index][path],
            _ => (1 << self.config.packets) - 1,
        }
    }

    /// Feedback that may arrive at a switch by a path from below.
    fn below(&self, state: &State, index: usize, path: usize) -> MessageSet {
        if let End::Switch { index, .. } = self.fabric.peer(End::Switch { index, path }) {
            return state.up[index];
        }
        let arrived = state.down[index][path];
        let expected = arrived.trailing_ones() as u8;
        let mut set = MessageSet::default();
        for at in 0..expected {
            set.insert(Message::Feedback(Answer::Ack, at));
        }
        // A receiver may refuse a packet that has arrived, or that a later one has shown to be missing.
        let newest = u8::BITS as u8 - arrived.leading_zeros() as u8;
        for at in 0..(expected + 1).min(newest) {
            for answer in self.config.refusals {
                set.insert(Message::Feedback(*answer, at));
            }
        }
        set
    }
}

impl Model for Hostile {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let switches = Switches::new(&self.fabric);
        vec![State {
            switches,
            down: [[0; PATHS]; SWITCHES],
            up: [MessageSet::default(); SWITCHES],
            restarts: self.config.restarts,
            ticks: self.config.ticks,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for index in 0..self.fabric.switches() {
            if state.restarts > 0 {
                actions.push(Action::Restart { index });
            }
            if state.ticks > 0 {
                actions.push(Action::Tick { index });
            }
            let above = self.above(state, index);
            for at in (0..self.config.packets).filter(|at| above >> at & 1 != 0) {
                let path = self.fabric.up(index);
                actions.extend([false, true].map(|asks| Action::Arrive {
                    index,
                    path,
                    message: Message::Data(at, asks),
                }));
            }
            for path in self.fabric.downs(index).iter().copied() {
                let below = self.below(state, index, path).messages();
                actions.extend(below.map(|message| Action::Arrive { index, path, message }));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let setup = Setup {
            fabric: &self.fabric,
            fault: self.config.fault,
            packets: self.config.packets,
            window: 0,
            // Each packet is a separate message.
            message_ends: u8::MAX,
        };
        let (index, outcome) = match action {
            Action::Arrive { index, path, message } => {
                let arrival = Arrival { index, path, message };
                (index, state.switches.arrive(&setup, arrival))
            }
            Action::Tick { index } => {
                state.ticks -= 1;
                let mut outcomes = (0..TICKS_MAX).map(|_| state.switches.tick(&setup, index));
                (index, outcomes.find(|outcome| !outcome.sent.is_empty())?)
            }
            Action::Restart { index } => {
                if self.config.restarts != ANY {
                    state.restarts -= 1;
                }
                state.switches.restart(&self.fabric, self.config.fault, index);
                return (state != *before).then_some(state);
            }
        };
        let Outcome { sent, broken, .. } = outcome;
        state.broken = broken;
        for (path, message) in sent {
            match message {
                Message::Data(at, _) => state.down[index][path] |= 1 << at,
                // Feedback at the source has no effect in this model.
                Message::Feedback(..) | Message::Resend(_) if index == 0 => {}
                Message::Cnp | Message::Bridged(..) | Message::Source(..) => {}
                Message::Feedback(..) | Message::Resend(_) => state.up[index].insert(message),
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("M1: ACK(p) only after all have acknowledged p", |_, s: &State| {
                s.broken != Some(Rule::M1)
            }),
            Property::always("M2: NAK(e) only after all have all below e", |_, s: &State| {
                s.broken != Some(Rule::M2)
            }),
            Property::always(
                "M3: a packet is sent exactly to the paths that lack it",
                |_, s: &State| s.broken != Some(Rule::M3),
            ),
            Property::always("the MSN is that of the slowest path", |_, s: &State| {
                s.broken != Some(Rule::Msn)
            }),
            Property::always("every message is expected where it arrives", |_, s: &State| {
                s.broken != Some(Rule::Sense)
            }),
            Property::sometimes(
                "every path of every switch has acknowledged everything",
                |model: &Self, s: &State| {
                    let all = |index: usize| {
                        let mut downs = model.fabric.downs(index).iter();
                        downs.all(|path| s.switches.acknowledged[index][*path] == model.config.packets)
                    };
                    (0..model.fabric.switches()).all(all)
                },
            ),
        ]
    }
}
