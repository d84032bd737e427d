//! Algorithm 1, and the static rules that follow from it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Shufflecast, Tor, Update};

impl Shufflecast {
    /// Algorithm 1: the next ToR on the route from `source` to `dest`, at `current`. Without an end: it leads on from
    /// `dest` too.
    pub fn next_relay(self, source: Tor, dest: Tor, current: Tor) -> Tor {
        let k = self.k;
        let x = match self.columns_between(current, dest) {
            0 => k,
            between => between,
        };
        // The digits of `dest` from r_x on are those that `current` has left after x shifts.
        let is_ahead = self.row(dest) / self.power(x) == self.row(current) % self.power(k - x);
        let digit = match is_ahead {
            true => self.digit(dest, x - 1),
            false => self.digit(source, k - 1 - self.columns_between(source, current)),
        };
        self.next(current, digit)
    }

    /// The route of Algorithm 1, with both ends; at most `2k` ToRs (lemma 3.1).
    pub fn route(self, source: Tor, dest: Tor) -> Vec<Tor> {
        let mut route = vec![source];
        let mut current = source;
        // The bound is that of the lemma: the loop ends even if the lemma were wrong.
        while current != dest && route.len() < 2 * self.k {
            current = self.next_relay(source, dest, current);
            route.push(current);
        }
        route
    }

    /// Whether `relay` sends the multicast of `source` to its splitter by the static rules: if its partition is the digit
    /// of the source for this column (lemma 3.2). It is so for the source itself.
    pub fn is_relay(self, relay: Tor, source: Tor) -> bool {
        self.partition(relay) == self.digit(source, self.k - 1 - self.columns_between(source, relay))
    }

    /// The relays of a source by the static rules, itself among them: a partition of each column.
    fn relays(self, source: Tor) -> impl Iterator<Item = Tor> {
        let partition = self.power(self.k - 1);
        (0..self.k).flat_map(move |columns| {
            let column = (self.column(source) + columns) % self.k;
            let first = self.digit(source, self.k - 1 - columns) * partition;
            (first..first + partition).map(move |row| self.at(column, row))
        })
    }

    /// `p` ToRs of the column of `tor`, itself first, that multicast at line rate at once: no two share a digit, so none
    /// shares a relay (lemma 3.3).
    pub fn at_line_rate(self, tor: Tor) -> impl ExactSizeIterator<Item = Tor> {
        (0..self.p).map(move |j| {
            let digits = (0..self.k).map(|i| (self.digit(tor, i) + j) % self.p * self.power(i));
            self.at(self.column(tor), digits.sum())
        })
    }
}

/// The rules of all ToRs: for which source ToRs each relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relaying {
    pub(super) fabric: Shufflecast,
    /// By source, the relays whose rule is not the static one. The static rules of 65,536 ToRs would be tens of millions.
    changed: BTreeMap<Tor, BTreeSet<Tor>>,
}

impl Relaying {
    /// The static rules (3.2.1).
    pub fn of(fabric: Shufflecast) -> Self {
        Self {
            fabric,
            changed: BTreeMap::new(),
        }
    }

    /// Whether `relay` sends the multicast of `source` to its splitter. The rule for the own servers of a ToR is that for
    /// itself as source: what comes back to it from a splitter after `k` hops must not match.
    pub fn is_relay(&self, relay: Tor, source: Tor) -> bool {
        let is_changed = self.changed.get(&source).is_some_and(|set| set.contains(&relay));
        self.fabric.is_relay(relay, source) != is_changed
    }

    /// The sources for which a ToR has a rule: `k * p^(k-1)` by the static rules, itself among them (3.2.1).
    pub fn sources(&self, relay: Tor) -> impl Iterator<Item = Tor> {
        let sources = self.fabric.tors();
        sources.filter(move |source| self.is_relay(relay, *source))
    }

    /// The ToRs that have a rule for a source, itself among them, in no order: as many as a ToR has rules.
    pub fn relays(&self, source: Tor) -> impl Iterator<Item = Tor> {
        let changed = self.changed.get(&source);
        let is_changed = move |relay: &Tor| changed.is_some_and(|set| set.contains(relay));
        let kept = self.fabric.relays(source).filter(move |relay| !is_changed(relay));
        let added = changed.into_iter().flatten().copied();
        kept.chain(added.filter(move |relay| !self.fabric.is_relay(*relay, source)))
    }

    /// Carries out an update. What it activates twice or deactivates twice stays as it is.
    pub fn apply(&mut self, update: &Update) {
        for (rules, is_active) in [(&update.deactivated, false), (&update.activated, true)] {
            for (relay, sources) in rules {
                for source in sources {
                    let changed = self.changed.entry(*source).or_default();
                    match self.fabric.is_relay(*relay, *source) == is_active {
                        true => changed.remove(relay),
                        false => changed.insert(*relay),
                    };
                }
            }
        }
        self.changed.retain(|_, relays| !relays.is_empty());
    }
}
