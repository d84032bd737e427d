//! The life of a group, as one table.
//!
//! ```text
//!              all joined             all switches confirm            a switch is lost
//! Registered ------------> Installing --------------------> Active <------------------> Degraded
//!   ^    ^                     |                              |      all are back          |
//!   |    |   refused, withdrawn|                 source or last receiver leaves            |
//!   |    |                     v                              |                            |
//!   |    +----- cleared --- Removing <------------------------+----------------------------+
//!   | join                  |      |         (from everywhere: destroy)
//! Failed <---- cleared -----+      +---- cleared ----> gone
//! ```
//!
//! EPIC 3.3.1 has the same turn of things: initialization, connection and routing, teardown.

use serde::{Deserialize, Serialize};

/// Where in its life a group is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its members to join.
    Registered,
    /// All members have joined: it is planned, and the switches are programmed.
    Installing,
    /// Every switch has confirmed.
    Active,
    /// Was active, and a switch of its tree cannot be reached. Its traffic may well still flow.
    Degraded,
    /// Is taken off the switches; then comes what is named.
    Removing(After),
    /// Could not be installed, and is taken back everywhere.
    Failed(Failure),
}

/// What follows on [`Phase::Removing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// It waits for its members again.
    Registered,
    /// It has failed.
    Failed(Failure),
    /// It is forgotten.
    Gone,
}

/// Why a group could not be installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of thing went wrong.
    pub cause: Cause,
    /// What is at fault: a field of the request, or `switches.NAME`.
    pub field: String,
    /// The facts, for people.
    pub reason: String,
}

/// Kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The request does not fit the fabric: no path, a path MTU too large, addresses that contradict each other.
    Unfit,
    /// A member was not seen at any switch in time.
    Unseen,
    /// A switch has no room for it.
    NoRoom,
    /// A switch refused it for another reason.
    Refused,
    /// A switch cannot be reached.
    Unreachable,
}

/// What happens to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member joined a group that had failed.
    Joined,
    /// The last member that was waited for joined.
    AllJoined,
    /// A member that had joined is gone before the group is active.
    Withdrawn,
    /// Every switch has confirmed.
    Confirmed,
    /// It cannot be planned, or a switch refused it.
    Refused(Failure),
    /// A switch of its tree cannot be reached.
    SwitchLost,
    /// All switches of its tree can be reached and have their part.
    SwitchesBack,
    /// The source or the last receiver has left.
    Ended,
    /// Somebody wants it gone.
    Destroy,
    /// No switch that can be reached has it any more; for a group that is to be gone: no switch at all.
    Cleared,
}

/// An event that does not go with the phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} does not go with {phase:?}")]
pub struct NotNow {
    /// The phase.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

/// What a step leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This phase.
    Phase(Phase),
    /// The group is no more.
    Gone,
}

impl Phase {
    /// The whole table.
    ///
    /// # Errors
    /// The event does not go with the phase; nothing changes then.
    pub fn step(self, event: Event) -> Result<Next, NotNow> {
        use {After as A, Event as E, Phase as P};
        let next = match (self, event) {
            (P::Failed(_), E::Joined) => P::Registered,
            (P::Registered, E::AllJoined) => P::Installing,

            (P::Installing, E::Confirmed) => P::Active,
            (P::Installing, E::Refused(failure)) => P::Removing(A::Failed(failure)),
            (P::Installing, E::Withdrawn) => P::Removing(A::Registered),

            (P::Active, E::SwitchLost) => P::Degraded,
            (P::Degraded, E::SwitchesBack) => P::Active,
            (P::Active | P::Degraded, E::Ended) => P::Removing(A::Registered),

            (_, E::Destroy) => P::Removing(A::Gone),

            (P::Removing(A::Registered), E::Cleared) => P::Registered,
            (P::Removing(A::Failed(failure)), E::Cleared) => P::Failed(failure),
            (P::Removing(A::Gone), E::Cleared) => return Ok(Next::Gone),

            (phase, event) => return Err(NotNow { phase, event }),
        };
        Ok(Next::Phase(next))
    }

    /// Whether the group's rules belong on its switches.
    pub fn wants_rules(&self) -> bool {
        matches!(self, Self::Installing | Self::Active | Self::Degraded)
    }

    /// Whether its source may have sent already: a rule that is installed anew must then learn the PSN.
    pub fn has_run(&self) -> bool {
        matches!(self, Self::Active | Self::Degraded)
    }

    /// Whether there is work to do on the switches.
    pub fn needs_driver(&self) -> bool {
        matches!(self, Self::Installing | Self::Removing(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure {
            cause: Cause::NoRoom,
            field: "switches.leaf".into(),
            reason: "full".into(),
        }
    }

    fn phases() -> Vec<Phase> {
        let afters = [After::Registered, After::Failed(failure()), After::Gone];
        let simple = [
            Phase::Registered,
            Phase::Installing,
            Phase::Active,
            Phase::Degraded,
            Phase::Failed(failure()),
        ];
        simple.into_iter().chain(afters.map(Phase::Removing)).collect()
    }

    fn events() -> [Event; 10] {
        [
            Event::Joined,
            Event::AllJoined,
            Event::Withdrawn,
            Event::Confirmed,
            Event::Refused(failure()),
            Event::SwitchLost,
            Event::SwitchesBack,
            Event::Ended,
            Event::Destroy,
            Event::Cleared,
        ]
    }

    /// Rules come onto switches by way of Installing and leave them by way of Removing, whatever happens.
    #[test]
    fn rules_come_and_go_by_the_two_doors() {
        for phase in phases() {
            for event in events() {
                let Ok(Next::Phase(next)) = phase.clone().step(event.clone()) else {
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

    #[test]
    fn every_phase_can_be_destroyed_and_every_removal_ends() {
        for phase in phases() {
            assert_eq!(
                phase.clone().step(Event::Destroy),
                Ok(Next::Phase(Phase::Removing(After::Gone)))
            );
            if matches!(phase, Phase::Removing(_)) {
                let next = phase.step(Event::Cleared).unwrap();
                assert!(!matches!(next, Next::Phase(Phase::Removing(_))));
            }
        }
    }

    /// Once active, only leaving and destroying stop it: no report about a switch takes rules off.
    #[test]
    fn an_active_group_outlives_lost_switches() {
        let degraded = Phase::Active.step(Event::SwitchLost).unwrap();
        assert_eq!(degraded, Next::Phase(Phase::Degraded));
        assert_eq!(
            Phase::Degraded.step(Event::SwitchesBack),
            Ok(Next::Phase(Phase::Active))
        );
        assert!(Phase::Active.step(Event::Refused(failure())).is_err());
        assert!(Phase::Active.step(Event::Withdrawn).is_err());
    }
}
