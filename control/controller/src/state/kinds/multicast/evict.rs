//! Members that are put out of their group while the others go on.
//!
//! A group that runs gets rules without the member, as a new generation in the place of the old one: its addresses, the
//! queue pairs of the others and their PSNs stay, and a switch that replaces a running rule keeps what the paths that are
//! left have acknowledged. One that has lost its rule learns it from the next data and the answers to it: until then it
//! acknowledges nothing, so M1 and M2 hold.

use std::sync::Arc;

use super::{late, prune};
use crate::error::Refusal;
use crate::state::{Core, Event, Joining, Phase};

/// Whether a member that was put out stays a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It is none any more.
    Gone,
    /// It joins again when the group waits for its members.
    Member,
}

impl Core {
    /// Puts a receiver out: an operator or its lease does, or it leaves. `why`: if the run ends with it.
    pub(crate) fn evict_host(
        &mut self,
        group: &str,
        host: &str,
        afterwards: Afterwards,
        why: &str,
    ) -> Result<(), Refusal> {
        let (record, member) = self.member(group, host)?;
        let phase = record.phase;
        let (_, kind) = self.multicast(group)?;
        let others = kind
            .members
            .iter()
            .any(|m| m.host != kind.source && m.host != host);
        if kind.source == host || !others && afterwards == Afterwards::Gone {
            let what = match kind.source == host {
                true => "source",
                false => "last receiver",
            };
            let reason = format!(
                "host {host:?} is the {what} of group {group:?}, which does not go on without it: destroy the group"
            );
            return Err(Refusal::not_now("member", reason));
        }
        let has_rules = phase.has_run() && member.state.seat().is_some() && !kind.is_outside(host);
        let topology = (!kind.outside.is_empty()).then(|| self.facts.topology());
        let ends = has_rules && kind.settings.any_source.is_some();
        self.change(group, |r| {
            let Some(kind) = r.multicast_mut() else { return };
            if afterwards == Afterwards::Gone {
                Arc::make_mut(&mut kind.members).retain(|m| m.host != host);
            } else if let Some(member) = kind.member_mut(host) {
                member.state = Joining::Expected;
            }
            if let Some(topology) = &topology {
                kind.forget_outside(host, topology);
            }
            // Without receivers it ends at once.
            if let Some(before) = r.plan.clone().filter(|_| has_rules && others && !ends) {
                late::replace(r, &before, prune::without(&before, host));
            }
        })?;
        if phase == Phase::Installing {
            return self.step(group, Event::Withdrawn, None);
        }
        if ends {
            return self.end_run(group, why);
        }
        if phase.has_run() && self.multicast(group)?.1.is_over() {
            return self.end_run(group, format!("no receivers are left: {why}"));
        }
        if has_rules {
            self.update(group, false);
        }
        self.settle(group)
    }
}
