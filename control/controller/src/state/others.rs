//! What switches have that is of no group of this controller.
//!
//! A controller on an empty store knows of no group. Where switches have groups of other controllers, the store may be the wrong one (a
//! mistyped path is enough), and those groups its own. So until an operator says that the store is meant to be new, it creates none, and
//! tells nobody that a group is gone. A controller on a store with groups may be on the wrong one as well: who has joined at another controller
//! is not told by it that its group is gone, before an operator has purged the groups of that one. Rules of this controller that its
//! store does not explain (`unexplained.rs`) are treated like those of others.

use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::McstId;

use crate::state::reconcile::Found;

#[derive(Default)]
pub(crate) struct Others {
    /// The store has no groups, and nobody has said that this is meant.
    is_new: bool,
    /// Switches that have not told yet what they have, while that is of interest.
    unasked: BTreeSet<String>,
    /// By switch; none without any.
    on: BTreeMap<String, On>,
    /// Rules of this controller that its store does not explain, by switch; none without any.
    unexplained: BTreeMap<String, BTreeMap<McstId, Found>>,
    /// Owners whose groups an operator has purged.
    purged: BTreeSet<String>,
    /// Owners that the log has named because their members asked here, with who asked first. A client can invent owners, so their number is
    /// bounded, and that of each client.
    asked_for: BTreeMap<String, String>,
}

/// Most owners in the log.
const ASKED_FOR_MAX: usize = 256;
/// Most of them that one client has named first.
const ASKED_FOR_BY_ONE_MAX: usize = 4;

struct On {
    mcst_ids: BTreeSet<McstId>,
    /// Groups of other owners.
    foreign: usize,
}

impl Others {
    /// `may_be_older`: switches may have groups of this controller that it does not know.
    pub(crate) fn new(is_new: bool, may_be_older: bool, switches: impl Iterator<Item = String>) -> Self {
        Self {
            is_new,
            unasked: switches.filter(|_| is_new || may_be_older).collect(),
            on: BTreeMap::new(),
            unexplained: BTreeMap::new(),
            purged: BTreeSet::new(),
            asked_for: BTreeMap::new(),
        }
    }

    /// Notes what a switch has, all of it: each group's McstID, and whether it is of another owner. Those of this controller are of records
    /// that do not read. Returns whether it is the first sign that the store may be the wrong one.
    pub(crate) fn listed(&mut self, switch: &str, groups: impl Iterator<Item = (McstId, bool)>) -> bool {
        let before = self.wrong_store().is_some();
        let (mut mcst_ids, mut foreign) = (BTreeSet::new(), 0);
        for (mcst_id, is_foreign) in groups {
            mcst_ids.insert(mcst_id);
            foreign += usize::from(is_foreign);
        }
        self.unasked.remove(switch);
        match mcst_ids.is_empty() {
            true => drop(self.on.remove(switch)),
            false => drop(self.on.insert(switch.into(), On { mcst_ids, foreign })),
        }
        // A fabric without groups of others has nothing to lose.
        let is_foreign = |on: &On| on.foreign > 0;
        self.is_new &= !self.unasked.is_empty() || self.has_unexplained() || self.on.values().any(is_foreign);
        !before && self.wrong_store().is_some()
    }

    pub(crate) fn unasked(&self) -> impl Iterator<Item = &String> {
        self.unasked.iter()
    }

    /// An operator has said that the groups of this owner are to go.
    pub(crate) fn purge(&mut self, owner: &str) {
        self.purged.insert(owner.into());
    }

    /// Whether groups that were joined at a controller of another owner are gone. If not, the log names that owner, once.
    pub(crate) fn are_gone(&mut self, owner: &str, asks: &str) -> bool {
        let are_gone = self.purged.contains(owner);
        if !are_gone && self.is_to_be_named(owner, asks) {
            self.asked_for.insert(owner.into(), asks.into());
            tracing::warn!(
                "members of groups of another controller ask this one: start that one again with its store (owner {owner}), or remove \
                 its groups with castnet group purge --owner {owner} --yes"
            );
        }
        are_gone
    }

    /// Whether the log names this owner now.
    fn is_to_be_named(&self, owner: &str, asks: &str) -> bool {
        let by_one = || self.asked_for.values().filter(|first| *first == asks).count();
        !self.asked_for.contains_key(owner)
            && self.asked_for.len() < ASKED_FOR_MAX
            && by_one() < ASKED_FOR_BY_ONE_MAX
    }

