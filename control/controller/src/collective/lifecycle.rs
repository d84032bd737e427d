//! The life of a collective group: one table, and nothing that acts.
//!
//! ```text
//!             all ranks in             all switches confirm
//!  Gathering -------------> Installing --------------------> Active ----------> Broken
//!   ^   ^  ^                 |    |                            |    ranks disagree |
//!   |   |  |     rank gone,  |    | refused    rank's lease ran|    or join again  | time is up,
//!   |   |  +---- cleared <---+    |     out, switch or link    |                   | or a rank is lost
//!   |   |    placed elsewhere     |     lost                   |                   |
//!   |   |                         v                            v                   v
//!   |   +- a rank joins - Refused <- cleared - Removing - cleared -> Failed -------+
//!   +------------------------------------------------------------------+ a rank joins
//! ```
//!
//! From anywhere, destroying leads to Removing and from there to nothing. Once all have left, an active group is removed
//! and gathers again. EPIC 3.3.1 has the same turn of things, and leaves failures to groups that are made anew (3.4).

use serde::{Deserialize, Serialize};

/// Where in its life a collective group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its ranks.
    Gathering,
    /// All ranks are in: it is placed, and the switches are programmed.
    Installing,
    /// Every switch has confirmed.
    Active,
    /// It has failed, but its rules stay for a moment: switches still have to tell ranks why.
    Broken,
    /// Is taken off the switches; then comes what is named.
    Removing(After),
    /// It was active and has failed; its memory is free. Waits for ranks that join again.
    Failed,
    /// It cannot be had. Waits for ranks that try again.
    Refused,
}

/// What follows on [`Phase::Removing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// It waits for its ranks.
    Gathering,
    /// It has failed.
    Failed,
    /// It was refused.
    Refused,
    /// It is forgotten.
    Gone,
}

/// What happens to a collective group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank joined a group that had failed or was refused.
    Joined,
    /// The last rank that was waited for joined.
    AllJoined,
    /// A rank is gone before the group is active.
    Withdrawn,
    /// A switch did not take its part, and there is another way to place the group.
    Elsewhere,
    /// Every switch has confirmed.
    Confirmed,
    /// It cannot be placed, or a switch refused it.
    Refused,
    /// The ranks disagree, a queue pair ended, or a rank joins again: this generation is over.
    Broke,
    /// The time in which the others were to hear of it is up.
    TimeUp,
    /// A rank's lease ran out, a switch lost its part, or a link of the tree is down.
    Lost,
    /// All ranks have left.
    Ended,
    /// Somebody wants it gone.
    Destroy,
    /// No switch that can be reached has it any more; for a group that is to be gone: no switch at all.
    Cleared,
}

/// An event that does not go with the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} does not go with {phase:?}")]
pub struct NotNow {
    /// The phase.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

/// What a step leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            (P::Failed | P::Refused, E::Joined) => P::Gathering,
            (P::Gathering, E::AllJoined) => P::Installing,

            (P::Installing, E::Confirmed) => P::Active,
            (P::Installing, E::Refused) => P::Removing(A::Refused),
            (P::Installing, E::Withdrawn | E::Elsewhere) => P::Removing(A::Gathering),

            (P::Active, E::Broke) => P::Broken,
            (P::Active | P::Broken, E::Lost) => P::Removing(A::Failed),
            (P::Broken, E::TimeUp) => P::Removing(A::Failed),
            // All have joined again: there is nobody left to be told.
            (P::Broken, E::AllJoined) => P::Removing(A::Gathering),
            (P::Active | P::Broken, E::Ended) => P::Removing(A::Gathering),

            (_, E::Destroy) => P::Removing(A::Gone),

            (P::Removing(A::Gathering), E::Cleared) => P::Gathering,
            (P::Removing(A::Failed), E::Cleared) => P::Failed,
            (P::Removing(A::Refused), E::Cleared) => P::Refused,
            (P::Removing(A::Gone), E::Cleared) => return Ok(Next::Gone),

            (phase, event) => return Err(NotNow { phase, event }),
        };
        Ok(Next::Phase(next))
    }

    /// Whether the group's rules belong on its switches.
    pub fn wants_rules(self) -> bool {
        matches!(self, Self::Installing | Self::Active | Self::Broken)
    }

    /// Whether a switch that lacks its part has lost it, and with it what ranks had sent.
    pub fn has_run(self) -> bool {
        matches!(self, Self::Active | Self::Broken)
    }

    /// Whether there is work to do on the switches.
    pub fn needs_driver(self) -> bool {
        matches!(self, Self::Installing | Self::Removing(_))
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Installing => "installing",
            Self::Active => "active",
            Self::Broken => "broken",
            Self::Removing(_) => "removing",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 10] = [
        Phase::Gathering,
        Phase::Installing,
        Phase::Active,
        Phase::Broken,
        Phase::Failed,
        Phase::Refused,
        Phase::Removing(After::Gathering),
        Phase::Removing(After::Failed),
        Phase::Removing(After::Refused),
        Phase::Removing(After::Gone),
    ];
    const EVENTS: [Event; 12] = [
        Event::Joined,
        Event::AllJoined,
        Event::Withdrawn,
        Event::Elsewhere,
        Event::Confirmed,
        Event::Refused,
        Event::Broke,
        Event::TimeUp,
        Event::Lost,
        Event::Ended,
        Event::Destroy,
        Event::Cleared,
    ];

    /// Rules come onto switches by way of Installing and leave them by way of Removing, whatever happens.
    #[test]
    fn rules_come_and_go_by_the_two_doors() {
        for phase in PHASES {
            for event in EVENTS {
                let Ok(Next::Phase(next)) = phase.step(event) else {
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
        for phase in PHASES {
            assert_eq!(
                phase.step(Event::Destroy),
                Ok(Next::Phase(Phase::Removing(After::Gone)))
            );
            if matches!(phase, Phase::Removing(_)) {
                let next = phase.step(Event::Cleared).unwrap();
                assert!(!matches!(next, Next::Phase(Phase::Removing(_))));
            }
        }
    }

    /// A generation that has run never runs again: rules that were broken are removed before others are installed.
    #[test]
    fn a_broken_group_never_becomes_active_by_itself() {
        for event in EVENTS {
            if let Ok(Next::Phase(next)) = Phase::Broken.step(event) {
                assert!(matches!(next, Phase::Removing(_)), "{event:?}");
            }
        }
    }
}
