//! A simple exploration, compared in tests with the checker and with the reductions of [`crate::bounded`] and [`crate::collectives`].

use stateright::Model;
use std::collections::hash_map::{DefaultHasher, Entry, HashMap};
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};

/// A state of switches and hosts.
pub trait Parts {
    /// The rules of its model.
    type Rule;

    /// The rule that the path to this state violated.
    fn broken(&self) -> Option<Self::Rule>;

    /// Calls `each` with a hash of each switch and host, without messages in flight and remaining faults.
    fn parts(&self, each: impl FnMut(DefaultHasher));
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Found<Rule> {
    /// Number of different states.
    pub unique: usize,
    /// True if a state is reachable from itself.
    pub cycle: bool,
    /// States of each single switch and host, independent of the others.
    pub local: BTreeSet<u64>,
    /// Joint states of switches and hosts in final states.
    pub ends: BTreeSet<u64>,
    /// Violated rules.
    pub broken: BTreeSet<Rule>,
}

/// Explores all states, depth first.
pub fn explore<M>(model: &M) -> Found<<M::State as Parts>::Rule>
where
    M: Model,
    M::State: Parts + Hash,
    <M::State as Parts>::Rule: Ord,
{
    let mut found = Found {
        unique: 0,
        cycle: false,
        local: BTreeSet::new(),
        ends: BTreeSet::new(),
        broken: BTreeSet::new(),
    };
    let mut cycle = false;
    // True while the state is on the current path.
    let mut open: HashMap<u64, bool> = HashMap::new();
    let mut path: Vec<(u64, Vec<M::State>)> = Vec::new();
    let (mut local, mut ends) = (HashSet::new(), HashSet::new());
    let mut enter = |state: &M::State, print: u64, path: &mut Vec<(u64, Vec<M::State>)>| {
        let next = model.next_states(state);
        found.broken.extend(state.broken());
        // A state that violates a rule has no successors.
        if state.broken().is_none() {
            state.parts(|part| _ = local.insert(part.finish()));
            if next.is_empty() {
                let mut all = DefaultHasher::new();
                state.parts(|part| all.write_u64(part.finish()));
                ends.insert(all.finish());
            }
        }
        path.push((print, next));
    };
    for state in model.init_states() {
        let print = fingerprint(&state);
        open.insert(print, true);
        enter(&state, print, &mut path);
        while let Some((print, rest)) = path.last_mut() {
            let Some(next) = rest.pop() else {
                open.insert(*print, false);
                path.pop();
                continue;
            };
            let print = fingerprint(&next);
            match open.entry(print) {
                Entry::Occupied(entry) => cycle |= *entry.get(),
                Entry::Vacant(entry) => {
                    entry.insert(true);
                    enter(&next, print, &mut path);
                }
            }
        }
    }
    found.unique = open.len();
    found.cycle = cycle;
    found.local = local.into_iter().collect();
    found.ends = ends.into_iter().collect();
    found
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