    /// Whether a switch has something else at this address.
    pub(crate) fn have(&self, mcst_id: McstId) -> bool {
        self.switch_with(mcst_id).is_some()
    }

    /// The first switch that has something else at this address.
    pub(crate) fn switch_with(&self, mcst_id: McstId) -> Option<&str> {
        let of_others = self.on.iter().find(|(_, on)| on.mcst_ids.contains(&mcst_id));
        let own = || self.unexplained.iter().find(|(_, on)| on.contains_key(&mcst_id));
        let switch = of_others
            .map(|(switch, _)| switch)
            .or_else(|| own().map(|(switch, _)| switch));
        switch.map(String::as_str)
    }

    /// Takes what a switch has of this controller and the store does not explain, all of it, before [`Others::listed`]. Returns addresses
    /// that have nothing of that any more, if anything has changed.
    pub(crate) fn set_unexplained(&mut self, switch: &str, found: Vec<Found>) -> Option<Vec<McstId>> {
        let found: BTreeMap<McstId, Found> = found.into_iter().map(|found| (found.mcst_id, found)).collect();
        let before = self.unexplained.remove(switch).unwrap_or_default();
        let is_news = before != found;
        let gone = before.into_keys().filter(|mcst_id| !found.contains_key(mcst_id));
        let gone = gone.collect();
        if !found.is_empty() {
            self.unexplained.insert(switch.into(), found);
        }
        is_news.then_some(gone)
    }

    /// Such a rule was removed.
    pub(crate) fn forget_unexplained(&mut self, switch: &str, mcst_id: McstId) {
        if let Some(found) = self.unexplained.get_mut(switch) {
            found.remove(&mcst_id);
            if found.is_empty() {
                self.unexplained.remove(switch);
            }
        }
    }

    pub(crate) fn has_unexplained(&self) -> bool {
        !self.unexplained.is_empty()
    }

    pub(crate) fn has_unexplained_at(&self, mcst_id: McstId) -> bool {
        self.unexplained
            .values()
            .any(|found| found.contains_key(&mcst_id))
    }

    pub(crate) fn unexplained_at(&self, switch: &str, mcst_id: McstId) -> Option<&Found> {
        self.unexplained.get(switch)?.get(&mcst_id)
    }

