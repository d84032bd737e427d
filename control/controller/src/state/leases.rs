//! Leases of members of groups of any kind: whose call has ended is waited for so long.

use std::time::Duration;

use tokio::time::Instant;

use crate::state::core::Core;
use crate::state::effect::TimerGuard;

/// Whose lease it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leased {
    Rank(u16),
    Host(String),
}

/// The timer of a lease.
#[derive(Debug)]
pub(crate) struct Timer {
    /// When the lease ends.
    ends: Instant,
    /// When the timer fires that stands for it: not later.
    fires: Instant,
    _guard: TimerGuard,
}

impl Core {
    /// The lease of a member begins to run. One timer stands for it, however often that happens.
    pub(crate) fn run_timer(&mut self, group: &str, who: Leased, lease: Duration) {
        let ends = self.now + lease;
        let Some(entry) = self.groups.get_mut(group) else {
            return;
        };
        match entry.live.leases.get_mut(&who) {
            Some(timer) if timer.fires <= ends => timer.ends = ends,
            _ => self.start_timer(group, who, ends),
        }
    }

    fn start_timer(&mut self, group: &str, who: Leased, ends: Instant) {
        let (pause, whose) = (ends.duration_since(self.now), who.clone());
        let guard = self.timer(group, pause, move |core, group| {
            core.timer_fires(group, whose, ends)
        });
        if let Some(entry) = self.groups.get_mut(group) {
            let timer = Timer {
                ends,
                fires: ends,
                _guard: guard,
            };
            entry.live.leases.insert(who, timer);
        }
    }

    fn timer_fires(&mut self, group: &str, who: Leased, at: Instant) {
        let Some(entry) = self.groups.get_mut(group) else {
            return;
        };
        let ends = match entry.live.leases.get(&who) {
            Some(timer) if timer.fires == at => timer.ends,
            // Another one stands for it.
            _ => return,
        };
        if ends > at {
            return self.start_timer(group, who, ends);
        }
        entry.live.leases.remove(&who);
        match who {
            Leased::Rank(rank) => self.rank_lease_over(group, rank),
            Leased::Host(host) => self.host_lease_over(group, &host),
        }
    }
}
