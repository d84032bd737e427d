//! What switches have that is of no group of this controller.
//!
//! A controller on an empty store knows of no group. Where switches have groups of other controllers, the store may be the wrong one (a
//! mistyped path is enough), and those groups its own. So until an operator says that the store is meant to be new, it creates none, and
//! tells nobody that a group is gone. Nor does one with other groups in its store, of a group that a switch has of another controller, or that
//! a switch may have: a copy of an old store, or the store of another fabric, knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::McstId;

#[derive(Default)]
pub(crate) struct Others {
    /// The store has no groups, and nobody has said that this is meant.
    is_new: bool,
    /// Switches that have not told yet what they have, while that is of interest.
    unasked: BTreeSet<String>,
    /// Switches that have told nothing since the controller was started, if its store outlives it.
    unlisted: BTreeSet<String>,
    /// By switch that refuses this controller, as another one has taken over: its reason.
    refusing: BTreeMap<String, String>,
    /// By switch; none without any.
    on: BTreeMap<String, On>,
}

/// A group of another owner.
pub(crate) struct Foreign {
    pub(crate) group: String,
    pub(crate) owner: String,
}

struct On {
    mcst_ids: BTreeSet<McstId>,
    /// Owners of groups of others, by the name of the group.
    foreign: BTreeMap<String, String>,
}

impl Others {
    /// `has_unread`: switches may have groups of this controller that it does not know. `is_kept`: the store outlives the controller.
    pub(crate) fn new(
        is_new: bool,
        has_unread: bool,
        is_kept: bool,
        switches: impl Iterator<Item = String> + Clone,
    ) -> Self {
        Self {
            is_new,
            unasked: switches.clone().filter(|_| is_new || has_unread).collect(),
            unlisted: switches.filter(|_| is_kept).collect(),
            ..Self::default()
        }
    }

    /// Notes what a switch has, all of it: each group's McstID, and whose it is if it is another owner's. Those of this controller are of
    /// records that do not read. Returns whether it is the first sign there that the store may be the wrong one.
    pub(crate) fn listed(
        &mut self,
        switch: &str,
        groups: impl Iterator<Item = (McstId, Option<Foreign>)>,
    ) -> bool {
        let (mut mcst_ids, mut foreign) = (BTreeSet::new(), BTreeMap::new());
        for (mcst_id, of) in groups {
            mcst_ids.insert(mcst_id);
            foreign.extend(of.map(|Foreign { group, owner }| (group, owner)));
        }
        self.unasked.remove(switch);
        self.unlisted.remove(switch);
        let has_foreign = !foreign.is_empty();
        let before = match mcst_ids.is_empty() {
            true => self.on.remove(switch),
            false => self.on.insert(switch.into(), On { mcst_ids, foreign }),
        };
        // A fabric without groups of others has nothing to lose.
        self.is_new &= !self.unasked.is_empty() || self.on.values().any(|on| !on.foreign.is_empty());
        has_foreign && before.is_none_or(|on| on.foreign.is_empty())
    }

    /// A switch answers this controller, or refuses it for this reason.
    pub(crate) fn answers(&mut self, switch: &str, refusal: Option<String>) {
        match refusal {
            None => drop(self.refusing.remove(switch)),
            Some(why) => drop(self.refusing.insert(switch.into(), why)),
        }
    }

    /// Why a group that the store does not have may exist, or does. `is_away`: a switch cannot be asked.
    pub(crate) fn may_exist(&self, group: &str, is_away: impl Fn(&str) -> bool) -> Option<String> {
        let foreign = |(switch, on): (&String, &On)| {
            let owner = on.foreign.get(group)?;
            Some(format!(
                "switch {switch} has it of {owner}, which is not this controller: is this its store?"
            ))
        };
        let refusing = |(switch, why): (&String, &String)| format!("switch {switch}: {why}");
        let unlisted = |switch: &String| format!("the controller has not seen yet what switch {switch} has");
        self.doubt()
            .or_else(|| self.on.iter().find_map(foreign))
            .or_else(|| self.refusing.iter().next().map(refusing))
            .or_else(|| self.unlisted.iter().find(|switch| !is_away(switch)).map(unlisted))
    }

    /// Groups of another controller on a switch, for the log.
    pub(crate) fn foreign_on(&self, switch: &str) -> Option<String> {
        let foreign = &self.on.get(switch)?.foreign;
        let (group, owner) = foreign.first_key_value()?;
        let more = match foreign.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "switch {switch} has groups of other controllers, which this store does not know: {group} of {owner}{more}"
        ))
    }

    pub(crate) fn unasked(&self) -> impl Iterator<Item = &String> {
        self.unasked.iter()
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
        let foreign = foreign.len();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[(u8, bool)]) -> impl Iterator<Item = (McstId, Option<Foreign>)> {
        groups.iter().map(|(n, is_foreign)| {
            let foreign = Foreign {
                group: format!("g{n}"),
                owner: "controller-x".into(),
            };
            (
                McstId([10, 200, 0, *n].into()),
                Some(foreign).filter(|_| *is_foreign),
            )
        })
    }

    fn new(is_new: bool) -> Others {
        Others::new(
            is_new,
            false,
            true,
            ["s0".to_owned(), "s1".to_owned()].into_iter(),
        )
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
        assert!(others.listed("s1", of(&[(1, true)])));
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
        assert!(others.listed("s0", of(&[(1, true)])));
        assert!(!others.listed("s0", of(&[(1, true)])), "said once");
        assert!(others.doubt().unwrap().contains("and 1 more switch(es)"));
        others.listed("s0", of(&[]));
        others.listed("s1", of(&[(3, false)]));
        assert_eq!(others.doubt(), None);
        let has = |n| others.have(McstId([10, 200, 0, n].into()));
        assert_eq!([1, 2, 3].map(has), [false, false, true]);
    }

    /// The store of another fabric, or a copy from before the groups were created.
    #[test]
    fn a_store_that_has_groups_knows_no_more_than_its_own() {
        let mut others = new(false);
        let here = |_: &str| false;
        let why = others.may_exist("g1", here).unwrap();
        assert!(why.contains("what switch s0 has"), "{why}");
        assert_eq!(others.may_exist("g1", |_| true), None);
        assert!(others.listed("s0", of(&[(1, true)])));
        others.listed("s1", of(&[]));
        assert_eq!((others.doubt(), others.wrong_store()), (None, None));
        let why = others.may_exist("g1", here).unwrap();
        assert!(why.starts_with("switch s0 has it of controller-x"), "{why}");
        assert!(others.foreign_on("s0").unwrap().ends_with("g1 of controller-x"));
        assert_eq!(others.may_exist("g2", here), None);
        others.answers("s1", Some("epoch 3 is over".into()));
        assert_eq!(
            others.may_exist("g2", here).as_deref(),
            Some("switch s1: epoch 3 is over")
        );
        others.answers("s1", None);
        assert_eq!(others.may_exist("g2", here), None);
        assert!(others.have(McstId([10, 200, 0, 1].into())));
    }
}
