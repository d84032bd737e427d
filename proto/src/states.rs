//! States of groups, put together from differences.
//!
//! A stream of differences starts with a whole state. Each further message has only the members that have changed, and
//! names the state that it continues.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use crate::v1;
use crate::v1::controller_event::Event;

/// A difference that does not continue the state that is known: the stream has to be opened again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the controller reports what changed in group {group:?} since state {since}, but state {known} is the last one known"
)]
pub struct Gap {
    /// Name of the group.
    pub group: String,
    /// Number of the state that the difference continues.
    pub since: u64,
    /// Number of the last state; 0: none.
    pub known: u64,
}

impl From<Gap> for tonic::Status {
    fn from(gap: Gap) -> Self {
        Self::internal(gap.to_string())
    }
}

/// The parts of a state that differences are about.
#[derive(Debug)]
pub struct Parts<'s> {
    /// Name of the group.
    pub name: &'s str,
    /// All members, or those that have changed.
    pub members: &'s mut Vec<v1::MemberState>,
    /// Number of the state.
    pub number: &'s mut u64,
    /// Absent: the state is whole.
    pub difference: &'s mut Option<v1::Difference>,
}

/// A state of a group of some kind.
pub trait State {
    /// Its parts.
    fn parts(&mut self) -> Parts<'_>;
}

macro_rules! state {
    ($($state:ty),*) => {
        $(impl State for $state {
            fn parts(&mut self) -> Parts<'_> {
                Parts {
                    name: &self.name,
                    members: &mut self.members,
                    number: &mut self.number,
                    difference: &mut self.difference,
                }
            }
        })*
    };
}

state!(v1::GroupState, v1::CollectiveState);

/// The whole state of a group, from a stream of differences.
#[derive(Debug)]
pub struct Assembled<S>(Option<S>);

impl<S> Default for Assembled<S> {
    fn default() -> Self {
        Self(None)
    }
}

impl<S: State> Assembled<S> {
    /// Takes in the next message of a stream, and returns the whole state. After a [`Gap`] nothing is known.
    pub fn apply(&mut self, mut message: S) -> Result<&S, Gap> {
        let Parts {
            name,
            members,
            difference,
            ..
        } = message.parts();
        if let Some(v1::Difference {
            since,
            gone,
            positions,
        }) = difference.take()
        {
            let mut before = self.0.take();
            let before = before.as_mut().map(State::parts);
            let known = before.as_ref().map_or(0, |parts| *parts.number);
            let gap = || Gap {
                group: name.to_owned(),
                since,
                known,
            };
            let before = before.filter(|_| known == since).ok_or_else(gap)?;
            let mut all = take(before.members);
            if !gone.is_empty() {
                let gone: BTreeSet<String> = gone.into_iter().collect();
                all.retain(|member| !gone.contains(&member.host));
            }
            for (position, member) in positions.into_iter().zip(take(members)) {
                *all.get_mut(position as usize).ok_or_else(gap)? = member;
            }
            *members = all;
        }
        Ok(self.0.insert(message))
    }
}

/// The groups that a stream of events is about.
#[derive(Debug, Default)]
pub struct WatchedGroups {
    multicast: BTreeMap<String, Assembled<v1::GroupState>>,
    collective: BTreeMap<String, Assembled<v1::CollectiveState>>,
}

impl WatchedGroups {
    /// The next event of a stream, with the whole state of its group.
    pub fn complete(&mut self, mut event: v1::ControllerEvent) -> Result<v1::ControllerEvent, Gap> {
        event.event = match event.event {
            Some(Event::Group(state)) => {
                let group = self.multicast.entry(state.name.clone()).or_default();
                Some(Event::Group(group.apply(state)?.clone()))
            }
            Some(Event::Collective(state)) => {
                let group = self.collective.entry(state.name.clone()).or_default();
                Some(Event::Collective(group.apply(state)?.clone()))
            }
            Some(Event::GroupGone(name)) => {
                self.multicast.remove(&name);
                self.collective.remove(&name);
                Some(Event::GroupGone(name))
            }
            other => other,
        };
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(number: u64, hosts: &[&str]) -> v1::GroupState {
        let member = |host: &&str| v1::MemberState {
            host: (*host).into(),
            ..Default::default()
        };
        v1::GroupState {
            name: "g".into(),
            number,
            members: hosts.iter().map(member).collect(),
            ..Default::default()
        }
    }

    fn since(since: u64, gone: &[&str], positions: &[u32]) -> Option<v1::Difference> {
        Some(v1::Difference {
            since,
            gone: gone.iter().map(|host| (*host).into()).collect(),
            positions: positions.to_vec(),
        })
    }

    #[test]
    fn members_change_and_go_and_the_rest_of_the_state_is_new() {
        let mut group = Assembled::default();
        assert_eq!(
            group.apply(state(1, &["a", "b", "c"])),
            Ok(&state(1, &["a", "b", "c"]))
        );
        let mut next = state(4, &["C"]);
        (next.reason, next.difference) = ("new".into(), since(1, &["a"], &[1]));
        let mut whole = state(4, &["b", "C"]);
        whole.reason = "new".into();
        assert_eq!(group.apply(next), Ok(&whole));
    }

    #[test]
    fn a_difference_since_another_state_or_about_an_unknown_member_is_a_gap() {
        for (number, positions) in [(2, vec![0]), (1, vec![1])] {
            let mut group = Assembled::default();
            group.apply(state(1, &["a"])).unwrap();
            let mut next = state(3, &["A"]);
            next.difference = since(number, &[], &positions);
            let gap = group.apply(next.clone()).unwrap_err();
            assert_eq!((gap.group.as_str(), gap.since, gap.known), ("g", number, 1));
            // Nothing is known then, but a whole state is taken.
            assert_eq!(group.apply(next).unwrap_err().known, 0);
            assert!(group.apply(state(3, &["A"])).is_ok());
        }
    }

    #[test]
    fn a_group_that_comes_again_under_the_same_name_is_another_one() {
        let mut groups = WatchedGroups::default();
        let event = |event| v1::ControllerEvent {
            at_unix_ns: 0,
            event: Some(event),
        };
        groups.complete(event(Event::Group(state(1, &["a"])))).unwrap();
        groups.complete(event(Event::GroupGone("g".into()))).unwrap();
        let mut next = state(2, &["a"]);
        next.difference = since(1, &[], &[0]);
        assert!(groups.complete(event(Event::Group(next))).is_err());
    }
}
