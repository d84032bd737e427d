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

/// Generations of rules, by address.
pub(crate) type Rules = BTreeMap<McstId, u64>;

impl Version {
    /// Whether a switch that has this generation gets the rule when it is reconciled. Drivers install groups that have not run yet, switch by
    /// switch.
    pub(crate) fn is_lacking(self, there: Option<u64>) -> bool {
        self.has_run && there != Some(self.generation)
    }

    /// The rule as it is installed if it is missing.
    pub(crate) fn rule(self, planned: GroupRule) -> GroupRule {
        match self.has_run {
            // The source is past the planned PSN.
            true => planned.with_multicast(|rule| rule.start_psn = None),
            false => planned,
        }
    }
}

/// What is to be removed of what a switch has of this controller, and what stays. `replaced`: addresses that have rules of forgotten groups.
/// A version newer than the desired one (the store was restored from a backup) is removed, as a switch refuses older versions.
pub(crate) fn split(wanted: &Rules, replaced: &BTreeSet<McstId>, found: &[Found]) -> (Rules, Rules) {
    let is_unwanted = |(mcst_id, generation): &(McstId, u64)| {
        replaced.contains(mcst_id) || wanted.get(mcst_id).is_none_or(|wanted| generation > wanted)
    };
    let found = found.iter().map(|found| (found.mcst_id, found.generation));
    found.partition(is_unwanted)
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

    fn rule_there(mcst_id: McstId, generation: u64) -> Found {
        let group = "g".into();
        Found {
            mcst_id,
            generation,
            group,
        }
    }

    /// A switch that does what it is told, by the agent's rules. Returns what it was told.
    fn reconcile(wanted: &BTreeMap<McstId, Version>, found: &mut Vec<Found>) -> (Rules, BTreeSet<McstId>) {
        let generations = wanted
            .iter()
            .map(|(mcst_id, version)| (*mcst_id, version.generation));
        let (removals, there) = split(&generations.collect(), &BTreeSet::new(), found);
        found.retain(|f| removals.get(&f.mcst_id) != Some(&f.generation));
        assert_eq!(found.len(), there.len(), "the others stay");
        let lacks =
            |(mcst_id, version): &(&McstId, &Version)| version.is_lacking(there.get(mcst_id).copied());
        let lacking = wanted.iter().filter(lacks);
        let installs: BTreeSet<McstId> = lacking.map(|(mcst_id, _)| *mcst_id).collect();
        for mcst_id in &installs {
            let generation = wanted[mcst_id].generation;
            if let Some(old) = found.iter().position(|f| f.mcst_id == *mcst_id) {
                let old = found.remove(old);
                assert!(old.generation < generation, "replaces an older one");
            }
            found.push(rule_there(*mcst_id, generation));
        }
        (removals, installs)
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
            let found = found.into_iter().map(|(n, generation)| rule_there(id(n), generation));
            let mut found: Vec<Found> = found.collect();
            let all = |found: &[Found]| found.iter().map(|f| (f.mcst_id, f.generation)).collect();
            let before: Rules = all(&found);
            let (_, installs) = reconcile(&wanted, &mut found);
            for mcst_id in &installs {
                prop_assert!(wanted[mcst_id].has_run);
            }
            prop_assert_eq!(reconcile(&wanted, &mut found), (Rules::new(), BTreeSet::new()));
            // Of those that are being installed: what was there and is not too new.
            let stays = |m: &McstId, w: &Version| {
                let there = before.get(m).copied();
                if w.has_run { Some(w.generation) } else { there.filter(|g| *g <= w.generation) }
            };
            let expected: Rules = wanted.iter().filter_map(|(m, w)| Some((*m, stays(m, w)?))).collect();
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
        let mut found = vec![rule_there(id(1), 3)];
        assert_eq!(reconcile(&wanted, &mut found), (Rules::new(), BTreeSet::new()));
    }
}
