//! Algorithm 2: the rules after the failure of a single relay.

use std::collections::{BTreeMap, BTreeSet};

use super::{Relaying, Shufflecast, Tor};

/// Changes of the rules of ToRs: by relay, the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Rules that are removed.
    pub deactivated: BTreeMap<Tor, BTreeSet<Tor>>,
    /// Rules that are added.
    pub activated: BTreeMap<Tor, BTreeSet<Tor>>,
}

impl Update {
    /// Number of rules that are removed or added.
    pub fn rules(&self) -> usize {
        let rules = self.deactivated.values().chain(self.activated.values());
        rules.map(BTreeSet::len).sum()
    }

    /// The relays whose rules change.
    pub fn tors(&self) -> impl Iterator<Item = Tor> {
        let tors = self.deactivated.keys().chain(self.activated.keys());
        tors.copied()
    }

    fn rewire(&mut self, from: Tor, to: Tor, source: Tor) {
        self.deactivated.entry(from).or_default().insert(source);
        self.activated.entry(to).or_default().insert(source);
    }
}

impl Shufflecast {
    /// Algorithm 2: what changes if `failed` no longer sends to its splitter. Its mirror relays for its sources instead.
    /// The mirror would receive nothing from those sources whose multicast reaches its column only through `failed`;
    /// for these, `k - 1` in number, the precedent relay of the mirror makes way for its own mirror.
    ///
    /// The update holds against the static rules: of two failed relays, the algorithm repairs one.
    pub fn recovery(self, failed: Tor) -> Update {
        let mirror = self.mirror(failed);
        let mut update = Update::default();
        for source in Relaying::of(self).sources(failed) {
            update.rewire(failed, mirror, source);
        }
        let precedent = self.previous(mirror, self.digit(failed, 0));
        let mut source = failed;
        for _ in 1..self.k {
            // n_i: one column back, row shifted to the right in a circle.
            source = self.previous(source, self.digit(source, 0));
            update.rewire(precedent, self.mirror(precedent), source);
        }
        update
    }
}
