//! A network that forgets nothing: safety whatever is lost, repeated, late, reordered or sent again.
//!
//! Whatever was once sent may arrive at any time, any number of times, or never. Then nothing need be remembered of the
//! hosts. The source may send any packet at any time, asking or not. A receiver that got all packets up to some position
//! could have said, at some time, the ACK of each of them, and have refused each of them and the next; so it may say any of
//! that now. This allows more than any hosts do, and with it all that rxe does.

use crate::fabric::{End, Fabric, SWITCHES, Topology};
use crate::message::{Answer, Message, MessageSet, PACKETS};
use crate::switch::{Arrival, Outcome, Rule, Spoil, Switches};
use stateright::{Model, Property};

/// Any number of restarts.
pub const ANY: u8 = u8::MAX;

/// Bounds of one run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The switches.
    pub topology: Topology,
    /// How often switches may lose their state, at any time; [`ANY`] for any number of times.
    pub restarts: u8,
    /// How receivers refuse.
    pub refusals: &'static [Answer],
    /// A fault put in on purpose.
    pub spoil: Spoil,
}

/// The model.
#[derive(Clone)]
pub struct Hostile {
    config: Config,
    fabric: Fabric,
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    switches: Switches,
    /// By switch, the packets that it has ever sent down: bit `i` for packet `i`. It sends a new one by all paths.
    down: [u8; SWITCHES],
    /// By switch, what it has ever said upwards.
    up: [MessageSet; SWITCHES],
    restarts: u8,
    broken: Option<Rule>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Something arrives at a switch.
    Arrive {
        /// The switch.
        index: usize,
        /// The path.
        path: usize,
        /// The message.
        message: Message,
        /// Of data: whether it asks for an ACK.
        asks: bool,
    },
    /// A switch loses its state.
    Restart {
        /// The switch.
        index: usize,
    },
}

impl Hostile {
    /// The model of a run.
    pub fn new(config: Config) -> Self {
        Self {
            fabric: Fabric::new(config.topology),
            config,
        }
    }

    /// The packets that may arrive at a switch from above.
    fn above(&self, state: &State, index: usize) -> u8 {
        match self.fabric.peer(End::Switch {
            index,
            path: self.fabric.up(index),
        }) {
            End::Switch { index, .. } => state.down[index],
            _ => (1 << PACKETS) - 1,
        }
    }

    /// The feedback that may arrive at a switch by a path from below.
    fn below(&self, state: &State, index: usize, path: usize) -> MessageSet {
        if let End::Switch { index, .. } = self.fabric.peer(End::Switch { index, path }) {
            return state.up[index];
        }
        let expected = state.down[index].trailing_ones() as u8;
        let mut set = MessageSet::default();
        for at in 0..expected {
            set.insert(Message::Feedback(Answer::Ack, at));
        }
        // It refuses what has come, or what something later has shown to be missing.
        let newest = u8::BITS as u8 - state.down[index].leading_zeros() as u8;
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
            down: [0; SWITCHES],
            up: [MessageSet::default(); SWITCHES],
            restarts: self.config.restarts,
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
            let above = self.above(state, index);
            for at in (0..PACKETS).filter(|at| above >> at & 1 != 0) {
                let (path, message) = (self.fabric.up(index), Message::Data(at));
                actions.extend([false, true].map(|asks| Action::Arrive {
                    index,
                    path,
                    message,
                    asks,
                }));
            }
            for path in self.fabric.downs(index).iter().copied() {
                let below = self.below(state, index, path).messages();
                actions.extend(below.map(|message| Action::Arrive {
                    index,
                    path,
                    message,
                    asks: false,
                }));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let (index, path, message, asks) = match action {
            Action::Arrive {
                index,
                path,
                message,
                asks,
            } => (index, path, message, asks),
            Action::Restart { index } => {
                if self.config.restarts != ANY {
                    state.restarts -= 1;
                }
                state.switches.restart(&self.fabric, self.config.spoil, index);
                return (state != *before).then_some(state);
            }
        };
        // Each packet is a message of its own.
        let arrival = Arrival {
            index,
            path,
            message,
            asks,
            message_ends: u8::MAX,
        };
        let Outcome { sent, broken, .. } = state.switches.arrive(&self.fabric, self.config.spoil, arrival);
        state.broken = broken;
        for (_, message) in sent {
            match message {
                Message::Data(at) => state.down[index] |= 1 << at,
                // What the source hears has no effect here.
                Message::Feedback(..) if index == 0 => {}
                Message::Feedback(..) => state.up[index].insert(message),
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
                "M3: a packet goes exactly to those that lack it",
                |_, s: &State| s.broken != Some(Rule::M3),
            ),
            Property::always("the MSN is that of the slowest", |_, s: &State| {
                s.broken != Some(Rule::Msn)
            }),
            Property::always("no message out of place", |_, s: &State| {
                s.broken != Some(Rule::Sense)
            }),
            Property::sometimes(
                "every path of every switch has acknowledged all",
                |model: &Self, s: &State| {
                    let all = |index: usize| {
                        let mut downs = model.fabric.downs(index).iter();
                        downs.all(|path| s.switches.acknowledged[index][*path] == PACKETS)
                    };
                    (0..model.fabric.switches()).all(all)
                },
            ),
        ]
    }
}
