//! Refusals of switches, and what the next placement learns from them. Reports of switches, with which the controller
//! plans, may be outdated. Where the fabric allows, a switch that refuses is avoided, or gets a smaller part.

use std::sync::Arc;

use castnet_planner::{Room, Shortage};
use castnet_topology::{Down, Topology};

use crate::state::{Cause, Failure};
use castnet_rules::GroupRule;

/// Maximum number of refusals for which a group is placed again.
const REFUSALS_MAX: usize = 8;

/// Refusals of switches since the group was last active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detours {
    refusals: Vec<Detour>,
    /// Reports of switches that could show another place were waited for, and have not come.
    has_waited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Detour {
    switch: String,
    /// Bytes that it lacked; `None`: it takes no part at all.
    bytes: Option<u64>,
    failure: Failure,
}

impl Detours {
    /// Notes that a switch refused `rule`; `of_memory`: a smaller one may fit. Whether to place the group again.
    pub(crate) fn note(
        &mut self,
        switch: &str,
        rule: &GroupRule,
        of_memory: bool,
        failure: &Failure,
    ) -> bool {
        // Other refusals would be the same elsewhere, or an operator has to act. Without the receivers there, a multicast group may run.
        let may_differ = matches!(failure.cause, Cause::NoRoom | Cause::Unreachable);
        let may_differ = may_differ || rule.multicast().is_some();
        if !may_differ || self.refusals.len() >= REFUSALS_MAX {
            return false;
        }
        self.refusals.push(Detour {
            switch: switch.into(),
            bytes: of_memory.then(|| rule.reserved_bytes()),
            failure: failure.clone(),
        });
        true
    }

    /// Reduces the room of a switch by its refusals.
    pub(crate) fn apply(&self, switch: &str, room: &mut Room) {
        for Detour { bytes, .. } in self.refusals.iter().filter(|d| d.switch == switch) {
            match bytes {
                Some(bytes) => room.memory_free = room.memory_free.min(bytes.saturating_sub(1)),
                None => room.groups_free = 0,
            }
        }
    }

