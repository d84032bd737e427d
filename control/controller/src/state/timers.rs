//! What is due when: in groups, and of multicast routes. What takes a long look is handed to the tasks that look when something has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::state::{Core, Effect, multicast_routes};

/// What is done at once when it is due: others use the lock in between.
const DUE_TOGETHER: usize = 64;

/// Whose call has ended. It is waited for until its lease is over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leased {
    Rank(u16),
    Host(String),
}

/// What is due in a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// Its phase has lasted as long as it may.
    Phase,
    Lease(Leased),
    /// A link of its tree has been down for long enough.
    Links,
    /// This switch has not said again that a collective stalls.
    Stall(String),
    /// The next step of the work on it.
    Work,
    /// Calls of its ranks have begun or ended, and watchers do not know it yet.
    Event,
}

/// Whose timer it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The first of its own timers.
    Group(String),
    /// A relay has been silent for long enough.
    Relays,
    /// Addresses that no group uses any more.
    Routes,
}

/// Times, one at most for each key.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    times: BTreeMap<K, Instant>,
    in_order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            times: BTreeMap::new(),
            in_order: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> Timers<K> {
    /// In place of the time that it had.
    pub(crate) fn set(&mut self, key: K, at: Instant) {
        self.cancel(&key);
        self.in_order.insert((at, key.clone()));
        self.times.insert(key, at);
    }

    /// Returns whether it had a time.
    pub(crate) fn cancel(&mut self, key: &K) -> bool {
        let known = self.times.remove_entry(key);
        known.is_some_and(|(key, at)| self.in_order.remove(&(at, key)))
    }

    pub(crate) fn time(&self, key: &K) -> Option<Instant> {
        self.times.get(key).copied()
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }

    /// Takes what is due first.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<K> {
        if self.first()? > now {
            return None;
        }
        let (_, key) = self.in_order.pop_first()?;
        self.times.remove(&key);
        Some(key)
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.times.keys()
    }
}

impl Core {
    /// When [`Core::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// Does what is due, or some of it if that is much.
    pub(crate) fn handle_timeout(&mut self) {
        for _ in 0..DUE_TOGETHER {
            match self.timers.pop(self.now) {
                Some(Owner::Group(name)) => self.due_in_group(&name),
                Some(Owner::Relays) => self.effects.push(Effect::FabricChanged),
                Some(Owner::Routes) => multicast_routes::sweep(self),
                None => return,
            }
        }
    }

    fn due_in_group(&mut self, name: &str) {
        let now = self.now;
        let due = self.groups.get_mut(name).and_then(|entry| entry.timers.pop(now));
        self.follow_timers(name);
        match due {
            Some(Due::Phase) => self.phase_over(name),
            Some(Due::Lease(Leased::Rank(rank))) => self.rank_lease_over(name, rank),
            Some(Due::Lease(Leased::Host(host))) => self.host_lease_over(name, &host),
            Some(Due::Links) => {
                self.links_changed.groups.insert(name.into());
                self.effects.push(Effect::FabricChanged);
            }
            Some(Due::Stall(switch)) => self.stall_over(name, &switch),
            Some(Due::Work) => self.work_due(name),
            Some(Due::Event) => self.notify(name),
            None => {}
        }
    }

    /// Sets a timer of a group in place of the one that it had.
    pub(crate) fn set_timer(&mut self, group: &str, due: Due, pause: Duration) {
        let at = self.now + pause;
        if let Some(entry) = self.groups.get_mut(group) {
            entry.timers.set(due, at);
            self.follow_timers(group);
        }
    }

    pub(crate) fn has_timer(&self, group: &str, due: &Due) -> bool {
        let entry = self.groups.get(group);
        entry.is_some_and(|entry| entry.timers.time(due).is_some())
    }

    pub(crate) fn cancel_timer(&mut self, group: &str, due: &Due) {
        // Mostly there is none, and what is seen of the group stays as it is.
        if !self.has_timer(group, due) {
            return;
        }
        if let Some(entry) = self.groups.get_mut(group) {
            entry.timers.cancel(due);
            self.follow_timers(group);
        }
    }

    /// The first time of a group is the one of it that counts.
    pub(crate) fn follow_timers(&mut self, group: &str) {
        let first = self.groups.get(group).and_then(|entry| entry.timers.first());
        let owner = Owner::Group(group.into());
        match first {
            Some(at) if self.timers.time(&owner) == Some(at) => {}
            Some(at) => self.timers.set(owner, at),
            None => drop(self.timers.cancel(&owner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::core::tests::{core, join, write};

    #[test]
    fn what_is_due_comes_in_order_and_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        for (key, ms) in [("a", 5), ("b", 3), ("c", 3), ("a", 1), ("d", 2)] {
            timers.set(key, at(ms));
        }
        assert!(timers.cancel(&"d") && !timers.cancel(&"d"));
        assert_eq!((timers.first(), timers.time(&"a")), (Some(at(1)), Some(at(1))));
        assert_eq!(timers.pop(at(0)), None);
        let mut due = std::iter::from_fn(|| timers.pop(at(3)));
        assert_eq!(due.by_ref().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((timers.first(), timers.time(&"a")), (None, None));
    }

    /// A store that fails takes back what was made, and what was forgotten is there again.
    #[test]
    fn timers_are_those_of_the_groups_that_are_there() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let lease = Due::Lease(Leased::Rank(0));
        let due = |core: &mut Core| {
            core.set_timer("job", lease.clone(), Duration::from_secs(1));
            core.poll_timeout()
        };
        assert!(due(&mut core).is_some());
        let mut batch = core.journal.take(|_| None).expect("it was made");
        core.take_back(&mut batch);
        assert_eq!(core.poll_timeout(), None);

        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        write(&mut core);
        let ends = due(&mut core);
        core.forget("job").unwrap();
        assert_eq!(core.poll_timeout(), None);
        let mut batch = core.journal.take(|_| None).expect("it was forgotten");
        core.take_back(&mut batch);
        assert_eq!(core.poll_timeout(), ends);
    }

    /// The lock is free in between; nothing is forgotten.
    #[test]
    fn much_that_is_due_is_done_in_parts() {
        let mut core = core(|_| {});
        let many = DUE_TOGETHER + 1;
        for n in 0..many {
            core.timers.set(Owner::Group(format!("gone{n}")), core.now);
        }
        core.handle_timeout();
        assert_eq!(core.timers.keys().count(), many - DUE_TOGETHER);
        assert_eq!(core.poll_timeout(), Some(core.now));
        core.handle_timeout();
        assert_eq!(core.poll_timeout(), None);
    }
}
