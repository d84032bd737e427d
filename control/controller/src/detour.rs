//! Refusals of switches, and what the next placement learns from them. Reports of switches, with which the controller
//! plans, may be outdated. Where the fabric allows, a switch that refuses is avoided, or gets a smaller part.

use castnet_planner::{Room, Shortage};

use crate::lifecycle::{Cause, Failure};
use castnet_rules::GroupRule;

/// Maximum number of refusals for which a group is placed again.
const REFUSALS_MAX: usize = 8;

/// Refusals of switches since the group was last active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detours(Vec<Detour>);

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
        // Other refusals would be the same elsewhere, or an operator has to act.
        let may_differ = matches!(failure.cause, Cause::NoRoom | Cause::Unreachable);
        if !may_differ || self.0.len() >= REFUSALS_MAX {
            return false;
        }
        self.0.push(Detour {
            switch: switch.into(),
            bytes: of_memory.then(|| rule.reserved_bytes()),
            failure: failure.clone(),
        });
        true
    }

    /// Reduces the room of a switch by its refusals.
    pub(crate) fn apply(&self, switch: &str, room: &mut Room) {
        for Detour { bytes, .. } in self.0.iter().filter(|d| d.switch == switch) {
            match bytes {
                Some(bytes) => room.memory_free = room.memory_free.min(bytes.saturating_sub(1)),
                None => room.groups_free = 0,
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What switches lack: their refusals, or else the planner's shortages.
    pub(crate) fn explain(&self, shortages: &[Shortage]) -> String {
        let each = shortages
            .iter()
            .map(|s| self.of(&s.switch).unwrap_or_else(|| s.to_string()));
        each.collect::<Vec<_>>().join("; ")
    }

    fn of(&self, switch: &str) -> Option<String> {
        let refusals = self.0.iter().rev();
        refusals.filter(|d| d.switch == switch).map(Detour::words).next()
    }

    pub(crate) fn words(&self) -> String {
        self.0.iter().map(Detour::words).collect::<Vec<_>>().join("; ")
    }

    /// The failure to report for a group that has no other place.
    pub(crate) fn end(&self, failure: Failure) -> Failure {
        let Some(last) = self.0.last() else {
            return failure;
        };
        match failure.cause {
            // The planner names the switches, and `explain` their refusals.
            Cause::NoRoom => failure,
            _ => Failure {
                reason: format!("{}; no place elsewhere: {}", self.words(), failure.reason),
                ..last.failure.clone()
            },
        }
    }
}

impl Detour {
    fn words(&self) -> String {
        format!("switch {} {}", self.switch, self.failure.reason)
    }
}

#[cfg(test)]
mod tests {
    use castnet_rules::TranslatedRule;
    use castnet_wire::{McstId, Pmtu};

    use super::*;

    fn rule(slots: u16) -> GroupRule {
        let kind = TranslatedRule {
            message_packets: 1,
            ..TranslatedRule::root(slots)
        };
        GroupRule {
            name: "g".into(),
            generation: 1,
            mcst_id: McstId([10, 200, 0, 1].into()),
            pmtu: Pmtu::B1024,
            stall_timeout_ms: 1000,
            rate_limit: None,
            endpoints: Vec::new(),
            kind: kind.into(),
        }
    }

    fn failure(cause: Cause) -> Failure {
        Failure {
            cause,
            field: "switches.s".into(),
            reason: "refuses: full".into(),
        }
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
    fn it_ends_and_not_every_refusal_is_one_of_room() {
        let mut detours = Detours::default();
        assert!(!detours.note("s", &rule(2), false, &failure(Cause::Refused)));
        for _ in 0..REFUSALS_MAX {
            assert!(detours.note("s", &rule(2), false, &failure(Cause::NoRoom)));
        }
        assert!(!detours.note("s", &rule(2), false, &failure(Cause::NoRoom)));
    }
}
