//! Leases of members: calls that are open while the member is in the group.

use std::time::Duration;

use super::evict::Afterwards;
use super::record::{JoinedBy, MemberRecord, Seat};
use crate::error::Refusal;
use crate::state::{Core, Due, Ending, Entry, Event, Leased};

impl MemberRecord {
    /// The call by which it is in, and its lease.
    fn leased(&self) -> Option<(u64, Duration)> {
        let seat = self.state.joined()?;
        match seat.by {
            JoinedBy::Call(call) => Some((call, Duration::from_millis(seat.lease_ms?))),
            JoinedBy::Creation => None,
        }
    }
}

impl Core {
    /// The call of a member of a running group has ended: its lease runs, if it has one.
    pub(super) fn run_lease(&mut self, group: &str, host: &str, call: u64) {
        let kind = self.multicast(group).map(|(_, kind)| kind);
        let leased = kind.ok().and_then(|kind| kind.member(host)?.1.leased());
        let Some((_, lease)) = leased.filter(|(by, _)| *by == call) else {
            return;
        };
        tracing::info!(group, host, ?lease, "call ended: its lease runs");
        self.set_timer(group, Due::Lease(Leased::Host(host.to_owned())), lease);
    }

    /// Leases run of all members without an open call, as after a restart of the controller.
    pub(crate) fn run_leases(&mut self, group: &str) {
        let Ok((entry, kind)) = self.multicast(group) else {
            return;
        };
        if !entry.record().phase.has_run() {
            return;
        }
        let absent = kind.members.iter().filter_map(|m| {
            let (call, _) = m.leased().filter(|(call, _)| !entry.calls.contains(call))?;
            Some((m.host.clone(), call))
        });
        for (host, call) in absent.collect::<Vec<_>>() {
            self.run_lease(group, &host, call);
        }
    }

    pub(crate) fn host_lease_over(&mut self, group: &str, host: &str) {
        let Ok((entry, kind)) = self.multicast(group) else {
            return;
        };
        let leased = kind.member(host).and_then(|(_, m)| m.leased());
        let Some((_, lease)) = leased.filter(|(call, _)| !entry.calls.contains(call)) else {
            return;
        };
        let reason = format!(
            "host {host} is gone: its call to the controller ended, and it did not come back within {lease:?}"
        );
        // If it cannot be stored, its lease runs anew once the store works: until then it could not come back.
        if let Err(error) = self.lose(group, host, reason) {
            tracing::error!(group, host, %error, "cannot take out a member");
        }
    }

    /// Whether the connection of a member is dead: its lease runs.
    pub(super) fn is_away(&self, group: &str, seat: &Seat) -> bool {
        let JoinedBy::Call(call) = seat.by else {
            return false;
        };
        let is_open = |e: &Entry| e.calls.contains(&call);
        seat.lease_ms.is_some() && !self.groups.get(group).is_some_and(is_open)
    }

    /// The connection of a member of a running group is dead.
    pub(super) fn lose(&mut self, group: &str, host: &str, reason: String) -> Result<(), Refusal> {
        let fails = self.multicast(group)?.1.settings.fails_with_receiver;
        self.lose_or_fail(group, host, reason, fails)
    }

    /// A member of a running group is lost. `fails`: so is the group, if it is a receiver.
    pub(super) fn lose_or_fail(
        &mut self,
        group: &str,
        host: &str,
        reason: String,
        fails: bool,
    ) -> Result<(), Refusal> {
        let (entry, kind) = self.multicast(group)?;
        if !entry.record().phase.has_run() {
            return Ok(());
        }
        let is_receiver = kind.settings.any_source.is_some() || kind.source != host;
        if self.may_warn_of(group) {
            tracing::warn!(group, host, reason, "member lost");
        }
        let (entry, kind) = self.multicast(group)?;
        if fails && is_receiver && !kind.is_waiting(host) {
            let ending = Ending::failed(entry.record().generation, None, None, reason);
            return self.step(group, Event::Lost, Some(ending));
        }
        if kind.needs(host) {
            return self.end_run(group, reason);
        }
        self.evict_host(group, host, Afterwards::Member, &reason)?;
        self.change_member(group, host, |member| member.put_out = Some(reason))
    }
}
