//! The life of a group of any kind, as one table without actions.
//!
//! ```text
//!              all joined             all switches confirm            a switch is lost
//! Registered ------------> Installing --------------------> Active <------------------> Degraded
//!   ^ ^  ^                    | |                            |  |      all are back         |
//!   | |  |          withdrawn,| | refused      lost, or over |  | broke                     |
//!   | |  |         or tried   | |                            |  v                           |
//!   | |  |         elsewhere  | |                            | Broken                       |
//!   | |  |                    v v                            v  v                           |
//!   | |  +---- cleared ----- Removing <----------------------------------------- over ------+
//!   | |                       | | |       (from everywhere: destroy)
//!   | +-- joined -- Refused <-+ | +--- cleared ---> gone
//!   +---- joined -- Failed <----+
//! ```
//!
//! Which events happen depends on the kind: a multicast group outlives a lost switch (Degraded), a collective group
//! does not (Broken, Failed). EPIC 3.3.1 has the same phases (initialization, connection and routing, teardown) and
//! leaves failures to new groups (3.4).

use serde::{Deserialize, Serialize};

/// Phase of a group's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its members to join.
    Registered,
    /// All members have joined; it is planned and the switches are programmed.
    Installing,
    /// Every switch has confirmed.
    Active,
    /// Was active, and a switch of its tree cannot be reached. Traffic may still flow.
    Degraded,
    /// Has failed, but its rules stay for a moment: switches still have to report the reason to members.
    Broken,
    /// Is removed from the switches; then enters the named state.
    Removing(After),
    /// Could not be installed, and is removed everywhere. Waits for members that try again.
    Refused,
    /// Was active and has failed; its rules are removed. Waits for members that join again.
    Failed,
}

/// What follows [`Phase::Removing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// It waits for its members again.
    Registered,
    /// It was refused.
    Refused,
    /// It has failed.
    Failed,
    /// It is forgotten.
    Gone,
}

/// Why a group could not be installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of failure.
    pub cause: Cause,
    /// What is at fault: a field of the request, or `switches.NAME`.
    pub field: String,
    /// The facts, for people.
    pub reason: String,
}

impl Failure {
    pub(crate) fn new(cause: Cause, field: impl Into<String>, reason: impl Into<String>) -> Self {
        let (field, reason) = (field.into(), reason.into());
        Self { cause, field, reason }
    }

    /// At this switch.
    pub(crate) fn at(switch: &str, cause: Cause, reason: impl Into<String>) -> Self {
        Self::new(cause, format!("switches.{switch}"), reason)
    }
}

/// Kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The request never fits the fabric: hosts without links to each other, a path MTU too large, addresses that contradict each other.
    Unfit,
    /// What the request needs of the fabric is down now, or not known.
    Down,
    /// A member was not seen at any switch in time.
    Unseen,
    /// A switch has no room.
    NoRoom,
    /// A switch refused it for another reason.
    Refused,
    /// A switch cannot be reached.
    Unreachable,
}

/// What happens to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member joined a group that had failed or was refused.
    Joined,
    /// The last missing member joined.
    AllJoined,
    /// A member left before the group is active.
    Withdrawn,
    /// A switch refused its part, and the group can be placed in another way.
    Elsewhere,
    /// Every switch has confirmed.
    Confirmed,
    /// It cannot be planned, or a switch refused it.
    Refused,
    /// A switch of its tree cannot be reached.
    SwitchLost,
    /// All switches of its tree can be reached and have their part.
    SwitchesBack,
    /// The members disagree, a queue pair ended, or a member joins again: this generation is over.
    Broke,
    /// The time for reporting the reason to the other members is over.
    TimeUp,
    /// A member's lease ran out, a switch lost its part for good, or a link of the tree is down.
    Lost,
    /// All members have left, or the source, or all receivers.
    Ended,
    /// A client destroys it.
    Destroy,
    /// No reachable switch has it; for a group that is to be forgotten: no switch at all.
    Cleared,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The group is in this phase.
    Phase(Phase),
    /// The group is forgotten.
    Gone,
}

impl Phase {
    /// The whole table. `None`: the event has no effect in this phase.
    pub fn step(self, event: Event) -> Option<Next> {
        use {After as A, Event as E, Phase as P};
        let next = match (self, event) {
            (P::Failed | P::Refused, E::Joined) => P::Registered,
            (P::Registered, E::AllJoined) => P::Installing,

            (P::Installing, E::Confirmed) => P::Active,
            (P::Installing, E::Refused) => P::Removing(A::Refused),
            (P::Installing, E::Withdrawn | E::Elsewhere) => P::Removing(A::Registered),

            (P::Active, E::SwitchLost) => P::Degraded,
            (P::Degraded, E::SwitchesBack) => P::Active,
            (P::Active, E::Broke) => P::Broken,
            (P::Active | P::Degraded | P::Broken, E::Lost) => P::Removing(A::Failed),
            (P::Broken, E::TimeUp) => P::Removing(A::Failed),
            // All have joined again: no member waits for the reason.
            (P::Broken, E::AllJoined) => P::Removing(A::Registered),
            (P::Active | P::Degraded | P::Broken, E::Ended) => P::Removing(A::Registered),

            (_, E::Destroy) => P::Removing(A::Gone),

            (P::Removing(A::Registered), E::Cleared) => P::Registered,
            (P::Removing(A::Refused), E::Cleared) => P::Refused,
            (P::Removing(A::Failed), E::Cleared) => P::Failed,
            (P::Removing(A::Gone), E::Cleared) => return Some(Next::Gone),

            _ => return None,
        };
        Some(Next::Phase(next))
    }

