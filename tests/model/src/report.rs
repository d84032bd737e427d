//! Runs the checker and reports its results.

use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the run.
    pub name: String,
    /// Number of states reached, with repetitions.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// Length of the longest path.
    pub depth: usize,
    /// Duration.
    pub took: Duration,
    /// Violated properties, each with the steps of an example.
    pub faults: BTreeMap<&'static str, Vec<String>>,
    /// States that should have been reached and were not.
    pub unseen: Vec<&'static str>,
}

impl Outcome {
    /// Returns true if no property is violated and all expected states were reached.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.unseen.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            states,
            unique,
            depth,
            took,
            ..
        } = self;
        let seconds = took.as_secs_f64();
        write!(
            f,
            "{name:58} {states:>11} states {unique:>10} unique  depth {depth:>3} {seconds:>7.1} s"
        )?;
        for (property, steps) in &self.faults {
            write!(f, "\n  FALSE: {property}")?;
            for step in steps {
                write!(f, "\n    {step}")?;
            }
        }
        for property in &self.unseen {
            write!(f, "\n  NEVER SEEN: {property}")?;
        }
        Ok(())
    }
}

/// When an exploration stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After all states.
    All,
    /// At the first violation.
    Fault,
}

/// Explores a model depth first: only the path and one number per state are stored.
pub fn explore<M>(name: impl Into<String>, model: M, until: Until, threads: usize) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + Hash + Send + Sync,
    M::Action: Clone + PartialEq + fmt::Debug,
{
    let began = Instant::now();
    let finish = match until {
        Until::All => HasDiscoveries::All,
        Until::Fault => HasDiscoveries::AnyFailures,
    };
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(finish)
        .spawn_dfs()
        .join();
    let discoveries = checker.discoveries();
    let (failures, sights): (Vec<_>, Vec<_>) = checker
        .model()
        .properties()
        .into_iter()
        .partition(|p| p.expectation.discovery_is_failure());
    let faults = failures.iter().filter_map(|p| {
        let path = discoveries.get(p.name)?;
        let steps = path
            .clone()
            .into_actions()
            .iter()
            .map(|action| format!("{action:?}"))
            .collect();
        Some((p.name, steps))
    });
    Outcome {
        name: name.into(),
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        faults: faults.collect(),
        unseen: sights
            .iter()
            .map(|p| p.name)
            .filter(|name| !discoveries.contains_key(name))
            .collect(),
    }
}