    pub(crate) fn unexplained_on(&self, switch: &str) -> impl Iterator<Item = &Found> {
        self.unexplained
            .get(switch)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    /// The first switch that has such rules of a group.
    pub(crate) fn switch_with_unexplained(&self, group: &str) -> Option<&str> {
        let has = |found: &BTreeMap<McstId, Found>| found.values().any(|found| found.group == group);
        let (switch, _) = self.unexplained.iter().find(|(_, found)| has(found))?;
        Some(switch)
    }

    /// Why the store may be the wrong one.
    pub(crate) fn wrong_store(&self) -> Option<String> {
        let mut of = self.on.iter().filter(|(_, on)| self.is_new && on.foreign > 0);
        let Some((switch, On { foreign, .. })) = of.next() else {
            let (switch, found) = self.unexplained.first_key_value().filter(|_| self.is_new)?;
            return Some(format!(
                "the store of this controller has no groups, but switch {switch} has {} of this controller: start it with the store that \
                 knows them, or with --init to begin a new one beside them",
                found.len()
            ));
        };
        let more = match of.count() {
            0 => String::new(),
            more => format!(", and {more} more switch(es) have some"),
        };
        Some(format!(
            "the store of this controller has no groups, but switch {switch} has {foreign} of other controllers{more}: start it with the \
             store that knows them, or with --init to begin a new one beside them"
        ))
    }

    /// Why a group that the store does not have may exist.
    pub(crate) fn doubt(&self) -> Option<String> {
        self.wrong_store().or_else(|| {
            let switch = self.unasked.first().filter(|_| self.is_new)?;
            let what = "the store of this controller had no groups when it began, and it has not seen yet what switch";
            Some(format!("{what} {switch} has"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[(u8, bool)]) -> impl Iterator<Item = (McstId, bool)> {
        groups
            .iter()
            .map(|(n, is_foreign)| (McstId([10, 200, 0, *n].into()), *is_foreign))
    }

    fn new(is_new: bool) -> Others {
        Others::new(is_new, false, ["s0".to_owned(), "s1".to_owned()].into_iter())
    }

    #[test]
    fn a_store_without_groups_is_new_where_no_switch_has_groups_of_others() {
        let mut others = new(true);
        assert!(others.doubt().unwrap().contains("what switch s0 has"));
        assert!(!others.listed("s0", of(&[])));
        assert!(others.doubt().unwrap().contains("what switch s1 has"));
        assert!(!others.listed("s1", of(&[])));
        assert_eq!(others.doubt(), None);
        // From then on it has told what it created.
        assert!(!others.listed("s1", of(&[(1, true)])));
        assert_eq!(others.doubt(), None);
        assert!(others.have(McstId([10, 200, 0, 1].into())));
    }

    #[test]
    fn groups_of_others_are_a_sign_of_a_wrong_store_until_they_are_gone() {
        let mut others = new(true);
        assert!(others.listed("s1", of(&[(1, true), (2, true), (3, false)])));
        let why = others.wrong_store().unwrap();
        assert!(
            why.contains("switch s1 has 2 of other controllers: start"),
            "{why}"
        );
        assert!(!others.listed("s0", of(&[(1, true)])), "said once");
        assert!(others.doubt().unwrap().contains("and 1 more switch(es)"));
        others.listed("s0", of(&[]));
        others.listed("s1", of(&[(3, false)]));
        assert_eq!(others.doubt(), None);
        let has = |n| others.have(McstId([10, 200, 0, n].into()));
        assert_eq!([1, 2, 3].map(has), [false, false, true]);
        assert_eq!(others.switch_with(McstId([10, 200, 0, 3].into())), Some("s1"));
    }

    /// A copy that was made before the first group.
    #[test]
    fn what_the_store_does_not_explain_is_a_sign_of_a_wrong_store_too() {
        let mut others = new(true);
        let found = |generation| Found {
            mcst_id: McstId([10, 200, 0, 1].into()),
            generation,
            group: "g".into(),
        };
        assert_eq!(others.set_unexplained("s1", vec![found(1)]), Some(Vec::new()));
        assert_eq!(others.set_unexplained("s1", vec![found(1)]), None);
        others.listed("s0", of(&[]));
        others.listed("s1", of(&[]));
        let why = others.wrong_store().unwrap();
        assert!(why.contains("switch s1 has 1 of this controller: start"), "{why}");
        assert_eq!(others.switch_with_unexplained("g"), Some("s1"));
        assert_eq!(others.set_unexplained("s1", vec![found(2)]), Some(Vec::new()));
        assert_eq!(others.unexplained_on("s1").count(), 1);
        assert_eq!(
            others.set_unexplained("s1", Vec::new()),
            Some(vec![found(2).mcst_id])
        );
        others.listed("s1", of(&[]));
        assert_eq!(others.doubt(), None);
    }

    #[test]
    fn the_groups_of_another_owner_are_gone_once_an_operator_has_purged_them() {
        let mut others = new(false);
        assert!(!others.are_gone("c1", "h0") && !others.are_gone("c2", "h0"));
        others.purge("c1");
        assert!(others.are_gone("c1", "h1") && !others.are_gone("c2", "h1"));
    }

    /// One client invented so many owners that the log named no real one any more.
    #[test]
    fn a_client_that_invents_owners_keeps_no_real_one_out_of_the_log() {
        let mut others = new(false);
        let mut named = |from: usize, asks: &str| {
            for owner in from..from + 100 {
                assert!(!others.are_gone(&format!("c{owner}"), asks));
            }
            others.asked_for.len()
        };
        assert_eq!(named(0, "h0"), ASKED_FOR_BY_ONE_MAX);
        assert_eq!(named(0, "h0"), ASKED_FOR_BY_ONE_MAX);
        assert_eq!(named(100, "h1"), 2 * ASKED_FOR_BY_ONE_MAX);
        for client in 2..100 {
            named(100 * client, &format!("h{client}"));
        }
        assert_eq!(others.asked_for.len(), ASKED_FOR_MAX);
    }

    #[test]
    fn a_store_that_is_known_is_never_in_doubt() {
        let mut others = new(false);
        assert!(!others.listed("s0", of(&[(1, true)])));
        assert_eq!((others.doubt(), others.wrong_store()), (None, None));
        assert!(others.have(McstId([10, 200, 0, 1].into())));
    }
}