    /// Whether nothing has been found out that reports of switches do not say.
    pub(crate) fn is_empty(&self) -> bool {
        self.refusals.is_empty() && !self.has_waited
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// No more reports of switches are waited for.
    pub(crate) fn note_waited(&mut self) {
        self.has_waited = true;
    }

    /// The fabric without the switches that have refused a group that reserves no room: another rule would be refused as well.
    pub(crate) fn without_switches(&self, fabric: &Arc<Topology>) -> Arc<Topology> {
        if self.refusals.is_empty() {
            return fabric.clone();
        }
        let mut rest = Topology::clone(fabric);
        for Detour { switch, .. } in &self.refusals {
            rest.set_switch_up(switch, false);
        }
        Arc::new(rest)
    }

    /// What switches lack for a group with `lanes`: their refusals, or else the planner's shortages.
    pub(crate) fn explain(&self, shortages: &[Shortage], lanes: u8) -> String {
        let each = shortages
            .iter()
            .map(|s| self.of(&s.switch).unwrap_or_else(|| s.words(lanes)));
        each.collect::<Vec<_>>().join("; ")
    }

    fn of(&self, switch: &str) -> Option<String> {
        let refusals = self.refusals.iter().rev();
        refusals.filter(|d| d.switch == switch).map(Detour::words).next()
    }

    pub(crate) fn words(&self) -> String {
        self.refusals
            .iter()
            .map(Detour::words)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// The failure to report for a group that has no other place.
    pub(crate) fn end(&self, failure: Failure) -> Failure {
        let Some(last) = self.refusals.last() else {
            return failure;
        };
        match failure.cause {
            // The planner names the switches, and `explain` their refusals.
            Cause::NoRoom => failure,
            _ => Failure {
                reason: format!(
                    "{}; no place elsewhere: {}",
                    self.words(),
                    self.name_refusals(failure.reason)
                ),
                ..last.failure.clone()
            },
        }
    }

    /// The planner takes switches that have refused for down ([`Detours::without_switches`]).
    fn name_refusals(&self, reason: String) -> String {
        self.refusals
            .iter()
            .fold(reason, |reason, Detour { switch, .. }| {
                let down = Down::Switch(switch.clone()).to_string();
                reason.replace(&down, &format!("switch {switch} refuses"))
            })
    }
}

impl Detour {
    fn words(&self) -> String {
        format!("switch {} {}", self.switch, self.failure.reason)
    }
}

#[cfg(test)]
mod tests {
    use castnet_planner::Lack;
    use castnet_rules::TranslatedRule;

    use super::*;
    use crate::state::core::tests;

    fn rule(slots: u16) -> GroupRule {
        let kind = TranslatedRule {
            message_packets: 1,
            ..TranslatedRule::root(slots)
        };
        tests::rule(kind)
    }

    fn failure(cause: Cause) -> Failure {
        Failure::at("s", cause, "refuses: full")
    }

    #[test]
    fn what_a_switch_refused_is_not_asked_of_it_again() {
        let mut detours = Detours::default();
        assert!(detours.note("s", &rule(256), true, &failure(Cause::NoRoom)));
        let room = |detours: &Detours, switch| {
            let mut room = Room::UNKNOWN;
            detours.apply(switch, &mut room);
            room
        };
        let s = room(&detours, "s");
        assert_eq!(s.memory_free, rule(256).reserved_bytes() - 1);
        assert!(s.memory_free >= rule(128).reserved_bytes() && s.groups_free > 0);
        assert!(detours.note("s", &rule(128), true, &failure(Cause::NoRoom)));
        assert!(detours.note("t", &rule(128), false, &failure(Cause::Unreachable)));
        assert_eq!(room(&detours, "s").memory_free, rule(128).reserved_bytes() - 1);
        assert_eq!(room(&detours, "t").groups_free, 0);
        assert_eq!(room(&detours, "u"), Room::UNKNOWN);
        assert_eq!(detours.of("t").as_deref(), Some("switch t refuses: full"));
        assert_eq!(detours.words().matches("refuses: full").count(), 3);
    }

    #[test]
    fn what_is_lacking_is_that_of_each_lane() {
        let text = |lack, lanes| {
            let switch = "s".into();
            Detours::default().explain(&[Shortage { switch, lack }], lanes)
        };
        let memory = Lack::Memory { needed: 9, free: 8 };
        assert_eq!(
            text(memory.clone(), 1),
            "switch s needs 9 bytes for it, 8 are free"
        );
        assert_eq!(
            text(memory, 2),
            "switch s needs 9 bytes for each of the group's 2 lanes, 8 are free for each"
        );
        assert_eq!(text(Lack::Groups, 1), "switch s takes no more groups");
        assert_eq!(
            text(Lack::Groups, 2),
            "switch s takes no more groups of 2 lanes, each of which counts"
        );
    }

    #[test]
    fn a_switch_that_has_refused_is_not_reported_as_down() {
        let mut detours = Detours::default();
        detours.note("s", &rule(2), false, &failure(Cause::NoRoom));
        let no_path = Failure {
            reason: "no path: switch s is down, switch t is down".into(),
            ..failure(Cause::Refused)
        };
        assert_eq!(
            detours.end(no_path).reason,
            "switch s refuses: full; no place elsewhere: no path: switch s refuses, switch t is down"
        );
    }

    #[test]
    fn it_ends_and_not_every_refusal_is_one_of_room() {
        let mut detours = Detours::default();
        assert!(!detours.note("s", &rule(2), false, &failure(Cause::Refused)));
        for _ in 0..REFUSALS_MAX {
            assert!(detours.note("s", &rule(2), false, &failure(Cause::NoRoom)));
        }
        assert!(!detours.note("s", &rule(2), false, &failure(Cause::NoRoom)));
    }
}
