//! Compares desired and reported state of one switch; pure.

use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::GroupRule;
use castnet_wire::McstId;

/// Version of a rule that a switch must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) generation: u64,
    /// The source may have sent already: a switch that lacks the rule must learn the PSN from the stream. Never for a
    /// collective group, which fails when a switch loses its rule.
    pub(crate) has_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) mcst_id: McstId,
    pub(crate) generation: u64,
    /// By the name of the rule.
    pub(crate) group: String,
}

/// What turns `found` into `wanted`. Removals come first, as they make room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Diff {
    /// Rules to remove, with their generations.
    pub(crate) removals: BTreeMap<McstId, u64>,
    /// Rules to install; an older one is replaced.
    pub(crate) installs: BTreeSet<McstId>,
}

impl Version {
    /// The rule as it is installed if it is missing.
    pub(crate) fn rule(self, planned: GroupRule) -> GroupRule {
        match self.has_run {
            // The source is past the planned PSN.
            true => planned.with_multicast(|rule| rule.start_psn = None),
            false => planned,
        }
    }
}

/// Drivers install groups that have not run yet, switch by switch: a missing rule of such a group is not installed
/// here, and a present one stays. `found`: those of this controller. A version newer than the desired one (the store was restored from a
/// backup) is removed first, as a switch refuses older versions.
pub(crate) fn diff(wanted: &BTreeMap<McstId, Version>, found: &[Found]) -> Diff {
    let ours: BTreeMap<McstId, u64> = found.iter().map(|f| (f.mcst_id, f.generation)).collect();
    let installs = wanted
        .iter()
        .filter(|(mcst_id, wanted)| wanted.has_run && ours.get(mcst_id) != Some(&wanted.generation))
        .map(|(mcst_id, _)| *mcst_id)
        .collect();
    let mut removals = ours;
    removals.retain(|mcst_id, generation| wanted.get(mcst_id).is_none_or(|w| *generation > w.generation));
    Diff { removals, installs }
}

#[cfg(test)]
mod tests {
    use castnet_rules::{Endpoint, MulticastRule, NextHop};
    use castnet_wire::{MacAddr, Pmtu, PortId, Psn};
    use proptest::prelude::*;

    use super::*;

    fn id(n: u8) -> McstId {
        McstId([10, 200, 0, n].into())
    }

    fn rule(n: u8, generation: u64) -> GroupRule {
        let hop = |port: u8| {
            let next_hop = NextHop::switch(format!("s{port}"), MacAddr([2, 0, 0, 0, 0, port]));
            Endpoint::new(PortId::new(port).unwrap(), next_hop)
        };
        GroupRule {
            name: format!("g{n}"),
            generation,
            mcst_id: id(n),
            pmtu: Pmtu::B1024,
            stall_timeout_ms: 1,
            rate_limit: None,
            endpoints: vec![hop(0), hop(1)],
            kind: MulticastRule {
                start_psn: Some(Psn::new(7)),
                va_base: 0,
                carries_on: None,
                any_source: None,
                repair: None,
                hold_fatal_naks: false,
                source: 0,
            }
            .into(),
        }
    }

    fn there(mcst_id: McstId, generation: u64) -> Found {
        let group = "g".into();
        Found {
            mcst_id,
            generation,
            group,
        }
    }

    /// A switch that does what it is told, by the agent's rules.
    fn carry_out(diff: &Diff, wanted: &BTreeMap<McstId, Version>, found: &mut Vec<Found>) {
        for (mcst_id, generation) in &diff.removals {
            let before = found.len();
            found.retain(|f| (f.mcst_id, f.generation) != (*mcst_id, *generation));
            assert_eq!(found.len(), before - 1, "removes what is there");
        }
        for mcst_id in &diff.installs {
            let generation = wanted[mcst_id].generation;
            if let Some(old) = found.iter().position(|f| f.mcst_id == *mcst_id) {
                let old = found.remove(old);
                assert!(old.generation < generation, "replaces an older one");
            }
            found.push(there(*mcst_id, generation));
        }
    }

    proptest! {
        /// Carried out once, nothing is left to do; what was right is untouched.
        #[test]
        fn one_round_settles_it(
            wanted in proptest::collection::btree_map(0u8..8, (0u64..4, any::<bool>()), 0..8),
            found in proptest::collection::btree_map(0u8..16, 0u64..4, 0..16),
        ) {
            let wanted: BTreeMap<McstId, Version> = wanted
                .into_iter()
                .map(|(n, (generation, has_run))| (id(n), Version { generation, has_run }))
                .collect();
            let found = found.into_iter().map(|(n, generation)| there(id(n), generation));
            let mut found: Vec<Found> = found.collect();
            let actions = diff(&wanted, &found);
            for mcst_id in &actions.installs {
                prop_assert!(wanted[mcst_id].has_run);
            }
            let all = |found: &[Found]| found.iter().map(|f| (f.mcst_id, f.generation)).collect();
            let before: BTreeMap<McstId, u64> = all(&found);
            carry_out(&actions, &wanted, &mut found);
            prop_assert_eq!(diff(&wanted, &found), Diff::default());
            // Of those that are being installed: what was there and is not too new.
            let stays = |m: &McstId, w: &Version| {
                let there = before.get(m).copied();
                if w.has_run { Some(w.generation) } else { there.filter(|g| *g <= w.generation) }
            };
            let expected: BTreeMap<McstId, u64> =
                wanted.iter().filter_map(|(m, w)| Some((*m, stays(m, w)?))).collect();
            prop_assert_eq!(all(&found), expected);
        }
    }

    /// The planned PSN is long past where the source may have sent.
    #[test]
    fn a_rule_that_has_run_learns_its_psn() {
        let start_psn = |has_run| {
            let generation = 3;
            let version = Version { generation, has_run };
            let rule = version.rule(rule(1, generation));
            rule.multicast().and_then(|kind| kind.start_psn)
        };
        assert_eq!((start_psn(true), start_psn(false)), (None, Some(Psn::new(7))));
    }

    #[test]
    fn what_is_as_wanted_is_not_touched() {
        let version = Version {
            generation: 3,
            has_run: true,
        };
        let wanted = BTreeMap::from([(id(1), version)]);
        let found = [there(id(1), 3)];
        assert_eq!(diff(&wanted, &found), Diff::default());
    }
}
