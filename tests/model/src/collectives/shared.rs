//! What many states of a run have in common: states of single switches, and their reactions. There are far fewer of them than states of the
//! tree. So each is computed once, and a state only refers to it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use super::message::Message;
use super::nodes::{Step, Switch};

/// A switch in a state of the model, hashed once. Two with the same hash are taken for equal, as states are by the checker.
#[derive(Clone, Debug)]
pub struct SharedSwitch(Arc<(u64, Switch)>);

impl SharedSwitch {
    /// Shares a switch.
    pub fn new(switch: Switch) -> Self {
        let mut hasher = DefaultHasher::new();
        switch.hash(&mut hasher);
        Self(Arc::new((hasher.finish(), switch)))
    }

    /// The switch.
    pub fn get(&self) -> &Switch {
        &self.0.1
    }
}

impl PartialEq for SharedSwitch {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl Eq for SharedSwitch {}

impl Hash for SharedSwitch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.0);
    }
}

/// By switch, link and message.
type Known = HashMap<(SharedSwitch, usize, Message), (SharedSwitch, Step)>;

/// The reactions of switches to messages: each is computed once in a run.
#[derive(Clone, Debug, Default)]
pub struct Reactions(Arc<[Mutex<Known>; Self::SHARDS]>);

impl Reactions {
    /// Each has a lock of its own, so that threads seldom wait.
    const SHARDS: usize = 16;

    /// The switch after a message on a link, and what it sends.
    pub fn get(
        &self,
        (switch, link, message): (&SharedSwitch, usize, &Message),
        compute: impl FnOnce(&mut Switch) -> Step,
    ) -> (SharedSwitch, Step) {
        let key = (switch.clone(), link, *message);
        let shard = &self.0[switch.0.0 as usize % Self::SHARDS];
        let known = shard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .cloned();
        known.unwrap_or_else(|| {
            let mut after = switch.get().clone();
            let step = compute(&mut after);
            let reaction = (SharedSwitch::new(after), step);
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.insert(key, reaction.clone());
            reaction
        })
    }
}