    /// Whether its rules belong on the switches.
    pub fn wants_rules(self) -> bool {
        matches!(
            self,
            Self::Installing | Self::Active | Self::Degraded | Self::Broken
        )
    }

    /// Whether its members may have sent already.
    pub fn has_run(self) -> bool {
        matches!(self, Self::Active | Self::Degraded | Self::Broken)
    }

    /// Whether there is work to do on its switches.
    pub fn needs_driver(self) -> bool {
        matches!(self, Self::Installing | Self::Removing(_))
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Installing => "installing",
            Self::Active => "active",
            Self::Degraded => "degraded",
            Self::Broken => "broken",
            Self::Removing(_) => "removing",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// All of them.
#[cfg(test)]
pub(crate) const PHASES: [Phase; 11] = [
    Phase::Registered,
    Phase::Installing,
    Phase::Active,
    Phase::Degraded,
    Phase::Broken,
    Phase::Refused,
    Phase::Failed,
    Phase::Removing(After::Registered),
    Phase::Removing(After::Refused),
    Phase::Removing(After::Failed),
    Phase::Removing(After::Gone),
];

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 14] = [
        Event::Joined,
        Event::AllJoined,
        Event::Withdrawn,
        Event::Elsewhere,
        Event::Confirmed,
        Event::Refused,
        Event::SwitchLost,
        Event::SwitchesBack,
        Event::Broke,
        Event::TimeUp,
        Event::Lost,
        Event::Ended,
        Event::Destroy,
        Event::Cleared,
    ];

    /// The diagram at the top of this file, edge by edge. What it does not draw has no effect; destroying is drawn once.
    const DRAWN: [(Phase, Event, Option<Phase>); 22] = {
        use {After as A, Event as E, Phase as P};
        [
            (P::Registered, E::AllJoined, Some(P::Installing)),
            (P::Installing, E::Confirmed, Some(P::Active)),
            (P::Installing, E::Withdrawn, Some(P::Removing(A::Registered))),
            (P::Installing, E::Elsewhere, Some(P::Removing(A::Registered))),
            (P::Installing, E::Refused, Some(P::Removing(A::Refused))),
            (P::Active, E::SwitchLost, Some(P::Degraded)),
            (P::Active, E::Broke, Some(P::Broken)),
            (P::Active, E::Lost, Some(P::Removing(A::Failed))),
            (P::Active, E::Ended, Some(P::Removing(A::Registered))),
            (P::Degraded, E::SwitchesBack, Some(P::Active)),
            (P::Degraded, E::Lost, Some(P::Removing(A::Failed))),
            (P::Degraded, E::Ended, Some(P::Removing(A::Registered))),
            (P::Broken, E::Lost, Some(P::Removing(A::Failed))),
            (P::Broken, E::TimeUp, Some(P::Removing(A::Failed))),
            (P::Broken, E::AllJoined, Some(P::Removing(A::Registered))),
            (P::Broken, E::Ended, Some(P::Removing(A::Registered))),
            (P::Refused, E::Joined, Some(P::Registered)),
            (P::Failed, E::Joined, Some(P::Registered)),
            (P::Removing(A::Registered), E::Cleared, Some(P::Registered)),
            (P::Removing(A::Refused), E::Cleared, Some(P::Refused)),
            (P::Removing(A::Failed), E::Cleared, Some(P::Failed)),
            (P::Removing(A::Gone), E::Cleared, None),
        ]
    };

    #[test]
    fn the_table_has_the_edges_of_the_diagram_and_no_others() {
        for phase in PHASES {
            for event in EVENTS {
                let drawn = DRAWN.iter().find(|edge| (edge.0, edge.1) == (phase, event));
                let wanted = match (event, drawn) {
                    (Event::Destroy, _) => Some(Next::Phase(Phase::Removing(After::Gone))),
                    (_, Some((.., next))) => Some(next.map_or(Next::Gone, Next::Phase)),
                    (_, None) => None,
                };
                assert_eq!(phase.step(event), wanted, "{phase:?} {event:?}");
            }
        }
    }

    /// Of each phase: whether rules belong on switches, whether members may have sent, whether there is work at switches.
    #[test]
    fn each_phase_says_what_is_on_switches_and_what_is_to_do() {
        let rows = [
            ("registered", [false, false, false]),
            ("installing", [true, false, true]),
            ("active", [true, true, false]),
            ("degraded", [true, true, false]),
            ("broken", [true, true, false]),
            ("refused", [false, false, false]),
            ("failed", [false, false, false]),
            ("removing", [false, false, true]),
            ("removing", [false, false, true]),
            ("removing", [false, false, true]),
            ("removing", [false, false, true]),
        ];
        for (phase, row) in PHASES.into_iter().zip(rows) {
            let is = [phase.wants_rules(), phase.has_run(), phase.needs_driver()];
            assert_eq!((phase.name(), is), row, "{phase:?}");
        }
    }

    /// Rules come onto switches by way of Installing and leave them by way of Removing, whatever happens.
    #[test]
    fn rules_come_and_go_by_the_two_doors() {
        for phase in PHASES {
            for event in EVENTS {
                let Some(Next::Phase(next)) = phase.step(event) else {
                    continue;
                };
                if !phase.wants_rules() && next.wants_rules() {
                    assert_eq!(next, Phase::Installing, "{phase:?} {event:?}");
                }
                if phase.wants_rules() && !next.wants_rules() {
                    assert!(matches!(next, Phase::Removing(_)), "{phase:?} {event:?}");
                }
            }
        }
    }
}
