//! What switches have that is of no group of this controller.
//!
//! A controller on an empty store knows of no group. Where switches have groups of other controllers, the store may be the wrong one (a
//! mistyped path is enough), and those groups its own. So until an operator says that the store is meant to be new, it creates none, and
//! tells nobody that a group is gone. A controller on a store with groups may be on the wrong one as well: it tells nobody who has joined at
//! another controller that a group is gone, before it has seen that the switches have no group of that one any more.

use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::McstId;

#[derive(Default)]
pub(crate) struct Others {
    /// The store has no groups, and nobody has said that this is meant.
    is_new: bool,
    /// Switches may have groups of this controller that it does not know.
    has_unread: bool,
    /// Switches that have not told yet what they have.
    unasked: BTreeSet<String>,
    /// By switch; none without any.
    on: BTreeMap<String, On>,
    /// All other owners that have had groups on a switch since this controller began.
    owners: BTreeSet<String>,
}

struct On {
    mcst_ids: BTreeSet<McstId>,
    /// Numbers of groups of other owners.
    foreign: BTreeMap<String, usize>,
}

impl Others {
    /// `has_unread`: switches may have groups of this controller that it does not know.
    pub(crate) fn new(is_new: bool, has_unread: bool, switches: impl Iterator<Item = String>) -> Self {
        Self {
            is_new,
            has_unread,
            unasked: switches.collect(),
            on: BTreeMap::new(),
            owners: BTreeSet::new(),
        }
    }

    /// Notes what a switch has, all of it: each group's McstID, and its owner, if that is another controller. Those of this controller
    /// are of records that do not read. Returns whether it is the first sign that the store may be the wrong one.
    pub(crate) fn listed(
        &mut self,
        switch: &str,
        groups: impl Iterator<Item = (McstId, Option<String>)>,
    ) -> bool {
        let before = self.wrong_store().is_some();
        let (mut mcst_ids, mut foreign) = (BTreeSet::new(), BTreeMap::new());
        for (mcst_id, owner) in groups {
            mcst_ids.insert(mcst_id);
            if let Some(owner) = owner {
                *foreign.entry(owner).or_default() += 1;
            }
        }
        self.owners.extend(foreign.keys().cloned());
        self.unasked.remove(switch);
        match mcst_ids.is_empty() {
            true => drop(self.on.remove(switch)),
            false => drop(self.on.insert(switch.into(), On { mcst_ids, foreign })),
        }
        // A fabric without groups of others has nothing to lose.
        self.is_new &= !self.unasked.is_empty() || self.on.values().any(|on| !on.foreign.is_empty());
        !before && self.wrong_store().is_some()
    }

    /// Switches that have not told yet what they have, while it decides whether a group may be created.
    pub(crate) fn unasked(&self) -> impl Iterator<Item = &String> {
        self.unasked.iter().filter(|_| self.is_new || self.has_unread)
    }

    /// Whether a switch has something else at this address.
    pub(crate) fn have(&self, mcst_id: McstId) -> bool {
        self.on.values().any(|on| on.mcst_ids.contains(&mcst_id))
    }

    /// Why the store may be the wrong one.
    pub(crate) fn wrong_store(&self) -> Option<String> {
        let mut of = self
            .on
            .iter()
            .filter(|(_, on)| self.is_new && !on.foreign.is_empty());
        let (switch, On { foreign, .. }) = of.next()?;
        let foreign: usize = foreign.values().sum();
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
            let what = "the store of this controller has no groups, and it has not seen yet what switch";
            Some(format!("{what} {switch} has"))
        })
    }

    /// Why groups of another owner may exist that this controller does not know.
    pub(crate) fn doubt_about(&self, owner: &str) -> Option<String> {
        let has = |(_, on): &(&String, &On)| on.foreign.contains_key(owner);
        if let Some((switch, _)) = self.on.iter().find(has) {
            return Some(format!(
                "switch {switch} has groups of it: start it again, or remove them with castnet group purge --owner {owner}"
            ));
        }
        match (self.unasked.first(), self.owners.contains(owner)) {
            (Some(switch), _) => Some(format!(
                "this one has not seen yet what switch {switch} has of it"
            )),
            (None, false) => Some("no switch of this one has had groups of it".into()),
            (None, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[(u8, bool)]) -> impl Iterator<Item = (McstId, Option<String>)> {
        groups.iter().map(|(n, is_foreign)| {
            (
                McstId([10, 200, 0, *n].into()),
                is_foreign.then(|| "other".into()),
            )
        })
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
    }

    #[test]
    fn a_store_that_is_known_is_never_in_doubt() {
        let mut others = new(false);
        assert!(!others.listed("s0", of(&[(1, true)])));
        assert_eq!((others.doubt(), others.wrong_store()), (None, None));
        assert!(others.have(McstId([10, 200, 0, 1].into())));
    }

    #[test]
    fn the_groups_of_another_owner_are_gone_once_no_switch_has_them_any_more() {
        for is_new in [false, true] {
            let mut others = new(is_new);
            let doubt = |others: &Others, owner: &str| others.doubt_about(owner).unwrap_or_default();
            assert!(doubt(&others, "other").contains("what switch s0 has"));
            others.listed("s0", of(&[]));
            others.listed("s1", of(&[(1, true)]));
            assert!(doubt(&others, "other").contains("switch s1 has groups of it"));
            assert!(doubt(&others, "third").contains("no switch of this one"));
            others.listed("s1", of(&[(2, false)]));
            assert_eq!(others.doubt_about("other"), None);
            assert!(others.doubt_about("third").is_some());
        }
    }
}
