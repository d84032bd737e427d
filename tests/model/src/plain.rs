//! The plainest exploration there is, to hold the checker and the reduction of [`crate::bounded`] against.

use crate::bounded::{Bounded, State};
use crate::switch::Rule;
use stateright::Model;
use std::collections::hash_map::{DefaultHasher, Entry, HashMap};
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};

/// What an exploration found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Different states.
    pub unique: usize,
    /// Whether a state can come back to itself.
    pub cycle: bool,
    /// States that each switch and each host was in, whatever the others were in.
    pub local: BTreeSet<u64>,
    /// What switches and hosts know together where nothing is left to do.
    pub ends: BTreeSet<u64>,
    /// What was broken.
    pub broken: BTreeSet<Rule>,
}

/// Explores all, depth first.
pub fn explore(model: &Bounded) -> Found {
    let mut found = Found::default();
    let mut cycle = false;
    // True while the state is on the path that is being walked.
    let mut open: HashMap<u64, bool> = HashMap::new();
    let mut path: Vec<(u64, Vec<State>)> = Vec::new();
    let (mut local, mut ends) = (HashSet::new(), HashSet::new());
    let mut enter = |state: &State, print: u64, path: &mut Vec<(u64, Vec<State>)>| {
        let next = model.next_states(state);
        found.broken.extend(state.broken());
        // What a step broke on its way is not a state that goes on.
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
